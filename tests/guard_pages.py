"""Run by test_guard_pages.py in a process of its own: every operand of every op lies in memory
whose neighbouring pages cannot be touched, and ends at the one above or begins at the one below.

    |  no access  |  . . . . operand  |  no access  |     or     |  no access  |  operand . . . .  |
"""

import ctypes
import itertools
import mmap
import sys
from collections import defaultdict
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from awq_cases import AwqCase
from helpers import each_isa
from mixed_cases import KINDS, MixedCase
from produce_cases import PRODUCERS, ProduceCase
from torch import Tensor

import scaled_mm
from scaled_mm import reference

PAGE = mmap.PAGESIZE
ROOM = 64 * PAGE
LIBC = ctypes.CDLL(None, use_errno=True)


class Guarded:
    """Memory between two pages without access, handed out tensor by tensor."""

    def __init__(self) -> None:
        self.memory = mmap.mmap(-1, ROOM + 2 * PAGE)
        self.base = ctypes.addressof(ctypes.c_char.from_buffer(self.memory))
        for page in (self.base, self.base + PAGE + ROOM):
            if LIBC.mprotect(ctypes.c_void_p(page), ctypes.c_size_t(PAGE), 0):
                raise OSError(ctypes.get_errno(), "mprotect")

    def place(self, x: Tensor, at_end: bool, column_major: bool = False) -> Tensor:
        """x with its last byte before the guard page above, or its first after the one below."""
        x = x.t() if column_major else x
        size = x.numel() * x.element_size()
        offset = PAGE + (ROOM - size if at_end else 0)
        if size == 0:
            return x
        flat = torch.frombuffer(self.memory, dtype=x.dtype, count=x.numel(), offset=offset)
        placed = flat.view(x.shape).copy_(x)
        return placed.t() if column_major else placed


GUARDED: defaultdict[str, Guarded] = defaultdict(Guarded)  # by the operand's name
RNG = np.random.default_rng(0)


def int8(*shape: int) -> Tensor:
    return torch.from_numpy(RNG.integers(-128, 128, shape, np.int8))


def floats(*shape: int) -> Tensor:
    return torch.from_numpy(RNG.standard_normal(shape).astype(np.float32))


def expect(got: Tensor, expected: Tensor, *context: object) -> None:
    if not torch.equal(got, expected):
        raise SystemExit(f"wrong result: {context}")


def product(m: int, n: int, k: int, at_end: bool, column_major: bool, dtype: torch.dtype) -> None:
    values = {
        "a": int8(m, k),
        "b": int8(k, n),
        "scale_a": floats(m, 1),
        "scale_b": floats(1, n),
        "bias": floats(n).to(dtype),
        "azp": int8(m, 1).int(),
        "azp_adj": int8(1, n).int(),
    }
    context = (m, n, k, at_end, column_major, dtype)
    expected = reference.scaled_mm(**values, out_dtype=dtype)
    placed: dict[str, Any] = {
        name: GUARDED[name].place(x, at_end, name == "b" and column_major)
        for name, x in values.items()
    }
    b = placed["b"]
    for isa in each_isa():
        got = scaled_mm.scaled_mm(**placed, out_dtype=dtype)
        expect(got, expected, "plain", isa, *context)
    expect(scaled_mm.azp_adj(b), reference.azp_adj(b), "azp_adj", *context)
    residual = floats(m, n).to(dtype if k % 2 else torch.float32)
    more: list[tuple[str, dict[str, Any]]] = [
        ("residual", {"residual": GUARDED["residual"].place(residual, at_end)})
    ]
    if n % 2 == 0:
        more.append(("activation", {"activation": "swiglu"}))
    for name, change in more:
        wanted = reference.scaled_mm(**placed, **change, out_dtype=dtype)
        for isa in each_isa():
            got = scaled_mm.scaled_mm(**placed, **change, out_dtype=dtype)
            expect(got, wanted, name, isa, *context)
    packed = scaled_mm.pack_weight_int8(b)
    data = GUARDED["packed"].place(packed.data, at_end)
    placed["b"] = scaled_mm.PackedWeight(data, k, n)
    for isa in each_isa():
        got = scaled_mm.scaled_mm(**placed, out_dtype=dtype)
        expect(got, expected, "packed", isa, *context)
    expect(scaled_mm.azp_adj(placed["b"]), reference.azp_adj(b), "azp_adj packed", *context)


