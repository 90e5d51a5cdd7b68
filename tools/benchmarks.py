"""The pages of docs/benchmarks: DEVICE.md and its pictures, made of DEVICE.json.gz.

    python tools/benchmarks.py                             write every page and picture again
    python tools/benchmarks.py add h200 int8 FILE COMMAND  what `scaled-mm bench --json FILE` kept
    python tools/benchmarks.py show h200 kernels           an entry's data, as JSON
    python tools/benchmarks.py accuracy xeon               MiniLM in every scheme: bytes and cosine

An entry is a result, the command that measured it, the day, and the commit that recorded it. A page
shows at most three weights, of endings two, and five M of each, and the routes that are compared;
the file has all.
"""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from datetime import date
from pathlib import Path
from typing import Any

from scaled_mm.bench import picture
from scaled_mm.bench.cases import by_weight
from scaled_mm.bench.table import machine_line, tables, totals

FOLDER = Path(__file__).resolve().parent.parent / "docs/benchmarks"
SHOWN = (1, 16, 64, 256, 1024)
ENDED = (16, 64, 256, 1024, 4096)
ROUTES = {  # on a page, and the rows that compare
    *("us", "GOP/s", "host", "packed", "w4a16", "w8a16", "w4a8", "awq_gemm", "awq_gemm packed"),
    *("as w8a8", "as w4a16", "humming"),
    *("awq_dequantize", "bf16 mm", "fp8 rowwise", "triton", "dense mm", "onednn qlinear"),
    *("torchao int8", "bnb nf4"),
    *("ours", "bf16 compiled", "fp8 compiled", "scaled_mm", "ScaledLinear", "nn.Linear"),
    *("packed, ScaledEpilogue", "torch.mm", "packed / best right"),
    *("ms: batch", "model", "bf16", "w8a8"),
    *(f"{op} / best right" for op in ("w4a16", "w8a16", "awq_gemm", "awq_dequantize")),
}
PANELS = [(4096, 4096), (4096, 14336), (28672, 8192)]


def read(device: str) -> dict[str, Any]:
    return json.loads(gzip.decompress((FOLDER / f"{device}.json.gz").read_bytes()))


def write(device: str, data: dict[str, Any]) -> None:
    packed = gzip.compress(json.dumps(data, separators=(",", ":")).encode(), 9, mtime=0)
    (FOLDER / f"{device}.json.gz").write_bytes(packed)


def fewer(result: dict[str, Any]) -> dict[str, Any]:
    cases = result["results"]
    many = {case["m"] for case in cases} - {*SHOWN} and result["settings"]["device"] == "cuda"
    shown = [c for c in cases if not many or (c["m"] in SHOWN and (c["n"], c["k"]) in PANELS)]
    fewer = {**result, "results": shown}
    if "endings" in result:
        fewer["endings"] = [
            case
            for cases in [*by_weight(result["endings"]).values()][:2]
            for case in cases
            if len(cases) <= len(ENDED) or case["m"] in ENDED
        ]
    return fewer


def markdown(title: str, rows: list[list[str]]) -> str:
    """Without the last column, where it is verdicts: a page holds results that were found right."""
    columns = None if rows[0][0] == "model" else -1
    header, *rest = [row[:columns] for row in rows if row[0] in ROUTES or " / " in title]
    rest = [row for row in rest if set(row[1:]) != {"-"}]
    kept = [i for i, column in enumerate(zip(*rest, strict=True)) if i == 0 or {*column} != {"-"}]
    header, *rest = [[row[i] for i in kept] for row in (header, *rest)]
    rule = ["---", *["---:"] * (len(header) - 1)]
    return "\n".join([f"**{title}**", "", *(f"| {' | '.join(r)} |" for r in (header, rule, *rest))])


def section(name: str, entry: dict[str, Any]) -> str:
    result = entry["result"]
    parts = [f"## {name}", f"{entry['recorded']}, recorded in {entry['commit']}:"]
    parts += [f"    {entry['command']}"]
    parts += [markdown(title, rows) for title, rows in tables(fewer(result))]
    return "\n\n".join([*parts, *totals(result)[:1]])


