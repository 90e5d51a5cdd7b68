"""The ops as citizens of torch: schemas, opcheck, compile, export, packages, fakes, modes."""

from collections.abc import Callable
from itertools import product, starmap
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from cases import CASES, random_case
from helpers import Ops, assert_bits, assert_compiles, assert_exports
from quantize_cases import QUANTIZE_CASES, random_quantize_case
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch_cases import (
    ADJ,
    AZP,
    BIAS,
    CALLS,
    FUNCTIONS,
    PLAIN,
    S_A,
    S_B,
    WEIGHT_SCALE,
    A,
    B,
    Module,
    X,
    activations,
    asymmetric,
    dynamic,
    gated,
    metadata,
    residual,
    static,
    x_of,
)

import scaled_mm

ops = torch.ops.scaled_mm


@pytest.mark.parametrize("name", CALLS)
def test_opcheck(name: str) -> None:
    op, arguments, options = CALLS[name]
    torch.library.opcheck(getattr(ops, op).default, arguments, options)


def assert_fake(call: Callable[..., Any], operands: dict[str, Any]) -> None:
    real = call(**operands)
    with FakeTensorMode() as mode:
        fakes = {k: mode.from_tensor(x) if torch.is_tensor(x) else x for k, x in operands.items()}
        assert metadata(call(**fakes)) == metadata(real)


@pytest.mark.parametrize("count", [50, pytest.param(200, marks=pytest.mark.slow)])
def test_fake_metadata_is_real(count: int) -> None:
    rng = np.random.default_rng(1)
    for case in [*list(CASES.values())[::7], *(random_case(rng) for _ in range(count))]:
        operands = case.build(rng=rng)
        assert_fake(scaled_mm.scaled_mm, operands)
        assert_fake(scaled_mm.int8_mm, {"a": operands["a"], "b": operands["b"]})
        assert_fake(lambda b: scaled_mm.pack_weight_int8(b).data, {"b": operands["b"]})
        assert_fake(scaled_mm.azp_adj, {"b": operands["b"]})
    quantized = [random_quantize_case(rng) for _ in range(count)]
    for quantize_case in [*list(QUANTIZE_CASES.values())[::7], *quantized]:
        assert_fake(scaled_mm.quantize_int8, quantize_case.build(rng=rng))


def function_and_backend(function: Callable[..., Tensor], backend: str) -> Any:
    """In `make test` inductor compiles functions that have each op once, aot_eager compiles all."""
    again = function in (asymmetric, residual, gated, activations)
    marks = [pytest.mark.slow] if backend == "inductor" and again else []
    return pytest.param(function, backend, id=f"{backend}-{function.__name__}", marks=marks)


@pytest.mark.parametrize(
    ("function", "backend"),
    list(starmap(function_and_backend, product(FUNCTIONS, ["aot_eager", "inductor"]))),
)
def test_compile(function: Callable[..., Tensor], backend: str) -> None:
    assert_compiles(function, x_of, backend, apart=(0, 1))


def test_compile_packed_argument() -> None:
    torch._dynamo.reset()
    packed = scaled_mm.pack_weight_int8(PLAIN)
    compiled = torch.compile(dynamic, fullgraph=True, dynamic=True, backend="aot_eager")
    for m in (3, 8, 40):
        assert_bits(compiled(x_of(m), packed), dynamic(x_of(m)))


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda f: f.__name__)
def test_export(function: Callable[..., Tensor]) -> None:
    assert_exports(Module(function), x_of)


EAGER = [dynamic, asymmetric, static, residual, gated]


@pytest.mark.parametrize("function", EAGER, ids=lambda f: f.__name__)
@pytest.mark.parametrize(
    "mode",
    [
        torch.no_grad,
        torch.inference_mode,
        lambda: torch.autocast("cpu", torch.bfloat16),
        lambda: torch.autocast("cpu", torch.float16),
    ],
    ids=["no_grad", "inference_mode", "autocast-bfloat16", "autocast-float16"],
)
def test_modes(mode: Callable[[], Any], function: Callable[..., Tensor]) -> None:
    expected = function(x_of(9))
    with mode():
        assert_bits(function(x_of(9)), expected)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_operands_that_require_grad_outside_grad_mode(mode: Callable[[], Any]) -> None:
    expected = dynamic(x_of(4))
    leaf, scale = x_of(4).requires_grad_(), WEIGHT_SCALE.clone().requires_grad_()
    bias = BIAS.clone().requires_grad_()
    with mode():
        q, scale_a, _ = scaled_mm.quantize_int8(leaf)
        w, _ = scaled_mm.quantize_weight_int8(leaf)
        dtype = {"out_dtype": torch.float32}
        out = scaled_mm.scaled_mm(q, PLAIN, scale_a, scale, bias=bias, **dtype)
    assert_bits(out, expected)
    assert not any(x.requires_grad for x in (q, scale_a, w, out))


