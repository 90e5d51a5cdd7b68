"""`out=`: the products written into the caller's tensor. The bits are those of a new tensor, and
nothing else is written."""

import re
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from awq_cases import AwqCase
from cases import CASES, random_case
from helpers import AsModule, assert_bits, bits
from refusals import GOOD, K, M, N
from torch import Tensor

import scaled_mm

PACKED = scaled_mm.pack_weight_int8(GOOD["int8_mm"]()["b"])
AWQ = AwqCase("out", k=64, n=24, group=32, rows=(3, 5), bias=torch.float16)
GEMM = {"x": torch.linspace(-1, 1, 3 * 5 * 64).reshape(3, 5, 64).half(), **AWQ.weight()}
GEMM |= {"bias": torch.linspace(-1, 1, 24)}
RESIDUAL = torch.linspace(-9, 9, M * N).reshape(M, N)

CALLS: dict[str, tuple[Callable[..., Tensor], dict[str, Any]]] = {
    "scaled_mm": (scaled_mm.scaled_mm, {**GOOD["scaled_mm"](), "residual": RESIDUAL}),
    "scaled_mm packed": (scaled_mm.scaled_mm, {**GOOD["scaled_mm"](), "b": PACKED}),
    "scaled_mm reglu": (scaled_mm.scaled_mm, {**GOOD["scaled_mm"](), "activation": "reglu"}),
    "scaled_mm float32": (scaled_mm.scaled_mm, {**GOOD["scaled_mm"](), "out_dtype": torch.float32}),
    "scaled_mm 1d": (
        scaled_mm.scaled_mm,
        {**GOOD["scaled_mm"](), "a": torch.ones(K, dtype=torch.int8), "scale_a": torch.ones(1)},
    ),
    "scaled_mm no rows": (
        scaled_mm.scaled_mm,
        {**GOOD["scaled_mm"](), "a": torch.ones(0, K, dtype=torch.int8), "scale_a": torch.ones(1)},
    ),
    "int8_mm": (scaled_mm.int8_mm, GOOD["int8_mm"]()),
    "int8_mm packed": (scaled_mm.int8_mm, {**GOOD["int8_mm"](), "b": PACKED}),
    "int8_mm no K": (
        scaled_mm.int8_mm,
        {"a": torch.ones(3, 0, dtype=torch.int8), "b": torch.ones(0, 5, dtype=torch.int8)},
    ),
    "awq_gemm": (scaled_mm.awq_gemm, GEMM),
    "awq_gemm bfloat16": (
        scaled_mm.awq_gemm,
        {**GEMM, "x": GEMM["x"].bfloat16(), "scales": GEMM["scales"].bfloat16()},
    ),
}


def assert_written_in_place(call: Callable[..., Tensor], operands: dict[str, Any]) -> None:
    """Into the middle of a buffer, whose first and last elements stay as they are."""
    expected = call(**operands)
    before, after = 3, 5
    buffer = torch.full((before + expected.numel() + after,), 80).to(expected.dtype)
    out = buffer[before : buffer.numel() - after].view(expected.shape)
    assert call(**operands, out=out) is out
    assert_bits(out, expected)
    assert set(buffer[:before].tolist() + buffer[buffer.numel() - after :].tolist()) == {80}


@pytest.mark.parametrize("name", CALLS)
def test_written_in_place(isa: str, name: str) -> None:
    assert_written_in_place(*CALLS[name])


def test_written_in_place_on_many_cases() -> None:
    rng = np.random.default_rng(5)
    for case in [*list(CASES.values())[::5], *(random_case(rng) for _ in range(100))]:
        operands = case.build(rng=rng)
        assert_written_in_place(scaled_mm.scaled_mm, operands)
        assert_written_in_place(scaled_mm.int8_mm, {"a": operands["a"], "b": operands["b"]})


