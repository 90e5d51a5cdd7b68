"""What shape-only (fake) kernels refuse: operands of several devices, and sizes that do not fit.

They run for meta tensors, under FakeTensorMode, and in torch.compile and torch.export. Among
operands on the CPU a single meta tensor is enough to call them, and then they must not answer.
"""

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from awq_cases import AwqCase
from helpers import AsModule, assert_bits
from refusals import GOOD
from refusals import K as INT8_K
from refusals import M as INT8_M
from refusals import N as INT8_N
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

import scaled_mm

AWQ = AwqCase("fakes", k=64, n=24, group=32, rows=(3,), bias=torch.float16)
WEIGHT = AWQ.weight()
COLUMN = torch.zeros(1, INT8_N, dtype=torch.int32)
ONE, ZERO = torch.ones(1), torch.zeros(1, dtype=torch.int32)
X, V = torch.ones(3, 4), torch.ones(4)
PACKED = scaled_mm.pack_weight_int8(GOOD["int8_mm"]()["b"]).data
PRODUCT = {**GOOD["scaled_mm"](), "bias": torch.ones(INT8_N), "residual": torch.ones(128, INT8_N)}
BUFFER = {"b": PACKED, "b_shape": (INT8_K, INT8_N)}
OUT = {"out": torch.empty(INT8_M, INT8_N, dtype=torch.bfloat16)}
INT_OUT = {"out": torch.empty(INT8_M, INT8_N, dtype=torch.int32)}
GEMM = {"x": torch.ones(3, 64, dtype=torch.float16), **WEIGHT, "bias": torch.ones(24)}

CALLS: dict[str, tuple[str, dict[str, Any]]] = {
    "scaled_mm": ("scaled_mm", {**PRODUCT, "azp": ZERO, "azp_adj": COLUMN}),
    "scaled_mm azp_with_adj": ("scaled_mm", {**PRODUCT, "azp_with_adj": COLUMN}),
    "scaled_mm packed": ("scaled_mm", {**PRODUCT, **BUFFER}),
    "scaled_mm out": ("scaled_mm.out", {**PRODUCT, **OUT}),
    "int8_mm": ("int8_mm", GOOD["int8_mm"]()),
    "int8_mm packed": ("int8_mm", {**GOOD["int8_mm"](), **BUFFER}),
    "int8_mm out": ("int8_mm.out", {**GOOD["int8_mm"](), **INT_OUT}),
    "azp_with_adj": ("azp_with_adj", GOOD["azp_with_adj"]()),
    "quantize_int8_static": ("quantize_int8_static", {"x": X, "scale": ONE}),
    "quantize_int8_static azp": ("quantize_int8_static", {"x": X, "scale": ONE, "azp": ZERO}),
    "produce_int8 norm": (
        "produce_int8",
        {"producer": "layer_norm", "x": X, "residual": X, "weight": V, "bias": V, "smooth": V}
        | {"normed": True},
    ),
    "produce_int8 function": (
        "produce_int8",
        {"producer": "gelu", "x": X, "times": X, "scale": ONE, "azp": ZERO, "symmetric": False},
    ),
    "awq_dequantize": ("awq_dequantize", WEIGHT),
    "awq_gemm": ("awq_gemm", GEMM),
    "awq_gemm out": ("awq_gemm.out", {**GEMM, "out": torch.empty(3, 24, dtype=torch.float16)}),
}
"""Every op that takes more than one tensor, with all operands that go together."""
OPERANDS = [
    (call, operand)
    for call, (_, operands) in CALLS.items()
    for operand, value in operands.items()
    if torch.is_tensor(value)
]


def op_of(name: str) -> Callable[..., Any]:
    op, _, form = name.partition(".")
    return getattr(getattr(torch.ops.scaled_mm, op), form or "default")


