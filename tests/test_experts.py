"""Mixtures of experts of transformers: quantised, run, saved, loaded, compared."""

import copy
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoint_cases import write
from helpers import assert_bits, extra
from int4_cases import FORMS, plainly, quantised, stored
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from scaled_mm import (
    CalibrationWarning,
    QuantConfig,
    QuantizationWarning,
    azp_adj,
    interleave_gate_up,
    load_quantized,
    prepare_model,
    quantization_report,
    quantize_model,
    save_quantized,
    scaled_mm,
    validate,
)
from scaled_mm.checkpoint import quantize_checkpoint
from scaled_mm.nn import ScaledExperts, ScaledLinear

transformers = extra("transformers")
IDS = torch.arange(24).view(2, 12)
E, K = 4, 2
_SIZES = {
    "vocab_size": 40,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "eos_token_id": 2,
}
_OWN: dict[str, dict[str, Any]] = {
    "Qwen3MoeForCausalLM": {"moe_intermediate_size": 16, "num_experts": E, "head_dim": 16},
    "MixtralForCausalLM": {"num_local_experts": E},
    "OlmoeForCausalLM": {"num_experts": E},
    "DeepseekV3ForCausalLM": {
        **dict.fromkeys(("q_lora_rank", "kv_lora_rank", "v_head_dim", "moe_intermediate_size"), 16),
        "qk_nope_head_dim": 8,
        "qk_rope_head_dim": 8,
        "n_group": 2,
        "topk_group": 1,
        "n_routed_experts": E,
        "first_k_dense_replace": 1,
    },
    "GptOssForCausalLM": {"num_local_experts": E, "head_dim": 16},  # biases, a gate of its own
}
MODELS = list(_OWN)
SCHEMES = ["W8A8", "dynamic-asymmetric", "static-asymmetric", "static-rotate16", "W8A16"]
SCHEMES += ["w4a16-g16-asymmetric"]


def tiny(name: str, dtype: torch.dtype = torch.float32) -> Any:
    torch.manual_seed(0)
    made = getattr(transformers, name)
    model = made(made.config_class(num_experts_per_tok=K, **_SIZES, **_OWN[name])).eval().to(dtype)
    for key, x in model.named_parameters():
        if key.endswith("_bias"):  # left as memory was found, or 0
            nn.init.normal_(x, std=0.02)
    return model


def experts_of(model: nn.Module) -> Any:
    found = [m for m in model.modules() if isinstance(m, ScaledExperts)]
    assert found
    return found[-1]


@torch.no_grad()
def logits(model: nn.Module) -> Tensor:
    out: Tensor = model(IDS).logits
    return out


def routed(tokens: int) -> tuple[Tensor, Tensor]:
    """Of every token two experts, never the last one; and their weights."""
    drawn = torch.Generator().manual_seed(tokens)
    index = torch.stack([torch.randperm(E - 1, generator=drawn)[:K] for _ in range(tokens)])
    return index, torch.rand(tokens, K, generator=drawn)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("scheme", ["W8A8", "dynamic-asymmetric", "static-asymmetric"])
@pytest.mark.parametrize("name", ["Qwen3MoeForCausalLM", "GptOssForCausalLM"])
def test_has_the_bits_of_its_linears(name: str, scheme: str, dtype: torch.dtype) -> None:
    made = experts_of(quantize_model(tiny(name, dtype), QuantConfig(scheme), [IDS]))
    x = torch.randn(7, 32, dtype=dtype)
    index, weights = routed(7)
    expected = torch.stack(
        [
            _sum([w * one_expert(made, int(e), row).float() for e, w in zip(to, by, strict=True)])
            for row, to, by in zip(x.split(1), index, weights, strict=True)
        ]
    )
    assert_bits(made(x, index, weights), expected.flatten(0, 1).to(dtype))


def _sum(parts: list[Tensor]) -> Tensor:
    return parts[0] + parts[1]


def one_expert(experts: Any, e: int, x: Tensor) -> Tensor:
    """By `scaled_mm` where the gate is in the product; else by the layers and the model's gate."""
    gate, up, down = (experts.linear(f"{e}.{part}_proj") for part in ("gate", "up", "down"))
    if experts.activation is None:
        h = torch.stack((gate(x), up(x)), -1).flatten(-2)
        y: Tensor = down(experts.gating._apply_gate(h))
        return y
    q, scale, azp = gate.quantize_input(x)
    weight = interleave_gate_up(gate.weight_int8.t(), up.weight_int8.t())
    scales = interleave_gate_up(gate.weight_scale[:, 0], up.weight_scale[:, 0])
    terms = {} if azp is None else {"azp": azp, "azp_adj": azp_adj(weight)}
    options = {**terms, "activation": experts.activation, "out_dtype": x.dtype}
    out: Tensor = down(scaled_mm(q, weight, scale, scales, **options))
    return out


