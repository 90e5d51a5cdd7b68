"""The short ways that eager calls take to the int8 products: ops of the library's own, whose
arguments go by position, and which take the shape of a packed weight as two numbers
(csrc/ops/int8.h)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.compiler import is_compiling

from .._arguments import are_tensors, explained
from .._torch import short, thrown
from .packed_weight import PackedWeight
from .shapes import must_share_device, product_sizes

_scaled_mm_plain = short(torch.ops.scaled_mm._scaled_mm_plain.default)
_scaled_linear = short(torch.ops.scaled_mm._scaled_linear.default)


def plain_product(
    a: Tensor,
    b: Tensor | PackedWeight,
    scale_a: Tensor,
    scale_b: Tensor,
    bias: Tensor | None,
) -> Tensor | None:
    """`scaled_mm` of these operands in bfloat16, by the shortest way there is to the library, which
    asks of them what it asks of any.

    None where the general way has to look at them: one is no tensor or wants a gradient, the op
    gave an error that is to be explained, or a graph is being made, which is to hold `scaled_mm`.
    """
    if is_compiling():
        return None
    if isinstance(b, PackedWeight):
        weight, k, n, settled = b.data, b.k, b.n, b.settled
    else:
        weight, k, n, settled = b, -1, -1, False
    if not are_tensors(a, weight, scale_a, scale_b):
        return None
    if bias is not None and (not isinstance(bias, Tensor) or bias.requires_grad):
        return None
    return _shortly(_scaled_mm_plain, a, weight, scale_a, scale_b, bias, k, n, settled)


def quantized_product(
    x: Tensor, b: PackedWeight, scale_b: Tensor, bias: Tensor | None
) -> Tensor | None:
    """`quantize_int8` of x and `scaled_mm` of that, in x's dtype, by one call of the library. Of
    the tensors of a layer: scale_b is [N, 1].

    None where the ops by themselves have to look at x: as in `plain_product`.
    """
    if not are_tensors(x, x, x, x if bias is None else bias):
        return None
    return _shortly(_scaled_linear, x, b.data, scale_b, bias, b.k, b.n, b.settled)


def _shortly(op: Callable[..., Tensor], *operands: Any) -> Tensor | None:
    """What the op gives; None where the general way has to explain why it does not take them."""
    try:
        return op(*operands)
    except MemoryError as error:  # or the general way would ask for the same memory again
        raise explained(error, {}) from None
    except NotImplementedError:
        return None
    except RuntimeError as error:
        raise thrown(error) from None


# --- shapes only ----------------------------------------------------------------------------------


def _shape(k: int, n: int) -> tuple[int, int] | None:
    """b_shape, as the ops of eager calls have it."""
    return None if k == n == -1 else (k, n)


@torch.library.register_fake("scaled_mm::_scaled_mm_plain")
def _(
    a: Tensor,
    b: Tensor,
    scale_a: Tensor,
    scale_b: Tensor,
    bias: Tensor | None,
    k: int,
    n: int,
    b_settled: bool,
) -> Tensor:
    must_share_device("a", a, scale_a=scale_a, scale_b=scale_b, bias=bias)
    return a.new_empty(product_sizes(a, b, _shape(k, n)), dtype=torch.bfloat16)


@torch.library.register_fake("scaled_mm::_scaled_linear")
def _(
    x: Tensor,
    b: Tensor,
    scale_b: Tensor,
    bias: Tensor | None,
    k: int,
    n: int,
    b_settled: bool,
) -> Tensor:
    must_share_device("x", x, b=b, scale_b=scale_b, bias=bias)
    return x.new_empty(product_sizes(x, b, _shape(k, n)))