def quantisers(m: int, k: int, at_end: bool, dtype: torch.dtype) -> None:
    x = GUARDED["x"].place(floats(m, k).to(dtype), at_end)
    scale = GUARDED["scale"].place(floats(m, 1).abs(), at_end)
    azp = GUARDED["azp"].place(int8(m, 1).int(), at_end)
    for options in (
        {},
        {"symmetric": False},
        {"symmetric": False, "per_token": False},
        {"scale": scale},
        {"scale": scale, "azp": azp, "symmetric": False},
    ):
        expected = reference.quantize_int8(x, **options)[0]
        for isa in each_isa():
            got = scaled_mm.quantize_int8(x, **options)[0]
            expect(got, expected, "quantize_int8", isa, m, k, at_end, dtype, options)
    w = GUARDED["w"].place(floats(m, k).to(dtype), at_end)
    expect(scaled_mm.quantize_weight_int8(w)[0], reference.quantize_weight_int8(w)[0], "weight", k)


def placed(operands: dict[str, Any], at_end: bool) -> dict[str, Any]:
    """The operands in guarded memory; what is no tensor as it is."""
    return {
        name: GUARDED[name].place(x, at_end) if isinstance(x, Tensor) else x
        for name, x in operands.items()
    }


def int4(m: int, n: int, k: int, group: int, at_end: bool, dtype: torch.dtype) -> None:
    operands = AwqCase("guarded", k, n, group, dtype, "signed", (m,), dtype).product()
    there = placed(operands, at_end)
    weight = ("qweight", "scales", "qzeros")
    packed = scaled_mm.MixedWeight.from_awq(*(there[name] for name in weight))
    packed = replace(packed, data=GUARDED["packed"].place(packed.data, at_end))
    rest = {name: x for name, x in there.items() if name not in weight}
    expected = reference.awq_dequantize(*(operands[name] for name in weight))
    for isa in each_isa():
        context = (isa, m, n, k, group, at_end, dtype)
        got = scaled_mm.awq_dequantize(*(there[name] for name in weight))
        expect(got, expected, "awq_dequantize", *context)
        wanted = scaled_mm.awq_gemm(**operands)
        expect(scaled_mm.awq_gemm(**there), wanted, "awq_gemm", *context)
        expect(scaled_mm.awq_gemm(**rest, qweight=packed), wanted, "awq_gemm packed", *context)


