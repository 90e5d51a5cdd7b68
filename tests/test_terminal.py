"""What comes from files reaches the terminal in printable characters only."""

import io
import json
import logging
import sys

import pytest
import torch
from checkpoint_cases import variant
from helpers import extra
from rich.console import Console as RichConsole
from rich.table import Table
from torch import nn

from scaled_mm import _progress, quantize_model
from scaled_mm.validate import validate
from scaled_mm_cli.commands import progress_display
from scaled_mm_cli.main import main
from scaled_mm_cli.reports.show import plot, show
from scaled_mm_cli.terminal import Console, cell, guarded, lines, printable

# ESC, BEL, the C1 form of ESC [, bidirectional overrides, line and paragraph separators, a byte
# order mark, DEL, and the byte FF of a name that is not UTF-8.
HOSTILE = "\x1b[31m\x1b]0;t\x07\x9b2J\u202e\u2066\u2028\u2029\ufeff\x7f\r\udcff"
ESCAPED = r"\x1b[31m\x1b]0;t\x07\x9b2J\u202e\u2066\u2028\u2029\ufeff\x7f\r\udcff"


def assert_printable(text):
    raw = {each for each in text if not (each.isprintable() or each == "\n")}
    assert not raw, raw


def test_every_character():
    for each in map(chr, [*range(0x11000), *range(0xE0000, 0xE0200)]):
        shown = printable(each)
        assert shown.isprintable()
        assert shown == each or (len(shown) > 1 and shown.isascii())


@pytest.mark.parametrize("terminal", [False, True], ids=["file", "terminal"])
def test_the_console(terminal):
    """Strings, tables, titles and texts; on a terminal with rich's own colours around them."""
    written = io.StringIO()
    console = Console(file=written, width=400, force_terminal=terminal, _environ={"TERM": "xterm"})
    table = Table(title=HOSTILE)
    table.add_column(HOSTILE)
    table.add_row(HOSTILE)
    table.add_row(cell(f"[bold]{HOSTILE}[/]"), style="bold")
    console.print(HOSTILE, table, cell(HOSTILE), "[bold]no markup[/]")
    lines(console, HOSTILE + "\nPASS", style="red")
    text = written.getvalue()
    assert ("\x1b[1m" in text) == terminal
    for own in ("\x1b[0m", "\x1b[1m", "\x1b[3m", "\x1b[31m", "\x1b[1;3m"):
        text = text.replace(own, "")
    assert_printable(text)
    assert "[bold]no markup[/]" in text and f"[bold]{ESCAPED}[/]" in text
    assert rf"{ESCAPED}\nPASS" in text


def test_names_in_a_table_of_a_plain_console():
    """`show` may be given any console of rich."""

    class Named(nn.Module):
        def __init__(self):
            super().__init__()
            self.add_module(f"[red]{HOSTILE}", nn.Linear(16, 16))

        def forward(self, x):
            return next(self.children())(x)

    model = Named()
    report = validate(model, quantize_model(model), [torch.randn(4, 16)])
    console = RichConsole(file=io.StringIO(), width=200)
    show(report, console)
    assert_printable(console.file.getvalue())
    assert f"[red]{ESCAPED}" in console.file.getvalue()


@pytest.mark.parametrize("name", ["plain", "$x^{", "_hidden", HOSTILE])
def test_names_in_a_picture(name, tmp_path):
    extra("matplotlib")
    model = nn.Sequential()
    model.add_module(name, nn.Linear(16, 16))
    plot(validate(model, quantize_model(model), [torch.randn(4, 16)]), tmp_path / "x.png")
    assert (tmp_path / "x.png").read_bytes().startswith(b"\x89PNG")


def test_guarded_streams(capsys):
    with guarded():
        print(HOSTILE, "a\nb\tc")
        print(HOSTILE, file=sys.stderr)
        sys.stderr.writelines([HOSTILE, "\n"])
        assert sys.stdout.encoding and not sys.stdout.isatty()
        with pytest.raises(TypeError, match=r"^text must be a str, got bytes$"):
            sys.stdout.write(b"")
    out, err = capsys.readouterr()
    assert out == f"{ESCAPED} a\nb\tc\n" and err == 2 * f"{ESCAPED}\n"
    print("\x07", end="")
    assert capsys.readouterr().out == "\x07"  # as before


def test_a_stream_that_lacks_a_character(monkeypatch):
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", stream)
    with guarded():
        print("Größe")
        lines(Console(), "日本")
    stream.flush()
    assert stream.buffer.getvalue() == b"Gr\\xf6\\xdfe\n\\u65e5\\u672c\n"


def test_progress_and_what_is_printed_meanwhile(monkeypatch):
    """While a bar shows on a terminal, rich puts streams of its own before stdout and stderr."""

    class Terminal(io.StringIO):
        def isatty(self):
            return True

    screen = Terminal()
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setattr(sys, "stdout", screen)
    with guarded(), progress_display(), _progress.progress(f"[b]{HOSTILE}", 2) as tick:
        tick()
        print("print", HOSTILE)
        logging.StreamHandler(sys.stderr).handle(logging.makeLogRecord({"msg": f"log {HOSTILE}"}))
        assert sys.stdout is not screen
    assert sys.stdout is screen and sys.stderr is screen
    text = screen.getvalue()
    assert r"[b]\x1b[31m" in text and f"print {ESCAPED}" in text and f"log {ESCAPED}" in text
    for hostile in ("\x1b[31m", "\x1b]0;", "\x07", "\x9b", "\u202e", "\u2066", "\u2028", "\udcff"):
        assert hostile not in text


@pytest.fixture
def folder(tmp_path):
    """A checkpoint among files with hostile names, one of which is no UTF-8."""
    made = variant(tmp_path / "in", "static-asymmetric", 2)
    (made / f"{HOSTILE}.json").write_text("{}")
    (made / f"{HOSTILE}.bin").write_bytes(b"")
    return made


@pytest.mark.parametrize("option", [[], ["--json"]], ids=["table", "json"])
def test_names_of_side_files(folder, option, tmp_path, capsys):
    out = tmp_path / f"out{HOSTILE}"
    assert main(["precompute", str(folder), "--out", str(out), *option]) == 0
    said = "".join(capsys.readouterr())
    assert_printable(said)
    assert option or f"copied along: {ESCAPED}.json" in said
    assert (out / f"{HOSTILE}.json").exists()


def test_values_of_a_config(folder, tmp_path, cli):
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"]["format"] = HOSTILE
    (folder / "config.json").write_text(json.dumps(config))
    assert_printable(cli("precompute", folder, "--out", tmp_path / "out", code=2))


@pytest.mark.parametrize(
    "arguments",
    [
        ["precompute", HOSTILE, "--out", "x"],
        ["validate", HOSTILE],
        ["bench", "--read", HOSTILE],
        [HOSTILE],
        [f"--{HOSTILE}"],
        ["explain", "1", "1", HOSTILE],
    ],
    ids=lambda x: ascii(x)[:40],
)
def test_arguments(arguments, cli):
    assert_printable(cli("", *arguments, code=2))
