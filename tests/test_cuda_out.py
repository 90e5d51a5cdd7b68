"""`out=` on CUDA: the same memory rules as on the CPU, and one of its own."""

from typing import Any

import pytest
import torch
from cuda_support import DEVICE, GPU, ON_CPU, on_device
from helpers import assert_bits
from refusals import GOOD, M, N
from test_out import CALLS, PACKED

import scaled_mm

pytestmark = GPU
GUARD = 16  # elements before and after; whole vectors of 16 bytes of any dtype


cuda_only = pytest.mark.skipif(ON_CPU, reason="a rule of CUDA's")


def there(operands: dict[str, Any]) -> dict[str, Any]:
    """The operands on the device; a packed weight is packed there."""
    plain = {k: x for k, x in operands.items() if x is not PACKED}
    b = on_device({"b": GOOD["int8_mm"]()["b"]})["b"]
    packed = {k: scaled_mm.pack_weight_int8(b) for k, x in operands.items() if x is PACKED}
    return {**on_device(plain), **packed}


@pytest.mark.parametrize("name", CALLS)
def test_written_in_place(name: str) -> None:
    call, operands = CALLS[name]
    given = there(operands)
    expected = call(**given)
    size = expected.numel()
    buffer = torch.full((size + 2 * GUARD,), 77, device=DEVICE).to(expected.dtype)
    out = buffer[GUARD : GUARD + size].view(expected.shape)
    assert call(**given, out=out) is out
    assert_bits(out.cpu(), expected.cpu(), name)
    assert set(buffer[:GUARD].tolist() + buffer[GUARD + size :].tolist()) == {77}


@cuda_only
def test_out_that_begins_between_vectors() -> None:
    out = torch.empty(M * N + 1, dtype=torch.int32, device=DEVICE)[1:].view(M, N)
    message = (
        r"^out must begin at a multiple of 16 bytes on CUDA, got an address 4 bytes after one$"
    )
    with pytest.raises(ValueError, match=message):
        scaled_mm.int8_mm(**there(GOOD["int8_mm"]()), out=out)


@cuda_only
def test_out_on_another_device() -> None:
    out = torch.empty(M, N, dtype=torch.int32)
    with pytest.raises(ValueError, match=r"^out must be on the device of a \(cuda:0\), got cpu$"):
        scaled_mm.int8_mm(**there(GOOD["int8_mm"]()), out=out)
