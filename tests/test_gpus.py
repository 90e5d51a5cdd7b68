"""What is known of a GPU: its line of csrc/dispatch/gpus.def, or what the driver tells;
and the choice follows it."""

import math
from typing import Any

import pytest
import torch

from scaled_mm import _library
from scaled_mm.explain import DEVICES, Device
from scaled_mm.ops.mixed_weight import ZEROS

RATES = ["memory_share", "products_per_us", "most_products_per_us", "l2_bytes_per_us"]
RATES += ["lone_bytes_per_us", "latency"]


def told(device: Device) -> dict[str, Any]:
    sizes = (64, 4096, 4096)
    gpu = _library.explain("int8", *sizes, torch.bfloat16, "none", *device.facts)["gpu"]
    weight = (128, 4, ZEROS.index("integer"), False)
    assert _library.explain("lowbit", *sizes, *weight, *device.facts)["gpu"] == gpu
    return gpu


CLASSES = {  # the driver's name, compute capability -> the line
    ("NVIDIA H200", 90): "H200",
    ("NVIDIA H200 NVL", 90): "H200-NVL",
    ("NVIDIA H100 80GB HBM3", 90): "H100",
    ("NVIDIA H100 PCIe", 90): "H100-PCIe",
    ("NVIDIA H100 NVL", 90): "H100-NVL",
    ("NVIDIA GH200 480GB", 90): "GH200",
    ("NVIDIA GH200 144G HBM3e", 90): "GH200",
    ("NVIDIA H20", 90): "H20",
    ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", 90): "H100",
    ("NVIDIA A100-SXM4-80GB", 80): "A100",
    ("NVIDIA L40S", 89): "L40S",
    ("NVIDIA L4", 89): "L4",
    ("Tesla T4", 75): "T4",
    ("NVIDIA H200", 80): None,
    ("NVIDIA H2000", 90): None,
    ("NVIDIA XH20", 90): None,
    ("", 90): None,
}


@pytest.mark.parametrize(("name", "capability"), CLASSES, ids=str)
def test_class_by_the_drivers_name(name: str, capability: int) -> None:
    gpu = told(Device(name, capability, 100, 3.0, 1500))
    assert gpu["class"] == CLASSES[name, capability]
    assert (gpu["source"] == "derived") == (gpu["class"] is None)


@pytest.mark.parametrize("name", DEVICES)
def test_every_line_is_found_by_its_name(name: str) -> None:
    gpu = told(DEVICES[name])
    assert gpu["class"] == name
    assert gpu["source"] == ("measured" if name == "H200" else "published")
    assert all(math.isfinite(gpu[rate]) and gpu[rate] > 0 for rate in RATES)
    assert gpu["lone_bytes_per_us"] >= gpu["l2_bytes_per_us"]


def test_an_unknown_gpu_is_what_its_driver_tells() -> None:
    """For each multiprocessor and clock as an H200, but for the arch's tensor cores."""
    h200 = told(DEVICES["H200"])
    same = told(Device("NVIDIA X", 90, 132, 4.8, 1980))
    assert same["class"] is None
    assert all(same[rate] == pytest.approx(h200[rate], rel=0.1) for rate in RATES)
    half = told(Device("NVIDIA X", 90, 60, 1.0, 990))
    assert half["bytes_per_us"] == 1e6
    assert half["products_per_us"] == pytest.approx(same["products_per_us"] / 2)
    assert half["l2_bytes_per_us"] == pytest.approx(same["l2_bytes_per_us"] / 2)
    assert half["latency"] == pytest.approx(2)
    ampere = told(Device("NVIDIA X", 80, 132, 4.8, 1980))
    assert ampere["products_per_us"] == pytest.approx(same["products_per_us"] / 2)


def test_a_driver_that_tells_nothing() -> None:
    assert told(Device("NVIDIA X", 90, 132, 0.0))["bytes_per_us"] == 2e6
    assert told(Device("NVIDIA H100 80GB HBM3", 90, 132, 0.0))["bytes_per_us"] == 3.35e6
    assert told(Device("NVIDIA X", 90, 132, 0.0))["latency"] == 1


def test_part_of_a_gpu_has_its_multiprocessors_part() -> None:
    whole, part = told(DEVICES["H100"]), told(Device("NVIDIA H100 MIG 3g.40gb", 90, 60, 1.5))
    assert part["bytes_per_us"] == 1.5e6
    assert {name: whole[name] for name in RATES} == {name: part[name] for name in RATES}
