"""A ScaledLinear keeps its weight once, packed; copies, files and other devices get it exactly."""

import copy
import io
import pickle
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from helpers import assert_bits
from torch import Tensor, nn

import scaled_mm
from scaled_mm import PackedWeight, pack_weight_int8
from scaled_mm.nn import ScaledLinear, WeightOnlyLinear

K, N = 44, 21
SHAPES = [(1, 1), (3, 15), (4, 16), (5, 17), (44, 21), (64, 32), (7, 48), (256, 100)]
SHAPES += [(0, 5), (5, 0)]
X = torch.randn(3, K, generator=torch.Generator().manual_seed(1))


def layer(k: int = K, n: int = N, **scheme: Any) -> ScaledLinear:
    torch.manual_seed(0)
    return ScaledLinear.from_linear(nn.Linear(k, n, bias=False), **scheme)


def assigned(module: ScaledLinear) -> ScaledLinear:
    made = ScaledLinear(K, N, bias=False, device="meta")
    made.load_state_dict(module.state_dict(), assign=True)
    return made


def loaded(module: ScaledLinear) -> ScaledLinear:
    made = ScaledLinear(K, N, bias=False)
    made.load_state_dict(module.state_dict())
    return made


def moved_by_somebody(module: ScaledLinear) -> ScaledLinear:
    """As accelerate moves a layer: each buffer by itself."""
    for name, x in list(module.named_buffers()):
        setattr(module, name, x.clone())
    return module


def moved_from_a_gpu(module: ScaledLinear) -> ScaledLinear:
    """A buffer in the layout of CUDA, with rows of 48 bytes."""
    module.kernel_weight = F.pad(module.weight_int8, (0, 48 - K))
    return module


def filled_by_attributes(module: ScaledLinear) -> ScaledLinear:
    """As transformers fills a layer on the meta device."""
    made = ScaledLinear(K, N, bias=False, device="meta")
    for name, x in module.state_dict().items():
        setattr(made, name, x)
    return made


def called_in_threads(module: ScaledLinear) -> ScaledLinear:
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: (module(X), module.state_dict()), range(100)))
    return module


MOVES: dict[str, Callable[[ScaledLinear], ScaledLinear]] = {
    "itself": lambda module: module,
    "to": lambda module: module.to("cpu"),
    "half": lambda module: module.half(),
    "bfloat16": lambda module: module.to(torch.bfloat16),
    "share-memory": lambda module: module.share_memory(),
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "pickle": lambda module: pickle.loads(pickle.dumps(module)),
    "replicated": lambda module: module._replicate_for_data_parallel(),
    "unpacked": lambda module: module.unpack(),
    "load": loaded,
    "assign": assigned,
    "meta-and-back": lambda module: module.to_empty(device="meta") and assigned(layer()),
    "by-somebody": moved_by_somebody,
    "from-a-gpu": moved_from_a_gpu,
    "attributes": filled_by_attributes,
    "threads": called_in_threads,
}


@pytest.mark.parametrize("move", MOVES)
def test_the_weight_stays(move: str) -> None:
    """Bits, one copy, and what is written afterwards counts."""
    want, old = layer()(X), layer().weight_int8
    module = MOVES[move](layer())
    assert_bits(module.weight_int8, old)
    assert_bits(module(X), want)
    assert module.packed is not None
    assert_bits(module.state_dict()["weight"], old)
    module.set_weight(-old)
    assert_bits(module(X), -want)
    assert_bits(module.weight_int8, -old)


def test_copies_are_on_their_own() -> None:
    module, want = layer(), layer()(X)
    other = copy.deepcopy(module)
    other.set_weight(torch.zeros(N, K, dtype=torch.int8))
    for x in (module.weight, module.weight_int8, module.state_dict()["weight"]):
        x.zero_()
    assert_bits(module(X), want)
    assert not other(X).any()


@pytest.mark.parametrize("scheme", [{}, {"smooth": torch.linspace(0.5, 2, K)}], ids=["", "smooth"])
def test_readers_get_floats(scheme: dict[str, Any]) -> None:
    """Whoever multiplies or looks up by `weight` gets what the layer multiplies by."""
    torch.manual_seed(0)
    source = nn.Linear(K, N, bias=False)
    module = ScaledLinear.from_linear(source, **scheme)
    rows = F.embedding(torch.tensor([2, 0]), module.weight)
    assert rows.dtype == torch.float32
    assert (rows - source.weight[[2, 0]]).abs().max() < 0.02 * source.weight.abs().max()
    for other in (WeightOnlyLinear.from_linear(source),):
        assert (other.weight - source.weight).abs().max() < 0.02 * source.weight.abs().max()


def test_weight_is_not_assigned() -> None:
    module = layer()
    with pytest.raises(AttributeError, match="set_weight"):
        module.weight = torch.zeros(N, K, dtype=torch.int8)
    with pytest.raises(AttributeError, match="set_weight"):
        torch.func.functional_call(module, {"weight": torch.zeros(N, K)}, (X,))
    for wrong in (torch.zeros(N, K), torch.zeros(N, K + 1, dtype=torch.int8)):
        with pytest.raises(ValueError, match=r"^weight must be int8 of shape \(21, 44\), got"):
            module.set_weight(wrong)


