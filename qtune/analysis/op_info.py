"""Writes a run to ``.opinfo`` files, operator by operator, and reads it back when asked."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, overload

import torch
from torch import Tensor

from qtune.errors import AnalysisError
from qtune.profiler.op_files import OpInfoWriter, stored
from qtune.profiler.op_info import OpInfo
from qtune.profiler.record import Observation, OpRecord, plain

_PLAIN = (bool, int, float, str, type(None))
_NOTHING = torch.empty(0)


class RunFiles(Mapping[str, OpRecord]):
    """One file per operator, ``<index>_<name>.opinfo``, in order of execution.

    :meth:`note` takes the records of a run as they come, so that no value stays in memory. As a
    mapping it gives them back; values and inputs are mapped from the files when they are used.
    """

    def __init__(self, folder: Path) -> None:
        self._writer = OpInfoWriter(folder)
        self._files: dict[str, _File] = {}

    def note(self, record: OpRecord) -> None:
        """Write one record."""
        inputs = [_storable(value) for value in record.inputs if value is not None]
        value = _compact(record.value)
        path = self._writer.write(
            OpInfo(
                record.name,
                record.op_type,
                inputs,
                [value],
                record.scale,
                record.dtype,
                op=record.op,
                owner=record.owner,
            )
        )
        head = replace(record, value=_NOTHING, inputs=())
        self._files[record.name] = _File(path, head, _place_of(value, inputs), _stamp(path))

    def observation(self, outputs: Any) -> Observation:
        """The run with these outputs."""
        return Observation(outputs, self)

    def __getitem__(self, name: str) -> OpRecord:
        return self._files[name].record()

    def __contains__(self, name: object) -> bool:
        return name in self._files

    def __iter__(self) -> Iterator[str]:
        return iter(self._files)

    def __len__(self) -> int:
        return len(self._files)


@dataclass(frozen=True, slots=True)
class _Place:
    """Which record of the archive a tensor is in, and its form."""

    number: int
    nbytes: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype


@dataclass(frozen=True, slots=True)
class _File:
    """One written operator. ``place``: of the result, where it can be mapped without the rest.

    ``stamp``: what tells the file from one that came in its place.
    """

    path: Path
    head: OpRecord
    place: _Place | None
    stamp: tuple[int, int]

    def record(self) -> OpRecord:
        if _stamp(self.path) != self.stamp:
            raise AnalysisError(
                f"{self.path} is not the file that this analysis wrote: another run has the same "
                "out_dir, or it was removed; call run() again, each analysis in its own out_dir"
            )
        inputs: Any = _Inputs(self.path)
        return replace(self.head, value=self._value(), inputs=inputs)

    def _value(self) -> Tensor:
        value = None if self.place is None else _mapped(self.path, self.place)
        return stored(self.path).output[0] if value is None else value


class _Inputs(Sequence[Any]):
    """The operands in a file, read when one is looked at."""

    def __init__(self, path: Path) -> None:
        self._path = path

    @overload
    def __getitem__(self, index: int) -> Any: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[Any]: ...

    def __getitem__(self, index: int | slice) -> Any:
        return stored(self._path).input[index]

    def __len__(self) -> int:
        return len(stored(self._path).input)


def _stamp(path: Path) -> tuple[int, int]:
    """Which file is at ``path``, and of when; zeros for none."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return 0, 0
    return found.st_ino, found.st_mtime_ns


def _mapped(path: Path, place: _Place) -> Tensor | None:
    """The tensor at ``place``, mapped into memory; ``None`` where the archive is another one.

    torch's own reader would make every tensor of the file, and read what describes them.
    """
    archive: Any = torch._C.PyTorchFileReader(str(path))
    record = f"data/{place.number}"
    if not archive.has_record(record) or archive.get_record_size(record) != place.nbytes:
        return None
    start = archive.get_record_offset(record)
    whole = torch.UntypedStorage.from_file(str(path), False, path.stat().st_size)
    data: Any = whole[start : start + place.nbytes]
    result: Tensor = torch.empty(0, dtype=place.dtype)
    result.set_(data, 0, place.shape, place.stride)
    return result


def _place_of(value: Tensor, inputs: Sequence[Any]) -> _Place | None:
    """Where ``torch.save`` puts a result that is written behind its inputs."""
    if value.device.type != "cpu" or not value.numel() or value.storage_offset():
        return None
    storages: dict[int, None] = {}
    for tensor in (*_tensors(inputs), value):
        storages[tensor.untyped_storage()._cdata] = None
    number = list(storages).index(value.untyped_storage()._cdata)
    size = value.untyped_storage().nbytes()
    return _Place(number, size, tuple(value.shape), value.stride(), value.dtype)


def _tensors(values: Sequence[Any]) -> Iterator[Tensor]:
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, tuple | list):
            yield from _tensors(value)


def _compact(value: Tensor) -> Tensor:
    """A tensor whose file holds no more than its own values."""
    own: Tensor = plain(value.detach())
    is_whole = own.untyped_storage().nbytes() == own.numel() * own.element_size()
    return own if is_whole else own.clone()


def _storable(value: Any) -> Any:
    """An operand in the form that files hold: tensors, numbers, texts and lists of these."""
    if isinstance(value, Tensor):
        return _compact(value)
    if isinstance(value, tuple | list):
        return [_storable(item) for item in value]
    return value if type(value) in _PLAIN else None
