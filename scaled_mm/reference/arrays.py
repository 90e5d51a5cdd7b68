"""Tensors of any device to numpy and back."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from .arithmetic import Array

NUMPY = {
    torch.float16: np.float16,
    torch.float32: np.float32,
    torch.int8: np.int8,
    torch.int32: np.int32,
}


def to_numpy(x: Tensor) -> Array:
    """float32 or int64. Of a 16-bit float no bit is lost, nor made by an operation on floats."""
    return x.detach().cpu().to(torch.float32 if x.is_floating_point() else torch.int64).numpy()


def to_tensor(x: Array, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """x as a tensor of dtype, which holds its values exactly."""
    if dtype is torch.bfloat16:  # the upper half of a float32
        halves = np.ascontiguousarray(x, np.float32).view(np.int32) >> 16
        return torch.from_numpy(halves.astype(np.int16)).view(dtype).reshape(shape)
    if dtype is torch.float8_e4m3fn:  # which numpy has not; torch's cast of its values is exact
        return torch.from_numpy(np.ascontiguousarray(x, np.float32)).to(dtype).reshape(shape)
    return torch.from_numpy(np.ascontiguousarray(x, NUMPY[dtype])).reshape(shape)


def to_float64(x: Tensor) -> Array:
    if not x.is_floating_point():
        return x.detach().cpu().double().numpy()
    return to_numpy(x).astype(np.float64)


def as_rows(x: Array) -> Array:
    """x [..., K] as [rows, K]; K may be 0."""
    return x.reshape(math.prod(x.shape[:-1]), x.shape[-1])


def matrix_product(x: Tensor, w: Tensor) -> Array:
    """x [..., K] times w [K, N] by float64 BLAS, the leading dimensions of x flattened."""
    return as_rows(to_float64(x)) @ to_float64(w)
