"""Every epilogue of the reference runs in the library, with the operands it names and no others.

A new epilogue needs no line here: it comes with its function in scaled_mm/reference.py.
"""

from itertools import combinations

import pytest
import torch

import scaled_mm
from scaled_mm import reference

OPERANDS = ("scale_a", "scale_b", "bias", "azp", "azp_adj", "azp_with_adj")
OPTIONAL = OPERANDS[2:]
M, N, K = 13, 70, 37


def operands(names: set[str]) -> dict[str, torch.Tensor]:
    rng = torch.Generator().manual_seed(len(names))
    made = {
        "scale_a": torch.rand(M, 1, generator=rng),
        "scale_b": torch.rand(1, N, generator=rng),
        "bias": 100 * torch.randn(N, generator=rng),
        "azp": torch.randint(-128, 128, (M, 1), generator=rng, dtype=torch.int32),
        "azp_adj": torch.randint(-4000, 4000, (1, N), generator=rng, dtype=torch.int32),
        "azp_with_adj": torch.randint(-400000, 400000, (1, N), generator=rng, dtype=torch.int32),
    }
    return {name: made[name] for name in names}


def served() -> list[tuple[str, frozenset[str]]]:
    """(epilogue, operands) for every set of operands that an epilogue takes."""
    sets = []
    for epilogue, uses in reference.EPILOGUES.items():
        needed = {name for name, is_needed in uses.items() if is_needed}
        may = sorted(set(uses) - needed)
        for count in range(len(may) + 1):
            for extra in combinations(may, count):
                sets.append((epilogue.__name__, frozenset(needed | set(extra))))
    return sets


def int8(*shape: int) -> torch.Tensor:
    return torch.randint(-128, 128, shape, generator=torch.Generator().manual_seed(3)).to(
        torch.int8
    )


@pytest.mark.parametrize("out_dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize(("epilogue", "names"), served())
def test_epilogue_is_the_reference(epilogue, names, out_dtype):
    a, b = int8(M, K), int8(N, K).t()
    given = operands(set(names))
    expected = reference.scaled_mm(a, b, **given, out_dtype=out_dtype)
    actual = scaled_mm.scaled_mm(a, b, **given, out_dtype=out_dtype)
    assert torch.equal(actual.float(), expected.float())
    for name in names:  # and each operand it takes is read
        changed = dict(given)
        changed[name] = given[name] + given[name].abs().max()
        moved = scaled_mm.scaled_mm(a, b, **changed, out_dtype=out_dtype)
        assert not torch.equal(moved.float(), actual.float()), name


def test_no_other_set_of_operands_is_taken():
    known = {names for _, names in served()}
    a, b = int8(M, K), int8(N, K).t()
    refused = 0
    for count in range(len(OPTIONAL) + 1):
        for chosen in combinations(OPTIONAL, count):
            names = frozenset({"scale_a", "scale_b", *chosen})
            if names in known:
                continue
            refused += 1
            with pytest.raises(ValueError, match=r"azp\w* must (not )?be given together with"):
                scaled_mm.scaled_mm(a, b, **operands(set(names)))
    assert refused == 2 ** len(OPTIONAL) - len(known)
