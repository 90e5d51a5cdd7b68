"""Layers that read one tensor: one op for all, and the bits that each has alone."""

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from helpers import Ops, assert_bits
from llamas import llama
from test_inductor import compiled
from torch import Tensor, fx, nn

from scaled_mm import QuantConfig, fuse_model, quantize_model, silu_mul_quantize_int8
from scaled_mm.integrations import inductor
from scaled_mm.nn import ScaledLinear
from scaled_mm.nn.together import Together, fit
from scaled_mm.quantization import readers

pytestmark = pytest.mark.usefixtures("no_gradients")

K, WIDTHS = 64, (48, 16, 21)
ONE, ZERO = torch.tensor([0.03]), torch.tensor([3], dtype=torch.int32)
PRODUCTS = (torch.ops.scaled_mm.scaled_linear.default, torch.ops.scaled_mm.scaled_mm.default)
SMOOTH = torch.linspace(0.5, 2, K)
SCHEMES: dict[str, dict[str, Any]] = {
    "dynamic": {},
    "asymmetric": {"symmetric": False},
    "tensor": {"per_token": False},
    "static": {"dynamic": False, "input_scale": ONE},
    "static-asymmetric": {
        "dynamic": False,
        "input_scale": ONE,
        "symmetric": False,
        "input_azp": ZERO,
    },
    "smooth": {"smooth": SMOOTH},
    "rotate": {"rotate": 32},
}


def layers(scheme: str = "dynamic", bias: bool = True, widths: Any = WIDTHS) -> list[ScaledLinear]:
    torch.manual_seed(0)
    linears = [nn.Linear(K, n, bias) for n in widths]
    return [ScaledLinear.from_linear(linear, **SCHEMES[scheme]) for linear in linears]


