"""Inputs for the quantisers, as data: named cases and random ones (the W8A8 cases: cases.py)."""

import itertools
import math
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from operands import ROW, Layout, Operands, Vector

IN_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
LARGEST = float(np.finfo(np.float32).max)
Rows = Callable[[np.random.Generator, int, int], Any]


def _half_integers(rng: np.random.Generator, rows: int, k: int) -> Any:
    """Each of -127.5 ... 127.5 in steps of a half, in each column, over 511 rows."""
    r, c = np.ogrid[:rows, :k]
    return ((r + c) % 511 - 255) / 2


def _half_integers_scale_1(rng: np.random.Generator, rows: int, k: int) -> Any:
    """Half-integers up to 126.5 in magnitude and one 127, which makes the symmetric scale 1."""
    r, c = np.ogrid[:rows, :k]
    return np.where(c == r % max(k, 1), 127, ((r + c) % 507 - 253) / 2)


def _one(value: float) -> Rows:
    """Normal values and one ``value``, somewhere in every other row."""

    def rows(rng: np.random.Generator, rows: int, k: int) -> Any:
        x = rng.standard_normal((rows, k))
        if k:
            x[::2, rng.integers(k)] = value
        return x

    return rows


ROWS: dict[str, Rows] = {
    "normal": lambda rng, m, k: rng.standard_normal((m, k)),
    "scaled": lambda rng, m, k: rng.standard_normal((m, k)) * 10 ** rng.uniform(-30, 30, (m, 1)),
    "wide": lambda rng, m, k: rng.standard_normal((m, k)) * 10 ** rng.uniform(-44, 38, (m, k)),
    "integers": lambda rng, m, k: rng.integers(-200, 200, (m, k)) / 2,
    "zero": lambda rng, m, k: np.zeros((m, k)),
    "negative-zero": lambda rng, m, k: np.full((m, k), -0.0),
    "constant": lambda rng, m, k: np.full((m, k), 3.7),
    "negative": lambda rng, m, k: -1 - np.abs(rng.standard_normal((m, k))),
    "positive": lambda rng, m, k: 1 + np.abs(rng.standard_normal((m, k))),
    "far-from-zero": lambda rng, m, k: rng.uniform(1000, 1001, (m, k)),
    "denormal": lambda rng, m, k: rng.standard_normal((m, k)) * 1e-40,
    "least": lambda rng, m, k: rng.integers(-3, 4, (m, k)) * 2.0**-149,
    "scale-near-least": lambda rng, m, k: rng.standard_normal((m, k)) * 127 * 2.0**-126,
    "largest": lambda rng, m, k: rng.choice([-LARGEST, LARGEST, 0.5 * LARGEST], (m, k)),
    "half-integers": _half_integers,
    "half-integers-scale-1": _half_integers_scale_1,
    "one-nan": _one(math.nan),
    "one-inf": _one(math.inf),
    "one-minus-inf": _one(-math.inf),
    "one-outlier": _one(-1e30),
}


@dataclass(frozen=True)
class QuantizeCase:
    """One call of quantize_int8."""

    name: str
    data: str = "normal"
    shape: tuple[int, ...] = (6, 37)
    dtype: torch.dtype = torch.float32
    layout: Layout = ROW
    symmetric: bool = True
    per_token: bool = True
    scale: Vector | None = None
    azp: Vector | None = None
    rotate: int | None = None

    def build(self, device: str = "cpu", rng: np.random.Generator | None = None) -> Operands:
        """The keyword arguments of quantize_int8."""
        rng = rng or np.random.default_rng(zlib.crc32(self.name.encode()))
        lead = self.shape[:-1]
        with np.errstate(over="ignore"):
            x = ROWS[self.data](rng, math.prod(lead), self.shape[-1]).astype(np.float32)
        x = torch.from_numpy(x).reshape(self.shape).to(self.dtype)
        operands: Operands = {
            "x": self.layout.place(x, device),
            "symmetric": self.symmetric,
            "per_token": self.per_token,
        }
        if self.rotate is not None:
            operands["rotate"] = self.rotate
        for name, vector, dtype in (
            ("scale", self.scale, torch.float32),
            ("azp", self.azp, torch.int32),
        ):
            if vector is not None:
                shape = vector.shape(lead, (*lead, 1))
                operands[name] = vector.build(rng, shape, dtype, device)
        return operands


