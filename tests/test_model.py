"""quantize_model: which Linears it replaces, with what, and what the result can be done to."""

import copy
import io
from typing import Any

import pytest
import torch
from blocks import WIDTH, PreNorm, Tied, inputs, layers, run, seeded
from helpers import assert_bits, assert_same_state, refuses
from torch import Tensor, nn

from scaled_mm import (
    QuantConfig,
    QuantizationWarning,
    Scheme,
    Smoothing,
    prepare_model,
    quantization_report,
    quantize_model,
)
from scaled_mm.nn import ScaledLinear
from scaled_mm.quantization.schemes import SCHEMES

CONFIGS: dict[str, QuantConfig] = {
    **{name: QuantConfig(name) for name in SCHEMES},
    "static-asymmetric-smooth": QuantConfig("static-asymmetric", smoothing=Smoothing()),
    "dynamic-smooth-everywhere": QuantConfig(smoothing=Smoothing(layers=("*",), into_norms=False)),
}
configs = pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)


def quantized(model: nn.Module, config: QuantConfig, **kwargs: Any) -> nn.Module:
    return quantize_model(model, config, inputs(), **kwargs)


PATTERNS: dict[str, tuple[dict[str, Any], set[str]]] = {
    "all": ({}, {"0.q", "0.k", "0.v", "0.o", "0.gate", "0.up", "0.down", "1.qkv", "1.o"}),
    "targets": ({"targets": ("*.q", "1.qkv")}, {"0.q", "1.qkv"}),
    "ignore": ({"targets": ("0.*",), "ignore": ("*.[qkvo]", "*.down")}, {"0.gate", "0.up"}),
    "one": ({"targets": ("1.o",)}, {"1.o"}),
    "class": (
        {"targets": ("Linear",), "ignore": ("1.*", "0.[qkvo]", "*.up")},
        {"0.gate", "0.down"},
    ),
    "regular expression": ({"targets": (r"re:0\.[qk]$", "1.o")}, {"0.q", "0.k", "1.o"}),
    "its begin": ({"ignore": (r"re:.*\.o", "re:1", "re:0.[qkv]")}, {"0.gate", "0.up", "0.down"}),
}


@pytest.mark.parametrize("name", PATTERNS)
def test_patterns(name: str) -> None:
    options, want = PATTERNS[name]
    model = nn.Sequential(seeded(PreNorm), seeded(PreNorm, nn.LayerNorm, True))
    found = layers(quantize_model(model, QuantConfig(**options)))
    assert found == want if name != "all" else want < found and len(found) == 7 + 5
    assert not layers(model)


def test_a_module_in_two_places_stays_one() -> None:
    model, ids = seeded(Tied), torch.arange(12).view(3, 4)
    for inplace in (False, True):
        source = copy.deepcopy(model)
        made = quantize_model(source, inplace=inplace)
        assert made.first is made.blocks[0] is made.blocks[2]
        assert isinstance(made.first, ScaledLinear)
        assert type(made.lm_head) is nn.Linear and made.lm_head.weight is made.embed.weight
        assert (made is source) == inplace
        assert (run(made, ids) - run(model, ids)).norm() < 0.02 * run(model, ids).norm()
    with pytest.raises(ValueError, match=r"^targets must match a Linear that ignore does not"):
        quantize_model(model, QuantConfig(ignore=("blocks.2", "lm_head")))


def test_a_linear_itself() -> None:
    for inplace in (False, True):
        assert isinstance(quantize_model(nn.Linear(4, 5), inplace=inplace), ScaledLinear)


HOOKS: dict[str, Any] = {
    "hook": lambda m: m.register_forward_hook(lambda m, x, y: y + 1),
    "pre-hook": lambda m: m.register_forward_pre_hook(lambda m, x: (x[0] + 1,)),
    "forward": lambda m: setattr(m, "forward", lambda x: x + 1),
    "parametrization": lambda m: nn.utils.parametrizations.weight_norm(m),
}


