"""What a product is tested with: a Case names its shape, layouts and operands, and builds them on
any device from a seeded numpy generator, so that CPU and GPU tests, and the reference, see the same
values.
"""

from __future__ import annotations

import itertools
import math
import zlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

INF, NAN = math.inf, math.nan
OUT_DTYPES = (torch.bfloat16, torch.float16, torch.float32)
Operands = dict[str, Any]


@dataclass(frozen=True)
class Layout:
    """Where the elements of a tensor lie; whatever lies between them is poison.

    line[0]        gap           line[1]
    | x . x . x . x | . . . |  x . x . x . x | . . . |
    offset  step      pad
    """

    order: str = "row"  # "column": the last two dimensions change places in memory
    pad: int = 0
    step: int = 1
    offset: int = 0
    odd: int | None = None  # the stride of dimensions of size 1, which nobody may use

    def place(self, x: Tensor, device: str) -> Tensor:
        dims = list(reversed(range(x.dim())))
        if self.order == "column":
            dims[:2] = dims[1::-1]
        strides, run = [0] * x.dim(), self.step
        for d in dims:
            strides[d] = run if self.odd is None or x.shape[d] != 1 else self.odd
            run = run * max(1, x.shape[d]) + self.pad
        poison = NAN if x.is_floating_point() else 0x55
        buffer = torch.full((self.offset + run,), poison, dtype=x.dtype, device=device)
        return buffer.as_strided(x.shape, strides, self.offset).copy_(x)


ROW, COLUMN = Layout(), Layout("column")

MATRIX: dict[str, Callable[[np.random.Generator, tuple[int, ...]], Any]] = {
    "full": lambda rng, shape: rng.integers(-128, 128, shape, np.int8),
    "extreme": lambda rng, shape: rng.choice([-128, 127], shape),
    "small": lambda rng, shape: rng.integers(-1, 2, shape),
    "lowest": lambda rng, shape: np.full(shape, -128),
    "highest": lambda rng, shape: np.full(shape, 127),
    "one": lambda rng, shape: np.ones(shape),
}

SPECIAL = (0.0, -0.0, -1.0, 1e-40, -3e-45, 1e38, 3.4e38, 1e-30, INF, -INF, NAN)
VALUES: dict[str, Callable[[np.random.Generator, int], Any]] = {
    "normal": lambda rng, n: 0.01 * np.exp(rng.standard_normal(n)),
    "signed": lambda rng, n: 10 ** rng.uniform(-4, 4) * rng.standard_normal(n),
    "wide": lambda rng, n: rng.choice([-1, 1], n) * 10 ** rng.uniform(-38, 30, n),
    "mixed": lambda rng, n: np.where(
        rng.random(n) < 0.5, rng.choice(SPECIAL, n), rng.standard_normal(n)
    ),
    "int8": lambda rng, n: rng.integers(-128, 128, n),
    "int32": lambda rng, n: rng.integers(-(2**31), 2**31, n),
}


@dataclass(frozen=True)
class Vector:
    """An operand with one element, or one per row or column.

    values: a name in VALUES, the numbers themselves (repeated as often as needed), "sums" (azp_adj:
    the column sums of b; azp_with_adj: those of -128 b) or "cancel" (a bias that cancels row 0).
    form: "0d", "1", "1x1" (one element); "flat" ([N] or a's leading shape); "thick" ([1, N] or
    [..., 1]); "expanded" (thick, one value with stride 0).
    """

    values: str | tuple[float, ...] = "normal"
    form: str = "thick"
    layout: Layout = ROW
    dtype: torch.dtype | None = None  # None: float32 for scales, int32 for zero points, as out

    def shape(self, flat: tuple[int, ...], thick: tuple[int, ...]) -> tuple[int, ...]:
        forms = {"0d": (), "1": (1,), "1x1": (1, 1), "flat": flat}
        return forms.get(self.form, thick)

    def build(
        self, rng: np.random.Generator, shape: tuple[int, ...], dtype: torch.dtype, device: str
    ) -> Tensor:
        count = 1 if self.form == "expanded" else math.prod(shape)
        if isinstance(self.values, str):
            numbers = VALUES[self.values](rng, count)
        else:
            numbers = np.resize(np.asarray(self.values), count)
        x = torch.from_numpy(np.asarray(numbers)).to(self.dtype or dtype)
        if self.form == "expanded":
            return x.to(device).reshape((1,) * len(shape)).expand(shape)
        return self.layout.place(x.reshape(shape), device)


@dataclass(frozen=True)
class Matrix:
    """An operand with one element for each element of the output: a residual.

    values: a name in VALUES, the numbers themselves (repeated as often as needed), or "cancel" (the
    result without the residual, negated, as well as the dtype can hold it).
    same: the dimensions along which all elements are one in memory, with stride 0: "rows",
    "columns" or "rows columns".
    """

    values: str | tuple[float, ...] = "signed"
    layout: Layout = ROW
    dtype: torch.dtype | None = None  # None: the output's
    same: str = ""

    def build(
        self, rng: np.random.Generator, operands: Operands, shape: tuple[int, ...], device: str
    ) -> Tensor:
        dtype = self.dtype or operands["out_dtype"]
        if self.values == "cancel":
            return self.layout.place((-_about(operands)).reshape(shape).to(dtype), device)
        distinct = [1] * len(shape) if "rows" in self.same else list(shape)
        distinct[-1] = 1 if "columns" in self.same else shape[-1]
        count = math.prod(distinct)
        if isinstance(self.values, str):
            numbers = VALUES[self.values](rng, count)
        else:
            numbers = np.resize(np.asarray(self.values), count)
        x = torch.from_numpy(np.asarray(numbers)).to(dtype).reshape(distinct)
        return self.layout.place(x, device).expand(shape)


