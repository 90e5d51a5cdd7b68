"""How TensorRT-LLM and FasterTransformer lay an int8 or int4 weight out for their mixed GEMM.

Their kernels multiply 16-bit (or fp8) activations by integer weights, and want the weight prepared
offline in four steps. Each step is a function with an inverse; docs/layouts.md draws them. A weight
is `q` [..., K, N]: int8, one value to a byte, whatever its bits.

    permute_rows            rows k in the order in which ldmatrix hands them to the lanes of a warp
    (transpose)             [K, N] -> [N, K]: a channel's values lie side by side
    interleave_columns      a few channels in turn, 64 values of k of each
    bias_and_interleave     unsigned values, in the order in which the converter wants them

`preprocess_weights_for_mixed_gemm` does those that a GPU's kernels expect, and
`restore_weights_of_mixed_gemm` undoes it, so that a weight prepared for such an engine can be read
and checked. `scaled_mm.compat` has the engines' own signatures.

Source: FasterTransformer's and TensorRT-LLM's cutlass_preprocessors.cpp, and TensorRT-LLM's
tensorrt_llm/quantization/functional.py, as of 2026. The orders are theirs; the code is not.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ._arguments import accept_dense

__all__ = [
    "Layout",
    "layout_of",
    "preprocess_weights_for_mixed_gemm",
    "restore_weights_of_mixed_gemm",
]


@dataclass(frozen=True)
class Layout:
    """Which of the steps a prepared weight has gone through, and with which numbers.

    Attributes:
        bits: of a weight's value, 8 or 4.
        activation_bits: 16, or 8 for fp8 activations.
        permuted: rows are in ldmatrix's order.
        columns: channels interleaved in a tile; 1 for none.
        biased: values are unsigned and in the converter's order.
    """

    bits: int
    activation_bits: int
    permuted: bool
    columns: int
    biased: bool

    @property
    def block_rows(self) -> int:
        """Rows that are permuted among themselves: 16 bytes of a channel."""
        return 128 // self.bits

    @property
    def tile_rows(self) -> int:
        """Rows of a tile of interleaved channels: 128 bytes of an activation row."""
        return 1024 // self.activation_bits

    def check(self, q: Tensor) -> None:
        """Refuses a weight that the engines' kernels would refuse."""
        accept_dense({"q": q})
        if q.dtype != torch.int8 or q.ndim < 2:
            raise ValueError(f"q must be int8 [..., K, N], got {_described(q)}")
        k, n = q.shape[-2:]
        rows = max(
            self.block_rows if self.permuted else 1,
            self.tile_rows if self.columns > 1 else 1,
            8 if self.biased else 2,
        )
        if k % rows:
            raise ValueError(f"K must be a multiple of {rows}, got {k}")
        if n % max(8, self.columns):
            raise ValueError(f"N must be a multiple of {max(8, self.columns)}, got {n}")


def layout_of(
    sm: int, *, bits: int, activation_bits: int = 16, interleave: bool = True, experts: bool = False
) -> Layout:
    """The layout that an engine's kernels expect on a GPU.

    Args:
        sm: the compute capability, 75 or more: 80 for 8.0, 90 for 9.0.
        bits: of a weight's value, 8 or 4.
        activation_bits: 16 for float16 and bfloat16; 8 for fp8, with int4 weights only.
        interleave: False for the engines' releases that only transposed a weight for Hopper
            (TensorRT-LLM's `do_weight_interleave`).
        experts: a batch of weights, one for each expert: Hopper and newer GPUs use the layout of
            8.0 for them.

    =============  ========  ===================  ======
    sm             permuted  columns              biased
    =============  ========  ===================  ======
    75 to 89, 120  yes       activations' / bits  yes
    90             yes       1                    yes
    100, 103       no        1                    no
    =============  ========  ===================  ======

    Raises:
        ValueError: sm is below 75, or the engines have no such combination of bits.
    """
    if not isinstance(sm, int):
        raise TypeError(f"sm must be an int, got {type(sm).__name__}")
    if sm < 75:
        raise ValueError(f"sm must be 75 or more, got {sm}")
    numbers = isinstance(bits, int) and isinstance(activation_bits, int)
    if not numbers or (activation_bits, bits) not in [(16, 8), (16, 4), (8, 4)]:
        raise ValueError(
            "bits and activation_bits must be 8 and 16, 4 and 16 or 4 and 8, "
            f"got {bits} and {activation_bits}"
        )
    if sm >= 120 or (experts and sm >= 90):
        sm = 80
    permuted = interleave and sm < 100
    columns = activation_bits // bits if permuted and sm < 90 else 1
    return Layout(bits, activation_bits, permuted, columns, biased=permuted)