def _named() -> Iterator[QuantizeCase]:
    for data, symmetric, per_token in itertools.product(ROWS, (True, False), (True, False)):
        kind = f"{'' if symmetric else 'a'}symmetric-{'token' if per_token else 'tensor'}"
        same: Operands = {"data": data, "symmetric": symmetric, "per_token": per_token}
        for dtype in IN_DTYPES:
            yield QuantizeCase(f"{kind}-{data}-{str(dtype)[6:]}", dtype=dtype, **same)
        yield QuantizeCase(f"{kind}-{data}-wide", shape=(3, 1100), **same)
        yield QuantizeCase(f"{kind}-{data}-one-column", shape=(5, 1), **same)
    for data, value, z in itertools.product(
        ("normal", "wide", "one-nan", "one-inf", "one-minus-inf", "half-integers"),
        (0.01, 1.0, 0.5, -1.0, 0.0, 1e-40, 1e38, math.inf, math.nan),
        (None, 0, -128, 127, 5, 1000),
    ):
        azp = None if z is None else Vector((z,), "1")
        scale = Vector((value,), "1")
        name = f"static-{data}-{value:g}-{z}"
        yield QuantizeCase(name, data, symmetric=z is None, scale=scale, azp=azp)
    for form_s, form_z in itertools.product(("0d", "1", "1x1", "flat", "thick"), repeat=2):
        scale, azp = Vector(form=form_s), Vector("int8", form_z)
        for shape in ((6, 37), (2, 3, 20), (37,)):
            if len(shape) == 1 and "1x1" in (form_s, form_z):
                continue
            name = f"static-forms-{form_s}-{form_z}-{len(shape)}d"
            yield QuantizeCase(name, shape=shape, symmetric=False, scale=scale, azp=azp)
    apart = {"form": "flat", "layout": Layout("column")}
    scale, azp = Vector(**apart), Vector("int8", **apart)
    yield QuantizeCase("two-strides", shape=(2, 3, 20), symmetric=False, scale=scale, azp=azp)
    for shape in ((0, 8), (8, 0), (0, 0), (0,), (1,), (37,), (2, 3, 20), (2, 0, 4), (1, 1, 1, 9)):
        for symmetric, per_token in itertools.product((True, False), repeat=2):
            name = f"shape-{shape}-{symmetric}-{per_token}"
            yield QuantizeCase(name, shape=shape, symmetric=symmetric, per_token=per_token)
    for layout in (
        Layout("column"),
        Layout(pad=5),
        Layout(step=2),
        Layout("column", step=3, pad=1, offset=1),
        *(Layout(offset=i) for i in (1, 2, 3)),
    ):
        for shape, dtype in itertools.product(((6, 37), (2, 3, 64)), IN_DTYPES):
            yield QuantizeCase(f"{layout}-{shape}-{dtype}", "scaled", shape, dtype, layout)
    for k in (*range(1, 71), 127, 128, 129, 255, 256, 257, 511, 513, 1023, 1025, 1100):
        yield half_integers(k)
        yield QuantizeCase(f"half-integers-dynamic-{k}", "half-integers-scale-1", (507, k))
    yield from _rotated()


BLOCKS = (16, 32, 64, 128, 256, 512)


