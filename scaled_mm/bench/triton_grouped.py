"""What a user would write in Triton for experts: a grouped int8 GEMM whose blocks find their expert
from offsets on the device, with its scales and a gate fused, autotuned.

A contender of `scaled-mm bench --grouped`, in no way part of the library.
"""

# mypy: ignore-errors
# (Triton has no types, and its language is not Python's)
from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from .triton_int8 import _briefly, _config, bucket_of

CONFIGS = [
    _config(16, 64, 256, 4, 4),
    _config(16, 128, 128, 4, 4),
    _config(16, 128, 256, 8, 3),
    _config(16, 256, 128, 8, 3),
    _config(32, 64, 256, 4, 4),
    _config(32, 128, 128, 4, 4),
    _config(64, 64, 256, 4, 3),
    _config(64, 128, 128, 4, 4),
    _config(64, 256, 128, 4, 3),
    _config(128, 128, 128, 8, 4),
    _config(128, 256, 128, 8, 3),
]


def prune(configs: list[triton.Config], arguments: dict, **_) -> list[triton.Config]:
    """Those whose tile is neither taller than an expert's rows nor much lower."""
    bucket = min(arguments["bucket"], 128)
    lowest = max(16, bucket // 2)
    return [config for config in configs if lowest <= config.kwargs["BLOCK_M"] <= bucket]


@triton.autotune(
    CONFIGS,
    key=["bucket", "N", "K", "GATED"],
    prune_configs_by={"early_config_prune": prune},
    do_bench=_briefly,
)
@triton.heuristics({"EVEN_K": lambda arguments: arguments["K"] % arguments["BLOCK_K"] == 0})
@triton.jit
def _kernel(
    a,  # int8 [T, K]
    b,  # int8 [E, N, K]
    d,  # [M, N], or [M, N / 2] with GATED
    scale_a,  # float32 [T]
    scale_b,  # float32 [E, N]
    offsets,  # int32 [E]
    rows,  # int32 [M], with GATHERS
    N,
    K,
    E,
    bucket,
    GATHERS: tl.constexpr,
    GATED: tl.constexpr,  # columns 2 j and 2 j + 1 are gate and value j: silu(gate) * value
    EXPERTS: tl.constexpr,  # E, as a power of two
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP_M: tl.constexpr,
    EVEN_K: tl.constexpr,
):
    tile, block_n = tl.program_id(0), tl.program_id(1)
    e = tl.arange(0, EXPERTS)
    begin = tl.load(offsets + e - 1, mask=(e > 0) & (e < E), other=0)
    end = tl.load(offsets + e, mask=e < E, other=0)
    tiles = tl.where(e < E, (end - begin + BLOCK_M - 1) // BLOCK_M, 0)
    through = tl.cumsum(tiles, 0)
    if tile >= tl.sum(tiles, 0):
        return
    expert = tl.sum((through <= tile).to(tl.int32), 0)
    first = tl.sum(tl.where(e == expert, begin + (tile - through + tiles) * BLOCK_M, 0), 0)
    last = tl.sum(tl.where(e == expert, end, 0), 0)

    row = first + tl.arange(0, BLOCK_M)
    in_m = row < last
    source = tl.load(rows + row, mask=in_m, other=0) if GATHERS else tl.where(in_m, row, first)
    column = block_n * BLOCK_N + tl.arange(0, BLOCK_N)
    k = tl.arange(0, BLOCK_K)
    a_at = a + source.to(tl.int64)[:, None] * K + k[None, :]
    b_at = b + (expert.to(tl.int64) * N + column % N)[None, :] * K + k[:, None]
    t = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.int32)
    for done in range(0, K, BLOCK_K):
        if EVEN_K:
            x, y = tl.load(a_at), tl.load(b_at)
        else:
            x = tl.load(a_at, mask=k[None, :] < K - done, other=0)
            y = tl.load(b_at, mask=k[:, None] < K - done, other=0)
        t = tl.dot(x, y, t, out_dtype=tl.int32)
        a_at += BLOCK_K
        b_at += BLOCK_K

    in_n = column < N
    by_column = tl.load(scale_b + expert * N + column, mask=in_n, other=0.0)
    out = tl.load(scale_a + source)[:, None] * (by_column[None, :] * t.to(tl.float32))
    if GATED:
        gate, value = tl.split(tl.reshape(out, (BLOCK_M, BLOCK_N // 2, 2)))
        out = gate / (1 + tl.exp(-gate)) * value
        column = block_n * (BLOCK_N // 2) + tl.arange(0, BLOCK_N // 2)
        width = N // 2
    else:
        width = N
    d_at = d + row.to(tl.int64)[:, None] * width + column[None, :]
    tl.store(d_at, out.to(d.dtype.element_ty), mask=in_m[:, None] & (column < width)[None, :])


def grouped_mm(
    a: Tensor,
    b: Tensor,
    offsets: Tensor,
    scale_a: Tensor,
    scale_b: Tensor,
    *,
    rows: Tensor | None = None,
    activation: str | None = None,
) -> Tensor:
    """Those arguments of `scaled_mm.grouped_mm`, with b as [E, N, K]; scale_a has a's rows,
    activation is swiglu or None; D is bfloat16."""
    (experts, n, k), m = b.shape, len(a if rows is None else rows)
    d = torch.empty((m, n // 2 if activation else n), dtype=torch.bfloat16, device=a.device)
    hit = min(m, experts)

    def grid(meta: dict) -> tuple[int, int]:
        return hit + (m - hit) // meta["BLOCK_M"], triton.cdiv(n, meta["BLOCK_N"])

    _kernel[grid](
        *(a, b, d, scale_a, scale_b, offsets, rows),
        *(n, k, experts, bucket_of(triton.cdiv(m, hit))),
        GATHERS=rows is not None,
        GATED=activation is not None,
        EXPERTS=triton.next_power_of_2(experts),
    )
    return d
