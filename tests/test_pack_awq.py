"""AWQ's weights packed: the CPU's layout can be undone, and products have the bits of the words.
(Units: test_units.py; on a GPU: test_cuda_awq.py.)"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from awq_cases import AWQ_CASES, FINITE, AwqCase
from helpers import assert_bits, bytes_of, each_isa, refuses
from torch import Tensor

import scaled_mm
from scaled_mm import MixedWeight, awq
from scaled_mm.ops import units
from scaled_mm.ops.packed_words import INTEGER

pytestmark = pytest.mark.usefixtures("poisoned")
NAMES = ("qweight", "scales", "qzeros")


def assert_same(packed: MixedWeight, operands: dict[str, Tensor], *context: object) -> None:
    q, scales, zeros, order = packed.unpack()
    assert zeros is not None and order is None
    for name, x in zip(NAMES, (awq.pack(q), scales, awq.pack(zeros)), strict=True):
        assert x.is_contiguous()
        assert_bits(x, operands[name].contiguous(), name, *context)


@pytest.mark.parametrize("name", AWQ_CASES)
def test_there_and_back(name: str) -> None:
    operands = AWQ_CASES[name].weight()
    before = bytes_of(operands.values())
    packed = MixedWeight.from_awq(**operands)
    assert packed.layout == 2
    assert packed.shape == (AWQ_CASES[name].k, AWQ_CASES[name].n)
    assert_same(packed, operands, name)
    assert all(torch.equal(x, y) for x, y in zip(bytes_of(operands.values()), before, strict=True))


@pytest.mark.parametrize("name", [n for n, c in AWQ_CASES.items() if c.scales in FINITE])
def test_product(name: str) -> None:
    operands = AWQ_CASES[name].product()
    packed = MixedWeight.from_awq(*(operands[x] for x in NAMES))
    rest = {x: y for x, y in operands.items() if x not in (*NAMES, "x")}
    for isa in each_isa():
        expected = scaled_mm.awq_gemm(**operands)
        out = torch.empty_like(expected)
        assert_bits(scaled_mm.awq_gemm(operands["x"], packed, **rest), expected, isa)
        assert scaled_mm.awq_gemm(operands["x"], packed, **rest, out=out) is out
        assert_bits(out, expected, isa)


W = AwqCase("packed", 128, 64, 64, torch.float16, "special").weight()
X = torch.linspace(-1, 1, 3 * 128).view(3, 128).half()


PACKING = {
    "qweight must be int32 of two dimensions, got int64": {"qweight": W["qweight"].long()},
    "qzeros must be int32 of two dimensions, got float32": {"qzeros": W["qzeros"].float()},
    "scales must be float16 or bfloat16, got float32": {"scales": W["scales"].float()},
    "scales must have N=64 columns": {"scales": W["scales"][:, :8]},
    "qzeros must have shape": {"qzeros": W["qzeros"][:1]},
}
test_packing_refuses = refuses(PACKING, MixedWeight.from_awq, **W)
NO_SCALES = {"scales must be a Tensor, got list": {"scales": []}}
test_what_is_no_tensor = refuses(NO_SCALES, MixedWeight.from_awq, error=TypeError, **W)

PACKED = MixedWeight.from_awq(**W)
FOR_A_GPU = PACKED.data[: units.units_elements(128, 64, 64, 4, INTEGER)]
PRODUCTS = {
    "packed must be of x's dtype bfloat16": {"x": X.bfloat16()},
    "x must have K=128 columns": {"x": X[:, 1:]},
    ".*must be of layout 0 or 2 on the CPU": {"qweight": replace(PACKED, data=FOR_A_GPU, layout=1)},
    "out must": {"out": PACKED.data[: 3 * 64].view(3, 64)},
}
test_products_refuse = refuses(PRODUCTS, scaled_mm.awq_gemm, x=X, qweight=PACKED)
ABSENT = {"scales and qzeros must be absent": [{"scales": W["scales"]}, {"qzeros": W["qzeros"]}]}
test_words_beside_a_packed_weight = refuses(
    ABSENT, scaled_mm.awq_gemm, error=TypeError, x=X, qweight=PACKED
)

LONG = torch.cat([PACKED.data, PACKED.data])
SIZES = ([128, 64, 48, 4, 1, 0], [-1, 64, 64, 4, 1, 0], [128, 64, 64, 4, 1, 3])
SIZES += ([128, 64, 16, 4, 1, 1], [0, 64, 0, 4, 1, 1], [2**40, 64, 2**40, 4, 1, 0])
SIZES += ([128, 64, 64, 4, 1], [128, 64, 0, 4, 1, 0])
OP = {
    "packed must be a contiguous buffer of shape": {"packed": LONG},
    "packed must be a contiguous buffer": [{"packed": LONG[::2]}, {"packed": LONG[1:]}],
    "packed must be float16 or": {"packed": LONG.view(torch.int16)},
    "sizes must be": [{"packed": PACKED.data, "sizes": sizes} for sizes in SIZES],
}
test_the_op_refuses = refuses(OP, torch.ops.scaled_mm.mixed_mm, x=X, sizes=[128, 64, 64, 4, 1, 2])
DATA = {"data must be a buffer of pack_weight": lambda: replace(PACKED, data=LONG).unpack()}
test_data_of_another_size = refuses(DATA)
