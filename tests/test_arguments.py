"""Whatever an argument is: the newest functions take it, or raise ValueError or TypeError."""

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from argument_cases import (
    BYTES,
    CALLS,
    HALF,
    NUMBERS,
    PLAIN,
    WEIGHT,
    G,
    K,
    N,
    halves,
    tensors,
    whole,
    words,
)  # fmt: skip
from helpers import assert_bits, rows
from torch import Tensor

import scaled_mm
from scaled_mm import layouts
from scaled_mm.nn import ScaledLinear, WeightOnlyLinear

RULE = re.compile(r"[\w. ]+ must |The truth value of an array")  # numpy's own, where it is compared


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", CALLS)
def test_any_argument(name: str) -> None:
    """Nothing but the two errors that are promised, in the words of a rule, and no crash."""
    function, good = CALLS[name]
    function(**good)
    refused = 0
    for argument in good:
        for value in (*PLAIN, *(() if argument in NUMBERS else tensors())):
            try:
                function(**{**good, argument: value})
            except (ValueError, TypeError) as refusal:
                assert RULE.match(str(refusal)), (argument, value)
                refused += 1
            except Exception as error:
                error.add_note(f"{name}: {argument}={value!r}")
                raise
    assert refused > 10 * len(good)


# ---- What was found, by name ---------------------------------------------------------------------

REFUSED: dict[str, Any] = {  # how the message begins: the call, and what is changed in it
    "qweight must be int32 of two": ("from_gptq-8", {"qweight": words(8, N).long()}),
    "version must be 1": ("from_gptq", {"version": True}),
    "qzeros must": ("from_gptq", {"qweight": words(1, 1).expand(8, 2**40)}),
    "out_features must be an int": ("ScaledLinear", {"out_features": 4.0}),
    "group must divide K=64": ("by-hand", {"group": 3}),
    "data must": [
        ("by-hand", {"data": WEIGHT.data.repeat_interleave(2)[::2]}),
        ("by-hand", {"data": torch.cat((WEIGHT.data[:1], WEIGHT.data))[1:]}),
    ],
    "order must": [
        ("by-hand-ordered", {"order": torch.arange(K - 1, dtype=torch.int32)}),
        ("by-hand-ordered", {"order": torch.full((K,), K, dtype=torch.int32)}),
    ],
    "qzeros must hold 16 values of 4": ("from_gptq", {"qzeros": words(2, 4)}),
    "weight_packed must hold 32": ("from_compressed_tensors", {"k": 32}),
    "weight_zero_point must": ("from_compressed_tensors", {"weight_zero_point": words(K, 2)}),
    "weight_scale must": ("from_compressed_tensors", {"weight_scale": halves(N)}),
    "q must": (
        "pack_weight",
        {"q": torch.ones(K, N, dtype=torch.int8, device="meta")}
        | {"scales": torch.ones(2, N, dtype=HALF, device="meta")},
    ),
    "g_idx must be an integer": ("pack_weight", {"g_idx": torch.arange(K) >= G}),
    "g_idx must": ("pack_weight", {"g_idx": torch.ones(K, dtype=torch.int32, device="meta")}),
    "symmetric must be a bool": ("gelu", {"symmetric": "no"}),
    "rotate must be an int or None": ("gelu", {"rotate": True}),
    "normed must be a bool": ("layer_norm", {"normed": 1}),
    "per_token must be a bool": ("quantize_int8", {"per_token": "tensor"}),
    "x must be floating": ("forward", {"x": torch.ones(3, K, dtype=torch.int64)}),
    "smooth must be positive and": ("from_linear", {"smooth": torch.ones(0)}),
}


@pytest.mark.parametrize(("message", "given"), rows(REFUSED))
def test_refused(message: str, given: tuple[str, dict[str, Any]]) -> None:
    function, good = CALLS[given[0]]
    with pytest.raises((ValueError, TypeError), match=f"^{re.escape(message)}"):
        function(**{**good, **given[1]})


def test_scales_of_a_weight_without_rows() -> None:
    """It has no groups, whatever rows of scales it is given with: those of a channel, too."""
    for scales in (halves(N), halves(1, N), halves(3, N), halves(0, N)):
        w = scaled_mm.pack_weight(whole(0, N), scales, bits=4)
        assert w.group == 0 and w.unpack().scales.shape == (0, N)
        assert_bits(scaled_mm.mixed_mm(halves(2, 0), w), torch.zeros(2, N, dtype=HALF))


def test_scales_that_are_kept_negated() -> None:
    scales = halves(2, N)
    lazily = scaled_mm.pack_weight(whole(K, N), torch._neg_view(scales), bits=4)
    assert_bits(lazily.unpack().scales, -scales)


TANGENTS: dict[str, Callable[[Tensor], Tensor]] = {
    "mixed_mm": lambda x: scaled_mm.mixed_mm(x, WEIGHT),
    "pre_scale": lambda x: scaled_mm.mixed_mm(halves(3, K), WEIGHT, pre_scale=x[0]),
    "pack_weight": lambda x: scaled_mm.pack_weight(whole(K, K), x[:2], bits=8).data,
    "awq_gemm": lambda x: scaled_mm.awq_gemm(x, words(K, 2), halves(2, N), words(2, 2)),
    "scaled_mm": lambda x: scaled_mm.scaled_mm(*[*BYTES.values()][:3], x[0, :1].float()),
    "residual": lambda x: scaled_mm.scaled_mm(**BYTES, residual=x[:, :N].float()),
    "quantize_int8": lambda x: scaled_mm.quantize_int8(x)[1],
    "rms_norm": lambda x: scaled_mm.rms_norm_quantize_int8(x, None, 1e-5)[1],
    "quantize_symmetric": lambda x: layouts.pack_int4(x.to(torch.int8)).to(HALF) * 0 + x[:, ::2],
    "WeightOnlyLinear": WeightOnlyLinear.from_weight(WEIGHT),
    "ScaledLinear": ScaledLinear.from_linear(torch.nn.Linear(K, N)),
}


@pytest.mark.parametrize("name", TANGENTS)
def test_forward_mode_derivatives_are_refused(name: str) -> None:
    """The ops do not see a tangent: it would count as zero, without a word."""
    x, function = halves(3, K), TANGENTS[name]
    if name == "quantize_symmetric":  # what has nothing to do with the tangent is as ever
        assert torch.equal(torch.func.jvp(function, (x,), (x,))[1], x[:, ::2])
        return
    with pytest.raises(ValueError, match=r"^\w+ must not have a tangent .*, got a dual tensor$"):
        torch.func.jvp(function, (x,), (x,))
    with torch.autograd.forward_ad.dual_level():  # a tensor without a tangent is as ever
        assert_bits(function(x), function(x.clone()))
