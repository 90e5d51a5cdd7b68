"""int4 weights in groups: `awq_dequantize`, `awq_gemm`, and the packings of AWQ and GPTQ.

    W[k, n] = (q[k, n] - z[g, n]) * s[g, n],    g = k // G

with q and z in 0..15 and a float16 or bfloat16 scale for each group of G rows and each column.
`Int4` is that weight with a byte for each q and z; `from_awq`, `to_awq`, `from_gptq`, `to_gptq`
lead to and from what checkpoints hold. They are torch operations, for tensors of any device, and
lose nothing: there and back gives the same words. docs/lowbit.md draws the layouts.
"""

from __future__ import annotations

import warnings

from torch import Tensor

from .lowbit.int4 import Awq as Awq
from .lowbit.int4 import Gptq as Gptq
from .lowbit.int4 import Int4, from_awq, from_gptq, to_awq, to_gptq
from .lowbit.words import INTERLEAVED as INTERLEAVED
from .lowbit.words import SEQUENTIAL as SEQUENTIAL
from .lowbit.words import pack as pack
from .lowbit.words import unpack as unpack
from .ops.lowbit import awq_dequantize, awq_gemm
from .ops.mixed_weight import MixedWeight

__all__ = ["Int4", "awq_dequantize", "awq_gemm", "from_awq", "from_gptq", "to_awq", "to_gptq"]

PackedAWQ = MixedWeight  # deprecated, as the function below


def pack_awq(qweight: Tensor, scales: Tensor, qzeros: Tensor) -> MixedWeight:
    """Deprecated: `MixedWeight.from_awq`."""
    text = "pack_awq is deprecated: use MixedWeight.from_awq"
    warnings.warn(text, FutureWarning, stacklevel=2)
    return MixedWeight.from_awq(qweight, scales, qzeros)
