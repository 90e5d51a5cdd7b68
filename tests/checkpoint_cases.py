"""Checkpoints as data: small W8A8 ones in the layout of compressed-tensors, and malformed files."""

import json
import struct
from collections.abc import Callable
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
MALFORMED: dict[str, Any] = {
    "must begin with the 8 bytes of a length, got 0": b"",
    "the header must begin with {, got b''": encoded(b"", b""),
    "the header must end within the file, got 1,000,000 bytes": encoded(
        {"a": entry()}, b"", 1_000_000
    ),
    "must be at most 100,000,000": [
        encoded({"a": entry()}, b"", 100_000_001),
        encoded({"a": entry()}, b"", 2**64 - 1),
    ],
    "the name 'a' stands twice": [
        encoded(b'{"a":' + ONE + b',"a":' + ONE + b"}"),
        encoded(b'{"a":' + ONE + b',"\\u0061":' + ONE + b"}"),
    ],
    "the name 'x' stands twice": encoded(b'{"__metadata__":{"x":"1","x":"2"},"a":' + ONE + b"}"),
    "a: dtype must be one of BOOL, ": encoded({"a": entry(dtype="I9")}),
    "field 'code' is not understood": encoded({"a": {**entry(), "code": "x"}}),
    "b: data must begin at 8, got 4": encoded(
        {"a": entry(0, 8, shape=[8]), "b": entry(4, 16, shape=[12])}
    ),
    "b: data must begin at 16, got 0": encoded({"a": entry(), "b": entry()}),
    "b: data must begin at 4, got 8": encoded(
        {"a": entry(0, 4, shape=[4]), "b": entry(8, 16, shape=[8])}
    ),
    "8 bytes of data, got 16": encoded({"a": entry(0, 8, shape=[8])}),
    "32 bytes of data, got 16": encoded({"a": entry(0, 32, shape=[32])}),
    "data_offsets[0] must be an integer in 0..": [
        encoded({"a": entry(-1)}),
        encoded({"a": entry(0.0)}),
    ],
    "data_offsets[1] must be an integer": encoded({"a": entry(0, 2**70)}),
    "data_offsets must span I8 [0]": encoded({"a": entry(16, 0, shape=[0])}),
    "data_offsets must be two integers, got 3": encoded(
        {"a": {**entry(), "data_offsets": [0, 8, 16]}}
    ),
    "a: shape must be a list of integers, got None": encoded(
        {"a": {"dtype": "I8", "data_offsets": [0, 16]}}
    ),
    "shape[0] must be an integer in 0..": encoded({"a": entry(shape=[-16])}),
    "a product up to": encoded({"a": entry(shape=[2**40, 2**40])}),
    "data_offsets must span F64": encoded({"a": entry(dtype="F64", shape=[2**61 + 2])}),
    "must span I8 [15], got (0, 16)": encoded({"a": entry(shape=[15])}),
    "must span F4 [31]": encoded({"a": entry(dtype="F4", shape=[31])}),
    "header must begin with {, got b' '": encoded(b' {"a":' + ONE + b"}"),
    "Extra data": encoded(b'{"a":' + ONE + b"}x"),
    "the header must begin with {": encoded(b"[]"),
    "can't decode byte": encoded(b'{"\xff":' + ONE + b"}"),
    "is not Unicode": encoded(b'{"\\ud800":' + ONE + b"}"),
    "nested too deep": encoded(b'{"a":' + b"[" * 100_000),
    "__metadata__.a must be a string, got 1": encoded({"__metadata__": {"a": 1}, "a": entry()}),
    "a tensor name must be": [
        encoded({"a\nb": entry()}),
        encoded({"": entry()}),
        encoded({"..": entry()}),
        encoded({"/etc/passwd": entry()}),
        encoded({"a\\b": entry()}),
        encoded({"C:a": entry()}),
    ],
    "got '../../etc/passwd'": encoded({"../../etc/passwd": entry()}),
    "1 to 1024 printable characters": encoded({"a" * 1025: entry()}),
    "is a pickle": b"\x80\x04\x95\x05\x00\x00\x00\x00\x00\x00\x00.",
    "torch.save's pickles, which is not opened": b"PK\x03\x04" + bytes(40),
    "is GGUF, not safetensors": b"GGUF\x03" + bytes(40),
    "is an array of numpy, not safetensors": b"\x93NUMPY\x01\x00" + bytes(40),
    "the header must be at most": b"<!DOCTYPE html><html></html>",
}


