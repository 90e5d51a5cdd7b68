"""Around a call on the GPU: what is refused, which device, memory that runs out or may not grow."""

import itertools
import re
from typing import Any

import pytest
import torch
from awq_cases import AwqCase
from cuda_support import DEVICE, GPU, ROWS, forced, kernels, on_device, streams_only
from helpers import assert_bits, run_python
from refusals import GOOD, REFUSALS, K, M, N
from test_cuda_streams import PRODUCTS, Work
from test_refusals import assert_clean
from torch import Tensor

import scaled_mm

pytestmark = GPU


# --- refusals -------------------------------------------------------------------------------------


def good(op: str) -> dict[str, Any]:
    return {name: x.to(DEVICE) for name, x in GOOD[op]().items()}


@pytest.mark.parametrize("name", REFUSALS)
def test_refused(name: str) -> None:
    refusal = REFUSALS[name]
    with pytest.raises((ValueError, TypeError, RuntimeError), match=refusal.message) as caught:
        getattr(scaled_mm, refusal.op)(**refusal.build(DEVICE))
    assert type(caught.value) is refusal.error
    assert_clean(str(caught.value))


@pytest.mark.parametrize("row", ROWS)
def test_after_a_refusal_the_next_call_is_right(row: str) -> None:
    expected = scaled_mm.scaled_mm(**GOOD["scaled_mm"]())
    with forced(row):
        for refusal in REFUSALS.values():
            with pytest.raises((ValueError, TypeError, RuntimeError)):
                getattr(scaled_mm, refusal.op)(**refusal.build(DEVICE))
        assert_bits(scaled_mm.scaled_mm(**good("scaled_mm")).cpu(), expected)


BUFFERS: dict[str, tuple[Any, tuple[int, ...], str, str]] = {
    "shape-1": (lambda x: x, (K,), "b_shape", r"\(64,\)"),
    "negative-n": (lambda x: x[:0], (K, -1), "b_shape", r"\(64, -1\)"),
    "size-wraps": (lambda x: x[:0], (K, 2**61), "b_shape|b", r".*"),
    "other-n": (lambda x: x, (K, N + 1), "b", r"shape \(6144,\)"),
    "other-k": (lambda x: x, (K + 1, N), "b", r"shape \(6144,\)"),
    "int8": (lambda x: x.view(torch.int8), (K, N), "b", "int8"),
    "strided": (lambda x: x.repeat_interleave(2)[::2], (K, N), "b", r"shape \(6144,\).*"),
    "2d": (lambda x: x.view(2, -1), (K, N), "b", r"shape \(2, 3072\)"),
    "k-above-131071": (lambda x: x, (131072, 1), "b", r".*"),
    "packed by the CPU": (
        lambda x: scaled_mm.pack_weight_int8(GOOD["int8_mm"]()["b"]).data.to(DEVICE),
        (K, N),
        "b",
        r"shape \(6528,\)",
    ),
}


@streams_only
@pytest.mark.parametrize("name", BUFFERS)
@pytest.mark.parametrize("op", ["int8_mm", "azp_adj", "azp_with_adj", "scaled_mm"])
def test_buffer_refused(op: str, name: str) -> None:
    """A packed weight is N rows of K bytes, rounded up to 16: another number of bytes is none."""
    change, b_shape, argument, value = BUFFERS[name]
    buffer = change(scaled_mm.pack_weight_int8(good("int8_mm")["b"]).data)
    with pytest.raises(ValueError, match=rf"^({argument}) must .*got {value}$") as caught:
        getattr(torch.ops.scaled_mm, op)(**{**good(op), "b": buffer}, b_shape=b_shape)
    assert_clean(str(caught.value))


OPERANDS = {
    "scaled_mm": ("a", "b", "scale_a", "scale_b", "bias", "azp", "azp_adj"),
    "scaled_mm with_adj": ("a", "b", "scale_a", "scale_b", "bias", "azp_with_adj"),
    "scaled_mm residual": ("a", "b", "scale_a", "scale_b", "azp_with_adj", "residual"),
    "int8_mm": ("a", "b"),
    "azp_with_adj": ("b", "azp"),
    "quantize_int8": ("x", "scale", "azp"),
}
MIXES = [
    pytest.param(op, here, id=f"{op}: {' '.join(here)} on the CPU")
    for op, names in OPERANDS.items()
    for size in range(1, len(names))
    for here in itertools.combinations(names, size)
]


