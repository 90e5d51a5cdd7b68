"""Products of several experts by weights of few bits over random routings, and `mixed_mm` of each
expert's rows."""

import functools
from typing import Any

import numpy as np
import torch
from grouped_cases import routing
from mixed_cases import DTYPES, KINDS, MixedCase
from torch import Tensor

import scaled_mm

Operands = dict[str, Any]
ENDINGS = (None, "residual", "silu", "gelu", "swiglu", "geglu_tanh")


def operands_of(seed: int, most: int = 40, groups: tuple[int, ...] = (1, 10, 32)) -> Operands:
    """Random ones of every kind, the weight as arguments of `pack_weight`."""
    rng = np.random.default_rng(seed)

    def chance() -> bool:
        return bool(rng.random() < 0.5)

    def floats(*shape: int) -> Tensor:
        return torch.from_numpy(rng.standard_normal(shape, dtype=np.float32))

    (bits, zero), dtype = KINDS[seed % len(KINDS)], DTYPES[rng.integers(2)]
    experts, group = int(rng.integers(1, 12)), int(rng.choice(groups))
    k = group * int(rng.integers(1, 9))
    n = 2 * int(rng.integers(1, 140))
    scales = ("usual", "signed")[rng.integers(2)]
    shuffled = rng.random() < 0.2
    each = [
        MixedCase(f"{seed}-{e}", bits, zero, k, n, group, dtype, scales, shuffled=shuffled).plain()
        for e in range(experts)
    ]
    weight = {name: torch.stack([x[name] for x in each]) for name in each[0] if name != "bits"}
    tokens, gathers = int(rng.integers(0, most)), chance()
    gathers &= tokens > 0
    m = int(rng.integers(0, 2 * most)) if gathers else tokens
    operands: Operands = {
        "x": floats(tokens, k).to(dtype) if chance() else floats(k, tokens).t().to(dtype),
        "weight": {**weight, "bits": bits},
        "offsets": torch.tensor(routing(rng, m, experts), dtype=torch.int32),
    }
    if gathers:
        operands["rows"] = torch.from_numpy(rng.integers(0, tokens, m, dtype=np.int32))
    if chance():
        operands["bias"] = floats(experts, n).to(dtype if chance() else torch.float32)
    ending = ENDINGS[rng.integers(len(ENDINGS))]
    if ending == "residual":
        operands["residual"] = floats(m, n).to(dtype) if chance() else floats(n, m).t().to(dtype)
    elif ending:
        operands["activation"] = ending
    return operands


def packed(operands: Operands) -> Operands:
    """Arguments of `grouped_mixed_mm`."""
    rest = {name: x for name, x in operands.items() if name != "weight"}
    return {**rest, "w": scaled_mm.pack_weight(**operands["weight"])}


def plain(operands: Operands) -> Operands:
    """Those of the reference for the same, on the CPU."""
    weight = scaled_mm.pack_weight(**operands["weight"]).unpack()._asdict()
    return {name: x for name, x in operands.items() if name != "weight"} | weight


def to(device: str, operands: Operands) -> Operands:
    def moved(x: Any) -> Any:
        if isinstance(x, dict):
            return {name: moved(each) for name, each in x.items()}
        return x.to(device) if isinstance(x, Tensor) else x

    return {name: moved(x) for name, x in operands.items()}


def one_by_one(call: Any, operands: Operands) -> Tensor:
    """`call`, `mixed_mm` or the like, of each expert's rows; operands as `grouped_mixed_mm`'s or
    the reference's."""
    of_expert = ("w", "q", "scales", "zeros", "order", "bias")
    own = {k: x for k, x in operands.items() if k not in ("offsets", "rows")}
    x = own.pop("x")
    source = operands.get("rows", torch.arange(len(x), device=x.device)).long()
    parts, begin = [], 0
    for e, end in enumerate(operands["offsets"].tolist()):
        given = {k: x[e] if k in of_expert and x is not None else x for k, x in own.items()}
        if "residual" in own:
            given["residual"] = own["residual"][begin:end]
        parts.append(call(x[source[begin:end]], **given))
        begin = end
    found = torch.cat(parts)
    return torch.cat([found, found.new_zeros(len(source) - begin, found.shape[1])])


def bound(operands: Operands) -> tuple[Tensor, Tensor]:
    """The exact output and how far from it one may be, as `mixed_mm_bound` has them."""
    of_plain = plain(operands)
    both = [
        one_by_one(lambda x, i=i, **own: scaled_mm.reference.mixed_mm_bound(x, **own)[i], of_plain)
        for i in (0, 1)
    ]
    return both[0], both[1]


@functools.cache
def cases(count: int) -> list[Operands]:
    return [operands_of(seed, 150 if seed % 5 == 0 else 30) for seed in range(count)]
