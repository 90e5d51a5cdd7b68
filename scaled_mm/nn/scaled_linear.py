"""`ScaledLinear`: an `nn.Linear` whose product runs in int8."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

import torch
from torch import Tensor, nn

from ..ops import (
    PackedWeight,
    azp_adj,
    azp_with_adj,
    quantize_int8,
    quantize_weight_int8,
    scaled_mm,
)
from ..ops.arguments import accept_dense, must_be_size
from ..ops.eager import quantized_product
from ..ops.int8 import accepted
from .one_weight import OneWeight
from .produced import Produced

_ENTRIES = 9
"""Buffers of a layer, those that are None included."""
MAX_K = 131071
"""Input features at most: of more an int32 sum of products could wrap."""


class ScaledLinear(nn.Module):
    """A linear layer with an int8 weight and activations quantised on the way in.

        y = scale_a * weight_scale * (q - azp) weight.T + bias,   q, scale_a, azp = quantize(x')
        x' = x, or float32(x) * input_smooth

    Four schemes, by two switches. Dynamic: scale (and zero point) from each token at run time, or
    from the whole activation with per_token=False. Static: calibrated beforehand, per tensor; then
    the zero point's share of the product is precomputed. Asymmetric schemes have zero points and
    suit activations that lie to one side, such as those after GELU or ReLU. Smoothing
    (`scaled_mm.smoothquant`) divides each input channel by s_j and multiplies the weight by it. The
    buffer holds 1 / s_j: a product is rounded alike everywhere, a compiler's quotient is not.

    Buffers, all in the state dict (names of compressed-tensors where it has them):
        weight            int8 [N, K]
        weight_scale      float32 [N, 1]
        bias              float32 [N], or None
        input_scale       float32 [1], static
        input_zero_point  int32 [1], static asymmetric
        azp_with_adj      int32 [1, N], static asymmetric
        azp_adj           int32 [1, N], dynamic asymmetric
        input_smooth      float32 [K], smoothed, unless a norm in front divides

    A state dict without the azp terms, or with input_smooth where there was none, is loaded all the
    same: the terms follow from the weight. `folded_smooth`, float32 [K] or None, is the s that a
    norm in front was divided by; it is for validation only and not in the state dict
    (`scaled_mm.validate` finds it again by the norms' weights). `smooth_alpha`, a float or None, is
    the alpha that `quantize_model` smoothed by; it is for the eye only, and not there either.

    Scales and bias stay float32 when the module is moved to another dtype; the output has the dtype
    of the input.

    The weight is kept once. On the CPU it is kept packed for the kernels (`pack_weight_int8`), and
    so it is on CUDA unless in_features is a multiple of 16: then the kernels read the plain one.
    Reading `weight` in any way (also through `state_dict()`, `named_buffers()`, `.to()`) rebuilds
    the plain tensor, which then is the layer's weight, to be written and replaced as in any module:
    the next call computes with what it holds. That call packs it again, unless somebody still holds
    the tensor or another of the same memory. While somebody does, the layer computes with the plain
    weight: the bits are the same, but calls with few tokens take much longer. `pack()` packs
    whoever holds what. Three things to know:

    - The azp terms are buffers of their own: who writes a weight with zero points writes them too.
    - Memory that numpy or another library shares with an assigned tensor is not followed.
    - `torch.compile` decides between packed and plain when it traces, as the weight is then; it
      traces once more if that changes. A compiled layer does not pack by itself: call `pack()`
      after reading or writing weights. An exported program uses the plain weight.

    Make one with `from_linear`.
    """

    weight: Tensor
    weight_scale: Tensor
    bias: Tensor | None
    input_scale: Tensor | None
    input_zero_point: Tensor | None
    azp_with_adj: Tensor | None
    azp_adj: Tensor | None
    input_smooth: Tensor | None
    folded_smooth: Tensor | None
    _buffers: OneWeight

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        *,
        dynamic: bool = True,
        symmetric: bool = True,
        per_token: bool | None = None,
        smooth: bool = False,
        device: torch.device | str | None = None,
    ) -> None:
        """An empty layer, to load a state dict into. per_token None: per token when dynamic;
        smooth: with input_smooth."""
        super().__init__()
        self._buffers = OneWeight()
        if per_token and not dynamic:
            raise ValueError("per_token must be False when dynamic=False, got per_token=True")
        must_be_size("in_features", in_features)
        must_be_size("out_features", out_features)
        self.in_features = in_features
        self.out_features = out_features
        self.dynamic = dynamic
        self.symmetric = symmetric
        self.per_token = dynamic if per_token is None else per_token
        n, k = out_features, in_features
        made: Mapping[str, tuple[bool, tuple[int, ...], torch.dtype]] = {
            "weight": (True, (n, k), torch.int8),
            "weight_scale": (True, (n, 1), torch.float32),
            "bias": (bias, (n,), torch.float32),
            "input_scale": (not dynamic, (1,), torch.float32),
            "input_zero_point": (not dynamic and not symmetric, (1,), torch.int32),
            "azp_with_adj": (not dynamic and not symmetric, (1, n), torch.int32),
            "azp_adj": (dynamic and not symmetric, (1, n), torch.int32),
            "input_smooth": (smooth, (k,), torch.float32),
        }
        # Absent ones last: torch.export counts them when it numbers the buffers.
        for name, (present, shape, dtype) in sorted(made.items(), key=lambda item: not item[1][0]):
            buffer = torch.zeros(shape, dtype=dtype, device=device) if present else None
            self.register_buffer(name, buffer)
        self.register_buffer("folded_smooth", None, persistent=False)
        self.smooth_alpha: float | None = None

    @classmethod
    def from_linear(
        cls,
        linear: nn.Linear,
        *,
        dynamic: bool = True,
        symmetric: bool = True,
        per_token: bool | None = None,
        input_scale: Tensor | float | None = None,
        input_azp: Tensor | int | None = None,
        smooth: Tensor | None = None,
        folded: bool = False,
    ) -> ScaledLinear:
        """Quantises the weight of a float layer, per output channel.

            weight_scale, weight = quantise(W),   or of float32(W) * smooth

        Args:
            linear: the layer; left as it is.
            dynamic: quantise activations by their own range at run time, else by input_scale.
            symmetric: without zero points.
            per_token: dynamic only: a scale for each token (the default), or one for all.
            input_scale: static: the activation's scale, one element.
            input_azp: static asymmetric: the activation's zero point, one element. Scale and zero
                point of a calibrated range [lo, hi] are those of
                `quantize_int8(torch.tensor([lo, hi]), symmetric=False, per_token=False)`. With
                smooth they are those of the smoothed activation.
            smooth: float [K], positive: SmoothQuant's s. The weight is multiplied by it and the
                activation by 1 / s (`scaled_mm.smoothquant`).
            folded: whether the activation comes divided by s already, by the norm in front.

        Raises:
            ValueError: static without input_scale, or input_scale or input_azp where the scheme has
                none; input_scale that is not one positive finite value; smooth that is not K
                positive finite values; folded without smooth.
        """
        if folded and smooth is None:
            raise ValueError("smooth must be given with folded=True, got None")
        if smooth is not None:
            smooth = divisors(smooth, linear)
        layer = cls(
            linear.in_features,
            linear.out_features,
            linear.bias is not None,
            dynamic=dynamic,
            symmetric=symmetric,
            per_token=per_token,
            smooth=smooth is not None and not folded,
            device=linear.weight.device,
        )
        given = {"input_scale": input_scale, "input_zero_point": input_azp}
        for name, value in given.items():
            argument = {"input_zero_point": "input_azp"}.get(name, name)
            buffer = getattr(layer, name)
            if (value is None) != (buffer is None):
                scheme = f"dynamic={dynamic} and symmetric={symmetric}"
                rule = "not be given" if buffer is None else "be given"
                raise ValueError(f"{argument} must {rule} with {scheme}, got {value}")
            if buffer is not None:
                buffer.copy_(_one(argument, value))
        weight = linear.weight.detach()
        if smooth is not None:
            weight = weight.float() * smooth
            if folded:
                layer.folded_smooth = smooth
            else:
                cast(Tensor, layer.input_smooth).copy_(1 / smooth)
        q, scale = quantize_weight_int8(weight)
        layer.weight = q
        layer.weight_scale.copy_(scale.view(-1, 1))
        if layer.bias is not None:
            layer.bias.copy_(linear.bias.detach())
        if layer.azp_adj is not None:
            layer.azp_adj.copy_(azp_adj(q.t()))
        if layer.azp_with_adj is not None and layer.input_zero_point is not None:
            layer.azp_with_adj.copy_(azp_with_adj(q.t(), layer.input_zero_point))
        layer.pack()
        return layer

    def pack(self) -> None:
        """Packs the weight for the kernels, where they do not read the plain one as well.

        Tensors that were read from `weight` or a state dict before are the layer's no longer:
        writing into them changes nothing.
        """
        self._buffers.settle(cut=True)

    def quantize_input(self, x: Any) -> tuple[Tensor, Tensor, Tensor | None]:
        """What the product is made of: q int8 [..., K], its scale, and its zero point or None. What
        a fused norm or activation produced is that already."""
        if isinstance(x, Produced):
            return x.q, x.scale, x.azp
        return quantize_int8(
            x if (smooth := self._small("input_smooth")) is None else x.float() * smooth,
            scale=None if self.dynamic else self._small("input_scale"),
            azp=None if self.dynamic else self._small("input_zero_point"),
            symmetric=self.symmetric,
            per_token=self.per_token,
        )

    def forward(self, x: Any) -> Tensor:
        if (product := self._product_at_once(x)) is not None:
            return product
        q, scale, azp = self.quantize_input(x)
        return self._product(q, scale, azp if self.dynamic else None, x.dtype)

    def _product_at_once(self, x: Any) -> Tensor | None:
        """The layer's output where it quantises by each token's own range, without zero points: two
        kernels behind one op. None where that is not so, or where the general way has to look."""
        buffers = self._buffers
        if (
            not self.per_token
            or not self.symmetric
            or len(buffers) != _ENTRIES
            or not isinstance(x, Tensor)
            or torch.compiler.is_compiling()
        ):
            return None
        read = dict.__getitem__
        if read(buffers, "input_smooth") is not None:
            return None
        weight = self._weight_for_kernels()
        if not isinstance(weight, PackedWeight):
            return None
        scale_b, bias = read(buffers, "weight_scale"), read(buffers, "bias")
        return quantized_product(x, weight, cast(Tensor, scale_b), bias)

    def _product(
        self, q: Tensor, scale: Tensor, azp: Tensor | None, out_dtype: torch.dtype
    ) -> Tensor:
        buffers = self._buffers
        if len(buffers) != _ENTRIES or torch.compiler.is_compiling():  # as in `_small`
            return scaled_mm(
                q,
                self._weight_for_kernels(),
                scale,
                self.weight_scale.view(1, -1),
                bias=self.bias,
                azp=azp,
                azp_adj=self.azp_adj,
                azp_with_adj=self.azp_with_adj,
                out_dtype=out_dtype,
            )
        read = dict.__getitem__
        given: dict[str, Any] = {} if azp is None else {"azp": azp}
        for name in ("bias", "azp_adj", "azp_with_adj"):
            if (buffer := read(buffers, name)) is not None:
                given[name] = buffer
        scale_b = cast(Tensor, read(buffers, "weight_scale")).view(1, -1)
        return accepted(q, self._weight_for_kernels(), scale, scale_b, out_dtype, given)

    def _small(self, name: str) -> Any:
        """A buffer other than the weight. As an attribute it takes 0.8 us, by the Python code of
        nn.Module and of OneWeight; a small product takes five. A trace wants attributes, and where
        entries are missing somebody has put something else in their place."""
        buffers = self._buffers
        if len(buffers) != _ENTRIES or torch.compiler.is_compiling():
            return getattr(self, name)
        return dict.__getitem__(buffers, name)

    def _weight_for_kernels(self) -> Tensor | PackedWeight:
        compiling = torch.compiler.is_compiling()
        packed = self._buffers.packed if compiling else self._buffers.for_product()
        return self.weight.t() if packed is None else packed

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> ScaledLinear:
        dtypes = {name: x.dtype for name, x in self._buffers.items() if x is not None}
        before = dict(self._buffers.items())
        super()._apply(fn, recurse)
        for name, dtype in dtypes.items():
            moved = cast(Tensor, self._buffers[name])
            if moved.dtype != dtype:  # the values as they were, not as the other dtype rounds them
                self._buffers[name] = cast(Tensor, before[name]).to(moved.device)
        before.clear()
        self._buffers.settle()
        return self

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        buffers: dict[str, Tensor | None] = self._buffers
        if not isinstance(buffers, OneWeight):  # pickled by an earlier version
            self._buffers = OneWeight(buffers)
            self.__dict__.pop("_packed", None)
            self.__dict__.setdefault("smooth_alpha", None)

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, *args: Any, **kwargs: Any
    ) -> None:
        n, k = self.out_features, self.in_features
        smooth, weight = state_dict.get(prefix + "input_smooth"), state_dict.get(prefix + "weight")
        if smooth is not None and self.input_smooth is None:
            self.input_smooth = torch.empty(k, device=self.weight_scale.device)
        if weight is not None and weight.shape == (n, k) and weight.dtype == torch.int8:
            for name, value in self._azp_terms(weight, state_dict, prefix).items():
                state_dict.setdefault(prefix + name, value)
        dtypes = {name: x.dtype for name, x in self._buffers.items() if x is not None}
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)
        for name, dtype in dtypes.items():  # assign=True takes tensors as they are
            self._buffers[name] = cast(Tensor, self._buffers[name]).to(dtype)
        self._buffers.settle()

    def _azp_terms(
        self, weight: Tensor, state_dict: Mapping[str, Any], prefix: str
    ) -> dict[str, Tensor]:
        """The terms that this scheme needs and state_dict lacks."""
        if self.azp_adj is not None and prefix + "azp_adj" not in state_dict:
            return {"azp_adj": azp_adj(weight.t())}
        zero = state_dict.get(prefix + "input_zero_point")
        if self.azp_with_adj is None or prefix + "azp_with_adj" in state_dict or zero is None:
            return {}
        zero = zero.to(weight.device, torch.int32).reshape(1)
        return {"azp_with_adj": azp_with_adj(weight.t(), zero)}

    def extra_repr(self) -> str:
        return (
            f"in_features={self.in_features}, out_features={self.out_features}, "
            f"bias={self.bias is not None}, dynamic={self.dynamic}, symmetric={self.symmetric}, "
            f"per_token={self.per_token}, smooth={self.input_smooth is not None}"
        )


def _one(argument: str, value: Any) -> Tensor:
    """A static scale or zero point as it was given, in shape [1]."""
    given = torch.as_tensor(value)
    if given.numel() != 1:
        raise ValueError(f"{argument} must have one element, got shape {tuple(given.shape)}")
    if argument == "input_scale" and not (given > 0 and given.isfinite()):
        raise ValueError(f"{argument} must be positive and finite, got {given.item():g}")
    return given.reshape(1)


_SMOOTH = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def divisors(smooth: Tensor, linear: nn.Linear) -> Tensor:
    """SmoothQuant's s as the layer keeps it: float32 [K], on the weight's device."""
    accept_dense({"smooth": smooth.detach() if isinstance(smooth, Tensor) else smooth})
    shape = (linear.in_features,)
    rule = f"smooth must be positive and finite, of shape {shape}, got"
    if smooth.shape != shape or smooth.dtype not in _SMOOTH or smooth.is_meta:
        raise ValueError(f"{rule} {smooth.dtype} of shape {tuple(smooth.shape)} on {smooth.device}")
    if not bool(((smooth > 0) & smooth.isfinite()).all()):
        raise ValueError(f"{rule} least {smooth.min():g}, largest {smooth.max():g}")
    return smooth.detach().to(linear.weight.device, torch.float32)
