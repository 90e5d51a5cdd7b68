"""Who takes part in `scaled-mm bench --grouped`: every way to run a block of experts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from ..ops.experts import grouped_mm, moe_combine, moe_sort
from ..ops.int8 import pack_weight_int8
from ..ops.produce import silu_mul_quantize_int8
from ..ops.quantize import quantize_int8, quantize_weight_int8
from .contenders import GPU, Contender, humming_layer, to_float8
from .layer import DTYPE

JUDGED = 8  # tokens that are compared with the float32 block
SMALLER = 4  # on the CPU, hidden and inner sizes are so many times smaller


@dataclass(frozen=True)
class Block:
    """The sizes of a block."""

    experts: int
    top_k: int
    hidden: int
    inner: int

    def on(self, device: str) -> Block:
        by = SMALLER if device == "cpu" else 1
        return Block(self.experts, self.top_k, self.hidden // by, self.inner // by)


@dataclass(frozen=True)
class Tokens:
    """What a call is given."""

    x: Tensor  # bfloat16 [T, H]
    index: Tensor  # int64 [T, k]
    weights: Tensor  # bfloat16 [T, k]
    ends: list[int]  # where the rows of each expert end, as the host knows it


Run = Callable[[Tokens], Tensor]


class Stacks:
    """The weights of all experts."""

    def __init__(self, block: Block, device: str) -> None:
        self.block = block
        random = torch.Generator(device).manual_seed(0)

        def floats(n: int, k: int) -> Tensor:
            stack = torch.empty(block.experts, n, k, dtype=DTYPE, device=device)
            return stack.normal_(0, k**-0.5, generator=random)

        self.up = floats(2 * block.inner, block.hidden)  # gates, then values
        self.down = floats(block.hidden, block.inner)

    @cached_property
    def int8(self) -> list[Tensor]:
        """Gates and values in turns, down; each with its scales [E, N]."""
        return [*_int8(self.up, in_turns=True), *_int8(self.down)]

    @cached_property
    def fp8(self) -> list[Tensor]:
        return [*_each(_fp8, self.up), *_each(_fp8, self.down)]

    def exact(self, tokens: Tokens) -> Tensor:
        """The block in float32, of the first tokens."""
        found = []
        for x, to, by in zip(tokens.x[:JUDGED].float(), tokens.index, tokens.weights, strict=False):
            y = torch.zeros_like(x)
            for e, weight in zip(to.tolist(), by.float(), strict=True):
                gate, value = (self.up[e].float() @ x).chunk(2)
                y += weight * (self.down[e].float() @ (functional.silu(gate) * value))
            found.append(y)
        return torch.stack(found)


def _each(make: Callable[[Tensor], Any], stack: Tensor) -> list[Tensor]:
    """What it makes of every expert's weight, stacked."""
    return [torch.stack(parts) for parts in zip(*map(make, stack), strict=True)]


def _int8(stack: Tensor, in_turns: bool = False) -> list[Tensor]:
    def make(w: Tensor) -> tuple[Tensor, Tensor]:
        w = torch.stack(w.chunk(2), 1).flatten(0, 1) if in_turns else w
        q, scale = quantize_weight_int8(w)
        return q, scale.flatten()

    return _each(make, stack)


def _fp8(x: Tensor) -> tuple[Tensor, Tensor]:
    """Rows as e4m3, and their scales."""
    q, scale = to_float8(x)
    return q, scale.squeeze(-1)


# --- the contenders -------------------------------------------------------------------------------


def _ours(stacks: Stacks) -> Run:
    up, up_scale, down, down_scale = stacks.int8
    made = (
        (lambda w: w.mT) if up.is_cuda else (lambda w: pack_weight_int8(w.mT))
    )  # docs/api/int8.md
    return _int8_run(stacks.block, grouped_mm, made(up), made(down), up_scale, down_scale)


def _triton(stacks: Stacks) -> Run:
    from . import triton_grouped

    up, up_scale, down, down_scale = stacks.int8
    return _int8_run(stacks.block, triton_grouped.grouped_mm, up, down, up_scale, down_scale)


def _int8_run(
    block: Block, mm: Callable[..., Tensor], up: Any, down: Any, s_up: Tensor, s_down: Tensor
) -> Run:
    def run(tokens: Tokens) -> Tensor:
        rows, offsets, places = moe_sort(tokens.index, block.experts)
        q, scale, _ = quantize_int8(tokens.x)
        h = mm(q, up, offsets, scale, s_up, rows=rows, activation="swiglu")
        q, scale, _ = quantize_int8(h)
        return moe_combine(mm(q, down, offsets, scale, s_down), tokens.weights, places)

    return run


