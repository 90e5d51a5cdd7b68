"""Operands to test with, as data: named cases, random cases, quantiser inputs, refusals.

Every case says what is special about it and builds its operands on any device from a seeded numpy
generator, so that CPU and GPU tests, and the reference, see the same values.
"""

from __future__ import annotations

import itertools
import math
import zlib
from collections.abc import Callable, Iterator
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
        operands: Operands = {
            "a": self.a_layout.place(a, device),
            "out_dtype": self.out_dtype,
        }
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


def _named() -> Iterator[Case]:
    for (form, azp), bias in EPILOGUES:
        for out in OUT_DTYPES:
            epilogue = f"{form}-{'bias' if bias else 'nobias'}-{str(out)[6:]}"
            same = {**azp, "bias": bias, "out_dtype": out}
            yield Case(f"epilogue-{epilogue}", **same)
            yield Case(f"epilogue-{epilogue}-tiles", m=70, n=96, k=130, **same)
            yield Case(f"empty-k-{epilogue}", k=0, **same)
            for m, n in ((1, 1), (1, 40), (40, 1), (24, 24)):
                yield Case(f"mn-{m}x{n}-{epilogue}", m=m, n=n, **same)
        yield Case(f"empty-m-{form}-{bias is not None}", m=0, **azp, bias=bias)
        yield Case(f"empty-n-{form}-{bias is not None}", n=0, **azp, bias=bias)
        yield Case(f"one-{form}-{bias is not None}", 1, 1, 1, **azp, bias=bias)
        for lead in ((), (1,), (2, 3), (2, 1, 4), (0, 3)):
            m = math.prod(lead)
            yield Case(f"lead-{lead}-{form}-{bias is not None}", m, lead=lead, **azp, bias=bias)

    forms = ("0d", "1", "1x1", "flat", "thick", "expanded")
    for form_a, form_b in itertools.product(forms, forms):
        a, b = Vector(form=form_a), Vector(form=form_b)
        yield Case(f"scale-forms-{form_a}-{form_b}", scale_a=a, scale_b=b)
    for form in ("flat", "thick"):
        bias, layout = Vector("signed", form), Layout(step=3, offset=1)
        apart = {"form": form, "layout": layout}
        yield Case(f"bias-{form}", bias=bias)
        yield Case(f"bias-float32-{form}", bias=replace(bias, dtype=torch.float32))
        yield Case(
            f"noncontiguous-{form}",
            scale_a=Vector(**apart),
            scale_b=Vector(**apart),
            bias=Vector("signed", **apart),
            azp=Vector("int8", **apart),
            azp_adj=Vector("sums", **apart),
        )
    for value, out in itertools.product((*SPECIAL, 1.0, -1e38, 2.0**-126), OUT_DTYPES):
        special = Vector((value,))
        end = f"{value:g}-{str(out)[6:]}"
        bias = Vector("signed")
        yield Case(f"scale-a-{end}", scale_a=special, out_dtype=out)
        yield Case(f"scale-b-{end}", scale_b=special, out_dtype=out)
        yield Case(f"scales-{end}", scale_a=special, scale_b=special, bias=bias, out_dtype=out)
        yield Case(f"bias-{end}", bias=special, out_dtype=out)
    for out in OUT_DTYPES:
        end = str(out)[6:]
        yield Case(f"scales-mixed-{end}", 40, 40, 9, scale_a=Vector("mixed"), out_dtype=out)
        bias = Vector("cancel", dtype=torch.float32)
        yield Case(f"bias-cancels-{end}", bias=bias, out_dtype=out)
        yield Case(f"bias-cancels-long-{end}", k=4099, bias=bias, out_dtype=out)
    yield from _extremes()
    yield from _places()
    yield from _residuals()
    yield from _pairs()


