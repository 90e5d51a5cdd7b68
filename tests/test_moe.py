"""`grouped_mm`, `moe_sort` and `moe_combine`: the reference's bits on every instruction set, over
all kinds of routings; refusals; as ops of torch."""

import zlib
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from helpers import ISAS, AsModule, assert_bits, bytes_of, each_isa, refuses
from operands import ACTIVATIONS, COLUMN, GATED, OUT_DTYPES, ROW, Layout
from torch import Tensor

import scaled_mm
from scaled_mm import _library, grouped_mm, moe_combine, moe_sort, pack_weight_int8, reference

pytestmark = [
    pytest.mark.usefixtures("poisoned"),
    pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated"),
]
ROUTINGS = ("equal", "one", "some", "zipf", "first", "last")
ENDINGS = ("", "residual", "int8", "fp8", *ACTIVATIONS)


@dataclass(frozen=True)
class Case:
    """One call: `count` sorted rows of tokens' rows, which are `gathered` from others."""

    name: str
    count: int = 30
    experts: int = 5
    n: int = 70
    k: int = 45
    routing: str = "some"
    gathered: bool = True
    beyond: int = 0  # rows that are no expert's
    azp: bool = False
    bias: bool = True
    one_scale: bool = False
    ending: str = ""
    out_dtype: torch.dtype = torch.bfloat16
    a: Layout = ROW
    b: Layout = COLUMN

    def offsets(self, rng: np.random.Generator) -> Tensor:
        if not self.experts:
            return torch.zeros(0, dtype=torch.int32)
        share = {
            "equal": np.ones(self.experts),
            "one": np.eye(self.experts)[rng.integers(self.experts)],
            "some": rng.random(self.experts) * (rng.random(self.experts) < 0.6) + 1e-9,
            "zipf": rng.permutation(1 / np.arange(1, self.experts + 1)),
            "first": np.eye(self.experts)[0],
            "last": np.eye(self.experts)[-1],
        }[self.routing]
        counts = rng.multinomial(self.count - self.beyond, share / share.sum())
        return torch.from_numpy(counts.cumsum()).int()

    def build(self) -> dict[str, Any]:
        rng = np.random.default_rng(zlib.crc32(self.name.encode()))
        n = self.n + self.n % 2 if self.ending in GATED else self.n

        def int8(*shape: int) -> Tensor:
            return torch.from_numpy(rng.integers(-128, 128, shape, np.int8))

        def floats(*shape: int) -> Tensor:
            return torch.from_numpy(rng.standard_normal(shape).astype(np.float32))

        tokens = int(rng.integers(1, 1 + self.count)) if self.gathered else self.count
        b = self.b.place(int8(self.k, n, self.experts), "cpu").movedim(2, 0)
        of_rows = 1 if self.one_scale else tokens
        given: dict[str, Any] = {
            "a": self.a.place(int8(tokens, self.k), "cpu"),
            "b": b,
            "offsets": self.offsets(rng),
            "scale_a": floats(of_rows, 1).exp() / 50,
            "scale_b": floats(n, self.experts).t() if self.azp else floats(self.experts, n),
        }
        if self.gathered:
            given["rows"] = torch.from_numpy(rng.integers(0, tokens, self.count)).int()
        if self.azp:
            given["azp"] = torch.from_numpy(rng.integers(-128, 128, (of_rows,))).int()
            given["azp_adj"] = b.sum(1, dtype=torch.int32)
        if self.bias:
            given["bias"] = floats(self.experts, n).bfloat16().float()
        if self.ending == "residual":
            given["residual"] = floats(n, self.count).t()
        elif self.ending in ("int8", "fp8"):
            given["out_scale"] = floats(*((1,) if self.one_scale else (self.count, 1))).exp()
            if self.ending == "int8" and self.azp:
                given["out_azp"] = torch.full(given["out_scale"].shape, -3, dtype=torch.int32)
        elif self.ending:
            given["activation"] = self.ending
        eight = {"int8": torch.int8, "fp8": torch.float8_e4m3fn}
        return {**given, "out_dtype": eight.get(self.ending, self.out_dtype)}


