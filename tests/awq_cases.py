"""Operands of the int4 ops, as data: named weights and random ones."""

import functools
import itertools
import math
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from operands import ROW, Layout, Operands

from scaled_mm.explain import explain_mixed

DTYPES = (torch.float16, torch.bfloat16)
Values = Callable[[np.random.Generator, tuple[int, ...]], Any]

SCALES: dict[str, Values] = {
    "usual": lambda rng, shape: rng.uniform(0.001, 0.1, shape),
    "signed": lambda rng, shape: rng.standard_normal(shape),
    "wide": lambda rng, shape: rng.standard_normal(shape) * 10 ** rng.uniform(-8, 4, shape),
    "subnormal": lambda rng, shape: rng.integers(-1023, 1024, shape) * 2.0**-24,
    "large": lambda rng, shape: rng.choice([65504.0, -4096.0, 5000.0, 1e38, -3e38], shape),
    "special": lambda rng, shape: rng.choice(
        [0.0, -0.0, 1.0, math.inf, -math.inf, math.nan], shape
    ),
    "some-special": lambda rng, shape: rng.choice([0.0, -0.0, 0.5, -0.25, 0.01, 1e-7], shape),
}
explain_awq = functools.partial(explain_mixed, bits=4, zeros="integer", group=128, packed=False)
"""How a GPU would compute a product with AWQ's words, or of `packed` ones."""

FINITE = ("usual", "signed", "wide", "subnormal", "some-special")
"""Scales whose products with normal values stay finite in both dtypes."""


@dataclass(frozen=True)
class AwqCase:
    """One weight, and for awq_gemm one x and bias."""

    name: str
    k: int = 64
    n: int = 24
    group: int = 32
    dtype: torch.dtype = torch.float16
    scales: str = "usual"
    rows: tuple[int, ...] = (3,)
    bias: torch.dtype | None = None
    words: Layout = ROW  # of qweight, qzeros and scales
    x: Layout = ROW
    ending: str | None = None  # an activation, or "residual"

    def rng(self) -> np.random.Generator:
        return np.random.default_rng(zlib.crc32(self.name.encode()))

    def weight(self, device: str = "cpu", rng: np.random.Generator | None = None) -> Operands:
        """qweight, scales, qzeros: random words, half of them with bit 31 set."""
        rng = rng or self.rng()
        groups = self.k // self.group if self.group else 0

        def words(rows: int) -> torch.Tensor:
            bits = rng.integers(0, 2**32, (rows, self.n // 8), np.uint32)
            return torch.from_numpy(bits.view(np.int32))

        with np.errstate(over="ignore"):
            values = SCALES[self.scales](rng, (groups, self.n)).astype(np.float32)
        scales = torch.from_numpy(values).to(self.dtype)
        made = {"qweight": words(self.k), "scales": scales, "qzeros": words(groups)}
        return {name: self.words.place(x, device) for name, x in made.items()}

    def product(self, device: str = "cpu") -> Operands:
        """All keyword arguments of awq_gemm."""
        rng = self.rng()
        x = rng.standard_normal((*self.rows, self.k)).astype(np.float32)
        operands: Operands = {"x": self.x.place(torch.from_numpy(x).to(self.dtype), device)}
        operands |= self.weight(device, rng)
        if self.bias is not None:
            bias = torch.from_numpy(rng.standard_normal(self.n).astype(np.float32))
            operands["bias"] = bias.to(self.bias).to(device)
        if self.ending == "residual":
            residual = rng.standard_normal((*self.rows, self.n)).astype(np.float32)
            operands["residual"] = torch.from_numpy(residual).to(self.dtype).to(device)
        elif self.ending is not None:
            operands["activation"] = self.ending
        return operands


def _named() -> Iterator[AwqCase]:
    for scales, dtype in itertools.product(SCALES, DTYPES):
        yield AwqCase(f"scales-{scales}-{str(dtype)[6:]}", dtype=dtype, scales=scales)
    for group, n in itertools.product((1, 16, 32, 64, 96, 128, 384), (8, 16, 24, 72, 136, 264)):
        for dtype in DTYPES:
            yield AwqCase(f"g{group}-n{n}-{str(dtype)[6:]}", 384, n, group, dtype, rows=(5,))
    for k, group in ((1, 1), (7, 7), (30, 10), (131, 131), (300, 100), (390, 130)):
        yield AwqCase(f"k{k}-g{group}", k, 40, group, torch.bfloat16)
    for rows in (*range(1, 14), 31, 32, 33, 65, 257, 300):
        yield AwqCase(f"m{rows}", 160, 152, 80, rows=(rows,), bias=torch.float16)
    for k, n, rows in ((0, 8, 3), (0, 0, 3), (8, 0, 3), (8, 8, 0)):
        yield AwqCase(f"empty-{k}-{n}-{rows}", k, n, k, rows=(rows,), bias=torch.float32)
    for rows in ((), (1,), (2, 3), (2, 0, 3), (2, 1, 3, 1)):
        yield AwqCase(f"rows-{rows}", dtype=torch.bfloat16, rows=rows, bias=torch.float32)
    layouts = {
        "column": Layout("column"),
        "padded": Layout(pad=5),
        "sliced": Layout(step=2),
        "misaligned": Layout(offset=1),
        "odd": Layout(odd=1000),
    }
    for name, layout in layouts.items():
        for dtype in DTYPES:
            yield AwqCase(f"words-{name}-{str(dtype)[6:]}", dtype=dtype, words=layout)
            yield AwqCase(f"x-{name}-{str(dtype)[6:]}", dtype=dtype, rows=(2, 9), x=layout)
    for bias, dtype in itertools.product((torch.float32, None), DTYPES):
        yield AwqCase(f"bias-{bias}-{str(dtype)[6:]}", dtype=dtype, bias=bias or dtype)
    for ending in ("residual", "relu", "gelu", "gelu_tanh", "silu", "swiglu", "geglu"):
        yield AwqCase(f"ending-{ending}", n=72, rows=(2, 9), bias=torch.float32, ending=ending)


AWQ_CASES = {case.name: case for case in _named()}
