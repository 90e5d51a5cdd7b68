"""Layers of experts on the GPU: the CPU's bits, without a wait for the device, in graphs that are
replayed with other routings, compiled; and models that have them."""

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from cuda_support import DEVICE, GPU, ON_CPU, streams_only
from helpers import assert_bits
from test_experts import IDS, MODELS, E, experts_of, logits, routed, tiny
from torch import Tensor

from scaled_mm import QuantConfig, load_quantized, quantize_model, save_quantized
from scaled_mm.nn import ScaledExperts

pytestmark = GPU
USUAL = [name for name in MODELS if name != "GptOssForCausalLM"]  # whose gate torch computes
SCHEMES = ["W8A8", "dynamic-asymmetric", "static-asymmetric", "static-rotate16"]
Given = tuple[Tensor, Tensor, Tensor]


def both(name: str, scheme: str, dtype: torch.dtype = torch.bfloat16) -> tuple[Any, Any]:
    """A model's experts here and on the device."""
    made = experts_of(quantize_model(tiny(name, dtype), QuantConfig(scheme), [IDS]))
    return made, copy.deepcopy(made).to(DEVICE)


def inputs(tokens: int, dtype: torch.dtype = torch.bfloat16) -> Given:
    index, weights = (x[1:] for x in routed(tokens + 1))
    return torch.randn(tokens, 32, dtype=dtype), index, weights.to(dtype)


def moved(given: Given) -> Given:
    x, index, weights = (x.to(DEVICE) for x in given)
    return x, index, weights


@contextmanager
def no_waits() -> Iterator[None]:
    """Whatever waits for the device fails."""
    if not ON_CPU:
        torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        if not ON_CPU:
            torch.cuda.set_sync_debug_mode("default")


@torch.inference_mode()
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("name", USUAL)
def test_the_bits_of_the_cpu(name: str, scheme: str, dtype: torch.dtype) -> None:
    here, there = both(name, scheme, dtype)
    there(*moved(inputs(3, dtype)))  # loads the kernels
    for tokens in (0, 1, 2, 33, 300):
        given = inputs(tokens, dtype)
        on_gpu = moved(given)
        with no_waits():
            y = there(*on_gpu)
        assert_bits(y.cpu(), here(*given), tokens)


@streams_only
@torch.inference_mode()
@pytest.mark.parametrize("scheme", SCHEMES)
def test_graphs_are_replayed_with_other_routings(scheme: str) -> None:
    here, there = both("Qwen3MoeForCausalLM", scheme)
    for tokens in (1, 40):
        at = moved(inputs(tokens))
        there(*at)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = there(*at)
        for turn in range(4):
            x, index, weights = inputs(tokens)
            given = x, (index + turn) % E, weights
            for to, new in zip(at, given, strict=True):
                to.copy_(new)
            graph.replay()
            assert_bits(y.cpu(), here(*given), tokens, turn)


@torch.inference_mode()
@pytest.mark.parametrize("scheme", ["W8A8", "static-asymmetric"])
def test_compiled(scheme: str) -> None:
    torch.compiler.reset()
    here, there = both("MixtralForCausalLM", scheme)
    compiled = torch.compile(there, fullgraph=True, dynamic=True)
    for tokens in (5, 9, 70):
        given = inputs(tokens)
        assert_bits(compiled(*moved(given)).cpu(), here(*given), tokens)


@torch.inference_mode()
def test_numbers_that_name_no_expert() -> None:
    here, there = both("MixtralForCausalLM", "W8A8")
    x, index, weights = inputs(5)
    weights[:, 1], index[:, 1] = 0, E
    assert_bits(there(*moved((x, index, weights))).cpu(), here(x, index, weights))


@pytest.mark.parametrize("name", MODELS)
def test_a_model_is_near_the_one_on_the_cpu(name: str, tmp_path: Path) -> None:
    model = tiny(name)
    here = quantize_model(model)
    there = quantize_model(copy.deepcopy(model).to(DEVICE))
    for key, x in there.state_dict().items():
        assert_bits(x.cpu(), here.state_dict()[key], key)
    got = there(IDS.to(DEVICE)).logits.cpu()
    assert torch.cosine_similarity(got, logits(here), dim=-1).min() >= 0.999
    save_quantized(there, tmp_path)
    loaded = load_quantized(copy.deepcopy(model).to(DEVICE), tmp_path)
    assert any(isinstance(module, ScaledExperts) for module in loaded.modules())
    assert_bits(loaded(IDS.to(DEVICE)).logits.cpu(), got)


@torch.inference_mode()
@pytest.mark.parametrize("name", ["Qwen3MoeForCausalLM", "MixtralForCausalLM", "OlmoeForCausalLM"])
def test_generates_what_the_cpu_finds_likely(name: str) -> None:
    here = quantize_model(tiny(name))
    there = copy.deepcopy(here).to(DEVICE)
    count, prompt = 8, IDS[:1, :5]
    options = {"max_new_tokens": count, "do_sample": False, "eos_token_id": None}
    seen = torch.ones_like(prompt).to(DEVICE)  # or a prompt's token may be taken for padding
    written = there.generate(prompt.to(DEVICE), attention_mask=seen, **options).cpu()
    assert written.shape == (1, 5 + count)
    found = here(written).logits[0, 4:-1]
    chosen = found.gather(1, written[0, 5:, None])[:, 0]
    highest = found.max(-1).values
    assert bool((chosen >= highest - 0.02 * (highest - found.mean(-1))).all())
