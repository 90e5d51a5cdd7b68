"""Calibration of a model block by block: the weights of one block are in memory at a time.

A transformer is a list of equal blocks, each of which gets what the one before it put out. So all
batches go through the first block, then through the second, and so on; between them the hidden
states of every batch are kept, and nothing else. A first run of one batch, in which each block is
loaded, run and freed, shows whether a model is of this kind; `NotInParts` says why not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from .._progress import progress
from .._torch import TreeSpec, tree_flatten, tree_leaves, tree_unflatten
from ..quantization.calibration import Calibration, calibrated
from ..quantization.config import QuantConfig
from ..quantization.observe import Call, evaluating, hooked
from .streaming import NotInParts, StreamedModel

SAME = -1


def blocks_of(model: nn.Module, layers: Sequence[str]) -> str:
    """The name of the ModuleList that holds most of the layers.

    Raises:
        NotInParts: none of two or more modules of one class holds any.
    """
    counts: dict[str, int] = {}
    for name, module in model.named_modules():
        if isinstance(module, nn.ModuleList) and len(module) > 1:
            held = sum(layer.startswith(f"{name}.") for layer in layers)
            if held and len({type(each) for each in module}) == 1:
                counts[name] = held
    if not counts:
        raise NotInParts("no list of equal blocks holds the layers")
    return max(counts, key=lambda name: (counts[name], -len(name)))


@dataclass(frozen=True)
class Feeding:
    """How a block is called, seen from the block before it and from the first one.

    The arguments are flattened. `slots` says of each leaf which of the leaves that the block before
    put out it is; SAME: the very leaf that the first block got there.
    """

    spec: TreeSpec
    slots: tuple[int, ...]


class _Reached(Exception):
    """The first block was called: no more of this run is needed."""


class Walk:
    """One run of a model, block by block, of which every step is looked at.

    Attributes:
        name, blocks: of the list in the model, and the list.
        feeding: how each block but the first is called, by its place in the list.
    """

    def __init__(self, streamed: StreamedModel, name: str) -> None:
        self.streamed, self.name = streamed, name
        listed = streamed.model.get_submodule(name)
        assert isinstance(listed, nn.ModuleList)
        self.blocks = listed
        self._first: tuple[list[Any], TreeSpec] | None = None
        self._out: list[Any] = []  # leaves of what the last block put out
        self._loaded = ExitStack()
        self._between = _Between()
        self.feeding: dict[int, Feeding] = {}
        self._done = 0

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Inside, the model is to be called once.

        Raises:
            NotInParts: at the end, or as soon as something shows that the blocks are not run one
                after the other, each on the output of the one before.
        """
        hooks = []
        for at, block in enumerate(self.blocks):
            enter = partial(self._enter, at)
            hooks.append(block.register_forward_pre_hook(enter, with_kwargs=True))
            hooks.append(block.register_forward_hook(self._leave))
        with hooked(hooks), self._loaded, self.streamed.loaded(without=self.name), self._between:
            yield
        if self._done != len(self.blocks):
            raise NotInParts(f"{self._done} of {len(self.blocks)} blocks of {self.name} ran")

    def _enter(
        self, at: int, block: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        if at != self._done:
            raise NotInParts(f"{self.name} does not run each block once, in order")
        leaves, spec = tree_flatten((args, kwargs))
        if self._first is None:
            self._first = leaves, spec
        else:
            self.feeding[at] = self._fed(at, leaves, spec)
        self._between.inside = True
        self._loaded.enter_context(self.streamed.loaded(f"{self.name}.{at}"))

    def _leave(self, block: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        self._loaded.close()
        self._out = tree_leaves(output)
        self._done += 1
        self._between.inside = False
        out = {id(x): x for x in self._out if isinstance(x, Tensor)}
        if self._done < len(self.blocks):
            self._between.for_blocks |= out
        else:  # the model goes on with what the last one put out
            for each in out:
                self._between.for_blocks.pop(each, None)

    def _fed(self, at: int, leaves: list[Any], spec: TreeSpec) -> Feeding:
        assert self._first is not None
        first, first_spec = self._first
        if spec != first_spec:
            raise NotInParts(f"{self.name}.{at} is called otherwise than {self.name}.0")
        slots = []
        for leaf, of_first in zip(leaves, first, strict=True):
            out = next((i for i, x in enumerate(self._out) if x is leaf), SAME)
            plain = leaf is None or isinstance(leaf, (bool, int, float, str))
            same = leaf is of_first if isinstance(leaf, Tensor) else plain and leaf == of_first
            if out == SAME and not same:
                what = type(leaf).__name__
                raise NotInParts(
                    f"{self.name}.{at} gets a {what} that is neither the first "
                    "block's nor the output of the one before"
                )
            slots.append(out if isinstance(leaf, Tensor) else SAME)
        if set(slots) == {SAME}:
            raise NotInParts(f"{self.name}.{at} does not get what the block before put out")
        return Feeding(spec, tuple(slots))


class _Between(TorchFunctionMode):
    """Looks out for torch functions that read a block's output between two blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.inside = False
        self.for_blocks: dict[int, Tensor] = {}
        """By their ids: the tensors are kept, so that no other takes one's id."""

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        if not self.inside and self.for_blocks and isinstance(out, Tensor):
            leaves = tree_leaves((args, dict(kwargs or {})))
            if id(out) not in self.for_blocks and any(id(x) in self.for_blocks for x in leaves):
                raise NotInParts("the output of a block is read beside the next block")
        return out


@dataclass(frozen=True)
class BlockCall(Call):
    """A batch on its way: `run` says what is called with it."""

    run: Callable[[Call], Any] | None = None

    def __call__(self, model: nn.Module) -> Any:
        assert self.run is not None
        return self.run(self)


class Blockwise:
    """All batches on their way through the blocks of a model, which a `Walk` has watched."""

    def __init__(self, walk: Walk, calls: Sequence[Call]) -> None:
        self._streamed, self._name, self._blocks = walk.streamed, walk.name, walk.blocks
        self._feeding, self._calls = walk.feeding, calls
        with self._streamed.loaded(without=self._name):
            self._first = [self._arguments(call) for call in calls]
        self._outputs: list[Any] = []

    def _arguments(self, call: Call) -> list[Any]:
        """The leaves of what the first block is called with."""
        got: list[Any] = []

        def stop(block: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            leaves, spec = tree_flatten((args, kwargs))
            if spec != self._feeding[1].spec:
                raise NotInParts(f"{self._name}.0 is not called with the same for every batch")
            got.extend(leaves)
            raise _Reached

        hook = self._blocks[0].register_forward_pre_hook(stop, with_kwargs=True)
        try:
            with hooked([hook]), torch.no_grad(), evaluating(self._streamed.model):
                call(self._streamed.model)
        except _Reached:
            return got
        raise NotInParts(f"a batch does not reach {self._name}.0")

    def calibrate(self, layers: Mapping[str, nn.Module], config: QuantConfig) -> Calibration:
        """What the batches tell of the layers, as `calibrated` of the whole model does."""
        found = Calibration()
        inside: set[str] = set()
        with progress("blocks", len(self._blocks)) as tick:
            for at in range(len(self._blocks)):
                prefix = f"{self._name}.{at}."
                here = {name: x for name, x in layers.items() if name.startswith(prefix)}
                inside |= here.keys()
                with self._streamed.loaded(f"{self._name}.{at}"):
                    found |= self._block(at, here, config)
                tick()
        outside = {name: x for name, x in layers.items() if name not in inside}
        if outside:
            found |= self._outside(outside, config)
        return found

    def _block(self, at: int, layers: Mapping[str, nn.Module], config: QuantConfig) -> Calibration:
        """Calibrates one block, and brings every batch behind it."""
        block, outputs = self._blocks[at], {}

        def run(number: int, call: Call) -> Any:
            outputs[number] = block(*call.args, **call.kwargs)
            return outputs[number]

        calls = []
        for number, call in enumerate(self._calls):
            args, kwargs = self._arguments_of(at, number)
            calls.append(BlockCall(args, kwargs, call.mask, partial(run, number)))
        if layers:
            found = calibrated(self._streamed.model, layers, calls, _within(config, layers))
        else:
            found = Calibration()
            with torch.no_grad(), evaluating(self._streamed.model):
                for call in calls:
                    call(self._streamed.model)
        self._outputs = [outputs[number] for number in range(len(calls))]
        for leaves in self._first if at == 0 else ():  # what only the first block gets
            for place, slot in enumerate(self._feeding[1].slots):
                if slot != SAME:
                    leaves[place] = None
        return found

    def _arguments_of(self, at: int, number: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
        first, feeding = self._first[number], self._feeding[max(at, 1)]
        leaves = list(first)
        if at:
            out = tree_leaves(self._outputs[number])
            leaves = [
                leaf if slot == SAME else out[slot]
                for leaf, slot in zip(first, feeding.slots, strict=True)
            ]
        args, kwargs = tree_unflatten(leaves, feeding.spec)
        return args, kwargs

    def _outside(self, layers: Mapping[str, nn.Module], config: QuantConfig) -> Calibration:
        """Calibrates what lies before and behind the blocks, which put out what they did before."""
        current = 0

        def run(number: int, call: Call) -> Any:
            nonlocal current
            current = number
            return self._streamed.model(*call.args, **call.kwargs)

        calls = [
            BlockCall(call.args, call.kwargs, call.mask, partial(run, number))
            for number, call in enumerate(self._calls)
        ]
        blocks = list(self._blocks)
        for at, block in enumerate(blocks):
            self._blocks[at] = _Done(block, lambda: self._outputs[current])
        try:
            with self._streamed.loaded(without=self._name):
                return calibrated(self._streamed.model, layers, calls, _within(config, layers))
        finally:
            for at, block in enumerate(blocks):
                self._blocks[at] = block


class _Done(nn.Module):
    """In a block's place: puts out what the block did. All else that a model asks of it is the
    block's."""

    def __init__(self, block: nn.Module, output: Callable[[], Any]) -> None:
        super().__init__()
        self._done = block, output  # in a tuple the block is no submodule: it has no values now

    def __getattr__(self, name: str) -> Any:
        return getattr(self._done[0], name)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self._done[1]()


def _within(config: QuantConfig, layers: Mapping[str, nn.Module]) -> QuantConfig:
    """The config with those norms only whose layers are among these."""
    smoothing = config.smoothing
    if smoothing is None or smoothing.pairs is None:
        return config
    pairs = []
    for norm, names in smoothing.pairs:
        held = [name in layers for name in names]
        if any(held) and not all(held):
            raise NotInParts(f"{norm} feeds layers of several blocks")
        if all(held):
            pairs.append((norm, names))
    return replace(config, smoothing=replace(smoothing, pairs=tuple(pairs)))
