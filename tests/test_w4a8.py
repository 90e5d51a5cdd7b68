"""`w4a8_mm` and `scaled_mm` in blocks: the reference's bits on every instruction set; refusals; as
ops of torch (the reference itself: test_k_scales.py)."""

import itertools
import zlib
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from helpers import AsModule, assert_bits, assert_by_itself, each_isa, refuses
from hypothesis import given
from hypothesis import strategies as st
from mixed_cases import MixedCase
from operands import ACTIVATIONS, COLUMN, GATED, ROW, Layout
from test_out import assert_written_in_place
from torch import Tensor

import scaled_mm
from scaled_mm import pack_weight, reference, w4a8_mm
from scaled_mm.reference.k_scales import BLOCK

pytestmark = [
    pytest.mark.usefixtures("poisoned"),
    pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated"),
]
OUTS = (torch.bfloat16, torch.float16, torch.float32)


@dataclass(frozen=True)
class Case:
    """One call of w4a8_mm, and the same of the reference."""

    name: str
    rows: tuple[int, ...] = (3,)
    n: int = 150
    k: int = 256
    group: int = 64
    zeros: bool = False
    azp: str = ""  # "", "one", "token", "wraps"
    scales: str = "usual"
    dtype: torch.dtype = torch.bfloat16
    one_scale: bool = False
    ending: str = ""  # an activation, or "residual"
    bias: bool = False
    shuffled: bool = False
    x: Layout = ROW
    out_dtype: torch.dtype = torch.bfloat16

    def build(self) -> tuple[dict[str, Any], dict[str, Any]]:
        rng = np.random.default_rng(zlib.crc32(self.name.encode()))
        kind = "integer" if self.zeros else "none"
        weight = MixedCase(
            *(self.name, 4, kind, self.k, self.n, self.group, self.dtype, self.scales),
            shuffled=self.shuffled,
        )
        w = pack_weight(**weight.plain(rng))

        def floats(*shape: int) -> Tensor:
            return torch.from_numpy(rng.standard_normal(shape).astype(np.float32))

        lead = (1,) if self.one_scale else (*self.rows, 1)
        q = torch.from_numpy(rng.integers(-128, 128, (*self.rows, self.k)).astype(np.int8))
        rest: dict[str, Any] = {"x": self.x.place(q, "cpu"), "scale_a": floats(*lead).exp() / 50}
        if self.azp:
            most = 2**31 if self.azp == "wraps" else 128
            shape = (1,) if self.azp == "one" else (*self.rows, 1)
            rest["azp"] = torch.from_numpy(rng.integers(-most, most, shape)).int()
        if self.bias:
            rest["bias"] = floats(self.n)
        if self.ending == "residual":
            rest["residual"] = floats(*self.rows, self.n).to(self.out_dtype)
        elif self.ending:
            rest["activation"] = self.ending
        rest["out_dtype"] = self.out_dtype
        return {**rest, "w": w}, {**rest, **w.unpack()._asdict()}