def _extremes() -> Iterator[Case]:
    for a, b in (("lowest", "lowest"), ("highest", "lowest"), ("highest", "highest")):
        yield Case(f"k-131071-{a}-{b}", 3, 17, 131071, a=a, b=b, scale_a=ONE, scale_b=ONE)
    for z in (-128, 127, 128, -(2**31), 2**31 - 1):
        azp = {"azp": Vector((z,)), "azp_adj": SUMS}
        yield Case(f"azp-{z}-k-70000", 3, 17, 70000, a="lowest", b="lowest", **azp)
        yield Case(f"azp-{z}", **azp)
    yield Case("azp-0", azp=Vector((0,), "1"), azp_adj=SUMS)
    yield Case("azp-rank-1", azp=Vector("int8"), azp_adj=Vector("int8"))
    yield Case("azp-wraps", azp=Vector("int32"), azp_adj=Vector("int32"), out_dtype=torch.float32)
    yield Case("azp-with-adj-wraps", azp_with_adj=Vector("int32"), bias=Vector("signed"))

    # One product a b = 1, so that the output is scale_a rounded: overflow, ties, subnormals, zeros.
    edges = {
        torch.float16: (65519.99, 65520.0, 65504.0, 65488.0, 2.0**-24, 2.0**-25, 3 * 2.0**-25),
        torch.bfloat16: (
            3.3961775e38,
            3.3895314e38,
            2.0**-133,
            2.0**-134,
            3 * 2.0**-134,
            1 + 2**-8,
        ),
        torch.float32: (3.4028235e38, 2.0**-149, 1.1754942e-38),
    }
    for out, values in edges.items():
        both = tuple(sign * x for x in (*values, 0.0, 1e-45) for sign in (1, -1))
        same = {"a": "one", "b": "one", "scale_a": Vector(both), "scale_b": ONE, "out_dtype": out}
        yield Case(f"out-edges-{str(out)[6:]}", len(both), 17, 1, **same)


def _places() -> Iterator[Case]:
    sizes = {*range(1, 131)} & {2**i + j for i in range(8) for j in (-1, 0, 1)}
    primes = (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41, 61, 67, 97, 127, 257)
    yield from (Case(f"tail-k-{k}", 3, 5, k, **AZP_FORMS["token"]) for k in range(1, 131))
    yield from (Case(f"tail-n-{n}", 3, n, 19, bias=Vector("signed")) for n in range(1, 41))
    yield from (Case(f"tail-m-{m}", m, 9, 7, **AZP_FORMS["with_adj"]) for m in range(1, 71))
    yield from (Case(f"tail-power-{i}", i, i, i, bias=Vector("signed")) for i in sorted(sizes))
    yield from (Case(f"tail-prime-{p}", p, p, p, **AZP_FORMS["token"]) for p in primes)
    yield from (Case(f"tail-long-k-{k}", 2, 18, k) for k in (511, 513, 1023, 1025, 4095, 4097))

    for i in range(1, 16):
        same = {"m": 17, "n": 33, "k": 64}
        yield Case(f"offset-a-{i}", a_layout=Layout(offset=i), **same)
        yield Case(f"offset-b-{i}", b_layout=Layout("column", offset=i), **same)
    for i, name in itertools.product((1, 2, 3), ("scale_a", "scale_b", "bias", "azp", "azp_adj")):
        vectors = {"bias": Vector("signed"), "azp": Vector("int8"), "azp_adj": SUMS}
        vectors[name] = replace(vectors.get(name, Vector()), layout=Layout(offset=i))
        yield Case(f"offset-{name}-{i}", **vectors)

    layouts = {
        "row": ROW,
        "column": COLUMN,
        "row-padded": Layout(pad=5),
        "column-padded": Layout("column", pad=3),
        "row-sliced": Layout(step=2),
        "column-sliced": Layout("column", step=3, pad=1, offset=1),
    }
    for (name_a, a), (name_b, b) in itertools.product(layouts.items(), repeat=2):
        same = {"a_layout": a, "b_layout": b}
        yield Case(f"layout-{name_a}-{name_b}", 18, 35, 66, **same)
        yield Case(f"layout-{name_a}-{name_b}-3d", 6, lead=(2, 3), **same)
    for m, n, k in ((1, 19, 37), (7, 1, 37), (7, 19, 1), (1, 1, 1)):
        odd = {"a_layout": Layout(odd=1000), "b_layout": Layout("column", odd=3)}
        yield Case(f"odd-strides-{m}x{n}x{k}", m, n, k, **odd)
    yield Case("aliased", 23, 23, 64, alias=True)
    apart = {"form": "flat", "layout": COLUMN}  # no one stride leads through [2, 3]
    azp = {"azp": Vector("int8", **apart), "azp_adj": SUMS}
    yield Case("vectors-of-two-strides", 6, lead=(2, 3), scale_a=Vector(**apart), **azp)


