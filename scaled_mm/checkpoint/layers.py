"""The tensors of one quantised layer, as a checkpoint holds them and as `ScaledLinear` wants them.

NAME.weight             int8 [N, K]
NAME.weight_scale       float [N, 1] or [N] per channel, one element per tensor
NAME.bias               float [N], or absent
NAME.input_scale        float, one element: static
NAME.input_zero_point   integer or float, one element: static asymmetric
NAME.azp_with_adj       int32 [1, N]: static asymmetric, after `scaled-mm precompute`
NAME.azp_adj            int32 [1, N]: dynamic asymmetric, after `scaled-mm precompute`
NAME.input_smooth       float [K], or absent: 1 / s, by which activations are multiplied
NAME.input_rotate       int32 [1], or absent: the block of transform_config
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ..nn import MAX_K, ScaledLinear
from ..ops.azp import azp_adj, azp_with_adj
from ..quantization.compressed_tensors import W8A8Scheme
from .config import W8A8
from .folder import Checkpoint
from .layer import FLOATS, Layer, Part, QuantisedLayer, parts_by_module

_ZEROS = ("I8", "I16", "I32", "I64", *FLOATS)


@dataclass(frozen=True)
class Int8Layer(QuantisedLayer):
    """An int8 layer that was found in order: a `QuantisedLayer` and its scheme."""

    scheme: W8A8Scheme

    kind: ClassVar = ScaledLinear
    main: ClassVar[str] = "weight"

    def rules(self, checkpoint: Checkpoint) -> dict[str, Part]:
        n, k, scheme = self.n, self.k, self.scheme
        if scheme.rotate and k % scheme.rotate:
            rule = f"must have a multiple of {scheme.rotate} input features, which are rotated"
            self.refuse(checkpoint, "weight", f"{rule}, got {k}")
        one: tuple[tuple[int, ...], ...] = ((1,), (), (1, 1))
        channels: tuple[tuple[int, ...], ...] = ((n, 1), (n,), (1, n))
        term: tuple[tuple[int, ...], ...] = ((1, n), (n,))
        static = not scheme.dynamic
        return {
            "weight": Part(True, ("I8",), ((n, k),)),
            "weight_scale": Part(True, FLOATS, channels if scheme.per_channel else one),
            "weight_zero_point": Part(None, _ZEROS, None),
            "bias": Part(None, FLOATS, ((n,),)),
            "input_scale": Part(static, FLOATS, one),
            "input_zero_point": Part(None if scheme.symmetric else static, _ZEROS, one),
            "azp_adj": Part(None if scheme.term == "azp_adj" else False, ("I32",), term),
            "azp_with_adj": Part(None if scheme.term == "azp_with_adj" else False, ("I32",), term),
            "input_smooth": Part(None, FLOATS, ((k,),)),
            "input_rotate": Part(None, ("I32",), ((1,),)),
        }

    def module(self, checkpoint: Checkpoint, biased: bool) -> ScaledLinear:
        made = ScaledLinear(
            self.k,
            self.n,
            biased,
            dynamic=self.scheme.dynamic,
            symmetric=self.scheme.symmetric,
            per_token=self.scheme.per_token,
            rotate=self.scheme.rotate,
        )
        made.load_state_dict(self.state(checkpoint))
        return made

    def zero_point(self, checkpoint: Checkpoint) -> Tensor | None:
        """The static zero point, int32 [1]: kept as it is, or rounded half to even where it was
        stored as a float. None: the scheme has none."""
        if self.scheme.term != "azp_with_adj":
            return None
        stored = self.read(checkpoint, "input_zero_point").reshape(1)
        value = float(stored)
        if not (torch.isfinite(stored.double()) and -128 <= round(value) <= 127):
            self.refuse(checkpoint, "input_zero_point", f"must be in -128..127, got {value:g}")
        return stored.round().to(torch.int32) if stored.is_floating_point() else stored.int()

    def term(self, weight: Tensor, zero_point: Tensor | None) -> Tensor:
        """The azp term of rows [n, K] of the weight: int32 [1, n]."""
        b = weight.t()
        return azp_adj(b) if zero_point is None else azp_with_adj(b, zero_point)

    def state(self, checkpoint: Checkpoint) -> dict[str, Tensor]:
        """What `ScaledLinear.load_state_dict` takes.

        Raises:
            ValueError: a value is out of its range, or a stored azp term is not that of the weight.
        """
        weight = self.read(checkpoint, "weight")
        state = {"weight": weight}
        scale = self.read(checkpoint, "weight_scale").float().reshape(-1, 1)
        state["weight_scale"] = scale.expand(self.n, 1).contiguous()
        if "bias" in self.parts:
            state["bias"] = self.read(checkpoint, "bias").float()
        if not self.scheme.dynamic:
            state["input_scale"] = self.read(checkpoint, "input_scale").float().reshape(1)
        if "input_smooth" in self.parts:
            state["input_smooth"] = self.read(checkpoint, "input_smooth").float()
        block = torch.tensor([self.scheme.rotate or 0], dtype=torch.int32)
        if "input_rotate" in self.parts and self.read(checkpoint, "input_rotate").ne(block).any():
            self.refuse(checkpoint, "input_rotate", f"must be transform_config's, {int(block)}")
        if self.scheme.rotate:
            state["input_rotate"] = block
        for part in ("weight_scale", "input_scale", "input_smooth"):
            x = state.get(part)
            if x is not None and not bool(((x >= 0) & x.isfinite()).all()):
                self.refuse(checkpoint, part, "must be finite and not negative")
        zero_point = self.zero_point(checkpoint)
        if zero_point is not None:
            state["input_zero_point"] = zero_point
        self.check_zeros(checkpoint)
        if self.scheme.term is not None:
            term = self.term(weight, zero_point)
            self.check_term(checkpoint, term)
            state[self.scheme.term] = term
        return state

    def check_term(self, checkpoint: Checkpoint, term: Tensor) -> None:
        """A stored azp term must be what follows from weight and zero point."""
        name = self.scheme.term
        if name in self.parts and not torch.equal(self.read(checkpoint, name).view(1, -1), term):
            self.refuse(checkpoint, name, "is not the one that weight and zero point give")

    def check_zeros(self, checkpoint: Checkpoint) -> None:
        """Zero points that the scheme says are none may be stored, as zeros."""
        parts = ["weight_zero_point"] + ["input_zero_point"] * self.scheme.symmetric
        for part in parts:
            if part in self.parts and bool(self.read(checkpoint, part).ne(0).any()):
                self.refuse(checkpoint, part, "must be 0 in a symmetric scheme")


def int8_layers(checkpoint: Checkpoint, settings: W8A8) -> dict[str, Int8Layer]:
    """Every layer with an int8 weight, by name; only headers are looked at.

    Raises:
        ValueError: a tensor of such a layer is missing, not understood, or of another dtype or
            shape than its scheme says; or there is int8 that belongs to no layer.
    """

    def make(name: str, n: int, k: int, parts: frozenset[str]) -> Int8Layer | None:
        scheme = settings.scheme_of(name)
        return None if scheme is None else Int8Layer(name, n, k, parts, scheme)

    return layers_in_bytes(checkpoint, "weight_scale", make)


def layers_in_bytes(
    checkpoint: Checkpoint,
    scale_part: str,
    make: Callable[[str, int, int, frozenset[str]], Layer | None],
) -> dict[str, Layer]:
    """A layer of each module that has an int8 weight, made of name, N, K and parts; None: the
    config leaves it float. Raises as `int8_layers`."""
    siblings = parts_by_module(checkpoint)
    layers: dict[str, Layer] = {}
    for tensor, file in checkpoint.where.items():
        entry = file.entries[tensor]
        name, _, part = tensor.rpartition(".")
        if entry.dtype == "I8" and len(entry.shape) > 1 and not part.endswith("_zero_point"):
            if not name or part != "weight" or len(entry.shape) != 2:
                raise ValueError(f"{file.path}: {tensor}, int8 {entry.shape}, is not understood")
            layer = make(name, *entry.shape, frozenset(siblings[name]))
            if layer is None:
                raise ValueError(
                    f"{file.path}: {tensor} is int8, but quantization_config leaves {name} float"
                )
            if not layer.n or not layer.k:  # no bytes in the file, and azp terms of any size
                layer.refuse(checkpoint, part, f"must have elements, got shape {[*entry.shape]}")
            if layer.k > MAX_K:  # products of its K must fit int32
                rule = f"must have at most {MAX_K} input features"
                layer.refuse(checkpoint, part, f"{rule}, got {layer.k}")
            layer.check(checkpoint)
            layers[name] = layer
        elif part == scale_part and _dtype(checkpoint, f"{name}.weight") != "I8":
            raise ValueError(f"{file.path}: {tensor} has no int8 {name}.weight beside it")
    return layers


def _dtype(checkpoint: Checkpoint, tensor: str) -> str | None:
    return checkpoint.entry(tensor).dtype if tensor in checkpoint else None