def all_operands(op: str) -> dict[str, Any]:
    op, _, form = op.partition(" ")
    operands = GOOD[op]()
    int32 = {"dtype": torch.int32}
    if op == "scaled_mm":
        if form == "residual":
            operands["residual"] = torch.ones(M, N)
        else:
            operands["bias"] = torch.ones(N)
        operands |= (
            {"azp_with_adj": torch.ones(N, **int32)}
            if form
            else {"azp": torch.ones(1, **int32), "azp_adj": torch.ones(N, **int32)}
        )
    if op == "quantize_int8":
        operands |= {"scale": torch.ones(()), "azp": torch.ones((), **int32), "symmetric": False}
    return operands


@streams_only
@pytest.mark.parametrize(("op", "here"), MIXES)
def test_operands_of_two_devices(op: str, here: tuple[str, ...]) -> None:
    """Every proper part of the operands on the CPU; not even one element is fetched from there."""
    operands = all_operands(op)
    there = {n: x.to(DEVICE) if torch.is_tensor(x) else x for n, x in operands.items()}
    mixed = {**there, **{name: operands[name] for name in here}}
    first = OPERANDS[op][0]
    named, at = ("cpu", "cuda:0") if first in here else ("cuda:0", "cpu")
    rule = re.escape(f" must be on the device of {first} ({named}), got {at}")
    with pytest.raises(ValueError, match=rf"^\w+{rule}$"):
        getattr(scaled_mm, op.split()[0])(**mixed)
    getattr(scaled_mm, op.split()[0])(**there)


@streams_only
def test_packed_weight_of_another_device() -> None:
    a, b = (GOOD["int8_mm"]()[name] for name in ("a", "b"))
    for x, w in ((a, b.to(DEVICE)), (a.to(DEVICE), b)):
        with pytest.raises(ValueError, match=r"^b must be on the device of a \(.*\), got "):
            scaled_mm.int8_mm(x, scaled_mm.pack_weight_int8(w))


# --- two devices ----------------------------------------------------------------------------------

two_devices = pytest.mark.skipif(
    DEVICE == "cpu" or torch.cuda.device_count() < 2, reason="one device"
)


@two_devices
@pytest.mark.parametrize("current", [0, 1])
@pytest.mark.parametrize("of_the_tensors", [0, 1])
@pytest.mark.parametrize("row", ROWS)
def test_the_device_of_the_tensors_counts(row: str, of_the_tensors: int, current: int) -> None:
    """Whichever device is current, before and after."""
    work = Work(device=f"cuda:{of_the_tensors}")
    with torch.cuda.device(current), forced(row):
        got = work.run()
        assert torch.cuda.current_device() == current
    assert all(x.device.index == of_the_tensors for x in got.values())
    work.assert_right(got, row)


@streams_only
def test_contexts_only_where_tensors_are() -> None:
    assert run_python("import cuda_contexts; cuda_contexts.main()").splitlines()[-1] == "no other"


@two_devices
def test_devices_in_turn() -> None:
    """What is known of one device is not taken for the other's."""
    works = [Work(seed, f"cuda:{seed % 2}") for seed in range(4)]
    for row, work in itertools.product(ROWS, works):
        with forced(row):
            work.assert_right(work.run(), row)


@two_devices
def test_side_streams_of_the_other_device() -> None:
    work = Work(device="cuda:1")
    stream = torch.cuda.Stream(1)
    torch.cuda.synchronize(1)
    with torch.cuda.stream(stream), torch.cuda.device(0):
        got = work.run()
    stream.synchronize()
    torch.cuda.synchronize(1)
    work.assert_right(got)


@two_devices
@pytest.mark.parametrize("name", OPERANDS["scaled_mm"][1:])
def test_operands_on_two_gpus(name: str) -> None:
    there = {n: x.to("cuda:0") for n, x in all_operands("scaled_mm").items()}
    message = rf"^{name} must be on the device of a \(cuda:0\), got cuda:1$"
    with pytest.raises(ValueError, match=message):
        scaled_mm.scaled_mm(**{**there, name: there[name].to("cuda:1")})


# --- memory ---------------------------------------------------------------------------------------


@streams_only
@pytest.mark.parametrize("row", ROWS)
def test_a_thousand_calls_leave_no_memory_behind(row: str) -> None:
    operands = Work().operands
    with forced(row):
        before = None
        for i in range(1005):
            scaled_mm.scaled_mm(**operands[0][i % len(PRODUCTS)])
            scaled_mm.quantize_int8(**operands[1][i % len(operands[1])])
            if i % 50 == 0:
                scaled_mm.pack_weight_int8(operands[0][i % len(PRODUCTS)]["b"])
            if i == 2 * len(PRODUCTS):
                torch.cuda.synchronize()
                before = torch.cuda.memory_allocated()
    torch.cuda.synchronize()
    assert torch.cuda.memory_allocated() == before


GIB = 2**30


def int8(*shape: int) -> Tensor:
    return torch.ones(shape, dtype=torch.int8, device=DEVICE)


