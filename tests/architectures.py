"""Tiny models of transformers with random weights, and other people's shapes of a model."""

from pathlib import Path
from typing import Any

import torch
from helpers import extra
from torch import Tensor, nn
from torch.nn import functional as F

_BY_SIZE = {
    32: "hidden_size d_model n_embd dim embed_dim embedding_size word_embed_proj_dim "
    "moe_intermediate_size image_size",
    64: "intermediate_size d_ff ffn_dim hidden_dim n_inner encoder_ffn_dim decoder_ffn_dim "
    "ffn_hidden_size max_position_embeddings n_positions max_source_positions max_target_positions",
    2: "num_hidden_layers num_layers n_layer n_layers encoder_layers decoder_layers eos_token_id "
    "num_decoder_layers num_key_value_heads num_experts_per_tok",
    4: "num_attention_heads num_heads n_head n_heads encoder_attention_heads "
    "decoder_attention_heads num_local_experts num_experts n_routed_experts",
    8: "head_dim d_kv patch_size",
    96: "vocab_size",
    3: "num_labels num_channels",
    1: "bos_token_id decoder_start_token_id",
    0: "pad_token_id dropout",
}
_SIZES = {key: size for size, keys in _BY_SIZE.items() for key in keys.split()}
_OWN = {
    "GPTNeoForCausalLM": {"attention_types": [[["global", "local"], 1]]},
    "GPTJForCausalLM": {"rotary_dim": 4},
    "CodeGenForCausalLM": {"rotary_dim": 4},
    "Mamba2ForCausalLM": {"num_heads": 8, "head_dim": 8, "state_size": 16, "n_groups": 1},
    "JambaForCausalLM": {"attn_layer_period": 2, "attn_layer_offset": 1},
    "SwinForImageClassification": {"depths": [1, 1], "num_heads": [2, 4], "window_size": 2},
    "YolosForObjectDetection": {"image_size": [32, 32]},
    "Swinv2ForImageClassification": {"depths": [1, 1], "num_heads": [2, 4], "window_size": 2},
    "SegformerForImageClassification": {
        "patch_sizes": [7, 3, 3, 3],
        "hidden_sizes": [32, 32, 64, 64],
        "decoder_hidden_size": 32,
        "num_attention_heads": [1, 2, 2, 4],
    },
    "LEDForConditionalGeneration": {
        "max_encoder_position_embeddings": 64,
        "max_decoder_position_embeddings": 64,
        "attention_window": [8, 8],
    },
    "LongformerForMaskedLM": {"attention_window": [8, 8]},
    "MobileBertForMaskedLM": {"intra_bottleneck_size": 32, "true_hidden_size": 32},
    "Wav2Vec2ForCTC": {"conv_dim": [32] * 7, "num_conv_pos_embeddings": 16},
    "HubertForCTC": {"conv_dim": [32] * 7, "num_conv_pos_embeddings": 16},
    "WavLMForCTC": {"conv_dim": [32] * 7, "num_conv_pos_embeddings": 16},
    "Data2VecAudioForCTC": {"conv_dim": [32] * 7},
}
_NAMES = """
LlamaForCausalLM MistralForCausalLM Qwen2ForCausalLM Qwen3ForCausalLM Qwen2MoeForCausalLM
Qwen3MoeForCausalLM MixtralForCausalLM GemmaForCausalLM Gemma2ForCausalLM Gemma3ForCausalLM
PhiForCausalLM Phi3ForCausalLM GPTNeoXForCausalLM GPTNeoForCausalLM GPTJForCausalLM
GPTBigCodeForCausalLM OPTForCausalLM BloomForCausalLM StableLmForCausalLM
OlmoForCausalLM Olmo2ForCausalLM OlmoeForCausalLM CohereForCausalLM GraniteForCausalLM
GraniteMoeForCausalLM Starcoder2ForCausalLM CodeGenForCausalLM MptForCausalLM NemotronForCausalLM
GlmForCausalLM Glm4ForCausalLM SmolLM3ForCausalLM ArceeForCausalLM HeliumForCausalLM
PersimmonForCausalLM BioGptForCausalLM XGLMForCausalLM MambaForCausalLM Mamba2ForCausalLM
FalconMambaForCausalLM JambaForCausalLM
BertForMaskedLM RobertaForMaskedLM XLMRobertaForMaskedLM AlbertForMaskedLM DebertaV2ForMaskedLM
DebertaForMaskedLM DistilBertForMaskedLM ElectraForMaskedLM MPNetForMaskedLM CamembertForMaskedLM
ModernBertForMaskedLM EsmForMaskedLM ConvBertForMaskedLM RoFormerForMaskedLM FNetForMaskedLM
SqueezeBertForMaskedLM BigBirdForMaskedLM NystromformerForMaskedLM LongformerForMaskedLM
XLMForSequenceClassification BertForSequenceClassification
T5ForConditionalGeneration MT5ForConditionalGeneration UMT5ForConditionalGeneration
LongT5ForConditionalGeneration SwitchTransformersForConditionalGeneration
BartForConditionalGeneration MBartForConditionalGeneration PegasusForConditionalGeneration
MarianMTModel M2M100ForConditionalGeneration BlenderbotForConditionalGeneration
LEDForConditionalGeneration
ViTForImageClassification DeiTForImageClassification BeitForImageClassification
Dinov2ForImageClassification SwinForImageClassification SegformerForImageClassification
SiglipVisionModel CLIPVisionModel CLIPTextModel YolosForObjectDetection ViTMAEModel
Wav2Vec2ForCTC HubertForCTC WavLMForCTC Data2VecAudioForCTC WhisperForConditionalGeneration
"""
ARCHITECTURES = _NAMES.split()


