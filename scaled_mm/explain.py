"""Which kernel a shape gets on a GPU, why not the others, and its floor: as functions.

The choice is the library's own, the code that picks at every call, asked for any GPU: none has to
be there.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch

from . import _library
from .bench.cases import DTYPES
from .gpus import DEVICES, Device, local_device
from .ops.int8 import scaled_mm
from .ops.mixed_weight import ZEROS
from .tuning import cache

BLOCK = 128  # rows and columns of an int8 weight's block
MOST = 2**31 - 1
"""The largest size that CUDA's kernels index: `must_fit` in csrc/cuda/common/device.h."""

__all__ = ["explain", "explain_mixed"]


@dataclass(frozen=True)
class KernelChoice:
    """One kernel of the table, and whether it is the one."""

    name: str
    what: str
    predicted_us: float | None
    """None: it does not serve the shape."""
    chosen: bool
    reason: str
    """Why it is not the one."""


@dataclass(frozen=True)
class Explanation:
    """What `explain` found."""

    m: int
    n: int
    k: int
    out_dtype: str
    device: Device
    arch: str | None
    """The arch folder that serves the device; None: no kernels for it."""
    archs: list[str]
    """All that there are."""
    bytes: int
    """Of every operand once and of the output."""
    floor_us: float
    """Those bytes at the device's bandwidth."""
    kernels: list[KernelChoice]
    """By predicted time, the chosen one first; none where there are none, or nothing to compute."""
    notes: list[str]
    """Copies that this shape would need, and the like."""
    cpu_isa: str
    """What would run on the CPU of this machine."""
    group: int | None = None
    """Rows of a weight of few bits that share a scale, and of one in blocks; None: of any other."""
    bits: int = 8
    """Of the weight's values."""
    experts: int | None = None
    """Of a product of several."""
    int8_input: bool = False
    """Whether a weight of 4 bits meets int8 activations."""
    blocks: bool = False
    """Whether the product is int8 in blocks."""
    weight_bytes: int | None = None
    """Of the weight; of one in groups its values, zero points and scales."""
    weight_floor_us: float | None = None
    """Those bytes at the device's bandwidth."""
    gpu_class: str | None = None
    """The line of csrc/dispatch/gpus.def that the device was found in; None: none."""
    rates: str = "derived"
    """Whence the predictions have the device's rates: measured on a GPU of its class, published by
    its maker, or derived from what its driver tells."""
    tuned: bool = False
    """Whether numbers that `scaled-mm tune` measured on the device are in force."""
    tuning: str = ""
    """What there is to say of them."""

    @property
    def chosen(self) -> KernelChoice | None:
        return next((kernel for kernel in self.kernels if kernel.chosen), None)

    @property
    def empty(self) -> bool:
        """Whether no kernel runs: there is no D, or of a weight in groups nothing but the bias."""
        return 0 in (self.m, self.n) or (self.group is not None and self.k == 0)

    @property
    def operations(self) -> int:
        """Multiplications and additions."""
        return 2 * self.m * self.n * self.k

    @property
    def predicted_tops(self) -> float | None:
        """10^12 operations a second at the chosen kernel's predicted time."""
        kernel = self.chosen
        if kernel is None or not kernel.predicted_us:
            return None
        return 1e-6 * self.operations / kernel.predicted_us


OUT_DTYPES = {**DTYPES, "int8": torch.int8, "float8_e4m3fn": torch.float8_e4m3fn}


def explain(
    m: int,
    n: int,
    k: int,
    *,
    out_dtype: str = "bfloat16",
    activation: str | None = None,
    experts: int | None = None,
    blocks: bool = False,
    device: Device | None = None,
) -> Explanation:
    """How `scaled_mm` would compute D [M, N] = epilogue(A [M, K] B [K, N]) on a GPU.

    The choice is the same for every epilogue that makes as many columns of the same dtype.

    Args:
        m, n, k: the sizes, of operands in the fast layout.
        out_dtype: bfloat16, float16, float32, int8 or float8_e4m3fn.
        activation: what `scaled_mm` takes.
        experts: how many there are, for `grouped_mm` of M rows in all. The choice is made for a
            router that likes each as much.
        blocks: whether the scales are those of blocks of 128 x 128. Without experts; out_dtype is
            bfloat16, float16 or float32.
        device: the GPU; None: the local one, or an H200 where there is none.

    Raises:
        ValueError: the op refuses the sizes or the activation, a size is beyond what CUDA's kernels
            index, or SCALED_MM_KERNEL names no kernel.
    """
    check_sizes(m, n, k)
    if out_dtype not in OUT_DTYPES:
        raise ValueError(f"out_dtype must be one of {', '.join(OUT_DTYPES)}, got {out_dtype}")
    check_as_the_op_does(m, n, k, OUT_DTYPES[out_dtype], activation)
    gpu = device or local_device() or DEVICES["H200"]
    ending = (OUT_DTYPES[out_dtype], activation or "none")
    if blocks:
        if experts is not None:
            raise ValueError(f"experts must be None with blocks, got {experts}")
        if out_dtype not in DTYPES:
            raise ValueError(f"out_dtype must be one of {', '.join(DTYPES)}, got {out_dtype}")
        answer = _library.explain("k_scales", m, n, k, BLOCK, True, ending[0], *gpu.facts)
    elif experts is None:
        answer = _library.explain("int8", m, n, k, *ending, *gpu.facts)
    else:
        if not 0 < experts <= MOST:
            raise ValueError(f"experts must be in 1..{MOST}, got {experts}")
        answer = _library.explain("grouped", m, n, k, experts, *ending, *gpu.facts)
    question = {"m": m, "n": n, "k": k, "out_dtype": out_dtype, "device": gpu}
    of_blocks = {"blocks": True, "group": BLOCK} if blocks else {}
    return made_of(answer, **question, experts=experts, **of_blocks)