@pytest.mark.parametrize("scheme", SCHEMES)
def test_copies_and_state_dicts(scheme: str) -> None:
    model = tiny("Qwen3MoeForCausalLM")
    made = quantize_model(model, QuantConfig(scheme), [IDS])
    expected = logits(made)
    copied = copy.deepcopy(made)
    assert_bits(logits(copied), expected)
    empty = prepare_model(model, QuantConfig(scheme))
    empty.load_state_dict(made.state_dict())
    assert_bits(logits(empty), expected)
    moved = copied.bfloat16()
    assert moved(IDS).logits.dtype == torch.bfloat16
    assert not any(x.requires_grad for x in moved.parameters())
    for module in (experts_of(made), experts_of(moved)):  # one copy of the weight
        assert not {"weight", "weight_packed"} & {
            n.rpartition(".")[2] for n, _ in module.named_buffers()
        }
    assert_bits(logits(pickle.loads(pickle.dumps(made))), expected)


@pytest.mark.parametrize("scheme", ["W8A8", "static-asymmetric", "W8A16"])
def test_compile(scheme: str) -> None:
    made = experts_of(quantize_model(tiny("MixtralForCausalLM"), QuantConfig(scheme), [IDS]))
    compiled = torch.compile(made, fullgraph=True, dynamic=True)
    for tokens in (5, 9):
        given = (torch.randn(tokens, 32), *routed(tokens))
        assert_bits(compiled(*given), made(*given))


def test_numbers_that_name_no_expert() -> None:
    """Where experts are shared out, transformers calls a rank's with such numbers, weighted 0."""
    for scheme in ("W8A8", "static-asymmetric", "W8A16"):
        made = experts_of(quantize_model(tiny("MixtralForCausalLM"), QuantConfig(scheme), [IDS]))
        x, (index, weights) = torch.randn(5, 32), routed(5)
        weights[:, 1] = 0
        expected = made(x, index, weights)
        index[:, 1] = E
        assert torch.equal(made(x, index, weights), expected)


def test_no_token() -> None:
    made = experts_of(quantize_model(tiny("MixtralForCausalLM")))
    given = torch.randn(0, 32), torch.zeros(0, K, dtype=torch.int64), torch.zeros(0, K)
    assert made(*given).shape == (0, 32)


@pytest.mark.parametrize("name", MODELS)
def test_is_near_the_float_model(name: str) -> None:
    model = tiny(name)
    made = quantize_model(model)
    near = torch.cosine_similarity(logits(made), logits(model), dim=-1)
    assert near.min() >= 0.995
    report = quantization_report(made)
    assert not [x.name for x in report.floats if ".experts." in x.name]
    assert any(layer.name.endswith("mlp.experts") for layer in report.layers)
    assert [x for x in report.floats if x.name.endswith(("gate.weight", "router.weight"))]


@pytest.mark.usefixtures("ours")
@pytest.mark.parametrize("scheme", ["W8A8", "static-asymmetric", "w4a16-g16-asymmetric"])
@pytest.mark.parametrize("name", MODELS)
def test_saved_and_loaded(name: str, scheme: str, tmp_path: Path) -> None:
    made = quantize_model(tiny(name), QuantConfig(scheme), [IDS])
    expected = logits(made)
    save_quantized(made, tmp_path / "saved")
    made.save_pretrained(tmp_path / "pretrained")
    auto = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "saved")
    auto.save_pretrained(tmp_path / "again")
    for folder in ("pretrained", "again"):
        loaded = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / folder)
        assert_bits(logits(loaded), expected)
    for folder in ("saved", "pretrained", "again"):
        assert_bits(logits(load_quantized(tiny(name), tmp_path / folder)), expected)
    written = [m.generate(IDS, max_new_tokens=4, do_sample=False) for m in (auto, made)]
    assert torch.equal(*written)


@pytest.mark.parametrize("scheme", ["W8A8", "static-asymmetric", "W8A16"])
@pytest.mark.parametrize("name", ["MixtralForCausalLM", "DeepseekV3ForCausalLM"])
def test_a_checkpoint_file_by_file(name: str, scheme: str, tmp_path: Path) -> None:
    model, config = tiny(name), QuantConfig(scheme)
    model.save_pretrained(tmp_path / "float", max_shard_size="60KB")
    report = quantize_checkpoint(tmp_path / "float", tmp_path / "out", config, [IDS])
    assert report.calibration == ("block by block" if "static" in scheme else None)
    assert not any("experts" in other for other in report.others)
    expected = logits(quantize_model(model, config, [IDS]))
    assert_bits(logits(load_quantized(tiny(name), tmp_path / "out")), expected)


@pytest.mark.parametrize("name", ["awq", "gptq-v1", "gptq8-v2-symmetric", "gptq-v1-act-order"])
def test_awq_and_gptq(name: str, tmp_path: Path) -> None:
    form, model = FORMS[name], tiny("MixtralForCausalLM")
    model.save_pretrained(tmp_path / "float")
    state = load_file(tmp_path / "float" / "model.safetensors")
    parts = {}
    for key in [key for key in state if "proj" in key or ".experts." in key]:
        module = key.removesuffix(".weight")
        parts[module] = stored(quantised(state.pop(key), form), form)
        state |= {f"{module}.{part}": x for part, x in parts[module].items()}
    folder = write(tmp_path / "int", state, form.config())
    if form.act_order:
        with pytest.raises(ValueError, match=r"^experts must have no act-order, which a stack"):
            load_quantized(model, folder)
        return
    experts = load_quantized(model, folder).model.layers[1].mlp.experts
    for own, part in (("w1", "gate_proj"), ("w2", "down_proj"), ("w3", "up_proj")):
        tensors = parts[f"model.layers.1.block_sparse_moe.experts.3.{own}"]
        assert_bits(experts.linear(f"3.{part}").weight, plainly(tensors, form).t(), part)


