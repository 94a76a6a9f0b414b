"""An ONNX model as the assertions take it: float, calibrated, or with standard QDQ pairs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from os import PathLike, fspath
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from torch import Tensor

from qtune.bpu import compiler
from qtune.bpu.ort import new_session
from qtune.capture.inputs import Inputs
from qtune.errors import ArgumentError, kind_of
from qtune.hbir import hz_calibration
from qtune.hbir.builder import META_STAGE
from qtune.hbir.module import HbirModule
from qtune.hbir.onnx_import import import_onnx
from qtune.hbir.onnx_import import source as files
from qtune.hbir.serialize import from_bytes
from qtune.onnx_debug.calibrated import CalibratedModel, Port
from qtune.onnx_debug.load import load_calibrated, port_of
from qtune.testing.origin import Origin, mark, origin_of

Array = np.ndarray[Any, Any]
ONNX, BC, HBM = ".onnx", ".bc", ".hbm"
FLOAT, CALIBRATED = "float", "calibrated"
_QUANTIZING = frozenset({hz_calibration.OP_TYPE, "QuantizeLinear", "DequantizeLinear"})


class OnnxModel:
    """``kind`` is ``"float"`` or, with HzCalibration nodes or QDQ pairs, ``"calibrated"``.

    A call takes arrays or tensors in the order of the inputs, by keyword, or in one dict by input
    name, and gives the output, or a dict by name where there are several: arrays if arrays came.
    onnxruntime runs it in one thread, a calibrated one without graph optimizations, which would
    put integer kernels of its own in the place of QDQ pairs. The given model stays as it is.

    ``is_fused``: its nodes are those of its modules already, as they come from ``OnnxStages``.
    """

    def __init__(
        self,
        source: files.Source | CalibratedModel,
        name: str | None = None,
        *,
        is_fused: bool = False,
    ) -> None:
        self._source = source
        self.path = str(source) if isinstance(source, str | Path) else None
        given = source.proto if isinstance(source, CalibratedModel) else files.read(source)
        types = {node.op_type for node in given.graph.node}
        self.kind = CALIBRATED if types & _QUANTIZING else FLOAT
        self._given = given
        self.is_fused = is_fused or self.kind == CALIBRATED
        self._fused: dict[str, OnnxModel] = {}
        self.name = name or (Path(self.path).stem if self.path else given.graph.name) or "model"
        mark(self, Origin(self.name, self.path))

    def __repr__(self) -> str:
        return f"OnnxModel({self.name!r}, {self.kind})"

    @property
    def source_proto(self) -> onnx.ModelProto:
        """The model as it was read, with unique names of nodes; not to be changed."""
        return self._given

    @cached_property
    def proto(self) -> onnx.ModelProto:
        """The model as it is run: unique names of nodes; a calibrated one in the current opset."""
        return self.calibrated.proto if self.kind == CALIBRATED else self._given

    @cached_property
    def calibrated(self) -> CalibratedModel:
        """The calibrated model with its nodes; ``OnnxImportError`` of a float one."""
        held = self._source
        return load_calibrated(held if isinstance(held, CalibratedModel) else self._given)

    @cached_property
    def hbir(self) -> HbirModule:
        """The same model in HBIR, stage "qat"; ``OnnxImportError`` where it has no such form."""
        return mark(import_onnx(self.proto, name=self.name), origin_of(self))

    def fused(self, inputs: Inputs) -> OnnxModel:
        """The model whose operators are those of HBIR: of a float one the optimized one.

        ``inputs``: where the model leaves sizes open, beside the batch, these decide.
        """
        if self.is_fused:
            return self
        feed = feed_of(self.inputs, inputs.args, inputs.kwargs)
        shapes = open_shapes(self.inputs, feed)
        key = repr(shapes)
        if key not in self._fused:
            self._fused[key] = optimized(self, shapes)
        return self._fused[key]

    @cached_property
    def inputs(self) -> tuple[Port, ...]:
        """The inputs that are no constants."""
        constants = {tensor.name for tensor in self._given.graph.initializer}
        return tuple(port_of(i) for i in self._given.graph.input if i.name not in constants)

    @cached_property
    def outputs(self) -> tuple[str, ...]:
        """Names of the outputs."""
        return tuple(item.name for item in self._given.graph.output)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run; ``ArgumentError`` names the input that does not fit."""
        feed = feed_of(self.inputs, args, kwargs)
        found = self.run({name: as_array(value) for name, value in feed.items()})
        return as_given(found, feed.values())

    def run(self, feed: Mapping[str, Array]) -> dict[str, Array]:
        """Output arrays by name from input arrays by name."""
        _check_feed(self.inputs, feed)
        return dict(zip(self.outputs, self._session.run([*self.outputs], dict(feed)), strict=True))

    def run_inputs(self, inputs: Inputs) -> dict[str, Tensor]:
        """Output tensors by name."""
        feed = feed_of(self.inputs, inputs.args, inputs.kwargs)
        found = self.run({name: as_array(value) for name, value in feed.items()})
        return {name: torch.from_numpy(array) for name, array in found.items()}

    @cached_property
    def _session(self) -> Any:
        return new_session(self.proto.SerializeToString(), optimized=self.kind == FLOAT)


