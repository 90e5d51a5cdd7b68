"""int4 weights in groups: `awq_dequantize`, `awq_gemm`, and the packings of AWQ and GPTQ.

    W[k, n] = (q[k, n] - z[g, n]) * s[g, n],    g = k // G

with q and z in 0..15 and a float16 or bfloat16 scale for each group of G rows and each column.
`Int4` is that weight with a byte for each q and z; `from_awq`, `to_awq`, `from_gptq`, `to_gptq`
lead to and from what checkpoints hold. They are torch operations, for tensors of any device, and
lose nothing: there and back gives the same words. docs/lowbit.md draws the layouts.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from .ops import accept, typed

_awq_dequantize = torch.ops.scaled_mm.awq_dequantize.default
_awq_gemm = torch.ops.scaled_mm.awq_gemm.default

SEQUENTIAL = (0, 1, 2, 3, 4, 5, 6, 7)
"""Where GPTQ keeps value j of eight: in nibble j."""
INTERLEAVED = (0, 4, 1, 5, 2, 6, 3, 7)
"""Where AWQ keeps column j of eight: in nibble INTERLEAVED[j] (so nibble i holds column
0, 2, 4, 6, 1, 3, 5, 7)."""

# --- the ops --------------------------------------------------------------------------------------


def awq_dequantize(qweight: Tensor, scales: Tensor, qzeros: Tensor) -> Tensor:
    """The weight that AWQ words stand for, `W = (q - z) * s`, rounded once.

    Args:
        qweight: int32 [K, N/8], eight columns to a word in AWQ's order (docs/lowbit.md).
        scales: float16 or bfloat16 [K/G, N]; its number of rows, which must divide K, says what the
            group size G is.
        qzeros: int32 [K/G, N/8], the zero points, packed like qweight.

    Returns:
        W [K, N] of the scales' dtype, bit for bit `(q - z).to(dtype) * s`.

    Raises:
        ValueError: an operand breaks a rule above, or requires grad in grad mode. The message names
            argument, rule and value.
        TypeError: an operand is no tensor.

    Source: AWQ (Lin et al., 2023); the "GEMM" packing of its checkpoints.
    """
    accept(qweight=qweight, scales=scales, qzeros=qzeros)
    try:
        return _awq_dequantize(qweight, scales, qzeros)
    except RuntimeError as error:
        raise typed(error) from None


def awq_gemm(
    x: Tensor, qweight: Tensor, scales: Tensor, qzeros: Tensor, *, bias: Tensor | None = None
) -> Tensor:
    """`D = x W + bias` with `W = awq_dequantize(qweight, scales, qzeros)`, which is not written
    to memory: on the CPU never, on a GPU not while the tokens are few.

    Products and sums are float32; the same call gives the same bits on every run (docs/lowbit.md
    has the bound on their error). On the CPU they depend on neither threads nor the rows around.

    Args:
        x: float16 or bfloat16 [..., K], any strides.
        qweight, scales, qzeros: as for `awq_dequantize`; the scales of x's dtype.
        bias: x's dtype or float32, [N] or [1, N]; added in float32.

    Returns:
        D [..., N] of x's dtype.

    Raises:
        ValueError: an operand breaks a rule above, or requires grad in grad mode.
        TypeError: an operand is no tensor.
    """
    accept(x=x, qweight=qweight, scales=scales, qzeros=qzeros)
    if bias is not None:
        accept(bias=bias)
    try:
        return _awq_gemm(x, qweight, scales, qzeros, bias=bias)
    except RuntimeError as error:
        raise typed(error) from None


# --- words ----------------------------------------------------------------------------------------


def pack(q: Tensor, order: tuple[int, ...] = INTERLEAVED) -> Tensor:
    """Eight neighbours of the last dimension to a word: [..., N] -> int32 [..., N/8].

    Args:
        q: any integer dtype, 0..15 (higher bits are dropped), N a multiple of 8.
        order: the nibble of each of the eight, `INTERLEAVED` (AWQ) or `SEQUENTIAL` (GPTQ).
    """
    if q.is_floating_point() or q.shape[-1] % 8 != 0:
        value = f"{str(q.dtype)[6:]} of shape {tuple(q.shape)}"
        raise ValueError(
            f"q must be integer with a multiple of 8 in its last dimension, got {value}"
        )
    values = q.to(torch.uint8).unflatten(-1, (-1, 8))  # modulo 256: the low nibble stays
    words = torch.empty(*values.shape[:-1], 4, dtype=torch.uint8, device=q.device)
    for byte in range(4):  # the lowest first, as words lie in memory
        low, high = order.index(2 * byte), order.index(2 * byte + 1)
        words[..., byte] = values[..., low] & 15 | values[..., high] << 4
    return words.view(torch.int32).squeeze(-1)


def unpack(words: Tensor, order: tuple[int, ...] = INTERLEAVED) -> Tensor:
    """The inverse of `pack`: int32 [..., N/8] -> uint8 [..., N], 0..15.

    Every word is legal, those with bit 31 set (negative as int32) too.
    """
    if words.dtype != torch.int32:
        raise ValueError(f"words must be int32, got {str(words.dtype)[6:]}")
    packed = words.contiguous().unsqueeze(-1).view(torch.uint8)  # its bytes, the lowest first
    values = torch.empty(*words.shape, 8, dtype=torch.uint8, device=words.device)
    for j, nibble in enumerate(order):
        byte = packed[..., nibble // 2]
        values[..., j] = byte >> 4 if nibble % 2 else byte & 15
    return values.flatten(-2)


# --- weights --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Int4:
    """An int4 weight with nothing packed: W[k, n] = (q[k, n] - zeros[g, n]) * scales[g, n].

    Attributes:
        q: uint8 [K, N], 0..15.
        scales: floating [K/G, N].
        zeros: uint8 [K/G, N], 0..15.
        g_idx: int32 [K], the group g of each row k; None: k // G.
    """

    q: Tensor
    scales: Tensor
    zeros: Tensor
    g_idx: Tensor | None = None

    def dequantize(self) -> Tensor:
        """W [K, N], of the scales' dtype, each element rounded once."""
        groups = self.group_of_rows()
        d = self.q.to(torch.int16) - self.zeros.to(torch.int16)[groups]
        return d.to(self.scales.dtype) * self.scales[groups]

    def group_of_rows(self) -> Tensor:
        """int64 [K], the group of each row.

        Raises:
            ValueError: g_idx names a group that is not there; or, without it, G does not divide K.
        """
        k, groups = len(self.q), len(self.scales)
        if self.g_idx is not None:
            if k and not 0 <= int(self.g_idx.min()) <= int(self.g_idx.max()) < groups:
                got = f"{int(self.g_idx.min())}..{int(self.g_idx.max())}"
                raise ValueError(f"g_idx must be in 0..{groups - 1}, got {got}")
            return self.g_idx.long()
        if k and (groups == 0 or k % groups):
            raise ValueError(
                f"scales must have K/G rows with G dividing K={k}, got {groups} groups"
            )
        return torch.arange(k, device=self.q.device) // max(1, k // max(1, groups))

    def in_order(self) -> tuple[Int4, Tensor | None]:
        """The same weight with rows of a group side by side, and where each row came from.

        Returns:
            The weight, without g_idx, and `order` int64 [K] such that `x @ W` is
            `x[..., order] @ W_ordered`; None where the rows were in order already.

        Raises:
            ValueError: groups of unequal size, or g_idx names a group that is not there.
        """
        if self.g_idx is None:
            return self, None
        k, groups = len(self.q), len(self.scales)
        sizes = torch.bincount(self.group_of_rows(), minlength=groups)
        if len(sizes) != groups or (k and bool((sizes * groups != k).any())):
            raise ValueError(
                f"g_idx must give each of the {groups} groups as many of the K={k} rows, "
                f"got {sizes.tolist()[:8]}"
            )
        order = torch.argsort(self.g_idx, stable=True)
        if bool((order == torch.arange(k, device=order.device)).all()):
            return replace(self, g_idx=None), None
        return Int4(self.q[order], self.scales, self.zeros), order

    def out_of_order(self, order: Tensor) -> Int4:
        """The inverse of `in_order`: rows back where they came from, and the g_idx for it."""
        q, g_idx = torch.empty_like(self.q), torch.empty_like(order, dtype=torch.int32)
        q[order] = self.q
        g_idx[order] = self.group_of_rows().to(torch.int32)
        return Int4(q, self.scales, self.zeros, g_idx)


