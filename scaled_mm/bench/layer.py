"""`scaled-mm bench --layer`: a transformer's layer without attention's core, in one run.

    residual, norm, qkv, o, residual, norm, gate and up, SiLU product, down      (Llama)
    residual, norm, qkv, o, residual, norm, up, GELU, down                        (BERT)

A layer begins with the sum that ends the layer before, since that is where it can be fused: in
front of a norm. It takes that layer's last product and what is added to it: the sum before (Llama)
or what the norm before has made (BERT); it returns the same two. The input of o is the first
columns of qkv's output, in attention's place. Each contender has its own weights, of the same
values, in as many copies as keep them out of the last-level cache.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from ..ops.int8 import interleave_gate_up, pack_weight_int8, scaled_mm
from ..ops.produce import (
    gelu_quantize_int8,
    layer_norm_quantize_int8,
    rms_norm_quantize_int8,
    silu_mul_quantize_int8,
)
from ..ops.quantize import quantize_int8, quantize_weight_int8
from .cases import Common
from .clocks import Clock, Stopwatch, clock_of
from .contenders import CPU, GPU, to_float8
from .measure import empty_result, timed_rows

EPS = 1e-5
DTYPE = torch.bfloat16
Weights = dict[str, Any]
Product = Callable[[Tensor, Any], Tensor]
Pair = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Shape:
    """The sizes of a layer."""

    hidden: int
    qkv: int  # columns of its product
    heads: int  # columns of o's input
    inner: int
    llama: bool = True  # a gated MLP and RMS norms in front; else BERT's

    def weights(self) -> dict[str, tuple[int, int]]:
        """Name -> (N, K)."""
        up = {"up": (self.inner * (2 if self.llama else 1), self.hidden)}
        ends = {"qkv": (self.qkv, self.hidden), "o": (self.hidden, self.heads)}
        return {**ends, **up, "down": (self.hidden, self.inner)}


LAYERS = {
    "llama-3-8b": Shape(4096, 6144, 4096, 14336),
    "llama-3-70b": Shape(8192, 10240, 8192, 28672),
    "bert-base": Shape(768, 2304, 768, 3072, llama=False),
}
TOKENS = {"cuda": [1, 16, 64, 256, 2048, 8192], "cpu": [1, 16, 64, 256]}


@dataclass(frozen=True)
class LayerSettings(Common):
    """What to measure."""

    layer: str


# --- the layer, of float products -----------------------------------------------------------------


def rms_norm(x: Tensor, weight: Tensor) -> Tensor:
    return functional.rms_norm(x, x.shape[-1:], weight, EPS)


def layer_norm(x: Tensor, w: Weights, name: str) -> Tensor:
    return functional.layer_norm(x, x.shape[-1:], w[name], w[f"{name}_bias"], EPS)


def llama(shape: Shape, product: Product, w: Weights, x: Tensor, other: Tensor) -> Pair:
    h = x + other
    qkv = product(rms_norm(h, w["norm1"]), w["qkv"])
    h = h + product(qkv[:, : shape.heads], w["o"])
    gate, up = product(rms_norm(h, w["norm2"]), w["up"]).chunk(2, -1)
    return product(functional.silu(gate) * up, w["down"]), h


def bert(shape: Shape, product: Product, w: Weights, x: Tensor, other: Tensor) -> Pair:
    h = layer_norm(x + other, w, "norm1")
    attention = product(h, w["qkv"])[:, : shape.heads]
    h = layer_norm(h + product(attention, w["o"]), w, "norm2")
    return product(functional.gelu(product(h, w["up"])), w["down"]), h


def dense(x: Tensor, weight: Tensor) -> Tensor:
    return x @ weight.t()


def fp8_rowwise(x: Tensor, weight: tuple[Tensor, Tensor]) -> Tensor:
    (q, scale), (b, scale_b) = to_float8(x), weight
    return torch._scaled_mm(q, b.t(), scale, scale_b.t(), out_dtype=DTYPE, use_fast_accum=True)


def torch_dynamic(x: Tensor, weight: Any) -> Tensor:
    """torch.ao's dynamically quantised Linear: one scale for all tokens, 7 bits of activations."""
    return torch.ops.quantized.linear_dynamic(x.contiguous(), weight, reduce_range=True)