def out_of_memory() -> None:
    """In a process that may use 2.25 GiB and holds 2: outputs, and copies, for which room lacks."""
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction(2.25 * GIB / total)
    scale = torch.ones(1, device=DEVICE)
    tall, wide = int8(2**15, 2**15 - 1), int8(4, 2**15)  # 1 GiB, in a layout that TMA refuses
    floats = torch.ones(2**15, 2**14, dtype=torch.float16, device=DEVICE)  # 1 GiB
    calls = {
        "output": lambda: scaled_mm.scaled_mm(int8(2**16, 16), int8(2**16, 16).t(), scale, scale),
        "int8 output": lambda: scaled_mm.int8_mm(int8(2**16, 16), int8(2**16, 16).t()),
        "pack": lambda: scaled_mm.pack_weight_int8(tall),
        "quantise": lambda: scaled_mm.quantize_int8(floats),
        "quantise weight": lambda: scaled_mm.quantize_weight_int8(floats),
    }
    laid_out_anew = {
        "a": lambda: scaled_mm.int8_mm(tall.t(), int8(16, 2**15).t()),
        "b": lambda: scaled_mm.int8_mm(wide, tall),
        "with epilogue": lambda: scaled_mm.scaled_mm(wide, tall, scale, scale),
    }
    calls["residual"] = lambda: scaled_mm.scaled_mm(
        *(int8(2**15, 16), int8(2**14, 16).t(), scale, scale),
        residual=floats[:, :1].expand(2**15, 2**14),
        out_dtype=torch.float16,
    )
    calls["awq"] = lambda: scaled_mm.awq_dequantize(
        torch.ones(1, 2**12, dtype=torch.int32, device=DEVICE).expand(2**15, 2**12),
        torch.ones(1, 2**15, dtype=torch.float16, device=DEVICE),
        torch.ones(1, 2**12, dtype=torch.int32, device=DEVICE),
    )
    work = Work()
    for row in ROWS:
        with forced(row):
            for name, call in {**calls, **laid_out_anew}.items():
                before = torch.cuda.memory_allocated()
                try:
                    call()
                    assert name in laid_out_anew, f"{name} found room"  # a row may read it as it is
                except torch.OutOfMemoryError as error:
                    print(f"{name}: {type(error).__name__}: {str(error).splitlines()[0]}")
                torch.cuda.synchronize()
                assert torch.cuda.memory_allocated() == before, name
                work.assert_right(work.run(), row, name)
    print("right")


OUT_OF_MEMORY = "import test_cuda_environment; test_cuda_environment.out_of_memory()"


@streams_only
def test_out_of_memory() -> None:
    """torch.OutOfMemoryError and no other, nothing kept, and the next calls right."""
    assert run_python(OUT_OF_MEMORY).splitlines()[-1] == "right"


# --- launches that fail ---------------------------------------------------------------------------


def failing_launches() -> None:
    """In a process of its own: what is forbidden has ended a graph's capture, and until that is
    told its end, the stream takes no kernel."""
    work = Work()
    calls = {
        "scaled_mm": lambda: scaled_mm.scaled_mm(**work.operands[0][0]),
        "few rows": lambda: scaled_mm.scaled_mm(**work.operands[0][2]),
        "quantize_int8": lambda: scaled_mm.quantize_int8(**work.operands[1][0]),
    }
    weight = on_device(AwqCase("launch", 256, 256, 128).weight())
    x = torch.ones(16, 256, dtype=torch.float16, device=DEVICE)
    few_bits = {
        "awq_gemm": lambda: scaled_mm.awq_gemm(x, **weight),
        "awq_dequantize": lambda: scaled_mm.awq_dequantize(**weight),
    }
    turns = [(row, calls) for row in ROWS] + [(name, few_bits) for name in kernels("lowbit")]
    for kernel, some in turns:
        with forced(kernel):
            for call in some.values():
                call()
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.stream(torch.cuda.Stream()):
        graph.capture_begin()
        with pytest.raises(RuntimeError):
            torch.cuda.current_stream().synchronize()
        for (kernel, some), name in ((turn, name) for turn in turns for name in turn[1]):
            with forced(kernel), pytest.raises(RuntimeError) as caught:
                some[name]()
                print(f"{kernel or 'chosen'}: {name} came back")
            assert "capture" in str(caught.value), (kernel, name, str(caught.value))
        with pytest.raises(RuntimeError):
            graph.capture_end()
    work.assert_right(work.run(), "", "the next calls")
    print("right")


FAILING_LAUNCHES = "import test_cuda_environment; test_cuda_environment.failing_launches()"


@streams_only
def test_launches_that_fail() -> None:
    """An error from every kernel, not an output that nobody wrote."""
    assert run_python(FAILING_LAUNCHES).splitlines()[-1] == "right"
