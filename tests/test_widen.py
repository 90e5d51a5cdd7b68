"""_widen, the window onto the converters of small integers: every value in every lane, exact; and
the constants of docs/lowbit.md, with which the GPU converts."""

from __future__ import annotations

import itertools

import pytest
import torch
from awq_cases import DTYPES
from helpers import assert_bits
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

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


# --- the constants of docs/lowbit.md, in torch's arithmetic ---------------------------------------


def pairs(words: Tensor, dtype: torch.dtype) -> Tensor:
    """The two 16-bit floats in each word, the low half first."""
    return words.contiguous().unsqueeze(-1).view(dtype)


def prmt(first: Tensor, second: int, selector: int) -> Tensor:
    every = torch.cat(
        [x.unsqueeze(-1).view(torch.uint8) for x in (first, torch.full_like(first, second))], -1
    )
    digits = [selector >> 4 * i & 15 for i in range(4)]
    return every[..., digits].contiguous().view(torch.int32).squeeze(-1)


@pytest.mark.parametrize(("signed", "near", "far"), [(False, 1024.0, -64.0), (True, 1032.0, -72.0)])
def test_lop3_to_float16(signed: bool, near: float, far: float) -> None:
    words = torch.cat([WORDS["nibbles"], WORDS["halves"], WORDS["random"]])
    elements = expected(words, 4, signed, torch.float16)
    for shift in (0, 8):
        i = shift // 4
        low = pairs(words >> shift & 0x000F000F | 0x64006400, torch.float16) - near
        high = pairs(words >> shift & 0x00F000F0 | 0x64006400, torch.float16) / 16 + far
        assert_bits(low, elements[:, [i, i + 4]])
        assert_bits(high, elements[:, [i + 1, i + 5]])


@pytest.mark.parametrize(("signed", "constant"), [(False, 128.0), (True, 136.0)])
def test_lop3_to_bfloat16(signed: bool, constant: float) -> None:
    words = torch.cat([WORDS["nibbles"], WORDS["halves"], WORDS["random"]])
    elements = expected(words, 4, signed, torch.bfloat16)
    for i in range(4):
        got = pairs(words >> 4 * i & 0x000F000F | 0x43004300, torch.bfloat16) - constant
        assert_bits(got, elements[:, [i, i + 4]])


@pytest.mark.parametrize("signed", [False, True])
def test_prmt(signed: bool) -> None:
    words = torch.cat([WORDS["bytes"], WORDS["halves"], WORDS["random"]])
    flipped = words ^ -0x7F7F7F80 if signed else words  # 0x80808080
    added = 128 if signed else 0
    for i, selector in ((0, 0x4140), (2, 0x4342)):
        lifted = pairs(prmt(flipped, 0x64646464, selector), torch.float16)
        elements = expected(words, 8, signed, torch.float16)
        assert_bits(lifted - (1024 + added), elements[:, i : i + 2])
    for i in range(4):
        wide = prmt(flipped, 0x4B000000, 0x7650 + i).view(torch.float32) - (2**23 + added)
        assert not (wide.view(torch.int32) & 0xFFFF).any()  # the upper half is all there is
        assert_bits(wide.bfloat16(), expected(words, 8, signed, torch.bfloat16)[:, i])
