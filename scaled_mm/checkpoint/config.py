"""`quantization_config`: which layers are quantised, and how.

What compressed-tensors (llm-compressor) writes for W8A8:

    {"quant_method": "compressed-tensors", "format": "int-quantized", "ignore": ["lm_head"],
     "config_groups": {"group_0": {"targets": ["Linear"], "weights": {...},
                                   "input_activations": {...}}}}

Keys come and go between its versions: one that says nothing (null, false, empty) is passed over;
one that says something which is not understood is refused by name. AutoAWQ's and GPTQ's forms are
in `config_int4.py`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .config_int4 import W4A16, Int4Fields
from .fields import Fields, shown
from .files import read_json

# What AutoGPTQ and AutoAWQ wrote before config.json had room for it.
_OLD_FILES = {"quantize_config.json": "gptq", "quant_config.json": "awq"}
_FORMATS = ("int-quantized", "naive-quantized")
_MAX_PATTERN = 300
_MAX_MATCHED = 128
_MAX_REPEATS = 5


@dataclass(frozen=True)
class W8A8Scheme:
    """How the Linears of one group are quantised."""

    dynamic: bool
    """Activation scales (and zero points) at run time, not from the checkpoint."""
    symmetric: bool
    """Activations without zero points. (Weights never have them.)"""
    per_token: bool
    """Dynamic: a scale for each token, or one for all."""
    per_channel: bool
    """A weight scale for each output channel, or one for all."""

    @property
    def term(self) -> str | None:
        """The name of the azp term that a layer of this scheme needs."""
        if self.symmetric:
            return None
        return "azp_adj" if self.dynamic else "azp_with_adj"

    def __str__(self) -> str:
        return (
            f"{'dynamic' if self.dynamic else 'static'} "
            f"{'symmetric' if self.symmetric else 'asymmetric'}, "
            f"per {'token' if self.per_token else 'tensor'}, "
            f"weights per {'channel' if self.per_channel else 'tensor'}"
        )


@dataclass(frozen=True)
class W8A8:
    """The groups of a compressed-tensors checkpoint.

    Attributes:
        groups: targets and scheme. A target is a module's name, "re:" and a regular expression that
            matches from the start of the name, or the name of a class.
        ignore: the same, of modules that stay float.
    """

    groups: tuple[tuple[tuple[str, ...], W8A8Scheme], ...]
    ignore: tuple[str, ...]

    def scheme_of(self, name: str, classes: Iterable[str] = ("Linear",)) -> W8A8Scheme | None:
        """The scheme of a module, by its name and its class with the bases; None: it stays float.

        A name goes before a pattern, a pattern before a class.
        """
        classes = tuple(classes)
        if any(_rank(name, classes, target) is not None for target in self.ignore):
            return None
        found = [
            (rank, at)
            for at, (targets, _) in enumerate(self.groups)
            for target in targets
            if (rank := _rank(name, classes, target)) is not None
        ]
        return self.groups[min(found)[1]][1] if found else None


def _rank(name: str, classes: tuple[str, ...], target: str) -> int | None:
    """How closely a target matches: 0 by name, 1 by pattern, 2 by class, None not at all."""
    if target.startswith("re:"):
        if len(name) > _MAX_MATCHED:
            raise ValueError(
                f"a module name must have at most {_MAX_MATCHED} characters where quantization_"
                f"config has patterns, got {len(name)}: {name[:60]}..."
            )
        return 1 if re.match(target[3:], name) else None
    return 0 if target == name else 2 if target in classes else None


def read_quantization(folder: Path, config: Mapping[str, Any]) -> W8A8 | W4A16 | None:
    """What config.json (or an older file beside it) says; None: the checkpoint is float.

    Raises:
        ValueError: a method or a setting that this library does not serve, named.
    """
    where = str(folder / "config.json")
    for key in ("quantization_config", "compression_config"):  # the second until 2024
        fields = config.get(key)
        if fields is not None:
            return _quantization(f"{where}: {key}", fields)
    for name, method in _OLD_FILES.items():
        if (folder / name).exists():
            fields = {"quant_method": method, **read_json(folder / name)}
            return _quantization(str(folder / name), fields)
    return None


def _quantization(where: str, fields: Any) -> W8A8 | W4A16:
    if not isinstance(fields, dict):
        Fields(where).refuse(f"must be an object, got {shown(fields)}")
    method = fields.get("quant_method")
    if method in ("awq", "gptq"):
        return Int4Fields(where).quantization(method, fields)
    if method != "compressed-tensors":
        got = repr(method)[:80]
        Fields(where).refuse(f"quant_method must be compressed-tensors, awq or gptq, got {got}")
    return _Reader(where).quantization(fields)


class _Reader(Fields):
    """Reads compressed-tensors' form."""

    def quantization(self, fields: dict[str, Any]) -> W8A8:
        if fields.get("format") not in _FORMATS:
            self.refuse(
                f"format must be one of {', '.join(_FORMATS)}, got {shown(fields.get('format'))}"
            )
        said = {"quant_method", "format", "config_groups", "ignore"}
        told = {"quantization_status", "global_compression_ratio", "version"}  # of no consequence
        self.understood("", fields, said | told)
        groups = fields.get("config_groups")
        if not isinstance(groups, dict) or not groups:
            self.refuse(f"config_groups must be an object that names groups, got {shown(groups)}")
        return W8A8(
            tuple(
                self._group(f"config_groups.{shown(name)}", group) for name, group in groups.items()
            ),
            self._targets("ignore", fields.get("ignore") or []),
        )

    def _group(self, at: str, group: Any) -> tuple[tuple[str, ...], W8A8Scheme]:
        if not isinstance(group, dict):
            self.refuse(
                f"{at} must be an object, got {shown(group)} (names of presets are not read)"
            )
        self.understood(at, group, {"targets", "weights", "input_activations", "format"})
        if group.get("format") not in (None, *_FORMATS):
            self.refuse(
                f"{at}.format must be one of {', '.join(_FORMATS)}, got {shown(group['format'])}"
            )
        targets = self._targets(f"{at}.targets", group.get("targets"))
        weights = self._int8(f"{at}.weights", group.get("weights"))
        inputs = self._int8(f"{at}.input_activations", group.get("input_activations"))
        if not weights["symmetric"]:
            self.refuse(f"{at}.weights.symmetric must be true, got false")
        if weights["dynamic"]:
            self.refuse(f"{at}.weights.dynamic must be false, got true")
        dynamic = ("token", "tensor") if inputs["dynamic"] else ("tensor",)
        self._strategy(f"{at}.weights", weights, ("channel", "tensor"))
        self._strategy(f"{at}.input_activations", inputs, dynamic)
        return targets, W8A8Scheme(
            dynamic=inputs["dynamic"],
            symmetric=inputs["symmetric"],
            per_token=inputs["strategy"] == "token",
            per_channel=weights["strategy"] == "channel",
        )

    def _int8(self, at: str, fields: Any) -> dict[str, Any]:
        """`weights` or `input_activations`, with the package's defaults filled in."""
        if not isinstance(fields, dict):
            self.refuse(f"{at} must be an object (both are 8 bits in W8A8), got {shown(fields)}")
        known = {"num_bits", "type", "symmetric", "dynamic", "strategy", "group_size"}
        told = {"observer", "observer_kwargs", "zp_dtype", "scale_dtype"}  # how it was calibrated
        self.understood(at, fields, known | told)
        for key, wanted in (("num_bits", 8), ("type", "int")):
            got = fields.get(key, wanted)
            if got != wanted:
                self.refuse(f"{at}.{key} must be {wanted}, got {repr(got)[:80]}")
        made = {
            "symmetric": fields.get("symmetric", True),
            "dynamic": fields.get("dynamic", False),
            "strategy": fields.get("strategy"),
        }
        group_size = fields.get("group_size")
        if group_size not in (None, -1):
            self.refuse(f"{at}.group_size must be null, got {repr(group_size)[:80]}")
        if made["strategy"] is None:
            made["strategy"] = "tensor" if group_size is None else "channel"
        for key in ("symmetric", "dynamic"):
            if not isinstance(made[key], bool):
                self.refuse(f"{at}.{key} must be true or false, got {repr(made[key])[:80]}")
        return made

    def _strategy(self, at: str, fields: dict[str, Any], choices: tuple[str, ...]) -> None:
        if fields["strategy"] not in choices:
            self.refuse(
                f"{at}.strategy must be {' or '.join(choices)} with dynamic={fields['dynamic']}, "
                f"got {shown(fields['strategy'])}"
            )

    def _targets(self, at: str, targets: Any) -> tuple[str, ...]:
        names = self.strings(at, targets)
        for name in names:
            if name.startswith("re:"):
                self._pattern(at, name[3:])
        return names

    def _pattern(self, at: str, pattern: str) -> None:
        """A pattern must not be able to run for ever: few repeats, and none of a group."""
        try:
            re.compile(pattern)
        except (re.error, OverflowError, RecursionError) as error:
            self.refuse(f"{at}: {pattern[:80]!r} is no regular expression: {error}")
        bare = re.sub(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]", "x", pattern)  # no escapes, no classes
        if re.search(r"\)[*+{]", bare):
            self.refuse(f"{at}: a pattern must not repeat a group, got {pattern[:80]!r}")
        repeats = len(re.findall(r"[*+{]", bare))
        if len(pattern) > _MAX_PATTERN or repeats > _MAX_REPEATS:
            self.refuse(
                f"{at}: a pattern must have at most {_MAX_PATTERN} characters and {_MAX_REPEATS} "
                f"repeats, got {len(pattern)} and {repeats}: {pattern[:80]!r}"
            )
