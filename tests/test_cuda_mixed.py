"""mixed_mm on the GPU: dequantised weights have the CPU's bits; on every kernel products are within
their bound, and one-hot rows give the weight itself."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from cuda_support import (
    DEVICE,
    GPU,
    ON_CPU,
    assert_outputs,
    assert_unchanged,
    count,
    forced,
    kernels,
    on_device,
    streams_only,
)
from helpers import assert_bits
from test_awq import assert_bounded
from torch import Tensor

import scaled_mm
from scaled_mm import reference
from scaled_mm.ops import units

pytestmark = [*GPU, pytest.mark.usefixtures("poisoned")]

ZEROS = ("none", "integer", "float")
ACTIVATIONS = (None, "relu", "gelu", "gelu_tanh", "silu")
DTYPES = (torch.float16, torch.bfloat16)
kinds = pytest.mark.parametrize(("bits", "zero"), list(itertools.product((4, 8), ZEROS)))
dtypes = pytest.mark.parametrize("dtype", DTYPES)


def arms(bits: int) -> list[str]:
    """Kernels that may take a weight of so many bits, and "", the one that is chosen."""
    other = "/packed8_" if bits == 4 else "/packed_"
    return [
        "",
        *(name for name in kernels("lowbit") if other not in name and "/stream" not in name),
    ]


@dataclass(frozen=True)
class MixedCase:
    """A product; `order`: the rows of its weight come from columns of x in a random order."""

    m: int
    n: int
    k: int
    group: int
    bits: int = 8
    zero: str = "none"
    dtype: torch.dtype = torch.bfloat16
    bias: torch.dtype | None = None
    activation: str | None = None
    pre_scale: torch.dtype | None = None
    order: bool = False
    exact: bool = False  # operands of few bits: every sum is exact in float32

    def plain(self) -> dict[str, Any]:
        """What pack_weight takes: values equally often, scales that keep W near 1."""
        rng = np.random.default_rng(self.m + self.n * self.k)
        shape, most = (self.k // self.group, self.n), 1 << self.bits
        low = 0 if self.zero == "integer" else -most // 2
        q = torch.from_numpy(rng.integers(low, low + most, (self.k, self.n), np.int16))
        scales = torch.from_numpy(rng.uniform(0.2, 2.0, shape) / most).to(self.dtype)
        if self.exact:
            scales = torch.full(shape, 2.0 / most, dtype=self.dtype)
        made = {"q": q.to(torch.uint8 if self.zero == "integer" else torch.int8), "scales": scales}
        if self.zero == "float":
            made["zeros"] = torch.from_numpy(rng.standard_normal(shape)).to(self.dtype)
            if self.exact:
                made["zeros"] = torch.from_numpy(rng.integers(-4, 5, shape) / 4).to(self.dtype)
        elif self.zero == "integer":
            z = rng.integers(0, most, shape, np.int16)
            made["zeros"] = torch.from_numpy(z).to(torch.uint8)
        if self.order:
            groups = np.repeat(np.arange(shape[0]), self.group)
            made["g_idx"] = torch.from_numpy(rng.permutation(groups).astype(np.int32))
        return {**made, "bits": self.bits}

    def weight(self, device: str = DEVICE) -> scaled_mm.MixedWeight:
        return scaled_mm.pack_weight(**on_device(self.plain(), device))

    def operands(self) -> dict[str, Any]:
        """The rest of mixed_mm's arguments, on the CPU."""
        rng = np.random.default_rng(self.m * self.n + self.k)

        def normal(*shape: int) -> Tensor:
            if self.exact:
                return torch.from_numpy(rng.integers(-2, 3, shape).astype(np.float32))
            return torch.from_numpy(rng.standard_normal(shape).astype(np.float32))

        made: dict[str, Any] = {"x": normal(self.m, self.k).to(self.dtype)}
        if self.bias:
            made["bias"] = normal(self.n).to(self.bias)
        if self.pre_scale:
            made["pre_scale"] = (0.5 + normal(self.k).abs()).to(self.pre_scale)
        if self.activation:
            made["activation"] = self.activation
        return made


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


def odd_cases() -> Iterator[MixedCase]:
    """Every end of a tile, of a unit and of a share of K; every kind, bias and activation."""
    rows = itertools.cycle((1, 7, 8, 9, 16, 17, 31, 33, 64, 65, 100, 129, 200, 257))
    sizes = [(64, 72, 32), (128, 64, 128), (192, 65, 96), (448, 224, 64), (1024, 1032, 128)]
    sizes += [(4160, 264, 4160), (1000, 136, 1000), (2176, 1, 128), (300, 24, 100), (96, 8, 16)]
    biases = itertools.cycle((None, torch.float32, "own"))
    activations = itertools.cycle(ACTIVATIONS)
    for (k, n, group), bits, zero, dtype in itertools.product(sizes, (4, 8), ZEROS, DTYPES):
        bias = next(biases)
        own = dtype if bias == "own" else bias
        yield MixedCase(next(rows), n, k, group, bits, zero, dtype, own, next(activations))


def exact_cases() -> Iterator[MixedCase]:
    """The same with operands whose sums are exact, so that all kernels give the CPU's bits."""
    orders = itertools.cycle((False, True, False))
    pre_scales = itertools.cycle((None, None, torch.float32, "own"))
    for case in odd_cases():
        scale = next(pre_scales)
        own = case.dtype if scale == "own" else scale
        yield replace(case, exact=True, order=next(orders), pre_scale=own)


def random_exact_case(rng: np.random.Generator) -> MixedCase:
    group = int(rng.choice([8, 32, 64, 128, 160]))
    k = group * int(rng.integers(1, 9))
    bits, zero = int(rng.choice([4, 8])), str(rng.choice(ZEROS))
    dtype = DTYPES[rng.integers(2)]
    bias, scale = ((None, torch.float32, dtype)[i] for i in rng.integers(3, size=2))
    activation, order = ACTIVATIONS[rng.integers(5)], bool(rng.integers(2))
    m, n = int(rng.integers(1, 300)), int(rng.integers(1, 400))
    return MixedCase(m, n, k, group, bits, zero, dtype, bias, activation, scale, order, exact=True)


@pytest.mark.parametrize("case", exact_cases(), ids=str)
def test_the_bits_of_the_cpu(case: MixedCase) -> None:
    """Of every kernel, activations included."""
    here, weight = case.operands(), case.weight()
    expected = scaled_mm.mixed_mm(w=case.weight("cpu"), **here).to(DEVICE)
    there = on_device(here)
    for arm in arms(case.bits):
        with forced(arm):
            got = scaled_mm.mixed_mm(w=weight, **there)
        assert_outputs(f"mixed_mm {arm or 'chosen'}", {"d": got}, {"d": expected}, case)


@pytest.mark.parametrize("case", odd_cases(), ids=str)
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
