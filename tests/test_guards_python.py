"""Python: guards for what the tests of each subject leave open. Each stands in catalogue.md."""

import math
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoint_cases import VARIANTS, Model, quantization_config, tensors, variant, write
from helpers import Cli
from torch import nn

from scaled_mm import QuantConfig, load_quantized, quantize_model, reference
from scaled_mm.checkpoint.config import W8A8, read_quantization
from scaled_mm.checkpoint.fields import Fields
from scaled_mm.checkpoint.files import TensorFile
from scaled_mm.nn import ScaledLinear, WeightOnlyLinear
from scaled_mm.precompute import precompute
from scaled_mm.reference.accuracy import BOUND_ULP
from scaled_mm.validate import Thresholds, ValidationReport, validate

HERE = Path(__file__).parent


def test_nothing_skips_where_an_extra_is_missing() -> None:
    """`helpers.extra` fails; what skips by itself would go unnoticed."""
    word = "import" + "orskip"
    assert [path.name for path in HERE.glob("*.py") if word in path.read_text()] == []


ONE = torch.ones(1, 1, dtype=torch.int8)
EPS = {dtype: torch.finfo(dtype).eps for dtype in BOUND_ULP}
# Half an ulp for the last rounding and what the roundings before it add (docs/numerics.md).
PUBLISHED = {torch.bfloat16: 0.50005, torch.float16: 0.5004, torch.float32: 3.0}


def check(out: float, dtype: torch.dtype, **more: Any) -> Any:
    """The verdict on an output where 1 is exact (2 with a bias)."""
    given = torch.tensor([[out]], dtype=dtype)
    return reference.check(given, ONE, ONE, torch.ones(1), torch.ones(1), **more)


@pytest.mark.parametrize("dtype", BOUND_ULP, ids=str)
def test_the_bound_without_a_sum(dtype: torch.dtype) -> None:
    ulps = 1 if dtype != torch.float32 else 4
    report = check(1 + ulps * EPS[dtype], dtype)
    assert report.worst_ulp == ulps
    assert report.worst_of_bound == ulps / PUBLISHED[dtype]
    assert (report.beyond, report.accurate, report.different) == (1, False, 1)


@pytest.mark.parametrize("dtype", BOUND_ULP, ids=str)
def test_the_bound_of_a_sum(dtype: torch.dtype) -> None:
    """(1 + 2^-10) ulp / 2 + roundings 2^-24 (|product| + |bias|), at 1 + 1."""
    ulp = 2 * EPS[dtype]
    report = check(2 + ulp, dtype, bias=torch.ones(1))
    assert report.roundings == 4
    bound = (1 + 2.0**-10) * ulp / 2 + report.roundings * 2.0**-24 * 2
    assert report.worst_of_bound == pytest.approx(ulp / bound, rel=1e-12)
    assert report.beyond == (ulp > bound)
    assert check(2 - 4 * ulp, dtype, bias=torch.ones(1)).beyond == 1


@pytest.mark.parametrize("value", [True, False, 1.0, "1", None])
def test_what_is_no_integer(value: object) -> None:
    with pytest.raises(ValueError, match=r"^f: bits must be an integer in 0\.\.8, got "):
        Fields("f").integer("bits", value, 0, 8)


def validated(**limits: float) -> ValidationReport:
    model = nn.Sequential(nn.Linear(4, 3))
    made = quantize_model(model, QuantConfig("static"), [torch.tensor([[1.0, -1, 0, 0]])])
    batch = torch.tensor([[1.0, -3, 2, 0], [0, 0, 0.5, 1]])  # -3 and 2 of eight are beyond the grid
    return validate(model, made, [batch], stride=1, thresholds=Thresholds(**limits))


def test_what_meets_a_threshold_passes() -> None:
    torch.manual_seed(0)
    loose = {"cosine_mean": -1.0, "sqnr_db": -99.0, "saturated": 1.0}
    (layer,), outputs = validated(**loose).layers, validated(**loose).outputs
    assert layer.saturated == 0.25  # 1, the largest calibrated, is on the grid and not beyond
    met = {"saturated": 0.25}
    for name, value in met.items():
        assert validated(**{**loose, name: value}).ok, name
    assert not validated(**{**loose, "saturated": math.nextafter(0.25, 0)}).ok
    model = nn.Sequential(nn.Linear(4, 3))
    made = quantize_model(model)
    batch = [torch.ones(2, 4)]
    report = validate(model, made, batch, stride=1)
    exact = {"cosine_mean": report.outputs.cosine_mean, "sqnr_db": report.layers[0].sqnr_db}
    assert validate(model, made, batch, stride=1, thresholds=Thresholds(**exact)).ok
    for name, value in exact.items():
        limits = Thresholds(**{**exact, name: math.nextafter(value, math.inf)})
        assert not validate(model, made, batch, stride=1, thresholds=limits).ok, name
    assert outputs.rows == 2


INT8 = VARIANTS["dynamic-symmetric"]


def targeting(*targets: str, ignore: tuple[str, ...] = ()) -> W8A8:
    fields = quantization_config(*INT8)
    fields["config_groups"]["group_0"]["targets"] = list(targets)
    fields["ignore"] = list(ignore)
    made = read_quantization(HERE, {"quantization_config": fields})
    assert isinstance(made, W8A8)
    return made


