"""ONNX node tests (tests/vectors), through the ops and through the reference.

uint8 data and zero points become int8 by subtracting 128 from both. DequantizeLinear is a product
with the matrix [[1]]; QLinearMatMul is scaled_mm, then quantize_int8 with a given scale.
"""

import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

import scaled_mm
from scaled_mm import reference

VECTORS = json.loads((Path(__file__).parent / "vectors" / "onnx_node_tests.json").read_text())[
    "vectors"
]
LIBRARIES = pytest.mark.parametrize(
    "library", [scaled_mm, reference], ids=["scaled_mm", "reference"]
)


def of_op(op: str) -> Any:
    return pytest.mark.parametrize("name", [n for n, v in VECTORS.items() if v["op"] == op])


def load(name: str) -> tuple[list[Tensor], list[Tensor]]:
    """Inputs and outputs: 8-bit integers as int8, floats as float32."""

    def tensor(spec: dict[str, Any]) -> Tensor:
        x = torch.tensor(spec["data"]).reshape(spec["shape"])
        if spec["dtype"] == "uint8":
            x = x - 128
        return x.to(torch.int8 if "int8" in spec["dtype"] else getattr(torch, spec["dtype"]))

    vector = VECTORS[name]
    inputs, outputs = ([tensor(x) for x in vector[key]] for key in ("inputs", "outputs"))
    widened = [x.float() if x.dtype == torch.float16 else x for x in inputs]
    return widened, outputs


def product(
    library: ModuleType,
    a: Tensor,
    zero_a: Tensor,
    b: Tensor,
    zero_b: Tensor,
    scale_a: Tensor,
    scale_b: Tensor,
) -> Tensor:
    """s_a s_b (A - z_a)(B - z_b) in float32.

    (A - z_a)(B - z_b) = A B - r z_b - z_a 1B with r = (A - z_a) 1: the zero points of B are a
    rank-1 term with a "zero point" r per token, those of A a bias.
    """
    zero_a, zero_b = zero_a.int(), zero_b.int()
    r = (a.int() - zero_a).sum(-1, keepdim=True, dtype=torch.int32)
    bias = -(scale_a * scale_b) * (zero_a * library.azp_adj(b)).float()
    return library.scaled_mm(
        a,
        b,
        scale_a,
        scale_b,
        bias=bias,
        azp=r,
        azp_adj=zero_b.expand(1, b.shape[1]),
        out_dtype=torch.float32,
    )


@LIBRARIES
@of_op("MatMulInteger")
def test_matmulinteger(library: ModuleType, name: str) -> None:
    (a, b, zero_a, zero_b), (expected,) = load(name)
    one = torch.ones(1)
    out = product(library, a, zero_a, b, zero_b, one, one)
    assert torch.equal(out, expected.float())

    z_a, z_b = zero_a.int(), zero_b.int()
    rows = a.int().sum(-1, keepdim=True)
    exact = library.int8_mm(a, b) - library.azp_with_adj(b, z_a) - (rows - len(b) * z_a) * z_b
    assert torch.equal(exact, expected)


@LIBRARIES
@of_op("QLinearMatMul")
def test_qlinearmatmul(library: ModuleType, name: str) -> None:
    (a, scale_a, zero_a, b, scale_b, zero_b, scale_y, zero_y), (expected,) = load(name)
    batches = zip(a.reshape(-1, *a.shape[-2:]), b.reshape(-1, *b.shape[-2:]), strict=True)
    y = torch.stack([product(library, x, zero_a, w, zero_b, scale_a, scale_b) for x, w in batches])
    q, scale, azp = library.quantize_int8(y, scale=scale_y, azp=zero_y.int(), symmetric=False)
    assert torch.equal(q.reshape(expected.shape), expected)
    assert torch.equal(scale, scale_y)
    assert torch.equal(azp, zero_y.int())


def rows_per_scale(x: Tensor, scale: Tensor, name: str) -> tuple[Tensor, tuple[int, ...]]:
    """x with one row per element of scale (along axis 1, or in blocks of two on it), and the shape
    to give such rows back."""
    if scale.dim() == 0:
        return x.reshape(1, -1), x.shape
    if name.endswith("axis"):
        return x.transpose(0, 1).reshape(len(scale), -1), (x.shape[1], x.shape[0], *x.shape[2:])
    blocks = x.unflatten(1, (-1, 2)).movedim(2, -1)
    return blocks.reshape(scale.numel(), 2), blocks.shape


def back(rows: Tensor, shape: tuple[int, ...], scale: Tensor, name: str) -> Tensor:
    x = rows.reshape(shape)
    if scale.dim() == 0:
        return x
    return x.transpose(0, 1) if name.endswith("axis") else x.movedim(-1, 2).flatten(1, 2)


@LIBRARIES
@of_op("QuantizeLinear")
def test_quantizelinear(library: ModuleType, name: str) -> None:
    (x, scale, zero), (expected,) = load(name)
    rows, shape = rows_per_scale(x, scale, name)
    given = {"scale": scale.reshape(-1, 1), "azp": zero.int().reshape(-1, 1)}
    q, _, _ = library.quantize_int8(rows, **given, symmetric=False)
    assert torch.equal(back(q, shape, scale, name), expected)


@LIBRARIES
@of_op("DequantizeLinear")
def test_dequantizelinear(library: ModuleType, name: str) -> None:
    (x, scale, zero), (expected,) = load(name)
    rows, shape = rows_per_scale(x, scale, name)
    out = library.scaled_mm(
        rows.unsqueeze(-1),
        torch.ones(1, 1, dtype=torch.int8),
        scale.reshape(-1, 1).expand(rows.shape),
        torch.ones(1),
        azp=zero.int().reshape(-1, 1).expand(rows.shape),
        azp_adj=torch.ones(1, dtype=torch.int32),
        out_dtype=torch.float32,
    )
    assert torch.equal(back(out.squeeze(-1), shape, scale, name), expected)


@LIBRARIES
@of_op("DynamicQuantizeLinear")
def test_dynamicquantizelinear(library: ModuleType, name: str) -> None:
    (x,), (expected, scale, zero) = load(name)
    q, s, azp = library.quantize_int8(x, symmetric=False, per_token=False)
    assert torch.equal(q, expected)
    assert torch.equal(s, scale.reshape(1))
    assert torch.equal(azp, zero.int().reshape(1))
