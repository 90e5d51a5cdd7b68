"""validate on checkpoints: int4 and int8 ones, on the command line too, and factors that moved."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from blocks import WIDTH, Gemma, PreNorm, inputs, seeded
from checkpoint_cases import write
from helpers import Cli, extra
from int4_cases import FORMS, quantised, state_of_int4, stored, toy, write_toy
from torch import Tensor, nn

from scaled_mm import QuantConfig, Smoothing, load_quantized, prepare_model, quantize_model
from scaled_mm.checkpoint.folder import Checkpoint
from scaled_mm.quantization.inspect import Inspector
from scaled_mm.validate import Thresholds, ValidationReport, folds, validate

LOOSE = Thresholds(cosine_mean=0.9)
IDS = [torch.arange(20), torch.arange(0, 20, 3)]


@pytest.mark.parametrize("name", FORMS)
def test_int4_checkpoints(name: str, tmp_path: Path) -> None:
    form = FORMS[name]
    state = write_toy(tmp_path, form)
    report = validate(toy(), tmp_path, IDS, thresholds=LOOSE, stride=1)
    assert report.ok, report
    assert [layer.name for layer in report.layers] == ["qkv", "down"]
    for layer, n in zip(report.layers, (96, 40), strict=True):
        assert layer.checked == 27 * n
        assert (layer.beyond, layer.off_r1, layer.saturated) == (0, 0, 0)
        low, high = (15, 30) if form.bits == 4 else (40, 55)
        assert low < layer.sqnr_db < high and 0 < layer.worst_of_bound <= 1
        assert 0.4 < layer.worst_ulp < 4
        size = form.group if form.group != -1 else {"qkv": 48, "down": 32}[layer.name]
        order = " act-order" * (form.act_order and form.group != -1)
        asym = " asym" * (not form.symmetric or form.method == "awq")
        assert layer.scheme == f"w{form.bits}a16 g{size}{asym}{order}"
        assert layer.grid == 1 if form.bits == 4 else 0.9 < layer.grid <= 1
        middle = 2 ** (form.bits - 1)
        if form.symmetric:
            assert (layer.azp_mean, layer.azp_used) == (middle, 0)
        else:
            assert 0.75 < layer.azp_mean / middle < 1.125 and 0 < layer.azp_used <= 1
    assert report.outputs.rows == 27 and 0.98 < report.outputs.cosine_mean < 1
    for given in (str(tmp_path), Checkpoint(tmp_path), load_quantized(toy(), tmp_path)):
        again = validate(toy(), given, IDS, thresholds=LOOSE, stride=1)
        assert again.to_dict() == report.to_dict()
    assert state.keys() == Checkpoint(tmp_path).where.keys()  # nothing was written


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ["awq", "awq-bfloat16"])
def test_int4_layers_in_16_bit_models(name: str, dtype: torch.dtype, tmp_path: Path) -> None:
    """Scales and model of different 16-bit floats: the last rounding is not the kernel's."""
    write_toy(tmp_path, FORMS[name])
    report = validate(toy().to(dtype), tmp_path, IDS, thresholds=LOOSE, stride=1)
    assert report.ok, report


