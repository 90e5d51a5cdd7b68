"""Which modules of a model can be quantised, and what else holds matrices.

`nn.Linear`; the Conv1D of the transformers package (GPT-2's), whose weight is the transpose [K, N];
and its experts that lie stacked (`nn.float_experts`), which are Linears too. Of a subclass of
`nn.Linear` (the output projection inside `nn.MultiheadAttention`, say) others may read the weight,
so it stays float.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from fnmatch import fnmatchcase, translate
from typing import cast

import torch
from torch import Tensor, nn

from ..nn import MAX_K, ScaledExperts
from ..nn.float_experts import (
    expert_linear,
    is_experts,
    linear_names,
    linear_of,
    why_unserved,
)
from ..nn.fused import unhooked
from .schemes import AnyScheme, BlockScheme, Scheme, WeightScheme

_TABLES = (nn.Embedding, nn.EmbeddingBag)
_READ = """
*DenseActDense.wo *DenseActDense.fc2 *DenseGatedActDense.wo *VisionMlp.wo
SeamlessM4T*FeedForwardNetwork.fc2 *MambaMixer.dt_proj *MHAttentionMap.k_proj
*MHAttentionMap.k_linear TDNNLayer.kernel DisentangledSelfAttention.in_proj
LSHSelfAttention.query_key LSHSelfAttention.value *Encoder.rel_pos_*bias Gemma3nTextAltUp.*_coefs
LongcatFlashTopkRouter.classifier MobileBertLMPredictionHead.de* NeoMMEForMaskedLM.unembedding_*
Gemma4*AssistantForCausalLM.lm_head WavLMAttention.*_proj EvaAttention.qkv
"""
_READERS = re.compile("|".join(map(translate, _READ.split())))
"""Classes of transformers and timm, and their Linears whose weight the class itself reads. A
quantised layer would give it a copy at every call, and would multiply without knowing of it."""


def is_conv1d(module: nn.Module) -> bool:
    """Whether it is the Conv1D of the transformers package, which need not be installed."""
    kind = type(module)
    return kind.__name__ == "Conv1D" and kind.__module__ == "transformers.pytorch_utils"


def quantisable(module: nn.Module) -> bool:
    """Whether a quantised layer can stand for the module."""
    known = type(module) is nn.Linear or is_conv1d(module)
    return (known or (is_experts(module) and why_unserved(module) is None)) and unhooked(module)


def linears_in(name: str, module: nn.Module) -> Iterator[tuple[str, nn.Linear]]:
    """The Linear that a quantisable module is, or those of its experts, by name."""
    if not is_experts(module):
        yield name, as_linear(module)
        return
    for part in linear_names(module):
        yield f"{name}.{part}" if name else part, expert_linear(module, part)


def classes(module: nn.Module) -> tuple[str, ...]:
    """The names by which targets mean all modules of a kind; experts are Linears, many of them."""
    kind = type(module).__name__
    return (kind, "Linear") if is_experts(module) else (kind,)


def quantised_as(
    name: str, module: nn.Module, make: Callable[[str, nn.Linear], nn.Module]
) -> nn.Module:
    """What takes a quantisable module's place; make: quantises a Linear of a name."""
    if not is_experts(module):
        return make(name, as_linear(module))
    prefix = f"{name}." if name else ""
    return ScaledExperts(module, lambda part: make(prefix + part, expert_linear(module, part)))


def as_linear(module: nn.Module) -> nn.Linear:
    """A quantisable module as an `nn.Linear`: itself, or one of the same memory."""
    if isinstance(module, nn.Linear):
        return module
    return linear_of(cast(Tensor, module.weight).t(), cast("Tensor | None", module.bias))


def named(model: nn.Module) -> dict[nn.Module, list[str]]:
    """Every quantisable module, with all the names it has."""
    names: dict[nn.Module, list[str]] = {}
    held = readers(model)
    for name, module in model.named_modules(remove_duplicate=False):
        if quantisable(module) and module not in held:
            names.setdefault(module, []).append(name)
            if is_experts(module):  # a pattern of their parameters means all of them
                own = (each for each, _ in module.named_parameters(name))
                names[module] += own
    return names


def readers(model: nn.Module) -> dict[nn.Module, str]:
    """Each module whose weight the module around it reads, and the class of that one."""
    return {
        child: type(owner).__name__
        for owner in model.modules()
        for name, child in owner.named_children()
        if _READERS.fullmatch(f"{type(owner).__name__}.{name}")
    }


