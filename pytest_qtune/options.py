"""Every option in one table; the flags, the ini keys and the docs come from it.

A marker ``@pytest.mark.qtune(march=...)`` beats the command line, which beats the ini file.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import pytest

KINDS = {
    "text": "text",
    "path": "a path",
    "switch": "no value",
    "march": "a march, such as nash-e",
    "number": "auto or a whole number from 1",
    "update": "new, all (if no value is given), or a GLOB of test and entry names",
    "operators": "nothing (all), or names and globs of operators with commas",
    "count": "a whole number from 1",
    "gates": "[GLOB:] METRIC>=NUMBER [vs baseline]; may be given several times",
}
"""What an option takes."""
_VALUE_IF_NONE = {"update": "all", "operators": "*"}
"""Kinds whose flag may stand without a value, and what it then means."""


@dataclass(frozen=True)
class Option:
    """One setting. ``flag``/``ini``: where it can be given. ``legal``: allowed values, if few."""

    name: str
    help: str
    default: Any = None
    legal: tuple[str, ...] = ()
    kind: str = "text"
    flag: bool = True
    ini: bool = True

    @property
    def flag_name(self) -> str:
        """``--qtune-<name>``."""
        return "--qtune-" + self.name.replace("_", "-")

    @property
    def ini_name(self) -> str:
        """``qtune_<name>``."""
        return "qtune_" + self.name

    @property
    def legal_text(self) -> str:
        """The legal values, in words."""
        return ", ".join(self.legal) or KINDS[self.kind]

    def given(self, config: pytest.Config) -> Any:
        """The value on the command line, ``None`` if there is none."""
        if not self.flag:
            return None
        return config.getoption(self.flag_name.lstrip("-").replace("-", "_"), None)


OPTIONS = (
    Option("html", "write one self-contained HTML page about the run to this path", kind="path"),
    Option("json", "write the data of the HTML page as JSON to this path", kind="path"),
    Option("cache_clear", "forget all cached artefacts first", False, kind="switch", ini=False),
    Option("march", "march for qtune_stages that name none", kind="march"),
    Option("threads", "torch threads per process; auto: cores / workers", "auto", kind="number"),
    Option("gates", "limits on the numbers of each model, absolute or vs baseline", kind="gates"),
    Option("update", "write baselines: only new ones, all, or those whose name fits", kind="update",
           ini=False),
    Option("update_in_ci", "let --qtune-update write although CI is set", False, kind="switch",
           ini=False),
    Option("fuzz", "fuzz operators: kernels against the reference, fake-quant against integers",
           kind="operators", ini=False),
    Option("fuzz_examples", "examples per fuzzed property (default: that of the profile)",
           kind="count"),
    Option(
        "junit", "where measured numbers go in JUnit XML", "testcase",
        legal=("testcase", "suite", "none"),
    ),
    Option("compat", "serve the toolchain's import roots by qtune's, for tests and conftests",
           False, kind="switch"),
)  # fmt: skip


QTUNE_HELP = "report on quantization: tables in the terminal, artefact cache summary"


def markdown() -> str:
    """The table of all options in docs/plugin.md."""
    rows = [("`--qtune`", "", "no value", "off", QTUNE_HELP)]
    for option in OPTIONS:
        flag = f"`{option.flag_name}`" if option.flag else ""
        ini = f"`{option.ini_name}`" if option.ini else ""
        default = {None: "none", False: "off"}.get(option.default, str(option.default))
        rows.append((flag, ini, option.legal_text, default, option.help))
    head = ("flag", "ini key", "takes", "default", "meaning")
    lines = [head, ("---",) * len(head), *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def add_options(parser: pytest.Parser) -> None:
    """Declare ``--qtune`` and everything in the table."""
    group = parser.getgroup("qtune", "quantization gates")
    group.addoption(
        "--qtune",
        action="store_true",
        default=False,
        help=QTUNE_HELP,
    )
    for option in OPTIONS:
        if option.flag:
            group.addoption(option.flag_name, default=None, help=option.help, **_action(option))
        if option.ini:
            kind: Any = "linelist" if option.kind == "gates" else None
            parser.addini(option.ini_name, option.help, type=kind, default=None)


def _action(option: Option) -> dict[str, Any]:
    """How the flag is read."""
    if option.kind == "switch":
        return {"action": "store_true"}
    if option.kind == "gates":
        return {"action": "append", "metavar": "GATE"}
    if option.kind in _VALUE_IF_NONE:
        metavar = "OPS" if option.kind == "operators" else "WHICH"
        return {"nargs": "?", "const": _VALUE_IF_NONE[option.kind], "metavar": metavar}
    return {"metavar": "VALUE"}


def get(config: pytest.Config, name: str) -> Any:
    """The value of an option: command line, else ini, else default; checked."""
    option = next(o for o in OPTIONS if o.name == name)
    value = option.given(config)
    if value is not None:
        return check(option, value, f"command line option {option.flag_name}")
    if option.ini:
        value = config.getini(option.ini_name)
        if value not in (None, "", []):
            return check(option, value, f"ini key {option.ini_name}")
    return option.default


def check(option: Option, value: Any, source: str) -> Any:
    """Return ``value`` if it is legal, else raise ``UsageError`` naming its source."""
    if value == "" and option.kind in ("path", "update"):
        raise pytest.UsageError(f"{source}: got nothing; give {KINDS[option.kind]}")
    if option.kind == "switch" and isinstance(value, str):
        return _switch(value, source)
    if option.legal and value not in option.legal:
        raise pytest.UsageError(
            f"{source}: {value!r} is not legal; choose one of: {', '.join(option.legal)}"
        )
    checks = {"march": _march, "update": _no_path, "operators": _no_path, "gates": _gates}
    if option.kind in checks:
        return checks[option.kind](value, source)
    if option.kind in ("number", "count") and value != option.default:
        if not str(value).isdecimal() or int(value) < 1:
            raise pytest.UsageError(f"{source}: {value!r} is not legal; give {option.legal_text}")
        return int(value)
    return value


def _switch(value: str, source: str) -> bool:
    """What an ini file says of a switch."""
    words = {"true": True, "1": True, "false": False, "0": False}
    if value.lower() not in words:
        raise pytest.UsageError(f"{source}: {value!r} is not legal; give true or false")
    return words[value.lower()]


def _no_path(value: str, source: str) -> str:
    """``--qtune-fuzz tests`` reads ``tests`` as its value, which nobody means."""
    if os.path.exists(value.partition("::")[0]) and "*" not in value:  # noqa: PTH110 - may be ""
        flag = source.rpartition(" ")[2]
        raise pytest.UsageError(
            f"{source}: it took the path {value!r} for its value; write the path first "
            f"(pytest {value} {flag}) or give a value with = ({flag}=... {value})"
        )
    return value


def _gates(value: Any, source: str) -> Any:
    from pytest_qtune.gate_expression import parse_all  # only where a gate is set

    return parse_all(value, source)


def _march(value: Any, source: str) -> str:
    from qtune.errors import MarchError  # only now: a run without a march never loads qtune
    from qtune.march import as_march

    try:
        return str(as_march(value))
    except MarchError as error:
        raise pytest.UsageError(f"{source}: {error}") from None


def early(config: pytest.Config, name: str) -> Any:
    """As :func:`get`, before pytest has read the rest of the command line."""
    option = next(o for o in OPTIONS if o.name == name)
    given = getattr(config.known_args_namespace, option.flag_name.lstrip("-").replace("-", "_"))
    return get(config, name) if given is None else check(option, given, option.flag_name)


def check_all(config: pytest.Config) -> None:
    """Fail at start, not in the middle of a run, on a bad value."""
    for option in OPTIONS:
        get(config, option.name)


def check_markers(items: Iterable[pytest.Item]) -> None:
    """Fail on arguments that the markers of the plugin do not know."""
    for item in items:
        for marker in item.iter_markers("qtune"):
            _check_arguments(item, marker, {"march"})
            if "march" in marker.kwargs:
                option = next(o for o in OPTIONS if o.name == "march")
                check(option, str(marker.kwargs["march"]), f"marker qtune of {item.nodeid}")
        for marker in item.iter_markers("qtune_slow"):
            _check_arguments(item, marker, set())


def _check_arguments(item: pytest.Item, marker: pytest.Mark, known: set[str]) -> None:
    unknown = sorted(set(marker.kwargs) - known)
    if unknown or marker.args:
        takes = " and ".join(f"{name}=" for name in sorted(known))
        given = ", ".join([*map(repr, marker.args), *unknown])
        raise pytest.UsageError(
            f"{item.nodeid}: marker {marker.name} takes {f'{takes} only' if takes else 'nothing'}, "
            f"got {given}"
        )