def mixed(kind: tuple[int, str], m: int, n: int, k: int, at_end: bool, dtype: torch.dtype) -> None:
    """Weights of 4 and 8 bits; `kind` is their bits and zero points."""
    more: dict[str, Any] = {"bias": dtype, "pre_scale": dtype, "shuffled": True}
    operands, _ = MixedCase("guarded", *kind, k, n, k // 2, dtype, rows=(m,), **more).product()
    there = placed(operands, at_end)
    w = operands["w"]
    order = None if w.order is None else GUARDED["order"].place(w.order, at_end)
    there["w"] = replace(w, data=GUARDED["packed"].place(w.data, at_end), order=order)
    for isa in each_isa():
        context = (isa, kind, m, n, k, at_end, dtype)
        expect(scaled_mm.mixed_mm(**there), scaled_mm.mixed_mm(**operands), "mixed_mm", *context)
        expect(there["w"].dequantize(), w.dequantize(), "mixed_dequantize", *context)


def k_scales(m: int, n: int, k: int, group: int, zero: str, at_end: bool) -> None:
    """A weight of 4 bits by int8 rows; and int8 in blocks, where there is more than one."""
    case = MixedCase("guarded", 4, zero, k, n, group, torch.bfloat16, shuffled=group < k)
    w = scaled_mm.pack_weight(**case.plain(RNG))
    rows = {"scale_a": floats(m, 1), "azp": int8(m, 1).int(), "bias": floats(n)}
    operands = {"x": int8(m, k), **rows}
    order = None if w.order is None else GUARDED["order"].place(w.order, at_end)
    there = replace(w, data=GUARDED["packed"].place(w.data, at_end), order=order)
    a, b = int8(m, k), int8(k, n)
    scales = {"scale_a": floats(m, -(-k // 128)), "scale_b": floats(-(-k // 128), -(-n // 128))}
    packed = scaled_mm.pack_weight_int8(b)
    packed = replace(packed, data=GUARDED["packed b"].place(packed.data, at_end))
    plain = GUARDED["b"].place(b, at_end, True)
    for isa in each_isa():
        context = (isa, m, n, k, group, zero, at_end)
        for drop in ((), ("azp",)):
            given = {name: x for name, x in operands.items() if name not in drop}
            got = scaled_mm.w4a8_mm(w=there, **placed(given, at_end))
            expect(got, scaled_mm.w4a8_mm(w=w, **given), "w4a8_mm", drop, *context)
        if scales["scale_b"].numel() > 1:
            expected = reference.scaled_mm(a, b, **scales)
            for weight in (plain, packed):
                got = scaled_mm.scaled_mm(
                    GUARDED["a"].place(a, at_end), weight, **placed(scales, at_end)
                )
                expect(got, expected, "blocks", *context)


def producers(m: int, k: int, at_end: bool, dtype: torch.dtype) -> None:
    for producer in PRODUCERS:
        case = ProduceCase("guarded", producer, shape=(m, k), dtype=dtype, other=True, smooth=True)
        operands = case.build(RNG)
        expected = reference.produce_int8(**operands)[0]
        there = placed(operands, at_end)
        for isa in each_isa():
            got = torch.ops.scaled_mm.produce_int8(**there)[0]
            expect(got, expected, producer, isa, m, k, at_end, dtype)


def main() -> None:
    halves = (torch.float16, torch.bfloat16)
    for n, at_end, dtype in itertools.product(range(8, 201, 8), (True, False), halves):
        int4(1 + n // 8 % 5, n, 64, 32, at_end, dtype)
    for k, at_end in itertools.product((1, 3, 16, 17, 33, 100, 129, 260), (True, False)):
        int4(1 + k % 9, 72, k, k, at_end, halves[k % 2])
    for (i, kind), at_end in itertools.product(enumerate(KINDS), (True, False)):
        for n in (1, 7, 8, 9, 33, 64, 127, 128, 129, 200):
            mixed(kind, 1 + (n + i) % 6, n, 2 * (1 + (n + i) % 40), at_end, halves[n % 2])
    for zero, at_end in itertools.product(("none", "integer"), (True, False)):
        for n, (k, group) in itertools.product((1, 9, 127, 150), ((30, 30), (64, 32), (288, 96))):
            k_scales(1 + n % 4, n, k, group, zero, at_end)
            k_scales(7 + n % 30, n, k, group, zero, at_end)
    for k, at_end in itertools.product((*range(1, 40), 63, 65, 130), (True, False)):
        producers(1 + k % 3, k, at_end, (torch.float32, *halves)[k % 3])
    int8_ops()


def int8_ops() -> None:
    ends, orders = (True, False), (True, False)
    for k, at_end, order in itertools.product(range(1, 71), ends, orders):
        product(1 + k % 20, 1 + k * 7 % 40, k, at_end, order, torch.float32)
    for n, at_end, order in itertools.product(range(1, 41), ends, orders):
        product(3, n, 32, at_end, order, torch.bfloat16)
        product(17, n, 5, at_end, order, torch.float16)
    for m, at_end, order in itertools.product(range(1, 21), ends, orders):
        product(m, 16, 64, at_end, order, torch.float16)
        product(m, 33, 37, at_end, order, torch.bfloat16)
    for m, n, k in ((33, 80, 129), (20, 64, 256), (65, 17, 100)):
        for at_end, order in itertools.product(ends, orders):
            product(m, n, k, at_end, order, torch.float32)
    for k, at_end in itertools.product(range(1, 71), ends):
        for dtype in (torch.float32, torch.bfloat16, torch.float16):
            quantisers(1 + k % 5, k, at_end, dtype)


if sys.argv[1:] == ["fault"]:  # that the guard guards
    ctypes.string_at(GUARDED["a"].base + PAGE + ROOM, 1)
main()
print("no access outside")
