"""The ops on CUDA tensors as citizens of torch: opcheck, fake tensors, compile, export, modes; and
ScaledLinear there."""

import copy
import io
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch_cases
from cuda_support import DEVICE, GPU, on_device, streams_only
from helpers import assert_bits, assert_compiles
from test_nn import BUFFERS, SCHEMES, K, N, by_reference, layer, linear, x_of
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_leaves, tree_map
from torch_cases import CALLS, FUNCTIONS, PACKED, PACKED_W, B, W, metadata

import scaled_mm
from scaled_mm.nn import ScaledLinear

pytestmark = [
    *GPU,
    pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated"),
    pytest.mark.filterwarnings("ignore:No complete tensor found in the group"),
]
ops = torch.ops.scaled_mm
schemes = pytest.mark.parametrize("scheme", SCHEMES)


def there(x: Any) -> Any:
    """A test's operand on the device; a packed weight is packed there."""
    for packed, weight in ((PACKED, B), (PACKED_W, W)):
        if x is packed.data:
            return scaled_mm.pack_weight_int8(weight.to(DEVICE)).data
    return on_device({"x": x})["x"]


def call_on_device(name: str) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    op, arguments, options = CALLS[name]
    return getattr(ops, op), *tree_map(there, (arguments, options))


@pytest.mark.parametrize("name", CALLS)
def test_opcheck(name: str) -> None:
    op, arguments, options = call_on_device(name)
    torch.library.opcheck(op.default, arguments, options)


@pytest.mark.parametrize("name", CALLS)
def test_same_as_on_the_cpu(name: str) -> None:
    if name.startswith("pack"):
        return  # its bytes are each backend's own
    op, arguments, options = call_on_device(name)
    here = getattr(ops, CALLS[name][0])(*CALLS[name][1], **CALLS[name][2])
    for x, y in zip(tree_leaves(op(*arguments, **options)), tree_leaves(here), strict=True):
        assert_bits(x if x is None else x.cpu(), y, name)


@pytest.mark.parametrize(("k", "n"), [(1, 1), (37, 41), (64, 48), (100, 3), (4099, 7)])
def test_the_size_of_a_packed_weight(k: int, n: int) -> None:
    """Which depends on the device, and is known without it."""
    b = torch.ones(k, n, dtype=torch.int8, device=DEVICE)
    with FakeTensorMode() as mode:
        fake = scaled_mm.pack_weight_int8(mode.from_tensor(b)).data
    real = scaled_mm.pack_weight_int8(b).data
    assert (metadata(fake), fake.device) == (metadata(real), real.device)


# --- compile and export: the functions of torch_cases, their constants moved ----------------------


@pytest.fixture
def moved(monkeypatch: pytest.MonkeyPatch) -> None:
    torch._dynamo.reset()
    for name in ("PLAIN", "WEIGHT_SCALE", "BIAS", "FACTORS", "STATIC_SCALE"):
        monkeypatch.setattr(torch_cases, name, there(getattr(torch_cases, name)))
    dynamic = torch_cases.dynamic
    monkeypatch.setattr(dynamic, "__defaults__", (torch_cases.PLAIN,))


def rows(m: int) -> Tensor:
    return torch_cases.x_of(m).to(DEVICE)


@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.slow)])
@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda f: f.__name__)
def test_compile(moved: None, function: Callable[..., Tensor], backend: str) -> None:
    assert_compiles(function, rows, backend, apart=(0, 1))


@streams_only
@pytest.mark.slow
def test_compile_with_graphs(moved: None) -> None:
    """mode="reduce-overhead" records and replays CUDA graphs."""
    compiled = torch.compile(torch_cases.dynamic, fullgraph=True, mode="reduce-overhead")
    for m in (4, 4, 4, 33, 33, 33, 4):
        torch.compiler.cudagraph_mark_step_begin()
        assert_bits(compiled(rows(m)).clone(), torch_cases.dynamic(rows(m)), m)


# --- ScaledLinear ---------------------------------------------------------------------------------


@schemes
@pytest.mark.parametrize("bias", [True, False])
def test_layer_is_the_reference(scheme: str, bias: bool) -> None:
    module = layer(scheme, bias).to(DEVICE)
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        for shape in ((), (1,), (5,), (2, 3), (0,), (33,), (300,)):
            x = x_of(*shape, dtype=dtype)
            out = module(x.to(DEVICE))
            expected = by_reference(scheme, module.state_dict(), x)
            assert_bits(out.cpu(), expected, scheme, dtype, shape)
            assert_bits(layer(scheme, bias)(x), expected)


@schemes
def test_layer_made_on_the_device_is_the_layer_moved_there(scheme: str) -> None:
    options = {k: there(v) if torch.is_tensor(v) else v for k, v in SCHEMES[scheme].items()}
    made = ScaledLinear.from_linear(linear().to(DEVICE), **options).state_dict()
    moved = layer(scheme).to(DEVICE).state_dict()
    assert made.keys() == BUFFERS[scheme]
    for name, x in made.items():
        assert x.device == moved[name].device
        assert_bits(x.cpu(), moved[name].cpu(), name)


@schemes
def test_layer_goes_and_comes_back(scheme: str) -> None:
    module, x = layer(scheme), x_of(9)
    expected = module(x)
    for device in (DEVICE, "cpu", DEVICE):
        module = module.to(device)
        assert_bits(module(x.to(device)).cpu(), expected)
        assert_bits(copy.deepcopy(module)(x.to(device)).cpu(), expected)
    model = nn.Sequential(layer(scheme), nn.ReLU()).to(DEVICE).bfloat16()
    y = x.bfloat16()
    assert_bits(model(y.to(DEVICE)).cpu(), layer(scheme)(y).relu())


@schemes
def test_state_dict_between_devices(scheme: str) -> None:
    source, x = layer(scheme), x_of(9)
    options = {k: v for k, v in SCHEMES[scheme].items() if not k.startswith("input_")}
    file = io.BytesIO()
    torch.save(source.to(DEVICE).state_dict(), file)
    for device, target in ((DEVICE, "cpu"), ("cpu", DEVICE), (DEVICE, DEVICE)):
        file.seek(0)
        again = ScaledLinear(K, N, device=target, **options)
        again.load_state_dict(torch.load(file, map_location=device))
        assert_bits(again(x.to(target)).cpu(), layer(scheme)(x))


@schemes
def test_compiled_layer(scheme: str) -> None:
    module = layer(scheme).to(DEVICE)
    module.pack()
    assert_compiles(module, lambda m: x_of(m).to(DEVICE))


@streams_only
@schemes
def test_layer_in_a_graph(scheme: str) -> None:
    module, x = layer(scheme).to(DEVICE), x_of(9).to(DEVICE)
    module.pack()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = module(x)
    for shift in (0.0, 1.0, -3.0):
        x.copy_(x_of(9) + shift)
        graph.replay()
        assert_bits(out.cpu(), by_reference(scheme, module.state_dict(), x_of(9) + shift), shift)
