"""int4 weights in groups: `awq_dequantize`, `awq_gemm`, and the packings of AWQ and GPTQ.

    W[k, n] = (q[k, n] - z[g, n]) * s[g, n],    g = k // G

with q and z in 0..15 and a float16 or bfloat16 scale for each group of G rows and each column.
`Int4` is that weight with a byte for each q and z; `from_awq`, `to_awq`, `from_gptq`, `to_gptq`
lead to and from what checkpoints hold. They are torch operations, for tensors of any device, and
lose nothing: there and back gives the same words. docs/lowbit.md draws the layouts.
"""

from .lowbit.int4 import Awq as Awq
from .lowbit.int4 import Gptq as Gptq
from .lowbit.int4 import Int4, from_awq, from_gptq, to_awq, to_gptq
from .lowbit.words import INTERLEAVED as INTERLEAVED
from .lowbit.words import SEQUENTIAL as SEQUENTIAL
from .lowbit.words import pack as pack
from .lowbit.words import unpack as unpack
from .ops.lowbit import awq_dequantize, awq_gemm
from .ops.packed_awq import PackedAWQ, pack_awq

__all__ = [
    "Int4",
    "PackedAWQ",
    "awq_dequantize",
    "awq_gemm",
    "from_awq",
    "from_gptq",
    "pack_awq",
    "to_awq",
    "to_gptq",
]