def torch_weight(w: Tensor) -> Any:
    scale = w.abs().amax(1).float() / 127
    zeros = torch.zeros(len(w), dtype=torch.int64)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch means to drop these dtypes one day
        q = torch.quantize_per_channel(w.float(), scale, zeros, 0, torch.qint8)
        return torch.ops.quantized.linear_prepack(q, None)


# --- the layer, of ours: every quantiser but o's is behind what makes its input -------------------


def ours(quantized: Any, weight: Any, activation: str | None = None) -> Tensor:
    (q, scale, *_), (b, scale_b) = quantized, weight
    return scaled_mm(q, b, scale, scale_b, activation=activation, out_dtype=DTYPE)


def our_llama(shape: Shape, gated: bool, w: Weights, x: Tensor, other: Tensor) -> Pair:
    rows = our_rms_norm(x, other, w["norm1"])
    o = ours(quantize_int8(ours(rows, w["qkv"])[:, : shape.heads]), w["o"])
    rows = our_rms_norm(o, rows.residual, w["norm2"])
    if gated:
        inner = quantize_int8(ours(rows, w["up"], "swiglu"))
    else:
        inner = silu_mul_quantize_int8(ours(rows, w["up"]))
    return ours(inner, w["down"]), rows.residual


def our_bert(shape: Shape, w: Weights, x: Tensor, other: Tensor) -> Pair:
    rows = our_layer_norm(x, other, w, "norm1")
    o = ours(quantize_int8(ours(rows, w["qkv"])[:, : shape.heads]), w["o"])
    rows = our_layer_norm(o, rows.normed, w, "norm2")
    return ours(gelu_quantize_int8(ours(rows, w["up"])), w["down"]), rows.normed


def our_rms_norm(x: Tensor, other: Tensor, weight: Tensor) -> Any:
    return rms_norm_quantize_int8(x, weight, EPS, residual=other)


def our_layer_norm(x: Tensor, other: Tensor, w: Weights, name: str) -> Any:
    given = w[name], w[f"{name}_bias"], EPS
    return layer_norm_quantize_int8(x, *given, residual=other, normed=True)


def our_weight(w: Tensor) -> tuple[Any, Tensor]:
    """Packed, as a `ScaledLinear` has it."""
    q, scale = quantize_weight_int8(w)
    return pack_weight_int8(q.t()), scale


# --- who takes part -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Contender:
    """A way to run the layer."""

    name: str
    what: str
    weight: Callable[[Tensor], Any]
    product: Product | None = None  # None: ours
    compiled: bool = False
    gated: bool = False  # the gate is in the product
    devices: tuple[str, ...] = ("cpu", "cuda")
    dtype: torch.dtype = DTYPE

    def layer(self, shape: Shape) -> Callable[[Weights, Tensor, Tensor], Pair]:
        if self.product is None:
            run: Any = (
                partial(our_llama, shape, self.gated) if shape.llama else partial(our_bert, shape)
            )
        else:
            run = partial(llama if shape.llama else bert, shape, self.product)
        return torch.compile(run, dynamic=False) if self.compiled else run


FLOAT32: dict[str, Any] = {"devices": CPU, "dtype": torch.float32}
CONTENDERS = [
    Contender("ours", "int8 per token, quantisers fused, eager", our_weight),
    Contender("ours gated", "the same, but the gate is in the product", our_weight, gated=True),
    Contender("ours compiled", "ours under torch.compile", our_weight, compiled=True),
    Contender("float32", "torch, eager", Tensor.float, dense, **FLOAT32),
    Contender(
        "float32 compiled", "under torch.compile", Tensor.float, dense, compiled=True, **FLOAT32
    ),
    Contender(
        "torch.ao",
        "torch's dynamically quantised Linears, float32 between them, eager",
        torch_weight,
        torch_dynamic,
        **FLOAT32,
    ),
    Contender("bf16", "torch, eager", Tensor.clone, dense),
    Contender("bf16 compiled", "under torch.compile", Tensor.clone, dense, compiled=True),
    Contender(
        "fp8 compiled",
        "rowwise e4m3, a scale per token, compiled",
        to_float8,
        fp8_rowwise,
        compiled=True,
        devices=GPU,
    ),
]


