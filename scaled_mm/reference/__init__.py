"""The definition of every op: plain numpy, exact, slow.

Each op comes as R1, the float32 sequence of the bit contract, which the kernels reproduce bit for
bit, and, where that is not already exact, as R0 (`*_exact`), the infinitely precise result
rounded once, against which R1's accuracy is stated. `check` judges an output, anyone's, by both.

Tensors of any device go in (they are moved to the CPU), CPU tensors come out. Arguments are not
checked: an operand that the ops refuse has no meaning here. The floating-point mode of the caller
changes no bit (`float_mode.py`).

    epilogues.py     the formula of the products' epilogue
    arithmetic.py    what it is evaluated in: float32, exactly, in magnitude
    int8.py          the products; accuracy.py how good an output of theirs is
    k_scales.py      their sums where scales change along K
    experts.py       mixtures of experts
    quantize.py      the quantisers
    producers.py     norms and activations that write int8; functions.py their exp and erf
    lowbit.py        int4 in AWQ's words; mixed.py 4 and 8 bits in general
    arrays.py        tensors to numpy and back
    float_mode.py    the mode that all of it is computed in
"""

from .accuracy import AccuracyReport as AccuracyReport
from .experts import grouped_mm as grouped_mm
from .experts import moe_combine as moe_combine
from .experts import moe_sort as moe_sort
from .int8 import azp_adj, azp_with_adj, check, int8_mm, scaled_mm, scaled_mm_exact
from .int8 import w4a8_check as w4a8_check
from .int8 import w4a8_mm as w4a8_mm
from .lowbit import awq_dequantize, awq_gemm
from .lowbit import awq_gemm_bound as awq_gemm_bound
from .mixed import grouped_mixed_mm as grouped_mixed_mm
from .mixed import mixed_dequantize as mixed_dequantize
from .mixed import mixed_mm
from .mixed import mixed_mm_bound as mixed_mm_bound
from .producers import produce_int8 as produce_int8
from .quantize import quantize_int8, quantize_weight_int8
from .quantize import quantize_int8_exact as quantize_int8_exact

__all__ = [
    "awq_dequantize",
    "awq_gemm",
    "azp_adj",
    "azp_with_adj",
    "check",
    "int8_mm",
    "mixed_mm",
    "quantize_int8",
    "quantize_weight_int8",
    "scaled_mm",
    "scaled_mm_exact",
]
