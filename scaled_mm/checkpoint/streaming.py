"""A float model whose weights are in memory only while they are used.

The model is made on the meta device. Its vectors (norms, biases) are read at once and stay; its
matrices are read from the checkpoint when a part of the model is loaded, and freed with it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_parameter_registration_hook

from .._torch import keeps_dtypes
from ..quantization.rotation import Folding
from .files import DTYPES, NAMES
from .float_model import model_class, transformers_config
from .folder import Checkpoint
from .names import Given, Names, without_values


class NotInParts(Exception):
    """Why a model cannot be loaded, or calibrated, part by part."""


class StreamedModel:
    """A model of transformers, and where each of its parameters is in the files.

    Args:
        checkpoint: the files.
        folding: what a rotation makes of each parameter that is read; None: nothing.

    Attributes:
        model: in eval mode; matrices on the meta device until they are loaded.

    Raises:
        NotInParts: the files do not hold every parameter as the model has it.
        ValueError, ModuleNotFoundError: as `float_model.model_class`.
    """

    def __init__(self, checkpoint: Checkpoint, folding: Folding | None = None) -> None:
        self._checkpoint, self._folding = checkpoint, folding
        made = model_class(checkpoint, "running the float model")
        config = transformers_config(checkpoint)
        dtype = getattr(config, "dtype", None) or _first_float(checkpoint)
        try:
            with _parameters_on_meta(), _default_dtype(dtype):
                model = made(config)
        except Exception as error:  # whatever a model's own code does with weights it does not have
            reason = f"{type(error).__name__}: {error}".splitlines()[0][:200]
            raise NotInParts(f"{made.__name__} is not made without weights: {reason}") from error
        self.model: nn.Module = model.eval().requires_grad_(False)
        if keeps_dtypes(model, dtype):
            raise NotInParts("some of its parameters are kept in another dtype")
        self._sources = self._find()  # of each parameter and persistent buffer, by all its names
        self._shapes = without_values(checkpoint)
        for name, x in self.model.named_buffers():
            if name in self._sources:
                self._check(name, x)
                x.copy_(self._read(name))
        for name, parameter in self.model.named_parameters():
            self._check(name, parameter)
        self._place(name for name, x in self._named() if x.ndim < 2)

    def _find(self) -> dict[str, Given]:
        """Name of each tensor of the model -> what it is made of, which may be a tied one's."""
        names: dict[int, list[str]] = {}
        persistent = self.model.state_dict(keep_vars=True)
        for name, x in persistent.items():
            names.setdefault(id(x), []).append(name)
        files = {each.name: each for each in Names(self.model).given(self._checkpoint.where)}
        sources: dict[str, Given] = {}
        for same in names.values():
            stored = [files[name] for name in same if name in files]
            if not stored:
                raise NotInParts(f"{same[0]} is not in the files under this name")
            sources |= dict.fromkeys(same, stored[0])
        return sources

    def _read(self, name: str) -> Tensor:
        made = self._sources[name]
        return made.made(self.model, self._checkpoint.read)[made.name]

    def _check(self, name: str, x: Tensor) -> None:
        made = self._sources[name]
        found = made.made(self.model, self._shapes).get(made.name)
        if found is None or found.dtype != x.dtype or found.shape != x.shape:
            got = "made otherwise" if found is None else f"{NAMES[found.dtype]} {list(found.shape)}"
            raise NotInParts(f"{name} is {got}, the model has {x.dtype} {list(x.shape)}")

    @contextmanager
    def loaded(self, prefix: str = "", without: str | None = None) -> Iterator[None]:
        """The matrices below a module are in memory inside, and freed afterwards.

        Args:
            prefix: of the module; "" is the model.
            without: a module whose matrices are left out.
        """
        names = [
            name
            for name, x in self._named()
            if x.ndim > 1
            and _below(name, prefix)
            and (without is None or not _below(name, without))
        ]
        self._place(names)
        try:
            yield
        finally:
            for name in names:
                owner, leaf = self._owner(name)
                setattr(owner, leaf, _empty(getattr(owner, leaf)))

    def _named(self) -> list[tuple[str, nn.Parameter]]:
        return list(self.model.named_parameters(remove_duplicate=False))

    def _owner(self, name: str) -> tuple[nn.Module, str]:
        path, _, leaf = name.rpartition(".")
        return self.model.get_submodule(path), leaf

    def _place(self, names: Iterable[str]) -> None:
        # By the name in the files: what is tied stays so, unless a rotation parts it.
        made: dict[str, nn.Parameter] = {}
        for name in names:
            source = self._sources[name].name
            turned = self._folding is not None and name in self._folding.folds
            key = name if turned else source
            if key not in made:
                x = self._read(name)
                x = self._folding(name, x) if self._folding is not None else x
                made[key] = nn.Parameter(x, requires_grad=False)
            owner, leaf = self._owner(name)
            setattr(owner, leaf, made[key])


def _below(name: str, prefix: str) -> bool:
    return not prefix or name.startswith(f"{prefix}.")


def _empty(x: Tensor) -> nn.Parameter:
    return nn.Parameter(torch.empty_like(x, device="meta"), requires_grad=False)


def _first_float(checkpoint: Checkpoint) -> torch.dtype:
    """As transformers finds the dtype of a model whose config does not say it."""
    for name in checkpoint.where:
        dtype = DTYPES.get(checkpoint.entry(name).dtype)
        if dtype is not None and dtype.is_floating_point:
            return dtype
    return torch.get_default_dtype()


@contextmanager
def _default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@contextmanager
def _parameters_on_meta() -> Iterator[None]:
    """Every parameter that a module gets inside has no values; buffers have theirs.

    `torch.device("meta")` would take those of buffers too, and some of them are nowhere but in the
    code that makes them: the frequencies of rotary embeddings.
    """

    def on_meta(module: nn.Module, name: str, parameter: nn.Parameter) -> nn.Parameter:
        return parameter if parameter.is_meta else _empty(parameter)

    hook = register_module_parameter_registration_hook(on_meta)  # type: ignore[arg-type]
    try:
        yield
    finally:
        hook.remove()
