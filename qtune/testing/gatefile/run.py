"""Runs the checks of a gate file. Loads torch."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cached_property
from pathlib import Path
from typing import Any

from qtune.errors import QtuneError
from qtune.testing.baseline import Baseline
from qtune.testing.baseline_file import baseline_path
from qtune.testing.gatefile.error import GateFileError
from qtune.testing.gatefile.kinds import INPUTS, STORED, Kind, kinds
from qtune.testing.gatefile.layers import Layers, comparisons
from qtune.testing.gatefile.modules import Modules
from qtune.testing.gatefile.onnx_subject import OnnxSubject
from qtune.testing.gatefile.read_check import OF_MODEL
from qtune.testing.gatefile.subject import Subject
from qtune.testing.gatefile.tables import Check, GateFile
from qtune.testing.record import conclude_all, kept_apart
from qtune.testing.result import AssertionResult
from qtune.testing.store import Store


@dataclass(frozen=True, slots=True)
class Settings:
    """What a run gives to its gate files.

    ``store`` keeps what is built, ``march`` is for files that name none.
    """

    store: Store | None = None
    march: str | None = None


class GateRun:
    """The checks of one file in one process; what they share is built once.

    All but ``active`` is to be called within ``active()``, in which the user's modules are found.
    """

    def __init__(self, file: GateFile, modules: Modules, settings: Settings) -> None:
        self.file = file
        self._modules = modules
        self._settings = settings
        self._layers: dict[int, Layers] = {}

    def active(self) -> AbstractContextManager[None]:
        """Within the block the user's modules are found as from the file's folder."""
        return self._modules.active()

    @cached_property
    def subject(self) -> Subject:
        """The model and its data."""
        kind = Subject if self.file.model.onnx is None else OnnxSubject
        return kind(self.file, self._settings.store, self._settings.march)

    def results(self, check: Check, stored: Baseline | None = None) -> list[AssertionResult]:
        """What the check finds, nothing recorded; ``GateFileError`` where it can't be made.

        ``stored``: the values of a check that compares with stored ones.
        """
        return [result for limits in _calls(check) for result in self._one(check, limits, stored)]

    def layers(self, check: Check) -> Layers:
        """The comparison of a per-layer check, made when first asked for."""
        if check.number not in self._layers:
            self._layers[check.number] = comparisons(lambda: self.results(check))
        return self._layers[check.number]

    def operators(self, check: Check) -> Mapping[str, str]:
        """The operators of the prepared model, in order: ``""`` or what each is fused into.

        Raises ``GateFileError`` for a layer in ``xfail`` that can't fail.
        """
        try:
            found = self.subject.operators()
        except GateFileError:
            raise
        except QtuneError as error:
            raise self._error(check, error) from error
        for layer in check.xfail_layers:
            if found.get(layer) != "":
                raise self._no_layer(check, layer, found)
        return found

    def _no_layer(self, check: Check, layer: str, known: Mapping[str, str]) -> GateFileError:
        near = get_close_matches(layer, known, n=1)
        hint = f"; close matches: {near[0]}" if near else ""
        text = f"there is no layer {layer!r}{hint}"
        if layer in known:
            text = f"{layer} is fused into {known[layer]}; name that one"
        place = ("check", check.number - 1, "xfail", layer)
        return self.file.error(f"[[check]] {check.number} ({check.kind}): xfail: {text}", *place)

    def _one(
        self, check: Check, limits: Mapping[str, Any], stored: Baseline | None
    ) -> list[AssertionResult]:
        kind = kinds()[check.kind]
        try:
            models = [self.subject.stage(stage) for stage in check.stages]
            arguments = self._arguments(kind, check, limits)
            if kind.stores:
                arguments[STORED] = stored or Baseline(baseline_path(self.file.path), check.name)
            function = getattr(importlib.import_module(kind.module), kind.function)
            subjects = dict(zip((p.name for p in kind.subjects), models, strict=True))
            with kept_apart() as found:
                function(**subjects, **arguments)
        except GateFileError:
            raise
        except QtuneError as error:
            raise self._error(check, error) from error
        except Exception as error:
            error.add_note(f"in {self._error(check, 'what it runs')}")  # the user's model
            raise
        if not found:
            raise self._error(check, "it found nothing to judge")
        return found

    def _arguments(self, kind: Kind, check: Check, given: Mapping[str, Any]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for name, parameter in kind.arguments.items():
            of_model = parameter.is_callable and getattr(self.file.model, name, None)
            if name not in given and not of_model:
                continue
            place = ("check", check.number - 1, name)
            if name == INPUTS:
                found[name] = self.subject.inputs(given[name], *place)
            elif parameter.is_callable and (name in OF_MODEL or given[name]):
                found[name] = self.subject.function(name, given.get(name), *place)
            else:
                found[name] = given[name]
        return found

    def _error(self, check: Check, error: object) -> GateFileError:
        text = f"[[check]] {check.number} ({check.kind}): {error}"
        return self.file.error(text, "check", check.number - 1)


def gate_run(file: GateFile, root: Path, settings: Settings) -> GateRun:
    """A run of one file alone; ``root``: where modules are looked for after its folder."""
    return GateRun(file, Modules(file.folder, root), settings)


def conclude(results: Sequence[AssertionResult]) -> None:
    """Record all of them; raise ``AssertionError`` with the messages of all bad ones."""
    __tracebackhide__ = True
    try:
        conclude_all(results)
    except AssertionError as error:
        error.args = ("\n\n".join(result.message() for result in results if not result.ok),)
        raise


def _calls(check: Check) -> list[Mapping[str, Any]]:
    """The arguments of each call: per layer one for each limit, since layers are judged by one."""
    limits = [name for name in check.arguments if name.startswith(("min_", "max_"))]
    if not check.per_layer or len(limits) < 2:
        return [check.arguments]
    return [
        {k: v for k, v in check.arguments.items() if k == name or k not in limits}
        for name in limits
    ]
