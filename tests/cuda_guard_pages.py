"""Run by test_cuda_guard_pages.py in a process of its own, for an access outside ends it: every
operand and output of every kernel lies at the end, or at the beginning, of mapped memory.

    |  no access  |  . . . . operand  |  no access  |     or     |  no access  |  operand . . . .  |
"""

import ctypes
import itertools
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
from awq_cases import AwqCase
from cuda_mixed_cases import ZEROS, MixedCase, arms
from cuda_support import DEVICE, ROWS, forced, kernels, on_device
from helpers import bits
from operands import AZP_FORMS, ROW, Case, Layout, Matrix, Vector
from produce_cases import PRODUCERS, ProduceCase
from program_cases import problem
from quantize_cases import QuantizeCase
from torch import Tensor

import scaled_mm
from scaled_mm.ops.epilogue_mm import epilogue_mm

Call = Callable[..., Any]  # of operands by name

# --- memory ---------------------------------------------------------------------------------------


class Location(ctypes.Structure):  # CUmemLocation
    _fields_ = [("type", ctypes.c_int), ("id", ctypes.c_int)]


class Properties(ctypes.Structure):  # CUmemAllocationProp
    _fields_ = [
        ("type", ctypes.c_int),
        ("handle_types", ctypes.c_int),
        ("location", Location),
        ("metadata", ctypes.c_void_p),
        ("flags", ctypes.c_ubyte * 8),
    ]


class Access(ctypes.Structure):  # CUmemAccessDesc
    _fields_ = [("location", Location), ("flags", ctypes.c_int)]


ON_THE_DEVICE = Location(1, 0)  # CU_MEM_LOCATION_TYPE_DEVICE
PINNED, READ_AND_WRITE = 1, 3


def driver(function: str, *arguments: Any) -> None:
    status = getattr(ctypes.CDLL("libcuda.so.1"), function)(*arguments)
    if status:
        raise OSError(status, function)


def mapped() -> Tensor:
    """The least memory that can be mapped, as bytes, between addresses that are not."""
    properties = Properties(PINNED, 0, ON_THE_DEVICE)
    size, address, handle = ctypes.c_size_t(), ctypes.c_ulonglong(), ctypes.c_ulonglong()
    driver("cuMemGetAllocationGranularity", ctypes.byref(size), ctypes.byref(properties), 0)
    none = ctypes.c_ulonglong(0)
    whole = ctypes.c_size_t(3 * size.value)
    driver("cuMemAddressReserve", ctypes.byref(address), whole, ctypes.c_size_t(0), none, none)
    driver("cuMemCreate", ctypes.byref(handle), size, ctypes.byref(properties), none)
    inside = ctypes.c_ulonglong(address.value + size.value)
    driver("cuMemMap", inside, size, ctypes.c_size_t(0), handle, none)
    access = Access(ON_THE_DEVICE, READ_AND_WRITE)
    driver("cuMemSetAccess", inside, size, ctypes.byref(access), ctypes.c_size_t(1))
    return bytes_at(inside.value, size.value)


def bytes_at(address: int, size: int) -> Tensor:
    memory = {"shape": (size,), "typestr": "|u1", "data": (address, False), "version": 2}
    array = SimpleNamespace(__cuda_array_interface__=memory)
    return torch.as_tensor(array, device=DEVICE)


MAPPED: defaultdict[str, Tensor] = defaultdict(mapped)  # by the operand's name


def place(name: str, x: Any, at_end: bool) -> Any:
    """A copy with its last byte before the gap above, or its first behind the one below; `out`
    begins at a multiple of 16 bytes, as it must. A matrix whose columns are dense keeps them; what
    is no tensor stays as it is."""
    if not isinstance(x, Tensor) or x.numel() == 0:
        return x
    if x.dim() == 2 and x.stride(0) == 1 and x.shape[0] > 1:
        return place(name, x.t(), at_end).t()
    memory, size = MAPPED[name], x.numel() * x.element_size()
    assert size <= memory.numel(), (name, x.shape)
    start = memory.numel() - size if at_end else 0
    start -= start % 16 if name == "out" else 0
    return memory[start : start + size].view(x.dtype).view(x.shape).copy_(x)


