"""Values of 4 bits (and 8) to int32 words, in the orders of AWQ, GPTQ and compressed-tensors."""

from __future__ import annotations

import torch
from torch import Tensor

SEQUENTIAL = (0, 1, 2, 3, 4, 5, 6, 7)
"""Where GPTQ keeps value j of eight: in nibble j."""
INTERLEAVED = (0, 4, 1, 5, 2, 6, 3, 7)
"""Where AWQ keeps column j of eight: in nibble INTERLEAVED[j] (so nibble i holds column
0, 2, 4, 6, 1, 3, 5, 7)."""


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


def pack_dense(values: Tensor, bits: int) -> Tensor:
    """Values of 4 or 8 bits to words, the first in the lowest bits: [..., L] -> int32
    [..., ceil(L bits / 32)]. A last word that is not full ends in zeros.

    Args:
        values: uint8 [..., L], below 2^bits.
        bits: 4 or 8.
    """
    padded = torch.nn.functional.pad(values, (0, -values.shape[-1] % per_word(bits)))
    if bits == 4:
        return pack(padded, SEQUENTIAL)
    return padded.contiguous().unflatten(-1, (-1, 4)).view(torch.int32).squeeze(-1)


def unpack_dense(words: Tensor, bits: int, length: int, name: str = "words") -> Tensor:
    """The inverse of `pack_dense`: int32 [..., words] -> uint8 [..., length]; `name` is that of the
    argument, for the refusal of more or fewer words."""
    if words.shape[-1] != -(-length // per_word(bits)):
        rule = f"hold {length} values of {bits} bits and no more"
        raise ValueError(f"{name} must {rule}, got {tuple(words.shape)}")
    if bits == 4:
        values = unpack(words, SEQUENTIAL)
    else:
        values = words.contiguous().unsqueeze(-1).view(torch.uint8).flatten(-2)
    return values[..., :length]


def signed(stored: Tensor, bits: int) -> Tensor:
    """Signed values, int8, of stored ones, which are 2^(bits-1) more."""
    return (stored - (1 << (bits - 1))).view(torch.int8)  # modulo 256


def unsigned(q: Tensor, bits: int) -> Tensor:
    """Stored values, uint8, of signed ones: 2^(bits-1) more."""
    return (q.view(torch.uint8) ^ 1 << (bits - 1)) & (1 << bits) - 1


def per_word(bits: int) -> int:
    """Values in a word; ValueError where bits are not 4 or 8."""
    if not isinstance(bits, int) or bits not in (4, 8):
        raise ValueError(f"bits must be 4 or 8, got {bits!r}")
    return 32 // bits


def must_be_words(**tensors: Tensor) -> None:
    """Refuses, by its name, what is not int32 of two dimensions."""
    for name, words in tensors.items():
        if not isinstance(words, Tensor):
            raise TypeError(f"{name} must be a Tensor, got {type(words).__name__}")
        dense = words.layout is torch.strided and not words.is_nested
        if not dense or words.dtype != torch.int32 or words.dim() != 2:
            kind = f"shape {tuple(words.shape)}" if dense else f"layout {words.layout}"
            got = f"{str(words.dtype)[6:]} of {kind}"
            raise ValueError(f"{name} must be int32 of two dimensions, got {got}")
