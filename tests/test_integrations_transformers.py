"""transformers' own `from_pretrained`, `save_pretrained` and `generate` on this library's layers.

What is loaded has the bits of `load_quantized`; what is saved has the bytes that were read.
"""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from checkpoint_cases import VARIANTS, state_of
from helpers import assert_bits, extra, run_python
from int4_cases import FORMS
from llamas import IDS, Change, assert_same_tensors, changed, llama, put
from safetensors.torch import save_file
from test_checkpoint_llama import written as written_int8
from test_checkpoint_llama import written_int4
from torch import nn

from scaled_mm import load_quantized
from scaled_mm.checkpoint import precompute
from scaled_mm.nn import ScaledLinear, WeightOnlyLinear

extra("compressed_tensors")
transformers = extra("transformers")
Auto = transformers.AutoModelForCausalLM
pytestmark = pytest.mark.usefixtures("ours")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """A folder of a name of VARIANTS or FORMS, written once; not to be written to."""
    root, there = tmp_path_factory.mktemp("folders"), {}

    def folder(name: str, dtype: torch.dtype = torch.bfloat16, **weights: Any) -> Path:
        key = str((name, dtype, weights))
        if key not in there:
            there[key] = path = root / str(len(there))
            if name in FORMS:
                written_int4(path, llama(torch.float32), FORMS[name], shards=3)
            else:
                written_int8(path, name, dtype, **weights)
        return there[key]

    return folder


def by_load_quantized(folder: Path, dtype: torch.dtype) -> nn.Module:
    """The model that transformers makes of the folder's config, filled by this library."""
    config = transformers.AutoConfig.from_pretrained(folder)
    del config.quantization_config
    model = Auto.from_config(config, dtype=dtype).eval().requires_grad_(False)
    return load_quantized(model, folder)


def saved(model: nn.Module, folder: Path) -> Path:
    model.save_pretrained(folder, max_shard_size="40KB")
    return folder


def assert_same_folder(got: Path, expected: Path) -> None:
    """Every tensor, and the quantization_config."""
    assert_same_tensors(expected, got)
    settings = [json.loads((each / "config.json").read_text()) for each in (got, expected)]
    assert settings[0]["quantization_config"] == settings[1]["quantization_config"]


def check(folder: Path, out: Path, dtype: torch.dtype, layer: type[nn.Module]) -> None:
    model, info = Auto.from_pretrained(folder, dtype=dtype, output_loading_info=True)
    assert not any(info.values()), info
    assert sum(type(module) is layer for module in model.modules()) == 14
    assert type(model.lm_head) is nn.Linear and not any(m.training for m in model.modules())
    assert not any(x.requires_grad for x in model.parameters())
    logits = by_load_quantized(folder, dtype)(IDS).logits
    assert_bits(model(IDS).logits, logits)
    assert_same_folder(saved(model, out), folder)
    assert_bits(Auto.from_pretrained(out, dtype=dtype)(IDS).logits, logits)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("name", VARIANTS)
def test_int8(name: str, dtype: torch.dtype, made: Callable[..., Path], tmp_path: Path) -> None:
    check(made(name, dtype), tmp_path, dtype, ScaledLinear)


@pytest.mark.parametrize("name", FORMS)
def test_awq_and_gptq(name: str, made: Callable[..., Path], tmp_path: Path) -> None:
    folder = made(name)
    if not FORMS[name].g_idx:
        assert not any(key.endswith("g_idx") for key in state_of(folder))
    check(folder, tmp_path, FORMS[name].dtype, WeightOnlyLinear)


def test_a_scale_for_the_whole_weight(made: Callable[..., Path], tmp_path: Path) -> None:
    check(made("dynamic-asymmetric", strategy="tensor"), tmp_path, torch.bfloat16, ScaledLinear)


@pytest.mark.parametrize("name", ["dynamic-asymmetric", "static-asymmetric"])
def test_a_precomputed_folder(name: str, made: Callable[..., Path], tmp_path: Path) -> None:
    """The azp terms that were stored are stored again."""
    precompute.precompute(made(name), tmp_path / "in")
    term = "azp_adj" if name.startswith("dynamic") else "azp_with_adj"
    assert sum(key.endswith(term) for key in state_of(tmp_path / "in")) == 14
    check(tmp_path / "in", tmp_path / "out", torch.bfloat16, ScaledLinear)


