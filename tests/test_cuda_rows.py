"""Every row of the tuning table serves every shape: the ends of tiles and of the pipeline, pointers
that no TMA descriptor takes, many tiles for each multiprocessor; and how a row is forced."""

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from cuda_support import (
    ARCHS,
    ARCHS_HERE,
    DEVICE,
    GPU,
    NAMES,
    ON_CPU,
    assert_products,
    forced,
    streams_only,
)
from ending_cases import IN_8_BITS
from helpers import run_python
from operands import (
    ACTIVATIONS,
    AZP_FORMS,
    COLUMN,
    OUT_DTYPES,
    ROW,
    Case,
    Layout,
    Matrix,
    Operands,
    Vector,
)

import scaled_mm
from scaled_mm import _library

pytestmark = [*GPU, pytest.mark.usefixtures("poisoned")]

ENDS: tuple[dict[str, Any], ...] = (
    {},
    {"residual": Matrix()},
    {"residual": Matrix(dtype=torch.float32)},
    {"activation": "reglu"},
    {"activation": "gelu"},
    {"activation": "swiglu"},
)
EPILOGUES: list[dict[str, Any]] = [
    {**azp, "bias": bias, "out_dtype": out, **end}
    for end in ENDS
    for azp in AZP_FORMS.values()
    for bias in (None, Vector("signed"), Vector("signed", dtype=torch.float32))
    for out in OUT_DTYPES
] + [
    {**azp, "bias": bias, "scale_b": Vector((0.003,), "1"), "activation": activation, **ending}
    for azp in AZP_FORMS.values()
    for bias in (None, Vector("signed"))
    for activation in (None, *ACTIVATIONS)
    for ending in IN_8_BITS.values()
]
EDGES = (1, 2, 8, 15, 16, 17, 31, 33, 63, 64, 65, 96, 127, 128, 129, 192, 255, 256, 257, 300)
K_EDGES = (0, 1, 15, 16, 17, 63, 64, 65, 127, 128, 129, 255, 256, 257, 511, 513, 1024, 1537)
LONG_K = (1023, 1024, 1025, 1151, 2048, 2049, 4096, 4097, 8191, 8192, 8193, 16_384, 65_537)


def tiles() -> Iterator[Case]:
    """All pairs of M and N; K and epilogue take turns, in cycles that are prime to each other."""
    turns = zip(itertools.cycle(K_EDGES[:-1]), itertools.cycle(EPILOGUES), strict=False)
    for (m, n), (k, epilogue) in zip(itertools.product(EDGES, EDGES), turns, strict=False):
        yield Case(f"tile-{m}x{n}", m, n, k, **epilogue)


def depths() -> Iterator[Case]:
    """Every K to 300, and long ones, below, at and above multiples of a stage."""
    for k, epilogue in zip((*range(301), *LONG_K), itertools.cycle(EPILOGUES), strict=False):
        yield Case(f"depth-{k}", 65, 136, k, a="extreme", **epilogue)
    for k in LONG_K:
        yield Case(f"depth-{k}-one-row", 1, 130, k, **AZP_FORMS["token"])
        yield Case(f"depth-{k}-one-tile", 64, 16, k, a="lowest", b="lowest")
    for k in K_EDGES[1:]:
        yield Case(f"depth-{k}-large", 300, 520, k, bias=Vector("signed"))
    yield Case("depth-131071", 70, 40, 131_071, a="lowest", b="lowest", scale_a=Vector((1.0,), "1"))
    yield Case("depth-131071-full", 3, 257, 131_071, **AZP_FORMS["token"])


def epilogues() -> Iterator[Case]:
    """Every epilogue, bias and output dtype on whole tiles and on tiles with a rest."""
    for i, epilogue in enumerate(EPILOGUES):
        yield Case(f"epilogue-{i}", 256, 256, 128, **epilogue)
        yield Case(f"epilogue-{i}-rest", 135, 269, 77, **epilogue)
        signed = {"scale_a": Vector("signed")}  # -0.0 where a scale is negative
        yield Case(f"epilogue-{i}-no-k", 70, 130, 0, **(signed | epilogue))
        forms = {"scale_a": Vector("mixed", "0d"), "scale_b": Vector("mixed", "1x1")}
        yield Case(f"epilogue-{i}-scalars", 40, 136, 64, **(forms | epilogue))
        wide = {"scale_a": Vector("wide"), "scale_b": Vector("signed", "flat")}
        yield Case(f"epilogue-{i}-wide", 129, 65, 96, **(wide | epilogue))


