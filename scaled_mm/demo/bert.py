"""The BERT encoder of MiniLM-L6-v2 in plain torch: what the demo quantises.

    x = LN(word[id] + position[t] + type[0])
    per layer:  x = LN(x + out(softmax(Q K^T / sqrt(d)) V))
                x = LN(x + down(GELU(up(x))))
    embedding = y / |y|,  y = mean of x over the sentence's tokens

Devlin et al., "BERT", 2018 (arXiv:1810.04805); mean pooling after Reimers and Gurevych,
"Sentence-BERT", 2019 (arXiv:1908.10084). Inference only: no dropout, no pooler, one segment.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

LINEARS = ("query", "key", "value", "attention_out", "ffn_up", "ffn_down")
"""The Linears of one layer, in the order in which they run."""

_PUBLISHED_NAMES = (
    ("encoder.layer.", "layers."),
    ("attention.self.", ""),
    ("attention.output.dense", "attention_out"),
    ("attention.output.LayerNorm", "attention_norm"),
    ("intermediate.dense", "ffn_up"),
    ("output.dense", "ffn_down"),
    ("output.LayerNorm", "ffn_norm"),
    ("embeddings.word_embeddings", "word"),
    ("embeddings.position_embeddings", "position"),
    ("embeddings.token_type_embeddings", "segment"),
    ("embeddings.LayerNorm", "embedding_norm"),
)


@dataclass(frozen=True)
class BertConfig:
    """The sizes that a checkpoint's config.json fixes, under its own names."""

    vocab_size: int
    max_position_embeddings: int
    type_vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    layer_norm_eps: float

    @classmethod
    def read(cls, path: Path) -> BertConfig:
        """Read a Hugging Face config.json; ValueError if it describes another kind of encoder."""
        fields = json.loads(path.read_text())
        for name, served in (("model_type", "bert"), ("hidden_act", "gelu")):
            if fields.get(name) != served:
                raise ValueError(
                    f"{name} must be {served!r}, got {fields.get(name)!r} in {path.name}"
                )
        return cls(**{name: fields[name] for name in cls.__dataclass_fields__})


class EncoderLayer(nn.Module):
    """One transformer block, normalised after each residual (post-LN)."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        hidden, inner = config.hidden_size, config.intermediate_size
        self.heads = config.num_attention_heads
        self.query = nn.Linear(hidden, hidden)
        self.key = nn.Linear(hidden, hidden)
        self.value = nn.Linear(hidden, hidden)
        self.attention_out = nn.Linear(hidden, hidden)
        self.attention_norm = nn.LayerNorm(hidden, eps=config.layer_norm_eps)
        self.ffn_up = nn.Linear(hidden, inner)
        self.gelu = nn.GELU()  # a module, so that it can be fused
        self.ffn_down = nn.Linear(inner, hidden)
        self.ffn_norm = nn.LayerNorm(hidden, eps=config.layer_norm_eps)

    def forward(self, x: Tensor, attend: Tensor) -> Tensor:
        """x [B, T, hidden] -> [B, T, hidden]; attend [B, 1, 1, T] bool, False at padding."""
        q, k, v = (self._split(linear(x)) for linear in (self.query, self.key, self.value))
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=attend)
        mixed = mixed.transpose(1, 2).flatten(2)  # [B, heads, T, d] -> [B, T, hidden]
        x = self.attention_norm(x + self.attention_out(mixed))
        return self.ffn_norm(x + self.ffn_down(self.gelu(self.ffn_up(x))))

    def _split(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)  # [B, heads, T, d]


class Encoder(nn.Module):
    """Token ids in, one unit vector per sentence out."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        hidden = config.hidden_size
        self.word = nn.Embedding(config.vocab_size, hidden)
        self.position = nn.Embedding(config.max_position_embeddings, hidden)
        self.segment = nn.Embedding(config.type_vocab_size, hidden)
        self.embedding_norm = nn.LayerNorm(hidden, eps=config.layer_norm_eps)
        self.layers = nn.ModuleList(EncoderLayer(config) for _ in range(config.num_hidden_layers))

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        """ids [B, T] int64, mask [B, T] bool (True at a token) -> [B, hidden], rows of norm 1."""
        places = torch.arange(ids.shape[1], device=ids.device)
        x = self.embedding_norm(self.word(ids) + self.position(places) + self.segment.weight[0])
        attend = mask[:, None, None, :]
        for layer in self.layers:
            x = layer(x, attend)
        kept = mask.unsqueeze(-1).to(x.dtype)
        return F.normalize((x * kept).sum(1) / kept.sum(1), dim=-1)

    def linears(self) -> dict[str, nn.Module]:
        """The quantised part: name ("0.query" ... "5.ffn_down") -> module, in running order."""
        return {
            f"{depth}.{name}": getattr(layer, name)
            for depth, layer in enumerate(self.layers)
            for name in LINEARS
        }


def load(folder: Path) -> Encoder:
    """The encoder of `folder` (config.json, model.safetensors) in float32, for inference."""
    from safetensors.torch import load_file

    encoder = Encoder(BertConfig.read(folder / "config.json"))
    weights = load_file(folder / "model.safetensors")
    encoder.load_state_dict(
        {
            _own_name(name): weight
            for name, weight in weights.items()
            if not name.startswith("pooler.") and name != "embeddings.position_ids"
        }
    )
    return encoder.eval().requires_grad_(False)


def _own_name(published: str) -> str:
    for theirs, ours in _PUBLISHED_NAMES:
        published = published.replace(theirs, ours)
    return published
