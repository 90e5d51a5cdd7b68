"""The one weight of a ScaledLinear, compiled, exported and unpacked."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from helpers import assert_bits
from test_one_weight import SHAPES, X, is_packed, layer, product, weight_of
from torch import Tensor, nn

from scaled_mm import PackedWeight, pack_weight_int8

# --- compile and export ---------------------------------------------------------------------------


@pytest.fixture
def dynamo() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def test_compiled_code_follows_the_weight(dynamo: None) -> None:
    """Two traces in all, one for each form, however often the form changes."""
    module, old = layer(), weight_of(layer())
    compiled = torch.compile(nn.Sequential(module), fullgraph=True, backend="aot_eager")
    assert_bits(compiled(X), product(layer(), old))
    assert is_packed(module)
    module.state_dict()
    assert_bits(compiled(X), product(layer(), old))
    with torch._dynamo.config.patch(error_on_recompile=True):
        state = module.state_dict()
        for sign in (-1, 1, -1):
            state["weight"].copy_(sign * old)
            assert_bits(compiled(X), product(layer(), sign * old))
        del state
        for sign in (1, -1, 1, -1, 1, -1, 1, -1, 1, -1):
            module.weight.copy_(sign * old)
            assert_bits(compiled(X), product(layer(), sign * old))
            module.pack()
            assert_bits(compiled(X), product(layer(), sign * old))
            assert is_packed(module)


class Reads(nn.Module):
    """As T5 does: a model that looks at its layer's weight."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = layer()

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) if self.layer.weight.dtype == torch.int8 else x


def test_a_model_that_reads_the_weight(dynamo: None) -> None:
    model = Reads()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    for call in (compiled, model, compiled, model):
        assert_bits(call(X), layer()(X))


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.filterwarnings("ignore")
def test_export_has_the_plain_weight(strict: bool, dynamo: None) -> None:
    module = layer()
    assert is_packed(module)
    program = torch.export.export(nn.Sequential(module), (X,), strict=strict)
    assert set(program.state_dict) == {"0.weight", "0.weight_scale"}
    assert_bits(program.state_dict["0.weight"], weight_of(module))
    assert_bits(program.module()(X), module(X))


# --- unpack ---------------------------------------------------------------------------------------


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
    """The plain weight where kernels read it in place, else the packed one alone."""
    module = layer(k, n)
    want, x = weight_of(module), torch.randn(3, k)
    expected = module(x)
    module.cuda()
    assert_bits(module(x.cuda()).cpu(), expected)
    assert is_packed(module) == bool(k % 16)
    assert_bits(module.weight.cpu(), want)
    module.weight.neg_()
    assert_bits(module(x.cuda()).cpu(), product(layer(k, n), -want, x))
    assert_bits(module.cpu()(x), product(layer(k, n), -want, x))
