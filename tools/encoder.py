"""How long an encoder of MiniLM's or BERT's shape takes on a GPU, with weights at random.

    python tools/encoder.py minilm 64 65        # or bert; sentences, tokens of the longest

Prints microseconds of a forward pass in one CUDA graph: bfloat16 and int8, eager and under
torch.compile. Medians of rounds in turn.
"""

from __future__ import annotations

import copy
import json
import statistics
import sys
from functools import partial
from typing import Any

import torch

from scaled_mm import QuantConfig, quantize_model
from scaled_mm.bench.clocks import CudaGraphClock
from scaled_mm.demo.bert import BertConfig, Encoder
from scaled_mm.integrations import inductor
from scaled_mm.quantization.observe import Call

CONFIGS = {
    "minilm": BertConfig(30522, 512, 2, 384, 1536, 6, 12, 1e-12),
    "bert": BertConfig(30522, 512, 2, 768, 3072, 12, 12, 1e-12),
}
ROUNDS = 9


def contenders(config: BertConfig, batch: tuple[Any, Any]) -> dict[str, Any]:
    """Name -> the encoder."""
    torch.manual_seed(0)
    encoder = Encoder(config).cuda().bfloat16().eval().requires_grad_(False)
    for weight in encoder.parameters():
        if weight.ndim > 1:
            weight.normal_(std=0.04)
    made = {"bf16": encoder}
    for scheme in ("dynamic", "static"):
        how = QuantConfig(scheme, targets=("layers.*",))
        made[scheme] = quantize_model(copy.deepcopy(encoder), how, [Call(batch, mask=batch[1])])
    compiled = {
        f"{name} compiled": torch.compile(
            model, dynamic=False, options=None if name == "bf16" else inductor.options()
        )
        for name, model in made.items()
    }
    return {**made, **compiled}


@torch.inference_mode()
def main(model: str, sentences: str, longest: str) -> None:
    count, length = int(sentences), int(longest)
    ids = torch.randint(0, 30000, (count, length), device="cuda")
    lengths = torch.linspace(length // 3, length, count, device="cuda")
    mask = torch.arange(length, device="cuda") < lengths[:, None]
    clock = CudaGraphClock()
    watches = {
        name: clock.stopwatch([partial(encoder, ids, mask)])
        for name, encoder in contenders(CONFIGS[model], (ids, mask)).items()
    }
    times: dict[str, list[float]] = {name: [] for name in watches}
    for turn in range(ROUNDS):
        for name in list(watches)[:: -1 if turn % 2 else 1]:
            times[name].append(1e6 * watches[name].seconds())
    print(json.dumps({name: round(statistics.median(each), 1) for name, each in times.items()}))


if __name__ == "__main__":
    main(*sys.argv[1:])