def preprocess_weights_for_mixed_gemm(q: Tensor, layout: Layout) -> Tensor:
    """The weight as an engine's mixed GEMM reads it.

    Args:
        q: int8 [..., K, N], one value to a byte: -128..127, or -8..7 with 4 bits.
        layout: what `layout_of` says of the GPU. K is a multiple of 64 (16-bit activations) or 128
            (fp8), N of 8.

    Returns:
        int8 [..., K, N] for 8 bits, [..., K, N/2] for 4: the engines keep the shape of the plain
        weight, though the bytes lie channel by channel.

    Raises:
        ValueError: shape, dtype or a value is not one that the engines take.
    """
    _must_be_layout(layout)
    layout.check(q)
    _check_range(q, layout.bits)
    shape = (*q.shape[:-1], q.shape[-1] * layout.bits // 8)
    if layout.permuted:
        q = permute_rows(q, layout.bits, layout.activation_bits)
    q = q.mT
    if layout.columns > 1:
        q = interleave_columns(q, layout.columns, layout.tile_rows)
    if layout.biased:
        q = bias_and_interleave(q, layout.bits)
    q = q.contiguous()
    return (q if layout.bits == 8 else pack_int4(q)).reshape(shape)


def restore_weights_of_mixed_gemm(prepared: Tensor, layout: Layout) -> Tensor:
    """The inverse of `preprocess_weights_for_mixed_gemm`: q int8 [..., K, N], one value to a byte.

    Args:
        prepared: int8 [..., K, N], or [..., K, N/2] with 4 bits.
        layout: the one that the weight was prepared with. A wrong one gives a wrong weight: the
            bytes do not tell.
    """
    _must_be_layout(layout)
    accept_dense({"prepared": prepared})
    if prepared.dtype != torch.int8 or prepared.ndim < 2:
        raise ValueError(
            f"prepared must be int8 of 2 dimensions or more, got {_described(prepared)}"
        )
    *batch, k, width = prepared.shape
    n = width * 8 // layout.bits
    q = prepared if layout.bits == 8 else unpack_int4(prepared)
    q = q.reshape(*batch, n, k)
    layout.check(q.mT)
    if layout.biased:
        q = remove_bias_and_interleave(q, layout.bits)
    if layout.columns > 1:
        q = undo_interleave_columns(q, layout.columns, layout.tile_rows)
    q = q.mT
    if layout.permuted:
        q = undo_permute_rows(q, layout.bits, layout.activation_bits)
    return q.contiguous()


# --- the steps -----------------------------------------------------------------------------------


def row_order(bits: int, activation_bits: int = 16) -> list[int]:
    """The row that step 1 puts at each place of a block of 16 bytes' worth of rows.

    A lane of a warp multiplies, for each channel, `w` neighbouring activations in 32 bits, and some
    more 4w further on. `ldmatrix` hands it 32 bits of the weight, which are more rows than `w`. So
    the rows that a lane multiplies are put side by side: the `t`-th place gets row

        4w ((t mod r) div w) + t mod w + w (t div r),   r = 32 / bits, w = 32 / activation_bits
    """
    r, w = 32 // bits, 32 // activation_bits
    return [4 * w * (t % r // w) + t % w + w * (t // r) for t in range(128 // bits)]


def permute_rows(q: Tensor, bits: int, activation_bits: int = 16) -> Tensor:
    """Step 1: rows of each block in the order of `row_order`. [..., K, N] -> [..., K, N]."""
    order = row_order(bits, activation_bits)
    return q.unflatten(-2, (-1, len(order)))[..., order, :].flatten(-3, -2)


def undo_permute_rows(q: Tensor, bits: int, activation_bits: int = 16) -> Tensor:
    """The inverse of `permute_rows`."""
    order = row_order(bits, activation_bits)
    back = sorted(range(len(order)), key=order.__getitem__)
    return q.unflatten(-2, (-1, len(order)))[..., back, :].flatten(-3, -2)


def interleave_columns(q: Tensor, columns: int, tile_rows: int) -> Tensor:
    """Step 3: [..., N, K], tile by tile of `tile_rows` values of k, `columns` channels in turn.

    So one row of bytes of the result serves `columns` channels, and a kernel that reads
    128 bytes at a time reads a tile of all of them.
    """
    tiles = q.unflatten(-1, (-1, tile_rows)).unflatten(-3, (-1, columns))
    return tiles.transpose(-2, -3).reshape(q.shape)


def undo_interleave_columns(q: Tensor, columns: int, tile_rows: int) -> Tensor:
    """The inverse of `interleave_columns`."""
    *batch, n, k = q.shape
    tiles = q.reshape(*batch, n // columns, k // tile_rows, columns, tile_rows)
    return tiles.transpose(-2, -3).reshape(q.shape)


_CONVERTER_ORDER = {8: (0, 2, 1, 3), 4: (0, 2, 4, 6, 1, 3, 5, 7)}
"""The value at each place of 32 bits. The converter makes two 16-bit floats at a time, one from
each half of the word, and these are to be neighbours."""


def bias_and_interleave(q: Tensor, bits: int) -> Tensor:
    """Step 4: values become unsigned, and those of each 32 bits change places. [..., N, K].

    2^(bits-1) is added. The order is 0 2 1 3 with 8 bits, 0 2 4 6 1 3 5 7 with 4.

    Returns:
        int8, the bytes of the unsigned values; with 4 bits 0..15.
    """
    half = 1 << (bits - 1)
    order = _CONVERTER_ORDER[bits]
    unsigned = (q.to(torch.int16) + half).to(torch.uint8).view(torch.int8)
    return unsigned.unflatten(-1, (-1, len(order)))[..., order].flatten(-2)


def remove_bias_and_interleave(q: Tensor, bits: int) -> Tensor:
    """The inverse of `bias_and_interleave`. With 4 bits the low ones of each value count."""
    half = 1 << (bits - 1)
    order = _CONVERTER_ORDER[bits]
    back = sorted(range(len(order)), key=order.__getitem__)
    values = q.unflatten(-1, (-1, len(order)))[..., back].flatten(-2)
    unsigned = values.to(torch.int16) & (2 * half - 1)
    return (unsigned - half).to(torch.int8)


# --- values --------------------------------------------------------------------------------------


def pack_int4(q: Tensor) -> Tensor:
    """Two neighbours of the last dimension to a byte, the first in the low nibble.

    Args:
        q: int8 [..., N], N even. The low 4 bits count, so -8..7 and 0..15 both pack.

    Returns:
        int8 [..., N/2].
    """
    accept_dense({"q": q})
    if q.dtype != torch.int8 or q.ndim < 1 or q.shape[-1] % 2:
        raise ValueError(f"q must be int8 with an even last dimension, got {_described(q)}")
    values = q.contiguous().view(torch.uint8)
    return (values[..., 0::2] & 15 | values[..., 1::2] << 4).view(torch.int8)


def unpack_int4(packed: Tensor) -> Tensor:
    """The inverse of `pack_int4`: int8 [..., N/2] -> int8 [..., N], -8..7."""
    accept_dense({"packed": packed})
    if packed.dtype != torch.int8 or packed.ndim < 1:
        raise ValueError(f"packed must be int8 of 1 dimension or more, got {_described(packed)}")
    low = packed << 4 >> 4  # an arithmetic shift: the sign comes along
    return torch.stack((low, packed >> 4), -1).flatten(-2)


def quantize_symmetric(w: Tensor, *, bits: int) -> tuple[Tensor, Tensor]:
    """The engines' own weight quantiser: one scale for each channel, the whole range in use.

    scale[n] = max_k |w[k, n]| / 2^(bits-1), in float32
    q[k, n] = clip(round(w[k, n] / scale[n]), -2^(bits-1), 2^(bits-1) - 1)

    `round` takes halves away from zero. The largest positive value of a channel becomes
    2^(bits-1) and is clipped; `scaled_mm.quantize_weight_int8` divides by 127 instead, and loses
    nothing there.

    Args:
        w: floating [..., K, N].
        bits: 8 or 4.

    Returns:
        q int8 [..., K, N], one value to a byte, and scale [..., N] of w's dtype. q was made
        with the scale before it was rounded to that dtype, as the engines do. A channel of zeros
        has scale 0 and values 0.

    Raises:
        ValueError: w is not floating, has less than two dimensions or holds what is not finite.
    """
    accept_dense({"w": w.detach() if isinstance(w, Tensor) else w})
    if not isinstance(bits, int) or bits not in (4, 8):
        raise ValueError(f"bits must be 4 or 8, got {bits!r}")
    if not w.is_floating_point() or w.itemsize == 1 or w.is_meta or w.ndim < 2:
        rule = "be floating [..., K, N], of 16 bits or more and with values"
        raise ValueError(f"w must {rule}, got {_described(w)}")
    if not torch.isfinite(w).all():
        raise ValueError("w must be finite, got an infinity or NaN")
    half = float(1 << (bits - 1))
    wide = w.float()
    if w.shape[-2] == 0:
        return w.to(torch.int8), w.new_zeros(*w.shape[:-2], w.shape[-1])
    scale = wide.abs().amax(-2, keepdim=True) / half
    ratio = torch.where(scale > 0, wide / scale, 0.0)
    whole = ratio.abs().floor()
    rounded = (whole + (ratio.abs() - whole >= 0.5)).copysign(ratio)  # exact: no 0.5 is added
    return rounded.clamp(-half, half - 1).to(torch.int8), scale.squeeze(-2).to(w.dtype)


def _check_range(q: Tensor, bits: int) -> None:
    half = 1 << (bits - 1)
    if bits == 8 or q.numel() == 0:
        return
    low, high = (int(x) for x in torch.aminmax(q))
    if low < -half or high >= half:
        raise ValueError(f"q must be in {-half}..{half - 1}, got {low}..{high}")


def _must_be_layout(layout: Layout) -> None:
    if not isinstance(layout, Layout):
        raise TypeError(f"layout must be a Layout (see layout_of), got {type(layout).__name__}")


def _described(t: Tensor) -> str:
    return f"{str(t.dtype)[6:]} of shape {tuple(t.shape)}{' on meta' if t.is_meta else ''}"
