"""AutoAWQ and GPTQ checkpoints, of 4 and 8 bits, in models: weights bit for bit; what does not
fit is refused."""

from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoint_cases import state_of, write
from helpers import assert_bits, assert_same_state, extra, rows
from hypothesis import given
from hypothesis import strategies as st
from int4_cases import (
    FORMS,
    Form,
    changed,
    dequantised,
    layers_of,
    older_file,
    plainly,
    toy,
    toy_state,
    write_toy,
)
from int4_settings import (
    AUTO_ROUND,
    AWQ,
    GPTQ,
    INT4_SETTINGS,
    PACKINGS,
    WRITTEN,
    bad_tensors,
    without,
)
from torch import Tensor, nn
from weight_only_cases import assert_layers_within_their_bound

from scaled_mm import load_quantized
from scaled_mm.checkpoint.config_awq_gptq import AwqGptq, AwqGptqFields
from scaled_mm.checkpoint.folder import Checkpoint
from scaled_mm.checkpoint.loading import quantised_layers
from scaled_mm.nn import WeightOnlyLinear

IDS = torch.arange(20)
forms = pytest.mark.parametrize("name", FORMS)


def weight_of(layer: WeightOnlyLinear) -> Tensor:
    """W [K, N] as the layer multiplies by it, rows where the input has them."""
    assert layer.packed is not None  # for the kernels, from loading on
    return layer.packed.dequantize()


@pytest.mark.parametrize("shards", [1, 3])
@forms
def test_the_weights_are_those_of_the_file(name: str, shards: int, tmp_path: Path) -> None:
    form = FORMS[name]
    state = write_toy(tmp_path, form, shards)
    model = load_quantized(toy(), tmp_path)
    kinds = {part: type(module) for part, module in model.named_children()}
    ours = {"qkv": WeightOnlyLinear, "down": WeightOnlyLinear}
    assert kinds == {"embed": nn.Embedding, **ours, "head": nn.Linear}
    for part, tensors in layers_of(state).items():
        layer = model.get_submodule(part)
        assert_bits(weight_of(layer), plainly(tensors, form), part)
        assert layer.act_order == (form.act_order and form.group != -1)
        zero = "none" if form.symmetric and form.method == "gptq" else "integer"
        assert (layer.bits, layer.zero) == (form.bits, zero)
        assert not layer.training
    assert_bits(model.qkv.bias, state["qkv.bias"])
    assert model.down.bias is None
    for part in ("embed.weight", "head.weight", "head.bias"):
        assert_bits(model.state_dict()[part], state[part].float())


@forms
def test_the_model_is_the_float_reference(name: str, tmp_path: Path) -> None:
    """Each layer within its bound; the whole as near as 16-bit inputs and outputs allow."""
    form = FORMS[name]
    state = write_toy(tmp_path, form)
    model = load_quantized(toy(), tmp_path)
    assert assert_layers_within_their_bound(model, IDS) == 2
    got, exact = model(IDS), dequantised(toy(), state, form)(IDS)
    eps = torch.finfo(form.dtype).eps
    assert 0 < (got - exact).norm() / exact.norm() < 4 * eps  # inputs and outputs of two layers
    cost = (exact - toy()(IDS)).norm() / exact.norm()  # of what the quantisation itself loses
    assert cost > 8 * eps if form.bits == 4 else 2**-9 < cost < 2**-6


def test_rows_scattered_over_groups_matter(tmp_path: Path) -> None:
    """What the two tests above would miss if g_idx were in order by chance."""
    form = FORMS["gptq-v1-act-order"]
    g_idx = toy_state(form)["qkv.g_idx"]
    assert (g_idx[1:] < g_idx[:-1]).any()
    write_toy(tmp_path, form)
    order = load_quantized(toy(), tmp_path).qkv.packed.order
    assert_bits(order, g_idx.argsort(stable=True).int())


@pytest.mark.parametrize("name", ["awq", "gptq-v2-act-order", "gptq8-v2-act-order"])
def test_a_meta_model_is_filled(name: str, tmp_path: Path) -> None:
    write_toy(tmp_path, FORMS[name])
    with torch.device("meta"):
        model = type(toy())()
    load_quantized(model, tmp_path)
    assert all(x.device.type == "cpu" for x in model.state_dict().values())
    with torch.no_grad():
        assert_bits(model(IDS), load_quantized(toy(), tmp_path)(IDS))


