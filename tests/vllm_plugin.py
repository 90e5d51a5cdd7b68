"""The plug-in inside vLLM's own Python package: `make vllm-test`, in an environment of its own.

vLLM finds and chooses the kernels, makes the layers, and loads the tensors of checkpoints into them
by its own loaders; outputs are compared with `scaled_mm.reference`. vLLM is installed without its
compiled parts, so no model runs from end to end, and on CUDA only the choice is looked at.
"""

from __future__ import annotations
