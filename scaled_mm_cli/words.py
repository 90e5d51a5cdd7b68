"""What help texts name of the library, which they must not import: it loads torch.

tests/test_cli.py compares each with the library's own.
"""

from __future__ import annotations

SCHEMES = (
    "dynamic",
    "dynamic-asymmetric",
    "dynamic-tensor",
    "dynamic-tensor-asymmetric",
    "static",
    "static-asymmetric",
)
WEIGHTS = "W8A8, W8A16, W4A16, W4A8 (-gN for groups of N, -channel, -asymmetric), blocks"
"""Schemes by the field's names."""
FORMATS = ("int-quantized", "pack-quantized", "blockwise_int8")
"""Of checkpoints that are written."""
HYBRID = "hybrid"
"""Of `validate`: a mixture for MiniLM."""
STRIDE = 7
"""The bits of every 7th token are compared."""
COSINE, SQNR, SATURATED = 0.99, 10.0, 0.01
"""The thresholds of `validate`."""
LENGTH = 512
"""Of a calibrating sequence, in tokens."""
DTYPES = ("bfloat16", "float16", "float32")
OUT_DTYPES = (*DTYPES, "int8", "float8_e4m3fn")
ACTIVATIONS = ("relu", "silu", "gelu", "gelu_tanh", "reglu", "swiglu", "geglu", "geglu_tanh")
EPILOGUES = ("scaled", "bias", "azp", "azp-per-token")
DEVICES = ("cpu", "cuda")
FAMILIES = ("int8", "lowbit", "k_scales")
MIXED = ("w8a16", "w4a16", "w4a8")
LAYERS = ("llama-3-8b", "llama-3-70b", "bert-base")
BLOCKS = ("mixtral-8x7b", "qwen3-30b-a3b", "deepseek-v3")
MODELS = ("llama-3.2-1b", "llama-3-8b", "llama-3-70b")
GPUS = (
    "H200",
    "H200-NVL",
    "H100",
    "H100-PCIe",
    "H100-NVL",
    "GH200",
    "H20",
    "A100",
    "A10",
    "B200",
    "L40S",
    "L4",
    "RTX-4090",
    "RTX-5090",
    "T4",
)
MOST = 2**31 - 1
"""The largest size that CUDA's kernels index: `must_fit` in csrc/cuda/common/device.h."""
