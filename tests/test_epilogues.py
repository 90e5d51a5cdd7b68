"""Every set of operands, with every activation: the reference's bits, or a refusal."""

from itertools import combinations, product

import numpy as np
import pytest
import torch
from helpers import assert_bits, refuses

import scaled_mm
from scaled_mm import reference
from scaled_mm.reference.epilogues import FORMS

OPERANDS = ("scale_a", "scale_b", "bias", "azp", "azp_adj", "azp_with_adj", "residual")
OPERANDS += ("out_scale", "out_azp")
OPTIONAL = OPERANDS[2:]
WIDE = (torch.bfloat16, torch.float16, torch.float32)
M, N, K = 13, 70, 37


def operands(names: set[str] | frozenset[str]) -> dict[str, torch.Tensor]:
    rng = torch.Generator().manual_seed(len(names))
    made = {
        "scale_a": torch.rand(M, 1, generator=rng),
        "scale_b": torch.rand(1, N, generator=rng),
        "bias": 100 * torch.randn(N, generator=rng),
        "azp": torch.randint(-128, 128, (M, 1), generator=rng, dtype=torch.int32),
        "azp_adj": torch.randint(-4000, 4000, (1, N), generator=rng, dtype=torch.int32),
        "azp_with_adj": torch.randint(-400000, 400000, (1, N), generator=rng, dtype=torch.int32),
        "residual": 1000 * torch.randn(M, N, generator=rng),
        "out_scale": torch.rand(M, 1, generator=rng) + 0.5,
        "out_azp": torch.randint(-128, 128, (M, 1), generator=rng, dtype=torch.int32),
    }
    return {name: made[name] for name in names}


def is_served(form: str | None, names: frozenset[str]) -> bool:
    """Zero points come with their column sums, multiplied or not; a residual ends a product, and so
    does an activation or a quantiser; the quantiser's zero point comes with its scale."""
    return (
        ("azp" in names) == ("azp_adj" in names)
        and not {"azp", "azp_with_adj"} <= names
        and not ("residual" in names and (form or "out_scale" in names))
        and not ("out_azp" in names and "out_scale" not in names)
    )


SERVED = [
    (form, frozenset({"scale_a", "scale_b", *chosen}))
    for form in (None, "activated", "gated")
    for count in range(len(OPTIONAL) + 1)
    for chosen in combinations(OPTIONAL, count)
    if is_served(form, frozenset(chosen))
]


def int8(*shape: int) -> torch.Tensor:
    return torch.randint(-128, 128, shape, generator=torch.Generator().manual_seed(3)).to(
        torch.int8
    )


def dtypes_of(names: frozenset[str]) -> tuple[torch.dtype, ...]:
    """What D may be with these operands."""
    if "out_scale" not in names:
        return WIDE if "out_azp" not in names else ()
    return (torch.int8,) if "out_azp" in names else (torch.int8, torch.float8_e4m3fn)


@pytest.mark.parametrize(
    ("form", "names"),
    [pytest.param(f, n, id=f"{f}-{'-'.join(sorted(n))}") for f, n in SERVED if dtypes_of(n)],
)
def test_epilogue_is_the_reference(form, names, isa):
    a, b = int8(M, K), int8(N, K).t()
    given = operands(names)
    asked_by = [activation for activation, (makes, _) in FORMS.items() if makes == form]
    for activation, out_dtype in product(asked_by, dtypes_of(names)):
        how = {"activation": activation, "out_dtype": out_dtype}
        if "out_scale" in names:  # then D is neither 0 nor saturated
            wide = {name: x for name, x in given.items() if not name.startswith("out_")}
            d = reference.scaled_mm(a, b, **wide, activation=activation, out_dtype=torch.float32)
            given["out_scale"] = operands(names)["out_scale"] * d.abs().mean(1, keepdim=True) / 20
        expected = reference.scaled_mm(a, b, **given, **how)
        actual = scaled_mm.scaled_mm(a, b, **given, **how)
        assert_bits(actual, expected, activation, out_dtype)
        if activation != asked_by[0]:
            continue
        for name in names:  # and each operand it takes is read
            changed = dict(given)
            changed[name] = given[name] + given[name].abs().max()
            moved = scaled_mm.scaled_mm(a, b, **changed, **how)
            assert not torch.equal(moved.float(), actual.float()), name


def test_no_other_set_of_operands_is_taken():
    a, b = int8(M, K), int8(N, K).t()
    refused = taken = 0
    for activation, (form, _) in FORMS.items():
        for count in range(len(OPTIONAL) + 1):
            for chosen in combinations(OPTIONAL, count):
                names = frozenset({"scale_a", "scale_b", *chosen})
                given = {**operands(names), "activation": activation}
                for out_dtype in (torch.float16, torch.int8, torch.float8_e4m3fn):
                    if (form, names) in SERVED and out_dtype in dtypes_of(names):
                        taken += 1
                        continue
                    refused += 1
                    rule = r"must (not )?be given (together )?with(out)? "
                    with pytest.raises(ValueError, match=rule):
                        scaled_mm.scaled_mm(a, b, **given, out_dtype=out_dtype)
    assert taken == sum(
        len(set(dtypes_of(names)) - {torch.bfloat16, torch.float32})
        for served, names in SERVED
        for form, _ in FORMS.values()
        if form == served
    )
    assert refused == 3 * len(FORMS) * 2 ** len(OPTIONAL) - taken


