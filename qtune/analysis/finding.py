"""Where the bad cases of a session come from: a search, or the user."""

from __future__ import annotations

import contextlib
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from numbers import Integral
from pathlib import Path
from typing import Any

from torch import Tensor

from qtune.analysis import files
from qtune.analysis.badcase import BadCaseSearch, Findings, report_of
from qtune.analysis.cases import ANALYSIS, BASELINE, BadCases, Case, CaseStore
from qtune.analysis.devices import inputs_on
from qtune.analysis.same_models import check_same_models
from qtune.analysis.session import Session
from qtune.analysis.shared_data import count_of
from qtune.capture.inputs import Inputs, batch_to_inputs, naming
from qtune.errors import AnalysisError, QtuneError, kind_of
from qtune.hbir.feeding import is_flat, positional
from qtune.hbir.module import HbirModule
from qtune.profiler.bad_case_report import BadCaseReport
from qtune.profiler.kept_state import read_attributes
from qtune.profiler.observe import Model, own_inputs, run_model
from qtune.profiler.undisturbed import same_randomness
from qtune.report.progress import expected_length

_SEARCH = "auto_find_bad_case"
_SHARES = ".badcase_shares-"
"""How the folder begins that has the cases each of several processes found, until one chooses."""


def find_bad_cases(
    session: Session,
    data: Iterable[Any],
    num_steps: int,
    cached_attrs: Sequence[str],
    dump: bool,
    topk: int,
) -> BadCaseReport:
    """Search ``data`` with both models, write the report, and go on with what was found."""
    session.check_states(_SEARCH)
    _check_arguments(data, {"topk": topk, "num_steps": num_steps})
    if session.ranks.are_several:
        return _find_together(session, data, num_steps, cached_attrs, topk)
    store = session.new_store(dump)
    search = BadCaseSearch(session.metrics, topk, store, session.post_process)
    with session.undisturbed(cached_attrs=cached_attrs), store.replacing():
        found = _search(session, search, data, num_steps, cached_attrs)
        report = report_of(session.metrics, topk, [found], session.where_run)
        files.write_report(session.out_dir, report)
    session.take_cases(BadCases(store, report))
    return report


def _check_arguments(data: Any, numbers: Mapping[str, Any]) -> None:
    for name, value in numbers.items():
        if isinstance(value, bool) or not isinstance(value, Integral) or value < 0:
            raise AnalysisError(f"{_SEARCH}: {name} is a whole number from 1 on, got {value!r}")
    if isinstance(data, Tensor) or not (hasattr(data, "__iter__") or hasattr(data, "__getitem__")):
        raise AnalysisError(
            f"{_SEARCH}: the data are a loader, a generator or a list of inputs, got "
            f"{kind_of(data)}; for a single input call set_bad_case"
        )


def _find_together(
    session: Session, data: Iterable[Any], num_steps: int, cached_attrs: Sequence[str], topk: int
) -> BadCaseReport:
    """Each process searches its share and writes its worst cases; the first one keeps the worst."""
    ranks = session.ranks
    check_same_models(session, _SEARCH)
    shares = ranks.on_first(_SEARCH, lambda: _folder_for_shares(session))
    own = CaseStore(session.out_dir / shares / str(ranks.rank), dump=True)
    search = BadCaseSearch(session.metrics, topk, own, session.post_process)
    try:
        _check_shared(session, shares)
        with session.undisturbed(cached_attrs=cached_attrs):
            found = _search(session, search, data, num_steps, cached_attrs)
        parts = ranks.everywhere(_SEARCH, found)
        report = report_of(session.metrics, topk, parts, session.where_run)
        ranks.on_first(_SEARCH, lambda: _keep_worst(session, report, shares))
    finally:
        shutil.rmtree(own.folder, ignore_errors=True)
        with contextlib.suppress(OSError):  # the last one removes it
            own.folder.parent.rmdir()
    session.take_cases(BadCases(session.new_store(), report))
    return report


def _folder_for_shares(session: Session) -> str:
    session.out_dir.mkdir(parents=True, exist_ok=True)
    for old in session.out_dir.glob(f"{_SHARES}*"):  # of a search that was killed
        shutil.rmtree(old, ignore_errors=True)
    return Path(tempfile.mkdtemp(prefix=_SHARES, dir=session.out_dir)).name


def _check_shared(session: Session, shares: str) -> None:
    """Raise unless this process sees the folder of the first one, before anything takes long."""
    if not (session.out_dir / shares).is_dir():
        raise AnalysisError(
            f"{_SEARCH}: the first process writes to another folder than out_dir "
            f"{session.out_dir}; give all processes the same one, on a disk that they share"
        )


