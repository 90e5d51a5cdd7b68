"""Each allocation of each op on a GPU fails once; a part of soak_cuda.py, in a process of its own.

A failure must come out as torch.OutOfMemoryError, leave no memory behind, and change no later
result. failing_allocator.py is in force before this module is imported, which starts CUDA.
"""

import ctypes
import itertools
import json
from collections.abc import Callable, Iterator
from typing import Any

import torch
from awq_cases import AwqCase
from cuda_mixed_cases import MixedCase, arms
from cuda_support import DEVICE, NAMES, forced, how_many_differ, kernels, on_device
from test_cuda_streams import Work
from torch import Tensor

import scaled_mm
from scaled_mm.nn import ScaledLinear

SHAPES = ((3, 333), (40, 1000), (300, 4096))  # the last one: gelu by its table
PRODUCED: dict[str, Callable[[Tensor], tuple[Tensor, ...]]] = {
    "rms norm": lambda x: scaled_mm.rms_norm_quantize_int8(x, x[0], 1e-5, residual=x),
    "layer norm": lambda x: scaled_mm.layer_norm_quantize_int8(x, x[0], None, 1e-5),
    "silu": lambda x: scaled_mm.silu_mul_quantize_int8(x, x),
    "gelu": lambda x: scaled_mm.gelu_quantize_int8(x),
}


def calls(work: Work) -> Iterator[tuple[str, str, Callable[[], Any]]]:
    """(row of the tuning table, what, call): every op, and every row where it lays out anew."""
    products, quantised = work.operands
    for i, operands in enumerate(products):
        a, b = operands["a"], operands["b"]
        weight = scaled_mm.pack_weight_int8(b)
        for row in ("", *NAMES) if i in (3, 4, 7) else ("",):
            yield row, f"scaled_mm {i}", lambda x=operands: scaled_mm.scaled_mm(**x)
        yield "", f"packed {i}", lambda x=operands, w=weight: scaled_mm.scaled_mm(**{**x, "b": w})
        yield "", f"int8_mm {i}", lambda a=a, b=b: scaled_mm.int8_mm(a, b)
        yield "", f"pack {i}", lambda b=b: scaled_mm.pack_weight_int8(b).data
        yield "", f"azp_adj {i}", lambda b=b: scaled_mm.azp_adj(b)
        float_layer = torch.nn.Linear(*b.shape, bias=i % 2 == 0, device=DEVICE)
        layer = ScaledLinear.from_linear(float_layer.half().requires_grad_(False))
        x = a.half()
        yield "", f"layer {i}", lambda x=x, layer=layer: layer(x)
    for i, operands in enumerate(quantised):
        yield "", f"quantize_int8 {i}", lambda x=operands: scaled_mm.quantize_int8(**x)
        yield "", f"weight {i}", lambda x=operands["x"]: scaled_mm.quantize_weight_int8(x)
    for (rows, columns), (name, produce) in itertools.product(SHAPES, PRODUCED.items()):
        x = torch.linspace(-3, 3, rows * columns, device=DEVICE).bfloat16().view(rows, columns)
        yield "", f"{name} {rows}", lambda x=x, produce=produce: produce(x)
    for bits, rows in itertools.product((4, 8), (1, 40, 300)):
        case = MixedCase(rows, 520, 512, 128, bits, "integer", bias=torch.float32, order=True)
        weight, operands = case.weight(), on_device(case.operands())
        for row in arms(bits):
            call = f"mixed_mm {bits} {rows}"
            yield row, call, lambda w=weight, x=operands: scaled_mm.mixed_mm(w=w, **x)
    for rows in (1, 40, 300):
        case = AwqCase(f"memory {rows}", 512, 512, 128, rows=(rows,), bias=torch.float16)
        operands = on_device(case.product())
        weight = [operands[name] for name in ("qweight", "scales", "qzeros")]
        yield "", f"awq_dequantize {rows}", lambda w=weight: scaled_mm.awq_dequantize(*w)
        for row in ("", *kernels("lowbit")):
            yield row, f"awq_gemm {rows}", lambda x=operands: scaled_mm.awq_gemm(**x)


def outputs(got: Any) -> list[Tensor]:
    if isinstance(got, tuple):  # some of a quantiser's may be None
        return [x for x in got if x is not None]
    return [got]


class Planted:
    """Failures so far, and what did not come out as it must."""

    def __init__(self, hooks: ctypes.CDLL) -> None:
        self.hooks = hooks
        self.calls, self.failures, self.wrong = 0, 0, 0

    def refuse(self, *what: object) -> None:
        self.wrong += 1
        print("wrong:", *what, flush=True)

    def try_each(self, what: str, call: Callable[[], Any]) -> None:
        expected = outputs(call())
        torch.cuda.synchronize()
        before = self.hooks.count_live()
        self.hooks.arm(0)
        call()
        self.calls += 1
        for number in range(1, self.hooks.count_made() + 1):
            self.fail_once(number, what, call)
            torch.cuda.synchronize()
            if self.hooks.count_live() != before:
                self.refuse(what, number, "memory is left behind")
            if any(how_many_differ(outputs(call()), expected)):
                self.refuse(what, number, "the next result differs")

    def fail_once(self, number: int, what: str, call: Callable[[], Any]) -> None:
        self.hooks.arm(number)
        self.failures += 1
        try:
            call()
            self.refuse(what, number, "no error")
        except torch.OutOfMemoryError:
            pass
        except Exception as error:
            self.refuse(what, number, f"{type(error).__name__}: {error}")
        finally:
            self.hooks.arm(0)


def main(hooks: ctypes.CDLL) -> None:
    """Prints the figures as JSON, in the last line."""
    planted = Planted(hooks)
    for row, what, call in calls(Work(device=DEVICE)):
        with forced(row):
            planted.try_each(f"{what} {row}", call)
    figures = {"calls": planted.calls, "failures": planted.failures, "wrong": planted.wrong}
    print(json.dumps(figures), flush=True)
