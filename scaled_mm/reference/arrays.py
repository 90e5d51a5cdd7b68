"""Tensors of any device to numpy and back."""

# mypy: no-warn-return-any
# (numpy types its operators as Any)
from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from .arithmetic import Array


def to_numpy(x: Tensor) -> Array:
    return x.detach().cpu().to(torch.float32 if x.is_floating_point() else torch.int64).numpy()


def to_tensor(x: Array, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(x)).reshape(shape).to(dtype)


def to_float64(x: Tensor) -> Array:
    return x.detach().cpu().double().numpy()


def matrix_product(x: Tensor, w: Tensor) -> Array:
    """x [..., K] times w [K, N] by float64 BLAS, the leading dimensions of x flattened."""
    rows = int(np.prod(x.shape[:-1]))
    return to_float64(x).reshape(rows, x.shape[-1]) @ to_float64(w)
