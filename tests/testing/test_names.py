"""How assertions name operators and ports."""

from __future__ import annotations

import pytest

from qtune.errors import ArgumentError
from qtune.testing.names import by_port, fits, operators_of, patterns_of, ports_of

PORTS = [
    ("quant", "output"),
    ("layer1.conv", "input-0"),
    ("layer1.conv", "weight"),
    ("layer1.conv", "output"),
    ("layer10.conv", "output"),
    ("add", "input-0"),
    ("add", "input-1"),
    ("add", "output"),
]


@pytest.mark.parametrize(
    ("pattern", "name", "fit"),
    [
        ("layer1.conv", "layer1.conv", True),
        ("layer1", "layer1.conv", True),
        ("layer1", "layer10.conv", False),
        ("", "layer1.conv", True),
        ("layer?.conv", "layer1.conv", True),
        ("*.conv", "layer10.conv", True),
        ("conv", "layer1.conv", False),
        ("a[0]", "a[0]", True),
        ("Layer1", "layer1.conv", False),
    ],
)
def test_a_name_is_exact_a_module_around_it_or_a_glob(pattern: str, name: str, fit: bool) -> None:
    assert fits(pattern, name) is fit


@pytest.mark.parametrize(
    ("pattern", "default", "found"),
    [
        ("layer1.conv", "output", [("layer1.conv", "output")]),
        ("layer1.conv", "", PORTS[1:4]),
        ("layer1 weight", "output", [("layer1.conv", "weight")]),
        ("add input", "output", PORTS[5:7]),
        ("add input-1", "output", [("add", "input-1")]),
        ("* output", "", [port for port in PORTS if port[1] == "output"]),
    ],
)
def test_a_port_is_an_operator_and_a_kind(
    pattern: str, default: str, found: list[tuple[str, str]]
) -> None:
    assert ports_of("check", "dtypes", pattern, PORTS, default) == found


def test_a_later_entry_wins_and_ports_keep_their_order() -> None:
    table = by_port("check", "dtypes", {"add": 1, "": 2, "quant": 3}, PORTS, "output")
    assert list(table.items()) == [
        (("quant", "output"), 3),
        (("layer1.conv", "output"), 2),
        (("layer10.conv", "output"), 2),
        (("add", "output"), 2),
    ]


def test_names_that_fit_nothing_are_named_with_the_closest() -> None:
    with pytest.raises(ArgumentError) as caught:
        operators_of("check", "allowed", "layer1.cnov", ["layer1.conv", "add"])
    assert str(caught.value) == (
        "check: allowed: no operator is called 'layer1.cnov'; close: layer1.conv"
    )
    with pytest.raises(ArgumentError, match="the first are: a0, a1, a2, a3, a4, and 2 more"):
        operators_of("check", "allowed", "zzz", [f"a{i}" for i in range(7)])
    with pytest.raises(ArgumentError, match="'quant' has no port 'weight'; there is: quant output"):
        ports_of("check", "dtypes", "quant weight", PORTS)
    with pytest.raises(ArgumentError, match="'quant' has no port 'outptu'; there is: quant output"):
        ports_of("check", "dtypes", "quant outptu", PORTS, "output")
    with pytest.raises(ArgumentError, match="no operator is called 'qu ant'"):
        ports_of("check", "dtypes", "qu ant", PORTS)


def test_what_is_no_name_is_refused() -> None:
    assert patterns_of("check", "allowed", "add") == ["add"]
    assert patterns_of("check", "allowed", (n for n in ("a", "b"))) == ["a", "b"]
    for wrong in (3, ["a", 3], None):
        with pytest.raises(ArgumentError, match="allowed must be names of operators but got"):
            patterns_of("check", "allowed", wrong)
    for wrong in (["add"], {3: "qint8"}):
        with pytest.raises(ArgumentError, match="dtypes must be a table by name"):
            by_port("check", "dtypes", wrong, PORTS)
