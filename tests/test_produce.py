"""The producers against the reference, on every instruction set: tolerance zero. Their
transcendental functions against float64."""

from typing import Any

import numpy as np
import pytest
import torch
from helpers import assert_bits, each_isa
from produce_cases import FUNCTIONS, PRODUCE_CASES, ProduceCase, random_produce_case
from torch import Tensor

import scaled_mm
from scaled_mm import reference
from scaled_mm.reference import functions, producers

pytestmark = pytest.mark.usefixtures("poisoned")
produce = torch.ops.scaled_mm.produce_int8.default
OUTPUTS = ("q", "scale", "azp", "sum", "normed")


def assert_case(case: ProduceCase, rng: np.random.Generator | None = None) -> None:
    operands = case.build(rng)
    expected = reference.produce_int8(**operands)
    if case.scale is not None:  # given: the op does not return them
        expected = (expected[0], None, None, *expected[3:])
    for isa in each_isa(operands.values()):
        got = produce(**operands)
        for name, x, y in zip(OUTPUTS, got, expected, strict=True):
            assert_bits(x, y, name, isa, case)
            assert x is None or x.is_contiguous()


@pytest.mark.parametrize("name", PRODUCE_CASES)
def test_named(name: str) -> None:
    assert_case(PRODUCE_CASES[name])


@pytest.mark.parametrize("seed", range(3))
def test_random(seed: int) -> None:
    rng = np.random.default_rng(seed)
    for _ in range(300):
        assert_case(random_produce_case(rng), rng)


def test_threads_change_nothing(threads: None) -> None:
    x = torch.randn(70, 4104, generator=torch.Generator().manual_seed(0)).bfloat16()
    w = x[0]
    found = []
    for count in (1, 2, 3):
        torch.set_num_threads(count)
        found.append(scaled_mm.layer_norm_quantize_int8(x, w, w, 1e-5, residual=x.flip(0)))
    for other in found[1:]:
        for one, two in zip(found[0], other, strict=True):
            assert_bits(one, two)


X = torch.randn(5, 48, generator=torch.Generator().manual_seed(1))
W, B = X[0], X[1]
STATIC = {"scale": torch.tensor([0.02]), "azp": torch.tensor([3], dtype=torch.int32)}
PUBLIC: dict[str, tuple[Any, dict[str, Any]]] = {
    "rms_norm": (
        lambda **o: scaled_mm.rms_norm_quantize_int8(X, W, 1e-5, **o),
        {"producer": "rms_norm", "weight": W, "eps": 1e-5},
    ),
    "rms_norm residual": (
        lambda **o: scaled_mm.rms_norm_quantize_int8(X, W, 1e-5, residual=X.flip(0), **o),
        {"producer": "rms_norm", "weight": W, "eps": 1e-5, "residual": X.flip(0)},
    ),
    "layer_norm": (
        lambda **o: scaled_mm.layer_norm_quantize_int8(X, W, B, 1e-5, residual=X, **o),
        {"producer": "layer_norm", "weight": W, "bias": B, "eps": 1e-5, "residual": X},
    ),
    "silu_mul": (
        lambda **o: scaled_mm.silu_mul_quantize_int8(torch.cat([X, X.flip(0)], 1), **o),
        {"producer": "silu", "times": X.flip(0)},
    ),
    "silu_mul apart": (
        lambda **o: scaled_mm.silu_mul_quantize_int8(X, X.flip(0), **o),
        {"producer": "silu", "times": X.flip(0)},
    ),
    "gelu": (lambda **o: scaled_mm.gelu_quantize_int8(X, **o), {"producer": "gelu"}),
    "gelu tanh": (
        lambda **o: scaled_mm.gelu_quantize_int8(X, approximate="tanh", times=X, **o),
        {"producer": "gelu_tanh", "times": X},
    ),
    "relu": (lambda **o: scaled_mm.relu_quantize_int8(X, **o), {"producer": "relu"}),
}


@pytest.mark.parametrize("name", PUBLIC)
def test_public(name: str) -> None:
    call, means = PUBLIC[name]
    smooth = torch.linspace(0.5, 2, X.shape[1])
    for options in ({}, {"symmetric": False}, {"smooth": smooth}, {**STATIC, "symmetric": False}):
        got = call(**options)
        expected = reference.produce_int8(x=X, **means, **options)
        assert len(got) == (5 if "norm" in name else 3)
        for output, x, y in zip(OUTPUTS, got, expected, strict=False):
            assert_bits(x, y, output, options)


@pytest.mark.parametrize("name", PUBLIC)
def test_what_torch_computes(name: str) -> None:
    """The reference itself: what is quantised is what torch's own float64 functions give."""
    _, means = PUBLIC[name]
    x = X.double()
    other = {k: v.double() if torch.is_tensor(v) else v for k, v in means.items()}
    x = x + other.get("residual", 0)
    y: Tensor = {
        "rms_norm": lambda: torch.nn.functional.rms_norm(x, (48,), other["weight"], 1e-5),
        "layer_norm": lambda: torch.nn.functional.layer_norm(
            x, (48,), other["weight"], other["bias"], 1e-5
        ),
        "silu": lambda: torch.nn.functional.silu(x),
        "gelu": lambda: torch.nn.functional.gelu(x),
        "gelu_tanh": lambda: torch.nn.functional.gelu(x, approximate="tanh"),
        "relu": lambda: torch.relu(x),
    }[means["producer"]]() * other.get("times", 1)
    q, scale, _, total, _ = reference.produce_int8(x=X, **means)
    torch.testing.assert_close(
        scale.double(), y.abs().amax(1, keepdim=True) / 127, rtol=1e-6, atol=0
    )
    assert ((q * scale - y).abs() <= 0.5001 * scale).all()
    if total is not None:
        torch.testing.assert_close(total.double(), x, rtol=1e-7, atol=1e-7)


