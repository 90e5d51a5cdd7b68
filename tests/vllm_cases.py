"""Layers as vLLM holds them, as data; and what they compute, by `scaled_mm.reference`."""

import itertools
from dataclasses import dataclass, replace

import torch
from awq_cases import DTYPES
from checkpoint_cases import VARIANTS, by_the_reference
from int4_cases import Form, quantised
from torch import Tensor

from scaled_mm import awq


@dataclass(frozen=True)
class Int8Case:
    """An int8 layer of some partitions, each with tensors of its own in the checkpoint."""

    scheme: str
    """One of VARIANTS."""
    widths: tuple[int, ...] = (40,)
    """Output channels of the partitions."""
    channel: bool = True
    dtype: torch.dtype = torch.bfloat16
    bias: bool = True
    k: int = 48

    def __str__(self) -> str:
        weights = "channel" if self.channel else "tensor"
        kind = str(self.dtype).removeprefix("torch.")
        return f"{self.scheme}-{len(self.widths)}-{weights}-{kind}" + "-bias" * self.bias

    @property
    def dynamic(self) -> bool:
        return VARIANTS[self.scheme][0]

    @property
    def symmetric(self) -> bool:
        return VARIANTS[self.scheme][1]

    def partitions(self) -> list[dict[str, Tensor]]:
        """The checkpoint's tensors. A fused layer's partitions have one input, so one input scale
        and zero point."""
        generator = torch.Generator().manual_seed(len(self.widths))
        made = []
        for n in self.widths:
            shape = (n, self.k)
            own = {"weight": torch.randint(-128, 128, shape, generator=generator).to(torch.int8)}
            scale = torch.rand(n if self.channel else 1, 1, generator=generator) / 100 + 0.001
            own["weight_scale"] = scale if self.channel else scale.view(1)
            if not self.dynamic:
                own["input_scale"] = torch.tensor([0.0213])
                if not self.symmetric:
                    own["input_zero_point"] = torch.tensor([-37], dtype=torch.int8)
            if self.bias:
                own["bias"] = torch.randn(n, generator=generator).to(self.dtype)
            made.append(own)
        return made

    def input(self) -> Tensor:
        """Tokens [2, 3, K], skewed, one of them 0."""
        x = torch.randn(2, 3, self.k, generator=torch.Generator().manual_seed(9)) + 0.4
        x[1, 1] = 0
        return x.to(self.dtype)

    def expected(self, x: Tensor) -> Tensor:
        """Partition by partition, so that nothing is fused."""
        return torch.cat([self.expected_of(x, own) for own in self.partitions()], -1)

    def expected_of(self, x: Tensor, own: dict[str, Tensor]) -> Tensor:
        """Of one partition."""
        options = {"symmetric": self.symmetric, "per_token": self.dynamic}
        return by_the_reference(own, x, **options)


INT8_CASES = [
    Int8Case(scheme, widths, channel, dtype, bias)
    for scheme, (widths, channel), dtype, bias in itertools.product(
        VARIANTS,
        (((40,), True), ((40,), False), ((24, 16, 16), True), ((24, 16, 16), False)),
        (torch.bfloat16, torch.float16),
        (True, False),
    )
]


@dataclass(frozen=True)
class WeightOnlyCase:
    """A layer of 4 or 8 bits in one of the ways that vLLM lays words out."""

    layout: str
    """gptq, awq or ct (compressed-tensors)."""
    symmetric: bool
    group: int = 16
    dtype: torch.dtype = torch.float16
    k: int = 64
    n: int = 40
    bits: int = 4

    def __str__(self) -> str:
        zeros = "symmetric" if self.symmetric else "zeros"
        kind = str(self.dtype).removeprefix("torch.")
        return f"{self.layout}-{self.bits}-{zeros}-{self.group}-{kind}"

    def weight(self, seed: int = 0) -> awq.Int4:
        w = torch.randn(self.n, self.k, generator=torch.Generator().manual_seed(seed))
        form = Form(bits=self.bits, group=self.group, symmetric=self.symmetric, dtype=self.dtype)
        return replace(quantised(w, form), g_idx=None)

    def dequantised(self, seed: int = 0) -> Tensor:
        """W [K, N], by plain torch."""
        weight = self.weight(seed)
        size = self.k if self.group == -1 else self.group
        g = torch.arange(self.k) // size
        d = weight.q.double() - weight.zeros.double()[g]
        return (d * weight.scales.double()[g]).to(self.dtype)

    def input(self) -> Tensor:
        x = torch.randn(2, 3, self.k, generator=torch.Generator().manual_seed(9))
        return x.to(self.dtype)


INT4_CASES = [
    WeightOnlyCase(layout, symmetric, group, dtype)
    for layout, symmetric, group, dtype in itertools.product(
        ("gptq", "awq", "ct"), (True, False), (16, 64, -1), DTYPES
    )
    if layout != "gptq" or symmetric  # vLLM takes no other GPTQ
    if layout != "awq" or not symmetric
]

W8A16_CASES = [
    replace(case, n=36, k=48 if case.group == -1 else 64, bits=8)
    for case in INT4_CASES
    if case.layout != "awq"  # which is of 4 bits
]


def along(values: Tensor, dim: int, bits: int = 4) -> Tensor:
    """Neighbours along a dimension to an int32 word, the first in its lowest bits."""
    count = 32 // bits
    v = values.movedim(dim, -1).to(torch.int64).unflatten(-1, (-1, count))
    words = sum(v[..., i] << bits * i for i in range(count))
    signed = torch.where(words >= 2**31, words - 2**32, words)
    return signed.to(torch.int32).movedim(-1, dim).contiguous()
