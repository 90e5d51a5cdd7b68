"""quantize_model says what it did and what it left, refuses what matches nothing, and in place
holds one float layer more than the model at most."""

import copy
import json
import warnings
import weakref
from typing import Any

import pytest
import torch
from architectures import tiny
from blocks import PreNorm, inputs, layers, run, seeded
from helpers import assert_bits, assert_same_state, rows
from torch import Tensor, nn

from scaled_mm import (
    QuantConfig,
    QuantizationReport,
    QuantizationWarning,
    Scheme,
    Smoothing,
    prepare_model,
    quantization_report,
    quantize_model,
)
from scaled_mm.nn import ScaledLinear
from scaled_mm.quantization.schemes import SCHEMES

IDS = torch.arange(12).view(2, 6)


def test_report_of_a_whole_model() -> None:
    model = seeded(PreNorm)
    config = QuantConfig(
        "dynamic-asymmetric",
        ignore=("down", "lm_head"),
        overrides=(("[qk]", "static"), ("v", Scheme(per_token=False))),
        smoothing=Smoothing(0.5, alphas=(("gate", 0.75),)),
    )
    made = quantize_model(model, config, inputs())
    report = quantization_report(made)
    assert {layer.name for layer in report.layers} == layers(made) == set("qkvo") | {"gate", "up"}
    for layer in report.layers:
        module = made.get_submodule(layer.name)
        assert layer.parameters == module.weight.numel()
        assert SCHEMES[layer.scheme].options() == {
            **config.scheme_for(layer.name).options(),
            "per_token": None if layer.name != "v" else False,
        }
        assert layer.alpha == module.smooth_alpha
        assert (layer.norm is not None) == (module.folded_smooth is not None)
    alphas = {layer.name: layer.alpha for layer in report.layers}
    assert alphas == {"q": 0.5, "k": 0.5, "v": 0.5, "o": None, "gate": 0.75, "up": 0.75}
    assert [(x.name, x.why, x.asked) for x in report.floats] == [
        ("down.weight", "ignore has 'down'", True)
    ]
    quantised = sum(layer.parameters for layer in report.layers)
    assert report.share == quantised / (quantised + model.down.weight.numel())
    assert report.share_of_asked == 1


def test_report_stays_with_the_model() -> None:
    made = quantize_model(seeded(PreNorm))
    report = quantization_report(made)
    assert quantization_report(copy.deepcopy(made).bfloat16()) == report
    assert quantization_report(quantize_model(nn.Linear(4, 4))).share == 1
    assert isinstance(report, QuantizationReport)
    assert made.state_dict().keys() == copy.deepcopy(made).state_dict().keys()
    with pytest.raises(ValueError, match=r"^model must come from quantize_model, got a PreNorm"):
        quantization_report(seeded(PreNorm))


def test_a_searched_alpha_is_on_layer_and_report() -> None:
    config = QuantConfig("static-asymmetric", smoothing=Smoothing(search=(0.3, 0.6)))
    made = quantize_model(seeded(PreNorm), config, inputs())
    alphas = {x.name: x.alpha for x in quantization_report(made).layers if x.alpha is not None}
    assert alphas and set(alphas.values()) <= {0.3, 0.6}
    assert all(made.get_submodule(name).smooth_alpha == alpha for name, alpha in alphas.items())
    assert json.loads(json.dumps(alphas)) == alphas


def test_tables_do_not_count_but_tied_ones_do() -> None:
    class Model(nn.Module):
        def __init__(self, tied: bool) -> None:
            super().__init__()
            self.table = nn.Embedding(64, 16)
            self.body = nn.Linear(16, 16)
            self.head = nn.Linear(16, 64, bias=False)
            if tied:
                self.head.weight = self.table.weight

    report = quantization_report(quantize_model(Model(False), QuantConfig(ignore=("head",))))
    assert [(x.name, x.counted) for x in report.floats] == [
        ("head.weight", True),
        ("table.weight", False),
    ]
    assert report.share == 16 * 16 / (16 * 16 + 16 * 64)
    tied = quantization_report(quantize_model(Model(True), QuantConfig(ignore=("head",))))
    assert [(x.name, x.counted) for x in tied.floats] == [("head.weight", True)]