def values(shape: Shape, device: str) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """The weights of products, and those of norms."""
    generator = torch.Generator(device).manual_seed(0)
    made: dict[str, Tensor] = {}
    for name, (n, k) in shape.weights().items():
        w = torch.randn(n, k, generator=generator, device=device, dtype=torch.float32)
        made[name] = (w * k**-0.5).to(DTYPE)
    ones = torch.ones(shape.hidden, device=device, dtype=DTYPE)
    norms = {"norm1": ones, "norm2": ones, "norm1_bias": 0 * ones, "norm2_bias": 0 * ones}
    return made, norms


def prepare(
    contender: Contender, settings: LayerSettings, m: int, clock: Clock, exact: Tensor
) -> tuple[Stopwatch, float]:
    """Also the relative distance of the output from the exact one."""
    shape = LAYERS[settings.layer]
    made, norms = values(shape, settings.device)
    norms = {name: w.to(contender.dtype) for name, w in norms.items()}
    size = sum(w.numel() for w in made.values()) * (1 if contender.product is not dense else 2)
    copies = clock.weight_copies(size)
    layer = contender.layer(shape)
    given = [t.to(contender.dtype) for t in tokens(shape, m, settings.device)]
    size = sum(t.nbytes for t in given)
    xs = [[t.clone() for t in given] for _ in range(min(copies, clock.activation_copies(size)))]
    if contender.gated:
        made["up"] = interleave_gate_up(*made["up"].t().chunk(2, 1)).t()
    calls = []
    for i in range(copies):
        weights = {name: contender.weight(w) for name, w in made.items()} | norms
        calls.append(partial(layer, weights, *xs[i % len(xs)]))
    out = torch.cat(calls[0](), 1).float()
    error = float((out - exact).norm() / exact.norm())
    return clock.stopwatch(calls), error


def tokens(shape: Shape, m: int, device: str) -> tuple[Tensor, Tensor]:
    """What the layer before hands over."""
    generator = torch.Generator(device).manual_seed(1)
    x, other = torch.randn(2, m, shape.hidden, generator=generator, device=device).to(DTYPE)
    return x, other


def exact_of(settings: LayerSettings, m: int) -> Tensor:
    """The layer in float32, of the same weights."""
    shape = LAYERS[settings.layer]
    made, norms = values(shape, settings.device)
    weights = {name: w.float() for name, w in (made | norms).items()}
    run = llama if shape.llama else bert
    x, other = (t.float() for t in tokens(shape, m, settings.device))
    return torch.cat(run(shape, dense, weights, x, other), 1)


@torch.inference_mode()
def measure(settings: LayerSettings, m: int, clock: Clock) -> list[dict[str, Any]]:
    """A row per contender, in the table's order: microseconds, and the relative distance of the
    output from the float32 layer's."""
    exact, is_llama = exact_of(settings, m), LAYERS[settings.layer].llama
    contenders = {
        contender.name: partial(prepare, contender, settings, m, clock, exact)
        for contender in CONTENDERS
        if settings.device in contender.devices and contender.name not in settings.without
        if is_llama or not contender.gated
    }
    return timed_rows(contenders, settings.rounds, clock.budget_seconds)


def growing(
    settings: LayerSettings,
    every_m: Sequence[int] = (),
    progress: Callable[[str], None] = lambda _: None,
) -> Iterator[dict[str, Any]]:
    """The result, JSON-ready: for each M the contenders' rows; as far as it is, after every M."""
    clock = clock_of(settings.device)
    result = {**empty_result(settings, clock), "layers": []}
    for m in every_m or TOKENS[settings.device]:
        progress(f"{settings.layer}: M={m}")
        result["layers"].append({"m": m, "rows": measure(settings, m, clock)})
        clock.clear()
        torch.compiler.reset()
        yield result