MATCHED = [  # target, module, whether it is meant
    ("re:q_proj", "q_proj", True),
    ("re:q_proj", "layers.0.q_proj", False),
    ("re:.*q_proj", "layers.0.q_proj", True),
    ("re:layers.0", "layers.0.q_proj", True),
    ("re:model.layers", "layers.0.q_proj", False),
    ("re:.*q_proj$", "layers.0.q_proj.base", False),
    ("q_proj", "layers.0.q_proj", False),
    ("layers.0.q_proj", "layers.0.q_proj", True),
    ("layers.0", "layers.0.q_proj", False),
    ("Linear", "layers.0.q_proj", True),
    ("Line", "layers.0.q_proj", False),
    ("LinearLike", "layers.0.q_proj", False),
]


@pytest.mark.parametrize(("target", "name", "meant"), MATCHED)
def test_where_a_pattern_matches(target: str, name: str, meant: bool) -> None:
    """From the start of a name, as compressed-tensors does; a name or a class as a whole."""
    assert (targeting(target).scheme_of(name) is not None) == meant
    assert (targeting("Linear", ignore=(target,)).scheme_of(name) is None) == meant


def test_a_pattern_s_flags_are_its_own() -> None:
    both = targeting("re:(?i)K_PROJ", "re:Q_PROJ")
    assert both.scheme_of("k_proj") is not None
    assert both.scheme_of("Q_PROJ") is not None
    assert both.scheme_of("q_proj") is None


@pytest.mark.parametrize(
    ("pattern", "replaced"),
    [("0", ["0"]), ("*", ["0", "10"]), ("1*", ["10"]), ("?", ["0"]), ("*1", []), ("1", [])],
)
def test_patterns_of_a_config_are_of_whole_names(pattern: str, replaced: list[str]) -> None:
    model = nn.Sequential(*(nn.Linear(4, 4) if i in (0, 10) else nn.ReLU() for i in range(11)))
    config = QuantConfig(targets=(pattern,))
    if not replaced:
        with pytest.raises(ValueError, match=r"^targets must "):
            quantize_model(model, config)
        return
    made = quantize_model(model, config)
    assert [n for n, m in made.named_modules() if isinstance(m, ScaledLinear)] == replaced


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan, -1.0])
@pytest.mark.parametrize("part", ["weight_scale", "input_scale", "input_smooth"])
def test_a_scale_that_is_no_scale(part: str, value: float, tmp_path: Path) -> None:
    state = tensors(*VARIANTS["static-symmetric"])
    state["up.input_smooth"] = torch.ones(44)
    write(tmp_path, state, quantization_config(*VARIANTS["static-symmetric"]))
    load_quantized(Model(), tmp_path)
    state[f"up.{part}"].view(-1)[-1] = value
    write(tmp_path, state, quantization_config(*VARIANTS["static-symmetric"]))
    with pytest.raises(ValueError, match=rf"up\.{part} must be finite and not negative"):
        load_quantized(Model(), tmp_path)


def test_a_file_cut_off_after_its_header(tmp_path: Path) -> None:
    folder = variant(tmp_path, "dynamic-symmetric")
    file = TensorFile(folder / "model.safetensors")
    last = list(file.entries)[-1]
    whole = file.path.read_bytes()
    for cut in (1, file.entries[last].nbytes):
        file.path.write_bytes(whole[:-cut])
        with pytest.raises(ValueError, match=rf"{re.escape(last)}: the file ended early"):
            file.read(last)
    file.path.write_bytes(whole)
    file.read(last)


def test_a_source_cut_off_while_it_is_copied(tmp_path: Path) -> None:
    """What was written so far gets no final name."""
    state = tensors(*VARIANTS["dynamic-asymmetric"])
    state["embed.weight"] = torch.ones(1 << 19)  # 2 MB: several pieces
    write(tmp_path / "in", state, quantization_config(*VARIANTS["dynamic-asymmetric"]))
    source, out = tmp_path / "in/model.safetensors", tmp_path / "out"

    def cut(done: int, total: int) -> None:
        with source.open("r+b") as file:
            file.truncate(source.stat().st_size // 2)

    with pytest.raises(ValueError, match="the file ended early"):
        precompute(tmp_path / "in", out, cut)
    assert not (out / "model.safetensors").exists()


def test_what_the_system_refuses_is_no_traceback(tmp_path: Path, cli: Cli) -> None:
    """An OSError is the user's to mend: exit code 2 and one line."""
    folder = variant(tmp_path / "in", "dynamic-asymmetric")
    (tmp_path / "file").write_text("in the way")
    error = cli(f"precompute {folder} -o {tmp_path}/file/out", code=2)
    assert re.fullmatch(r"scaled-mm: [^\n]*Not a directory[^\n]*\n", error), error


SIXTEEN = (torch.float16, torch.bfloat16)


@pytest.mark.parametrize("dtype", SIXTEEN)
def test_dtypes_of_an_int4_layer(dtype: torch.dtype) -> None:
    layer = WeightOnlyLinear(32, 16, bits=4, group_size=16, zero="integer", dtype=dtype)
    i32, i64 = torch.int32, torch.int64
    kinds = {"weight_packed": i32, "weight_zero_point": i32, "weight_shape": i64}
    kinds |= {"weight_scale": dtype, "bias": dtype}
    assert {name: x.dtype for name, x in layer.state_dict().items()} == kinds
    for other in SIXTEEN:
        layer.to(other)
        wanted = {**kinds, "weight_scale": other, "bias": other}
        assert {name: x.dtype for name, x in layer.state_dict().items()} == wanted
        assert layer(torch.ones(2, 32)).dtype == torch.float32
        assert layer(torch.ones(2, 32, dtype=other)).dtype == other
