"""Operands of mixed_mm, as data: weights of both widths with every kind of zero points."""

import itertools
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from awq_cases import SCALES
from operands import ACTIVATIONS, ROW, Layout
from torch import Tensor

import scaled_mm

DTYPES = (torch.float16, torch.bfloat16)
KINDS = tuple(itertools.product((4, 8), ("none", "integer", "float")))
"""(bits, kind of zero points)."""


@dataclass(frozen=True)
class MixedCase:
    """One weight, and x and the rest for mixed_mm."""

    name: str
    bits: int
    zero: str
    k: int = 64
    n: int = 24
    group: int = 32
    dtype: torch.dtype = torch.float16
    scales: str = "usual"
    rows: tuple[int, ...] = (3,)
    bias: torch.dtype | None = None
    residual: bool = False
    activation: str | None = None
    pre_scale: torch.dtype | None = None
    shuffled: bool = False  # with a g_idx that is not sorted
    x: Layout = ROW

    def rng(self) -> np.random.Generator:
        return np.random.default_rng(zlib.crc32(self.name.encode()))

    def plain(self, rng: np.random.Generator | None = None) -> dict[str, Any]:
        """The arguments of pack_weight."""
        rng = rng or self.rng()
        groups = self.k // self.group if self.group else 0
        low = 0 if self.zero == "integer" else -(1 << (self.bits - 1))
        stored = torch.uint8 if self.zero == "integer" else torch.int8
        shape = (groups, self.n)

        def whole(shape: tuple[int, int]) -> Tensor:
            values = rng.integers(low, low + (1 << self.bits), shape)
            return torch.from_numpy(values).to(stored)

        def floats(values: str) -> Tensor:
            with np.errstate(over="ignore"):
                made = SCALES[values](rng, shape).astype(np.float32)
            return torch.from_numpy(made).to(self.dtype)

        made: dict[str, Any] = {"q": whole((self.k, self.n)), "scales": floats(self.scales)}
        if self.zero == "integer":
            made["zeros"] = whole(shape)
        if self.zero == "float":
            made["zeros"] = floats("signed" if self.scales == "usual" else self.scales)
        if self.shuffled:
            made["g_idx"] = torch.from_numpy(rng.permutation(self.k) // max(1, self.group))
        return {**made, "bits": self.bits}

    def rest(self, rng: np.random.Generator) -> dict[str, Any]:
        """x and the keyword arguments of mixed_mm."""

        def floats(*shape: int) -> Tensor:
            return torch.from_numpy(rng.standard_normal(shape).astype(np.float32))

        made: dict[str, Any] = {"x": self.x.place(floats(*self.rows, self.k).to(self.dtype), "cpu")}
        if self.pre_scale is not None:
            made["pre_scale"] = (floats(self.k).abs() + 0.5).to(self.pre_scale)
        if self.bias is not None:
            made["bias"] = floats(self.n).to(self.bias)
        if self.residual:
            made["residual"] = floats(*self.rows, self.n).to(self.dtype)
        return made | ({"activation": self.activation} if self.activation else {})

    def product(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Arguments of mixed_mm, and those of the reference for the same."""
        rng = self.rng()
        weight = scaled_mm.pack_weight(**self.plain(rng))
        rest, plain = self.rest(rng), weight.unpack()
        reference = {**rest, **plain._asdict()}
        return {**rest, "w": weight}, reference


def _named() -> Iterator[MixedCase]:
    for bits, zero in KINDS:
        kind = f"{bits}-{zero}"

        def case(name: str, dtype: torch.dtype = torch.float16, **more: Any) -> MixedCase:
            return MixedCase(f"{kind}-{name}-{str(dtype)[6:]}", *args, dtype=dtype, **more)  # noqa: B023

        args = (bits, zero)
        for scales, dtype in itertools.product(SCALES, DTYPES):
            yield case(f"scales-{scales}", dtype, scales=scales)
        for (k, group), n in itertools.product(
            ((384, 384), (256, 128), (30, 10), (7, 1)), (1, 7, 136)
        ):
            yield case(f"k{k}-g{group}-n{n}", DTYPES[n % 2], k=k, n=n, group=group, rows=(5,))
        for rows in (1, 2, 4, 33, 257):
            yield case(f"m{rows}", DTYPES[rows % 2], k=160, n=150, group=80, rows=(rows,))
        for k, n, rows in ((0, 8, 3), (0, 0, 3), (8, 0, 3), (8, 8, 0)):
            yield case(f"empty-{k}-{n}-{rows}", k=k, n=n, group=k, rows=(rows,), bias=torch.float32)
        for rows in ((), (2, 3), (2, 0, 3)):
            yield case(f"rows-{rows}", torch.bfloat16, rows=rows, bias=torch.bfloat16)
        for activation in ACTIVATIONS:
            yield case(activation, rows=(9,), activation=activation, bias=torch.float32)
        yield case("residual", rows=(2, 9), residual=True, bias=torch.float32)
        yield case("residual-n7", torch.bfloat16, n=7, rows=(33,), residual=True)
        yield case("swiglu-n134", torch.bfloat16, n=134, rows=(33,), activation="swiglu")
        for more in ({"residual": True}, {"activation": "geglu"}):
            yield case(f"empty-{[*more]}", k=0, group=0, bias=torch.float32, **more)
        for pre_scale, shuffled in ((torch.float32, False), (torch.float16, True), (None, True)):
            name = f"pre-{pre_scale}-{shuffled}"
            yield case(name, k=288, rows=(9,), pre_scale=pre_scale, shuffled=shuffled)
        for name, layout in {"column": Layout("column"), "sliced": Layout(step=2)}.items():
            more: dict[str, Any] = {"rows": (2, 9), "x": layout, "shuffled": True}
            yield case(f"x-{name}", torch.bfloat16, **more, pre_scale=torch.bfloat16)
            yield case(f"x-{name}-plain", **{**more, "shuffled": False})


MIXED_CASES = {case.name: case for case in _named()}
