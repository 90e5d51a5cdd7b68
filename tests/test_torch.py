"""The ops as citizens of torch: schemas, opcheck, compile, export, meta and fake tensors, modes."""

from __future__ import annotations

import io
from collections.abc import Callable
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
    "int[]? b_shape, bool b_settled) -> Tensor",
    "int8_mm": "(Tensor a, Tensor b, *, int[]? b_shape=None, bool b_settled=False) -> Tensor",
    "int8_mm.out": "(Tensor a, Tensor b, *, int[]? b_shape=None, bool b_settled=False, "
    "Tensor(a!) out) -> ()",
    "_scaled_epilogue": "(Tensor acc, Tensor scale_a, Tensor scale_b, *, Tensor? bias, "
    "Tensor? azp, Tensor? azp_adj, Tensor? azp_with_adj, ScalarType out_dtype) -> Tensor",
    "azp_adj": "(Tensor b, *, int[]? b_shape=None) -> Tensor",
    "azp_with_adj": "(Tensor b, Tensor azp, *, int[]? b_shape=None) -> Tensor",
    "pack_weight_int8": "(Tensor b) -> Tensor",
    "_settle": "(Tensor memory) -> ()",
    "quantize_int8": "(Tensor x, *, bool symmetric=True, bool per_token=True) "
    "-> (Tensor, Tensor, Tensor?)",
    "quantize_int8_static": "(Tensor x, Tensor scale, Tensor? azp=None) -> Tensor",
    "produce_int8": "(str producer, Tensor x, *, Tensor? weight=None, Tensor? bias=None, "
    "Tensor? residual=None, Tensor? times=None, bool halves=False, float eps=0., "
    "Tensor? smooth=None, Tensor? scale=None, Tensor? azp=None, bool symmetric=True) "
    "-> (Tensor, Tensor?, Tensor?, Tensor?)",
    "quantize_weight_int8": "(Tensor w, *, bool per_channel=True) -> (Tensor, Tensor)",
    "awq_dequantize": "(Tensor qweight, Tensor scales, Tensor qzeros) -> Tensor",
    "awq_gemm": "(Tensor x, Tensor qweight, Tensor scales, Tensor qzeros, *, "
    "Tensor? bias=None) -> Tensor",
    "awq_gemm.out": "(Tensor x, Tensor qweight, Tensor scales, Tensor qzeros, *, "
    "Tensor? bias=None, Tensor(a!) out) -> ()",
    "mixed_dequantize": "(Tensor packed, int[] sizes) -> Tensor",
    "mixed_mm": "(Tensor x, Tensor packed, int[] sizes, *, Tensor? order=None, "
    "Tensor? pre_scale=None, Tensor? bias=None, str? activation=None) -> Tensor",
    "mixed_mm.out": "(Tensor x, Tensor packed, int[] sizes, *, Tensor? order=None, "
    "Tensor? pre_scale=None, Tensor? bias=None, str? activation=None, Tensor(a!) out) -> ()",
    "_widen": "(Tensor words, *, int bits, bool signed, ScalarType dtype) -> Tensor",
    "_explain_int8": "(int m, int n, int k, ScalarType out_dtype, str activation, str device, "
    "int capability, int sms, float bytes_per_us, float mhz) -> str",
    "_explain_lowbit": "(int m, int n, int k, int group, int bits, int zero_point, bool packed, "
    "str device, int capability, int sms, float bytes_per_us, float mhz) -> str",
    "_gpus": "() -> str",
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
    "_epilogues": "() -> str",
    "_epilogue_of": "(str operands, str activation) -> str",
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


def int8(*shape: int) -> Tensor:
    return torch.from_numpy(np.random.default_rng(0).integers(-128, 128, shape, np.int8))


