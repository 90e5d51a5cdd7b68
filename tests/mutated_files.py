"""Checkpoints with something changed: in the tree of a JSON document, or in the bytes of a file."""

import copy
import json
import random
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

DEEP: Any = []
for _ in range(100):
    DEEP = [DEEP]

VALUES: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 8, 2**31, 2**40, 2**62, 2**63, 2**64, 10**40, -(2**63), 0.5, 1e308,
    float("inf"), float("nan"), "", "a", "0", "tensor", "token", "\x1b]0;title\x07", "\u202eabc",
    "\ud800", "\x00", "re:(a+)+$", "re:" + "a?" * 60 + "a" * 60, "re:.*.*.*.*.*Z", "re:[", "../up",
    "/etc/passwd", "x" * 300, "x.safetensors", "model.safetensors", "Linear", [], {}, [[]], [{}],
    {"a": {}}, {"": ""}, DEEP, ["x"] * 3000, ["I8", [32, 32], [0, 1024]], {"I8": None}, "I8", "F64",
    "BF16", "F4", [0], [2**40, 0], [0, 2**62, 2**62], [1] * 70, [-1], [True], ["1"], [0, 0],
    [0, 2**63],
)  # fmt: skip
"""What takes the place of a value, or becomes a name: of every JSON type, and beyond all limits."""


def places(tree: Any) -> Iterator[tuple[Any, Any]]:
    """Every container of the tree with each of its keys."""
    keys = tree.keys() if isinstance(tree, dict) else range(len(tree))
    for key in list(keys):
        yield tree, key
        if isinstance(tree[key], dict | list):
            yield from places(tree[key])


def mutate_tree(tree: dict[str, Any], chosen: random.Random) -> dict[str, Any]:
    tree = copy.deepcopy(tree)
    container, key = chosen.choice([*places(tree)])
    value = copy.deepcopy(chosen.choice(VALUES))
    how = chosen.randrange(6)
    if how == 0:
        del container[key]
    elif how == 1 and isinstance(container, dict):
        container[str(value)] = container.pop(key)
    elif how == 2 and isinstance(container, dict):
        container[str(value)] = copy.deepcopy(container[key])
    elif how == 3:
        container[key] = [container[key]]
    elif how == 4:
        container[key] = {str(value): container[key]}
    else:
        container[key] = value
    return tree


def text_of(tree: dict[str, Any], chosen: random.Random) -> bytes:
    """JSON; infinity is written as a number that is too large, or by its name."""
    infinity = chosen.choice(["1e999", "Infinity"])
    return json.dumps(tree).replace("Infinity", infinity).encode()


def mutate_bytes(content: bytes, chosen: random.Random) -> bytes:
    made, at = bytearray(content), chosen.randrange(len(content) or 1)
    how = chosen.randrange(5)
    if how == 0:
        del made[at:]
    elif how == 1:
        made[at : at + 1] = bytes([chosen.randrange(256)])
    elif how == 2:
        made[at:at] = chosen.choice([b"\x00", b"{", b"]", b"\xff\xfe", b'"', b"1e999", b",,"])
    elif how == 3:
        del made[at : at + chosen.randrange(1, 9)]
    else:
        made += made[at : at + 64]
    return bytes(made)


def mutate_folder(folder: Path, chosen: random.Random) -> str:
    """Changes one file of a checkpoint, once to three times; says which."""
    path = chosen.choice([path for path in sorted(folder.iterdir()) if path.is_file()])
    content = path.read_bytes()
    for _ in range(chosen.choice([1, 1, 2, 3])):
        if chosen.random() < 0.2:
            content = mutate_bytes(content, chosen)
        elif path.suffix == ".json":
            content = _with_tree(content, chosen)
        else:
            content = _with_header(content, chosen)
    path.write_bytes(content)
    return path.name


def _with_tree(content: bytes, chosen: random.Random) -> bytes:
    try:
        tree = json.loads(content)
    except ValueError:  # it was changed before
        return content
    return text_of(mutate_tree(tree, chosen), chosen) if tree else content


def _with_header(content: bytes, chosen: random.Random) -> bytes:
    (length,) = struct.unpack("<Q", content[:8].ljust(8, b"\0"))
    header = _with_tree(content[8 : 8 + length], chosen)
    return struct.pack("<Q", len(header)) + header + content[8 + length :]
