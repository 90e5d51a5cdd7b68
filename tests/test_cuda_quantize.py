"""The quantisers on the GPU: the tables of quantize_cases.py and random ones against the reference
and the CPU backend; rows long and many, more than 2^31 elements. Tolerance zero."""

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from cuda_support import DEVICE, GPU, ON_CPU, assert_outputs, assert_quantized, named, on_device
from helpers import Ops, activated, assert_bits
from quantize_cases import (
    IN_DTYPES,
    QUANTIZE_CASES,
    ROWS,
    QuantizeCase,
    half_integers,
    random_quantize_case,
)
from test_quantize import BY_HAND
from torch import Tensor, nn

import scaled_mm
from scaled_mm import reference
from scaled_mm.nn import ScaledLinear

pytestmark = [*GPU, pytest.mark.usefixtures("poisoned")]
KINDS = list(itertools.product((True, False), repeat=2))  # symmetric, per_token


@pytest.mark.parametrize("name", QUANTIZE_CASES)
def test_named(name: str) -> None:
    case = QUANTIZE_CASES[name]
    assert_quantized(case, case.build(), r1=True)


@pytest.mark.parametrize("seed", range(500, 505))
def test_random(seed: int) -> None:
    rng = np.random.default_rng(seed)
    for i in range(1000):
        case = random_quantize_case(rng)
        assert_quantized(case, case.build(rng=rng), r1=i % 10 == 0)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(600, 610))
def test_random_many(seed: int) -> None:
    rng = np.random.default_rng(seed)
    for _ in range(5000):
        case = random_quantize_case(rng)
        assert_quantized(case, case.build(rng=rng))


LAYERS: dict[str, dict[str, Any]] = {
    "token": {},
    "asymmetric": {"symmetric": False},
    "tensor": {"per_token": False},
    "static": {"dynamic": False, "input_scale": 0.02},
    "static asymmetric": {
        "dynamic": False,
        "symmetric": False,
        "input_scale": 0.02,
        "input_azp": 3,
    },
    "rotated": {"rotate": 16},
    "rotated tensor": {"rotate": 512, "per_token": False},
}


@pytest.mark.parametrize("k", [16, 48, 1000, 1001, 1024, 5008, 9000, 19_968, 33_000])
@pytest.mark.parametrize("scheme", LAYERS)
def test_a_smoothed_layer(scheme: str, k: int) -> None:
    """In one op, of rows that lie aligned and not: the bits of x * s, quantised and multiplied."""
    if k % LAYERS[scheme].get("rotate", 1):
        pytest.skip("rotate does not divide K")
    generator = torch.Generator().manual_seed(k)
    for dtype in IN_DTYPES:
        linear = nn.Linear(k, 24).to(DEVICE, dtype)
        smooth = torch.rand(k, generator=generator) + 0.1
        layer = ScaledLinear.from_linear(linear, smooth=smooth, **LAYERS[scheme])
        factors = layer.input_smooth
        for m in (0, 1, 5, 300):
            wide = torch.randn(m, 2 * k, generator=generator)
            if m == 5 and layer.per_token:  # one bad element is the whole tensor's
                wide[0], wide[1, 2], wide[2, 4] = 0, float("nan"), float("inf")
            wide = wide.to(DEVICE, dtype)
            for x in (wide[:, :k].contiguous(), wide[:, :k], wide[:, 1 : k + 1], wide[:, ::2]):
                layer.input_smooth = factors
                with Ops() as ops:
                    got = layer(x)
                assert ops.names == ["scaled_linear"]
                expected = layer.multiply(*layer.quantize_input(x), dtype)
                assert_bits(got, expected)
                if layer.per_token or not layer.dynamic:
                    for times in (None, wide[:, k:]):
                        got = layer.activated(x, "silu", times)
                        assert_bits(got, activated(layer, x, "silu", times))
                layer.input_smooth = torch.cat([factors[:1], factors])[1:]  # not aligned
                assert_bits(layer(x), expected)


def test_half_integers_at_every_width() -> None:
    """`half_integers(k)` for every k: the first k columns of the widest."""
    case = half_integers(1100)
    widest = case.build()
    for k in range(1, 1101):
        assert_quantized(case, {**widest, "x": widest["x"][:, :k].contiguous()})


