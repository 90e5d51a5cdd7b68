"""The epilogue: a formula over the verbs of an arithmetic (`arithmetic.py`), and an activation."""

from __future__ import annotations

from typing import Any

import numpy as np

from .arithmetic import Array, Function
from .functions import FUNCTIONS, GATES

ONE = np.ones((1, 1), np.float32)
NO_BIAS = np.full((1, 1), -0.0, np.float32)  # -0.0 is what fma adds without changing a bit

FORMS: dict[str | None, tuple[str | None, Function | None]] = {
    None: (None, None),
    **{name: ("activated", function) for name, function in FUNCTIONS.items()},
    **{glu: ("gated", FUNCTIONS[name]) for glu, name in GATES.items()},
}
"""Activation -> what it makes of the columns, and by which function."""


def name_epilogue(operands: dict[str, Array]) -> str:
    """The name of the formula with these operands, whatever ends it."""
    if "azp_with_adj" in operands:
        return "ScaledEpilogueAzp"
    if "azp" in operands:
        return "ScaledEpilogueAzpPerToken"
    return "ScaledEpilogueBias" if "bias" in operands else "ScaledEpilogue"


def evaluate(num: Any, acc: Array, operands: dict[str, Array], activation: str | None) -> Any:
    """D before it is rounded or quantised, where f is the activation:

        ScaledEpilogue             x = s_a (s_b acc)
        ScaledEpilogueBias         x = s_a (s_b acc) + bias
        ScaledEpilogueAzp          x = s_a (s_b (acc - azp_with_adj)) + bias
        ScaledEpilogueAzpPerToken  x = s_a (s_b (acc - azp azp_adj)) + bias
        D = x, x + residual, f(x) or f(x of the even columns) (x of the odd ones)

    scale_b comes first, then scale_a and the bias in one fused operation. `num` is the arithmetic
    (Float32 for R1, Exact for R0), `acc` = A B is int64 [M, N], scale_a and azp are [M, 1] or
    [1, 1], a residual is [M, N], everything else is [1, N] or [1, 1]. The output's scale and zero
    point are for `store` (int8.py)."""
    if "azp_with_adj" in operands:
        acc = acc - operands["azp_with_adj"]
    elif "azp" in operands:
        acc = acc - operands["azp"] * operands["azp_adj"]
    return ended(num, num.mul(operands["scale_b"], num.integer(acc)), operands, activation)


def ended(num: Any, scaled: Any, operands: dict[str, Array], activation: str | None) -> Any:
    """What is left of it once `scaled`, s_b acc or a sum over groups, stands; without a scale_a it
    is 1."""
    x = num.fma(operands.get("scale_a", ONE), scaled, operands.get("bias", NO_BIAS))
    if "residual" in operands:
        x = num.add(x, operands["residual"])
    form, function = FORMS[activation]
    if form is None:
        return x
    return num.activated(x, function) if form == "activated" else num.gated(x, function)
