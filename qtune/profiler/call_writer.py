"""One forward on its way to files: each operator is written when its result is there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import RLock
from typing import Any

from torch import Tensor

from qtune.profiler.op_files import OpInfoWriter, stored
from qtune.profiler.op_info import OpInfo
from qtune.profiler.tensor_info import Seen, leaves, named_tensors

_PLAIN = (bool, int, float, str, type(None))


@dataclass(frozen=True, slots=True)
class OpCall:
    """One call of an operator. ``operands``, ``results``, ``parameters``: values as they were.

    ``operands`` by position or keyword, containers as they came. The other fields are those of
    :class:`~qtune.profiler.op_info.OpInfo`.
    """

    name: str
    op_type: str
    operands: Mapping[str, Any]
    results: Sequence[Seen]
    parameters: Mapping[str, Seen] = field(default_factory=dict)
    op: str = ""
    module: str = ""
    method: str = ""
    source: str = ""


class CallWriter:
    """Writes the operators of the forward with the number ``call``.

    A second call of an operator gets ``_1`` behind its name, a second result ``:1``, as in every
    stage; everything of a second forward ``@1``.
    """

    def __init__(self, writer: OpInfoWriter, call: int) -> None:
        self._writer = writer
        self._call = call
        self._taken: set[str] = set()
        self.paths: list[Path] = []

    def add(self, call: OpCall) -> list[Path]:
        """Write one call of an operator, a file for each result."""
        paths = [self._writer.write(info) for info in self._infos(call)]
        self.paths.extend(paths)
        return paths

    def rename(self, paths: Sequence[Path], **facts: Any) -> None:
        """Give the call that was written to ``paths`` another name and other facts."""
        old = [stored(path) for path in paths]
        base = self._base(facts["name"])
        for path, info in zip(paths, old, strict=True):
            named = {**facts, "name": self._key(base, info.result), "owner": facts["name"]}
            new = replace(info, **named)
            self._put(path, self._writer.rewrite(path, new))

    def drop(self, paths: Sequence[Path]) -> None:
        """Forget a call: it was none of an operator."""
        for path in paths:
            self.paths.remove(path)
            path.unlink()

    def _put(self, old: Path, new: Path) -> None:
        self.paths[self.paths.index(old)] = new

    def _infos(self, call: OpCall) -> Iterator[OpInfo]:
        base = self._base(call.name)
        several = len(call.results) > 1
        for index, result in enumerate(call.results):
            first = index == 0
            out = result.info(f"output-{index}" if several else "output")
            yield OpInfo(
                self._key(base, index),
                call.op_type,
                [_stored(value) for value in call.operands.values()] if first else [],
                [result.value],
                result.one_scale,
                result.dtype,
                call.op,
                call.name,
                call.module,
                call.method,
                call.source,
                index,
                self._call,
                {key: seen.value for key, seen in call.parameters.items()} if first else {},
                (*(_before(call) if first else ()), out),
            )

    def _key(self, base: str, result: int) -> str:
        name = f"{base}:{result}" if result else base
        return f"{name}@{self._call}" if self._call else name

    def _base(self, name: str) -> str:
        base, number = name, 0
        while base in self._taken:
            number += 1
            base = f"{name}_{number}"
        self._taken.add(base)
        return base


class ProfileWriter:
    """The forwards of one ``with`` block; ``calls`` counts those that were finished.

    Forwards of several threads run one after the other, so that each is whole.
    """

    def __init__(self, folder: Path) -> None:
        self._writer = OpInfoWriter(folder)
        self.calls = 0
        self._turn = RLock()

    @contextmanager
    def call(self) -> Iterator[CallWriter]:
        """One forward. Nothing is left of one that an exception ends."""
        with self._turn:
            yield from self._call()

    def _call(self) -> Iterator[CallWriter]:
        writer = CallWriter(self._writer, self.calls)
        try:
            yield writer
        except BaseException:
            writer.drop(list(writer.paths))
            raise
        self._writer.folder.mkdir(parents=True, exist_ok=True)  # a model without operators
        self.calls += 1


def _before(call: OpCall) -> Iterator[Any]:
    """Rows of what goes in: operands, then parameters."""
    for attr, seen in named_tensors("input", call.operands):
        yield seen.info(attr)
    for attr, seen in call.parameters.items():
        yield seen.info(attr)


def _stored(value: Any) -> Any:
    """An operand in the form that files hold: tensors, numbers, texts and containers of these."""
    if isinstance(value, Seen):
        return value.value
    if isinstance(value, Mapping):
        return {str(key): _stored(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [_stored(item) for item in value]
    return value if type(value) in _PLAIN else None


def seen_values(value: Any) -> Any:
    """``value`` with a :class:`Seen` for each tensor, now."""
    if isinstance(value, Tensor):
        return Seen.of(value)
    if isinstance(value, Mapping):
        return {key: seen_values(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [seen_values(item) for item in value]
    return value


def seen_results(value: Any) -> list[Seen]:
    """The results of a call as values, without containers."""
    return list(leaves(seen_values(value)))