def _residuals() -> Iterator[Case]:
    for ((form, azp), bias), out in itertools.product(EPILOGUES, OUT_DTYPES):
        epilogue = f"{form}-{'bias' if bias else 'nobias'}-{str(out)[6:]}"
        for dtype in (None, torch.float32):
            same = {**azp, "bias": bias, "residual": Matrix(dtype=dtype), "out_dtype": out}
            end = f"{epilogue}-{'wide' if dtype else 'own'}"
            yield Case(f"residual-{end}", **same)
            yield Case(f"residual-{end}-tiles", m=70, n=96, k=130, **same)
            yield Case(f"residual-empty-k-{end}", k=0, **same)
            for m, n in ((1, 1), (1, 40), (40, 1), (24, 24)):
                yield Case(f"residual-mn-{m}x{n}-{end}", m=m, n=n, **same)
        cancels = {**azp, "bias": bias, "out_dtype": out}
        for dtype in (None, torch.float32):
            residual = Matrix("cancel", dtype=dtype)
            end = f"{epilogue}-{'wide' if dtype else 'own'}"
            yield Case(f"residual-cancels-{end}", residual=residual, **cancels)
            yield Case(f"residual-cancels-long-{end}", k=4099, residual=residual, **cancels)
    for m, n in ((0, 5), (5, 0), (0, 0)):
        yield Case(f"residual-empty-{m}x{n}", m, n, residual=Matrix())
    for n in range(1, 41):
        dtype = (None, torch.float32)[n % 2]
        yield Case(f"residual-tail-n-{n}", 3, n, 19, residual=Matrix(dtype=dtype))
    for m in (*range(1, 20), 31, 33, 47, 49, 63, 65):
        bias = Vector("signed")
        yield Case(f"residual-tail-m-{m}", m, 9, 7, bias=bias, residual=Matrix())

    layouts = {
        "row": ROW,
        "column": COLUMN,
        "padded": Layout(pad=5),
        "column-padded": Layout("column", pad=3),
        "sliced": Layout(step=2),
        "column-sliced": Layout("column", step=3, pad=1, offset=1),
        "odd": Layout(odd=1000),
        **{f"offset-{i}": Layout(offset=i) for i in (1, 2, 3, 4, 5, 6, 7, 8)},
    }
    shapes: dict[str, dict[str, Any]] = {
        "2d": {"m": 18, "n": 35},
        "even": {"m": 18, "n": 48},
        "3d": {"m": 6, "n": 35, "lead": (2, 3)},
        "4d": {"m": 8, "n": 17, "lead": (2, 1, 4)},
        "1d": {"m": 1, "n": 35, "lead": ()},
        "one-row": {"m": 1, "n": 35},
        "one-column": {"m": 18, "n": 1},
    }
    for (place, layout), (size, shape) in itertools.product(layouts.items(), shapes.items()):
        for dtype in (None, torch.float32):
            residual = Matrix(layout=layout, dtype=dtype)
            end = f"{place}-{size}-{'wide' if dtype else 'own'}"
            yield Case(f"residual-layout-{end}", residual=residual, **shape)
    for same, (size, shape) in itertools.product(
        ("rows", "columns", "rows columns"), shapes.items()
    ):
        yield Case(f"residual-same-{same}-{size}", residual=Matrix(same=same), **shape)

    for value, out in itertools.product((*SPECIAL, 1.0, -1e38, 2.0**-126), OUT_DTYPES):
        for dtype in (None, torch.float32):
            residual = Matrix((value,), dtype=dtype)
            end = f"{value:g}-{str(out)[6:]}-{'wide' if dtype else 'own'}"
            yield Case(f"residual-{end}", residual=residual, out_dtype=out)
            # With a product that is zero, infinite, or as large as float32 goes.
            scales = Vector((0.0, -0.0, INF, -INF, 3e38, -3e38, 1e-44))
            same = {"a": "one", "b": "one", "k": 1, "scale_a": scales, "scale_b": ONE}
            yield Case(f"residual-meets-{end}", residual=residual, out_dtype=out, **same)
    for out in OUT_DTYPES:
        residual = Matrix("mixed", dtype=torch.float32)
        same = {"scale_a": Vector("mixed"), "bias": Vector("mixed"), "out_dtype": out}
        yield Case(f"residual-mixed-{str(out)[6:]}", 40, 40, 9, residual=residual, **same)


