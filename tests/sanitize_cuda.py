"""Small calls of every CUDA op, for compute-sanitizer; compared with the CPU backend.

    compute-sanitizer --tool memcheck python tests/sanitize_cuda.py
    compute-sanitizer --tool racecheck python tests/sanitize_cuda.py int8 --rows sm90/NAME --count 9
    python tests/sanitize_cuda.py int4 --rows sm90/NAME,packed    one part, with these kernels

    int8       scaled_mm and int8_mm, plain and packed, by each row of the tuning table
    int4       awq_gemm by each row, a plain and a packed weight
    mixed      mixed_mm by each row, weights of 4 and 8 bits
    grouped    grouped_mm by each row; sorting, and the sums of what experts make
    others     packing, sums of columns, quantisers, producers, dequantising, widening; w4a8_mm and
               scaled_mm in blocks by each row

tests/sanitizers.py runs all of it under every tool, several processes side by side. Exit code 1
when a result is wrong. Every tensor is an allocation of its own, so that memcheck sees an access
beyond its end, and initcheck a read of what nobody wrote.
"""

import argparse
import itertools
import math
import os
import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

os.environ.setdefault("PYTORCH_NO_CUDA_MEMORY_CACHING", "1")

import numpy as np
import torch
from awq_cases import AWQ_CASES, FINITE, AwqCase, explain_awq
from cases import random_case
from cuda_mixed_cases import MixedCase, arms, exact_cases, odd_cases
from cuda_support import (
    DEVICE,
    NAMES,
    assert_unchanged,
    forced,
    kernels,
    named,
    on_device,
    products,
)
from ending_cases import IN_8_BITS
from grouped_cases import cases as grouped_cases
from grouped_cases import one_by_one
from grouped_cases import packed as with_packed
from helpers import assert_bits
from operands import AZP_FORMS, COLUMN, OUT_DTYPES, ROW, Case, Layout, Matrix, Vector
from produce_cases import PRODUCE_CASES
from quantize_cases import IN_DTYPES, ROWS, QuantizeCase, random_quantize_case
from test_cuda_awq import ALL_ARMS, PACKED, for_arm, name_of, streamed
from test_cuda_k_scales import BLOCK_SIZES, MORE, packed_there
from test_cuda_k_scales import ROWS as K_SCALES
from test_produce import OUTPUTS, produce
from test_w4a8 import blocks
from torch import Tensor

import scaled_mm
from scaled_mm import reference
from scaled_mm.explain import KernelChoice, explain_mixed

ENDS: tuple[dict[str, Any], ...] = (
    {},
    {"residual": Matrix()},
    {"activation": "reglu"},
    {"activation": "swiglu"},
    {"activation": "gelu"},
    {"residual": Matrix(layout=Layout(pad=3, offset=1), dtype=torch.float32)},
)
EPILOGUES = [
    {**azp, "bias": bias, "out_dtype": out, **end}
    for azp in AZP_FORMS.values()
    for out in OUT_DTYPES
    for bias in (None, Vector("signed"))
    for end in ENDS
] + [
    {**azp, "activation": activation, **ending}
    for azp in AZP_FORMS.values()
    for activation in (None, "silu", "geglu")
    for ending in IN_8_BITS.values()
]
LAYOUTS = {
    "plain": (ROW, COLUMN),
    "a transposed": (COLUMN, COLUMN),
    "b row-major": (ROW, ROW),
    "both": (COLUMN, ROW),
    "misaligned": (Layout(offset=1), Layout("column", offset=3)),
    "padded": (Layout(pad=5), Layout("column", pad=3)),
    "stepped": (Layout(step=2), Layout("column", step=3)),
    "padded by 16": (Layout(pad=16), Layout("column", pad=32)),
}
SIZES = (1, 2, 7, 16, 17, 33, 63, 64, 65, 96, 127, 128, 129, 160, 200, 257)
DEPTHS = (0, 1, 15, 16, 17, 31, 32, 33, 64, 65, 100, 127, 128, 129, 192, 256, 257, 300, 640, 1030)


