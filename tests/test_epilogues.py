"""Every registered epilogue runs in the library, for the operands and the activation it names.

A new epilogue needs no line here: it comes with its line in csrc/epilogue/registry.def and its
function in scaled_mm/reference/epilogues.py. One that is missing on either side fails.
"""

from itertools import combinations, product

import pytest
import torch
from helpers import assert_bits

import scaled_mm
from scaled_mm import _library, reference
from scaled_mm.reference.epilogues import FORMS, Epilogue

OPERANDS = ("scale_a", "scale_b", "bias", "azp", "azp_adj", "azp_with_adj", "residual")
OPERANDS += ("out_scale", "out_azp")
OPTIONAL = OPERANDS[2:]
ACTIVATIONS = tuple(FORMS)
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


def served() -> list[tuple[Epilogue, frozenset[str]]]:
    """(epilogue, operands) for every set of operands that an epilogue takes."""
    sets = []
    for epilogue in reference.EPILOGUES:
        needed = {name for name, is_needed in epilogue.operands.items() if is_needed}
        may = sorted(set(epilogue.operands) - needed)
        for count in range(len(may) + 1):
            sets += [(epilogue, frozenset(needed | {*extra})) for extra in combinations(may, count)]
    return sets


def int8(*shape: int) -> torch.Tensor:
    return torch.randint(-128, 128, shape, generator=torch.Generator().manual_seed(3)).to(
        torch.int8
    )


def test_registry_and_reference_name_the_same_epilogues():
    named = [epilogue.name for epilogue in reference.EPILOGUES]
    assert sorted(_library.epilogues()) == sorted([*named, "RawAccumulator"])  # int8_mm's


def dtypes_of(names: frozenset[str]) -> tuple[torch.dtype, ...]:
    """What D may be with these operands."""
    if "out_scale" not in names:
        return WIDE if "out_azp" not in names else ()
    return (torch.int8,) if "out_azp" in names else (torch.int8, torch.float8_e4m3fn)


@pytest.mark.parametrize(
    ("epilogue", "names"),
    [
        pytest.param(e, n, id=f"{e.name}-{'-'.join(sorted(n))}")
        for e, n in served()
        if dtypes_of(n)
    ],
)
def test_epilogue_is_the_reference(epilogue, names, isa):
    a, b = int8(M, K), int8(N, K).t()
    given = operands(names)
    asked_by = [each for each, (form, _) in FORMS.items() if form == epilogue.form]
    for activation, out_dtype in product(asked_by, dtypes_of(names)):
        assert _library.epilogue_of(names, activation) == epilogue.name
        how = {"activation": activation, "out_dtype": out_dtype}
        if "out_scale" in names:  # then D is neither 0 nor saturated
            wide = {name: x for name, x in given.items() if not name.startswith("out_")}
            d = reference.scaled_mm(a, b, **wide, activation=activation, out_dtype=torch.float32)
            given["out_scale"] = operands(names)["out_scale"] * d.abs().mean(1, keepdim=True) / 20
        expected = reference.scaled_mm(a, b, **given, **how)
        actual = scaled_mm.scaled_mm(a, b, **given, **how)
        assert_bits(actual, expected, epilogue.name, activation, out_dtype)
        if activation != asked_by[0]:
            continue
        for name in names:  # and each operand it takes is read
            changed = dict(given)
            changed[name] = given[name] + given[name].abs().max()
            moved = scaled_mm.scaled_mm(a, b, **changed, **how)
            assert not torch.equal(moved.float(), actual.float()), name


def test_no_other_set_of_operands_is_taken():
    known = {(epilogue.form, names) for epilogue, names in served()}
    a, b = int8(M, K), int8(N, K).t()
    refused = taken = 0
    for activation, (form, _) in FORMS.items():
        for count in range(len(OPTIONAL) + 1):
            for chosen in combinations(OPTIONAL, count):
                names = frozenset({"scale_a", "scale_b", *chosen})
                given = {**operands(names), "activation": activation}
                for out_dtype in (torch.float16, torch.int8, torch.float8_e4m3fn):
                    if (form, names) in known and out_dtype in dtypes_of(names):
                        taken += 1
                        continue
                    refused += 1
                    rule = r"must (not )?be given (together )?with"
                    with pytest.raises(ValueError, match=rule):
                        scaled_mm.scaled_mm(a, b, **given, out_dtype=out_dtype)
    assert taken == sum(
        len(set(dtypes_of(names)) - {torch.bfloat16, torch.float32})
        for epilogue, names in served()
        for form, _ in FORMS.values()
        if form == epilogue.form
    )
    assert refused == 3 * len(FORMS) * 2 ** len(OPTIONAL) - taken