def machines(entries: list[dict[str, Any]]) -> str:
    """Each machine and its software once."""
    lines = [machine_line(entry["result"]).partition("; copy bandwidth")[0] for entry in entries]
    return "\n".join(f"* {x}" for x in dict.fromkeys(line.partition("; ")[2] for line in lines))


def page(data: dict[str, Any]) -> str:
    entries = {k: v for k, v in data["entries"].items() if "results" in v["result"]}
    known = [entry for entry in entries.values() if "machine" in entry["result"]]
    head = [f"# {data['title']}", data["about"], machines(known)]
    return "\n\n".join([*head, *(section(k, v) for k, v in entries.items())]) + "\n"


def draw(device: str, data: dict[str, Any]) -> None:
    entries = data["entries"]
    if "int8" in entries and entries["int8"]["result"]["settings"]["device"] == "cuda":
        for part in ("speed-up", "floor"):
            picture.plot(entries["int8"]["result"], FOLDER / f"{device}-{part}.svg", PANELS, [part])
    if "accuracy" in entries:
        rows = entries["accuracy"]["result"]
        points = {row["scheme"]: (row["bytes"] / 1e6, 1 - row["cosine"]) for row in rows}
        labels = ("MB of 36 linear layers (float32: 42.5)", "1 - cosine to float32")
        picture.labelled(points, labels, FOLDER / "accuracy.svg")
    if "endings" in entries:
        picture.plot(entries["endings"]["result"], FOLDER / f"{device}-endings.svg")


SCHEMES = (
    *("static", "static-asymmetric", "dynamic", "dynamic-asymmetric"),
    *("w8a16", "w4a16-g32-asymmetric", "w4a16-g64", "w4a16"),
)


def accuracy() -> list[dict[str, Any]]:
    """The demo's model in each scheme: its layers' bytes, the cosine on unseen sentences."""
    from scaled_mm import Call, QuantConfig, quantize_model
    from scaled_mm.demo import bert, data
    from scaled_mm.validate import validate

    folder = data.model_folder()
    model, tokens = bert.load(folder), data.tokenize(folder, data.sentences())
    known, new = (
        [Call((b.ids, b.mask), mask=b.mask) for b in data.batches(part)]
        for part in (tokens[0::2], tokens[1::2])
    )
    rows = []
    for scheme in SCHEMES:
        quantised = quantize_model(model, QuantConfig(scheme), known)
        report = validate(model, quantised, new, stride=601)
        layers = [quantised.get_submodule(layer.name) for layer in report.layers]
        size = sum(x.numel() * x.element_size() for m in layers for x in m.state_dict().values())
        rows.append({"scheme": scheme, "bytes": size, "cosine": report.outputs.cosine_mean})
    return rows


def add(device: str, name: str, file: str, *command: str) -> None:
    keep(device, name, json.loads(Path(file).read_text()), " ".join(command))


def keep(device: str, name: str, result: Any, command: str) -> None:
    data = read(device)
    asked = ["git", "rev-parse", "--short", "HEAD"]
    commit = subprocess.check_output(asked, cwd=FOLDER, text=True).strip()
    data["entries"][name] = {
        "recorded": date.today().isoformat(),
        "commit": commit,
        "command": command,
        "result": result,
    }
    write(device, data)


def main(*arguments: str) -> None:
    if arguments[:1] == ("show",):
        print(json.dumps(read(arguments[1])["entries"][arguments[2]]["result"]))
        return
    if arguments[:1] == ("accuracy",):
        keep(arguments[1], "accuracy", accuracy(), " ".join(["tools/benchmarks.py", *arguments]))
    if arguments[:1] == ("add",):
        add(*arguments[1:])
    for file in sorted(FOLDER.glob("*.json.gz")):
        device = file.name.removesuffix(".json.gz")
        data = read(device)
        (FOLDER / f"{device}.md").write_text(page(data))
        draw(device, data)


if __name__ == "__main__":
    main(*sys.argv[1:])
