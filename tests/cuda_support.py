"""What the GPU tests share: the device, rows of the tuning table, operands moved byte for byte, the
comparison with the CPU backend, and the count of what was compared.

SCALED_MM_TEST_DEVICE=cpu runs the tests' own logic without a GPU; streams and graphs are skipped.
"""

import os
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

# Before CUDA starts: torch's deterministic mode, which poisons outputs, wants it for float64 @.
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

import numpy as np
import pytest
import torch
from cases import random_case
from helpers import assert_bits, bits, bytes_of
from operands import Case, Operands
from quantize_cases import QuantizeCase
from torch import Tensor

import scaled_mm
from scaled_mm import _library, reference

forced = _library.forced_kernels

DEVICE = os.environ.get("SCALED_MM_TEST_DEVICE", "cuda")
ON_CPU = DEVICE == "cpu"


def _runs_here(arch: str) -> bool:
    """Whether the folder's kernels were compiled for this GPU too: one of them is asked."""
    one = torch.ones(16, 16, dtype=torch.int8, device=DEVICE)
    with forced(f"{arch}/{_library.cuda_kernels(arch)[0]}"):
        try:
            scaled_mm.int8_mm(one, one)
        except RuntimeError as error:
            if "no kernel image" not in str(error):
                raise
            return False
    return True


# Those that were built; those of them whose kernels this GPU runs. An older folder's run on a newer
# GPU if they were built with PTX, or for it by SCALED_MM_STAND_IN.
ARCHS = [] if ON_CPU or not torch.cuda.is_available() else _library.cuda_archs()
# SCALED_MM_TEST_ARCHS names them where asking would count as an error (sanitizers.py).
_TOLD = os.environ.get("SCALED_MM_TEST_ARCHS", "").split()
ARCHS_HERE = [arch for arch in ARCHS if (arch in _TOLD if _TOLD else _runs_here(arch))]


def kernels(family: str) -> list[str]:
    """Every kernel of the family that this GPU runs, as SCALED_MM_KERNEL takes it: "sm90/NAME"."""
    return [f"{arch}/{name}" for arch in ARCHS_HERE for name in _library.cuda_kernels(arch, family)]


NAMES = kernels("int8")
ROWS = ["", *NAMES]  # "": the kernel that the shape chooses


def _missing() -> str:
    if ON_CPU:
        return ""
    if not torch.cuda.is_available():
        return "no CUDA device"
    return "" if _library.cuda_archs() else "no CUDA library"


GPU = [pytest.mark.gpu, pytest.mark.skipif(bool(_missing()), reason=_missing())]
streams_only = pytest.mark.skipif(ON_CPU, reason="a CPU has no streams")


# --- operands -------------------------------------------------------------------------------------


def memory(x: Tensor) -> Tensor:
    """All bytes of the storage of x, as a tensor that shares them."""
    return torch.empty(0, dtype=torch.uint8, device=x.device).set_(x.untyped_storage())


def on_device(operands: Operands, device: str | torch.device = DEVICE) -> Operands:
    """A copy of the operands there: the same strides, offsets, poison between, and aliases."""
    storages: dict[int, Tensor] = {}

    def move(x: Any) -> Any:
        if not isinstance(x, Tensor):
            return x
        key = x.untyped_storage().data_ptr()
        if key not in storages:
            storages[key] = memory(x).clone().to(device)
        there = storages[key].view(x.dtype)
        return there.as_strided(x.shape, x.stride(), x.storage_offset())

    return {name: move(x) for name, x in operands.items()}


def assert_unchanged(there: Operands, here: Operands, *context: object) -> None:
    """The bytes behind the operands on the device are those behind the ones they came from."""
    for x, y in zip(bytes_of(there.values()), bytes_of(here.values()), strict=True):
        assert torch.equal(x.cpu(), y), context


# --- comparison -----------------------------------------------------------------------------------

# Row of the table, or kind of op -> [cases, elements compared, elements different]
COUNTS: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0])


def count(what: str, elements: int, different: int = 0) -> None:
    for i, n in enumerate((1, elements, different)):
        COUNTS[what][i] += n


def how_many_differ(got: Iterable[Tensor], expected: Iterable[Tensor]) -> list[int]:
    """For each pair, the elements with other bits; the device is waited for once."""
    pairs = list(zip(got, expected, strict=True))
    for x, y in pairs:
        assert (x.shape, x.dtype) == (y.shape, y.dtype)
        assert x.is_contiguous()
    return torch.stack([(bits(x) != bits(y)).sum() for x, y in pairs]).tolist()


