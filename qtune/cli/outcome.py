"""What a command found, as a value; text and JSON are views of it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from os import PathLike
from typing import Any

from qtune.errors import QtuneError

OK, FAILED, WRONG_INPUT, INTERRUPTED = 0, 1, 2, 130
"""Exit statuses: all well, a gate failed, usage or input error, Ctrl-C."""


class InputError(QtuneError, ValueError):
    """The command line names a model, data or an option that can't be used."""


@dataclass(frozen=True, slots=True)
class Gate:
    """One limit that the user set, and what was found against it.

    ``name``: the option as written; ``value``: what was measured at ``where`` (names such as
    ``output``, ``case``, ``operator``), ``limit``: what is allowed. ``got``: what was found, in
    words, where one number does not say it.
    """

    name: str
    ok: bool
    value: float | None
    limit: str
    where: Mapping[str, Any] = field(default_factory=dict)
    got: str = ""

    def __bool__(self) -> bool:
        return self.ok

    def __str__(self) -> str:
        value = self.got or ("n/a" if self.value is None else f"{self.value:.6g}")
        found = f"{self.name}: got {value}, limit {self.limit}"
        where = f" ({places(self.where)})" if self.where else ""
        return f"{'ok  ' if self.ok else 'FAIL'} {found}{where}"

    def to_dict(self) -> dict[str, Any]:
        """Plain containers."""
        return {
            "gate": self.name,
            "ok": self.ok,
            "value": self.value,
            "limit": self.limit,
            **self.where,
        }


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of one command; true if every gate holds.

    ``facts``: what it worked on (model, march, data). ``result``: the command's own findings.
    ``text``: the same for a reader. ``files``: what was written. ``gates_in_text``: ``text`` shows
    the gates already.
    """

    facts: Mapping[str, Any]
    result: Mapping[str, Any]
    text: str
    gates: Sequence[Gate] = ()
    files: Sequence[str | PathLike[str]] = ()
    gates_in_text: bool = False

    def __bool__(self) -> bool:
        return all(self.gates)

    @property
    def status(self) -> int:
        """The exit status."""
        return OK if self else FAILED

    def __str__(self) -> str:
        head = [f"{name}: {value}" for name, value in self.facts.items()]
        tail = [] if self.gates_in_text else [str(gate) for gate in self.gates]
        written = [f"written: {path}" for path in self.files]
        parts = ["\n".join(head), self.text, "\n".join(tail), "\n".join(written)]
        return "\n\n".join(part for part in parts if part)

    def to_dict(self) -> dict[str, Any]:
        """Plain containers, for ``--json``."""
        return {
            "ok": bool(self),
            "exit_status": self.status,
            **self.facts,
            "result": dict(self.result),
            "gates": [gate.to_dict() for gate in self.gates],
            "files": [str(path) for path in self.files],
        }


def plain(value: Any) -> Any:
    """``value`` as JSON knows it: numbers that are not finite become texts (nan, inf, -inf)."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(item) for item in value]
    if isinstance(value, bool | int | str) or value is None:
        return value
    if hasattr(value, "item"):  # a scalar of NumPy or torch
        return plain(value.item())
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    return str(value)


def places(where: Mapping[str, Any]) -> str:
    """Names and places in a text; the name of a single output is empty and shown in quotes."""
    found = ((name, repr(place) if place == "" else place) for name, place in where.items())
    return ", ".join(f"{name} {place}" for name, place in found)
