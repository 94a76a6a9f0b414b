"""The model of a gate file: its stages and data, made from what ``[model]`` names."""

from __future__ import annotations

import functools
import hashlib
import shutil
import tempfile
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from qtune.analysis.finding import call_of
from qtune.bpu import compiler
from qtune.capture.inputs import Inputs
from qtune.errors import QtuneError, kind_of
from qtune.hbir.module import HbirModule
from qtune.quantization import PrepareMethod
from qtune.testing.built_stages import seeded
from qtune.testing.failure import one_line
from qtune.testing.gatefile.error import GateFileError
from qtune.testing.gatefile.tables import GateFile
from qtune.testing.objects import called, load_object, load_setter
from qtune.testing.origin import Origin, mark
from qtune.testing.stages import Stages
from qtune.testing.store import Store

_DATA = (Tensor, Inputs, Mapping, list, tuple)


class Subject:
    """``stage(name)`` is a stage of the model, ``inputs(...)`` what it runs on.

    ``march``: for a file that names none. Errors are ``GateFileError`` at the line of the key.
    """

    def __init__(self, file: GateFile, store: Store | None, march: str | None) -> None:
        self.file = file
        self._store = store
        self._march = march
        self._inputs: dict[str, Any] = {}

    @property
    def name(self) -> str:
        """The model's name in reports: the file's, if it names none."""
        return self.file.model.name or Path(self.file.path.stem).stem

    @property
    def march(self) -> str:
        """The file's march, or that of the run."""
        found = self.file.model.march or self._march
        if found is None:
            raise self.file.error(
                '[model]: no march is given; add march = "nash-e" (or another), or give one to '
                "the run",
                "model",
            )
        return found

    def stage(self, name: str) -> Any:
        """float, calib, pre_export, qat_bc, quantized_bc or hbm; an artefact is the fifth."""
        if name == "quantized_bc" and self.file.model.artefact is not None:
            return self._pinned
        if name == "hbm" and self.file.model.artefact is not None:
            return self._compiled
        return getattr(self.stages, name)

    @cached_property
    def stages(self) -> Stages:
        """The model in all its stages."""
        model = self.file.model
        setter = None
        if model.qconfig is not None:
            setter = self._loaded("qconfig", model.qconfig, load_setter)
        return Stages(
            self._factory(),
            self._source("calibration", str(model.calibration)),
            march=self.march,
            qconfig_setter=setter,
            method=self._method(),
            name=self.name,
            store=self._store,
        )

    def operators(self) -> dict[str, str]:
        """The operators of the prepared model, in order: ``""`` or what each is fused into."""
        listed = self.stages.prepared.operators()
        pairs = ((op.name, str(node.meta.get("group", op.name))) for node, op in listed)
        return {name: "" if group == name else group for name, group in pairs}

    def inputs(self, spec: str | None, *keys: str | int) -> Any:
        """The inputs that ``spec`` names, ``[model]``'s by default; ``keys``: where it stands."""
        named = spec or str(self.file.model.inputs)
        place = keys if spec else ("model", "inputs")
        if named not in self._inputs:
            with seeded():
                given = self._source("inputs", named, *place)
                made = given() if callable(given) else given
                self._inputs[named] = self._as_inputs(made, named, *place)
        return self._inputs[named]

    def function(self, key: str, spec: str | None, *keys: str | int) -> Callable[..., Any]:
        """The function that ``spec`` names; what it raises is an error at the line of its key."""
        named = spec or str(getattr(self.file.model, key))
        place = keys if spec else ("model", key)
        given = self._loaded(key, named, load_object, *place)
        if not callable(given):
            raise self._error(f"{key}: {named} is {kind_of(given)}, no function", *place)

        @functools.wraps(given)
        def run(*args: Any) -> Any:
            try:
                return given(*args)
            except Exception as reason:
                text = f"{key}: {named} raised {one_line(reason)}"
                raise self._error(text, *place) from reason

        run.__name__ = str(getattr(given, "__name__", named.rpartition(":")[2]))
        return run

    def _factory(self) -> nn.Module | Callable[[], nn.Module]:
        """The model, or what makes it; what else it gives is an error at its line."""
        spec = str(self.file.model.factory)
        given = self._loaded("factory", spec, load_object)
        if isinstance(given, nn.Module):
            return given
        if not callable(given):
            raise self._error(f"factory: {spec} is {kind_of(given)}, no model", "model", "factory")

        def make() -> nn.Module:
            made = self._called("factory", spec, given, "model", "factory")
            if not isinstance(made, nn.Module):
                text = f"factory: {spec} returned {kind_of(made)}; expected a torch.nn.Module"
                raise self._error(text, "model", "factory")
            return made

        return make

    def _source(self, key: str, spec: str, *keys: str | int) -> Any:
        """Data, or a callable without arguments that gives them."""
        place = keys or ("model", key)
        given = self._loaded(key, spec, load_object, *place)
        if isinstance(given, _DATA) or not callable(given):
            return self._guarded(key, spec, given, *place)
        return lambda: self._guarded(key, spec, self._called(key, spec, given, *place), *place)

    def _guarded(self, key: str, spec: str, given: Any, *keys: str | int) -> Any:
        """``given``; what it raises while it is walked through is an error at its line too."""
        if isinstance(given, _DATA) or not isinstance(given, Iterable):
            return given

        def items() -> Iterator[Any]:
            try:
                yield from given
            except Exception as reason:
                text = f"{key}: {spec} raised {one_line(reason)}"
                raise self._error(text, *keys) from reason

        return items()

    def _as_inputs(self, made: Any, spec: str, *keys: str | int) -> Any:
        if isinstance(made, Tensor | Inputs | tuple | Mapping):
            return made
        if not isinstance(made, Iterable):
            text = f"inputs: {spec} gives {kind_of(made)}; expected a tensor, a tuple of arguments,"
            raise self._error(f"{text} qtune.Inputs, or an iterable of these", *keys)
        model = self._pinned if self.file.model.factory is None else self.stages.float
        try:
            items = [
                call_of(model, item, index, f"inputs: {spec}", GateFileError)
                for index, item in enumerate(made)
            ]
        except GateFileError as error:
            raise self._error(str(error), *keys) from error.__cause__
        if not items:
            raise self._error(f"inputs: {spec} gives no item; give at least one", *keys)
        return items

    def _called(self, key: str, spec: str, given: Any, *keys: str | int) -> Any:
        try:
            return called(given, spec, key, error=GateFileError)
        except GateFileError as error:
            raise self._error(str(error), *keys) from error.__cause__

    def _loaded(self, key: str, spec: str, load: Any, *keys: str | int) -> Any:
        place = keys or ("model", key)
        try:
            return load(spec, key, error=GateFileError, folder=self.file.folder)
        except GateFileError as error:
            raise self._error(str(error), *place) from error.__cause__

    def _method(self) -> PrepareMethod:
        given = self.file.model.method
        if given is None:
            return PrepareMethod.JIT_STRIP
        known = [method.value for method in PrepareMethod]
        if given not in known:
            text = f"method: unknown {given!r}; choose one of: {', '.join(known)}"
            raise self._error(text, "model", "method")
        return PrepareMethod(given)

    @cached_property
    def _pinned(self) -> HbirModule:
        """The integer module of the file that ``artefact`` names."""
        shown = str(self.file.model.artefact)
        path = self.file.folder / shown
        if not path.is_file():
            raise self._error(f"artefact: there is no file {shown}", "model", "artefact")
        try:
            module: HbirModule = compiler.load(path)
        except QtuneError as error:
            raise self._error(f"artefact: {shown}: {error}", "model", "artefact") from error
        if not module.march:
            raise self._error(
                f"artefact: {shown} is no integer module; save stages.quantized_bc",
                "model",
                "artefact",
            )
        if module.march != self.march:
            raise self._error(
                f"artefact: {shown} was made for {module.march}, the model is for {self.march}",
                "model",
                "artefact",
            )
        facts = {"march": self.march, "artefact": hashlib.sha256(path.read_bytes()).hexdigest()}
        return mark(module, Origin(self.name, str(path), facts))

    @cached_property
    def _compiled(self) -> Any:
        folder = tempfile.mkdtemp(prefix="qtune-")
        weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
        return compiler.compile(self._pinned, Path(folder) / "model.hbm", self.march)

    def _error(self, text: str, *keys: str | int) -> GateFileError:
        return self.file.error(f"[{keys[0]}]: {text}" if keys[0] == "model" else text, *keys)
