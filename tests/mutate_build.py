"""The copies of the tree that tests/mutate.py plants bugs in, and how a bug is compiled.

setup.py builds one copy, in which no bug is ever planted. What it ran is read back: the command of
each object with the files that went into it, and the links. In another copy only the objects that a
bug's file goes into are compiled, and linked with the rest of the first copy's.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

SOURCES = (".cpp", ".h", ".def", ".table", ".cu", ".cuh", ".py")
FOLDERS = ("csrc", "docs", "scaled_mm", "scaled_mm_cli", "tests", "tools")
FILES = ("setup.py", "pyproject.toml", "README.md", "LICENSE")
ISAS = ("amx_int8", "avx512_bf16", "avx512_vnni", "avx_vnni", "avx2")


# ---- copies --------------------------------------------------------------------------------------


def copy_tree(root: Path, base: Path, isas: list[str], rows: list[str] | None = None) -> None:
    """The sources as they are now, for these instruction sets and these rows of the GPU's tables
    (None: all); a file that has not changed keeps its time and its object."""
    for top in FOLDERS:
        fresh = {p.relative_to(root) for p in (root / top).rglob("*") if p.is_file()}
        fresh = {p for p in fresh if p.suffix != ".so" and "__pycache__" not in p.parts}
        for stale in (base / top).rglob("*"):
            relative = stale.relative_to(base)
            if stale.is_file() and stale.suffix in SOURCES and relative not in fresh:
                stale.unlink()
        for path in sorted(fresh):
            write(base / path, trimmed(path, (root / path).read_bytes(), isas, rows))
    for name in FILES:
        if (root / name).exists():
            write(base / name, (root / name).read_bytes())
    write(base / "setup.py", (root / "setup.py").read_bytes().replace(b'"-O3"', b'"-O1"'))
    for isa in set(ISAS) - set(isas):
        (base / f"csrc/cpu/isa_{isa}.cpp").unlink()


def trimmed(path: Path, content: bytes, isas: list[str], rows: list[str] | None) -> bytes:
    """A file without what is not to be built."""
    if path == Path("csrc/cpu/isa.cpp"):
        for isa in set(ISAS) - set(isas):
            line = f"    &{isa}_isa,\n".encode()
            assert content.count(line) == 1, f"csrc/cpu/isa.cpp must list {isa}"
            content = content.replace(line, b"")
    elif path.suffix == ".table" and rows is not None:
        lines = content.decode().splitlines(keepends=True)
        named = [(re.match(r"KERNEL\((\w+)", line), line) for line in lines]
        if any(name and name[1] in rows for name, _ in named):  # else it would be empty
            content = "".join(x for name, x in named if not name or name[1] in rows).encode()
    return content


def write(target: Path, content: bytes) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    if not target.exists() or target.read_bytes() != content:
        target.write_bytes(content)


def copy_for_a_job(base: Path, copy: Path) -> None:
    """The sources, generated ones too, and the libraries; the objects stay where they are."""
    if copy.exists():
        shutil.rmtree(copy)
    for top in (*FOLDERS, "build/stubs"):
        if (base / top).exists():
            shutil.copytree(base / top, copy / top, ignore=shutil.ignore_patterns("__pycache__"))
    for name in FILES:
        if (base / name).exists():
            shutil.copy2(base / name, copy / name)


# ---- compiling -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Object:
    output: str
    command: str
    directory: str
    reads: frozenset[str]  # sources, as absolute paths in the first copy


@dataclass(frozen=True)
class Recipe:
    """What built the libraries of the copy `base`."""

    base: Path
    objects: list[Object]
    links: list[str]

    def compile(self, path: str, copy: Path, at_once: int) -> str:
        """The libraries of the copy, in which this file has changed; what the compiler said when
        that fails. Every call begins with the unchanged objects again."""
        touched = [x for x in self.objects if str(self.base / path) in x.reads]
        assert touched, f"no object reads {path}"
        with ThreadPoolExecutor(at_once) as pool:
            done = pool.map(lambda x: run(self.moved(x.command, copy), x.directory), touched)
            errors = [said for said in done if said]
        if errors:
            return errors[0]
        for link in self.links:
            uses = [x.output for x in touched if f" {x.output} " in link]
            if uses and (said := run(self.linked(link, uses, copy), str(self.base))):
                return said
        return ""

    def restore(self, copy: Path) -> None:
        for library in (self.base / "scaled_mm").glob("*.so"):
            fresh = copy / "scaled_mm" / f"{library.name}.new"
            shutil.copy2(library, fresh)
            fresh.replace(copy / "scaled_mm" / library.name)

    def moved(self, command: str, copy: Path) -> str:
        for output in re.findall(r"-o (\S+)", command):
            Path(output.replace(f"{self.base}/", f"{copy}/")).parent.mkdir(
                parents=True, exist_ok=True
            )
        return command.replace(f"{self.base}/", f"{copy}/")

    def linked(self, link: str, uses: list[str], copy: Path) -> str:
        for output in uses:
            link = link.replace(f" {output} ", f" {self.moved(output, copy)} ")
        library = re.search(r" -o (\S+/(scaled_mm/\S+\.so)) ", f"{link} ")
        assert library, f"no library is linked by: {link}"
        fresh = copy / library[2]
        fresh.unlink(missing_ok=True)  # a process may have it mapped
        return link.replace(f" -o {library[1]}", f" -o {fresh}")


def run(command: str, directory: str) -> str:
    """What it said, when it failed."""
    done = subprocess.run(
        command,
        cwd=directory,
        shell=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    return (done.stdout or f"exit code {done.returncode}") if done.returncode else ""


def build(base: Path, environment: dict[str, str]) -> Recipe:
    """Compiles what changed in the first copy, links all of it.

    Raises:
        SystemExit: it does not compile.
    """
    for library in (base / "build").glob("lib.*/scaled_mm/*.so"):
        library.unlink()  # so that the link is run, and printed
    done = subprocess.run(
        [sys.executable, "setup.py", "build_ext", "--inplace"],
        cwd=base,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    if done.returncode:
        raise SystemExit(f"the copy does not build:\n{done.stdout[-3000:]}")
    links = [line for line in done.stdout.splitlines() if " -shared " in line and " -o " in line]
    folders = [p.parent for p in sorted((base / "build").rglob("build.ninja"))]
    return Recipe(base, [x for folder in folders for x in objects(folder)], links)


def objects(folder: Path) -> Iterator[Object]:
    """Those that ninja made in its folder."""

    def ask(question: str) -> str:
        asked = ["ninja", "-C", str(folder), "-t", question]
        said = subprocess.check_output(asked, text=True)
        return "".join(x for x in said.splitlines(keepends=True) if not x.startswith("ninja: "))

    reads: dict[str, list[str]] = {}
    for block in ask("deps").split("\n\n"):
        output, *files = block.splitlines() or [""]
        reads[output.partition(": ")[0]] = [str((folder / x.strip()).resolve()) for x in files]
    for entry in json.loads(ask("compdb")):
        output = str(entry["output"])
        if output in reads:
            files = frozenset([*reads[output], str(entry["file"])])
            yield Object(output, str(entry["command"]), str(folder), files)
