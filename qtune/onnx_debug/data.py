"""Calibration data: a folder, lists or a dict of arrays, read one item at a time.

On disk (onnx_debugger, "structure of calibration_data")::

    calibration_data/<input name>/0.npy, 1.npy, ...
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from qtune.errors import ArgumentError
from qtune.onnx_debug.calibrated import Port

Array = np.ndarray[Any, Any]
Given = str | os.PathLike[str] | Sequence[Any] | Mapping[str, Any]


class CalibrationDataSet:
    """Items of calibration data, each a dict of arrays by input name; files are read when asked.

    ``given``: a folder ``<dir>/<input name>/<i>.npy``; a dict of input name -> sequence of arrays
    or of .npy files, or a folder of them; or a sequence of items: dicts, tuples in the order of the
    inputs, or, for a model of one input, arrays or .npy files. A single array is one item.
    ``inputs``: those of the model; every item is checked against their names, sizes and dtypes when
    it is read.

    Raises ``ArgumentError`` naming the input, the file or the index, and what was expected.
    """

    def __init__(self, given: Given | CalibrationDataSet, inputs: Sequence[Port]) -> None:
        self.inputs = tuple(inputs)
        source = given.given if isinstance(given, CalibrationDataSet) else given
        self.given: Given = source
        self._items = _lists(source, self.inputs)
        counts = {name: len(items) for name, items in self._items.items()}
        if len(set(counts.values())) > 1:
            listed = ", ".join(f"{name}: {count}" for name, count in counts.items())
            raise ArgumentError(
                f"calibration data: the inputs have different numbers of items ({listed}); each "
                "item needs one array for every input"
            )
        self._count = next(iter(counts.values()), 0)
        if not self._count:
            raise ArgumentError("calibration data: it is empty; give at least one item")

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[dict[str, Array]]:
        return (self[index] for index in range(self._count))

    def __getitem__(self, index: int) -> dict[str, Array]:
        if not 0 <= index < self._count:
            raise IndexError(f"calibration data: item {index} of {self._count}")
        return {
            port.name: _checked(self._items[port.name][index], index, port) for port in self.inputs
        }

    def first(self, count: int | None) -> Iterator[dict[str, Array]]:
        """The first ``count`` items; all with ``None``. ``ArgumentError`` where there are fewer."""
        return (self[index] for index in range(self.count(count)))

    def count(self, data_num: int | None) -> int:
        """``data_num`` checked: ``None`` means all items."""
        if data_num is None:
            return self._count
        is_number = isinstance(data_num, int) and not isinstance(data_num, bool)
        if not is_number or not 1 <= data_num <= self._count:
            raise ArgumentError(
                f"data_num must be 1 to {self._count} (the number of items), or None for all; got "
                f"{data_num!r}"
            )
        return data_num


def _lists(given: Any, inputs: Sequence[Port]) -> dict[str, Sequence[Any]]:
    if isinstance(given, (str, os.PathLike)):
        return {port.name: _files(Path(given), port.name, inputs) for port in inputs}
    if isinstance(given, np.ndarray):
        return _lists([given], inputs)
    if isinstance(given, Mapping):
        return _by_name(given, inputs)
    if isinstance(given, Sequence) and given and all(isinstance(i, Mapping) for i in given):
        names = {port.name for port in inputs}
        for index, item in enumerate(given):
            _check_names(set(item), names, f"calibration data, item {index}")
        return {port.name: [item[port.name] for item in given] for port in inputs}
    if isinstance(given, Sequence) and given and all(type(item) is tuple for item in given):
        for index, item in enumerate(given):
            if len(item) != len(inputs):
                raise ArgumentError(
                    f"calibration data, item {index}: a tuple of {len(item)} for the inputs "
                    f"{', '.join(port.name for port in inputs)}; give one array for each"
                )
        return {port.name: [item[i] for item in given] for i, port in enumerate(inputs)}
    if isinstance(given, Sequence) and len(inputs) == 1:
        return {inputs[0].name: list(given)}
    raise ArgumentError(
        f"calibration data: expected a folder, a dict of input name -> arrays, a list of dicts or "
        f"tuples{' or arrays' if len(inputs) == 1 else ''}; got {type(given).__name__} "
        f"for a model with the inputs {', '.join(port.name for port in inputs)}"
    )


def _by_name(given: Mapping[str, Any], inputs: Sequence[Port]) -> dict[str, Sequence[Any]]:
    _check_names(set(given), {port.name for port in inputs}, "calibration data")
    found: dict[str, Sequence[Any]] = {}
    for name, items in given.items():
        if isinstance(items, (str, os.PathLike)):
            found[name] = _npy_files(Path(items), name)
        else:
            is_one = isinstance(items, np.ndarray)
            if not is_one and not isinstance(items, Sequence):
                raise ArgumentError(
                    f"calibration data: input {name!r}: expected an array, a list of arrays or "
                    f"files, or a folder; got {type(items).__name__}"
                )
            found[name] = [items] if is_one else list(items)
    return found


def _check_names(got: set[Any], expected: set[str], where: str) -> None:
    missing, unknown = sorted(expected - got), sorted(map(str, got - expected))
    if missing or unknown:
        parts = [f"misses {', '.join(missing)}" if missing else ""]
        parts.append(f"has {', '.join(unknown)}, which the model has not" if unknown else "")
        raise ArgumentError(
            f"{where} {' and '.join(part for part in parts if part)}; the model's inputs are "
            f"{', '.join(sorted(expected))}"
        )


def _files(folder: Path, name: str, inputs: Sequence[Port]) -> list[Path]:
    if not folder.is_dir():
        raise ArgumentError(
            f"calibration data: {folder} is no folder; expected {folder}/<input name>/<i>.npy"
        )
    place = folder / name
    if not place.is_dir():
        there = sorted(path.name for path in folder.iterdir() if path.is_dir())
        raise ArgumentError(
            f"calibration data: {folder} has no folder {name!r} for the model's input {name!r}; "
            f"there are the folders {', '.join(there) or '(none)'}, the model's inputs are "
            f"{', '.join(port.name for port in inputs)}"
        )
    return _npy_files(place, name)


def _npy_files(folder: Path, name: str) -> list[Path]:
    """The .npy files of one input; numbers in their names count as numbers."""
    if not folder.is_dir():
        raise ArgumentError(
            f"calibration data: {folder} is no folder; expected one with the .npy files of the "
            f"input {name!r}"
        )
    found = sorted(folder.glob("*.npy"), key=lambda path: _order(path.stem))
    if not found:
        raise ArgumentError(f"calibration data: {folder} holds no .npy file for the input {name!r}")
    return found


def _order(stem: str) -> tuple[Any, ...]:
    parts = re.split(r"(\d+)", stem)
    return tuple((1, int(p), "") if p.isdecimal() else (0, 0, p) for p in parts)


def _checked(item: Any, index: int, port: Port) -> Array:
    where = f"item {index} of input {port.name!r}"
    array = item
    if isinstance(item, (str, os.PathLike)):
        where = str(item)
        array = read_array(Path(item))
    array = np.asarray(array)
    if array.dtype != port.dtype:
        raise ArgumentError(
            f"calibration data: {where} has the dtype {array.dtype}, the input {port.name!r} "
            f"takes {port.dtype}; convert it before"
        )
    if port.shape is not None and not _fits(array.shape, port.shape):
        raise ArgumentError(
            f"calibration data: {where} has the shape {list(array.shape)}, the input "
            f"{port.name!r} takes [{', '.join('any' if s is None else str(s) for s in port.shape)}]"
        )
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise ArgumentError(f"calibration data: {where} holds NaN or infinity")
    return np.ascontiguousarray(array)


def read_array(path: Path) -> Array:
    """The numbers of a ``.npy`` file; ``ArgumentError`` naming the file for anything else."""
    try:
        array = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise ArgumentError(f"calibration data: {path} is no .npy file: {error}") from None
    if not isinstance(array, np.ndarray):
        raise ArgumentError(f"calibration data: {path} is no .npy file of one array")
    if array.dtype.kind not in "biuf":
        raise ArgumentError(f"calibration data: {path} holds no numbers but {array.dtype}")
    return array


def _fits(shape: tuple[int, ...], wanted: tuple[int | None, ...]) -> bool:
    return len(shape) == len(wanted) and all(
        want in (None, size) for size, want in zip(shape, wanted, strict=True)
    )
