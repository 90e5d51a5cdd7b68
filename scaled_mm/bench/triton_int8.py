"""What a user would write in Triton: an int8 GEMM with its epilogue fused, autotuned.

A contender of `scaled-mm bench`, in no way part of the library. Tiles of int32 sums by `tl.dot`,
groups of GROUP_M row blocks for the L2, then in float32 scale_a (scale_b t) + bias. Operands as in
the benchmark's cases: A row-major, B the transpose of a contiguous [N, K] weight, vectors
contiguous.
"""

# mypy: ignore-errors
# (Triton has no types, and its language is not Python's)
from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor


def _config(
    block_m: int, block_n: int, block_k: int, num_warps: int, num_stages: int
) -> triton.Config:
    blocks = {"BLOCK_M": block_m, "BLOCK_N": block_n, "BLOCK_K": block_k, "GROUP_M": 8}
    return triton.Config(blocks, num_warps=num_warps, num_stages=num_stages)


CONFIGS = [
    _config(16, 32, 256, 4, 5),
    _config(16, 32, 512, 4, 4),
    _config(16, 64, 128, 4, 5),
    _config(16, 64, 256, 4, 4),
    _config(16, 128, 128, 4, 4),
    _config(16, 128, 256, 8, 3),
    _config(32, 32, 256, 4, 4),
    _config(32, 64, 256, 4, 4),
    _config(64, 32, 256, 4, 4),
    _config(64, 64, 128, 4, 5),
    _config(64, 64, 256, 4, 3),
    _config(64, 128, 128, 4, 4),
    _config(64, 256, 128, 4, 3),
    _config(128, 128, 128, 8, 4),
    _config(128, 128, 128, 4, 3),
    _config(128, 256, 64, 8, 4),
    _config(128, 256, 128, 8, 3),
    _config(128, 256, 128, 8, 4),
    _config(256, 128, 128, 8, 3),
]


def bucket_of(m: int) -> int:
    """M rounded up to a power of two, at least 16: what the choice is remembered by."""
    return max(16, triton.next_power_of_2(m))


def prune(configs: list[triton.Config], arguments: dict, **_) -> list[triton.Config]:
    """Those whose tile is neither taller than M nor much lower."""
    bucket = arguments["bucket"]
    lowest = max(16, min(bucket // 2, 64))
    return [config for config in configs if lowest <= config.kwargs["BLOCK_M"] <= bucket]


def _briefly(call, quantiles):
    return triton.testing.do_bench(call, warmup=2, rep=10, quantiles=quantiles)


@triton.autotune(
    CONFIGS,
    key=["bucket", "N", "K", "ZERO_POINT", "HAS_BIAS"],
    prune_configs_by={"early_config_prune": prune},
    do_bench=_briefly,
)
@triton.heuristics({"EVEN_K": lambda arguments: arguments["K"] % arguments["BLOCK_K"] == 0})
@triton.jit
def _kernel(
    a,  # int8 [M, K]
    b,  # int8 [N, K]
    d,  # [M, N]
    scale_a,  # float32 [M] or [1]
    scale_b,  # float32 [N]
    bias,  # [N]
    azp,  # int32 [M], with ZERO_POINT 2
    adj,  # int32 [N]: azp_with_adj with ZERO_POINT 1, azp_adj with 2
    M,
    N,
    K,
    bucket,
    PER_TOKEN: tl.constexpr,  # scale_a has M elements
    HAS_BIAS: tl.constexpr,
    ZERO_POINT: tl.constexpr,  # 0 none, 1 multiplied in beforehand, 2 per token
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP_M: tl.constexpr,
    EVEN_K: tl.constexpr,
):
    block = tl.program_id(0)
    blocks_m, blocks_n = tl.cdiv(M, BLOCK_M), tl.cdiv(N, BLOCK_N)
    first_m = block // (GROUP_M * blocks_n) * GROUP_M
    height = min(blocks_m - first_m, GROUP_M)
    block_m = first_m + block % (GROUP_M * blocks_n) % height
    block_n = block % (GROUP_M * blocks_n) // height

    row = block_m * BLOCK_M + tl.arange(0, BLOCK_M)
    column = block_n * BLOCK_N + tl.arange(0, BLOCK_N)
    k = tl.arange(0, BLOCK_K)
    a_at = a + (row % M).to(tl.int64)[:, None] * K + k[None, :]
    b_at = b + (column % N).to(tl.int64)[None, :] * K + k[:, None]
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

    in_m, in_n = row < M, column < N
    if ZERO_POINT == 1:
        t -= tl.load(adj + column, mask=in_n, other=0)[None, :]
    if ZERO_POINT == 2:
        zero = tl.load(azp + row, mask=in_m, other=0)
        t -= zero[:, None] * tl.load(adj + column, mask=in_n, other=0)[None, :]
    by_row = (
        tl.load(scale_a + row, mask=in_m, other=0.0)[:, None] if PER_TOKEN else tl.load(scale_a)
    )
    out = by_row * (tl.load(scale_b + column, mask=in_n, other=0.0)[None, :] * t.to(tl.float32))
    if HAS_BIAS:
        out += tl.load(bias + column, mask=in_n, other=0.0).to(tl.float32)[None, :]
    d_at = d + row.to(tl.int64)[:, None] * N + column[None, :]
    tl.store(d_at, out.to(d.dtype.element_ty), mask=in_m[:, None] & in_n[None, :])


def scaled_mm(
    a: Tensor,
    b: Tensor,
    scale_a: Tensor,
    scale_b: Tensor,
    *,
    bias: Tensor | None = None,
    azp: Tensor | None = None,
    azp_adj: Tensor | None = None,
    azp_with_adj: Tensor | None = None,
    out_dtype: torch.dtype = torch.bfloat16,
) -> Tensor:
    """The arguments of `scaled_mm.scaled_mm` (all of them: a contender is called as that is), laid
    out as above; scale_b has N elements, azp M."""
    (m, k), n = a.shape, b.shape[1]
    d = torch.empty((m, n), dtype=out_dtype, device=a.device)
    adj = azp_adj if azp_with_adj is None else azp_with_adj

    def grid(meta: dict) -> tuple[int]:
        return (triton.cdiv(m, meta["BLOCK_M"]) * triton.cdiv(n, meta["BLOCK_N"]),)

    _kernel[grid](
        *(a, b, d, scale_a, scale_b, bias, azp, adj),
        *(m, n, k, bucket_of(m)),
        PER_TOKEN=scale_a.numel() > 1,
        HAS_BIAS=bias is not None,
        ZERO_POINT=0 if adj is None else 1 if azp is None else 2,
    )
    return d
