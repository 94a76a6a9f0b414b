"""What an assertion found, as a value; the message, JUnit and HTML are views of it."""

from __future__ import annotations

import dataclasses
import math
import os
import shlex
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from qtune.report.words import counted

if TYPE_CHECKING:
    import pandas as pd

HEADLINE_COLUMNS = 80
WORST_LAYERS = 5
LAYERS, OUTPUTS, PORTS, PATTERNS = "layers", "outputs", "ports", "patterns"
_IN_ORDER = {LAYERS: "layer", PORTS: "port", PATTERNS: "pattern"}
"""What runs one behind the other, so that there is a first bad one."""
RERUN_VARIABLE = "QTUNE_RERUN"
"""Environment variable of the pytest plugin: id of the current test, tab, the command to run it."""


@dataclass(frozen=True, slots=True)
class LayerResult:
    """One operator under a check, in order of execution.

    ``value``: what was measured; ``badness``: larger is worse. ``differing`` and ``saturated``:
    shares (0 to 1) of the codes. ``scale`` is ``None`` for float results, ``shape`` where the
    check looked at no tensor. ``source``: the line of the model's code, such as ``net.py:12``.
    ``found``: what was found, in words, where ``value`` does not say it.
    """

    name: str
    value: float | None
    ok: bool
    badness: float
    shape: tuple[int, ...] | None = None
    dtype: str = ""
    scale: float | None = None
    differing: float | None = None
    saturated: float | None = None
    source: str = ""
    found: str = ""

    def line(self) -> str:
        """One line for a failure message."""
        place = f" ({self.source})" if self.source else ""
        parts = [f"{self.name}{place}: {self.found or _number(self.value)}", self.dtype]
        if self.shape is not None:
            parts.append(f"shape {tuple(self.shape)}")
        if self.scale is not None:
            parts.append(f"scale {self.scale:.7g}")
        if self.differing is not None:
            parts.append(f"{self.differing:.2%} of the codes differ")
        if self.saturated is not None:
            parts.append(f"{self.saturated:.2%} saturated")
        return printable(", ".join(part for part in parts if part))


@dataclass(frozen=True, slots=True)
class AssertionResult:
    """The outcome of one assertion.

    ``where`` is the layer or output that decided, ``got`` and ``limit`` what was found there and
    what was allowed. ``metrics`` holds every scalar measured. ``parts``: what ``layers`` are:
    layers, outputs, ports or patterns (of several operators). ``table`` is free text below the
    layers; ``advice`` says what to do. ``artefact`` and ``provenance``: the file of the model under
    test, and what it was made of and with, where known. ``baseline``: what was found before, as
    text, where the check compares with a stored value.
    """

    check: str
    model: str
    ok: bool
    where: str
    got: str
    limit: str
    metrics: Mapping[str, float | None] = field(default_factory=dict)
    limits: Mapping[str, float] = field(default_factory=dict)
    layers: Sequence[LayerResult] = ()
    measured: str = ""
    parts: str = LAYERS
    table: str = ""
    advice: str = ""
    artefact: str | None = None
    provenance: Mapping[str, object] = field(default_factory=dict)
    baseline: str = ""

    def __bool__(self) -> bool:
        return self.ok

    def __str__(self) -> str:
        """The headline if all is well, else the whole message."""
        return self.headline if self.ok else self.message()

    def __repr__(self) -> str:
        return f"<AssertionResult {'ok' if self.ok else 'FAIL'} {self.headline}>"

    @property
    def headline(self) -> str:
        """The first line: where, got, limit; at most 80 columns."""
        tail = printable(f": got {self.got}, limit {self.limit}")
        head = f"{self.check}: " if self.where else self.check
        where = printable(self.where)
        room = HEADLINE_COLUMNS - columns(head) - columns(tail)
        if columns(where) > room:  # the end of a path says more than its beginning
            end = _last_columns(where, room - 3)
            head, where = (head, f"...{end}") if end else (self.check, "")
        return _first_columns(head + where + tail, HEADLINE_COLUMNS)

    def message(self) -> str:
        """The whole text of a failure."""
        lines = [self.headline, f"model: {printable(self.model)}"]
        bad = [layer for layer in self.layers if not layer.ok]
        if bad:
            worst = sorted(bad, key=_worst_first)[:WORST_LAYERS]
            count = counted(len(bad), f"bad {self.parts.removesuffix('s')}")
            lines.append(f"worst of {count} ({self.measured}):")
            lines += [f"  {layer.line()}" for layer in worst]
        if bad and self.parts in _IN_ORDER:
            one = _IN_ORDER[self.parts]
            lines.append(f"first bad {one} in order of execution: {bad[0].line()}")
        lines += [text for text in (self.table, self.advice) if text]
        if self.artefact:
            lines.append(f"artefact: {self.artefact}")
        command = rerun_command()
        if command:
            lines.append(f"run again: {command}")
        # xdist ends the session over a text with lone surrogates
        return "\n".join(map(printable, "\n".join(lines).split("\n")))

    def to_dict(self) -> dict[str, Any]:
        """Plain containers (the values may still be NumPy or torch scalars)."""
        data = {
            f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.name != "layers"
        }
        data["layers"] = [dataclasses.asdict(layer) for layer in self.layers]
        data["headline"] = self.headline
        return data

    def to_pandas(self) -> pd.DataFrame:
        """One row per layer."""
        import pandas as pd

        return pd.DataFrame([dataclasses.asdict(layer) for layer in self.layers])


def rerun_command() -> str | None:
    """The command that runs the current test again, when pytest runs one.

    The plugin knows it exactly; without the plugin it follows from pytest's own variable.
    """
    current = os.environ.get("PYTEST_CURRENT_TEST", "").rpartition(" (")[0]
    test, _, command = os.environ.get(RERUN_VARIABLE, "").partition("\t")
    if current and test == current:  # else it is that of a pytest outside of this one
        return command
    return f"pytest {shlex.quote(current)}" if current else None


def printable(text: str) -> str:
    """``text`` in one line: control characters and what no encoding has are written as escapes."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def columns(text: str) -> int:
    """Columns of a terminal that ``text`` takes: wide characters two, accents that combine none.

    >>> columns("conv"), columns("\u5377\u79ef"), columns("e\u0301")
    (4, 4, 1)
    """
    return sum(map(_width, text))


def _width(character: str) -> int:
    if unicodedata.combining(character):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def _first_columns(text: str, room: int) -> str:
    taken = 0
    for index, character in enumerate(text):
        taken += _width(character)
        if taken > room:
            return text[:index]
    return text


def _last_columns(text: str, room: int) -> str:
    return _first_columns(text[::-1], room)[::-1] if room > 0 else ""


def _worst_first(layer: LayerResult) -> tuple[bool, float]:
    """NaN is worse than any number."""
    return not math.isnan(layer.badness), -layer.badness


def _number(value: float | None) -> str:
    return "n/a" if value is None else f"{value:.6g}"
