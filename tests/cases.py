"""Products to test with, as data: named cases, which say what is special, and random ones."""

import itertools
import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import ending_cases
import numpy as np
import torch
from operands import (
    ACTIVATIONS,
    AZP_FORMS,
    COLUMN,
    EPILOGUES,
    ONE,
    OUT_DTYPES,
    OUT_DTYPES_8,
    ROW,
    SPECIAL,
    SUMS,
    Case,
    Layout,
    Matrix,
    Vector,
)


def _named() -> Iterator[Case]:
    for (form, azp), bias in EPILOGUES:
        for out in OUT_DTYPES:
            epilogue = f"{form}-{'bias' if bias else 'nobias'}-{str(out)[6:]}"
            same = {**azp, "bias": bias, "out_dtype": out}
            yield Case(f"epilogue-{epilogue}", **same)
            yield Case(f"epilogue-{epilogue}-tiles", m=70, n=96, k=130, **same)
            yield Case(f"empty-k-{epilogue}", k=0, **same)
            for m, n in ((1, 1), (1, 40), (40, 1), (24, 24)):
                yield Case(f"mn-{m}x{n}-{epilogue}", m=m, n=n, **same)
        yield Case(f"empty-m-{form}-{bias is not None}", m=0, **azp, bias=bias)
        yield Case(f"empty-n-{form}-{bias is not None}", n=0, **azp, bias=bias)
        yield Case(f"one-{form}-{bias is not None}", 1, 1, 1, **azp, bias=bias)
        for lead in ((), (1,), (2, 3), (2, 1, 4), (0, 3)):
            m = math.prod(lead)
            yield Case(f"lead-{lead}-{form}-{bias is not None}", m, lead=lead, **azp, bias=bias)

    forms = ("0d", "1", "1x1", "flat", "thick", "expanded")
    for form_a, form_b in itertools.product(forms, forms):
        a, b = Vector(form=form_a), Vector(form=form_b)
        yield Case(f"scale-forms-{form_a}-{form_b}", scale_a=a, scale_b=b)
    for form in ("flat", "thick"):
        bias, layout = Vector("signed", form), Layout(step=3, offset=1)
        apart = {"form": form, "layout": layout}
        yield Case(f"bias-{form}", bias=bias)
        yield Case(f"bias-float32-{form}", bias=replace(bias, dtype=torch.float32))
        yield Case(
            f"noncontiguous-{form}",
            scale_a=Vector(**apart),
            scale_b=Vector(**apart),
            bias=Vector("signed", **apart),
            azp=Vector("int8", **apart),
            azp_adj=Vector("sums", **apart),
        )
    for value, out in itertools.product((*SPECIAL, 1.0, -1e38, 2.0**-126), OUT_DTYPES):
        special = Vector((value,))
        end = f"{value:g}-{str(out)[6:]}"
        bias = Vector("signed")
        yield Case(f"scale-a-{end}", scale_a=special, out_dtype=out)
        yield Case(f"scale-b-{end}", scale_b=special, out_dtype=out)
        yield Case(f"scales-{end}", scale_a=special, scale_b=special, bias=bias, out_dtype=out)
        yield Case(f"bias-{end}", bias=special, out_dtype=out)
    for out in OUT_DTYPES:
        end = str(out)[6:]
        yield Case(f"scales-mixed-{end}", 40, 40, 9, scale_a=Vector("mixed"), out_dtype=out)
        bias = Vector("cancel", dtype=torch.float32)
        yield Case(f"bias-cancels-{end}", bias=bias, out_dtype=out)
        yield Case(f"bias-cancels-long-{end}", k=4099, bias=bias, out_dtype=out)
    yield from _extremes()
    yield from _places()
    yield from ending_cases.residuals()
    yield from ending_cases.pairs()


