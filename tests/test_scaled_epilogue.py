"""The epilogue by itself, on the CPU and as torch's operations, against the
reference: on the sums of a product, and on sums and operands that no product would have."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from helpers import assert_bits, bytes_of, refuses
from test_epilogues import SERVED as ALL
from test_epilogues import int8, operands
from torch import Tensor

import scaled_mm
from scaled_mm import reference
from scaled_mm.parallel.sums import epilogue_in_torch, scaled_epilogue
from scaled_mm.reference.arithmetic import FORMATS, Float32, round_to
from scaled_mm.reference.epilogues import evaluate

DTYPES = (torch.bfloat16, torch.float16, torch.float32)
SERVED = [names for form, names in ALL if form is None and not names & {"residual", "out_scale"}]
ABSENT: dict[str, Any] = dict.fromkeys(("bias", "azp", "azp_adj", "azp_with_adj"))


def in_torch(acc: Tensor, **given: Any) -> Tensor:
    return epilogue_in_torch(acc, **{**ABSENT, **given})


@pytest.mark.parametrize("out_dtype", DTYPES)
@pytest.mark.parametrize("names", SERVED, ids=lambda names: "-".join(sorted(names)))
def test_it_is_what_the_product_ends_in(
    isa: str, names: frozenset[str], out_dtype: torch.dtype
) -> None:
    a, b = int8(13, 37), int8(70, 37).t()
    given = operands(names)
    expected = reference.scaled_mm(a, b, **given, out_dtype=out_dtype)
    acc = scaled_mm.int8_mm(a, b)
    assert_bits(scaled_epilogue(acc, **given, out_dtype=out_dtype), expected)
    assert_bits(in_torch(acc, **given, out_dtype=out_dtype), expected)


def by_reference(acc: Tensor, out_dtype: torch.dtype, **given: Tensor) -> Tensor:
    rows = {name: x.reshape(-1, 1) for name, x in given.items() if name in ("scale_a", "azp")}
    columns = {name: x.reshape(1, -1) for name, x in given.items() if name not in rows}
    arrays = {name: x.float().numpy() if x.is_floating_point() else x.long().numpy()
              for name, x in (rows | columns).items()}  # fmt: skip
    sums = acc.reshape(-1, acc.shape[-1]).long().numpy()
    with np.errstate(all="ignore"):
        d = Float32.value(evaluate(Float32, sums, arrays, None))
        return torch.from_numpy(round_to(d, FORMATS[out_dtype])).to(out_dtype).view(acc.shape)


def hard(rng: np.random.Generator, m: int, n: int) -> dict[str, Tensor]:
    """Sums of any int32; scales and a bias of any bits, so that ties, cancellation, subnormals and
    overflow all come up; half of the biases nearly cancel their product."""
    acc = rng.integers(-(2**31), 2**31, (m, n))
    acc = np.where(rng.random((m, n)) < 0.5, acc >> rng.integers(0, 31, (m, n)), acc)
    acc.flat[:4] = (-(2**31), 2**31 - 1, 2**24 + 1, 0)
    floats = rng.integers(0, 2**32, m + 2 * n, np.uint64).astype(np.uint32).view(np.float32)
    usual = rng.standard_normal(m + 2 * n).astype(np.float32)
    with np.errstate(invalid="ignore"):
        floats = np.where(rng.random(m + 2 * n) < 0.4, floats, usual)
    scale_a, scale_b, bias = np.split(floats, [m, m + n])
    with np.errstate(all="ignore"):
        near = -scale_a[0] * scale_b * acc[0].astype(np.float32)
        bias = np.where(rng.random(n) < 0.5, near * (1 + bias * np.float32(1e-7)), bias)
    made = {"acc": acc.astype(np.int32), "scale_a": scale_a, "scale_b": scale_b, "bias": bias}
    made["azp"] = rng.integers(-(2**31), 2**31, m).astype(np.int32)
    made["azp_adj"] = rng.integers(-(2**31), 2**31, n).astype(np.int32)
    return {name: torch.from_numpy(x) for name, x in made.items()}


def test_hard_values(isa: str) -> None:
    rng = np.random.default_rng(0)
    for trial in range(60):
        m, n = (int(x) for x in rng.integers(1, (20, 200)))
        given = hard(rng, m, n)
        acc = given.pop("acc")
        if trial % 2:
            del given["azp"], given["azp_adj"]
        for out_dtype in DTYPES:
            expected = by_reference(acc, out_dtype, **given)
            got = scaled_epilogue(acc, **given, out_dtype=out_dtype)
            assert_bits(got, expected, trial, m, n, out_dtype)
            assert_bits(in_torch(acc, **given, out_dtype=out_dtype), expected, trial, "torch")


def test_a_sum_that_float64_rounds_to_a_tie(isa: str) -> None:
    """(1 + 2^-12)^2 lies halfway between two floats, and float64 loses the bias beside it."""
    below, above = 1 + 2.0**-11, 1 + 2.0**-11 + 2.0**-23
    acc = torch.tensor([[1, 1, 1, -1, -1, -1]], dtype=torch.int32)
    root, least = 1 + 2.0**-12, 2.0**-80
    given = {"scale_a": torch.tensor([root]), "scale_b": torch.full((6,), root)}
    given["bias"] = torch.tensor([0.0, least, -least, 0.0, least, -least])
    expected = torch.tensor([[below, above, below, -below, -below, -above]])
    for finish in (scaled_epilogue, in_torch):
        assert_bits(finish(acc, **given, out_dtype=torch.float32), expected, finish)


def test_layouts(isa: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Strides, leading dimensions, one scale for all, no rows; no operand is written to."""
    scale_b = torch.linspace(-1, 1, 70)
    wide = torch.arange(-4200, 4200, dtype=torch.int32).reshape(120, 70) * 100_003
    accs = [wide, wide[::3], wide.t().contiguous().t(), wide.repeat_interleave(2, 1)[:, ::2]]
    accs += [wide.view(2, 3, 20, 70), wide[0], wide[:0], wide[:1].expand(5, 70)]
    monkeypatch.setattr("scaled_mm.parallel.sums._ELEMENTS_AT_ONCE", 700)  # several pieces
    for acc in accs:
        rows = acc.shape[:-1]
        for scale_a in (torch.tensor([0.3]), torch.rand(*rows, 1), torch.rand(rows)):
            given = {"scale_a": scale_a, "scale_b": scale_b}
            before = bytes_of([acc, *given.values()])
            expected = by_reference(acc.contiguous(), torch.float16, **given)
            for finish in (scaled_epilogue, in_torch):
                got = finish(acc, **given, out_dtype=torch.float16)
                assert got.is_contiguous()
                assert_bits(got, expected, tuple(acc.shape), tuple(scale_a.shape))
            after = bytes_of([acc, *given.values()])
            assert all(torch.equal(x, y) for x, y in zip(after, before, strict=True))
    nothing = scaled_epilogue(wide[:, :0], torch.ones(1), torch.ones(0))
    assert (nothing.shape, nothing.dtype) == ((120, 0), torch.bfloat16)


