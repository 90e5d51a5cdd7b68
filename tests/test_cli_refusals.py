"""The command line: what an option or a file must be, said on one line."""

import pytest
import torch

from scaled_mm.explain import DEVICES, OUT_DTYPES
from scaled_mm_cli.main import main

GPUS, DTYPES = ", ".join(DEVICES), ", ".join(OUT_DTYPES)
REFUSED = {
    "nothing": "No such command 'nothing'",
    "info --nothing": "No such option: --nothing",
    "demo --threads 0": "Invalid value for '--threads'",
    "demo --rounds many": "Invalid value for '--rounds'",
    "demo --out no/such/folder/x.png": "--out must lie in a folder that exists, got no/",
    "demo --out x.txt": "--out must end in .png, got x.txt",
    "demo --device tpu": "--device must be one of auto, cpu, cuda, got tpu",
    "validate --min-cosine 1.1": "Invalid value for '--min-cosine'",
    "validate --min-cosine nan": "Invalid value for '--min-cosine'",
    "validate --max-saturated -0.1": "Invalid value for '--max-saturated'",
    "validate minilm --perplexity x": "--perplexity must come with a checkpoint, and the folder",
    "explain 1 2": "Missing argument 'K'",
    "explain 1 2 x": "Invalid value for 'K'",
    "explain 1 2 3 --zeros integer": "--zeros must stand beside --bits, got int",
    "explain 1 2 3 --group 3": "--group must stand beside --awq or --bits",
    "explain 1 1 1 --device TPU": f"--device must be one of {GPUS}, got TPU\n",
    "explain 1 1 1 --bandwidth 0": "--bandwidth must be above 0 and finite, got 0.0\n",
    "explain 1 1 1 --bandwidth nan": "--bandwidth must be above 0 and finite, got nan\n",
    "explain 1 1 1 --awq --activation reglu": "--activation must be left out with --awq, got reglu",
    "explain 1 1 1 --bits 8 --experts 2": "--experts must be left out with --bits, got 2\n",
    "explain 1 1 1 --dtype x": f"out_dtype must be one of {DTYPES}, got x\n",
    "explain 1 12 64 --awq": "n must be a multiple of 8, got 12",
    "explain 1 64 64 --bits 8 --awq": "--bits must be left out with --awq, got 8",
    "explain 1 64 64 --bits 8 --activation reglu": "--activation must be left out with --bits, got",
    "explain 1 64 64 --int8-input": "--int8-input must stand beside --bits, got it without",
    "explain 1 64 64 --blocks --awq": "--blocks must be left out with --awq, got both",
    "bench --shape 4096": "--shape must be MxNxK, such as 64x4096x4096, got 4096",
    "bench --shape 0x1x1": "--shape must be MxNxK",
    "bench --shape 1x-2x3": "--shape must be MxNxK",
    "bench --weight 8": "--weight must be NxK, such as 4096x4096, got 8",
    "bench --shape 1x2x3 --m 4": "--shape must be given without",
    "bench --device tpu": "--device must be one of cpu, cuda, got tpu",
    "bench --device cpu --png x.png": "--png must be given with shapes measured by",
    "bench --read no-such.json": "no-such.json: No such file or directory",
    "bench --awq --dtype float32": "--dtype must be one of bfloat16, float16, got float32",
    "bench --awq --epilogue bias": "--epilogue must be left out with --awq, got bias",
    "bench --awq --without triton": "--without must be one of dense mm, dequantize + mm",
    "bench --awq --weight 64x100": "--weight must be of multiples of 8 by",
    "bench --awq --weight 60x128": "--weight must be of multiples of 8 by",
    "bench --awq-dequantize --m 1": "--awq-dequantize must be given without --shape and",
    "bench --awq --awq-dequantize": "--awq must be given without --awq-dequantize, got both",
    "bench --awq --png x.png": "--png must be given without --awq, got awq_gemm",
    "bench --awq --group 0": "--group must be at least 1 with --awq, got 0",
    "bench --mixed w2a16": "--mixed must be one of w8a16, w4a16, w4a8, got",
    "bench --mixed w8a16 --awq": "--awq must be given without --mixed, got both",
    "bench --mixed w4a16 --epilogue azp": "--epilogue must be left out",
    "bench --mixed w4a16 --shape 1x64x100": "--weight must have K in multiples of the group",
    "bench --grouped gpt": "--grouped must be one of mixtral-8x7b",
    "bench --grouped all --awq": "--grouped must be given with --m alone",
    "bench --grouped all --layer bert-base": "--layer must be given with --m alone",
    "bench --grouped all --without x": "--without must be one of ours",
    "bench --layer gpt": "--layer must be one of llama-3-8b",
    "bench --layer bert-base --awq": "--layer must be given with --m alone",
    "bench --layer bert-base --without x": "--without must be one of ours",
    "bench --model gpt": "--model must be one of llama-3.2-1b, llama-3-8b, llama-3-70b or a",
    "bench --model llama-3-8b --awq": "--model must be given with --m alone",
    "bench --model llama-3-8b --without bf16": "--without must not be bf16",
    "bench --model llama-3-8b --without x": "--without must be one of bf16, w8a8",
    "bench --layers 2": "--layers must be given with --model, got 2 alone",
    "bench --endings --awq": "--endings must be given with shapes alone",
    "bench --endings --without relu": "--endings must be given with shapes alone",
    "bench --endings --shape 8x8": "--shape must be MxNxK",
    "bench --endings --epilogue none.py:f": "--epilogue must be FILE.py:NAME with --endings, got n",
}
NO_GPU = {
    "bench --device cuda": "--device must be cpu where torch sees no GPU, got cuda\n",
    "demo --device cuda": "--device must be cpu where no GPU is served, got cuda\n",
    "tune --family x": "--family must be one of int8, lowbit, k_scales, got x\n",
}
if not torch.cuda.is_available():
    REFUSED |= NO_GPU


BEHIND_PROGRESS = ("bench --awq --weight", "bench --model gpt", "bench --mixed w4a16 --shape")


@pytest.mark.parametrize("line", REFUSED)
def test_refused(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(line.split()) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1 + line.startswith(BEHIND_PROGRESS)
    assert err.splitlines(True)[-1].startswith(f"scaled-mm: {REFUSED[line]}")
