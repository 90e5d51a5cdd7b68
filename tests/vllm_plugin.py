"""The plug-in inside vLLM's own Python package: `make vllm-test`, in an environment of its own.

vLLM finds and chooses the kernels, makes the layers, and loads the tensors of checkpoints into them
by its own loaders; outputs are compared with `scaled_mm.reference`. vLLM is installed without its
compiled parts, so no model runs from end to end, and on CUDA only the choice is looked at.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from checkpoint_cases import VARIANTS, quantization_config
from helpers import assert_bits
from int4_cases import gptq_of_bytes
from test_awq import assert_bounded
from torch import Tensor, nn
from vllm import plugins
from vllm.config import VllmConfig, set_current_vllm_config
from vllm.distributed import init_distributed_environment, initialize_model_parallel
from vllm.model_executor.kernels import linear
from vllm.model_executor.layers.linear import (
    MergedColumnParallelLinear,
    QKVParallelLinear,
    ReplicatedLinear,
    RowParallelLinear,
)
from vllm.model_executor.layers.quantization.auto_awq import AutoAWQConfig
from vllm.model_executor.layers.quantization.auto_gptq import AutoGPTQConfig
from vllm.model_executor.layers.quantization.compressed_tensors.compressed_tensors import (
    CompressedTensorsConfig,
)
from vllm.platforms import PlatformEnum, current_platform
from vllm.platforms.interface import DeviceCapability
from vllm.scalar_type import scalar_types
from vllm_cases import INT4_CASES, INT8_CASES, W8A16_CASES, Int8Case, WeightOnlyCase, along

from scaled_mm import _library, awq, reference
from scaled_mm.integrations import vllm as plugin

OURS = {"int8": "ScaledMMInt8LinearKernel", "mp": "ScaledMMInt4LinearKernel"}
OURS_OF_BYTES = "ScaledMMW8A16LinearKernel"
TABLES = {"int8": linear._POSSIBLE_INT8_KERNELS, "mp": linear._POSSIBLE_KERNELS}


def names_of(kernel_type: str, platform: PlatformEnum) -> list[str]:
    return [kernel.__name__ for kernel in TABLES[kernel_type][platform]]


os.environ.pop("SCALED_MM_VLLM", None)
plugins.load_general_plugins()
INSTALLED = {x: names_of(x, PlatformEnum.CPU) for x in TABLES}
os.environ["SCALED_MM_VLLM"] = "1"
plugins.plugins_loaded = False
plugins.load_general_plugins()


@pytest.fixture(scope="module", autouse=True)
def one_rank(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """vLLM's layers ask for their place among the ranks, and for its config."""
    meeting = f"file://{tmp_path_factory.mktemp('ranks') / 'meeting'}"
    with set_current_vllm_config(VllmConfig()):
        init_distributed_environment(1, 0, meeting, 0, "gloo")
        initialize_model_parallel()
        yield


@pytest.fixture
def second_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    """Layers believe themselves on the second of two tensor-parallel ranks."""
    for module in ("layers.linear", "parameter"):
        prefix = f"vllm.model_executor.{module}.get_tensor_model_parallel"
        monkeypatch.setattr(f"{prefix}_rank", lambda: 1)
        monkeypatch.setattr(f"{prefix}_world_size", lambda: 2)


# ---- Registration and choice ---------------------------------------------------------------------


def test_its_installation_changes_nothing() -> None:
    for kernel_type, names in INSTALLED.items():
        assert names and not {*OURS.values(), OURS_OF_BYTES} & set(names), kernel_type


def test_vllm_found_it_by_its_entry_point() -> None:
    """Before vLLM's own, once, and again nothing."""
    assert current_platform.is_cpu()
    for _ in range(2):
        for kernel_type, table in TABLES.items():
            for platform in (PlatformEnum.CPU, PlatformEnum.CUDA):
                names = names_of(kernel_type, platform)
                assert names[0] == OURS[kernel_type] and len(names) > 2
                assert names.count(OURS[kernel_type]) == 1
                assert names.count(OURS_OF_BYTES) == (kernel_type == "mp")
            others = [names for platform, names in table.items() if platform.name == "ROCM"]
            assert OURS[kernel_type] not in [kernel.__name__ for kernel in others[0]]
        plugin.register()


