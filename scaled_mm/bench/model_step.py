"""What `scaled-mm bench --model` runs a model on, and what an eager token on a GPU is made of."""

from __future__ import annotations

import statistics
import time
from typing import Any

import torch
from torch import Tensor, nn

from .._extras import needed

STEP_FACTS = ("kernels", "us in kernels", "us of the host")
STEPS = 16  # timed, of the host


class Sequences:
    """A batch of sequences, and a cache for so many tokens of them and `room` more. What the cache
    holds are zeros: times do not depend on it."""

    def __init__(self, model: Any, batch: int, tokens: int, device: str, *, room: int) -> None:
        (transformers,) = needed("--model", "transformers")
        self.config = model.config
        generator = torch.Generator().manual_seed(batch)
        sizes = (batch, tokens)
        ids = torch.randint(0, self.config.vocab_size, sizes, generator=generator)
        self.ids = ids.to(device)
        self.cache: Any = None
        if room:
            self.cache = transformers.StaticCache(self.config, max_cache_len=tokens + room)
            self.step(model)  # which makes the cache's memory

    def go_to(self, length: int) -> None:
        """Lets the cache hold so many tokens, if there is one."""
        for layer in self.cache.layers if self.cache else ():
            layer.cumulative_length.fill_(length)

    def prefill(self, called: Any) -> Tensor:
        """Into a cache of its own."""
        return called(input_ids=self.ids, use_cache=True, logits_to_keep=1).logits

    def step(self, called: Any) -> Tensor:
        given = {"past_key_values": self.cache, "use_cache": True, "logits_to_keep": 1}
        return called(input_ids=self.ids[:, :1], **given).logits


def step_facts(model: nn.Module, behind: int) -> dict[str, float]:
    """Of a token of one sequence on a GPU in eager mode, the whole step's over the layers: kernels,
    the time that they take, and that which the host takes to launch them."""
    sequences = Sequences(model, 1, behind, "cuda", room=STEPS + 2)
    sequences.go_to(behind)
    layers = sequences.config.num_hidden_layers
    host = []
    for _ in range(STEPS):
        torch.cuda.synchronize()
        start = time.perf_counter()
        sequences.step(model)
        host.append(time.perf_counter() - start)
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        sequences.step(model)
        torch.cuda.synchronize()
    kernels = [
        event
        for event in profile.events() or ()
        if "CUDA" in str(event.device_type) and not event.name.startswith("Mem")
    ]
    took = sum(event.time_range.elapsed_us() for event in kernels)
    facts = len(kernels), took, 1e6 * statistics.median(host)
    return {name: fact / layers for name, fact in zip(STEP_FACTS, facts, strict=True)}
