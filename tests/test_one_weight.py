"""ScaledLinear keeps its weight once, and computes with that weight whoever wrote it, and how."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from helpers import assert_bits
from torch import Tensor, nn

from scaled_mm import PackedWeight
from scaled_mm.nn import ScaledLinear

K, N = 44, 21
SHAPES = [
    (1, 1),
    (3, 15),
    (4, 16),
    (5, 17),
    (44, 21),
    (64, 32),
    (7, 48),
    (256, 100),
    (0, 5),
    (5, 0),
]


def layer(k: int = K, n: int = N, seed: int = 0) -> ScaledLinear:
    torch.manual_seed(seed)
    return ScaledLinear.from_linear(nn.Linear(k, n, bias=False))


def weight_of(layer: ScaledLinear) -> Tensor:
    """A copy, from a copy: the layer itself is not looked at."""
    return copy.deepcopy(layer).weight.clone()


def is_packed(layer: ScaledLinear) -> bool:
    return layer._buffers.packed is not None


X = torch.randn(3, K, generator=torch.Generator().manual_seed(1))
OTHER = layer(seed=5)


def product(layer: ScaledLinear, weight: Tensor, x: Tensor = X) -> Tensor:
    """What the layer makes of x with this weight, by a layer that never had another."""
    state = {**copy.deepcopy(layer).state_dict(), "weight": weight}
    fresh = ScaledLinear(layer.in_features, layer.out_features, bias=False)
    fresh.load_state_dict(state)
    return fresh(x)


# --- whoever writes the weight --------------------------------------------------------------------


def functional(module: ScaledLinear) -> Tensor:
    return torch.func.functional_call(module, {"weight": -module.weight}, (X,))


def assigned(module: ScaledLinear) -> None:
    state = module.state_dict()
    module.load_state_dict({**state, "weight": -state["weight"]}, assign=True)


def loaded(module: ScaledLinear) -> None:
    state = module.state_dict()
    module.load_state_dict({**state, "weight": -state["weight"]})


def a_view_outlives_a_call(module: ScaledLinear) -> None:
    view = module.weight[:]
    module(X)
    view.neg_()


def data_outlives_a_call(module: ScaledLinear) -> None:
    hidden = module.weight.data  # its writes do not count in the weight's _version
    module(X)
    hidden.neg_()


def numpy_outlives_a_call(module: ScaledLinear) -> None:
    array = module.weight.numpy()
    module(X)
    array *= -1


def a_storage_outlives_a_call(module: ScaledLinear) -> None:
    storage = module.weight.untyped_storage()
    module(X)
    torch.empty(0, dtype=torch.int8, device=storage.device).set_(storage).neg_()


def in_a_state_dict_later(module: ScaledLinear) -> None:
    state = nn.Sequential(module).state_dict()
    module(X)
    state["0.weight"].neg_()
    module(X)


def under_inference_mode(module: ScaledLinear) -> None:
    with torch.inference_mode():
        weight = module.weight
        module(X)
        weight.neg_()


def as_a_parameter(module: ScaledLinear) -> None:
    module.weight = nn.Parameter(-module.weight, requires_grad=False)


def written(module: ScaledLinear) -> None:
    module.weight.neg_()


def replaced(module: ScaledLinear) -> None:
    module.weight = -module.weight


def registered(module: ScaledLinear) -> None:
    module.register_buffer("weight", -module.weight)


def by_the_dict(module: ScaledLinear) -> None:
    module._buffers.update(weight=-module._buffers.pop("weight"))


def by_the_dict_unread(module: ScaledLinear) -> None:
    module._buffers["weight"] = -weight_of(module)


WRITERS: dict[str, Callable[[ScaledLinear], Any]] = {
    "in-place": written,
    "data": lambda module: module.weight.data.neg_(),
    "state-dict": lambda module: module.state_dict()["weight"].copy_(-module.weight),
    "named-buffers": lambda module: dict(module.named_buffers())["weight"].neg_(),
    "attribute": replaced,
    "register-buffer": registered,
    "buffers": by_the_dict,
    "buffers-unread": by_the_dict_unread,
    "parameter": as_a_parameter,
    "load": loaded,
    "assign": assigned,
    "view-later": a_view_outlives_a_call,
    "data-later": data_outlives_a_call,
    "numpy-later": numpy_outlives_a_call,
    "storage-later": a_storage_outlives_a_call,
    "state-dict-later": in_a_state_dict_later,
    "inference-mode": under_inference_mode,
}
MOVES: dict[str, Callable[[ScaledLinear], ScaledLinear]] = {
    "itself": lambda module: module,
    "to": lambda module: module.to("cpu"),
    "half": lambda module: module.half(),
    "share-memory": lambda module: module.share_memory(),
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "pickle": lambda module: pickle.loads(pickle.dumps(module)),
    "buffers-copied": lambda module: module._replicate_for_data_parallel(),
}


@pytest.mark.parametrize("move", MOVES)
@pytest.mark.parametrize("first", [True, False], ids=["called", "new"])
@pytest.mark.parametrize("writer", WRITERS)
def test_no_stale_weight(writer: str, first: bool, move: str) -> None:
    """The layer is -W after -W was written, and says so; then packed again, and still."""
    module, old = layer(), weight_of(layer())
    if first:
        module(X)
    module = MOVES[move](module)
    WRITERS[writer](module)
    for _ in range(2):
        assert_bits(module(X), product(layer(), -old), writer, move)
    assert_bits(module.weight, nn.Parameter(-old, False) if writer == "parameter" else -old)
    assert_bits(module.state_dict()["weight"], -old)
    assert_bits(module(X), product(layer(), -old))


@pytest.mark.parametrize("move", ["deepcopy", "pickle"])
def test_a_copy_is_on_its_own(move: str) -> None:
    module, want = layer(), layer()(X)
    other = MOVES[move](module)
    other.weight.zero_()
    assert_bits(module(X), want)
    assert not other(X).any()
    held = module.weight
    other = MOVES[move](module)
    held.zero_()
    assert_bits(other(X), want)


def test_functional_call() -> None:
    """Only for the one call, whatever form the weight had before."""
    module, old = layer(), weight_of(layer())
    for _ in range(2):
        assert_bits(functional(module), product(layer(), -old))
        assert_bits(module(X), product(layer(), old))
    model = nn.Sequential(module, nn.ReLU())
    out = torch.func.functional_call(model, {"0.weight": OTHER.weight}, (X,))
    assert_bits(out, product(layer(), OTHER.weight).relu())
    assert is_packed(module) or module(X) is not None
    for broken in (torch.zeros(N, K), torch.zeros(N, K + 1, dtype=torch.int8)):
        with pytest.raises(ValueError, match=r"must"):
            torch.func.functional_call(module, {"weight": broken}, (X,))
        assert_bits(module(X), product(layer(), old))


def test_pack_leaves_the_tensors_read_before_to_their_holders() -> None:
    module, old = layer(), weight_of(layer())
    state = module.state_dict()
    state["weight"].neg_()
    module.pack()
    state["weight"].zero_()
    for _ in range(2):
        assert_bits(module(X), product(layer(), -old))
        assert_bits(weight_of(module), -old)
    assert is_packed(module)


def test_a_deleted_weight_is_gone() -> None:
    module = layer()
    del module.weight
    with pytest.raises(AttributeError, match="weight"):
        module(X)


def test_threads_read_and_run() -> None:
    """Layers that run while others read their weight have one weight throughout."""
    module = layer(64, 64)
    x, weight = torch.randn(4, 64), weight_of(module)
    want = product(module, weight, x)

    def work(i: int) -> bool:
        return torch.equal(module(x), want) and torch.equal(module.state_dict()["weight"], weight)

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(work, range(400)))


# --- once -----------------------------------------------------------------------------------------


def tensors(value: Any) -> Iterator[Tensor]:
    """Every tensor that an object holds, by way of attributes, dicts and sequences."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, PackedWeight):
        yield value.data
    elif isinstance(value, dict):
        yield from (x for inner in dict.values(value) for x in tensors(inner))
        yield from tensors(getattr(value, "__dict__", None))
    elif isinstance(value, (list, tuple)):
        yield from (x for inner in value for x in tensors(inner))
    elif isinstance(value, nn.Module):
        yield from tensors(vars(value))


