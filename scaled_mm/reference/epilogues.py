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

NO_BIAS = np.full((1, 1), -0.0, np.float32)  # -0.0 is what fma adds without changing a bit

# `num` is the arithmetic (Float32 for R1, Exact for R0), `acc` = A B is int64 [M, N], scale_a and
# azp are [M, 1] or [1, 1], a residual is [M, N], everything else is [1, N] or [1, 1]. A parameter
# without default is an operand the epilogue needs, one with a default may be absent; the epilogue
# of the activation whose parameters match the operands given is the one that runs.


@dataclass(frozen=True)
class Epilogue:
    """An epilogue: its formula, the operands it reads, and the activation that asks for it."""

    formula: Callable[..., Any]
    operands: dict[str, bool]
    """Name -> whether it is needed."""
    activation: str | None

    @property
    def name(self) -> str:
        """As csrc/epilogue/registry.def has it."""
        parts = self.formula.__name__.split("_")
        return "".join("ReGLU" if part == "reglu" else part.capitalize() for part in parts)


EPILOGUES: list[Epilogue] = []
"""Every epilogue."""


def _epilogue(activation: str | None = None) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        _, _, *operands = inspect.signature(function).parameters.values()
        needed = {p.name: p.default is p.empty for p in operands}
        EPILOGUES.append(Epilogue(function, needed, activation))
        return function

    return register


def _rescaled(num: Any, t: Array, scale_a: Array, scale_b: Array, bias: Array = NO_BIAS) -> Any:
    """s_a (s_b t) + bias: scale_b first, then scale_a and the bias in one fused operation."""
    return num.fma(scale_a, num.mul(scale_b, num.integer(t)), bias)


@_epilogue()
def scaled_epilogue(num: Any, acc: Array, scale_a: Array, scale_b: Array) -> Any:
    """ScaledEpilogue: D = s_a (s_b acc)"""
    return num.mul(scale_a, num.mul(scale_b, num.integer(acc)))


@_epilogue()
def scaled_epilogue_bias(num: Any, acc: Array, scale_a: Array, scale_b: Array, bias: Array) -> Any:
    """ScaledEpilogueBias: D = s_a (s_b acc) + bias"""
    return _rescaled(num, acc, scale_a, scale_b, bias)


@_epilogue()
def scaled_epilogue_azp(
    num: Any, acc: Array, scale_a: Array, scale_b: Array, azp_with_adj: Array, bias: Array = NO_BIAS
) -> Any:
    """ScaledEpilogueAzp: D = s_a (s_b (acc - azp_with_adj)) + bias, where azp_with_adj = z_a 1B"""
    return _rescaled(num, acc - azp_with_adj, scale_a, scale_b, bias)


@_epilogue()
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


# --- the same plus a residual ---------------------------------------------------------------------


@_epilogue()
def scaled_epilogue_residual(
    num: Any,
    acc: Array,
    scale_a: Array,
    scale_b: Array,
    residual: Array,
    bias: Array = NO_BIAS,
) -> Any:
    """ScaledEpilogueResidual: D = (s_a (s_b acc) + bias) + residual"""
    return num.add(_rescaled(num, acc, scale_a, scale_b, bias), residual)


@_epilogue()
def scaled_epilogue_azp_residual(
    num: Any,
    acc: Array,
    scale_a: Array,
    scale_b: Array,
    azp_with_adj: Array,
    residual: Array,
    bias: Array = NO_BIAS,
) -> Any:
    """ScaledEpilogueAzpResidual: D = (s_a (s_b (acc - azp_with_adj)) + bias) + residual"""
    return num.add(_rescaled(num, acc - azp_with_adj, scale_a, scale_b, bias), residual)


@_epilogue()
def scaled_epilogue_azp_per_token_residual(
    num: Any,
    acc: Array,
    scale_a: Array,
    scale_b: Array,
    azp: Array,
    azp_adj: Array,
    residual: Array,
    bias: Array = NO_BIAS,
) -> Any:
    """ScaledEpilogueAzpPerTokenResidual: D = (s_a (s_b (acc - azp azp_adj)) + bias) + residual"""
    return num.add(_rescaled(num, acc - azp * azp_adj, scale_a, scale_b, bias), residual)


# --- the same, and pairs of columns made into one -------------------------------------------------


@_epilogue("reglu")
def scaled_epilogue_reglu(
    num: Any, acc: Array, scale_a: Array, scale_b: Array, bias: Array = NO_BIAS
) -> Any:
    """ScaledEpilogueReGLU: X = s_a (s_b acc) + bias, D = max(X[:, 0::2], 0) X[:, 1::2]"""
    return num.reglu(_rescaled(num, acc, scale_a, scale_b, bias))


@_epilogue("reglu")
def scaled_epilogue_azp_reglu(
    num: Any, acc: Array, scale_a: Array, scale_b: Array, azp_with_adj: Array, bias: Array = NO_BIAS
) -> Any:
    """ScaledEpilogueAzpReGLU: X = s_a (s_b (acc - azp_with_adj)) + bias, D as above"""
    return num.reglu(_rescaled(num, acc - azp_with_adj, scale_a, scale_b, bias))


@_epilogue("reglu")
def scaled_epilogue_azp_per_token_reglu(
    num: Any,
    acc: Array,
    scale_a: Array,
    scale_b: Array,
    azp: Array,
    azp_adj: Array,
    bias: Array = NO_BIAS,
) -> Any:
    """ScaledEpilogueAzpPerTokenReGLU: X = s_a (s_b (acc - azp azp_adj)) + bias, D as above"""
    return num.reglu(_rescaled(num, acc - azp * azp_adj, scale_a, scale_b, bias))


def choose_epilogue(given: set[str], activation: str | None = None) -> Epilogue:
    """The epilogue of the activation that needs no operand but those given and takes them all."""
    for epilogue in EPILOGUES:
        needed = {name for name, is_needed in epilogue.operands.items() if is_needed}
        if epilogue.activation == activation and needed <= given <= set(epilogue.operands):
            return epilogue
    raise ValueError(
        f"no epilogue takes the operands {', '.join(sorted(given))} with activation={activation!r}"
    )
