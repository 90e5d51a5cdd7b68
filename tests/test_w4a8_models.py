"""W4A8 layers: `WeightOnlyLinear` with int8 activations (models: test_w4a8_files.py)."""

import pytest
import torch
from helpers import assert_bits, refuses
from torch import nn

from scaled_mm import reference
from scaled_mm.nn import WeightOnlyLinear
from scaled_mm.parallel.shares import Share, Side
from scaled_mm.parallel.weight_only import weight_only_part

LINEAR = nn.Linear(256, 48).requires_grad_(False)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("int8_input", ["symmetric", "asymmetric"])
def test_a_layer_has_the_bits_of_the_reference(int8_input: str, dtype: torch.dtype) -> None:
    x, symmetric = torch.randn(2, 5, 256).to(dtype) + 0.5, int8_input == "symmetric"
    for more in ({}, {"activation": "gelu"}, {"smooth": torch.rand(256) + 0.5}):
        options = {"group_size": 32, "symmetric": symmetric, "int8_input": int8_input}
        layer = WeightOnlyLinear.from_linear(LINEAR, bits=4, **options, **more)
        scaled = x if layer.pre_scale is None else x.float() * layer.pre_scale
        q, scale, azp = reference.quantize_int8(scaled, symmetric=symmetric)
        ending = {"bias": layer.bias, "activation": layer.activation, "out_dtype": dtype}
        weight = layer.filled().unpack()._asdict()
        expected = reference.w4a8_mm(q, scale_a=scale, azp=azp, **weight, **ending)
        assert_bits(layer(x), expected, more)
        out = torch.empty_like(expected)
        assert layer(x, out=out) is out
        assert_bits(out, expected)
        torch.compiler.reset()
        assert_bits(torch.compile(layer, fullgraph=True, backend="aot_eager")(x), expected)
    empty = WeightOnlyLinear(256, 48, bits=4, group_size=32, int8_input=int8_input, device="meta")
    assert empty(x.to("meta")).shape == expected.shape


OPTIONS = {
    "int8_input must be None, symmetric or asymmetric, got yes": {"int8_input": "yes"},
    "bits must be 4 with int8_input, got 8": {"int8_input": "symmetric", "bits": 8},
    "group_size must be a multiple of 32": {"int8_input": "symmetric", "group_size": 16},
}
ZEROS = {"zero must be none or integer": {"int8_input": "symmetric", "zero": "float"}}
SIZES = {"in_features": 256, "out_features": 48}
test_a_layer_refuses = refuses(OPTIONS | ZEROS, WeightOnlyLinear, bits=4, **SIZES)
test_of_a_linear = refuses(OPTIONS, WeightOnlyLinear.from_linear, linear=LINEAR, bits=4)


def test_what_no_gradient_passes_and_what_is_not_cut() -> None:
    layer = WeightOnlyLinear.from_linear(LINEAR, bits=4, int8_input="symmetric")
    with pytest.raises(ValueError, match=r"^x must not require grad"):
        layer(torch.randn(3, 256, requires_grad=True))
    with pytest.raises(ValueError, match=r"^int8_input must be None in a layer that is cut"):
        weight_only_part(layer, Share(Side.OUT, 48, 2, 0, 24))
