"""Where the bad cases of a session come from: a search, or the user."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from qtune.analysis import files
from qtune.analysis.badcase import BadCaseSearch, Findings, report_of
from qtune.analysis.cases import ANALYSIS, BASELINE, BadCases, Case, CaseStore
from qtune.analysis.devices import inputs_on
from qtune.analysis.session import Session
from qtune.capture.inputs import Inputs, batch_to_inputs
from qtune.errors import AnalysisError
from qtune.hbir.feeding import positional
from qtune.hbir.module import HbirModule
from qtune.profiler.bad_case_report import BadCaseReport
from qtune.profiler.kept_state import read_attributes
from qtune.profiler.observe import Model, own_inputs, run_model
from qtune.profiler.undisturbed import same_randomness
from qtune.report.progress import expected_length

_SEARCH = "auto_find_bad_case"
_SHARES = ".badcase_shares"
"""Folder of the cases that each of several processes found, until they are compared."""


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


def _find_together(
    session: Session, data: Iterable[Any], num_steps: int, cached_attrs: Sequence[str], topk: int
) -> BadCaseReport:
    """Each process searches its share and writes its worst cases; the first one keeps the worst."""
    ranks, shares = session.ranks, session.out_dir / _SHARES
    own = CaseStore(shares / str(ranks.rank), dump=True)
    search = BadCaseSearch(session.metrics, topk, own, session.post_process)
    ranks.on_first(_SEARCH, lambda: shutil.rmtree(shares, ignore_errors=True))
    with session.undisturbed(cached_attrs=cached_attrs):
        parts = ranks.everywhere(
            _SEARCH, lambda: _search(session, search, data, num_steps, cached_attrs)
        )
    report = report_of(session.metrics, topk, parts, session.where_run)
    store = session.new_store()

    def keep_worst() -> None:
        with store.replacing():
            store.folder.mkdir(parents=True, exist_ok=True)
            for index in report.indices:
                found = shares / str(index % ranks.count) / f"{index}.pt"
                if not found.exists():
                    raise AnalysisError(
                        f"{_SEARCH}: {found}, which process {index % ranks.count} wrote, is not "
                        "here; give all processes the same out_dir, on a disk that they share"
                    )
                found.replace(store.folder / found.name)
            files.write_report(session.out_dir, report)
        shutil.rmtree(shares, ignore_errors=True)

    ranks.on_first(_SEARCH, keep_worst)
    session.take_cases(BadCases(store, report))
    return report


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
    case = session.ranks.on_first("set_bad_case", lambda: case_by_hand(session, data, attributes))
    session.take_cases(BadCases(session.new_store(), by_hand=case))


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

    An HBIR module is called as the torch model, where that takes the data, else as itself.
    """
    own = session.model_of(side)
    models = (session.called_model, own) if isinstance(own, HbirModule) else (own,)
    errors = []
    for model in models:
        try:
            return own_inputs(call_of(model, data, 0, "set_bad_case"))
        except AnalysisError as error:
            errors.append(error)
    return errors[0]


def call_of(model: Model, batch: Any, index: int, where: str) -> Inputs:
    """The call that a batch stands for; labels behind the inputs of an HBIR module are left out."""
    if isinstance(model, HbirModule) and type(batch) in (tuple, list):
        batch = tuple(batch[:1]) if len(positional(model[0])) == 1 else tuple(batch)
    return batch_to_inputs(batch, model, index, where, AnalysisError)


def _cases(session: Session, data: Iterable[Any], cached_attrs: Sequence[str]) -> Iterator[Case]:
    count = session.ranks.count_of(data)
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
    with same_randomness():
        baseline = run_model(session.baseline, here)
    with same_randomness():
        return baseline, run_model(session.analysed, here)