A, B = int8(4, 24), int8(10, 24).t()
WIDE_A = int8(2, 3, 24)
PACKED = scaled_mm.pack_weight_int8(B)
S_A, S_B = torch.linspace(0.1, 1, 4)[:, None], torch.linspace(-1, 1, 10)
BIAS, ADJ = torch.linspace(-5, 5, 10), scaled_mm.azp_adj(B)
AZP = torch.arange(4, dtype=torch.int32)[:, None]
ONE, ZERO = torch.ones(1), torch.zeros(1, dtype=torch.int32)
X = torch.linspace(-3, 5, 60).reshape(2, 3, 10)
RESIDUAL = torch.linspace(-500, 500, 40).reshape(4, 10)
WIDE_RESIDUAL = X.half()
TO_INT8 = {"out_dtype": torch.int8, "out_scale": torch.tensor([0.5])}
BY_SHAPE = {"b_shape": PACKED.shape}

CALLS: dict[str, tuple[str, tuple[Any, ...], dict[str, Any]]] = {
    "scaled_mm": ("scaled_mm", (A, B, S_A, S_B), {}),
    "scaled_mm bias": ("scaled_mm", (A, B, S_A, S_B), {"bias": BIAS, "out_dtype": torch.float32}),
    "scaled_mm azp": ("scaled_mm", (A, B, S_A, S_B), {"azp": AZP, "azp_adj": ADJ}),
    "scaled_mm azp_with_adj": ("scaled_mm", (A, B, ONE, ONE), {"azp_with_adj": ADJ, "bias": BIAS}),
    "scaled_mm packed": ("scaled_mm", (A, PACKED.data, S_A, S_B), {**BY_SHAPE, "bias": BIAS}),
    "scaled_mm row-major b": ("scaled_mm", (A, B.contiguous(), S_A, S_B), {}),
    "scaled_mm 3d": ("scaled_mm", (WIDE_A, B, torch.ones(2, 3, 1), S_B), {}),
    "scaled_mm 1d": ("scaled_mm", (A[0], B, ONE, S_B), {"out_dtype": torch.float16}),
    "scaled_mm empty": ("scaled_mm", (A[:0], B, ONE, S_B), {}),
    "scaled_mm residual": ("scaled_mm", (A, B, S_A, S_B), {"residual": RESIDUAL}),
    "scaled_mm residual 3d": (
        "scaled_mm",
        (WIDE_A, PACKED.data, ONE, S_B),
        {**BY_SHAPE, "bias": BIAS, "residual": WIDE_RESIDUAL, "out_dtype": torch.float16},
    ),
    "scaled_mm residual strided": (
        "scaled_mm",
        (A, B, S_A, S_B),
        {"azp": AZP, "azp_adj": ADJ, "residual": RESIDUAL.bfloat16().t().contiguous().t()},
    ),
    "scaled_mm residual expanded": (
        "scaled_mm",
        (A, B, S_A, S_B),
        {"residual": RESIDUAL[:1, :1].expand(4, 10), "out_dtype": torch.float32},
    ),
    "scaled_mm reglu": ("scaled_mm", (A, B, S_A, S_B), {"activation": "reglu"}),
    "scaled_mm reglu 3d": (
        "scaled_mm",
        (WIDE_A, PACKED.data, torch.ones(2, 3, 1), S_B),
        {**BY_SHAPE, "bias": BIAS, "activation": "reglu", "out_dtype": torch.float32},
    ),
    "scaled_mm reglu azp": (
        "scaled_mm",
        (A[:0], B, ONE, S_B),
        {"azp": ZERO, "azp_adj": ADJ, "activation": "reglu"},
    ),
    "plain": ("_scaled_mm_plain", (A, B, S_A, S_B, None, None, False), {}),
    "plain packed 3d": (
        "_scaled_mm_plain",
        (WIDE_A, PACKED.data, torch.ones(2, 3, 1), S_B, BIAS, PACKED.shape, False),
        {},
    ),
    "scaled_mm gelu": ("scaled_mm", (A, B, S_A, S_B), {"activation": "gelu", "bias": BIAS}),
    "scaled_mm swiglu int8": (
        "scaled_mm",
        (WIDE_A, PACKED.data, torch.ones(2, 3, 1), S_B),
        {**BY_SHAPE, "activation": "swiglu", **TO_INT8, "out_azp": ZERO},
    ),
    "scaled_mm int8": ("scaled_mm", (A, B, S_A, S_B), {"bias": BIAS, **TO_INT8}),
    "scaled_mm fp8": (
        "scaled_mm",
        (A, B, S_A, S_B),
        {"out_dtype": torch.float8_e4m3fn, "out_scale": S_A, "activation": "gelu_tanh"},
    ),
    "int8_mm": ("int8_mm", (A, B), {}),
    "int8_mm packed 3d": ("int8_mm", (WIDE_A, PACKED.data), BY_SHAPE),
    "azp_adj": ("azp_adj", (B,), {}),
    "azp_adj packed": ("azp_adj", (PACKED.data,), BY_SHAPE),
    "azp_with_adj": ("azp_with_adj", (B, ZERO), {}),
    "azp_with_adj packed": ("azp_with_adj", (PACKED.data, ZERO), BY_SHAPE),
    "pack_weight_int8": ("pack_weight_int8", (B,), {}),
    "pack_weight_int8 row-major": ("pack_weight_int8", (int8(7, 33),), {}),
    "quantize_int8": ("quantize_int8", (X,), {}),
    "quantize_int8 asymmetric": ("quantize_int8", (X.bfloat16(),), {"symmetric": False}),
    "quantize_int8 tensor": ("quantize_int8", (X.half(),), {"per_token": False}),
    "quantize_int8 1d": ("quantize_int8", (X[0, 0],), {"symmetric": False, "per_token": False}),
    "quantize_int8 strided": ("quantize_int8", (X.transpose(0, 2),), {}),
    "quantize_int8_static": ("quantize_int8_static", (X, ONE), {}),
    "quantize_int8_static azp": ("quantize_int8_static", (X, torch.ones(2, 3, 1), ZERO), {}),
    "produce_int8 norm": (
        "produce_int8",
        ("layer_norm", X),
        {"weight": X[0, 0], "bias": X[0, 1].half().float(), "residual": X, "eps": 1e-5},
    ),
    "produce_int8 halves": ("produce_int8", ("silu", X), {"halves": True, "symmetric": False}),
    "produce_int8 static": (
        "produce_int8",
        ("gelu", X[0, 0]),
        {"times": X[0, 1], "smooth": X[1, 1], "scale": ONE, "azp": ZERO, "symmetric": False},
    ),
    "quantize_weight_int8": ("quantize_weight_int8", (X[0],), {}),
    "quantize_weight_int8 tensor": ("quantize_weight_int8", (X[0].t(),), {"per_channel": False}),
}


