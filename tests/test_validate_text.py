"""Perplexity and KL divergence: the formulas by hand, the windows, and the command."""

import itertools
import json
from pathlib import Path

import pytest
import torch
from helpers import Cli, extra, refuses
from torch import Tensor, nn

from scaled_mm.validate import perplexity, windows_of
from scaled_mm.validate.text import Window
from scaled_mm_cli.main import main

WORDS = [f"w{i}" for i in range(128)]
LENGTHS = {  # tokens, length, stride -> begin, end and first counted token of each window
    (10, 4, None): [(0, 4, 1), (4, 8, 1), (8, 10, 1)],
    (9, 4, None): [(0, 4, 1), (4, 8, 1)],
    (8, 4, 2): [(0, 4, 1), (2, 6, 2), (4, 8, 2)],
    (9, 4, 2): [(0, 4, 1), (2, 6, 2), (4, 8, 2), (6, 9, 2)],
    (4, 4, 1): [(0, 4, 1)],
}


@pytest.mark.parametrize(("tokens", "length", "stride"), LENGTHS)
def test_windows(tokens: int, length: int, stride: int | None) -> None:
    found = windows_of(torch.arange(tokens), length, stride)
    assert [(int(x.ids[0, 0]), int(x.ids[0, -1]) + 1, x.first) for x in found] == LENGTHS[
        tokens, length, stride
    ]


REFUSED_WINDOWS = {
    "length must be at least 2, got 1": {"length": 1},
    r"stride must be from 1 to the window's length \(4\), got 5": {"length": 4, "stride": 5},
    r"the text must fill a window \(6 tokens\), got 5 tokens": {"length": 6},
}
test_windows_that_are_refused = refuses(REFUSED_WINDOWS, windows_of, end="$", ids=torch.arange(5))


class Bigram(nn.Module):
    """Logits of the next token by a table."""

    def __init__(self, table: Tensor) -> None:
        super().__init__()
        self.table = nn.Parameter(table, requires_grad=False)

    def forward(self, ids: Tensor) -> Tensor:
        return self.table[ids]


def test_the_formulas() -> None:
    """In float64, token by token; a probability of 0 adds nothing to the divergence."""
    torch.manual_seed(0)
    one, other = torch.randn(5, 5), torch.randn(5, 5)
    one[2, 3] = -torch.inf
    ids = torch.tensor([0, 4, 2, 1, 2, 4, 0, 3])
    pairs = [(int(a), int(b)) for a, b in itertools.pairwise(ids)]
    p, q = (x.double().log_softmax(-1) for x in (one, other))
    divergence = (p.exp() * (p - q)).nan_to_num(0).sum(-1)
    for length, stride, left_out in ((8, None, ()), (4, None, (3,)), (4, 2, ())):
        counted = [pair for at, pair in enumerate(pairs) if at not in left_out]
        report = perplexity(Bigram(one), Bigram(other), windows_of(ids, length, stride), "q")
        p_, q_ = (float((-sum(x[pair] for pair in counted) / len(counted)).exp()) for x in (p, q))
        sizes = (len(counted), length, stride or length)
        assert (report.tokens, report.length, report.stride) == sizes
        (model,) = report.models
        found = (report.float_perplexity, model.perplexity, model.name)
        assert found == (pytest.approx(p_, rel=1e-5), pytest.approx(q_, rel=1e-5), "q")
        wanted = float(sum(divergence[a] for a, _ in counted) / len(counted))
        assert model.kl == pytest.approx(wanted, rel=1e-5)
        same = perplexity(Bigram(one), Bigram(one), windows_of(ids, length, stride))
        assert same.models[0].kl == 0 and same.models[0].perplexity == same.float_perplexity


def test_models_that_are_refused() -> None:
    table, window = Bigram(torch.ones(3, 3)), [Window(torch.tensor([[0, 1, 2]]))]
    for model, windows, message in (
        (table, [], "windows must hold at least one, got none"),
        (nn.Flatten(0), window, r"model must return logits \[1, 3, V\], got \[3\]"),
        (Bigram(torch.ones(3, 4)), window, r"one vocabulary, got logits \[2, 3\] and \[2, 4\]"),
    ):
        with pytest.raises(ValueError, match=message):
            perplexity(table, model, windows)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A float Llama with a tokenizer, two quantised ones, and texts."""
    extra("transformers")
    from test_cli_quantize import written

    folder: Path = tmp_path_factory.mktemp("models")
    written(folder / "float")
    for scheme in ("dynamic", "w4a16-g16"):
        command = ["quantize", f"{folder}/float", "-o", f"{folder}/{scheme}", "--scheme", scheme]
        assert main(command) == 0
    (folder / "text").write_text(" ".join(WORDS[i * 7 % 128] for i in range(200)))
    (folder / "lines").write_text("\n".join(" ".join(WORDS[i : i + 9]) for i in range(4)))
    (folder / "empty").write_text(" \n")
    headless = folder / "headless"
    headless.mkdir()
    for path in (folder / "float").iterdir():
        (headless / path.name).write_bytes(path.read_bytes())
    config = headless / "config.json"
    config.write_text(config.read_text().replace("LlamaForCausalLM", "LlamaModel"))
    return folder


def line(folder: Path, options: str, source: str = "float") -> str:
    usual = f"--float {folder}/{source} --text {folder}/lines --min-cosine -1 --min-sqnr -99"
    return f"validate {folder}/dynamic {usual} {options.replace('@', f'{folder}/')}"


def test_the_command(folder: Path, tmp_path: Path, cli: Cli) -> None:
    page = tmp_path / "x.html"
    options = "--perplexity @text --window 64 --window-stride 32 --compare @w4a16-g16"
    text = json.loads(cli(line(folder, options), "--json", "--html", page))["text"]
    assert (text["tokens"], text["windows"], text["length"], text["stride"]) == (199, 6, 64, 32)
    eight, four = text["models"]
    assert [eight["name"], four["name"]] == [f"{folder}/dynamic", f"{folder}/w4a16-g16"]
    assert 0 < eight["kl"] < four["kl"]
    for value in (text["float_perplexity"], eight["perplexity"], four["kl"]):
        assert f'<data value="{value!r}">' in page.read_text()
    assert "--compare" in page.read_text() and "--window-stride 32" in page.read_text()
    printed = cli(line(folder, options))
    assert "199 tokens counted, 6 windows of 64, stride 32" in " ".join(printed.split())
    assert f"perplexity {text['float_perplexity']:.4f}: float" in printed
    assert f"KL {four['kl']:.6f}" in printed


HEAD = "must name a model with a language-model head, such as LlamaForCausalLM, got LlamaModel"
REFUSED: dict[str, tuple[str, str]] = {
    "No such file": ("--perplexity @none --window 8", "float"),
    "must hold a text, got none": ("--perplexity @empty --window 8", "float"),
    "--window must be at most 64, the model's": ("--perplexity @text", "float"),
    HEAD: ("--perplexity @text --window 8", "headless"),
    "--compare must come with --perplexity": ("--compare @dynamic", "float"),
    "is a float checkpoint": ("--perplexity @text --window 8 --compare @float", "float"),
}


@pytest.mark.parametrize("said", REFUSED)
def test_refused(said: str, folder: Path, cli: Cli) -> None:
    assert said in cli(line(folder, *REFUSED[said]), code=2)
