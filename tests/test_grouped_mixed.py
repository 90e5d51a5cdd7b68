"""`grouped_mixed_mm`: the bits of `mixed_mm` for each expert's rows on every instruction set, over
all kinds of routings; stacks of packed weights; refusals; as an op of torch."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from grouped_mixed_cases import bound, cases, one_by_one, operands_of, packed, plain
from helpers import ISAS, AsModule, assert_bits, each_isa, refuses
from mixed_cases import KINDS, MixedCase
from test_awq import assert_bounded

from scaled_mm import (
    MixedWeight,
    _library,
    grouped_mixed_mm,
    layouts,
    mixed_mm,
    pack_weight,
    reference,
)

pytestmark = [
    pytest.mark.usefixtures("poisoned"),
    pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated"),
]


def test_bits_of_each_experts_product() -> None:
    for seed, operands in enumerate(cases(80)):
        given = packed(operands)
        for isa in each_isa(given.values()):
            assert_bits(grouped_mixed_mm(**given), one_by_one(mixed_mm, given), isa, seed)


@pytest.mark.slow
def test_10000_random_cases() -> None:
    """One instruction set each, in turn."""
    for seed in range(100, 10_100):
        given = packed(operands_of(seed))
        with _library.forced_cpu_isa(ISAS[seed % len(ISAS)]):
            assert_bits(grouped_mixed_mm(**given), one_by_one(mixed_mm, given), seed)


def test_products_within_the_bound() -> None:
    for seed, operands in enumerate(cases(12)):
        exact, error = bound(operands)
        assert_bounded(grouped_mixed_mm(**packed(operands)), exact, error, seed)
        by_definition = reference.grouped_mixed_mm(**plain(operands))
        assert_bounded(by_definition, exact, error, "reference", seed)


def test_bits_whatever_the_threads(isa: str, threads: None) -> None:
    given = packed(operands_of(3, most=400))
    whole = one_by_one(mixed_mm, given)
    for count in (1, 2, 3, 8):
        torch.set_num_threads(count)
        assert_bits(grouped_mixed_mm(**given), whole, count)


def test_decode_reads_only_the_experts_hit() -> None:
    """The weights of the others are NaN all over: nothing of them reaches the output."""
    operands = operands_of(7)
    w = pack_weight(**operands["weight"])
    experts = len(w.data)
    x, ends = torch.ones(1, w.k, dtype=w.dtype), torch.ones(experts, dtype=torch.int32)
    ends[: experts // 2] = 0
    expected = mixed_mm(x, w[experts // 2])
    w.data[torch.arange(experts) != experts // 2] = torch.nan
    assert_bits(grouped_mixed_mm(x, w, ends), expected)


@pytest.mark.parametrize(("bits", "zero"), KINDS)
@pytest.mark.parametrize("shuffled", [False, True])
def test_a_stack_of_weights(bits: int, zero: str, shuffled: bool) -> None:
    each = [
        MixedCase(f"stack{e}", bits, zero, 96, 150, 32, torch.bfloat16, shuffled=shuffled).plain()
        for e in range(3)
    ]
    given = {name: torch.stack([x[name] for x in each]) for name in each[0] if name != "bits"}
    w, weights = pack_weight(**given, bits=bits), [pack_weight(**x) for x in each]
    assert w.shape == (3, 96, 150)
    for stack in (w, MixedWeight.stack(weights)):
        assert torch.equal(stack.data.view(torch.uint8), w.data.view(torch.uint8))
        assert_bits(stack.dequantize(), torch.stack([x.dequantize() for x in weights]))
        for e, one in enumerate(weights):
            assert stack[e].shape == (96, 150)
            for x, y in zip(stack[e].unpack(), one.unpack(), strict=True):
                assert (x is None) == (y is None)
                assert x is None or torch.equal(x, y)
        again = stack.unpack()
        assert torch.equal(again.q, torch.stack([x.unpack().q for x in weights]))
        assert (again.zeros is None, again.order is None) == (zero == "none", not shuffled)


@pytest.mark.parametrize("bits", [4, 8])
def test_weights_prepared_for_other_engines(bits: int) -> None:
    """TensorRT-LLM's form, whose stacks are one tensor."""
    generator = torch.Generator().manual_seed(bits)
    low = -(1 << (bits - 1))
    q = torch.randint(low, -low, (2, 128, 64), generator=generator, dtype=torch.int8)
    scales, zeros = torch.rand(2, 2, 2, 64, generator=generator).half()
    layout = layouts.layout_of(80, bits=bits, experts=True)
    prepared = layouts.preprocess_weights_for_mixed_gemm(q, layout)
    x, ends = torch.randn(5, 128, generator=generator).half(), torch.tensor([2, 5]).int()
    for z in (None, zeros):
        theirs = MixedWeight.from_tensorrt_llm(prepared, scales, z, layout=layout)
        own = {"x": x, "w": pack_weight(q, scales, zeros=z, bits=bits), "offsets": ends}
        assert_bits(grouped_mixed_mm(x, theirs, ends), one_by_one(mixed_mm, own))