def _keep_worst(session: Session, report: BadCaseReport, shares: str) -> None:
    """Put the cases of the report in the place of earlier ones, and write it."""
    store, count = session.new_store(), session.ranks.count
    with store.replacing():
        store.folder.mkdir(parents=True, exist_ok=True)
        for index in report.indices:
            name = f"{index}.pt"
            found = session.out_dir / shares / str(index % count) / name
            found.replace(store.folder / name)
        files.write_report(session.out_dir, report)


def _search(
    session: Session,
    search: BadCaseSearch,
    data: Iterable[Any],
    num_steps: int,
    cached_attrs: Sequence[str],
) -> Findings:
    total = expected_length(data, None if num_steps == sys.maxsize else num_steps)
    cases = _cases(session, data, cached_attrs)
    return search.run(lambda case: _run_both(session, case), cases, num_steps, total)


def take_bad_case(session: Session, data: Any, attributes: Mapping[str, Mapping[str, Any]]) -> None:
    """Go on with ``data`` as index 0, the first one's in several processes.

    ``attributes``: side -> name -> value before the call.
    """

    def take() -> None:
        case = case_by_hand(session, data, attributes)
        session.take_cases(BadCases(session.new_store(), by_hand=case))

    share_cases(session, "set_bad_case", take)


def share_cases(session: Session, where: str, take: Callable[[], None]) -> None:
    """Let the first process ``take`` bad cases, and all go on with them."""

    def work() -> BadCases:
        take()
        return session.cases.on_cpu()

    cases = session.ranks.on_first(where, work)
    if session.ranks.is_first:
        return
    cases = replace(cases, store=session.new_store())
    for index in [] if cases.report is None else cases.report.indices:
        cases.load(index)  # fails where out_dir is another folder than the first process's
    session.take_cases(cases)


def case_by_hand(session: Session, data: Any, attributes: Mapping[str, Mapping[str, Any]]) -> Case:
    """The case that the data are; ``AnalysisError`` if they mean nothing to either model."""
    calls = {side: _call_on(session, data, side) for side in (BASELINE, ANALYSIS)}
    fitting = [call for call in calls.values() if isinstance(call, Inputs)]
    if not fitting:
        raise next(call for call in calls.values() if isinstance(call, AnalysisError))
    case = Case(0, fitting[0], attributes, calls)
    for side in attributes:
        with session.before(case, side):  # names and values that don't fit are refused now
            pass
    return case


def _call_on(session: Session, data: Any, side: str) -> Inputs | AnalysisError:
    """What the data mean to one model, or why they mean nothing.

    An HBIR module is called as the torch model, where that takes the data, else as itself, and
    always as itself with the tensors of all its inputs.
    """
    own = session.model_of(side)
    models: tuple[Model, ...] = (own,)
    if isinstance(own, HbirModule) and not (_is_list(data) and is_flat(own[0], data)):
        models = (session.called_model, own)
    errors = []
    for model in models:
        try:
            return own_inputs(call_of(model, data, 0, "set_bad_case"))
        except AnalysisError as error:
            errors.append(error)
    return errors[0]


def _is_list(data: Any) -> bool:
    return type(data) in (tuple, list)


def call_of(
    model: Model,
    batch: Any,
    index: int,
    where: str,
    error: type[QtuneError] = AnalysisError,
) -> Inputs:
    """The call that a batch stands for; labels behind the inputs of an HBIR module are left out."""
    if isinstance(model, HbirModule) and _is_list(batch):
        is_labelled = len(positional(model[0])) == 1 and not is_flat(model[0], batch)
        batch = tuple(batch[:1]) if is_labelled else tuple(batch)
    return batch_to_inputs(batch, model, index, where, error)


def _cases(session: Session, data: Iterable[Any], cached_attrs: Sequence[str]) -> Iterator[Case]:
    count = count_of(data, session.ranks)
    for step, item in enumerate(data):
        index = session.ranks.index(step)
        if count is not None and index >= count:
            return
        inputs = call_of(session.called_model, item, index, _SEARCH)
        yield Case(index, inputs, _attributes(session, cached_attrs))


def _attributes(session: Session, names: Sequence[str]) -> dict[str, dict[str, Any]]:
    if not names:
        return {}
    sides = (BASELINE, ANALYSIS)
    return {side: read_attributes(session.model_of(side), names) for side in sides}


def _run_both(session: Session, case: Case) -> tuple[Any, Any]:
    here = inputs_on(case.inputs, session.run_device)
    with naming(f"case {case.index} of {_SEARCH}", here):
        with same_randomness():
            baseline = run_model(session.baseline, here)
        with same_randomness():
            return baseline, run_model(session.analysed, here)