# --- calls ----------------------------------------------------------------------------------------


def outputs(made: Any) -> list[Tensor]:
    return [x for x in (made if isinstance(made, tuple) else (made,)) if isinstance(x, Tensor)]


def check(what: str, call: Call, operands: dict[str, Any], wrap: Call = dict) -> None:
    """The call on operands where they lie, and on placed ones: the same bits. wrap(placed
    operands): the call's arguments."""
    expected = outputs(call(**wrap(**operands)))
    for at_end in (True, False):
        there = {name: place(name, x, at_end) for name, x in operands.items()}
        if "out" in there:
            there["out"].zero_()
        torch.cuda.synchronize()
        where = f"{what}, at the {'end' if at_end else 'beginning'}"
        try:
            got = outputs(call(**wrap(**there)))
            torch.cuda.synchronize()
        except RuntimeError as error:
            raise SystemExit(f"{where}: {error}") from error
        for x, y in zip(got, expected, strict=True):
            if not torch.equal(bits(x), bits(y)):
                raise SystemExit(f"{where}: wrong bits")


SIZES = ((1, 16, 64), (3, 40, 37), (16, 64, 128), (65, 96, 128), (64, 128, 256), (130, 264, 320))
SIZES += ((128, 256, 384), (257, 120, 1040), (33, 130, 2048), (5, 72, 8192))
ENDS: tuple[dict[str, Any], ...] = (
    {"bias": Vector("signed")},
    {"bias": Vector("signed"), **AZP_FORMS["token"]},
    {"residual": Matrix()},
    {"residual": Matrix(dtype=torch.float32), "out_dtype": torch.float32},
    {"activation": "swiglu"},
)


def weight_of_bytes(data: Tensor, size: tuple[int, int], **rest: Any) -> dict[str, Any]:
    return {**rest, "b": scaled_mm.PackedWeight(data, *size)}


def int8_products() -> None:
    orders = itertools.cycle((Layout("column"), ROW))
    for (m, n, k), end in itertools.product(SIZES, ENDS):
        case = Case(f"guarded {m} {n} {k}", m, n, k, b_layout=next(orders), **end)
        operands = on_device(case.build())
        d = scaled_mm.scaled_mm(**operands)
        operands["out"] = torch.empty_like(d)
        data = scaled_mm.pack_weight_int8(operands["b"]).data
        packed = {**{name: x for name, x in operands.items() if name != "b"}, "data": data}
        wrap = partial(weight_of_bytes, size=(k, n))
        for row in ROWS:
            with forced(row):
                check(f"scaled_mm {row} {case}", scaled_mm.scaled_mm, operands)
                check(f"scaled_mm packed {row} {case}", scaled_mm.scaled_mm, packed, wrap)
        b = {"b": operands["b"]}
        check(f"azp_adj {case}", scaled_mm.azp_adj, b)
        check(f"pack {case}", lambda b: scaled_mm.pack_weight_int8(b).data, b)


def few_bits(w: scaled_mm.MixedWeight, data: Tensor, **rest: Any) -> dict[str, Any]:
    order = rest.pop("order", w.order)
    return {**rest, "w": replace(w, data=data, order=order)}


def lowbit_cases() -> Iterator[tuple[int, int, int, int]]:
    rows = itertools.cycle((1, 9, 17, 33, 70, 130, 200))
    for (k, group), n in itertools.product(
        ((128, 128), (64, 32), (192, 96), (448, 64), (1024, 128), (2176, 2176)), (8, 64, 72, 264)
    ):
        yield next(rows), n, k, group


