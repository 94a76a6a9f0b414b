"""``.hbm`` programs and ``.hbo`` objects: functions with memory plan and static estimate, one zip.

A zip holds ``manifest.json`` and, for function ``n``, ``<n>/module.bc``, ``<n>/memory.json`` and
``<n>/estimate.json``. Equal content gives equal bytes.
"""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import onnx_ir as ir

from qtune.errors import ArgumentError, HbirError
from qtune.hbir.argument import Argument, Kind
from qtune.hbir.module import Function, HbirModule
from qtune.hbir.serialize import from_bytes
from qtune.march import March, refuse_other_march
from qtune.report.files import write_with
from qtune.version import __version__

SUFFIX, OBJECT_SUFFIX = ".hbm", ".hbo"
FORMAT = "2"
_MANIFEST = "manifest.json"
_PARTS = ("module.bc", "memory.json", "estimate.json")
_EPOCH = (1980, 1, 1, 0, 0, 0)


class CompiledArgument(Argument):
    """An argument of a compiled function. ``staged_name`` and ``staged_desc`` wait for a save."""

    def __init__(self, function: Function, value: ir.Value, kind: Kind) -> None:
        super().__init__(function, value, kind)
        self.staged_name: str | None = None
        self.staged_desc: str | None = None


class CompiledFunction(Function):
    """A function of a program: it runs like any other and can't be changed.

    ``memory`` and ``estimate``: its plan and static estimate as plain values. ``staged_name`` and
    ``staged_desc``: what ``Hbm.save_by_staged_info`` writes instead of name and desc.
    """

    def __init__(
        self, model: ir.Model, memory: Mapping[str, Any], estimate: Mapping[str, Any]
    ) -> None:
        super().__init__(model)
        self.memory = dict(memory)
        self.estimate = dict(estimate)
        self.staged_name: str | None = None
        self.staged_desc: str | None = None

    def check_editable(self) -> None:
        """Raise: the program is compiled."""
        raise ArgumentError(
            f"function {self.name!r} is compiled and can't be changed; change the .bc module and "
            "compile it again, or set staged_name and staged_desc and call save_by_staged_info"
        )

    def _arguments(self, values: Any, kind: Kind) -> tuple[Argument, ...]:
        return tuple(CompiledArgument(self, value, kind) for value in values)


class Program:
    """What an ``.hbm`` and an ``.hbo`` file have in common; ``program[0]`` is the first function.

    ``march``, ``toolkit_version``, ``desc``; ``options``: those of compile; ``advice``: operators
    whose share of the estimated time exceeds ``advice``. Raises ``HbirError`` for a damaged file
    and ``MarchError`` where it was made for another march than ``march``, or the one that is set.
    """

    suffix = ""

    def __init__(self, path: str | Path, march: March | str | None = None) -> None:
        self.path = Path(path)
        if self.path.suffix != self.suffix:
            raise ArgumentError(f"{self.path}: expected a file with the suffix {self.suffix}")
        parts = _read(self.path)
        manifest = _manifest(parts, self.path)
        self.march: str = manifest["march"]
        self.toolkit_version: str = manifest["toolkit_version"]
        self.desc: str = manifest["desc"]
        self.options: dict[str, Any] = manifest["options"]
        self.advice: list[dict[str, Any]] = manifest["advice"]
        self.staged_desc: str | None = None
        refuse_other_march(self.march, str(self.path), march)
        self.functions: tuple[CompiledFunction, ...] = tuple(
            self._function(parts, index) for index in range(manifest["functions"])
        )

    def _function(self, parts: Mapping[str, bytes], index: int) -> CompiledFunction:
        module, memory, estimate = (parts[f"{index}/{name}"] for name in _PARTS)
        model = from_bytes(module, f"{self.path} ({index}/{_PARTS[0]})").model
        return CompiledFunction(model, json.loads(memory), json.loads(estimate))

    @property
    def graphs(self) -> tuple[CompiledFunction, ...]:
        """The functions."""
        return self.functions

    @property
    def memory(self) -> dict[str, Any]:
        """The memory plan of the only function."""
        return self._only().memory

    @property
    def estimate(self) -> dict[str, Any]:
        """The static estimate of the only function."""
        return self._only().estimate

    def _only(self) -> CompiledFunction:
        if len(self.functions) == 1:
            return self.functions[0]
        names = ", ".join(function.name for function in self.functions)
        raise ArgumentError(
            f"{self.path} holds the functions {names}; ask one of them: program['name'].memory, "
            "program['name'].estimate"
        )

    def __getitem__(self, key: int | str) -> CompiledFunction:
        known = ", ".join(function.name for function in self.functions)
        if isinstance(key, str):
            for function in self.functions:
                if function.name == key:
                    return function
            raise ArgumentError(f"{self.path}: no function {key!r}; it has: {known}")
        try:
            return self.functions[key]
        except (IndexError, TypeError):
            raise ArgumentError(f"{self.path}: no function {key}; it has: {known}") from None

    def __len__(self) -> int:
        return len(self.functions)

    def __iter__(self) -> Iterator[CompiledFunction]:
        return iter(self.functions)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self.path)!r}, march={self.march})"

    def save_by_staged_info(self, file: str | Path) -> None:
        """Write the program to ``file`` with every staged name and description in place."""
        target = Path(file)
        if target.suffix != self.suffix:
            raise ArgumentError(f"{target}: this program is saved under the suffix {self.suffix}")
        pieces = [_restaged(function) for function in self.functions]
        _check_names(pieces)
        desc = self.desc if self.staged_desc is None else self.staged_desc
        write_program(target, pieces, self.march, desc, self.options, self.advice)


