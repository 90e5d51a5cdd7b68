"""compressed-tensors' packed weights (W4A16, W8A16): tiny Llamas of the package, read and run."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoint_cases import state_of, write
from helpers import assert_bits, assert_same_state, extra, rows
from llamas import (
    IDS,
    LAYER,
    Change,
    assert_refused,
    assert_same_tensors,
    changed,
    compressed,
    leave_float,
    llama,
    put,
    relative,
    set_weights,
)
from torch import Tensor
from weight_only_cases import assert_layers_within_their_bound, digits, plainly, weight_of

from scaled_mm import load_quantized
from scaled_mm.nn import WeightOnlyLinear

ct = extra("compressed_tensors")
transformers = extra("transformers")

WEIGHTS: dict[str, dict[str, Any]] = {
    "symmetric": {"strategy": "group", "group_size": 16},
    "asymmetric": {"strategy": "group", "group_size": 16, "symmetric": False},
    "channel": {"strategy": "channel"},
    "channel-asymmetric": {"strategy": "channel", "symmetric": False},
    "weight-order": {"strategy": "group", "group_size": 8, "actorder": "weight"},
    "8-bit": {"num_bits": 8, "strategy": "channel"},
    "8-bit-asymmetric": {"num_bits": 8, "strategy": "channel", "symmetric": False},
    "8-bit-groups": {"num_bits": 8, "strategy": "group", "group_size": 16},
}
names = pytest.mark.parametrize("name", [*WEIGHTS, "act-order", "8-bit-act-order"])


def arguments(name: str) -> dict[str, Any]:
    return {"num_bits": 4, **WEIGHTS[name]}


def bits_of(name: str) -> int:
    return 8 if name.startswith("8-bit") else 4


def with_act_order(folder: Path, source: Path, bits: int) -> Path:
    """What the package wrote for `actorder: group` until 0.19: features of a group scattered."""
    state = state_of(source)
    for name in [key for key in state if key.endswith(".weight_packed")]:
        q = digits(state[name], bits).flatten(-2)
        at = torch.randperm(q.shape[1], generator=torch.Generator().manual_seed(q.shape[1]))
        words = q[:, at].unflatten(1, (-1, 32 // bits)) * 2 ** (bits * torch.arange(32 // bits))
        state[name] = words.sum(-1).to(torch.int32)
        state[name.replace("_packed", "_g_idx")] = (at // 16).int()
    config = json.loads((source / "config.json").read_text())
    config["quantization_config"]["config_groups"]["group_0"]["weights"]["actorder"] = "group"
    write(folder, state, None)
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A folder of a name, written once; not to be written to."""
    root, there = tmp_path_factory.mktemp("packed"), {}

    def folder(name: str) -> Path:
        if name not in there and name.endswith("act-order"):
            source = "symmetric" if name == "act-order" else "8-bit-groups"
            there[name] = with_act_order(root / name, folder(source), bits_of(name))
        elif name not in there:
            there[name] = compressed(root / name, llama(), arguments(name))
        return there[name]

    return folder


def parts_of(state: dict[str, Tensor], name: str) -> dict[str, Tensor]:
    return {
        key.removeprefix(f"{name}."): x for key, x in state.items() if key.startswith(f"{name}.")
    }


@names
def test_a_llama_of_the_package(name: str, made: Any) -> None:
    state = state_of(made(name))
    model = load_quantized(llama(torch.float32), made(name))
    floats, original = llama(torch.float32), llama().float()
    floats.load_state_dict(
        {key: x for key, x in state.items() if x.dtype == torch.bfloat16 and "weight_" not in key},
        strict=False,
    )
    layers = {x: m for x, m in model.named_modules() if isinstance(m, WeightOnlyLinear)}
    assert len(layers) == 14
    for layer, module in layers.items():
        tensors = parts_of(state, layer)
        assert ("weight_zero_point" in tensors) == name.endswith("asymmetric")
        weight = plainly(tensors, bits_of(name))
        assert_bits(weight_of(module), weight, layer)
        floats.get_submodule(layer).weight.copy_(weight.t())
        assert module.act_order == name.endswith("act-order") and module.bits == bits_of(name)
    assert assert_layers_within_their_bound(model, IDS) == 14
    exact = floats(IDS).logits
    assert 0 < relative(model(IDS).logits, exact) < 4 * torch.finfo(torch.bfloat16).eps
    cost = relative(exact, original(IDS).logits)
    assert cost > (0.05 if bits_of(name) == 4 else 0.004)  # what the quantisation itself costs