def x_of(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return torch.randn(*shape, K, generator=torch.Generator().manual_seed(1)).to(dtype)


def names(call: Callable[[], Any]) -> list[str]:
    with Ops() as ops:
        call()
    return ops.names


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_one_op_and_the_bits_of_each(scheme: str, bias: bool) -> None:
    apart, joined = layers(scheme, bias), layers(scheme, bias)
    together = Together(joined)
    for dtype in (torch.bfloat16, torch.float32):
        for shape in ((), (3,), (2, 3), (0,)):
            x = x_of(*shape, dtype=dtype)
            for order in ((0, 1, 2), (2, 0, 1)):
                with Ops() as ops:
                    got = {i: joined[i](x) for i in order}
                assert ops.names == ["scaled_linear"]
                assert together.held is None
                for i, y in got.items():
                    assert_bits(y, apart[i](x))


def test_weights_lie_once() -> None:
    joined = layers()
    Together(joined)
    x = x_of(2)
    for layer in joined:
        layer(x)
    memory = {layer.kernel_weight.untyped_storage().data_ptr() for layer in joined}
    assert len(memory) == 1
    for layer, alone in zip(joined, layers(), strict=True):
        assert_bits(layer.weight_int8, alone.weight_int8)
        assert_bits(layer(x), alone(x))
    assert all(layer.together is not None for layer in joined)


CHANGES: dict[str, Callable[[list[ScaledLinear]], Any]] = {
    "weight": lambda those: those[1].set_weight(those[1].weight_int8.flip(0)),
    "bias": lambda those: those[2].bias.add_(1),
    "scales": lambda those: those[0].weight_scale.mul_(2),
    "state": lambda those: those[0].load_state_dict(
        layers("dynamic", widths=(48,))[0].state_dict()
    ),
    "a scale of another's": lambda those: setattr(those[1], "weight_scale", torch.ones(16, 1)),
    "unpack": lambda those: those[1].unpack(),
    "double": lambda those: [layer.double() for layer in those],
    "smooth": lambda those: setattr(those[1], "input_smooth", SMOOTH),
    "a parameter": lambda those: setattr(those[1], "bias", nn.Parameter(torch.ones(16))),
}


@pytest.mark.parametrize("name", CHANGES)
def test_what_changes_is_seen(name: str) -> None:
    apart, joined = layers(), layers()
    together = Together(joined)
    x = x_of(2)
    for turn in range(3):
        got = [layer(x) for layer in joined]
        for y, alone in zip(got, apart, strict=True):
            assert_bits(y, alone(x), name)
        if turn == 0:
            CHANGES[name](apart)
            CHANGES[name](joined)
    gone = name in ("smooth", "unpack", "a parameter")  # of a scheme of its own, or of none
    assert (joined[0].together is None) == gone and together.held is None


def test_another_tensor_or_another_value() -> None:
    apart, joined = layers(), layers()
    Together(joined)
    x = x_of(2)
    assert_bits(joined[0](x), apart[0](x))
    x.mul_(2)  # the others see it
    assert_bits(joined[1](x), apart[1](x))
    assert all(layer.together is None for layer in joined)  # the parts were of no use
    assert_bits(joined[2](x), apart[2](x))


def test_inference_tensors_and_gradients_go_alone() -> None:
    joined = layers()
    together = Together(joined)
    with torch.inference_mode():
        x = x_of(2)
        assert names(lambda: [layer(x) for layer in joined]) == ["scaled_linear"] * 3
    with torch.enable_grad():
        x = x_of(2).requires_grad_()
        assert joined[0](x).requires_grad and together.held is None
    assert joined[0].together is together


def test_a_failure_leaves_no_trace() -> None:
    joined = layers()
    together = Together(joined)
    with pytest.raises(ValueError, match=r"^x must have K=64 columns, got shape"):
        joined[0](x_of(2)[:, 1:])
    assert together.held is None
    assert names(lambda: [layer(x) for x in (x_of(2),) for layer in joined]) == ["scaled_linear"]


def test_copies_share_too() -> None:
    model = nn.ModuleList(layers())
    Together([*model])
    x = x_of(2)
    expected = [layer(x) for layer in model]
    for made in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        for _ in range(2):
            with Ops() as ops:
                got = [layer(x) for layer in made]
        assert ops.names == ["scaled_linear"]
        for one, two in zip(got, expected, strict=True):
            assert_bits(one, two)
        assert made[0].kernel_weight.data_ptr() != model[0].kernel_weight.data_ptr()


OWN = ("static", "static-asymmetric", "smooth")  # buffers of the input: each layer has its own


@pytest.mark.parametrize("scheme", SCHEMES)
def test_in_a_compiled_graph(scheme: str) -> None:
    """One product behind the pass; the bits of each layer, whatever changes their buffers."""
    apart, joined = nn.ModuleList(layers(scheme)), nn.ModuleList(layers(scheme))
    Together([*joined])  # type: ignore[arg-type]
    x = x_of(2, 3)
    graphs: list[fx.Graph] = []
    program = compiled(lambda x: [layer(x) for layer in joined], graphs)

    def runs() -> list[int]:
        """The products of all graphs until now, when the bits are right."""
        for y, layer in zip(program(x), apart, strict=True):
            assert_bits(y, layer(x))
        return [sum(node.target in PRODUCTS for node in graph.nodes) for graph in graphs]

    one = 3 if scheme in OWN else 1
    assert runs() == [3]  # nobody has laid them out
    assert names(lambda: [layer(x) for layer in joined]) == ["scaled_linear"]
    assert runs() == [3, one]
    for model in (apart, joined):
        model[2].bias.mul_(2)
        model[1].weight_scale.mul_(3)
    assert runs() == [3, one]
    other = nn.ModuleList(layers(scheme, widths=WIDTHS[::-1])[::-1]).state_dict()
    for model in (apart, joined):
        model.load_state_dict(other)
    parted = runs()
    assert parted[2:] in ([], [3])  # the first graph again, or one like it
    assert names(lambda: [layer(x) for layer in joined]) == ["scaled_linear"]
    assert runs() == parted  # the second
    joined[0].weight_scale = 2 * joined[0].weight_scale  # another tensor
    apart[0].weight_scale.mul_(2)
    assert runs() == [*parted, 3]


@pytest.mark.parametrize("order", [(1, 0), (2, 1), (0, 2)])
def test_some_of_them_in_a_compiled_graph(order: tuple[int, ...]) -> None:
    joined, x, graphs = layers(), x_of(2, 3), list[fx.Graph]()
    together = Together(joined)
    want = [layer(x) for layer in joined]
    assert together.product is not None
    got = compiled(lambda x: [joined[i](x) for i in order], graphs)(x)
    for i, y in zip(order, got, strict=True):
        assert_bits(y, want[i])
    products = [node for node in graphs[0].nodes if node.target in PRODUCTS]
    assert len(products) == (2 if order == (0, 2) else 1)


def test_a_layer_that_went_to_others_in_a_compiled_graph() -> None:
    joined, x, graphs = layers(), x_of(2, 3), list[fx.Graph]()
    want = [layer(x) for layer in joined]
    for those in (joined, [joined[0], *layers()[1:2]]):
        Together(those)
        assert names(lambda those=those: [layer(x) for layer in those]) == ["scaled_linear"]
    got = compiled(lambda x: [layer(x) for layer in joined], graphs)(x)
    for y, wanted in zip(got, want, strict=True):
        assert_bits(y, wanted)


def test_views_of_parts_in_a_compiled_graph() -> None:
    """As a layer of CUDA has its weight: rows of bytes, flat."""
    joined, x, graphs = layers(bias=False), x_of(2, 3), list[fx.Graph]()
    want = [layer(x) for layer in joined]
    data = torch.cat([layer.kernel_weight for layer in joined]).view(torch.int8).view(-1, K + 4)
    scales, ends = torch.cat([layer.weight_scale for layer in joined]), (48, 64, 96)
    (data, scales), rows = (t[:48] for t in (data, scales)), data.shape[0]

    def program(x: Tensor) -> list[Tensor]:
        made = []
        for begin, end in zip((0, *ends), ends, strict=False):
            weight = data.as_strided([rows, K + 4], data.stride())[begin:end]
            scale = scales.as_strided([sum(WIDTHS), 1], scales.stride())[begin:end]
            flat = weight.view(-1).view(torch.uint8)
            made.append(PRODUCTS[0](x, flat, scale, None, K))
        return made

    for y, wanted in zip(compiled(program, graphs)(x), want, strict=True):
        assert_bits(y, wanted)
    assert [node.target for node in graphs[0].nodes if node.target in PRODUCTS] == [PRODUCTS[0]]


def test_inductor_copies_no_columns() -> None:
    """Of gate and up, whose readers were traced behind outputs of their own."""
    gate, up = layers(widths=(48, 48))
    Together([gate, up])
    x = x_of(2, 3)
    want = silu_mul_quantize_int8(gate(x), up(x))
    options = inductor.options(**{"cpp.enable_kernel_profile": True, "fx_graph_cache": False})
    program = torch.compile(lambda x: silu_mul_quantize_int8(gate(x), up(x)), options=options)
    for one, two in zip(program(x)[:2], want[:2], strict=True):
        assert_bits(one, two)
    with torch.profiler.profile() as profile:
        program(x)
    names = [event.name for event in profile.events() or ()]
    assert names.count("scaled_mm::scaled_linear") + names.count("scaled_mm::scaled_mm") == 1
    assert not [name for name in names if "fused" in name]


def test_who_does_not_fit() -> None:
    first = layers()[:1]
    assert fit([*first, *layers("dynamic")[1:]])
    for other in ("asymmetric", "tensor", "static", "smooth", "rotate"):
        assert not fit([*first, *layers(other)[1:]]), other
    assert not fit([*first, *layers(bias=False)])
    assert not fit(layers(widths=(21, 48)))  # columns of the CPU's layout lie in panels of 16
    one, two = layers("static")[:2]
    two.input_scale = ONE * 2
    assert not fit([one, two])


class Attention(nn.Module):
    """q, k and v of one tensor; the output of a layer that reads another."""

    def __init__(self, view: bool) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(K, K) for _ in range(4))
        self.view = view

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.q(x), self.k(x), self.v(x)
        if self.view:
            v = v.view(-1)[:K]  # no view of a view with a stride
        out: Tensor = self.o(torch.softmax(q @ k.mT, -1) + v)
        return out


@pytest.mark.parametrize("view", [False, True])
def test_of_a_model(view: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readers, "DEVICES", ("cpu",))
    torch.manual_seed(0)
    plain = quantize_model(nn.Sequential(*(Attention(view) for _ in range(2))))
    x = torch.randn(K, K)
    fused = fuse_model(plain, x)
    expected = plain(x)
    assert names(lambda: fused(x)) == ["scaled_linear"] * (8 if view else 4)
    assert_bits(fused(x), expected)


def test_of_a_language_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four products a layer; the logits are those of a model whose MLPs alone are fused."""
    model = llama(hidden_size=64, intermediate_size=96)  # whole panels of columns
    batch = {"input_ids": torch.arange(6).view(1, 6)}
    mlps = quantize_model(model, QuantConfig(), fuse=batch)
    monkeypatch.setattr(readers, "DEVICES", ("cpu",))
    both = quantize_model(model, QuantConfig(), fuse=batch)
    assert_bits(both(**batch).logits, mlps(**batch).logits)
    with Ops() as ops:
        both(**batch)
    assert ops.names == ["scaled_linear"] * 8
