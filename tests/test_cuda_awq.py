"""int4 on the GPU: dequantised weights have the CPU's bits; on every arm products are within their
bound, and one-hot rows give the weight itself."""

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from awq_cases import AWQ_CASES, DTYPES, FINITE, AwqCase
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
from helpers import run_python
from operands import ACTIVATIONS
from test_awq import all_pairs, assert_bounded

import scaled_mm
from scaled_mm import reference
from scaled_mm.ops import units
from scaled_mm.ops.packed_words import INTEGER

pytestmark = [*GPU, pytest.mark.usefixtures("poisoned")]

WEIGHT = ("qweight", "scales", "qzeros")
ARMS = ["", *kernels("lowbit")]
PACKED = "packed"
"""Of arms that take both, before the name: a packed weight. Alone: the arm chosen for it."""
DENSE = [arm for arm in ARMS if "dense" in arm]
ALL_ARMS = [*ARMS, *([] if ON_CPU else [PACKED, *(f"{PACKED} {arm}" for arm in DENSE)])]
dtypes = pytest.mark.parametrize("dtype", DTYPES)


def for_arm(arm: str, operands: dict[str, Any]) -> dict[str, Any]:
    """The operands as the arm takes them."""
    if PACKED not in arm and "/units_" not in arm:
        return operands
    rest = {name: x for name, x in operands.items() if name not in WEIGHT}
    return {**rest, "qweight": scaled_mm.MixedWeight.from_awq(*(operands[name] for name in WEIGHT))}


def name_of(arm: str) -> str:
    """What SCALED_MM_KERNEL takes for it."""
    return arm.removeprefix(PACKED).strip()


def assert_products(
    monkeypatch: pytest.MonkeyPatch, operands: dict[str, Any], *context: object
) -> None:
    """Every arm is within the bound, gives the same bits twice, and leaves its operands alone."""
    there = on_device(operands)
    exact, bound = reference.awq_gemm_bound(**operands)
    for arm in ALL_ARMS:
        given = for_arm(arm, there)
        with forced(name_of(arm)):
            got, again = scaled_mm.awq_gemm(**given), scaled_mm.awq_gemm(**given)
        what = f"awq_gemm {arm or 'chosen'}"
        assert_outputs(what, {"again": again}, {"again": got}, *context)
        assert_bounded(got.cpu(), exact, bound, arm, *context)
    assert_unchanged(there, operands, *context)


def assert_dequantized(operands: dict[str, Any], *context: object) -> None:
    there = on_device(operands)
    expected = scaled_mm.awq_dequantize(**operands).to(DEVICE)
    got = scaled_mm.awq_dequantize(**there)
    assert_outputs("awq_dequantize", {"w": got}, {"w": expected}, *context)
    assert_unchanged(there, operands, *context)


@pytest.mark.parametrize("name", AWQ_CASES)
def test_dequantize(name: str) -> None:
    assert_dequantized(AWQ_CASES[name].weight(), name)


@dtypes
def test_every_pair_with_every_scale(dtype: torch.dtype) -> None:
    """All (q, z) in all lanes with all 16-bit scales there are: subnormal, infinite and NaN too."""
    every = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(dtype)
    for lane in range(8):
        q, scales, z = all_pairs(dtype, every.roll(lane))
        assert_dequantized({"qweight": q, "scales": scales, "qzeros": z}, lane)


@dtypes
@pytest.mark.parametrize(("k", "n", "group"), [(4096, 4096, 128), (14336, 1032, 64), (300, 8, 100)])
def test_dequantize_layers(dtype: torch.dtype, k: int, n: int, group: int) -> None:
    assert_dequantized(AwqCase(f"layer-{k}-{n}", k, n, group, dtype).weight(), k, n)


