"""This library's layers and kernels inside other programs.

    transformers.py   `from_pretrained` runs quantised folders on this library's layers
    peft.py           LoRA adapters on quantised layers
    stored.py         a loaded layer's tensors as its file held them, to be saved again
    inductor.py       a pass of torch.compile that puts producers into its graphs
    patterns.py       what norms and activations look like there
    vllm.py           the plug-in: what vLLM calls when it starts
    vllm_kernels.py   vLLM's two kinds of linear kernel, on this library's ops
    vllm_weights.py   vLLM's parameters as these ops take them; without vLLM

Nothing of this is imported by `import scaled_mm`, and only these modules import those programs:
`inductor` and `vllm` when they are first named, `transformers`, whose import changes that program,
by an `import` alone.
"""

from importlib import import_module
from types import ModuleType

_LATER = ("inductor", "vllm")


def __getattr__(name: str) -> ModuleType:
    if name in _LATER:
        return import_module(f".{name}", __name__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_LATER})
