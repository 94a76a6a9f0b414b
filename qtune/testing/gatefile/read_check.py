"""One ``[[check]]``: its keys are those of all checks, and the arguments of its kind."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import fields
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

from qtune.testing.gatefile.kinds import INPUTS, Kind, kinds
from qtune.testing.gatefile.signature import ONNX_STAGES, STAGES, Parameter
from qtune.testing.gatefile.tables import CHECK_KEYS, Check, ModelTable

if TYPE_CHECKING:
    from qtune.testing.gatefile.read import Source

SLOW = "qtune_slow"
_ID = re.compile(r"[A-Za-z0-9_.-]+")
_MARK = re.compile(r"[A-Za-z_]\w*")
_STAGE_KEYS = ("stage", "from", "to")
_COMMON = tuple(key.name for key in CHECK_KEYS if key.name not in _STAGE_KEYS)
_PER_LAYER = "per_layer"
_XFAIL = "xfail"
OF_MODEL = frozenset(f.name for f in fields(ModelTable)) & {INPUTS, "evaluate"}
"""Arguments that come from ``[model]`` where the check does not give them."""


def read_check(
    table: Mapping[str, Any], index: int, source: Source, taken: set[str], *, onnx: bool = False
) -> Check:
    """The check ``index`` (from 0); ``taken`` are the names of those before it.

    ``onnx``: the model comes from an ONNX file, and has the stages of one.
    """
    reader = _Reader(table, index, source, onnx=onnx)
    kind = reader.kind()
    return reader.check(kind, taken)


class _Reader:
    def __init__(self, table: Mapping[str, Any], index: int, source: Source, *, onnx: bool) -> None:
        self.table = table
        self.onnx = onnx
        self.place = ("check", index)
        self.what = f"[[check]] {index + 1}"
        self.source = source

    def kind(self) -> Kind:
        """The kind that the table names."""
        name, known = self.table.get("kind"), kinds()
        if name is None:
            raise self.source.error(
                f"{self.what}: kind is missing; choose one of: {', '.join(known)}", *self.place
            )
        if name not in [*known]:
            near = get_close_matches(str(name), [*known], n=1)
            hint = f"; close matches: {near[0]}" if near else ""
            raise self.source.error(
                f"{self.what}: unknown kind {name!r}{hint}; choose one of: {', '.join(known)}",
                *self.place,
                "kind",
            )
        self.what += f" ({name})"
        return known[str(name)]

    def check(self, kind: Kind, taken: set[str]) -> Check:
        """The table as a value."""
        own = kind.arguments
        known = ("kind", *kind.stage_keys, *own, *(k for k in _COMMON if k != "kind"))
        self.source.refuse_unknown(self.table, known, self.what, *self.place)
        stages = self._stages(kind)
        arguments = self._arguments(kind)
        marks = (*self._marks(), *([SLOW] if self._flag("slow") else []))
        number = int(self.place[1]) + 1
        return Check(
            kind.name,
            number,
            self._label(kind, stages, taken),
            stages,
            arguments,
            per_layer=bool(arguments.get(_PER_LAYER, False)),
            marks=marks,
            skip=self._text("skip"),
            **self._known_failures(bool(arguments.get(_PER_LAYER, False))),
        )

    def _stages(self, kind: Kind) -> tuple[str, ...]:
        found = []
        defaults = kind.default_stages(self.table, onnx=self.onnx)
        for key, subject, default in zip(kind.stage_keys, kind.subjects, defaults, strict=True):
            stage = self.table.get(key, default)
            fitting = subject.stages_of(onnx=self.onnx)
            if stage not in fitting:
                allowed = ", ".join(fitting)
                known = ONNX_STAGES if self.onnx else STAGES
                reason = "it can't look at" if stage in known else "there is no stage"
                raise self.source.error(
                    f"{self.what}: {key}: {reason} {stage!r}; choose one of: {allowed}",
                    *self.place,
                    key,
                )
            found.append(stage)
        return tuple(found)

    def _arguments(self, kind: Kind) -> dict[str, Any]:
        """By name; ``None`` is to come from ``[model]``."""
        found: dict[str, Any] = {}
        for name, parameter in kind.arguments.items():
            if name in self.table:
                found[name] = self._value(name, parameter)
            elif name in OF_MODEL and parameter.required:
                found[name] = None
            elif parameter.required:
                raise self.source.error(
                    f"{self.what}: {name} is missing; give {parameter.expected}", *self.place
                )
        return found

    def _value(self, name: str, parameter: Parameter) -> Any:
        value = self.table[name]
        if name == INPUTS:
            fits = isinstance(value, str) and bool(value) and (self.onnx or ":" in value)
            expected = "module:name or a folder" if self.onnx else "module:name"
        else:
            fits, expected = parameter.accepts(value), parameter.expected
        if not fits:
            self.source.wrong_type(self.what, name, value, expected, *self.place)
        return value

    def _label(self, kind: Kind, stages: tuple[str, ...], taken: set[str]) -> str:
        given = self._text("id")
        if given and not _ID.fullmatch(given):
            message = "letters, digits, and any of _ . -"
            self.source.wrong_type(self.what, "id", given, message, *self.place)
        if given and f"{kind.name}[{given}]" in taken:
            raise self.source.error(
                f"{self.what}: id {given!r} is taken by a check before it", *self.place, "id"
            )
        label, count = given or "-".join(stages), 1
        free = label
        while f"{kind.name}[{free}]" in taken:
            count += 1
            free = f"{label}-{count}"
        return free

    def _marks(self) -> tuple[str, ...]:
        given = self.table.get("marks", [])
        fits = isinstance(given, list) and all(
            isinstance(mark, str) and _MARK.fullmatch(mark) for mark in given
        )
        if not fits:
            self.source.wrong_type(self.what, "marks", given, "a list of names", *self.place)
        return tuple(given)

    def _known_failures(self, per_layer: bool) -> dict[str, Any]:
        """``xfail``: one reason, or one for each of some layers."""
        given = self.table.get(_XFAIL)
        if not isinstance(given, dict):
            return {_XFAIL: self._text(_XFAIL)}
        if not per_layer:
            text = "xfail names layers, but per_layer is not set; give one text"
            raise self.source.error(f"{self.what}: {text}", *self.place, _XFAIL)
        for layer, reason in given.items():
            if not isinstance(reason, str) or not reason.strip():
                place = (*self.place, _XFAIL)
                self.source.wrong_type(self.what, layer, reason, "a text, the reason", *place)
        return {"xfail_layers": given}

    def _flag(self, key: str) -> bool:
        value = self.table.get(key, False)
        if not isinstance(value, bool):
            self.source.wrong_type(self.what, key, value, "true or false", *self.place)
        return bool(value)

    def _text(self, key: str) -> str:
        value = self.table.get(key, "")
        if not isinstance(value, str) or (key in self.table and not value.strip()):
            expected = "a name" if key == "id" else "a text, the reason"
            self.source.wrong_type(self.what, key, value, expected, *self.place)
        return str(value)
