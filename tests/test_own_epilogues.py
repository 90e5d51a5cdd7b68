"""Epilogues of one's own: what the language takes, what it refuses, and how they are called."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers import AsModule, assert_bits
from program_cases import K, M, N, int8, operands_of, requantized
from torch import Tensor

import scaled_mm
from scaled_mm import epilogue as ep
from scaled_mm.reference import program as reference


def assert_all(got: Sequence[Tensor], expected: Sequence[Tensor]) -> None:
    for x, y in zip(got, expected, strict=True):
        assert_bits(x, y)


def test_calls() -> None:
    a, b, given = int8(2, M, K), int8(N, K).t(), operands_of(requantized, M, N)
    given = {**given, "scale_a": given["scale_a"].expand(2, M, 1), "azp": given["azp"].expand(2, M)}
    given["gate"] = given["gate"].expand(2, M, N)
    expected = requantized.reference(a, b, **given)
    for weight in (b, scaled_mm.pack_weight_int8(b)):
        assert_all(requantized(a, weight, **given), expected)


def test_compiled_exported_and_checked() -> None:
    a, b, given = int8(M, K), int8(N, K).t(), operands_of(requantized, M, N)
    expected = requantized(a, b, **given)

    module = AsModule(lambda a, b, **given: requantized(a, b, **given))
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager", dynamic=True)
    assert_all(compiled(a, b, **given), expected)
    exported = torch.export.export(module, (a, b), given)
    assert_all(exported.module()(a, b, **given), expected)
    ints = requantized.program.encoded(torch.bfloat16)
    torch.library.opcheck(
        torch.ops.scaled_mm.epilogue_mm.default, (a, b, list(given.values()), ints)
    )


@ep.epilogue
def scaled(acc: ep.Acc, scale_a: ep.Col, scale_b: ep.Row):
    return scale_a * (scale_b * ep.to_float(acc))


@ep.epilogue
def gated_to_int8(
    acc: ep.Acc,
    scale_a: ep.Col,
    scale_b: ep.Row,
    bias: ep.Row,
    out_scale: ep.Col,
    out_azp: ep.Col[torch.int32],
):
    gate, value = ep.pairs(ep.fma(scale_a, scale_b * ep.to_float(acc), bias))
    return ep.quantize(ep.gelu_tanh(gate) * value, out_scale, torch.int8, out_azp)


def test_what_is_computed_twice_is_one_node_and_what_nobody_needs_is_none() -> None:
    @ep.epilogue
    def twice(acc: ep.Acc, scale: ep.Row):
        x = ep.to_float(acc) * scale
        ep.exp(x)
        return ep.to_float(acc) * scale + x

    assert [x.operation for x in twice.program.nodes] == [
        "acc",
        "operand",
        "to_float",
        "mul",
        "add",
    ]


# A line each, in a function of acc, x (Row), i (Row of int32) and c (Col); what it is refused for.
MISTAKES = {
    "acc + x": "add takes int32, int32, got int32, float32; to_float",
    "acc * 0.5": "mul takes int32 here, got 0.5; to_float",
    "x * 1e60": "mul takes a number within float32, got 1e+60",
    "i + 2**31": "add takes int32 here, got 2147483648",
    "x / acc": "div takes float32, float32, got float32, int32; to_float",
    "x if x < c else c": "a value differs from element to element",
    "ep.where(x != c, x, c)": "!= is not there",
    "ep.where(x, x, c)": "where takes truth value, float32, float32, got float32, float32, float32",
    "ep.pairs(acc)[0]": "pairs takes float32, got int32",
    "ep.exp(2.0)": "exp takes values of an epilogue, got float",
    "ep.round_to(x, torch.int8)": "round_to takes torch.bfloat16 or torch.float16, got torch.int8",
    "ep.quantize(x, c, torch.int32)": "quantize takes torch.int8 or torch.float8_e4m3fn, got",
    "x < c": "an epilogue must return numbers, got a truth value",
    "2.0": "an epilogue must return its values, got float",
    "ep.pairs(x)[0] + x": "must not mix values of pairs of columns with those of all",
}


@pytest.mark.parametrize("line", MISTAKES)
def test_mistakes(line: str, tmp_path: Path) -> None:
    head = "def f(acc: ep.Acc, x: ep.Row, i: ep.Row[torch.int32], c: ep.Col):\n    "
    (tmp_path / "own.py").write_text(f"{head}return {line}\n")
    space: dict[str, Any] = {"ep": ep, "torch": torch}
    exec(compile(f"{head}return {line}\n", str(tmp_path / "own.py"), "exec"), space)
    with pytest.raises((TypeError, ValueError), match=re.escape(MISTAKES[line])) as error:
        ep.epilogue(space["f"])
    if " takes " in MISTAKES[line]:
        assert str(error.value).endswith(f"(own.py:2: return {line})")


def test_mistakes_in_a_signature() -> None:
    def no_acc(x: ep.Row):
        return x

    def bare(acc: ep.Acc, x):
        return acc

    def taken(acc: ep.Acc, a: ep.Row):
        return acc

    def unread(acc: ep.Acc, x: ep.Row):
        return acc

    said = {
        no_acc: "the first parameter, and no other, must be Acc, got x",
        bare: "x must be annotated Acc, Row, Col, Full or Scalar, got None",
        taken: "an epilogue must not have a parameter a: a call has one",
        unread: "x must be read by the epilogue, got one that is not",
    }
    for function, message in said.items():
        with pytest.raises((TypeError, ValueError), match=message):
            ep.epilogue(function)


def test_mistakes_in_a_call() -> None:
    a, b, given = int8(M, K), int8(N, K).t(), operands_of(requantized, M, N)
    wrong = {
        r"^bias must be a Tensor, got none$": {"bias": None},
        r"^operands must be scale_a, .*, got gain$": {"gain": torch.ones(1)},
        r"^out_scale must have 1 element, got shape \(2,\)$": {"out_scale": torch.ones(2)},
        r"^operands\[4\] must have 1 or N=70 elements": {"bias": torch.ones(3)},
        r"^operands\[2\] must be int32, got float32$": {"azp": torch.ones(M)},
        r"^operands\[5\] must have shape \(13, 70\), got": {"gate": torch.ones(M)},
    }
    for message, change in wrong.items():
        with pytest.raises((TypeError, ValueError), match=message):
            requantized(a, b, **{**given, **change})
    with pytest.raises(ValueError, match=r"^out_dtype must be bfloat16, float16 or float32, got"):
        scaled(a, b, scale_a=given["scale_a"], scale_b=given["scale_b"], out_dtype=torch.int8)
    odd = {"scale_a": torch.ones(1), "scale_b": torch.ones(1), "bias": torch.ones(1)}
    odd |= {"out_scale": torch.ones(1), "out_azp": torch.zeros(1, dtype=torch.int32)}
    with pytest.raises(ValueError, match=r"^b must have an even number of columns for pairs, got"):
        gated_to_int8(a, b[:, :69], **odd)


EXACT: dict[str, tuple[Any, float]] = {
    "exp": (np.exp, 1.5),
    "sigmoid": (lambda x: 1 / (1 + np.exp(-x)), 2.5),
    "tanh": (np.tanh, 2.0),
}


@pytest.mark.parametrize("name", EXACT)
def test_accuracy(name: str) -> None:
    """In units of the last place, of the functions that only programs have."""
    true, most = EXACT[name]
    x = torch.cat([torch.linspace(-110, 95, 200001), torch.linspace(-1, 1, 200001)]).numpy()
    with np.errstate(over="ignore"):
        expected, got = true(x.astype(np.float64)), reference.MEANING[name](x)
        near = expected.astype(np.float32)
    normal = np.isfinite(near) & (np.abs(near) > 2.0**-126)
    ulps = np.abs(got - expected)[normal] / np.spacing(np.abs(near[normal]))
    assert ulps.max() < most
    assert (got[np.isinf(near)] == np.inf).all()