@pytest.mark.parametrize("name", ["static-asymmetric", "gptq-v1-act-order"])
def test_the_model_without_its_head(name: str, made: Callable[..., Path], tmp_path: Path) -> None:
    """Its names lack the "model." of the file's, and it is saved under its own."""
    folder = made(name)
    hidden = Auto.from_pretrained(folder).model(IDS).last_hidden_state
    for each in (folder, tmp_path):
        model = transformers.AutoModel.from_pretrained(each)
        assert sum(isinstance(m, ScaledLinear | WeightOnlyLinear) for m in model.modules()) == 14
        assert_bits(model(IDS).last_hidden_state, hidden)
        saved(model, tmp_path)
    assert "layers.0.mlp.up_proj.bias" not in state_of(tmp_path)
    assert {key.partition(".")[0] for key in state_of(tmp_path)} == {
        "embed_tokens",
        "layers",
        "norm",
    }


def test_a_quantised_head_beside_a_tied_embedding(tmp_path: Path) -> None:
    """The int8 head is a layer of its own, and the embedding stays as it is."""
    folder, _ = written_int8(tmp_path / "in", "dynamic-symmetric", torch.float32)
    state = state_of(folder)
    for path in folder.glob("*.safetensors*"):
        path.unlink()
    del state["lm_head.weight"]
    state["lm_head.weight"] = torch.randint(-128, 128, (128, 48), dtype=torch.int8)
    state["lm_head.weight_scale"] = torch.rand(128, 1) / 1000
    save_file(state, folder / "model.safetensors", {"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    config["tie_word_embeddings"] = True
    config["quantization_config"]["ignore"] = []
    (folder / "config.json").write_text(json.dumps(config))
    model = Auto.from_pretrained(folder)
    assert isinstance(model.lm_head, ScaledLinear)
    assert_bits(model.model.embed_tokens.weight.detach(), state["model.embed_tokens.weight"])
    assert_bits(model(IDS).logits, by_load_quantized(folder, torch.float32)(IDS).logits)
    assert_same_folder(saved(model, tmp_path / "out"), folder)


def test_values_that_were_changed_are_saved(made: Callable[..., Path], tmp_path: Path) -> None:
    """A scale that the stored bfloat16 cannot hold is saved in float32."""
    folder = made("dynamic-symmetric")
    model = Auto.from_pretrained(folder)
    layer = model.model.layers[0].mlp.up_proj
    layer.weight_scale.mul_(1.001)
    state, before = state_of(saved(model, tmp_path)), state_of(folder)
    name = "model.layers.0.mlp.up_proj.weight_scale"
    assert (before[name].dtype, state[name].dtype) == (torch.bfloat16, torch.float32)
    assert_bits(state.pop(name), layer.weight_scale)
    assert all(torch.equal(x, before[key]) for key, x in state.items())
    assert_bits(Auto.from_pretrained(tmp_path)(IDS).logits, model(IDS).logits)


def generated(model: nn.Module, backend: Any = None) -> torch.Tensor:
    """Tokens by greedy choice; with a backend: a static cache, and each step compiled by it."""
    how: dict[str, Any] = {}
    if backend is not None:
        compiling = transformers.CompileConfig(fullgraph=True, backend=backend, mode=None)
        compiling._compile_all_devices = True  # transformers compiles on GPUs only by itself
        how = {"cache_implementation": "static", "compile_config": compiling}
    return model.generate(
        IDS[:1, :7], max_new_tokens=6, do_sample=False, pad_token_id=0, eos_token_id=None, **how
    )


@pytest.mark.parametrize(
    "name", ["static-asymmetric", "dynamic-asymmetric", "awq", "gptq-v1-act-order"]
)
def test_generation_with_a_static_cache(name: str, made: Callable[..., Path]) -> None:
    """The step is one graph, and it calls the library's product once for each layer."""
    from torch._dynamo.backends.debugging import aot_eager

    graphs: list[torch.fx.GraphModule] = []

    def backend(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Any:
        graphs.append(graph)
        return aot_eager(graph, inputs)

    torch._dynamo.reset()
    model = Auto.from_pretrained(made(name), dtype=torch.float32)
    expected = generated(model)
    assert len(set(expected[0, 7:].tolist())) > 2
    assert torch.equal(generated(model, backend), expected)
    ops = torch.ops.scaled_mm
    op = ops.mixed_mm if name in FORMS else ops.scaled_linear
    calls = [sum(node.target in (op, op.default) for node in g.graph.nodes) for g in graphs]
    assert calls and set(calls) == {14}, calls


@pytest.mark.slow
@pytest.mark.parametrize("name", ["static-asymmetric", "gptq-v1-act-order"])
def test_generation_compiled_by_inductor(name: str, made: Callable[..., Path]) -> None:
    torch._dynamo.reset()
    model = Auto.from_pretrained(made(name), dtype=torch.float32)
    assert torch.equal(generated(model, "inductor"), generated(model))


def _more(config: dict[str, Any], state: dict[str, torch.Tensor]) -> None:
    """A layer that the model has not."""
    own = [key for key in state if key.startswith("model.layers.0.mlp.up_proj.")]
    state |= {key.replace(".0.", ".7."): state[key].clone() for key in own}


MALFORMED: dict[str, tuple[str, Change]] = {
    "no-scale": ("static-asymmetric", put("weight_scale", lambda x: None)),
    "scale-shape": ("static-asymmetric", put("weight_scale", lambda x: x[1:])),
    "scale-negative": ("static-asymmetric", put("weight_scale", torch.neg)),
    "zero-point": ("static-asymmetric", put("input_zero_point", lambda x: x.short() + 999)),
    "dtype": ("static-asymmetric", put("input_scale", torch.Tensor.double)),
    "no-such-layer": ("static-asymmetric", _more),
    "weight-shape": ("static-asymmetric", put("weight", lambda x: x[:, 8:])),
    "g_idx": ("gptq-v1-act-order", put("g_idx", lambda x: x * 0)),
    "infinite": ("awq", put("scales", lambda x: x / 0)),
    "zeros-missing": ("awq", put("qzeros", lambda x: None)),
}


@pytest.mark.parametrize("case", MALFORMED)
def test_what_the_reader_refuses(case: str, made: Callable[..., Path], tmp_path: Path) -> None:
    """In the words of `load_quantized`, which name file and tensor."""
    name, change = MALFORMED[case]
    changed(made(name), tmp_path, change)
    with pytest.raises(ValueError) as refused:
        load_quantized(llama(torch.float32), tmp_path)
    with pytest.raises(ValueError) as got:
        Auto.from_pretrained(tmp_path)
    assert str(got.value) == str(refused.value)
    assert "model.layers." in str(got.value)


def test_files_that_are_not_the_ones_of_the_reader(
    made: Callable[..., Path], tmp_path: Path
) -> None:
    for path in made("dynamic-symmetric").iterdir():
        shutil.copy(path, tmp_path)
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    names = sorted(set(index["weight_map"].values()))
    shutil.copy(tmp_path / names[0], tmp_path / "other.safetensors")
    model = Auto.from_pretrained(tmp_path)  # a file that nobody names
    assert_bits(model(IDS).logits, Auto.from_pretrained(made("dynamic-symmetric"))(IDS).logits)
    config = transformers.AutoConfig.from_pretrained(tmp_path)
    config.quantization_config["format"] = "naive-quantized"
    (tmp_path / "config.json").unlink()
    with pytest.raises(ValueError, match="is a float checkpoint, without quantization_config"):
        Auto.from_pretrained(tmp_path, config=config)


def test_more_than_one_device(made: Callable[..., Path], ours: ModuleType) -> None:
    config = ours.ScaledMMConfig(quant_method="awq")
    quantizer = ours.ScaledMMQuantizer(config, pre_quantized=True)
    for good in (None, {"": "cpu"}, {"a": torch.device("cpu"), "b": "cpu"}):
        assert quantizer.update_device_map(good) is good
    for bad in ("auto", {"model": 0, "lm_head": "cpu"}):
        with pytest.raises(ValueError, match="device_map must name one device, got "):
            quantizer.update_device_map(bad)


def test_no_quantising_on_the_way(ours: ModuleType) -> None:
    with pytest.raises(ValueError, match="pre-quantized"):
        ours.ScaledMMQuantizer(ours.ScaledMMConfig(quant_method="awq"), pre_quantized=False)


def test_a_config_of_the_caller_is_refused(made: Callable[..., Path], ours: ModuleType) -> None:
    config = transformers.CompressedTensorsConfig(dequantize=True)
    with pytest.raises(ValueError, match="quantized with ScaledMMConfig but you are passing a C"):
        Auto.from_pretrained(made("dynamic-symmetric"), quantization_config=config)
    ours.unregister()
    model = Auto.from_pretrained(made("dynamic-symmetric"), quantization_config=config)
    assert type(model.model.layers[0].mlp.up_proj) is nn.Linear


def test_other_formats_are_left_to_transformers(
    made: Callable[..., Path], ours: ModuleType, recwarn: pytest.WarningsRecorder
) -> None:
    """With one warning; the model is the one that transformers makes alone."""
    folder = made("dynamic-symmetric", num_bits=6)
    recwarn.clear()
    model = Auto.from_pretrained(folder)
    said = [str(each.message) for each in recwarn if "scaled_mm" in str(each.message)]
    assert len(said) == 1, said
    assert "num_bits must be 8, got 6: not served by scaled_mm, transformers' own" in said[0]
    assert not any(isinstance(m, ScaledLinear) for m in model.modules())
    ours.unregister()
    assert_bits(model(IDS).logits.detach(), Auto.from_pretrained(folder)(IDS).logits.detach())


@pytest.mark.parametrize(("name", "key"), [("gptq-v1", "bits"), ("awq", "bits")])
def test_what_nobody_can_run(
    name: str, key: str, made: Callable[..., Path], tmp_path: Path
) -> None:
    """transformers' own quantisers of AWQ and GPTQ need packages that are not here."""
    extra("compressed_tensors")
    for path in made(name).iterdir():
        shutil.copy(path, tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    config["quantization_config"][key] = 3
    (tmp_path / "config.json").write_text(json.dumps(config))
    said = (
        r"quantization_config: bits must be 4.* with \w+, got 3; transformers' own quantiser cannot"
    )
    with pytest.raises(ValueError, match=said):
        Auto.from_pretrained(tmp_path)


def test_registration_is_undone(ours: ModuleType) -> None:
    from transformers.quantizers import auto

    tables = (auto.AUTO_QUANTIZATION_CONFIG_MAPPING, auto.AUTO_QUANTIZER_MAPPING)
    before = [dict(table) for table in tables]
    ours.register()  # a second time
    assert [dict(table) for table in tables] == before
    ours.unregister()
    ours.unregister()
    assert {table[method].__module__.partition(".")[0] for table in tables for method in table} == {
        "transformers"
    }
    own = {"blockwise_int8"}  # transformers has no such method
    assert [table.keys() for table in tables] == [table.keys() - own for table in before]
    ours.register()
    assert [dict(table) for table in tables] == before
    assert {before[0][method] for method in ours.METHODS} == {ours.ScaledMMConfig}


def test_one_import_and_no_other_package(made: Callable[..., Path]) -> None:
    """In a fresh process where compressed-tensors is not to be had."""
    code = """
import sys
sys.modules["compressed_tensors"] = None
import torch
import scaled_mm.integrations.transformers
from transformers import AutoModelForCausalLM
from scaled_mm.nn import ScaledLinear
model = AutoModelForCausalLM.from_pretrained(sys.argv[1])
print(sum(isinstance(m, ScaledLinear) for m in model.modules()))
"""
    assert run_python(code, str(made("static-asymmetric"))).split()[-1] == "14"