def _about(operands: Operands) -> Tensor:
    """s_a s_b (a b - azp azp_adj) + bias in float64, [M, N], near enough to cancel it."""
    here = {name: x.cpu().double() for name, x in operands.items() if isinstance(x, Tensor)}
    a = here["a"]
    t = a.reshape(math.prod(a.shape[:-1]), a.shape[-1]) @ here["b"]
    if "azp" in here:
        t -= here["azp"].reshape(-1, 1) * here["azp_adj"].reshape(1, -1)
    if "azp_with_adj" in here:
        t -= here["azp_with_adj"].reshape(1, -1)
    t = here["scale_a"].reshape(-1, 1) * here["scale_b"].reshape(1, -1) * t
    return t + here["bias"].reshape(1, -1) if "bias" in here else t


ONE = Vector((1.0,), "1")
SUMS = Vector("sums")
GATED = ("reglu", "swiglu", "geglu", "geglu_tanh")
ACTIVATIONS = ("relu", "silu", "gelu", "gelu_tanh", *GATED)
OUT_DTYPES_8 = (torch.int8, torch.float8_e4m3fn)


@dataclass(frozen=True)
class Case:
    """One call of scaled_mm: a [..., K] (lead, or M, rows) times b [K, N]."""

    name: str
    m: int = 7
    n: int = 19
    k: int = 37
    lead: tuple[int, ...] | None = None
    a: str = "full"
    b: str = "full"
    a_layout: Layout = ROW
    b_layout: Layout = COLUMN
    alias: bool = False  # b is a.t()
    scale_a: Vector = Vector()
    scale_b: Vector = Vector()
    bias: Vector | None = None
    azp: Vector | None = None
    azp_adj: Vector | None = None
    azp_with_adj: Vector | None = None
    residual: Matrix | None = None
    activation: str | None = None
    out_scale: Vector | None = None
    out_azp: Vector | None = None
    out_dtype: torch.dtype = torch.bfloat16

    def paired(self) -> Case:
        """This case with an even N, where its activation makes one column of two."""
        return replace(self, n=self.n + self.n % 2) if self.activation in GATED else self

    def build(self, device: str = "cpu", rng: np.random.Generator | None = None) -> Operands:
        """The keyword arguments of scaled_mm."""
        rng = rng or np.random.default_rng(zlib.crc32(self.name.encode()))
        lead = (self.m,) if self.lead is None else self.lead
        a = torch.from_numpy(MATRIX[self.a](rng, (*lead, self.k)).astype(np.int8))
        b = torch.from_numpy(MATRIX[self.b](rng, (self.k, self.n)).astype(np.int8))
        b = a.t() if self.alias else b
        operands: Operands = {"a": self.a_layout.place(a, device), "out_dtype": self.out_dtype}
        operands["b"] = operands["a"].t() if self.alias else self.b_layout.place(b, device)
        for name, vector, dtype in (
            ("scale_a", self.scale_a, torch.float32),
            ("scale_b", self.scale_b, torch.float32),
            ("azp", self.azp, torch.int32),
            ("azp_adj", self.azp_adj, torch.int32),
            ("azp_with_adj", self.azp_with_adj, torch.int32),
            ("out_scale", self.out_scale, torch.float32),
            ("out_azp", self.out_azp, torch.int32),
            ("bias", self.bias, torch.bfloat16 if self.out_scale else self.out_dtype),
        ):
            if vector is None:
                continue
            by_row = name in ("scale_a", "azp", "out_scale", "out_azp")
            flat, thick = (lead, (*lead, 1)) if by_row else ((b.shape[1],), (1, b.shape[1]))
            if vector.values == "sums":
                sums = b.sum(0) * (1 if name == "azp_adj" else -128)
                vector = replace(vector, values=tuple(sums.tolist()))
            elif vector.values == "cancel":
                row = a.reshape(math.prod(lead), self.k)[:1].double() @ b.double()
                s = operands["scale_a"].flatten()[:1].cpu() * operands["scale_b"].flatten().cpu()
                vector = replace(vector, values=tuple((-s * row.flatten()).tolist()))
            shape = vector.shape(flat, thick)
            operands[name] = vector.build(rng, shape, dtype, device)
        if self.residual is not None:
            shape = (*lead, b.shape[1])
            operands["residual"] = self.residual.build(rng, operands, shape, device)
        if self.activation is not None:
            operands["activation"] = self.activation
        return operands


AZP_FORMS: dict[str, dict[str, Vector]] = {
    "none": {},
    "with_adj": {"azp_with_adj": SUMS},
    "tensor": {"azp": Vector("int8", "1"), "azp_adj": SUMS},
    "token": {"azp": Vector("int8"), "azp_adj": SUMS},
}

EPILOGUES = list(itertools.product(AZP_FORMS.items(), (None, Vector("signed"))))
"""((name of the form, its operands), bias): what may stand before a residual or an activation."""
