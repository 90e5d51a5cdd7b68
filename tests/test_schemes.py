"""Names of weight-only schemes, and the values they stand for."""

import pytest
from test_weight_only_models import SCHEMES

from scaled_mm import QuantConfig, Scheme, WeightScheme
from scaled_mm.quantization.schemes import name_of, scheme_of


@pytest.mark.parametrize("name", SCHEMES)
def test_names_of_schemes(name: str) -> None:
    assert scheme_of(name) == SCHEMES[name] and name_of(SCHEMES[name]) == name
    assert QuantConfig(name).scheme_for("any") == SCHEMES[name]
    assert not SCHEMES[name].static


def test_names_of_the_field() -> None:
    """As compressed-tensors' presets: W4A16 has groups of 128, the others a scale a channel."""
    named = {"W8A8": Scheme(), "W8A16": WeightScheme(8), "W4A16": WeightScheme(4, 128)}
    named |= {"W4A8": WeightScheme(4, 128, int8_input="symmetric")}
    torchao = WeightScheme(4, 32, int8_input="asymmetric")
    named |= {"W4A8-g32-asymmetric-input": torchao}
    named |= {"int8_dynamic_activation_int4_weight": torchao}
    named |= {"W4A8-channel-asymmetric": WeightScheme(4, -1, False, "symmetric")}
    named |= {"W4A16-channel": WeightScheme(4), "W8A16-g32": WeightScheme(8, 32)}
    named |= {"static-asymmetric-rotate64": Scheme(False, False, rotate=64)}
    for name, scheme in named.items():
        assert scheme_of(name) == scheme_of(name.lower()) == scheme
    assert name_of(scheme_of("dynamic-rotate16")) == "dynamic-rotate16"


NONE = "w8 w3a16 w4a4 w4a8-g20 w4a16-asymmetric-input w4a16-g64-channel w4a16-g0 w4a16-128 "
NONE += "w4a16-g-1 w4a16-asym w4a16-rotate32 static-rotate"


@pytest.mark.parametrize("name", [*NONE.split(), " w8a16"])
def test_other_names_are_refused(name: str) -> None:
    with pytest.raises(
        ValueError, match=r"^(scheme must be one of dynamic, .*, W4A8 |group_size must be)"
    ):
        QuantConfig(name)


def test_schemes_that_are_none() -> None:
    for block in (8, 24, 1024):
        with pytest.raises(ValueError, match=rf"^rotate must be one of \(16, .*\), got {block}$"):
            QuantConfig(f"static-rotate{block}")
    with pytest.raises(ValueError, match=r"^bits must be 4 or 8, got 6$"):
        WeightScheme(6)
    with pytest.raises(ValueError, match=r"^group_size must be -1 or at least 1, got 0$"):
        WeightScheme(4, 0)