def check(name: str, module: nn.Module, scheme: AnyScheme) -> None:
    """ValueError where the module's weight cannot be quantised so; nothing is changed."""
    kind = isinstance(scheme, Scheme) and (scheme.dynamic, scheme.per_token)
    if is_experts(module) and kind == (True, False):
        text = "must have a scheme per token, or a static one, got one dynamic scale for all"
        raise ValueError(f"{name} {text}")
    if is_experts(module) and isinstance(scheme, BlockScheme):
        raise ValueError(f"{name} must have a scheme that experts have, got int8 in blocks")
    for part, linear in linears_in(name, module):
        _check_weight(part, linear.weight, scheme)


def _check_weight(name: str, weight: Tensor, scheme: AnyScheme) -> None:
    if weight.dtype not in (torch.float32, torch.bfloat16, torch.float16):
        raise ValueError(
            f"{name}.weight must be float32, bfloat16 or float16, got {str(weight.dtype)[6:]}"
        )
    if not weight.is_meta and not bool(weight.isfinite().all()):
        raise ValueError(f"{name}.weight must be finite, got an infinity or NaN")
    if (text := why_not(scheme, weight.shape[1])) is not None:
        raise ValueError(f"{name} {text}")


def why_not(scheme: AnyScheme, k: int) -> str | None:
    """Why a layer of K inputs cannot have a scheme; None: it can."""
    if isinstance(scheme, WeightScheme):
        group = k if scheme.group_size == -1 else scheme.group_size
        fits = f"must have a multiple of {group} inputs for {scheme}, got {k}"
        return fits if group and k % group else None
    if isinstance(scheme, Scheme) and scheme.rotate and k % scheme.rotate:
        return f"must have a multiple of {scheme.rotate} inputs for rotate={scheme.rotate}, got {k}"
    return f"must have at most {MAX_K} inputs, got {k}" if k > MAX_K else None


def matching(names: Iterable[str], patterns: Iterable[str]) -> str | None:
    """The first pattern that fits one of the names."""
    known = list(names)
    return next((p for p in patterns if any(fits(name, p) for name in known)), None)


def fits(name: str, pattern: str) -> bool:
    """`re:` and what a regular expression finds at the name's begin; or `fnmatch` of all of it."""
    if pattern.startswith("re:"):
        return re.match(pattern[3:], name) is not None
    return fnmatchcase(name, pattern)


def matrices(model: nn.Module) -> dict[str, tuple[nn.Module, nn.Parameter]]:
    """Name -> owner and parameter, of every parameter of two or more dimensions, each once."""
    found: dict[str, tuple[nn.Module, nn.Parameter]] = {}
    tables: dict[str, tuple[nn.Module, nn.Parameter]] = {}
    for prefix, module in model.named_modules():
        for name, parameter in module.named_parameters(recurse=False):
            if parameter.ndim > 1:
                into = tables if isinstance(module, _TABLES) else found
                into[f"{prefix}.{name}" if prefix else name] = (module, parameter)
    # A table that a Linear shares (a tied lm_head) is that Linear's: it is multiplied by too.
    shared = {id(parameter) for _, parameter in found.values()}
    return found | {n: part for n, part in tables.items() if id(part[1]) not in shared}


def why_float(module: nn.Module, parameter: nn.Parameter, reader: str | None) -> str:
    """Why a matrix of a module that is not quantisable stays as it is; `reader`: of `readers`."""
    kind = type(module).__name__
    if reader is not None:
        return f"{reader} reads its weight itself"
    if isinstance(module, _TABLES):
        return "a table that is looked up in, not multiplied by"
    if not unhooked(module):
        return f"this {kind} has hooks or a forward of its own, which a quantised layer would lose"
    if isinstance(module, nn.Linear):
        return f"{kind} is a subclass of Linear: others may read its weight"
    if is_experts(module) and (why := why_unserved(module)) is not None:
        return f"{kind} {why}"
    if parameter.ndim == 3 and not isinstance(module, nn.Conv1d | nn.ConvTranspose1d):
        if len(parameter) == 1:
            return f"{kind} uses it itself, in the shape {tuple(parameter.shape)}"
        return f"stacked weights of {len(parameter)} experts: {kind} multiplies by them itself"
    return f"{kind} is neither a Linear nor a Conv1D of transformers"


def multiplied(module: nn.Module) -> bool:
    """Whether matrices of the module count as such: all but tables."""
    return not isinstance(module, _TABLES)
