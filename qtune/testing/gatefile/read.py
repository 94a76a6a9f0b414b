"""Reads gate files; every mistake is a ``GateFileError`` with the line where it is."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from os import PathLike
from pathlib import Path
from typing import Any

from qtune.errors import MarchError, kind_of
from qtune.march import as_march
from qtune.testing.gatefile.error import GateFileError
from qtune.testing.gatefile.lines import Path as KeyPath
from qtune.testing.gatefile.lines import key_lines, line_of
from qtune.testing.gatefile.read_check import read_check
from qtune.testing.gatefile.tables import MODEL_KEYS, Check, GateFile, ModelTable

SUFFIX = ".qtune.toml"
_TABLES = ("model", "check")
_AT_LINE = re.compile(r"^(.*?) \(at line (\d+), column (\d+)\)$", re.S)
_ON_BC = frozenset({"quantized_bc", "hbm"})
_OF_TORCH = frozenset({"factory", "qconfig", "method"})
_OF_ONNX = frozenset({"quant_config", "input_dict"})
OF_TABLES = _OF_ONNX
"""Keys of ``[model]`` that may be tables."""
DATA = frozenset({"calibration", "inputs"})
"""Keys that may name a folder where the model comes from an ONNX file."""


@dataclass(frozen=True, slots=True)
class Source:
    """A file that is being read: how it is shown, and the lines of its keys."""

    shown: str
    lines: Mapping[KeyPath, int]

    def error(self, message: str, *keys: str | int) -> GateFileError:
        """An error at the line of a key, or of the table it would be in."""
        return GateFileError(f"{self.shown}:{line_of(self.lines, keys)}: {message}")

    def refuse_unknown(
        self, table: Mapping[str, Any], known: tuple[str, ...], what: str, *keys: str | int
    ) -> None:
        """Raise for the first key that the table does not take."""
        for key in table:
            if key not in known:
                near = get_close_matches(key, known, n=1)
                hint = f"; close matches: {near[0]}" if near else ""
                message = f"{what}: unknown key {key!r}{hint}; it takes {', '.join(known)}"
                raise self.error(message, *keys, key)

    def wrong_type(self, what: str, key: str, value: Any, expected: str, *keys: str | int) -> Any:
        """Raise for a value of another type."""
        came = f"{value!r} ({kind_of(value)})"
        raise self.error(f"{what}: {key} must be {expected} but is {came}", *keys, key)


def read(path: str | PathLike[str], shown: str | None = None) -> GateFile:
    """The gate file ``path``; ``shown`` is how messages call it (default: as it is given).

    Nothing of the user is imported. Raises ``GateFileError`` for a file that is no TOML, and for
    tables, keys and values that a gate file does not have.
    """
    file = Path(path)
    name = shown or str(path)
    text = _text(file, name)
    try:
        document = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # tomllib's own, too many digits or brackets
        raise _syntax_error(name, text, str(error)) from None
    source = Source(name, key_lines(text))
    for key in document:
        if key not in _TABLES:
            near = get_close_matches(key, _TABLES, n=1)
            hint = f"; close matches: {near[0]}" if near else ""
            raise source.error(f"unknown table {key!r}{hint}; expected [model] and [[check]]", key)
    model = _model(document, source)
    checks = _checks(document, source, onnx=model.onnx is not None)
    _check_needs(model, checks, source)
    return GateFile(file.absolute(), name, model, checks, source.lines)


def _text(path: Path, shown: str) -> str:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise GateFileError(f"{shown}: {error.strerror or error}") from error
    try:
        text = content.decode("utf-8-sig")  # some editors write a mark of the byte order
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise GateFileError(f"{shown}:{line}: not UTF-8, as TOML must be") from None
    return text.replace("\r\n", "\n")


def _syntax_error(shown: str, text: str, message: str) -> GateFileError:
    """``message`` of tomllib with its line in front."""
    at = _AT_LINE.match(message)
    if at is None:  # at the end of the document
        line = text.rstrip("\n").count("\n") + 1
        return GateFileError(f"{shown}:{line}: no TOML: {message}")
    return GateFileError(f"{shown}:{at[2]}: no TOML: {at[1]} (column {at[3]})")


def _model(document: Mapping[str, Any], source: Source) -> ModelTable:
    if "model" not in document:
        raise source.error('there is no [model]; it needs at least factory = "module:name"')
    table = document["model"]
    if not isinstance(table, dict):
        raise source.error(f"model must be a table, [model], but is {kind_of(table)}", "model")
    takes = {key.name: key.takes for key in MODEL_KEYS}
    source.refuse_unknown(table, tuple(takes), "[model]", "model")
    is_onnx = "onnx" in table
    for key in table:
        if key in (_OF_TORCH if is_onnx else _OF_ONNX):
            instead = "onnx" if is_onnx else "factory"
            raise source.error(f"[model]: {key} does not go with {instead}", "model", key)
    for key, value in table.items():
        if key in OF_TABLES and isinstance(value, dict):
            continue
        is_text = isinstance(value, str) and bool(value) and takes[key] != "a table"
        is_spec = takes[key] == "module:name" and not (is_onnx and key in DATA)
        if not is_text or (is_spec and ":" not in value):
            source.wrong_type("[model]", key, value, takes[key], "model")
    if "march" in table:
        try:
            as_march(table["march"])
        except MarchError as error:
            raise source.error(f"[model]: march: {error}", "model", "march") from None
    return ModelTable(**table)


def _checks(document: Mapping[str, Any], source: Source, *, onnx: bool) -> tuple[Check, ...]:
    tables = document.get("check", [])
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise source.error("check must be an array of tables: write [[check]]", "check")
    if not tables:
        raise source.error("there is no [[check]]: this file checks nothing")
    found: list[Check] = []
    for index, table in enumerate(tables):
        taken = {check.name for check in found}
        found.append(read_check(table, index, source, taken, onnx=onnx))
    return tuple(found)


def _check_needs(model: ModelTable, checks: tuple[Check, ...], source: Source) -> None:
    """What the checks need of the model must be there."""
    for check in checks:
        place = ("check", check.number - 1)
        what = f"[[check]] {check.number} ({check.kind})"
        pinned = model.artefact is not None and not check.per_layer
        for key in () if model.onnx else ("factory", "calibration"):
            if getattr(model, key) is None and not (pinned and set(check.stages) <= _ON_BC):
                raise source.error(
                    f"[model]: {key} is missing, which {what} needs; give module:name", "model"
                )
        for key, value in check.arguments.items():
            if value is None and getattr(model, key) is None:
                raise source.error(
                    f'{what}: it needs {key}; give {key} = "module:name" in [model]', *place
                )
