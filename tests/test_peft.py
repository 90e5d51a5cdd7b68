"""PEFT's LoRA on quantised layers."""

from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import assert_bits, extra
from torch import Tensor, nn

import scaled_mm
from scaled_mm import QuantConfig

peft = extra("peft")
X = torch.randn(6, 32, generator=torch.Generator().manual_seed(0))


def model_of(scheme: str) -> nn.Module:
    torch.manual_seed(1)
    parts = nn.Linear(32, 64), nn.LayerNorm(64), nn.Linear(64, 32)  # PEFT wants some parameter
    return scaled_mm.quantize_model(nn.Sequential(*parts).bfloat16(), QuantConfig(scheme))


def lora_config() -> Any:
    from scaled_mm.integrations.peft import LORA_LAYERS

    config = peft.LoraConfig(r=4, target_modules=["0", "2"], lora_dropout=0.0)
    config._register_custom_module(LORA_LAYERS)
    return config


def trained(model: Any, x: Tensor) -> list[float]:
    optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=1e-2)
    losses = []
    for _ in range(20):
        optimizer.zero_grad()
        loss = (model(x) - x).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses


@pytest.mark.parametrize("scheme", ["dynamic", "w4a16-g32"])
def test_lora(scheme: str, tmp_path: Path) -> None:
    x = X.bfloat16()
    base = model_of(scheme)(x)
    model = peft.get_peft_model(model_of(scheme), lora_config())
    assert_bits(model(x).detach(), base)  # B begins as zeros
    names = {name for name, p in model.named_parameters() if p.requires_grad}
    assert len(names) == 4 and all("lora_" in name for name in names)
    losses = trained(model, x)
    assert losses[-1] < 0.9 * losses[0]
    with torch.no_grad():
        after = model(x)
        with model.disable_adapter():
            assert_bits(model(x), base)
    assert not torch.equal(after, base)
    model.save_pretrained(tmp_path)
    again = peft.PeftModel.from_pretrained(model_of(scheme), tmp_path, config=lora_config())
    assert_bits(again(x).detach(), after)
    with pytest.raises(ValueError, match=r"^merge must .*, got a (ScaledLinear|WeightOnlyLinear)$"):
        model.merge_and_unload()