class Subclass(torch.Tensor):
    """A tensor that is another only by name."""


@pytest.mark.parametrize(
    "wrap",
    [
        lambda x: x.as_subclass(Subclass),
        lambda x: torch.nn.Parameter(x, requires_grad=False),
        lambda x: x.detach(),
        lambda x: torch._neg_view(-x) if x.is_floating_point() else x,
    ],
    ids=["subclass", "parameter", "detached", "lazily-negated"],
)
def test_kinds_of_tensor(wrap: Callable[[Tensor], Tensor]) -> None:
    expected = scaled_mm.scaled_mm(A, B, S_A, S_B, bias=BIAS, azp=AZP, azp_adj=ADJ)
    operands = {"a": A, "b": B, "scale_a": S_A, "scale_b": S_B}
    operands |= {"bias": BIAS, "azp": AZP, "azp_adj": ADJ}
    out = scaled_mm.scaled_mm(**{name: wrap(x) for name, x in operands.items()})
    assert_bits(out.as_subclass(Tensor), expected)
    q, scale, _ = scaled_mm.quantize_int8(wrap(X))
    assert_bits(q.as_subclass(Tensor), scaled_mm.quantize_int8(X)[0])
    assert_bits(scale.as_subclass(Tensor), scaled_mm.quantize_int8(X)[1])


def test_one_op_per_call() -> None:
    x = x_of(3)
    with Ops() as called:
        dynamic(x)
    assert called.names == ["quantize_int8", "_scaled_mm_plain"]


class Ahead(torch.nn.Module):
    """A quantised linear layer, in every way that its output dtype can be asked for: AOTInductor
    compiles it. A C++ compiler is needed, as for building the library itself."""

    def __init__(self) -> None:
        super().__init__()
        q, scale = scaled_mm.quantize_weight_int8(torch.linspace(-1, 1, 240).reshape(10, 24))
        self.register_buffer("weight", q)
        self.register_buffer("scale", scale)
        self.register_buffer("bias", torch.linspace(-1, 1, 10))

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        q, scale, _ = scaled_mm.quantize_int8(x)
        operands = (q, self.weight.t(), scale, self.scale)
        return (
            scaled_mm.scaled_mm(*operands),
            scaled_mm.scaled_mm(*operands, bias=self.bias, out_dtype=torch.bfloat16),
            scaled_mm.scaled_mm(*operands, out_dtype=torch.float16, activation="reglu"),
            torch.ops.scaled_mm.scaled_mm(*operands, bias=self.bias, out_dtype=torch.float32),
            scaled_mm.int8_mm(q, self.weight.t()),
        )


@pytest.mark.filterwarnings("ignore:`isinstance.treespec, LeafSpec.` is deprecated")
def test_package(tmp_path: Path) -> None:
    layer, x = Ahead(), torch.randn(5, 24, generator=torch.Generator().manual_seed(0))
    rows = torch.export.Dim("rows", min=2, max=64)
    program = torch.export.export(layer, (x,), dynamic_shapes=({0: rows},))
    package = torch._inductor.aoti_compile_and_package(
        program,
        package_path=str(tmp_path / "layer.pt2"),
        inductor_configs={
            "aot_inductor.compile_wrapper_opt_level": "O0",
            "cpp_cache_precompile_headers": False,
        },
    )
    compiled = torch._inductor.aoti_load_package(package)
    for rows in (5, 2, 40):
        x = torch.randn(rows, 24, generator=torch.Generator().manual_seed(rows))
        for got, expected in zip(compiled(x), layer(x), strict=True):
            assert_bits(got, expected, rows)
