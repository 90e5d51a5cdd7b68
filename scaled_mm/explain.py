"""Which kernel a shape gets on a GPU, why not the others, and its floor: as functions.

The choice is the library's own, the code that picks at every call, asked for any GPU: none has to
be there.
"""

from .cli.explain import Explanation, KernelChoice, explain, explain_awq, explain_mixed
from .cli.gpus import DEVICES, Device

__all__ = [
    "DEVICES",
    "Device",
    "Explanation",
    "KernelChoice",
    "explain",
    "explain_awq",
    "explain_mixed",
]
