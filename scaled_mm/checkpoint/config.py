"""`quantization_config`: which layers are quantised, and how.

What compressed-tensors (llm-compressor) writes for W8A8:

    {"quant_method": "compressed-tensors", "format": "int-quantized", "ignore": ["lm_head"],
     "config_groups": {"group_0": {"targets": ["Linear"], "weights": {...},
                                   "input_activations": {...}}}}

and for W4A16 and W8A16 the same with the format "pack-quantized", where input_activations is null;
for W4A8 it is int8, dynamic, by token, and the format either of the two.

Keys come and go between its versions: one that says nothing (null, false, empty) is passed over;
one that says something which is not understood is refused by name. AutoAWQ's, GPTQ's and
AutoRound's forms are in `config_awq_gptq.py`, that of int8 in blocks in `config_blocks.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from os.path import lexists
from pathlib import Path
from typing import Any, Generic, TypeVar

from ..ops.rotate import BLOCKS
from ..quantization.blockwise_int8 import METHOD as BLOCKS_OF_INT8
from ..quantization.compressed_tensors import PackedScheme, W8A8Scheme
from .config_awq_gptq import AwqGptq, AwqGptqFields
from .config_blocks import BlockFields, BlockInt8
from .fields import Fields, read_json, shown
from .targets import Targets

# What AutoGPTQ and AutoAWQ wrote before config.json had room for it.
_OLD_FILES = {"quantize_config.json": "gptq", "quant_config.json": "awq"}
_TWO_LEVELS = ("qoq", "qserve")
_MAX_GROUPS = 32
_FORMATS = ("int-quantized", "naive-quantized")
_PACKED = "pack-quantized"
_FOLDED = ("weight_input", "weight_output")
"""Locations of transforms that are in the weights, of which a reader need know nothing."""
_ORDERS_OF_GPTQ = ("static", "weight")
"""GPTQ went through the columns in another order and put them back; "group" leaves them moved."""


Scheme = TypeVar("Scheme", W8A8Scheme, PackedScheme)


@dataclass(frozen=True)
class _Groups(Generic[Scheme]):
    """The groups of a compressed-tensors checkpoint.

    Attributes:
        groups: the modules of each, and their scheme.
        ignore: modules that stay float.
    """

    groups: tuple[tuple[Targets, Scheme], ...]
    ignore: Targets

    def scheme_of(self, name: str, classes: Iterable[str] = ("Linear",)) -> Scheme | None:
        """The scheme of a module, by its name and its class with the bases; None: it stays float.

        A name goes before a pattern, a pattern before a class.
        """
        classes = tuple(classes)
        if self.ignore.rank(name, classes) is not None:
            return None
        found = [
            (rank, at)
            for at, (targets, _) in enumerate(self.groups)
            if (rank := targets.rank(name, classes)) is not None
        ]
        return self.groups[min(found)[1]][1] if found else None


@dataclass(frozen=True)
class W8A8(_Groups[W8A8Scheme]):
    """The groups of a compressed-tensors checkpoint with int8 weights and activations.

    Attributes:
        rotated: modules that rotate their input, those of them that do not, and the block.
    """

    rotated: tuple[tuple[Targets, Targets, int], ...] = ()

    def scheme_of(self, name: str, classes: Iterable[str] = ("Linear",)) -> W8A8Scheme | None:
        classes = tuple(classes)
        scheme = super().scheme_of(name, classes)
        for targets, ignore, block in self.rotated:
            if scheme is None:
                break
            if targets.rank(name, classes) is not None and ignore.rank(name, classes) is None:
                scheme = replace(scheme, rotate=block)
        return scheme


class PackedWeights(_Groups[PackedScheme]):
    """The groups of a compressed-tensors checkpoint with packed weights of 4 or 8 bits, or with
    weights of 4 bits in bytes."""

    @property
    def in_bytes(self) -> bool:
        """Of all groups or none."""
        return self.groups[0][1].in_bytes

    def __str__(self) -> str:
        return ", ".join(sorted({str(scheme) for _, scheme in self.groups}))


Quantization = W8A8 | PackedWeights | AwqGptq | BlockInt8


def read_quantization(folder: Path, config: Mapping[str, Any]) -> Quantization | None:
    """What config.json (or an older file beside it) says; None: the checkpoint is float.

    Raises:
        ValueError: a method or a setting that this library does not serve, named.
    """
    where = str(folder / "config.json")
    for key in ("quantization_config", "compression_config"):  # the second until 2024
        fields = config.get(key)
        if fields is not None:
            return read_settings(f"{where}: {key}", fields)
    for name, method in _OLD_FILES.items():
        if lexists(folder / name):  # a broken link is refused by name
            fields = {"quant_method": method, **read_json(folder / name)}
            return read_settings(str(folder / name), fields)
    return None


def read_settings(where: str, fields: Any) -> Quantization:
    """What a quantization_config says; where: in which file and key it stood, for a refusal.

    Raises:
        ValueError: as for `read_quantization`.
    """
    if not isinstance(fields, dict):
        Fields(where).refuse(f"must be an object, got {shown(fields)}")
    method = fields.get("quant_method")
    if method in ("awq", "gptq"):
        return AwqGptqFields(where).quantization(method, fields)
    if method == "auto-round":
        return AwqGptqFields(where).auto_round(fields)
    if method == BLOCKS_OF_INT8:
        return BlockFields(where).quantization(fields)
    if method in _TWO_LEVELS:
        reason = "an integer of a group times a float of a channel is no scale of 16 bits"
        Fields(where).refuse(f"quant_method {method} (QServe) is not served: {reason}")
    if method != "compressed-tensors":
        rule = "quant_method must be compressed-tensors, awq, gptq, auto-round or blockwise_int8"
        Fields(where).refuse(f"{rule}, got {repr(method)[:80]}")
    return _Reader(where).quantization(fields)


class _Reader(Fields):
    """Reads compressed-tensors' form."""

    def quantization(self, fields: dict[str, Any]) -> W8A8 | PackedWeights:
        stored = fields.get("format")
        formats = (_PACKED,) if stored == _PACKED else _FORMATS
        if stored not in formats:
            known = ", ".join((*_FORMATS, _PACKED))
            self.refuse(f"format must be one of {known}, got {shown(stored)}")
        said = {"quant_method", "format", "config_groups", "ignore", "transform_config"}
        low = stored == _PACKED or self._has_4_bits(fields.get("config_groups"))
        rotated = self._transforms(fields.get("transform_config"), not low)
        told = {"quantization_status", "global_compression_ratio", "version"}  # of no consequence
        self.understood("", fields, said | told)
        groups = fields.get("config_groups")
        if not isinstance(groups, dict) or not groups:
            self.refuse(f"config_groups must be an object that names groups, got {shown(groups)}")
        if len(groups) > _MAX_GROUPS:
            self.refuse(f"config_groups must be at most {_MAX_GROUPS}, got {len(groups)}")
        ignore = self._targets("ignore", fields.get("ignore") or [])
        if low:
            found = self._groups(groups, formats, self._packed_scheme)
            marked = ((x, replace(scheme, in_bytes=stored != _PACKED)) for x, scheme in found)
            return PackedWeights(tuple(marked), ignore)
        return W8A8(self._groups(groups, formats, self._w8a8_scheme), ignore, rotated)

    def _has_4_bits(self, groups: Any) -> bool:
        """Whether weights of int-quantized groups, all or none, have 4 bits."""
        found = {}
        for name, group in groups.items() if isinstance(groups, dict) else ():
            weights = group.get("weights") if isinstance(group, dict) else None
            found[isinstance(weights, dict) and weights.get("num_bits") == 4] = name
        if len(found) > 1:
            got = f"4 bits in {shown(found[True])} and not in {shown(found[False])}"
            self.refuse(f"config_groups must have weights all of 4 or all of 8 bits, got {got}")
        return True in found

    def _transforms(self, config: Any, online: bool) -> tuple[tuple[Targets, Targets, int], ...]:
        """Rotations of inputs, if `online` ones are allowed. Of weights the stored ones have
        theirs already."""
        at, made = "transform_config", []
        if config in (None, {}):
            return ()
        self.understood(at, self.object(at, config), {"config_groups"})
        groups = self.object(f"{at}.config_groups", config.get("config_groups"))
        for name, group in groups.items():
            at = f"transform_config.config_groups.{shown(name)}"
            told = {"type", "apply", "randomize", "head_dim", "precision"}
            self.understood(at, self.object(at, group), told)  # not requires_grad
            places = group.get("apply") or []
            if not isinstance(places, list):
                self.refuse(f"{at}.apply must be a list, got {shown(places)}")
            for place in places:
                location = self.object(f"{at}.apply", place).get("location")
                if location == "input" and online:
                    made.append(self._rotation(at, group, place, places))
                elif location not in _FOLDED:
                    rule = f"be {' or '.join(_FOLDED)} (others change activations at run time)"
                    self.refuse(f"{at}.apply.location must {rule}, got {shown(location)}")
        return tuple(made)

    def _rotation(
        self, at: str, group: dict[str, Any], place: dict[str, Any], places: list[dict[str, Any]]
    ) -> tuple[Targets, Targets, int]:
        """One of an input: Sylvester's matrix over blocks, with the weight's to match."""
        choices: dict[str, tuple[Any, ...]] = {"type": ("hadamard",), "head_dim": BLOCKS}
        for key, known in choices.items():
            if type(got := group.get(key)) is not type(known[0]) or got not in known:
                rule = f"one of {', '.join(map(str, known))} where location is input"
                self.refuse(f"{at}.{key} must be {rule}, got {shown(got)}")
        if group.get("randomize"):
            self.refuse(f"{at}.randomize must be false where location is input, got true")
        self.understood(f"{at}.apply", place, {"targets", "ignore", "location", "inverse"})
        said = [(x.get("targets"), x.get("ignore") or [], x.get("location")) for x in places]
        names, ignore = place.get("targets"), place.get("ignore") or []
        if (names, ignore, "weight_input") not in said:
            self.refuse(f"{at}.apply must have weight_input for the targets of input, got none")
        targets = self._targets(f"{at}.apply.targets", names)
        return targets, self._targets(f"{at}.apply.ignore", ignore), group["head_dim"]

    def _groups(
        self,
        groups: dict[str, Any],
        formats: tuple[str, ...],
        scheme: Callable[[str, dict[str, Any]], Scheme],
    ) -> tuple[tuple[Targets, Scheme], ...]:
        made = []
        for name, group in groups.items():
            at = f"config_groups.{shown(name)}"
            if not isinstance(group, dict):
                self.refuse(
                    f"{at} must be an object, got {shown(group)} (names of presets are not read)"
                )
            self.understood(at, group, {"targets", "weights", "input_activations", "format"})
            if group.get("format") not in (None, *formats):
                self.refuse(
                    f"{at}.format must be one of {', '.join(formats)}, got {shown(group['format'])}"
                )
            targets = self._targets(f"{at}.targets", group.get("targets"))
            made.append((targets, scheme(at, group)))
        return tuple(made)

    def _w8a8_scheme(self, at: str, group: dict[str, Any]) -> W8A8Scheme:
        weights = self._int8(f"{at}.weights", group.get("weights"))
        inputs = self._int8(f"{at}.input_activations", group.get("input_activations"))
        if not weights["symmetric"]:
            self.refuse(f"{at}.weights.symmetric must be true, got false")
        if weights["dynamic"]:
            self.refuse(f"{at}.weights.dynamic must be false, got true")
        dynamic = ("token", "tensor") if inputs["dynamic"] else ("tensor",)
        self._strategy(f"{at}.weights", weights, ("channel", "tensor"))
        self._strategy(f"{at}.input_activations", inputs, dynamic)
        return W8A8Scheme(
            dynamic=inputs["dynamic"],
            symmetric=inputs["symmetric"],
            per_token=inputs["strategy"] == "token",
            per_channel=weights["strategy"] == "channel",
        )

    def _int8(self, at: str, fields: Any) -> dict[str, Any]:
        """`weights` or `input_activations` of W8A8."""
        if not isinstance(fields, dict):
            self.refuse(f"{at} must be an object (both are 8 bits in W8A8), got {shown(fields)}")
        made = self._arguments(at, fields, bits=(8,), orders=_ORDERS_OF_GPTQ)
        if made["group_size"] != -1:
            self.refuse(f"{at}.group_size must be null, got {made['group_size']}")
        if made["strategy"] is None:
            made["strategy"] = "tensor" if fields.get("group_size") is None else "channel"
        return made

    def _packed_scheme(self, at: str, group: dict[str, Any]) -> PackedScheme:
        inputs = group.get("input_activations")
        int8_input = None if inputs is None else self._int8_input(f"{at}.input_activations", inputs)
        at = f"{at}.weights"
        fields = self.object(at, group.get("weights"))
        bits = (4, 8) if int8_input is None else (4,)
        made = self._arguments(at, fields, bits=bits, orders=(*_ORDERS_OF_GPTQ, "group"))
        if made["dynamic"]:
            self.refuse(f"{at}.dynamic must be false, got true")
        grouped = made["group_size"] != -1
        if made["strategy"] is None:
            made["strategy"] = "group" if grouped else "channel"
        if made["strategy"] != ("group" if grouped else "channel"):
            self.refuse(
                f"{at}.strategy must be group with a group_size, channel without, "
                f"got {shown(made['strategy'])} and {made['group_size']}"
            )
        act_order = fields.get("actorder") == "group"
        kinds = made["bits"], made["group_size"], made["symmetric"], act_order
        if int8_input is not None and made["group_size"] % 32 and grouped:
            rule = "must be null or a multiple of 32 with int8 input_activations"
            self.refuse(f"{at}.group_size {rule}, got {made['group_size']}")
        return PackedScheme(*kinds, int8_input)

    def _int8_input(self, at: str, fields: Any) -> str:
        """`input_activations` of packed weights: each token by its own range."""
        made = self._int8(at, fields)
        if not made["dynamic"]:
            self.refuse(f"{at}.dynamic must be true with weights of 4 bits, got false")
        self._strategy(at, made, ("token",))
        return "symmetric" if made["symmetric"] else "asymmetric"

    def _arguments(
        self, at: str, fields: dict[str, Any], bits: tuple[int, ...], orders: tuple[str, ...]
    ) -> dict[str, Any]:
        """What `weights` or `input_activations` says, with the package's defaults filled in;
        group_size -1: none."""
        known = {"num_bits", "type", "symmetric", "dynamic", "strategy", "group_size"}
        told = {"observer", "observer_kwargs", "zp_dtype", "scale_dtype"}  # how it was calibrated
        if fields.get("actorder") in orders:
            told.add("actorder")
        self.understood(at, fields, known | told)
        choices: dict[str, tuple[Any, ...]] = {"num_bits": bits, "type": ("int",)}
        said = {"num_bits": fields.get("num_bits", 8), "type": fields.get("type", "int")}
        for key, wanted in choices.items():
            if type(said[key]) is not type(wanted[0]) or said[key] not in wanted:
                rule = " or ".join(map(str, wanted))
                self.refuse(f"{at}.{key} must be {rule}, got {repr(said[key])[:80]}")
        size = fields.get("group_size")
        if size is not None and (type(size) is not int or (size < 1 and size != -1)):
            self.refuse(f"{at}.group_size must be null, -1 or at least 1, got {repr(size)[:80]}")
        made = {
            "bits": said["num_bits"],
            "symmetric": fields.get("symmetric", True),
            "dynamic": fields.get("dynamic", False),
            "strategy": fields.get("strategy"),
            "group_size": -1 if size is None else size,
        }
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

    def _targets(self, at: str, value: Any) -> Targets:
        targets = Targets(self.strings(at, value))
        targets.check(at, self)
        return targets
