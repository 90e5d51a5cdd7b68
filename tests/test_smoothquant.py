"""SmoothQuant: its formula, where the division goes, the search of alpha, and the warnings."""

import warnings
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from blocks import WIDTH, Gemma, PreNorm, inputs, seeded
from helpers import assert_bits, refuses
from torch import Tensor, nn

from scaled_mm import CalibrationWarning, QuantConfig, Smoothing, quantize_model
from scaled_mm.quantization.calibrate import (
    Ranges,
    clipped,
    collect,
    merge,
    remarks_of_clipping,
    static_scale,
)
from scaled_mm.quantization.feeds import find_feeds
from scaled_mm.quantization.observe import as_calls
from scaled_mm.quantization.smoothquant import factors, search

QKV, FFN = ("q", "k", "v"), ("gate", "up")


def linears_of(model: nn.Module) -> dict[str, nn.Linear]:
    return {name: m for name, m in model.named_modules() if type(m) is nn.Linear}


@pytest.mark.parametrize("alpha", [0.0, 0.25, 0.5, 0.75, 1.0])
def test_factors(alpha: float) -> None:
    x = torch.tensor([4.0, 9.0, 0.0, 1.0, 3e38, 1e-40])
    w = torch.tensor([1.0, 0.25, 2.0, 0.0, 1e-38, 1e30])
    s = factors(x, w, alpha)
    for j in (0, 1):
        assert s[j].item() == pytest.approx(float(x[j] ** alpha / w[j] ** (1 - alpha)))
    assert s[2:4].tolist() == [1, 1]
    assert s.dtype == torch.float32 and (s > 0).all() and s.isfinite().all()
    assert (1 / s).isfinite().all()


def test_ranges() -> None:
    model = nn.Sequential(nn.Linear(3, 2))
    batches = [torch.tensor([[1.0, -2, 0], [3, 5, 0]]), torch.tensor([[-4.0, 0, 0]])]
    parts = [collect(model, linears_of(model), as_calls([b]), rows=1) for b in batches]
    found = merge(parts)["0"]
    assert found.low.tolist() == [-4, -2, 0] and found.high.tolist() == [3, 5, 0]
    assert found.absmax.tolist() == [4, 5, 0] and found.whole().tolist() == [-4, 5]
    assert found.rows.tolist() == [[1, -2, 0], [-4, 0, 0]]
    torch.testing.assert_close(found.whole(torch.tensor([2.0, 10, 1])), torch.tensor([-2, 1.5]))
    assert merge([]) == {}


def test_smoothed_ranges_are_those_of_the_smoothed_input() -> None:
    model = seeded(PreNorm)
    batches = inputs()
    made = quantize_model(
        model, QuantConfig("static-asymmetric", smoothing=Smoothing(layers=("*",))), batches
    )
    seen: dict[str, list[Tensor]] = {}
    for name in linears_of(model):
        layer = made.get_submodule(name)
        s = layer.folded_smooth if layer.input_smooth is None else 1 / layer.input_smooth
        model.get_submodule(name).register_forward_hook(
            lambda _, x, y, name=name, s=s: seen.setdefault(name, []).append(x[0] / s)
        )
    with torch.no_grad():
        for batch in batches:
            model(batch)
    for name, xs in seen.items():
        x = torch.cat(xs)
        scale, azp = static_scale(torch.stack([x.min(), x.max()]), symmetric=False)
        layer = made.get_submodule(name)
        torch.testing.assert_close(layer.input_scale, scale, rtol=1e-5, atol=0)
        assert (layer.input_zero_point - azp).abs() <= 1


