"""Ahead-of-time compilation: a module exported, compiled to a package by AOTInductor, and run from
it. A C++ compiler is needed, as for building the library itself."""

from pathlib import Path

import pytest
import torch
from helpers import assert_bits
from torch import Tensor

import scaled_mm

pytestmark = pytest.mark.filterwarnings("ignore:`isinstance.treespec, LeafSpec.` is deprecated")

ROWS = torch.export.Dim("rows", min=2, max=64)


class Layer(torch.nn.Module):
    """A quantised linear layer, in every way that its output dtype can be asked for."""

    def __init__(self) -> None:
        super().__init__()
        q, scale = scaled_mm.quantize_weight_int8(torch.linspace(-1, 1, 240).reshape(10, 24))
        self.register_buffer("weight", q)
        self.register_buffer("scale", scale)
        self.register_buffer("bias", torch.linspace(-1, 1, 10))

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        q, scale, _ = scaled_mm.quantize_int8(x)
        operands = (q, self.weight.t(), scale, self.scale)
        return (
            scaled_mm.scaled_mm(*operands),
            scaled_mm.scaled_mm(*operands, bias=self.bias, out_dtype=torch.bfloat16),
            scaled_mm.scaled_mm(*operands, out_dtype=torch.float16, activation="reglu"),
            torch.ops.scaled_mm.scaled_mm(*operands, bias=self.bias, out_dtype=torch.float32),
            scaled_mm.int8_mm(q, self.weight.t()),
        )


def test_package(tmp_path: Path) -> None:
    layer, x = Layer(), torch.randn(5, 24, generator=torch.Generator().manual_seed(0))
    program = torch.export.export(layer, (x,), dynamic_shapes=({0: ROWS},))
    package = torch._inductor.aoti_compile_and_package(
        program,
        package_path=str(tmp_path / "layer.pt2"),
        inductor_configs={
            "aot_inductor.compile_wrapper_opt_level": "O0",
            "cpp_cache_precompile_headers": False,
        },
    )
    compiled = torch._inductor.aoti_load_package(package)
    for rows in (5, 2, 40):
        x = torch.randn(rows, 24, generator=torch.Generator().manual_seed(rows))
        for got, expected in zip(compiled(x), layer(x), strict=True):
            assert_bits(got, expected, rows)
