"""`scaled-mm bench --model`: a language model of transformers, as it is and quantised, in one run.

    prefill   the logits of the last of `PROMPT` tokens, and their keys and values
    decode    one token more behind `BEHIND`, mean over `STEPS` of them, a cache of fixed size

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

from .. import integrations
from .._extras import needed
from .cases import Common
from .clocks import Stopwatch, clock_of, in_short, rounds_in_turns
from .measure import empty_result, median_ratio
from .model_contenders import BASE, CONTENDERS, DTYPE
from .model_step import STEP_FACTS, Sequences, step_facts

SIZES = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
MODELS: dict[str, dict[str, Any]] = {  # what Llama's config does not say by itself
    name: {**dict(zip(SIZES, sizes, strict=True)), "num_key_value_heads": 8, "vocab_size": 128256}
    for name, sizes in {
        "llama-3.2-1b": (2048, 8192, 16, 32),
        "llama-3-8b": (4096, 14336, 32, 32),
        "llama-3-70b": (8192, 28672, 80, 64),
    }.items()
}
BATCHES = (1, 16, 64)
PROMPT = {"cuda": 2048, "cpu": 32}  # tokens of a sequence
BEHIND = {"cuda": 128, "cpu": 32}  # tokens in the cache
STEPS = 16  # decoded in a round
MODES = {"cuda": ("eager", "captured", "compiled"), "cpu": ("eager", "compiled")}


@dataclass(frozen=True)
class ModelSettings(Common):
    """What to measure."""

    model: str  # of MODELS, or a folder
    layers: int | None = None  # so many instead of the config's


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
    return model.to(settings.device).eval().requires_grad_(False)


# --- what is timed --------------------------------------------------------------------------------


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
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        run()
    return graph.replay


def compiled(model: nn.Module, device: str) -> Callable[..., Any]:
    """With the pass for producers, which finds nothing in models that are not ours."""
    if device == "cpu":
        return torch.compile(model, dynamic=False, options=integrations.inductor.options())
    options = integrations.inductor.options(**{"triton.cudagraphs": True})
    program: Any = torch.compile(model, dynamic=False, options=options)

    def called(**given: Any) -> Any:
        torch.compiler.cudagraph_mark_step_begin()
        return program(**given)

    return called


def round_of(model: nn.Module, work: tuple[str, int, str], device: str) -> Stopwatch:
    """Of a prefill, or of a token; warm."""
    phase, batch, mode = work
    prefill = phase == "prefill"
    tokens = (PROMPT if prefill else BEHIND)[device]
    sequences = Sequences(model, batch, tokens, device, room=0 if prefill else STEPS)
    called = compiled(model, device) if mode == "compiled" else model
    run = partial(sequences.prefill if prefill else sequences.step, called)
    if mode == "captured":
        run = captured(run)  # type: ignore[assignment]

    def seconds() -> float:
        sequences.go_to(tokens)
        return timed(run, 1 if prefill else STEPS, device)

    seconds()
    return Stopwatch(seconds, seconds(), [run])


def works(device: str, batches: Sequence[int]) -> list[tuple[str, int, str]]:
    """Phase, batch and mode of everything that is timed; what has to be compiled comes last."""
    return [
        (phase, batch, mode)
        for mode in MODES[device]
        for phase in ("decode", "prefill")
        for batch in batches
        if (phase, mode) != ("prefill", "captured")
    ]


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
        row |= {"gigabytes": None, "error": None, "step": {}, "ms": {}, "over": {}}
        rows.append(row)
        whole = model_of(settings)
        try:
            model = contender.prepare(whole)
            logits = Sequences(model, 1, 8, settings.device, room=0).prefill(model).float()
            exact = logits if exact is None else exact
            row["error"] = float((logits - exact).norm() / exact.norm())
            row["gigabytes"] = held_bytes(model) / 1e9
            models[contender.name] = model
            if settings.device == "cuda":
                row["step"] = step_facts(model, BEHIND["cuda"])
        except Exception as reason:  # the others go on
            if BASE not in models:
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
                if base := times.get(BASE):
                    row["over"][name] = median_ratio(own, base)
        clock.clear()
        yield result


def measure(
    models: dict[str, nn.Module],
    rows: list[dict[str, Any]],
    work: tuple[str, int, str],
    settings: ModelSettings,
) -> dict[str, list[float]]:
    """Seconds of each round, in turns; who fails has none, and its row says why it did so first."""
    torch.compiler.reset()
    failed = dict[str, str]()
    able = {name: partial(round_of, model, work, settings.device) for name, model in models.items()}
    times = rounds_in_turns(able, settings.rounds, failed=failed)
    for row in rows:
        if why := failed.get(row["name"]):
            row["verdict"] = row["verdict"] or f"{' '.join(map(str, work))}: {why}"
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
                f"{model['ms'][name]:.4g} ({model['over'].get(name, float('nan')):.2f}x)"
                if name in model["ms"]
                else "-"
                for name in names
            ]
            rows.append([model["name"], *cells, model["verdict"]])
        of = f"{result['prompt']} tokens each" if phase == "prefill" else "a token"
        yield f"{settings['model']}{layers}, {phase}, {of}; over {BASE}'s time", rows
    rows = [["model", "GB", "logits off bf16", *STEP_FACTS]]
    for model in models:
        size, error = model["gigabytes"], model["error"]
        cells = [f"{size:.3g}" if size else "-", "-" if error is None else f"{error:.2%}"]
        facts = [model["step"].get(fact) for fact in STEP_FACTS]
        cells += ["-" if fact is None else f"{fact:.1f}" for fact in facts]
        rows.append([model["name"], *cells])
    yield f"{settings['model']}{layers}; of an eager token, a layer", rows


def ratios(result: dict[str, Any]) -> tuple[dict[str, list[float]], list[str]]:
    """Of a picture: each contender's times over bf16's, and what they are of."""
    found = {
        model["name"]: [model["over"].get(name, float("nan")) for name in result["works"]]
        for model in result["models"]
        if model["over"] and model["name"] != BASE
    }
    return found, [name.replace(" ", "\n") for name in result["works"]]
