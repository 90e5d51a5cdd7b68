"""What a command that writes a folder leaves behind (docs/reliability.md)."""

import json
import os
import stat
from pathlib import Path

import pytest
from checkpoint_cases import files_of, variant
from helpers import run_python

from scaled_mm.checkpoint.output import MANIFEST, output_folder
from scaled_mm.precompute import precompute

INDEX = "model.safetensors.index.json"
SHARDS = 3


def checkpoint(folder: Path) -> Path:
    """Three shards that get terms, an index, a config and a file that goes along."""
    source = variant(folder, "static-asymmetric", SHARDS)
    (source / "tokenizer.json").write_text("{}")
    return source


LIMIT = 102_400
LIMITED = f"""
import resource, sys
resource.setrlimit(resource.RLIMIT_FSIZE, ({LIMIT}, {LIMIT}))
from scaled_mm_cli.main import main
sys.exit(print(main(["precompute", sys.argv[1], "-o", sys.argv[2]])))
"""


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", INDEX])
def test_a_short_write_fails(name: str, tmp_path: Path) -> None:
    """A file that the disk takes a part of never gets its name."""
    source, out = checkpoint(tmp_path / "in"), tmp_path / "out"
    fields = json.loads((source / name).read_text())
    fields.setdefault("metadata", {})["long"] = "x" * 2 * LIMIT
    (source / name).write_text(json.dumps(fields))
    assert run_python(LIMITED, str(source), str(out)) == "2\n"
    assert not (out / name).exists()
    assert not list(out.glob(".*"))
    assert len(list(out.glob("*.safetensors"))) == SHARDS  # these were short enough
    precompute(source, out)
    assert (out / name).stat().st_size > LIMIT


def test_a_shard_that_is_cut_fails(tmp_path: Path) -> None:
    source, out = checkpoint(tmp_path / "in"), tmp_path / "out"
    precompute(source, tmp_path / "whole")
    sizes = {path.name: path.stat().st_size for path in (tmp_path / "whole").glob("*.safetensors")}
    small = LIMITED.replace(str(LIMIT), str(max(sizes.values()) - 1))
    assert run_python(small, str(source), str(out)) == "2\n"
    found = {path.name: path.stat().st_size for path in out.iterdir()}
    del found[MANIFEST]
    assert found.items() < sizes.items()


KILLED = """
import io, json, os, pathlib, signal, sys
from checkpoint_cases import files_of
from scaled_mm.checkpoint import writing
from scaled_mm.precompute import precompute

apart = int(sys.argv[1])
source, out, whole = map(pathlib.Path, sys.argv[2:])
writing.BUFFER = 96  # a weight takes several pieces
left = 0

def step():
    global left
    left -= 1
    if left == 0:
        os.kill(os.getpid(), signal.SIGKILL)

def before(function):
    def call(*arguments, **options):
        step()
        return function(*arguments, **options)
    return call

class Writer(io.BufferedWriter):
    def write(self, data):
        half = len(data) // 2
        done = super().write(data[:half])
        self.flush()
        step()
        return done + super().write(data[half:])

def run(kill_at):
    global left
    child = os.fork()
    if child == 0:
        left = kill_at
        os.fsync = before(os.fsync)
        pathlib.Path.replace = before(pathlib.Path.replace)
        os.fdopen = lambda descriptor, mode: Writer(io.FileIO(descriptor, mode))
        precompute(source, out)
        os._exit(0)
    return os.waitpid(child, 0)[1]

precompute(source, whole)
expected = files_of(whole)
at = 1 - apart
while True:
    at += apart
    if run(at) == 0:
        break
    found = {k: x for k, x in files_of(out).items() if not k.endswith(".partial")}
    assert all(expected[name] == content for name, content in found.items()), (at, found.keys())
    assert "config.json" not in found or found.keys() == expected.keys(), (at, found.keys())
    assert run(0) == 0
    assert files_of(out) == expected, at
    for path in out.iterdir():
        path.unlink()
print(at)
"""


