"""`pack_weight`: what was packed comes back, from every packing of others too, and what is none is
refused (values: test_mixed_values.py; products: test_mixed.py)."""

import copy
import itertools
import pickle
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from awq_cases import AwqCase
from helpers import ISAS, assert_bits, each_isa, refuses
from mixed_cases import DTYPES, KINDS, MIXED_CASES, MixedCase
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import scaled_mm
from scaled_mm import MixedWeight, awq, layouts, pack_weight, reference
from scaled_mm.lowbit.words import pack_dense
from scaled_mm.ops.packed_weight import settle

pytestmark = pytest.mark.usefixtures("poisoned")
dtypes = pytest.mark.parametrize("dtype", DTYPES)
kinds = pytest.mark.parametrize(("bits", "zero"), KINDS)


@pytest.mark.parametrize("name", MIXED_CASES)
def test_there_and_back(name: str) -> None:
    case = MIXED_CASES[name]
    plain = case.plain()
    w = pack_weight(**plain)
    assert (w.shape, w.dtype, w.bits, w.zero) == ((case.k, case.n), case.dtype, *_kind(case))
    q, scales, zeros, order = w.unpack()
    rows = torch.arange(case.k) if order is None else order.long()
    assert_bits(q, plain["q"][rows])
    assert_bits(scales, plain["scales"])
    assert_bits(zeros, plain.get("zeros"))
    g_idx = plain.get("g_idx", torch.arange(case.k) // max(1, case.group))
    assert torch.equal(w.g_idx(), g_idx.int())
    assert (order is not None) == case.shuffled
    for x in (q, scales, zeros):
        assert x is None or x.is_contiguous()


def _kind(case: MixedCase) -> tuple[int, str]:
    return case.bits, case.zero


@pytest.mark.parametrize("name", [n for n in MIXED_CASES if "-scales-" in n or "-k" in n])
def test_dequantized(name: str) -> None:
    case = MIXED_CASES[name]
    plain = case.plain()
    w = pack_weight(**plain)
    expected = reference.mixed_dequantize(plain["q"], plain["scales"], plain.get("zeros"))
    for isa in each_isa():
        assert_bits(w.dequantize(), expected, isa)


def assert_same_weight(got: MixedWeight, expected: MixedWeight) -> None:
    assert got.sizes == expected.sizes
    assert_bits(got.data, expected.data)
    assert_bits(got.order, expected.order)


def test_from_awq() -> None:
    words = AwqCase("from-awq", 96, 40, 32).weight()
    w = MixedWeight.from_awq(**words)
    assert_bits(w.dequantize(), scaled_mm.awq_dequantize(**words))
    with pytest.warns(FutureWarning, match="^pack_awq is deprecated: use MixedWeight.from_awq$"):
        assert_bits(w.data, scaled_mm.pack_awq(**words).data)


@pytest.mark.parametrize("act_order", [False, True])
@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("bits", [4, 8])
def test_from_gptq(bits: int, version: int, act_order: bool) -> None:
    plain = MixedCase("gptq", bits, "integer", 96, 24, 32, shuffled=act_order).plain()
    plain["zeros"][0, :3] = torch.tensor([0, 1, (1 << bits) - 1])
    stored = (plain["zeros"] - (2 - version)) & (1 << bits) - 1
    qweight = pack_dense(plain["q"].t(), bits).t().contiguous()
    qzeros = pack_dense(stored, bits)
    g_idx = plain.get("g_idx")
    options = {"version": version, "bits": bits}
    w = MixedWeight.from_gptq(qweight, plain["scales"], qzeros, g_idx, **options)
    assert_same_weight(w, pack_weight(**plain))
    if bits == 4:  # what reads GPTQ's words for AWQ's kernels says the same
        known = awq.from_gptq(qweight, plain["scales"], qzeros, g_idx, version=version)
        assert_bits(w.dequantize(), known.dequantize())


@pytest.mark.parametrize("zero", ["none", "integer"])
@pytest.mark.parametrize("bits", [4, 8])
def test_from_compressed_tensors(bits: int, zero: str) -> None:
    """K of no whole word, as the format allows."""
    plain = MixedCase("compressed", bits, zero, 90, 21, 30, torch.bfloat16).plain()
    half = 1 << (bits - 1)
    unsigned = plain["q"] if zero == "integer" else (plain["q"].int() + half).to(torch.uint8)
    packed = pack_dense(unsigned.t(), bits)
    assert packed.shape == (21, -(-90 * bits // 32))
    stored = None if zero == "none" else pack_dense(plain["zeros"], bits).t()
    w = MixedWeight.from_compressed_tensors(
        packed, plain["scales"].t().contiguous(), stored, bits=bits, k=90
    )
    assert_same_weight(w, pack_weight(**plain))


@pytest.mark.parametrize("zero", ["none", "float"])
@pytest.mark.parametrize("sm", [80, 90])
@pytest.mark.parametrize("bits", [4, 8])
def test_from_tensorrt_llm(bits: int, sm: int, zero: str) -> None:
    plain = MixedCase("trt", bits, zero, 128, 64, 64).plain()
    for interleave in (False, True):
        layout = layouts.layout_of(sm, bits=bits, interleave=interleave)
        prepared = layouts.preprocess_weights_for_mixed_gemm(plain["q"], layout)
        w = MixedWeight.from_tensorrt_llm(
            prepared, plain["scales"], plain.get("zeros"), layout=layout
        )
        assert_same_weight(w, pack_weight(**plain))


GOOD = MixedCase("good", 4, "integer", 64, 8, 16).plain()
SIGNED = MixedCase("good", 4, "float", 64, 8, 16).plain()
UNEVEN = torch.tensor([0] * 17 + [1] * 15 + [2] * 16 + [3] * 16)
REFUSED = {
    "bits must be 4 or 8, got 3": {**GOOD, "bits": 3},
    "q must be uint8 [K, N] with integer": {**GOOD, "q": GOOD["q"].view(torch.int8)},
    "q must be int8 [K, N] without integer zeros, got": {**SIGNED, "q": GOOD["q"]},
    "q must be uint8 [K, N] with integer zeros, got uint8": {**GOOD, "q": GOOD["q"][0]},
    "q must be in 0..15, got ": {**GOOD, "q": GOOD["q"] | 16},
    "q must be in -8..7, got ": {**SIGNED, "q": SIGNED["q"].abs() + 1},
    "zeros must be in 0..15, got ": {**GOOD, "zeros": GOOD["zeros"] | 16},
    "scales must be float16 or": {**SIGNED, "scales": SIGNED["scales"].float()},
    "scales must be [K/G, N] with N=8 and G a": [
        {**GOOD, "scales": GOOD["scales"][:3]},
        {**GOOD, "scales": GOOD["scales"][:, 1:]},
    ],
    "scales must be [K/G, N] with N=8 and": {**GOOD, "scales": GOOD["scales"][:0]},
    "zeros must be uint8 or float16 of shape": {**GOOD, "zeros": GOOD["zeros"][1:]},
    "zeros must be uint8 or float": {**SIGNED, "zeros": SIGNED["zeros"].bfloat16()},
    "zeros must be uint8 or float16 of": {**GOOD, "zeros": GOOD["zeros"].int()},
    "scales must be on the device of q": {**GOOD, "scales": GOOD["scales"].to("meta")},
    "g_idx must be an integer tensor of shape": {**GOOD, "g_idx": torch.zeros(64)},
    "g_idx must be an integer tensor of": {**GOOD, "g_idx": torch.zeros(63).int()},
    "g_idx must be in 0..3, got 0..4": {**GOOD, "g_idx": torch.arange(64) // 15},
    "g_idx must give each of the 4 groups as many": {**GOOD, "g_idx": UNEVEN},
}
test_packing_refuses = refuses(REFUSED, pack_weight, literal=True)


def test_other_refusals() -> None:
    with pytest.raises(TypeError, match=r"^q must be a Tensor, got list$"):
        pack_weight([], GOOD["scales"], bits=4)
    scales = GOOD["scales"].clone().requires_grad_()
    with pytest.raises(ValueError, match=r"^scales must not require grad"):
        pack_weight(**{**GOOD, "scales": scales})
    w = pack_weight(**GOOD)
    with pytest.raises(ValueError, match=r"^version must be 1, .*, got 2$"):
        replace(w, version=2)
    with pytest.raises(
        ValueError, match=r"^data must be a buffer of .* of shape .*, got float16 of shape"
    ):
        replace(w, data=w.data[:-1]).unpack()
    words = torch.zeros(8, 8, dtype=torch.int32)
    with pytest.raises(ValueError, match=r"^version must be 1 .* or 2, got 3$"):
        MixedWeight.from_gptq(words, GOOD["scales"], words[:4, :1], version=3)


class Products(TorchDispatchMode):
    """Whether each mixed_mm was told that its weight may be read early."""

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if op.overloadpacket is torch.ops.scaled_mm.mixed_mm:
            self.told = kwargs.get("settled", args[8] if len(args) > 8 else False)
        return op(*args, **kwargs)


AWQ_WEIGHT = AwqCase("early", 64, 24, 32, torch.bfloat16).weight()
PRODUCTS: dict[str, tuple[Any, Callable[..., Tensor]]] = {
    "mixed_mm": (MixedWeight.from_awq(**AWQ_WEIGHT), scaled_mm.mixed_mm),
    "awq_gemm": (MixedWeight.from_awq(**AWQ_WEIGHT), scaled_mm.awq_gemm),
}


@pytest.mark.parametrize("name", PRODUCTS)
@pytest.mark.parametrize("into", [False, True])
def test_a_settled_weight_is_read_early_and_no_copy_of_it(name: str, into: bool) -> None:
    weight, product = PRODUCTS[name]
    x, out = torch.ones(2, 64).bfloat16(), torch.empty(2, 24).bfloat16() if into else None
    settled = replace(weight)
    settle(settled)
    others = (weight, replace(settled), settled.on(weight.data), copy.copy(settled))
    others += (copy.deepcopy(settled), pickle.loads(pickle.dumps(settled)))
    for w, early in ((settled, True), *((other, False) for other in others)):
        with Products() as products:
            product(x, w, out=out)
        assert products.told is early


def test_one_scale_for_each_channel() -> None:
    plain = MixedCase("channels", 8, "none", 64, 8, 64).plain()
    flat = {**plain, "scales": plain["scales"][0]}
    assert_same_weight(pack_weight(**flat), pack_weight(**plain))
    with_zeros = MixedCase("channels", 8, "float", 64, 8, 64).plain()
    flat = {**with_zeros, "scales": with_zeros["scales"][0], "zeros": with_zeros["zeros"][0]}
    assert_same_weight(pack_weight(**flat), pack_weight(**with_zeros))


@pytest.mark.parametrize("way", [copy.deepcopy, lambda w: pickle.loads(pickle.dumps(w))])
def test_copied(way: Any) -> None:
    w = pack_weight(**MixedCase("copied", 4, "float", shuffled=True).plain())
    assert_same_weight(way(w), w)


def test_strided_operands() -> None:
    plain = MixedCase("strided", 8, "integer", 64, 24, 16).plain()
    apart = {
        name: x.t().contiguous().t() if isinstance(x, Tensor) and x.dim() == 2 else x
        for name, x in plain.items()
    }
    assert not apart["q"].is_contiguous()
    assert_same_weight(pack_weight(**apart), pack_weight(**plain))


def test_the_bits_do_not_depend_on_the_instruction_set() -> None:
    """Where there is an fma, sums have one order: all instruction sets give the same bits."""
    fused = [isa for isa in ISAS if isa != "portable"]
    for bits, zero in itertools.product((4, 8), ("none", "float")):
        made, _ = MixedCase(f"isa-{bits}", bits, zero, 256, 136, 64, rows=(7,)).product()
        got = []
        for isa in fused:
            with scaled_mm._library.forced_cpu_isa(isa):
                got.append(scaled_mm.mixed_mm(**made))
        for one in got[1:]:
            assert_bits(one, got[0])