def refusal(call: Callable[..., Any], operands: dict[str, Any]) -> str:
    with pytest.raises(ValueError) as caught:
        call(**operands)
    assert type(caught.value) is ValueError
    return str(caught.value)


@pytest.mark.parametrize(("call", "operand"), OPERANDS)
def test_one_operand_on_another_device(call: str, operand: str) -> None:
    """Named: the operand, or where it is the one that all are compared with, the next."""
    name, operands = CALLS[call]
    for here, there in (("cpu", "meta"), ("meta", "cpu")):
        given = {k: x.to(here) if torch.is_tensor(x) else x for k, x in operands.items()}
        given[operand] = operands[operand].to(there)
        message = refusal(op_of(name), given)
        found = re.fullmatch(r"(\w+) must be on the device of (\w+) \((\w+)\), got (\w+)", message)
        assert found, message
        named, other, other_device, device = found.groups()
        assert operand in (named, other)
        assert {device, other_device} == {"cpu", "meta"}
        assert given[named].device.type == device


@pytest.mark.parametrize(("call", "operand"), OPERANDS)
@pytest.mark.parametrize("there", ["meta", "cuda"])
def test_one_fake_operand_on_another_device(call: str, operand: str, there: str) -> None:
    name, operands = CALLS[call]
    with FakeTensorMode() as mode:
        given = {k: mode.from_tensor(x) if torch.is_tensor(x) else x for k, x in operands.items()}
        op_of(name)(**given)
        given[operand] = torch.empty_like(given[operand], device=there)
        message = refusal(op_of(name), given)
    assert re.search(r" must be on the device of \w+ \((cpu|meta|cuda:0)\), got ", message)


# --- other kinds of tensor ------------------------------------------------------------------------

KINDS: dict[str, tuple[Callable[[Tensor], Tensor], str]] = {
    "coo": (lambda x: x.to_sparse(), "layout torch.sparse_coo"),
    "csr": (lambda x: x.to_sparse_csr(), "layout torch.sparse_csr"),
    "mkldnn": (lambda x: x.float().to_mkldnn(), "layout torch._mkldnn"),
    "nested": (lambda x: torch.nested.nested_tensor([*x]), "a nested tensor"),
    "jagged": (lambda x: torch.nested.nested_tensor([*x], layout=torch.jagged), "a nested tensor"),
    "quantised": (
        lambda x: torch.quantize_per_tensor(x.float(), 1.0, 0, torch.qint8),
        "a quantised tensor (torch.per_tensor_affine)",
    ),
}
PUBLIC: dict[str, dict[str, Any]] = {
    "scaled_mm": {**GOOD["scaled_mm"](), "bias": torch.ones(1, INT8_N)},
    "int8_mm": {**GOOD["int8_mm"](), **INT_OUT},
    "azp_adj": GOOD["azp_adj"](),
    "azp_with_adj": {**GOOD["azp_with_adj"](), "azp": ZERO[None]},
    "pack_weight_int8": GOOD["pack_weight_int8"](),
    "quantize_int8": {"x": X, "scale": ONE[None], "azp": ZERO[None], "symmetric": False},
    "quantize_weight_int8": GOOD["quantize_weight_int8"](),
    "rms_norm_quantize_int8": {
        **GOOD["rms_norm_quantize_int8"](),
        "weight": torch.ones(1, INT8_K),
        "residual": torch.ones(INT8_M, INT8_K),
    },
    "silu_mul_quantize_int8": {"x": X, "times": X},
    "awq_dequantize": WEIGHT,
    "awq_gemm": {**GEMM, "bias": GEMM["bias"][None]},
}


@pytest.mark.filterwarnings("ignore:Sparse")  # "... CSR tensor support is in beta state"
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.filterwarnings("ignore:.*quantize_per_tensor")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("function", "operand"),
    [(f, o) for f, operands in PUBLIC.items() for o, x in operands.items() if torch.is_tensor(x)],
)
def test_a_tensor_that_is_not_dense(function: str, operand: str, kind: str) -> None:
    wrap, value = KINDS[kind]
    operands = {**PUBLIC[function], operand: wrap(PUBLIC[function][operand])}
    message = refusal(getattr(scaled_mm, function), operands)
    assert message == f"{operand} must be a dense tensor, got {value}"


