"""Whatever an argument is: the newest functions take it, or raise ValueError or TypeError."""

from __future__ import annotations

import itertools
import re
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from helpers import assert_bits
from torch import Tensor

import scaled_mm
from scaled_mm import MixedWeight, compat, layouts
from scaled_mm.nn import AWQLinear, ScaledLinear, WeightOnlyLinear

K, N, G = 64, 16, 32
HALF = torch.float16


def whole(*shape: int, low: int = -8, high: int = 8) -> Tensor:
    made = torch.Generator().manual_seed(sum(shape))
    return torch.randint(low, high, shape, generator=made).to(torch.int8)


def halves(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).to(HALF)


def words(*shape: int) -> Tensor:
    made = torch.Generator().manual_seed(sum(shape))
    return torch.randint(-(2**31), 2**31, shape, generator=made).to(torch.int32)


def quantised() -> Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch means to drop these
        return torch.quantize_per_tensor(torch.ones(K, N), 0.1, 0, torch.qint8)


WEIGHT = scaled_mm.pack_weight(whole(K, N), halves(K // G, N), bits=4)
ORDERED = scaled_mm.pack_weight(
    whole(K, N), halves(K // G, N), bits=8, g_idx=torch.arange(K) % (K // G)
)
GROUPED = scaled_mm.quantize_weight_grouped(halves(K, N), bits=4, group_size=G)
LAYOUT = layouts.layout_of(80, bits=8)
PREPARED = layouts.preprocess_weights_for_mixed_gemm(whole(K, K), LAYOUT)
NIBBLES = layouts.preprocess_weights_for_mixed_gemm(whole(K, K), layouts.layout_of(80, bits=4))
PRODUCER: dict[str, Any] = {"scale": None, "azp": None, "symmetric": True, "smooth": None}
BYTES: dict[str, Any] = {
    "a": whole(3, K), "b": whole(K, N), "scale_a": torch.ones(1), "scale_b": torch.ones(1),
}  # fmt: skip


def by_hand(x: Tensor, **fields: Any) -> None:
    """All that a weight is asked, of one that `pack_weight` did not make."""
    weight = MixedWeight(**fields)
    for ask in (weight.unpack, weight.dequantize, weight.g_idx):
        ask()
    scaled_mm.mixed_mm(x, weight)


CALLS: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
    "pack_weight": (
        scaled_mm.pack_weight,
        {"q": whole(K, N), "scales": halves(2, N), "bits": 4, "zeros": None, "g_idx": None},
    ),
    "mixed_mm": (
        scaled_mm.mixed_mm,
        {"x": halves(3, K), "w": WEIGHT, "bias": None, "activation": None, "pre_scale": None}
        | {"out": None},
    ),
    "from_awq": (
        MixedWeight.from_awq,
        {"qweight": words(K, 2), "scales": halves(2, N), "qzeros": words(2, 2)},
    ),
    "from_gptq": (
        MixedWeight.from_gptq,
        {"qweight": words(8, N), "scales": halves(2, N), "qzeros": words(2, 2), "g_idx": None}
        | {"bits": 4, "version": 2},
    ),
    "from_gptq-8": (
        MixedWeight.from_gptq,
        {"qweight": words(16, N), "scales": halves(2, N), "qzeros": words(2, 4), "bits": 8}
        | {"version": 1},
    ),
    "from_compressed_tensors": (
        MixedWeight.from_compressed_tensors,
        {"weight_packed": words(N, 8), "weight_scale": halves(N, 2), "weight_zero_point": None}
        | {"g_idx": None, "bits": 4, "k": K},
    ),
    "from_tensorrt_llm": (
        MixedWeight.from_tensorrt_llm,
        {"prepared": PREPARED, "scales": halves(K), "zeros": None, "layout": LAYOUT},
    ),
    "rms_norm": (
        scaled_mm.rms_norm_quantize_int8,
        {"x": halves(3, K), "weight": halves(K), "eps": 1e-5, "residual": None, "normed": True}
        | PRODUCER,
    ),
    "layer_norm": (
        scaled_mm.layer_norm_quantize_int8,
        {"x": halves(3, K), "weight": None, "bias": halves(K), "eps": 1e-5} | PRODUCER,
    ),
    "silu_mul": (scaled_mm.silu_mul_quantize_int8, {"x": halves(3, K), "times": None} | PRODUCER),
    "gelu": (
        scaled_mm.gelu_quantize_int8,
        {"x": halves(3, K), "approximate": "none", "times": None} | PRODUCER,
    ),
    "quantize_int8": (
        scaled_mm.quantize_int8,
        {"x": halves(3, K), "scale": None, "azp": None, "symmetric": True, "per_token": True},
    ),
    "interleave_gate_up": (scaled_mm.interleave_gate_up, {"gate": halves(N), "up": halves(N)}),
    "scaled_mm": (
        scaled_mm.scaled_mm,
        BYTES | {"residual": None, "activation": None, "out_dtype": HALF, "out": None},
    ),
    "scaled_mm-8": (
        scaled_mm.scaled_mm,
        BYTES
        | {"activation": "swiglu", "out_dtype": torch.int8, "out_scale": torch.ones(1)}
        | {"out_azp": None},
    ),
    "quantize_weight_grouped": (
        scaled_mm.quantize_weight_grouped,
        {"w": halves(K, N), "bits": 4, "group_size": G, "dtype": None},
    ),
    "WeightOnlyLinear": (
        WeightOnlyLinear,
        {"in_features": K, "out_features": N, "bits": 8, "group_size": -1, "zero": "none"}
        | {"activation": None, "dtype": torch.bfloat16},
    ),
    "from_linear": (
        WeightOnlyLinear.from_linear,
        {"linear": torch.nn.Linear(K, N), "bits": 8, "group_size": -1, "dtype": None}
        | {"smooth": None, "activation": None},
    ),
    "from_grouped": (
        WeightOnlyLinear.from_grouped,
        {"weight": GROUPED, "bits": 4, "g_idx": None, "bias": None, "pre_scale": None},
    ),
    "from_weight": (
        WeightOnlyLinear.from_weight,
        {"weight": WEIGHT, "bias": None, "pre_scale": None, "activation": None},
    ),
    "forward": (WeightOnlyLinear.from_weight(WEIGHT), {"x": halves(3, K), "out": None}),
    "by-hand": (by_hand, {**vars(WEIGHT), "x": halves(3, K)}),
    "by-hand-ordered": (by_hand, {**vars(ORDERED), "x": halves(3, K)}),
    "ScaledLinear": (ScaledLinear, {"in_features": K, "out_features": N}),
    "AWQLinear": (AWQLinear, {"in_features": K, "out_features": N, "group_size": G}),
    "layout_of": (layouts.layout_of, {"sm": 80, "bits": 4, "activation_bits": 16}),
    "prepare": (layouts.preprocess_weights_for_mixed_gemm, {"q": whole(K, K), "layout": LAYOUT}),
    "restore": (
        layouts.restore_weights_of_mixed_gemm,
        {"prepared": PREPARED, "layout": LAYOUT},
    ),
    "pack_int4": (layouts.pack_int4, {"q": whole(K, N)}),
    "unpack_int4": (layouts.unpack_int4, {"packed": whole(K, N)}),
    "quantize_symmetric": (layouts.quantize_symmetric, {"w": halves(K, N), "bits": 8}),
    "compat.prepare": (
        compat.preprocess_weights_for_mixed_gemm,
        {"tensor": whole(K, K), "quant_mode": torch.int8, "act_dtype": HALF, "sm_": 80},
    ),
    "compat.quantize": (
        compat.symmetric_quantize_last_axis_of_batched_matrix,
        {"weight": halves(K, K), "quant_mode": torch.int8, "sm_": 80},
    ),
    "compat.mixed_weight": (
        compat.mixed_weight,
        {"weight": PREPARED, "weight_dtype": torch.int8, "scales": halves(K), "zeros": None}
        | {"sm_": 80},
    ),
    "compat.gemm": (
        compat.weight_only_quant_gemm,
        {"activation": halves(3, K), "weight": PREPARED, "weight_dtype": torch.int8}
        | {"weight_scale": halves(K), "output_dtype": HALF, "sm_": 80},
    ),
    "compat.groups": (
        compat.finegrained_mixed_dtype_gemm,
        {"input": halves(3, K), "weight": NIBBLES, "scales": halves(1, K), "group_size": K}
        | {"has_zero_point": False, "output_dtype": HALF, "bias": None, "zeros": None, "sm_": 80},
    ),
}
NUMBERS = (
    "bits", "k", "n", "group", "group_size", "in_features", "out_features", "sm", "sm_",
    "activation_bits", "layout", "zero", "version",
)  # fmt: skip
"""Arguments whose wrong values are no tensors: Python's own arithmetic is asked of them."""

PLAIN: tuple[Any, ...] = (
    True, 0, 1, 3, 4.0, 0.5, float("nan"), "", "relu", b"x", [], [1], {}, object(), int, "4",
    torch.int8, torch.float32, 1j, max, None, -1, 2**31, 2**62, 2**64, float("inf"),
    torch.tensor(2), torch.tensor([4, 4]), torch.ones(4),
)  # fmt: skip
DTYPES = (
    torch.int8, torch.uint8, torch.int32, torch.int64, torch.bool, HALF, torch.bfloat16,
    torch.float32, torch.float64, torch.complex64, torch.float8_e4m3fn, torch.uint16,
)  # fmt: skip
SHAPES = ((), (0,), (1,), (N,), (K,), (1, N), (2, N), (K, N), (K, 0), (0, N), (3, K), (2, K, N))


def tensors() -> Iterator[Any]:
    for dtype, shape in itertools.product(DTYPES, SHAPES):
        yield torch.ones(shape, dtype=dtype)
    yield np.ones((K, N), np.int8)
    for dtype, shape in ((torch.int8, (K, N)), (HALF, (2, N)), (torch.int32, (K,)), (HALF, (3, K))):
        yield torch.ones(shape, dtype=dtype, device="meta")
        yield torch.ones(shape, dtype=dtype).to_sparse()
    yield torch.ones(2, N).half().to_sparse_csr()
    yield torch.nested.nested_tensor([torch.ones(2, N), torch.ones(3, N)], layout=torch.jagged)
    yield quantised()
    yield torch._neg_view(torch.ones(2, N, dtype=HALF))
    yield torch.ones(3, K, dtype=HALF, requires_grad=True)
    yield torch.full((K,), 2**31 - 1)
    yield torch.arange(K) % 2 > 0
    yield torch.ones(1, dtype=torch.int8).expand(K, N)


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
    "by-hand-layout": ("by-hand", {"layout": 2}, ValueError, "layout must be one of 0, 1, got 2"),
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
