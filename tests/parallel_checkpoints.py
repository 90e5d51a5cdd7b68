"""Checkpoints of which each rank reads its part."""

import copy
import itertools
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import checkpoint_cases as int8_files
import int4_cases as int4_files
import torch
import torch.distributed as dist
from helpers import assert_bits, assert_same_state
from parallel_rank import Rank, case, refused
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.distributed.tensor.parallel import ColwiseParallel, ParallelStyle, parallelize_module

import scaled_mm
from scaled_mm.nn import ScaledLinear
from scaled_mm.parallel import (
    ColwiseQuantizedParallel,
    RowwiseQuantizedParallel,
    load_quantized_sharded,
)
from scaled_mm.precompute import precompute

PLAN: dict[str, ParallelStyle] = {
    "up": ColwiseQuantizedParallel(),
    "down": RowwiseQuantizedParallel(),
}


def filled(me: Rank, name: str, fill: Callable[[Path], Any]) -> Path:
    """A folder that the first rank has filled."""
    folder = me.folder / re.sub(r"\W+", "-", name)
    if me.rank == 0:
        fill(folder)
    dist.barrier()
    return folder


@case("int8 checkpoints")
def _(me: Rank) -> None:
    """As if it were loaded whole and cut afterwards."""
    for name, shards, channel in itertools.product(int8_files.VARIANTS, (1, 3), (True, False)):
        write = partial(int8_files.variant, name=name, shards=shards, channel=channel)
        folder = filled(me, f"{name}-{shards}-{channel}", write)
        whole = scaled_mm.load_quantized(int8_files.Model(), folder).to(me.device)
        cut = parallelize_module(copy.deepcopy(whole), me.mesh, PLAN)
        for device in (me.device, "meta"):
            with torch.device(device):
                empty = int8_files.Model()
            got = load_quantized_sharded(empty, folder, me.mesh, PLAN).to(me.device)
            assert_same_state(got, cut, name, shards, device)
            ids = torch.arange(int8_files.VOCAB, device=me.device).view(2, 8)
            assert_bits(got(ids), whole(ids), name, shards, device)


@case("stored zero-point terms")
def _(me: Rank) -> None:
    """They are those of the whole weight; another is refused, by every rank."""
    for name, term in (("dynamic-asymmetric", "azp_adj"), ("static-asymmetric", "azp_with_adj")):
        plain = filled(me, f"{term}-plain", partial(int8_files.variant, name=name))
        good = filled(me, f"{term}-good", partial(precompute, plain))
        state = load_file(good / "model.safetensors")
        state[f"down.{term}"][0, 0] += 1
        config = int8_files.quantization_config(*int8_files.VARIANTS[name])
        bad = filled(me, f"{term}-bad", partial(int8_files.write, state=state, config=config))
        whole = scaled_mm.load_quantized(int8_files.Model(), good).to(me.device)
        empty = int8_files.Model().to(me.device)
        got = load_quantized_sharded(empty, good, me.mesh, PLAN)
        assert_same_state(got, parallelize_module(whole, me.mesh, PLAN), name)
        with refused(ValueError, rf"down.{term} is not the one that weight and zero point give"):
            load_quantized_sharded(int8_files.Model().to(me.device), bad, me.mesh, PLAN)


@case("AWQ and GPTQ checkpoints")
def _(me: Rank) -> None:
    """Columns of qkv, and rows of down in two groups or in one, as if loaded whole and cut then."""
    for name, form in int4_files.FORMS.items():
        folder = filled(me, f"words-{name}", partial(int4_files.write_toy, form=form))
        styles = {"qkv": ColwiseQuantizedParallel()}
        if form.group == -1 or (me.world == 2 and not form.act_order):
            styles |= {"down": RowwiseQuantizedParallel()}
        empty = int4_files.toy().to(me.device, form.dtype)
        whole = scaled_mm.load_quantized(copy.deepcopy(empty), folder)
        got = load_quantized_sharded(copy.deepcopy(empty), folder, me.mesh, styles)
        assert_same_state(got, parallelize_module(copy.deepcopy(whole), me.mesh, styles), name)
        if me.device == "cpu":
            x = torch.randn(3, 48).to(form.dtype)
            assert_bits(got.qkv(x), me.part(whole.qkv(x)).contiguous(), name)
        if me.world > 2:  # 40 columns are five or ten words of zero points
            words = rf"{32 // form.bits} \(the zero points in a word\)"
            with refused(ValueError, rf"out_features must be cut into multiples of {words}"):
                plan = {"down": ColwiseQuantizedParallel()}
                load_quantized_sharded(empty, folder, me.mesh, plan)


@case("GPTQ by rows")
def _(me: Rank) -> None:
    form = int4_files.Form(act_order=True)
    folder = filled(me, "act-order", partial(int4_files.write_toy, form=form))
    if me.world == 2:
        with refused(ValueError, r"down.g_idx is in act-order, which is not read in parts"):
            load_quantized_sharded(
                int4_files.toy(), folder, me.mesh, {"down": RowwiseQuantizedParallel()}
            )
        with refused(ValueError, r"^qkv: in_features must be cut into multiples of 16 "):
            plan = {"qkv": RowwiseQuantizedParallel()}
            load_quantized_sharded(int4_files.toy(), folder, me.mesh, plan)
    form = int4_files.Form(group=4, version=2)
    model = nn.Sequential(nn.Linear(4 * me.world, 8, bias=False)).half().requires_grad_(False)
    state = int4_files.state_of_int4(model, form, ())
    write = partial(int8_files.write, state=state, config=form.config())
    folder = filled(me, "small-groups", write)
    with refused(ValueError, r"multiples of 8 \(the rows in a word\), got"):
        load_quantized_sharded(model, folder, me.mesh, {"0": RowwiseQuantizedParallel()})