def product_cases(count: int) -> Iterator[Case]:
    """`count` products: epilogues, layouts, sizes and depths in turn; each third one random."""
    rng = np.random.default_rng(11)
    layouts, epilogues = itertools.cycle(LAYOUTS.items()), itertools.cycle(EPILOGUES)
    for i in range(count):
        if i % 3 == 2:
            yield replace(random_case(rng), name=f"random {i}")
            continue
        name, (a, b) = next(layouts) if i % 2 else ("plain", LAYOUTS["plain"])
        m, n = (int(x) for x in rng.choice(SIZES, 2))
        same = {"a_layout": a, "b_layout": b, **next(epilogues)}
        yield Case(f"{name} {i}", m, n, int(rng.choice(DEPTHS)), **same).paired()


def quantize_cases(count: int) -> Iterator[QuantizeCase]:
    rng = np.random.default_rng(12)
    shapes = ((1, 1), (3, 1100), (70, 33), (1, 5000), (2, 3, 64), (0, 8), (8, 0))
    kinds = itertools.product(shapes, IN_DTYPES, (True, False), (True, False))
    for data, (shape, dtype, symmetric, per_token) in zip(itertools.cycle(ROWS), kinds):
        yield QuantizeCase("table", data, shape, dtype, symmetric=symmetric, per_token=per_token)
    yield from (random_quantize_case(rng) for _ in range(count))


class Wrong:
    """How many results were compared, and which were wrong."""

    def __init__(self) -> None:
        self.compared, self.wrong = 0, 0

    def compare(
        self, got: dict[str, Tensor], expected: dict[str, Tensor], *context: object
    ) -> None:
        for name, x in got.items():
            self.compared += 1
            try:
                assert_bits(x.cpu(), expected[name], name, *context)
            except AssertionError as error:
                self.wrong += 1
                print(f"wrong: {error}", flush=True)


def run_int8(options: argparse.Namespace, verdict: Wrong) -> None:
    for i, case in enumerate(product_cases(options.count)):
        operands = case.build(rng=np.random.default_rng(i))
        expected = products(operands, None)
        expected |= {f"{name} packed": x for name, x in expected.items()}
        there = on_device(operands)
        weight = scaled_mm.pack_weight_int8(there["b"])
        for row in [*NAMES, ""] if options.rows is None else options.rows:
            with forced(row):
                verdict.compare(products(there, weight), expected, row, case)
        assert_unchanged(there, operands, case)


def run_weights(options: argparse.Namespace, verdict: Wrong) -> None:
    zero = torch.tensor([-77], dtype=torch.int32)
    for i, case in enumerate(product_cases(options.count)):
        operands = case.build(rng=np.random.default_rng(i))
        there = on_device(operands)
        weight = scaled_mm.pack_weight_int8(there["b"])
        sums = {"azp_adj": scaled_mm.azp_adj(operands["b"])}
        for b in (there["b"], weight):
            verdict.compare({"azp_adj": scaled_mm.azp_adj(b)}, sums, case)
        sums = {"azp_with_adj": scaled_mm.azp_with_adj(operands["b"], zero)}
        got = {"azp_with_adj": scaled_mm.azp_with_adj(weight, zero.to(DEVICE))}
        verdict.compare(got, sums, case)
        assert_unchanged(there, operands, case)


def run_quantizers(options: argparse.Namespace, verdict: Wrong) -> None:
    for i, case in enumerate(quantize_cases(options.count)):
        operands = case.build(rng=np.random.default_rng(i))
        there = on_device(operands)
        got, expected = (named(scaled_mm.quantize_int8(**x)) for x in (there, operands))
        verdict.compare(got, expected, case)
        if operands["x"].dim() == 2:
            options = {"per_channel": case.per_token}
            got, expected = (
                named(scaled_mm.quantize_weight_int8(x["x"], **options)) for x in (there, operands)
            )
            verdict.compare(got, expected, "weight", case)
        assert_unchanged(there, operands, case)


