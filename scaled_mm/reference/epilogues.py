"""The epilogues, each a formula over the verbs of an arithmetic (`arithmetic.py`)."""

# mypy: no-warn-return-any
# (numpy types its operators as Any)
from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from .arithmetic import Array
from .functions import FUNCTIONS, GATES, Function

NO_BIAS = np.full((1, 1), -0.0, np.float32)  # -0.0 is what fma adds without changing a bit

# `num` is the arithmetic (Float32 for R1, Exact for R0), `acc` = A B is int64 [M, N], scale_a and
# azp are [M, 1] or [1, 1], a residual is [M, N], everything else is [1, N] or [1, 1]. A parameter
# without default is an operand the epilogue needs, one with a default may be absent; the epilogue
# of the activation's form whose parameters match the operands given is the one that runs.


@dataclass(frozen=True)
class Epilogue:
    """An epilogue: its formula up to the activation, the operands it reads, and the form of the
    activation that asks for it."""

    formula: Callable[..., Any]
    operands: dict[str, bool]
    """Name -> whether it is needed."""
    name: str
    """As csrc/epilogue/registry.def has it."""
    form: str | None = None
    """What the activation makes of the columns: None, "activated" or "gated"."""


EPILOGUES: list[Epilogue] = []
"""Every epilogue."""


def _operands_of(formula: Callable[..., Any]) -> dict[str, bool]:
    _, _, *operands = inspect.signature(formula).parameters.values()
    return {p.name: p.default is p.empty for p in operands}


def _name_of(formula: Callable[..., Any]) -> str:
    return "".join(part.capitalize() for part in formula.__name__.split("_"))


def _epilogue(formula: Callable[..., Any]) -> Callable[..., Any]:
    EPILOGUES.append(Epilogue(formula, _operands_of(formula), _name_of(formula)))
    return formula


def _rescaled(num: Any, t: Array, scale_a: Array, scale_b: Array, bias: Array = NO_BIAS) -> Any:
    """s_a (s_b t) + bias: scale_b first, then scale_a and the bias in one fused operation."""
    return num.fma(scale_a, num.mul(scale_b, num.integer(t)), bias)


@_epilogue
def scaled_epilogue(num: Any, acc: Array, scale_a: Array, scale_b: Array) -> Any:
    """ScaledEpilogue: D = s_a (s_b acc)"""
    return num.mul(scale_a, num.mul(scale_b, num.integer(acc)))


@_epilogue
def scaled_epilogue_bias(num: Any, acc: Array, scale_a: Array, scale_b: Array, bias: Array) -> Any:
    """ScaledEpilogueBias: D = s_a (s_b acc) + bias"""
    return _rescaled(num, acc, scale_a, scale_b, bias)


@_epilogue
def scaled_epilogue_azp(
    num: Any, acc: Array, scale_a: Array, scale_b: Array, azp_with_adj: Array, bias: Array = NO_BIAS
) -> Any:
    """ScaledEpilogueAzp: D = s_a (s_b (acc - azp_with_adj)) + bias, where azp_with_adj = z_a 1B"""
    return _rescaled(num, acc - azp_with_adj, scale_a, scale_b, bias)


@_epilogue
def scaled_epilogue_azp_per_token(
    num: Any,
    acc: Array,
    scale_a: Array,
    scale_b: Array,
    azp: Array,
    azp_adj: Array,
    bias: Array = NO_BIAS,
) -> Any:
    """ScaledEpilogueAzpPerToken: D = s_a (s_b (acc - azp azp_adj)) + bias, where azp_adj = 1B"""
    return _rescaled(num, acc - azp * azp_adj, scale_a, scale_b, bias)


# --- what may follow: a residual, a quantiser, an activation of one column or of two --------------


def _with_bias(num: Any, acc: Array, scale_a: Array, scale_b: Array, bias: Array = NO_BIAS) -> Any:
    return _rescaled(num, acc, scale_a, scale_b, bias)


def _with_endings(body: Callable[..., Any], stem: str) -> None:
    """Registers what may follow `body`; D = body + residual is rounded after each."""

    def plus_residual(num: Any, acc: Array, *, residual: Array, **operands: Array) -> Any:
        return num.add(body(num, acc, **operands), residual)

    reads, scale = _operands_of(body), {"out_scale": True, "out_azp": False}
    EPILOGUES.append(Epilogue(plus_residual, {**reads, "residual": True}, f"{stem}Residual"))
    EPILOGUES.append(Epilogue(body, {**reads, **scale}, f"{stem}Quantised"))
    for form in ("activated", "gated"):
        operands = {**reads, **dict.fromkeys(scale, False)}
        EPILOGUES.append(Epilogue(body, operands, f"{stem}{form.capitalize()}", form))


_with_endings(_with_bias, "ScaledEpilogue")
for _formula in (scaled_epilogue_azp, scaled_epilogue_azp_per_token):
    _with_endings(_formula, _name_of(_formula))


FORMS: dict[str | None, tuple[str | None, Function | None]] = {
    None: (None, None),
    **{name: ("activated", function) for name, function in FUNCTIONS.items()},
    **{glu: ("gated", FUNCTIONS[name]) for glu, name in GATES.items()},
}
"""Activation -> what it makes of the columns, and by which function."""


def choose_epilogue(given: set[str], activation: str | None = None) -> Epilogue:
    """The epilogue of the activation's form that needs no operand but those given and takes all."""
    form, _ = FORMS[activation]
    for epilogue in EPILOGUES:
        needed = {name for name, is_needed in epilogue.operands.items() if is_needed}
        if epilogue.form == form and needed <= given <= set(epilogue.operands):
            return epilogue
    raise ValueError(
        f"no epilogue takes the operands {', '.join(sorted(given))} with activation={activation!r}"
    )


def evaluate(
    num: Any, epilogue: Epilogue, acc: Array, operands: dict[str, Array], activation: str | None
) -> Any:
    """D before it is rounded or quantised: the formula of the operands that it reads, then the
    activation. The output's scale and zero point are for `store` (int8.py)."""
    x = epilogue.formula(
        num, acc, **{name: t for name, t in operands.items() if not name.startswith("out_")}
    )
    form, function = FORMS[activation]
    if form is None:
        return x
    return num.activated(x, function) if form == "activated" else num.gated(x, function)
