"""AutoAWQ and GPTQ checkpoints as data: of 4 bits written with the library's packers, of 8 by plain
torch; read by plain torch."""

import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from checkpoint_cases import write
from torch import Tensor, nn

from scaled_mm import awq
from scaled_mm.lowbit.grouped import quantize_weight_grouped
from scaled_mm.lowbit.stored import stored as packed_tensors

GROUP = 16


@dataclass(frozen=True)
class Form:
    """One way to store weights of 4 or 8 bits."""

    method: str = "gptq"
    bits: int = 4
    version: int = 1
    act_order: bool = False
    symmetric: bool = False
    group: int = GROUP
    dtype: torch.dtype = torch.float16
    g_idx: bool = True
    more: dict[str, Any] = field(default_factory=dict)

    def config(self) -> dict[str, Any]:
        """Its quantization_config, as short as writers make it."""
        made: dict[str, Any] = {
            "quant_method": self.method,
            "bits": self.bits,
            "group_size": self.group,
        }
        if self.method == "awq":
            made |= {"zero_point": not self.symmetric, "version": "gemm"}
            made |= {"modules_to_not_convert": None}
        else:
            made |= {"desc_act": self.act_order, "sym": self.symmetric}
            made |= {"checkpoint_format": "gptq_v2" if self.version == 2 else "gptq"}
        return made | self.more


FORMS: dict[str, Form] = {
    "awq": Form("awq"),
    "awq-bfloat16": Form("awq", dtype=torch.bfloat16),
    "awq-one-group": Form("awq", group=-1),
    "awq-symmetric": Form("awq", symmetric=True),
    "gptq-v1": Form(),
    "gptq-v1-symmetric": Form(symmetric=True),
    "gptq-v1-act-order": Form(act_order=True),
    "gptq-v1-act-order-symmetric": Form(act_order=True, symmetric=True),
    "gptq-v1-without-g_idx": Form(g_idx=False),
    "gptq-v1-one-group": Form(group=-1, act_order=True),
    "gptq-v2": Form(version=2, dtype=torch.bfloat16),
    "gptq-v2-symmetric": Form(version=2, symmetric=True),
    "gptq-v2-act-order": Form(version=2, act_order=True, group=8),
    "gptq8-v1": Form(bits=8),
    "gptq8-v1-symmetric": Form(bits=8, symmetric=True, dtype=torch.bfloat16),
    "gptq8-v1-act-order": Form(bits=8, act_order=True),
    "gptq8-v1-act-order-symmetric": Form(bits=8, act_order=True, symmetric=True),
    "gptq8-v1-without-g_idx": Form(bits=8, g_idx=False),
    "gptq8-v1-one-group": Form(bits=8, group=-1, act_order=True),
    "gptq8-v2": Form(bits=8, version=2),
    "gptq8-v2-symmetric": Form(bits=8, version=2, symmetric=True),
    "gptq8-v2-act-order": Form(bits=8, version=2, act_order=True, group=8, dtype=torch.bfloat16),
}


