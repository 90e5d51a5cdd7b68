"""The short way that eager calls take to `scaled_mm`: an op whose arguments go by position, and
which takes the shape of a packed weight as two numbers (csrc/ops/int8.h)."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.compiler import is_compiling

from .._arguments import are_tensors, explained
from .._torch import short, thrown
from .packed_weight import PackedWeight
from .shapes import must_share_device, product_sizes

_scaled_mm_plain = short(torch.ops.scaled_mm._scaled_mm_plain.default)


def plain_product(
    a: Tensor,
    b: Tensor | PackedWeight,
    scale_a: Tensor,
    scale_b: Tensor,
    bias: Tensor | None,
    out_dtype: torch.dtype,
) -> Tensor | None:
    """`scaled_mm` of these operands, by the shortest way there is to the library, which
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
    try:
        return _scaled_mm_plain(a, weight, scale_a, scale_b, bias, k, n, settled, out_dtype)
    except MemoryError as error:  # or the general way would ask for the same memory again
        raise explained(error, {}) from None
    except NotImplementedError:
        return None
    except RuntimeError as error:
        raise thrown(error) from None


# --- shapes only ----------------------------------------------------------------------------------


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
    out_dtype: torch.dtype | None,
) -> Tensor:
    must_share_device("a", a, scale_a=scale_a, scale_b=scale_b, bias=bias)
    sizes = product_sizes(a, b, None if k == n == -1 else (k, n))
    return a.new_empty(sizes, dtype=out_dtype or torch.bfloat16)