Product = Callable[[Tensor, Any, Tensor], Tensor]


def float_block(
    product: Product, up: Any, down: Any, experts: int, x: Tensor, index: Tensor, weights: Tensor
) -> Tensor:
    """As transformers has it for grouped products."""
    expert, order = index.flatten().sort(stable=True)
    numbers = torch.arange(experts, device=x.device)
    offsets = torch.searchsorted(expert, numbers, right=True, out_int32=True)
    gate, value = product(x[order // index.shape[1]], up, offsets).chunk(2, -1)
    y = product(functional.silu(gate) * value, down, offsets)
    return summed(y * weights.flatten()[order, None], order, weights)


def summed(y: Tensor, order: Tensor, weights: Tensor) -> Tensor:
    place = torch.empty_like(order)
    place[order] = torch.arange(len(order), device=order.device)
    return y[place].unflatten(0, weights.shape).sum(1)


def bf16_product(x: Tensor, stack: Tensor, offsets: Tensor) -> Tensor:
    return torch._grouped_mm(x, stack.mT, offs=offsets)


def fp8_product(x: Tensor, stack: tuple[Tensor, Tensor], offsets: Tensor) -> Tensor:
    q, scale = _fp8(x)
    given: dict[str, Any] = {"offs": offsets, "out_dtype": DTYPE, "use_fast_accum": True}
    return torch._scaled_grouped_mm(q, stack[0].mT, scale, stack[1], **given)


def _compiled(product: Product, up: Any, down: Any, experts: int) -> Run:
    compiled = torch.compile(partial(float_block, product))
    return lambda tokens: compiled(up, down, experts, tokens.x, tokens.index, tokens.weights)


def _bf16(stacks: Stacks) -> Run:
    return _compiled(bf16_product, stacks.up, stacks.down, stacks.block.experts)


def _fp8_grouped(stacks: Stacks) -> Run:
    up, up_scale, down, down_scale = stacks.fp8
    return _compiled(fp8_product, (up, up_scale), (down, down_scale), stacks.block.experts)


def _loop(stacks: Stacks) -> Run:
    def run(tokens: Tokens) -> Tensor:
        order = tokens.index.flatten().argsort(stable=True)
        x = tokens.x[order // stacks.block.top_k]
        parts, begin = [], 0
        for e, end in enumerate(tokens.ends):
            if begin < end:
                gate, value = (x[begin:end] @ stacks.up[e].t()).chunk(2, -1)
                parts.append((functional.silu(gate) * value) @ stacks.down[e].t())
            begin = end
        y = torch.cat(parts) * tokens.weights.flatten()[order, None]
        return summed(y, order, tokens.weights)

    return run


def _humming(stacks: Stacks) -> Run:
    up, down = (
        humming_layer(stack, {"dtype": "int8"}, DTYPE, len(stack))
        for stack in (stacks.up, stacks.down)
    )

    def run(tokens: Tokens) -> Tensor:
        rows, offsets, places = moe_sort(tokens.index, stacks.block.experts)
        given: dict[str, Any] = {
            "expert_layout": functional.pad(offsets.long(), (1, 0)),
            "compute_config": {"gemm_type": "grouped_contiguous"},
            "valid_shape_m": len(rows),
        }
        q, scale, _ = quantize_int8(tokens.x)
        h = up(q[rows], input_scale=scale[rows], **given)
        q, scale, *_ = silu_mul_quantize_int8(h)
        return moe_combine(down(q, input_scale=scale, **given), tokens.weights, places)

    return run


CONTENDERS = [
    Contender("ours", "int8 per token, eager", _ours),
    Contender("bf16 compiled", "torch._grouped_mm, under torch.compile", _bf16),
    Contender("bf16 loop", "expert by expert, whose rows the host knows beforehand", _loop),
    Contender("fp8 compiled", "torch._scaled_grouped_mm, e4m3, a scale per row", _fp8_grouped, GPU),
    Contender("triton", "ours with products of Triton in place of grouped_mm", _triton, GPU),
]
if find_spec("humming") is not None:
    CONTENDERS.append(
        Contender("humming", "ours with Humming's products, of rows copied", _humming, GPU)
    )