def chosen_int8() -> str:
    config = linear.Int8ScaledMMLinearLayerConfig(
        is_static_input_scheme=True, is_channelwise=True, input_symmetric=False
    )
    table = linear._POSSIBLE_INT8_KERNELS
    return linear.choose_scaled_mm_linear_kernel(config, table, quantization="int8_w8a8").__name__


def chosen_int4(**change: Any) -> str:
    fields = {
        "full_weight_shape": (128, 64),
        "partition_weight_shape": (128, 64),
        "weight_type": scalar_types.uint4b8,
        "act_type": torch.bfloat16,
        "group_size": 32,
        "zero_points": False,
    }
    config = linear.MPLinearLayerConfig(**{**fields, **change})
    return linear.choose_mp_linear_kernel(config).__name__


def test_the_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    assert chosen_int8() == OURS["int8"]
    assert chosen_int4() == OURS["mp"]
    assert chosen_int4(weight_type=scalar_types.uint4, zero_points=True) == OURS["mp"]
    assert chosen_int4(weight_type=scalar_types.uint8b128) == OURS_OF_BYTES
    assert chosen_int4(weight_type=scalar_types.uint8, zero_points=True) == OURS_OF_BYTES
    monkeypatch.setenv("VLLM_DISABLED_KERNELS", ",".join(OURS.values()))
    assert not {chosen_int8(), chosen_int4()} & set(OURS.values())


def test_the_choice_says_why_not() -> None:
    with pytest.raises(ValueError) as refused:
        chosen_int4(weight_type=scalar_types.uint8b128, group_size=48)
    said = "ScaledMMInt4LinearKernel cannot implement due to: weight_type must be uint4b8 with"
    assert said in str(refused.value)
    said = f"{OURS_OF_BYTES} cannot implement due to: group_size must divide the 128 input features"
    assert said in str(refused.value)


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """A Hopper, as far as the choice can see."""
    platform = SimpleNamespace(
        _enum=PlatformEnum.CUDA,
        get_device_capability=lambda: DeviceCapability(9, 0),
        is_cuda=lambda: True,
        is_cpu=lambda: False,
    )
    from scaled_mm.integrations import vllm_kernels

    for module in (linear, vllm_kernels):
        monkeypatch.setattr(module, "current_platform", platform)
    return monkeypatch


def test_the_choice_on_cuda(cuda: pytest.MonkeyPatch) -> None:
    cuda.setattr(_library, "HAS_CUDA", True)
    cuda.setattr(_library, "arch_of", lambda capability: {90: "sm90"}[capability])
    assert chosen_int8() == OURS["int8"]
    assert chosen_int4() == OURS["mp"]
    assert chosen_int4(weight_type=scalar_types.uint8b128) == OURS_OF_BYTES


def test_the_choice_on_cuda_without_the_library(cuda: pytest.MonkeyPatch) -> None:
    cuda.setattr(_library, "HAS_CUDA", False)
    said = "needs the CUDA library of scaled_mm, which is not built or not for this torch"
    for choose, kernel_type in ((chosen_int8, "int8"), (chosen_int4, "mp")):
        with pytest.raises(ValueError) as refused:  # vLLM's own see that there is no GPU
            choose()
        assert OURS[kernel_type] in str(refused.value) and said in str(refused.value)


# ---- int8 ----------------------------------------------------------------------------------------


def load(layer: nn.Module, part: dict[str, Tensor], shard: Any = None) -> None:
    """A checkpoint's tensors, by vLLM's loaders."""
    parameters = dict(layer.named_parameters())
    for name, x in part.items():
        parameters[name].weight_loader(parameters[name], x, *([] if shard is None else [shard]))


def run(layer: nn.Module, x: Tensor) -> Tensor:
    with torch.inference_mode():
        return layer(x)[0]


def int8_config(case: Int8Case) -> CompressedTensorsConfig:
    return CompressedTensorsConfig.from_config(
        quantization_config(*VARIANTS[case.scheme], channel=case.channel)
    )