def explain_mixed(
    m: int,
    n: int,
    k: int,
    *,
    bits: int = 8,
    zeros: str = "none",
    group: int | None = None,
    packed: bool = True,
    int8_input: bool = False,
    out_dtype: str = "bfloat16",
    device: Device | None = None,
) -> Explanation:
    """How `mixed_mm` would compute D [M, N] = x [M, K] W [K, N] on a GPU, or `w4a8_mm`.

    Args:
        m, n, k: the sizes.
        bits: of a weight's value, 4 or 8.
        zeros: the kind of zero points: none, integer or float.
        group: rows of W that share scales and zero points; a divisor of K. None: K.
        packed: whether the weight is packed in units (docs/lowbit.md); its groups then are
            multiples of 32, or K.
        int8_input: whether x is int8, for `w4a8_mm`: of 4 bits, packed, zeros no floats.
        out_dtype: bfloat16 or float16, which choose the same; float32 of int8 x.
        device: the GPU; None: the local one, or an H200 where there is none.

    Raises:
        ValueError: an argument breaks a rule, or SCALED_MM_KERNEL names no kernel.
    """
    check_sizes(m, n, k)
    rows = k if group is None else group
    if bits not in (4, 8):
        raise ValueError(f"bits must be 4 or 8, got {bits}")
    if zeros not in ZEROS:
        raise ValueError(f"zeros must be one of {', '.join(ZEROS)}, got {zeros}")
    if (rows < 1 and k) or k % max(1, rows):
        raise ValueError(f"group must be a divisor of k={k}, got {group}")
    if packed and rows % 32 and rows != k:
        raise ValueError(f"group must be a multiple of 32 where the weight is packed, got {group}")
    if int8_input and (bits != 4 or zeros == "float" or not packed):
        got = f"{bits} bits, {zeros} zeros{'' if packed else ', not packed'}"
        raise ValueError(f"int8_input must come with 4 packed bits without float zeros, got {got}")
    dtypes = [*DTYPES] if int8_input else ["bfloat16", "float16"]
    if out_dtype not in dtypes:
        raise ValueError(f"out_dtype must be one of {', '.join(dtypes)}, got {out_dtype}")
    gpu = device or local_device() or DEVICES["H200"]
    if int8_input:
        kind = (max(1, rows), False, DTYPES[out_dtype])
        answer = _library.explain("k_scales", m, n, k, *kind, *gpu.facts)
    else:
        weight = (rows, bits, ZEROS.index(zeros), packed)
        answer = _library.explain("lowbit", m, n, k, *weight, *gpu.facts)
    question = {"m": m, "n": n, "k": k, "out_dtype": out_dtype, "device": gpu}
    return made_of(answer, **question, group=rows, bits=bits, int8_input=int8_input)


def check_sizes(m: int, n: int, k: int) -> None:
    for name, size in (("m", m), ("n", n), ("k", k)):
        if size < 0:
            raise ValueError(f"{name} must be at least 0, got {size}")
        if size > MOST:
            raise ValueError(f"{name} must be at most {MOST}, got {size}")


def check_as_the_op_does(
    m: int, n: int, k: int, out_dtype: torch.dtype, activation: str | None
) -> None:
    """Raises what the op itself raises for the sizes and the activation.

    It is called without tokens, then without columns, so that there is nothing to compute; of its
    operands one element stands for all.
    """
    element, scale = torch.zeros(1, 1, dtype=torch.int8), torch.ones(1)
    for tokens, columns in ((0, n), (m, 0)):
        a, b = element.expand(tokens, k), element.expand(k, columns)
        out_scale = None if out_dtype in DTYPES.values() else scale
        scaled_mm(
            a, b, scale, scale, activation=activation, out_dtype=out_dtype, out_scale=out_scale
        )


def made_of(answer: dict[str, Any], **question: Any) -> Explanation:
    """The explanation in the library's answer."""
    kernels = [
        KernelChoice(
            row["name"],
            row.get("what", ""),
            row["predicted_us"],
            bool(row["chosen"]),
            row.get("reason", ""),
        )
        for row in answer["kernels"]
    ]
    device, gpu = question["device"], answer.get("gpu", {})
    if not device.bandwidth:  # the driver does not tell
        question["device"] = replace(device, bandwidth=1e-6 * gpu["bytes_per_us"])
    kernels.sort(key=lambda x: (not x.chosen, x.predicted_us is None, x.predicted_us or 0.0))
    found = Explanation(
        **question,
        arch=answer["arch"],
        archs=answer["archs"],
        bytes=answer["bytes"],
        floor_us=answer["floor_us"],
        kernels=kernels,
        notes=answer.get("notes", []),
        cpu_isa=_library.cpu_isa(),
        weight_bytes=answer.get("weight_bytes"),
        weight_floor_us=answer.get("weight_floor_us"),
        gpu_class=gpu.get("class"),
        rates=gpu.get("source", "derived"),
        tuned=answer.get("tuned", False),
        tuning=cache.state().line(device.name, device.capability, device.sms),
    )
    if not found.empty:
        return found
    notes = ["D is empty: no kernel runs"] if 0 in (found.m, found.n) else found.notes
    return replace(found, kernels=[], notes=notes)
