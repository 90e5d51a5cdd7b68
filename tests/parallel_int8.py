"""Int8 layers over several ranks: the bits of the layer that is not cut."""

import copy
import itertools
from typing import Any

import torch
import torch.distributed as dist
from helpers import assert_bits
from parallel_rank import CASES, Rank, case, refused, seeded
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import parallelize_module

from scaled_mm import QuantConfig, quantize_model
from scaled_mm.nn import ScaledLinear
from scaled_mm.parallel import ColwiseQuantizedParallel, RowwiseQuantizedParallel

SCHEMES: dict[str, dict[str, Any]] = {
    "dynamic": {},
    "dynamic-asymmetric": {"symmetric": False},
    "dynamic-tensor": {"per_token": False},
    "dynamic-asymmetric-tensor": {"symmetric": False, "per_token": False},
    "static": {"dynamic": False, "input_scale": 0.03},
    "static-asymmetric": {
        "dynamic": False,
        "symmetric": False,
        "input_scale": 0.03,
        "input_azp": -77,
    },
}
SHAPES = ((96, 64), (70, 37), (5, 3))  # the last leaves one of four ranks without features


def int8_layer(
    device: str, k: int, n: int, scheme: str, *, bias: bool = True, smooth: bool = False
) -> ScaledLinear:
    """A layer of the scheme, the same on every rank."""
    linear = nn.Linear(k, n, bias).requires_grad_(False)
    linear.weight.copy_(seeded(n, k, seed=1))
    if bias:
        linear.bias.copy_(seeded(n, seed=2, scale=20))
    divisors = seeded(k, seed=3).abs() + 0.1 if smooth else None
    return ScaledLinear.from_linear(linear, **SCHEMES[scheme], smooth=divisors).to(device)


