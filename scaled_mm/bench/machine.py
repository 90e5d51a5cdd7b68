"""What the numbers of `scaled-mm bench` are taken on: facts of the CPU, or of the GPU."""

from __future__ import annotations

import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from .. import _library
from .._version import VERSION
from ..gpus import local_device

_SMI = {"driver": "driver_version", "power_limit": "power.limit", "max_clock": "clocks.max.sm"}


def last_level_cache() -> int:
    """Bytes, from sysfs; 32 MiB where that does not say."""
    caches = Path("/sys/devices/system/cpu/cpu0/cache")
    sizes = [path.read_text().strip() for path in caches.glob("index*/size")]
    units = {"K": 2**10, "M": 2**20}
    return max((int(s[:-1]) * units[s[-1]] for s in sizes if s[-1:] in units), default=2**25)


def _commit() -> str | None:
    """Of the checkout that the package is in, if it is in one."""
    root = Path(__file__).parents[2]
    asked = ["git", "-C", str(root), "rev-parse", "--short", "HEAD"]
    if not (root / ".git").exists():
        return None
    done = subprocess.run(asked, capture_output=True, text=True)
    return done.stdout.strip() or None


def _software() -> dict[str, Any]:
    return {
        "scaled_mm": VERSION,
        "commit": _commit(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
    }


def _cpuinfo() -> dict[str, str]:
    """Of the first CPU."""
    info = Path("/proc/cpuinfo")
    lines = [line.partition(":") for line in info.read_text().splitlines()] if info.exists() else []
    return {key.strip(): value.strip() for key, _, value in reversed(lines)}


def cpu_name() -> str:
    return _cpuinfo().get("model name", platform.processor() or platform.machine())


def cpu() -> dict[str, Any]:
    facts = _cpuinfo()
    flags = set(facts.get("flags", facts.get("Features", "")).split())
    telling = ("avx2", "avx_vnni", "avx512f", "avx512_vnni", "avx512_bf16", "amx_int8", "i8mm")
    return {
        "cpu": cpu_name(),
        "flags": [flag for flag in telling if flag in flags],
        "last_level_cache": last_level_cache(),
        "threads": torch.get_num_threads(),
        "isa": _library.cpu_isa(),
        **_software(),
    }


def gpu_tops() -> float:
    """10^12 operations on int8 a second at full clock: the datasheet's where the GPU is known
    (csrc/dispatch/gpus.def), else derived from what its driver tells."""
    device = local_device()
    assert device is not None
    gpu = _library.explain("int8", 1, 64, 64, torch.bfloat16, "none", *device.facts)["gpu"]
    return 2e-6 * float(gpu["most_products_per_us"]) * device.sms


def gpu(bandwidth: float, tops: float) -> dict[str, Any]:
    """bandwidth: bytes a second of a copy, as measured. tops: as `gpu_tops` has it."""
    properties = torch.cuda.get_device_properties(torch.cuda.current_device())
    return {
        "gpu": properties.name,
        "capability": 10 * properties.major + properties.minor,
        "sms": properties.multi_processor_count,
        "l2_cache": getattr(properties, "L2_cache_size", None),
        "memory": properties.total_memory,
        "copy_tb_per_s": 1e-12 * bandwidth,
        "int8_tops": tops,
        "cuda": torch.version.cuda,
        "triton": _version("triton"),
        **_nvidia_smi(),
        **_software(),
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _nvidia_smi() -> dict[str, str]:
    """Driver, power limit and highest SM clock, where nvidia-smi can be asked."""
    command = ["nvidia-smi", f"--query-gpu={','.join(_SMI.values())}", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return {}
    first, *_ = done.stdout.splitlines() or [""]
    return dict(zip(_SMI, first.split(", "), strict=False))
