"""`scaled-mm bench --grouped`: a block of experts, from the router's choice to the sum of what the
experts made of each token.

    sort, quantise, gate and up, SiLU product, quantise, down, combine

Each contender has the same bfloat16 weights, in its own form. Experts are drawn anew for each call
of a round, so that their weights come from memory.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import torch

from .cases import Common
from .clocks import Clock, Stopwatch, clock_of
from .grouped_contenders import CONTENDERS, JUDGED, Block, Run, Stacks, Tokens
from .layer import DTYPE
from .measure import empty_result, row_table, timed_rows

TOKENS = (1, 16, 64, 256, 1024, 4096)
BLOCKS = {
    "mixtral-8x7b": Block(8, 2, 4096, 14336),
    "qwen3-30b-a3b": Block(128, 8, 2048, 768),
    "deepseek-v3": Block(256, 8, 7168, 2048),
}


@dataclass(frozen=True)
class GroupedSettings(Common):
    """What to measure."""

    blocks: tuple[str, ...]


# --- measuring ------------------------------------------------------------------------------------


def drawn(block: Block, count: int, device: str, seed: int) -> Tokens:
    """Tokens whose experts are equally likely."""
    random = torch.Generator(device).manual_seed(seed)
    given: dict[str, Any] = {"generator": random, "device": device}
    x = torch.randn(count, block.hidden, **given).to(DTYPE)
    scores, index = torch.rand(count, block.experts, **given).topk(block.top_k)
    ends = index.flatten().bincount(minlength=block.experts).cumsum(0).tolist()
    return Tokens(x, index, scores.softmax(-1).to(DTYPE), ends)


def hit(tokens: Tokens) -> int:
    """Experts that have a row."""
    return len(set(tokens.ends) - {0})


def int8_bytes(block: Block, experts: float) -> float:
    return 3 * experts * block.hidden * block.inner


@torch.inference_mode()
def measure(
    settings: GroupedSettings,
    stacks: Stacks,
    contenders: Mapping[str, Callable[[], Run]],
    count: int,
    clock: Clock,
) -> dict[str, Any]:
    """The case of so many tokens: rows of the contenders, in microseconds, and the relative
    distance of the first tokens' output from the float32 block's."""
    block = stacks.block
    first = drawn(block, count, settings.device, 0)
    copies = clock.weight_copies(int(int8_bytes(block, hit(first))))
    given = [first, *(drawn(block, count, settings.device, i) for i in range(1, copies))]
    exact = stacks.exact(first)

    def ready(prepared: Callable[[], Run]) -> tuple[Stopwatch, float]:
        run = prepared()
        error = float((run(first)[:JUDGED].float() - exact).norm() / exact.norm())
        return clock.stopwatch([partial(run, tokens) for tokens in given]), error

    able = {name: partial(ready, prepared) for name, prepared in contenders.items()}
    rows = timed_rows(able, settings.rounds, clock.budget_seconds)
    experts = statistics.mean(map(hit, given))
    size = int8_bytes(block, experts)
    floor = 1e6 * size / clock.bandwidth if clock.bandwidth else None
    return {"tokens": count, "hit": experts, "weight_bytes": size, "floor_us": floor, "rows": rows}


def growing(
    settings: GroupedSettings,
    every_count: Sequence[int] = (),
    progress: Callable[[str], None] = lambda _: None,
) -> Iterator[dict[str, Any]]:
    """The result, JSON-ready: a case for each block and count of tokens; as far as it is, after
    every one."""
    clock = clock_of(settings.device)
    result = {**empty_result(settings, clock), "blocks": []}
    for name in settings.blocks:
        progress(f"{name}: weights")
        stacks = Stacks(BLOCKS[name].on(settings.device), settings.device)
        contenders = {
            contender.name: cache(partial(contender.prepare, stacks))
            for contender in CONTENDERS
            if settings.device in contender.devices and contender.name not in settings.without
        }
        for count in every_count or TOKENS:
            progress(f"{name}: {count} tokens")
            case = measure(settings, stacks, contenders, count, clock)
            result["blocks"].append({"block": name, **case})
            clock.clear()
            yield result
        del stacks, contenders
        torch.compiler.reset()
        clock.clear()


# --- the tables -----------------------------------------------------------------------------------


def ratios(cases: Sequence[dict[str, Any]], name: str = "") -> list[float | None]:
    """Time of a contender, or of the best of the others, over ours."""
    found: list[float | None] = []
    for case in cases:
        us = {row["name"]: row["microseconds"] for row in case["rows"] if row["microseconds"]}
        ours = us.pop("ours", None)
        other = us.get(name) if name else min(us.values(), default=None)
        found.append(other / ours if other and ours else None)
    return found


def _ratio_row(title: str, found: Sequence[float | None]) -> list[str]:
    there = [ratio for ratio in found if ratio]
    last = f"geomean {math.exp(statistics.mean(map(math.log, there))):.2f}x" if there else ""
    return [title, *(f"{ratio:.2f}x" if ratio else "-" for ratio in found), last]


def tables(result: dict[str, Any]) -> Iterator[tuple[str, list[list[str]]]]:
    """Title and rows, the header first, for each block."""
    for name in dict.fromkeys(case["block"] for case in result["blocks"]):
        cases = [case for case in result["blocks"] if case["block"] == name]
        rows = row_table([f"T={case['tokens']}" for case in cases], cases)
        if cases[0]["floor_us"]:
            floors = [f"{case['floor_us']:.1f}" for case in cases]
            rows.append(["HBM floor", *floors, "int8 weights of the experts hit, once"])
        for other in cases[0]["rows"][1:]:
            rows.append(_ratio_row(f"{other['name']} / ours", ratios(cases, other["name"])))
        rows.append(_ratio_row("best other / ours", ratios(cases)))
        block = BLOCKS[name].on(result["settings"]["device"])
        yield (
            f"{name}: {block.experts} experts, top {block.top_k}, "
            f"H={block.hidden} I={block.inner}, us",
            rows,
        )