@pytest.mark.parametrize("name", HOOKS)
def test_a_linear_that_is_called_another_way_stays_float(name: str) -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    HOOKS[name](model[1])
    made, x = quantize_model(model), torch.randn(2, 8)
    assert isinstance(made[0], ScaledLinear) and not isinstance(made[1], ScaledLinear)
    assert_bits(run(made[1], x), run(model[1], x))
    assert any(each.name.startswith("1.") for each in quantization_report(made).floats)


def test_a_class_token_is_no_expert() -> None:
    model = nn.Sequential(nn.Linear(8, 8))
    model.register_parameter("cls_token", nn.Parameter(torch.zeros(1, 1, 8)))
    (token,) = quantization_report(quantize_model(model)).floats
    assert (token.name, token.why) == (
        "cls_token",
        "Sequential uses it itself, in the shape (1, 1, 8)",
    )


def test_an_encoder_takes_a_padding_mask() -> None:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(WIDTH, 4, 48, dropout=0.0, batch_first=True)
    model, x = nn.TransformerEncoder(layer, 2).eval(), torch.randn(2, 6, WIDTH)
    mask = torch.arange(6) >= torch.tensor([[4], [6]])
    with pytest.warns(QuantizationWarning):
        made = quantize_model(model)
    with torch.no_grad():
        got, want = (m(x, src_key_padding_mask=mask)[~mask] for m in (made, model))
    assert (got - want).norm() < 0.05 * want.norm()


def test_multihead_attention_keeps_its_projection() -> None:
    torch.manual_seed(0)
    model = nn.TransformerEncoderLayer(WIDTH, 4, 48, dropout=0.0, batch_first=True).eval()
    with pytest.warns(
        QuantizationWarning, match=r"43% .* self_attn.in_proj_weight \(Multi"
    ) as said:
        made = quantize_model(model)
    assert said[0].filename == __file__
    assert layers(made) == {"linear1", "linear2"}
    x = inputs()[0]
    for mode in (torch.no_grad, torch.inference_mode):  # torch's fused path would read the weights
        with mode():
            want = model(x)
            assert 0 < (made(x) - want).norm() < 0.02 * want.norm()
            whole = nn.TransformerEncoder(made, 2, enable_nested_tensor=False).eval()
            assert whole(x).isfinite().all()


@pytest.mark.parametrize("inplace", [False, True])
def test_the_source(inplace: bool) -> None:
    model = seeded(PreNorm)
    before = copy.deepcopy(model)
    model.train()
    made = quantized(model, CONFIGS["static-asymmetric-smooth"], inplace=inplace)
    assert not made.training and (made is model) == inplace
    if not inplace:
        made.half()
        assert model.training and not layers(model)
        assert_same_state(model, before)


@configs
def test_each_layer_is_from_linear(config: QuantConfig) -> None:
    """Scales are those of the whole range met; nothing else differs from `from_linear`."""
    model = seeded(PreNorm)
    made = quantized(model, config)
    for name in layers(made):
        layer = made.get_submodule(name)
        scheme = config.scheme_for(name)
        assert (layer.dynamic, layer.symmetric) == (scheme.dynamic, scheme.symmetric)
        s = layer.folded_smooth if layer.input_smooth is None else None
        if layer.input_smooth is not None:
            continue
        again = ScaledLinear.from_linear(
            model.get_submodule(name),
            **scheme.options(),
            input_scale=layer.input_scale,
            input_azp=layer.input_zero_point,
            smooth=s,
            folded=s is not None,
        )
        assert_same_state(again, layer, name)


