"""What flows through a model: inputs and outputs of its layers on batches, without padding."""

from .quantization.observe import Call

__all__ = ["Call"]
