"""`scaled-mm bench --endings`: what comes behind the sums, inside the product and behind it.

An ending is a residual, an activation, a gate, an 8-bit output, or one of those with another. Each
is timed three ways, in turns: in the product, as this library's op does it; as *two kernels*, the
plain product and the kernel that torch or this library has for it; and as *torch.compile* makes it,
the plain product and one generated kernel. The functions' own arithmetic is the same in all.

With `--epilogue FILE.py:NAME` an epilogue of one's own (`scaled_mm.epilogue`) is timed beside the
plain product, and on CUDA as two kernels: the sums, and the program interpreted.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from .._program import Axis
from ..ops.epilogue_mm import epilogue_mm
from ..ops.int8 import pack_weight_int8, scaled_mm
from ..ops.produce import gelu_quantize_int8, silu_mul_quantize_int8
from ..ops.quantize import quantize_int8
from .cases import Common, by_weight
from .clocks import Clock, clock_of, rounds_in_turns
from .measure import empty_result

WAYS = ("in the product", "two kernels", "torch.compile")
FP8 = torch.float8_e4m3fn
Kernel = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class EndingSettings(Common):
    """What to measure."""

    epilogue: str = ""
    """One's own instead of the usual ones: FILE.py:NAME."""


def operands_of(epilogue: Any, m: int, n: int, **given: Any) -> dict[str, Any]:
    """Some for every parameter of one's own epilogue."""
    made = dict[str, Any]()
    for operand in epilogue.program.operands:
        shape = operand.shape(1 if operand.name in epilogue.scalars else m, n)
        if operand.is_float:
            dtype = torch.bfloat16 if operand.axis is Axis.FULL else torch.float32
            made[operand.name] = (torch.rand(shape, **given) / 500).to(dtype)
        else:
            made[operand.name] = torch.randint(-9, 9, shape, dtype=torch.int32, **given)
    return made


class Ending(NamedTuple):
    """What `scaled_mm` is given, the kernel for it (None: there is none), and it in torch: a
    function of the residual, the scale of an 8-bit output, and the product."""

    arguments: dict[str, Any]
    kernel: Kernel | None
    torch: Callable[[Tensor, Tensor, Tensor], Tensor]


def _to_int8(residual: Tensor, scale: Tensor, x: Tensor) -> Tensor:
    return (x.float() / scale).round().clamp(-128, 127).to(torch.int8)


def _to_fp8(residual: Tensor, scale: Tensor, x: Tensor) -> Tensor:
    return (x.float() / scale).clamp(-448, 448).to(FP8)


def _add(residual: Tensor, scale: Tensor, x: Tensor) -> Tensor:
    return x + residual


def _swiglu(residual: Tensor, scale: Tensor, x: Tensor) -> Tensor:
    return functional.silu(x[:, ::2]) * x[:, 1::2]


FUNCTIONS: dict[str, Kernel] = {
    "relu": torch.relu,
    "silu": functional.silu,
    "gelu": functional.gelu,
    "gelu_tanh": partial(functional.gelu, approximate="tanh"),
}


@cache
def compiled(name: str) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    """An ending by torch.compile, once for all shapes."""
    nothing = torch.empty(0)
    function = endings_of(nothing, nothing)[name].torch
    return torch.compile(function, dynamic=True)


def endings_of(residual: Tensor, scale: Tensor) -> dict[str, Ending]:
    """Every ending by its name; `scale` is that of an 8-bit output."""
    int8 = {"out_dtype": torch.int8, "out_scale": scale}
    found = {"residual": Ending({"residual": residual}, partial(_add, residual, scale), _add)}
    for name, function in FUNCTIONS.items():
        by_torch = lambda residual, scale, x, of=function: of(x)  # noqa: E731
        found[name] = Ending({"activation": name}, function, by_torch)
    found["swiglu"] = Ending({"activation": "swiglu"}, None, _swiglu)
    found["int8"] = Ending(int8, lambda x: quantize_int8(x, scale=scale)[0], _to_int8)
    found["fp8"] = Ending({**int8, "out_dtype": FP8}, None, _to_fp8)
    found["swiglu to int8"] = Ending(
        {"activation": "swiglu", **int8},
        lambda x: silu_mul_quantize_int8(x, scale=scale)[0],  # of halves: the same bytes and work
        lambda residual, scale, x: _to_int8(residual, scale, _swiglu(residual, scale, x)),
    )
    found["gelu to int8"] = Ending(
        {"activation": "gelu", **int8},
        lambda x: gelu_quantize_int8(x, scale=scale)[0],
        lambda residual, scale, x: _to_int8(residual, scale, functional.gelu(x)),
    )
    return found


Calls = list[Callable[[], Tensor]]


