"""The products that `scaled-mm bench` measures, with their operands."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .. import reference
from ..reference.arithmetic import FORMATS, round_to

DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}

EPILOGUES = {
    "scaled": "ScaledEpilogue",
    "bias": "ScaledEpilogueBias",
    "azp": "ScaledEpilogueAzp",
    "azp-per-token": "ScaledEpilogueAzpPerToken",
}

CHECKED_ROWS = 16  # of every output, against the reference


def spread(length: int, most: int) -> Tensor:
    """Up to `most` of the indices below `length`, the first and the last among them."""
    return torch.linspace(0, length - 1, min(length, most)).long()


def shape_text(m: int, n: int, k: int) -> str:
    """M=0: the weight alone."""
    return f"M={m} N={n} K={k}" if m else f"N={n} K={k}"


def by_weight(cases: Iterable[dict[str, Any]]) -> dict[tuple[int, int], list[dict[str, Any]]]:
    """(N, K) -> the cases of a result that have it."""
    found: dict[tuple[int, int], list[dict[str, Any]]] = {}
    for case in cases:
        found.setdefault((case["n"], case["k"]), []).append(case)
    return found


@dataclass(frozen=True, kw_only=True)
class Common:
    """What every bench is told."""

    device: str = "cpu"
    rounds: int = 9
    without: tuple[str, ...] = ()  # contenders left out


@dataclass(frozen=True)
class Judgement:
    """How an output compares with the reference."""

    verdict: str
    off_r1: int  # elements whose bits are not the reference's, of `checked`
    beyond_bound: int  # elements further off than the accuracy bound
    checked: int


def judged(out: Tensor, exact: Tensor, bound: Tensor) -> Judgement:
    """How an output of 16-bit floats compares with the exact one: equal to it, rounded; within the
    bound; within 16 times that, as a peer may be; or wrong."""
    got = out.double().cpu()
    part = ((got - exact).abs() / bound).nan_to_num(nan=math.inf)
    rounded = torch.from_numpy(round_to(exact.numpy(), FORMATS[out.dtype]))
    off, beyond = int((got != rounded).sum()), int((part > 1).sum())
    if beyond == 0:
        verdict = "exact" if off == 0 else "bound"
    else:
        verdict = "rounding" if float(part.max()) <= 16 else "wrong"
    return Judgement(verdict, off, beyond, got.numel())


class Product:
    """One product with its operands: what every bench's case tells of itself."""

    @property
    def int8_operations(self) -> float:
        """What one of them costs of a GPU's int8 rate."""
        return 1.0

    @property
    def weight_bytes(self) -> int | None:
        """Where the weight alone has a floor."""
        return None

    @property
    def mnk(self) -> tuple[int, int, int]:
        raise NotImplementedError

    @property
    def operations(self) -> int:
        return 2 * math.prod(self.mnk)

    def bytes_moved(self) -> int:
        """Of every operand once and of the output: what no kernel can do without."""
        raise NotImplementedError

    def facts(self) -> dict[str, int]:
        """What the result says of the case."""
        facts = {**dict(zip("mnk", self.mnk, strict=True)), "bytes": self.bytes_moved()}
        return facts if self.weight_bytes is None else facts | {"weight_bytes": self.weight_bytes}

    def judge(self, out: Tensor, most: int) -> Judgement:
        """Compares an output with the reference: all of it, or where a weight has more than `most`
        elements a sample."""
        raise NotImplementedError


@dataclass(frozen=True)
class Case(Product):
    """One product with its operands: full-range int8, scales that bring the output near 1.

    Scale and zero point of the activations are per tensor, as the peers ask for; per token in
    ScaledEpilogueAzpPerToken. Both azp epilogues have a bias too.
    """

    a: Tensor  # int8 [M, K]
    b: Tensor  # int8 [K, N], the transpose of a contiguous weight
    scale_a: Tensor  # float32 [1, 1] or [M, 1]
    scale_b: Tensor  # float32 [1, N]
    operands: dict[str, Tensor]  # those of the epilogue, all of two dimensions
    azp: Tensor | None  # int32 [1, 1] or [M, 1]
    out_dtype: torch.dtype

    @property
    def mnk(self) -> tuple[int, int, int]:
        return self.a.shape[0], self.b.shape[1], self.a.shape[1]

    def bytes_moved(self) -> int:
        read = (self.a, self.b, self.scale_a, self.scale_b, *self.operands.values())
        m, n, _ = self.mnk
        return sum(x.numel() * x.itemsize for x in read) + m * n * self.out_dtype.itemsize

    def judge(self, out: Tensor, most: int) -> Judgement:
        """Compares a sample of rows with the reference, and of columns when a weight has more than
        `most` elements.

        Off the bits by rounding (another order of the scales, bf16 before the bias) is no fault of
        a peer; more than 16 times the accuracy bound of scaled_mm is none of rounding's.
        """
        m, n, k = self.mnk
        rows, columns = spread(m, CHECKED_ROWS), spread(n, max(1, most // max(1, k)))

        def sample(x: Tensor) -> Tensor:
            x = x[rows] if len(x) == m > 1 else x
            return x[:, columns] if x.shape[1] == n > 1 else x

        given = {"scale_a": self.scale_a, "scale_b": self.scale_b, **self.operands}
        some: dict[str, Any] = {name: sample(x).cpu() for name, x in given.items()}
        report = reference.check(
            out[rows][:, columns], self.a[rows].cpu(), self.b[:, columns].cpu(), **some
        )
        if report.different == 0:
            verdict = "exact"
        else:
            verdict = "rounding" if report.worst_of_bound <= 16 else "wrong"
        return Judgement(verdict, report.different, report.beyond, report.elements)


def make_case(
    m: int, n: int, k: int, epilogue: str, out_dtype: torch.dtype, device: str = "cpu"
) -> Case:
    random = torch.Generator(device).manual_seed(0)

    def integers(dtype: torch.dtype, *shape: int) -> Tensor:
        return torch.randint(-128, 128, shape, generator=random, device=device).to(dtype)

    def floats(*shape: int) -> Tensor:  # in [0.5, 1.5)
        return 0.5 + torch.rand(shape, generator=random, device=device)

    a = integers(torch.int8, m, k)
    b = integers(torch.int8, n, k).t()
    tokens = m if epilogue == "azp-per-token" else 1
    zero = integers(torch.int32, tokens, 1)
    scale_a = 2e-2 * floats(tokens, 1)
    scale_b = 1e-2 / math.sqrt(k) * floats(1, n)
    operands = {}
    if epilogue != "scaled":
        operands["bias"] = torch.randn(1, n, generator=random, device=device).to(out_dtype)
    if "azp" in epilogue:
        column_sums = b.sum(0, keepdim=True, dtype=torch.int32)
        if epilogue == "azp":
            operands["azp_with_adj"] = zero * column_sums
        else:
            operands |= {"azp": zero, "azp_adj": column_sums}
    return Case(a, b, scale_a, scale_b, operands, zero if "azp" in epilogue else None, out_dtype)
