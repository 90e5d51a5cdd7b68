"""Products of several experts over random routings, and `scaled_mm` of each expert's rows."""

import functools
from typing import Any

import numpy as np
import torch
from torch import Tensor

import scaled_mm

Operands = dict[str, Any]
FLOATS = (torch.bfloat16, torch.float16, torch.float32)
OF_COLUMNS = ("scale_b", "bias", "azp_adj")
OF_A = ("scale_a", "azp")


def routing(rng: np.random.Generator, rows: int, experts: int) -> list[int]:
    """Where the rows of each expert end: empty ones, one with all, equal, Zipf, rows left over."""
    kind = rng.integers(5)
    if kind == 0:
        ends = np.where(np.arange(experts) >= rng.integers(experts), rows, 0)
    elif kind == 1:
        ends = rows * (np.arange(experts) + 1) // experts
    elif kind == 2:
        odds = 1 / (1 + rng.permutation(experts))
        ends = rng.multinomial(rows, odds / odds.sum()).cumsum()
    else:
        ends = np.sort(rng.integers(0, rows + 1, experts))
        if kind == 3:
            ends[-1] = rows
    return ends.tolist()


def operands_of(rng: np.random.Generator, most_rows: int = 60, wider: int = 1) -> Operands:
    """Random ones of every kind."""

    def chance() -> bool:
        return bool(rng.random() < 0.5)

    def int8(*shape: int) -> Tensor:
        return torch.from_numpy(rng.integers(-128, 128, shape, dtype=np.int8))

    def floats(*shape: int) -> Tensor:
        return torch.from_numpy(rng.standard_normal(shape, dtype=np.float32))

    def numbers(*shape: int) -> Tensor:
        return torch.from_numpy(rng.integers(-128, 128, shape, dtype=np.int32))

    tokens, experts = int(rng.integers(0, most_rows)), int(rng.integers(1, 20))
    n, k = 2 * int(rng.integers(1, 100 * wider)), int(rng.integers(0, 400 * wider))
    gathers = tokens > 0 and chance()
    m = int(rng.integers(0, 2 * most_rows)) if gathers else tokens
    out_dtype = FLOATS[rng.integers(3)]
    operands: Operands = {
        "a": int8(tokens, k),
        "b": int8(experts, n, k).transpose(1, 2) if chance() else int8(experts, k, n),
        "offsets": torch.tensor(routing(rng, m, experts), dtype=torch.int32),
        "scale_a": floats(tokens, 1) if chance() else floats(1),
        "scale_b": floats(experts, n),
        "out_dtype": out_dtype,
    }
    if gathers:
        operands["rows"] = torch.from_numpy(rng.integers(0, tokens, m, dtype=np.int32))
    if chance():
        operands["bias"] = floats(experts, n).to(out_dtype if chance() else torch.float32)
    if chance():
        operands |= {"azp": numbers(tokens), "azp_adj": numbers(experts, n)}
    end = rng.integers(4)
    if end == 0:
        operands["residual"] = floats(m, n).to(out_dtype)
    elif end == 1:
        operands["activation"] = ("gelu", "swiglu", "reglu")[rng.integers(3)]
    elif end == 2:
        operands |= {"out_dtype": torch.int8, "out_scale": floats(m).abs(), "out_azp": numbers(m)}
    return operands


def packed(operands: Operands) -> Operands:
    """The same with the weight packed, where it lies."""
    return {**operands, "b": scaled_mm.pack_weight_int8(operands["b"])}


def one_by_one(operands: Operands) -> Tensor:
    """`scaled_mm` of each expert's rows."""
    own = {k: x for k, x in operands.items() if k not in ("offsets", "rows")}
    m = len(operands.get("rows", operands["a"]))
    rows = operands.get("rows", torch.arange(m))
    parts, begin = [], 0
    for e, end in enumerate(operands["offsets"].tolist()):
        at = slice(begin, end)
        parts.append(
            scaled_mm.scaled_mm(**{k: of_expert(k, x, e, at, rows) for k, x in own.items()})
        )
        begin = end
    found = torch.cat(parts)
    return torch.cat([found, found.new_zeros(m - begin, found.shape[1])])


def of_expert(name: str, x: Any, e: int, at: slice, rows: Tensor) -> Any:
    if name == "b" or name in OF_COLUMNS:
        return x[e]
    if name == "a" or (name in OF_A and x.numel() > 1):
        return x[rows[at].long()]
    return x[at] if name in ("residual", "out_scale", "out_azp") else x


@functools.cache
def cases(count: int) -> list[Operands]:
    rng = np.random.default_rng(7)
    return [operands_of(rng, most_rows=300 if i % 3 == 0 else 40) for i in range(count)]


@functools.cache
def large_cases(count: int) -> list[Operands]:
    """Blocks that stay have several tiles of these each."""
    rng = np.random.default_rng(8)
    return [operands_of(rng, most_rows=2000, wider=5) for _ in range(count)]
