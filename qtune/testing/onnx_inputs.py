"""What a model made from ONNX runs on, in all forms that name its inputs or come in their order."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from qtune.bpu.hbm import Program
from qtune.capture.inputs import Inputs
from qtune.errors import ArgumentError, kind_of
from qtune.hbir.builder import META_IMPORTED
from qtune.hbir.module import Function, HbirModule
from qtune.onnx_debug.calibrated import Port
from qtune.onnx_debug.data import CalibrationDataSet, read_array
from qtune.testing.onnx_model import OnnxModel, as_array, feed_of

_FOLDER = (str, PathLike, CalibrationDataSet)


def ports_of(model: Any) -> tuple[Port, ...]:
    """The inputs of an ONNX model, or of a module that was imported from one; else none."""
    if isinstance(model, OnnxModel):
        return model.inputs
    if not isinstance(model, HbirModule | Program):
        return ()
    function = model[0]
    return _ports(function) if function.metadata.get(META_IMPORTED) == "1" else ()


def _ports(function: Function) -> tuple[Port, ...]:
    """A batch that is free has no size."""
    found = []
    for item in function.inputs:
        sizes: tuple[int | None, ...] = item.shape
        if function.open_batch and sizes:
            sizes = (None, *sizes[1:])
        found.append(Port(item.name, sizes, np.dtype(item.dtype)))
    return tuple(found)


def ports_in(folder: Path) -> list[Port]:
    """The inputs of which a folder ``<input name>/<i>.npy`` holds data, of any shape."""
    found = []
    for place in sorted(path for path in folder.iterdir() if path.is_dir()):
        first = next(iter(sorted(place.glob("*.npy"))), None)
        if first is not None:
            found.append(Port(place.name, None, read_array(first).dtype))
    if not found:
        raise ArgumentError(f"{folder} holds no folder of .npy files, <input name>/<i>.npy")
    return found


def examples(models: Sequence[Any], inputs: Any) -> Any:
    """``inputs`` as a list of calls, where a model comes from ONNX; as they are for any other.

    One call: an array or tensor, a tuple in the order of the inputs, a dict by input name,
    ``qtune.Inputs``. Several: a list of these, a folder ``<input name>/<i>.npy``, a
    ``CalibrationDataSet``, or a dict by input name of lists. Raises ``ArgumentError`` naming the
    item and the input.
    """
    ports = next((found for model in models if (found := ports_of(model))), ())
    return list(_calls(inputs, ports)) if ports else inputs


def _calls(inputs: Any, ports: Sequence[Port]) -> Iterator[Inputs]:
    if isinstance(inputs, _FOLDER):
        data: Any = CalibrationDataSet(inputs, _free(ports))
        yield from (_call(item, ports, f"inputs, item {i}") for i, item in enumerate(data))
    elif isinstance(inputs, Mapping) and any(isinstance(v, list) for v in inputs.values()):
        yield from _calls(CalibrationDataSet(_arrays(inputs), _free(ports)), ports)
    elif isinstance(inputs, list):
        if not inputs:
            raise ArgumentError("inputs: the list is empty; give at least one")
        yield from (_call(item, ports, f"inputs, item {i}") for i, item in enumerate(inputs))
    else:
        yield _call(inputs, ports, "inputs")


def _arrays(inputs: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: [as_array(v) for v in values] if isinstance(values, list) else as_array(values)
        for name, values in inputs.items()
    }


def _free(ports: Sequence[Port]) -> list[Port]:
    """The inputs with any batch size: another one is split before the model gets it."""
    return [
        Port(port.name, (None, *port.shape[1:]) if port.shape else port.shape, port.dtype)
        for port in ports
    ]


def _call(item: Any, ports: Sequence[Port], where: str) -> Inputs:
    if isinstance(item, Inputs):
        args, kwargs = item.args, item.kwargs
    else:
        args, kwargs = (item if type(item) is tuple else (item,)), {}
    try:
        feed = feed_of(ports, args, kwargs)
    except ArgumentError as error:
        raise ArgumentError(f"{where}: {error}") from None
    return Inputs(*(_tensor(feed[port.name], port, where) for port in ports))


def _tensor(value: Any, port: Port, where: str) -> Tensor:
    place = f"{where}: {port.name!r}"
    if not isinstance(value, Tensor | np.ndarray):
        raise ArgumentError(f"{place}: expected an array or a tensor, got {kind_of(value)}")
    array = as_array(value)
    rank = None if port.shape is None else len(port.shape)
    if array.dtype != port.dtype or rank not in (None, array.ndim):
        sizes = None if port.shape is None else ["any" if n is None else n for n in port.shape]
        raise ArgumentError(
            f"{place} has the dtype {array.dtype} and the shape {list(array.shape)}, the input "
            f"takes {port.dtype} of {sizes}; nothing is converted silently"
        )
    if isinstance(value, Tensor):
        return value.detach().cpu()
    plain = np.ascontiguousarray(array)
    return torch.from_numpy(plain if plain.flags.writeable else plain.copy())


def data_set(model: OnnxModel, inputs: Any) -> CalibrationDataSet:
    """Calibration data in any of the forms of :func:`examples`; files are read when asked for."""
    if isinstance(inputs, _FOLDER):
        return CalibrationDataSet(inputs, model.inputs)
    names = [port.name for port in model.inputs]
    calls = _calls(inputs, model.inputs)
    items = [dict(zip(names, map(as_array, call.args), strict=True)) for call in calls]
    return CalibrationDataSet(items, model.inputs)
