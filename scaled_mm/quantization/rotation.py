"""`rotate`: a float model whose activations are spread over their channels before quantisation.

An orthogonal R mixes channels, so that an outlier in one becomes a little of all. R is folded into
weights, and nothing is computed at run time. With rows for tokens, the weights W [N, K] of Linears:

    residual stream  h' = h R: rows of the embedding, W R where h is read, R.t() W where written
    values           v' = v S for each head: S.t() W of v_proj, W S of o_proj

The weights of the norms that read h go into the Linears behind them first, since an RMSNorm without
a weight does not see R. R is block diagonal. Its blocks are one Hadamard matrix, with random signs
for its rows, divided by the root of its size. Every layer has an S of its own.

Source: QuaRot (Ashkboos et al., 2024), SpinQuant (Liu et al., 2024); SliceGPT (Ashkboos et al.,
2024) for the norms' weights.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from .._torch import tree_leaves
from ..ops.rotate import rotated
from .observe import Call, evaluating

_NORMS = {
    "input_layernorm": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "post_attention_layernorm": ("mlp.gate_proj", "mlp.up_proj"),
}
_WRITERS = ("self_attn.o_proj", "mlp.down_proj")
EMBEDDING, _LAYERS, HEAD = "model.embed_tokens", "model.layers", "lm_head"
Part = TypeVar("Part", bound=nn.Module)
_TOLERANCE = 1e-3
"""Of the output's norm, as the rotated model may differ in float32."""


@dataclass(frozen=True)
class Rotation:
    """Which rotations `quantize_model` folds into the weights of a Llama-like or Qwen-like model.

    Args:
        residual: rotate the residual stream.
        value_output: rotate each head's values, and back in o_proj.
        block: rows of a block of the residual stream's R, a power of two that divides the stream's
            width; None: the largest.
        head_block: the same of the values; it divides a head's size.
        seed: of the signs. The same seed, blocks and model give the same weights.
        ranks: over how many the model will be cut: each share of o_proj has whole blocks.

    Raises:
        ValueError: neither rotation is asked for; a block is no power of two from 2 on; ranks is
            below 1.
    """

    residual: bool = True
    value_output: bool = True
    block: int | None = None
    head_block: int | None = None
    seed: int = 0
    ranks: int = 1

    def __post_init__(self) -> None:
        if not (self.residual or self.value_output):
            raise ValueError("residual or value_output must be True, got False for both")
        for name in ("block", "head_block"):
            size = getattr(self, name)
            if size is not None and (size < 2 or size & (size - 1)):
                raise ValueError(f"{name} must be a power of two from 2 on, got {size}")
        if self.ranks < 1:
            raise ValueError(f"ranks must be at least 1, got {self.ranks}")


@dataclass(frozen=True)
class _Turn:
    """R: random signs [block], repeated, then blocks of a Hadamard matrix."""

    signs: Tensor

    @classmethod
    def of(cls, block: int, generator: torch.Generator) -> _Turn:
        return cls(2 * torch.randint(0, 2, (block,), generator=generator) - 1)

    def __call__(self, x: Tensor) -> Tensor:
        """x [..., K] R."""
        signed = x.reshape(-1, len(self.signs)) * self.signs.to(x.device, x.dtype)
        return rotated(signed.reshape(x.shape), len(self.signs))


@dataclass
class Fold:
    """What becomes of a parameter: x * gain, R on its columns, R on its rows; or ones."""

    gain: Tensor | None = None
    reads: _Turn | None = None
    writes: _Turn | None = None
    ones: bool = False

    def __call__(self, x: Tensor) -> Tensor:
        if self.ones:
            return torch.ones_like(x)
        made = x.to(torch.promote_types(x.dtype, torch.float32))
        if self.gain is not None:
            made = made * self.gain
        if self.reads is not None:
            made = self.reads(made)
        if self.writes is not None:
            made = self.writes(made.t()).t().contiguous()
        return made.to(x.dtype)


def _parameter(values: Tensor, old: Tensor) -> nn.Parameter:
    return nn.Parameter(values, requires_grad=old.requires_grad)


@dataclass(frozen=True)
class Folding:
    """What becomes of a model's parameters, by name; of those without a fold nothing.

    Attributes:
        rotation: with the blocks that were taken.
    """

    rotation: Rotation
    folds: Mapping[str, Fold]

    def __call__(self, name: str, x: Tensor) -> Tensor:
        return self.folds[name](x) if name in self.folds else x


@torch.no_grad()
def rotate(model: nn.Module, rotation: Rotation, call: Call) -> Rotation:
    """Folds the rotations into the model's weights, and runs it before and after.

    The first floating output must stay what it was: within 1e-3 of its norm in float32, within 8
    roundings of the output's dtype where those are more.

    Args:
        model: float, its layers under transformers' names of Llama and Qwen; changed in place. A
            head that shares the embedding's weight gets its own.
        rotation: what to fold.
        call: a batch.

    Returns:
        `rotation` with the blocks that were taken.

    Raises:
        ValueError: the model has other layers, or a block does not divide a width or a share; the
            model is as it was. Or its output changed: then it is not to be used.
    """
    folding = folding_of(model, rotation, lambda name: attrgetter(name)(model).detach())
    before = output_of(model, call)
    if rotation.residual:
        untie(model)
    for name, fold in folding.folds.items():
        path, _, leaf = name.rpartition(".")
        owner = model.get_submodule(path)
        old = getattr(owner, leaf)
        setattr(owner, leaf, _parameter(fold(old.detach()), old))
    check_output(before, output_of(model, call))
    return folding.rotation


