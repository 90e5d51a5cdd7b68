"""The arch folders without a GPU: what each serves, and what its tables choose for GPUs of its own
(csrc/dispatch/gpus.def has their numbers)."""

import re
from dataclasses import replace
from functools import partial

import pytest
from awq_cases import explain_awq

from scaled_mm import _library
from scaled_mm.explain import DEVICES, Device, Explanation, explain

SERVED = {  # compute capability: the folder whose kernels run there
    70: "",
    75: "sm75",
    80: "sm80",
    86: "sm80",
    87: "sm80",
    89: "sm89",
    90: "sm90",
    100: "sm100",
    103: "sm100",
    110: "sm89",  # by PTX
    120: "sm120",
    121: "sm120",
}
# Shared memory that a block may ask for, KiB.
SHARED = {75: 64, 80: 163, 86: 99, 87: 163, 89: 99, 100: 227, 103: 227, 120: 99, 121: 99}
SHAPES = [(4096, 4096), (28672, 8192), (4096, 14336), (1000, 4100), (8, 17)]
TOKENS = (1, 8, 16, 17, 64, 65, 256, 1000, 8192)


def gpu(capability: int) -> Device:
    """One of that capability: a known one, or one with few multiprocessors."""
    for device in DEVICES.values():
        if device.capability == capability:
            return device
    return replace(DEVICES["L4"], name="unknown", capability=capability)


def refused(found: Explanation) -> dict[str, str]:
    return {kernel.name: kernel.reason for kernel in found.kernels if kernel.predicted_us is None}


@pytest.mark.parametrize("capability", SERVED)
def test_served(capability: int) -> None:
    assert _library.arch_of_sources(capability) == SERVED[capability]


@pytest.mark.parametrize("capability", SHARED)
def test_rows_fit_the_shared_memory(capability: int) -> None:
    """Every row fits its folder's own capability; where a sibling has no room, it refuses."""
    found = explain(300, 4096, 4096, device=gpu(capability))
    wanted = {
        kernel.name: int(tile[1])
        for kernel in found.kernels
        if (tile := re.search(r"needs (\d+) bytes of shared memory", kernel.reason))
    }
    assert all(bytes_ > 1024 * SHARED[capability] for bytes_ in wanted.values())
    assert wanted.keys() == {x for x in refused(found) if not x.startswith("tcgen05_")}
    assert bool(wanted) == (capability == 86)  # it has less than the A100 of its folder


@pytest.mark.parametrize("capability", SHARED)
def test_every_shape_has_a_kernel(capability: int) -> None:
    device = gpu(capability)
    for n, k in SHAPES:
        for m in TOKENS:
            for activation in (None, "reglu") if n % 2 == 0 else (None,):
                found = explain(m, n, k, device=device, activation=activation)
                assert found.chosen is not None and found.arch == SERVED[capability]
                assert found.chosen.predicted_us > found.floor_us / 1.01


@pytest.mark.parametrize("capability", SHARED)
def test_int4_is_served(capability: int) -> None:
    """Packed weights as they are by few tokens; every kernel has room on its folder's own GPU."""
    device = gpu(capability)
    for m in (1, 64, 4096):
        found = explain_awq(m, 4096, 4096, device=device)
        assert found.chosen is not None and "dequantises W" in found.chosen.what
    for m in (1, 16, 64):
        found = explain_awq(m, 4096, 4096, device=device, packed=True)
        assert found.chosen is not None and "packed units" in found.chosen.what
    words = refused(explain_awq(1, 4096, 4096, device=device))
    assert {name for name in words if "packed in units" in words[name]} == {
        kernel.name for kernel in found.kernels if kernel.name.startswith("units_")
    }
    if SERVED[capability] == f"sm{capability}":
        assert not refused(found)


@pytest.mark.parametrize("capability", [80, 86, 89, 120])
def test_experts_with_many_rows_are_multiplied_in_tiles(capability: int) -> None:
    """Few rows of a long K stream the weights; so does a K that tiles do not take."""
    ask = partial(explain, experts=8, device=gpu(capability))
    few, many, odd = ask(2, 28672, 4096), ask(8192, 28672, 4096), ask(8192, 28672, 4090)
    for found, words in ((few, "streams"), (many, "tokens of an expert"), (odd, "streams")):
        assert found.chosen is not None and words in found.chosen.what
    assert {name for name, why in refused(odd).items() if "multiples of 16" in why} == {
        f"grouped_{tokens}x128" for tokens in (32, 64, 128)
    }


def test_tcgen05_waits_to_be_asked_for() -> None:
    """Not run anywhere yet: on 10.0 there, forced or tuned; on 10.3, which has no int8, refused."""
    for m in (1, 256, 8192):
        found = explain(m, 8192, 8192, device=gpu(100))
        assert found.chosen is not None and not found.chosen.name.startswith("tcgen05_")
        there = [k for k in found.kernels if k.name.startswith("tcgen05_")]
        assert len(there) == 2 and all(k.predicted_us is not None for k in there)
    reasons = refused(explain(256, 8192, 8192, device=gpu(103)))
    assert {name for name in reasons if "10.0" in reasons[name]} == {k.name for k in there}