def assert_outputs(
    what: str, got: dict[str, Tensor], expected: dict[str, Tensor], *context: object
) -> None:
    """Outputs on the device have the bits expected, which are there too; one case is counted."""
    different = how_many_differ(got.values(), (expected[name] for name in got))
    count(what, sum(x.numel() for x in got.values()), sum(different))
    for name, n in zip(got, different, strict=True):
        if n:
            assert_bits(got[name].cpu(), expected[name].cpu(), what, name, *context)


def assert_same(got: list[Tensor], expected: list[Tensor], *context: object) -> None:
    """The outputs of a program on the device have the bits expected, from the CPU."""
    names = [str(i) for i in range(len(expected))]
    there = dict(zip(names, (x.to(DEVICE) for x in expected), strict=True))
    assert_outputs("epilogue_mm", dict(zip(names, got, strict=True)), there, *context)


def products(operands: Operands, weight: scaled_mm.PackedWeight | None) -> dict[str, Tensor]:
    """Both products, with the weight plain and, where given, packed."""
    got = {
        "scaled_mm": scaled_mm.scaled_mm(**operands),
        "int8_mm": scaled_mm.int8_mm(operands["a"], operands["b"]),
    }
    if weight is not None:
        got["scaled_mm packed"] = scaled_mm.scaled_mm(**{**operands, "b": weight})
        got["int8_mm packed"] = scaled_mm.int8_mm(operands["a"], weight)
    return got


def assert_products(case: Case, operands: Operands, *, r1: bool = False) -> None:
    """Every row of the table gives the bits of the CPU backend, and (r1) of the reference."""
    expected = products(operands, None)
    if r1:
        assert_bits(expected["scaled_mm"], reference.scaled_mm(**operands), "CPU", case)
    expected = {name: x.to(DEVICE) for name, x in expected.items()}
    expected |= {f"{name} packed": x for name, x in expected.items()}
    there = on_device(operands)
    weight = scaled_mm.pack_weight_int8(there["b"])
    wrong: list[str] = []
    for row in ROWS:
        what = row or "chosen"
        with forced(row):
            try:
                assert_outputs(what, products(there, weight), expected, case)
            except AssertionError as error:
                wrong.append(str(error))
            except (RuntimeError, ValueError) as error:
                raise AssertionError(f"row {what}: {error}; {case}") from error
    assert not wrong, f"{len(wrong)} of {len(ROWS)} rows are wrong\n" + "\n".join(wrong[:5])
    assert_unchanged(there, operands, case)


def named(x: tuple[Tensor | None, ...]) -> dict[str, Tensor]:
    """A quantiser's outputs by name, those that there are."""
    return {n: y for n, y in zip(("q", "scale", "azp"), x, strict=False) if y is not None}


def assert_quantized(case: QuantizeCase, operands: Operands, *, r1: bool = False) -> None:
    """quantize_int8 gives the bits of the CPU backend, and (r1) of the reference."""
    expected = named(scaled_mm.quantize_int8(**operands))
    if r1:
        for name, x in named(reference.quantize_int8(**operands)).items():
            assert_bits(expected[name], x, "CPU", name, case)
    there = on_device(operands)
    got = named(scaled_mm.quantize_int8(**there))
    given = {"scale", "azp"} & set(operands)  # returned as they came: strided perhaps
    for name in given:
        assert got.pop(name) is there[name]
    assert got.keys() == expected.keys() - given, case
    moved = {name: x.to(DEVICE) for name, x in expected.items()}
    assert_outputs("quantize_int8", got, moved, case)
    assert_unchanged(there, operands, case)


# --- cases of several tiles -----------------------------------------------------------------------


def random_large_case(rng: np.random.Generator) -> Case:
    """As random_case, but M to 600, N to 1500, K to 5000: half of them near tiles' ends."""

    def size(most: int) -> int:
        if rng.random() < 0.5:
            return int(rng.integers(1, most))
        edge = int(rng.choice([16, 32, 64, 96, 128, 192, 256, 384, 512, 1024, 2048, 4096]))
        return min(most, edge * int(rng.integers(1, 4)) + int(rng.integers(-1, 2)))

    case = random_case(rng)
    sizes = {"m": size(600), "n": size(1500), "k": size(5000)}
    return replace(case, name="random large", lead=None, **sizes).paired()