SKIPPED: dict[str, tuple[str, str]] = {
    "LongformerForMaskedLM": ("*_global", "they run with global attention only"),
    "LEDForConditionalGeneration": ("*_global", "they run with global attention only"),
    "EsmForMaskedLM": ("*contact_head*", "it does not run"),
    "ConvBertForMaskedLM": ("*conv_kernel_layer", "its rows are no multiple of a group"),
    "WavLMForCTC": ("*gru_rel_pos_linear", "its rows are no multiple of a group"),
}
"""Pattern of the layers that the caller must leave out (skip), and why."""


def skipped(name: str) -> tuple[str, ...]:
    return (SKIPPED[name][0],) if name in SKIPPED else ()


def page() -> str:
    """docs/architectures.md."""
    rows = []
    for name in ARCHITECTURES:
        pattern, why = SKIPPED.get(name, ("", ""))
        rows.append(f"| {name} | " + (f"`ignore` must have `{pattern}`: {why}" if why else "all"))
    return _PAGE + "".join(f"{row} |\n" for row in rows)


_PAGE = """# Architectures

Models of transformers that were quantised, run with and without a mask, saved by `save_pretrained`
and `save_quantized`, and loaded by `from_pretrained` and `load_quantized`: all with the same bits.
Each has random weights and few of them. The schemes are W8A8 (dynamic and static), W8A16 and W4A16.

GPT2LMHeadModel runs, but has no checkpoint: its Conv1D has no place in compressed-tensors' format.
Stacked experts are quantised, their routers stay float. Heads over a vocabulary stay float by
default.

`make test-slow` runs the list; `python tests/architectures.py` writes this page.

| architecture | what is quantised |
|---|---|
"""


def tiny(name: str) -> Any:
    """A model of a few thousand parameters, in eval mode."""
    made = getattr(extra("transformers"), name)
    known = made.config_class()
    sizes = {
        key: size
        for key, size in _SIZES.items()
        if hasattr(known, key) and not isinstance(getattr(known, key), list | tuple)
    }
    torch.manual_seed(0)
    return made(made.config_class(**{**sizes, **_OWN.get(name, {})})).eval()