class Awq(NamedTuple):
    """What an AWQ checkpoint holds for a linear layer, in the order that the ops take it."""

    qweight: Tensor  # int32 [K, N/8]
    scales: Tensor  # [K/G, N]
    qzeros: Tensor  # int32 [K/G, N/8]


class Gptq(NamedTuple):
    """What a GPTQ checkpoint holds: words along K, and zero points along N in plain order."""

    qweight: Tensor  # int32 [K/8, N]
    scales: Tensor  # [K/G, N]
    qzeros: Tensor  # int32 [K/G, N/8]; version 1 stores z - 1
    g_idx: Tensor | None  # int32 [K]; None: k // G


def from_awq(qweight: Tensor, scales: Tensor, qzeros: Tensor) -> Int4:
    """An AWQ checkpoint's weight, unpacked."""
    return Int4(unpack(qweight), scales, unpack(qzeros))


def to_awq(weight: Int4) -> Awq:
    """The weight in AWQ's packing, which knows no g_idx: see `Int4.in_order`.

    Raises:
        ValueError: the weight has a g_idx.
    """
    if weight.g_idx is not None:
        raise ValueError("weight must have its groups in order (Int4.in_order), got a g_idx")
    return Awq(pack(weight.q), weight.scales, pack(weight.zeros))