def test_clip_keeps_what_it_says() -> None:
    model = nn.Sequential(nn.Linear(1, 1))
    x = torch.linspace(-1, 3, 100_001).view(-1, 1)
    calls = as_calls([x[::2], x[1::2]])
    ranges = collect(model, linears_of(model), calls)
    for smooth, by in (({}, 1), ({"0": torch.tensor([2.0])}, 2)):
        whole = {"0": ranges["0"].whole(smooth.get("0"))}

        kept, lost = clipped(model, linears_of(model), calls, whole, smooth, 90, {})
        low, high = kept["0"].tolist()
        # Of x² dx from -1 to 3: 1 - (2.8³ + 0.8³) / (3³ + 1³) is cut off.
        (remark,) = remarks_of_clipping(lost, 90)
        assert "energy: 0 (20%). " in remark
        assert (low * by, high * by) == pytest.approx((-0.8, 2.8), abs=2e-3)
        kept, lost = clipped(model, linears_of(model), calls, whole, smooth, 100, {})
        low, high = kept["0"].tolist()
        assert not list(remarks_of_clipping(lost, 100))
        assert (low * by, high * by) == pytest.approx((-1, 3), abs=1e-6)


class Read(PreNorm):
    """Something else reads norm1's output."""

    def __init__(self, how: Any) -> None:
        super().__init__()
        self.how = how

    def forward(self, x: Tensor) -> Any:
        h = self.norm1(x)
        y = self.q(h) + self.k(h) + self.v(h)
        return self.how(h, y)


READERS: dict[str, tuple[Any, bool]] = {
    "none": (lambda h, y: y, True),
    "its-shape": (lambda h, y: y.view(h.shape) if h.is_contiguous() else y, True),
    "its-dtype": (lambda h, y: y.to(h.dtype).to(h.device), True),
    "dropout": (lambda h, y: y + 0 * len(F.dropout(h, 0.1, training=False)), True),
    "sum": (lambda h, y: y + h, False),
    "in-place": (lambda h, y: (h.mul_(1), y)[1], False),
    "out=": (lambda h, y: (torch.neg(h, out=h), y)[1], False),
    "slice": (lambda h, y: y + h[..., :1], False),
    "sum-of-a-view": (lambda h, y: y + h.view(-1, WIDTH).view(y.shape), False),
    "returned": (lambda h, y: (y, h), False),
    "returned-deep": (lambda h, y: {"y": y, "states": [h]}, False),
    "item": (lambda h, y: y * h.flatten().tolist()[0], False),
    "torch-ops": (lambda h, y: torch.ops.aten.add.Tensor(y, h), False),
}


@pytest.mark.parametrize("name", READERS)
def test_a_norm_is_foldable_if_only_linears_read_it(name: str) -> None:
    how, foldable = READERS[name]
    model = seeded(Read, how)
    feeds = find_feeds(model, linears_of(model), as_calls(inputs())[0])
    assert feeds.fed == dict.fromkeys(QKV, "norm1")
    assert feeds.foldable == ({"norm1": QKV} if foldable else {})


@pytest.mark.parametrize(
    ("norm", "foldable"), [(nn.RMSNorm, True), (nn.LayerNorm, True), (Gemma, False)]
)
def test_norms(norm: type[nn.Module], foldable: bool) -> None:
    model = seeded(PreNorm, norm)
    linears = linears_of(model)
    feeds = find_feeds(model, linears, as_calls(inputs())[0])
    assert feeds.fed == {**dict.fromkeys(QKV, "norm1"), **dict.fromkeys(FFN, "norm2")}
    assert feeds.foldable == ({"norm1": QKV, "norm2": FFN} if foldable else {})
    del linears["k"]  # stays float: it reads norm1 too
    feeds = find_feeds(model, linears, as_calls(inputs())[0])
    assert feeds.foldable == ({"norm2": FFN} if foldable else {})


def test_views_are_followed() -> None:
    class Flat(PreNorm):
        def forward(self, x: Tensor) -> Tensor:
            h = self.norm1(x).view(-1, WIDTH)
            return self.q(h) + self.k(h.unsqueeze(0)).squeeze(0)

    model = seeded(Flat)
    feeds = find_feeds(model, linears_of(model), as_calls(inputs())[0])
    assert feeds.foldable == {"norm1": ("q", "k")}


@pytest.mark.parametrize("other", ["norm2", None])
def test_a_linear_with_two_sources_is_not_fed(other: str | None) -> None:
    """With two norms, whichever of them a set of both has first is no source of all inputs. And a
    norm that it reads sometimes is not foldable into another one."""

    class Twice(PreNorm):
        def forward(self, x: Tensor) -> Tensor:
            h = self.norm1(x)
            return self.k(h) + self.q(h) + self.q(x if other is None else self.norm2(x))

    model = seeded(Twice)
    feeds = find_feeds(model, linears_of(model), as_calls(inputs())[0])
    assert (feeds.fed, feeds.foldable) == ({"k": "norm1"}, {})