class Hbm(Program):
    """A compiled program. ``hbm[0].feed({name: array})`` runs it on the emulated BPU."""

    suffix = SUFFIX


class Hbo(Program):
    """A compiled object, to be linked into a program with others."""

    suffix = OBJECT_SUFFIX


class Piece:
    """One function of a program to be written."""

    def __init__(
        self, module: HbirModule, memory: Mapping[str, Any], estimate: Mapping[str, Any]
    ) -> None:
        self.module = module
        self.memory = memory
        self.estimate = estimate

    @property
    def name(self) -> str:
        """Name of the function."""
        return self.module[0].name


def write_program(
    path: Path,
    pieces: Sequence[Piece],
    march: str,
    desc: str,
    options: Mapping[str, Any],
    advice: Sequence[Mapping[str, Any]],
) -> None:
    """Write a program, whole or not at all."""
    manifest = {
        "format": FORMAT,
        "toolkit_version": __version__,
        "march": march,
        "desc": desc,
        "functions": len(pieces),
        "names": [piece.name for piece in pieces],
        "options": dict(options),
        "advice": list(advice),
    }
    parts = {_MANIFEST: json.dumps(manifest).encode()}
    for index, piece in enumerate(pieces):
        content = (
            piece.module.to_bytes(),
            json.dumps(piece.memory).encode(),
            json.dumps(piece.estimate).encode(),
        )
        parts.update({f"{index}/{k}": v for k, v in zip(_PARTS, content, strict=True)})
    data = _packed(parts)
    write_with(path, lambda partial: partial.write_bytes(data))


def link(
    hbo_list: Sequence[Hbo | str | Path], output_path: str | Path, desc: str | None = None
) -> Hbm:
    """Put compiled objects together into one program with several functions.

    ``hbo_list``: what ``compile`` returned for ``.hbo`` paths, or such paths. All are of one march,
    and their functions have different names (``export(..., name=...)``). ``desc`` becomes that of
    the program; ``None`` joins those of the objects.
    """
    target = Path(output_path)
    if target.suffix != SUFFIX:
        raise ArgumentError(f"link: {target}: a program is saved under the suffix {SUFFIX}")
    if isinstance(hbo_list, (str, Path, Hbo)) or not hbo_list:
        raise ArgumentError(f"link takes a list of at least one object, got {hbo_list!r}")
    if desc is not None and not isinstance(desc, str):
        raise ArgumentError(f"link: desc must be a text, got {desc!r}")
    objects = [_object(item) for item in hbo_list]
    marches = {item.march for item in objects}
    if len(marches) > 1:
        lines = ", ".join(f"{item.path}: {item.march}" for item in objects)
        raise ArgumentError(f"link: the objects are of several marches ({lines}); compile for one")
    pieces = [_restaged(function) for item in objects for function in item]
    _check_names(pieces)
    text = "; ".join(filter(None, (item.desc for item in objects))) if desc is None else desc
    options = {"linked": [item.options for item in objects]}
    advice = [entry for item in objects for entry in item.advice]
    write_program(target, pieces, objects[0].march, text, options, advice)
    return Hbm(target, objects[0].march)


def _object(item: Hbo | str | Path) -> Hbo:
    if isinstance(item, (str, Path)):
        return Hbo(item)
    if not isinstance(item, Hbo):
        raise ArgumentError(
            f"link takes objects that compile wrote under the suffix {OBJECT_SUFFIX}, got {item!r}"
        )
    return item


def _restaged(function: CompiledFunction) -> Piece:
    """The function as a piece of its own, with its staged names and descriptions."""
    module = from_bytes(HbirModule(function.model).to_bytes())
    copy = module[0]
    for kind in ("inputs", "outputs"):
        for old, new in zip(getattr(function, kind), getattr(copy, kind), strict=True):
            if old.staged_name is not None:
                new.name = old.staged_name
            if old.staged_desc is not None:
                new.desc = old.staged_desc
    if function.staged_name is not None:
        copy.model.graph.name = function.staged_name
    if function.staged_desc is not None:
        copy.desc = function.staged_desc
    return Piece(module, function.memory, function.estimate)


def _check_names(pieces: Sequence[Piece]) -> None:
    names = [piece.name for piece in pieces]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ArgumentError(
            f"the functions of a program need different names, but {', '.join(twice)} comes "
            "several times; give each a name: export(model, example, name='...')"
        )


def _packed(parts: Mapping[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in parts.items():
            archive.writestr(zipfile.ZipInfo(name, _EPOCH), data)
    return buffer.getvalue()


def _read(path: Path) -> dict[str, bytes]:
    try:
        with zipfile.ZipFile(path) as archive:
            return {name: archive.read(name) for name in archive.namelist()}
    except OSError as error:
        raise HbirError(f"{path} can't be read: {error.strerror or error}") from None
    except (zipfile.BadZipFile, EOFError) as error:
        raise _damaged(path, error) from None


def _manifest(parts: Mapping[str, bytes], path: Path) -> dict[str, Any]:
    try:
        manifest: dict[str, Any] = json.loads(parts[_MANIFEST])
    except (KeyError, json.JSONDecodeError) as error:
        raise _damaged(path, error) from None
    if manifest.get("format") != FORMAT:
        raise HbirError(
            f"{path} has program format {manifest.get('format', '1')}, this qtune reads {FORMAT}: "
            "compile the module again with this version"
        )
    wanted = [f"{index}/{name}" for index in range(manifest["functions"]) for name in _PARTS]
    missing = [name for name in wanted if name not in parts]
    if missing:
        raise _damaged(path, f"{missing[0]} is missing")
    return manifest


def _damaged(path: Path, why: object) -> HbirError:
    return HbirError(
        f"{path} is no {path.suffix} file or is cut off ({why}); compile the module again"
    )
