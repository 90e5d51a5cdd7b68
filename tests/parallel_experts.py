"""Experts over several ranks: the bits of the module that is not shared out."""

from collections.abc import Iterator
from types import SimpleNamespace

import torch
from helpers import assert_bits
from parallel_rank import Rank, case, refused, seeded
from torch import Tensor, nn
from torch.nn import functional as F

from scaled_mm import QuantConfig, quantize_model
from scaled_mm.nn import ScaledExperts, ScaledLinear
from scaled_mm.parallel import ExpertParallel, ExpertTensorParallel

E, H, INNER = 6, 32, 16


class Experts(nn.Module):
    """As transformers' decorator leaves such a class; in turns, with biases, another gate."""

    has_gate = has_bias = True
    has_post_expert_norm = is_transposed = is_concatenated = False
    num_experts = E

    def __init__(self, inner: int) -> None:
        super().__init__()
        shapes = {"gate_up_proj": (E, 2 * inner, H), "down_proj": (E, H, inner)}
        for seed, (name, shape) in enumerate(shapes.items()):
            self.register_parameter(name, nn.Parameter(seeded(*shape, seed=seed)))
            bias = nn.Parameter(seeded(*shape[:2], seed=seed + 5))
            self.register_parameter(f"{name}_bias", bias)

    def _apply_gate(self, h: Tensor) -> Tensor:
        return F.silu(h[..., ::2]).clamp(max=2) * (h[..., 1::2] + 1)

    def forward(self, x: Tensor, index: Tensor, weights: Tensor) -> Tensor:
        raise NotImplementedError(SimpleNamespace(x=x, index=index, weights=weights))


def experts(scheme: str, inner: int = INNER) -> nn.Module:
    return quantize_model(Experts(inner).requires_grad_(False), QuantConfig(scheme))


@case("experts over the ranks")
def _(me: Rank) -> None:
    for scheme in ("dynamic-asymmetric", "w4a16-g16-asymmetric"):
        whole = experts(scheme).to(me.device)
        cut = me.cut(whole, ExpertParallel())
        assert isinstance(cut, ScaledExperts)
        held = sum(x.numel() for x in cut.buffers())
        assert held < sum(x.numel() for x in whole.buffers()) * 0.6
        for tokens in (0, 1, 7 + me.rank):  # each rank has its own
            drawn = torch.Generator().manual_seed(10 * me.rank + tokens)
            index = torch.rand(tokens, E, generator=drawn).argsort(1)[:, :2].to(me.device)
            x = seeded(tokens, H, seed=me.rank).to(me.device, torch.bfloat16)
            weights = torch.rand(tokens, 2, generator=drawn).to(me.device)
            assert_bits(cut(x, index, weights), whole(x, index, weights), scheme, tokens)


SHARED = ("dynamic", "dynamic-asymmetric", "dynamic-rotate16")


def calls(me: Rank) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Of the same tokens on every rank; some name no expert."""
    for tokens in (0, 1, 9):
        drawn = torch.Generator().manual_seed(tokens)
        index = torch.rand(tokens, E + 1, generator=drawn).argsort(1)[:, :2]
        x, weights = seeded(tokens, H).bfloat16(), torch.rand(tokens, 2, generator=drawn)
        yield tuple(t.to(me.device) for t in (x, index, weights))


@case("every expert cut along its inner features")
def _(me: Rank) -> None:
    for scheme in SHARED:
        whole = experts(scheme, 16 * me.world).to(me.device)
        cut = me.cut(whole, ExpertTensorParallel())
        held = sum(x.numel() for x in cut.buffers())
        assert held < sum(x.numel() for x in whole.buffers()) * (1 / me.world + 0.2)
        for given in calls(me):
            assert_bits(cut(*given), whole(*given), scheme, len(given[0]))
    whole = experts("w4a16-g16-asymmetric", 16 * me.world).to(me.device)
    cut = me.cut(whole, ExpertTensorParallel())
    for given in calls(me):
        expected, got = whole(*given).float(), cut(*given).float()
        assert got.shape == expected.shape
        if len(got):
            assert (got - expected).abs().max() <= 0.02 * expected.abs().max()


@case("wide experts cut along their inner features")
def _(me: Rank) -> None:
    """Sums of more columns than float32 holds at once."""
    whole = experts("dynamic-asymmetric", 1100 * me.world).to(me.device)
    cut = me.cut(whole, ExpertTensorParallel())
    for given in calls(me):
        assert_bits(cut(*given), whole(*given), len(given[0]))


@case("experts that cannot be cut")
def _(me: Rank) -> None:
    with refused(TypeError, "module must be a ScaledExperts, got ScaledLinear"):
        me.cut(ScaledLinear(16, 16), ExpertTensorParallel())
    with refused(ValueError, "in_features must be cut into multiples of 16"):
        me.cut(experts("w4a16-g16-asymmetric", 16 * me.world + 16), ExpertTensorParallel())
    with refused(ValueError, "mesh must have a feature for each rank"):
        me.cut(experts("dynamic", me.world - 1), ExpertTensorParallel())
    cut = me.cut(experts("dynamic"), ExpertTensorParallel())
    for style in (ExpertTensorParallel(), ExpertParallel()):
        with refused(ValueError, "module must not be shared out already"):
            style._apply(cut, me.mesh)


@case("experts that cannot be shared out")
def _(me: Rank) -> None:
    with refused(TypeError, "module must be a ScaledExperts, got ScaledLinear"):
        me.cut(ScaledLinear(16, 16), ExpertParallel())
    cut = me.cut(experts("dynamic"), ExpertParallel())
    with refused(ValueError, "module must not be shared out already"):
        ExpertParallel()._apply(cut, me.mesh)
