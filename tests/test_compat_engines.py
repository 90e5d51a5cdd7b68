"""TensorRT-LLM's weight-only names: what a prepared weight holds, and products with it."""

import pytest
import torch
from helpers import assert_bits, refuses
from torch import Tensor

import scaled_mm
from scaled_mm import compat, layouts

K, N, G = 128, 32, 64
MODES = {"int8": (torch.int8, 8), "int4": (torch.quint4x2, 4)}
modes = pytest.mark.parametrize("mode", MODES)
SMS = (75, 80, 89, 90, 100, 120)
DTYPES = (torch.float16, torch.bfloat16)


def values(bits: int) -> Tensor:
    half = 2 ** (bits - 1)
    generator = torch.Generator().manual_seed(bits)
    return torch.randint(-half, half, (K, N), generator=generator, dtype=torch.int8)


def prepared(bits: int, sm: int) -> Tensor:
    plain = values(bits) if bits == 8 else layouts.pack_int4(values(bits))
    mode = torch.int8 if bits == 8 else torch.quint4x2
    return compat.preprocess_weights_for_mixed_gemm(plain, mode, torch.float16, sm)


def random(*shape: int, dtype: torch.dtype = torch.float16, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


@modes
@pytest.mark.parametrize("sm", SMS)
def test_a_prepared_weight_is_what_it_was_made_of(mode: str, sm: int) -> None:
    dtype, bits = MODES[mode]
    for kind in DTYPES:
        per_channel, grouped = random(N, dtype=kind), random(K // G, N, dtype=kind)
        zeros = random(K // G, N, dtype=kind, seed=1)
        for scales, offset in ((per_channel, None), (grouped, None), (grouped, zeros)):
            made = compat.mixed_weight(prepared(bits, sm), dtype, scales, offset, sm)
            q, s, z, order = made.unpack()
            assert_bits(q, values(bits))
            assert_bits(s, scales.reshape(-1, N))
            assert_bits(z, offset)
            assert order is None and (made.bits, made.shape) == (bits, (K, N))
            rows = made.group
            w = values(bits).double() * s.double().repeat_interleave(rows, 0)
            if offset is not None:
                w = w + offset.double().repeat_interleave(rows, 0)
            product = scaled_mm.mixed_mm(torch.eye(K, dtype=kind), made)
            assert torch.equal(product, w.to(kind))  # 0 may have either sign


@modes
def test_the_product_with_a_scale_for_each_channel(mode: str) -> None:
    dtype, bits = MODES[mode]
    w = random(K, N)
    weight, scale = compat.symmetric_quantize_last_axis_of_batched_matrix(w, dtype, 80)
    made = compat.mixed_weight(weight, dtype, scale, sm_=80)
    for shape in ((5, K), (2, 3, K), (K,)):
        x = random(*shape, seed=2)
        got = compat.weight_only_quant_gemm(x, weight, dtype, scale, torch.float16, sm_=80)
        assert_bits(got, scaled_mm.mixed_mm(x, made))
        assert_bits(compat.weight_only_quant_gemm(x, made, dtype, scale, torch.float16), got)
        error = (got.double() - x.double() @ w.double()).norm()
        assert error < {8: 0.01, 4: 0.2}[bits] * (x.double() @ w.double()).norm()


@pytest.mark.parametrize("with_zeros", [False, True])
def test_the_product_in_groups(with_zeros: bool) -> None:
    scales, bias = random(K // G, N) / 8, random(N, seed=3)
    zeros = random(K // G, N, seed=4) if with_zeros else None
    weight, x = prepared(4, 90), random(3, K, seed=2)
    made = compat.mixed_weight(weight, torch.quint4x2, scales, zeros, 90)
    for given in (weight, made):
        got = compat.finegrained_mixed_dtype_gemm(
            x, given, scales, G, with_zeros, torch.float16, bias=bias, zeros=zeros, sm_=90
        )
        assert_bits(got, scaled_mm.mixed_mm(x, made, bias=bias))


X, SCALES = random(2, K), random(K // G, N)
PRODUCT = {"activation": X, "weight": prepared(8, 80), "weight_dtype": torch.int8, "sm_": 80}
PRODUCT |= {"weight_scale": random(N), "output_dtype": torch.float16}
REFUSED = {
    "output_dtype must be the activation's float16, got bfloat16": {"output_dtype": DTYPES[1]},
    "to_userbuffers must be False, got True": {"to_userbuffers": True},
    "quant_mode must be int8 or quint4x2, got uint8": {"weight_dtype": torch.uint8},
    r"weight must be of one layer, \[K, N\], got shape \(1, 128, 32\)": {
        "weight": prepared(8, 80)[None]
    },
}
test_refused = refuses(REFUSED, compat.weight_only_quant_gemm, **PRODUCT)
GROUPED = {"input": X, "weight": prepared(4, 80), "scales": SCALES, "group_size": G, "sm_": 80}
GROUPED |= {"has_zero_point": False, "output_dtype": torch.float16}
GROUPED_REFUSED = {
    "alpha must be None or 1 with 16-bit activations, got 0.5": {"alpha": 0.5},
    "zeros must be given just with has_zero_point=True, got no zeros": {"has_zero_point": True},
    ".*just with has_zero_point=True, got zeros": {"zeros": SCALES},
    "group_size must be K / rows of scales = 64, got 128": {"group_size": 128},
}
test_groups_are_refused = refuses(GROUPED_REFUSED, compat.finegrained_mixed_dtype_gemm, **GROUPED)


def test_what_is_no_tensor() -> None:
    with pytest.raises(TypeError, match=r"^weight must be a Tensor, got list$"):
        compat.mixed_weight([1], torch.int8, random(N), sm_=80)