def _rotated() -> Iterator[QuantizeCase]:
    for block, dtype in itertools.product(BLOCKS, IN_DTYPES):
        same: Operands = {"dtype": dtype, "rotate": block}
        name = f"rotated-{block}-{str(dtype)[6:]}"
        for symmetric, per_token in itertools.product((True, False), repeat=2):
            kind: Operands = {"symmetric": symmetric, "per_token": per_token}
            for data, shape in (("scaled", (5, 1536)), ("one-outlier", (1, block))):
                kinds = f"{data}-{symmetric}-{per_token}"
                yield QuantizeCase(f"{name}-{kinds}", data, shape, **kind, **same)
        for form, azp in itertools.product(("1", "flat"), (None, Vector("int8", "flat"))):
            given: Operands = {"symmetric": azp is None, "scale": Vector(form=form), "azp": azp}
            yield QuantizeCase(f"{name}-static-{form}-{azp}", shape=(3, 512), **given, **same)
        for layout in (Layout("column"), Layout(pad=5), Layout(step=2), Layout(offset=1)):
            yield QuantizeCase(f"{name}-{layout}", "scaled", (2, 3, 512), layout=layout, **same)
    for data, block in itertools.product(ROWS, (16, 128)):
        yield QuantizeCase(f"rotated-{block}-{data}", data, (5, 256), rotate=block)
        scale = Vector((0.01,), "1")
        name = f"rotated-{block}-{data}-static"
        yield QuantizeCase(name, data, (5, 256), scale=scale, rotate=block)
    # Rows that a warp has, that one or two units of 16 warps have, that none have.
    for k in (1024, 1536, 4096, 14336, 16384, 16896, 32768, 33280):
        yield QuantizeCase(f"rotated-{k}", "scaled", (9, k), torch.bfloat16, rotate=512)
    for shape in ((0, 32), (3, 0), (16,)):
        yield QuantizeCase(f"rotated-{shape}", shape=shape, rotate=16)
    yield from _many_rotated()


def _many_rotated() -> Iterator[QuantizeCase]:
    """Rows that fill a GPU of up to 150 multiprocessors more than once, of one warp and several."""
    dtypes = itertools.cycle((torch.bfloat16, torch.float16))
    for block, k in itertools.product(BLOCKS, (1024, 2560)):
        symmetric = (block > 64) == (k > 2048)
        name, dtype = f"rotated-{block}-many-{k}", next(dtypes)
        yield QuantizeCase(name, "scaled", (607, k), dtype, symmetric=symmetric, rotate=block)
    pad, given = Layout(pad=8), Vector(form="flat")
    for k in (14336, 16384, 16896):
        yield QuantizeCase(f"rotated-many-{k}", "scaled", (600, k), torch.bfloat16, rotate=128)
    many: Operands = {"dtype": torch.float16, "rotate": 512}
    yield QuantizeCase("rotated-many-pad", "scaled", (5, 200, 1536), layout=pad, **many)
    yield QuantizeCase("rotated-many-static", shape=(900, 1024), scale=given, **many)
    azp: Operands = {"symmetric": False, "azp": Vector("int8", "flat")}
    yield QuantizeCase("rotated-many-azp", shape=(900, 4096), scale=given, **azp, **many)
    for data in ROWS:
        yield QuantizeCase(f"rotated-many-{data}", data, (600, 1024), torch.bfloat16, rotate=256)


def half_integers(k: int) -> QuantizeCase:
    """Every half-integer in every column of K: rounding half away shows, in any lane or tail."""
    return QuantizeCase(f"half-integers-{k}", "half-integers", (511, k), scale=Vector((1.0,), "1"))


QUANTIZE_CASES = {case.name: case for case in _named()}


def random_quantize_case(rng: np.random.Generator) -> QuantizeCase:
    """Any of the cross product of inputs, shapes, layouts, dtypes and kinds; small."""

    def pick(*choices: Any) -> Any:
        return choices[rng.integers(len(choices))]

    k = int(rng.integers(1, pick(4, 40, 40, 200)))
    shape = pick((k,), *2 * [(int(rng.integers(1, 9)), k)], (2, int(rng.integers(1, 4)), k))
    forms = ("1", "flat", "thick")
    symmetric = pick(True, False)
    scale = azp = None
    if rng.random() < 0.5:
        scale = Vector(pick("normal", "signed", "wide", "mixed"), pick(*forms))
        azp = None if symmetric else Vector(pick("int8", (0,)), pick(*forms))
    rotate = None
    if rng.random() < 0.2:
        rotate = int(pick(*BLOCKS[:4]))
        shape = (*shape[:-1], rotate * int(rng.integers(1, 4)))
    return QuantizeCase(
        "random",
        pick(*ROWS),
        shape,
        pick(*IN_DTYPES),
        Layout(pick("row", "row", "column"), pick(0, 0, 3), pick(1, 1, 2), pick(0, 1, 3)),
        symmetric,
        pick(True, False),
        scale,
        azp,
        rotate,
    )
