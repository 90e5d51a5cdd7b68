"""vLLM's layers on this library's ops, without vLLM: parameters that lie as its loaders leave them.

`tests/vllm_plugin.py` does the same inside vLLM's own layers.
"""

import logging
import sys
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import assert_bits, rows
from test_awq import assert_bounded
from torch import Tensor
from vllm_cases import INT4_CASES, INT8_CASES, W8A16_CASES, Int8Case, WeightOnlyCase, along

from scaled_mm import PackedWeight, _library, reference
from scaled_mm.integrations import vllm as plugin
from scaled_mm.integrations.vllm_weights import (
    Int8Weight,
    WeightOnlyShape,
    int8_linear,
    int8_weight,
    packed_weight,
    weight_only_linear,
    why_not_here,
    why_not_weight_only,
)

# ---- int8 ----------------------------------------------------------------------------------------


def fused(case: Int8Case) -> tuple[object, Tensor | None]:
    """The layer's operands and bias: partitions below each other, as vLLM's loaders put them."""
    own = case.partitions()
    joined = {name: torch.cat([part[name] for part in own]) for name in own[0]}
    made = int8_weight(
        joined["weight"],
        joined["weight_scale"],
        joined.get("input_scale"),
        joined.get("input_zero_point"),
        symmetric=case.symmetric,
        widths=list(case.widths),
    )
    return made, joined.get("bias")


@pytest.mark.parametrize("case", INT8_CASES, ids=str)
def test_int8(isa: str, case: Int8Case) -> None:
    weight, bias = fused(case)
    x = case.input()
    y = int8_linear(x, weight, bias)
    assert_bits(y, case.expected(x))
    assert_bits(int8_linear(x[0, :1], weight, bias), y[0, :1])
    assert int8_linear(x[:, :0], weight, bias).shape == (2, 0, sum(case.widths))
    if bias is not None:
        assert_bits(int8_linear(x, weight, bias.float()), y)


def test_the_cpu_holds_the_packed_weight_alone() -> None:
    weight, _ = fused(INT8_CASES[0])
    assert isinstance(weight.b, PackedWeight)
    assert {x.dtype for x in weight[1:] if x is not None} <= {torch.float32, torch.int32}


def test_a_zero_point_that_a_symmetric_scheme_carries_is_not_looked_at() -> None:
    case = Int8Case("static-symmetric")
    (own,) = case.partitions()
    zero = torch.tensor([5], dtype=torch.int8)
    weight = int8_weight(
        own["weight"], own["weight_scale"], own["input_scale"], zero, symmetric=True, widths=[40]
    )
    assert weight.zero_point is None and weight.term is None
    x = case.input()
    assert_bits(int8_linear(x, weight, own["bias"]), case.expected(x))


def of_ones(rows: int, scale: Tensor, zero: Tensor | None = None) -> Int8Weight:
    """A partition for each row, with ranges of its input."""
    weight, widths = torch.ones(rows, 8, dtype=torch.int8), [1] * rows
    scales, symmetric = torch.ones(rows, 1), zero is None
    return int8_weight(weight, scales, scale, zero, symmetric=symmetric, widths=widths)


@pytest.mark.parametrize("scale", [0.0213, 1.0, 3e-5, 1 / 3])
def test_one_range_stays_as_it_is(scale: float) -> None:
    """For every zero point; rebuilt from its range, many would be another."""
    for zero in range(-128, 128):
        stored = torch.tensor([zero], dtype=torch.int8)
        for copies in (1, 3):
            weight = of_ones(1, torch.tensor([scale] * copies), stored.repeat(copies))
            assert weight.input_scale.tolist() == torch.tensor([scale]).tolist()
            assert weight.zero_point.tolist() == [zero] and weight.term.tolist() == [[8 * zero]]


@pytest.mark.parametrize(
    "ranges",
    [((0.02, -128), (0.012, 100)), ((0.5, 3), (0.25, -77)), ((1e-3, 0), (1e-3, 1), (2e-3, 5))],
)
def test_ranges_of_partitions_are_joined(ranges: tuple[tuple[float, int], ...]) -> None:
    scale = torch.tensor([s for s, _ in ranges])
    zero = torch.tensor([z for _, z in ranges], dtype=torch.int8)
    weight = of_ones(len(ranges), scale, zero)
    exact = [Fraction(s) for s in scale.tolist()]
    low = min(s * (-128 - z) for s, (_, z) in zip(exact, ranges, strict=True))
    high = max(s * (127 - z) for s, (_, z) in zip(exact, ranges, strict=True))
    (got,) = weight.input_scale.tolist()
    assert got == torch.tensor(float((high - low) / 255)).item()
    assert weight.zero_point.tolist() == [round(-128 - low / Fraction(got))]
    assert of_ones(len(ranges), scale).input_scale.tolist() == [scale.max().item()]