@pytest.mark.parametrize("name", CALLS)
def test_opcheck(name: str) -> None:
    op, arguments, options = CALLS[name]
    torch.library.opcheck(getattr(ops, op).default, arguments, options)


def metadata(outputs: Any) -> list[Any]:
    return [(x.shape, x.dtype, x.stride()) for x in tree_leaves(outputs) if x is not None]


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


def test_fake_metadata_is_real() -> None:
    rng = np.random.default_rng(1)
    for case in [*list(CASES.values())[::7], *(random_case(rng) for _ in range(200))]:
        operands = case.build(rng=rng)
        assert_fake(scaled_mm.scaled_mm, operands)
        assert_fake(scaled_mm.int8_mm, {"a": operands["a"], "b": operands["b"]})
        assert_fake(lambda b: scaled_mm.pack_weight_int8(b).data, {"b": operands["b"]})
        assert_fake(scaled_mm.azp_adj, {"b": operands["b"]})
    quantized = [random_quantize_case(rng) for _ in range(200)]
    for quantize_case in [*list(QUANTIZE_CASES.values())[::7], *quantized]:
        assert_fake(scaled_mm.quantize_int8, quantize_case.build(rng=rng))


# --- compile and export ---------------------------------------------------------------------------

WEIGHT, WEIGHT_SCALE = scaled_mm.quantize_weight_int8(torch.linspace(-1, 1, 240).reshape(10, 24))
PLAIN = WEIGHT.t()
FACTORS, STATIC_SCALE = torch.linspace(1, 2, 24), torch.full((1,), 0.05)