# Rows longer than a block of threads reads at once, and more rows than blocks run at once; rows so
# few that several blocks have each, and so many that the next come while one is quantised.
SHAPES = (
    *((3, 100_000), (1, 1_000_003), (200_000, 8), (200_000, 1), (70_001, 33), (700, 4096)),
    *((1, 14_336), (5, 1024), (17, 4104), (33, 2048), (133, 16_384), (150, 14_320), (2000, 1040)),
    *((520, 768), (64, 14_336), (40, 0)),
)


@pytest.mark.parametrize("dtype", IN_DTYPES, ids=lambda dtype: str(dtype)[6:])
@pytest.mark.parametrize("shape", SHAPES)
def test_long_and_many(shape: tuple[int, int], dtype: torch.dtype) -> None:
    for data, (symmetric, per_token) in itertools.product(("scaled", "one-nan", "negative"), KINDS):
        case = QuantizeCase("long", data, shape, dtype, symmetric=symmetric, per_token=per_token)
        assert_quantized(case, case.build())


def on_both(x: Tensor, **options: Any) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """quantize_int8 on the device and on the CPU, the latter's outputs moved."""
    there = {k: v.to(DEVICE) if torch.is_tensor(v) else v for k, v in options.items()}
    got = named(scaled_mm.quantize_int8(x.to(DEVICE), **there))
    expected = named(scaled_mm.quantize_int8(x, **options))
    return got, {name: y.to(DEVICE) for name, y in expected.items()}


@pytest.mark.parametrize("value", [1e4, -1e4, float("nan"), float("inf"), -float("inf")])
def test_one_element_decides_the_scale_of_all(value: float) -> None:
    """Wherever it lies: no thread's and no block's share is left out of the range."""
    places = {*range(0, 300_000, 997), *range(1100), 299_999, 65_535, 65_536, 131_071, 131_072}
    x = torch.ones(1000, 300, device=DEVICE)
    flat = x.view(-1)
    for symmetric in (True, False):
        here = torch.ones(1000, 300)
        here.view(-1)[0] = value
        expected = named(scaled_mm.quantize_int8(here, symmetric=symmetric, per_token=False))
        scales = {name: y.to(DEVICE) for name, y in expected.items() if name != "q"}
        for i in sorted(places):
            flat[i] = value
            got = named(scaled_mm.quantize_int8(x, symmetric=symmetric, per_token=False))
            flat[i] = 1
            assert_outputs("quantize_int8", {n: got[n] for n in scales}, scales, symmetric, i)


@pytest.mark.parametrize("exponent", [0, 6, 7, 8, 127, 254])
@pytest.mark.parametrize("symmetric", [True, False])
def test_the_scale_of_every_mantissa(symmetric: bool, exponent: int) -> None:
    """It is the range over 127 or 255, rounded once, but no less than the least normal float."""
    bits = torch.arange(1 << 23, dtype=torch.int32, device=DEVICE) + (exponent << 23)
    x = torch.zeros(1 << 23, 8, device=DEVICE)
    x[:, 3] = bits.view(torch.float32)
    scale = x.double()[:, 3] / (127 if symmetric else 255)
    expected = scale.float().clamp(min=torch.finfo(torch.float32).tiny)[:, None]
    assert_bits(named(scaled_mm.quantize_int8(x, symmetric=symmetric))["scale"], expected)


@pytest.mark.parametrize("symmetric", [True, False])
def test_one_element_decides_the_scale_of_its_row(symmetric: bool) -> None:
    """In every column of rows of every width around a warp's, a block's, a vector's."""
    for k in (1, 7, 8, 31, 32, 33, 127, 128, 129, 255, 257, 1023, 1025, 4100):
        x = torch.ones(k, k)
        x.diagonal().copy_(torch.linspace(-500, 900, k))
        assert_outputs("quantize_int8", *on_both(x, symmetric=symmetric), k)


@pytest.mark.parametrize("name", BY_HAND)
def test_by_hand(name: str) -> None:
    x, symmetric, q, scale, azp = BY_HAND[name]
    got = scaled_mm.quantize_int8(torch.tensor([x], device=DEVICE), symmetric=symmetric)
    assert got[0].tolist() == [q]
    assert_bits(got[1].cpu(), torch.tensor([[scale]], dtype=torch.float32))
    assert (got[2] is None) == (azp is None)
    if azp is not None:
        assert got[2].tolist() == [[azp]]