def places() -> Iterator[Case]:
    """One operand off the 16 bytes that TMA asks for, everything else as fast as can be."""
    size = {"m": 96, "n": 160, "k": 128}
    for i in range(1, 16):
        yield Case(f"offset-a-{i}", **size, a_layout=Layout(offset=i))
        yield Case(f"offset-b-{i}", **size, b_layout=Layout("column", offset=i))
        yield Case(f"pad-a-{i}", **size, a_layout=Layout(pad=i))
        yield Case(f"pad-b-{i}", **size, b_layout=Layout("column", pad=i))
    vectors = {"bias": Vector("signed"), **AZP_FORMS["token"]}
    layouts = [Layout(offset=i) for i in range(1, 9)] + [Layout(step=2), Layout(step=3, offset=1)]
    for name, at in itertools.product(("scale_a", "scale_b", *vectors), layouts):
        operand = vectors.get(name, Vector())
        moved = {**vectors, name: Vector(operand.values, operand.form, at)}
        yield Case(f"vector-{name}-{at.offset}-{at.step}", **size, **moved)
    orders = {
        "row": ROW,
        "column": COLUMN,
        "padded": Layout(pad=16),
        "column-padded": Layout("column", pad=16),
        "stepped": Layout(step=2),
        "column-stepped": Layout("column", step=2),
        "odd": Layout(odd=3),
    }
    residual_orders = {**orders, **{f"offset-{i}": Layout(offset=i) for i in range(1, 9)}}
    residual_orders |= {f"padded-{i}": Layout(pad=i) for i in range(1, 9)}
    for (x, at), dtype in itertools.product(residual_orders.items(), (None, torch.float32)):
        for m, n in ((96, 160), (33, 47), (130, 264), (1, 256), (128, 1)):
            residual = Matrix(layout=at, dtype=dtype)
            name = f"residual-{x}-{m}x{n}-{'wide' if dtype else 'own'}"
            yield Case(name, m, n, 128, residual=residual, bias=Vector("signed"))
    for same, (m, n) in itertools.product(
        ("rows", "columns", "rows columns"), ((96, 160), (33, 47))
    ):
        residual = Matrix("signed", same=same)
        yield Case(f"residual-same-{same}-{m}x{n}", m, n, 65, residual=residual)
    for (x, a), (y, b) in itertools.product(orders.items(), repeat=2):
        for m, n, k in ((96, 160, 128), (33, 47, 65), (1, 256, 128), (128, 1, 64), (128, 64, 1)):
            yield Case(f"order-{x}-{y}-{m}x{n}x{k}", m, n, k, a_layout=a, b_layout=b)
    yield Case("aliased", 256, 256, 128, alias=True)


def waves() -> Iterator[Case]:
    """More tiles than multiprocessors: a block goes on to its next tile, pipeline half full."""
    sizes = ((2049, 4097, 192), (4100, 2050, 1040), (300, 20_011, 96), (20_011, 300, 96))
    sizes += ((1, 60_001, 64), (60_001, 1, 64), (16, 40_000, 272), (40_000, 24, 130))
    for (m, n, k), epilogue in zip(sizes, itertools.cycle(EPILOGUES[7::17]), strict=False):
        yield Case(f"wave-{m}x{n}x{k}", m, n, k, **epilogue)


GROUPS = {
    f.__name__: [case.paired() for case in f()] for f in (tiles, depths, epilogues, places, waves)
}
PARTS = [
    pytest.param(cases[i::10] or cases[:1], id=f"{name}-{i}")
    for name, cases in GROUPS.items()
    for i in range(min(10, len(cases)))
]


@pytest.mark.parametrize("cases", PARTS)
def test_every_row(cases: list[Case]) -> None:
    for case in cases:
        if ON_CPU and case.name.startswith("wave"):
            continue
        assert_products(case, case.build(), r1=case.m * case.n * case.k < 2**21)