def dynamic(x: Tensor, w: Any = PLAIN) -> Tensor:
    q, scale, _ = scaled_mm.quantize_int8(x)
    return scaled_mm.scaled_mm(q, w, scale, WEIGHT_SCALE, bias=BIAS, out_dtype=torch.float32)


def asymmetric(x: Tensor) -> Tensor:
    q, scale, azp = scaled_mm.quantize_int8(x, symmetric=False)
    adj = scaled_mm.azp_adj(PLAIN)
    return scaled_mm.scaled_mm(q, PLAIN, scale, WEIGHT_SCALE, azp=azp, azp_adj=adj)


def static(x: Tensor) -> Tensor:
    scale, azp = torch.full((1,), 0.05), torch.full((1,), -7, dtype=torch.int32)
    q, _, _ = scaled_mm.quantize_int8(x, scale=scale, azp=azp, symmetric=False)
    adj = scaled_mm.azp_with_adj(PLAIN, azp)
    return scaled_mm.scaled_mm(q, PLAIN, scale, WEIGHT_SCALE, azp_with_adj=adj)


def packs(x: Tensor) -> Tensor:
    packed = scaled_mm.pack_weight_int8(PLAIN)
    q, _, _ = scaled_mm.quantize_int8(x, per_token=False)
    return scaled_mm.int8_mm(q, packed) + scaled_mm.azp_adj(packed)


def residual(x: Tensor) -> Tensor:
    """A block's last layer: its input comes back, and the sum goes on in the same call."""
    q, scale, _ = scaled_mm.quantize_int8(x)
    y = scaled_mm.scaled_mm(q, PLAIN, scale, WEIGHT_SCALE, out_dtype=torch.float32)
    more = {"bias": BIAS, "residual": y[:, :1].expand(y.shape), "out_dtype": torch.float16}
    z = scaled_mm.scaled_mm(q, PLAIN, scale, WEIGHT_SCALE, residual=y)
    return z + scaled_mm.scaled_mm(q, PLAIN, scale, WEIGHT_SCALE, **more)


def gated(x: Tensor) -> Tensor:
    q, scale, azp = scaled_mm.quantize_int8(x, symmetric=False)
    adj = scaled_mm.azp_adj(PLAIN)
    options = {"azp": azp, "azp_adj": adj, "bias": BIAS, "activation": "reglu"}
    return scaled_mm.scaled_mm(q, PLAIN, scale, WEIGHT_SCALE, **options)


def norm(x: Tensor) -> Tensor:
    given = {"residual": x.flip(0), "symmetric": False}
    q, scale, azp, h = scaled_mm.rms_norm_quantize_int8(x, FACTORS, 1e-5, **given)
    adj = scaled_mm.azp_adj(PLAIN)
    y = scaled_mm.scaled_mm(q, PLAIN, scale, WEIGHT_SCALE, azp=azp, azp_adj=adj)
    return y * h[:, :1]


def activations(x: Tensor) -> Tensor:
    """Every function, one by a static scale, one smoothed."""
    made = [
        scaled_mm.silu_mul_quantize_int8(torch.cat([x, x], 1)),
        scaled_mm.gelu_quantize_int8(x, approximate="tanh", times=x),
        scaled_mm.gelu_quantize_int8(x, scale=STATIC_SCALE),
        scaled_mm.relu_quantize_int8(x, smooth=FACTORS),
    ]
    return torch.stack([q for q, _, _ in made])


def quantizes_weight(x: Tensor) -> Tensor:
    q, scale = scaled_mm.quantize_weight_int8(x)
    return scaled_mm.int8_mm(q, q.t()) * scale


FUNCTIONS = [
    dynamic,
    asymmetric,
    static,
    packs,
    quantizes_weight,
    residual,
    gated,
    norm,
    activations,
]


def x_of(m: int) -> Tensor:
    return torch.randn(m, 24, generator=torch.Generator().manual_seed(m))


@pytest.fixture
def fresh_dynamo() -> None:
    torch._dynamo.reset()


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda f: f.__name__)
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
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


class Module(torch.nn.Module):
    def __init__(self, function: Callable[..., Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


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
    assert log.names == ["scaled_mm.quantize_int8.default", "scaled_mm.scaled_mm.default"]
