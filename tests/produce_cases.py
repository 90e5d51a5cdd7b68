"""Calls of the producers, as data: named cases and random ones."""

import itertools
import math
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from operands import ROW, Layout, Operands, Vector
from quantize_cases import BLOCKS, IN_DTYPES, ROWS
from torch import Tensor

NORMS = ("rms_norm", "layer_norm")
FUNCTIONS = ("relu", "silu", "gelu", "gelu_tanh")
PRODUCERS = (*NORMS, *FUNCTIONS)


@dataclass(frozen=True)
class ProduceCase:
    """One call of `torch.ops.scaled_mm.produce_int8`."""

    name: str
    producer: str
    data: str = "normal"
    shape: tuple[int, ...] = (6, 37)
    dtype: torch.dtype = torch.float32
    layout: Layout = ROW
    other: bool = False  # a residual, or a second factor
    wide_weights: bool = False  # float32, whatever x is
    bare: bool = False  # a norm without weights
    smooth: bool = False
    normed: bool = False  # a norm, as floats too
    symmetric: bool = True
    scale: Vector | None = None
    azp: Vector | None = None
    vectors: Layout = ROW  # of weight, bias and smooth
    rotate: int = 0

    def build(self, rng: np.random.Generator | None = None) -> Operands:
        """The keyword arguments of `reference.produce_int8` and of the op."""
        rng = rng or np.random.default_rng(zlib.crc32(self.name.encode()))
        lead, k = self.shape[:-1], self.shape[-1]

        def rows() -> Tensor:
            with np.errstate(over="ignore"):
                x = ROWS[self.data](rng, math.prod(lead), k).astype(np.float32)
            return torch.from_numpy(x).reshape(self.shape).to(self.dtype)

        def vector(dtype: torch.dtype) -> Tensor:
            made = torch.from_numpy(rng.standard_normal(k).astype(np.float32)).to(dtype)
            return self.vectors.place(made, "cpu")

        given: Operands = {"producer": self.producer, "x": self.layout.place(rows(), "cpu")}
        norm = self.producer in NORMS
        if self.other:
            given["residual" if norm else "times"] = self.layout.place(rows(), "cpu")
        if norm:
            given["eps"] = float(rng.choice([0.0, 1e-6, 1e-5, 1.0]))
            dtype = torch.float32 if self.wide_weights else self.dtype
            if not self.bare:
                given["weight"] = vector(dtype)
                if self.producer == "layer_norm":
                    given["bias"] = vector(dtype)
        if self.smooth:
            given["smooth"] = vector(torch.float32).abs_().add_(0.5)
        if self.normed:
            given["normed"] = True
        if self.rotate:
            given["rotate"] = self.rotate
        given["symmetric"] = self.symmetric
        vectors = {"scale": (self.scale, torch.float32), "azp": (self.azp, torch.int32)}
        for name, (made, dtype) in vectors.items():
            if made is not None:
                given[name] = made.build(rng, made.shape(lead, (*lead, 1)), dtype, "cpu")
        return given


