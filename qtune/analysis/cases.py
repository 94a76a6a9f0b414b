"""The inputs of bad cases, in memory and in ``badcase/<index>.pt``."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Mapping, Set
from functools import partial
from pathlib import Path
from typing import Any

import torch

from qtune.capture.inputs import Inputs
from qtune.capture.structure import field_names
from qtune.errors import AnalysisError
from qtune.profiler.bad_case_report import BadCaseReport
from qtune.profiler.metric import MetricInfo
from qtune.report.files import write_with


class CaseStore:
    """Inputs by index in ``folder``.

    ``dump``: write them at once and keep none in memory. Files hold plain containers, so that they
    load with torch's safe default; the originals are used while this object lives.
    """

    def __init__(self, folder: Path, dump: bool = False) -> None:
        self.folder = folder
        self.dump = dump
        self._inputs: dict[int, Inputs] = {}

    def keep(self, index: int, inputs: Inputs, wanted: Set[int]) -> None:
        """Take the inputs of a case if they are ``wanted``, and drop all that are no longer."""
        for old in [i for i in self._inputs if i not in wanted]:
            del self._inputs[old]
        if self.dump:
            for path in self._files():
                if int(path.stem) not in wanted:
                    path.unlink()
        if index in wanted and self.dump:
            self._save(index, inputs)
        elif index in wanted:
            self._inputs[index] = inputs

    def flush(self) -> None:
        """Write what is in memory; files of other cases are removed."""
        if self.dump:
            return
        for path in self._files():
            path.unlink()
        for index, inputs in self._inputs.items():
            self._save(index, inputs)

    def load(self, index: int) -> Inputs:
        """The inputs of a case."""
        if index in self._inputs:
            return self._inputs[index]
        path = self.folder / f"{index}.pt"
        if not path.exists():
            raise AnalysisError(f"{path} is missing; search or set the bad case again")
        content: Mapping[str, Any] = torch.load(path, weights_only=True)
        return Inputs(*content["args"], **content["kwargs"])

    def take_from(self, folder: Path) -> None:
        """Copy the cases of another folder, instead of those here."""
        for path in self._files():
            path.unlink()
        self.folder.mkdir(parents=True, exist_ok=True)
        for source in folder.glob("*.pt"):
            write_with(self.folder / source.name, partial(shutil.copyfile, source))

    def _files(self) -> list[Path]:
        return [path for path in self.folder.glob("*.pt") if path.stem.isdigit()]

    def _save(self, index: int, inputs: Inputs) -> None:
        content = {"args": _plain(inputs.args), "kwargs": _plain(dict(inputs.kwargs))}
        write_with(self.folder / f"{index}.pt", lambda path: torch.save(content, path))


@dataclasses.dataclass(frozen=True, slots=True)
class BadCases:
    """The bad cases of an analysis: those of a report, or one set by hand, which has index 0.

    ``loaded``: they come from an earlier session, and so may files beside them.
    """

    store: CaseStore
    report: BadCaseReport | None = None
    by_hand: Inputs | None = None
    loaded: bool = False

    def load(self, index: int) -> Inputs:
        """The inputs of a case."""
        return self.store.load(index) if self.by_hand is None else self.by_hand

    def choose(
        self, index: int | None, metric: MetricInfo, output: str | None
    ) -> tuple[int, Inputs]:
        """The case of ``index``, else the worst under ``metric``, over all outputs or on one."""
        if self.by_hand is not None:
            if index not in (None, 0):
                raise AnalysisError(f"run: index {index} is unknown; the case set by hand is 0")
            return 0, self.by_hand
        report = self._report()
        if index is None:
            index = report.worst(metric, output)
        elif index not in report.indices:
            raise AnalysisError(
                f"run: index {index} is not in the bad case report; it has {report.indices}"
            )
        return index, self.load(index)

    def indices(self, metric: MetricInfo, output: str | None = None) -> list[int]:
        """Cases kept under ``metric``, worst first for one output, sorted over all outputs.

        All cases, where the search did not know the metric or the output.
        """
        if self.by_hand is not None:
            return [0]
        report = self._report()
        if output is not None and output in report.output_to_badcase_info:
            found = report.cases_of(output, metric)
        else:
            found = sorted({i for o in report.output_names for i in report.cases_of(o, metric)})
        return found or report.indices

    def indices_of(self, output: str) -> list[int]:
        """Cases kept for an output under any metric."""
        if self.by_hand is not None:
            return [0]
        report = self._report()
        known = output in report.output_to_badcase_info
        return report.indices_of(output) if known else report.indices

    def _report(self) -> BadCaseReport:
        if self.report is None:
            raise AnalysisError(
                "no bad case: call auto_find_bad_case, set_bad_case or load_bad_case"
            )
        return self.report


def _plain(value: Any) -> Any:
    """Tensors and numbers in tuples, lists and dicts only."""
    if isinstance(value, torch.Tensor):
        return value.detach()
    if isinstance(value, tuple) and field_names(type(value)):
        return {name: _plain(getattr(value, name)) for name in field_names(type(value))}
    if isinstance(value, tuple | list):
        plain = [_plain(item) for item in value]
        return tuple(plain) if isinstance(value, tuple) else plain
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: _plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return repr(value)  # of no use to a model, but the file can be read
