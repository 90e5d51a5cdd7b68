"""Whatever an argument is: the newest functions take it, or raise ValueError or TypeError."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from argument_cases import (
    BYTES,
    CALLS,
    HALF,
    NUMBERS,
    PLAIN,
    WEIGHT,
    G,
    K,
    N,
    halves,
    quantised,
    tensors,
    whole,
    words,
)  # fmt: skip
from helpers import assert_bits
from torch import Tensor

import scaled_mm
from scaled_mm import layouts
from scaled_mm.nn import ScaledLinear, WeightOnlyLinear


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", CALLS)
def test_any_argument(name: str) -> None:
    """Nothing but the two errors that are promised, one line each, neither a crash."""
    function, good = CALLS[name]
    function(**good)
    refused = 0
    for argument in good:
        for value in (*PLAIN, *(() if argument in NUMBERS else tensors())):
            try:
                function(**{**good, argument: value})
            except (ValueError, TypeError) as refusal:
                assert str(refusal)
                refused += 1
            except Exception as error:
                error.add_note(f"{name}: {argument}={value!r}")
                raise
    assert refused > 10 * len(good)


# ---- What was found, by name ---------------------------------------------------------------------

REFUSED: dict[str, tuple[str, dict[str, Any], type[Exception], str]] = {
    "awq-scalar": (
        "from_awq",
        {"qzeros": words()},
        ValueError,
        "qzeros must be int32 of two dimensions, got int32 of shape ()",
    ),
    "gptq-int64": (
        "from_gptq-8",
        {"qweight": words(8, N).long()},
        ValueError,
        "qweight must be int32 of two dimensions, got int64 of shape (8, 16)",
    ),
    "gptq-version-truth": (
        "from_gptq",
        {"version": True},
        ValueError,
        "version must be 1 (zeros stored less 1) or 2, got True",
    ),
    "gptq-columns-beyond-memory": (
        "from_gptq",
        {"qweight": words(1, 1).expand(8, 2**40)},
        ValueError,
        f"qzeros must hold {2**40} values of 4 bits and no more, got (2, 2)",
    ),
    "features": (
        "WeightOnlyLinear",
        {"in_features": 2**62},
        ValueError,
        f"in_features must be in 0..{2**31 - 1}, got {2**62}",
    ),
    "features-of-float": (
        "ScaledLinear",
        {"out_features": 4.0},
        TypeError,
        "out_features must be an int, got float",
    ),
    "by-hand-group": ("by-hand", {"group": 0}, ValueError, "group must divide K=64, got 0"),
    "by-hand-rest": ("by-hand", {"group": 3}, ValueError, "group must divide K=64, got 3"),
    "by-hand-layout": (
        "by-hand",
        {"layout": 3},
        ValueError,
        "layout must be one of 0, 1, 2, got 3",
    ),
    "by-hand-quantised": (
        "by-hand",
        {"data": quantised()},
        ValueError,
        "data must be a dense tensor, got a quantised tensor (torch.per_tensor_affine)",
    ),
    "by-hand-every-second": (
        "by-hand",
        {"data": WEIGHT.data.repeat_interleave(2)[::2]},
        ValueError,
        "data must be a buffer of pack_weight, float16 or bfloat16 of shape (",
    ),
    "by-hand-between": (
        "by-hand",
        {"data": torch.cat((WEIGHT.data[:1], WEIGHT.data))[1:]},
        ValueError,
        "data must be a buffer of pack_weight, float16 or bfloat16 of shape (",
    ),
    "by-hand-order-short": (
        "by-hand-ordered",
        {"order": torch.arange(K - 1, dtype=torch.int32)},
        ValueError,
        "order must be int32 of shape (64,) on the device of data (cpu), got int32 of shape (63,)",
    ),
    "by-hand-order": (
        "by-hand-ordered",
        {"order": torch.full((K,), K, dtype=torch.int32)},
        ValueError,
        "order must hold each of 0..63, got index_copy_(): index 64 is out of bounds",
    ),
    "gptq-more-zeros": (
        "from_gptq",
        {"qzeros": words(2, 4)},
        ValueError,
        "qzeros must hold 16 values of 4 bits and no more, got (",
    ),
    "gptq-quantised": (
        "from_gptq-8",
        {"qweight": quantised()},
        ValueError,
        "qweight must be int32 of two dimensions, got qint8",
    ),
    "packed-fewer-rows": (
        "from_compressed_tensors",
        {"k": 32},
        ValueError,
        "weight_packed must hold 32 values of 4 bits and no more, got (",
    ),
    "packed-k-negative": (
        "from_compressed_tensors",
        {"k": -8},
        ValueError,
        "k must be the number of input features, got -8",
    ),
    "packed-more-zeros": (
        "from_compressed_tensors",
        {"weight_zero_point": words(K, 2)},
        ValueError,
        "weight_zero_point must hold 16 values of 4 bits and no more, got (",
    ),
    "packed-scale-vector": (
        "from_compressed_tensors",
        {"weight_scale": halves(N)},
        ValueError,
        "weight_scale must be [N, K/G], got shape (16,)",
    ),
    "bits-float": ("pack_weight", {"bits": 4.0}, ValueError, "bits must be 4 or 8, got 4.0"),
    "q-on-meta": (
        "pack_weight",
        {"q": torch.ones(K, N, dtype=torch.int8, device="meta")}
        | {"scales": torch.ones(2, N, dtype=HALF, device="meta")},
        ValueError,
        "q must have values, in -8..7, got a tensor on meta",
    ),
    "q-sparse": (
        "pack_weight",
        {"q": whole(K, N).to_sparse()},
        ValueError,
        "q must be a dense tensor, got layout torch.sparse_coo",
    ),
    "g-idx-bool": (
        "pack_weight",
        {"g_idx": torch.arange(K) >= G},
        ValueError,
        "g_idx must be an integer tensor of shape (64,), got bool of shape (64,)",
    ),
    "g-idx-device": (
        "pack_weight",
        {"g_idx": torch.ones(K, dtype=torch.int32, device="meta")},
        ValueError,
        "g_idx must be on the device of q (cpu), got meta",
    ),
    "eps-string": ("rms_norm", {"eps": "small"}, TypeError, "eps must be a number, got str"),
    "symmetric": ("gelu", {"symmetric": "no"}, TypeError, "symmetric must be a bool, got str"),
    "rotate": ("gelu", {"rotate": "128"}, TypeError, "rotate must be an int or None, got str"),
    "rotate-true": ("gelu", {"rotate": True}, TypeError, "rotate must be an int or None, got bool"),
    "normed": ("layer_norm", {"normed": 1}, TypeError, "normed must be a bool, got int"),
    "per-token": (
        "quantize_int8",
        {"per_token": "tensor"},
        TypeError,
        "per_token must be a bool, got str",
    ),
    "x-integers": (
        "forward",
        {"x": torch.ones(3, K, dtype=torch.int64)},
        ValueError,
        "x must be floating, got int64",
    ),
    "x-none": ("forward", {"x": None}, TypeError, "x must be a Tensor, got NoneType"),
    "weight-plain": (
        "from_weight",
        {"weight": whole(K, N)},
        TypeError,
        "weight must be a MixedWeight, got Tensor",
    ),
    "bias-list": ("from_weight", {"bias": [1.0]}, TypeError, "bias must be a Tensor, got list"),
    "smooth-empty": (
        "from_linear",
        {"smooth": torch.ones(0)},
        ValueError,
        "smooth must be positive and finite, of shape (64,), got torch.float32 of shape (0,)",
    ),
    "linear": ("from_linear", {"linear": WEIGHT}, TypeError, "linear must be a torch.nn.Linear,"),
    "sm-nan": ("layout_of", {"sm": float("nan")}, TypeError, "sm must be an int, got float"),
    "layout": ("restore", {"layout": 80}, TypeError, "layout must be a Layout (see"),
    "mode": ("compat.gemm", {"weight_dtype": []}, TypeError, "quant_mode must be a torch.dtype,"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    call, change, error, message = REFUSED[name]
    function, good = CALLS[call]
    with pytest.raises(error, match=f"^{re.escape(message)}"):
        function(**{**good, **change})


def test_scales_of_a_weight_without_rows() -> None:
    """It has no groups, whatever rows of scales it is given with: those of a channel, too."""
    for scales in (halves(N), halves(1, N), halves(3, N), halves(0, N)):
        w = scaled_mm.pack_weight(whole(0, N), scales, bits=4)
        assert w.group == 0 and w.unpack().scales.shape == (0, N)
        assert_bits(scaled_mm.mixed_mm(halves(2, 0), w), torch.zeros(2, N, dtype=HALF))


def test_scales_that_are_kept_negated() -> None:
    scales = halves(2, N)
    lazily = scaled_mm.pack_weight(whole(K, N), torch._neg_view(scales), bits=4)
    assert_bits(lazily.unpack().scales, -scales)


TANGENTS: dict[str, Callable[[Tensor], Tensor]] = {
    "mixed_mm": lambda x: scaled_mm.mixed_mm(x, WEIGHT),
    "pre_scale": lambda x: scaled_mm.mixed_mm(halves(3, K), WEIGHT, pre_scale=x[0]),
    "pack_weight": lambda x: scaled_mm.pack_weight(whole(K, K), x[:2], bits=8).data,
    "awq_gemm": lambda x: scaled_mm.awq_gemm(x, words(K, 2), halves(2, N), words(2, 2)),
    "scaled_mm": lambda x: scaled_mm.scaled_mm(*[*BYTES.values()][:3], x[0, :1].float()),
    "residual": lambda x: scaled_mm.scaled_mm(**BYTES, residual=x[:, :N].float()),
    "quantize_int8": lambda x: scaled_mm.quantize_int8(x)[1],
    "rms_norm": lambda x: scaled_mm.rms_norm_quantize_int8(x, None, 1e-5)[1],
    "quantize_symmetric": lambda x: layouts.pack_int4(x.to(torch.int8)).to(HALF) * 0 + x[:, ::2],
    "WeightOnlyLinear": WeightOnlyLinear.from_weight(WEIGHT),
    "ScaledLinear": ScaledLinear.from_linear(torch.nn.Linear(K, N)),
}


@pytest.mark.parametrize("name", TANGENTS)
def test_forward_mode_derivatives_are_refused(name: str) -> None:
    """The ops do not see a tangent: it would count as zero, without a word."""
    x, function = halves(3, K), TANGENTS[name]
    if name == "quantize_symmetric":  # what has nothing to do with the tangent is as ever
        assert torch.equal(torch.func.jvp(function, (x,), (x,))[1], x[:, ::2])
        return
    with pytest.raises(ValueError, match=r"^\w+ must not have a tangent .*, got a dual tensor$"):
        torch.func.jvp(function, (x,), (x,))
    with torch.autograd.forward_ad.dual_level():  # a tensor without a tangent is as ever
        assert_bits(function(x), function(x.clone()))
