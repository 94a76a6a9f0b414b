"""The model of a gate file that comes from an ONNX file."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from qtune.errors import QtuneError
from qtune.testing.gatefile.subject import Subject
from qtune.testing.objects import load_object
from qtune.testing.onnx_inputs import examples
from qtune.testing.onnx_stages import OnnxStages

_JSON = (".json", ".yaml", ".yml")


class OnnxSubject(Subject):
    """As ``Subject``: ``onnx`` is the path of the model, data may be folders."""

    @cached_property
    def stages(self) -> Any:
        """The model in all its stages."""
        model, path = self.file.model, self.file.folder / str(self.file.model.onnx)
        if not path.is_file():
            raise self._error(f"onnx: there is no file {model.onnx}", "model", "onnx")
        data = None if model.calibration is None else self._data("calibration", model.calibration)
        made = OnnxStages(
            path,
            data,
            march=self.march,
            quant_config=self._quant_config(),
            input_dict=model.input_dict,
            name=self.name,
            store=self._store,
        )
        try:
            _ = made.given
        except QtuneError as error:
            raise self._error(f"onnx: {model.onnx}: {error}", "model", "onnx") from error
        return made

    def operators(self) -> dict[str, str]:
        """The operators of the calibrated model, in order: ``""`` or what each is fused into."""
        function = self.stages.qat_bc[0]
        groups = function.groups()
        shown = function.operator_names()
        names = [name for name in groups if name in shown or groups[name] != name]
        return {name: "" if groups[name] == name else groups[name] for name in names}

    def _data(self, key: str, spec: str, *keys: str | int) -> Any:
        """A folder, or what ``module:name`` gives; a callable stays one."""
        folder = self.file.folder / spec
        if folder.is_dir():
            return folder
        if ":" not in spec:
            place = keys or ("model", key)
            raise self._error(f"{key}: there is no folder {spec}", *place)
        return self._source(key, spec, *keys)

    def inputs(self, spec: str | None, *keys: str | int) -> Any:
        """The inputs that ``spec`` names, as a list of calls."""
        named = spec or str(self.file.model.inputs)
        if not (self.file.folder / named).is_dir() and ":" in named:
            return super().inputs(spec, *keys)
        place = keys if spec else ("model", "inputs")
        if named not in self._inputs:
            folder = self._data("inputs", named, *place)
            self._inputs[named] = self._as_inputs(folder, named, *place)
        return self._inputs[named]

    def _as_inputs(self, made: Any, spec: str, *keys: str | int) -> Any:
        model = self._pinned if self.file.model.artefact is not None else self.stages.given
        given = list(made) if _is_stream(made) else made
        try:
            return examples((model,), given)
        except QtuneError as error:
            raise self._error(f"inputs: {spec}: {error}", *keys) from error

    def _quant_config(self) -> Any:
        given = self.file.model.quant_config
        if given is None or isinstance(given, Mapping):
            return given
        path = self.file.folder / given
        if path.suffix in _JSON or path.is_file():
            if not path.is_file():
                text = f"quant_config: there is no file {given}"
                raise self._error(text, "model", "quant_config")
            return path
        found = self._loaded("quant_config", given, load_object)
        if callable(found):
            return self._called("quant_config", given, found, "model", "quant_config")
        return found


def _is_stream(made: Any) -> bool:
    """A generator or a data loader: neither one call nor a list of them."""
    is_call = hasattr(made, "dtype") or hasattr(made, "args")
    return not is_call and not isinstance(made, list | tuple | Mapping | str | Path)
