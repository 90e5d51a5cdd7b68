"""The random calls of soak_cuda.py: operands on the CPU, and what is called with them."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from awq_cases import SCALES, AwqCase
from cases import random_case
from cuda_mixed_cases import arms, random_exact_case
from cuda_support import ROWS, random_large_case
from operands import Operands
from produce_cases import random_produce_case
from quantize_cases import random_quantize_case
from test_produce import produce
from torch import Tensor

import scaled_mm


def product(rng: np.random.Generator) -> tuple[Operands, Callable[..., Any]]:
    case = random_large_case(rng) if rng.random() < 0.1 else random_case(rng)
    operands = case.build(rng=rng)
    if rng.random() < 0.3:
        return operands, packed_product
    return operands, scaled_mm.scaled_mm


def packed_product(**operands: Any) -> Tensor:
    weight = scaled_mm.pack_weight_int8(operands.pop("b"))
    return scaled_mm.scaled_mm(**operands, b=weight)


def quantisation(rng: np.random.Generator) -> tuple[Operands, Callable[..., Any]]:
    return random_quantize_case(rng).build(rng=rng), scaled_mm.quantize_int8


def dequantisation(rng: np.random.Generator) -> tuple[Operands, Callable[..., Any]]:
    group = int(rng.choice([16, 32, 64, 128]))
    k, n = group * int(rng.integers(1, 5)), 8 * int(rng.integers(1, 40))
    dtype = (torch.float16, torch.bfloat16)[rng.integers(2)]
    case = AwqCase("soak", k, n, group, dtype, str(rng.choice(list(SCALES))))
    return case.weight(rng=rng), scaled_mm.awq_dequantize


def mixed(rng: np.random.Generator) -> tuple[Operands, Callable[..., Any]]:
    case = random_exact_case(rng)
    operands = {**case.plain(), **case.operands()}
    plain = {name: operands.pop(name) for name in case.plain()}
    return {**operands, **plain}, mixed_product


def mixed_product(x: Tensor, **given: Any) -> Tensor:
    ending = ("bias", "residual", "activation", "pre_scale")
    options = {name: given.pop(name) for name in ending if name in given}
    return scaled_mm.mixed_mm(x, scaled_mm.pack_weight(**given), **options)


def production(rng: np.random.Generator) -> tuple[Operands, Callable[..., Any]]:
    return random_produce_case(rng).build(rng), produce


def linear(rng: np.random.Generator) -> tuple[Operands, Callable[..., Any]]:
    """What a layer calls: its activation quantised and multiplied in one op."""
    m, k, n = (int(x) for x in rng.integers(1, (300, 700, 400)))
    x = torch.from_numpy(rng.standard_normal((m, k)).astype(np.float32))
    x = x.to((torch.bfloat16, torch.float16, torch.float32)[rng.integers(3)])
    b = torch.from_numpy(rng.integers(-128, 128, (n, k), np.int8)).t()
    scale_b = torch.from_numpy(rng.uniform(0.001, 0.1, (n, 1)).astype(np.float32))
    bias = torch.from_numpy(rng.standard_normal(n).astype(np.float32))
    operands = {"x": x, "b": b, "scale_b": scale_b, "bias": bias if rng.random() < 0.5 else None}
    return operands, linear_product


def linear_product(x: Tensor, b: Tensor, scale_b: Tensor, bias: Tensor | None) -> Tensor:
    weight = scaled_mm.pack_weight_int8(b)
    return torch.ops.scaled_mm.scaled_linear(x, weight.data, scale_b, bias, weight.k)


MIXED_ROWS = arms(4)[:1] + sorted({*arms(4)[1:], *arms(8)[1:]})
KINDS = {
    "scaled_mm": (0.6, product),
    "quantize_int8": (0.1, quantisation),
    "mixed_mm": (0.1, mixed),
    "produce_int8": (0.1, production),
    "scaled_linear": (0.05, linear),
}
LAST = ("awq_dequantize", dequantisation)
ROWS_OF = {"scaled_mm": ROWS, "scaled_linear": ROWS, "mixed_mm": MIXED_ROWS}


def random_call(rng: np.random.Generator) -> tuple[str, Operands, Callable[..., Any]]:
    chance = rng.random()
    for name, (share, make) in KINDS.items():
        if chance < share:
            return name, *make(rng)
        chance -= share
    return LAST[0], *LAST[1](rng)
