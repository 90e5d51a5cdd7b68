"""`WeightOnlyLinear`: a linear layer with an 8- or 4-bit weight, and 16-bit activations or, with 4
bits, int8 ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.compiler import is_compiling

from .._arguments import accept, accept_dense, explained, may_go_short, must_be_size
from ..lowbit.grouped import (
    HALVES,
    GroupedWeight,
    group_rows,
    quantize_weight_grouped,
    scales_dtype,
)
from ..lowbit.stored import stored_sizes
from ..ops.gradients import mixed_product, wants_gradient
from ..ops.mixed import mixed_linear, mixed_mm
from ..ops.mixed_weight import ZEROS, MixedWeight, pack_weight
from ..ops.quantize import quantize_int8
from ..ops.w4a8 import w4a8_mm
from . import fused
from .mixed_layer import MixedLayer
from .scaled_linear import divisors

_ENTRIES = 9
"""Buffers of a packed layer, those that are None included."""
INT8_INPUTS = ("symmetric", "asymmetric")
ACTIVATIONS: dict[str | None, Callable[[Tensor], Tensor]] = {None: lambda y: y}
ACTIVATIONS.update(fused.ACTIVATIONS)
"""What the layers take, in torch's functions: `mixed_mm` has its own."""


class WeightOnlyLinear(MixedLayer):
    """A linear layer whose weight stays in 8 or 4 bits while it is multiplied by.

        y = activation(x' W + bias),    x' = x * pre_scale

    with one of

        W[k, n] = q[k, n] * s[g, n]                     zero = "none"
        W[k, n] = (q[k, n] - z[g, n]) * s[g, n]         zero = "integer"
        W[k, n] = q[k, n] * s[g, n] + offset[g, n]      zero = "float"

    where g is k // group_size, or g_idx[k] (act-order). `scaled_mm.mixed_mm` says what is rounded.
    With `int8_input` (W4A8: 4 bits, no float zero points) x' is quantised to int8, each token by
    its own range, "symmetric" or "asymmetric", and multiplied by `scaled_mm.w4a8_mm`.
    Then no gradient passes.

    State dict, under the names and in the words of compressed-tensors where it has them (b bits,
    K input and N output features, groups of G; `scaled_mm/lowbit/stored.py` draws the words):
        weight_packed       int32 [N, ceil(K b / 32)]
        weight_scale        float16 or bfloat16 [N, K/G]
        weight_zero_point   int32 [ceil(N b / 32), K/G], zero = "integer"
        weight_offset       of the scales' dtype [N, K/G], zero = "float"
        weight_g_idx        int32 [K], with act-order
        weight_shape        int64 [2]: N and K
        bias                of the scales' dtype or float32 [N], or None
        pre_scale           float32 [K], or None: factors on the activations, as AWQ and SmoothQuant
                            have them

    The layer packs its weight for the kernels when it is filled (`from_linear`, a loaded state
    dict): then that is the weight's only copy, and the first five are None until `unpack()`. A
    state dict has them under their names all the same. Moving, converting or loading the layer
    packs again. Of a layer that was unpacked, the next call packs.

    x is brought to the scales' dtype, y back to x's. `.half()` and `.bfloat16()` convert scales,
    offsets and bias; `.float()` and `.double()` leave them as they are, for the kernels take 16
    bits. A bias that is loaded or given in another dtype is brought to one of the two above.
    `folded_smooth`, `smooth_alpha` and gradients are as in `ScaledLinear`.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        *,
        bits: int = 8,
        group_size: int = -1,
        zero: str = "none",
        pre_scale: bool = False,
        activation: str | None = None,
        int8_input: str | None = None,
        dtype: torch.dtype = torch.bfloat16,
        device: torch.device | str | None = None,
    ) -> None:
        """An empty layer, to load a state dict into; act-order and pre_scale come with one that has
        them. group_size -1 is in_features."""
        super().__init__()
        must_be_size("in_features", in_features)
        must_be_size("out_features", out_features)
        if not isinstance(bits, int) or bits not in (4, 8):
            raise ValueError(f"bits must be 4 or 8, got {bits}")
        if zero not in ZEROS:
            raise ValueError(f"zero must be one of {', '.join(ZEROS)}, got {zero}")
        if dtype not in HALVES:
            raise ValueError(f"dtype must be float16 or bfloat16, got {str(dtype)[6:]}")
        if not isinstance(activation, str | None) or activation not in ACTIVATIONS:
            known = ", ".join(str(name) for name in ACTIVATIONS)
            raise ValueError(f"activation must be one of {known}, got {activation}")
        check_int8_input(int8_input, bits, group_rows(in_features, group_size), in_features)
        if int8_input and zero == "float":
            raise ValueError("zero must be none or integer with int8_input, got float")
        self.in_features = in_features
        self.out_features = out_features
        self.int8_input = int8_input
        self.bits = bits
        self.group_size = group_rows(in_features, group_size)
        self.zero = zero
        self.activation = activation
        k, n, groups = in_features, out_features, in_features // self.group_size
        made = stored_sizes(n, k, bits, self.group_size, zero != "integer", dtype)
        if zero == "float":
            made["weight_offset"] = (dtype, (n, groups))
        if bias:
            made["bias"] = (dtype, (n,))
        if pre_scale:
            made["pre_scale"] = (torch.float32, (k,))
        for name, (kind, shape) in made.items():
            self.register_buffer(name, torch.zeros(shape, dtype=kind, device=device))
        for name in (*self._WEIGHT, "bias", "pre_scale"):
            if name not in made:
                self.register_buffer(name, None)
        self.register_buffer("folded_smooth", None, persistent=False)
        self.smooth_alpha: float | None = None
        self._begin()

    @classmethod
    def from_linear(
        cls,
        linear: nn.Linear,
        *,
        bits: int = 8,
        group_size: int = -1,
        symmetric: bool = True,
        dtype: torch.dtype | None = None,
        smooth: Tensor | None = None,
        folded: bool = False,
        activation: str | None = None,
        int8_input: str | None = None,
    ) -> WeightOnlyLinear:
        """Quantises the weight of a float layer (`scaled_mm.quantize_weight_grouped`).

        Args:
            linear: the layer; left as it is. Of one on the meta device an empty layer is made.
            bits, group_size, symmetric, dtype: as for `quantize_weight_grouped`.
            smooth: float [K], positive: the weight is multiplied by it and the activation by
                1 / smooth, which becomes pre_scale (AWQ's scales, SmoothQuant's s).
            folded: whether the activation comes divided by smooth already, by the norm in front.
            activation: as for `scaled_mm.mixed_mm`.
            int8_input: None; or "symmetric" or "asymmetric": quantise activations to int8.

        Raises:
            ValueError: as `quantize_weight_grouped`; smooth that is not K positive finite values;
                folded without smooth.
            TypeError: linear is no `torch.nn.Linear`, smooth no tensor.
        """
        if not isinstance(linear, nn.Linear):
            raise TypeError(f"linear must be a torch.nn.Linear, got {type(linear).__name__}")
        if folded and smooth is None:
            raise ValueError("smooth must be given with folded=True, got None")
        weight = linear.weight.detach()
        dtype = scales_dtype(weight.dtype) if dtype is None else dtype
        if weight.is_meta:
            return cls(
                linear.in_features,
                linear.out_features,
                linear.bias is not None,
                bits=bits,
                group_size=group_size,
                zero="none" if symmetric else "integer",
                pre_scale=smooth is not None and not folded,
                activation=activation,
                int8_input=int8_input,
                dtype=dtype,
                device="meta",
            )
        group = group_rows(linear.in_features, group_size)
        check_int8_input(int8_input, bits, group, linear.in_features)
        if smooth is not None:
            smooth = divisors(smooth, linear)
            weight = weight.float() * smooth
        made = quantize_weight_grouped(
            weight, bits=bits, group_size=group_size, symmetric=symmetric, dtype=dtype
        )
        factors = None if smooth is None or folded else 1 / smooth
        layer = cls.from_grouped(
            made, bits=bits, bias=linear.bias, pre_scale=factors, activation=activation
        )
        layer.folded_smooth = smooth if folded else None
        layer.int8_input = int8_input
        return layer

    @classmethod
    def from_grouped(
        cls,
        weight: GroupedWeight,
        *,
        bits: int,
        g_idx: Tensor | None = None,
        bias: Tensor | None = None,
        pre_scale: Tensor | None = None,
        activation: str | None = None,
    ) -> WeightOnlyLinear:
        """A layer of plain tensors.

        Args:
            weight: q, scales and zeros, as `scaled_mm.pack_weight` takes them.
            bits: of q.
            g_idx: integer [K], the group of each row (act-order); None: k // G.
            bias: floating [N]; kept in the scales' dtype or float32.
            pre_scale: floating [K], kept as float32.
            activation: as for `scaled_mm.mixed_mm`.

        Raises:
            ValueError, TypeError: as `scaled_mm.pack_weight`.
        """
        if not isinstance(weight, GroupedWeight):
            raise TypeError(f"weight must be a GroupedWeight, got {type(weight).__name__}")
        packed = pack_weight(weight.q, weight.scales, zeros=weight.zeros, bits=bits, g_idx=g_idx)
        return cls.from_weight(packed, bias=bias, pre_scale=pre_scale, activation=activation)

    @classmethod
    def from_awq(
        cls, qweight: Tensor, scales: Tensor, qzeros: Tensor, *, bias: Tensor | None = None
    ) -> WeightOnlyLinear:
        """A layer of an AWQ checkpoint's tensors, as `scaled_mm.MixedWeight.from_awq` takes them;
        bias as for `from_grouped`."""
        return cls.from_weight(MixedWeight.from_awq(qweight, scales, qzeros), bias=bias)

    @classmethod
    def from_weight(
        cls,
        weight: MixedWeight,
        *,
        bias: Tensor | None = None,
        pre_scale: Tensor | None = None,
        activation: str | None = None,
    ) -> WeightOnlyLinear:
        """A layer of a packed weight, wherever that came from (`scaled_mm.MixedWeight`).

        Args:
            weight: not copied; nobody may write it.
            bias, pre_scale, activation: as for `from_grouped`.
        """
        if not isinstance(weight, MixedWeight):
            raise TypeError(f"weight must be a MixedWeight, got {type(weight).__name__}")
        k, n = weight.shape
        layer = cls(
            k,
            n,
            False,
            bits=weight.bits,
            group_size=weight.group if k else -1,
            zero=weight.zero,
            activation=activation,
            dtype=weight.data.dtype,
            device="meta",
        )
        device = weight.data.device
        if bias is not None:  # a copy, like all else: the layer may be loaded into
            dtype, bias = weight.data.dtype, _vector("bias", bias, n)
            kind = bias.dtype if bias.dtype in (dtype, torch.float32) else dtype
            layer.bias = bias.to(device, kind, copy=True)
        if pre_scale is not None:
            factors = _vector("pre_scale", pre_scale, k)
            layer.pre_scale = factors.to(device, torch.float32, copy=True)
        layer._hold(weight)
        return layer

    def forward(self, x: Tensor, *, out: Tensor | None = None) -> Tensor:
        """y [..., N] of x's dtype, which is floating [..., K]; out: a tensor of the same to write
        it into, where x has the scales' dtype."""
        buffers, packed = self._buffers, self.packed
        if (
            packed is None
            or out is not None
            or self.int8_input is not None
            or buffers["kernel_weight"] is not packed.data
            or len(buffers) != _ENTRIES
            or is_compiling()
            or not may_go_short(x, buffers["bias"])
            or x.dtype != packed.data.dtype
        ):
            return self._at_length(x, out)
        try:
            ending = buffers["bias"], None, self.activation, packed.settled
            factors = buffers["pre_scale"]
            return mixed_linear(x, packed.data, self._sizes, packed.order, factors, *ending)
        except NotImplementedError:
            return self._at_length(x, out)  # which says what the dispatcher has no kernel for
        except (MemoryError, RuntimeError) as error:
            raise explained(error, {}) from None

    def _at_length(self, x: Tensor, out: Tensor | None) -> Tensor:
        """`forward` for traces, for gradients, with int8 activations or an x of another dtype, and
        of layers that somebody has put other buffers into."""
        bias = self.bias
        follows = out is None and self.int8_input is None and wants_gradient(x, bias)
        accept({"x": x.detach() if follows else x})
        if not x.is_floating_point():
            raise ValueError(f"x must be floating, got {str(x.dtype)[6:]}")
        if x.is_meta and self.packed is None and self.weight_packed.is_meta:
            return x.new_empty((*x.shape[:-1], self.out_features))
        packed = self.filled()
        if self.int8_input is not None:
            return self._of_int8(x, packed, out)
        dtype = packed.data.dtype
        if out is not None and x.dtype != dtype:
            text = f"x must be {str(dtype)[6:]} where out is given, got {str(x.dtype)[6:]}"
            raise ValueError(text)
        given: dict[str, Any] = {
            "bias": bias,
            "activation": self.activation,
            "pre_scale": self.pre_scale,
        }
        if follows:
            return mixed_product(x.to(dtype), packed, **given).to(x.dtype)
        return mixed_mm(x.to(dtype), packed, **given, out=out).to(x.dtype)

    def _of_int8(self, x: Tensor, packed: MixedWeight, out: Tensor | None) -> Tensor:
        scaled = x if self.pre_scale is None else x.float() * self.pre_scale
        q, scale, azp = quantize_int8(scaled, symmetric=self.int8_input == "symmetric")
        dtype = x.dtype if x.dtype in (*HALVES, torch.float32) else torch.float32
        ending: dict[str, Any] = {"bias": self.bias, "activation": self.activation, "out": out}
        return w4a8_mm(q, packed, scale, azp=azp, out_dtype=dtype, **ending).to(x.dtype)

    def extra_repr(self) -> str:
        return (
            f"in_features={self.in_features}, out_features={self.out_features}, "
            f"bias={self.bias is not None}, bits={self.bits}, group_size={self.group_size}, "
            f"zero={self.zero}, pre_scale={self.pre_scale is not None}, "
            f"activation={self.activation}, dtype={str(self._dtype)[6:]}"
            + (f", int8_input={self.int8_input}" if self.int8_input else "")
        )


def check_int8_input(int8_input: str | None, bits: int, group: int, k: int) -> None:
    """What `w4a8_mm` asks of a layer's weight."""
    if int8_input is None:
        return
    if int8_input not in INT8_INPUTS:
        raise ValueError(f"int8_input must be None, {' or '.join(INT8_INPUTS)}, got {int8_input}")
    if bits != 4:
        raise ValueError(f"bits must be 4 with int8_input, got {bits}")
    if group % 32 and group != max(1, k):
        rule = "be a multiple of 32, or -1, with int8_input"
        raise ValueError(f"group_size must {rule}, got {group}")


def _vector(name: str, x: Tensor, size: int) -> Tensor:
    accept_dense({name: x.detach() if isinstance(x, Tensor) else x})
    if x.shape != (size,) or not x.is_floating_point():
        got = f"{str(x.dtype)[6:]} of shape {tuple(x.shape)}"
        raise ValueError(f"{name} must be floating of shape ({size},), got {got}")
    return x.detach()
