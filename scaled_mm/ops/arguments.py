"""What every op does with its arguments before the library is called, and with an error after."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .packed_weight import PackedWeight


def accept(**operands: object) -> None:
    """Refuses what only Python can see: an operand that is no tensor, or that wants a gradient
    (these are inference ops). Everything else is asked in csrc/problems/."""
    grad = torch.is_grad_enabled()
    for name, operand in operands.items():
        if not isinstance(operand, Tensor):
            raise TypeError(f"{name} must be a Tensor, got {type(operand).__name__}")
        if grad and operand.requires_grad:
            raise ValueError(
                f"{name} must not require grad (use torch.no_grad() or .detach()), "
                "got requires_grad=True"
            )


def out_of_memory(error: MemoryError) -> torch.OutOfMemoryError:
    """torch's own exception for what the libraries raise as MemoryError where a tensor cannot be
    allocated: the stable ABI has no way to raise torch's."""
    return torch.OutOfMemoryError(str(error))


def weight_arguments(b: Tensor | PackedWeight) -> tuple[Tensor, dict[str, Any]]:
    """What the ops take for a weight: its tensor, and its shape when that is a packed buffer."""
    return (b.data, {"b_shape": b.shape}) if isinstance(b, PackedWeight) else (b, {})
