"""What the tests share: equality of bits, operands that must stay as they were, fresh processes,
modules of the extras."""

import ctypes
import importlib
import io
import os
import platform
import re
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import Module
from torch.utils._python_dispatch import TorchDispatchMode

import scaled_mm
from scaled_mm.ops.produce import produce_int8

ISAS = scaled_mm._library.cpu_isas()


def each_isa(operands: Iterable[Any] = ()) -> Iterator[str]:
    """Each instruction set that this machine runs, forced in turn. For tests whose reference takes
    longer than the kernels: it is computed once, before; else the fixture `isa` will do. Behind the
    last: nothing has been written to the operands."""
    before = bytes_of(operands)
    for isa in ISAS:
        with scaled_mm._library.forced_cpu_isa(isa):
            yield isa
    after = bytes_of(operands)
    assert all(torch.equal(x, y) for x, y in zip(after, before, strict=True)), "written to"


def bits(x: Tensor) -> Tensor:
    """The bit patterns of x as integers, every NaN the same one."""
    if not x.is_floating_point():
        return x
    if x.dtype == torch.float8_e4m3fn:  # all bits but the sign set is NaN
        x = x.view(torch.uint8)
        return torch.where(x & 0x7F == 0x7F, 0x7F, x)
    x = torch.where(x.isnan(), torch.full_like(x, torch.nan), x)
    return x.view({2: torch.int16, 4: torch.int32, 8: torch.int64}[x.element_size()])


def assert_bits(got: Tensor | None, expected: Tensor | None, *context: object) -> None:
    """The same shape, dtype and bits; tolerance zero, NaN equals NaN, -0 is not +0."""
    if got is None or expected is None:
        assert got is expected, context
        return
    assert (got.shape, got.dtype) == (expected.shape, expected.dtype), context
    if not torch.equal(bits(got), bits(expected)):
        at = (bits(got) != bits(expected)).nonzero()
        first = tuple(at[0].tolist())
        raise AssertionError(
            f"{len(at)} of {got.numel()} elements differ, the first at {first}: "
            f"{got[first].item()!r} for {expected[first].item()!r}; {context}"
        )


def assert_same_state(one: Module, other: Module, *context: object) -> None:
    """The same tensors under the same names in the same order."""
    states = one.state_dict(), other.state_dict()
    assert list(states[0]) == list(states[1]), context
    for name, x in states[0].items():
        assert_bits(x, states[1][name], name, *context)


def assert_compiles(
    call: Callable[[Tensor], Tensor],
    x_of: Callable[[int], Tensor],
    backend: str = "aot_eager",
    apart: tuple[int, ...] = (),
) -> None:
    """Once for every number of rows, with the same bits; `apart`: for these once more each."""
    torch._dynamo.reset()
    compiled = torch.compile(call, fullgraph=True, dynamic=True, backend=backend)
    compiled(x_of(4))
    with torch._dynamo.config.patch(error_on_recompile=True):
        for m in (2, 9, 40):
            assert_bits(compiled(x_of(m)), call(x_of(m)), m)
    for m in apart:
        assert_bits(compiled(x_of(m)), call(x_of(m)), m)


def assert_exports(module: Module, x_of: Callable[[int], Tensor]) -> torch.export.ExportedProgram:
    """For every number of rows, with the same bits, also of the file."""
    m, file = torch.export.Dim("m", min=2, max=4096), io.BytesIO()
    program = torch.export.export(module, (x_of(5),), dynamic_shapes={"x": {0: m}})
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "`torch.jit.script_method` is deprecated")
        warnings.filterwarnings("ignore", "No complete tensor found in the group")
        torch.export.save(program, file)
        file.seek(0)
        loaded = torch.export.load(file)
    for exported in (program, loaded):
        for rows in (2, 9, 40):
            assert_bits(exported.module()(x_of(rows)), module(x_of(rows)), rows)
    return program


def assert_by_itself(call: Callable[..., Tensor], given: dict[str, Any], *of_rows: str) -> None:
    """The same bits by any number of threads, and of some of the rows alone; the fixture `threads`
    gives torch its threads back."""
    whole = call(**given)
    for count in (1, 3, 8):
        torch.set_num_threads(count)
        assert_bits(call(**given), whole, count)
    few = ((0, 1), (5, 7), (9, 12), (20, 24), (30, 35), (40, 46), (51, 59))
    for i, j in (*few, (20, 52), (51, 139)):
        part = {name: x[i:j] if name in of_rows else x for name, x in given.items()}
        assert_bits(call(**part), whole[i:j], i, j)


