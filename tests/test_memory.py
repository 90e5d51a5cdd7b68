"""Where no memory is left: torch.OutOfMemoryError and no other type, with the number of bytes.

Wherever an op allocates, be it an output or a copy of an operand; and the next call is right. The
operands are views of a few bytes, expanded until what is made of them fits no address space.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from awq_cases import AwqCase
from helpers import assert_bits
from operands import AZP_FORMS, Case, Matrix, Vector
from torch import Tensor

import scaled_mm
from scaled_mm import reference
from scaled_mm.ops import int8

HUGE = 2**50
K = 16


def ones(*shape: int, dtype: torch.dtype = torch.int8) -> Tensor:
    """One element that is read as all of them."""
    return torch.ones((), dtype=dtype).expand(shape)


def apart(last: tuple[int, ...] = (), dtype: torch.dtype = torch.int8) -> Tensor:
    """[HUGE, 2, *last] of a few elements, through whose rows no one stride leads."""
    return torch.ones(2, *last, dtype=dtype).expand(HUGE, 2, *last)


ONE = torch.ones(1)
FLOAT, INT, HALF = torch.float32, torch.int32, torch.float16


@dataclass(frozen=True)
class Memory:
    """A call of `op`, the first allocation of which that cannot be made has `bytes` bytes."""

    op: str
    operands: dict[str, Any]
    bytes: int
    raw: str | None = None  # the op's name where the public function's is another

    def public(self) -> Any:
        return getattr(scaled_mm, self.op)(**self.operands)

    def by_the_op(self) -> Any:
        return getattr(torch.ops.scaled_mm, self.raw or self.op)(**self.operands)


def int4(rows: int, n: int = 16, copied: str = "") -> dict[str, Tensor]:
    """A weight of `rows` rows in one group; the operand `copied` has no elements side by side."""
    made = {
        "qweight": ones(1, dtype=INT).repeat(n // 8)[None].expand(rows, n // 8),
        "scales": torch.ones(1, n, dtype=HALF),
        "qzeros": torch.ones(1, n // 8, dtype=INT),
    }
    if copied == "qweight":
        made[copied] = ones(rows, n // 8, dtype=INT)
    elif copied:
        groups = {"scales": n, "qzeros": n // 8}
        for name, width in groups.items():
            dense = torch.ones(width, dtype=made[name].dtype)[None].expand(rows, width)
            made[name] = ones(rows, width, dtype=dense.dtype) if name == copied else dense
    return made


def scaled(size: int, a: Tensor, n: int, **more: Any) -> Memory:
    """A product with scales of one element; n = 0 has an output of no bytes."""
    options = {"scale_b": ONE if n == 1 else torch.ones(n), **more}
    operands = {"a": a, "b": torch.ones(K, n, dtype=torch.int8), "scale_a": ONE, **options}
    return Memory("scaled_mm", operands, size)


def quantised(size: int, x: Tensor, op: str = "", **more: Any) -> Memory:
    return Memory("quantize_int8", {"x": x, **more}, size, op)


def awq(size: int, copied: str = "") -> Memory:
    return Memory("awq_dequantize", int4(HUGE, copied=copied), size)


NONE, ZERO, STATIC = torch.ones(0).int(), torch.ones(1, dtype=INT), "quantize_int8_static"
EXPANDED, SLICED = (x.expand(HUGE, 4) for x in (torch.ones(4).bfloat16(), torch.ones(8)[::2]))
MEMORY = {
    "output": scaled(HUGE * 8, ones(HUGE, K), 4),
    "output in float32": scaled(HUGE * 16, ones(HUGE, K), 4, out_dtype=FLOAT),
    "output with a residual": scaled(HUGE * 8, ones(HUGE, K), 4, residual=EXPANDED),
    "output of pairs": scaled(HUGE * 4, ones(HUGE, K), 4, activation="reglu"),
    "output of three dimensions": scaled(HUGE * 24, ones(HUGE, 3, K), 4),
    "copy of a": scaled(HUGE * 2 * K, apart((K,)), 0),
    "copy of a transposed": scaled(HUGE * 2 * K, apart((K,)).transpose(0, 1), 0),
    "copy of scale_a": scaled(HUGE * 8, ones(HUGE, 2, K), 0, scale_a=apart(dtype=FLOAT)),
    "copy of azp": scaled(HUGE * 8, ones(HUGE, 2, K), 0, azp=apart((1,), INT), azp_adj=NONE),
    "copy of a sliced residual": scaled(HUGE * 16, ones(HUGE, K), 4, residual=SLICED),
    "copy of a residual of stride 0": scaled(
        HUGE * 16, ones(HUGE, K), 4, residual=ones(HUGE, 4, dtype=FLOAT)
    ),
    "copy of a residual of two strides": scaled(
        HUGE * 8, ones(HUGE, 2, K), 1, residual=apart((1,), FLOAT)
    ),
    "int8_mm": Memory("int8_mm", {"a": ones(HUGE, K), "b": ones(K, 4)}, HUGE * 4 * 4),
    "int8_mm, copy of a": Memory("int8_mm", {"a": apart((K,)), "b": ones(K, 0)}, HUGE * 2 * K),
    "int8_mm, more than int64 counts": Memory(
        "int8_mm", {"a": ones(2**58, K), "b": ones(K, 64)}, 2**63 - 1
    ),
    "azp_adj": Memory("azp_adj", {"b": ones(K, HUGE)}, HUGE * 4),
    "azp_with_adj": Memory("azp_with_adj", {"b": ones(K, HUGE), "azp": ZERO}, HUGE * 4),
    "quantize_int8": quantised(HUGE * K, ones(HUGE, K, dtype=HALF)),
    "quantize_int8, scales": quantised(HUGE * 4, ones(HUGE, 0, dtype=HALF)),
    "quantize_int8, copy of x": quantised(HUGE * 4 * K, apart((K,), HALF)),
    "quantize_weight_int8": Memory(
        "quantize_weight_int8", {"w": ones(HUGE, K, dtype=HALF)}, HUGE * K
    ),
    "quantize_weight_int8, scales": Memory(
        "quantize_weight_int8", {"w": ones(HUGE, 0, dtype=HALF)}, HUGE * 4
    ),
    "static": quantised(HUGE * K, ones(HUGE, K, dtype=HALF), STATIC, scale=ONE),
    "static, copy of the scale": quantised(
        HUGE * 8, ones(HUGE, 2, 0, dtype=HALF), STATIC, scale=apart(dtype=FLOAT)
    ),
    "awq_dequantize": awq(HUGE * 32),
    "awq_dequantize, copy of words": awq(HUGE * 8, "qweight"),
    "awq_dequantize, copy of scales": awq(HUGE * 32, "scales"),
    "awq_dequantize, copy of zeros": awq(HUGE * 8, "qzeros"),
    "awq_gemm": Memory("awq_gemm", {"x": ones(HUGE, K, dtype=HALF), **int4(K)}, HUGE * 32),
    "awq_gemm, copy of x": Memory("awq_gemm", {"x": apart((K,), HALF), **int4(K)}, HUGE * 4 * K),
}


def assert_next_calls_are_right() -> None:
    case = Case("after", residual=Matrix(), bias=Vector("signed"), **AZP_FORMS["token"])
    operands = case.build()
    assert_bits(scaled_mm.scaled_mm(**operands), reference.scaled_mm(**operands))
    a, b = operands["a"], operands["b"]
    assert_bits(scaled_mm.int8_mm(a, scaled_mm.pack_weight_int8(b)), reference.int8_mm(a, b))
    x = torch.linspace(-3, 5, 60).reshape(6, 10)
    assert_bits(scaled_mm.quantize_int8(x)[0], reference.quantize_int8(x)[0])
    weight = AwqCase("after").weight()
    assert_bits(scaled_mm.awq_dequantize(**weight), reference.awq_dequantize(**weight))


def assert_out_of_memory(
    call: Callable[[], Any], error: type[BaseException], size: int | None
) -> None:
    count = r"\d+" if size is None else str(size)
    message = rf"^could not allocate {count} bytes on cpu: out of memory$"
    with pytest.raises(error, match=message) as caught:
        call()
    assert type(caught.value) is error
    assert_next_calls_are_right()


@pytest.mark.parametrize("name", MEMORY)
def test_out_of_memory(name: str) -> None:
    assert_out_of_memory(MEMORY[name].public, torch.OutOfMemoryError, MEMORY[name].bytes)


@pytest.mark.parametrize("name", MEMORY)
def test_the_op_itself_raises_memory_error(name: str) -> None:
    """The stable ABI has no way to raise torch's exception."""
    assert_out_of_memory(MEMORY[name].by_the_op, MemoryError, MEMORY[name].bytes)


