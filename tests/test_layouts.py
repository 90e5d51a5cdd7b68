"""Weights laid out for TensorRT-LLM's and FasterTransformer's mixed GEMM, and read back."""

import numpy as np
import pytest
import torch
from helpers import refuses
from torch import Tensor

from scaled_mm import compat, layouts

prepare = layouts.preprocess_weights_for_mixed_gemm
restore = layouts.restore_weights_of_mixed_gemm
SMS = [75, 80, 86, 89, 90, 100, 103, 120]
KINDS = [(8, 16), (4, 16), (4, 8)]  # bits of a value, of an activation


def weight(*shape: int, bits: int, seed: int = 0) -> Tensor:
    half = 1 << (bits - 1)
    values = np.random.default_rng(seed).integers(-half, half, shape, np.int8)
    return torch.from_numpy(values)


def test_the_published_bytes_of_int4() -> None:
    packed = layouts.pack_int4(torch.arange(-8, 8, dtype=torch.int8))
    assert packed.tolist() == [-104, -70, -36, -2, 16, 50, 84, 118]
    step = layouts.bias_and_interleave(torch.arange(-8, 8, dtype=torch.int8), 4)
    assert layouts.pack_int4(step).tolist() == [32, 100, 49, 117, -88, -20, -71, -3]


def test_the_published_orders_of_rows() -> None:
    assert layouts.row_order(8) == [0, 1, 8, 9, 2, 3, 10, 11, 4, 5, 12, 13, 6, 7, 14, 15]
    # fmt: off
    assert layouts.row_order(4) == [
        0, 1, 8, 9, 16, 17, 24, 25, 2, 3, 10, 11, 18, 19, 26, 27,
        4, 5, 12, 13, 20, 21, 28, 29, 6, 7, 14, 15, 22, 23, 30, 31,
    ]
    assert layouts.row_order(4, 8) == [
        0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23,
        8, 9, 10, 11, 24, 25, 26, 27, 12, 13, 14, 15, 28, 29, 30, 31,
    ]
    # fmt: on


# --- the whole, against the engines' loops, written element by element ----------------------------


