"""`scaled-mm bench --model`: a language model of transformers, as it is and quantised, in one run.

    prefill   the logits of the last of so many tokens, into an empty cache
    decode    one token more, mean over `STEPS` of them, into a cache of fixed size

of a batch of sequences, eager and under `torch.compile`; on CUDA, also as one captured CUDA graph
of the eager step, in which the host has no part. All contenders take turns in every round. Where a
folder holds no weights, and of a name, they are random: times do not depend on them.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from .._extras import needed
from .clocks import clock_of
from .measure import empty_result, in_short, median_ratio
from .model_contenders import BASE, CONTENDERS, DTYPE

MODELS: dict[str, dict[str, Any]] = {  # what Llama's config does not say by itself
    "llama-3.2-1b": {
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "num_hidden_layers": 16,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "vocab_size": 128256,
    },
    "llama-3-8b": {
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "vocab_size": 128256,
    },
    "llama-3-70b": {
        "hidden_size": 8192,
        "intermediate_size": 28672,
        "num_hidden_layers": 80,
        "num_attention_heads": 64,
        "num_key_value_heads": 8,
        "vocab_size": 128256,
    },
}
BATCHES = (1, 16, 64)
PROMPT = {"cuda": 512, "cpu": 32}  # tokens of a sequence
STEPS = 16  # decoded in a round
MODES = {"cuda": ("eager", "compiled", "captured"), "cpu": ("eager", "compiled")}


@dataclass(frozen=True)
class ModelSettings:
    """What to measure."""

    model: str  # of MODELS, or a folder
    device: str = "cpu"
    layers: int | None = None  # so many instead of the config's
    rounds: int = 9
    without: tuple[str, ...] = ()


def model_of(settings: ModelSettings) -> nn.Module:
    """The bfloat16 model, on its device; the same at every call.

    Raises:
        ValueError: settings.model is neither a name nor a folder with a config.
    """
    (transformers,) = needed("--model", "transformers")
    folder = Path(settings.model)
    if settings.model in MODELS:
        config = transformers.LlamaConfig(**MODELS[settings.model])
    elif (folder / "config.json").is_file():
        config = transformers.AutoConfig.from_pretrained(folder, local_files_only=True)
    else:
        names = ", ".join(MODELS)
        raise ValueError(f"--model must be one of {names} or a model's folder, got {folder}")
    if settings.layers is not None:
        config.num_hidden_layers = settings.layers
    made = transformers.AutoModelForCausalLM
    if folder.is_dir() and any(folder.glob("*.safetensors")):
        model = made.from_pretrained(folder, config=config, dtype=DTYPE, local_files_only=True)
    else:
        torch.manual_seed(0)
        with torch.device(settings.device):
            model = made.from_config(config, dtype=DTYPE)
    moved: nn.Module = model.to(settings.device).eval().requires_grad_(False)
    return moved


# --- what is timed --------------------------------------------------------------------------------


class Sequences:
    """A batch of sequences and its cache: what a model runs on."""

    def __init__(self, model: Any, batch: int, prompt: int, device: str) -> None:
        (transformers,) = needed("--model", "transformers")
        self.config, self.prompt = model.config, prompt
        generator = torch.Generator().manual_seed(batch)
        sizes = (batch, prompt)
        ids = torch.randint(0, self.config.vocab_size, sizes, generator=generator)
        self.ids = ids.to(device)
        self.cache = transformers.StaticCache(self.config, max_cache_len=prompt + STEPS)
        self.prefill(model)  # which makes the cache's memory

    def _run(self, called: Any, ids: Tensor) -> Tensor:
        given = {"past_key_values": self.cache, "use_cache": True, "logits_to_keep": 1}
        logits: Tensor = called(input_ids=ids, **given).logits
        return logits

    def go_to(self, length: int) -> None:
        """Lets the cache hold so many tokens."""
        for layer in self.cache.layers:
            if layer.is_initialized:
                layer.cumulative_length.fill_(length)

    def prefill(self, called: Any) -> Tensor:
        self.go_to(0)
        return self._run(called, self.ids)

    def step(self, called: Any) -> Tensor:
        return self._run(called, self.ids[:, :1])


def timed(run: Callable[[], Any], times: int, device: str) -> float:
    """Seconds of a call, all of the host's and the device's."""
    wait = torch.cuda.synchronize if device == "cuda" else lambda: None
    wait()
    start = time.perf_counter()
    for _ in range(times):
        run()
    wait()
    return (time.perf_counter() - start) / times


def captured(run: Callable[[], Any]) -> Callable[[], Any]:
    """Its kernels as one CUDA graph."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            run()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    return graph.replay


