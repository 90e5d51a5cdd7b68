"""int4 layers over several ranks: the bits by columns (on the CPU), a bound by rows."""

from __future__ import annotations

import copy
import itertools

import torch
from helpers import assert_bits
from int4_cases import Form, quantised
from parallel_rank import Rank, case, refused, seeded
from torch import Tensor, nn
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import parallelize_module

from scaled_mm import reference
from scaled_mm.nn import AWQLinear
from scaled_mm.parallel import ColwiseQuantizedParallel, RowwiseQuantizedParallel
from scaled_mm.parallel.layouts import as_dtensor
from scaled_mm.reference.arithmetic import FORMATS

FORMS = {
    "float16": Form("awq", group=16),
    "bfloat16": Form("awq", group=32, dtype=torch.bfloat16),
    "act-order": Form(act_order=True, group=16, dtype=torch.bfloat16),
}


def int4_layer(device: str, k: int, n: int, form: Form, bias: torch.dtype | None) -> AWQLinear:
    """A layer of the form, the same on every rank."""
    weight = quantised(seeded(n, k, seed=1, scale=0.3), form)
    layer = AWQLinear.from_int4(weight, None if bias is None else seeded(n, seed=2).to(bias))
    return layer.to(device)


def assert_within_bound(
    got: Tensor, x: Tensor, whole: AWQLinear, world: int, *what: object
) -> None:
    """docs/lowbit.md:

    |out - exact| <= u |exact| + (1 + u) (u + (K + W) 2^-23) (|x| |W| + |bias|)
    """
    x = x.cpu().to(whole.scales.dtype)
    if whole.order is not None:
        x = x[..., whole.order.cpu()]
    words = {name: getattr(whole, name).cpu() for name in ("qweight", "scales", "qzeros")}
    w = reference.awq_dequantize(**words).double()
    exact, size = x.double() @ w, x.double().abs() @ w.abs()
    if whole.bias is not None:
        exact, size = exact + whole.bias.cpu().double(), size + whole.bias.cpu().double().abs()
    u = 2.0 ** -FORMATS[whole.scales.dtype].bits
    bound = u * exact.abs() + (1 + u) * (u + (x.shape[-1] + world) * 2.0**-23) * size
    error = (got.cpu().double() - exact).abs()
    assert bool((error <= bound).all()), (float((error / bound).max()), what)


@case("int4 by columns")
def _(me: Rank) -> None:
    for form, bias in itertools.product(FORMS, (None, torch.float32)):
        whole = int4_layer(me.device, 96, 64, FORMS[form], bias)
        columns = me.by_columns(whole)
        for shape, dtype in itertools.product(((5, 96), (0, 96), (96,)), (None, torch.float32)):
            x = seeded(*shape).to(me.device, dtype or whole.scales.dtype)
            if me.device == "cpu":
                assert_bits(columns(x), me.part(whole(x)).contiguous(), form, shape, dtype)
            every = me.by_columns(whole, output_layouts=Replicate())(x)
            assert_within_bound(every, x, whole, me.world, form, shape, dtype)


@case("int4 by rows")
def _(me: Rank) -> None:
    for (name, form), bias in itertools.product(FORMS.items(), (None, torch.float32, form_dtype)):
        kind = form.dtype if bias is form_dtype else bias
        whole = int4_layer(me.device, 128, 40, form, kind)
        rows = me.by_rows(whole)
        assert rows.qweight.numel() == whole.qweight.numel() // me.world
        for shape, dtype in itertools.product(((5, 128), (0, 128), (128,)), (None, torch.float32)):
            x = seeded(*shape).to(me.device, dtype or form.dtype)
            got = rows(me.part(x))
            assert (got.shape, got.dtype) == (whole(x).shape, x.dtype)
            assert_within_bound(got, x, whole, me.world, name, bias, shape, dtype)
            assert_bits(rows(me.part(x)), got, "run to run")


@case("int4 packed")
def _(me: Rank) -> None:
    """A packed layer is cut into packed ones, of the same values."""
    for name, form in FORMS.items():
        whole, x = int4_layer(me.device, 128, 64, form, None), seeded(5, 128).to(me.device)
        packed = copy.deepcopy(whole).pack()
        for by, given in ((me.by_columns, x), (me.by_rows, me.part(x))):
            cut = by(packed)
            assert cut.packed is not None
            assert_within_bound(whole_of(me, by, cut(given)), x, whole, me.world, name)


def whole_of(me: Rank, by: object, y: Tensor) -> Tensor:
    return as_dtensor(y, me.mesh, Shard(-1), 64).full_tensor() if by == me.by_columns else y


form_dtype = object()


@case("int4 by rows: integers")
def _(me: Rank) -> None:
    """Where no rounding happens, the result is exact: nothing is added twice, or left out."""
    form = Form("awq", group=16)
    whole = int4_layer(me.device, 128, 40, form, torch.float32)
    whole.scales.fill_(1)
    whole.bias.copy_(torch.arange(40.0))
    x = torch.randint(-2, 3, (6, 128), generator=torch.Generator().manual_seed(0))
    x = x.to(me.device, torch.float16)
    assert_bits(me.by_rows(whole)(me.part(x)), whole(x))
    assert whole(x).abs().max() < 2048  # of which every integer is a float16


@case("int4 uneven")
def _(me: Rank) -> None:
    """Three groups, or three words, do not go into two or four."""
    layer = int4_layer(me.device, 48, 24, Form("awq", group=16), None)
    for by, features, unit in (
        (me.by_rows, "in_features", r"16 \(group_size\), got 48"),
        (me.by_columns, "out_features", r"8 \(the columns in a word\), got 24"),
    ):
        piece = (48 if by == me.by_rows else 24) // me.world
        message = (
            rf"^{features} must be cut into multiples of {unit} over {me.world} ranks, {piece} "
        )
        with refused(ValueError, message):
            by(layer)


@case("int4 blocks")
def _(me: Rank) -> None:
    """By columns, then by rows; and the state of a cut layer in another."""
    form = FORMS["bfloat16"]
    up, down = (int4_layer(me.device, *kn, form, torch.float32) for kn in ((64, 128), (128, 64)))
    whole = nn.Sequential(up, nn.ReLU(), down)
    plan = {"0": ColwiseQuantizedParallel(), "2": RowwiseQuantizedParallel()}
    cut = parallelize_module(copy.deepcopy(whole), me.mesh, plan)
    x = seeded(5, 64).to(me.device, torch.bfloat16)
    inside = torch.relu(up(x))
    wanted = cut(x)
    if me.device == "cpu":
        assert_within_bound(wanted, inside, down, me.world)
    again = parallelize_module(whole, me.mesh, plan)
    for buffer in again.buffers():
        buffer.zero_()
    again.load_state_dict(cut.state_dict())
    assert_bits(again(x), wanted)
