"""mixed_mm on the GPU: dequantised weights have the CPU's bits; on every kernel products are within
their bound, and one-hot rows give the weight itself."""

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from cuda_mixed_cases import DTYPES, ZEROS, MixedCase, arms, exact_cases, odd_cases
from cuda_support import (
    DEVICE,
    GPU,
    ON_CPU,
    assert_outputs,
    assert_unchanged,
    count,
    forced,
    on_device,
    streams_only,
)
from helpers import assert_bits
from operands import ACTIVATIONS
from test_awq import assert_bounded

import scaled_mm
from scaled_mm import reference
from scaled_mm.ops import units

pytestmark = [*GPU, pytest.mark.usefixtures("poisoned")]

kinds = pytest.mark.parametrize(("bits", "zero"), list(itertools.product((4, 8), ZEROS)))
dtypes = pytest.mark.parametrize("dtype", DTYPES)


def assert_products(case: MixedCase) -> None:
    """Every kernel is within the bound, gives the same bits twice, leaves its operands alone."""
    here, plain = case.operands(), case.plain()
    there, weight = on_device(here), case.weight()
    back = weight.unpack()
    options = {**here, "order": None if back.order is None else back.order.cpu()}
    zeros = None if back.zeros is None else back.zeros.cpu()
    w = (back.q.cpu(), back.scales.cpu(), zeros)
    x = options.pop("x")
    exact, bound = reference.mixed_mm_bound(x, *w, **options)
    for arm in arms(case.bits):
        with forced(arm):
            got = scaled_mm.mixed_mm(w=weight, **there)
            again = scaled_mm.mixed_mm(w=weight, **there)
        what = f"mixed_mm {arm or 'chosen'}"
        assert_outputs(what, {"again": again}, {"again": got}, case)
        assert_bounded(got.cpu(), exact, bound, arm, case)
    assert_unchanged(there, here, case)
    assert torch.equal(
        back.q.cpu(), plain["q"] if back.order is None else plain["q"][options["order"].long()]
    )


# --- the weight -----------------------------------------------------------------------------------


@kinds
@dtypes
def test_dequantised(bits: int, zero: str, dtype: torch.dtype) -> None:
    """Units and rows, groups of every length, N of no whole vector: the CPU's bits."""
    shapes = [(256, 128, 128), (192, 65, 96), (160, 72, 160), (352, 200, 32), (384, 264, 64)]
    shapes += [(100, 7, 100), (300, 9, 100), (48, 8, 16), (131, 40, 1), (1, 1, 1)]
    for k, n, group in shapes:
        case = MixedCase(1, n, k, group, bits, zero, dtype)
        here, there = case.weight("cpu"), case.weight()
        if not ON_CPU:
            assert there.layout == int(units.takes(k, group))
        got, expected = there.dequantize(), here.dequantize()
        assert_outputs("mixed_dequantize", {"w": got}, {"w": expected.to(DEVICE)}, case)
        for x, y in zip(there.unpack(), here.unpack(), strict=True):
            assert (x is None) == (y is None)
            if x is not None and y is not None:
                assert_bits(x.cpu(), y, case)