# What a gate, and what it lets through, can be.
GATES = (0.0, -0.0, 1.0, -1.0, 1e-40, -1e-40, 1e20, -1e20, 3.4e38, -3.4e38, INF, -INF, NAN)
PAIRS = tuple(x for pair in itertools.product(GATES, GATES) for x in pair)


def _pairs() -> Iterator[Case]:
    for ((form, azp), bias), out in itertools.product(EPILOGUES, OUT_DTYPES):
        epilogue = f"{form}-{'bias' if bias else 'nobias'}-{str(out)[6:]}"
        same = {**azp, "bias": bias, "activation": "reglu", "out_dtype": out}
        yield Case(f"reglu-{epilogue}", n=20, **same)
        yield Case(f"reglu-{epilogue}-tiles", m=70, n=96, k=130, **same)
        yield Case(f"reglu-empty-k-{epilogue}", n=20, k=0, **same)
        for m, n in ((1, 2), (1, 40), (40, 2), (24, 24)):
            yield Case(f"reglu-mn-{m}x{n}-{epilogue}", m=m, n=n, **same)
    reglu = {"activation": "reglu"}
    for m, n in ((0, 6), (5, 0), (0, 0)):
        yield Case(f"reglu-empty-{m}x{n}", m, n, **reglu)
    for n in range(2, 82, 2):
        yield Case(f"reglu-tail-n-{n}", 3, n, 19, bias=Vector("signed"), **reglu)
    for m in (*range(1, 20), 31, 33, 47, 49, 63, 65):
        yield Case(f"reglu-tail-m-{m}", m, 10, 7, **AZP_FORMS["with_adj"], **reglu)
    for k in (1, 3, 4, 5, 63, 64, 65, 1025, 4097):
        yield Case(f"reglu-tail-k-{k}", 3, 18, k, **AZP_FORMS["token"], **reglu)
    for lead in ((), (1,), (2, 3), (2, 1, 4), (0, 3)):
        yield Case(f"reglu-lead-{lead}", math.prod(lead), 20, lead=lead, **reglu)
    for a, b in itertools.product((ROW, COLUMN, Layout(step=2, pad=3, offset=1)), repeat=2):
        name = f"reglu-layout-{a.order}-{a.step}-{b.order}-{b.step}"
        yield Case(name, 18, 34, 66, a_layout=a, b_layout=b, **reglu)
    one = {"m": 3, "n": len(PAIRS), "k": 1, "a": "one", "b": "one", **reglu}
    for out in OUT_DTYPES:
        end = str(out)[6:]
        signs = Vector((1.0, -1.0, 0.5))
        yield Case(f"reglu-gates-{end}", scale_a=signs, scale_b=Vector(PAIRS), out_dtype=out, **one)
        bias = Vector(PAIRS, dtype=torch.float32)
        yield Case(f"reglu-gates-by-bias-{end}", scale_b=ONE, bias=bias, out_dtype=out, **one)
        bias = Vector("cancel", dtype=torch.float32)
        yield Case(f"reglu-cancels-{end}", n=20, k=4099, bias=bias, out_dtype=out, **reglu)
        mixed = {"scale_a": Vector("mixed"), "scale_b": Vector("mixed"), "bias": Vector("mixed")}
        yield Case(f"reglu-mixed-{end}", 40, 40, 9, out_dtype=out, **mixed, **reglu)