def quantised(weight: Tensor, form: Form) -> awq.Int4:
    """A weight [N, K] rounded to the nearest level, in groups of rows as the form has them."""
    w = weight.detach().float().t()
    k, n = w.shape
    size = k if form.group == -1 else form.group
    g_idx = torch.arange(k) // size
    if form.act_order:  # the loudest rows together, as GPTQ does it
        loudest = w.square().sum(1).argsort(descending=True)
        g_idx = torch.empty(k, dtype=torch.int64).scatter_(0, loudest, g_idx)
    scales, zeros, most = torch.empty(k // size, n), torch.empty(k // size, n), 2**form.bits - 1
    for g in range(k // size):
        rows = w[g_idx == g]
        low, high = rows.amin(0).clamp(max=0), rows.amax(0).clamp(min=0)
        if form.symmetric:
            scales[g], zeros[g] = torch.maximum(-low, high) / (most / 2), (most + 1) / 2
        else:
            scales[g] = (high - low) / most
            zeros[g] = (-low / scales[g]).round().clamp(0, most)
    scales = scales.to(form.dtype)
    q = (w / scales[g_idx].float() + zeros[g_idx]).round().clamp(0, most)
    order = g_idx.int() if form.method == "gptq" else None
    return awq.Int4(q.to(torch.uint8), scales, zeros.to(torch.uint8), order)


def stored(weight: awq.Int4, form: Form) -> dict[str, Tensor]:
    """The tensors of one layer, without its name in front."""
    if form.method == "awq":
        made = awq.to_awq(weight)._asdict()
    else:
        to_gptq = awq.to_gptq if form.bits == 4 else gptq_of_bytes
        made = to_gptq(weight, version=form.version)._asdict()
        if not form.g_idx:
            del made["g_idx"]
    return {name: x.contiguous() for name, x in made.items()}


def gptq_of_bytes(weight: awq.Int4, version: int) -> awq.Gptq:
    """GPTQ's tensors of values of 8 bits: four to a word, the first in the lowest bits."""

    def words(bytes_: Tensor) -> Tensor:
        """[..., 4 words] -> int32 [..., words]"""
        number = (bytes_.long().unflatten(-1, (-1, 4)) * 256 ** torch.arange(4)).sum(-1)
        return (number - (number >= 2**31) * 2**32).to(torch.int32)

    zeros = (weight.zeros.long() - 1) % 256 if version == 1 else weight.zeros
    return awq.Gptq(words(weight.q.t()).t(), weight.scales, words(zeros), weight.g_idx)


def plainly(tensors: dict[str, Tensor], form: Form) -> Tensor:
    """W [K, N] of a layer's tensors, without the library: (q - z) * s in float64, rounded once."""

    base, per_word = 2**form.bits, 32 // form.bits

    def digits(words: Tensor) -> list[Tensor]:
        """The digits of each word to the base 2^bits, the lowest first."""
        unsigned = words.to(torch.int64) % 2**32
        return [unsigned // base**i % base for i in range(per_word)]

    words, scales = tensors["qweight"], tensors["scales"].double()
    z = torch.empty(scales.shape, dtype=torch.int64)
    along_n = (0, 2, 4, 6, 1, 3, 5, 7) if form.method == "awq" else range(per_word)
    less = form.version == 1 and form.method == "gptq"
    for column, digit in zip(along_n, digits(tensors["qzeros"]), strict=True):
        z[:, column::per_word] = (digit + less) % base
    if form.method == "awq":
        q = torch.empty(len(words), z.shape[1], dtype=torch.int64)
        for column, digit in zip(along_n, digits(words), strict=True):
            q[:, column::8] = digit
    else:
        q = torch.empty(per_word * len(words), z.shape[1], dtype=torch.int64)
        for row, digit in enumerate(digits(words)):
            q[row::per_word] = digit
    size = len(q) // len(z)
    g = tensors["g_idx"].long() if "g_idx" in tensors else torch.arange(len(q)) // size
    return ((q - z[g]).double() * scales[g]).to(form.dtype)


def state_of_int4(model: nn.Module, form: Form, skip: tuple[str, ...]) -> dict[str, Tensor]:
    """The model's state dict, Linears but those of skip quantised; floats in the form's dtype."""
    state = {name: x.detach().to(form.dtype) for name, x in model.state_dict().items()}
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear) and name not in skip:
            del state[f"{name}.weight"]
            tensors = stored(quantised(module.weight, form), form)
            state |= {f"{name}.{part}": x for part, x in tensors.items()}
    return {name: x.clone() for name, x in state.items()}


def layers_of(state: dict[str, Tensor]) -> dict[str, dict[str, Tensor]]:
    """The quantised layers of a state dict: name -> part -> tensor."""
    names = [key.removesuffix(".qweight") for key in state if key.endswith(".qweight")]
    return {
        name: {
            key.rpartition(".")[2]: x for key, x in state.items() if key.rpartition(".")[0] == name
        }
        for name in names
    }


def dequantised(model: nn.Module, state: dict[str, Tensor], form: Form) -> nn.Module:
    """The float reference: `model` with the weights that the checkpoint stands for."""
    floats = {name: x for name, x in state.items() if name in model.state_dict()}
    for name, tensors in layers_of(state).items():
        floats[f"{name}.weight"] = plainly(tensors, form).t()
    model.load_state_dict(floats)
    return model


class Toy(nn.Module):
    """A fused qkv, a layer without bias, and a head that stays float."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(20, 48)
        self.qkv = nn.Linear(48, 96)
        self.down = nn.Linear(32, 40, bias=False)
        self.head = nn.Linear(40, 5)

    def forward(self, ids: Tensor) -> Tensor:
        q, k, v = self.qkv(self.embed(ids)).chunk(3, -1)
        return self.head(self.down(q * torch.sigmoid(k) + v))


def toy() -> Toy:
    torch.manual_seed(0)
    return Toy().eval().requires_grad_(False)


def toy_state(form: Form) -> dict[str, Tensor]:
    return state_of_int4(toy(), form, ("head",))


def write_toy(folder: Path, form: Form, shards: int = 1, **change: Any) -> dict[str, Tensor]:
    """A checkpoint of `toy()`, whose state is returned; change: other tensors (None: missing)."""
    state = {**toy_state(form), **change}
    state = {name: x for name, x in state.items() if x is not None}
    write(folder, state, form.config(), shards)
    return state


def write_packed_toy(
    folder: Path,
    symmetric: bool = False,
    act_order: bool = False,
    bits: int = 4,
    group: int | None = GROUP,
) -> None:
    """`toy()` in compressed-tensors' packed form; group None: a scale for each output channel."""
    state = {name: x.half() for name, x in toy().state_dict().items()}
    for name in ("qkv", "down"):
        w = state.pop(f"{name}.weight")
        made = quantize_weight_grouped(
            w, bits=bits, group_size=group or -1, symmetric=symmetric, dtype=torch.float16
        )
        tensors = packed_tensors(made, bits) | {"weight_shape": torch.tensor(w.shape)}
        if act_order:
            k = w.shape[1]
            at = torch.randperm(k, generator=torch.Generator().manual_seed(k))
            tensors["weight_g_idx"] = (at // GROUP).int()
        state |= {f"{name}.{part}": x for part, x in tensors.items()}
    weights: dict[str, Any] = {"num_bits": bits, "symmetric": symmetric, "group_size": group}
    weights |= {"strategy": "group" if group else "channel"}
    weights |= {"actorder": "group"} if act_order else {}
    config = {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "ignore": ["head"],
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}},
    }
    write(folder, state, config)


def older_file(folder: Path, name: str, fields: dict[str, Any], form: Form) -> None:
    """A checkpoint whose settings are in a file beside config.json."""
    write(folder, toy_state(form), None)
    (folder / "config.json").write_text(json.dumps({"model_type": "toy"}))
    (folder / name).write_text(json.dumps(fields))


def changed(form: Form, **more: Any) -> Form:
    return replace(form, more={**form.more, **more})