def overlapping() -> Iterator[tuple[str, Operands]]:
    """Elements that several rows or columns share: of stride 0, or windows that slide by 16."""
    for m, n, k in ((130, 200, 128), (33, 17, 65)):
        operands = Case("overlapping", m, n, k, bias=Vector("signed")).build()
        a, b = operands["a"], operands["b"]
        yield "one row", {**operands, "a": a[:1].expand(m, k)}
        yield "one column of a", {**operands, "a": a[:, :1].expand(m, k)}
        yield "one column", {**operands, "b": b[:, :1].expand(k, n)}
        yield "one row of b", {**operands, "b": b[:1].expand(k, n)}
        yield "one element", {**operands, "a": a[:1, :1].expand(m, k)}
        for step in (1, 16):
            line = torch.arange(step * max(m, n) + k).to(torch.int8)
            yield f"a slides by {step}", {**operands, "a": line.as_strided((m, k), (step, 1))}
            yield f"b slides by {step}", {**operands, "b": line.as_strided((k, n), (1, step))}


def test_overlapping_operands() -> None:
    for name, operands in overlapping():
        m, k = operands["a"].shape
        assert_products(Case(name, m, operands["b"].shape[1], k), operands, r1=True)


@pytest.mark.parametrize("arch", ARCHS)
def test_every_arch_that_was_built_is_run(arch: str) -> None:
    if arch not in ARCHS_HERE:
        pytest.skip(
            f"{arch} was built without code for this GPU; TORCH_CUDA_ARCH_LIST with +PTX or "
            "SCALED_MM_STAND_IN adds it"
        )
    assert {f"{arch}/{name}" for name in _library.cuda_kernels(arch)} <= set(NAMES)


one_row = pytest.mark.skipif(not NAMES, reason="no table")


def small() -> dict[str, torch.Tensor]:
    a = torch.ones(3, 64, dtype=torch.int8, device=DEVICE)
    scale = torch.ones(1, device=DEVICE)
    return {"a": a, "b": torch.ones(5, 64, dtype=torch.int8, device=DEVICE).t(), "scale": scale}


@one_row
def test_rows_have_names_of_their_own() -> None:
    assert len(set(NAMES)) == len(NAMES)
    assert all(name and name == name.strip() and "," not in name for name in NAMES)


@one_row
@pytest.mark.parametrize("name", ["nope", "0", " ", *(f"{x}x" for x in NAMES[:1])])
def test_unknown_row(name: str) -> None:
    x = small()
    calls = (
        lambda: scaled_mm.scaled_mm(x["a"], x["b"], x["scale"], x["scale"]),
        lambda: scaled_mm.int8_mm(x["a"], x["b"]),
    )
    for call in calls:
        with (
            forced(name),
            pytest.raises(ValueError, match=r"^SCALED_MM_KERNEL must be one of ") as caught,
        ):
            call()
        message = str(caught.value)
        assert message.endswith(f", got {name}")
        assert all(row in message for row in NAMES)
    assert calls[1]().tolist() == [[64] * 5] * 3


@one_row
def test_each_row_in_turn() -> None:
    """What was chosen for a shape before is not remembered in the place of what is forced."""
    x = small()
    for name in [*NAMES, *NAMES[::-1]]:
        with forced(name):
            assert scaled_mm.int8_mm(x["a"], x["b"]).tolist() == [[64] * 5] * 3


FROM_THE_SHELL = """
from cases import CASES
from cuda_support import DEVICE, on_device
from helpers import assert_bits
import scaled_mm

for name in ("epilogue-token-bias-bfloat16-tiles", "tail-prime-257", "reglu-tail-n-80"):
    operands = CASES[name].build()
    assert_bits(scaled_mm.scaled_mm(**on_device(operands)).cpu(), scaled_mm.scaled_mm(**operands))
print("right")
"""


@one_row
@streams_only
@pytest.mark.parametrize("name", NAMES[:1] + NAMES[1:][-1:])
def test_forced_from_the_shell(name: str) -> None:
    assert run_python(FROM_THE_SHELL, SCALED_MM_KERNEL=name).strip() == "right"


READ_ONCE = """
import os, torch
from cuda_support import DEVICE
import scaled_mm

os.environ["SCALED_MM_KERNEL"] = "nope"
one = torch.ones(16, 16, dtype=torch.int8, device=DEVICE)
print(scaled_mm.int8_mm(one, one).sum().item())
"""


@one_row
@streams_only
def test_the_variable_is_read_when_the_library_is_loaded() -> None:
    assert run_python(READ_ONCE).strip() == "4096"
