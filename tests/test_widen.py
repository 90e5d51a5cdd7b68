"""_widen, the window onto the converters of small integers: every value in every lane, exact; and
the arithmetic with which the GPU converts, on the constants of csrc/cuda/common/convert.cuh."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import pytest
import torch
from awq_cases import DTYPES
from helpers import assert_bits
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

ROOT = Path(__file__).resolve().parent.parent
ops = torch.ops.scaled_mm
pytestmark = [
    pytest.mark.usefixtures("poisoned"),
    pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated"),
]
kinds = pytest.mark.parametrize(
    ("bits", "signed", "dtype"), list(itertools.product((4, 8), (False, True), DTYPES))
)


def to_words(values: Tensor) -> Tensor:
    """The low 32 bits of int64 values, as int32."""
    return (values - ((values & 2**31) << 1)).int()


def in_every_lane(bits: int) -> Tensor:
    """Each value in each lane, the bits around it all 0, all 1, alternating, and lanes unlike each
    other."""
    mask = 2**bits - 1
    lanes = [bits * i for i in range(32 // bits)]
    backgrounds = (0, 0xFFFFFFFF, 0x55555555, 0xAAAAAAAA, 0x76543210, 0x80000001, 0x7F80FF01)
    words = [
        torch.arange(mask + 1) << lane | background & ~(mask << lane)
        for lane, background in itertools.product(lanes, backgrounds)
    ]
    return to_words(torch.cat(words))


def halves() -> Tensor:
    """All 65536 lower halves of a word, all upper ones, and each in both."""
    half = torch.arange(2**16)
    return to_words(torch.cat([half, half << 16, half | half << 16, half ^ 0xFFFF | half << 16]))


def random_words(*shape: int) -> Tensor:
    """Half of them with bit 31 set."""
    generator = torch.Generator().manual_seed(0)
    return torch.randint(-(2**31), 2**31, shape, generator=generator).int()


WORDS: dict[str, Tensor] = {
    "bytes": in_every_lane(8),
    "nibbles": in_every_lane(4),
    "halves": halves(),
    "random": random_words(100_003),
    "3d": random_words(3, 5, 7),
    "0d": random_words(1)[0],
    "empty": random_words(4, 0),
    "transposed": random_words(65, 33).t(),
    "every third, after one": random_words(1000)[1::3],
    "expanded": random_words(1, 9).expand(5, 9),
}
SIZES = (1, 2, 31, 32, 33, 255, 256, 257, 511, 512, 513, 1000, 65_537)


def expected(words: Tensor, bits: int, signed: bool, dtype: torch.dtype) -> Tensor:
    """In int64, by division, and from there to the dtype."""
    values = torch.stack(
        [(words.long() % 2**32) // 2 ** (bits * i) % 2**bits for i in range(32 // bits)], dim=-1
    )
    if signed:
        values = values - 8 if bits == 4 else (values + 128) % 256 - 128
    assert torch.equal(values.to(dtype).long(), values)  # exact
    return values.to(dtype)


@kinds
@pytest.mark.parametrize("name", WORDS)
def test_every_value(name: str, bits: int, signed: bool, dtype: torch.dtype) -> None:
    words = WORDS[name]
    before = words.clone()
    got = ops._widen(words, bits=bits, signed=signed, dtype=dtype)
    assert got.is_contiguous()
    assert_bits(got, expected(words, bits, signed, dtype), name)
    assert torch.equal(words, before)


@kinds
def test_sizes_and_threads(threads: None, bits: int, signed: bool, dtype: torch.dtype) -> None:
    words = random_words(max(SIZES))
    for count, size in ((1, 65_537), *((3, size) for size in SIZES)):
        torch.set_num_threads(count)
        got = ops._widen(words[:size], bits=bits, signed=signed, dtype=dtype)
        assert_bits(got, expected(words[:size], bits, signed, dtype), count, size)


def test_tables_have_every_value_in_every_lane() -> None:
    for name, bits in (("bytes", 8), ("nibbles", 4), ("halves", 8), ("halves", 4)):
        elements = expected(WORDS[name], bits, False, torch.float16)
        for lane in elements.unbind(-1):
            assert len(lane.unique()) == 2**bits
    assert (WORDS["random"] < 0).any()


# --- refusals, and as an op of torch --------------------------------------------------------------

GOOD = {"words": random_words(3, 4), "bits": 4, "signed": True, "dtype": torch.float16}
REFUSED = {
    "words": (random_words(3).long(), "be int32, got int64"),
    "words ": (torch.ones(3), "be int32, got float32"),
    "bits": (2, "be 4 or 8, got 2"),
    "bits ": (0, "be 4 or 8, got 0"),
    "bits  ": (-4, "be 4 or 8, got -4"),
    "bits   ": (2**40, f"be 4 or 8, got {2**40}"),
    "dtype": (torch.float32, "be float16 or bfloat16, got float32"),
    "dtype ": (torch.int8, "be float16 or bfloat16, got int8"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    value, rule = REFUSED[name]
    argument = name.strip()
    with pytest.raises(ValueError, match=rf"^{argument} must {rule}$"):
        ops._widen(**{**GOOD, argument: value})


@kinds
@pytest.mark.parametrize("name", ["3d", "0d", "empty", "transposed"])
def test_opcheck_and_fake(name: str, bits: int, signed: bool, dtype: torch.dtype) -> None:
    options = {"bits": bits, "signed": signed, "dtype": dtype}
    torch.library.opcheck(ops._widen.default, (WORDS[name],), options)
    real = ops._widen(WORDS[name], **options)
    with FakeTensorMode() as mode:
        fake = ops._widen(mode.from_tensor(WORDS[name]), **options)
    meta = ops._widen(WORDS[name].to("meta"), **options)
    for x in (fake, meta):
        assert (x.shape, x.dtype, x.stride()) == (real.shape, real.dtype, real.stride())


# --- what the GPU does with bits, in torch's arithmetic: constants as convert.cuh has them --------

CONVERT = (ROOT / "csrc/cuda/common/convert.cuh").read_text()


def constants(statement: str) -> list[int]:
    """The numbers that stand in convert.cuh where `statement` has HEX, as int32 holds them; the
    words around them must be those of the source."""
    pattern = re.escape(statement).replace("\\ ", r"\s*").replace("HEX", "(0x[0-9a-fA-F]+)")
    found = re.findall(pattern, CONVERT)
    assert len(found) == 1, f"{len(found)} times in convert.cuh: {statement}"
    numbers = [int(text, 16) for text in (found if isinstance(found[0], str) else found[0])]
    return [number - (number >> 31 << 32) for number in numbers]


def pairs(words: Tensor, dtype: torch.dtype) -> Tensor:
    """The two 16-bit floats in each word, the low half first."""
    return words.contiguous().unsqueeze(-1).view(dtype)


def pair(word: int, dtype: torch.dtype) -> Tensor:
    return pairs(torch.tensor(word, dtype=torch.int32), dtype)


def byte_perm(first: Tensor, second: int | Tensor, selector: int) -> Tensor:
    """__byte_perm: digit i of the selector says which of the eight bytes is byte i."""
    if isinstance(second, int):
        second = torch.full_like(first, second)
    every = torch.cat([x.contiguous().unsqueeze(-1).view(torch.uint8) for x in (first, second)], -1)
    digits = [selector >> 4 * i & 15 for i in range(4)]
    return every[..., digits].contiguous().view(torch.int32).squeeze(-1)


def lowbit_words(table: str) -> Tensor:
    return torch.cat([WORDS[table], WORDS["halves"], WORDS["random"]])


def fma(x: Tensor, y: Tensor, z: Tensor) -> Tensor:
    """Of float16, rounded once: float32 holds these products and sums."""
    return (x.float() * y.float() + z.float()).half()


@pytest.mark.parametrize("zero_point", [None, *range(16)])
@pytest.mark.parametrize("signed", [False, True])
def test_nibbles_to_float16(signed: bool, zero_point: int | None) -> None:
    """widen4 (by fixed()), and the difference from a zero point that was lifted likewise."""
    odd, even, one = constants("and_or(word >> i / 2 * 8, i % 2 ? HEX : HEX, HEX)")
    (minus_16th,) = constants("i % 2 ? Pairs<__half>::multiply(lifted, HEX) : lifted;")
    far = constants("if (i % 2) return is_signed ? HEX : HEX;")
    near = constants("return is_signed ? HEX : HEX; // 1032, 1024")
    (a_16th,) = constants("i % 2 ? Pairs<__half>::fma(lifted, HEX, base)")
    words = lowbit_words("nibbles") if zero_point is None else WORDS["nibbles"]
    half = torch.float16

    def lift(word: Tensor, i: int) -> Tensor:
        return pairs(word >> i // 2 * 8 & (odd if i % 2 else even) | one, half)

    zeros = torch.tensor((zero_point or 0) * 0x11111111 & 0x7FFFFFFF, dtype=torch.int32)
    if (zero_point or 0) >= 8:
        zeros = zeros | -(2**31)
    for i in range(4):
        base = pair((far if i % 2 else near)[0 if signed else 1], half)
        elements = expected(words, 4, signed, half)
        if zero_point is not None:
            lifted = lift(zeros, i)
            base = lifted * pair(minus_16th, half) if i % 2 else lifted
            elements = expected(words, 4, False, half) - zero_point
        lifted = lift(words, i)
        got = fma(lifted, pair(a_16th, half), base) if i % 2 else lifted - base
        assert_bits(got, elements[:, [i, i + 4]], i)


@pytest.mark.parametrize("signed", [False, True])
def test_nibbles_to_bfloat16(signed: bool) -> None:
    mask, one = constants("and_or(word >> 4 * i, HEX, HEX)")
    fixed = constants("return is_signed ? HEX : HEX; // 136, 128")
    words = lowbit_words("nibbles")
    elements = expected(words, 4, signed, torch.bfloat16)
    base = pair(fixed[0 if signed else 1], torch.bfloat16)
    for i in range(4):
        got = pairs(words >> 4 * i & mask | one, torch.bfloat16) - base
        assert_bits(got, elements[:, [i, i + 4]])


@pytest.mark.parametrize("signed", [False, True])
def test_bytes_to_both(signed: bool) -> None:
    (flip,) = constants("if (kSigned) word ^= HEX;")
    fixed = constants("const Pair constant = kSigned ? HEX : HEX;")
    low, low_selector = constants("pair[0] = Pairs<T>::subtract(__byte_perm(word, HEX, HEX),")
    high, high_selector = constants("pair[1] = Pairs<T>::subtract(__byte_perm(word, HEX, HEX),")
    wide_base, wide_selector = constants("__byte_perm(word, HEX, HEX + i)")
    (first,) = constants("pair[0] = __byte_perm(wide[0], wide[1], HEX);")
    (second,) = constants("pair[1] = __byte_perm(wide[2], wide[3], HEX);")
    taken = re.findall(r"const float constant = kSigned \? ([\d.]+)f : ([\d.]+)f;", CONVERT)
    assert len(taken) == 1
    words = lowbit_words("bytes")
    flipped = words ^ flip if signed else words

    base = pair(fixed[0 if signed else 1], torch.float16)
    elements = expected(words, 8, signed, torch.float16)
    for i, bits, selector in ((0, low, low_selector), (2, high, high_selector)):
        lifted = pairs(byte_perm(flipped, bits, selector), torch.float16)
        assert_bits(lifted - base, elements[:, i : i + 2], i)

    constant = float(taken[0][0 if signed else 1])
    wide = [
        (byte_perm(flipped, wide_base, wide_selector + i).view(torch.float32) - constant).view(
            torch.int32
        )
        for i in range(4)
    ]
    assert not any((x & 0xFFFF).any() for x in wide)  # the upper half is all there is
    elements = expected(words, 8, signed, torch.bfloat16)
    for i, selector in ((0, first), (2, second)):
        got = pairs(byte_perm(wide[i], wide[i + 1], selector), torch.bfloat16)
        assert_bits(got, elements[:, i : i + 2], i)