def compiled(model: nn.Module, device: str) -> Callable[..., Any]:
    if device == "cpu":
        program: Any = torch.compile(model, dynamic=False)
        return program
    program = torch.compile(model, dynamic=False, mode="reduce-overhead")

    def called(**given: Any) -> Any:
        torch.compiler.cudagraph_mark_step_begin()
        return program(**given)

    return called


def round_of(model: nn.Module, work: tuple[str, int, str], device: str) -> Callable[[], float]:
    """Seconds of a prefill, or of a token, whenever it is called; warm."""
    phase, batch, mode = work
    sequences = Sequences(model, batch, PROMPT[device], device)
    called = compiled(model, device) if mode == "compiled" else model
    start, times = (0, 1) if phase == "prefill" else (sequences.prompt, STEPS)
    run = partial(sequences.prefill if phase == "prefill" else sequences.step, called)
    if mode == "captured":
        sequences.go_to(start)
        run = captured(run)  # type: ignore[assignment]

    def seconds() -> float:
        sequences.go_to(start)
        return timed(run, times, device)

    seconds()
    seconds()
    return seconds


def works(device: str, batches: Sequence[int]) -> list[tuple[str, int, str]]:
    """Phase, batch and mode of everything that is timed."""
    return [
        (phase, batch, mode)
        for phase in ("prefill", "decode")
        for batch in batches
        for mode in MODES[device]
        if (phase, mode) != ("prefill", "captured")
    ]