_AT_BOTH = [{"location": at, "targets": ["up"]} for at in ("input", "weight_input")]


def _set(path: str, value: Any) -> Callable[[dict[str, Any]], None]:
    def change(config: dict[str, Any]) -> None:
        *owners, last = path.replace("G", "config_groups.group_0").split(".")
        for owner in owners:
            config = config[owner]
        config[last] = value

    return change


def _rotated(**changed: Any) -> Callable[[dict[str, Any]], None]:
    """A transform that rotates the input of `up`, changed."""
    good = {"type": "hadamard", "head_dim": 16, "apply": _AT_BOTH}
    return _set("transform_config", {"config_groups": {"R": {**good, **changed}}})


def _is(**fields: Any) -> Callable[[dict[str, Any]], dict[str, Any]]:
    return lambda config: fields


SETTINGS: dict[str, Any] = {
    "auto-round or blockwise_int8, got 'fp8'": _is(quant_method="fp8"),
    "auto-round or blockwise_int8, got None": _is(load_in_8bit=True),
    "format must be one of int-quantized, ": _set("format", "float"),
    "group_0.format must be one of": _set("G.format", "float-quantized"),
    "config_groups must be an object": [_set("config_groups", {}), _set("config_groups", 3)],
    "names of presets are not": _set("config_groups", {"W8A8": ["Linear"]}),
    "targets must be a list of strings": _set("G.targets", "Linear"),
    "ignore must be a list of strings, got [1]": _set("ignore", [1]),
    "must be an object (both are 8 bits": _set("G.input_activations", None),
    "weights.num_bits must be 8, got 6": _set("G.weights.num_bits", 6),
    "weights.type must be int, got 'float'": _set("G.weights.type", "float"),
    "weights.symmetric must be true, got false": _set("G.weights.symmetric", False),
    "weights.dynamic must be false, got true": _set("G.weights.dynamic", True),
    "dynamic must be true or false, got 'local'": _set("G.input_activations.dynamic", "local"),
    "group_size must be null, got 128": _set("G.weights.group_size", 128),
    "weights.strategy must be channel or tensor": _set("G.weights.strategy", "group"),
    "input_activations.strategy must be tensor with dynamic=False, got token": _set(
        "G.input_activations.strategy", "token"
    ),
    "weights.actorder is not understood, got group": _set("G.weights.actorder", "group"),
    "weights.actorder is not understood, got True": _set("G.weights.actorder", True),
    "group_0.output_activations is not understood": _set("G.output_activations", INT8),
    "kv_cache_scheme is not understood": _set("kv_cache_scheme", INT8),
    "sparsity_config is not understood": _set("sparsity_config", {"format": "sparse-24-bitmask"}),
    "transform_config.x is not": _set("transform_config", {"x": 1}),
    **{
        f"at run time), got {at}": _rotated(apply=[{"location": at}], head_dim=None)
        for at in ("output", "k_cache", "q_attn")
    },
    "R.type must be one of hadamard where": _rotated(type="random-hadamard"),
    "R.head_dim must be one of 16, 32, 64": [_rotated(head_dim=24), _rotated(head_dim=None)],
    "R.randomize must be false where location is input": _rotated(randomize=True),
    "have weight_input": _rotated(apply=[{"location": "input", "targets": ["up"]}]),
    "have weight_input for the": _rotated(apply=[*_AT_BOTH, {"location": "input"}]),
    "R.requires_grad is not understood, got True": _set(
        "transform_config", {"config_groups": {"R": {"requires_grad": True}}}
    ),
    "rotation is not understood, got hadamard": _set("rotation", "hadamard"),
    "'re:(' is no regular expression of RE2": _set("ignore", ["re:("]),
    "of RE2: invalid perl operator: (?!": _set("G.targets", ["re:(?!up)"]),
    "of RE2: invalid escape sequence": _set("ignore", [r"re:(a)\1"]),
    "the 60 patterns are too large together": _set(
        "ignore", [f"re:{i:03d}[a-f]{{900}}" for i in range(60)]
    ),
    "must be at most 32, got 33": _set("config_groups", {f"group_{i}": {} for i in range(33)}),
}