def int8_layer(case: Int8Case) -> nn.Module:
    """A layer of one partition; three are q, k and v."""
    how = {"bias": case.bias, "params_dtype": case.dtype, "quant_config": int8_config(case)}
    partitions = case.partitions()
    if len(partitions) == 1:
        layer = ReplicatedLinear(case.k, case.widths[0], prefix="up", **how)
        load(layer, partitions[0])
    else:
        layer = QKVParallelLinear(case.k, 8, 3, 2, prefix="qkv_proj", **how)
        for part, shard in zip(partitions, "qkv", strict=True):
            load(layer, part, shard)
    layer.quant_method.process_weights_after_loading(layer)
    return layer


@pytest.mark.parametrize("case", INT8_CASES, ids=str)
def test_int8(case: Int8Case) -> None:
    layer = int8_layer(case)
    assert type(layer.scheme.kernel).__name__ == OURS["int8"]
    x = case.input()
    assert_bits(run(layer, x), case.expected(x))
    assert layer.weight is None  # packed; a plain one beside it would cost as much again


def test_a_merged_layer_of_two() -> None:
    case = Int8Case("dynamic-asymmetric", (24, 32), channel=False)
    layer = MergedColumnParallelLinear(
        case.k,
        [24, 32],
        bias=True,
        params_dtype=case.dtype,
        quant_config=int8_config(case),
        prefix="gate_up_proj",
    )
    for i, part in enumerate(case.partitions()):
        load(layer, part, i)
    layer.quant_method.process_weights_after_loading(layer)
    assert_bits(run(layer, case.input()), case.expected(case.input()))


def test_a_layer_keeps_its_bias_for_others() -> None:
    """skip_bias_add: the caller adds it."""
    case = Int8Case("static-asymmetric")
    layer = int8_layer(case)
    layer.skip_bias_add = True
    with torch.inference_mode():
        y, bias = layer(case.input())
    without = Int8Case("static-asymmetric", bias=False)
    assert_bits(bias, case.partitions()[0]["bias"])
    assert_bits(y, without.expected(case.input()))


