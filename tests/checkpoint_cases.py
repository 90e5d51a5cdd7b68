"""Checkpoints as data: small W8A8 ones in the layout of compressed-tensors, and malformed files."""

from __future__ import annotations

import copy
import json
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from scaled_mm import reference

K, N, HIDDEN, VOCAB = 44, 21, 32, 16
VARIANTS = {
    "dynamic-symmetric": (True, True),
    "dynamic-asymmetric": (True, False),
    "static-symmetric": (False, True),
    "static-asymmetric": (False, False),
}
ZERO_POINTS = {"up": -31, "down": 100}
INT8: dict[str, Any] = {"num_bits": 8, "type": "int", "group_size": None}


def by_the_reference(
    state: dict[str, Tensor], x: Tensor, *, symmetric: bool, per_token: bool
) -> Tensor:
    """What a quantised layer gives, in the words of the reference, from the tensors of its file."""
    b, zero = state["weight"].t(), state.get("input_zero_point")
    scale = state["input_scale"].float() if "input_scale" in state else None
    q, scale, azp = reference.quantize_int8(
        x,
        scale=scale,
        azp=None if zero is None else zero.int(),
        symmetric=symmetric,
        per_token=per_token,
    )
    terms: dict[str, Tensor | None] = {}
    if zero is not None:
        terms = {"azp_with_adj": reference.azp_with_adj(b, zero.int())}
    elif not symmetric:
        terms = {"azp": azp, "azp_adj": reference.azp_adj(b)}
    return reference.scaled_mm(
        q,
        b,
        scale,
        state["weight_scale"].float(),
        bias=state.get("bias"),
        out_dtype=x.dtype,
        **terms,
    )


def quantization_config(
    dynamic: bool, symmetric: bool, *, token: bool = True, channel: bool = True
) -> dict[str, Any]:
    """As compressed-tensors writes it."""
    weights = {
        **INT8,
        "dynamic": False,
        "strategy": "channel" if channel else "tensor",
        "symmetric": True,
    }
    strategy = "token" if dynamic and token else "tensor"
    inputs = {**INT8, "dynamic": dynamic, "strategy": strategy, "symmetric": symmetric}
    return {
        "config_groups": {
            "group_0": {
                "format": "int-quantized",
                "input_activations": inputs,
                "output_activations": None,
                "targets": ["Linear"],
                "weights": weights,
            }
        },
        "format": "int-quantized",
        "global_compression_ratio": None,
        "ignore": ["head"],
        "kv_cache_scheme": None,
        "quant_method": "compressed-tensors",
        "quantization_status": "compressed",
        "sparsity_config": {},
        "transform_config": {},
        "version": "0.20.0",
    }


class Model(nn.Module):
    """Two quantised Linears, with and without a bias, between layers that stay float."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCAB, K)
        self.up = nn.Linear(K, HIDDEN)
        self.down = nn.Linear(HIDDEN, N, bias=False)
        self.head = nn.Linear(N, 3)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(torch.relu(self.down(torch.relu(self.up(self.embed(ids))))))


def tensors(dynamic: bool, symmetric: bool, *, channel: bool = True) -> dict[str, Tensor]:
    """The tensors of `Model`, quantised; scales in bfloat16, full-range weights."""
    generator = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    made = {"embed.weight": normal(VOCAB, K), "head.weight": normal(3, N), "head.bias": normal(3)}
    for name, n, k in (("up", HIDDEN, K), ("down", N, HIDDEN)):
        made[f"{name}.weight"] = torch.randint(
            -128, 128, (n, k), generator=generator, dtype=torch.int8
        )
        scale = torch.rand(n if channel else 1, 1, generator=generator) / 100 + 0.001
        made[f"{name}.weight_scale"] = scale.bfloat16() if channel else scale.bfloat16().view(1)
        if not dynamic:
            made[f"{name}.input_scale"] = torch.tensor([0.04]).bfloat16()
        if not dynamic and not symmetric:
            made[f"{name}.input_zero_point"] = torch.tensor([ZERO_POINTS[name]], dtype=torch.int8)
    made["up.bias"] = normal(HIDDEN).bfloat16()
    return made


def write(
    folder: Path, state: dict[str, Tensor], config: dict[str, Any] | None, shards: int = 1
) -> Path:
    """A checkpoint as transformers writes it; the tensors go to the shards in turn."""
    folder.mkdir(parents=True, exist_ok=True)
    if config is not None:
        text = json.dumps({"model_type": "toy", "quantization_config": config})
        (folder / "config.json").write_text(text)
    if shards == 1:
        save_file(state, folder / "model.safetensors", {"format": "pt"})
        return folder
    weight_map = {}
    for shard in range(shards):
        name = f"model-{shard + 1:05d}-of-{shards:05d}.safetensors"
        part = dict(sorted(state.items())[shard::shards])
        save_file(part, folder / name, {"format": "pt"})
        weight_map |= dict.fromkeys(part, name)
    index = {"metadata": {"total_size": 0, "kept": "yes"}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


def variant(folder: Path, name: str, shards: int = 1, **options: bool) -> Path:
    """A whole checkpoint of one of VARIANTS."""
    channel = {"channel": options["channel"]} if "channel" in options else {}
    state = tensors(*VARIANTS[name], **channel)
    return write(folder, state, quantization_config(*VARIANTS[name], **options), shards)


def state_of(folder: Path) -> dict[str, Tensor]:
    """Every tensor of a folder, by another reader."""
    state: dict[str, Tensor] = {}
    for path in folder.glob("*.safetensors"):
        state |= load_file(path)
    return state


def files_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def entry(begin: Any = 0, end: Any = 16, dtype: str = "I8", shape: Any = (16,)) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def encoded(header: Any, data: bytes = bytes(16), length: int | None = None) -> bytes:
    """The bytes of a file; header: bytes, or what JSON makes of it."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