def _cases() -> Any:
    for zeros, azp, group in itertools.product((False, True), ("", "one", "token"), (32, 128, 0)):
        more = {"zeros": zeros, "azp": azp, "group": group or 1280, "bias": zeros}
        yield Case(f"kind-{zeros}-{azp}-{group}", k=1280, out_dtype=torch.float32, **more)
    for rows, n in itertools.product((1, 2, 6, 7, 16, 17, 33, 130), (1, 128, 264)):
        yield Case(f"sizes-{rows}-{n}", (rows,), n, 384, 96, True, "token", out_dtype=OUTS[n % 3])
    for rows, azp, group in itertools.product((3, 4, 5, 6), ("", "token"), (64, 0)):
        more = {"zeros": rows % 2 == 0, "azp": azp, "out_dtype": torch.float32}
        yield Case(f"few-{rows}-{azp}-{group}", (rows,), 200, 2176, group or 2176, **more)
    for k, group in (
        (4352, 32),
        (3072, 1024),
        (4500, 4500),
        (7, 7),
        (30, 30),
        (2304, 768),
        (9344, 32),
    ):
        yield Case(f"slices-{k}-{group}", (34,), 40, k, group, True, "token", bias=True)
        yield Case(f"slices-row-{k}-{group}", (1,), 300, k, group, out_dtype=torch.float32)
    for ending, out in itertools.product((*ACTIVATIONS, "residual"), OUTS):
        yield Case(f"{ending}-{out}", (2, 9), ending=ending, bias=True, out_dtype=out)
    for scales, dtype in itertools.product(("signed", "subnormal", "special"), OUTS[:2]):
        yield Case(f"{scales}-{dtype}", (9,), scales=scales, dtype=dtype, out_dtype=OUTS[2])
    for layout in (COLUMN, Layout(step=2), Layout(pad=5)):
        for shuffled in (False, True):
            yield Case(f"x-{layout}-{shuffled}", (2, 9), x=layout, shuffled=shuffled)
    yield Case("x-steps-row", (1,), x=Layout(step=2))
    for rows in ((), (0,), (2, 0, 3)):
        yield Case(f"rows-{rows}", rows, azp="one", one_scale=True)
    yield Case("wraps", (9,), azp="wraps", zeros=True, out_dtype=torch.float32)
    yield Case("no-columns", n=0)
    yield Case("no-rows", k=0, group=0, bias=True, ending="residual")
    yield Case("no-rows-no-bias", k=0, group=0, zeros=True, azp="token")


CASES = {case.name: case for case in _cases()}


def assert_case(case: Case) -> None:
    given, plain = case.build()
    expected = reference.w4a8_mm(**plain)
    for isa in each_isa([*given.values(), given["w"].data]):
        assert_bits(w4a8_mm(**given), expected, isa, case)


@pytest.mark.parametrize("name", CASES)
def test_bits(name: str) -> None:
    assert_case(CASES[name])


@given(
    seed=st.integers(0, 2**32),
    rows=st.integers(1, 40),
    n=st.integers(1, 300),
    groups=st.integers(1, 40),
    group=st.sampled_from([32, 64, 96, 128, 288]),
    zeros=st.booleans(),
    azp=st.sampled_from(["", "one", "token"]),
    ending=st.sampled_from(["", "residual", *ACTIVATIONS]),
    out_dtype=st.sampled_from(OUTS),
)
def test_any_problem(seed: int, rows: int, groups: int, **more: Any) -> None:
    more["n"] += more["n"] % 2 if more["ending"] in GATED else 0
    assert_case(Case(f"any{seed}", (rows,), k=groups * more["group"], **more))


def test_bits_depend_on_neither_threads_nor_other_rows(isa: str, threads: None) -> None:
    given, _ = Case("threads", (140,), 392, 2304, 32, True, "token").build()
    assert_by_itself(w4a8_mm, given, "x", "scale_a", "azp")


# --- int8 in blocks -------------------------------------------------------------------------------


