"""Named cases of what may follow the bias: residuals, activations, outputs of 8 bits."""

import itertools
import math
from collections.abc import Iterator
from typing import Any

import torch
from operands import (
    ACTIVATIONS,
    AZP_FORMS,
    COLUMN,
    EPILOGUES,
    INF,
    NAN,
    ONE,
    OUT_DTYPES,
    ROW,
    SPECIAL,
    Case,
    Layout,
    Matrix,
    Vector,
)


def residuals() -> Iterator[Case]:
    for ((form, azp), bias), out in itertools.product(EPILOGUES, OUT_DTYPES):
        epilogue = f"{form}-{'bias' if bias else 'nobias'}-{str(out)[6:]}"
        for dtype in (None, torch.float32):
            same = {**azp, "bias": bias, "residual": Matrix(dtype=dtype), "out_dtype": out}
            end = f"{epilogue}-{'wide' if dtype else 'own'}"
            yield Case(f"residual-{end}", **same)
            yield Case(f"residual-{end}-tiles", m=70, n=96, k=130, **same)
            yield Case(f"residual-empty-k-{end}", k=0, **same)
            for m, n in ((1, 1), (1, 40), (40, 1), (24, 24)):
                yield Case(f"residual-mn-{m}x{n}-{end}", m=m, n=n, **same)
        cancels = {**azp, "bias": bias, "out_dtype": out}
        for dtype in (None, torch.float32):
            residual = Matrix("cancel", dtype=dtype)
            end = f"{epilogue}-{'wide' if dtype else 'own'}"
            yield Case(f"residual-cancels-{end}", residual=residual, **cancels)
            yield Case(f"residual-cancels-long-{end}", k=4099, residual=residual, **cancels)
    for m, n in ((0, 5), (5, 0), (0, 0)):
        yield Case(f"residual-empty-{m}x{n}", m, n, residual=Matrix())
    for n in range(1, 41):
        dtype = (None, torch.float32)[n % 2]
        yield Case(f"residual-tail-n-{n}", 3, n, 19, residual=Matrix(dtype=dtype))
    for m in (*range(1, 20), 31, 33, 47, 49, 63, 65):
        bias = Vector("signed")
        yield Case(f"residual-tail-m-{m}", m, 9, 7, bias=bias, residual=Matrix())

    layouts = {
        "row": ROW,
        "column": COLUMN,
        "padded": Layout(pad=5),
        "column-padded": Layout("column", pad=3),
        "sliced": Layout(step=2),
        "column-sliced": Layout("column", step=3, pad=1, offset=1),
        "odd": Layout(odd=1000),
        **{f"offset-{i}": Layout(offset=i) for i in (1, 2, 3, 4, 5, 6, 7, 8)},
    }
    shapes: dict[str, dict[str, Any]] = {
        "2d": {"m": 18, "n": 35},
        "even": {"m": 18, "n": 48},
        "3d": {"m": 6, "n": 35, "lead": (2, 3)},
        "4d": {"m": 8, "n": 17, "lead": (2, 1, 4)},
        "1d": {"m": 1, "n": 35, "lead": ()},
        "one-row": {"m": 1, "n": 35},
        "one-column": {"m": 18, "n": 1},
    }
    for (place, layout), (size, shape) in itertools.product(layouts.items(), shapes.items()):
        for dtype in (None, torch.float32):
            residual = Matrix(layout=layout, dtype=dtype)
            end = f"{place}-{size}-{'wide' if dtype else 'own'}"
            yield Case(f"residual-layout-{end}", residual=residual, **shape)
    for same, (size, shape) in itertools.product(
        ("rows", "columns", "rows columns"), shapes.items()
    ):
        yield Case(f"residual-same-{same}-{size}", residual=Matrix(same=same), **shape)

    for value, out in itertools.product((*SPECIAL, 1.0, -1e38, 2.0**-126), OUT_DTYPES):
        for dtype in (None, torch.float32):
            residual = Matrix((value,), dtype=dtype)
            end = f"{value:g}-{str(out)[6:]}-{'wide' if dtype else 'own'}"
            yield Case(f"residual-{end}", residual=residual, out_dtype=out)
            # With a product that is zero, infinite, or as large as float32 goes.
            scales = Vector((0.0, -0.0, INF, -INF, 3e38, -3e38, 1e-44))
            same = {"a": "one", "b": "one", "k": 1, "scale_a": scales, "scale_b": ONE}
            yield Case(f"residual-meets-{end}", residual=residual, out_dtype=out, **same)
    for out in OUT_DTYPES:
        residual = Matrix("mixed", dtype=torch.float32)
        same = {"scale_a": Vector("mixed"), "bias": Vector("mixed"), "out_dtype": out}
        yield Case(f"residual-mixed-{str(out)[6:]}", 40, 40, 9, residual=residual, **same)


# What a gate, and what it lets through, can be.
GATES = (0.0, -0.0, 1.0, -1.0, 1e-40, -1e-40, 1e20, -1e20, 3.4e38, -3.4e38, INF, -INF, NAN)
PAIRS = tuple(x for pair in itertools.product(GATES, GATES) for x in pair)