# What a scale of the output can be, and what divides by it.
OUT_SCALES = (1.0, 0.0, -0.0, -2.0, 1e-44, 1e-30, 1e30, 3e38, INF, -INF, NAN)
IN_8_BITS: dict[str, dict[str, Any]] = {
    "int8": {"out_dtype": torch.int8, "out_scale": Vector()},
    "int8-azp": {"out_dtype": torch.int8, "out_scale": Vector(), "out_azp": Vector("int8")},
    "int8-tensor": {
        "out_dtype": torch.int8,
        "out_scale": Vector((0.75,), "1"),
        "out_azp": Vector((-31,), "1x1"),
    },
    "e4m3": {"out_dtype": torch.float8_e4m3fn, "out_scale": Vector()},
    "e4m3-tensor": {"out_dtype": torch.float8_e4m3fn, "out_scale": Vector((0.03,), "0d")},
}


def _endings() -> Iterator[Case]:
    """Activations of one column and of two, and outputs of 8 bits."""
    for activation, out in itertools.product(ACTIVATIONS, OUT_DTYPES):
        if activation == "reglu":
            continue  # those above
        same = {"activation": activation, "out_dtype": out, "bias": Vector("signed")}
        name = f"{activation}-{str(out)[6:]}"
        yield Case(f"{name}-tiles", 70, 96, 130, **AZP_FORMS["token"], **same)
        yield Case(f"{name}-rest", 19, 38, 21, **AZP_FORMS["with_adj"], **same)
        yield Case(f"{name}-empty-k", n=20, k=0, **same)
    for activation, (form, ending) in itertools.product((None, *ACTIVATIONS), IN_8_BITS.items()):
        same = {"activation": activation, **ending}
        name = f"{activation}-{form}"
        small = Vector((0.003,), "1")  # so that D is not all saturated
        yield Case(f"{name}-tiles", 70, 96, 130, scale_b=small, **AZP_FORMS["token"], **same)
        yield Case(f"{name}-rest", 19, 38, 21, scale_b=small, bias=Vector("signed"), **same)
        for n in (2, 6, 16, 18):
            yield Case(f"{name}-n-{n}", 3, n, 19, scale_b=small, **same)
        yield Case(f"{name}-no-k", n=20, k=0, bias=Vector("signed"), **same)
    # Any value, in units of any scale: rows have scales, columns values; half of them are ties.
    ties = tuple(i / 2 for i in range(-270, 270))
    by = {"m": len(OUT_SCALES), "k": 1, "a": "one", "b": "one", "scale_a": ONE, "scale_b": ONE}
    for form, ending in IN_8_BITS.items():
        same = {**ending, "out_scale": Vector(OUT_SCALES)}
        for kind, values in {"ties": ties, "special": SPECIAL}.items():
            bias = Vector(tuple(x - 1 for x in values), dtype=torch.float32)  # the product is 1
            yield Case(f"store-{kind}-{form}", n=len(values), bias=bias, **by, **same)


PLAIN_CASES = {case.name: case for case in _named()}
CASES = PLAIN_CASES | {case.name: case for case in _endings()}

