"""A good call of each of the newest functions, and what may stand in an argument's place."""

import itertools
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

import scaled_mm
from scaled_mm import MixedWeight, compat, layouts
from scaled_mm.nn import ScaledLinear, WeightOnlyLinear

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
GROUPED = scaled_mm.quantize_weight_grouped(halves(N, K), bits=4, group_size=G)
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
        {"w": halves(N, K), "bits": 4, "group_size": G, "dtype": None},
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
    "layout_of": (layouts.layout_of, {"sm": 80, "bits": 4, "activation_bits": 16}),
    "prepare": (layouts.preprocess_weights_for_mixed_gemm, {"q": whole(K, K), "layout": LAYOUT}),
    "restore": (layouts.restore_weights_of_mixed_gemm, {"prepared": PREPARED, "layout": LAYOUT}),
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