SMOOTHINGS: dict[str, tuple[Smoothing, set[str], set[str]]] = {
    # what norms divide, what quantisers divide
    "default": (Smoothing(), {*QKV, *FFN}, set()),
    "not-into-norms": (Smoothing(into_norms=False), set(), {*QKV, *FFN}),
    "everything": (Smoothing(layers=("*",)), {*QKV, *FFN}, {"o", "down"}),
    "part-of-a-group": (Smoothing(layers=("q", "k", "down")), set(), {"q", "k", "down"}),
    "pairs": (Smoothing(pairs=(("norm2", FFN),)), {*FFN}, set()),
}


@pytest.mark.parametrize("name", SMOOTHINGS)
@pytest.mark.parametrize("scheme", ["dynamic", "static-asymmetric"])
def test_who_divides(name: str, scheme: str) -> None:
    smoothing, in_norms, in_quantisers = SMOOTHINGS[name]
    model, x = seeded(PreNorm), inputs()[1]
    made = quantize_model(model, QuantConfig(scheme, smoothing=smoothing), inputs())
    layers = {n: made.get_submodule(n) for n in linears_of(model)}
    assert {n for n, m in layers.items() if m.folded_smooth is not None} == in_norms
    assert {n for n, m in layers.items() if m.input_smooth is not None} == in_quantisers
    for group in (QKV, FFN):
        if set(group) <= in_norms:
            assert all(
                torch.equal(layers[n].folded_smooth, layers[group[0]].folded_smooth) for n in group
            )
    changed = {
        n
        for n in ("norm1", "norm2")
        if not torch.equal(made.get_submodule(n).weight, model.get_submodule(n).weight)
    }
    assert changed == {f"norm{1 + (n in FFN)}" for n in in_norms}
    with torch.no_grad():
        want = model(x)
        assert (made(x) - want).norm() < 0.05 * want.norm()


@pytest.mark.filterwarnings("ignore::scaled_mm.CalibrationWarning")
def test_alphas_by_pattern() -> None:
    model = seeded(PreNorm)
    smoothing = Smoothing(0.5, ("*",), alphas=(("down", 1.0), ("[od]*", 0.0)), into_norms=False)
    made = quantize_model(model, QuantConfig(smoothing=smoothing), inputs())
    ranges = collect(model, linears_of(model), as_calls(inputs()))
    for name, alpha in {"down": 1.0, "o": 0.0, "q": 0.5, "up": 0.5}.items():
        weights = model.get_submodule(name).weight.detach().abs().amax(0)
        s = factors(ranges[name].absmax, weights, alpha)
        assert_bits(made.get_submodule(name).input_smooth, 1 / s)


