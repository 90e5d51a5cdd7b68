"""Private names of other packages: which are used where, and what serves where one is missing."""

import ast
import importlib.util
import logging
import sys
from collections import namedtuple
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import torch
from helpers import assert_bits, run_python
from torch import fx, nn
from torch.distributed.tensor.parallel import ParallelStyle

import scaled_mm
from scaled_mm import _torch, integrations
from scaled_mm.integrations import vllm
from scaled_mm.nn import scaled_linear, together
from scaled_mm.ops import eager

PACKAGE = Path(scaled_mm.__file__).parent
# Beside _torch.py: a graph pass has nothing but inductor's names, and bench times what torch offers
# under private ones.
KNOWN = ("_torch.py", "integrations/inductor.py", "bench/")
PUBLIC = {"_apply", "_load_from_state_dict", "_replace", "_save_to_state_dict"}
"""nn.Module's and ParallelStyle's, which classes of a user's override, and NamedTuple's."""
OF_OBJECTS = {
    "_buffers",  # a layer's own, in front of which a property stands
    "_current_level",  # _torch.levels
    "_get_layer_params",  # _torch.vllm_tables
    "_get_weight_params",
    "_version",  # _torch.COUNTS_WRITES
}


def private_names(path: Path) -> set[str]:
    """torch._C, torch.x._y and the like, as the file spells them."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "torch":
            found |= {f"{node.module}.{each.name}" for each in node.names}
        elif isinstance(node, ast.Import):
            found |= {each.name for each in node.names if each.name.startswith("torch.")}
        elif isinstance(node, ast.Attribute) and ast.unparse(node).startswith("torch."):
            found.add(ast.unparse(node))
    names = (name for name in found if not name.startswith("torch.ops."))
    return {name for name in names if any(part[0] == "_" != part[:2] for part in name.split("."))}


def others() -> list[Path]:
    files = PACKAGE.rglob("*.py")
    return [path for path in files if not str(path.relative_to(PACKAGE)).startswith(KNOWN)]


def test_no_other_file_uses_one() -> None:
    for path in others():
        names = {name for name in private_names(path) if not name.endswith("__version__")}
        assert names == set(), path


def test_private_attributes_are_our_own() -> None:
    """Those that are read are defined somewhere in the package, and are not also torch's."""
    nodes = [node for path in others() for node in ast.walk(ast.parse(path.read_text()))]
    attributes = [node for node in nodes if isinstance(node, ast.Attribute)]
    own = {node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    own |= {node.id for node in nodes if isinstance(node, ast.Name)}
    own |= {node.attr for node in attributes if isinstance(node.ctx, ast.Store)}
    assert "__class__" not in {ast.unparse(node).rpartition(".")[2] for node in attributes}
    read = {node.attr for node in attributes if node.attr[0] == "_" != node.attr[1]}
    assert read - own <= OF_OBJECTS | PUBLIC
    kinds = (torch.Tensor, nn.Linear(1, 1), ParallelStyle, fx.Graph, fx.Node)
    torchs = {name for kind in kinds for name in dir(kind)}
    of_others = {
        node.attr
        for node in attributes
        if node.attr in read and ast.unparse(node.value) not in ("self", "cls")
    }
    assert of_others & torchs <= OF_OBJECTS | PUBLIC


def test_every_one_has_a_case() -> None:
    """In this file, where it is missing."""
    tree = ast.parse((PACKAGE / "_torch.py").read_text())
    names = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    names |= {node.asname for x in tree.body for node in ast.walk(x) if isinstance(node, ast.alias)}
    here = {
        node.attr
        for node in ast.walk(ast.parse(Path(__file__).read_text()))
        if isinstance(node, ast.Attribute)
    }
    assert names - {None, "become"} <= here  # any object has a class


Pair = namedtuple("Pair", "one two")


def test_without_torchs_trees(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils._pytree", None)
    path = PACKAGE / "_torch.py"
    spec = importlib.util.spec_from_file_location("scaled_mm._torch_alone", path)
    assert spec is not None and spec.loader is not None
    alone = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(alone)
    assert alone.TreeSpec is not _torch.TreeSpec
    tree = ((1, {"a": [2, None], "b": Pair("x", ())}), {}, [])
    leaves, made = alone.tree_flatten(tree)
    assert leaves == _torch.tree_flatten(tree)[0] == _torch.tree_leaves(tree)
    assert alone.tree_leaves(tree) == leaves
    doubled = [x if x is None else 2 * x for x in leaves]
    again = alone.tree_unflatten(doubled, made)
    assert again == _torch.tree_unflatten(doubled, _torch.tree_flatten(tree)[1])
    assert type(again[0][1]["b"]) is Pair


def test_without_counted_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    layers = [scaled_linear.ScaledLinear.from_linear(nn.Linear(16, 16)) for _ in range(2)]
    assert together.fit(layers)
    monkeypatch.setattr(together, "COUNTS_WRITES", False)
    assert not together.fit(layers)
    x = torch.randn(3, 16)
    wanted = [layer(x) for layer in layers]
    together.Together(layers)
    for layer, y in zip(layers, wanted, strict=True):
        assert_bits(layer(x), y)


def test_without_a_gate() -> None:
    """Where another function does, the module's own gate is run; without one it is refused."""
    assert not _torch.has_usual_gate(nn.Linear(1, 1))
    with pytest.raises(ValueError, match="experts must have _apply_gate, got a Linear without"):
        _torch.gate_of(nn.Linear(1, 1))


def vllm_without(missing: str) -> SimpleNamespace:
    """As much of `vllm.model_executor.kernels.linear` as is asked for."""
    kernels = {
        "Int8ScaledMMLinearKernel": "_get_layer_params",
        "MPLinearKernel": "_get_weight_params",
    }
    kinds = {
        name: type(name, (), {} if method == missing else {method: None})
        for name, method in kernels.items()
    }
    lists = {"_POSSIBLE_INT8_KERNELS", "_POSSIBLE_KERNELS"} - {missing}
    tables: dict[str, object] = {name: {} for name in lists}
    return SimpleNamespace(**kinds, **tables)


@pytest.mark.parametrize(
    "name",
    ["_POSSIBLE_INT8_KERNELS", "_POSSIBLE_KERNELS", "_get_layer_params", "_get_weight_params"],
)
def test_without_a_name_of_vllm(
    name: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A warning, and vLLM as it is."""
    assert _torch.vllm_tables(vllm_without("")) == ({}, {})
    for each in ("vllm", "vllm.model_executor", "vllm.platforms"):
        monkeypatch.setitem(sys.modules, each, ModuleType(each))
    sys.modules["vllm.platforms"].PlatformEnum = None  # type: ignore[attr-defined]
    kernels = ModuleType("vllm.model_executor.kernels")
    kernels.linear = vllm_without(name)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, kernels.__name__, kernels)
    ours = "scaled_mm.integrations.vllm_kernels"
    monkeypatch.setitem(sys.modules, ours, ModuleType(ours))
    monkeypatch.setattr(integrations, "vllm_kernels", sys.modules[ours], raising=False)
    with caplog.at_level(logging.WARNING, "vllm.scaled_mm"):
        vllm.register()
    (record,) = caplog.records
    assert name in record.getMessage()


WITHOUT_LEVELS = """
import torch
from torch.autograd import forward_ad

level = forward_ad._current_level
del forward_ad._current_level
import scaled_mm
forward_ad._current_level = level  # torch itself needs it

a, b, one = (torch.ones(shape, dtype=dtype) for shape, dtype in
             (((3, 4), torch.int8), ((4, 5), torch.int8), ((1,), torch.float32)))
assert scaled_mm.scaled_mm(a, b, one, one).tolist() == [[4.0] * 5] * 3
with forward_ad.dual_level():
    x = forward_ad.make_dual(torch.ones(3, 4), torch.ones(3, 4))
    try:
        scaled_mm.quantize_int8(x)
    except ValueError as error:
        print(error)
"""


def test_without_the_level_of_forward_mode() -> None:
    assert run_python(WITHOUT_LEVELS).startswith("x must not have a tangent")


def test_without_the_flag_of_exports(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not _torch.is_exporting()
    monkeypatch.delattr(torch.compiler, "_is_exporting_flag")
    monkeypatch.setattr(torch.compiler, "is_exporting", lambda: True)
    assert _torch.is_exporting()


def test_without_the_short_way_to_an_op(monkeypatch: pytest.MonkeyPatch) -> None:
    overload = torch.ops.scaled_mm._scaled_mm_plain.default
    assert _torch.short(overload) is not overload and _torch.short(len) is len
    a, b = (torch.randint(-128, 128, (8, 8), dtype=torch.int8) for _ in range(2))
    scales = torch.rand(8, 1), torch.rand(1, 8)
    wanted = scaled_mm.scaled_mm(a, b, *scales)
    monkeypatch.setattr(eager, "_scaled_mm_plain", overload)
    assert_bits(scaled_mm.scaled_mm(a, b, *scales), wanted)


def test_without_the_question_for_memory() -> None:
    zero = torch._efficientzerotensor((2, 2))
    assert _torch.has_no_memory(zero) and not _torch.has_no_memory(torch.zeros(2, 2))
    assert not _torch.has_no_memory(object())  # type: ignore[arg-type]


def test_without_the_check_of_values(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torch, "_check_value")
    _torch.check_value(True, str)
    a, b = (torch.ones(shape, dtype=torch.int8, device="meta") for shape in ((2, 3), (4, 5)))
    with pytest.raises(ValueError, match="must"):
        torch.ops.scaled_mm.int8_mm(a, b)
    assert torch.ops.scaled_mm.int8_mm(a, b[:3]).shape == (2, 5)


def test_without_lists_of_hooks() -> None:
    module = torch.nn.Linear(2, 2)
    assert not _torch.has_hooks(module)
    handle = module.register_forward_pre_hook(lambda *_: None)
    assert _torch.has_hooks(module)
    handle.remove()
    for name in _torch.HOOKS:
        del vars(module)[name]
    assert not _torch.has_hooks(module)


def test_without_inductors_decompositions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch._inductor.decomposition", None)
    add = torch.ops.aten.addcmul.default
    assert add in _torch.decompositions()


def test_without_a_plan_of_dtypes() -> None:
    """As a model is taken that keeps some: it is not run in parts."""
    assert _torch.keeps_dtypes(torch.nn.Linear(2, 2), torch.float32)


def test_without_dispatch_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torch._C, "DispatchKeySet")
    with pytest.raises(ImportError, match=r"needs another torch than .*DispatchKeySet"):
        _torch.dispatch_keys("CPU")


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (RuntimeError("a must have K=4 columns, got shape (2, 3)"), ValueError),
        (RuntimeError("could not allocate 7 bytes on cpu: out of memory"), torch.OutOfMemoryError),
        (RuntimeError("CUDA error: an illegal memory access"), RuntimeError),
        (NotImplementedError("x must be dense, got sparse"), NotImplementedError),
    ],
)
def test_errors_whose_type_torch_does_not_keep(
    monkeypatch: pytest.MonkeyPatch, error: Exception, kind: type[Exception]
) -> None:
    """As from 2.15 on; of a product and of a layer."""

    def op(*operands: object) -> None:
        raise error

    made = _torch.thrown(error)
    assert type(made) is kind and str(made) == str(error)
    if kind is not NotImplementedError:
        monkeypatch.setattr(eager, "_scaled_mm_plain", op)
        monkeypatch.setattr(scaled_linear, "scaled_linear", op)
        a, one = torch.ones(4, 4, dtype=torch.int8), torch.ones(1)
        layer = scaled_linear.ScaledLinear(4, 4)
        for call in (lambda: scaled_mm.scaled_mm(a, a, one, one), lambda: layer(torch.ones(2, 4))):
            with pytest.raises(kind, match=str(error)[:9]):
                call()


def test_keys_that_a_quantiser_reads_without_transformers_attribute() -> None:
    model = nn.Module()
    _torch.not_unexpected(model, "^x$")
    _torch.not_unexpected(model, "^y$")
    assert model._keys_to_ignore_on_load_unexpected == {"^x$", "^y$"}


def test_tensors_that_a_model_makes_without_transformers_list() -> None:
    model = nn.Module()
    assert not _torch.made_by_the_model(model, "table")
    model._keys_to_ignore_on_save = {"table"}
    assert _torch.made_by_the_model(model, "table") and not _torch.made_by_the_model(model, "w")