FAULTS: dict[str, tuple[Any, str]] = {
    "wrong-output": (
        lambda m: m.qkv.register_forward_hook(lambda m, x, y: y + (torch.arange(96) == 5) * 2**-5),
        "qkv: outputs beyond the bound must be 0, got 27 of 2592",
    ),
    "nan": (
        lambda m: m.qkv.register_forward_hook(
            lambda m, x, y: y.where(torch.arange(96) != 5, torch.nan)
        ),
        "qkv: outputs beyond the bound must be 0, got 27 of 2592",
    ),
    "wrong-sign": (
        lambda m: m.down.unpack().weight_scale.neg_(),
        "down: SQNR must be >= 10 dB, got ",
    ),
    "wrong-row": (  # a scale that nobody takes back
        lambda m: m.qkv.unpack().weight_scale[7].mul_(16),
        "qkv: SQNR must be >= 10 dB, got ",
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_faults_of_int4_layers_are_found(name: str, tmp_path: Path) -> None:
    plant, message = FAULTS[name]
    write_toy(tmp_path, FORMS["awq"])
    model = load_quantized(toy(), tmp_path)
    plant(model)
    report = validate(toy(), model, IDS, thresholds=LOOSE, stride=1)
    assert not report.ok and message in str(report)
    at = {line.partition(":")[0] for line in report.failures() if ":" in line}
    assert message.partition(":")[0] in at and (len(at) == 1 or name == "nan")  # NaN goes on


def test_shapes_are_compared(tmp_path: Path) -> None:
    write_toy(tmp_path, FORMS["awq"])
    model = load_quantized(toy(), tmp_path)
    other = toy()
    other.down = nn.Linear(32, 48, bias=False)
    with pytest.raises(ValueError, match=r"^model must have 'down' of shape \(40, 32\), got \(48"):
        validate(other, model, IDS)


def sqnr(report: ValidationReport) -> dict[str, float]:
    return {layer.name: layer.sqnr_db for layer in report.layers}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("norm", [nn.RMSNorm, nn.LayerNorm])
def test_folded_norms_survive_a_state_dict(norm: type[nn.Module], dtype: torch.dtype) -> None:
    """What a norm was divided by is found by the norms' weights."""
    model, batches = seeded(PreNorm, norm).to(dtype), [x.to(dtype) for x in inputs()]
    config = QuantConfig("static-asymmetric", smoothing=Smoothing())
    made = quantize_model(model, config, batches)
    again = prepare_model(model, config)
    again.load_state_dict(made.state_dict())
    assert again.q.folded_smooth is None
    got, expected = (validate(model, x, batches, stride=1) for x in (again, made))
    assert sqnr(got) == pytest.approx(sqnr(expected), abs=0.1 if dtype == torch.float32 else 1)
    assert got.ok and min(sqnr(got).values()) > 20
    schemes = {layer.name: layer.scheme for layer in got.layers}
    assert schemes == {layer.name: layer.scheme for layer in expected.layers}
    assert {name for name in schemes if "folded" in schemes[name]} == {"q", "k", "v", "gate", "up"}
    peaks = {layer.name: layer.peak_before for layer in expected.layers}
    assert peaks == pytest.approx({layer.name: layer.peak_before for layer in got.layers}, rel=0.02)


class Gated(nn.Module):
    """Llama's MLP behind its norm: AWQ moves factors from norm to gate and up, from up to down."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(64)
        self.gate, self.up = nn.Linear(64, 96, bias=False), nn.Linear(64, 96)
        self.down = nn.Linear(96, 64)

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(x)
        return self.down(torch.nn.functional.silu(self.gate(h)) * self.up(h))


def gated() -> Gated:
    return seeded(Gated).requires_grad_(False)


def factor(n: int) -> Tensor:
    return torch.rand(n, generator=torch.Generator().manual_seed(n)) * 3 + 0.3


def moved(model: Gated, into_norm: bool = True, into_up: bool = True) -> Gated:
    """The same function in AWQ's way; only one side of the division where a switch is off."""
    s, t = factor(64), factor(96)
    model.gate.weight *= s
    model.up.weight *= s
    model.down.weight *= t
    if into_norm:
        model.norm.weight /= s
    if into_up:
        model.up.weight /= t[:, None]
        model.up.bias /= t
    return model


def gated_report(
    folder: Path, original: nn.Module, model: nn.Module, form: str = "awq"
) -> ValidationReport:
    """`original` against a checkpoint of `model`."""
    write(folder, state_of_int4(model, FORMS[form], ()), FORMS[form].config())
    batches = [torch.randn(3, 7, 64, generator=torch.Generator().manual_seed(i)) for i in range(3)]
    return validate(original, folder, batches, thresholds=LOOSE, stride=1)


@pytest.mark.parametrize("form", ["awq", "gptq-v1-act-order"])
def test_awqs_factors_are_undone(form: str, tmp_path: Path) -> None:
    torch.testing.assert_close(moved(gated())(torch.ones(2, 64)), gated()(torch.ones(2, 64)))
    report = gated_report(tmp_path, gated(), moved(gated()), form)
    own = gated_report(tmp_path, moved(gated()), moved(gated()), form)  # nothing to undo
    for layer, same in zip(report.layers, own.layers, strict=True):
        assert layer.scheme == f"{same.scheme} folded" and "folded" not in same.scheme
    assert report.ok
    assert sqnr(report) == pytest.approx(sqnr(own), abs=0.5)


def test_what_a_norm_was_divided_by() -> None:
    """Gemma's norms multiply by 1 + weight: the ratio is of that, and is among those tried."""
    s = factor(WIDTH)
    for norm, one in ((nn.RMSNorm, 0), (Gemma, 1)):
        before, after = (nn.Sequential(norm(WIDTH)) for _ in range(2))
        weight = torch.linspace(0.5, 1.5, WIDTH)
        weight[3] = -one  # a channel that is 0 in both: 0 / 0 is no ratio
        s[3] = 1
        before[0].weight = nn.Parameter(weight)
        after[0].weight = nn.Parameter((weight + one) / s - one)
        found = list(folds._norm_ratios(before, after))
        assert any(torch.allclose(x, s, rtol=1e-4) for x in found), norm


class Fused(nn.Module):
    """The same with gate and up in one Linear, as Phi-3 has them."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.gate_up = nn.RMSNorm(64), nn.Linear(64, 192)
        self.down = nn.Linear(96, 64)

    def forward(self, x: Tensor) -> Tensor:
        gate, up = self.gate_up(self.norm(x)).chunk(2, -1)
        return self.down(torch.nn.functional.silu(gate) * up)


def test_the_last_rows_of_a_fused_layer(tmp_path: Path) -> None:
    original, model = (seeded(Fused).requires_grad_(False) for _ in range(2))
    model.down.weight *= factor(96)
    model.gate_up.weight[96:] /= factor(96)[:, None]
    model.gate_up.bias[96:] /= factor(96)
    report = gated_report(tmp_path, original, model)
    assert [layer.scheme for layer in report.layers] == ["w4a16 g16 asym", "w4a16 g16 asym folded"]
    assert sqnr(report) == pytest.approx(sqnr(gated_report(tmp_path, model, model)), abs=0.5)


@pytest.mark.parametrize(
    ("sides", "wrong"),
    [({"into_norm": False}, {"gate", "up"}), ({"into_up": False}, {"down"})],
    ids=["norm", "up"],
)
def test_a_factor_on_one_side_is_an_error(
    sides: dict[str, bool], wrong: set[str], tmp_path: Path
) -> None:
    report = gated_report(tmp_path, gated(), moved(gated(), **sides))
    low = {layer.name for layer in report.layers if layer.sqnr_db < 10}
    assert wrong <= low and not report.ok


@pytest.mark.parametrize("scheme", ["dynamic-tensor-asymmetric", "dynamic"])
def test_few_rows_are_kept(scheme: str) -> None:
    """Every stride-th, and two more where all share a scale: not the tensors they are rows of."""
    model = nn.Sequential(nn.Linear(16, 8)).requires_grad_(False)
    made = quantize_model(model, QuantConfig(scheme))
    inspector = Inspector({"0": model[0]}, stride=7)
    x = torch.randn(70, 16)
    inspector("0", made[0], x, made[0](x))
    ((_, kept, y),) = inspector.samples["0"]
    rows = 10 + 2 * (scheme != "dynamic")
    assert [t.untyped_storage().nbytes() for t in (kept, y)] == [4 * rows * 16, 4 * 10 * 8]
    assert inspector.off_r1() == 0


def test_a_scale_for_all_rows_is_that_of_all_rows() -> None:
    """Also where the extreme values are in rows that are not compared, or there is a NaN."""
    model = nn.Sequential(nn.Linear(16, 8)).requires_grad_(False)
    for symmetric in ("", "-asymmetric"):
        made = quantize_model(model, QuantConfig(f"dynamic-tensor{symmetric}"))
        for value in (100.0, -100.0, torch.inf, torch.nan):
            x = torch.randn(15, 16)
            x[3, 5] = value
            inspector = Inspector({"0": model[0]}, stride=7)
            inspector("0", made[0], x, made[0](x))
            assert inspector.off_r1() == 0, value


def mine() -> Any:
    """What --float names: a float model and batches."""
    return toy(), IDS


def both() -> Any:
    """A TARGET whose quantised model is a checkpoint."""
    return toy(), Path("quantised"), IDS


MINE = "--float test_validate_checkpoint:mine"
COMMANDS: dict[str, tuple[int, str]] = {
    f"quantised {MINE}": (0, "PASS"),
    f"quantised/model.safetensors {MINE}": (0, "PASS"),
    f"quantised {MINE} --json": (0, "w4a16 g16 asym"),
    f"quantised {MINE} --min-sqnr 60": (1, "FAIL"),
    "test_validate_checkpoint:both": (0, "PASS"),
    "quantised --float beside:mine": (0, "PASS"),
    "quantised": (2, "--float must be given with a checkpoint, got quantised alone"),
    "quantised --float other": (2, "--float must be module:function or the fold"),
    "quantised --float test_validate_checkpoint:both": (2, "must return (model, batches), got tu"),
    f"quantised {MINE} --text x": (2, "--text must come with a folder in --float"),
    "--float a:b": (2, "--float must come with a checkpoint, got minilm"),
    "quantised --float quantised": (2, "is quantised; --float must name a fl"),
    f"float {MINE}": (2, "is a float checkpoint"),
    "quantised --float float": (2, "architectures must name one model"),
}


@pytest.mark.parametrize("line", COMMANDS)
def test_command(line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: Cli) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    Path("beside.py").write_text("from test_validate_checkpoint import mine\n")
    write_toy(tmp_path / "quantised", FORMS["awq"])
    write(tmp_path / "float", {"a": torch.ones(1)}, None)
    (tmp_path / "float" / "config.json").write_text('{"architectures": ["os.system"]}')
    code, text = COMMANDS[line]
    assert text in cli(f"validate {line}", *([] if code == 2 else ["--min-cosine=0.9"]), code=code)


WORDS = ["a", "small", "model", "reads", "a", "few", "words", "and", "says", "what", "comes"]


def test_two_checkpoints(tmp_path: Path, cli: Cli) -> None:
    """Float and quantised folder, the user's sentences: no Python to write."""
    transformers = extra("transformers")
    tokenizers = extra("tokenizers")
    from llamas import llama

    model = llama(torch.float32)
    model.save_pretrained(tmp_path / "float")
    vocabulary = {word: i for i, word in enumerate(dict.fromkeys(["[UNK]", *WORDS]))}
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="[UNK]"))
    words.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=words, unk_token="[UNK]")
    tokenizer.save_pretrained(tmp_path / "float")
    form = FORMS["gptq-v1-act-order"]
    state = {name: x.float() if "weight" in name else x for name, x in model.state_dict().items()}
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear) and name != "lm_head":
            del state[f"{name}.weight"]
            tensors = stored(quantised(module.weight, form), form)
            state |= {f"{name}.{part}": x for part, x in tensors.items()}
    write(tmp_path / "int4", {name: x.clone() for name, x in state.items()}, form.config(), 2)
    text = tmp_path / "text.txt"
    text.write_text("\n".join(" ".join(WORDS[i:]) for i in range(6)) + "\n\n")
    line = f"validate {tmp_path}/int4 --float {tmp_path}/float --text {text} --min-cosine 0.8"
    report = json.loads(cli(line, "--stride", "1", "--json"))
    assert len(report["layers"]) == 14 and report["batches"] == 6
    assert report["outputs"]["rows"] == sum(len(WORDS) - i for i in range(6))
    assert {layer["scheme"] for layer in report["layers"]} == {"w4a16 g16 asym act-order"}
    assert all(layer["beyond"] == 0 for layer in report["layers"])
    text.write_text("one\n")
    assert "--text must hold at least 4 sentences, got 1" in cli(line, code=2)
