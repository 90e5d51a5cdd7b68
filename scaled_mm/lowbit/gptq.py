"""A weight in GPTQ's words, there and back. K input features, N output features, groups of G rows,
values of b = 4 or 8 bits.

    qweight   int32 [K b / 32, N]: values of neighbours along K, the first in the lowest bits
    qzeros    int32 [K/G, ceil(N b / 32)]: zero points of neighbours along N, the same; version 1
              stores z - 1, modulo 2^b

Source: the files of AutoGPTQ and GPTQModel.
"""

from __future__ import annotations

from torch import Tensor

from .words import must_be_words, pack_dense, per_word, unpack_dense


def from_gptq_words(
    qweight: Tensor, qzeros: Tensor, *, version: int, bits: int
) -> tuple[Tensor, Tensor]:
    """q [K, N] and zeros [K/G, N] of those words, uint8: W[k, n] = (q[k, n] - zeros[g, n]) s[g, n].

    Raises:
        ValueError: words that are not int32 of two dimensions, or of another number than N has;
            another version than 1 and 2, or bits than 4 and 8.
    """
    must_be_words(qweight=qweight, qzeros=qzeros)
    below = stored_below(version)
    zeros = unpack_dense(qzeros, bits, qweight.shape[1], "qzeros") + below  # modulo 256
    q = unpack_dense(qweight.t(), bits, len(qweight) * per_word(bits)).t().contiguous()
    return q, zeros & (1 << bits) - 1


def to_gptq_words(q: Tensor, zeros: Tensor, *, version: int, bits: int) -> tuple[Tensor, Tensor]:
    """qweight and qzeros of values and zero points, uint8 [K, N] and [K/G, N].

    Raises:
        ValueError: K is no multiple of the values in a word; another version or bits.
    """
    if len(q) % per_word(bits):
        raise ValueError(f"q must have a multiple of {per_word(bits)} rows, got {len(q)}")
    stored = zeros - stored_below(version) & (1 << bits) - 1
    return pack_dense(q.t(), bits).t().contiguous(), pack_dense(stored, bits)


def stored_below(version: int) -> int:
    """How much less than z qzeros holds."""
    if type(version) is not int or version not in (1, 2):
        raise ValueError(f"version must be 1 (zeros stored less 1) or 2, got {version!r}")
    return 2 - version
