"""An ONNX model in all its stages, each built when first asked for, kept under its content."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from functools import cached_property
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import onnx
import torch

from qtune.capture.inputs import Inputs
from qtune.errors import ArgumentError
from qtune.hbir.module import HbirModule
from qtune.hbir.onnx_import import source as files
from qtune.onnx_debug.data import CalibrationDataSet
from qtune.testing.arguments import Onnx
from qtune.testing.built_stages import BuiltStages, environment, seeded
from qtune.testing.content import digest
from qtune.testing.onnx_float import float_form
from qtune.testing.onnx_inputs import data_set
from qtune.testing.onnx_model import CALIBRATED, FLOAT, ONNX, OnnxModel, as_model, open_shapes
from qtune.testing.origin import Origin, mark
from qtune.testing.store import Store

_CHECK = "OnnxStages"


class OnnxStages(BuiltStages):
    """``float, optimized, calibrated, qat_bc, quantized_bc, hbm`` of one ONNX model.

    ``model``: the path of an ``.onnx`` file (external data beside it are found) or a
    ``ModelProto``; it stays as it is. ``calibration``: a folder ``<input name>/<i>.npy``, a list
    (arrays, tuples in the order of the inputs, dicts by input name), a dict by input name of lists,
    or a callable that gives one of these, called with all random generators seeded to 0. A model
    that is calibrated already (HzCalibration nodes or QDQ pairs) takes none: its ``float`` is the
    same model with every calibration off. ``quant_config``: as for
    ``qtune.onnx_debug.build_model``. ``input_dict``, too: ``{input: {"input_shape": [...]}}``, or
    the sizes alone, fixes sizes that the file leaves open; a model whose inner shapes are computed
    from them may need that. ``store`` keeps what was built. ``name`` is the model's name in
    reports; default: that of the file.

    ``float`` and ``optimized`` are run by onnxruntime, ``calibrated`` too. Raises
    ``OnnxImportError`` for what is no model that can be taken, ``ArgumentError`` for data.
    """

    def __init__(
        self,
        model: Onnx,
        calibration: Any = None,
        *,
        march: str,
        quant_config: Mapping[str, Any] | str | Path | None = None,
        input_dict: Mapping[str, Any] | None = None,
        name: str | None = None,
        store: Store | None = None,
    ) -> None:
        self._source = model
        self._calibration = calibration
        self._quant_config = quant_config
        self._input_dict = input_dict
        self._name = name
        super().__init__(march, store)

    def __repr__(self) -> str:
        return f"OnnxStages({self.name!r}, march={self.march!r})"

    @cached_property
    def given(self) -> OnnxModel:
        """The model as it came, float or calibrated."""
        found = as_model(_CHECK, "model", self._source)
        if not isinstance(found, OnnxModel):
            raise ArgumentError(
                f"{_CHECK}: model must be the path of an {ONNX} file or a ModelProto, but got "
                f"{self._source!r}"
            )
        needless = {"calibration": self._calibration, "quant_config": self._quant_config}
        for name, value in needless.items():
            if found.kind == CALIBRATED and value is not None:
                raise ArgumentError(
                    f"{_CHECK}: {found.name} is calibrated already; leave {name} out, or give the "
                    "float model"
                )
        return found if self._input_dict is None else self._sized(found)

    def _sized(self, model: OnnxModel) -> OnnxModel:
        """The model with the sizes that ``input_dict`` fixes."""
        from qtune.onnx_debug.build.arguments import sizes_of
        from qtune.onnx_debug.build.optimize import static_sizes

        sizes = static_sizes(model.source_proto, sizes_of(self._input_dict))
        made = OnnxModel(files.with_sizes(model.source_proto, sizes), model.name)
        made.path = model.path
        return made

    @property
    def name(self) -> str:
        """The model's name in reports."""
        return self._name or self.given.name

    @cached_property
    def float(self) -> OnnxModel:
        """The float model as it came; of a calibrated one its float form."""
        given = self.given
        if given.kind == FLOAT:
            return mark(given, Origin(self.name, given.path, self.provenance))
        return self._onnx("float.onnx", lambda: float_form(given.calibrated))

    @cached_property
    def optimized(self) -> OnnxModel:
        """The float model whose nodes are calibrated: batch norms and constants are folded."""
        if self.given.kind == CALIBRATED:
            return self.float
        return self._onnx("optimized.onnx", self._optimized)

    @cached_property
    def calibrated(self) -> OnnxModel:
        """The model with HzCalibration nodes; that of the file, if it has any or QDQ pairs."""
        given = self.given
        if given.kind == CALIBRATED and given.path is not None:
            return mark(given, Origin(self.name, given.path, self.provenance))
        build = self._built if given.kind == FLOAT else (lambda: given.source_proto)
        return self._onnx("calibrated.onnx", build)

    @cached_property
    def qat_bc(self) -> HbirModule:
        """The fake-quant HBIR module of the calibrated model."""
        return self._module("qat.bc", self._hbir)

    @cached_property
    def data(self) -> CalibrationDataSet:
        """The calibration data."""
        given = self._calibration
        with seeded():
            made = given() if callable(given) else given
        if made is None:
            raise ArgumentError(
                f"{_CHECK}: {self.name} is a float model; give calibration data, a folder of "
                "<input name>/<i>.npy or a list of arrays, or a model that is calibrated"
            )
        return data_set(self.given, made)

    @property
    def example_inputs(self) -> Inputs:
        """The first calibration item, in the order of the inputs."""
        item = self.data[0]
        return Inputs(*(torch.from_numpy(item[port.name].copy()) for port in self.given.inputs))

    @cached_property
    def provenance(self) -> dict[str, object]:
        """What the artefacts were made of and with: plain values by name.

        ``content``: sha256 of the model with its external data.
        """
        has_data = self._calibration is not None
        return {
            "model": self.name,
            "content": _content(self.given.source_proto),
            "qconfig": digest(self._config()),
            "march": self.march,
            "method": "onnx",
            "calibration": digest([digest(item) for item in self.data]) if has_data else "none",
            **environment(),
            "onnxruntime": _onnxruntime(),
        }

    def _config(self) -> Any:
        """``quant_config``; the text of the file that it names."""
        given = self._quant_config
        if not isinstance(given, str | Path):
            return given
        path = Path(given)
        if not path.is_file():
            raise ArgumentError(f"{_CHECK}: quant_config: there is no file {path}")
        return path.read_text(encoding="utf-8")

    def _hbir(self) -> HbirModule:
        model = self.calibrated
        names = [port.name for port in model.inputs if port.shape and None in port.shape[1:]]
        if names:
            raise ArgumentError(
                f"{_CHECK}: {self.name}: the inputs {', '.join(names)} have open sizes beside the "
                f"batch; give them: input_dict={{{names[0]!r}: [...]}}"
            )
        return model.hbir

    def _shapes(self) -> dict[str, list[int]]:
        open_ports = [p for p in self.given.inputs if p.shape and None in p.shape[1:]]
        return open_shapes(open_ports, self.data[0]) if open_ports else {}

    def _optimized(self) -> onnx.ModelProto:
        from qtune.onnx_debug.build.optimize import optimized

        return optimized(self.given.source_proto, self._shapes())

    def _built(self) -> onnx.ModelProto:
        """As ``build_model`` calibrates; without ``quant_config`` it chooses the method too."""
        from qtune.onnx_debug.build.model import insert_calibration

        config = {} if self._quant_config is None else self._quant_config
        sizes = {name: {"input_shape": size} for name, size in self._shapes().items()}
        return insert_calibration(
            self.given.source_proto,
            self.data,
            self.march,
            quant_config=config,
            input_dict=sizes or None,
        )

    def _onnx(self, name: str, build: Callable[[], onnx.ModelProto]) -> OnnxModel:
        def load(path: Path) -> onnx.ModelProto:
            return onnx.load(path)

        def save(made: onnx.ModelProto, partial: Path) -> object:
            return partial.write_bytes(_bytes(made))

        with seeded():
            proto = self.store.get(self.key, name, build, save, load)
        return self._mark(OnnxModel(proto, self.name, is_fused=True), name)


def _onnxruntime() -> str:
    try:
        return version("onnxruntime")
    except PackageNotFoundError:  # what needs it says so
        return ""


def _content(proto: onnx.ModelProto) -> str:
    """sha256 of a model; weights read from a file of their own count like those inside."""
    plain = onnx.ModelProto()
    plain.CopyFrom(proto)
    for tensor in plain.graph.initializer:
        if tensor.data_location == onnx.TensorProto.DEFAULT:
            tensor.ClearField("data_location")
    return hashlib.sha256(_bytes(plain)).hexdigest()


def _bytes(proto: onnx.ModelProto) -> bytes:
    return bytes(proto.SerializeToString(deterministic=True))
