"""GPUs as the choice of a kernel knows them: by name, or by what the driver tells."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from . import _library


@dataclass(frozen=True)
class Device:
    """What the choice depends on of a GPU."""

    name: str
    capability: int
    """10 major + minor."""
    sms: int
    bandwidth: float
    """TB/s of its memory, by the datasheet."""
    mhz: float = 0.0
    """The highest clock of the multiprocessors; 0: not known. Of a GPU known by name it plays no
    part."""

    @property
    def facts(self) -> tuple[str, int, int, float, float]:
        """As the library asks for them: memory in bytes per microsecond."""
        return (self.name, self.capability, self.sms, 1e6 * self.bandwidth, float(self.mhz))


DEVICES = {
    gpu["name"]: Device(gpu["name"], gpu["capability"], gpu["sms"], gpu["tb_per_s"], gpu["mhz"])
    for gpu in _library.known_gpus()
}
"""GPUs known by name (csrc/dispatch/gpus.def): SXM boards unless the name says otherwise."""


def local_device() -> Device | None:
    """The current GPU, its bandwidth by memory clock and bus width; None where there is none."""
    if not torch.cuda.is_available():
        return None
    facts = torch.cuda.get_device_properties(torch.cuda.current_device())
    clock = getattr(facts, "memory_clock_rate", 0)  # kHz, two transfers a clock
    width = getattr(facts, "memory_bus_width", 0)  # bits
    bandwidth = 2e-12 * 1e3 * clock * width / 8
    mhz = 1e-3 * getattr(facts, "clock_rate", 0)
    capability = 10 * facts.major + facts.minor
    return Device(facts.name, capability, facts.multi_processor_count, bandwidth, mhz)