@pytest.mark.parametrize("apart", [3, pytest.param(1, marks=pytest.mark.slow)])
def test_killed_at_every_write(tmp_path: Path, apart: int) -> None:
    """What has its name is whole, config.json comes last, and the next run finishes the folder. In
    `make test` each third point will do: at one file a write, at the next a sync."""
    source = checkpoint(tmp_path / "in")
    folders = [str(tmp_path / name) for name in ("in", "out", "whole")]
    points = run_python(KILLED, str(apart), *folders)
    # A write, two syncs and a rename for each of: manifest, shards, index, config, tokenizer.
    assert int(points) > 4 * (len(files_of(source)) + 1)


def test_two_runs_at_once(tmp_path: Path) -> None:
    source, out = checkpoint(tmp_path / "in"), tmp_path / "out"
    refused = 0

    def progressed(done: int, total: int) -> None:
        nonlocal refused
        with pytest.raises(ValueError, match="another run is writing there"):
            precompute(source, out)
        refused += 1

    precompute(source, out, progressed)
    precompute(source, tmp_path / "alone")
    assert refused > SHARDS
    assert files_of(out) == files_of(tmp_path / "alone")


def test_a_stray_partial_makes_no_output(tmp_path: Path) -> None:
    """A file that ends as ours do does not make somebody's folder ours."""
    source, out = checkpoint(tmp_path / "in"), tmp_path / "out"
    out.mkdir()
    for name in ("config.json", "tokenizer.json", ".model-00001-of-00003.safetensors.partial"):
        (out / name).write_text("mine")
    before = files_of(out)
    with pytest.raises(ValueError, match="must be new, empty or of an earlier run"):
        precompute(source, out)
    assert files_of(out) == before


def test_the_output_of_another_checkpoint_is_kept(tmp_path: Path) -> None:
    """Also where names, sizes and config are the same."""
    out = tmp_path / "out"
    precompute(checkpoint(tmp_path / "in"), out)
    before = files_of(out)
    with pytest.raises(ValueError, match="was made of another checkpoint; name another folder"):
        precompute(checkpoint(tmp_path / "other"), out)
    with (
        pytest.raises(ValueError, match="was written by another command"),
        output_folder(out, "scaled-mm quantize", tmp_path / "in", before),
    ):
        pass
    assert files_of(out) == before


def test_another_checkpoint_of_the_same_name(tmp_path: Path) -> None:
    """It is told apart by a hash of the whole path."""
    out = tmp_path / "out"
    precompute(checkpoint(tmp_path / "a" / "in"), out)
    with pytest.raises(ValueError, match="was made of another checkpoint"):
        precompute(checkpoint(tmp_path / "b" / "in"), out)
    (tmp_path / "way").symlink_to("a")
    precompute(tmp_path / "way" / "in", out)  # the same folder


def test_stale_partials(tmp_path: Path) -> None:
    """What killed runs left goes, whatever it was to become; also what they left in a folder that
    did not get its manifest. What a source's own writer left does not go along."""
    source, out = checkpoint(tmp_path / "in"), tmp_path / "out"
    (source / ".vocab.json.partial").write_text("{")
    out.mkdir()
    (out / f".{MANIFEST}.partial").write_text("{")
    precompute(source, out)
    whole = files_of(out)
    (out / ".model-00009-of-00009.safetensors.partial").write_bytes(b"half")
    precompute(source, out)
    assert files_of(out) == whole
    assert not [name for name in whole if name.endswith(".partial")]


def test_a_shard_that_is_no_longer_made(tmp_path: Path) -> None:
    """The source has fewer shards now: a checkpoint must not keep both."""
    source, out = checkpoint(tmp_path / "in"), tmp_path / "out"
    precompute(source, out)
    for path in source.iterdir():
        path.unlink()
    variant(source, "static-asymmetric")
    with pytest.raises(ValueError, match="would not be written; remove it"):
        precompute(source, out)


