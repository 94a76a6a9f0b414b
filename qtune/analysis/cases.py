"""Bad cases: their inputs, and the state that a sequence model had before them.

In memory, and in ``badcase/<index>.pt``.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Set
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from qtune.analysis.devices import inputs_on, tensors_on
from qtune.capture.inputs import Inputs
from qtune.capture.structure import flatten, unflatten
from qtune.errors import AnalysisError
from qtune.hbir.structure import describe, rebuild
from qtune.profiler.bad_case_report import BadCaseReport
from qtune.profiler.metric import MetricInfo
from qtune.profiler.observe import own_inputs
from qtune.profiler.safe_load import load_safely
from qtune.report.files import write_with

BASELINE, ANALYSIS = "baseline", "analysis"
"""The two sides of an analysis."""
_PLAIN = (bool, int, float, str)


@dataclass(frozen=True, slots=True)
class Case:
    """One call. ``attributes``: side -> dotted name -> value before the call (``cached_attrs``).

    ``calls``: side -> what a case set by hand means to a model of another signature, or why it
    means nothing there.
    """

    index: int
    inputs: Inputs
    attributes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    calls: Mapping[str, Inputs | AnalysisError] = field(default_factory=dict)

    def inputs_of(self, side: str) -> Inputs:
        """The call of the model of a side."""
        call = self.calls.get(side, self.inputs)
        if isinstance(call, AnalysisError):
            raise call
        return call

    def of(self, side: str) -> Mapping[str, Any]:
        """The attributes of one side."""
        return self.attributes.get(side, {})


class CaseStore:
    """Cases by index in ``folder``.

    ``dump``: write them at once and keep none in memory. Files hold plain containers, so that they
    load with torch's safe default, and beside them how to build the originals.
    """

    def __init__(self, folder: Path, dump: bool = False) -> None:
        self.folder = folder
        self.dump = dump
        self._cases: dict[int, Case] = {}

    def keep(self, case: Case, wanted: Set[int]) -> None:
        """Take a copy of a case if its index is ``wanted``, and drop all that are no longer.

        A copy: loaders may fill the same tensor again and again.
        """
        for old in [i for i in self._cases if i not in wanted]:
            del self._cases[old]
        if self.dump:
            for path in self._files():
                if int(path.stem) not in wanted:
                    path.unlink()
        if case.index in wanted and self.dump:
            save_case(self.folder / f"{case.index}.pt", case)
        elif case.index in wanted:
            self._cases[case.index] = replace(case, inputs=own_inputs(case.inputs))

    def flush(self) -> None:
        """Write what is in memory."""
        for index, case in self._cases.items():
            save_case(self.folder / f"{index}.pt", case)

    def load(self, index: int) -> Case:
        """The case of that index."""
        if index in self._cases:
            return self._cases[index]
        path = self.folder / f"{index}.pt"
        if not path.exists():
            raise AnalysisError(f"{path} is missing; search or set the bad case again")
        return read_case(path, index)

    @contextmanager
    def replacing(self) -> Iterator[None]:
        """Other cases come into the folder. Earlier ones are set aside, and come back if the block
        fails; without earlier ones what was written stays.
        """
        aside = self.folder.with_name(f".{self.folder.name}.before")
        shutil.rmtree(aside, ignore_errors=True)
        try:
            if self._files():
                self.folder.rename(aside)
            yield
        except BaseException:
            if aside.exists():
                shutil.rmtree(self.folder, ignore_errors=True)
                aside.rename(self.folder)
            raise
        shutil.rmtree(aside, ignore_errors=True)

    def _files(self) -> list[Path]:
        return [path for path in self.folder.glob("*.pt") if path.stem.isdigit()]


@dataclass(frozen=True, slots=True)
class BadCases:
    """The bad cases of an analysis: those of a report, or one set by hand, which has index 0.

    ``loaded``: they come from an earlier session, and so may files beside them.
    """

    store: CaseStore
    report: BadCaseReport | None = None
    by_hand: Case | None = None
    loaded: bool = False

    def load(self, index: int) -> Case:
        """The case of that index."""
        return self.store.load(index) if self.by_hand is None else self.by_hand

    def on_cpu(self) -> BadCases:
        """The same with the tensors of a case set by hand on the CPU, for another process."""
        if self.by_hand is None:
            return self
        case, cpu = self.by_hand, torch.device("cpu")
        calls = {
            side: inputs_on(call, cpu) if isinstance(call, Inputs) else call
            for side, call in case.calls.items()
        }
        attributes = tensors_on(dict(case.attributes), cpu)
        moved = Case(case.index, inputs_on(case.inputs, cpu), attributes, calls)
        return replace(self, by_hand=moved)

    def choose(self, index: int | None, metric: MetricInfo, output: str | None) -> Case:
        """The case of ``index``, else the worst under ``metric``, over all outputs or on one."""
        if self.by_hand is not None:
            if index not in (None, 0):
                raise AnalysisError(f"run: index {index} is unknown; the case set by hand is 0")
            return self.by_hand
        report = self._report()
        if index is None:
            index = report.worst(metric, output)
        elif index not in report.indices:
            raise AnalysisError(
                f"run: index {index} is not in the bad case report; it has {report.indices}"
            )
        return self.load(index)

    def indices(self, metric: MetricInfo, output: str | None = None) -> list[int]:
        """Cases kept under ``metric``, worst first for one output, sorted over all outputs.

        All cases of the output, where the search did not know the metric; all, where it did not
        know the output.
        """
        if self.by_hand is not None:
            return [0]
        report = self._report()
        if output is not None and output in report.output_to_badcase_info:
            return report.cases_of(output, metric) or report.indices_of(output)
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


def save_case(path: Path, case: Case) -> None:
    """Write ``args``, ``kwargs`` and the attributes of both sides in plain containers."""
    leaves, spec = flatten(_content(case))
    value = unflatten([_plain(leaf) for leaf in leaves], spec)
    structure, tensors = describe(value, lambda leaf: isinstance(leaf, Tensor))
    plain = {**_unnamed(structure, tensors), "structure": structure}
    write_with(path, lambda target: torch.save(plain, target))


def read_case(path: Path, index: int) -> Case:
    """Read what :func:`save_case` wrote (with torch's safe default). Containers get their own
    classes back where these are loaded; else they are dicts and tuples.
    """
    content = load_safely(path)
    if not is_case(content):
        raise AnalysisError(f"{path} holds no bad case (args and kwargs of a call)")
    parts = {name: content.get(name, {}) for name in _content(Case(0, Inputs()))}
    if "structure" in content:
        tensors = [leaf for leaf in flatten(parts)[0] if isinstance(leaf, Tensor)]
        parts = rebuild(content["structure"], tensors)
    attributes = {side: parts[f"{side}_attributes"] for side in (BASELINE, ANALYSIS)}
    return Case(index, Inputs(*parts["args"], **parts["kwargs"]), attributes)


def is_case(content: Any) -> bool:
    """Whether a file's content is that of :func:`save_case`."""
    return isinstance(content, Mapping) and {"args", "kwargs"} <= set(content)


def _content(case: Case) -> dict[str, Any]:
    attributes = {f"{side}_attributes": dict(case.of(side)) for side in (BASELINE, ANALYSIS)}
    return {"args": case.inputs.args, "kwargs": dict(case.inputs.kwargs), **attributes}


def _plain(leaf: Any) -> Any:
    """Tensors and numbers; for anything else its text: of no use to a model, but it can be read."""
    if isinstance(leaf, Tensor):
        return leaf.detach()
    return leaf if isinstance(leaf, _PLAIN) else repr(leaf)


def _unnamed(structure: Mapping[str, Any], tensors: list[Tensor]) -> Any:
    """The value in dicts, lists and tuples only."""
    ((kind, content), *_) = structure.items()
    if kind in ("list", "tuple"):
        made = [_unnamed(item, tensors) for item in content]
        return tuple(made) if kind == "tuple" else made
    if kind in ("dict", "object"):
        pairs = content if kind == "dict" else structure["fields"]
        return {key: _unnamed(item, tensors) for key, item in pairs}
    return tensors[content] if kind == "leaf" else content
