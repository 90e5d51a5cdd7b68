"""`quantize_int8` for activations, `quantize_weight_int8` for weights."""

from __future__ import annotations

import torch
from torch import Tensor

from .._arguments import accept, called, explained, must_be_bool
from .rotate import block_given
from .shapes import must_have_shape, must_rotate, must_share_device, shape_text

_quantize_int8 = torch.ops.scaled_mm.quantize_int8.default
_quantize_int8_static = torch.ops.scaled_mm.quantize_int8_static.default
_quantize_weight_int8 = torch.ops.scaled_mm.quantize_weight_int8.default


def quantize_int8(
    x: Tensor,
    *,
    scale: Tensor | None = None,
    azp: Tensor | None = None,
    symmetric: bool = True,
    per_token: bool = True,
    rotate: int | None = None,
    group_size: int | None = None,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Quantises activations to int8; `x ~ scale * (q - azp)`.

    Dynamic (no scale given), over each token's K values or over the whole tensor:

        symmetric   scale = max(max|x| / 127, FLT_MIN)
                    q     = clamp(round(x / scale), -127, 127)
        asymmetric  lo, hi = min(0, min x), max(0, max x)
                    scale = max((hi - lo) / 255, FLT_MIN)
                    azp   = clamp(round(-128 - lo / scale), -128, 127)
                    q     = clamp(round(x / scale) + azp, -128, 127)

    in float32 with true division, rounding half to even. A range holding NaN or infinity gets
    scale = NaN with q = azp = 0, so that the product is visibly NaN. Static (scale given, azp given
    when symmetric=False): the same q; NaN in x gives 0, infinities clamp.
    A static scale is divided by as it is, since to look at its value would wait for the GPU: by 0,
    what is not zero becomes an end of the range, and zero becomes what NaN does.

    Args:
        x: float32, bfloat16 or float16 [..., K]; any strides.
        scale: float32, the static scale: one element, or one per token in shape [...] or [..., 1].
        azp: int32, the static zero point, shaped like scale; with symmetric=False only.
        symmetric: whether zero points are 0.
        per_token: whether each token gets a scale, or one serves the whole tensor. A static scale
            says so by its own shape.
        rotate: rotate x first, by a Hadamard matrix over blocks of so many columns: 16, 32, 64,
            128, 256 or 512, which divides K. It spreads outliers over the block. All of the above
            is then of H x, in float32; docs/numerics.md, section 4, has the order of the sums. The
            product by a weight that is rotated alike (`quantize_weight_int8`) is that of x.
        group_size: 128: a scale for each 128 columns of a token (the last group may have fewer), as
            `scaled_mm` takes them with a weight in blocks. Dynamic and symmetric only.

    Returns:
        q int8 [..., K]; scale float32 [..., 1] per token, [1] per tensor, [..., ceil(K/128)] in
        groups, or as given; azp int32 like scale, or None when symmetric.

    Raises:
        ValueError: an argument breaks a rule above; azp without scale; scale without azp when
            symmetric=False; azp when symmetric=True; x requires grad in grad mode.

    Source: ONNX DynamicQuantizeLinear and gemmlowp for the range that always holds zero.
    """
    operands = {"x": x}
    if scale is not None:
        operands["scale"] = scale
    if azp is not None:
        operands["azp"] = azp
    accept(operands)
    if symmetric is not True or per_token is not True:  # the defaults are not asked: it costs
        must_be_bool("symmetric", symmetric)
        must_be_bool("per_token", per_token)
    if azp is not None and symmetric:
        raise ValueError("symmetric must be False when azp is given, got symmetric=True")
    if azp is not None and scale is None:
        raise ValueError("scale must be given with azp, got azp alone")
    if scale is not None and azp is None and not symmetric:
        raise ValueError("azp must be given with scale when symmetric=False, got scale alone")
    if group_size is not None:
        if scale is not None or not symmetric or not per_token:
            raise ValueError(
                "group_size must be None unless scales are dynamic, symmetric, per token"
            )
        return _in_groups(x, group_size, rotate)
    try:
        if scale is None:
            # The defaults: said, they cost the dispatcher 1 us.
            if symmetric and per_token and rotate is None:
                return _quantize_int8(x)
            return _quantize_int8(
                x, symmetric=symmetric, per_token=per_token, rotate=block_given(rotate)
            )
        return _quantize_int8_static(x, scale, azp, block_given(rotate)), scale, azp
    except (MemoryError, RuntimeError) as error:
        raise explained(error, operands) from None


_BLOCK = 128


def _in_groups(
    x: Tensor, group_size: int, rotate: int | None
) -> tuple[Tensor, Tensor, Tensor | None]:
    if group_size != _BLOCK or rotate is not None:
        got = f"{group_size!r} and rotate={rotate}"
        raise ValueError(f"group_size must be {_BLOCK}, or None with rotate, got {got}")
    if x.dim() < 1:  # said here, since dynamo traces this function
        raise ValueError(f"x must have at least one dimension [..., K], got {shape_text(x)}")
    k = x.shape[-1]
    padded = torch.nn.functional.pad(x, (0, -k % _BLOCK)) if k % _BLOCK else x
    groups = padded.reshape(*x.shape[:-1], -(-k // _BLOCK), _BLOCK)
    q, scale = quantize_int8(groups)[:2]
    return q.flatten(-2)[..., :k].contiguous(), scale.squeeze(-1), None


def _in_blocks(w: Tensor) -> tuple[Tensor, Tensor]:
    must_have_shape("w", w, w.dim() == 2, "be a matrix [N, K]")
    n, k = w.shape
    padded = torch.nn.functional.pad(w, (0, -k % _BLOCK, 0, -n % _BLOCK))
    of_n, of_k = (size // _BLOCK for size in padded.shape)
    blocks = padded.view(of_n, _BLOCK, of_k, _BLOCK).transpose(1, 2)
    q, scale, _ = quantize_int8(blocks.reshape(of_n, of_k, _BLOCK * _BLOCK))
    whole = q.view(of_n, of_k, _BLOCK, _BLOCK).transpose(1, 2).reshape(padded.shape)
    return whole[:n, :k].contiguous(), scale.squeeze(-1).t().contiguous()


def quantize_weight_int8(
    w: Tensor, *, per_channel: bool = True, rotate: int | None = None, block_size: int | None = None
) -> tuple[Tensor, Tensor]:
    """Quantises a linear layer's weight to int8, symmetrically; `w ~ scale.t() * q`.

        scale = max(max|w| / 127, FLT_MIN),  q = clamp(round(w / scale), -127, 127)

    Args:
        w: float32, bfloat16 or float16 [N, K], as in `torch.nn.Linear`.
        per_channel: one scale per output channel (row of w), or one for the whole weight.
        rotate: as for `quantize_int8`: rotate each row first.
        block_size: 128: a scale for each block of 128 x 128; the last ones may be smaller.

    Returns:
        q int8 [N, K] and scale float32 [1, N] (per channel), [1, 1], or in blocks
        [ceil(K/128), ceil(N/128)]. The product by it is `scaled_mm(a, q.t(), scale_a, scale)`, in
        blocks with a by `quantize_int8(x, group_size=128)`.

    Raises:
        ValueError: w is not a float matrix, or requires grad in grad mode (pass `w.detach()`).
    """
    must_be_bool("per_channel", per_channel)
    if block_size is not None:
        if block_size != _BLOCK or not per_channel or rotate is not None:
            got = f"{block_size!r}, per_channel={per_channel} and rotate={rotate}"
            raise ValueError(f"block_size must be {_BLOCK} with neither of the others, got {got}")
        accept({"w": w})
        return _in_blocks(w)
    settings = {"per_channel": per_channel, "rotate": block_given(rotate)}
    return called(_quantize_weight_int8, (w,), {"w": w}, settings=settings)


# --- shapes only ----------------------------------------------------------------------------------


@torch.library.register_fake("scaled_mm::quantize_int8")
def _(
    x: Tensor, *, symmetric: bool = True, per_token: bool = True, rotate: int = 0
) -> tuple[Tensor, Tensor, Tensor | None]:
    must_have_shape("x", x, x.dim() >= 1, "have at least one dimension [..., K]")
    must_rotate(rotate, x.shape[-1])
    shape = [*x.shape[:-1], 1] if per_token else [1]
    return (
        x.new_empty(x.shape, dtype=torch.int8),
        x.new_empty(shape, dtype=torch.float32),
        None if symmetric else x.new_empty(shape, dtype=torch.int32),
    )


@torch.library.register_fake("scaled_mm::quantize_weight_int8")
def _(w: Tensor, *, per_channel: bool = True, rotate: int = 0) -> tuple[Tensor, Tensor]:
    must_have_shape("w", w, w.dim() == 2, "be a matrix [N, K]")
    must_rotate(rotate, w.shape[-1])
    n = w.shape[0] if per_channel else 1
    return w.new_empty(w.shape, dtype=torch.int8), w.new_empty([1, n], dtype=torch.float32)


@torch.library.register_fake("scaled_mm::quantize_int8_static")
def _(x: Tensor, scale: Tensor, azp: Tensor | None = None, rotate: int = 0) -> Tensor:
    must_have_shape("x", x, x.dim() >= 1, "have at least one dimension [..., K]")
    must_share_device("x", x, scale=scale, azp=azp)
    must_rotate(rotate, x.shape[-1])
    return x.new_empty(x.shape, dtype=torch.int8)