def everywhere(bits: int, zero: str, dtype: torch.dtype) -> dict[str, Any]:
    """A weight with every value at every place of a unit, scales and zero points of all kinds."""
    rng, most = np.random.default_rng(bits), 1 << bits
    across = 16 if bits == 8 else 4
    k, n = 128 * across, 64 * across
    unit = np.arange(k)[:, None] // 128 * across + np.arange(n)[None] // 64
    place = np.arange(k)[:, None] % 128 * 5 + np.arange(n)[None] % 64
    low = 0 if zero == "integer" else -most // 2
    q = torch.from_numpy(((unit + place) % most + low).astype(np.int16))
    shape = (k // 32, n)
    scales = torch.from_numpy(rng.standard_normal(shape) * 2.0 ** rng.integers(-14, 4, shape))
    made = {"q": q.to(torch.uint8 if zero == "integer" else torch.int8), "scales": scales.to(dtype)}
    if zero == "integer":
        made["zeros"] = torch.from_numpy(rng.integers(0, most, shape, np.int16)).to(torch.uint8)
    elif zero == "float":
        made["zeros"] = torch.from_numpy(rng.standard_normal(shape)).to(dtype)
    return {**made, "bits": bits}


@kinds
@dtypes
@pytest.mark.parametrize("rows", [1, 16, 40, 256])
def test_identity_gives_the_weight(bits: int, zero: str, dtype: torch.dtype, rows: int) -> None:
    """x = I in slices of so many rows: every value in every lane, at every k, on every kernel."""
    plain = everywhere(bits, zero, dtype)
    whole = {**plain, "scales": plain["scales"][:1]}  # one group of all rows
    if zero != "none":
        whole["zeros"] = plain["zeros"][:1]
    for each in (plain, whole):
        weight = scaled_mm.pack_weight(**on_device(each))
        expected = scaled_mm.pack_weight(**each).dequantize().to(DEVICE)
        eye = torch.eye(len(expected), dtype=dtype, device=DEVICE)
        if rows == 1:
            eye, expected = eye[::37], expected[::37]
        for arm in arms(bits):
            with forced(arm):
                got = torch.cat([scaled_mm.mixed_mm(x, weight) for x in eye.split(rows)])
            different = int((got != expected).sum())  # +0 equals -0
            count(f"mixed_mm identity {arm}", got.numel(), different)
            assert different == 0, (arm, len(each["scales"]))


# --- products -------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", list(exact_cases()), ids=str)
def test_the_bits_of_the_cpu(case: MixedCase) -> None:
    """Of every kernel, activations included."""
    here, weight = case.operands(), case.weight()
    expected = scaled_mm.mixed_mm(w=case.weight("cpu"), **here).to(DEVICE)
    there = on_device(here)
    for arm in arms(case.bits):
        with forced(arm):
            got = scaled_mm.mixed_mm(w=weight, **there)
        assert_outputs(f"mixed_mm {arm or 'chosen'}", {"d": got}, {"d": expected}, case)


@pytest.mark.parametrize("case", list(odd_cases()), ids=str)
def test_within_the_bound(case: MixedCase) -> None:
    assert_products(case)


@kinds
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_activations(bits: int, zero: str, activation: str | None) -> None:
    """Of whole tiles, of parts and of clusters."""
    for m, n, k in ((3, 512, 384), (150, 520, 4096), (40, 4096, 256)):
        assert_products(
            MixedCase(m, n, k, 128, bits, zero, torch.float16, torch.float32, activation)
        )


@dtypes
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("order", [False, True])
@pytest.mark.parametrize("pre_scale", [None, torch.float32, "own"])
def test_arranged_tokens(
    bits: int, dtype: torch.dtype, order: bool, pre_scale: torch.dtype | str | None
) -> None:
    """pre_scale and act-order at few and many tokens: also the bits of a product with x'."""
    own = dtype if pre_scale == "own" else pre_scale
    for m, k in ((1, 1024), (5, 100), (70, 1024), (300, 384)):
        group = k if k == 100 else 64
        case = MixedCase(m, 264, k, group, bits, "none", dtype, None, None, own, order)  # type: ignore[arg-type]
        assert_products(case)
        weight, there = case.weight(), on_device(case.operands())
        inside = reference.mixed.prepared(
            there["x"].cpu(),
            None if weight.order is None else weight.order.cpu(),
            there["pre_scale"].cpu() if own else None,
        )
        plain = {**case.plain(), "g_idx": None}
        if weight.order is not None:
            plain["q"] = plain["q"][weight.order.cpu().long()]
        ordered = scaled_mm.pack_weight(**on_device(plain))
        expected = scaled_mm.mixed_mm(inside.to(DEVICE), ordered)
        got = scaled_mm.mixed_mm(w=weight, **there)
        assert_outputs("mixed_mm arranged", {"d": got}, {"d": expected}, case)


@streams_only
def test_an_order_beyond_x_is_the_nearest_column() -> None:
    """Where the CPU refuses: nothing outside x is read, and the device is not waited for."""
    case = MixedCase(70, 72, 256, 64, 8, order=True)
    weight, there = case.weight(), on_device(case.operands())
    assert weight.order is not None
    far = weight.order.clone()
    far[::3], far[1::3] = -(2**31), 2**31 - 1
    got, expected = (
        scaled_mm.mixed_mm(w=replace(weight, order=order), **there)
        for order in (far, far.clamp(0, 255))
    )
    assert_outputs("mixed_mm order", {"d": got}, {"d": expected})


def test_strides() -> None:
    """x of columns that lie apart, with order and without, and rows that begin unaligned."""
    case = MixedCase(
        6, 72, 256, 64, 8, "integer", torch.float16, order=True, pre_scale=torch.float32
    )
    for plain in (case, MixedCase(6, 72, 256, 64, 8, "integer", torch.float16)):
        weight, there = plain.weight(), on_device(plain.operands())
        expected = scaled_mm.mixed_mm(w=weight, **there)
        x = there.pop("x")
        wide = torch.empty(6, 515, dtype=x.dtype, device=DEVICE)
        for view in (wide[:, 1:257], wide[:, :512:2], wide.flatten()[:1536].view(256, 6).t()):
            view.copy_(x)
            assert_outputs(
                "mixed_mm strides",
                {"d": scaled_mm.mixed_mm(view, weight, **there)},
                {"d": expected},
                view.stride(),
            )
        batched = scaled_mm.mixed_mm(x.view(2, 3, 256), weight, **there)
        assert torch.equal(batched.view(6, 72), expected)


def test_special_values_reach_the_output() -> None:
    for bits in (4, 8):
        plain = MixedCase(70, 416, 640, 64, bits).plain()
        plain["scales"][3, 17], plain["scales"][1, 200] = torch.nan, torch.inf
        weight = scaled_mm.pack_weight(**on_device(plain))
        x = torch.randn(70, 640, dtype=torch.bfloat16, device=DEVICE)
        for arm, rows in itertools.product(arms(bits), (1, 70)):
            with forced(arm):
                got = scaled_mm.mixed_mm(x[:rows], weight)
            assert got[:, 17].isnan().all()
            assert not got[:, 200].isfinite().any()
            assert got[:, [n for n in range(416) if n not in (17, 200)]].isfinite().all()


def test_empty() -> None:
    for m, n, k in ((0, 8, 64), (3, 0, 64), (3, 5, 0)):
        scales = torch.ones(1 if k else 0, n, dtype=torch.float16, device=DEVICE)
        q = torch.zeros(k, n, dtype=torch.int8, device=DEVICE)
        weight = scaled_mm.pack_weight(q, scales, bits=8)
        x = torch.ones(m, k, dtype=torch.float16, device=DEVICE)
        bias = torch.linspace(-2, 2, n, device=DEVICE)
        got = scaled_mm.mixed_mm(x, weight, bias=bias, activation="relu")
        assert torch.equal(got, bias.relu().half().expand(m, n))


# --- streams --------------------------------------------------------------------------------------


@streams_only
@pytest.mark.parametrize("bits", [4, 8])
def test_captured_in_a_graph(bits: int) -> None:
    """Without a warm-up; a replay follows what the operands hold then (a weight may not change)."""
    case = MixedCase(20, 1032, 512, 128, bits, "integer", torch.float16, torch.float16, "silu")
    weight = case.weight()
    for arm, m in itertools.product(arms(bits), (3, 20, 200)):
        there = on_device(
            MixedCase(m, 1032, 512, 128, bias=torch.float16, dtype=torch.float16).operands()
        )
        there |= {"activation": "silu", "pre_scale": torch.ones(512, device=DEVICE)}
        graph = torch.cuda.CUDAGraph()
        with forced(arm):
            with torch.cuda.graph(graph):
                got = scaled_mm.mixed_mm(w=weight, **there)
            for name in ("x", "bias", "pre_scale"):
                there[name].mul_(0.5)
            graph.replay()
            torch.cuda.synchronize()
            assert torch.equal(got, scaled_mm.mixed_mm(w=weight, **there)), (arm, m)


@streams_only
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("m", [1, 100])
def test_a_product_right_behind_the_packing(bits: int, m: int) -> None:
    """Products read weights early: never before they are written, here over what was in the same
    memory before."""
    plain = on_device(MixedCase(m, 2048, 4096, 128, bits).plain())
    x = torch.randn(m, 4096, dtype=torch.bfloat16, device=DEVICE)
    many = [{**plain, "q": plain["q"].roll(i, 0)} for i in range(20)]
    expected = [scaled_mm.mixed_mm(x, scaled_mm.pack_weight(**each)).clone() for each in many]
    torch.cuda.synchronize()
    got = []
    for each in many:
        weight = scaled_mm.pack_weight(**each)
        got.append(scaled_mm.mixed_mm(x, weight))
        del weight  # the allocator gives its memory to the next one
    different = sum(int((a != b).sum()) for a, b in zip(got, expected, strict=True))
    count("mixed_mm behind pack_weight", len(got) * got[0].numel(), different)
    assert different == 0


@streams_only
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("m", [1, 100])
def test_late_operands(bits: int, m: int) -> None:
    """x, bias and pre_scale are waited for, though the weight is not; on another stream as well."""
    case = MixedCase(m, 2048, 4096, 128, bits, bias=torch.float32, pre_scale=torch.float32)
    weight, given = case.weight(), on_device(case.operands())
    expected = scaled_mm.mixed_mm(w=weight, **given)
    late = {name: torch.empty_like(x) for name, x in given.items()}
    stream = torch.cuda.Stream()
    for where in (torch.cuda.current_stream(), stream):
        torch.cuda.synchronize()
        with torch.cuda.stream(where):
            for _ in range(20):
                for x in late.values():
                    x.zero_()
                torch.cuda._sleep(2_000_000)
                for name, x in late.items():
                    torch.add(given[name], 0, out=x)  # a kernel, behind which ours may begin early
                assert torch.equal(scaled_mm.mixed_mm(w=weight, **late), expected)


# --- layers ---------------------------------------------------------------------------------------


@dtypes
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("m", [1, 16, 64, 200, 1000])
@pytest.mark.skipif(ON_CPU, reason="takes the CPU minutes")
def test_layers(bits: int, dtype: torch.dtype, m: int) -> None:
    """Real sizes, on every kernel, against a product in float64 on the GPU; the same bits again."""
    for k, n, group in ((4096, 4096, 4096), (11008, 4096, 128), (4096, 11008, 128)):
        case = MixedCase(m, n, k, group, bits, "none", dtype, torch.float32)
        weight, there = case.weight(), on_device(case.operands())
        x, w, bias = (t.double() for t in (there["x"], weight.dequantize(), there["bias"]))
        exact = x @ w + bias
        size = x.abs() @ w.abs() + bias.abs()
        bound = exact.abs() * torch.finfo(dtype).eps / 2 + k * 2.0**-23 * size
        for arm in arms(bits):
            with forced(arm):
                got = scaled_mm.mixed_mm(w=weight, **there)
                again = [scaled_mm.mixed_mm(w=weight, **there) for _ in range(5)]
            bad = int(((got.double() - exact).abs() > bound).sum())
            bad += sum(int((other != got).sum()) for other in again)
            count(f"mixed_mm layers {arm or 'chosen'}", got.numel(), bad)
            assert bad == 0, (arm, k, n)