def _named() -> list[Case]:
    cases = [Case(f"{r}-{g}", routing=r, gathered=g) for r in ROUTINGS for g in (True, False)]
    for azp in (False, True):
        cases += [Case(f"{e}-{azp}", 40, ending=e, azp=azp, routing="zipf") for e in ENDINGS]
    cases += [Case(f"{d}", out_dtype=d, one_scale=True, azp=True, bias=False) for d in OUT_DTYPES]
    layouts = (ROW, COLUMN, Layout("column", pad=3), Layout(step=2))
    cases += [Case(f"a {x} b {y}", a=x, b=y) for x in layouts for y in layouts]
    for count, experts, n, k in (
        *((1, 1, 1, 1), (0, 4, 9, 5), (9, 4, 0, 5), (9, 4, 7, 0), (5, 0, 4, 3), (0, 0, 4, 3)),
        *((150, 1, 130, 200), (150, 3, 65, 64), (300, 40, 129, 31), (8, 200, 16, 40)),
    ):
        beyond = count if experts == 0 else count // 4
        given = {"routing": "equal", "beyond": beyond, "gathered": count > 0}
        cases.append(Case(f"{count}-{experts}-{n}-{k}", count, experts, n, k, **given))
    return cases


CASES = {case.name: case for case in _named()}


def assert_case(case: Case, isas: list[str] | None = None) -> None:
    given = case.build()
    expected = reference.grouped_mm(**given)
    before = bytes_of(given.values())
    stacks = [given["b"]]
    stacks += [pack_weight_int8(given["b"])] if case.experts else []
    for isa in each_isa() if isas is None else isas:
        with _library.forced_cpu_isa(isa):
            for b in stacks:
                assert_bits(grouped_mm(**{**given, "b": b}), expected, isa, case)
    for x, y in zip(bytes_of(given.values()), before, strict=True):
        assert torch.equal(x, y), case


@pytest.mark.parametrize("name", CASES)
def test_bits(name: str) -> None:
    assert_case(CASES[name])


def random_case(seed: int) -> Case:
    rng = np.random.default_rng(seed)
    layouts = (ROW, COLUMN, COLUMN, COLUMN, Layout(step=2))
    count = int(rng.integers(0, 60))
    return Case(
        f"random{seed}",
        *(count, int(rng.integers(1, 12)), int(rng.integers(1, 90)), int(rng.integers(0, 70))),
        routing=str(rng.choice(ROUTINGS)),
        gathered=count > 0 and bool(rng.integers(2)),
        beyond=int(rng.integers(0, 1 + count)) if rng.random() < 0.2 else 0,
        azp=bool(rng.integers(2)),
        bias=bool(rng.integers(2)),
        one_scale=bool(rng.integers(2)),
        ending=str(rng.choice(ENDINGS)),
        out_dtype=OUT_DTYPES[rng.integers(3)],
        a=layouts[rng.integers(5)],
        b=layouts[rng.integers(5)],
    )


def test_random_cases() -> None:
    for seed in range(100):
        assert_case(random_case(seed))


@pytest.mark.slow
def test_10000_random_cases() -> None:
    """One instruction set each, in turn."""
    for seed in range(100, 10_100):
        assert_case(random_case(seed), [ISAS[seed % len(ISAS)]])


def test_bits_of_scaled_mm_whatever_the_threads(isa: str, threads: None) -> None:
    given = Case("threads", 200, 6, 150, 300, routing="zipf", gathered=False).build()
    parts, begin = [], 0
    for e, end in enumerate(given["offsets"].tolist()):
        own = {name: given[name][e] for name in ("b", "scale_b", "bias")}
        own |= {name: given[name][begin:end] for name in ("a", "scale_a")}
        parts.append(scaled_mm.scaled_mm(**own))
        begin = end
    for count in (1, 2, 3, 8):
        torch.set_num_threads(count)
        assert_bits(grouped_mm(**given), torch.cat(parts), count)


def test_a_packed_stack() -> None:
    b = torch.randint(-128, 128, (3, 19, 37), dtype=torch.int8).mT
    packed = pack_weight_int8(b)
    assert packed.shape == (3, 37, 19)
    assert torch.equal(packed.unpack(), b)
    for e in range(3):
        assert torch.equal(packed.data[e], pack_weight_int8(b[e]).data)
    with pytest.raises(ValueError, match=r"^b must have one expert at least"):
        pack_weight_int8(b[:0])