def _extremes() -> Iterator[Case]:
    for a, b in (("lowest", "lowest"), ("highest", "lowest"), ("highest", "highest")):
        yield Case(f"k-131071-{a}-{b}", 3, 17, 131071, a=a, b=b, scale_a=ONE, scale_b=ONE)
    for z in (-128, 127, 128, -(2**31), 2**31 - 1):
        azp = {"azp": Vector((z,)), "azp_adj": SUMS}
        yield Case(f"azp-{z}-k-70000", 3, 17, 70000, a="lowest", b="lowest", **azp)
        yield Case(f"azp-{z}", **azp)
    yield Case("azp-0", azp=Vector((0,), "1"), azp_adj=SUMS)
    yield Case("azp-rank-1", azp=Vector("int8"), azp_adj=Vector("int8"))
    yield Case("azp-wraps", azp=Vector("int32"), azp_adj=Vector("int32"), out_dtype=torch.float32)
    yield Case("azp-with-adj-wraps", azp_with_adj=Vector("int32"), bias=Vector("signed"))

    # One product a b = 1, so that the output is scale_a rounded: overflow, ties, subnormals, zeros.
    edges = {
        torch.float16: (65519.99, 65520.0, 65504.0, 65488.0, 2.0**-24, 2.0**-25, 3 * 2.0**-25),
        torch.bfloat16: (
            3.3961775e38,
            3.3895314e38,
            2.0**-133,
            2.0**-134,
            3 * 2.0**-134,
            1 + 2**-8,
        ),
        torch.float32: (3.4028235e38, 2.0**-149, 1.1754942e-38),
    }
    for out, values in edges.items():
        both = tuple(sign * x for x in (*values, 0.0, 1e-45) for sign in (1, -1))
        same = {"a": "one", "b": "one", "scale_a": Vector(both), "scale_b": ONE, "out_dtype": out}
        yield Case(f"out-edges-{str(out)[6:]}", len(both), 17, 1, **same)


def _places() -> Iterator[Case]:
    sizes = {*range(1, 131)} & {2**i + j for i in range(8) for j in (-1, 0, 1)}
    primes = (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41, 61, 67, 97, 127, 257)
    yield from (Case(f"tail-k-{k}", 3, 5, k, **AZP_FORMS["token"]) for k in range(1, 131))
    yield from (Case(f"tail-n-{n}", 3, n, 19, bias=Vector("signed")) for n in range(1, 41))
    yield from (Case(f"tail-m-{m}", m, 9, 7, **AZP_FORMS["with_adj"]) for m in range(1, 71))
    yield from (Case(f"tail-power-{i}", i, i, i, bias=Vector("signed")) for i in sorted(sizes))
    yield from (Case(f"tail-prime-{p}", p, p, p, **AZP_FORMS["token"]) for p in primes)
    yield from (Case(f"tail-long-k-{k}", 2, 18, k) for k in (511, 513, 1023, 1025, 4095, 4097))

    for i in range(1, 16):
        same = {"m": 17, "n": 33, "k": 64}
        yield Case(f"offset-a-{i}", a_layout=Layout(offset=i), **same)
        yield Case(f"offset-b-{i}", b_layout=Layout("column", offset=i), **same)
    for i, name in itertools.product((1, 2, 3), ("scale_a", "scale_b", "bias", "azp", "azp_adj")):
        vectors = {"bias": Vector("signed"), "azp": Vector("int8"), "azp_adj": SUMS}
        vectors[name] = replace(vectors.get(name, Vector()), layout=Layout(offset=i))
        yield Case(f"offset-{name}-{i}", **vectors)

    layouts = {
        "row": ROW,
        "column": COLUMN,
        "row-padded": Layout(pad=5),
        "column-padded": Layout("column", pad=3),
        "row-sliced": Layout(step=2),
        "column-sliced": Layout("column", step=3, pad=1, offset=1),
    }
    for (name_a, a), (name_b, b) in itertools.product(layouts.items(), repeat=2):
        same = {"a_layout": a, "b_layout": b}
        yield Case(f"layout-{name_a}-{name_b}", 18, 35, 66, **same)
        yield Case(f"layout-{name_a}-{name_b}-3d", 6, lead=(2, 3), **same)
    for m, n, k in ((1, 19, 37), (7, 1, 37), (7, 19, 1), (1, 1, 1)):
        odd = {"a_layout": Layout(odd=1000), "b_layout": Layout("column", odd=3)}
        yield Case(f"odd-strides-{m}x{n}x{k}", m, n, k, **odd)
    yield Case("aliased", 23, 23, 64, alias=True)
    apart = {"form": "flat", "layout": COLUMN}  # no one stride leads through [2, 3]
    azp = {"azp": Vector("int8", **apart), "azp_adj": SUMS}
    yield Case("vectors-of-two-strides", 6, lead=(2, 3), scale_a=Vector(**apart), **azp)


