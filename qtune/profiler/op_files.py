"""``.opinfo`` files: the one writer and the one reader of what runs leave per operator.

A folder holds ``<index>_<name>.opinfo`` in order of execution, each an
:class:`~qtune.profiler.op_info.OpInfo` that torch's safe default loads.
"""

from __future__ import annotations

import pickle
import re
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path

import torch
from torch.serialization import get_crc32_options, set_crc32_options

from qtune.errors import AnalysisError, kind_of
from qtune.profiler.op_info import OpInfo
from qtune.profiler.record import Observation, OpRecord
from qtune.report.files import write_with

OP_INFOS = "op_infos"
"""The folder with the files, inside the folder that a user names."""
SUFFIX = ".opinfo"

_UNSAFE = re.compile(r"[^A-Za-z0-9_.()@-]+")
_LONGEST = 120


class OpInfoWriter:
    """Writes one file per operator as it comes, so that nothing of it stays in memory.

    Files of an earlier run in the folder are removed first; other files are left alone.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._next = 0
        for path in folder.glob(f"*{SUFFIX}"):
            path.unlink()

    def write(self, info: OpInfo) -> Path:
        """Write ``info`` as the next file; return its path."""
        path = self._path(self._next, info.name)
        self._next += 1
        return write_with(path, partial(_save, info))

    def rewrite(self, path: Path, info: OpInfo) -> Path:
        """Put ``info`` in the place of the file at ``path``, under its own name."""
        new = self._path(int(path.name.split("_")[0]), info.name)
        write_with(new, partial(_save, info))
        if new != path:
            path.unlink()
        return new

    def _path(self, index: int, name: str) -> Path:
        return self.folder / f"{index:04d}_{_UNSAFE.sub('_', name)[:_LONGEST]}{SUFFIX}"


def _save(info: OpInfo, path: Path) -> None:
    """``torch.save`` without the checksums of the zip format.

    They are half the time of writing, and torch never looks at them when it reads.
    """
    before = get_crc32_options()
    set_crc32_options(False)
    try:
        torch.save(info, path)
    finally:
        set_crc32_options(before)


class StoredOps(Mapping[str, OpInfo]):
    """The operators in a folder by name, in order of execution; each is read when asked for.

    Tensors are mapped from the file, so that only what is looked at takes memory.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        paths = sorted(folder.glob(f"*{SUFFIX}"), key=lambda path: int(path.name.split("_")[0]))
        self._paths = {stored(path).name: path for path in paths}

    def __getitem__(self, name: str) -> OpInfo:
        return stored(self._paths[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self._paths)

    def __len__(self) -> int:
        return len(self._paths)


class StoredRecords(Mapping[str, OpRecord]):
    """The same as records of a run (:class:`~qtune.profiler.record.OpRecord`)."""

    def __init__(self, ops: Mapping[str, OpInfo]) -> None:
        self._ops = ops

    def __getitem__(self, name: str) -> OpRecord:
        return record_of(self._ops[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self._ops)

    def __len__(self) -> int:
        return len(self._ops)


def record_of(info: OpInfo) -> OpRecord:
    """A file's content as the record of a run."""
    shapes = [tuple(v.shape) if isinstance(v, torch.Tensor) else None for v in info.input]
    return OpRecord(
        info.name,
        info.op_type,
        info.output[0],
        info.scale,
        info.dtype,
        tuple(shapes),
        tuple(info.input),
        info.op,
        info.owner or info.name,
    )


def stored_ops(folder: str | Path) -> StoredOps:
    """The operators that a profiler (or a run) left in ``folder``; ``AnalysisError`` if none."""
    for place in (Path(folder) / OP_INFOS, Path(folder)):
        ops = StoredOps(place)
        if ops:
            return ops
    if (Path(folder) / OP_INFOS).is_dir():
        raise AnalysisError(
            f"{folder}/{OP_INFOS} is empty: the model in the profiler's block had no operators, or "
            "none of its forwards was finished"
        )
    raise AnalysisError(
        f"{folder} holds no {OP_INFOS} of a profiler; pass the folder that was given to "
        "ModelProfiler or HbirModelProfiler, after the model ran in its with block"
    )


def read_profile(folder: str | Path) -> Observation:
    """What a profiler saw, as the observation of a run: records by name in order of execution.

    ``folder``: the one given to ``ModelProfiler`` or ``HbirModelProfiler``. This is what
    ``QuantAnalysis.set_model_profiler_dir(baseline, analysis)`` compares:
    ``compare(read_profile(baseline), read_profile(analysis), ...)``. Each record has the output,
    the inputs (HBIR: those that other operators gave), scale, dtype and type; it is read from its
    file when asked for. ``outputs`` is ``None``: a profiler keeps no containers. Later forwards
    of one block have their number behind the name (``conv@1``), so that two folders join.
    """
    return Observation(None, StoredRecords(stored_ops(folder)))


def stored(path: Path) -> OpInfo:
    """The content of one file, its tensors mapped from it into the CPU's memory."""
    try:
        info = torch.load(path, weights_only=True, mmap=True, map_location="cpu")
    except (OSError, RuntimeError, ValueError, pickle.UnpicklingError) as error:
        raise AnalysisError(f"{path} can't be read ({error}); run the profiler again") from error
    if not isinstance(info, OpInfo):
        raise AnalysisError(f"{path} holds {kind_of(info)}, not an operator")
    return info