class AsModule(Module):
    """A function as a module, which torch.export asks for."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *operands: Any, **more: Tensor) -> Any:
        return self.function(*operands, **more)


def rows(table: Mapping[str, Any]) -> list[Any]:
    """The (message, what is refused with it) of a table, as parameters; a list: each of it."""
    return [
        pytest.param(message, each, id=ascii(message)[1:60])
        for message, given in table.items()
        for each in (given if isinstance(given, list) else [given])
    ]


def activated(layer: Any, x: Tensor, producer: str, times: Tensor | None = None) -> Tensor:
    """A `ScaledLinear` of function(x) [* times], by two ops."""
    operands = {"times": times, "scale": layer.input_scale, "azp": layer.input_zero_point}
    options = {"symmetric": layer.symmetric, "rotate": layer.rotate or None}
    given = {"smooth": layer.input_smooth, **operands, **options}
    product: Tensor = layer.multiply(*produce_int8(x, producer=producer, **given), x.dtype)
    return product


def refuses(
    table: Mapping[str, Any],
    call: Callable[..., Any] | None = None,
    *,
    error: type[BaseException] = ValueError,
    end: str = "",
    literal: bool = False,
    **good: Any,
) -> Callable[..., None]:
    """A test for each message of a table, a pattern of how it begins (and ends), or `literal`. What
    is refused so: the call of good arguments with the table's change, or without a call what the
    table holds."""

    @pytest.mark.parametrize(("message", "given"), rows(table))
    def test(message: str, given: Any) -> None:
        pattern = re.escape(message) if literal else f"(?:{message})"
        with pytest.raises(error, match=f"^{pattern}{end}") as caught:
            given() if call is None else call(**{**good, **given})
        assert caught.type is error

    return test


def bytes_of(operands: Iterable[Any]) -> list[Tensor]:
    """A copy of the memory behind every tensor, poison between its elements included."""
    tensors = [x for x in operands if isinstance(x, Tensor)]
    empty = [torch.empty(0, dtype=torch.uint8, device=x.device) for x in tensors]
    return [e.set_(x.untyped_storage()).clone() for e, x in zip(empty, tensors, strict=True)]


def run_python(code: str, *arguments: str, timeout: float = 300, **env: str) -> str:
    """Standard output of `python -c code` in a process that imports what this one does."""
    path = os.pathsep.join([str(Path(__file__).parent), *filter(None, sys.path)])
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        capture_output=True,
        text=True,
        timeout=timeout,
        env={**os.environ, "PYTHONPATH": path, **env},
    )
    assert done.returncode == 0, f"exit code {done.returncode}\n{done.stdout}{done.stderr}"
    return done.stdout


def extra(module: str) -> ModuleType:
    """A module of an extra. `make test` installs them all: one that is missing is a failure, for a
    test that skips in silence guards nothing."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as missing:
        return pytest.fail(f"{module} is missing ({missing}): `make test` installs it", False)


x86_only = pytest.mark.skipif(platform.machine() != "x86_64", reason="FE_* constants of x86-64")
ROUNDING = {"nearest": 0, "down": 0x400, "up": 0x800, "to-zero": 0xC00}


@contextmanager
def strange_mode(mode: str, flush: bool = False) -> Iterator[ctypes.CDLL]:
    """Rounding of ROUNDING, and whether subnormals are flushed, for the calling thread."""
    libm = ctypes.CDLL("libm.so.6")
    torch.set_flush_denormal(flush)
    assert libm.fesetround(ROUNDING[mode]) == 0
    try:
        yield libm
    finally:
        libm.fesetround(0)
        torch.set_flush_denormal(False)


Cli = Callable[..., str]
"""The fixture `cli`."""


class Ops(TorchDispatchMode):
    """The names of the library's ops that run."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(
        self, op: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if op.namespace == "scaled_mm":
            self.names.append(op.__name__.partition(".")[0])
        return op(*args, **(kwargs or {}))
