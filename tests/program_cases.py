"""Programs of random nodes over random operands (`scaled_mm.epilogue`)."""

import os
import random
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils import cpp_extension

from scaled_mm import epilogue as ep
from scaled_mm._program import OPERATIONS, Axis
from scaled_mm.epilogue.values import Trace, Value, operation
from scaled_mm.reference import program as reference

ROOT = Path(__file__).resolve().parent.parent
M, K, N = 13, 37, 70
WIDE = (torch.bfloat16, torch.float16, torch.float32)


def int8(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-128, 128, shape, generator=generator, dtype=torch.int8)


class Case:
    """A program of random nodes over random operands, and operands for it."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.torch = torch.Generator().manual_seed(seed)
        self.m, self.n = self.rng.choice([(0, 4), (1, 1), (3, 130), (M, N), (17, 64), (5, 0)])
        self.k = self.rng.choice([0, 1, 16, 37])
        self.trace, self.values = Trace(), list[Value]()
        self.half = self.n % 2 == 0 and self.rng.random() < 0.3
        self.leaves: list[tuple[Axis, bool, Value]] = []
        self.values.append(self.trace.value("acc"))
        self.values.append(ep.to_float(self.values[0]))
        for _ in range(self.rng.randrange(6)):
            self.leaf()
        for _ in range(self.rng.randrange(2, 13)):
            self.grow(lambda name: name not in ("gate", "value") and OPERATIONS[name][0] in "fib")
        if self.half:
            whole = [x for x in self.values if x._type == "f"]
            self.values = list(ep.pairs(self.rng.choice(whole) + self.total(0)))
            before = len(self.leaves)
            for _ in range(self.rng.randrange(3)):
                self.leaf()
            for _ in range(self.rng.randrange(6)):
                self.grow(lambda name: name not in ("gate", "value", "acc"))
            total = self.values[0] + self.total(before)
        else:
            total = self.values[1] + self.total(0)
        outputs = [x for x in self.values if x._type != "b"]
        chosen = self.rng.sample(outputs, min(len(outputs), self.rng.choice([0, 1, 3, 7])))
        chosen.append(self.quantized(total) if self.rng.random() < 0.4 else total)
        self.program = self.trace.finished(tuple(x._node for x in chosen))
        self.out_dtype = self.rng.choice(WIDE)

    def quantized(self, x: Value) -> Value:
        scale = abs(self.pick("f")) + 0.5
        if self.rng.random() < 0.4:
            return ep.quantize(x, scale, torch.float8_e4m3fn)
        azp = self.pick("i") if self.rng.random() < 0.5 else None
        return ep.quantize(x, scale, torch.int8, azp)

    def leaf(self) -> None:
        axis, is_float = self.rng.choice(list(Axis)), self.rng.random() < 0.7
        self.values.append(self.trace.operand(f"x{len(self.leaves)}", axis, is_float))
        self.leaves.append((axis, is_float, self.values[-1]))

    def total(self, first: int) -> Any:
        """Of the operands, so that each is read."""
        values = (x if is_float else ep.to_float(x) for _, is_float, x in self.leaves[first:])
        return sum(values, 0.25)

    def pick(self, letter: str) -> Any:
        found = [x for x in self.values if x._type == letter]
        if found and self.rng.random() < 0.9:
            return self.rng.choice(found)
        number = self.rng.choice([0, 1, -3, 100, 2**30])
        return number if letter == "i" else number / 7

    def grow(self, wanted: Callable[[str], bool]) -> None:
        names = [name for name, (made, taken) in OPERATIONS.items() if taken and made in "fib"]
        name = self.rng.choice([x for x in names if wanted(x)])
        taken = OPERATIONS[name][1]
        if "b" in taken and not any(x._type == "b" for x in self.values):
            return
        bare = name.removesuffix("_int")
        try:
            self.values.append(operation(bare, *(self.pick(letter) for letter in taken)))
        except (TypeError, KeyError):  # such as less of two constants
            return

    def operands(self) -> list[Tensor]:
        columns = {each.name: each.columns for each in self.program.operands}
        made = []
        for i, (axis, is_float, _) in enumerate(self.leaves):
            n = self.n // max(1, columns[f"x{i}"])
            shape = {
                Axis.ROW: self.rng.choice([(n,), (1, n)]),
                Axis.COL: self.rng.choice([(), (1,), (self.m,), (self.m, 1)]),
                Axis.FULL: (self.m, n),
            }[axis]
            made.append(self.tensor(shape, is_float))
        return made

    def tensor(self, shape: tuple[int, ...], is_float: bool) -> Tensor:
        if self.rng.random() < 0.3 and shape:  # with gaps
            wide = self.tensor((*shape[:-1], 2 * shape[-1]), is_float)
            return wide[..., ::2]
        if not is_float:
            x = torch.randint(-(2**31), 2**31 - 1, shape, generator=self.torch, dtype=torch.int32)
            return x >> self.rng.choice([0, 16, 24])
        x = torch.randn(shape, generator=self.torch) * 10.0 ** self.rng.randrange(-3, 4)
        if x.numel() and self.rng.random() < 0.2:
            x.view(-1)[0] = self.rng.choice([torch.inf, -torch.inf, torch.nan, -0.0, 1e-42])
        return x.to(self.rng.choice(WIDE))


def played_library(source: str, to: Path, *options: object) -> None:
    """Loads an op whose CUDA source, of tests/device_on_host, is built for the CPU."""
    sources = [f"tests/device_on_host/{source}.cpp", "csrc/rules.cpp"]
    sources += [f"csrc/problems/{name}.cpp" for name in ("program", "int8", "tensors")]
    library = str(to / "played.so")
    command: list[Any] = [os.environ.get("CXX", "c++"), "-std=c++20", "-shared", "-fPIC"]
    command += ["-fvisibility=hidden", "-ffp-contract=off", "-o", library]
    command += ["-DTORCH_TARGET_VERSION=0x020b000000000000ULL", *options]
    command += [f"-I{ROOT / 'tests/device_on_host'}", f"-I{ROOT / 'csrc'}"]
    command += [f"-isystem{path}" for path in cpp_extension.include_paths()]
    command += [ROOT / source for source in sources]
    command += [*(f"-L{path}" for path in cpp_extension.library_paths()), "-ltorch_cpu", "-lc10"]
    subprocess.run(command, check=True)
    torch.ops.load_library(library)


class Problem(NamedTuple):
    a: Tensor
    b: Tensor
    operands: list[Tensor]
    ints: list[int]
    expected: list[Tensor]
    text: str


def problem(seed: int) -> Problem:
    """A case, as the op takes it, and what the reference makes of it."""
    case = Case(seed)
    a, b = int8(case.m, case.k, seed=seed), int8(case.n, case.k, seed=seed + 1).t()
    operands, dtypes = case.operands(), case.program.dtypes(case.out_dtype)
    expected = reference.epilogue_mm(a, b, operands, case.program, dtypes)
    ints = case.program.encoded(case.out_dtype)
    return Problem(a, b, operands, ints, expected, f"seed {seed}:\n{case.program}")


def pressed(count: int) -> ep.Epilogue:
    """`count` values that are all wanted at once, and another for each again."""

    @ep.epilogue
    def epilogue(acc: ep.Acc, scale: ep.Full) -> ep.Value:
        x = ep.to_float(acc)
        values = [x * scale + float(i) for i in range(count)]
        total = values[0]
        for y in values[1:]:
            total = ep.fma(total, 0.5, y)
        return total

    return epilogue


@ep.epilogue
def requantized(
    acc: ep.Acc,
    scale_a: ep.Col,
    scale_b: ep.Row,
    azp: ep.Col[torch.int32],
    azp_adj: ep.Row[torch.int32],
    bias: ep.Row,
    gate: ep.Full,
    out_scale: ep.Scalar,
):
    x = ep.fma(scale_a, scale_b * ep.to_float(acc - azp * azp_adj), bias)
    y = ep.silu(x) * gate
    return y, ep.quantize(y, out_scale, torch.int8)


def operands_of(epilogue: ep.Epilogue, m: int, n: int) -> dict[str, Tensor]:
    """For parameters with these names."""
    given: dict[str, Any] = {"generator": torch.Generator().manual_seed(m + n)}

    def integers(*shape: int) -> Tensor:
        return torch.randint(-999, 999, shape, dtype=torch.int32, **given)

    known = {
        "scale_a": torch.rand(m, 1, **given) / 100,
        "scale_b": torch.rand(1, n, **given) / 100,
        "azp": integers(m),
        "azp_adj": integers(n),
        "bias": torch.randn(n, **given).half(),
        "half": torch.randn(n // 2, **given),
        "gate": torch.randn(m, n, **given).bfloat16(),
        "residual": torch.randn(m, n // 2, **given).bfloat16(),
        "out_scale": torch.rand(1, **given),
    }
    return {x.name: known[x.name] for x in epilogue.program.operands}