ONE = json.dumps(entry()).encode()
MALFORMED: dict[str, tuple[bytes, str]] = {  # the file, what is said
    "empty": (b"", "must begin with the 8 bytes of a length, got 0"),
    "no-header": (encoded(b"", b""), "the header must begin with {, got b''"),
    "length-over-file": (
        encoded({"a": entry()}, b"", 1_000_000),
        "the header must end within the file, got 1,000,000 bytes",
    ),
    "length-over-100-MB": (
        encoded({"a": entry()}, b"", 100_000_001),
        "must be at most 100,000,000",
    ),
    "length-2^64-1": (encoded({"a": entry()}, b"", 2**64 - 1), "must be at most 100,000,000"),
    "duplicate": (encoded(b'{"a":' + ONE + b',"a":' + ONE + b"}"), "the name 'a' stands twice"),
    "duplicate-escaped": (
        encoded(b'{"a":' + ONE + b',"\\u0061":' + ONE + b"}"),
        "the name 'a' stands twice",
    ),
    "duplicate-metadata-key": (
        encoded(b'{"__metadata__":{"x":"1","x":"2"},"a":' + ONE + b"}"),
        "the name 'x' stands twice",
    ),
    "unknown-dtype": (encoded({"a": entry(dtype="I9")}), "a: dtype must be one of BOOL, "),
    "unknown-field": (encoded({"a": {**entry(), "code": "x"}}), "field 'code' is not understood"),
    "overlap": (
        encoded({"a": entry(0, 8, shape=[8]), "b": entry(4, 16, shape=[12])}),
        "b: data must begin at 8, got 4",
    ),
    "same-bytes": (encoded({"a": entry(), "b": entry()}), "b: data must begin at 16, got 0"),
    "hole": (
        encoded({"a": entry(0, 4, shape=[4]), "b": entry(8, 16, shape=[8])}),
        "b: data must begin at 4, got 8",
    ),
    "bytes-left-over": (encoded({"a": entry(0, 8, shape=[8])}), "8 bytes of data, got 16"),
    "data-missing": (encoded({"a": entry(0, 32, shape=[32])}), "32 bytes of data, got 16"),
    "negative-offset": (encoded({"a": entry(-1)}), "data_offsets[0] must be an integer in 0.."),
    "offset-over-2^64": (encoded({"a": entry(0, 2**70)}), "data_offsets[1] must be an integer"),
    "offset-float": (encoded({"a": entry(0.0)}), "data_offsets[0] must be an integer in 0.."),
    "end-before-begin": (encoded({"a": entry(16, 0, shape=[0])}), "data_offsets must span I8 [0]"),
    "three-offsets": (
        encoded({"a": {**entry(), "data_offsets": [0, 8, 16]}}),
        "data_offsets must be two integers, got 3",
    ),
    "no-shape": (
        encoded({"a": {"dtype": "I8", "data_offsets": [0, 16]}}),
        "a: shape must be a list of integers, got None",
    ),
    "negative-shape": (encoded({"a": entry(shape=[-16])}), "shape[0] must be an integer in 0.."),
    "shape-product-overflows": (encoded({"a": entry(shape=[2**40, 2**40])}), "a product up to"),
    "shape-times-dtype-overflows": (
        encoded({"a": entry(dtype="F64", shape=[2**61 + 2])}),
        "data_offsets must span F64",
    ),
    "shape-is-not-the-bytes": (encoded({"a": entry(shape=[15])}), "must span I8 [15], got (0, 16)"),
    "half-a-byte": (encoded({"a": entry(dtype="F4", shape=[31])}), "must span F4 [31]"),
    "leading-space": (encoded(b' {"a":' + ONE + b"}"), "header must begin with {, got b' '"),
    "junk-behind": (encoded(b'{"a":' + ONE + b"}x"), "Extra data"),
    "no-object": (encoded(b"[]"), "the header must begin with {"),
    "not-utf-8": (encoded(b'{"\xff":' + ONE + b"}"), "can't decode byte"),
    "lone-surrogate": (encoded(b'{"\\ud800":' + ONE + b"}"), "is not Unicode"),
    "nested-deep": (encoded(b'{"a":' + b"[" * 100_000), "nested too deep"),
    "metadata-number": (
        encoded({"__metadata__": {"a": 1}, "a": entry()}),
        "__metadata__.a must be a string, got 1",
    ),
    "name-newline": (encoded({"a\nb": entry()}), "a tensor name must be"),
    "name-empty": (encoded({"": entry()}), "a tensor name must be"),
    "name-dots": (encoded({"..": entry()}), "a tensor name must be"),
    "name-path": (encoded({"../../etc/passwd": entry()}), "got '../../etc/passwd'"),
    "name-absolute": (encoded({"/etc/passwd": entry()}), "a tensor name must be"),
    "name-backslash": (encoded({"a\\b": entry()}), "a tensor name must be"),
    "name-drive": (encoded({"C:a": entry()}), "a tensor name must be"),
    "name-long": (encoded({"a" * 1025: entry()}), "1 to 1024 printable characters"),
    "pickle-4": (b"\x80\x04\x95\x05\x00\x00\x00\x00\x00\x00\x00.", "is a pickle"),
    "zip": (b"PK\x03\x04" + bytes(40), "torch.save's pickles, which is not opened"),
    "gguf": (b"GGUF\x03" + bytes(40), "is GGUF, not safetensors"),
    "numpy": (b"\x93NUMPY\x01\x00" + bytes(40), "is an array of numpy, not safetensors"),
    "html": (b"<!DOCTYPE html><html></html>", "the header must be at most"),
}