def check_output(before: Tensor, after: Tensor) -> None:
    """ValueError where a rotation changed a model's output by more than `rotate` allows."""
    bound = max(_TOLERANCE, 8 * torch.finfo(before.dtype).eps)
    off = float((after.double() - before.double()).norm() / before.double().norm())
    if not off <= bound:
        rule = f"leave the model's output as it was, within {bound:.1g} of its norm"
        raise ValueError(f"rotation must {rule}, got {off:.1g}: the model is not like Llama")


def untie(model: nn.Module) -> None:
    """Gives the head a weight of its own; transformers' config says so from then on."""
    head = _part(model, HEAD, nn.Linear)
    if head.weight is _part(model, EMBEDDING, nn.Embedding).weight:
        head.weight = _parameter(head.weight.detach().clone(), head.weight)
    config: Any = getattr(model, "config", None)
    if hasattr(config, "tie_word_embeddings"):
        config.tie_word_embeddings = False


def folding_of(model: nn.Module, rotation: Rotation, read: Callable[[str], Tensor]) -> Folding:
    """What a rotation makes of a model, which may be on the meta device; `read` gives the weight of
    a norm, by its name.

    Raises:
        ValueError: as `rotate`, but for a changed output.
    """
    generator = torch.Generator().manual_seed(rotation.seed)
    folds: dict[str, Fold] = {}
    if rotation.residual:
        width = _part(model, EMBEDDING, nn.Embedding).embedding_dim
        block = _block("block", rotation.block, width, f"the width of {EMBEDDING}")
        rotation = dataclasses.replace(rotation, block=block)
        turn = _Turn.of(block, generator)
        folds[f"{EMBEDDING}.weight"] = Fold(reads=turn)
        for norm, readers in _norms(model):
            folds[f"{norm}.weight"] = Fold(ones=True)
            for name in readers:
                folds[f"{name}.weight"] = Fold(read(f"{norm}.weight"), turn)
        for layer in _layers(model):
            for name in _WRITERS:
                _writes(model, folds, f"{layer}.{name}", turn)
    for layer in _layers(model) if rotation.value_output else ():
        v, o = (f"{layer}.self_attn.{x}_proj" for x in "vo")
        size = _head_size(model, layer)
        block = _block("head_block", rotation.head_block, size, f"a head of {layer}.self_attn")
        rotation = dataclasses.replace(rotation, head_block=block)
        share = _part(model, o, nn.Linear).in_features / rotation.ranks
        if share % block:
            whose = f"the share of {o} of each of {rotation.ranks} ranks"
            raise ValueError(f"head_block must divide {whose} ({share:g}), got {block}")
        of_values = _Turn.of(block, generator)
        _writes(model, folds, v, of_values)
        folds.setdefault(f"{o}.weight", Fold()).reads = of_values
    return Folding(rotation, folds)


def _writes(model: nn.Module, folds: dict[str, Fold], name: str, turn: _Turn) -> None:
    """R on what a Linear puts out."""
    folds.setdefault(f"{name}.weight", Fold()).writes = turn
    if _part(model, name, nn.Linear).bias is not None:
        folds[f"{name}.bias"] = Fold(writes=turn)


def _block(argument: str, given: int | None, width: int, whose: str) -> int:
    block = width & -width if given is None else given
    if block < 2 or width % block:
        got = f"{block}" if given is not None else "no power of two that does"
        raise ValueError(f"{argument} must divide {whose} ({width}), got {got}")
    return block


def _part(model: nn.Module, name: str, kind: type[Part]) -> Part:
    """A module of the model; ValueError where it is absent or of another kind."""
    found: Any = model
    for step in name.split("."):
        found = getattr(found, step, None)
    if not isinstance(found, kind):
        got = "none" if found is None else f"a {type(found).__name__}"
        rule = f"have {name}, a {kind.__name__}, to be rotated"
        raise ValueError(f"model must {rule}, got {got}")
    return found


def _layers(model: nn.Module) -> list[str]:
    return [f"{_LAYERS}.{name}" for name, _ in _part(model, _LAYERS, nn.Module).named_children()]


def _norms(model: nn.Module) -> Iterator[tuple[str, list[str]]]:
    """Each norm of the residual stream, and the Linears that read it."""
    named = [
        (f"{layer}.{norm}", [f"{layer}.{reader}" for reader in readers])
        for layer in _layers(model)
        for norm, readers in _NORMS.items()
    ]
    for name, readers in [*named, ("model.norm", [HEAD])]:
        norm: Any = _part(model, name, nn.Module)
        if isinstance(norm, nn.LayerNorm) or not isinstance(getattr(norm, "weight", None), Tensor):
            raise ValueError(f"{name} must be an RMSNorm, got a {type(norm).__name__}")
        for reader in readers:
            _part(model, reader, nn.Linear)
        yield name, readers


def _head_size(model: nn.Module, layer: str) -> int:
    attention = _part(model, f"{layer}.self_attn", nn.Module)
    size = getattr(attention, "head_dim", None)
    if not isinstance(size, int):
        raise ValueError(f"{layer}.self_attn must have head_dim, an int, got {size}")
    return size


def output_of(model: nn.Module, call: Call) -> Tensor:
    """The first floating tensor that a model returns; ValueError where there is none."""
    with evaluating(model):
        leaves = tree_leaves(call(model))
    found = (x for x in leaves if isinstance(x, Tensor) and x.is_floating_point())
    if (output := next(found, None)) is None:
        raise ValueError("model must have a floating output, to be rotated, got none")
    return output