def pairs() -> Iterator[Case]:
    for ((form, azp), bias), out in itertools.product(EPILOGUES, OUT_DTYPES):
        epilogue = f"{form}-{'bias' if bias else 'nobias'}-{str(out)[6:]}"
        same = {**azp, "bias": bias, "activation": "reglu", "out_dtype": out}
        yield Case(f"reglu-{epilogue}", n=20, **same)
        yield Case(f"reglu-{epilogue}-tiles", m=70, n=96, k=130, **same)
        yield Case(f"reglu-empty-k-{epilogue}", n=20, k=0, **same)
        for m, n in ((1, 2), (1, 40), (40, 2), (24, 24)):
            yield Case(f"reglu-mn-{m}x{n}-{epilogue}", m=m, n=n, **same)
    reglu = {"activation": "reglu"}
    for m, n in ((0, 6), (5, 0), (0, 0)):
        yield Case(f"reglu-empty-{m}x{n}", m, n, **reglu)
    for n in range(2, 82, 2):
        yield Case(f"reglu-tail-n-{n}", 3, n, 19, bias=Vector("signed"), **reglu)
    for m in (*range(1, 20), 31, 33, 47, 49, 63, 65):
        yield Case(f"reglu-tail-m-{m}", m, 10, 7, **AZP_FORMS["with_adj"], **reglu)
    for k in (1, 3, 4, 5, 63, 64, 65, 1025, 4097):
        yield Case(f"reglu-tail-k-{k}", 3, 18, k, **AZP_FORMS["token"], **reglu)
    for lead in ((), (1,), (2, 3), (2, 1, 4), (0, 3)):
        yield Case(f"reglu-lead-{lead}", math.prod(lead), 20, lead=lead, **reglu)
    for a, b in itertools.product((ROW, COLUMN, Layout(step=2, pad=3, offset=1)), repeat=2):
        name = f"reglu-layout-{a.order}-{a.step}-{b.order}-{b.step}"
        yield Case(name, 18, 34, 66, a_layout=a, b_layout=b, **reglu)
    one = {"m": 3, "n": len(PAIRS), "k": 1, "a": "one", "b": "one", **reglu}
    for out in OUT_DTYPES:
        end = str(out)[6:]
        signs = Vector((1.0, -1.0, 0.5))
        yield Case(f"reglu-gates-{end}", scale_a=signs, scale_b=Vector(PAIRS), out_dtype=out, **one)
        bias = Vector(PAIRS, dtype=torch.float32)
        yield Case(f"reglu-gates-by-bias-{end}", scale_b=ONE, bias=bias, out_dtype=out, **one)
        bias = Vector("cancel", dtype=torch.float32)
        yield Case(f"reglu-cancels-{end}", n=20, k=4099, bias=bias, out_dtype=out, **reglu)
        mixed = {"scale_a": Vector("mixed"), "scale_b": Vector("mixed"), "bias": Vector("mixed")}
        yield Case(f"reglu-mixed-{end}", 40, 40, 9, out_dtype=out, **mixed, **reglu)


# What a scale of the output can be, and what divides by it.
OUT_SCALES = (1.0, 0.0, -0.0, -2.0, 1e-44, 1e-30, 1e30, 3e38, INF, -INF, NAN)
IN_8_BITS: dict[str, dict[str, Any]] = {
    "int8": {"out_dtype": torch.int8, "out_scale": Vector()},
    "int8-azp": {"out_dtype": torch.int8, "out_scale": Vector(), "out_azp": Vector((0, -128, 5))},
    "int8-tensor": {
        "out_dtype": torch.int8,
        "out_scale": Vector((0.75,), "1"),
        "out_azp": Vector((-31,), "1x1"),
    },
    "e4m3": {"out_dtype": torch.float8_e4m3fn, "out_scale": Vector()},
    "e4m3-tensor": {"out_dtype": torch.float8_e4m3fn, "out_scale": Vector((0.03,), "0d")},
}


def endings() -> Iterator[Case]:
    """Activations of one column and of two, and outputs of 8 bits."""
    for activation, out in itertools.product(ACTIVATIONS, OUT_DTYPES):
        if activation == "reglu":
            continue  # those above
        same = {"activation": activation, "out_dtype": out, "bias": Vector("signed")}
        name = f"{activation}-{str(out)[6:]}"
        yield Case(f"{name}-tiles", 70, 96, 130, **AZP_FORMS["token"], **same)
        yield Case(f"{name}-rest", 19, 38, 21, **AZP_FORMS["with_adj"], **same)
        yield Case(f"{name}-empty-k", n=20, k=0, **same)
    for activation, (form, ending) in itertools.product((None, *ACTIVATIONS), IN_8_BITS.items()):
        same = {"activation": activation, **ending}
        name = f"{activation}-{form}"
        small = Vector((0.003,), "1")  # so that D is not all saturated
        yield Case(f"{name}-tiles", 70, 96, 130, scale_b=small, **AZP_FORMS["token"], **same)
        yield Case(f"{name}-rest", 19, 38, 21, scale_b=small, bias=Vector("signed"), **same)
        for n in (2, 6, 16, 18):
            yield Case(f"{name}-n-{n}", 3, n, 19, scale_b=small, **same)
        yield Case(f"{name}-no-k", n=20, k=0, bias=Vector("signed"), **same)
    # Any value, in units of any scale: rows have scales, columns values; half of them are ties.
    ties = tuple(i / 2 for i in range(-270, 270))
    by = {"m": len(OUT_SCALES), "k": 1, "a": "one", "b": "one", "scale_a": ONE, "scale_b": ONE}
    for form, ending in IN_8_BITS.items():
        same = {**ending, "out_scale": Vector(OUT_SCALES)}
        for kind, values in {"ties": ties, "special": SPECIAL}.items():
            bias = Vector(tuple(x - 1 for x in values), dtype=torch.float32)  # the product is 1
            yield Case(f"store-{kind}-{form}", n=len(values), bias=bias, **by, **same)