def held(module: nn.Module) -> int:
    """Bytes of memory that a module's tensors hold, shared ones once."""
    storages = {x.untyped_storage()._cdata: x.untyped_storage().nbytes() for x in tensors(module)}
    return sum(storages.values())


LARGE_K, LARGE_N = 512, 256
ONE_COPY = LARGE_K * LARGE_N + LARGE_N * (4 + 4) + 4 * LARGE_N  # packed, its skew; scale; sums


def large(**scheme: Any) -> ScaledLinear:
    return ScaledLinear.from_linear(nn.Linear(LARGE_K, LARGE_N, bias=False), **scheme)


def empty() -> ScaledLinear:
    made = ScaledLinear(LARGE_K, LARGE_N, bias=False)
    made.load_state_dict(large().state_dict())
    return made


def compiled_then_saved() -> ScaledLinear:
    module = large()
    torch.save(module.state_dict(), io.BytesIO())
    torch._dynamo.reset()
    torch.compile(nn.Sequential(module), fullgraph=True, backend="aot_eager")(X_LARGE)
    return module


X_LARGE = torch.ones(1, LARGE_K)
MADE: dict[str, Callable[[], ScaledLinear]] = {
    "from_linear": large,
    "asymmetric": lambda: large(symmetric=False),
    "load_state_dict": empty,
    "to": lambda: large().to(torch.bfloat16),
    "deepcopy": lambda: copy.deepcopy(large()),
    "compiled-after-saving": compiled_then_saved,
}


@pytest.mark.parametrize("name", MADE)
def test_one_copy(name: str) -> None:
    """One byte for each element: packed before the first call already, and after all readers."""
    module = MADE[name]()
    assert is_packed(module)
    assert LARGE_K * LARGE_N <= held(module) <= ONE_COPY
    for reader in (
        lambda: module.weight.sum(),
        lambda: torch.save(module.state_dict(), io.BytesIO()),
        lambda: pickle.dumps(module),
        lambda: list(module.named_buffers()),
        lambda: functional_sum(module),
    ):
        reader()
        assert held(module) <= ONE_COPY
        module(X_LARGE)
        assert is_packed(module)
        assert held(module) <= ONE_COPY


def functional_sum(module: ScaledLinear) -> Tensor:
    return torch.func.functional_call(module, {"weight": large().weight}, (X_LARGE,)).sum()


def test_one_copy_in_a_file() -> None:
    """Pickles and state dicts hold the plain weight: the packed form is this machine's."""
    module = layer()
    loaded = pickle.loads(pickle.dumps(module))
    assert is_packed(module) and not is_packed(loaded)
    assert_bits(loaded.weight, weight_of(module))


def test_a_pickle_of_an_earlier_version() -> None:
    module = layer()
    state = {**vars(module), "_buffers": dict(module._buffers.copy()), "_packed": None}
    older = ScaledLinear.__new__(ScaledLinear)
    older.__setstate__(state)
    assert_bits(older(X), layer()(X))
    assert is_packed(older) or older.weight is not None
