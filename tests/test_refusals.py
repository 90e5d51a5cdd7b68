"""Every refusal names the argument, the rule and the value, before anything is computed."""

from typing import Any

import pytest
import torch
from refusals import GOOD, REFUSALS, K, M, N
from torch import Tensor

import scaled_mm


def assert_clean(message: str) -> None:
    """One line of the library's own, without a place in its source or a dispatcher's report."""
    assert "\n" not in message
    assert not any(word in message for word in (".cpp", ".h:", ".py", "line ", "Exception raised"))


@pytest.mark.parametrize("op", GOOD)
def test_the_unchanged_call_is_good(op: str) -> None:
    getattr(scaled_mm, op)(**GOOD[op]())


@pytest.mark.parametrize("name", REFUSALS)
def test_refused(name: str) -> None:
    refusal = REFUSALS[name]
    operands = refusal.build()
    with pytest.raises((ValueError, TypeError, RuntimeError), match=refusal.message) as caught:
        getattr(scaled_mm, refusal.op)(**operands)
    assert type(caught.value) is refusal.error
    assert_clean(str(caught.value))


@pytest.mark.parametrize("name", [name for name, r in REFUSALS.items() if "grad" in name])
def test_gradients_are_refused_in_grad_mode_only(name: str) -> None:
    refusal = REFUSALS[name]
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            getattr(scaled_mm, refusal.op)(**refusal.build())


def test_refused_in_order_of_the_signature() -> None:
    """The first argument that is wrong is the one named."""
    good = GOOD["scaled_mm"]()
    for wrong in ("a", "b", "scale_a", "scale_b"):
        names = list(good)[list(good).index(wrong) :]
        with pytest.raises(TypeError, match=rf"^{wrong} must be a Tensor, got int$"):
            scaled_mm.scaled_mm(**{**good, **dict.fromkeys(names, 1)})


@pytest.mark.parametrize("name", ["b", "scale_a", "scale_b", "bias", "residual"])
def test_an_operand_on_another_device(name: str) -> None:
    operands = {**GOOD["scaled_mm"](), "bias": torch.ones(N), "residual": torch.ones(M, N)}
    operands[name] = operands[name].to("meta")
    op = torch.ops.scaled_mm.scaled_mm.default
    cpu = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)
    with pytest.raises(ValueError, match=rf"^{name} must be on the device of a \(cpu\), got "):
        op.redispatch(cpu, **operands)


# --- the ops themselves, where a packed weight is a buffer and a shape ----------------------------

PACKED = scaled_mm.pack_weight_int8(GOOD["int8_mm"]()["b"]).data
BUFFERS: dict[str, tuple[Tensor, tuple[int, ...], str, str]] = {
    "shape-1": (PACKED, (K,), "b_shape", r"\(64,\)"),
    "shape-3": (PACKED, (K, N, 1), "b_shape", r"\(64, 96, 1\)"),
    "negative-k": (PACKED, (-1, N), "b_shape|b", r".*"),
    "negative-n": (PACKED[:0], (K, -1), "b_shape", r"\(64, -1\)"),
    "both-negative": (PACKED[:0], (-1, -1), "b_shape|a", r".*"),
    "size-wraps": (PACKED[:0], (K, 2**61), "b_shape|b", r".*"),
    "other-n": (PACKED, (K, N + 1), "b", r"shape \(6528,\)"),
    "other-k": (PACKED, (K + 1, N), "b", r"shape \(6528,\)"),
    "int8": (PACKED.view(torch.int8), (K, N), "b", "int8"),
    "strided": (PACKED.repeat_interleave(2)[::2], (K, N), "b", r"shape \(6528,\).*"),
    "2d": (PACKED.view(2, -1), (K, N), "b", r"shape \(2, 3264\)"),
    "k-above-131071": (PACKED, (131072, 1), "b", r".*"),
}


@pytest.mark.parametrize("name", BUFFERS)
@pytest.mark.parametrize("op", ["int8_mm", "azp_adj", "azp_with_adj", "scaled_mm"])
def test_buffer_refused(op: str, name: str) -> None:
    buffer, b_shape, argument, value = BUFFERS[name]
    operands: dict[str, Any] = GOOD[op]()
    with pytest.raises(ValueError, match=rf"^({argument}) must .*got {value}$") as caught:
        getattr(torch.ops.scaled_mm, op)(**{**operands, "b": buffer}, b_shape=b_shape)
    assert_clean(str(caught.value))


@pytest.mark.parametrize("op", ["int8_mm", "scaled_mm"])
def test_only_a_buffer_can_be_settled(op: str) -> None:
    """A plain weight may be written by what is still running."""
    operands = GOOD[op]()
    with pytest.raises(ValueError, match=r"^b_settled must be False .* not packed, got True$"):
        getattr(torch.ops.scaled_mm, op)(**operands, b_settled=True)
    packed = {**operands, "b": PACKED, "b_shape": (K, N)}
    settled = getattr(torch.ops.scaled_mm, op)(**packed, b_settled=True)
    assert torch.equal(settled, getattr(torch.ops.scaled_mm, op)(**packed))


def test_after_a_refusal_the_next_call_is_right() -> None:
    good = GOOD["scaled_mm"]()
    expected = scaled_mm.scaled_mm(**good)
    for refusal in REFUSALS.values():
        with pytest.raises((ValueError, TypeError, RuntimeError)):
            getattr(scaled_mm, refusal.op)(**refusal.build())
    assert torch.equal(scaled_mm.scaled_mm(**good), expected)