def test_gpt2_conv1d_is_quantised() -> None:
    model = tiny("GPT2LMHeadModel")
    want = run(model, IDS)
    for config in (
        QuantConfig(),
        QuantConfig("static-asymmetric", smoothing=Smoothing(search=(0.4, 0.6))),
    ):
        made = quantize_model(model, config, [IDS, IDS + 20])
        assert layers(made) == {
            f"transformer.h.{i}.{name}"
            for i in range(2)
            for name in ("attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj")
        }
        attention = made.transformer.h[0].attn.c_attn
        assert (attention.in_features, attention.out_features) == (32, 96)
        assert (run(made, IDS) - want).norm() < 0.03 * want.norm()
        assert quantization_report(made).share_of_asked == 1
        empty = prepare_model(tiny("GPT2LMHeadModel"), config)
        empty.load_state_dict(made.state_dict())
        assert quantized_layers_equal(empty, made)
    plain = made.transformer.h[0].mlp.c_proj
    weight = model.transformer.h[0].mlp.c_proj.weight.detach().t()
    assert_bits(plain.weight_int8, ScaledLinear.from_linear(linear_of(weight)).weight_int8)


def linear_of(weight: Tensor) -> nn.Linear:
    made = nn.Linear(weight.shape[1], weight.shape[0], bias=False)
    made.weight = nn.Parameter(weight)
    return made


def quantized_layers_equal(one: nn.Module, other: nn.Module) -> bool:
    return all(
        torch.equal(one.get_submodule(name).weight, other.get_submodule(name).weight)
        for name in layers(other)
    )


def test_stacked_experts_are_named() -> None:
    model = tiny("MixtralForCausalLM")
    for layer in model.model.layers:
        layer.mlp.experts.register_forward_hook(lambda *given: None)
    with pytest.warns(QuantizationWarning, match=r"^\d+% of the matrix .*experts.*has hooks"):
        made = quantize_model(model)
    floats = {x.name: x for x in quantization_report(made).floats}
    for i in range(2):
        for name in ("gate_up_proj", "down_proj"):
            part = floats[f"model.layers.{i}.mlp.experts.{name}"]
            assert part.counted and not part.asked
    assert quantization_report(made).share < 0.5
    with warnings.catch_warnings():
        warnings.simplefilter("error", QuantizationWarning)
        made = quantize_model(model, QuantConfig(ignore=("*.experts.*", "*.gate", "lm_head")))
    assert quantization_report(made).share < 0.5 < quantization_report(made).share_of_asked


IDLE: dict[str, Any] = {
    "targets .*got 'transformer.*'": {"targets": ("q", "transformer.*")},
    "ignore .*got 'mlp': the layers are q, k, v, o, gate, ...": {"ignore": ("mlp",)},
    "overrides .*got 'q_proj'": {"overrides": (("q_proj", "static"),)},
    r"ignore .*got 'x' \(and 1 more patterns\)": {"ignore": ("x", "y", "q")},
    "ignore .*got 'Q'": {"ignore": ("Q",)},
    r"smoothing.layers .*got 'fc\*'": {"smoothing": Smoothing(layers=("fc*",))},
    "smoothing.alphas .*got 'fc'": {"smoothing": Smoothing(alphas=(("fc", 0.1),))},
}


@pytest.mark.parametrize(("message", "options"), rows(IDLE))
def test_a_pattern_that_matches_nothing_is_refused(message: str, options: Any) -> None:
    model, config = seeded(PreNorm), QuantConfig(**options)
    for act in (
        lambda: quantize_model(model, config, inputs(), inplace=True),
        lambda: prepare_model(model, config),
    ):
        with pytest.raises(ValueError, match=f"^{message}"):
            act()
    assert not layers(model)


STRINGS: dict[str, Any] = {
    "ignore": lambda: QuantConfig(ignore="lm_head"),
    "targets": lambda: QuantConfig(targets="*"),
    "overrides": lambda: QuantConfig(overrides="q"),
    "layers": lambda: Smoothing(layers="fc*"),
}


@pytest.mark.parametrize("name", STRINGS)
def test_a_string_is_no_tuple_of_patterns(name: str) -> None:
    with pytest.raises(TypeError, match=rf"^{name} must be a tuple of (patterns|pairs).*got '"):
        STRINGS[name]()