# --- sizes ----------------------------------------------------------------------------------------


def int8(*shape: int) -> Tensor:
    return torch.ones(shape, dtype=torch.int8)


def words(*shape: int) -> Tensor:
    return torch.ones(shape, dtype=torch.int32)


def half(*shape: int) -> Tensor:
    return torch.ones(shape, dtype=torch.float16)


B_96 = {"b": int8(INT8_K, INT8_N)}
MISFITS: dict[str, tuple[str, dict[str, Any]]] = {
    "a 0d": ("int8_mm", {"a": int8(), **B_96}),
    "b 1d": ("int8_mm", {"a": int8(3, INT8_K), "b": int8(INT8_K)}),
    "b 3d": ("int8_mm", {"a": int8(3, INT8_K), "b": int8(1, INT8_K, INT8_N)}),
    "k": ("int8_mm", {"a": int8(3, INT8_K + 1), **B_96}),
    "k, a 1d": ("int8_mm", {"a": int8(1), **B_96}),
    "k of b_shape": ("int8_mm", {"a": int8(3, INT8_K - 1), **BUFFER}),
    "b_shape": ("int8_mm", {"a": int8(3, INT8_K), "b": PACKED, "b_shape": (INT8_K,)}),
    "scaled k": ("scaled_mm", {**PRODUCT, "a": int8(128, 1)}),
    "reglu of odd n": (
        "scaled_mm",
        {"a": int8(2, 8), "b": int8(8, 3), "scale_a": ONE, "scale_b": ONE, "activation": "reglu"},
    ),
    "out of swiglu in 8 bits": (
        "scaled_mm.out",
        {**GOOD["scaled_mm"](), "activation": "swiglu", "out_dtype": torch.int8, "out_scale": ONE}
        | OUT,
    ),
    "azp_adj b 1d": ("azp_adj", {"b": int8(3)}),
    "azp_with_adj b 3d": ("azp_with_adj", {"b": int8(3, 1, 1), "azp": ZERO}),
    "pack b 1d": ("pack_weight_int8", {"b": int8(3)}),
    "quantize 0d": ("quantize_int8", {"x": torch.ones(())}),
    "quantize static 0d": ("quantize_int8_static", {"x": torch.ones(()), "scale": ONE}),
    "produce 0d": ("produce_int8", {"producer": "relu", "x": torch.ones(())}),
    "halves of odd": ("produce_int8", {"producer": "silu", "x": torch.ones(2, 3), "halves": True}),
    "weight 1d": ("quantize_weight_int8", {"w": torch.ones(3)}),
    "weight 3d, per tensor": (
        "quantize_weight_int8",
        {"w": torch.ones(3, 1, 1), "per_channel": False},
    ),
    "x 0d": ("awq_gemm", {**GEMM, "x": half()}),
    "x k": ("awq_gemm", {**GEMM, "x": half(3, 63)}),
    "qweight 1d": ("awq_dequantize", {**WEIGHT, "qweight": words(64)}),
    "scales 1d": ("awq_dequantize", {**WEIGHT, "scales": half(24)}),
    "scales n": ("awq_dequantize", {**WEIGHT, "scales": half(2, 32)}),
    "groups": ("awq_dequantize", {**WEIGHT, "scales": half(3, 24)}),
    "qzeros 3d": ("awq_dequantize", {**WEIGHT, "qzeros": words(2, 3, 1)}),
    "qzeros groups": ("awq_dequantize", {**WEIGHT, "qzeros": words(1, 3)}),
    "qzeros n": ("awq_gemm", {**GEMM, "qzeros": words(2, 4)}),
    "out dtype": ("int8_mm.out", {**GOOD["int8_mm"](), **OUT}),
    "out rows": ("int8_mm.out", {**GOOD["int8_mm"](), "out": words(INT8_M + 1, INT8_N)}),
    "out 3d": ("int8_mm.out", {**GOOD["int8_mm"](), "out": words(1, INT8_M, INT8_N)}),
    "out of other dtype": ("scaled_mm.out", {**PRODUCT, **INT_OUT}),
    "out of reglu": ("scaled_mm.out", {**GOOD["scaled_mm"](), "activation": "reglu", **OUT}),
    "out columns": ("awq_gemm.out", {**GEMM, "out": half(3, 23)}),
}