# ---- Weights of 4 and 8 bits ---------------------------------------------------------------------


def parameter(data: Tensor, **dims: int) -> Tensor:
    """A tensor that says where its dimensions are, as vLLM's parameters do."""
    for name, value in dims.items():
        setattr(data, name, value)
    return data


def laid_out(case: WeightOnlyCase) -> tuple[Tensor, Tensor, Tensor | None]:
    """Words, scales and zero points as vLLM hands them to a kernel."""
    weight = case.weight()
    if case.layout == "ct":
        words = parameter(along(weight.q.t(), 1, case.bits), input_dim=1, output_dim=0)
        scales = parameter(weight.scales.t().contiguous(), input_dim=1, output_dim=0)
    else:
        words = parameter(along(weight.q, 0, case.bits), input_dim=0, output_dim=1)
        scales = parameter(weight.scales.clone(), input_dim=0, output_dim=1)
    zeros = parameter(along(weight.zeros.t(), 0, case.bits), input_dim=1, output_dim=0)
    return words, scales, None if case.symmetric else zeros


@pytest.mark.parametrize("case", [*INT4_CASES, *W8A16_CASES], ids=str)
def test_weight_only(isa: str, case: WeightOnlyCase) -> None:
    """The weight bit for bit, the product within the bound of `mixed_mm`; where the layer is
    symmetric, without zero points."""
    made = packed_weight(*laid_out(case), bits=case.bits)
    assert (made.bits, made.zero) == (case.bits, "none" if case.symmetric else "integer")
    assert_bits(made.dequantize(), case.dequantised())
    x, bias = case.input(), torch.arange(case.n).to(case.dtype)
    for b in (None, bias, bias.float()):
        y = weight_only_linear(x, made, b)
        assert_bounded(y, *reference.mixed_mm_bound(x, *made.unpack()[:3], bias=b))
    one = torch.eye(case.k, dtype=case.dtype)
    assert_bits(weight_only_linear(one, made), case.dequantised())


def test_zero_points_of_either_layout() -> None:
    """[K/G, N/8], too, where a loader left them so."""
    case = WeightOnlyCase("gptq", symmetric=False)
    words, scales, _ = laid_out(case)
    zeros = parameter(along(case.weight().zeros, 1), input_dim=0, output_dim=1)
    made = packed_weight(words, scales, zeros, bits=4)
    assert_bits(made.dequantize(), case.dequantised())


GOOD = WeightOnlyShape(256, 64, 128, "uint4b8", False, torch.bfloat16, None)
BYTES = GOOD._replace(type_name="uint8b128")
REFUSED: dict[str, Any] = {
    "weight_type must be uint4b8 with zero_points": GOOD._replace(type_name="uint8b128"),
    "uint4b8 with zero_points=False, got int4": GOOD._replace(type_name="int4"),
    "must be uint4 with zero_points=True, got": GOOD._replace(zero_points=True),
    "zero_points=False, got uint4": GOOD._replace(type_name="uint4"),
    "float16 or bfloat16, got float8_e4m3fn": GOOD._replace(dtype=torch.float8_e4m3fn),
    "act_type must be float16 or bfloat16, got int8": GOOD._replace(dtype=torch.int8),
    "float16 or bfloat16, got float32": GOOD._replace(dtype=torch.float32),
    "out_type must be act_type, bfloat16, got": GOOD._replace(out_dtype=torch.float32),
    "output features must be a multiple of 8, got 60": GOOD._replace(n=60),
    "input features must be a multiple of 8, got 252": GOOD._replace(k=252, group=-1),
    "group_size must divide the 192 input features of a rank, got": GOOD._replace(k=192),
    "got 0": GOOD._replace(group=0),
}


REFUSED_OF_BYTES: dict[str, Any] = {
    "weight_type must be uint8b128 with zero_points=False, got uint4b8": GOOD,
    "must be uint8 with zero_points=True, got uint8b1": BYTES._replace(zero_points=True),
    "output features must be a multiple of 4, got 62": BYTES._replace(n=62),
}