@dataclass(frozen=True)
class Setting:
    """A change to a good quantization_config, and what is said."""

    change: Callable[[dict[str, Any]], Any]
    said: str

    def made(self) -> dict[str, Any]:
        config = copy.deepcopy(quantization_config(False, False))
        replaced = self.change(config)
        return config if not isinstance(replaced, dict) else replaced


_AT_BOTH = [{"location": at, "targets": ["up"]} for at in ("input", "weight_input")]


def _online(**changed: Any) -> dict[str, Any]:
    """A transform that rotates the input of `up`."""
    return {"type": "hadamard", "head_dim": 16, "apply": _AT_BOTH, **changed}


def _set(path: str, value: Any) -> Callable[[dict[str, Any]], None]:
    def change(config: dict[str, Any]) -> None:
        *owners, last = path.replace("G", "config_groups.group_0").split(".")
        for owner in owners:
            config = config[owner]
        config[last] = value

    return change


def _is(**fields: Any) -> Callable[[dict[str, Any]], dict[str, Any]]:
    return lambda config: fields


SETTINGS: dict[str, Setting] = {
    "other-method": Setting(_is(quant_method="fp8"), "auto-round or blockwise_int8, got 'fp8'"),
    "no-method": Setting(_is(load_in_8bit=True), "auto-round or blockwise_int8, got None"),
    "other-format": Setting(_set("format", "float"), "format must be one of int-quantized, "),
    "group-format": Setting(_set("G.format", "float-quantized"), "group_0.format must be one of"),
    "no-groups": Setting(_set("config_groups", {}), "config_groups must be an object"),
    "preset": Setting(_set("config_groups", {"W8A8": ["Linear"]}), "names of presets are not"),
    "targets-string": Setting(_set("G.targets", "Linear"), "targets must be a list of strings"),
    "ignore-number": Setting(_set("ignore", [1]), "ignore must be a list of strings, got [1]"),
    "weight-only": Setting(_set("G.input_activations", None), "must be an object (both are 8 bits"),
    "6-bit": Setting(_set("G.weights.num_bits", 6), "weights.num_bits must be 8, got 6"),
    "float": Setting(_set("G.weights.type", "float"), "weights.type must be int, got 'float'"),
    "asymmetric-weights": Setting(
        _set("G.weights.symmetric", False), "weights.symmetric must be true, got false"
    ),
    "dynamic-weights": Setting(
        _set("G.weights.dynamic", True), "weights.dynamic must be false, got true"
    ),
    "local": Setting(
        _set("G.input_activations.dynamic", "local"), "dynamic must be true or false, got 'local'"
    ),
    "groups-of-128": Setting(_set("G.weights.group_size", 128), "group_size must be null, got 128"),
    "group-strategy": Setting(
        _set("G.weights.strategy", "group"), "weights.strategy must be channel or tensor"
    ),
    "static-token": Setting(
        _set("G.input_activations.strategy", "token"),
        "input_activations.strategy must be tensor with dynamic=False, got token",
    ),
    "activation-order": Setting(
        _set("G.weights.actorder", "group"), "weights.actorder is not understood, got group"
    ),
    "activation-order-flag": Setting(
        _set("G.weights.actorder", True), "weights.actorder is not understood, got True"
    ),
    "output-activations": Setting(
        _set("G.output_activations", INT8), "group_0.output_activations is not understood"
    ),
    "kv-cache": Setting(_set("kv_cache_scheme", INT8), "kv_cache_scheme is not understood"),
    "sparsity": Setting(
        _set("sparsity_config", {"format": "sparse-24-bitmask"}),
        "sparsity_config is not understood",
    ),
    "transform": Setting(_set("transform_config", {"x": 1}), "transform_config.x is not"),
    **{
        f"transform-{at}": Setting(
            _set("transform_config", {"config_groups": {"R": {"apply": [{"location": at}]}}}),
            f"at run time), got {at}",
        )
        for at in ("output", "k_cache", "q_attn")
    },
    **{
        f"transform-input-{name}": Setting(
            _set("transform_config", {"config_groups": {"R": _online(**changed)}}), message
        )
        for name, changed, message in (
            ("type", {"type": "random-hadamard"}, "R.type must be one of hadamard where"),
            ("block", {"head_dim": 24}, "R.head_dim must be one of 16, 32, 64"),
            ("no-block", {"head_dim": None}, "R.head_dim must be one of 16, 32, 64"),
            ("random", {"randomize": True}, "R.randomize must be false where location is input"),
            ("alone", {"apply": [{"location": "input", "targets": ["up"]}]}, "have weight_input"),
            ("targets", {"apply": [*_AT_BOTH, {"location": "input"}]}, "have weight_input for the"),
        )
    },
    "transform-trains": Setting(
        _set("transform_config", {"config_groups": {"R": {"requires_grad": True}}}),
        "R.requires_grad is not understood, got True",
    ),
    "new-key": Setting(_set("rotation", "hadamard"), "rotation is not understood, got hadamard"),
    "bad-pattern": Setting(_set("ignore", ["re:("]), "'re:(' is no regular expression of RE2"),
    "lookahead": Setting(_set("G.targets", ["re:(?!up)"]), "of RE2: invalid perl operator: (?!"),
    "group-again": Setting(_set("ignore", [r"re:(a)\1"]), "of RE2: invalid escape sequence"),
    "many-patterns": Setting(
        _set("ignore", [f"re:{i:03d}[a-f]{{900}}" for i in range(60)]),
        "the 60 patterns are too large together",
    ),
    "many-groups": Setting(
        _set("config_groups", {f"group_{i}": {} for i in range(33)}), "must be at most 32, got 33"
    ),
    "no-object": Setting(_set("config_groups", 3), "config_groups must be an object"),
}