def test_static_ranges_are_those_of_all_batches() -> None:
    model = nn.Sequential(nn.Linear(3, 2))
    batches = [torch.tensor([[-1.0, 0, 2]]), torch.tensor([[0.5, 3, 1]])]
    layer = quantize_model(model, QuantConfig("static-asymmetric"), batches)[0]
    assert layer.input_scale.item() == pytest.approx(4 / 255)
    assert layer.input_zero_point.item() == -64
    mask = {"input": torch.tensor([[[1.0, 1, 1], [9, 9, 9]]])}
    mask["attention_mask"] = torch.tensor([[1, 0]])

    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(3, 2)

        def forward(self, input: Tensor, attention_mask: Tensor) -> Tensor:
            return self.linear(input.flatten(0, 1) if flat else input)

    for flat in (False, True):  # [batch, tokens, K], or tokens in one dimension as of experts
        layer = quantize_model(Masked(), QuantConfig("static"), [mask]).linear
        assert layer.input_scale.item() == pytest.approx(1 / 127), flat


@configs
def test_state_dict_round_trip(config: QuantConfig) -> None:
    made, x = quantized(seeded(PreNorm), config), inputs()[0]
    file = io.BytesIO()
    torch.save(made.state_dict(), file)
    file.seek(0)
    empty = prepare_model(PreNorm(), config)
    empty.load_state_dict(torch.load(file))
    assert_bits(run(empty, x), run(made, x))


STATIC = QuantConfig("static")


def broken_linear() -> nn.Module:
    model = nn.Sequential(nn.Linear(4, 4))
    nn.init.constant_(model[0].weight, torch.nan)
    return model


REFUSED = {
    r"scheme must be one of dynamic, .*'int4'": lambda: QuantConfig("int4"),
    "scheme must be one of": lambda: QuantConfig(overrides=(("*", "x"),)),
    "per_token must be False": lambda: Scheme(False, True, True),
    r"percentile must be in \(50": lambda: QuantConfig(percentile=40),
    "model must have a Linear, got no such layer, but no matrix at all": lambda: quantize_model(
        nn.ReLU()
    ),
    r"model must have a Linear, .* 0.weight \(Conv2d is neither a Linear": lambda: quantize_model(
        nn.Sequential(nn.Conv2d(3, 4, 1))
    ),
    r".* weight_ih_l0 \(LSTM is": lambda: quantize_model(nn.LSTM(4, 4)),
    r".* 0.weight \(FalconLinear is a subclass of Linear": lambda: quantize_model(
        nn.Sequential(type("FalconLinear", (nn.Linear,), {})(4, 4))
    ),
    "model must have a float Linear, got one whose Linears are quantised already": lambda: (
        quantize_model(quantize_model(nn.Sequential(nn.Linear(4, 4))))
    ),
    "0.weight must be finite, got an infinity or NaN": lambda: quantize_model(broken_linear()),
    "calibration must be given for a static scheme": lambda: quantize_model(
        seeded(PreNorm), STATIC
    ),
    "batches must hold at least one batch": lambda: quantize_model(seeded(PreNorm), STATIC, []),
    "calibration must give finite inputs to 0, got NaN or infinity": lambda: quantize_model(
        nn.Sequential(nn.Linear(2, 2)), STATIC, [torch.tensor([[1.0, torch.inf]])]
    ),
    "calibration must reach every static layer, got no input for": lambda: quantize_model(
        nn.ModuleDict({"a": PreNorm()}).a.q, STATIC, [torch.ones(0, WIDTH)]
    ),
}
OTHER_TYPES = {
    r"batches must be an iterable of batches, such as \[x\], got one Tensor": lambda: (
        quantize_model(seeded(PreNorm), STATIC, inputs()[0])
    ),
    "a batch must be a Tensor, a tuple, a mapping or a Call, got str": lambda: quantize_model(
        seeded(PreNorm), STATIC, ["text"]
    ),
}


@pytest.mark.parametrize("call", [quantize_model, prepare_model])
def test_arguments_of_another_type_are_refused(call: Any) -> None:
    with pytest.raises(TypeError, match=r"^config must be a QuantConfig, got str$"):
        call(nn.Linear(4, 4), "dynamic")
    with pytest.raises(TypeError, match=r"^model must be a torch.nn.Module, got str$"):
        call("llama")


test_refused = refuses(REFUSED)
test_of_another_type = refuses(OTHER_TYPES, error=TypeError)
