"""pack_weight_int8, azp_adj, azp_with_adj: weights of every layout and tail, on every instruction
set; a packed weight gives what the plain one gives."""

import copy
import io

import numpy as np
import pytest
import torch
from helpers import assert_bits, bytes_of, each_isa
from operands import COLUMN, ROW, Layout
from torch import Tensor

import scaled_mm
from scaled_mm import reference
from scaled_mm.ops.packed_weight import settle

pytestmark = pytest.mark.usefixtures("poisoned")

LAYOUTS = {
    "row": ROW,
    "column": COLUMN,
    "row-padded": Layout(pad=5),
    "column-padded": Layout("column", pad=3),
    "row-sliced": Layout(step=2),
    "column-sliced": Layout("column", step=3, pad=1, offset=1),
    "column-misaligned": Layout("column", offset=3),
    "odd": Layout(odd=1000),
}
SIZES = (*range(1, 22), 31, 32, 33, 47, 48, 49, 63, 64, 65, 80)


def weight(k: int, n: int, seed: int = 0) -> Tensor:
    rng = np.random.default_rng((seed, k, n))
    return torch.from_numpy(rng.integers(-128, 128, (k, n), np.int8))


def assert_weight(b: Tensor, *context: object) -> None:
    """Packing and sums are the same code on every instruction set, the product is not."""
    before = bytes_of([b])[0]
    packed = scaled_mm.pack_weight_int8(b)
    assert packed.shape == tuple(b.shape), context
    sums = reference.azp_adj(b)
    for x in (b, packed):
        assert_bits(scaled_mm.azp_adj(x), sums, *context)
        for azp in (-128, 2**31 - 1):
            z = torch.tensor([azp], dtype=torch.int32)
            assert_bits(scaled_mm.azp_with_adj(x, z), reference.azp_with_adj(b, z), azp, *context)
    a = weight(3, len(b), 1)
    expected = reference.int8_mm(a, b)
    for isa in each_isa():
        assert_bits(scaled_mm.int8_mm(a, packed), expected, isa, *context)
    assert torch.equal(bytes_of([b])[0], before), context


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts_and_tails(layout: str) -> None:
    for k in SIZES:
        for n in (1, 2, 15, 16, 17, 32, 40):
            assert_weight(LAYOUTS[layout].place(weight(k, n), "cpu"), layout, k, n)


@pytest.mark.parametrize(("k", "n"), [(0, 0), (0, 5), (5, 0)])
def test_empty(k: int, n: int) -> None:
    assert_weight(weight(k, n))


def test_large() -> None:
    for k, n in ((4099, 300), (3, 20_001), (131071, 2)):
        b = weight(k, n)
        assert_weight(b)
        assert_weight(COLUMN.place(b, "cpu"))


@pytest.mark.parametrize("value", [-128, 127])
def test_largest_sums(value: int) -> None:
    b = torch.full((17, 131071), value, dtype=torch.int8).t()
    for x in (b, b.contiguous(), scaled_mm.pack_weight_int8(b)):
        assert scaled_mm.azp_adj(x).tolist() == [[value * 131071] * 17]


@pytest.mark.parametrize("form", [(), (1,), (1, 1), (1, 1, 1)])
def test_azp_of_any_one_element_shape(form: tuple[int, ...]) -> None:
    b, azp = weight(9, 5), torch.full(form, -7, dtype=torch.int32)
    assert_bits(scaled_mm.azp_with_adj(b, azp), -7 * reference.azp_adj(b))


def copies(packed: scaled_mm.PackedWeight) -> dict[str, scaled_mm.PackedWeight]:
    file = io.BytesIO()
    torch.save(packed, file)
    file.seek(0)
    return {
        "copy": copy.copy(packed),
        "deepcopy": copy.deepcopy(packed),
        "torch.save": torch.load(file, weights_only=False),
    }


@pytest.mark.parametrize("name", ["copy", "deepcopy", "torch.save"])
def test_packed_weight_copied(name: str) -> None:
    packed = scaled_mm.pack_weight_int8(weight(37, 21))
    settle(packed)
    again = copies(packed)[name]
    assert packed.settled and not again.settled
    assert (again.k, again.n, again.shape) == (37, 21, (37, 21))
    assert torch.equal(again.data, packed.data)
    a = weight(4, 37)
    assert_bits(scaled_mm.int8_mm(a, again), scaled_mm.int8_mm(a, packed))


def test_packed_weight_is_frozen() -> None:
    packed = scaled_mm.pack_weight_int8(weight(4, 4))
    with pytest.raises(AttributeError):
        packed.k = 5


def test_packed_weight_is_a_pytree_node() -> None:
    packed = scaled_mm.pack_weight_int8(weight(37, 21))
    leaves, spec = torch.utils._pytree.tree_flatten(packed)
    assert any(leaf is packed.data for leaf in leaves)
    again = torch.utils._pytree.tree_unflatten(leaves, spec)
    assert (again.data is packed.data, again.shape) == (True, (37, 21))
