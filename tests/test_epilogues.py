"""Every registered epilogue runs in the library, for the operands and the activation it names.

A new epilogue needs no line here: it comes with its line in csrc/epilogue/registry.def and its
function in scaled_mm/reference/epilogues.py. One that is missing on either side fails.
"""

from itertools import combinations

import pytest
import torch
from helpers import assert_bits

import scaled_mm
from scaled_mm import _library, reference
from scaled_mm.reference.epilogues import Epilogue

OPERANDS = ("scale_a", "scale_b", "bias", "azp", "azp_adj", "azp_with_adj", "residual")
OPTIONAL = OPERANDS[2:]
ACTIVATIONS = (None, "reglu")
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


@pytest.mark.parametrize("out_dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize(
    ("epilogue", "names"),
    [pytest.param(e, n, id=f"{e.name}-{'-'.join(sorted(n))}") for e, n in served()],
)
def test_epilogue_is_the_reference(epilogue, names, out_dtype, isa):
    assert _library.epilogue_of(names, epilogue.activation) == epilogue.name
    a, b = int8(M, K), int8(N, K).t()
    given = operands(names)
    how = {"activation": epilogue.activation, "out_dtype": out_dtype}
    expected = reference.scaled_mm(a, b, **given, **how)
    actual = scaled_mm.scaled_mm(a, b, **given, **how)
    assert_bits(actual, expected, epilogue.name)
    for name in names:  # and each operand it takes is read
        changed = dict(given)
        changed[name] = given[name] + given[name].abs().max()
        moved = scaled_mm.scaled_mm(a, b, **changed, **how)
        assert not torch.equal(moved.float(), actual.float()), name


def test_no_other_set_of_operands_is_taken():
    known = {(epilogue.activation, names) for epilogue, names in served()}
    a, b = int8(M, K), int8(N, K).t()
    refused = 0
    for activation in ACTIVATIONS:
        for count in range(len(OPTIONAL) + 1):
            for chosen in combinations(OPTIONAL, count):
                names = frozenset({"scale_a", "scale_b", *chosen})
                if (activation, names) in known:
                    continue
                refused += 1
                with pytest.raises(ValueError, match=r"must (not )?be given together with"):
                    scaled_mm.scaled_mm(a, b, **operands(names), activation=activation)
    assert refused == len(ACTIVATIONS) * 2 ** len(OPTIONAL) - len(known)
