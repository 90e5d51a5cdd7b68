"""Another processor's float arithmetic, on this one: what an output may not depend on.

BLAS libraries, oneDNN and torch's vectorised functions sum in other orders and use other
polynomials on another processor. Downstream of a quantiser that is no small thing: a value beside
the boundary of two int8 steps goes the other way, and a cosine moves in its fourth digit.
`OtherFloats` adds such differences to the outputs of those ops, some times larger than processors
differ, so that digits that survive it have a margin. They are the same for the same operands:
whoever runs a model twice gets the same bits twice, as on any processor.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

aten = torch.ops.aten
# Whose float results depend on the processor. Sums, differences, products and quotients of two
# elements do not, nor do uniform random numbers.
OPS = {
    *(aten.linear, aten.matmul, aten.mm, aten.addmm, aten.bmm, aten.baddbmm),
    *(aten.scaled_dot_product_attention, aten._scaled_dot_product_flash_attention_for_cpu),
    *(aten.randn, aten.normal_, aten.gelu, aten.silu, aten.tanh, aten._softmax),
    *(aten.native_layer_norm, aten.layer_norm, aten.exp, aten.rsqrt),
}
FLOAT32 = 2.0**-19  # of the mean magnitude; BLAS libraries differ by about 2**-22
FLOAT16 = 0.03  # of the elements go to the next value; with a 16-bit output about 1 %


class OtherFloats(TorchDispatchMode):
    """Each seed is another processor. torch.compile refuses to run under it."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.seed = seed
        self.changed = 0  # outputs

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        out: Any = func(*args, **(kwargs or {}))
        if func.overloadpacket in OPS:
            first = out[0] if isinstance(out, tuple) else out
            self.disturb(first)
        return out

    def disturb(self, x: Tensor) -> None:
        """In place: also what normal_ filled is to change."""
        if not x.is_floating_point() or x.dtype == torch.float64 or x.numel() == 0 or x.is_meta:
            return
        generator = torch.Generator().manual_seed(self.seed)
        at = torch.rand(x.shape, generator=generator)
        if x.dtype == torch.float32:
            x += (at - 0.5) * (2 * FLOAT32 * x.abs().mean())
        else:
            x.copy_(torch.where(at < FLOAT16, torch.nextafter(x, 2 * x), x))
        self.changed += 1
