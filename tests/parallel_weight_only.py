"""Weight-only layers over several ranks: the bits by columns (on the CPU), a bound by rows."""

import copy
import itertools
from typing import Any

import torch
from helpers import assert_bits
from parallel_rank import Rank, case, refused, seeded
from torch import Tensor, nn
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import parallelize_module
from weight_only_cases import ACTIVATIONS, weight_of

from scaled_mm import quantize_weight_grouped
from scaled_mm.lowbit.grouped import GroupedWeight
from scaled_mm.nn import WeightOnlyLinear
from scaled_mm.parallel import ColwiseQuantizedParallel, RowwiseQuantizedParallel

K, N = 128, 42
KINDS: dict[str, dict[str, Any]] = {
    "w8": {"bits": 8},
    "w8-asymmetric": {"bits": 8, "symmetric": False},
    "w4-g16": {"bits": 4, "group_size": 16, "activation": "silu"},
    "w4-g32-act-order": {"bits": 4, "group_size": 32, "symmetric": False, "act_order": True},
}


def made(me: Rank, kind: str, k: int = K, n: int = N, **more: Any) -> WeightOnlyLinear:
    """A layer of the kind, with factors on its input, the same on every rank."""
    options = KINDS[kind] | more
    bits, activation = options.pop("bits"), options.pop("activation", None)
    act_order, bias = options.pop("act_order", False), options.pop("bias", torch.float32)
    w = seeded(n, k, seed=1, scale=0.3).half()
    g_idx = None
    if act_order:
        at = torch.randperm(k, generator=torch.Generator().manual_seed(0))
        g_idx = at // options["group_size"]
    layer = WeightOnlyLinear.from_grouped(
        quantize_weight_grouped(w, bits=bits, **options),
        bits=bits,
        g_idx=g_idx,
        bias=None if bias is None else seeded(n, seed=2).to(bias),
        pre_scale=torch.linspace(0.5, 2, k),
        activation=activation,
    )
    return layer.to(me.device)


def assert_within_bound(
    got: Tensor, x: Tensor, whole: WeightOnlyLinear, world: int, *what: object
) -> None:
    """The bound of docs/lowbit.md on a product that ranks share, through the activation."""
    whole = copy.deepcopy(whole).cpu()
    x = (x.cpu().half().float() * whole.pre_scale).half()
    w = weight_of(whole).double()
    exact, size = x.double() @ w, x.double().abs() @ w.abs()
    if whole.bias is not None:
        exact, size = exact + whole.bias.double(), size + whole.bias.double().abs()
    u = 2.0**-11
    bound = u * exact.abs() + (1 + u) * (u + (x.shape[-1] + world) * 2.0**-23) * size
    wanted = ACTIVATIONS[whole.activation](exact)
    if whole.activation is not None:
        bound = 1.13 * bound + u * wanted.abs()
    error = (got.cpu().double() - wanted).abs()
    assert bool((error <= bound + 2.0**-24).all()), (float((error / bound).max()), what)


@case("weight-only by columns")
def _(me: Rank) -> None:
    for kind, bias in itertools.product(KINDS, (None, torch.float32)):
        whole = made(me, kind, bias=bias)
        columns = me.by_columns(whole)
        for shape, dtype in itertools.product(((5, K), (0, K), (K,)), (None, torch.float32)):
            x = seeded(*shape).to(me.device, dtype or torch.float16)
            if me.device == "cpu":
                assert_bits(columns(x), me.part(whole(x)).contiguous(), kind, shape, dtype)
            every = me.by_columns(whole, output_layouts=Replicate())(x)
            assert_within_bound(every, x, whole, me.world, kind, shape, dtype)


@case("weight-only by rows")
def _(me: Rank) -> None:
    for kind, bias in itertools.product(KINDS, (None, torch.float32, torch.float16)):
        whole = made(me, kind, bias=bias)
        rows = me.by_rows(whole)
        own = rows.state_dict()["weight_packed"]
        assert own.numel() == whole.state_dict()["weight_packed"].numel() // me.world
        for shape, dtype in itertools.product(((5, K), (0, K), (K,)), (None, torch.float32)):
            x = seeded(*shape).to(me.device, dtype or torch.float16)
            got = rows(me.part(x))
            assert (got.shape, got.dtype) == (whole(x).shape, x.dtype)
            assert_within_bound(got, x, whole, me.world, kind, bias, shape, dtype)
            assert_bits(rows(me.part(x)), got, "run to run")
        with refused(ValueError, "^out must be None where ranks share the features"):
            rows(me.part(x), out=got)


@case("weight-only by rows: integers")
def _(me: Rank) -> None:
    """Where no rounding happens, the result is exact: nothing is added twice, or left out."""
    made = torch.Generator().manual_seed(0)
    q = torch.randint(0, 16, (K, 40), generator=made, dtype=torch.uint8)
    zeros = torch.randint(0, 16, (K // 16, 40), generator=made, dtype=torch.uint8)
    scales, bias = torch.ones(K // 16, 40).half(), torch.arange(40.0)
    whole = WeightOnlyLinear.from_grouped(GroupedWeight(q, scales, zeros), bits=4, bias=bias)
    whole.to(me.device)
    x = torch.randint(-2, 3, (6, K), generator=made).to(me.device, torch.float16)
    assert_bits(me.by_rows(whole)(me.part(x)), whole(x))
    assert whole(x).abs().max() < 2048  # of which every integer is a float16


@case("weight-only uneven")
def _(me: Rank) -> None:
    """Three groups do not go into two or four; columns and one group of rows go into anything."""
    layer = made(me, "w4-g16", k=48)
    piece = 48 // me.world
    message = rf"^in_features must be cut into multiples of 16 \(group_size\), got 48 .* {piece} "
    with refused(ValueError, message):
        me.by_rows(layer)
    whole, x = made(me, "w8", k=50, n=7), seeded(3, 50).to(me.device, torch.float16)
    assert_within_bound(me.by_rows(whole)(me.part(x)), x, whole, me.world)
    if me.device == "cpu":
        assert_bits(me.by_columns(whole)(x), me.part(whole(x)).contiguous())


@case("weight-only blocks")
def _(me: Rank) -> None:
    """By columns, then by rows; and the state of a cut layer in another."""
    up, down = made(me, "w8", k=64, n=128), made(me, "w4-g16", k=128, n=64)
    whole = nn.Sequential(up, nn.ReLU(), down)
    plan = {"0": ColwiseQuantizedParallel(), "2": RowwiseQuantizedParallel()}
    cut = parallelize_module(copy.deepcopy(whole), me.mesh, plan)
    x = seeded(5, 64).to(me.device, torch.float16)
    wanted = cut(x)
    if me.device == "cpu":
        assert_within_bound(wanted, torch.relu(up(x)), down, me.world)
    again = parallelize_module(whole, me.mesh, plan)
    state = {name: torch.zeros_like(value) for name, value in again.state_dict().items()}
    shapes = {name: value for name, value in again.state_dict().items() if "shape" in name}
    again.load_state_dict(state | shapes)
    assert not torch.equal(again(x), wanted)
    again.load_state_dict(cut.state_dict())
    assert_bits(again(x), wanted)