Q, SCALES = torch.ones(3, 32, 8, dtype=torch.int8), torch.ones(3, 2, 8).half()
W, ENDS = pack_weight(Q, SCALES, bits=4), torch.tensor([2, 5, 9], dtype=torch.int32)
GOOD: dict[str, Any] = {"x": torch.ones(10, 32).half(), "w": W, "offsets": ENDS}
ROWS = torch.zeros(10, dtype=torch.int32)


REFUSED = {
    "x must be float16 or bfloat16, got float32": {"x": GOOD["x"].float()},
    "packed must be of x's dtype bfloat16, got float16": {"x": GOOD["x"].bfloat16()},
    r"x must be a matrix \[T, K\], got shape \(32,\)": {"x": GOOD["x"][0]},
    "x must have K=32 columns, the rows of packed": {"x": GOOD["x"][:, 1:]},
    r"packed must be a stack of buffers \[E, elements\]": {"w": W[0]},
    r"packed must be a contiguous buffer of shape \(3, 1040\)": {"w": W.on(W.data[:, 1:])},
    r"order must have shape \(3, 32\)": {"w": replace(W, order=torch.zeros(32).int())},
    r"order must name columns 0\.\.31": {"w": replace(W, order=torch.full((3, 32), 32).int())},
    "offsets must be int32, got int64": {"offsets": ENDS.long()},
    r"offsets must have shape \(3,\), got shape \(2,\)": {"offsets": ENDS[:2]},
    "offsets must rise from 0 to at most the 10 rows, got 11": {"offsets": ENDS + 2},
    "offsets must rise from 0 .*, got 2 behind 6": {"offsets": ENDS.flip(0) - 3},
    r"rows must name rows 0\.\.9 of x, got -1": {"rows": ROWS - 1},
    r"rows must name rows 0\.\.9 of x, got 10": {"rows": ROWS + 10},
    "rows must be int32, got int64": {"rows": ROWS.long()},
    r"bias must have shape \(3, 8\)": {"bias": torch.ones(8)},
    "bias must be float32 or x's float16": {"bias": torch.ones(3, 8).bfloat16()},
    r"residual must have the output's shape \(10, 8\)": {"residual": torch.ones(9, 8).half()},
    "activation must be None or one of relu": {"activation": "tanh"},
    "x must not require grad": {"x": torch.ones(10, 32, requires_grad=True)},
    "offsets must be on the device of x": {"offsets": ENDS.to("meta")},
}
test_refused = refuses(REFUSED, grouped_mixed_mm, **GOOD)


OTHER_TYPES = {
    r"w must be a MixedWeight \(see pack_weight\), got Tensor": {"w": W.data},
    "offsets must be a Tensor, got list": {"offsets": [1]},
    "activation must be a string, got int": {"activation": 3},
}
test_of_another_type = refuses(OTHER_TYPES, grouped_mixed_mm, error=TypeError, end="$", **GOOD)


def test_no_stacks() -> None:
    with pytest.raises(ValueError, match=r"^weights must have one at least, got none"):
        MixedWeight.stack([])
    with pytest.raises(ValueError, match=r"^weights must be alike, .* at 1$"):
        MixedWeight.stack([W[0], pack_weight(Q[0], SCALES[0, :1], bits=4)])
    with pytest.raises(ValueError, match=r"^scales must be a stack of E=3, as q, got shape \(2, 2"):
        pack_weight(Q, SCALES[:2], bits=4)
    with pytest.raises(ValueError, match=r"^packed must be a contiguous buffer of shape \(\d+,\)"):
        mixed_mm(GOOD["x"], W)


def test_opcheck() -> None:
    op = torch.ops.scaled_mm.grouped_mixed_mm.default
    bias, rows = torch.ones(3, 8), ROWS[:9]
    for more in ({}, {"activation": "swiglu", "rows": rows, "bias": bias}):
        torch.library.opcheck(op, (GOOD["x"], W.data, W.sizes, ENDS), more)


def test_exported() -> None:
    """Compiled: test_experts.py."""

    module = AsModule(
        lambda x, ends, rows: grouped_mixed_mm(x, W, ends, rows=rows, activation="swiglu")
    )
    tokens, count = torch.export.Dim("tokens", min=2), torch.export.Dim("count", min=2)
    sizes = (({0: tokens}, None, {0: count}),)
    given = torch.randn(6, 32).half(), ENDS, (torch.arange(14) % 6).int()
    program = torch.export.export(module, given, dynamic_shapes=sizes)
    given = torch.randn(11, 32).half(), ENDS, (torch.arange(25) % 11).int()
    assert_bits(program.module()(*given), module(*given))
