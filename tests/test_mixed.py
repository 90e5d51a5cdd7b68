"""`mixed_mm`: products within their bound, on every instruction set; what it refuses; as an op of
torch (weights: test_mixed_weights.py)."""

import itertools
from dataclasses import replace
from typing import Any

import pytest
import torch
from helpers import assert_bits, assert_by_itself, each_isa, refuses
from hypothesis import given
from hypothesis import strategies as st
from mixed_cases import DTYPES, KINDS, MIXED_CASES, MixedCase
from operands import ACTIVATIONS, GATED
from test_awq import assert_bounded
from test_out import assert_written_in_place
from torch import Tensor

import scaled_mm
from scaled_mm import mixed_mm, pack_weight, reference

pytestmark = [
    pytest.mark.usefixtures("poisoned"),
    pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated"),
]
FINITE = [
    name
    for name, case in MIXED_CASES.items()
    if case.scales not in ("large", "special", "wide")
    or (case.scales, case.dtype) == ("wide", torch.bfloat16)
]
kinds = pytest.mark.parametrize(("bits", "zero"), KINDS)


def shape_of(given: dict[str, Any]) -> tuple[int, ...]:
    columns = given["w"].n // (2 if given.get("activation") in GATED else 1)
    return (*given["x"].shape[:-1], columns)


@pytest.mark.parametrize("name", FINITE)
def test_product_within_the_bound(name: str) -> None:
    given, plain = MIXED_CASES[name].product()
    exact, bound = reference.mixed_mm_bound(**plain)
    for isa in each_isa([*given.values(), given["w"].data]):
        got = mixed_mm(**given)
        assert (got.shape, got.dtype) == (shape_of(given), given["x"].dtype)
        assert_bounded(got, exact, bound, isa, name)