def test_a_shard_of_somebody_is_kept(tmp_path: Path) -> None:
    source, out = checkpoint(tmp_path / "in"), tmp_path / "out"
    precompute(source, out)
    name = "model-00002-of-00003.safetensors"
    (out / name).write_bytes((source / name).read_bytes())  # without the mark
    with pytest.raises(ValueError, match=f"{name}: was not written by precompute"):
        precompute(source, out)


def test_the_manifest_tells_no_path(tmp_path: Path) -> None:
    precompute(checkpoint(tmp_path / "in"), tmp_path / "out")
    text = (tmp_path / "out" / MANIFEST).read_text()
    assert json.loads(text)["source"] == "in" and str(tmp_path) not in text


@pytest.mark.parametrize(
    "name", ["tokenizer.json", "config.json", INDEX, "model-00002-of-00003.safetensors"]
)
def test_a_link_out_of_the_checkpoint_is_refused(name: str, tmp_path: Path) -> None:
    source = checkpoint(tmp_path / "in")
    (source / name).rename(tmp_path / "secret")
    (source / name).symlink_to(tmp_path / "secret")
    with pytest.raises(ValueError, match=f"{name}: is a link out of the checkpoint"):
        precompute(source, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_link_to_a_folder_whose_name_begins_alike(tmp_path: Path) -> None:
    """in-secret is not within in, nor blobs-secret among a hub's blobs."""
    source = checkpoint(tmp_path / "hub" / "snapshots" / "in")
    (source / "tokenizer.json").unlink()
    for name in ("snapshots/in-secret", "blobs-secret", "blobs/secret"):
        (tmp_path / "hub" / name).mkdir(parents=True)
        (tmp_path / "hub" / name / "x").write_text("{}")
        (source / "tokenizer.json").symlink_to(tmp_path / "hub" / name / "x")
        with pytest.raises(ValueError, match=r"tokenizer\.json: is a link out of the checkpoint"):
            precompute(source, tmp_path / "out")
        (source / "tokenizer.json").unlink()


def test_links_that_are_followed(tmp_path: Path) -> None:
    """Within the folder, and from a hub's snapshot to its blobs, by any way into the cache."""
    model = tmp_path / "cache" / "models--a--b"
    (model / "snapshots").mkdir(parents=True)
    checkpoint(model / "blobs")
    snapshot = model / "snapshots" / "0123abcd"
    snapshot.mkdir()
    for path in (model / "blobs").iterdir():
        (snapshot / path.name).symlink_to(f"../../blobs/{path.name}")
    (snapshot / "vocab.json").symlink_to("tokenizer.json")
    (tmp_path / "way").symlink_to(tmp_path / "cache")
    report = precompute(tmp_path / "way/models--a--b/snapshots/0123abcd", tmp_path / "out")
    assert report.copied == ("tokenizer.json", "vocab.json")
    assert not any(path.is_symlink() for path in (tmp_path / "out").iterdir())
    precompute(checkpoint(tmp_path / "plain"), tmp_path / "same")
    out, same = files_of(tmp_path / "out"), files_of(tmp_path / "same")
    assert {**same, "vocab.json": b"{}", MANIFEST: out[MANIFEST]} == out


@pytest.mark.usefixtures("umask")
@pytest.mark.parametrize(
    ("mode", "umask_now", "expected"),
    [(0o600, 0o022, 0o600), (0o644, 0o077, 0o600), (0o666, 0o022, 0o644), (0o440, 0o022, 0o440)],
)
def test_modes_are_never_wider(mode: int, umask_now: int, expected: int, tmp_path: Path) -> None:
    """Than those of the source, nor than the umask lets new files be."""
    source, out = checkpoint(tmp_path / "in"), tmp_path / "out"
    for path in source.iterdir():
        path.chmod(mode)
    source.chmod(0o700)
    os.umask(umask_now)
    precompute(source, out)
    assert stat.S_IMODE(out.stat().st_mode) == 0o700
    for path in source.iterdir():
        assert stat.S_IMODE((out / path.name).stat().st_mode) == expected, path.name