@pytest.mark.parametrize(
    "scheme", [{"symmetric": False}, {"symmetric": False, "dynamic": False, "input_scale": 0.1,
                                      "input_azp": 3}], ids=["dynamic", "static"]
)  # fmt: skip
def test_set_weight_follows_in_the_zero_points(scheme: dict[str, Any]) -> None:
    module = layer(**scheme)
    other = ScaledLinear(K, N, False, symmetric=False, dynamic="dynamic" not in scheme)
    state = {name: x for name, x in module.state_dict().items() if not name.startswith("azp")}
    other.load_state_dict({**state, "weight": -state["weight"]})
    module.set_weight(-module.weight_int8)
    assert_bits(module(X), other(X))


def storages(value: Any) -> Iterator[torch.UntypedStorage]:
    """Of every tensor that an object holds, by way of attributes, dicts and sequences."""
    if isinstance(value, Tensor):
        yield value.untyped_storage()
    elif isinstance(value, dict):
        yield from (x for inner in value.values() for x in storages(inner))
    elif isinstance(value, (list, tuple)):
        yield from (x for inner in value for x in storages(inner))
    elif isinstance(value, (nn.Module, PackedWeight, scaled_mm.MixedWeight)):
        yield from storages(vars(value))


def held(module: nn.Module) -> int:
    return sum({x._cdata: x.nbytes() for x in storages(module)}.values())


LARGE = 512
FORMS: dict[str, tuple[Callable[[nn.Linear], nn.Module], float]] = {
    "int8": (ScaledLinear.from_linear, 1),
    "w8": (WeightOnlyLinear.from_linear, 1),
    "w4": (lambda linear: WeightOnlyLinear.from_linear(linear, bits=4, group_size=128), 0.5),
}


@pytest.mark.parametrize("move", ["itself", "deepcopy", "pickle", "to", "unpacked"])
@pytest.mark.parametrize("form", FORMS)
def test_one_copy(form: str, move: str) -> None:
    """Behind readers, calls and files too; and torch and transformers count it, as a buffer."""
    make, bytes_each = FORMS[form]
    least = LARGE * LARGE * bytes_each
    module = MOVES[move](make(nn.Linear(LARGE, LARGE, bias=False)))
    for reader in (
        lambda: module(torch.ones(1, LARGE)),
        lambda: torch.save(module.state_dict(), io.BytesIO()),
        lambda: pickle.dumps(module),
    ):
        reader()
        assert least <= held(module) <= 1.05 * least
        assert least <= sum(x.nbytes for x in module.buffers()) <= 1.05 * least


def test_compiled_code_follows_the_weight(dynamo: None) -> None:
    module, want, old = layer(), layer()(X), layer().weight_int8
    compiled = torch.compile(nn.Sequential(module), fullgraph=True, backend="aot_eager")
    assert_bits(compiled(X), want)
    with torch._dynamo.config.patch(error_on_recompile=True):
        for sign in (-1, 1, -1):
            module.set_weight(sign * old)
            assert_bits(compiled(X), sign * want)
            assert_bits(module(X), sign * want)


class Reads(nn.Module):
    """As T5 does: a model that looks at its layer's weight."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = layer()

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) if self.layer.weight.dtype == torch.float32 else x


def test_a_model_that_reads_the_weight(dynamo: None) -> None:
    model = Reads()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    for call in (compiled, model, compiled, model):
        assert_bits(call(X), layer()(X))


@pytest.mark.parametrize(("k", "n"), SHAPES)
def test_unpack_is_exact(k: int, n: int) -> None:
    generator = torch.Generator().manual_seed(k * 1000 + n)
    b = torch.randint(-128, 128, (k, n), dtype=torch.int8, generator=generator)
    packed = pack_weight_int8(b)
    plain = packed.unpack()
    assert_bits(plain, b)
    assert plain.t().is_contiguous()
    plain.zero_()
    assert_bits(packed.unpack(), b)


def test_unpack_refuses_another_size() -> None:
    packed = pack_weight_int8(torch.ones(8, 16, dtype=torch.int8))
    for wrong in (PackedWeight(packed.data, 9, 16), PackedWeight(packed.data[1:], 8, 16)):
        with pytest.raises(
            ValueError, match=r"^data must be uint8 of shape .*, got uint8 of shape"
        ):
            wrong.unpack()
    with pytest.raises(ValueError, match=r"^data must be uint8"):
        PackedWeight(packed.data.view(torch.int8), 8, 16).unpack()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize(("k", "n"), [(64, 21), (44, 21), (3, 5), (16, 1)])
def test_on_cuda(k: int, n: int) -> None:
    module = layer(k, n)
    old, x = module.weight_int8, torch.randn(3, k)
    want = module(x)
    for _ in range(2):
        module.cuda()
        assert_bits(module(x.cuda()).cpu(), want)
        assert_bits(module.weight_int8.cpu(), old)
        assert_bits(module.cpu()(x), want)
    for name, buffer in list(module.named_buffers()):  # by somebody who knows no layouts
        setattr(module, name, buffer.cuda())
    assert_bits(module(x.cuda()).cpu(), want)
    module.set_weight(-old)
    assert_bits(module(x.cuda()).cpu(), -want)