def of_bias(bias: torch.Tensor, **how: object) -> torch.Tensor:
    """The epilogue of a product that is 0: of each bias by itself."""
    a, b, one = int8(1, 0), int8(0, len(bias)), torch.ones(1)
    return scaled_mm.scaled_mm(a, b, one, one, bias=bias, **how)[0]


def every_16_bits(dtype: torch.dtype) -> torch.Tensor:
    """But -0, which a product of 0 plus the bias is not."""
    return torch.arange(-(2**15), 2**15, dtype=torch.int16).view(dtype).float() + 0.0


def e4m3_by_torch(x: torch.Tensor) -> torch.Tensor:
    """torch's cast gives NaN where ours saturates."""
    return x.clamp(-448, 448).to(torch.float8_e4m3fn)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_e4m3_of_every_float(dtype, isa):
    x = every_16_bits(dtype)
    near = torch.cat([x, torch.nextafter(x, x + torch.inf), torch.nextafter(x, x - torch.inf)])
    fp8 = {"out_dtype": torch.float8_e4m3fn, "out_scale": torch.ones(1)}
    assert_bits(of_bias(near, **fp8), e4m3_by_torch(near))
    fp8["out_scale"] = torch.tensor([0.3])
    assert_bits(of_bias(x, **fp8), e4m3_by_torch(x * (1 / fp8["out_scale"])))


@pytest.mark.parametrize(
    ("activation", "function"), [(name, f) for name, (form, f) in FORMS.items() if form]
)
def test_functions_of_every_bfloat16(activation, function, isa):
    """And gates of all of them, with each a value."""
    x = every_16_bits(torch.bfloat16)
    with np.errstate(all="ignore"):
        made = torch.from_numpy(function.float32(x.numpy()))
    if FORMS[activation][0] == "activated":
        assert_bits(of_bias(x, activation=activation, out_dtype=torch.float32), made)
        return
    values = x[torch.randperm(len(x), generator=torch.Generator().manual_seed(1))]
    pairs = scaled_mm.interleave_gate_up(x, values)
    got = of_bias(pairs, activation=activation, out_dtype=torch.float32)
    assert_bits(got, made * values)


@pytest.mark.parametrize("symmetric", [True, False])
def test_a_gated_product_is_the_fused_producer_s(symmetric, isa):
    """In int8: the bits of silu_mul_quantize_int8 of the float32 product."""
    m, n, k = 9, 48, 130
    a, gate, up = int8(m, k), int8(n, k).t(), -int8(n, k).t()
    scale = torch.full((m, 1), 0.02), torch.full((1, n), 0.01)
    wide = {"out_dtype": torch.float32}
    halves = torch.cat([scaled_mm.scaled_mm(a, b, *scale, **wide) for b in (gate, up)], 1)
    by = {"scale": torch.tensor([0.7]), "azp": None if symmetric else torch.tensor([5]).int()}
    expected, *_ = scaled_mm.silu_mul_quantize_int8(halves, symmetric=symmetric, **by)
    b = scaled_mm.pack_weight_int8(scaled_mm.interleave_gate_up(gate, up))
    scale_b = scaled_mm.interleave_gate_up(scale[1], scale[1])
    to = {"out_dtype": torch.int8, "out_scale": by["scale"], "out_azp": by["azp"]}
    got = scaled_mm.scaled_mm(a, b, scale[0], scale_b, activation="swiglu", **to)
    assert_bits(got, expected)
    assert got.unique().numel() > 20


def test_interleave_gate_up():
    gate, up = torch.arange(12).view(4, 3), torch.arange(100, 112).view(4, 3)
    for g, u in (
        (gate, up),
        (gate.t().contiguous().t(), up),
        (gate[::2], up[1::2]),
        (gate[0], up[0]),
    ):
        pairs = scaled_mm.interleave_gate_up(g, u)
        assert torch.equal(pairs[..., 0::2], g) and torch.equal(pairs[..., 1::2], u)
        assert pairs.t().is_contiguous() and pairs.dtype == g.dtype
    empty = scaled_mm.interleave_gate_up(gate[:, :0], up[:, :0])
    assert empty.shape == (4, 0)


ONE = torch.ones(3)
REFUSED = {
    "gate must be a vector": [{"gate": torch.ones(2, 3, 4)}, {"gate": torch.ones(())}],
    r"up must have gate's shape \(3,\), got shape \(4,\)": {"up": torch.ones(4)},
    "up must have gate's shape": {"up": ONE[None]},
    "up must be torch.float32 as gate, got torch.float16": {"up": ONE.half()},
    "up must be on the device of gate": {"up": ONE.to("meta")},
}
NO_TENSOR = {"up must be a Tensor, got list": {"up": [1.0]}}
test_interleaving_refuses = refuses(REFUSED, scaled_mm.interleave_gate_up, gate=ONE, up=ONE)
test_interleaving_no_tensor = refuses(
    NO_TENSOR, scaled_mm.interleave_gate_up, error=TypeError, gate=ONE, up=ONE
)