@pytest.mark.parametrize("shape", [(1024, 2**40), (131071, 2**40)])
def test_a_packed_weight(shape: tuple[int, int]) -> None:
    b = ones(*shape)  # its layout is the library's own
    assert_out_of_memory(lambda: scaled_mm.pack_weight_int8(b), torch.OutOfMemoryError, None)
    assert_out_of_memory(lambda: torch.ops.scaled_mm.pack_weight_int8(b), MemoryError, None)


def test_many_failures_leave_nothing_behind() -> None:
    for _ in range(100):
        for name in ("output", "copy of a residual of two strides", "quantize_int8, scales"):
            with pytest.raises(torch.OutOfMemoryError):
                MEMORY[name].public()
    assert_next_calls_are_right()


def test_the_short_way_asks_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the shortest way to the library finds no memory, no other way is tried."""
    monkeypatch.setattr(int8, "_scaled_mm", None)
    with pytest.raises(torch.OutOfMemoryError, match=r"^could not allocate"):
        scaled_mm.scaled_mm(ones(HUGE, K), torch.ones(K, 1, dtype=torch.int8), ONE, ONE)


def test_a_layer_asks_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """So does a layer, whose quantiser and product are one op."""
    layer = scaled_mm.nn.ScaledLinear.from_linear(torch.nn.Linear(K, 4))
    monkeypatch.setattr(layer, "quantize_input", None)
    with pytest.raises(torch.OutOfMemoryError, match=r"^could not allocate"):
        layer(ones(HUGE, K, dtype=torch.float32))