@pytest.mark.skipif(ON_CPU, reason="takes the CPU minutes")
def test_dequantize_more_than_2_31_elements() -> None:
    k, n = 65_600, 32_768
    q = torch.randint(-(2**31), 2**31, (k, n // 8), dtype=torch.int32, device=DEVICE)
    z = torch.randint(-(2**31), 2**31, (k // 64, n // 8), dtype=torch.int32, device=DEVICE)
    s = torch.randn(k // 64, n, dtype=torch.bfloat16, device=DEVICE)
    w = scaled_mm.awq_dequantize(q, s, z)
    for row in (0, k // 2 // 64 * 64, k - 64):
        rows, groups = slice(row, row + 64), slice(row // 64, row // 64 + 1)
        part = (q[rows].cpu(), s[groups].cpu(), z[groups].cpu())
        assert torch.equal(w[rows].cpu(), scaled_mm.awq_dequantize(*part))


@pytest.mark.parametrize("name", [n for n, c in AWQ_CASES.items() if c.scales in FINITE])
def test_product_within_the_bound(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    assert_products(monkeypatch, AWQ_CASES[name].product(), name)


def streamed() -> Iterator[AwqCase]:
    """Shapes that the streaming arms take: every end of a tile, of a stage and of a slice of K."""
    rows = itertools.cycle((1, 7, 8, 9, 16, 17, 31, 33, 64, 65, 100, 129, 200))
    biases = itertools.cycle((None, torch.float32, torch.float16, torch.bfloat16))
    endings = itertools.cycle((None, "residual", *ACTIVATIONS))
    sizes = itertools.product((64, 128, 192, 448, 1024, 4160), (32, 224, 256, 288, 1056))
    for (k, n), dtype in itertools.product(sizes, DTYPES):
        for group in {32, 64, k, 128 if k % 128 == 0 else 64}:
            bias = next(biases)
            bias = bias if bias in (None, torch.float32, dtype) else dtype
            m = next(rows)
            ending = next(endings)
            name = f"stream-{m}x{n}x{k}-g{group}-{bias}-{dtype}-{ending}"
            yield AwqCase(name, k, n, group, dtype, "signed", (m,), bias, ending=ending)


STREAMED = {case.name: case for case in streamed()}


@pytest.mark.parametrize("name", STREAMED)
def test_streamed(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    assert_products(monkeypatch, STREAMED[name].product(), name)


@dtypes
@pytest.mark.parametrize("arm", ALL_ARMS)
@pytest.mark.parametrize("rows", [1, 8, 40, 256])
def test_identity_gives_the_weight(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, arm: str, rows: int
) -> None:
    """x = I in slices of so many rows: every (q, z) with every finite scale, at every k."""
    every = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(dtype)
    finite = every[every.isfinite()]
    q, scales, z = all_pairs(dtype, finite)
    # groups of 16 rows are of no streaming arm: each z gets 64 rows, four times the 16 q
    repeated = q.reshape(16, 16, -1).repeat(1, 4, 1).reshape(1024, -1)
    for weight in ((q, scales, z), (repeated, scales, z)):
        operands = [x.to(DEVICE) for x in weight]
        expected = scaled_mm.awq_dequantize(*operands)
        columns = expected.isfinite().all(0)
        eye = torch.eye(len(expected), dtype=dtype, device=DEVICE)
        if rows == 1:
            eye = eye[::37]
            expected = expected[::37]
        given = for_arm(arm, dict(zip(WEIGHT, operands, strict=True)))
        with forced(name_of(arm)):
            got = torch.cat([scaled_mm.awq_gemm(x, **given) for x in eye.split(rows)])
        different = int((got[:, columns] != expected[:, columns]).sum())  # +0 equals -0
        count(f"awq_gemm identity {arm}", got[:, columns].numel(), different)
        assert different == 0


def test_special_values_reach_the_output(monkeypatch: pytest.MonkeyPatch) -> None:
    case = AwqCase("special", 640, 416, 64, torch.bfloat16, "signed", (70,), torch.float32)
    operands = on_device(case.product())
    operands["scales"][3, 17] = torch.nan
    operands["scales"][1, 200] = torch.inf
    for arm, rows in itertools.product(ALL_ARMS, (1, 70)):
        with forced(name_of(arm)):
            got = scaled_mm.awq_gemm(**for_arm(arm, {**operands, "x": operands["x"][:rows]}))
        assert got[:, 17].isnan().all()
        assert not got[:, 200].isfinite().any()
        rest = [n for n in range(416) if n not in (17, 200)]
        assert got[:, rest].isfinite().all()


@pytest.mark.parametrize("name", ["words-padded-float16", "words-misaligned-bfloat16"])
def test_layouts_of_a_streamed_shape(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    layout = AWQ_CASES[name].words
    case = AwqCase(name, 256, 288, 64, rows=(5,), words=layout, x=layout)
    assert_products(monkeypatch, case.product(), name)


@streams_only
@pytest.mark.parametrize("arm", ALL_ARMS)
def test_captured_in_a_graph(monkeypatch: pytest.MonkeyPatch, arm: str) -> None:
    """Without a warm-up; a replay follows what the operands hold then (a packed weight may not
    change)."""
    case = AwqCase("graph", 512, 1024, 128, torch.float16, "signed", (20,), torch.float16)
    operands = on_device(case.product())
    other = AwqCase("other", 512, 1024, 128, torch.float16, "signed", (20,), torch.float16)
    operands = for_arm(arm, operands)
    graph = torch.cuda.CUDAGraph()
    with forced(name_of(arm)):
        with torch.cuda.graph(graph):
            got = scaled_mm.awq_gemm(**operands)
        for name, x in other.product().items():
            if isinstance(operands.get(name), torch.Tensor):
                operands[name].copy_(x)
        graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(got, scaled_mm.awq_gemm(**operands))


@streams_only
def test_late_operands_on_another_stream() -> None:
    """The op runs on the current stream, after what writes its operands there."""
    case = AwqCase("late", 4096, 4096, 128, torch.bfloat16, "signed", (4,))
    here = on_device(case.product())
    expected = scaled_mm.awq_gemm(**here)
    late = {name: torch.zeros_like(x) for name, x in here.items()}
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(50_000_000)
        for name, x in here.items():
            late[name].copy_(x)
        got = scaled_mm.awq_gemm(**late)
    stream.synchronize()
    assert torch.equal(got, expected)


@streams_only
@pytest.mark.parametrize("group", [32, 64, 128, 48])
def test_packed_and_back(group: int) -> None:
    """To the same tensors, and the same units as on the CPU."""
    for n in (8, 200, 1024):
        operands = AwqCase(f"pack-{n}", 1152, n, group, scales="special").weight()
        there = scaled_mm.MixedWeight.from_awq(*(operands[name].to(DEVICE) for name in WEIGHT))
        assert there.layout == (0 if there.group % 32 else 1)
        q, scales, zeros, _ = (None if x is None else x.cpu() for x in there.unpack())
        pack = scaled_mm.awq.pack
        back = {"qweight": pack(q), "scales": scales, "qzeros": pack(zeros)}
        assert_outputs("unpack", back, operands, n, group)
        if there.layout == 1:
            q, z = (scaled_mm.awq.unpack(operands[name]) for name in ("qweight", "qzeros"))
            here = units.to_units(q, operands["scales"], z, 4, INTEGER, there.group)
            assert_outputs("from_awq", {"data": there.data.cpu()}, {"data": here}, n, group)


@streams_only
@pytest.mark.parametrize("m", [1, 100])
def test_a_product_right_behind_the_packing(m: int) -> None:
    """Products read packed weights early: never before they are written, here over what was in the
    same memory before."""
    case = AwqCase("behind", 4096, 2048, 128, torch.float16, rows=(m,))
    here = on_device(case.product())
    weights = [{**here, "qweight": here["qweight"] ^ i * 0x01010101} for i in range(40)]
    expected = [scaled_mm.awq_gemm(**for_arm(PACKED, w)).clone() for w in weights]
    torch.cuda.synchronize()
    got = []
    for w in weights:
        given = for_arm(PACKED, w)
        got.append(scaled_mm.awq_gemm(**given))
        del given  # the allocator gives its memory to the next one
    different = sum(int((x != y).sum()) for x, y in zip(got, expected, strict=True))
    count("awq_gemm behind the packing", len(got) * got[0].numel(), different)
    assert different == 0


@pytest.mark.skipif(ON_CPU, reason="kernels are chosen on the GPU")
def test_an_unknown_kernel_is_refused() -> None:
    known = kernels("lowbit")[-1]
    run_python(
        "import torch, scaled_mm, pytest\n"
        "from awq_cases import AwqCase\n"
        f"wanted = 'SCALED_MM_KERNEL must be one of .*{known}.*, got stream_9'\n"
        "with pytest.raises(ValueError, match=wanted):\n"
        "    scaled_mm.awq_gemm(**AwqCase('x').product('cuda'))\n",
        SCALED_MM_KERNEL="stream_9",
    )


@dtypes
@pytest.mark.parametrize("m", [1, 16, 64, 200, 1000])
@pytest.mark.skipif(ON_CPU, reason="takes the CPU minutes")
def test_layers(monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, m: int) -> None:
    """Real sizes, on every arm, against a product in float64 on the GPU."""
    for k, n in ((4096, 4096), (11008, 4096), (4096, 11008)):
        case = AwqCase(f"layer-{k}-{n}-{m}", k, n, 128, dtype, "usual", (m,), torch.float32)
        there = on_device(case.product())
        w = scaled_mm.awq_dequantize(*(there[x] for x in WEIGHT))
        x, wide, bias = there["x"].double(), w.double(), there["bias"].double()
        exact = x @ wide + bias
        size = x.abs() @ wide.abs() + bias.abs()
        bound = exact.abs() * torch.finfo(dtype).eps / 2 + k * 2.0**-23 * size
        for arm in ALL_ARMS:
            with forced(name_of(arm)):
                got = scaled_mm.awq_gemm(**for_arm(arm, there))
            bad = int(((got.double() - exact).abs() > bound).sum())
            count(f"awq_gemm layers {arm or 'chosen'}", got.numel(), bad)
            assert bad == 0, (arm, k, n)


@pytest.mark.parametrize("arm", ALL_ARMS)
@pytest.mark.skipif(ON_CPU, reason="many calls")
def test_runs_agree(monkeypatch: pytest.MonkeyPatch, arm: str) -> None:
    """Two runs give the same bits, where blocks go through many pieces with a full ring."""
    case = AwqCase("runs", 4096, 4096, 128, torch.float16, "usual", (1000,), torch.float32)
    there = for_arm(arm, on_device(case.product()))
    with forced(name_of(arm)):
        first = scaled_mm.awq_gemm(**there)
        different = sum(int((scaled_mm.awq_gemm(**there) != first).sum()) for _ in range(40))
    count(f"awq_gemm runs {arm or 'chosen'}", 40 * first.numel(), different)
    assert different == 0