def test_the_sum_is_rounded_before_it_is_normalised() -> None:
    x, r = torch.tensor([[1.0, 256.0]]).bfloat16(), torch.tensor([[2**-9, 1.0]]).bfloat16()
    made = scaled_mm.rms_norm_quantize_int8(x, None, 0.0, residual=r)
    assert made.residual is not None and made.residual.tolist() == [[1.0, 256.0]]
    alone = scaled_mm.rms_norm_quantize_int8(x, None, 0.0)
    assert alone.residual is alone.normed is made.normed is None
    for one, two in zip(made[:3], alone[:3], strict=True):
        assert_bits(one, two)


def test_a_norm_as_floats_too() -> None:
    """Behind the sum, if there is one, and before it is smoothed; no function has floats."""
    smooth = torch.linspace(0.5, 2, X.shape[1])
    for name in ("rms_norm", "rms_norm residual", "layer_norm"):
        call, means = PUBLIC[name]
        got = call(normed=True, smooth=smooth)
        expected = reference.produce_int8(x=X, **means, normed=True, smooth=smooth)
        assert got.normed is not None
        for x, y in zip(got, expected, strict=True):
            assert_bits(x, y, name)
    with pytest.raises(ValueError, match="normed must be False where the producer is no norm, got"):
        produce("gelu", X, normed=True)


def test_the_order_of_a_sum_by_hand() -> None:
    """Numbers whose sum depends on the order: beside 2^24, 1 is lost."""
    big = 2.0**24
    assert by_hand({0: big, 4: 1, 2: -big}) == 0  # 0 and 4 first
    assert by_hand({0: big, 4: -big, 2: 1}) == 1
    assert by_hand({0: big, 8 * 4: 1, 8 * 8: -big}, 16 * 8) == 1  # groups by halves: 0 and 8 first
    assert by_hand({0: big, 8 * 4: -big, 8 * 8: 1}, 16 * 8) == 0
    lanes = 8 * producers.LANES
    assert by_hand({0: big, lanes: 1, 2 * lanes: -big}, 3 * lanes) == 0  # a lane in its own order
    assert by_hand({0: big, lanes: -big, 2 * lanes: 1}, 3 * lanes) == 1


def by_hand(values: dict[int, float], cols: int = 8) -> float:
    """The sum of a row of zeros but for these, by the reference. The kernels' layer norm of that
    row is the reference's, whose mean is this sum's."""
    x = np.zeros((1, cols), np.float32)
    for column, value in values.items():
        x[0, column] = value
    found = float(producers.ordered_sum(x)[0, 0])
    for isa in each_isa():
        given = {"producer": "layer_norm", "x": torch.from_numpy(x), "eps": 1.0}
        for got, expected in zip(produce(**given), reference.produce_int8(**given), strict=True):
            assert_bits(got, expected, isa)
    return found


def every_16_bit_float() -> Tensor:
    patterns = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16)
    return torch.cat([patterns.view(dtype).float() for dtype in (torch.bfloat16, torch.float16)])


def inputs() -> Any:
    """Every bfloat16 and float16, and a sample of float32: normal ones and ones of every size."""
    rng = np.random.default_rng(0)
    sample = [rng.standard_normal(100_000) * 3, rng.uniform(-104, 104, 100_000)]
    narrow = every_16_bit_float().numpy()
    return np.concatenate([narrow[np.isfinite(narrow)], *(x.astype(np.float32) for x in sample)])


def ulps(got: Any, exact: Any) -> Any:
    """Distances in units in the last place of float32, subnormals' never smaller than theirs."""
    _, exponent = np.frexp(exact)
    return np.abs(np.float64(got) - exact) / np.ldexp(1.0, np.maximum(exponent - 24, -149))


def erf64(x: Any) -> Any:
    return torch.erf(torch.from_numpy(np.float64(x))).numpy()


def worst(name: str) -> float:
    x = inputs()
    with np.errstate(all="ignore"):
        if name == "exp":
            x = x[x <= 0]
            return float(ulps(functions.exp_down(x), np.exp(np.float64(x))).max())
        return float(ulps(functions.erf(x), erf64(x)).max())


@pytest.mark.parametrize("name", ["exp", "erf"])
def test_within_one_ulp(name: str) -> None:
    assert worst(name) <= 1


@pytest.mark.parametrize("producer", FUNCTIONS)
def test_functions_are_near_the_true_ones(producer: str) -> None:
    """Within 2 ulp of x."""
    x = inputs()
    wide = torch.from_numpy(np.float64(x))
    tanh = {"approximate": "tanh"} if producer == "gelu_tanh" else {}
    exact = getattr(torch.nn.functional, producer.removesuffix("_tanh"))(wide, **tanh).numpy()
    with np.errstate(all="ignore"):
        got = functions.ACTIVATIONS[producer](x)
    _, exponent = np.frexp(x)
    assert (np.abs(got - exact) <= 2 * np.ldexp(1.0, np.maximum(exponent - 24, -149))).all()


@pytest.mark.parametrize("producer", FUNCTIONS)
def test_bits_of_every_16_bit_input(producer: str, isa: str) -> None:
    """Rows of one element, whose scale is that of their result."""
    x = every_16_bit_float().reshape(-1, 1)
    expected = reference.produce_int8(producer, x)
    for name, got, want in zip(OUTPUTS, produce(producer, x), expected, strict=True):
        assert_bits(got, want, name)