def _named() -> Iterator[ProduceCase]:
    for producer, data in itertools.product(PRODUCERS, ROWS):
        for dtype in IN_DTYPES:
            name = f"{producer}-{data}-{str(dtype)[6:]}"
            options: dict[str, Any] = {"other": dtype is not torch.float32}
            yield ProduceCase(name, producer, data, (3, 72), dtype, **options)
    # Groups of 8 columns that end anywhere, teams of every size, rows that no team holds.
    widths = (1, 5, 8, 9, 31, 64, 65, 256, 264, 768, 1000, 4096, 4104, 16392, 32768, 32776, 65560)
    for producer, k in itertools.product(PRODUCERS, widths):
        for dtype in (torch.bfloat16, torch.float32):
            name = f"{producer}-{k}-{str(dtype)[6:]}"
            shape = (2, 1 + (k < 9), k)
            some: dict[str, Any] = {
                "smooth": k % 3 == 0,
                "normed": producer in NORMS and k % 2 == 0,
            }
            yield ProduceCase(name, producer, "scaled", shape, dtype, other=True, **some)
    for producer, k in itertools.product(PRODUCERS, (8, 300, 1024, 4096)):
        yield ProduceCase(f"{producer}-many-{k}", producer, shape=(300, k), dtype=torch.bfloat16)
    for producer, data, dtype in itertools.product(NORMS, ROWS, IN_DTYPES):
        name = f"{producer}-{data}-{str(dtype)[6:]}-normed"
        more = {"smooth": True, "normed": True, "symmetric": dtype is torch.float16}
        yield ProduceCase(name, producer, data, (3, 37), dtype, **more)
    for producer, symmetric in itertools.product(PRODUCERS, (True, False)):
        for form in ("0d", "flat", "thick"):
            scale = Vector(form=form)
            azp = None if symmetric else Vector("int8", form)
            more: dict[str, Any] = {"symmetric": symmetric, "scale": scale, "azp": azp}
            yield ProduceCase(f"{producer}-static-{form}-{symmetric}", producer, **more)
        for data in ("normal", "one-nan", "zero"):
            name = f"{producer}-dynamic-{data}-{symmetric}"
            yield ProduceCase(name, producer, data, (2, 3, 40), symmetric=symmetric, smooth=True)
    for producer in PRODUCERS:
        for shape in ((0, 8), (3, 0), (0, 0), (37,), (8,), (1, 1), (2, 0, 4)):
            yield ProduceCase(f"{producer}-{shape}", producer, shape=shape, other=True)
        for layout in (Layout("column"), Layout(pad=5), Layout(step=2), Layout(offset=1)):
            name = f"{producer}-{layout}"
            yield ProduceCase(name, producer, "normal", (2, 3, 64), layout=layout, other=True)
    for producer, dtype in itertools.product(NORMS, IN_DTYPES):
        name = f"{producer}-{str(dtype)[6:]}"
        yield ProduceCase(f"{name}-wide-weights", producer, dtype=dtype, wide_weights=True)
        yield ProduceCase(f"{name}-bare", producer, dtype=dtype, bare=True)
        apart = {"vectors": Layout(step=3, offset=1), "smooth": True}
        yield ProduceCase(f"{name}-weights-apart", producer, dtype=dtype, **apart)
        # The last group of 3 goes to a lane that has one already.
        yield ProduceCase(f"{name}-40003", producer, "normal", (12, 40003), dtype, normed=True)
    for producer, block in itertools.product(PRODUCERS, BLOCKS):
        # Teams of a warp and of a block, held once and several times; rows that none holds.
        for rows, k in ((3, 512), (2, 1536), (300, 4096), (2, 33280)):
            for dtype in (torch.bfloat16, torch.float32):
                more = {"rotate": block, "normed": producer in NORMS, "smooth": k == 512}
                name = f"{producer}-rotated-{block}-{rows}-{k}-{str(dtype)[6:]}"
                yield ProduceCase(name, producer, "normal", (rows, k), dtype, other=True, **more)
        more = {"symmetric": False, "scale": Vector(), "azp": Vector("int8", "thick")}
        name = f"{producer}-rotated-{block}-static"
        yield ProduceCase(name, producer, shape=(3, 512), rotate=block, **more)
        for layout in (Layout("column"), Layout(offset=1)):
            name = f"{producer}-rotated-{block}-{layout}"
            yield ProduceCase(name, producer, shape=(3, 1024), layout=layout, rotate=block)


PRODUCE_CASES = {case.name: case for case in _named()}


def random_produce_case(rng: np.random.Generator) -> ProduceCase:
    """Any of the cross product; small."""

    def pick(*choices: Any) -> Any:
        return choices[rng.integers(len(choices))]

    k = int(rng.integers(1, pick(4, 40, 40, 300)))
    shape = pick((k,), *2 * [(int(rng.integers(1, 9)), k)], (2, int(rng.integers(1, 4)), k))
    symmetric = pick(True, False)
    scale = azp = None
    if rng.random() < 0.3:
        scale = Vector(pick("normal", "signed", "wide"), pick("1", "flat", "thick"))
        azp = None if symmetric else Vector("int8", pick("1", "flat", "thick"))
    producer = pick(*PRODUCERS)
    return ProduceCase(
        "random",
        producer,
        pick(*ROWS),
        shape,
        pick(*IN_DTYPES),
        Layout(pick("row", "row", "column"), pick(0, 0, 3), pick(1, 1, 2), pick(0, 1, 3)),
        pick(True, False),
        pick(True, False),
        pick(True, False, False),
        pick(True, False, False),
        producer in NORMS and pick(True, False),
        symmetric,
        scale,
        azp,
    )