@pytest.mark.parametrize("name", FINITE[:: len(FINITE) // 30])
def test_the_reference_is_within_its_own_bound(name: str) -> None:
    _, plain = MIXED_CASES[name].product()
    assert_bounded(reference.mixed_mm(**plain), *reference.mixed_mm_bound(**plain), name)


@pytest.mark.parametrize("activation", (None, *ACTIVATIONS))
def test_an_ending_has_the_bits_of_its_sequence(isa: str, activation: str | None) -> None:
    """x = I: no sum is rounded, so D is the reference's to the bit. Without f, a residual."""
    plain = MixedCase("activation", 8, "none", 64, 40, 64, scales="signed").plain()
    plain["scales"] *= 0.05
    w, eye = pack_weight(**plain), torch.eye(64).half()
    ending: dict[str, Any] = {"bias": torch.linspace(-3, 3, 40), "activation": activation}
    if activation is None:
        ending["residual"] = torch.linspace(-7, 7, 40 * 64).half().view(40, 64).t()
        ending["bias"] = ending["bias"].bfloat16().float()  # sums of few bits: float64 is no nearer
    got = mixed_mm(eye, w, **ending)
    q, scales, _, _ = w.unpack()
    assert_bits(got, reference.mixed_mm(eye, q, scales, **ending))


@kinds
def test_order_and_pre_scale_are_those_of_a_prepared_x(isa: str, bits: int, zero: str) -> None:
    """The same bits as without them over x', which the reference makes."""
    for dtype, pre in itertools.product(DTYPES, (torch.float32, None)):
        case = MixedCase(f"p{pre}", bits, zero, 320, 72, 32, dtype, rows=(5,), shuffled=True)
        given, _ = case.product()
        w = given["w"]
        pre_scale = None if pre is None else torch.linspace(0.3, 1.7, 320)
        got = mixed_mm(given["x"], w, pre_scale=pre_scale)
        prepared = reference.mixed.prepared(given["x"], w.order, pre_scale)
        expected = torch.ops.scaled_mm.mixed_mm(prepared, w.data, w.sizes)
        assert_bits(got, expected, dtype, pre)
        apart = replace(w, order=torch.stack([w.order, w.order.flip(0)], 1)[:, 0])
        assert_bits(mixed_mm(given["x"], apart, pre_scale=pre_scale), expected, "strided order")


@kinds
def test_bits_depend_on_neither_threads_nor_other_rows(
    isa: str, threads: None, bits: int, zero: str
) -> None:
    case = MixedCase("large", bits, zero, 320, 392, 64, torch.bfloat16, rows=(140,))
    given, _ = case.product()
    assert_by_itself(mixed_mm, given, "x")


@kinds
def test_special_values_reach_the_output(isa: str, bits: int, zero: str) -> None:
    plain = MixedCase("special", bits, zero, 128, 264, 32, torch.bfloat16).plain()
    plain["scales"][3, 17] = torch.nan
    plain["scales"][1, 200] = torch.inf
    w = pack_weight(**plain)
    x = torch.linspace(0.5, 1, 70 * 128).reshape(70, 128).bfloat16()
    for rows in (1, 3, 70):
        got = mixed_mm(x[:rows], w)
        assert got[:, 17].isnan().all()
        assert not got[:, 200].isfinite().any()
        assert got[:, [n for n in range(264) if n not in (17, 200)]].isfinite().all()


@given(
    seed=st.integers(0, 2**32 - 1),
    kind=st.sampled_from(KINDS),
    m=st.integers(1, 9),
    n=st.integers(1, 160),
    groups=st.integers(1, 5),
    group=st.integers(1, 40),
    half=st.sampled_from(DTYPES),
    activation=st.sampled_from([None, "residual", *ACTIVATIONS]),
    scales=st.sampled_from(["usual", "signed", "subnormal"]),
    shuffled=st.booleans(),
)
def test_any_problem(isa: str, seed: int, kind: tuple[int, str], m: int, **sizes: Any) -> None:
    n, groups, group = sizes["n"], sizes["groups"], sizes["group"]
    more = {name: sizes[name] for name in ("scales", "shuffled")}
    ending = sizes["activation"]
    more |= {"residual": True} if ending == "residual" else {"activation": ending}
    n += n % 2 if ending in GATED else 0
    name, k = f"any{seed}", groups * group
    case = MixedCase(name, *kind, k, n, group, sizes["half"], rows=(m,), **more)
    given, plain = case.product()
    assert_bounded(mixed_mm(**given), *reference.mixed_mm_bound(**plain), case)


@kinds
def test_written_in_place(isa: str, bits: int, zero: str) -> None:
    case = MixedCase("out", bits, zero, n=21, rows=(2, 5), bias=torch.float32, shuffled=True)
    given, _ = case.product()
    assert_written_in_place(mixed_mm, given)


GOOD, _ = MixedCase("good", 8, "none", 64, 24, 32, rows=(5,)).product()
W, X = GOOD["w"], GOOD["x"]
SHUFFLED, _ = MixedCase("shuffled", 4, "float", 64, 24, 32, rows=(5,), shuffled=True).product()
ODD = pack_weight(**MixedCase("odd", 8, "none", 64, 23, 32).plain())
OP = torch.ops.scaled_mm.mixed_mm
REFUSED = {
    "x must be float16 or bfloat16, got float32": {"x": X.float()},
    "x must have at least one dimension": {"x": X[0, 0]},
    r"x must have K=64 columns, the rows of packed, got shape \(5,": {"x": X[:, 1:]},
    "packed must be of x's dtype bfloat16, got float16": {"x": X.bfloat16()},
    "x must not require grad": {"x": X.clone().requires_grad_()},
    r"bias must have N=24 elements, .*got shape \(23,\)": {"bias": torch.ones(23)},
    "bias must be .*, got bfloat16": {"bias": torch.ones(24).bfloat16()},
    "bias must not require grad": {"bias": torch.ones(24, requires_grad=True)},
    r"pre_scale must have K=64 elements.*\(63,\)": {"pre_scale": torch.ones(63)},
    r"pre_scale must have .*\(64, 1\)": {"pre_scale": torch.ones(64, 1)},
    "pre_scale must be .*, got int32": {"pre_scale": torch.ones(64).int()},
    "pre_scale must not require grad": {"pre_scale": torch.ones(64, requires_grad=True)},
    "activation must be None or one of relu, silu, gelu, gelu_tanh, reglu, .*, got tanh": {
        "activation": "tanh"
    },
    r"residual must have the output's shape \(5, 24\)": {"residual": X[:, :23]},
    "residual must be float16, got float32": {"residual": torch.ones(5, 24)},
    "residual must not require grad": {"residual": torch.ones(5, 24).half().requires_grad_()},
    "residual must not be given together with activation='relu', got both": {
        "residual": torch.ones(5, 24).half(),
        "activation": "relu",
    },
    "packed must have an even number of columns.*N=23": {"w": ODD, "activation": "geglu"},
    "activation must be None or one of": {"activation": "none"},
    r"out must .*got shape \(5, 23\)": {"out": X.new_empty(5, 23)},
    "out must .*got float32": {"out": torch.empty(5, 24)},
    "out must": [{"out": X.view(-1)[: 5 * 24].view(5, 24)}, {"out": W.data[: 5 * 24].view(5, 24)}],
}
test_refused = refuses(REFUSED, mixed_mm, **GOOD)


OTHER_TYPES = {
    r"w must be a MixedWeight \(see pack_weight\), got Tensor": {"w": W.data},
    "x must be a Tensor, got list": {"x": [1.0]},
    "bias must be a Tensor, got float": {"bias": 1.0},
    "pre_scale must be a Tensor, got int": {"pre_scale": 2},
    "activation must be a string, got builtin_function_or_method": {"activation": torch.relu},
}
test_of_another_type = refuses(OTHER_TYPES, mixed_mm, error=TypeError, end="$", **GOOD)


ORDER = torch.arange(64, dtype=torch.int32)
SIZES = ([64, 24, 32, 8, 0], [64, 24, 48, 8, 0, 0], [-64, 24, 32, 8, 0, 0], [64, 24, 0, 8, 0, 0])
SIZES += ([64, 24, 32, 3, 0, 0], [64, 24, 32, 8, 3, 0], [64, 24, 32, 8, -1, 0])
SIZES += ([64, 24, 32, 8, 0, 3], [64, 24, 16, 8, 0, 1], [2**40, 24, 2**40, 8, 0, 0])
UNITS = {"sizes": [64, 64, 32, 8, 0, 1], "packed": W.data[:0]}
TWICE = torch.cat([W.data, W.data])
SIZES_REFUSED = {
    r"sizes must be \(K, N, G, bits, zero point": [{"sizes": sizes} for sizes in SIZES],
    "packed must be a contiguous": UNITS,
}
OP_REFUSED = {
    "order must be int32, got int64": {"order": ORDER.long()},
    r"order must have shape \(64,\), .*got shape \(63,\)": {"order": ORDER[1:]},
    "order must name columns 0..63 of x, got 64": {"order": ORDER + 1},
    "order must name columns 0..63 of x, got -1": {"order": ORDER - 1},
    "packed must be a contiguous buffer of shape": {"packed": TWICE},
    "packed must be a contiguous buffer": [
        {"packed": W.data.repeat_interleave(2)[::2]},
        {"packed": W.data[None]},
    ],
    "packed must be float16 or bfloat16": {"packed": W.data.view(torch.int16)},
    "packed must begin at a multiple of 16 bytes, got an address 2 bytes past one": {
        "packed": TWICE[1 : 1 + len(W.data)]
    },
}
OF_OP = {"packed": W.data, "sizes": W.sizes}
test_the_op_refuses = refuses(OP_REFUSED | SIZES_REFUSED, OP, x=X, **OF_OP)
test_dequantizing_refuses = refuses(SIZES_REFUSED, torch.ops.scaled_mm.mixed_dequantize, **OF_OP)


FULL, _ = MixedCase(
    "full",
    *(4, "integer", 64, 24, 32),
    rows=(2, 3),
    bias=torch.float32,
    pre_scale=torch.float32,
    activation="silu",
    shuffled=True,
).product()
CALLS = {"plain": GOOD, "shuffled": SHUFFLED, "full": FULL, "empty": {**GOOD, "x": X[:0]}}
CALLS["residual"] = {**GOOD, "residual": torch.ones(24, 5).half().t()}
CALLS["gated"] = {**GOOD, "activation": "swiglu"}


def of_the_op(given: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    w = given["w"]
    options = {name: x for name, x in given.items() if name not in ("x", "w")}
    return (given["x"], w.data, w.sizes), {**options, "order": w.order}


@pytest.mark.parametrize("name", CALLS)
def test_opcheck(name: str) -> None:
    arguments, options = of_the_op(CALLS[name])
    torch.library.opcheck(OP.default, arguments, options)
    out = torch.empty_like(OP(*arguments, **options))
    torch.library.opcheck(OP.out, arguments, {**options, "out": out})
    torch.library.opcheck(torch.ops.scaled_mm.mixed_dequantize.default, arguments[1:])


FAKE_REFUSED = {
    "x must have at least one dimension": {"x": X[0, 0]},
    "x must have K=64 columns, the rows of packed": {"x": X[:, 1:]},
    r"sizes must be \(K, N, G, bits, zero point, layout": {"sizes": [64, 24, 32, 8, 0]},
    r"sizes must be \(K, N, G, bits, zero point, lay": {"sizes": [64, 24, 32, 8, 0, 7]},
    "packed must be a contiguous buffer of shape": {"packed": W.data[1:]},
    "packed must be a packed buffer": {"packed": W.data[None]},
    "bias must be on the device of x": {"bias": torch.ones(24)},
    "order must be on the device of x": {"order": ORDER},
    "pre_scale must be on the device of x": {"pre_scale": torch.ones(64)},
}


def of_shapes(x: Tensor, packed: Tensor, **given: Any) -> Any:
    return OP(x=x.to("meta"), packed=packed.to("meta"), **given)


test_shape_only_kernels_refuse = refuses(FAKE_REFUSED, of_shapes, x=X, packed=W.data, sizes=W.sizes)


def test_compiled_and_exported() -> None:
    class Layer(torch.nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            pre = torch.linspace(0.5, 2, 64)
            return mixed_mm(x, SHUFFLED["w"], activation="gelu", pre_scale=pre)

    layer, x = Layer(), SHUFFLED["x"]
    compiled = torch.compile(layer, fullgraph=True, dynamic=True, backend="aot_eager")
    for rows in (5, 3):
        assert_bits(compiled(x[:rows]), layer(x[:rows]))

    def product(x: Tensor, w: scaled_mm.MixedWeight) -> Tensor:
        return mixed_mm(x, w)

    function = torch.compile(product, fullgraph=True, backend="aot_eager")
    assert_bits(function(x, SHUFFLED["w"]), product(x, SHUFFLED["w"]))