def tokens(device: str, *shape: int) -> Tensor:
    """Activations that lie to one side, with one channel far larger than the others."""
    x = seeded(*shape, seed=4) + 0.7
    x[..., shape[-1] // 2] *= 30
    return x.to(device)


def same_bits(me: Rank, scheme: str) -> None:
    sizes = itertools.product(SHAPES, (True, False), (True, False))
    for (k, n), bias, smooth in sizes:
        whole = int8_layer(me.device, k, n, scheme, bias=bias, smooth=smooth)
        rows, columns = me.by_rows(whole), me.by_columns(whole)
        for dtype in (torch.bfloat16, torch.float16, torch.float32):
            x = tokens(me.device, 2, 3, k).to(dtype)
            wanted, what = whole(x), (scheme, k, n, bias, smooth, dtype)
            assert_bits(rows(me.part(x)), wanted, "rows", *what)
            assert_bits(columns(x), me.part(wanted).contiguous(), "columns", *what)
            if me.device != "cpu":
                on_cpu = copy.deepcopy(whole).cpu()(x.cpu())
                assert_bits(rows(me.part(x)).cpu(), on_cpu, "CPU", *what)


for _scheme in SCHEMES:
    CASES[f"same bits, {_scheme}"] = lambda me, scheme=_scheme: same_bits(me, scheme)


@case("rotated")
def _(me: Rank) -> None:
    """Blocks of columns that each rank has whole; others are refused."""
    for options in ({}, {"symmetric": False}, {"per_token": False}, SCHEMES["static"]):
        linear = nn.Linear(256, 24).requires_grad_(False)
        linear.weight.copy_(seeded(24, 256, seed=1))
        made = ScaledLinear.from_linear(linear, **options, rotate=32).to(me.device)
        x = tokens(me.device, 5, 256).bfloat16()
        rows, columns, wanted = me.by_rows(made), me.by_columns(made), made(x)
        assert_bits(rows(me.part(x)), wanted, *options)
        assert_bits(columns(x), me.part(wanted).contiguous(), *options)
    wide = ScaledLinear(512, 24, rotate=512).to(me.device)
    if me.world > 1:
        with refused(ValueError, "rotate"):
            me.by_rows(wide)


@case("shapes of x")
def _(me: Rank) -> None:
    """No rows, one row, no leading dimension, strides, threads' worth of rows."""
    whole = int8_layer(me.device, 70, 37, "dynamic-asymmetric")
    rows, columns = me.by_rows(whole), me.by_columns(whole)
    for shape in ((0, 70), (2, 0, 70), (70,), (1, 70), (2, 3, 4, 70), (300, 70)):
        x = tokens(me.device, *shape)
        assert_bits(rows(me.part(x)), whole(x), shape)
        assert_bits(columns(x), me.part(whole(x)).contiguous(), shape)
    x = tokens(me.device, 9, 140)[::2, ::2]
    assert_bits(rows(me.part(x)), whole(x))
    tensor = int8_layer(me.device, 70, 37, "dynamic-tensor")
    x = tokens(me.device, 0, 70)
    assert_bits(me.by_rows(tensor)(me.part(x)), tensor(x))


HARD = {
    "nan": torch.nan,
    "infinity": torch.inf,
    "minus infinity": -torch.inf,
    "largest": 3.4e38,
    "smallest": -1e-45,
    "zero": -0.0,
}


@case("hard values")
def _(me: Rank) -> None:
    """One value in one token, at each end of K, so that another rank has to hear of it."""
    for scheme, (value, at) in itertools.product(
        SCHEMES, itertools.product(HARD.values(), (0, 69))
    ):
        x = tokens(me.device, 4, 70)
        x[1] *= value if value in (0.0, -1e-45) else 1
        x[1, at] = value
        x[3] = 0
        whole = int8_layer(me.device, 70, 37, scheme)
        assert_bits(me.by_rows(whole)(me.part(x)), whole(x), scheme, value, at)


@case("an infinity on one rank, NaN on another")
def _(me: Rank) -> None:
    x = tokens(me.device, 4, 70)
    x[0, 0], x[0, 69] = torch.nan, torch.inf
    x[1, 0], x[1, 69] = torch.inf, torch.nan
    x[2, 0], x[2, 69] = -3.4e38, 3.4e38  # each is finite, their distance is not
    for scheme in ("dynamic", "dynamic-asymmetric"):
        whole = int8_layer(me.device, 70, 37, scheme)
        assert_bits(me.by_rows(whole)(me.part(x)), whole(x), scheme)


@case("extreme sums")
def _(me: Rank) -> None:
    """K = 131071 and all products at their largest: the sum of the ranks' is just below 2^31."""
    k, n = 131071, 3
    whole = int8_layer(me.device, k, n, "static-asymmetric", bias=False)
    for sign in (-128, 127):
        state = whole.state_dict() | {"weight": torch.full((n, k), -128, dtype=torch.int8)}
        del state["azp_with_adj"]  # it follows from the weight, and wraps
        whole.load_state_dict(state)
        x = torch.full((1, k), sign * 30.0, device=me.device)
        assert_bits(me.by_rows(whole)(me.part(x)), whole(x), sign)


@case("a block of two layers")
def _(me: Rank) -> None:
    """What the one by columns puts out is what the one by rows takes; 37 is no multiple."""
    up, down = (int8_layer(me.device, *kn, "dynamic") for kn in ((70, 37), (37, 70)))
    whole = nn.Sequential(up, nn.ReLU(), down)
    cut = parallelize_module(
        copy.deepcopy(whole),
        me.mesh,
        {"0": ColwiseQuantizedParallel(), "2": RowwiseQuantizedParallel()},
    )
    x = tokens(me.device, 5, 70)
    assert_bits(cut(x), whole(x))
    assert "RowwiseScaledLinear(in_features=" in repr(cut)


# --- layouts --------------------------------------------------------------------------------------


@case("a fused block")
def _(me: Rank) -> None:
    """Its pairs are looked up at every call: layers that are cut get floats."""
    block = nn.Sequential(nn.LayerNorm(70), nn.Linear(70, 37), nn.GELU(), nn.Linear(37, 70))
    for place, parameter in enumerate(block.requires_grad_(False).parameters(), 40):
        parameter.copy_(seeded(*parameter.shape, seed=place))
    x = tokens(me.device, 9, 70).bfloat16()  # of which a producer rounds less
    block = block.to(me.device, torch.bfloat16)
    for scheme in ("dynamic", "static-asymmetric"):
        fused, whole = (
            quantize_model(block, QuantConfig(scheme), [x], fuse=fuse) for fuse in (x, None)
        )
        assert type(fused).__name__ == "FusedSequential" and type(whole) is nn.Sequential
        styles = {"1": ColwiseQuantizedParallel(), "3": RowwiseQuantizedParallel()}
        with torch.inference_mode():
            assert_bits(parallelize_module(fused, me.mesh, styles)(x), whole(x), scheme)


@case("layouts")
def _(me: Rank) -> None:
    whole = int8_layer(me.device, 70, 37, "dynamic-asymmetric")
    x = tokens(me.device, 4, 70)
    wanted = whole(x)
    by_rank = {Shard(-1): me.part(wanted), Shard(1): me.part(wanted), Shard(0): me.part(wanted, 0)}
    by_rank[Replicate()] = wanted
    parts = {Shard(-1): me.part(x), Shard(1): me.part(x), Shard(0): me.part(x, 0), Replicate(): x}
    for by, (given, part), (asked, result) in itertools.product(
        (me.by_columns, me.by_rows), parts.items(), by_rank.items()
    ):
        layer = by(whole, input_layouts=given, output_layouts=asked)
        assert_bits(layer(part.contiguous()), result.contiguous(), by.__name__, given, asked)


@case("DTensors in and out")
def _(me: Rank) -> None:
    whole = int8_layer(me.device, 70, 37, "dynamic")
    x = tokens(me.device, 4, 70)
    wanted = whole(x)
    for by, shape in itertools.product((me.by_columns, me.by_rows), (Replicate(), Shard(1))):
        local = x if shape == Replicate() else me.part(x).contiguous()
        given = DTensor.from_local(
            local, me.mesh, [shape], run_check=False, shape=x.shape, stride=x.stride()
        )
        got = by(whole, use_local_output=False)(given)
        assert isinstance(got, DTensor)
        assert_bits(got.full_tensor(), wanted, by.__name__, shape)


# --- in the hands of torch ------------------------------------------------------------------------


@case("in place")
def _(me: Rank) -> None:
    """The module stays the same object, with its hooks, its mode and no more than its share."""
    for by, scheme in itertools.product(
        (ColwiseQuantizedParallel, RowwiseQuantizedParallel), SCHEMES
    ):
        layer = int8_layer(me.device, 64, 48, scheme, smooth=True).eval()
        seen: list[Tensor] = []
        layer.register_forward_hook(lambda module, inputs, y, seen=seen: seen.append(y))
        bytes_before = sum(x.nbytes for x in layer.state_dict().values())
        assert parallelize_module(layer, me.mesh, by()) is layer
        assert isinstance(layer, ScaledLinear)
        assert not layer.training
        assert layer.weight.numel() == 64 * 48 // me.world
        assert sum(x.nbytes for x in layer.state_dict().values()) < bytes_before / me.world + 1500
        x = tokens(me.device, 2, 64)
        y = layer(x if by is ColwiseQuantizedParallel else me.part(x))
        assert len(seen) == 1
        assert seen[0] is y


@case("state dicts")
def _(me: Rank) -> None:
    """A cut layer's state goes into another cut layer; zero-point terms that it lacks are those of
    all ranks' weights."""
    for scheme, by in itertools.product(SCHEMES, (me.by_columns, me.by_rows)):
        whole = int8_layer(me.device, 70, 37, scheme, smooth=True)
        full, empty = by(whole), by(ScaledLinear.from_linear(nn.Linear(70, 37), **SCHEMES[scheme]))
        state = full.state_dict()
        x = tokens(me.device, 4, 70)
        part = x if by == me.by_columns else me.part(x)
        wanted = full(part)
        for absent in ((), ("azp_adj", "azp_with_adj")):
            again = copy.deepcopy(empty).to(me.device)
            again.load_state_dict({name: y for name, y in state.items() if name not in absent})
            assert_bits(again(part), wanted, scheme, by.__name__, absent)
        half = copy.deepcopy(full).to(torch.bfloat16)
        assert half.weight_scale.dtype == torch.float32
        assert_bits(half(part), wanted, scheme, by.__name__)


@case("folded smoothing")
def _(me: Rank) -> None:
    """What a norm in front was divided by is noted for validation, and cut with the input."""
    linear = nn.Linear(70, 37).requires_grad_(False)
    divisors = seeded(70, seed=3).abs() + 0.1
    whole = ScaledLinear.from_linear(linear, smooth=divisors, folded=True).to(me.device)
    for by, wanted in ((me.by_columns, divisors), (me.by_rows, me.part(divisors))):
        folded = by(whole).folded_smooth
        assert folded is not None
        assert_bits(folded.cpu(), wanted.contiguous())


@case("compiled")
def _(me: Rank) -> None:
    """In one graph, the exchange included."""
    up = int8_layer(me.device, 70, 37, "dynamic-asymmetric")
    down = int8_layer(me.device, 37, 70, "static-asymmetric")
    whole = nn.Sequential(up, nn.ReLU(), down)
    plan = {"0": ColwiseQuantizedParallel(), "2": RowwiseQuantizedParallel()}
    x = tokens(me.device, 5, 70)
    wanted = whole(x)
    cut = parallelize_module(whole, me.mesh, plan)
    assert_bits(torch.compile(cut, fullgraph=True, backend="aot_eager")(x), wanted)


@case("a float layer in the plan")
def _(me: Rank) -> None:
    """torch's own styles take it, so that one plan serves layers that stayed float."""
    model = nn.Sequential(nn.Linear(64, 48), nn.ReLU(), nn.Linear(48, 16)).requires_grad_(False)
    for x in model.parameters():
        x.copy_(seeded(*x.shape, seed=5))
    model.to(me.device)
    x = tokens(me.device, 4, 64)
    wanted = model(x)
    plan = {"0": ColwiseQuantizedParallel(), "2": RowwiseQuantizedParallel()}
    got = parallelize_module(copy.deepcopy(model), me.mesh, plan)(x)
    assert torch.allclose(got, wanted, rtol=1e-4, atol=1e-2)
    assert isinstance(parallelize_module(model, me.mesh, plan)[0].weight, DTensor)


@case("refusals")
def _(me: Rank) -> None:
    layer = int8_layer(me.device, 70, 37, "dynamic")
    for style in (ColwiseQuantizedParallel, RowwiseQuantizedParallel):
        with refused(TypeError, r"^module must be a ScaledLinear, .* got LayerNorm$"):
            me.cut(nn.LayerNorm(4), style())
        said = "^x must not require grad where ranks have parts of a layer"
        with torch.enable_grad(), refused(ValueError, said):
            me.cut(layer, style())(tokens(me.device, 2, 70).requires_grad_())
        with refused(ValueError, rf"^module must not be cut already, got one of {me.world} shares"):
            parallelize_module(me.by_columns(layer), me.mesh, style())
    rows = me.by_rows(layer)
    count = me.part(torch.empty(70)).numel()
    with refused(ValueError, rf"^x must have the {count} features of this rank, got \(3, 70\)$"):
        rows(tokens(me.device, 3, 70))
    square = init_device_mesh(me.device, (1, me.world))
    with refused(ValueError, r"^device_mesh must have 1 dimension, got 2$"):
        parallelize_module(layer, square, RowwiseQuantizedParallel())
    assert layer.weight.shape == (37, 70)
    dist.barrier()