@pytest.mark.parametrize("name", MISFITS)
def test_sizes_that_do_not_fit(name: str) -> None:
    """The fake kernel says word for word what the op says."""
    op, operands = MISFITS[name]
    expected = refusal(op_of(op), operands)
    meta = {k: x.to("meta") if torch.is_tensor(x) else x for k, x in operands.items()}
    assert refusal(op_of(op), meta) == expected
    with FakeTensorMode() as mode:
        fakes = {k: mode.from_tensor(x) if torch.is_tensor(x) else x for k, x in operands.items()}
        assert refusal(op_of(op), fakes) == expected


# --- symbolic sizes -------------------------------------------------------------------------------


def product(m: int, k: int, n: int) -> tuple[Tensor, ...]:
    random = torch.Generator().manual_seed(m)
    a, b = (torch.randint(-128, 128, shape, generator=random) for shape in ((m, k), (k, n)))
    return a.to(torch.int8), b.to(torch.int8), torch.ones(1), torch.ones(n)


def gated(a: Tensor, b: Tensor, scale_a: Tensor, scale_b: Tensor) -> Tensor:
    return scaled_mm.scaled_mm(a, b, scale_a, scale_b, activation="reglu")


def test_export_with_every_size_of_a_product_symbolic() -> None:
    m, k, half_n = (torch.export.Dim(name, min=2, max=4096) for name in ("m", "k", "half_n"))
    dims = ({0: m, 1: k}, {0: k, 1: 2 * half_n}, None, {0: 2 * half_n})
    program = torch.export.export(AsModule(gated), product(4, 6, 10), dynamic_shapes=(dims,))
    for sizes in ((2, 3, 4), (9, 40, 36)):
        assert_bits(program.module()(*product(*sizes)), gated(*product(*sizes)))


def test_export_refuses_sizes_that_differ() -> None:
    """Two dimensions that have to be one are reported, not fixed at the example's size."""
    k, other = (torch.export.Dim(name, min=2, max=4096) for name in ("k", "other"))
    dims = ({1: k}, {0: other}, None, None)
    with pytest.raises(Exception, match=r"other = k|k = other|must always be equal"):
        torch.export.export(AsModule(gated), product(4, 6, 10), dynamic_shapes=(dims,))


def test_compile_with_every_size_of_an_awq_product_symbolic() -> None:
    torch._dynamo.reset()
    compiled = torch.compile(scaled_mm.awq_gemm, fullgraph=True, dynamic=True, backend="aot_eager")

    def operands(k: int, n: int, group: int, rows: int) -> dict[str, Any]:
        case = AwqCase("symbolic", k=k, n=n, group=group, rows=(rows,))
        return {"x": torch.ones(rows, k, dtype=torch.float16), **case.weight()}

    compiled(**operands(64, 24, 16, 5))  # no two sizes alike: dynamo would take them for one
    with torch._dynamo.config.patch(error_on_recompile=True):
        for sizes in ((96, 32, 16, 7), (64, 40, 32, 9), (120, 16, 30, 3)):
            given = operands(*sizes)
            assert_bits(compiled(**given), scaled_mm.awq_gemm(**given), sizes)