def lowbit_products() -> None:
    for m, n, k, group in lowbit_cases():
        case = AwqCase(f"guarded {m}", k, n, group, rows=(m,), bias=torch.float16)
        operands = on_device(case.product())
        words = {name: operands[name] for name in ("qweight", "scales", "qzeros")}
        check(f"awq_dequantize {case}", scaled_mm.awq_dequantize, words)
        operands["out"] = torch.empty(m, n, dtype=torch.float16, device=DEVICE)
        for kernel in ("", *(x for x in kernels("lowbit") if "/packed" not in x)):
            with forced(kernel):
                check(f"awq_gemm {kernel} {case}", scaled_mm.awq_gemm, operands)
        for width, zero in itertools.product((4, 8), ZEROS):
            more: dict[str, Any] = {"bias": torch.float32, "pre_scale": torch.float32}
            columns = n - (zero == "float")  # of no whole vector too
            mixed = MixedCase(m, columns, k, group, width, zero, order=n == 72, **more)
            w, given = mixed.weight(), on_device(mixed.operands())
            given |= {"data": w.data, "out": torch.empty_like(given["x"][:, :1].expand(m, columns))}
            if w.order is not None:
                given["order"] = w.order
            wrap = partial(few_bits, w)
            for kernel in arms(width):
                with forced(kernel):
                    check(f"mixed_mm {kernel} {mixed}", scaled_mm.mixed_mm, given, wrap)
            unpacked = {"data": w.data}
            check(f"dequantize {mixed}", lambda w: w.dequantize(), unpacked, wrap)


def widths() -> Iterator[tuple[int, int, torch.dtype]]:
    dtypes = itertools.cycle((torch.float32, torch.bfloat16, torch.float16))
    for k in (*range(1, 40), 63, 65, 130, 1023, 1024, 4096, 11_008):
        yield 1 + k % 5, k, next(dtypes)
    yield 600, 1040, torch.bfloat16  # many rows, of which the next come while one is quantised


def quantisers() -> None:
    given: dict[str, Any] = {"scale": Vector(), "azp": Vector("int8"), "symmetric": False}
    kinds = ({}, {"symmetric": False}, {"symmetric": False, "per_token": False}, given)
    for (m, k, dtype), more in itertools.product(widths(), kinds):
        case = QuantizeCase("guarded", "normal", (m, k), dtype, **more)
        operands = on_device(case.build())
        check(f"quantize_int8 {case}", scaled_mm.quantize_int8, operands)
        if not more:
            x = {"w": operands["x"]}
            check(f"quantize_weight_int8 {case}", lambda w: scaled_mm.quantize_weight_int8(w), x)
    for (m, k, dtype), per_token in itertools.product(widths(), (True, False)):
        case = QuantizeCase("guarded", "normal", (m, k), dtype, per_token=per_token)
        linear = partial(torch.ops.scaled_mm.scaled_linear, bias=None, k=k, per_token=per_token)
        weight = torch.ones(4, k, dtype=torch.int8), torch.ones(4, 1)
        operands = {"x": case.build()["x"], "weight": weight[0], "weight_scale": weight[1]}
        operands["input_smooth"] = torch.linspace(0.5, 2, k)
        check(f"scaled_linear {case}", linear, on_device(operands))


def producers() -> None:
    for (m, k, dtype), producer in itertools.product(widths(), PRODUCERS):
        case = ProduceCase("guarded", producer, shape=(m, k), dtype=dtype, other=True, smooth=True)
        check(f"{case}", torch.ops.scaled_mm.produce_int8, on_device(case.build()))


def programs() -> None:
    for seed in range(120):
        a, b, operands, ints, _, text = problem(seed)
        there = on_device({"a": a, "b": b, **{f"x{i}": x for i, x in enumerate(operands)}})

        def call(a: Tensor, b: Tensor, **given: Tensor) -> tuple[Tensor, ...]:
            return tuple(epilogue_mm(a, b, list(given.values()), ints))  # noqa: B023

        check(f"epilogue_mm {text}", call, there)


PARTS = {f.__name__: f for f in (int8_products, lowbit_products, quantisers, producers, programs)}

if __name__ == "__main__":
    torch.zeros(1, device=DEVICE)  # starts CUDA
    if sys.argv[1:] == ["fault"]:  # that the guard guards
        memory = mapped()
        print(bytes_at(memory.data_ptr(), memory.numel() + 1).sum().item())
    for part in sys.argv[1:]:
        PARTS[part]()
        print(f"{part}: no access outside")