def from_gptq(
    qweight: Tensor,
    scales: Tensor,
    qzeros: Tensor,
    g_idx: Tensor | None = None,
    *,
    version: int,
) -> Int4:
    """A GPTQ checkpoint's weight, unpacked.

    Args:
        qweight: int32 [K/8, N].
        scales: [K/G, N].
        qzeros: int32 [K/G, N/8].
        g_idx: int32 [K], the group of each row ("act-order" when it is not sorted), or None.
        version: 1 or 2, which the checkpoint's config tells ("gptq" or "gptq_v2") and the tensors
            do not: version 1 stores z - 1, modulo 16.
    """
    q = unpack(qweight.t(), SEQUENTIAL).t().contiguous()
    zeros = unpack(qzeros, SEQUENTIAL) + _stored_below(version) & 15
    return Int4(q, scales, zeros, g_idx)


def to_gptq(weight: Int4, *, version: int) -> Gptq:
    """The weight in GPTQ's packing, of version 1 or 2; K must be a multiple of 8."""
    qweight = pack(weight.q.t(), SEQUENTIAL).t().contiguous()
    zeros = weight.zeros.to(torch.int16) - _stored_below(version) & 15
    return Gptq(qweight, weight.scales, pack(zeros, SEQUENTIAL), weight.g_idx)


def _stored_below(version: int) -> int:
    if version not in (1, 2):
        raise ValueError(f"version must be 1 (zeros stored less 1) or 2, got {version!r}")
    return 2 - version


# --- shapes only ----------------------------------------------------------------------------------


@torch.library.register_fake("scaled_mm::awq_dequantize")
def _(qweight: Tensor, scales: Tensor, qzeros: Tensor) -> Tensor:
    return scales.new_empty([qweight.shape[0], 8 * qweight.shape[1]])


@torch.library.register_fake("scaled_mm::awq_gemm")
def _(
    x: Tensor, qweight: Tensor, scales: Tensor, qzeros: Tensor, *, bias: Tensor | None = None
) -> Tensor:
    return x.new_empty([*x.shape[:-1], 8 * qweight.shape[1]])