def run_producers(options: argparse.Namespace, verdict: Wrong) -> None:
    """So many for each producer, or all of its named cases."""
    chosen = list(PRODUCE_CASES.values())
    for case in chosen[:: max(1, len(chosen) // (6 * max(1, options.count)))]:
        operands = case.build()
        there = on_device(operands)
        got, expected = (
            {n: x for n, x in zip(OUTPUTS, produce(**given), strict=True) if x is not None}
            for given in (there, operands)
        )
        verdict.compare(got, expected, case)
        assert_unchanged(there, operands, case)


def awq_cases(count: int) -> list[AwqCase]:
    """About so many, of every kind that there is."""
    cases = [*AWQ_CASES.values(), *streamed()]
    return cases[:: max(1, len(cases) // max(1, count))]


def run_dequantize(options: argparse.Namespace, verdict: Wrong) -> None:
    for case in awq_cases(options.count):
        operands = case.weight()
        there = on_device(operands)
        got, expected = (
            {"awq_dequantize": scaled_mm.awq_dequantize(**x)} for x in (there, operands)
        )
        verdict.compare(got, expected, case)
        assert_unchanged(there, operands, case)


def takes(arm: str, case: AwqCase) -> bool:
    """Whether the arm, which is forced, computes the case itself."""
    m = math.prod(case.rows)
    if 0 in (m, case.n, case.k):
        return False
    units = PACKED in arm and case.group % 32 == 0
    chosen = explain_awq(m, case.n, case.k, group=case.group, packed=units).chosen
    return is_kernel(name_of(arm), chosen)


def takes_mixed(arm: str, case: MixedCase, packed: bool) -> bool:
    """The same of mixed_mm; `packed`: whether the weight is in units."""
    how = {"bits": case.bits, "zeros": case.zero, "group": case.group, "packed": packed}
    return is_kernel(arm, explain_mixed(case.m, case.n, case.k, **how).chosen)


def is_kernel(name: str, chosen: KernelChoice | None) -> bool:
    return chosen is not None and chosen.name == name.rpartition("/")[2]


def run_int4(options: argparse.Namespace, verdict: Wrong) -> None:
    """Products within their bound, by every arm that takes the shape."""
    for case in awq_cases(options.count):
        if case.scales not in FINITE:
            continue
        operands = case.product()
        there = on_device(operands)
        exact, bound = reference.awq_gemm_bound(**operands)
        for arm in ALL_ARMS if options.rows is None else options.rows:
            with forced(name_of(arm)):
                if options.own and not takes(arm, case):
                    continue
                got = scaled_mm.awq_gemm(**for_arm(arm, there))
            within = (got.cpu().double() - exact).abs() <= bound
            verdict.compare({"awq_gemm": within}, {"awq_gemm": torch.ones_like(within)}, arm, case)
        assert_unchanged(there, operands, case)


def mixed_cases(count: int) -> list[MixedCase]:
    cases = list(exact_cases())
    return cases[:: max(1, len(cases) // max(1, count))]


def run_mixed(options: argparse.Namespace, verdict: Wrong) -> None:
    """The CPU's bits, as all sums are exact, by every kernel that takes the shape."""
    for case in mixed_cases(options.count):
        here, weight = case.operands(), case.weight()
        there, right = on_device(here), scaled_mm.mixed_mm(w=case.weight("cpu"), **here)
        for arm in arms(case.bits):
            if options.rows is not None and arm not in options.rows:
                continue
            with forced(arm):
                if options.own and not takes_mixed(arm, case, weight.layout == 1):
                    continue
                got = scaled_mm.mixed_mm(w=weight, **there)
            verdict.compare({"mixed_mm": got}, {"mixed_mm": right}, arm, case)
        assert_unchanged(there, here, case)


def run_grouped(options: argparse.Namespace, verdict: Wrong) -> None:
    for i, operands in enumerate(grouped_cases(options.count)):
        there, right = on_device(operands), one_by_one(operands)
        given = (there, with_packed(there))[i % 2]
        for row in [*kernels("grouped"), ""] if options.rows is None else options.rows:
            with forced(row):
                verdict.compare({"": scaled_mm.grouped_mm(**given)}, {"": right}, row, i)
        assert_unchanged(there, operands, i)
    rng = np.random.default_rng(13)
    for tokens, k, experts in ((1, 8, 256), (70, 2, 8), (900, 4, 40)):
        index = torch.from_numpy(rng.integers(-1, experts + 1, (tokens, k)))
        given = {"y": torch.randn(tokens * k, 33), "weights": torch.rand(tokens, k)}
        found = []
        for device in (DEVICE, "cpu"):
            sorted_ = scaled_mm.moe_sort(index.to(device), experts)
            moved = {name: x.to(device) for name, x in given.items()}
            d = scaled_mm.moe_combine(**moved, places=sorted_.places)
            found.append({**sorted_._asdict(), "d": d})
        verdict.compare(*found, tokens, k, experts)


def run_mixed_dequantize(options: argparse.Namespace, verdict: Wrong) -> None:
    cases = list(odd_cases())
    for case in cases[:: max(1, len(cases) // max(1, options.count))]:
        got, expected = (
            {"mixed_dequantize": case.weight(device).dequantize()} for device in (DEVICE, "cpu")
        )
        verdict.compare(got, expected, case)


def run_k_scales(options: argparse.Namespace, verdict: Wrong) -> None:
    cases = list(MORE.values())
    for case in cases[:: max(1, len(cases) // max(1, options.count))]:
        given, _ = case.build()
        there = on_device({name: x for name, x in given.items() if name != "w"})
        w, expected = packed_there(given["w"]), {"w4a8_mm": scaled_mm.w4a8_mm(**given)}
        for row in K_SCALES:
            with forced(row):
                verdict.compare({"w4a8_mm": scaled_mm.w4a8_mm(w=w, **there)}, expected, row, case)
    for size in BLOCK_SIZES:
        given = blocks(*size)
        there, expected = on_device(given), {"blocks": scaled_mm.scaled_mm(**given)}
        for row in K_SCALES:
            with forced(row):
                verdict.compare({"blocks": scaled_mm.scaled_mm(**there)}, expected, row, size)


def run_others(options: argparse.Namespace, verdict: Wrong) -> None:
    dequantizers = (run_dequantize, run_mixed_dequantize)
    for run in (run_weights, run_quantizers, run_producers, *dequantizers, run_k_scales):
        run(options, verdict)


PARTS = {
    "int8": run_int8,
    "int4": run_int4,
    "mixed": run_mixed,
    "grouped": run_grouped,
    "others": run_others,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("parts", nargs="*", metavar="PART", help="default: every one")
    parser.add_argument(
        "--rows",
        type=lambda names: names.split(","),
        metavar="NAMES",
        help="kernels of int8, int4, mixed or grouped, separated by commas (default: all)",
    )
    parser.add_argument(
        "--own", action="store_true", help="leave out what a lowbit kernel hands to another one"
    )
    parser.add_argument("--count", type=int, default=300, help="calls of each kernel, about")
    options = parser.parse_args()
    if unknown := [part for part in options.parts if part not in PARTS]:
        parser.error(f"PART must be one of {', '.join(PARTS)}, got {unknown[0]}")
    verdict = Wrong()
    for part in options.parts or PARTS:
        PARTS[part](options, verdict)
    print(f"{verdict.compared:,} results compared, {verdict.wrong} wrong")
    return 1 if verdict.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
