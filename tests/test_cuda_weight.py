"""pack_weight_int8, azp_adj and azp_with_adj on the GPU: weights of every layout and tail, against
the CPU backend and the reference."""

import itertools

import pytest
import torch
from cuda_support import DEVICE, GPU, ON_CPU, assert_outputs, assert_unchanged, on_device
from helpers import assert_bits
from operands import COLUMN, ROW, Layout
from test_weight import LAYOUTS, SIZES, weight
from torch import Tensor

import scaled_mm
from scaled_mm import reference

pytestmark = [*GPU, pytest.mark.usefixtures("poisoned")]
ZEROS = (-128, 1, 2**31 - 1)


def assert_weight(b: Tensor, *context: object) -> None:
    """b lies on the CPU, in whatever layout."""
    sums = scaled_mm.azp_adj(b)
    assert_bits(sums, reference.azp_adj(b), "CPU", *context)
    there = on_device({"b": b, "azp": torch.tensor(ZEROS, dtype=torch.int32)})
    packed = scaled_mm.pack_weight_int8(there["b"])
    assert packed.shape == tuple(b.shape)
    got, expected = {}, {}
    for kind, x in (("plain", there["b"]), ("packed", packed)):
        got[kind], expected[kind] = scaled_mm.azp_adj(x), sums
        for i, z in enumerate(ZEROS):
            got[f"{kind} {z}"] = scaled_mm.azp_with_adj(x, there["azp"][i])
            expected[f"{kind} {z}"] = scaled_mm.azp_with_adj(b, torch.tensor(z, dtype=torch.int32))
    expected = {name: x.to(DEVICE) for name, x in expected.items()}
    assert_outputs("azp_adj", got, expected, *context)
    assert_unchanged({"b": there["b"]}, {"b": b}, *context)


def assert_packs(b: Tensor, data: Tensor, *context: object) -> None:
    """A layout's buffer is that of the contiguous weight, its padding included."""
    there = on_device({"b": b})["b"]
    got = {"data": scaled_mm.pack_weight_int8(there).data}
    assert_outputs("pack_weight_int8", got, {"data": data}, *context)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts_and_tails(layout: str) -> None:
    for k, n in itertools.product(SIZES, (1, 2, 15, 16, 17, 32, 40)):
        assert_weight(LAYOUTS[layout].place(weight(k, n), "cpu"), layout, k, n)


SHAPES = list(itertools.product((1, 5, 16, 37, 64, 67, 128, 130, 255, 1025), (1, 3, 16, 33, 129)))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_packs_to_the_same_bytes(layout: str) -> None:
    for k, n in SHAPES:
        b = weight(k, n)
        data = scaled_mm.pack_weight_int8(b.to(DEVICE)).data
        assert_packs(LAYOUTS[layout].place(b, "cpu"), data, layout, k, n)


@pytest.mark.parametrize("order", ["row", "column"])
def test_every_offset_and_pad(order: str) -> None:
    for (k, n), i in itertools.product(((64, 48), (130, 33), (16, 256)), range(1, 17)):
        b = weight(k, n)
        data = scaled_mm.pack_weight_int8(b.to(DEVICE)).data
        for layout in (Layout(order, offset=i), Layout(order, pad=i), Layout(order, i, 2, i)):
            placed = layout.place(b, "cpu")
            assert_packs(placed, data, layout, k, n)
            assert_weight(placed, layout, k, n)


@pytest.mark.parametrize(("k", "n"), [(0, 0), (0, 5), (5, 0)])
def test_empty(k: int, n: int) -> None:
    assert_weight(weight(k, n))


LARGE = [(4099, 300), (3, 20_001), (131_071, 2), (4096, 4096), (1111, 70_003), (131_071, 130)]


@pytest.mark.parametrize(("k", "n"), LARGE if not ON_CPU else LARGE[:3])
def test_large(k: int, n: int) -> None:
    b = weight(k, n)
    data = scaled_mm.pack_weight_int8(b.to(DEVICE)).data
    for layout in (ROW, COLUMN, Layout(pad=1), Layout("column", pad=1, offset=5)):
        placed = layout.place(b, "cpu")
        assert_weight(placed, layout)
        assert_packs(placed, data, layout)


@pytest.mark.parametrize("value", [-128, 127])
def test_largest_sums(value: int) -> None:
    b = torch.full((17, 131_071), value, dtype=torch.int8, device=DEVICE).t()
    for x in (b, b.contiguous(), scaled_mm.pack_weight_int8(b)):
        assert scaled_mm.azp_adj(x).tolist() == [[value * 131_071] * 17]


@pytest.mark.parametrize("form", [(), (1,), (1, 1), (1, 1, 1)])
def test_azp_of_any_one_element_shape(form: tuple[int, ...]) -> None:
    b = weight(9, 5)
    azp = torch.full(form, -7, dtype=torch.int32, device=DEVICE)
    assert_bits(scaled_mm.azp_with_adj(b.to(DEVICE), azp).cpu(), -7 * reference.azp_adj(b))


def test_quantised_weight_goes_straight_in() -> None:
    """w [N, K] quantised, transposed, packed and multiplied, all on the device."""
    w = torch.randn(70, 130, generator=torch.Generator().manual_seed(1))
    q, scale = scaled_mm.quantize_weight_int8(w.to(DEVICE))
    x = torch.randn(9, 130, generator=torch.Generator().manual_seed(2))
    a, scale_a, azp = scaled_mm.quantize_int8(x.to(DEVICE), symmetric=False)
    packed = scaled_mm.pack_weight_int8(q.t())
    zero = {"azp": azp, "azp_adj": scaled_mm.azp_adj(packed)}
    out = scaled_mm.scaled_mm(a, packed, scale_a, scale, **zero)
    q, scale = reference.quantize_weight_int8(w)
    a, scale_a, azp = reference.quantize_int8(x, symmetric=False)
    zero = {"azp": azp, "azp_adj": reference.azp_adj(q.t())}
    assert_bits(out.cpu(), reference.scaled_mm(a, q.t(), scale_a, scale, **zero))