@pytest.mark.parametrize("per_channel", [True, False])
@pytest.mark.parametrize("data", ROWS)
def test_weight(data: str, per_channel: bool) -> None:
    sizes = ((24, 40), (1, 1), (17, 1100), (1, 5), (5, 1), (0, 4), (4, 0), (130, 257), (70, 4096))
    for dtype, (n, k) in itertools.product(IN_DTYPES, sizes):
        w = QuantizeCase("weight", data, (n, k), dtype).build()["x"]
        for x in (w, w.t(), w[::2], w[:, 1::2]):
            expected = named(scaled_mm.quantize_weight_int8(x, per_channel=per_channel))
            if n * k < 10_000:
                r1 = named(reference.quantize_weight_int8(x, per_channel=per_channel))
                for name in r1:
                    assert_bits(expected[name], r1[name], "CPU", data, x.shape)
            there = on_device({"w": x})["w"]
            got = named(scaled_mm.quantize_weight_int8(there, per_channel=per_channel))
            moved = {name: y.to(DEVICE) for name, y in expected.items()}
            context = (data, dtype, x.shape, x.stride())
            assert_outputs("quantize_weight_int8", got, moved, *context)


# --- more than 2^31 elements ----------------------------------------------------------------------

TALL = (70_000, 32_768) if not ON_CPU else (700, 328)


@pytest.fixture(scope="module")
def big() -> Any:
    """bfloat16 on the device; the last element of all is the largest, the one before the least."""
    generator = torch.Generator(DEVICE).manual_seed(0)
    x = torch.empty(TALL, dtype=torch.bfloat16, device=DEVICE)
    for i in range(0, len(x), 1000):
        x[i : i + 1000].normal_(generator=generator)
    x[-1, -2:] = torch.tensor([-77.0, 99.0], device=DEVICE)
    yield x
    del x
    if not ON_CPU:
        torch.cuda.empty_cache()


@pytest.mark.parametrize(("symmetric", "per_token"), KINDS)
@pytest.mark.parametrize("transposed", [False, True])
def test_big(big: Tensor, transposed: bool, symmetric: bool, per_token: bool) -> None:
    """Parts against the CPU: one scale for all is given to the CPU as a static one."""
    x = big.t() if transposed else big
    options = {"symmetric": symmetric}
    got = named(scaled_mm.quantize_int8(x, per_token=per_token, **options))
    if not per_token:
        ends = torch.tensor([[-77.0, 99.0]])
        expected = named(scaled_mm.quantize_int8(ends, per_token=False, **options))
        for name in expected.keys() - {"q"}:
            assert_bits(got[name].cpu(), expected[name], name)
            options[name] = expected[name]
    step = 500 if transposed else 1000
    beyond = 2**31 // x.shape[1]  # the row with element 2^31
    for i in (0, len(x) // 2, min(beyond, len(x)) - step // 2, len(x) - step):
        rows = named(scaled_mm.quantize_int8(x[i : i + step].cpu(), **options))
        part = {name: y[i : i + step] if y.numel() > 1 else y for name, y in got.items()}
        moved = {name: y.to(DEVICE) for name, y in rows.items()}
        assert_outputs("quantize_int8", part, moved, transposed, symmetric, per_token, i)


def test_big_static_per_token(big: Tensor) -> None:
    scale = torch.linspace(0.001, 0.1, len(big))[:, None]
    azp = torch.arange(len(big), dtype=torch.int32)[:, None] % 256 - 128
    there = {"scale": scale.to(DEVICE), "azp": azp.to(DEVICE)}
    q = scaled_mm.quantize_int8(big, symmetric=False, **there)[0]
    for i in (0, len(big) // 2, len(big) - 500):
        rows = slice(i, i + 500)
        given = {"scale": scale[rows], "azp": azp[rows]}
        expected = scaled_mm.quantize_int8(big[rows].cpu(), symmetric=False, **given)[0]
        assert_outputs("quantize_int8", {"q": q[rows]}, {"q": expected.to(DEVICE)}, i)


def test_big_weight(big: Tensor) -> None:
    q, scale = scaled_mm.quantize_weight_int8(big)
    for i in (0, len(big) // 2, len(big) - 500):
        rows = slice(i, i + 500)
        expected = named(scaled_mm.quantize_weight_int8(big[rows].cpu()))
        got = {"q": q[rows], "scale": scale[:, rows].contiguous()}
        moved = {name: y.to(DEVICE) for name, y in expected.items()}
        assert_outputs("quantize_weight_int8", got, moved, i)
