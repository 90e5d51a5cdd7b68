"""Epilogues of one's own on the GPU, compiled: the bits of the reference."""

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import pytest
import torch
from compiled_cases import per_token
from cuda_support import DEVICE, GPU, assert_same, on_device, streams_only
from program_cases import int8, operands_of, problem

import scaled_mm
from scaled_mm import _library, compiled
from scaled_mm import epilogue as ep
from scaled_mm.compiled import launches, toolchain
from scaled_mm.ops.epilogue_mm import epilogue_mm

pytestmark = [
    *GPU,
    pytest.mark.skipif("sm90" not in _library.cuda_archs(), reason="compiled for sm90"),
    pytest.mark.skipif(isinstance(toolchain.find(), str), reason=str(toolchain.find())),
]
H200 = ("H200", 90, 132, 4.8e6, 0.0)


@pytest.fixture(scope="module", autouse=True)
def cache_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A cache of this run's, unless SCALED_MM_TEST_JIT_CACHE names one."""
    before = os.environ.get("XDG_CACHE_HOME")
    given = os.environ.get("SCALED_MM_TEST_JIT_CACHE")
    os.environ["XDG_CACHE_HOME"] = given or str(tmp_path_factory.mktemp("cache"))
    with compiled.in_mode("require"):
        yield
    if before is None:
        del os.environ["XDG_CACHE_HOME"]
    else:
        os.environ["XDG_CACHE_HOME"] = before


class Wanted(NamedTuple):
    ints: list[int]
    kernel: str


def compile_all(wanted: list[Wanted]) -> None:
    """At once, on all cores."""

    def one(each: Wanted) -> None:
        light = _library.explain("program", each.ints, 16, 4096, 4096, *H200)["light"]
        text, key = launches.prepared(each.ints, "sm90", each.kernel, light)
        launches.compiled(key, text, "sm90")

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(one, wanted))


STREAMS = ("stream_8x64", "stream_16x64", "stream_64x128", "stream_96x64")


def test_random_programs() -> None:
    seeds = [seed for seed in range(80) if problem(seed).expected[0].numel()][:40]
    cases = {seed: problem(seed) for seed in seeds}
    kernels = {seed: STREAMS[seed % len(STREAMS)] for seed in seeds}
    compile_all([Wanted(cases[seed].ints, kernels[seed]) for seed in seeds])
    for seed, (a, b, operands, ints, expected, text) in cases.items():
        there = list(on_device({str(i): x for i, x in enumerate(operands)}).values())
        weight = b.to(DEVICE)
        with _library.forced_kernels(f"sm90/{kernels[seed]}"):
            for each in (weight, scaled_mm.pack_weight_int8(weight)):
                got = epilogue_mm(a.to(DEVICE), each, there, ints)
                assert_same(got, expected, seed, kernels[seed], text)


@ep.epilogue
def residuals(acc: ep.Acc, scale_a: ep.Col, scale_b: ep.Row, bias: ep.Row, gate: ep.Full):
    return ep.gelu(ep.fma(scale_a, scale_b * ep.to_float(acc), bias)) + gate


@ep.epilogue
def quantised(acc: ep.Acc, scale_a: ep.Col, scale_b: ep.Row, out_scale: ep.Scalar):
    return ep.quantize(ep.silu(scale_a * (scale_b * ep.to_float(acc))), out_scale, torch.int8)


@ep.epilogue
def gated(acc: ep.Acc, scale_a: ep.Col, scale_b: ep.Row, half: ep.Row, residual: ep.Full):
    gate, value = ep.pairs(scale_a * (scale_b * ep.to_float(acc)))
    return ep.silu(gate) * value + half * residual


@ep.epilogue
def gated_e4m3(acc: ep.Acc, scale_a: ep.Col, scale_b: ep.Row, out_scale: ep.Scalar):
    gate, value = ep.pairs(scale_a * (scale_b * ep.to_float(acc)))
    return ep.quantize(ep.clamp(ep.silu(gate) * value, -240, 240), out_scale, torch.float8_e4m3fn)


@ep.epilogue
def whole(acc: ep.Acc, azp: ep.Col[torch.int32], azp_adj: ep.Row[torch.int32]):
    return acc - azp * azp_adj


per_token._built_in = None  # scaled_mm's kernels have it: this is about what is compiled