@pytest.mark.usefixtures("ours")
@pytest.mark.parametrize("name", ["asymmetric", "act-order", "8-bit-asymmetric"])
def test_transformers_loads_and_saves_it(name: str, made: Any, tmp_path: Path) -> None:
    model = transformers.AutoModelForCausalLM.from_pretrained(made(name))
    model.save_pretrained(tmp_path)
    assert_same_state(model, load_quantized(llama(), made(name)))
    assert assert_layers_within_their_bound(model, IDS) == 14
    assert_same_tensors(made(name), tmp_path)


def _group(**change: Any) -> Change:
    return lambda config, state: config["config_groups"]["group_0"].update(change)


REFUSED: dict[str, Any] = {
    "weights.num_bits must be 4 or 8, got 2": set_weights(num_bits=2),
    "weights.num_bits must be 4 or 8, got True": set_weights(num_bits=True),
    "weight_shape must hold [48, 40], as weight_packed says": set_weights(num_bits=8),
    "weights.type must be int, got 'float'": set_weights(type="float"),
    "weights.dynamic must be false, got true": set_weights(dynamic=True),
    "group_size must be null, -1 or at least 1, got 0": set_weights(group_size=0),
    "group_size must be null, -1 or at least 1": set_weights(group_size="16"),
    "strategy must be group with a group_size": set_weights(strategy="tensor"),
    "got channel and 16": set_weights(strategy="channel"),
    "got group and -1": set_weights(group_size=None),
    "weights.actorder is not understood, got other": set_weights(actorder="other"),
    "symmetric must be true or false, got 'yes'": set_weights(symmetric="yes"),
    "input_activations.dynamic must be true with weights of 4 bits, got false": _group(
        input_activations={"num_bits": 8}
    ),
    "input_activations.strategy must be token with dynamic=True, got tensor": _group(
        input_activations={"num_bits": 8, "dynamic": True, "strategy": "tensor"}
    ),
    "input_activations.num_bits must be 8, got 4": _group(
        input_activations={"num_bits": 4, "dynamic": True, "strategy": "token"}
    ),
    "group_size must be null or a multiple of 32": _group(
        input_activations={"num_bits": 8, "dynamic": True, "strategy": "token"}
    ),
    "weights must be an object, got None": _group(weights=None),
    "format must be one of pack-quantized": _group(format="int-quantized"),
    f"is packed, but quantization_config leaves {LAYER} float": leave_float,
    "as many features K as groups of 7 hold, got K=": set_weights(group_size=7),
    "weight_scale is missing: the scheme is": put("weight_scale", lambda x: None),
    "weight_zero_point is missing": put("weight_zero_point", lambda x: None),
    "weight_shape is missing": put("weight_shape", lambda x: None),
    "belongs to no layer with a weight_pa": put("weight_packed", lambda x: None),
    "must be F16 or BF16, got F32": put("weight_scale", lambda x: x.float()),
    "weight_scale must be finite": put("weight_scale", lambda x: x * torch.nan),
    "weight_shape must hold [80, 48]": put("weight_shape", lambda x: x + 1),
    "weight_g_idx must not be": put("weight_g_idx", lambda x: torch.zeros(48).int()),
    "must have shape [N, K/8], got [6]": put("weight_packed", lambda x: x[0]),
    "shape [N, K/8], got [0, 6]": put("weight_packed", lambda x: x[:0]),
    "[N, K/8], got [80, 0]": put("weight_packed", lambda x: x[:, :0]),
    "weight_shape must hold [79, 48]": put("weight_packed", lambda x: x[:79]),
    "must be I64 or I32, got F32": put("weight_shape", lambda x: x.float()),
    "shape [10, 3], got [9, 3]": put("weight_zero_point", lambda x: x[1:]),
    "perm is not understood": put("perm", lambda x: torch.ones(2)),
}


@pytest.mark.parametrize(("said", "change"), rows(REFUSED))
def test_what_does_not_fit_is_refused(said: str, change: Any, made: Any, tmp_path: Path) -> None:
    assert_refused(llama(), changed(made("asymmetric"), tmp_path, change), said)


def test_features_scattered_over_unequal_groups_are_refused(made: Any, tmp_path: Path) -> None:
    folder = changed(made("act-order"), tmp_path, put("weight_g_idx", torch.zeros_like))
    said = "weight_g_idx must give each of the 3 groups as many of the K=48 rows"
    assert_refused(llama(), folder, said)
