"""Which GPUs a process has a context on, each about 0.5 GB, before and after calls of the library;
run by test_cuda_environment.py in a process of its own, without pytest's GPU cases.

    python tests/cuda_contexts.py full     two GPUs of which nobody uses the first: fills it
"""

import ctypes
import subprocess
import sys
import threading

import torch
from awq_cases import AwqCase
from torch import nn

import scaled_mm
from scaled_mm import _library
from scaled_mm.explain import explain
from scaled_mm.nn import ScaledLinear


def contexts() -> list[int]:
    """The GPUs, by the driver."""
    driver, found = ctypes.CDLL("libcuda.so.1"), []
    for index in range(torch.cuda.device_count()):
        flags, active = ctypes.c_uint(), ctypes.c_int()
        at = (index, ctypes.byref(flags), ctypes.byref(active))
        assert driver.cuDevicePrimaryCtxGetState(*at) == 0
        if active.value:
            found.append(index)
    return found


def calls(device: str) -> None:
    """One of every kind."""
    x = torch.randn(3, 64, device=device, dtype=torch.bfloat16)
    q, scale, _ = scaled_mm.quantize_int8(x)
    w, scale_w = scaled_mm.quantize_weight_int8(torch.randn(32, 64, device=device))
    for b in (w.t(), scaled_mm.pack_weight_int8(w.t())):
        scaled_mm.scaled_mm(q, b, scale, scale_w)
        scaled_mm.int8_mm(q, b)
        scaled_mm.azp_adj(b)
    scaled_mm.rms_norm_quantize_int8(x, torch.ones(64, device=device), eps=1e-6)
    layer = ScaledLinear.from_linear(nn.Linear(64, 32)).to(device)
    layer(x)
    given = AwqCase("contexts", 64, 32, 32, torch.bfloat16).weight()
    words = {name: t.to(device) for name, t in given.items()}
    scaled_mm.awq_gemm(x, **words)
    scaled_mm.awq_dequantize(**words)
    packed = scaled_mm.MixedWeight.from_awq(**words)
    scaled_mm.mixed_mm(x, packed)
    packed.dequantize()


def main() -> None:
    last = torch.cuda.device_count() - 1
    torch.cuda.get_device_properties(last)  # torch is awake
    before = contexts()
    calls("cpu")
    assert all(_library.arch_of_gpu(index) for index in range(last + 1))  # as `scaled-mm info`
    explain(16, 4096, 4096)
    assert contexts() == before, f"without a tensor on a GPU: {before} became {contexts()}"
    torch.ones(8, device=f"cuda:{last}").sum().item()
    before = contexts()
    assert last in before
    calls(f"cuda:{last}")
    thread = threading.Thread(target=calls, args=(f"cuda:{last}",))
    thread.start()
    thread.join()
    torch.cuda.synchronize(last)
    assert contexts() == before, f"calls on cuda:{last}: {before} became {contexts()}"
    assert torch.cuda.current_device() == 0
    print("no other")


def fill_the_first() -> None:
    """Calls on the second GPU, in a process of their own, while the first has no room for a
    context."""
    held = [torch.empty(torch.cuda.mem_get_info(0)[0] - (64 << 20), dtype=torch.uint8, device=0)]
    held += [torch.empty(1 << 20, dtype=torch.uint8, device=0) for _ in range(8)]
    left = torch.cuda.mem_get_info(0)[0]
    assert left < 100 << 20, left
    calls = "import cuda_contexts; cuda_contexts.calls('cuda:1'); print(cuda_contexts.contexts())"
    command = [sys.executable, "-c", calls]
    done = subprocess.run(command, cwd=sys.path[0], capture_output=True, text=True, timeout=100)
    assert done.stdout.strip() == "[1]", done.stdout + done.stderr
    print(f"cuda:0 full but for {left >> 20} MiB: calls on cuda:1 are well")


if __name__ == "__main__":
    fill_the_first() if sys.argv[1:] == ["full"] else main()