@pytest.mark.parametrize(
    ("said", "shape", "bits"),
    [
        (*each.values, bits)
        for bits, table in ((4, REFUSED), (8, REFUSED_OF_BYTES))
        for each in rows(table)
    ],
)
def test_layers_that_are_refused(said: str, shape: WeightOnlyShape, bits: int) -> None:
    assert said in (why_not_weight_only(shape, bits) or "nothing")


@pytest.mark.parametrize(
    ("shape", "bits"),
    [
        (GOOD, 4),
        (GOOD._replace(type_name="uint4", zero_points=True), 4),
        (GOOD._replace(group=-1, dtype=torch.float16, out_dtype=torch.float16), 4),
        (GOOD._replace(k=24, n=8, group=3), 4),
        (BYTES, 8),
        (BYTES._replace(type_name="uint8", zero_points=True), 8),
        (BYTES._replace(k=12, n=4, group=-1, dtype=torch.float16), 8),
    ],
)
def test_layers_that_are_not(shape: WeightOnlyShape, bits: int) -> None:
    assert why_not_weight_only(shape, bits) is None


# ---- Where there are kernels ---------------------------------------------------------------------


def test_platforms(monkeypatch: pytest.MonkeyPatch) -> None:
    for family in ("int8", "lowbit"):
        assert why_not_here(family, "CPU", None) is None
        assert why_not_here(family, "ROCM", 90) == "needs a CPU or CUDA, got ROCM"
    monkeypatch.setattr(_library, "HAS_CUDA", False)
    assert "needs the CUDA library of scaled_mm" in str(why_not_here("int8", "CUDA", 90))
    monkeypatch.setattr(_library, "HAS_CUDA", True)
    monkeypatch.setattr(_library, "arch_of", {80: "sm80", 90: "sm90"}.get)
    monkeypatch.setattr(_library, "cuda_kernels", lambda arch, family: ["stream"])
    for capability, got in ((75, "7.5"), (80, "8.0"), (100, "10.0"), (None, "none")):
        assert why_not_here("int8", "CUDA", capability) == (
            f"needs compute capability 9.0, where it was measured to win, got {got}"
        )
    assert why_not_here("int8", "CUDA", 90) is None and why_not_here("lowbit", "CUDA", 90) is None
    monkeypatch.setattr(_library, "cuda_kernels", lambda arch, family: [])
    assert why_not_here("lowbit", "CUDA", 90) == (
        "needs weight-only kernels for compute capability 9.0, which are not built"
    )


@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated")
def test_each_is_one_graph() -> None:
    """vLLM compiles its models whole."""
    for case in (INT8_CASES[-4], INT8_CASES[20]):
        weight, bias = fused(case)
        compiled = torch.compile(int8_linear, fullgraph=True, dynamic=True, backend="aot_eager")
        x = case.input()
        assert_bits(compiled(x, weight, bias), int8_linear(x, weight, bias), case)
    for case in (INT4_CASES[0], W8A16_CASES[0]):
        packed = packed_weight(*laid_out(case), bits=case.bits)
        compiled = torch.compile(
            weight_only_linear, fullgraph=True, dynamic=True, backend="aot_eager"
        )
        assert_bits(compiled(case.input(), packed), weight_only_linear(case.input(), packed))


def test_the_entry_point_is_there() -> None:
    text = (Path(__file__).parent.parent / "pyproject.toml").read_text()
    section = text.split('[project.entry-points."vllm.general_plugins"]\n')[1].split("\n\n")[0]
    assert section == f'scaled_mm = "{plugin.__name__}:{plugin.register_if_asked.__name__}"'


@pytest.mark.parametrize("value", [None, "", "0", "true", "1"])
def test_it_registers_where_it_is_asked_to(
    value: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SCALED_MM_VLLM", raising=False)
    if value is not None:
        monkeypatch.setenv("SCALED_MM_VLLM", value)
    registered: list[bool] = []
    monkeypatch.setattr(plugin, "register", lambda: registered.append(True))
    plugin.register_if_asked()
    assert registered == [True] * (value == "1")


def test_without_vllm_it_warns(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "vllm", None)
    with caplog.at_level(logging.WARNING, "vllm.scaled_mm"):
        plugin.register()
    (record,) = caplog.records
    assert record.getMessage().startswith("scaled_mm registers no kernel with this vLLM: ")