def test_threads_and_flushed_subnormals_change_nothing(isa: str, threads: None) -> None:
    rng = np.random.default_rng(1)
    given = hard(rng, 70, 300)
    acc = given.pop("acc")
    given["scale_a"] *= 1e-38
    expected = by_reference(acc, torch.float32, **given)
    for count in (1, 2, 5):
        torch.set_num_threads(count)
        assert_bits(scaled_epilogue(acc, **given, out_dtype=torch.float32), expected, count)
    torch.set_flush_denormal(True)
    try:
        got = scaled_epilogue(acc, **given, out_dtype=torch.float32)
    finally:
        torch.set_flush_denormal(False)
    assert_bits(got, expected)


REFUSED = {
    "acc must be int32, got int8": {"acc": torch.ones(4, 6, dtype=torch.int8)},
    "acc must have at least one dimension": {"acc": torch.tensor(1, dtype=torch.int32)},
    r"scale_a must have 1 or M=4 elements, .* \(5,\)": {"scale_a": torch.ones(5)},
    r"scale_b must have 1 or N=6 elements, .* \(5,\)": {"scale_b": torch.ones(5)},
    "bias must .* got float16": {"bias": torch.ones(6).half()},
    "azp_adj must be given together": {"azp": torch.ones(1, dtype=torch.int32)},
    "out_dtype must be one of .*, got int8": {"out_dtype": torch.int8},
    r"scale_b must be on the device of acc ": {"scale_b": torch.ones(6, device="meta")},
}


def on_cpu(**given: Any) -> Any:
    cpu = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)
    return torch.ops.scaled_mm._scaled_epilogue.default.redispatch(cpu, **{**ABSENT, **given})


test_refused = refuses(
    REFUSED,
    on_cpu,
    acc=torch.ones(4, 6, dtype=torch.int32),
    scale_a=torch.ones(4),
    scale_b=torch.ones(6),
    out_dtype=torch.bfloat16,
)


def test_opcheck() -> None:
    acc = torch.arange(24, dtype=torch.int32).view(2, 3, 4)
    given = {**ABSENT, "bias": torch.ones(4), "out_dtype": torch.float16}
    scales = (torch.ones(2, 3, 1), torch.ones(1, 4))
    torch.library.opcheck(torch.ops.scaled_mm._scaled_epilogue.default, (acc, *scales), given)