def kernels(model: nn.Module) -> float | None:
    """Of a layer and token, in eager mode on CUDA: the whole step's over the layers."""
    if not torch.cuda.is_available() or next(model.parameters()).device.type != "cuda":
        return None
    sequences = Sequences(model, 1, 4, "cuda")
    activities = [torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profile:
        sequences.step(model)
        torch.cuda.synchronize()
    launched = [event for event in profile.events() if not event.name.startswith("Mem")]
    return len(launched) / sequences.config.num_hidden_layers


# --- the run --------------------------------------------------------------------------------------


def held_bytes(model: nn.Module) -> int:
    """Of its parameters and buffers, and of the weights that torch's quantised layers pack."""
    tensors = [*model.parameters(), *model.buffers()]
    for module in model.modules():
        parts = getattr(module, "_packed_params", None)
        weight_bias = getattr(parts, "_weight_bias", None)
        if weight_bias is not None:
            tensors += [t for t in weight_bias() if t is not None]
    sizes = {t.data_ptr(): t.numel() * t.element_size() for t in tensors}
    return sum(sizes.values())


def contenders(settings: ModelSettings) -> tuple[dict[str, nn.Module], list[dict[str, Any]]]:
    """Every model that could be made, and a row for each contender."""
    models: dict[str, nn.Module] = {}
    rows = []
    exact: Tensor | None = None
    for contender in CONTENDERS:
        if settings.device not in contender.devices or contender.name in settings.without:
            continue
        row: dict[str, Any] = {"name": contender.name, "what": contender.what, "verdict": ""}
        row |= {"gigabytes": None, "error": None, "kernels": None, "ms": {}, "over": {}}
        rows.append(row)
        whole = model_of(settings)
        try:
            model = contender.make(whole)
            logits = Sequences(model, 1, 8, settings.device).prefill(model).float()
            exact = logits if exact is None else exact
            row["error"] = float((logits - exact).norm() / exact.norm())
            row["gigabytes"] = held_bytes(model) / 1e9
            row["kernels"] = kernels(model)
            models[contender.name] = model
        except Exception as reason:  # the others go on
            if contender.name == BASE:
                raise
            row["verdict"] = in_short(reason)
    return models, rows


@torch.no_grad()
def growing(
    settings: ModelSettings,
    batches: Sequence[int] = (),
    progress: Callable[[str], None] = lambda _: None,
) -> Iterator[dict[str, Any]]:
    """The result, JSON-ready, as far as it is after each phase, batch and mode."""
    if BASE in settings.without:
        raise ValueError(f"--without must not be {BASE}, which all times are set against")
    clock = clock_of(settings.device)
    progress(f"{settings.model}: making the models")
    models, rows = contenders(settings)
    works_ = works(settings.device, batches or BATCHES)
    names = [" ".join(map(str, work)) for work in works_]
    prompt = PROMPT[settings.device]
    result = {**empty_result(settings, clock), "models": rows, "works": names, "prompt": prompt}
    for name, work in zip(names, works_, strict=True):
        progress(f"{settings.model}: {name}")
        times = measure(models, rows, work, settings)
        for row in rows:
            if own := times.get(row["name"]):
                row["ms"][name] = 1e3 * statistics.median(own)
                row["over"][name] = median_ratio(own, times[BASE])
        clock.clear()
        yield result


def measure(
    models: dict[str, nn.Module],
    rows: list[dict[str, Any]],
    work: tuple[str, int, str],
    settings: ModelSettings,
) -> dict[str, list[float]]:
    """Seconds of each round, in turns; who fails says so in its row, and is out."""
    torch.compiler.reset()
    rounds: dict[str, Callable[[], float]] = {}
    for row in rows:
        if row["name"] in models:
            try:
                rounds[row["name"]] = round_of(models[row["name"]], work, settings.device)
            except Exception as reason:
                row["verdict"] = f"{' '.join(map(str, work))}: {in_short(reason)}"
    times: dict[str, list[float]] = {name: [] for name in rounds}
    for i in range(settings.rounds):
        for name in [*rounds][:: -1 if i % 2 else 1]:
            times[name].append(rounds[name]())
    return times


def tables(result: dict[str, Any]) -> Iterator[tuple[str, list[list[str]]]]:
    """Title and rows, the header first: prefill, decode, and what a model holds."""
    settings, models = result["settings"], result["models"]
    layers = f", {settings['layers']} layers" if settings["layers"] else ""
    for phase in ("prefill", "decode"):
        names = [name for name in result["works"] if name.startswith(phase)]
        header = [name.removeprefix(f"{phase} ") for name in names]
        rows = [["ms: batch", *header, "failed"]]
        for model in models:
            cells = [
                f"{model['ms'][name]:.4g} ({model['over'][name]:.2f}x)"
                if name in model["ms"]
                else "-"
                for name in names
            ]
            rows.append([model["name"], *cells, model["verdict"]])
        of = f"{result['prompt']} tokens each" if phase == "prefill" else "a token"
        yield f"{settings['model']}{layers}, {phase}, {of}; over {BASE}'s time", rows
    rows = [["model", "GB", "kernels a layer and token", "logits off bf16"]]
    for model in models:
        size, count, error = model["gigabytes"], model["kernels"], model["error"]
        cells = [f"{size:.3g}" if size else "-", f"{count:.1f}" if count else "-"]
        rows.append([model["name"], *cells, "-" if error is None else f"{error:.2%}"])
    yield f"{settings['model']}{layers}", rows


def ratios(result: dict[str, Any]) -> tuple[dict[str, list[float]], list[str]]:
    """Of a picture: each contender's times over bf16's, and what they are of."""
    found = {
        model["name"]: [model["over"].get(name, float("nan")) for name in result["works"]]
        for model in result["models"]
        if model["over"] and model["name"] != BASE
    }
    return found, [name.replace(" ", "\n") for name in result["works"]]