@pytest.mark.parametrize(("tokens", "k", "experts"), [(0, 2, 4), (1, 1, 1), (50, 3, 7), (9, 8, 8)])
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_sorted_tokens(tokens: int, k: int, experts: int, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(tokens)
    index = torch.randint(-1, experts + 2, (tokens, k), generator=generator).to(dtype)
    for given in (index, index.t().contiguous().t()):
        got = moe_sort(given, experts)
        for x, y in zip(got, reference.moe_sort(index, experts), strict=True):
            assert_bits(x, y)


@pytest.mark.parametrize("dtype", OUT_DTYPES)
def test_combined_tokens(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    for tokens, k, n in ((0, 2, 5), (1, 1, 1), (7, 3, 64), (40, 8, 150), (3, 2, 0), (4, 0, 3)):
        rows = tokens * k + 3
        places = torch.randperm(rows, generator=generator).int()[:-3].view(tokens, k)
        y = torch.randn(n, rows, generator=generator).t().to(dtype)
        if y.numel() > 20:
            y[0, 0], y[0, -1], y[-1, 0] = torch.inf, torch.nan, -0.0
        weights, residual = torch.rand(k, tokens).t(), torch.randn(tokens, n).half()
        for more in ({}, {"residual": residual}, {"out_dtype": torch.float32}):
            for w in (weights, weights.to(dtype).contiguous()):
                expected = reference.moe_combine(y, w, places, **more)
                for isa in each_isa():
                    assert_bits(moe_combine(y, w, places, **more), expected, isa, tokens)


GOOD = replace(CASES["some-True"], azp=True, n=8, k=6, experts=3, count=10, name="good").build()
COMBINE: dict[str, Any] = {
    "y": torch.ones(6, 4),
    "weights": torch.ones(3, 2),
    "places": torch.arange(6).int().view(3, 2),
}
SORT: dict[str, Any] = {"top_k_index": torch.zeros(3, 2, dtype=torch.int64), "num_experts": 4}
PACKED = pack_weight_int8(GOOD["b"])
A, B, LAST = GOOD["a"], GOOD["b"], torch.tensor([2, 5, 11], dtype=torch.int32)
ROWS = torch.zeros(10, dtype=torch.int32)
GROUPED = {
    "a must be int8, got float32": {"a": A.float()},
    r"a must be a matrix \[T, K\], got shape \(6,\)": {"a": A[0]},
    "a must have K=6 columns, the rows of b": {"a": A[:, 1:]},
    r"b must be a stack of matrices \[E, K, N\], got shape \(6, 8\)": {"b": B[0]},
    "b must be int8": {"b": B.float()},
    r"b_shape must be \(E, K, N\)": {"b": pack_weight_int8(B[0])},
    "b must be contiguous packed buffers of shape": {
        "b": scaled_mm.PackedWeight(PACKED.data[:, 1:], 6, 8)
    },
    "offsets must be int32, got int64": {"offsets": LAST.long()},
    r"offsets must have shape \(3,\), got shape \(2,\)": {"offsets": LAST[:2]},
    "offsets must rise from 0 to at most the 10 rows, got 11": {"offsets": LAST},
    "offsets must rise from 0 .*, got 2 behind 8": {"offsets": LAST.flip(0) - 3},
    "offsets must rise from 0 .*, got -1 behind 0": {"offsets": LAST - 3},
    r"rows must name rows 0\.\.\d+ of a, got -1": {"rows": ROWS - 1},
    f"rows must name .* of a, got {len(A)}": {"rows": ROWS + len(A)},
    "rows must be a vector": {"rows": ROWS.view(5, 2)},
    "rows must be int32, got int64": {"rows": ROWS.long()},
    "scale_a must have 1 or": {"scale_a": torch.ones(len(A) + 1)},
    r"scale_b must have shape \(3, 8\)": {"scale_b": torch.ones(8)},
    "scale_b must be float32": {"scale_b": torch.ones(3, 8).half()},
    "bias must be": {"bias": torch.ones(3, 8).half()},
    r"azp_adj must have shape \(3, 8\)": {"azp_adj": torch.ones(8).int()},
    "azp must be given together with azp_adj": {"azp": None},
    r"residual must have shape \(10, 8\)": {"residual": torch.ones(9, 8)},
    "out_scale must be given with out_dtype=int8": {"out_dtype": torch.int8},
    "activation must be None or one of relu": {"activation": "tanh"},
    "scale_a must not require grad": {"scale_a": torch.ones(1, requires_grad=True)},
    "scale_b must be on the device of a": {"scale_b": GOOD["scale_b"].to("meta")},
}
GROUPED_TYPES = {
    "offsets must be a Tensor, got list": {"offsets": [1]},
    "activation must be a string, got int": {"activation": 3},
    "out_dtype must be a torch.dtype, got str": {"out_dtype": "half"},
}
COMBINED = {
    r"y must be a matrix \[R, N\]": {"y": torch.ones(6)},
    "y must be float32, bfloat16 or float16, got int32": {"y": torch.ones(6, 4).int()},
    r"weights must be a matrix \[T, k\]": {"weights": torch.ones(6)},
    r"places must name rows 0\.\.5 of y, got 6": {"places": COMBINE["places"] + 1},
    "places must name rows .*, got -1": {"places": COMBINE["places"] - 1},
    r"places must name rows 0\.\.-1 of y": {"y": torch.ones(0, 4)},
    r"places must have the shape of weights, .*\(3, 2\)": {"places": COMBINE["places"].view(2, 3)},
    "places must be int32": {"places": torch.zeros(3, 2).long()},
    r"residual must have the output's shape": {"residual": torch.ones(3, 5)},
    "out_dtype must be bfloat16, float16 or float32": {"out_dtype": torch.int8},
}
COMBINED_TYPES = {
    "places must be a Tensor, got list": {"places": [0]},
    "out_dtype must be a torch.dtype, got str": {"out_dtype": "half"},
}
SORTED = {
    "top_k_index must be int32 or int64, got float": {"top_k_index": torch.zeros(3, 2)},
    r"top_k_index must be a matrix \[T, k\]": {"top_k_index": torch.zeros(3).long()},
    r"num_experts must be in 0\.\.": {"num_experts": -1},
}
SORTED_TYPES = {"num_experts must be an int, got float": {"num_experts": 1.0}}
test_grouped_mm_refuses = refuses(GROUPED, grouped_mm, **GOOD)
test_grouped_mm_of_other_types = refuses(
    GROUPED_TYPES, grouped_mm, error=TypeError, end="$", **GOOD
)
test_moe_combine_refuses = refuses(COMBINED, moe_combine, **COMBINE)
test_moe_combine_of_other_types = refuses(
    COMBINED_TYPES, moe_combine, error=TypeError, end="$", **COMBINE
)
test_moe_sort_refuses = refuses(SORTED, moe_sort, **SORT)
test_moe_sort_of_other_types = refuses(SORTED_TYPES, moe_sort, error=TypeError, end="$", **SORT)


@pytest.mark.parametrize("b", [B, PACKED.data])
def test_opcheck(b: Tensor) -> None:
    shape = {} if b is B else {"b_shape": PACKED.shape}
    first = ("a", "b", "offsets", "scale_a", "scale_b")
    options = {name: x for name, x in GOOD.items() if name not in first}
    for activation in (None, "swiglu"):
        arguments = [{**GOOD, "b": b}[name] for name in first]
        more = {**options, **shape, "activation": activation}
        torch.library.opcheck(torch.ops.scaled_mm.grouped_mm.default, tuple(arguments), more)
    torch.library.opcheck(
        torch.ops.scaled_mm.moe_combine.default, tuple(COMBINE.values()), {"residual": None}
    )


def block(x: Tensor, index: Tensor, weights: Tensor, b: Any = B) -> Tensor:
    q, scale, azp = scaled_mm.quantize_int8(x, symmetric=False)
    rows, offsets, places = moe_sort(index, 3)
    adj = GOOD["azp_adj"]
    y = grouped_mm(q, b, offsets, scale, GOOD["scale_b"], azp=azp, azp_adj=adj, rows=rows)
    return moe_combine(y, weights, places, residual=x[:, :1].expand(-1, y.shape[1]))


def test_exported() -> None:
    """Compiled: test_experts.py."""
    generator = torch.Generator().manual_seed(3)

    def inputs(tokens: int) -> tuple[Tensor, Tensor, Tensor]:
        x, weights = torch.randn(tokens, 6, generator=generator), torch.rand(tokens, 2)
        return x, torch.randint(3, (tokens, 2), generator=generator), weights

    module = AsModule(lambda *given: torch.stack([block(*given, b) for b in (B, PACKED)]))
    tokens = torch.export.Dim("tokens", min=2)
    program = torch.export.export(module, inputs(5), dynamic_shapes=(({0: tokens},) * 3,))
    given = inputs(11)
    assert_bits(program.module()(*given), module(*given))
