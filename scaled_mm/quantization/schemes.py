"""`Scheme` and `WeightScheme`: how a layer is quantised; and their names."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any

from ..nn.weight_only_linear import check_int8_input
from ..ops.rotate import BLOCKS
from .blockwise_int8 import BlockScheme as BlockScheme


@dataclass(frozen=True)
class Scheme:
    """How the activations of a layer are quantised; weights always are per output channel.

    Args:
        dynamic: True: scales at run time. False: one for the layer, from calibration.
        symmetric: True: no zero point.
        per_token: dynamic only: one scale for each token (True, and None), or one for the whole
            activation (False).
        rotate: rotate weight and activation over blocks of so many columns, 16 to 512, as
            `quantize_int8` does. As a name: `-rotate128` behind any of `SCHEMES`.
    """

    dynamic: bool = True
    symmetric: bool = True
    per_token: bool | None = None
    rotate: int | None = None

    def __post_init__(self) -> None:
        if self.rotate is not None and self.rotate not in BLOCKS:
            raise ValueError(f"rotate must be one of {BLOCKS}, got {self.rotate}")
        if self.per_token and not self.dynamic:
            raise ValueError("per_token must be False when dynamic=False, got per_token=True")

    @property
    def static(self) -> bool:
        """Whether calibration has to reach the layer."""
        return not self.dynamic

    def options(self) -> dict[str, Any]:
        """The arguments of `ScaledLinear`."""
        return {
            "dynamic": self.dynamic,
            "symmetric": self.symmetric,
            "per_token": self.per_token,
            "rotate": self.rotate,
        }


@dataclass(frozen=True)
class WeightScheme:
    """How the weight of a layer is quantised whose activations stay in 16-bit float, or are int8.

    As a name: `W8A16` (a scale for each output channel) or `W4A16` (groups of 128 input features),
    as compressed-tensors means them; with `-g64` behind it for groups of 64 (or any other number)
    or `-channel` for a scale for each output channel, and then `-asymmetric` for zero points.
    `W4A8` is W4A16 with int8 activations, each token by its own range; with
    `-asymmetric-input` behind it with zero points. torchao's recipe has its name too:
    `int8_dynamic_activation_int4_weight` is `W4A8-g32-asymmetric-input`.

    Args:
        bits: of a weight, 8 or 4.
        group_size: input features that share a scale; -1: all of them.
        symmetric: True: no zero points.
        int8_input: None: activations stay float. "symmetric" or "asymmetric": as
            `WeightOnlyLinear` has them.
    """

    bits: int = 8
    group_size: int = -1
    symmetric: bool = True
    int8_input: str | None = None

    static = False  # nothing is calibrated

    def __post_init__(self) -> None:
        if self.bits not in (4, 8):
            raise ValueError(f"bits must be 4 or 8, got {self.bits}")
        if self.group_size != -1 and self.group_size < 1:
            raise ValueError(f"group_size must be -1 or at least 1, got {self.group_size}")
        if self.int8_input is not None:  # of K columns it knows no more than groups of 32
            check_int8_input(self.int8_input, self.bits, max(0, self.group_size), 0)

    def __str__(self) -> str:
        channel = "" if self.bits == 8 else "-channel"
        group = channel if self.group_size == -1 else f"-g{self.group_size}"
        zeros = "" if self.symmetric else "-asymmetric"
        inputs = "-asymmetric-input" if self.int8_input == "asymmetric" else ""
        return f"w{self.bits}a{8 if self.int8_input else 16}{group}{zeros}{inputs}"

    def options(self) -> dict[str, Any]:
        """The arguments of `WeightOnlyLinear.from_linear`."""
        made = {"bits": self.bits, "group_size": self.group_size, "symmetric": self.symmetric}
        return made | ({"int8_input": self.int8_input} if self.int8_input else {})


AnyScheme = Scheme | WeightScheme | BlockScheme
_WEIGHT_ONLY = re.compile(
    r"w(?:([48])a16|4(a8))(?:-(?:g([1-9][0-9]{0,8})|(channel)))?(-asymmetric(?!-input))?"
    r"(-asymmetric-input)?",
    re.IGNORECASE,
)
NAMES_OF_WEIGHTS = "W8A8, W8A16, W4A16, W4A8 (-gN for groups of N, -channel, -asymmetric), blocks"
"""The field's names; W8A8 is `dynamic`, blocks are int8 with scales of 128 x 128."""
IN_BLOCKS = "blocks"

TORCHAO = "int8_dynamic_activation_int4_weight"

SCHEMES = {
    "dynamic": Scheme(),
    "dynamic-asymmetric": Scheme(symmetric=False),
    "dynamic-tensor": Scheme(per_token=False),
    "dynamic-tensor-asymmetric": Scheme(symmetric=False, per_token=False),
    "static": Scheme(dynamic=False),
    "static-asymmetric": Scheme(dynamic=False, symmetric=False),
}


def known_scheme(name: str) -> AnyScheme | None:
    """A scheme by its name; None: no scheme has it."""
    if name.lower() == "w8a8":
        return SCHEMES["dynamic"]
    if name == IN_BLOCKS:
        return BlockScheme()
    if name == TORCHAO:
        return WeightScheme(4, 32, int8_input="asymmetric")
    if name in SCHEMES:
        return SCHEMES[name]
    base, _, block = name.rpartition("-rotate")
    if base and block.isdecimal() and isinstance(scheme := known_scheme(base), Scheme):
        return replace(scheme, rotate=int(block))
    found = _WEIGHT_ONLY.fullmatch(name)
    if found is None:
        return None
    bits, int8, group, channel, asymmetric, zeros = found.groups()
    if zeros and not int8:
        return None
    usual = 128 if bits != "8" and not channel else -1
    inputs = ("asymmetric" if zeros else "symmetric") if int8 else None
    return WeightScheme(int(bits or 4), int(group or usual), not asymmetric, inputs)


def scheme_of(scheme: AnyScheme | str) -> AnyScheme:
    """A scheme by its name; ValueError lists them."""
    if not isinstance(scheme, str):
        return scheme
    found = known_scheme(scheme)
    if found is None:
        known = f"{', '.join(SCHEMES)}, {NAMES_OF_WEIGHTS}"
        raise ValueError(f"scheme must be one of {known}, got {scheme!r}")
    return found


def block_of(scheme: AnyScheme) -> int | None:
    """Columns of the blocks over which the scheme rotates its input; None: it does not."""
    return scheme.rotate if isinstance(scheme, Scheme) else None


def name_of(scheme: AnyScheme) -> str:
    """The name of a scheme, by which `scheme_of` finds it."""
    if isinstance(scheme, BlockScheme):
        return IN_BLOCKS
    if isinstance(scheme, WeightScheme):
        return str(scheme)
    per_token = scheme.dynamic if scheme.per_token is None else scheme.per_token
    kind = (scheme.dynamic, scheme.symmetric, per_token)
    names = {
        (known.dynamic, known.symmetric, known.dynamic and known.per_token is None): name
        for name, known in SCHEMES.items()
    }
    return names[kind] + (f"-rotate{scheme.rotate}" if scheme.rotate else "")
