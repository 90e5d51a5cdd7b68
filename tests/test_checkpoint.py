"""Checkpoints in models: a loaded model computes the reference; what does not fit is refused."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoint_cases import (
    VARIANTS,
    VOCAB,
    ZERO_POINTS,
    Model,
    by_the_reference,
    quantization_config,
    state_of,
    tensors,
    variant,
    write,
)
from helpers import assert_bits, assert_same_state, rows
from safetensors.torch import load_file
from torch import Tensor, nn

from scaled_mm import quantize_weight_int8
from scaled_mm.checkpoint import load_quantized
from scaled_mm.nn import ScaledLinear

IDS = torch.arange(VOCAB)


class Reference(nn.Module):
    """A quantised layer, from the tensors of the file."""

    def __init__(self, state: dict[str, Tensor], symmetric: bool, token: bool):
        super().__init__()
        self.state, self.symmetric, self.token = state, symmetric, token

    def forward(self, x: Tensor) -> Tensor:
        return by_the_reference(self.state, x, symmetric=self.symmetric, per_token=self.token)


def reference_model(folder: Path, name: str, token: bool = True) -> Model:
    """`Model` composed of the reference, from the same files by another reader."""
    dynamic, symmetric = VARIANTS[name]
    state = state_of(folder)
    model = Model().eval()
    with torch.no_grad():
        for part, x in model.named_parameters():
            if state[part].is_floating_point():
                x.copy_(state[part])
    for layer in ("up", "down"):
        own = {k.removeprefix(f"{layer}."): x for k, x in state.items() if k.startswith(layer)}
        setattr(model, layer, Reference(own, symmetric, token and dynamic))
    return model


OPTIONS: dict[str, dict[str, bool]] = {
    "per-token-per-channel": {},
    "per-tensor": {"token": False},
    "weights-per-tensor": {"channel": False},
}


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("name", VARIANTS)
def test_a_loaded_model_is_the_reference(
    name: str, options: str, shards: int, tmp_path: Path
) -> None:
    variant(tmp_path, name, shards, **OPTIONS[options])
    model = load_quantized(Model().eval(), tmp_path)
    kinds = {part: type(module) for part, module in model.named_children()}
    assert kinds == {
        "embed": nn.Embedding,
        "up": ScaledLinear,
        "down": ScaledLinear,
        "head": nn.Linear,
    }
    assert not model.up.training
    expected = reference_model(tmp_path, name, OPTIONS[options].get("token", True))
    with torch.no_grad():
        assert_bits(model(IDS), expected(IDS), name)


@pytest.mark.parametrize("name", VARIANTS)
def test_a_meta_model_is_filled(name: str, tmp_path: Path) -> None:
    variant(tmp_path, name)
    with torch.device("meta"):
        model = Model()
    load_quantized(model, tmp_path)
    assert all(x.device.type == "cpu" for x in model.state_dict().values())
    with torch.no_grad():
        assert_bits(model(IDS), load_quantized(Model(), tmp_path)(IDS))


def test_the_model_keeps_its_dtype(tmp_path: Path) -> None:
    variant(tmp_path, "static-asymmetric")
    model = load_quantized(Model().bfloat16(), tmp_path)
    assert model.embed.weight.dtype == model.head.weight.dtype == torch.bfloat16
    assert model.up.weight_scale.dtype == torch.float32
    assert model.up.input_zero_point.tolist() == [ZERO_POINTS["up"]]


ZEROS: list[tuple[Tensor, int | None]] = [  # stored, zero point (None: refused)
    (torch.tensor([-128], dtype=torch.int8), -128),
    (torch.tensor(5, dtype=torch.int32), 5),
    (torch.tensor([[7]], dtype=torch.int64), 7),
    (torch.tensor([28.999998]), 29),  # a truncation makes 28 of it
    (torch.tensor([-30.9375]).bfloat16(), -31),
    (torch.tensor([2.5]), 2),
    (torch.tensor([-127.5]), -128),
    (torch.tensor([127.5]), None),
    (torch.tensor([128], dtype=torch.int32), None),
    (torch.tensor([torch.nan]), None),
    (torch.tensor([torch.inf]), None),
    (torch.tensor([2**32], dtype=torch.int64), None),
]


@pytest.mark.parametrize(("stored", "zero"), ZEROS, ids=[str(x.flatten()) for x, _ in ZEROS])
def test_zero_points_are_kept_or_rounded(stored: Tensor, zero: int | None, tmp_path: Path) -> None:
    state = tensors(False, False) | {"up.input_zero_point": stored}
    write(tmp_path, state, quantization_config(False, False))
    if zero is None:
        with pytest.raises(ValueError, match=r"up\.input_zero_point must be in -128\.\.127, got"):
            load_quantized(Model(), tmp_path)
        return
    layer = load_quantized(Model(), tmp_path).up
    assert_bits(layer.input_zero_point, torch.tensor([zero], dtype=torch.int32))
    assert_bits(layer.azp_with_adj, zero * state["up.weight"].sum(1, dtype=torch.int32)[None])


def float_state() -> dict[str, Tensor]:
    return {name: x.detach().clone() for name, x in Model().state_dict().items()}


def test_a_float_checkpoint_is_refused(tmp_path: Path) -> None:
    write(tmp_path, float_state(), None, shards=2)
    with pytest.raises(ValueError, match="is a float checkpoint, without quantization_config"):
        load_quantized(Model(), tmp_path)


def test_tied_weights(tmp_path: Path) -> None:
    """A tied weight stands in the file once."""

    class Tied(Model):
        def __init__(self) -> None:
            super().__init__()
            self.out = nn.Linear(44, VOCAB, bias=False)
            self.out.weight = self.embed.weight

    state = variant(tmp_path, "dynamic-symmetric") and load_file(tmp_path / "model.safetensors")
    for device in ("cpu", "meta"):
        with torch.device(device):
            model = Tied()
        load_quantized(model, tmp_path)
        assert model.out.weight is model.embed.weight
        assert_bits(model.out.weight.detach(), state["embed.weight"])


class Twice(Model):
    """`down` stands in two places."""

    def __init__(self) -> None:
        super().__init__()
        self.again = nn.ModuleList([self.down])


@pytest.mark.parametrize("stored_twice", [False, True])
def test_a_module_in_two_places(stored_twice: bool, tmp_path: Path) -> None:
    state = tensors(False, False)
    if stored_twice:
        own = {name: x for name, x in state.items() if name.startswith("down.")}
        state |= {f"again.0{name.removeprefix('down')}": x.clone() for name, x in own.items()}
    write(tmp_path, state, quantization_config(False, False))
    model = load_quantized(Twice(), tmp_path)
    assert isinstance(model.again[0], ScaledLinear)
    assert (model.again[0] is model.down) != stored_twice
    assert_bits(model.again[0].weight_int8, state["down.weight"])


class Encoder(nn.Module):
    """torch's own encoder layer, whose fused path would read the weights itself."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(16, 2, 24, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)