@pytest.mark.parametrize("pairs", [("q", "static"), (("q",),), (("q", "static", 1),)])
def test_overrides_are_pairs(pairs: Any) -> None:
    with pytest.raises(TypeError, match=r"^overrides must be pairs of pattern and scheme, got "):
        QuantConfig(overrides=pairs)
    with pytest.raises(TypeError, match=r"^ignore must hold strings, got 3"):
        QuantConfig(ignore=("q", 3))  # type: ignore[arg-type]


@pytest.mark.parametrize("scale", [0.0, -1.0, float("nan"), float("inf"), [1.0, 2.0]])
def test_a_static_scale_is_positive(scale: Any) -> None:
    rule = "have one element" if isinstance(scale, list) else "be positive and finite"
    with pytest.raises(ValueError, match=rf"^input_scale must {rule}, got "):
        ScaledLinear.from_linear(nn.Linear(4, 4), dynamic=False, input_scale=torch.tensor(scale))


def test_a_layer_that_gets_zeros_has_a_positive_scale() -> None:
    made = quantize_model(
        nn.Sequential(nn.Linear(4, 4)), QuantConfig("static"), [torch.zeros(2, 4)]
    )
    assert made[0].input_scale > 0


class Stack(nn.Module):
    def __init__(self, depth: int = 6, *more: nn.Module, spare: nn.Module | None = None) -> None:
        super().__init__()
        self.norm, self.spare = nn.LayerNorm(32), spare
        self.layers = nn.ModuleList([*(nn.Linear(32, 32) for _ in range(depth)), *more])
        self.again = self.layers[1]

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(x)
        for layer in self.layers:
            x = layer(x)
        return self.again(x)


@pytest.mark.parametrize("config", [QuantConfig(), QuantConfig("static", smoothing=Smoothing())])
def test_in_place_frees_each_layer_before_the_next(
    config: QuantConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = Stack()
    weights = [weakref.ref(layer.weight) for layer in model.layers]
    counts: list[int] = []
    original = ScaledLinear.from_linear.__func__

    def from_linear(cls: Any, linear: nn.Linear, **kwargs: Any) -> ScaledLinear:
        counts.append(sum(weight() is not None for weight in weights))
        return original(cls, linear, **kwargs)

    monkeypatch.setattr(ScaledLinear, "from_linear", classmethod(from_linear))
    made = quantize_model(model, config, [torch.randn(4, 32)], inplace=True)
    assert made is model and made.again is made.layers[1]
    assert counts == [6, 5, 4, 3, 2, 1]
    assert not any(weight() is not None for weight in weights)


def test_as_wide_as_an_int32_sum_takes() -> None:
    made = quantize_model(nn.Sequential(nn.Linear(131071, 1)), QuantConfig("dynamic"))
    assert isinstance(made[0], ScaledLinear)


WIDE = "layers.3 must have at most 131071 inputs, got 131072"
DOUBLES = "layers.3.weight must be float32, .*, got float64"
UNREACHED = "calibration must reach every static layer, .* spare"
REFUSED: dict[str, tuple[Any, str]] = {
    WIDE: (lambda: Stack(3, nn.Linear(131072, 1)), "dynamic"),
    DOUBLES: (lambda: Stack(3, nn.Linear(4, 4).double()), "dynamic"),
    UNREACHED: (lambda: Stack(3, spare=nn.Linear(4, 4)), "static"),
}


@pytest.mark.parametrize("message", REFUSED)
def test_a_refusal_leaves_the_model_as_it_was(message: str) -> None:
    make, scheme = REFUSED[message]
    model = make()
    before = copy.deepcopy(model)
    modules = dict(model.named_modules())
    with pytest.raises(ValueError, match=f"^{message}"):
        quantize_model(model, QuantConfig(scheme), [torch.randn(2, 32)], inplace=True)
    assert dict(model.named_modules()) == modules
    assert_same_state(model, before)


def test_in_place_is_what_a_copy_is() -> None:
    config = QuantConfig("static-asymmetric", smoothing=Smoothing())
    copied = quantize_model(seeded(PreNorm), config, inputs())
    placed = quantize_model(seeded(PreNorm), config, inputs(), inplace=True)
    assert_same_state(placed, copied)
    assert_bits(run(copied, inputs()[0]), run(placed, inputs()[0]))
