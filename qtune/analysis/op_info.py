"""Writes a run to ``.opinfo`` files, operator by operator, and reads it back when asked."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from qtune.profiler.op_files import OpInfoWriter, StoredRecords, stored
from qtune.profiler.op_info import OpInfo
from qtune.profiler.record import Observation, OpRecord, plain

_PLAIN = (bool, int, float, str, type(None))


class RunFiles(Mapping[str, OpInfo]):
    """One file per operator, ``<index>_<name>.opinfo``, in order of execution.

    :meth:`note` takes the records of a run as they come, so that no value stays in memory. As a
    mapping it gives them back from the files, whose tensors are mapped into memory when used.
    """

    def __init__(self, folder: Path) -> None:
        self._writer = OpInfoWriter(folder)
        self._paths: dict[str, Path] = {}

    def note(self, record: OpRecord) -> None:
        """Write one record."""
        info = OpInfo(
            record.name,
            record.op_type,
            [_storable(value) for value in record.inputs if value is not None],
            [_compact(record.value)],
            record.scale,
            record.dtype,
            op=record.op,
            owner=record.owner,
        )
        self._paths[record.name] = self._writer.write(info)

    def observation(self, outputs: Any) -> Observation:
        """The run with these outputs; its records are read from the files."""
        return Observation(outputs, StoredRecords(self))

    def __getitem__(self, name: str) -> OpInfo:
        return stored(self._paths[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self._paths)

    def __len__(self) -> int:
        return len(self._paths)


def save_op_infos(folder: Path, run: Observation) -> None:
    """Write the records of a run that is over."""
    files = RunFiles(folder)
    for record in run.records.values():
        files.note(record)


def _compact(value: Tensor) -> Tensor:
    """A tensor whose file holds no more than its own values."""
    own = plain(value.detach())
    is_whole = own.untyped_storage().nbytes() == own.numel() * own.element_size()
    return own if is_whole else own.clone()


def _storable(value: Any) -> Any:
    """An operand in the form that files hold: tensors, numbers, texts and lists of these."""
    if isinstance(value, Tensor):
        return _compact(value)
    if isinstance(value, tuple | list):
        return [_storable(item) for item in value]
    return value if type(value) in _PLAIN else None