def test_torchs_encoder_layer(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, x = Encoder().eval().requires_grad_(False), torch.randn(2, 5, 16)
    expected = model(x)
    state = {name: value.clone() for name, value in model.state_dict().items()}
    for name in ("layer.linear1", "layer.linear2"):
        q, scale = quantize_weight_int8(state[f"{name}.weight"])
        state |= {f"{name}.weight": q, f"{name}.weight_scale": scale.view(-1, 1)}
    write(tmp_path, state, quantization_config(True, True))
    got = load_quantized(model, tmp_path)(x)
    assert 0 < (got - expected).norm() < 0.02 * expected.norm()


def test_a_subclass_of_linear_is_refused(tmp_path: Path) -> None:
    """nn.MultiheadAttention reads its output projection's weight itself."""
    model = Encoder()
    state = {name: value.clone() for name, value in model.state_dict().items()}
    name = "layer.self_attn.out_proj"
    state |= {f"{name}.weight": torch.ones(16, 16).to(torch.int8)}
    state |= {f"{name}.weight_scale": torch.ones(16, 1)}
    write(tmp_path, state, quantization_config(True, True))
    with pytest.raises(
        ValueError, match=r"must be for an nn\.Linear, the model has a NonDynamically"
    ):
        load_quantized(model, tmp_path)


REFUSED: dict[str, Any] = {
    "up.weight_scale is missing: the scheme is static asy": {"up.weight_scale": None},
    "up.input_scale is missing": {"up.input_scale": None},
    "up.input_zero_point is missing": {"up.input_zero_point": None},
    "must have shape [32, 1], got [": {"up.weight_scale": torch.ones(21, 1)},
    "must be F32 or BF16 or F16, got": {"up.weight_scale": torch.ones(32, 1).int()},
    "must be finite and not": {"up.weight_scale": torch.full((32, 1), torch.nan)},
    "must be finite and not negative": {"down.input_scale": -torch.ones(1)},
    "got U8": {"up.input_zero_point": torch.ones(1).to(torch.uint8)},
    "up.weight_zero_point must be 0 in a symmetric scheme": {
        "up.weight_zero_point": torch.ones(32, 1).to(torch.int8)
    },
    "up.weight_g_idx is not understood": {"up.weight_g_idx": torch.ones(4)},
    "up.azp_adj must not be there": {"up.azp_adj": torch.ones(1, 32).int()},
    "up.azp_with_adj is not the one that weight and zero point give": {
        "up.azp_with_adj": torch.ones(1, 32).int()
    },
    "must be I32, got I64": {"up.azp_with_adj": torch.ones(1, 32).long()},
    "leaves head float": {"head.weight": torch.ones(3, 21).to(torch.int8)},
    "is not understood": {"up.experts": torch.ones(2, 3, 4).to(torch.int8)},
    "has no int8 up.weight beside it": {"up.weight": torch.ones(32, 44)},
    "at most 131071 input features": {"up.weight": torch.ones(32, 131072).to(torch.int8)},
    "must have shape [32, 44], a": {"up.weight": torch.ones(32, 45).to(torch.int8)},
    "up.bias must be there just when the model's Linear has one": {"up.bias": None},
    "down.bias must be there just when": {"down.bias": torch.ones(21)},
    "has more.weight, which the model has not": {"more.weight": torch.ones(3)},
    "has no head.bias, which the model has": {"head.bias": None},
    "head.bias must have shape [3], as in the model": {"head.bias": torch.ones(4)},
    "head.bias must be torch.float32, as in the": {"head.bias": torch.ones(3).int()},
    "as in the model, got F8_E4": {"head.bias": torch.ones(3).to(torch.float8_e4m3fn)},
    "as in the model, got C64": {"head.bias": torch.ones(3).cfloat()},
    "weight, int8 (3, 3), is not under": {"weight": torch.ones(3, 3).to(torch.int8)},
    "x.weight must be for an nn.Linear, the model has no such module": {
        "x.weight": torch.ones(3, 3).to(torch.int8),
        "x.weight_scale": torch.ones(3, 1),
    }
    | {"x.input_scale": torch.ones(1), "x.input_zero_point": torch.ones(1).int()},
    "embed.weight must be for an nn.Linear, the model has a Embedding": {
        "embed.weight": torch.ones(16, 44).to(torch.int8),
        "embed.weight_scale": torch.ones(16, 1),
    }
    | {"embed.input_scale": torch.ones(1), "embed.input_zero_point": torch.ones(1).int()},
}


@pytest.mark.parametrize(("said", "change"), rows(REFUSED))
def test_what_does_not_fit_is_refused(said: str, change: Any, tmp_path: Path) -> None:
    state = {k: x for k, x in (tensors(False, False) | change).items() if x is not None}
    write(tmp_path, state, quantization_config(False, False))
    model = Model()
    before = copy.deepcopy(model)
    with pytest.raises(ValueError) as refusal:
        load_quantized(model, tmp_path)
    assert said in str(refusal.value)
    assert str(refusal.value).startswith(str(tmp_path))
    assert {part: type(module) for part, module in model.named_children()} == {
        "embed": nn.Embedding,
        **dict.fromkeys(("up", "down", "head"), nn.Linear),
    }
    assert_same_state(model, before)  # all or nothing


def test_as_wide_as_an_int32_sum_takes(tmp_path: Path) -> None:
    weight = torch.full((1, 131071), -128, dtype=torch.int8)
    state = {"0.weight": weight, "0.weight_scale": torch.ones(1, 1)}
    write(tmp_path, state, quantization_config(True, True))
    model = load_quantized(nn.Sequential(nn.Linear(131071, 1, bias=False)), tmp_path)
    assert_bits(model[0].weight_int8, weight)


def test_zeros_that_say_nothing_are_accepted(tmp_path: Path) -> None:
    """Older writers store the zero points of symmetric schemes."""
    state = tensors(False, True)
    state["up.weight_zero_point"] = torch.zeros(32, 1, dtype=torch.int8)
    state["up.input_zero_point"] = torch.zeros(1, dtype=torch.int8)
    write(tmp_path, state, quantization_config(False, True))
    assert load_quantized(Model(), tmp_path).up.input_zero_point is None


def test_buffers_that_nobody_fills(tmp_path: Path) -> None:
    variant(tmp_path, "dynamic-symmetric")
    with torch.device("meta"):
        model = Model()
        model.register_buffer("frequencies", torch.ones(3), persistent=False)
    with pytest.raises(ValueError, match=r"^frequencies must not be on the meta device"):
        load_quantized(model, tmp_path)


def test_a_buffer_that_the_checkpoint_holds(tmp_path: Path) -> None:
    state = tensors(False, True) | {"frequencies": torch.arange(3.0)}
    write(tmp_path, state, quantization_config(False, True))
    with torch.device("meta"):
        model = Model()
        model.register_buffer("frequencies", torch.ones(3))
    assert_bits(load_quantized(model, tmp_path).frequencies, state["frequencies"])
