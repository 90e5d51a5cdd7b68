"""The epilogues of `scaled_mm` as programs: the same bits, and a program that is one is known."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from helpers import assert_bits, each_isa
from program_cases import int8
from torch import Tensor

import scaled_mm
from scaled_mm import epilogue as ep
from scaled_mm import reference
from scaled_mm.epilogue.built_in import GATED, ZERO_POINTS, program_of, recognised
from scaled_mm.ops.epilogue_mm import epilogue_mm
from scaled_mm.reference.program import epilogue_mm as reference_mm

M, K, N = 7, 37, 70
EIGHT_BITS: list[tuple[list[str], torch.dtype]] = [
    (["out_scale"], torch.int8),
    (["out_scale", "out_azp"], torch.int8),
    (["out_scale"], torch.float8_e4m3fn),
]


def forms() -> Iterator[tuple[list[str], str | None, torch.dtype]]:
    """Operands, activation and output dtype of all that `scaled_mm` takes."""
    for zero_points in ZERO_POINTS:
        for bias in ([], ["bias"]):
            given = ["scale_a", "scale_b", *bias, *zero_points]
            yield [*given, "residual"], None, torch.bfloat16
            for activation in (None, *GATED, *GATED.values()):
                yield given, activation, torch.bfloat16
                for ending, out_dtype in EIGHT_BITS:
                    yield [*given, *ending], activation, out_dtype


def operands() -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)

    def whole(*shape: int) -> Tensor:
        return torch.randint(-999, 999, shape, generator=generator, dtype=torch.int32)

    return {
        "scale_a": torch.rand(M, 1, generator=generator) / 10,
        "scale_b": torch.rand(N, generator=generator) / 10,
        "bias": torch.randn(N, generator=generator),
        "azp": whole(M),
        "azp_adj": whole(1, N),
        "azp_with_adj": whole(N),
        "residual": torch.randn(M, N, generator=generator).bfloat16(),
        "out_scale": torch.rand(M, 1, generator=generator),
        "out_azp": whole(M),
    }


def test_all_of_them_are_programs() -> None:
    a, b, known = int8(M, K), int8(N, K).t(), operands()
    for given, activation, out_dtype in forms():
        program = program_of(given, activation, out_dtype)
        named = {x.name: known[x.name] for x in program.operands}
        ints, dtypes = program.encoded(torch.bfloat16), program.dtypes(torch.bfloat16)
        options: dict[str, Any] = {"activation": activation, "out_dtype": out_dtype}
        expected = reference.scaled_mm(a, b, **named, **options)
        (defined,) = reference_mm(a, b, list(named.values()), program, dtypes)
        assert_bits(defined, expected, given, activation, out_dtype)
        for isa in each_isa():
            (got,) = epilogue_mm(a, b, list(named.values()), ints)
            assert_bits(got, expected, given, activation, out_dtype, isa)


def test_all_of_them_are_known() -> None:
    names = set[str]()
    for given, activation, out_dtype in forms():
        found = recognised(program_of(given, activation, out_dtype))
        assert found is not None and sorted(found.names) == sorted(given)
        assert found.activation == activation
        assert found.out_dtype == (out_dtype if "out_scale" in given else None)
        names.add(found.name)
    assert len(names) == 20


@ep.epilogue
def swapped(
    acc: ep.Acc,
    z: ep.Col[torch.int32],
    column_sums: ep.Row[torch.int32],
    shift: ep.Row,
    token: ep.Scalar,
    channel: ep.Row,
):
    return ep.fma(ep.to_float(acc - column_sums * z) * channel, token, shift)


def test_other_names_in_another_order() -> None:
    assert str(swapped).startswith("swapped (scaled_mm's ScaledEpilogueAzpPerToken):\n")
    assert "ends the sums as ScaledEpilogueAzpPerToken" in swapped.explain(16, 4096, 4096)
    x = operands()
    given = {"z": x["azp"], "column_sums": x["azp_adj"], "shift": x["bias"]}
    given |= {"token": x["scale_a"][:1], "channel": x["scale_b"]}
    a, b = int8(M, K), int8(N, K).t()
    names = {"azp": x["azp"], "azp_adj": x["azp_adj"], "bias": x["bias"].bfloat16()}
    given["shift"] = names["bias"]
    expected = scaled_mm.scaled_mm(a, b, given["token"], x["scale_b"], **names)
    assert_bits(swapped(a, b, **given), expected)
    assert_bits(swapped.reference(a, b, **given), expected)


def _residual(acc: ep.Acc, scale_a: ep.Col, scale_b: ep.Row, bias: ep.Row, residual: ep.Full):
    return ep.fma(scale_a, scale_b * ep.to_float(acc), bias) + residual


def test_the_kernel_of_scaled_mm_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """But where it does not take an operand that a program takes."""
    own = ep.epilogue(_residual)
    a, b, x = int8(M, K), int8(N, K).t(), operands()
    given = {name: x[name] for name in ("scale_a", "scale_b", "bias", "residual")}
    expected = own.reference(a, b, **given)
    interpreted = []

    def interpret(*arguments: Any) -> list[Tensor]:
        interpreted.append(arguments)
        return epilogue_mm(*arguments)

    monkeypatch.setattr("scaled_mm.epilogue.traced.epilogue_mm", interpret)
    assert_bits(own(a, scaled_mm.pack_weight_int8(b), **given), expected)
    assert not interpreted
    changes = {
        "scale_b": x["scale_b"].half(),
        "bias": x["bias"][:1],
        "residual": x["residual"].half(),
    }
    for i, (name, other) in enumerate(changes.items()):
        changed = {**given, name: other}
        assert_bits(own(a, b, **changed), own.reference(a, b, **changed), name)
        assert len(interpreted) == i + 1


def test_the_first_call_is_compiled() -> None:
    """Nothing is left to be computed by a call that torch.compile follows."""
    a, b, x = int8(M, K), int8(N, K).t(), operands()
    for function in (_residual, _rounded_twice):
        own = ep.epilogue(function)
        given = {each.name: x[each.name] for each in own.program.operands}
        compiled = torch.compile(own.__call__, fullgraph=True, backend="aot_eager", dynamic=True)
        assert_bits(compiled(a, b, **given), own(a, b, **given), function)


def _row_first(acc: ep.Acc, scale_a: ep.Col, scale_b: ep.Row):
    return scale_b * (scale_a * ep.to_float(acc))


def _rounded_twice(acc: ep.Acc, scale_a: ep.Col, scale_b: ep.Row, bias: ep.Row):
    return scale_a * (scale_b * ep.to_float(acc)) + bias


def _relu_of_residual(acc: ep.Acc, scale_a: ep.Col, scale_b: ep.Row, residual: ep.Full):
    return ep.relu(scale_a * (scale_b * ep.to_float(acc)) + residual)


def _scale_of_columns(acc: ep.Acc, scale_a: ep.Col, scale_b: ep.Row, out_scale: ep.Row):
    return ep.quantize(scale_a * (scale_b * ep.to_float(acc)), out_scale, torch.int8)


def _scale_twice(acc: ep.Acc, scale_a: ep.Col, scale_b: ep.Row):
    return ep.quantize(scale_a * (scale_b * ep.to_float(acc)), scale_a, torch.int8)


def _two_outputs(acc: ep.Acc, scale_a: ep.Col, scale_b: ep.Row):
    return scale_a * (scale_b * ep.to_float(acc)), acc


def _tanh(acc: ep.Acc, scale_a: ep.Col, scale_b: ep.Row):
    return ep.tanh(scale_a * (scale_b * ep.to_float(acc)))


def _doubled(acc: ep.Acc, scale_a: ep.Col, scale_b: ep.Row):
    x = scale_a * (scale_b * ep.to_float(acc))
    for _ in range(100):
        x = x + x
    return x


OTHERS = [_row_first, _rounded_twice, _relu_of_residual, _scale_of_columns, _scale_twice]
OTHERS += [_two_outputs, _tanh, _doubled]


@pytest.mark.parametrize("function", OTHERS)
def test_others_are_not_known(function: Callable[..., Any]) -> None:
    assert recognised(ep.epilogue(function).program) is None