@pytest.mark.parametrize("scheme", VARIANTS)
def test_int8_of_the_second_rank_of_two(scheme: str, second_rank: None) -> None:
    """Half of K: the zero points' terms are those of its rows."""
    case = Int8Case(scheme, bias=False)
    layer = RowParallelLinear(
        case.k,
        case.widths[0],
        bias=False,
        params_dtype=case.dtype,
        quant_config=int8_config(case),
        prefix="down",
        reduce_results=False,
        input_is_parallel=True,
    )
    (own,) = case.partitions()
    load(layer, own)
    layer.quant_method.process_weights_after_loading(layer)
    half = own | {"weight": own["weight"][:, case.k // 2 :]}
    x = case.input()[..., case.k // 2 :]
    assert_bits(run(layer, x), case.expected_of(x, half))


def test_a_compiled_layer() -> None:
    """As vLLM compiles its models: one graph."""
    for scheme in VARIANTS:
        case = Int8Case(scheme)
        layer = int8_layer(case)
        compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
        assert_bits(run(compiled, case.input()), case.expected(case.input()), scheme)


# ---- Weights of 4 and 8 bits ---------------------------------------------------------------------


def weight_only_config(case: WeightOnlyCase) -> Any:
    if case.layout == "awq":
        return AutoAWQConfig(4, case.group, not case.symmetric, False, [], {})
    if case.layout == "gptq":
        return AutoGPTQConfig(case.bits, case.group, False, True, False, {}, {}, ["proj"])
    weights = {
        "num_bits": case.bits,
        "type": "int",
        "symmetric": case.symmetric,
        "strategy": "channel" if case.group == -1 else "group",
        "group_size": None if case.group == -1 else case.group,
    }
    group = {"targets": ["Linear"], "weights": weights, "input_activations": None}
    return CompressedTensorsConfig.from_config(
        {
            "quant_method": "compressed-tensors",
            "format": "pack-quantized",
            "config_groups": {"group_0": group},
            "ignore": [],
        }
    )


def weight_only_tensors(case: WeightOnlyCase, seed: int = 0) -> dict[str, Tensor]:
    """As the checkpoint of each format has them."""
    weight = case.weight(seed)
    if case.layout == "awq":
        return awq.to_awq(weight)._asdict()
    if case.layout == "gptq":
        to_gptq = awq.to_gptq if case.bits == 4 else gptq_of_bytes
        made = to_gptq(weight, version=1)._asdict()
        return {name: x for name, x in made.items() if x is not None}
    made = {
        "weight_packed": along(weight.q.t(), 1, case.bits),
        "weight_scale": weight.scales.t().contiguous(),
        "weight_shape": torch.tensor([case.n, case.k]),
    }
    if not case.symmetric:
        made["weight_zero_point"] = along(weight.zeros.t(), 0, case.bits)
    return made


def assert_weight_only(layer: nn.Module, case: WeightOnlyCase, weight: Tensor, bias: Any) -> None:
    """The packed weight, which is all that there is, and the product with it."""
    kernel = getattr(layer, "scheme", layer.quant_method).kernel
    assert type(kernel).__name__ == (OURS["mp"] if case.bits == 4 else OURS_OF_BYTES)
    made = layer.scaled_mm_packed
    assert_bits(made.dequantize(), weight)
    assert [x for x in kernel._get_weight_params(layer) if x is not None] == []
    x = case.input()[..., : len(weight)]
    assert_bounded(run(layer, x), *reference.mixed_mm_bound(x, *made.unpack()[:3], bias=bias))


def weight_only_layer(
    case: WeightOnlyCase, *parts: dict[str, Tensor], kind: Any = ReplicatedLinear, **options: Any
) -> nn.Module:
    """A layer of one part, or of several beside each other."""
    made = {"bias": False, "params_dtype": case.dtype, "prefix": "proj", **options}
    n = case.n if len(parts) == 1 else [case.n] * len(parts)
    layer = kind(case.k, n, quant_config=weight_only_config(case), **made)
    for shard, part in enumerate(parts):
        load(layer, part, None if len(parts) == 1 else shard)
    layer.quant_method.process_weights_after_loading(layer)
    return layer


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("case", [*INT4_CASES, *W8A16_CASES], ids=str)
def test_weight_only(case: WeightOnlyCase, bias: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if case.layout == "gptq":  # vLLM asks for a GPU of Marlin's, though it has kernels for the CPU
        module = "vllm.model_executor.layers.quantization.auto_gptq"
        monkeypatch.setattr(f"{module}.verify_marlin_supported", lambda **_: None)
    own = {"bias": torch.randn(case.n).to(case.dtype)} if bias else {}
    layer = weight_only_layer(case, {**weight_only_tensors(case), **own}, bias=bias)
    assert_weight_only(layer, case, case.dequantised(), own.get("bias"))


@pytest.mark.parametrize(("layout", "bits"), [("awq", 4), ("ct", 4), ("ct", 8)])
def test_weight_only_of_two_partitions(layout: str, bits: int) -> None:
    case = WeightOnlyCase(layout, symmetric=False, bits=bits)
    parts = [weight_only_tensors(case, i) for i in range(2)]
    layer = weight_only_layer(case, *parts, kind=MergedColumnParallelLinear)
    whole = torch.cat([case.dequantised(i) for i in range(2)], 1)
    assert_weight_only(layer, case, whole, None)


@pytest.mark.parametrize(
    ("layout", "bits", "group"),
    [("awq", 4, 16), ("ct", 4, 16), ("ct", 4, -1), ("ct", 8, 16), ("ct", 8, -1)],
)
def test_weight_only_of_the_second_rank_of_two(
    layout: str, bits: int, group: int, second_rank: None
) -> None:
    """Half of K; with one group for all rows, the scales are the whole layer's."""
    case = WeightOnlyCase(layout, symmetric=False, group=group, bits=bits)
    alone = {"reduce_results": False, "input_is_parallel": True}
    layer = weight_only_layer(case, weight_only_tensors(case), kind=RowParallelLinear, **alone)
    assert_weight_only(layer, case, case.dequantised()[case.k // 2 :], None)


@pytest.mark.parametrize("bits", [4, 8])
def test_a_compiled_weight_only_layer(bits: int) -> None:
    case = WeightOnlyCase("ct", symmetric=True, dtype=torch.bfloat16, bits=bits)
    layer = weight_only_layer(case, weight_only_tensors(case))
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    assert_bits(run(compiled, case.input()), run(layer, case.input()))