def contenders(
    m: int, n: int, k: int, device: str, clock: Clock, own: Any = None
) -> dict[tuple[str, str], Calls]:
    """(ending, way) -> a call for each copy of the operands; the plain product is an ending too."""
    generator = torch.Generator(device).manual_seed(0)
    given: dict[str, Any] = {"generator": generator, "device": device}

    def int8(*shape: int) -> Tensor:
        return torch.randint(-128, 128, shape, dtype=torch.int8, **given)

    copies = clock.weight_copies(n * k)
    weights = [pack_weight_int8(int8(n, k).t()) for _ in range(copies)]
    tokens = [int8(m, k) for _ in range(min(copies, clock.activation_copies(m * k)))]
    scale_a, scale_b = (torch.rand(shape, **given) / 500 for shape in ((m, 1), (1, n)))
    residual = torch.randn(m, n, **given).to(torch.bfloat16)
    scale = torch.full((1,), 0.05, device=device)

    def product(i: int, **arguments: Any) -> Tensor:
        return scaled_mm(tokens[i % len(tokens)], weights[i], scale_a, scale_b, **arguments)

    def calls(kernel: Kernel | None = None, **arguments: Any) -> Calls:
        if kernel is None:
            return [partial(product, i, **arguments) for i in range(copies)]

        def behind(i: int) -> Tensor:
            return kernel(product(i))

        return [partial(behind, i) for i in range(copies)]

    found = {("plain", WAYS[0]): calls()}
    if own is not None:
        name, operands = own.__name__, operands_of(own, m, n, **given)
        ints, ordered = own.program.encoded(torch.bfloat16), list(operands.values())

        def fused(i: int) -> Any:
            return own(tokens[i % len(tokens)], weights[i], **operands)

        def interpreted(i: int) -> Any:
            return epilogue_mm(tokens[i % len(tokens)], weights[i], ordered, ints)

        if device == "cpu" or own.is_fused:
            found[name, WAYS[0]] = [partial(fused, i) for i in range(copies)]
        if device != "cpu":
            found[name, WAYS[1]] = [partial(interpreted, i) for i in range(copies)]
        return found
    for name, ending in endings_of(residual, scale).items():
        found[name, WAYS[0]] = calls(**ending.arguments)
        if ending.kernel is not None:
            found[name, WAYS[1]] = calls(ending.kernel)
        found[name, WAYS[2]] = calls(partial(compiled(name), residual, scale))
    return found


@torch.inference_mode()
def measure(
    settings: EndingSettings, shape: tuple[int, int, int], clock: Clock, own: Any = None
) -> dict[str, Any]:
    """Microseconds of every ending, every way."""
    m, n, k = shape
    asked = contenders(m, n, k, settings.device, clock, own)
    ready = {key: partial(clock.stopwatch, calls) for key, calls in asked.items()}
    case: dict[str, Any] = {"m": m, "n": n, "k": k, "us": {}}
    for (name, way), own in rounds_in_turns(ready, settings.rounds).items():
        case["us"].setdefault(name, {})[way] = 1e6 * statistics.median(own)
    return case


def growing(
    settings: EndingSettings,
    shapes: Sequence[tuple[int, int, int]],
    progress: Callable[[str], None] = lambda _: None,
    own: Any = None,
) -> Iterator[dict[str, Any]]:
    """The result, JSON-ready: a case for each (M, N, K); as far as it is, after every one. `own`:
    the `scaled_mm.epilogue.Epilogue` that the settings name."""
    clock = clock_of(settings.device)
    result = {**empty_result(settings, clock), "endings": []}
    for shape in shapes:
        progress("endings: M={} N={} K={}".format(*shape))
        result["endings"].append(measure(settings, shape, clock, own))
        clock.clear()
        yield result


def ratio(us: dict[str, float]) -> float:
    """An ending in the product over the faster of the other ways; NaN where it has one way."""
    others = [us[way] for way in WAYS[1:] if way in us]
    return us[WAYS[0]] / min(others) if others and WAYS[0] in us else math.nan


def tables(result: dict[str, Any]) -> Iterator[tuple[str, list[list[str]]]]:
    """Title and rows, the header first, for each weight."""
    every = result["endings"]
    ways = [way for way in WAYS if any(way in us for case in every for us in case["us"].values())]
    for (n, k), cases in by_weight(every).items():
        rows = [["us", *(f"M={case['m']}" for case in cases), "worst"]]
        for name in cases[0]["us"]:
            own = [case["us"][name] for case in cases]
            cells = [" / ".join(f"{us[w]:.4g}" if w in us else "-" for w in ways) for us in own]
            if name == "plain":
                rows.append([name, *(f"{us[WAYS[0]]:.4g}" for us in own), ""])
            else:
                worst = max(map(ratio, own))
                rows.append([name, *cells, "" if math.isnan(worst) else f"{worst:.2f}x"])
        yield f"N={n} K={k}, us: {' / '.join(ways)}", rows