@pytest.mark.parametrize("name", CALLS)
def test_the_op_itself_returns_nothing(name: str) -> None:
    call, operands = CALLS[name]
    out = call(**operands)
    operands = {**operands, "out": torch.empty_like(out)}
    if isinstance(operands.get("b"), scaled_mm.PackedWeight):
        operands |= {"b": PACKED.data, "b_shape": PACKED.shape}
    op = getattr(torch.ops.scaled_mm, call.__name__).out
    assert op(**operands) is None
    assert_bits(operands["out"], out)
    torch.library.opcheck(op, (), operands)


# --- refused (what a shape, dtype or device of out refuses: refusals.py, test_fakes.py) -----------


def overlaps() -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Every operand in memory that out reaches into, by its first bytes or by its last."""
    for name, (call, given) in CALLS.items():
        operands = dict(given)
        shape, dtype = call(**operands).shape, call(**operands).dtype
        if isinstance(operands["b" if "b" in operands else "x"], scaled_mm.PackedWeight):
            continue
        tensors = {k: x for k, x in operands.items() if torch.is_tensor(x) and x.numel()}
        for operand, x in tensors.items():
            size = x.untyped_storage().nbytes()
            room = int(np.prod(shape)) * dtype.itemsize
            for first in (0, (size - 1) // 4 * 4):
                if room == 0:
                    continue
                memory = torch.zeros(first + room + size, dtype=torch.uint8)
                moved = memory[:size].view(x.dtype).as_strided(x.shape, x.stride())
                out = memory[first : first + room].view(dtype).view(shape)
                yield name, operand, {**operands, operand: moved.copy_(x), "out": out}


@pytest.mark.parametrize(("name", "operand", "operands"), list(overlaps()))
def test_out_in_the_memory_of_an_operand(name: str, operand: str, operands: dict[str, Any]) -> None:
    before = operands[operand].clone()
    with pytest.raises(ValueError) as caught:
        CALLS[name][0](**operands)
    message = rf"out must share no memory with {operand}, got an overlap of \d+ bytes"
    assert re.fullmatch(message, str(caught.value))
    assert torch.equal(operands[operand], before)


def test_out_beside_an_operand() -> None:
    """Neighbours in one buffer do not overlap."""
    operands = GOOD["int8_mm"]()
    memory = torch.zeros(M * K + 4 * M * N + N * K, dtype=torch.uint8)
    a = memory[: M * K].view(torch.int8).view(M, K).copy_(operands["a"])
    out = memory[M * K : -N * K].view(torch.int32).view(M, N)
    b = memory[-N * K :].view(torch.int8).view(N, K).copy_(operands["b"].t()).t()
    scaled_mm.int8_mm(a, b, out=out)
    assert_bits(out, scaled_mm.int8_mm(**operands))


def test_out_with_gaps_between_its_rows() -> None:
    out = torch.empty(M, N + 1, dtype=torch.int32)[:, :N]
    with pytest.raises(ValueError, match=r"^out must be contiguous, got strides \(97, 1\)$"):
        scaled_mm.int8_mm(**GOOD["int8_mm"](), out=out)


@pytest.mark.parametrize("name", ["scaled_mm float32", "awq_gemm"])
def test_out_without_values_of_its_own(name: str) -> None:
    call, operands = CALLS[name]
    expected = call(**operands)
    lazy = {
        "a lazily negated view": torch._neg_view(torch.zeros_like(expected)),
        "a zero without memory": torch._efficientzerotensor(expected.shape, dtype=expected.dtype),
    }
    for kind, out in lazy.items():
        message = f"^out must have memory that holds its values, got {kind}$"
        with pytest.raises(ValueError, match=message):
            call(**operands, out=out)


@pytest.mark.parametrize("value", [[1], 1, 0.5, "out"])
def test_awq_out_that_is_no_tensor(value: Any) -> None:
    kind = type(value).__name__
    with pytest.raises(TypeError, match=rf"^out must be a Tensor, got {kind}$"):
        scaled_mm.awq_gemm(**GEMM, out=value)


@pytest.mark.parametrize("name", ["scaled_mm float32", "awq_gemm"])
def test_autograd_sees_the_write(name: str) -> None:
    """What backward would need of out is gone; torch says so, as for its own ops."""
    call, operands = CALLS[name]
    out = call(**operands)
    leaf = torch.ones_like(out, requires_grad=True)
    product = (leaf * out).sum()
    call(**operands, out=out)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        product.backward()


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_modes(mode: Callable[[], Any]) -> None:
    call, operands = CALLS["scaled_mm"]
    expected = call(**operands)
    with mode():
        assert_bits(call(**operands, out=torch.empty_like(expected)), expected)


def new_tensor(a: Tensor, scale: Tensor) -> Tensor:
    out = torch.empty(a.shape[0], N, dtype=torch.float16)
    b, scale_b = GOOD["int8_mm"]()["b"], torch.ones(N)
    scaled_mm.scaled_mm(a, b, scale, scale_b, out_dtype=torch.float16, out=out)
    return out + 1


def halves(a: Tensor, scale: Tensor) -> Tensor:
    """Two products into the rows of one buffer, the second over a part of the first."""
    b, rows = GOOD["int8_mm"]()["b"], a.shape[0]
    buffer = torch.zeros(2 * rows, N, dtype=torch.int32)
    scaled_mm.int8_mm(a, b, out=buffer[:rows])
    scaled_mm.int8_mm(-a, b, out=buffer[rows - 1 : 2 * rows - 1])
    return buffer * scale[0]


def used_before_and_after(a: Tensor, scale: Tensor) -> Tensor:
    b, scale_b = GOOD["int8_mm"]()["b"], torch.ones(N)
    y = torch.ones(a.shape[0], N)
    z = y * 2
    y = scaled_mm.scaled_mm(a, b, scale, scale_b, out_dtype=torch.float32, out=y)
    return z + y


def awq(a: Tensor, scale: Tensor) -> Tensor:
    x, out = a.half(), torch.empty(a.shape[0], 24, dtype=torch.float16)
    scaled_mm.awq_gemm(x, GEMM["qweight"], GEMM["scales"], GEMM["qzeros"], out=out)
    return out * scale[0]


FUNCTIONS = [new_tensor, halves, used_before_and_after, awq]


def operands_of(m: int) -> tuple[Tensor, Tensor]:
    random = torch.Generator().manual_seed(m)
    a = torch.randint(-128, 128, (m, K), generator=random).to(torch.int8)
    return a, torch.rand(1, generator=random)


@pytest.mark.parametrize(
    ("backend", "function"),
    [
        *(("aot_eager", f) for f in FUNCTIONS),
        ("inductor", halves),
        pytest.param("inductor", awq, marks=pytest.mark.slow),
    ],
)
def test_compile(backend: str, function: Callable[..., Tensor]) -> None:
    torch._dynamo.reset()
    compiled = torch.compile(function, fullgraph=True, dynamic=True, backend=backend)
    for m in (5, 8, 33):
        assert_bits(compiled(*operands_of(m)), function(*operands_of(m)), backend, m)


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_compile_writes_an_argument(backend: str) -> None:
    torch._dynamo.reset()
    compiled = torch.compile(scaled_mm.int8_mm, fullgraph=True, dynamic=True, backend=backend)
    b = GOOD["int8_mm"]()["b"]
    for m in (5, 8):
        a, _ = operands_of(m)
        buffer = torch.full((m + 2, N), 77, dtype=torch.int32)
        version = buffer._version
        out = compiled(a, b, out=buffer[1:-1])
        assert_bits(buffer[1:-1], scaled_mm.int8_mm(a, b))
        assert_bits(out, buffer[1:-1])
        assert set(bits(buffer[[0, -1]]).flatten().tolist()) == {77}
        assert buffer._version > version


def test_export() -> None:
    rows = {0: torch.export.Dim("m", min=2, max=64)}
    program = torch.export.export(
        AsModule(new_tensor), operands_of(5), dynamic_shapes=((rows, None),)
    )
    for m in (2, 9):
        assert_bits(program.module()(*operands_of(m)), new_tensor(*operands_of(m)))