UP = "model.layers.0.mlp.experts.1.up_proj"
WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "missing": (dict.fromkeys((f"{UP}.weight", f"{UP}.weight_scale")), f"has no {UP}, but others"),
    "narrow": ({f"{UP}.weight": lambda x: x[:, :8]}, f"{UP}.weight must have shape .16, 32., as"),
    "another scale": ({f"{UP}.input_scale": lambda x: 2 * x}, "one for gate and up, .* expert 1$"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_file_that_is_refused(case: str, tmp_path: Path) -> None:
    change, message = WRONG[case]
    config = QuantConfig("static" if case == "another scale" else "W8A8")
    model = tiny("Qwen3MoeForCausalLM")
    save_quantized(quantize_model(model, config, [IDS]), tmp_path / "out")
    path = tmp_path / "out" / "model.safetensors"
    state = load_file(path)
    for key, made in change.items():
        x = state.pop(key)
        state |= {key: made(x).contiguous()} if made else {}
    save_file(state, path, {"format": "pt"})
    before = model.state_dict()
    with pytest.raises(ValueError, match=message):
        load_quantized(model, tmp_path / "out")
    assert model.state_dict().keys() == before.keys()


def test_experts_that_lie_stacked_in_the_files_stay_float(tmp_path: Path) -> None:
    tiny("GptOssForCausalLM").save_pretrained(tmp_path / "float")
    report = quantize_checkpoint(tmp_path / "float", tmp_path / "out")
    why = report.others["model.layers.0.mlp.experts.down_proj"]
    assert why == "stacked in the files, which quantize_model takes, once they are loaded"


def test_experts_without_a_token() -> None:
    model = tiny("MixtralForCausalLM")
    pattern = r"^calibration sent no token to \d experts: model.layers.0.mlp.experts.\d, "
    with pytest.warns(CalibrationWarning, match=pattern):
        made = quantize_model(model, QuantConfig("static"), [IDS[:1, :1]])
    scales = experts_of(made).down_proj.input_scale
    assert len(scales) == E and bool((scales > 0).all())
    assert len(scales.unique()) == K + 1 or bool((scales == scales.max()).sum() >= E - K)


def test_validation_has_a_line_for_each_linear() -> None:
    model = tiny("Qwen3MoeForCausalLM")
    report = validate.validate(model, quantize_model(model), [IDS])
    names = {layer.name for layer in report.layers}
    assert "model.layers.1.mlp.experts.2.up_proj" in names
    assert report.ok and all(layer.off_r1 == 0 for layer in report.layers)


def test_left_out() -> None:
    model = tiny("MixtralForCausalLM")
    first, second = (layer.mlp.experts for layer in model.model.layers)
    first.register_forward_hook(lambda *given: None)
    second.post_expert_norm, second.has_post_expert_norm = nn.Identity(), True
    with pytest.warns(QuantizationWarning, match="has a norm behind each expert"):
        floats = {x.name: x.why for x in quantization_report(quantize_model(model)).floats}
    assert "has hooks" in floats["model.layers.0.mlp.experts.down_proj"]
    assert "has a norm" in floats["model.layers.1.mlp.experts.down_proj"]
    model = tiny("MixtralForCausalLM")
    for pattern in ("*.experts", "*.experts.down_proj"):
        ignored = quantize_model(model, QuantConfig(ignore=(pattern, "lm_head")))
        assert not any(isinstance(module, ScaledExperts) for module in ignored.modules())
    only = quantize_model(model, QuantConfig(targets=("MixtralExperts",)))
    assert not any(isinstance(module, ScaledLinear) for module in only.modules())


def test_refused() -> None:
    model = tiny("MixtralForCausalLM")
    with pytest.raises(
        ValueError, match=r"mlp.experts must have a scheme that experts have, got int"
    ):
        quantize_model(tiny("MixtralForCausalLM"), QuantConfig("blocks"))
    with pytest.raises(ValueError, match=r"mlp.experts must have a scheme per token, or a static"):
        quantize_model(model, QuantConfig("dynamic-tensor"))
    with pytest.raises(ValueError, match=r"experts.0.gate_proj must have a multiple of 20 inputs"):
        quantize_model(model, QuantConfig("w4a16-g20", targets=("MixtralExperts",)))
    made = quantize_model(model, QuantConfig("static"), [IDS])
    linears = [made.model.layers[0].mlp.experts.linear(f"0.{x}_proj") for x in ("gate", "up")]
    linears[0].input_scale.mul_(2)
    with pytest.raises(ValueError, match=r"^input_scale must be one for gate and up, .* expert 0$"):
        type(made.model.layers[0].mlp.experts.gate_up_proj).stacked([linears])