PERSISTENT = [
    (per_token, "ping_64x64_2x1", torch.bfloat16),
    (per_token, "ping_128x192_2x1", torch.bfloat16),
    (per_token, "ping_128x128_1x2", torch.float32),
    (residuals, "ping_64x128_2x1", torch.bfloat16),
    (residuals, "coop_128x256_1x1", torch.float16),
    (quantised, "ping_128x128_2x1", torch.bfloat16),
    (gated, "ping_64x128_2x1", torch.float32),
    (gated, "coop_128x256_1x1", torch.bfloat16),
    (gated_e4m3, "ping_64x64_2x1", torch.bfloat16),
    (whole, "ping_64x64_2x1", torch.bfloat16),
]


def test_persistent_kernels() -> None:
    compile_all([Wanted(e.program.encoded(dtype), kernel) for e, kernel, dtype in PERSISTENT])
    for epilogue, kernel, dtype in PERSISTENT:
        for m, n, k in ((1, 16, 16), (333, 2050, 128), (700, 1026, 48), (129, 70, 300), (64, 6, 1)):
            a, b, given = int8(m, k), int8(n, k).t(), operands_of(epilogue, m, n)
            expected = epilogue(a, b, **given, out_dtype=dtype)
            with _library.forced_kernels(f"sm90/{kernel}"):
                got = epilogue(a.to(DEVICE), b.to(DEVICE), **on_device(given), out_dtype=dtype)
            assert_same([got], [expected], epilogue.__name__, kernel, m, n, k)


@streams_only
def test_graphs() -> None:
    """What was compiled is captured; what was not is interpreted then, or refused."""
    m, n, k = 16, 512, 96
    a, b, given = int8(m, k), int8(n, k).t(), operands_of(residuals, m, n)
    a_there, b_there, there = a.to(DEVICE), b.to(DEVICE), on_device(given)
    refused = pytest.raises(RuntimeError, match="before its call was captured")
    with refused, torch.cuda.graph(torch.cuda.CUDAGraph()):
        residuals(a_there, b_there, **there)
    torch.cuda.synchronize()
    graph, interpreted = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
    with compiled.in_mode("on"), torch.cuda.graph(interpreted):
        first = residuals(a_there, b_there, **there)
    residuals(a_there, b_there, **there)
    with torch.cuda.graph(graph):
        got = residuals(a_there, b_there, **there)
    for seed in range(3):
        a = int8(m, k, seed=seed)
        a_there.copy_(a)
        for each in (graph, interpreted):
            each.replay()
        expected = residuals(a, b, **given)
        assert_same([got], [expected], "graph", seed)
        assert_same([first], [expected], "interpreted", seed)


def test_torch_compile() -> None:
    m, n, k = 16, 512, 96
    a, b, given = int8(m, k), int8(n, k).t(), operands_of(residuals, m, n)
    call = torch.compile(lambda a, b, x: residuals(a, b, **x), fullgraph=True, backend="aot_eager")
    got = call(a.to(DEVICE), b.to(DEVICE), on_device(given))
    assert_same([got], [residuals(a, b, **given)], "compiled")


def test_wrong_bits_are_never_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """What another program became is in the folder, under this one's key."""
    true = launches.source

    def wrong(program: Any, *rest: Any) -> str:
        return true(program, *rest).replace("compiled::add_int", "compiled::sub_int")

    @ep.epilogue
    def added(acc: ep.Acc, azp: ep.Col[torch.int32]):
        return ep.to_float(acc + azp)

    m, n, k = 16, 512, 96
    a, b, given = int8(m, k), int8(n, k).t(), operands_of(added, m, n)
    there = a.to(DEVICE), b.to(DEVICE)
    monkeypatch.setattr(launches, "source", wrong)
    with pytest.raises(RuntimeError, match="gave wrong bits"):
        added(*there, **on_device(given))
    with compiled.in_mode("on"):
        with pytest.warns(UserWarning, match="interpreted"):
            got = added(*there, **on_device(given))
        assert_same([got], [added(a, b, **given)])


def test_it_is_verified_once(monkeypatch: pytest.MonkeyPatch) -> None:
    ints = per_token.program.encoded(torch.float16)
    tried = []
    true = launches.try_out

    def counted(*arguments: Any) -> str:
        tried.append(arguments)
        return true(*arguments)

    monkeypatch.setattr(launches, "try_out", counted)
    for _ in range(2):
        launches._entries.clear()  # as another process
        assert launches.launch(ints, "sm90", "stream_8x64", True, 0)
    assert len(tried) == 1
