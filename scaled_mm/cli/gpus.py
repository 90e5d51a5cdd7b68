"""The GPUs that `scaled-mm explain` asks about."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Device:
    """What the choice depends on of a GPU."""

    name: str
    capability: int
    """10 major + minor."""
    sms: int
    bandwidth: float
    """TB/s of its memory, by the datasheet."""


DEVICES = {
    device.name: device
    for device in (
        Device("H200", 90, 132, 4.8),
        Device("H100", 90, 132, 3.35),
        Device("H100-PCIe", 90, 114, 2.0),
        Device("H20", 90, 78, 4.0),
        Device("A100", 80, 108, 2.0),
    )
}
"""GPUs known by name: SXM boards unless the name says otherwise."""


def local_device() -> Device | None:
    """The current GPU, its bandwidth by memory clock and bus width; None where there is none."""
    if not torch.cuda.is_available():
        return None
    facts = torch.cuda.get_device_properties(torch.cuda.current_device())
    clock = getattr(facts, "memory_clock_rate", 0)  # kHz, two transfers a clock
    width = getattr(facts, "memory_bus_width", 0)  # bits
    known = next((device for name, device in DEVICES.items() if name in facts.name), None)
    bandwidth = 2e-12 * 1e3 * clock * width / 8
    if not bandwidth:
        bandwidth = (known or DEVICES["H200"]).bandwidth
    capability = 10 * facts.major + facts.minor
    return Device(facts.name, capability, facts.multi_processor_count, bandwidth)


def chosen_device(name: str | None, sms: int | None, bandwidth: float | None) -> Device | None:
    """What the options say; None: nothing."""
    if name is not None and name not in DEVICES:
        raise ValueError(f"--device must be one of {', '.join(DEVICES)}, got {name}")
    if bandwidth is not None and not 0 < bandwidth < math.inf:
        raise ValueError(f"--bandwidth must be above 0 and finite, got {bandwidth}")
    if (name, sms, bandwidth) == (None, None, None):
        return None
    base = DEVICES[name] if name is not None else local_device() or DEVICES["H200"]
    return Device(base.name, base.capability, sms or base.sms, bandwidth or base.bandwidth)