@pytest.mark.parametrize(
    ("stored", "kept"),
    [(torch.float16, torch.float16), (torch.float32,) * 2, (torch.bfloat16, torch.float32)],
)
def test_a_bias_keeps_its_value(stored: torch.dtype, kept: torch.dtype, tmp_path: Path) -> None:
    bias = toy().qkv.bias.to(stored)
    write_toy(tmp_path, FORMS["gptq-v1"], **{"qkv.bias": bias})
    assert_bits(load_quantized(toy(), tmp_path).qkv.bias, bias.to(kept))


@pytest.mark.parametrize("name", ["awq", "gptq-v1", "gptq8-v1"])
def test_zeros_for_a_bias_that_is_none(name: str, tmp_path: Path) -> None:
    """AutoGPTQ gives every layer a bias."""
    write_toy(tmp_path, FORMS[name], **{"down.bias": torch.zeros(40).half()})
    assert load_quantized(toy(), tmp_path).down.bias is None


def assert_read(folder: Path, form: Form) -> None:
    """The weights are those of the folder's tensors."""
    model = load_quantized(toy(), folder)
    for part, tensors in layers_of(state_of(folder)).items():
        assert_bits(weight_of(model.get_submodule(part)), plainly(tensors, form), part)


@pytest.mark.parametrize("name", ["gptq-v1", "gptq8-v1"])
def test_negative_scales_are_accepted(name: str, tmp_path: Path) -> None:
    form = FORMS[name]
    write_toy(tmp_path, form, **{"qkv.scales": -toy_state(form)["qkv.scales"]})
    assert_read(tmp_path, form)


def test_rotary_frequencies_are_passed_over(tmp_path: Path) -> None:
    more = {"layers.0.self_attn.rotary_emb.inv_freq": torch.ones(4)}
    write_toy(tmp_path, FORMS["awq"], **more)
    assert isinstance(load_quantized(toy(), tmp_path).qkv, WeightOnlyLinear)


@pytest.mark.parametrize("name", WRITTEN)
def test_what_writers_say_is_read(name: str, tmp_path: Path) -> None:
    form, more = WRITTEN[name]
    write_toy(tmp_path, changed(FORMS[form], **more))
    assert_read(tmp_path, FORMS[form])


@pytest.mark.parametrize("packing", PACKINGS)
def test_what_autoround_writes_is_read(packing: str, tmp_path: Path) -> None:
    form = FORMS[PACKINGS[packing]]
    more = {"packing_format": packing, "extra_config": {"head": {"bits": 16}}}
    write(tmp_path, toy_state(form), AUTO_ROUND | more)
    assert_read(tmp_path, form)


@pytest.mark.parametrize(
    "name", ["awq", "gptq-v1", "gptq-v1-act-order-symmetric", "gptq-v2", "gptq8-v2"]
)
def test_what_transformers_writes_is_read(name: str, tmp_path: Path) -> None:
    transformers, form = extra("transformers"), FORMS[name]
    if form.method == "awq":
        made = transformers.AwqConfig(bits=4, group_size=form.group)
    else:
        said = {"format": form.config()["checkpoint_format"], "sym": form.symmetric}
        said |= {"bits": form.bits, "group_size": form.group, "desc_act": form.act_order}
        made = transformers.GPTQConfig(**said)
    config = {key: getattr(value, "value", value) for key, value in made.to_dict().items()}
    write(tmp_path, toy_state(form), config)
    assert_read(tmp_path, form)


OF_GPTQ, AUTOAWQ = "quantize_config.json", {"w_bit": 4, "q_group_size": 16, "zero_point": True}
AUTOGPTQ = {"group_size": 16, "desc_act": True, "sym": False, "damp_percent": 0.1}
OLDER: dict[str, tuple[str, dict[str, Any], str]] = {  # file, fields, form
    "autogptq": (OF_GPTQ, AUTOGPTQ | {"bits": 4}, "gptq-v1-act-order"),
    "gptqmodel": (OF_GPTQ, FORMS["gptq-v2"].config(), "gptq-v2"),
    "autogptq-8-bits": (OF_GPTQ, AUTOGPTQ | {"bits": 8}, "gptq8-v1-act-order"),
    "autoawq": ("quant_config.json", AUTOAWQ | {"version": "GEMM"}, "awq"),
    "awq-by-autogptq": (OF_GPTQ, AWQ, "awq"),
}