def open_shapes(inputs: Sequence[Port], feed: Mapping[str, Any]) -> dict[str, list[int]]:
    """The shapes that arrays have at inputs with open sizes beside the batch."""
    return {
        port.name: [int(n) for n in feed[port.name].shape]
        for port in inputs
        if port.shape is not None and None in port.shape[1:]
    }


def optimized(model: OnnxModel, shapes: Mapping[str, Sequence[int]]) -> OnnxModel:
    """A float model with batch norms in the convolutions before them and constants folded."""
    from qtune.onnx_debug.build.optimize import optimized as with_fused_norms

    return OnnxModel(with_fused_norms(model.proto, shapes), model.name, is_fused=True)


def as_model(check: str, name: str, value: Any) -> Any:
    """``value``; of a path, a ``ModelProto`` or a calibrated model what it holds.

    That is an ``OnnxModel`` (.onnx), an ``HbirModule`` (.bc) or a program (.hbm). Raises
    ``ArgumentError`` for another path, ``OnnxImportError`` for a file that is no such model.
    """
    if isinstance(value, str | PathLike):
        return _of_path(check, name, Path(fspath(value)))
    if isinstance(value, onnx.ModelProto):
        if any(item.key == META_STAGE for item in value.metadata_props):
            return from_bytes(value.SerializeToString())
        return OnnxModel(value)
    return OnnxModel(value) if isinstance(value, CalibratedModel) else value


def _of_path(check: str, name: str, path: Path) -> Any:
    if path.suffix not in (ONNX, BC, HBM):
        raise ArgumentError(
            f"{check}: {name}: a path must end with {ONNX}, {BC} or {HBM}, but got {str(path)!r}"
        )
    if not path.is_file():
        raise ArgumentError(f"{check}: {name}: there is no file {path}")
    if path.suffix == ONNX:
        return OnnxModel(path)
    found = compiler.Hbm(path) if path.suffix == HBM else compiler.load(path)
    facts = {} if found.march is None else {"march": str(found.march)}
    return mark(found, Origin(path.stem, str(path), facts))


def stage_error(check: str, name: str, value: Any, expected: str) -> ArgumentError:
    """What to say about a model of a stage that a check can't look at; ``name``: of several."""
    got = kind_of(value)
    if isinstance(value, OnnxModel):
        where = f" ({value.path})" if value.path else ""
        got = f"a {value.kind} ONNX model{where}"
    elif isinstance(value, HbirModule):
        got = f"an HBIR module of the stage {value.stage!r}"
    where = f"{name}: " if name else ""
    return ArgumentError(f"{check}: {where}expected {expected}, but got {got}")


def feed_of(
    inputs: Sequence[Port], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> dict[str, Any]:
    """The arguments of a call by input name."""
    names = [port.name for port in inputs]
    if len(args) == 1 and not kwargs and isinstance(args[0], Mapping):
        return feed_of(inputs, (), dict(args[0]))
    feed = {**dict(zip(names, args, strict=False)), **kwargs}
    if len(args) > len(names) or set(feed) != set(names) or len(feed) < len(args) + len(kwargs):
        came = f"{len(args)} by position" + (f", {', '.join(kwargs)} by name" if kwargs else "")
        raise ArgumentError(f"the model takes the inputs {', '.join(names)}, got {came}")
    return {name: feed[name] for name in names}


def as_array(value: Any) -> Array:
    """A tensor or an array as an array."""
    return value.detach().cpu().numpy() if isinstance(value, Tensor) else np.asarray(value)


def as_given(found: Mapping[str, Any], given: Any) -> Any:
    """Outputs by name in the form of a call: tensors unless all that came were arrays."""
    wants_arrays = not any(isinstance(value, Tensor) for value in given)
    form = as_array if wants_arrays else torch.as_tensor
    values = {name: form(value) for name, value in found.items()}
    return next(iter(values.values())) if len(values) == 1 else values


def _check_feed(inputs: Sequence[Port], feed: Mapping[str, Array]) -> None:
    for port in inputs:
        array = feed[port.name]
        fits = port.shape is None or (
            len(port.shape) == array.ndim
            and all(n in (None, m) for n, m in zip(port.shape, array.shape, strict=True))
        )
        if array.dtype != port.dtype or not fits:
            sizes = None if port.shape is None else ["any" if n is None else n for n in port.shape]
            raise ArgumentError(
                f"input {port.name!r} takes {port.dtype} of the shape {sizes}, got {array.dtype} "
                f"of the shape {list(array.shape)}; nothing is converted silently"
            )