# More than 2^31 elements in a, in the output; more than 65535 tiles of 128 along M, along N.
BIG_CASES = {
    case.name: case
    for case in (
        Case("big-a", 70_000, 16, 32_768),
        Case("big-out", 70_000, 32_768, 16),
        Case("big-grid-m", 65_537 * 128, 8, 16),
        Case("big-grid-n", 8, 65_537 * 128, 16),
    )
}


def random_case(rng: np.random.Generator, endings: bool = True) -> Case:
    """Any of the cross product of shapes, layouts, operand forms, values and dtypes; small. Without
    `endings` its activation can only be reglu, and D has not 8 bits."""

    def pick(*choices: Any) -> Any:
        return choices[rng.integers(len(choices))]

    def layout(order: str) -> Layout:
        order = order if rng.random() < 0.7 else pick("row", "column")
        return Layout(
            order, pick(0, 0, 0, 1, 5, 16), pick(1, 1, 1, 1, 2), pick(0, 0, 1, 3, 15), pick(None, 7)
        )

    def vector(values: str | tuple[float, ...], *forms: str) -> Vector:
        return Vector(values, pick(*forms), Layout(step=pick(1, 1, 2), offset=pick(0, 0, 1)))

    def scale() -> Vector:
        values = pick("normal", "normal", "signed", "wide", "mixed", (pick(*SPECIAL),))
        return vector(values, "0d", "1", "1x1", "flat", "thick", "thick", "expanded")

    size = [int(rng.integers(0 if rng.random() < 0.05 else 1, pick(4, 20, 40))) for _ in range(3)]
    if rng.random() < 0.03:
        size[2] = int(rng.integers(100, 4000))
    m, n, k = size
    lead = pick(None, None, None, (m, 1), (1, m), (2, m), ())
    azp = pick(
        {},
        {},
        {"azp_with_adj": vector(pick("sums", "int32", "int8"), "flat", "thick", "expanded")},
        {
            "azp": vector(pick("int8", "int8", "int32", (0,)), "0d", "1", "flat", "thick"),
            "azp_adj": vector(pick("sums", "sums", "int8", "int32"), "flat", "thick"),
        },
    )
    bias = None
    if rng.random() < 0.5:
        bias = vector(pick("signed", "signed", "wide", "mixed", "cancel"), "flat", "thick")
        bias = replace(bias, dtype=pick(None, torch.float32))
        if bias.values == "cancel" and 0 in (m, math.prod((1,) if lead is None else lead)):
            bias = replace(bias, values="signed")
    case = Case(
        "random",
        m if lead is None else math.prod(lead),
        n,
        k,
        lead,
        pick("full", "full", "extreme", "small", "lowest"),
        pick("full", "full", "extreme", "small", "lowest"),
        layout("row"),
        layout("column"),
        scale_a=scale(),
        scale_b=scale(),
        bias=bias,
        out_dtype=pick(*OUT_DTYPES),
        **azp,
    )
    end = rng.random()  # drawn last: what came before is what it was
    if end < 0.25:
        activation = pick(*ACTIVATIONS) if endings else "reglu"
        case = replace(case, activation=activation).paired()
        if endings and rng.random() < 0.4:
            scale = vector(pick("normal", "mixed"), "0d", "1", "flat", "thick")
            azp = pick(None, vector("int8", "0d", "1", "flat", "thick"))
            out = pick(*OUT_DTYPES_8)
            azp = azp if out == torch.int8 else None
            return replace(case, out_scale=scale, out_azp=azp, out_dtype=out)
        return case
    if end < 0.5:
        values = pick("signed", "signed", "wide", "mixed", "cancel", (pick(*SPECIAL),))
        same = "" if values == "cancel" else pick("", "", "", "rows", "columns", "rows columns")
        residual = Matrix(values, layout("row"), pick(None, torch.float32), same)
        return replace(case, residual=residual)
    return case
