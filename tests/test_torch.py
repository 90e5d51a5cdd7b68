"""The ops as citizens of torch: schemas, opcheck, compile, export, meta and fake tensors, modes."""

from __future__ import annotations

import io
from collections.abc import Callable
from itertools import product, starmap
from typing import Any

import numpy as np
import pytest
import torch
from cases import CASES, random_case
from helpers import assert_bits
from quantize_cases import QUANTIZE_CASES, random_quantize_case
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map
from torch_cases import (
    ADJ,
    AZP,
    BIAS,
    CALLS,
    FUNCTIONS,
    ONE,
    PLAIN,
    S_A,
    S_B,
    WEIGHT_SCALE,
    WIDE_A,
    WIDE_RESIDUAL,
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

pytestmark = [
    pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated"),
    pytest.mark.filterwarnings("ignore:No complete tensor found in the group"),
]
ops = torch.ops.scaled_mm

SCHEMAS = {
    "scaled_mm": "(Tensor a, Tensor b, Tensor scale_a, Tensor scale_b, *, Tensor? bias=None, "
    "Tensor? azp=None, Tensor? azp_adj=None, Tensor? azp_with_adj=None, Tensor? residual=None, "
    "str? activation=None, ScalarType? out_dtype=None, Tensor? out_scale=None, "
    "Tensor? out_azp=None, int[]? b_shape=None, bool b_settled=False) -> Tensor",
    "scaled_mm.out": "(Tensor a, Tensor b, Tensor scale_a, Tensor scale_b, *, "
    "Tensor? bias=None, Tensor? azp=None, Tensor? azp_adj=None, Tensor? azp_with_adj=None, "
    "Tensor? residual=None, str? activation=None, ScalarType? out_dtype=None, "
    "Tensor? out_scale=None, Tensor? out_azp=None, int[]? b_shape=None, bool b_settled=False, "
    "Tensor(a!) out) -> ()",
    "_scaled_mm_plain": "(Tensor a, Tensor b, Tensor scale_a, Tensor scale_b, Tensor? bias, "
    "int k, int n, bool b_settled, ScalarType? out_dtype) -> Tensor",
    "scaled_linear": "(Tensor x, Tensor weight, Tensor weight_scale, Tensor? bias, int k, "
    "bool settled=False, bool symmetric=True, bool per_token=True, Tensor? input_scale=None, "
    "Tensor? input_azp=None, Tensor? azp_term=None, int rotate=0, ScalarType? out_dtype=None, "
    "Tensor? input_smooth=None) -> Tensor",
    "int8_mm": "(Tensor a, Tensor b, *, int[]? b_shape=None, bool b_settled=False) -> Tensor",
    "int8_mm.out": "(Tensor a, Tensor b, *, int[]? b_shape=None, bool b_settled=False, "
    "Tensor(a!) out) -> ()",
    "_scaled_epilogue": "(Tensor acc, Tensor scale_a, Tensor scale_b, *, Tensor? bias, "
    "Tensor? azp, Tensor? azp_adj, Tensor? azp_with_adj, ScalarType out_dtype) -> Tensor",
    "azp_adj": "(Tensor b, *, int[]? b_shape=None) -> Tensor",
    "azp_with_adj": "(Tensor b, Tensor azp, *, int[]? b_shape=None) -> Tensor",
    "pack_weight_int8": "(Tensor b) -> Tensor",
    "_settle": "(Tensor memory) -> ()",
    "quantize_int8": "(Tensor x, *, bool symmetric=True, bool per_token=True, int rotate=0) "
    "-> (Tensor, Tensor, Tensor?)",
    "quantize_int8_static": "(Tensor x, Tensor scale, Tensor? azp=None, int rotate=0) -> Tensor",
    "produce_int8": "(str producer, Tensor x, *, Tensor? weight=None, Tensor? bias=None, Tensor? "
    "residual=None, Tensor? times=None, bool halves=False, float eps=0., Tensor? "
    "smooth=None, Tensor? scale=None, Tensor? azp=None, bool symmetric=True, bool "
    "normed=False, int rotate=0) -> (Tensor, Tensor?, Tensor?, Tensor?, Tensor?)",
    "quantize_weight_int8": "(Tensor w, *, bool per_channel=True, int rotate=0) "
    "-> (Tensor, Tensor)",
    "awq_dequantize": "(Tensor qweight, Tensor scales, Tensor qzeros) -> Tensor",
    "awq_gemm": "(Tensor x, Tensor qweight, Tensor scales, Tensor qzeros, *, "
    "Tensor? bias=None, Tensor? residual=None, str? activation=None) -> Tensor",
    "awq_gemm.out": "(Tensor x, Tensor qweight, Tensor scales, Tensor qzeros, *, "
    "Tensor? bias=None, Tensor? residual=None, str? activation=None, Tensor(a!) out) -> ()",
    "mixed_dequantize": "(Tensor packed, int[] sizes) -> Tensor",
    "mixed_mm": "(Tensor x, Tensor packed, int[] sizes, Tensor? order=None, "
    "Tensor? pre_scale=None, Tensor? bias=None, Tensor? residual=None, str? activation=None, "
    "bool settled=False) -> Tensor",
    "mixed_mm.out": "(Tensor x, Tensor packed, int[] sizes, *, Tensor? order=None, "
    "Tensor? pre_scale=None, Tensor? bias=None, Tensor? residual=None, str? activation=None, "
    "bool settled=False, Tensor(a!) out) -> ()",
    "_explain_int8": "(int m, int n, int k, ScalarType out_dtype, str activation, str device, "
    "int capability, int sms, float bytes_per_us, float mhz) -> str",
    "_set_compiler": "(int address, bool required) -> ()",
    "_try_compiled": "(Tensor a, Tensor b, Tensor[] operands, int[] program, str kernel, "
    "int address) -> Tensor[]",
    "_explain_program": "(int[] program, int m, int n, int k, str device, int capability, int sms, "
    "float bytes_per_us, float mhz) -> str",
    "_explain_grouped": "(int m, int n, int k, int experts, ScalarType out_dtype, str activation, "
    "str device, int capability, int sms, float bytes_per_us, float mhz) -> str",
    "_explain_lowbit": "(int m, int n, int k, int group, int bits, int zero_point, bool packed, "
    "str device, int capability, int sms, float bytes_per_us, float mhz) -> str",
    "_gpus": "() -> str",
    "_int8_linear": "(Tensor x, Tensor weight, Tensor weight_scale, Tensor? bias, int k, "
    "bool settled, bool symmetric, bool per_token, Tensor? input_scale, Tensor? input_azp, "
    "Tensor? azp_term, int rotate, ScalarType? out_dtype, Tensor? input_smooth) -> Tensor",
    "_mixed_linear": "(Tensor x, Tensor packed, SymInt[] sizes, Tensor? order, "
    "Tensor? pre_scale, Tensor? bias, str? activation) -> Tensor",
    "w4a8_mm": "(Tensor x, Tensor packed, int[] sizes, Tensor scale_a, *, Tensor? order=None, "
    "Tensor? azp=None, Tensor? bias=None, Tensor? residual=None, str? activation=None, "
    "ScalarType? out_dtype=None) -> Tensor",
    "w4a8_mm.out": "(Tensor x, Tensor packed, int[] sizes, Tensor scale_a, *, "
    "Tensor? order=None, Tensor? azp=None, Tensor? bias=None, Tensor? residual=None, "
    "str? activation=None, ScalarType? out_dtype=None, Tensor(a!) out) -> ()",
    "epilogue_mm": "(Tensor a, Tensor b, Tensor[] operands, int[] program, *, "
    "int[]? b_shape=None, bool b_settled=False) -> Tensor[]",
    "_moe_sort": "(Tensor top_k_index, int num_experts) -> (Tensor, Tensor, Tensor)",
    "grouped_mm": "(Tensor a, Tensor b, Tensor offsets, Tensor scale_a, Tensor scale_b, *, "
    "Tensor? bias=None, Tensor? azp=None, Tensor? azp_adj=None, Tensor? residual=None, "
    "str? activation=None, ScalarType? out_dtype=None, Tensor? out_scale=None, "
    "Tensor? out_azp=None, Tensor? rows=None, int[]? b_shape=None) -> Tensor",
    "grouped_mixed_mm": "(Tensor x, Tensor packed, int[] sizes, Tensor offsets, *, "
    "Tensor? order=None, Tensor? bias=None, Tensor? residual=None, str? activation=None, "
    "Tensor? rows=None, bool settled=False) -> Tensor",
    "moe_combine": "(Tensor y, Tensor weights, Tensor order, *, Tensor? residual=None, "
    "ScalarType? out_dtype=None) -> Tensor",
    "_fingerprint": "(str arch) -> str",
    "_tune": "(str device, int capability, int sms, float memory_share, str kernels, "
    "float[] numbers) -> ()",
    "_untune": "() -> ()",
    "_archs": "() -> str",
    "_arch_of": "(int capability) -> str",
    "_kernels": "(str arch, str family) -> str",
    "_force_kernels": "(str names) -> str",
    "_cpu_isas": "() -> str",
    "_cpu_isa": "() -> str",
    "_force_cpu_isa": "(str name) -> str",
}


@pytest.mark.parametrize("name", SCHEMAS)
def test_schema(name: str) -> None:
    op, _, form = name.partition(".")
    schema = getattr(getattr(ops, op), form or "default")._schema
    assert str(schema) == f"scaled_mm::{name}{SCHEMAS[name]}"


def test_no_other_ops() -> None:
    schemas = (str(s) for s in torch._C._jit_get_all_schemas())
    names = [s.partition("(")[0] for s in schemas if s.startswith("scaled_mm::")]
    assert sorted(names) == sorted(f"scaled_mm::{name}" for name in SCHEMAS)


@pytest.mark.parametrize("name", CALLS)
def test_opcheck(name: str) -> None:
    op, arguments, options = CALLS[name]
    torch.library.opcheck(getattr(ops, op).default, arguments, options)


@pytest.mark.parametrize("name", CALLS)
def test_meta(name: str) -> None:
    op, arguments, options = CALLS[name]
    real = getattr(ops, op)(*arguments, **options)
    arguments, options = tree_map(
        lambda x: x.to("meta") if torch.is_tensor(x) else x, (arguments, options)
    )
    shapes = getattr(ops, op)(*arguments, **options)
    assert all(x.is_meta for x in tree_leaves(shapes) if x is not None)
    assert metadata(shapes) == metadata(real)


def assert_fake(call: Callable[..., Any], operands: dict[str, Any]) -> None:
    real = call(**operands)
    with FakeTensorMode() as mode:
        fakes = {k: mode.from_tensor(x) if torch.is_tensor(x) else x for k, x in operands.items()}
        assert metadata(call(**fakes)) == metadata(real)


def test_fake_refuses_no_more_than_the_op() -> None:
    """The output of an activation has half as many columns, whatever N is known to be."""
    with FakeTensorMode() as mode:
        a, b, s_a, s_b = (mode.from_tensor(x) for x in (WIDE_A, B, ONE, S_B))
        assert scaled_mm.scaled_mm(a, b, s_a, s_b, activation="reglu").shape == (2, 3, 5)
        residual = mode.from_tensor(WIDE_RESIDUAL)
        assert scaled_mm.scaled_mm(a, b, s_a, s_b, residual=residual).shape == (2, 3, 10)


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


# --- compile and export ---------------------------------------------------------------------------


@pytest.fixture
def fresh_dynamo() -> None:
    torch._dynamo.reset()


def function_and_backend(function: Callable[..., Tensor], backend: str) -> Any:
    """In `make test` inductor compiles functions that have each op once, aot_eager compiles all."""
    again = function in (asymmetric, residual, gated, activations)
    marks = [pytest.mark.slow] if backend == "inductor" and again else []
    return pytest.param(function, backend, id=f"{backend}-{function.__name__}", marks=marks)


@pytest.mark.parametrize(
    ("function", "backend"),
    list(starmap(function_and_backend, product(FUNCTIONS, ["aot_eager", "inductor"]))),
)
def test_compile(fresh_dynamo: None, function: Callable[..., Tensor], backend: str) -> None:
    compiled = torch.compile(function, fullgraph=True, dynamic=True, backend=backend)
    compiled(x_of(5))
    with torch._dynamo.config.patch(error_on_recompile=True):
        for m in (2, 7, 16, 33, 70):
            assert_bits(compiled(x_of(m)), function(x_of(m)), backend, m)
    for m in (0, 1):  # sizes that dynamo specialises
        assert_bits(compiled(x_of(m)), function(x_of(m)), backend, m)


def test_compile_packed_argument(fresh_dynamo: None) -> None:
    packed = scaled_mm.pack_weight_int8(PLAIN)
    compiled = torch.compile(dynamic, fullgraph=True, dynamic=True, backend="aot_eager")
    for m in (3, 8, 40):
        assert_bits(compiled(x_of(m), packed), dynamic(x_of(m)))


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda f: f.__name__)
def test_export(function: Callable[..., Tensor]) -> None:
    m = torch.export.Dim("m", min=2, max=4096)
    program = torch.export.export(Module(function), (x_of(5),), dynamic_shapes={"x": {0: m}})
    file = io.BytesIO()
    torch.export.save(program, file)
    file.seek(0)
    for exported in (program, torch.export.load(file)):
        for rows in (2, 9, 40):
            assert_bits(exported.module()(x_of(rows)), function(x_of(rows)))


# --- modes and subclasses -------------------------------------------------------------------------

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


class Log(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


def test_one_op_per_call() -> None:
    x = x_of(3)
    with Log() as log:
        dynamic(x)
    assert log.names == ["scaled_mm.quantize_int8.default", "scaled_mm._scaled_mm_plain.default"]
