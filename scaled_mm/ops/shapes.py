"""What shape-only (fake) kernels refuse: whatever leaves the shape of an output without meaning.

The rules and their words are those of csrc/problems/, where every other rule is too. They hold for
symbolic sizes: each is a `check_value`, which asks only what the rule says.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from .._torch import check_value
from .rotate import BLOCKS


def sizes_text(sizes: Sequence[Any]) -> str:
    return f"({', '.join(map(str, sizes))}{',' * (len(sizes) == 1)})"


def shape_text(t: Tensor) -> str:
    return f"shape {sizes_text(t.shape)}"


def must(argument: str, holds: Any, rule: str, got: Callable[[], str]) -> None:
    """ValueError unless the rule holds."""
    check_value(holds, lambda: f"{argument} must {rule}, got {got()}")


def must_have_shape(argument: str, t: Tensor, holds: Any, rule: str) -> None:
    must(argument, holds, rule, lambda: shape_text(t))


def must_share_device(whose: str, like: Tensor, **others: Any) -> None:
    """All that are tensors on one device. The dispatcher runs these kernels as soon as one operand
    is a meta tensor, and among others on the CPU it would give an output that nobody writes."""
    for name, t in others.items():
        if isinstance(t, Tensor) and t.device != like.device:
            raise ValueError(
                f"{name} must be on the device of {whose} ({like.device}), got {t.device}"
            )


GATED = ("reglu", "swiglu", "geglu", "geglu_tanh")
"""The activations that make one column of two."""


def out_columns(weight: str, n: int, activation: str | None) -> int:
    """Columns of D, of N of the weight."""
    if activation not in GATED:
        return n
    even = f"have an even number of columns for activation={activation!r}"
    must(weight, n % 2 == 0, even, lambda: f"N={n}")
    return n // 2


def output(
    out: Tensor | None, whose: str, like: Tensor, sizes: Sequence[int], dtype: torch.dtype
) -> Tensor | None:
    """A new tensor for the plain form of an op. For its form with `out` nothing, but its rules."""
    if out is None:
        return like.new_empty(sizes, dtype=dtype)
    if out.dtype != dtype:
        raise ValueError(f"out must be {str(dtype)[6:]}, got {str(out.dtype)[6:]}")
    must_share_device(whose, like, out=out)
    same = out.dim() == len(sizes)
    for got, wanted in zip(out.shape, sizes, strict=False):
        same &= got == wanted
    must_have_shape("out", out, same, f"have the output's shape {sizes_text(sizes)}")
    return None


def weight_sizes(b: Tensor, b_shape: Sequence[int] | None) -> tuple[int, int]:
    """(K, N) of a weight, or of the weight that a packed buffer was made from."""
    if b_shape is None:
        must_have_shape("b", b, b.dim() == 2, "be a matrix [K, N]")
        return b.shape[0], b.shape[1]
    if len(b_shape) != 2:
        raise ValueError(f"b_shape must be (K, N), got {sizes_text(b_shape)}")
    must_have_shape("b", b, b.dim() == 1, "be a packed buffer [bytes] where b_shape is given")
    return b_shape[0], b_shape[1]


def product_sizes(a: Tensor, b: Tensor, b_shape: Sequence[int] | None) -> list[int]:
    """[..., N] of a [..., K] times a weight [K, N]."""
    must_have_shape("a", a, a.dim() >= 1, "have at least one dimension [..., K]")
    must_share_device("a", a, b=b)
    k, n = weight_sizes(b, b_shape)
    must_have_shape("a", a, a.shape[-1] == k, f"have K={k} columns, the rows of b")
    return [*a.shape[:-1], n]


def awq_sizes(qweight: Tensor, scales: Tensor, qzeros: Tensor) -> tuple[int, int]:
    """(K, N) of a weight in AWQ's words."""
    must_have_shape("qweight", qweight, qweight.dim() == 2, "be a matrix [K, N/8]")
    (k, words), n = qweight.shape, 8 * qweight.shape[1]
    must_have_shape("scales", scales, scales.dim() == 2, "be a matrix [K/G, N]")
    must_share_device("qweight", qweight, scales=scales)
    groups = scales.shape[0]
    columns = f"have N={n} columns, 8 for each of qweight"
    must_have_shape("scales", scales, scales.shape[1] == n, columns)
    divides = (k % torch.sym_max(groups, 1) == 0) & ((groups > 0) | (k == 0))
    rule = f"have K/G rows for a group size G that divides K={k}, the rows of qweight"

    def got() -> str:
        group = f"G={k}/{groups}" if groups else "no G"
        return f"{groups} groups, {group}, {shape_text(scales)}"

    must("scales", divides, rule, got)
    must_have_shape("qzeros", qzeros, qzeros.dim() == 2, "be a matrix [K/G, N/8]")
    must_share_device("qweight", qweight, qzeros=qzeros)
    rule = f"have shape (K/G, N/8) = {sizes_text((groups, words))}"
    for size, wanted in zip(qzeros.shape, (groups, words), strict=True):
        must_have_shape("qzeros", qzeros, size == wanted, rule)
    return k, n


def must_rotate(rotate: int, k: int | torch.SymInt) -> None:
    """The rule of blocks that are rotated; 0: none."""
    if rotate:
        fits = k % rotate == 0 if rotate in BLOCKS else False
        rule = f"be 16, 32, 64, 128, 256 or 512 and divide K={k}"
        must("rotate", fits, rule, lambda: str(rotate))