def blocks(m: int, n: int, k: int, seed: int = 0, **more: Any) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    sizes = (m, k), (k, n)
    a, b = (torch.from_numpy(rng.integers(-128, 128, s).astype(np.int8)) for s in sizes)
    of_k, of_n = -(-k // BLOCK), -(-n // BLOCK)
    scales = [torch.from_numpy(rng.random(s).astype(np.float32)) for s in ((m, of_k), (of_k, of_n))]
    return {"a": a, "b": b, "scale_a": scales[0], "scale_b": scales[1], **more}


SIZES = [(1, 256, 128), (3, 130, 200), (7, 1, 300), (40, 300, 2500), (130, 128, 1024), (34, 140, 0)]
SIZES += [(5, 40, 9300)]
S = torch.tensor([0.02])
ENDINGS: dict[str, dict[str, Any]] = {
    "plain": {"out_dtype": torch.float32},
    "swiglu": {"activation": "swiglu"},
    "gelu": {"activation": "gelu", "out_dtype": torch.float16},
    "int8": {"out_dtype": torch.int8, "out_scale": S, "out_azp": S.int()},
    "fp8": {"out_dtype": torch.float8_e4m3fn, "out_scale": S},
}


@pytest.mark.parametrize("size", SIZES)
def test_blocks_have_the_bits_of_the_reference(size: tuple[int, int, int]) -> None:
    m, n, _ = size
    endings = dict(ENDINGS)
    endings["residual"] = {"residual": torch.randn(n, m).t(), "bias": torch.randn(n)}
    for name, ending in endings.items():
        if n % 2 and name == "swiglu":
            continue
        given = blocks(*size, **ending)
        expected = reference.scaled_mm(**given)
        for isa in each_isa():
            assert_bits(scaled_mm.scaled_mm(**given), expected, isa, name)
            for b in (scaled_mm.pack_weight_int8(given["b"]), given["b"].t().contiguous().t()):
                assert_bits(scaled_mm.scaled_mm(**{**given, "b": b}), expected, isa, name)


def test_blocks_within_the_bound(isa: str) -> None:
    given = blocks(5, 300, 2500, bias=torch.randn(300))
    got = scaled_mm.scaled_mm(**given)
    report = reference.check(got, **given)
    assert report.ok, report


def test_blocks_of_a_batch(isa: str) -> None:
    given = blocks(6, 130, 300)
    expected = scaled_mm.scaled_mm(**given)
    batch = {name: given[name].view(2, 3, -1) for name in ("a", "scale_a")}
    assert_bits(scaled_mm.scaled_mm(**{**given, **batch}), expected.view(2, 3, 130))


@pytest.mark.parametrize("dtype", OUTS)
@pytest.mark.parametrize("shape", [(2, 3, 300), (5, 128), (1, 64), (0, 256), (130, 257)])
def test_quantisers_of_groups_and_blocks(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    x = torch.randn(shape).to(dtype)
    q, scale, azp = scaled_mm.quantize_int8(x, group_size=BLOCK)
    assert azp is None
    assert scale.shape == (*shape[:-1], -(-shape[-1] // BLOCK))
    for g, part in enumerate(x.split(BLOCK, -1)):
        expected = reference.quantize_int8(part)
        assert_bits(q[..., g * BLOCK :][..., :BLOCK], expected[0])
        assert_bits(scale[..., g : g + 1], expected[1])
    if len(shape) != 2 or shape[0] == 0:
        return
    q, scale = scaled_mm.quantize_weight_int8(x, block_size=BLOCK)
    assert scale.shape == tuple(-(-size // BLOCK) for size in reversed(shape))
    for j, rows in enumerate(x.split(BLOCK)):
        for g, part in enumerate(rows.split(BLOCK, -1)):
            expected = reference.quantize_int8(part, per_token=False)
            assert_bits(q[j * BLOCK :, g * BLOCK :][:BLOCK, :BLOCK], expected[0])
            assert_bits(scale[g, j].view(1), expected[1])


def test_quantisers_refuse() -> None:
    x, rule = torch.randn(3, 256), "^(group|block)_size must be"
    for call in (
        partial(scaled_mm.quantize_int8, x, group_size=64),
        partial(scaled_mm.quantize_int8, x, group_size=BLOCK, symmetric=False),
        partial(scaled_mm.quantize_int8, x, group_size=BLOCK, scale=torch.ones(1)),
        partial(scaled_mm.quantize_weight_int8, x, block_size=64),
        partial(scaled_mm.quantize_weight_int8, x, block_size=BLOCK, per_channel=False),
    ):
        with pytest.raises(ValueError, match=rule):
            call()


GOOD, _ = Case("good", (5,), 24, 64, 32).build()
FULL, _ = Case("full", (2, 3), 24, 64, 32, True, "token", bias=True, shuffled=True).build()
BLOCKS = blocks(5, 130, 256)
X, W = GOOD["x"], GOOD["w"]


def packed(bits: int, zero: str, group: int) -> Any:
    return pack_weight(**MixedCase("w", bits, zero, 64, 24, group).plain())


REFUSED = {
    "x must be int8, got float16": {"x": X.half()},
    "x must have at least one dimension": {"x": X[0, 0]},
    r"x must have K=64 columns, the rows of packed, got shape \(5,": {"x": X[:, 1:]},
    "packed must have values of 4 bits, got 8 bits": {"w": packed(8, "none", 32)},
    "packed must have zero points that are integers": {"w": packed(4, "float", 32)},
    "packed must have groups of a multiple of 32 rows": {"w": packed(4, "none", 16)},
    "scale_a must have 1 or M=5 elements": {"scale_a": torch.ones(4, 1)},
    "scale_a must be float32": {"scale_a": torch.ones(5, 1).half()},
    "azp must have 1 or M=5 elements": {"azp": torch.ones(4, 1).int()},
    "azp must be int32": {"azp": torch.ones(5, 1)},
    "bias must have N=24 elements": {"bias": torch.ones(23)},
    r"residual must have the output's shape": {"residual": torch.ones(5, 23)},
    "residual must be given": {"residual": torch.ones(5, 24), "activation": "silu"},
    "activation must be None or one of relu": {"activation": "tanh"},
    "out_dtype must be one of bfloat16": {"out_dtype": torch.int32},
    "out_scale must be given with out_dtype=int8": {"out_dtype": torch.int8},
    "out must have the output's shape": {"out": torch.empty(5, 23).bfloat16()},
    "out must": {"out": X.view(-1)[:240].view(torch.bfloat16).view(5, 24)},
    "scale_a must not require grad": {"scale_a": torch.ones(5, 1, requires_grad=True)},
}
BLOCKS_REFUSED = {
    r"scale_a must have shape \(5, 2\), one for each": {"scale_a": torch.ones(5, 3)},
    r"scale_a must have shape \(5, 2\)": {"scale_a": torch.ones(5, 1)},
    "scale_a must have 1 or M=5 elements": {"scale_b": torch.ones(2, 3)},
    "scale_b must be float32": {"scale_b": torch.ones(2, 2).half()},
    "azp must not be given with scales in blocks of 128 x 128": {
        "azp": torch.ones(1).int(),
        "azp_adj": torch.ones(130).int(),
    },
    "azp_with_adj must not be given with scales": {"azp_with_adj": torch.ones(130).int()},
    "out must have the output's shape": {"out": torch.empty(5, 131).bfloat16()},
}
CALLS: dict[str, tuple[Any, dict[str, Any]]] = {
    "w4a8": (w4a8_mm, GOOD),
    "blocks": (scaled_mm.scaled_mm, BLOCKS),
}
test_refused = refuses(REFUSED, w4a8_mm, **GOOD)
test_blocks_are_refused = refuses(BLOCKS_REFUSED, scaled_mm.scaled_mm, **BLOCKS)


OTHER_TYPES = {
    r"w must be a MixedWeight \(see pack_weight\), got Tensor": {"w": W.data},
    "x must be a Tensor, got list": {"x": [1.0]},
    "activation must be a string, got int": {"activation": 3},
    "out_dtype must be a torch.dtype, got str": {"out_dtype": "half"},
}
test_of_another_type = refuses(OTHER_TYPES, w4a8_mm, error=TypeError, end="$", **GOOD)


@pytest.mark.parametrize("call", CALLS)
def test_written_in_place(call: str, isa: str) -> None:
    assert_written_in_place(*CALLS[call])


def of_the_op(given: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    w, rest = given["w"], {x: t for x, t in given.items() if x not in ("x", "w", "scale_a")}
    return (given["x"], w.data, w.sizes, given["scale_a"]), {**rest, "order": w.order}


@pytest.mark.parametrize("given", [GOOD, FULL, {**GOOD, "activation": "swiglu"}])
def test_opcheck(given: dict[str, Any]) -> None:
    arguments, options = of_the_op(given)
    op = torch.ops.scaled_mm.w4a8_mm
    torch.library.opcheck(op.default, arguments, options)
    out = torch.empty_like(op(*arguments, **options))
    torch.library.opcheck(op.out, arguments, {**options, "out": out})


def test_opcheck_of_blocks() -> None:
    torch.library.opcheck(torch.ops.scaled_mm.scaled_mm.default, tuple(BLOCKS.values()))


@pytest.mark.parametrize("call", CALLS)
def test_compiled_and_exported(call: str) -> None:
    function, given = CALLS[call]
    tensors = {name: x for name, x in given.items() if isinstance(x, Tensor)}
    rest = {name: x for name, x in given.items() if name not in tensors}
    module = AsModule(partial(function, **rest))
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
    assert_bits(compiled(**tensors), function(**given))
    exported = torch.export.export(module, (), tensors)
    assert_bits(exported.module()(**tensors), function(**given))