@pytest.mark.parametrize("name", OLDER)
def test_older_files_are_read(name: str, tmp_path: Path) -> None:
    file, fields, form = OLDER[name]
    older_file(tmp_path, file, fields, FORMS[form])
    assert_read(tmp_path, FORMS[form])


def test_a_format_that_is_not_said_is_version_1(tmp_path: Path) -> None:
    write(tmp_path, toy_state(FORMS["gptq-v1"]), without(GPTQ, "checkpoint_format", "desc_act"))
    assert Checkpoint(tmp_path).quantization == AwqGptq("gptq", 4, 1, 16, False, None, ())
    assert_read(tmp_path, FORMS["gptq-v1"])


@pytest.mark.parametrize(("said", "config"), rows(INT4_SETTINGS))
def test_a_setting_that_is_not_served_is_refused(said: str, config: Any, tmp_path: Path) -> None:
    write(
        tmp_path, toy_state(FORMS["awq" if config["quant_method"] == "awq" else "gptq-v1"]), config
    )
    with pytest.raises(ValueError) as refusal:
        quantised_layers(Checkpoint(tmp_path))
    text = str(refusal.value)
    assert said in text and text.startswith(str(tmp_path)) and len(text) < 400
    assert text.isprintable()


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2)
    ),
    max_leaves=3,
)
KEYS = st.sampled_from([*AWQ, *GPTQ, "w_bit", "dynamic", "pack_dtype", "format", "meta", "x"])


@given(st.sampled_from([AWQ, GPTQ]), st.dictionaries(KEYS, VALUES, min_size=1, max_size=3))
def test_any_settings_are_read_or_refused(good: dict[str, Any], change: dict[str, Any]) -> None:
    """Whatever the config says: settings that make sense, or one printable line."""
    try:
        settings = AwqGptqFields("config.json").quantization(
            good["quant_method"], {**good, **change}
        )
    except ValueError as refusal:
        assert str(refusal).startswith("config.json: ") and str(refusal).isprintable()
        return
    assert settings.version in ((0,) if good is AWQ else (1, 2))
    assert settings.group_size == -1 or settings.group_size >= 1
    assert settings.bits == 4 or (settings.bits, good) == (8, GPTQ)


@pytest.mark.parametrize(
    ("skip", "contradicts"),
    [("qkv", True), ("model.qkv", False), ("q", False), ("qkv.x", False), ("head", False)],
)
def test_what_the_config_leaves_float(skip: str, contradicts: bool, tmp_path: Path) -> None:
    write_toy(tmp_path, changed(FORMS["awq"], modules_to_not_convert=["lm_head", skip]))
    if contradicts:
        with pytest.raises(ValueError, match=r"qkv\.qweight is int4, but modules_to_not_convert"):
            load_quantized(toy(), tmp_path)
    else:
        assert isinstance(load_quantized(toy(), tmp_path).qkv, WeightOnlyLinear)


def test_names_that_are_left_float() -> None:
    settings = AwqGptq("awq", 4, 0, 128, False, None, ("lm_head", "visual", "a.b"))
    left = {"lm_head": True, "x.lm_head": True, "visual.blocks.0": True, "m.a.b.c": True}
    kept = {"lm_head_2": False, "visuals": False, "a.x.b": False, "ab": False}
    for name, expected in {**left, **kept}.items():
        assert settings.leaves_float(name) == expected, name


@pytest.mark.parametrize(("said", "bad"), rows(bad_tensors()))
def test_what_does_not_fit_is_refused(said: str, bad: Any, tmp_path: Path) -> None:
    form, change = bad
    write_toy(tmp_path, FORMS[form], **change)
    model = toy()
    with pytest.raises(ValueError) as refusal:
        load_quantized(model, tmp_path)
    text = str(refusal.value)
    assert said in text and text.startswith(str(tmp_path)) and len(text) < 400
    assert_same_state(model, toy())  # all or nothing


@pytest.mark.parametrize("name", ["awq", "gptq-v1-act-order"])
def test_a_checkpoint_without_int4_layers(name: str, tmp_path: Path) -> None:
    write(tmp_path, {"a.weight": torch.ones(3, 3)}, FORMS[name].config())
    with pytest.raises(ValueError, match="has no quantised weight"):
        load_quantized(toy(), tmp_path)
