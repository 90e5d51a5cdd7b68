"""Small models with the ways in which real ones hold their Linears."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from scaled_mm.demo import bert, data
from scaled_mm.nn import ScaledLinear

WIDTH, INNER = 32, 48
LAYER_NORM_FED = ("*.query", "*.key", "*.value", "*.ffn_up")


class PreNorm(nn.Module):
    """Llama's block in small: each norm feeds Linears only."""

    def __init__(self, norm: type[nn.Module] = nn.RMSNorm, fused: bool = False) -> None:
        super().__init__()
        self.norm1, self.norm2 = norm(WIDTH), norm(WIDTH)
        self.fused = fused
        if fused:
            self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        else:
            self.q, self.k, self.v = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(3))
        self.o = nn.Linear(WIDTH, WIDTH, bias=False)
        self.gate, self.up = nn.Linear(WIDTH, INNER, bias=False), nn.Linear(WIDTH, INNER)
        self.down = nn.Linear(INNER, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm1(x)
        q, k, v = self.qkv(h).chunk(3, -1) if self.fused else (self.q(h), self.k(h), self.v(h))
        x = x + self.o(F.scaled_dot_product_attention(q, k, v))
        h = self.norm2(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


class Gemma(nn.Module):
    """A norm whose output is not linear in its weight."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(width) / 4)

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, x.shape[-1:]) * (1 + self.weight)


Gemma.__name__ = "GemmaRMSNorm"


class Tied(nn.Module):
    """One Linear in two places, and one whose weight is the embedding's."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(40, WIDTH)
        self.first = nn.Linear(WIDTH, WIDTH)
        self.blocks = nn.ModuleList([self.first, nn.ReLU(), self.first])
        self.lm_head = nn.Linear(WIDTH, 40, bias=False)
        self.lm_head.weight = self.embed.weight

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x)
        return self.lm_head(x)


def seeded(make: object, *args: object) -> nn.Module:
    """make(*args) with the same weights every time; norms with weights that differ by channel."""
    torch.manual_seed(0)
    model = make(*args)  # type: ignore[operator]
    for module in model.modules():
        if isinstance(module, (nn.RMSNorm, nn.LayerNorm)):
            nn.init.uniform_(module.weight, 0.1, 6)
            if getattr(module, "bias", None) is not None:
                nn.init.normal_(module.bias)
    return model.eval()


def inputs(batches: int = 4, rows: int = 3) -> list[Tensor]:
    """Batches [rows, 5, WIDTH] with some loud channels."""
    generator = torch.Generator().manual_seed(2)
    loud = torch.ones(WIDTH)
    loud[[3, 17]] = 30
    return [torch.randn(rows, 5, WIDTH, generator=generator) * loud for _ in range(batches)]


def layers(model: nn.Module) -> set[str]:
    return {name for name, module in model.named_modules() if isinstance(module, ScaledLinear)}


@torch.no_grad()
def run(model: nn.Module, x: Tensor) -> Tensor:
    out = model(x)
    return out if isinstance(out, Tensor) else out.logits


def minilm() -> tuple[bert.Encoder, list[data.Batch], list[data.Batch]]:
    """MiniLM, what calibrates it (even sentences) and what judges it (odd ones)."""
    folder = data.model_folder()
    tokens = data.tokenize(folder, data.sentences())
    return bert.load(folder), data.batches(tokens[0::2]), data.batches(tokens[1::2])
