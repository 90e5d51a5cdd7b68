"""`ScaledLinear`: an `nn.Linear` whose product runs in int8."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.compiler import is_compiling

from .._arguments import accept_dense, explained, may_go_short, must_be_size
from ..ops.azp import azp_adj, azp_with_adj
from ..ops.gradients import accept_activation, linear_product
from ..ops.int8 import scaled_mm
from ..ops.linear import scaled_linear
from ..ops.packed_weight import PackedWeight
from ..ops.quantize import quantize_int8, quantize_weight_int8
from ..ops.rotate import block_given
from ..ops.shapes import must_rotate
from .int8_layer import Int8Layer
from .together import Part, Together

_ENTRIES = 10
"""Buffers of a packed layer, those that are None included."""
MAX_K = 131071
"""Input features at most: of more an int32 sum of products could wrap."""


class ScaledLinear(Int8Layer):
    """A linear layer with an int8 weight and activations quantised on the way in.

        y = scale_a * weight_scale * (q - azp) weight.T + bias,   q, scale_a, azp = quantize(x')
        x' = x, or float32(x) * input_smooth; rotated, if the layer has a rotation

    Four schemes, by two switches. Dynamic: scale (and zero point) from each token at run time, or
    from the whole activation with per_token=False. Static: calibrated beforehand, per tensor; then
    the zero point's share of the product is precomputed. Asymmetric schemes have zero points and
    suit activations that lie to one side, such as those after GELU or ReLU. Smoothing
    (`scaled_mm.Smoothing`) divides each input channel by s_j and multiplies the weight by it. The
    buffer holds 1 / s_j: a product is rounded alike everywhere, a compiler's quotient is not.
    A rotation (`rotate` of `quantize_int8`) spreads outliers over blocks of columns at run time;
    the weight is rotated alike, so that the product stays what it was.

    Buffers, all in the state dict (names of compressed-tensors where it has them):
        weight            int8 [N, K]
        weight_scale      float32 [N, 1]
        bias              float32 [N], or None
        input_scale       float32 [1], static
        input_zero_point  int32 [1], static asymmetric
        azp_with_adj      int32 [1, N], static asymmetric
        azp_adj           int32 [1, N], dynamic asymmetric
        input_smooth      float32 [K], smoothed, unless a norm in front divides
        input_rotate      int32 [1], rotated: the attribute `rotate`, columns of a block

    A state dict without the azp terms, or with input_smooth or input_rotate where there was none,
    is loaded all the same: the terms follow from the weight. `folded_smooth`, float32 [K] or None,
    is the s that a norm in front was divided by; it is for validation only and not in the state
    dict (`scaled_mm.validate` finds it again by the norms' weights). `smooth_alpha`, a float or
    None, is the alpha that `quantize_model` smoothed by; it is for the eye only, and not there.

    Gradients of x and the bias pass (docs/tutorials/training.md); the weight has none.

    Scales and bias stay float32 when the module is moved to another dtype; the output has the dtype
    of the input.

    The weight is kept once, laid out for the kernels of its device (`pack_weight_int8`) in the
    buffer `kernel_weight`, which is not in the state dict. State dicts and pickles hold the plain
    int8 weight. `weight` and `weight_int8` give copies: writing into them changes nothing. A weight
    is written by `set_weight` or `load_state_dict`. `unpack()` puts the plain weight in the packed
    one's place, as a buffer of the name "weight", for an exported program that is to run elsewhere;
    `pack()` undoes that. Every product has the same bits either way.

    Make one with `from_linear`.
    """

    bias: Tensor | None
    input_scale: Tensor | None
    input_rotate: Tensor | None
    together: Together | None = None  # with whom it shares its input
    part: Part | None = None  # of the buffers that they share
    folded_smooth: Tensor | None

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
        rotate: int | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        """An empty layer, to load a state dict into. per_token None: per token when dynamic;
        smooth: with input_smooth; rotate: as for `quantize_int8`."""
        super().__init__()
        if per_token and not dynamic:
            raise ValueError("per_token must be False when dynamic=False, got per_token=True")
        must_be_size("in_features", in_features)
        must_be_size("out_features", out_features)
        if in_features > MAX_K:
            raise ValueError(f"in_features must be at most {MAX_K}, got {in_features}")
        self.rotate = block_given(rotate)
        must_rotate(self.rotate, in_features)
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
        for name, (present, shape, dtype) in made.items():
            buffer = torch.zeros(shape, dtype=dtype, device=device) if present else None
            self._buffers[name] = buffer  # the name `weight` is a property's
        self._buffers["input_rotate"] = self._rotation(device) if rotate else None
        self.register_buffer("folded_smooth", None, persistent=False)
        self.smooth_alpha: float | None = None
        self._begin()
        self.pack()

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
        rotate: int | None = None,
    ) -> ScaledLinear:
        """Quantises the weight of a float layer, per output channel.

            weight_scale, weight = quantise(W),   or of float32(W) * smooth;   rotated

        Args:
            linear: the layer; left as it is.
            dynamic: quantise activations by their own range at run time, else by input_scale.
            symmetric: without zero points.
            per_token: dynamic only: a scale for each token (the default), or one for all.
            input_scale: static: the activation's scale, one element.
            input_azp: static asymmetric: the activation's zero point, one element. Scale and zero
                point of a calibrated range [lo, hi] are those of
                `quantize_int8(torch.tensor([lo, hi]), symmetric=False, per_token=False)`. With
                smooth they are those of the smoothed activation, with rotate of the rotated one.
            smooth: float [K], positive: SmoothQuant's s. The weight is multiplied by it and the
                activation by 1 / s (`scaled_mm.Smoothing`).
            folded: whether the activation comes divided by s already, by the norm in front.
            rotate: rotate weight and activation, after smoothing, as `quantize_int8` does.

        Raises:
            ValueError: static without input_scale, or input_scale or input_azp where the scheme has
                none; input_scale that is not one positive finite value; smooth that is not K
                positive finite values; folded without smooth; K > 131071; rotate that is none of
                `quantize_int8`'s blocks, or does not divide K.
            TypeError: linear is no `torch.nn.Linear`.
        """
        if not isinstance(linear, nn.Linear):
            raise TypeError(f"linear must be a torch.nn.Linear, got {type(linear).__name__}")
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
            rotate=rotate,
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
        q, scale = quantize_weight_int8(weight, rotate=rotate)
        layer.weight_scale.copy_(scale.view(-1, 1))
        if layer.bias is not None:
            layer.bias.copy_(linear.bias.detach())
        layer.set_weight(q)
        return layer

    def quantize_input(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """What the product is made of: q int8 [..., K], its scale, and its zero point or None."""
        return quantize_int8(
            x if self.input_smooth is None else x.float() * self.input_smooth,
            scale=self.input_scale,
            azp=self.input_zero_point,
            symmetric=self.symmetric,
            per_token=self.per_token,
            rotate=self.rotate,
        )

    def forward(self, x: Any) -> Tensor:
        """y [..., N] of x's dtype, which is float32, bfloat16 or float16 [..., K]."""
        buffers, packed = self._buffers, self.packed
        if (
            packed is None
            or buffers["kernel_weight"] is not self._of
            or len(buffers) != _ENTRIES
            or is_compiling()
            or not may_go_short(x, buffers["bias"])
        ):
            return self._at_length(x)
        if self.together is not None and (y := self.together.output(self, x)) is not None:
            return y
        scales, bias, settled = buffers["weight_scale"], buffers["bias"], packed.settled
        try:
            if not self._by_default:
                scheme = self._scheme(settled, buffers.__getitem__)
                return scaled_linear(x, packed.data, scales, bias, packed.k, *scheme)
            if (smooth := buffers["input_smooth"]) is not None:
                return scaled_linear(x, packed.data, scales, bias, packed.k, settled, smooth)
            if settled:
                return scaled_linear(x, packed.data, scales, bias, packed.k, True)
            return scaled_linear(x, packed.data, scales, bias, packed.k)
        except NotImplementedError:
            return self._at_length(x)  # which says what the dispatcher has no kernel for
        except (MemoryError, RuntimeError) as error:
            raise explained(error, {}) from None

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "part": None}

    def _hold(self, packed: PackedWeight) -> None:
        super()._hold(packed)
        self.part = None
        plain = self.dynamic and self.symmetric and self.per_token
        self._by_default = plain and not self.rotate  # the op's defaults, behind input_smooth

    def _scheme(self, settled: bool, buffer: Callable[[str], Any]) -> tuple[Any, ...]:
        """The arguments of `scaled_linear` from `settled` on."""
        term = "azp_adj" if self.dynamic else "azp_with_adj"
        tensors = buffer("input_scale"), buffer("input_zero_point"), buffer(term)
        smooth = buffer("input_smooth")
        return settled, smooth, self.symmetric, self.per_token, *tensors, self.rotate

    def product_with(
        self, packed: PackedWeight, joined: Mapping[str, Tensor | None]
    ) -> Callable[[Tensor], Tensor]:
        """The layer's product by another weight, whose buffers are these where it has others."""

        def buffer(name: str) -> Tensor | None:
            return joined[name] if name in joined else self._buffers[name]

        rest = [packed.data, buffer("weight_scale"), buffer("bias"), packed.k]
        scheme = self._scheme(packed.settled, buffer)
        rest += scheme[:2] if self._by_default else scheme
        return lambda x: scaled_linear(x, *rest)

    def activated(self, x: Tensor, producer: str, times: Tensor | None = None) -> Tensor:
        """`forward` of function(x) [* times] by one op, the function one of `produce_int8`'s; for x
        and times of one shape and dtype, without gradients."""
        buffers = self._buffers
        weight, settled = self._memory(buffers["kernel_weight"])
        bias = buffers["bias"] if len(buffers) == _ENTRIES else self.bias
        own = weight, buffers["weight_scale"], bias, self.in_features
        op = torch.ops.scaled_mm.scaled_linear.default if is_compiling() else scaled_linear
        try:
            y: Tensor = op(x, *own, *self._scheme(settled, buffers.__getitem__), producer, times)
            return y
        except (MemoryError, RuntimeError) as error:
            raise explained(error, {"x": x, "times": times}) from None

    def _at_length(self, x: Any) -> Tensor:
        """`forward` for traces, for gradients, and of layers that somebody has put other buffers
        into."""
        accept_activation(x)
        buffer: Callable[[str], Any] = partial(getattr, self)
        if is_compiling() and self.part is not None and self.part.is_there(self):
            buffer = partial(self.part.buffer, self)
        weight, settled = self._memory(buffer("kernel_weight"))
        own = weight, buffer("weight_scale"), buffer("bias"), self.in_features
        return linear_product(x, *own, *self._scheme(settled, buffer))

    def multiply(
        self, q: Tensor, scale: Tensor, azp: Tensor | None, out_dtype: torch.dtype
    ) -> Tensor:
        """The layer's output [..., N] for an input as `quantize_input` returns it."""
        buffers = self._buffers
        return scaled_mm(
            q,
            self._weight_for_kernels(),
            scale,
            cast(Tensor, buffers["weight_scale"]).view(1, -1),
            bias=buffers["bias"] if len(buffers) == _ENTRIES else self.bias,
            azp=azp if self.dynamic else None,  # a static one is in azp_with_adj
            azp_adj=buffers["azp_adj"],
            azp_with_adj=buffers["azp_with_adj"],
            out_dtype=out_dtype,
        )

    def _make_room(self, state_dict: dict[str, Any], prefix: str) -> None:
        n, k = self.out_features, self.in_features
        weight = state_dict.get(prefix + "weight")
        if weight is not None and weight.shape == (n, k) and weight.dtype == torch.int8:
            for name, value in self._azp_terms(weight, state_dict, prefix).items():
                state_dict.setdefault(prefix + name, value)
        if state_dict.get(prefix + "input_smooth") is not None and self.input_smooth is None:
            self.input_smooth = torch.empty(self.in_features, device=self.weight_scale.device)
        given = state_dict.get(prefix + "input_rotate")
        if given is not None and not given.is_meta:
            must_rotate(block := int(given), self.in_features)
            self.rotate = block
            self.input_rotate = self._rotation(self.weight_scale.device)

    def _rotation(self, device: torch.device | str | None) -> Tensor:
        return torch.tensor([self.rotate], dtype=torch.int32, device=device)

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
            + (f", rotate={self.rotate}" if self.rotate else "")
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