@case("packed checkpoints")
def _(me: Rank) -> None:
    """Columns of qkv, and rows of down in two groups or in one, as if loaded whole and cut then."""
    styles = {"qkv": ColwiseQuantizedParallel(), "down": RowwiseQuantizedParallel()}
    for bits, symmetric, group in ((4, True, 16), (4, False, 16), (8, True, None), (8, False, 16)):
        if me.world > 2 and group is not None:
            continue  # two groups of rows
        options = {"symmetric": symmetric, "bits": bits, "group": group}
        write = partial(int4_files.write_packed_toy, **options)
        folder = filled(me, f"packed-{bits}-{symmetric}-{group}", write)
        empty = int4_files.toy().to(me.device, torch.float16)
        whole = scaled_mm.load_quantized(copy.deepcopy(empty), folder)
        got = load_quantized_sharded(empty, folder, me.mesh, styles)
        assert_same_state(got, parallelize_module(whole, me.mesh, styles), bits, symmetric)


@case("packed checkpoints that cannot be cut")
def _(me: Rank) -> None:
    write = int4_files.write_packed_toy
    folder = filled(me, "packed-words", write)
    ordered = filled(me, "packed-order", partial(write, act_order=True))
    plan = {"down": ColwiseQuantizedParallel()}  # 40 columns are five words of zero points
    with refused(ValueError, r"^out_features must be cut into multiples of 8 \(the zero points in"):
        load_quantized_sharded(int4_files.toy(), folder, me.mesh, plan)
    if me.world == 2:
        with refused(ValueError, r"down.weight_g_idx is in act-order, which is not read in parts"):
            load_quantized_sharded(
                int4_files.toy(), ordered, me.mesh, {"down": RowwiseQuantizedParallel()}
            )


K, N = 512, 768


def bytes_read() -> int:
    """By this process's system calls so far."""
    fields = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(fields["rchar"])


def big_model(int4: bool) -> nn.Module:
    return nn.Sequential(
        nn.Linear(K, N, dtype=torch.float16 if int4 else None),
        nn.ReLU(),
        nn.Linear(N, K, bias=False, dtype=torch.float16 if int4 else None),
    )


@case("bytes read")
def _(me: Rank) -> None:
    """Of the layers in the plan each rank reads its share, by columns and by rows."""
    plan = {"0": ColwiseQuantizedParallel(), "2": RowwiseQuantizedParallel()}
    for name in ("int8", "awq", "gptq"):
        form, int4 = int4_files.Form(name, group=64), name != "int8"
        if int4:
            state = int4_files.state_of_int4(big_model(True).requires_grad_(False), form, ())
            config = form.config()
        else:
            state = scaled_mm.quantize_model(big_model(False)).state_dict()
            config = {**int8_files.quantization_config(True, True), "ignore": []}
        write = partial(int8_files.write, state=state, config=config)
        folder = filled(me, f"bytes-{name}", write)
        counts = []
        for _ in range(2):  # the first imports what the second does not
            before = bytes_read()
            with torch.device("meta"):
                model = big_model(int4)
            model = load_quantized_sharded(model, folder, me.mesh, plan)
            counts.append(bytes_read() - before)
        size = (folder / "model.safetensors").stat().st_size
        # On top: header and config.json, and what every rank needs (scales, biases, g_idx).
        assert size / me.world < counts[1] < size / me.world + 25_000, (name, size, counts)
        assert size > 300_000


@case("plans")
def _(me: Rank) -> None:
    folder = filled(me, "plans", partial(int8_files.variant, name="dynamic-symmetric"))

    def load(plan: dict[str, ParallelStyle]) -> nn.Module:
        return load_quantized_sharded(int8_files.Model().to(me.device), folder, me.mesh, plan)

    column = ColwiseQuantizedParallel()
    with refused(ValueError, r"^plan must name modules of the model, got 'layers.\*.up'$"):
        load({"layers.*.up": column})
    with refused(ValueError, r"^plan must name each module once, got up by '\*p' too$"):
        load({"up": column, "*p": column})
    with refused(TypeError, r"^plan must hold a ParallelStyle for 'up', got 'columns'$"):
        load({"up": "columns"})
    with refused(TypeError, r"^plan must hold a Colwise.* for up, got ColwiseParallel$"):
        load({"up": ColwiseParallel()})
    with refused(ValueError, r"float checkpoint"):
        write = partial(int8_files.write, state=int8_files.Model().state_dict(), config=None)
        float_folder = filled(me, "float", write)
        load_quantized_sharded(int8_files.Model(), float_folder, me.mesh, {"up": column})
    model = load({"u[p]": column, "head": ColwiseQuantizedParallel()})
    assert type(model.up) is ScaledLinear
    assert type(model.head) is nn.Linear  # it stayed float: torch's style took it


@case("one rank refuses")
def _(me: Rank) -> None:
    """Its file is broken; the others would wait for it in the next product."""
    folder = int8_files.variant(me.folder / f"own-{me.rank}", "dynamic-asymmetric")
    last = me.world - 1
    if me.rank == last:
        state: dict[str, Tensor] = load_file(folder / "model.safetensors")
        state["down.weight_scale"][0] = -1
        save_file(state, folder / "model.safetensors")
    message = r"down.weight_scale must be finite" if me.rank == last else r"another rank refused"
    with refused(ValueError, message):
        load_quantized_sharded(int8_files.Model().to(me.device), folder, me.mesh, PLAN)
    if me.rank == last:
        (folder / "model.safetensors").unlink()
    message = r"has no .safetensors file" if me.rank == last else r"another rank refused"
    with refused(ValueError, message):
        load_quantized_sharded(int8_files.Model().to(me.device), folder, me.mesh, PLAN)