# --- the epilogue where the reference would take too long -----------------------------------------


def fma(x: Tensor, y: Tensor, z: Tensor) -> Tensor:
    """RN32(x y + z): the product is exact in float64, the sum rounded to odd before float32."""
    product, z = x.double() * y.double(), z.double()
    total = product + z
    rest = total - product
    error = (product - (total - rest)) + (z - rest)
    even = (total.view(torch.int64) & 1) == 0
    inexact = error.isfinite() & (error != 0)
    beyond = torch.nextafter(total, torch.copysign(torch.full_like(total, torch.inf), error))
    return torch.where(inexact & even, beyond, total).float()


def replay(acc: Tensor, operands: Operands) -> Tensor:
    """R1 from the int32 product on, in torch on the product's device; operands thick or one."""
    t = acc
    if "azp" in operands:
        t = t - operands["azp"] * operands["azp_adj"]
    if "azp_with_adj" in operands:
        t = t - operands["azp_with_adj"]
    none = torch.full((1, 1), -0.0, device=acc.device)
    d = fma(operands["scale_a"], operands["scale_b"] * t.float(), operands.get("bias", none))
    if "residual" in operands:
        d = d + operands["residual"].float()
    if "activation" in operands:  # reglu
        gate, value = d[:, 0::2], d[:, 1::2]
        d = gate.masked_fill(gate <= 0, 0.0) * value
    return d.to(operands["out_dtype"])


ENDS = ("", "residual", "reglu")


def layer_operands(
    m: int, n: int, k: int, out_dtype: torch.dtype, seed: int = 0, end: str = ""
) -> Operands:
    """A product with every operand of ScaledEpilogueAzpPerToken, made on the device, and at its
    end, one of ENDS, a residual or an activation."""
    generator = torch.Generator(DEVICE).manual_seed(seed)

    def int8(*shape: int) -> Tensor:
        options = {"device": DEVICE, "generator": generator, "dtype": torch.int8}
        return torch.randint(-128, 128, shape, **options)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, device=DEVICE, generator=generator)

    operands = {
        "a": int8(m, k),
        "b": int8(n, k).t(),
        "scale_a": 0.01 * normal(m, 1).exp(),
        "scale_b": 0.01 * normal(1, n),
        "bias": normal(1, n).to(out_dtype),
        "azp": int8(m, 1).int(),
        "azp_adj": torch.randint(
            -(2**20), 2**20, (1, n), device=DEVICE, generator=generator, dtype=torch.int32
        ),
        "out_dtype": out_dtype,
    }
    if end == "residual":
        operands["residual"] = torch.empty(m, n, dtype=out_dtype, device=DEVICE)
        operands["residual"].normal_(generator=generator)
    elif end:
        operands["activation"] = end
    return operands


BY_ROW, BY_COLUMN = ("a", "scale_a", "azp"), ("b", "scale_b", "bias", "azp_adj", "azp_with_adj")


def columns_of_b(operands: Operands, columns: Any) -> Any:
    """Those that columns of D, a slice or their indices, are made of."""
    if "activation" not in operands:
        return columns
    if isinstance(columns, slice):
        return slice(2 * columns.start, 2 * columns.stop)
    return torch.stack([2 * columns, 2 * columns + 1], 1).flatten()


def part(operands: Operands, rows: Any, columns: Any) -> Operands:
    """The operands of D[rows, columns]; all vectors thick."""
    columns = columns_of_b(operands, columns)
    cut = {name: operands[name][rows] for name in BY_ROW if name in operands}
    if "residual" in operands:
        cut["residual"] = operands["residual"][rows][:, columns]
    cut |= {name: operands[name][:, columns] for name in BY_COLUMN if name in operands}
    return {**operands, **cut}


def exact_product(a: Tensor, b: Tensor) -> Tensor:
    """A B as int32 through float64, which holds every sum exactly."""
    return (a.double() @ b.double()).int()


BLOCK = 2**27  # elements of a block that is compared at once


def blocks(m: int, n: int, k: int) -> Iterator[tuple[slice, slice]]:
    """D in blocks of which neither they nor their operands have many more than BLOCK elements, nor
    either side more than 2^20 (the products there are a BLAS's)."""
    columns = min(n, 2**20, BLOCK // max(1, k))
    rows = min(2**20, BLOCK // max(1, k, columns))
    for j in range(0, n, columns):
        for i in range(0, m, rows):
            yield slice(i, i + rows), slice(j, j + columns)