def inputs(model: Any, mask: bool) -> dict[str, Tensor]:
    """What the model is called with; with a mask, where it takes one, the second row is padded."""
    drawn = torch.Generator().manual_seed(1)
    ids = torch.randint(3, 90, (2, 16), generator=drawn)
    kind = model.main_input_name
    if kind == "input_ids":
        given = {kind: ids}
        if mask:
            given["attention_mask"] = torch.ones_like(ids)
            given["attention_mask"][1, 12:] = 0
    else:
        shapes = {"pixel_values": (2, 3, 32, 32), "input_values": (2, 1600)}
        shape = shapes.get(kind, (2, 80, 128))
        given = {kind: torch.randn(shape, generator=drawn)}
    if type(model).__name__ == "ViTMAEModel":  # else it draws which patches it leaves out
        given["noise"] = torch.rand(2, 16, generator=drawn)
    if model.config.is_encoder_decoder:
        given["decoder_input_ids"] = ids[:, :8]
    return given


def output(model: Any, given: dict[str, Tensor]) -> Tensor:
    """The first output that is one tensor."""
    y: Tensor = model(**given)[0]
    return y


class EvaAttention(nn.Module):
    """A block like that of EVA in timm: one product of q, k and v, whose weight the block reads."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.proj = nn.Linear(32, 96, bias=False), nn.Linear(32, 32)
        self.bias = nn.Parameter(torch.randn(96) / 8)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = F.linear(x, self.qkv.weight, self.bias).chunk(3, -1)
        return x + self.proj(F.scaled_dot_product_attention(q, k, v))


class ViT(nn.Module):
    """timm's block: a fused qkv, layer scale."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(32), nn.LayerNorm(32)
        self.qkv, self.proj = nn.Linear(32, 96), nn.Linear(32, 32)
        self.mlp = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 32))
        self.gamma = nn.Parameter(torch.full((32,), 0.5))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.norm1(x)).chunk(3, -1)
        x = x + self.gamma * self.proj(F.scaled_dot_product_attention(q, k, v))
        return x + self.gamma * self.mlp(self.norm2(x))


class DiT(nn.Module):
    """A block whose norm is shifted and scaled by what a Linear makes of the condition."""

    def __init__(self) -> None:
        super().__init__()
        self.condition = nn.Sequential(nn.SiLU(), nn.Linear(32, 96))
        self.norm = nn.LayerNorm(32, elementwise_affine=False)
        self.mlp = nn.Sequential(nn.Linear(32, 64), nn.GELU("tanh"), nn.Linear(64, 32))

    def forward(self, x: Tensor) -> Tensor:
        shift, scale, gate = self.condition(x.mean(1, keepdim=True)).chunk(3, -1)
        return x + gate * self.mlp(self.norm(x) * (1 + scale) + shift)


class UNet(nn.Module):
    """Convolutions around attention, and the embedding of a time."""

    def __init__(self) -> None:
        super().__init__()
        self.into, self.out = nn.Conv1d(32, 64, 3, padding=1), nn.Conv1d(64, 32, 3, padding=1)
        self.time, self.middle = nn.Linear(32, 64), ViTLike(64)
        self.norm = nn.GroupNorm(4, 64)

    def forward(self, x: Tensor) -> Tensor:
        h = F.silu(self.norm(self.into(x.mT))) + self.time(x.mean(1)).unsqueeze(-1)
        return x + self.out(self.middle(h.mT).mT).mT


class ViTLike(nn.Module):
    """Attention with projections of its own each."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(size, size, bias=False) for _ in range(3))
        self.o = nn.Linear(size, size)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.o(F.scaled_dot_product_attention(self.q(x), self.k(x), self.v(x)))


SHAPES = {"eva": EvaAttention, "vit": ViT, "dit": DiT, "unet": UNet}


if __name__ == "__main__":
    (Path(__file__).parents[1] / "docs" / "architectures.md").write_text(page())
