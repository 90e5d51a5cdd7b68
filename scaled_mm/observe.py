"""What flows through a model: inputs and outputs of its layers on batches, without padding."""

from .quantization.observe import Call, Visit, as_call, as_calls, evaluating, observe

__all__ = ["Call", "Visit", "as_call", "as_calls", "evaluating", "observe"]