def test_search_finds_the_alpha_of_least_noise() -> None:
    """One loud channel: some smoothing is better than none, and than all."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH))
    config = QuantConfig("static", smoothing=Smoothing(layers=("*",), search=(0.0, 0.5, 1.0)))
    made = quantize_model(model, config, inputs(6))
    w, x = model[0].weight.detach().abs().amax(0), torch.cat(inputs(6)).flatten(0, 1)
    assert_bits(made[0].input_smooth, 1 / factors(x.abs().amax(0), w, 0.5))


def test_search_judges_ranges_by_inputs_that_did_not_make_them() -> None:
    linear = nn.Linear(2, 3)
    parts = [
        {"x": Ranges(-high * torch.ones(2), high * torch.ones(2), torch.rand(4, 2))}
        for high in (1, 2, 3)
    ]
    seen = []

    def build(name: str, ranges: Ranges, s: Tensor | None) -> nn.Module:
        seen.append(float(ranges.high.max()))
        return linear

    search(parts, {"x": linear}, torch.ones(2), (0.5,), build)
    assert seen == [3, 3, 2]  # without each in turn


def test_search_adds_the_noise_of_all_layers() -> None:
    """The first layer would rather have the other alpha, by less than the second loses there."""
    ones = torch.ones(2)
    linears = {name: nn.Linear(2, 3) for name in ("first", "second")}
    part = {name: Ranges(-ones, ones, torch.rand(4, 2)) for name in linears}
    share_of_noise = {("first", 0): 0.1, ("first", 1): 0.2, ("second", 0): 0.5, ("second", 1): 0.1}

    def build(name: str, ranges: Ranges, s: Tensor | None) -> nn.Module:
        assert s is not None
        made = nn.Linear(2, 3)
        grown = 1 + share_of_noise[name, int(s[0] == 1)]  # s = 1 / 4^(1 - alpha)
        state = linears[name].state_dict()
        made.load_state_dict({key: grown * x for key, x in state.items()})
        return made

    assert search([part], linears, 4 * ones, (0.0, 1.0), build) == 1.0


def test_a_norm_is_divided_by_the_largest_weights_of_all_that_read_it() -> None:
    """Each channel's from another of the three weights."""
    model = seeded(PreNorm)
    with torch.no_grad():
        for i, name in enumerate(QKV):
            model.get_submodule(name).weight[:, i::3] *= 10
    ranges = collect(model, linears_of(model), as_calls(inputs()))
    weights = torch.stack([model.get_submodule(x).weight.detach().abs().amax(0) for x in QKV])
    assert len(weights.argmax(0).unique()) == 3
    s = factors(ranges["q"].absmax, weights.amax(0), 0.5)
    made = quantize_model(model, QuantConfig(smoothing=Smoothing(0.5)), inputs())
    assert_bits(made.norm1.weight.detach(), model.norm1.weight.detach() / s)


WARNINGS: dict[str, tuple[Smoothing, int, str | None]] = {  # and how many sentences
    "few-sentences": (Smoothing(0.75, ("*",)), 15, r"alpha >= 0\.75 .*needs 16 .*, got 15$"),
    "enough-sentences": (Smoothing(0.75, ("*",)), 18, None),
    "few-but-fed-by-norms": (Smoothing(0.75), 6, None),
    "few-but-low": (Smoothing(0.7, ("*",)), 6, None),
    "one-fold": (Smoothing(search=(0.3, 0.5), folds=1), 6, "folds=1 judges .* overfits towards 1"),
    "towards-one": (Smoothing(search=(1.0,)), 6, r"chose alpha >= 0\.9 for 5 of 5 layers"),
    "search": (Smoothing(search=(0.3, 0.5)), 6, None),
}


@pytest.mark.parametrize("name", WARNINGS)
def test_warnings(name: str) -> None:
    smoothing, sentences, text = WARNINGS[name]
    batches = inputs(sentences // 3)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        quantize_model(seeded(PreNorm), QuantConfig(smoothing=smoothing), batches)
    if text is None:
        assert not caught
    else:
        (warning,) = caught
        assert (warning.category, warning.filename) == (CalibrationWarning, __file__)
        with pytest.raises(AssertionError, match=text):
            raise AssertionError(str(warning.message))


REFUSALS = {
    r"alpha must be in \[0, 1\], got 1.5": lambda: Smoothing(1.5),
    r"alpha must be in \[0, 1\], got -1": lambda: Smoothing(search=(0, -1)),
    "folds must be at least 1, got 0": lambda: Smoothing(folds=0),
    "calibration must have at least folds=3 batches, got 2": lambda: smooth(
        Smoothing(search=(0.5,), folds=3), batches=2
    ),
    "pairs must name Linears that are quantised, got 'x'": lambda: smooth(
        Smoothing(pairs=(("norm1", ("q", "x")),))
    ),
    "pairs must name norms that scale with their weight, got 'norm1'": lambda: smooth(
        Smoothing(pairs=(("norm1", QKV),)), Gemma
    ),
}


def smooth(smoothing: Smoothing, norm: type[nn.Module] = nn.RMSNorm, batches: int = 4) -> nn.Module:
    return quantize_model(seeded(PreNorm, norm), QuantConfig(smoothing=smoothing), inputs(batches))


test_refused = refuses(REFUSALS, end="$")
