"""`scaled-mm bench`: the structure of its result and its verdicts; no time is looked at."""

import copy
import json

import pytest
import torch

from scaled_mm.bench import host, measure, peers, picture, table
from scaled_mm.bench.cases import EPILOGUES, make_case
from scaled_mm.bench.contenders import CONTENDERS
from scaled_mm.bench.measure import Measurement, Settings, best, judge
from scaled_mm_cli.commands import bench as command
from scaled_mm_cli.main import main

VERDICTS = ("exact", "rounding", "wrong", "float", "sums")  # anything else: why there is none
COMPILED = "_int_mm compiled"  # minutes of compiler time for nothing here


@pytest.fixture(scope="module", params=EPILOGUES)
def result(request):
    settings = Settings(epilogue=request.param, rounds=1, without=(COMPILED,))
    return measure.run([(2, 16, 16), (5, 16, 16)], settings)


def test_every_contender_has_an_entry(result):
    for case in result["results"]:
        assert [r["name"] for r in case["routes"]] == [
            c.name for c in CONTENDERS if c.name != COMPILED and "cpu" in c.devices
        ]
        for route in case["routes"]:
            assert (route["gops"] is None) == (route["verdict"] not in VERDICTS)


def test_ours_are_exact(result):
    for case in result["results"]:
        ours = [r for r in case["routes"] if r["name"] in ("packed", "plain")]
        assert [(r["verdict"], r["off_r1"], r["checked"]) for r in ours] == [
            ("exact", 0, case["m"] * case["n"])
        ] * 2


def test_int_mm_computes_the_same_product(result):
    for case in result["results"]:
        (route,) = [r for r in case["routes"] if r["name"] == "_int_mm"]
        assert route["verdict"] in ("exact", "rounding")


def test_wrong_numbers_are_shown_and_not_right():
    case = make_case(3, 16, 32, "bias", torch.bfloat16)
    entry = Measurement("fast", gops=9.0)
    judge(entry, case, torch.zeros(3, 16, dtype=torch.bfloat16))
    assert (entry.verdict, entry.right) == ("wrong", False)
    assert entry.beyond_bound > 40
    slow = Measurement("slow", "exact", gops=1.0)
    assert best([entry, slow], right=False) is entry
    assert best([entry, slow], right=True) is slow


def test_sums_without_an_epilogue_are_no_best():
    sums, other = (
        Measurement("_int_mm sums", "sums", gops=9.0),
        Measurement("other", "exact", gops=1.0),
    )
    assert best([sums, other], right=False) is other


@pytest.mark.parametrize("epilogue", EPILOGUES)
def test_a_sample_of_rows_and_columns_is_judged(epilogue):
    case = make_case(40, 48, 32, epilogue, torch.float32)
    out = CONTENDERS[1].prepare(case).run(case.a, case.b)
    entry = Measurement("plain")
    judge(entry, case, out, most=32 * 20)
    assert (entry.verdict, entry.checked) == ("exact", 16 * 20)
    out[-1, -1] += 1  # the corners belong to the sample
    judge(entry, case, out, most=32 * 20)
    assert (entry.verdict, entry.off_r1) == ("wrong", 1)


def test_only_installed_peers_take_part(monkeypatch):
    monkeypatch.setattr(peers, "find_spec", lambda name: name if name == "torchao" else None)
    names = [c.name for c in Settings(peers=True).contenders()]
    assert names[-1] == "torchao" and "vllm" not in names
    assert "torchao" not in [c.name for c in Settings().contenders()]


def test_bytes_moved():
    case = make_case(3, 16, 32, "azp-per-token", torch.float16)
    vectors = 4 * 3 + 4 * 16 + 2 * 16 + 4 * 3 + 4 * 16  # scales, bias, azp, azp_adj
    assert case.bytes_moved() == 3 * 32 + 32 * 16 + 2 * 3 * 16 + vectors


def test_a_picture_needs_floors(result, tmp_path):
    with pytest.raises(ValueError, match=r"^--png must be given with shapes measured by --device"):
        picture.plot(result, tmp_path / "picture.png")


def test_host_run(monkeypatch, capsys):
    monkeypatch.setattr(host, "CALLS", 2)
    assert main(["bench", "--host", "--rounds", "1", "--without", COMPILED]) == 0
    shown = capsys.readouterr().out
    assert "Host time of an eager call, M=1 N=16 K=16" in shown
    for label in ("plain, ScaledEpilogueAzpPerToken", "quantize_int8, static", "torch.mm"):
        assert label in shown


@pytest.mark.parametrize("text", ["4096", "0x1x1", "1x2x3x4", "axbxc", "1x-2x3"])
def test_shape_is_refused_by_rule_and_value(text):
    with pytest.raises(ValueError, match=f"--shape must be MxNxK.*got {text}"):
        command.parse_shape(text)


def test_shapes_asked_for():
    assert command.shapes_of("cpu", [], [], []) == [(m, 4096, 4096) for m in (1, 16, 64, 512)]
    assert len(command.shapes_of("cuda", [], [], [])) == 4 * 14
    assert command.shapes_of("cuda", [], ["8x9"], [3, 4]) == [(3, 8, 9), (4, 8, 9)]
    assert command.shapes_of("cuda", ["1x2x3"], [], []) == [(1, 2, 3)]
    with pytest.raises(ValueError, match="--weight must be NxK, such as 4096x4096, got 8"):
        command.shapes_of("cpu", [], ["8"], [])
    with pytest.raises(ValueError, match="--shape must be given without"):
        command.shapes_of("cpu", ["1x2x3"], [], [4])


def test_files(tmp_path, capsys):
    json_file, markdown_file = tmp_path / "x.json", tmp_path / "x.md"
    measured = ["--shape", "2x16x16", "--rounds", "1", "--without", COMPILED]
    assert main(["bench", *measured, "--json", str(json_file)]) == 0
    assert main(["bench", "--read", str(json_file), "--markdown", str(markdown_file)]) == 0
    out, err = capsys.readouterr()
    assert out.count("packed / best right") == 2
    assert err == "1/1: M=2 N=16 K=16\n"
    assert markdown_file.read_text() == table.markdown(json.loads(json_file.read_text()))


@pytest.mark.parametrize("verdict", ["rounding", "wrong", "it failed"])
def test_exit_code_when_ours_is_not_exact(result, verdict, tmp_path):
    result = copy.deepcopy(result)
    result["results"][0]["routes"][1]["verdict"] = verdict
    path = tmp_path / "x.json"
    path.write_text(json.dumps(result))
    assert main(["bench", "--read", str(path)]) == 1