PLAIN_CASES = {case.name: case for case in _named()}
CASES = PLAIN_CASES | {case.name: case for case in ending_cases.endings()}

# More than 2^31 elements in a, in the output; more than 65535 tiles of 128 along M, along N.
BIG_CASES = {
    case.name: case
    for case in (
        Case("big-a", 70_000, 16, 32_768),
        Case("big-out", 70_000, 32_768, 16),
        Case("big-grid-m", 65_537 * 128, 8, 16),
        Case("big-grid-n", 8, 65_537 * 128, 16),
    )
}


def random_case(rng: np.random.Generator, endings: bool = True) -> Case:
    """Any of the cross product of shapes, layouts, operand forms, values and dtypes; small. Without
    `endings` its activation can only be reglu, and D has not 8 bits."""

    def pick(*choices: Any) -> Any:
        return choices[rng.integers(len(choices))]

    def layout(order: str) -> Layout:
        order = order if rng.random() < 0.7 else pick("row", "column")
        return Layout(
            order, pick(0, 0, 0, 1, 5, 16), pick(1, 1, 1, 1, 2), pick(0, 0, 1, 3, 15), pick(None, 7)
        )

    def vector(values: str | tuple[float, ...], *forms: str) -> Vector:
        return Vector(values, pick(*forms), Layout(step=pick(1, 1, 2), offset=pick(0, 0, 1)))

    def scale() -> Vector:
        values = pick("normal", "normal", "signed", "wide", "mixed", (pick(*SPECIAL),))
        return vector(values, "0d", "1", "1x1", "flat", "thick", "thick", "expanded")

    size = [int(rng.integers(0 if rng.random() < 0.05 else 1, pick(4, 20, 40))) for _ in range(3)]
    if rng.random() < 0.03:
        size[2] = int(rng.integers(100, 4000))
    m, n, k = size
    lead = pick(None, None, None, (m, 1), (1, m), (2, m), ())
    azp = pick(
        {},
        {},
        {"azp_with_adj": vector(pick("sums", "int32", "int8"), "flat", "thick", "expanded")},
        {
            "azp": vector(pick("int8", "int8", "int32", (0,)), "0d", "1", "flat", "thick"),
            "azp_adj": vector(pick("sums", "sums", "int8", "int32"), "flat", "thick"),
        },
    )
    bias = None
    if rng.random() < 0.5:
        bias = vector(pick("signed", "signed", "wide", "mixed", "cancel"), "flat", "thick")
        bias = replace(bias, dtype=pick(None, torch.float32))
        if bias.values == "cancel" and 0 in (m, math.prod((1,) if lead is None else lead)):
            bias = replace(bias, values="signed")
    case = Case(
        "random",
        m if lead is None else math.prod(lead),
        n,
        k,
        lead,
        pick("full", "full", "extreme", "small", "lowest"),
        pick("full", "full", "extreme", "small", "lowest"),
        layout("row"),
        layout("column"),
        scale_a=scale(),
        scale_b=scale(),
        bias=bias,
        out_dtype=pick(*OUT_DTYPES),
        **azp,
    )
    end = rng.random()  # drawn last: what came before is what it was
    if end < 0.25:
        activation = pick(*ACTIVATIONS) if endings else "reglu"
        case = replace(case, activation=activation).paired()
        if endings and rng.random() < 0.4:
            scale = vector(pick("normal", "mixed"), "0d", "1", "flat", "thick")
            azp = pick(None, vector("int8", "0d", "1", "flat", "thick"))
            out = pick(*OUT_DTYPES_8)
            azp = azp if out == torch.int8 else None
            return replace(case, out_scale=scale, out_azp=azp, out_dtype=out)
        return case
    if end < 0.5:
        values = pick("signed", "signed", "wide", "mixed", "cancel", (pick(*SPECIAL),))
        same = "" if values == "cancel" else pick("", "", "", "rows", "columns", "rows columns")
        residual = Matrix(values, layout("row"), pick(None, torch.float32), same)
        return replace(case, residual=residual)
    return case