def by_loops(q: Tensor, layout: layouts.Layout) -> bytes:
    """What the engines' C++ does, an element at a time: -> the bytes in memory."""
    k, n = q.shape
    bits, in_word = layout.bits, 32 // layout.bits
    w = 32 // layout.activation_bits
    words = [0] * (k * n // in_word)
    for row in range(k):
        source = row
        if layout.permuted:
            base, t = row - row % layout.block_rows, row % layout.block_rows
            source = base + 4 * w * ((t % in_word) // w) + t % w + w * (t // in_word)
        for col in range(n):
            value = int(q[source, col])
            vector, place = divmod(row, in_word)  # of the channel's words
            if layout.columns > 1:
                tile = layout.tile_rows // in_word
                first = vector - vector % tile
                within = layout.columns * first + tile * (col % layout.columns) + vector % tile
                at = col // layout.columns * layout.columns * (k // in_word) + within
            else:
                at = col * (k // in_word) + vector
            if layout.biased:
                value += 1 << (bits - 1)
                place = (
                    place // 2 + in_word // 2 * (place % 2) if bits == 4 else (0, 2, 1, 3)[place]
                )
            words[at] |= (value & (1 << bits) - 1) << bits * place
    return b"".join(word.to_bytes(4, "little") for word in words)


@pytest.mark.parametrize(("bits", "activation_bits"), KINDS)
@pytest.mark.parametrize("interleave", [True, False])
@pytest.mark.parametrize("sm", SMS)
def test_every_layout_against_loops_and_back(
    sm: int, interleave: bool, bits: int, activation_bits: int
) -> None:
    layout = layouts.layout_of(
        sm, bits=bits, activation_bits=activation_bits, interleave=interleave
    )
    q = weight(256, 16, bits=bits, seed=sm)
    prepared = prepare(q, layout)
    assert prepared.shape == (256, 16 * bits // 8)
    assert prepared.is_contiguous()
    assert bytes(prepared.view(torch.uint8).flatten().tolist()) == by_loops(q, layout)
    assert torch.equal(restore(prepared, layout), q)


def test_the_layouts_of_the_gpus_differ() -> None:
    q = weight(128, 8, bits=4)
    prepared = {sm: prepare(q, layouts.layout_of(sm, bits=4)) for sm in (80, 90, 100)}
    for one, other in ((80, 90), (90, 100), (80, 100)):
        assert not torch.equal(prepared[one], prepared[other])
    assert layouts.layout_of(120, bits=4) == layouts.layout_of(75, bits=4)
    assert layouts.layout_of(90, bits=4, experts=True) == layouts.layout_of(80, bits=4)


@pytest.mark.parametrize("bits", [8, 4])
def test_experts_are_prepared_one_by_one(bits: int) -> None:
    q = weight(3, 64, 16, bits=bits)
    layout = layouts.layout_of(80, bits=bits, experts=True)
    prepared = prepare(q, layout)
    for expert in range(3):
        alone = prepare(q[expert], layout)
        assert torch.equal(prepared[expert], alone)
    assert torch.equal(restore(prepared, layout), q)


def test_any_strides_and_every_value() -> None:
    q = weight(64, 256, bits=8).t()[::2][:, :64]
    layout = layouts.layout_of(80, bits=8)
    prepared = prepare(q, layout)
    assert torch.equal(prepared, prepare(q.contiguous(), layout))
    every = torch.arange(-128, 128).to(torch.int8).repeat(8, 1).t()
    back = restore(prepare(every, layout), layout)
    assert torch.equal(back, every)


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_the_quantiser_of_the_engines(bits: int, dtype: torch.dtype) -> None:
    half = 1 << (bits - 1)
    w = torch.from_numpy(np.random.default_rng(1).normal(size=(64, 24)).astype(np.float32))
    w[:, 3] = 0
    w[0, 5] = w.abs().amax() * 2  # the largest is positive: clipped
    w = w.to(dtype)
    q, scale = layouts.quantize_symmetric(w, bits=bits)
    wide = w.float().numpy()
    exact = np.abs(wide).max(0) / np.float32(half)
    assert scale.dtype == dtype
    assert torch.equal(scale, torch.from_numpy(exact).to(dtype))
    ratio = np.divide(wide, exact, out=np.zeros_like(wide), where=exact > 0)
    away = np.sign(ratio) * np.floor(np.abs(ratio.astype(np.float64)) + 0.5)
    assert np.array_equal(q.numpy(), np.clip(away, -half, half - 1).astype(np.int8))
    assert int(q[0, 5]) == half - 1
    assert not q[:, 3].any()


def test_halves_go_away_from_zero() -> None:
    # scale is 128 / 128 = 1; 0.49999997 + 0.5 would round to 1
    w = torch.tensor([[-128.0], [0.5], [1.5], [2.5], [-0.5], [-2.5], [0.49999997]])
    assert layouts.quantize_symmetric(w, bits=8)[0].flatten().tolist() == [-128, 1, 2, 3, -1, -3, 0]


def test_values_are_made_with_the_scale_before_it_is_rounded() -> None:
    w = torch.tensor([[3.0], [-2.0]]).mul(2.0**-24).half()  # the scale, 3/8 2^-24, rounds to 0
    q, scale = layouts.quantize_symmetric(w, bits=4)
    assert scale.item() == 0
    assert q.flatten().tolist() == [7, -5]


def test_fp8_activations_have_wider_tiles() -> None:
    q = weight(128, 16, bits=4)
    got = compat.preprocess_weights_for_mixed_gemm(
        layouts.pack_int4(q), torch.quint4x2, torch.float8_e4m3fn, 89
    )
    layout = layouts.layout_of(89, bits=4, activation_bits=8)
    assert (layout.columns, layout.tile_rows) == (2, 128)
    assert torch.equal(restore(got, layout), q)


EIGHT, FOUR = layouts.layout_of(80, bits=8), layouts.layout_of(80, bits=4)
REFUSED = {
    "sm must be 75 or more, got 70": lambda: layouts.layout_of(70, bits=8),
    "bits and activation_bits must be .* got 2 and 16": lambda: layouts.layout_of(80, bits=2),
    ".*, got 8 and 8": lambda: layouts.layout_of(80, bits=8, activation_bits=8),
    "K must be a multiple of 64, got 32": lambda: prepare(weight(32, 8, bits=8), EIGHT),
    "N must be a multiple of 8, got 12": lambda: prepare(weight(64, 12, bits=8), EIGHT),
    "q must be int8 .* got float32 of shape \\(64, 8\\)": lambda: prepare(
        weight(64, 8, bits=8).float(), EIGHT
    ),
    "q must be in -8..7, got 8..8": lambda: prepare(torch.full((64, 8), 8, dtype=torch.int8), FOUR),
    "prepared must be int8 of 2 dimensions or more, got float32": lambda: restore(
        torch.zeros(64, 8), EIGHT
    ),
    "q must be int8 with an even": lambda: layouts.pack_int4(torch.zeros(3, dtype=torch.int8)),
    "packed must be int8": lambda: layouts.unpack_int4(torch.zeros(4)),
    "bits must be 4 or 8, got 2": lambda: layouts.quantize_symmetric(torch.ones(2, 2), bits=2),
    "w must be floating .* got int8": lambda: layouts.quantize_symmetric(
        torch.ones(2, dtype=torch.int8), bits=8
    ),
    "w must be finite": lambda: layouts.quantize_symmetric(torch.full((2, 2), torch.inf), bits=8),
    "quant_mode must be int8 or quint4x2, got uint8": lambda: (
        compat.preprocess_weights_for_mixed_gemm(
            weight(64, 8, bits=8), torch.uint8, torch.float16, 80
        )
    ),
}
test_refusals = refuses(REFUSED)


def test_the_current_gpu_is_asked_where_no_sm_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    q = weight(64, 8, bits=8)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ValueError, match="sm_ must be given where there is no GPU, got -1"):
        compat.preprocess_weights_for_mixed_gemm(q, torch.int8, torch.float16)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))
    got = compat.preprocess_weights_for_mixed_gemm(q, torch.int8, torch.float16)
    layout = layouts.layout_of(90, bits=8)
    assert torch.equal(got, prepare(q, layout))
