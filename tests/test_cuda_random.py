"""Random products on the GPU, on every row of the tuning table, against the CPU backend's bits."""

from __future__ import annotations

import numpy as np
import pytest
from cases import random_case
from cuda_support import GPU, assert_products, random_large_case

pytestmark = [*GPU, pytest.mark.usefixtures("poisoned")]


@pytest.mark.parametrize("seed", range(200, 205))
def test_small(seed: int) -> None:
    """Every kind of operand; each tenth case against the reference too."""
    rng = np.random.default_rng(seed)
    for i in range(80):
        case = random_case(rng)
        assert_products(case, case.build(rng=rng), r1=i % 10 == 0)


@pytest.mark.parametrize("seed", range(300, 305))
def test_large(seed: int) -> None:
    """Several tiles in each direction, several turns of the pipeline."""
    rng = np.random.default_rng(seed)
    for i in range(20):
        case = random_large_case(rng)
        assert_products(case, case.build(rng=rng), r1=i == 0)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(400, 420))
def test_many(seed: int) -> None:
    rng = np.random.default_rng(seed)
    for i in range(1000):
        case = random_case(rng) if i % 4 else random_large_case(rng)
        assert_products(case, case.build(rng=rng))
