"""`scaled_mm`, `int8_mm`, `pack_weight_int8`: the int8 products."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from .._arguments import accept, accepted_settings, called, explained
from .eager import plain_product
from .packed_weight import PackedWeight, factor_arguments, settle
from .shapes import (
    must,
    must_have_shape,
    must_share_device,
    out_columns,
    output,
    product_sizes,
    shape_text,
    weight_sizes,
)

_scaled_mm = torch.ops.scaled_mm.scaled_mm.default
_scaled_mm_out = torch.ops.scaled_mm.scaled_mm.out
_int8_mm = torch.ops.scaled_mm.int8_mm.default
_int8_mm_out = torch.ops.scaled_mm.int8_mm.out
_pack_weight_int8 = torch.ops.scaled_mm.pack_weight_int8.default


def scaled_mm(
    a: Tensor,
    b: Tensor | PackedWeight,
    scale_a: Tensor,
    scale_b: Tensor,
    *,
    bias: Tensor | None = None,
    azp: Tensor | None = None,
    azp_adj: Tensor | None = None,
    azp_with_adj: Tensor | None = None,
    residual: Tensor | None = None,
    activation: str | None = None,
    out_dtype: torch.dtype = torch.bfloat16,
    out_scale: Tensor | None = None,
    out_azp: Tensor | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """Int8 matrix product with the dequantisation fused into its epilogue.

        X = scale_a * scale_b * (A B - azp * 1 B) + bias
        Y = X,  or  X + residual,  or  f(X),  or  f(X[:, 0::2]) * X[:, 1::2]
        D = Y in out_dtype,  or  Y / out_scale (+ out_azp) in int8 or float8_e4m3fn

    The product is exact, the rest is float32 in a fixed order (docs/numerics.md), so the bits of D
    do not depend on tiles, threads, instruction set, device, or how M is cut. The operands given
    and the activation choose the epilogue: ScaledEpilogue; with bias ScaledEpilogueBias; with
    azp_with_adj ScaledEpilogueAzp; with azp and azp_adj ScaledEpilogueAzpPerToken, both with or
    without bias. Each of these forms also has an epilogue that ends in Residual, with a residual,
    one in Activated and one in Gated, with an activation, and one in Quantised, with out_scale
    alone.

    Nothing is rounded between X and D but by the float32 operations themselves: a gated activation
    in int8 has the bits of `silu_mul_quantize_int8` of the float32 X, by the scale given.

    Args:
        a: int8 [..., K], the activations; any strides and alignment. Fast: rows contiguous.
        b: int8 [K, N], the weight, any strides; or a `PackedWeight`, same bits, faster. Fast: the
            transpose of a contiguous [N, K] weight; other strides are packed at every call.
        scale_a: float32, one element, or one per token in shape [...] or [..., 1].
        scale_b: float32, one element, or one per channel in shape [N] or [1, N]. Or one
            for each block of 128 x 128, [ceil(K/128), ceil(N/128)], where these are more than one
            block; then scale_a is [..., ceil(K/128)], and there are no zero points of a.
            docs/numerics.md, section 8, has the order of their sums.
        bias: out_dtype or float32, [N] or [1, N]; with 8 bits any of the wider dtypes.
        azp: int32, the activations' zero points, shaped like scale_a; needs azp_adj.
        azp_adj: int32 [N] or [1, N], the column sums of b (`scaled_mm.azp_adj`). Any other vector
            is legal too: the result then is a rank-1 update of the product.
        azp_with_adj: int32 [N] or [1, N], one per-tensor zero point times the column sums
            (`scaled_mm.azp_with_adj`); instead of azp and azp_adj.
        residual: out_dtype or float32, [..., N], any strides: added after everything else, in
            float32, before the one rounding to out_dtype. Not with an activation, nor in 8 bits.
        activation: None; f of each column: "relu", "silu", "gelu" (by erf) or "gelu_tanh"; or a
            gated linear unit: "reglu", "swiglu", "geglu" or "geglu_tanh". Then columns 2 j and
            2 j + 1 of b are a gate and a value, as `interleave_gate_up` lays them, and N must be
            even.
        out_dtype: bfloat16, float16 or float32; or, with out_scale, int8 or float8_e4m3fn.
        out_scale: float32, one element, or one per token, shaped like scale_a: the scale that the
            next product is given as its scale_a. int8: clamp(round(Y / out_scale) + out_azp,
            -128, 127), from -127 on without out_azp: the formula of `quantize_int8` with a scale
            given; a NaN gives 0. float8_e4m3fn: Y times RN(1 / out_scale), saturated at 448, as
            vLLM's static fp8 quantiser has it (torch's cast alone would give NaN beyond 464); a
            NaN stays.
        out_azp: int32, zero points of an int8 output, shaped like out_scale.
        out: a tensor to write D into, of out_dtype and D's shape, on a's device, contiguous; on
            CUDA it begins at a multiple of 16 bytes. Between its first element and its last lies
            no element of an operand.

    Returns:
        D [..., N] of out_dtype; [..., N/2] with a gated activation; `out` itself, where it is
        given.

    Raises:
        ValueError: an operand breaks a rule above, K > 131071 (an int32 sum could wrap), or an
            operand requires grad in grad mode, or has a tangent of forward mode. The message names
            argument, rule and value.
        TypeError: an operand is no tensor, or out_dtype no dtype.
        torch.OutOfMemoryError: there is no memory for D.

    Source: SmoothQuant (Xiao et al., 2023) for the setting, Jacob et al. (2018) for the zero-point
    algebra, Shazeer (2020) for the gated linear units, Micikevicius et al. (2022) for e4m3.
    """
    if (
        azp is None
        and azp_adj is None
        and azp_with_adj is None
        and residual is None
        and activation is None
        and out_scale is None
        and out_azp is None
        and out is None
        and isinstance(out_dtype, torch.dtype)
    ):
        product = plain_product(a, b, scale_a, scale_b, bias, out_dtype)
        if product is not None:
            return product
    options = {"bias": bias, "azp": azp, "azp_adj": azp_adj, "azp_with_adj": azp_with_adj}
    options |= {"residual": residual, "out_scale": out_scale, "out_azp": out_azp, "out": out}
    settings = accepted_settings(activation, out_dtype)
    weight, packed = factor_arguments(b)
    operands = {"a": a, "b": weight, "scale_a": scale_a, "scale_b": scale_b}
    op = _scaled_mm if out is None else _scaled_mm_out
    return called(op, tuple(operands.values()), operands, options, {**settings, **packed})


def int8_mm(a: Tensor, b: Tensor | PackedWeight, *, out: Tensor | None = None) -> Tensor:
    """Exact int8 matrix product, `D = A B` in int32, without an epilogue.

    Args:
        a: int8 [..., K], as for `scaled_mm`.
        b: int8 [K, N] or `PackedWeight`, as for `scaled_mm`.
        out: int32 [..., N], a tensor to write D into, as for `scaled_mm`.

    Returns:
        int32 [..., N]; `out` itself, where it is given.

    Raises:
        ValueError: a, b or out breaks a rule, or K > 131071.
        TypeError: a, b or out is no tensor.
    """
    weight, packed = factor_arguments(b)
    op = _int8_mm if out is None else _int8_mm_out
    return called(op, (a, weight), {"a": a, "b": weight}, {"out": out}, packed)


def pack_weight_int8(b: Tensor) -> PackedWeight:
    """Lays a weight out the way the kernels read it best, once for many products.

    Args:
        b: int8 [K, N], any strides; or a stack [E, K, N] for `grouped_mm`, of one expert at least.

    Returns:
        A `PackedWeight`; products with it have the same bits as with b. On the CPU it takes
        K + 4 bytes per column, with K rounded up to 4 and N to 16; on CUDA it is the transposed
        weight [N, K], its rows padded to a multiple of 16 bytes (at least 16).

    Raises:
        ValueError: b is not an int8 matrix or a stack of them, or K > 131071.
    """
    accept({"b": b})
    try:
        data = _pack_stack(b) if b.dim() == 3 else _pack_weight_int8(b)
        packed = PackedWeight(data, b.shape[-2], b.shape[-1])
    except (MemoryError, RuntimeError) as error:
        raise explained(error, {"b": b}) from None
    if packed.data.is_cuda and not torch.compiler.is_compiling():
        settle(packed)
    return packed


def _pack_stack(b: Tensor) -> Tensor:
    must_have_shape("b", b, b.shape[0] > 0, "have one expert at least")
    first = _pack_weight_int8(b[0])
    data = first.new_empty((b.shape[0], *first.shape))
    data[0] = first
    for e in range(1, b.shape[0]):
        data[e] = _pack_weight_int8(b[e])
    return data


def interleave_gate_up(gate: Tensor, up: Tensor) -> Tensor:
    """Columns of gate and up in turns, for a product with a gated activation.

        scale_b = interleave_gate_up(scale_gate, scale_up)
        b = pack_weight_int8(interleave_gate_up(gate, up))
        scaled_mm(a, b, scale_a, scale_b, activation="swiglu")  # silu(A gate) * (A up)

    Of any operand that has an element for each column: weights, scales, biases, column sums.

    Args:
        gate: [I] or [K, I], any dtype and strides. Of a checkpoint's weight [I, K] it is the
            transpose.
        up: the same shape and dtype, on the same device.

    Returns:
        [2 I] or [K, 2 I], a copy: column 2 j is gate's column j, column 2 j + 1 is up's. Of a
        matrix it is the transpose of a contiguous one, which products read fast.

    Raises:
        ValueError: gate is neither vector nor matrix, or up does not match it.
        TypeError: an argument is no tensor.
    """
    for name, x in (("gate", gate), ("up", up)):
        if not isinstance(x, Tensor):
            raise TypeError(f"{name} must be a Tensor, got {type(x).__name__}")
    must_have_shape("gate", gate, gate.dim() in (1, 2), "be a vector [I] or a matrix [K, I]")
    must_share_device("gate", gate, up=up)
    must("up", up.dtype == gate.dtype, f"be {gate.dtype} as gate", lambda: str(up.dtype))
    must_have_shape("up", up, up.shape == gate.shape, f"have gate's {shape_text(gate)}")
    columns = torch.stack((gate.movedim(-1, 0), up.movedim(-1, 0)), 1)  # [I, 2] or [I, 2, K]
    return columns.flatten(0, 1).movedim(0, -1)


# --- shapes only ----------------------------------------------------------------------------------
# A fake names what it looks at of its op's arguments; of the others it asks the device. It serves
# both of the op's forms.


def _scaled_mm_shape(
    a: Tensor,
    b: Tensor,
    scale_a: Tensor,
    scale_b: Tensor,
    *,
    activation: str | None = None,
    out_dtype: torch.dtype | None = None,
    b_shape: Sequence[int] | None = None,
    out: Tensor | None = None,
    **others: Any,
) -> Tensor | None:
    *rows, n = product_sizes(a, b, b_shape)
    must_share_device("a", a, scale_a=scale_a, scale_b=scale_b, **others)
    n = out_columns("b", n, activation)
    return output(out, "a", a, [*rows, n], out_dtype or torch.bfloat16)


def _int8_mm_shape(
    a: Tensor,
    b: Tensor,
    *,
    b_shape: Sequence[int] | None = None,
    b_settled: bool = False,
    out: Tensor | None = None,
) -> Tensor | None:
    return output(out, "a", a, product_sizes(a, b, b_shape), torch.int32)


for _form in ("", ".out"):
    torch.library.register_fake(f"scaled_mm::scaled_mm{_form}", _scaled_mm_shape)
    torch.library.register_fake(f"scaled_mm::int8_mm{_form}", _int8_mm_shape)


@torch.library.register_fake("scaled_mm::pack_weight_int8")
def _(b: Tensor) -> Tensor:
    k, n = weight_sizes(b, None)
    if b.device.type == "cuda":  # csrc/cuda/common/relayout.h: N rows of K bytes, padded to 16
        size = n * torch.sym_max(16, (k + 15) // 16 * 16)
    else:  # csrc/cpu/packed.h: panels of 16 columns, groups of 4 rows
        size = (n + 15) // 16 * ((k + 3) // 4 + 1) * 64
    return b.new_empty([size], dtype=torch.uint8)
