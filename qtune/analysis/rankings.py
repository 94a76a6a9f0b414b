"""Sensitivity rankings of a session: for each of its bad cases, in the old form and in v2."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from qtune.analysis import files, grad_x_error
from qtune.analysis.old_files import write_old_ranking
from qtune.analysis.sensitivity import Row, sensitivity_lists, sensitivity_tables
from qtune.analysis.session import FAKE_QUANT, Session
from qtune.errors import AnalysisError
from qtune.ops.op_types import as_names
from qtune.profiler.metric import MetricInfo
from qtune.profiler.sensitivity_table import SensitivityTable

ABLATION = "ablation"
TABLES: Mapping[str, Callable[..., dict[str, SensitivityTable]]] = {
    ABLATION: sensitivity_tables,
    grad_x_error.METHOD: grad_x_error.grad_x_error_tables,
}
"""What makes the v2 tables of one case, by ``sensitivity_method``."""


def check_method(session: Session, method: str, use_v2: bool) -> None:
    """Raise for an unknown method, and for a method or v2 that does not go with the analysis."""
    if method not in TABLES:
        raise AnalysisError(
            f"sensitivity: no method {method!r}; expected one of: {', '.join(map(repr, TABLES))}"
        )
    if method != ABLATION and not use_v2:
        raise AnalysisError(
            f"sensitivity: the method {method!r} makes tables of v2 only; pass "
            "use_sensitivity_v2=True"
        )
    if use_v2 and session.analysis_type != FAKE_QUANT:
        raise AnalysisError(
            f"sensitivity v2 works on analysis type {FAKE_QUANT!r} only, this analysis is "
            f"{session.analysis_type!r}; leave use_sensitivity_v2 out"
        )


def cache_option(max_cache_bytes: int | None, method: str) -> dict[str, int]:
    """The limit for the cached values of an ablation, where one is given."""
    if max_cache_bytes is None:
        return {}
    if method != ABLATION:
        raise AnalysisError(
            f"sensitivity: the method {method!r} caches nothing; leave max_cache_bytes out"
        )
    if isinstance(max_cache_bytes, bool) or not isinstance(max_cache_bytes, int):
        raise AnalysisError(
            f"sensitivity: max_cache_bytes is a whole number of bytes, got {max_cache_bytes!r}"
        )
    if max_cache_bytes < 0:
        raise AnalysisError(f"sensitivity: max_cache_bytes is from 0 on, got {max_cache_bytes}")
    return {"max_cache_bytes": max_cache_bytes}


def rank_v2(
    session: Session, metric: MetricInfo, options: Mapping[str, Any], method: str = ABLATION
) -> dict[str, list[SensitivityTable]]:
    """Output name -> one table per bad case; writes them, their mean and worst, and the page."""
    tables: dict[str, list[SensitivityTable]] = {}
    for index, found in _tables_by_case(session, metric, options, method):
        for output, table in found.items():
            if index in session.cases.indices(metric, output):
                tables.setdefault(output, []).append(table)
                session.tables[output, index] = table
    session.ranks.on_first("sensitivity", lambda: files.write_tables(session.out_dir, tables))
    return tables


def _tables_by_case(
    session: Session, metric: MetricInfo, options: Mapping[str, Any], method: str
) -> Iterator[tuple[int, dict[str, SensitivityTable]]]:
    """Several processes share out the stubs of each case; a gradient's cases, as all stubs come
    from one backward.
    """
    side, model = session.torch_side()
    wanted, ranks = _wanted(session, metric, options), session.ranks
    indices = list(wanted)

    def table_of(index: int, **shared: Any) -> dict[str, SensitivityTable]:
        with session.alone(session.cases.load(index), side) as inputs:
            return TABLES[method](model, inputs, metric, str(index), **wanted[index], **shared)

    if method == ABLATION:
        yield from ((index, table_of(index, ranks=ranks)) for index in indices)
        return
    parts = ranks.everywhere("sensitivity", {i: table_of(i) for i in ranks.share(indices)})
    found = {index: table for part in parts for index, table in part.items()}
    yield from ((index, found[index]) for index in indices)


def _wanted(
    session: Session, metric: MetricInfo, options: Mapping[str, Any]
) -> dict[int, Mapping[str, Any]]:
    """Index of a case -> the options for it: its branch need not have all outputs that are wanted.

    Cases that were kept for other outputs only are left out.
    """
    names = as_names(options["output_names"])
    indices = session.cases.indices(metric)
    if names is None:
        return dict.fromkeys(indices, options)
    if not names:
        raise AnalysisError("sensitivity: output_names is empty; leave it out to rank all outputs")
    outputs = {i: [o for o in names if i in session.cases.indices(metric, o)] for i in indices}
    return {i: {**options, "output_names": kept} for i, kept in outputs.items() if kept}


def rank_v1(
    session: Session, metric: MetricInfo, options: Mapping[str, Any]
) -> dict[str, list[Row]]:
    """Output name -> rows of the worst case; writes those of every case."""
    side, model = session.torch_side()
    lists: dict[str, dict[int, list[Row]]] = {}
    for index, wanted in _wanted(session, metric, options).items():
        case = session.cases.load(index)
        with session.alone(case, side) as inputs:
            found = sensitivity_lists(model, inputs, metric, **wanted, ranks=session.ranks)
        for output, rows in found.items():
            if index in session.cases.indices(metric, output):
                lists.setdefault(output, {})[index] = rows
    worst = {  # the branch of the very worst may have no port that is asked for
        output: next(i for i in session.cases.indices(metric, output) if i in cases)
        for output, cases in lists.items()
    }
    found = {output: cases[worst[output]] for output, cases in lists.items()}

    def write() -> None:
        for output, cases in lists.items():
            for index, rows in cases.items():
                files.write_list(session.out_dir, output, index, metric.name, rows)
        if session.old_style and found:
            output = next(iter(found))
            case = session.cases.load(worst[output])
            write_old_ranking(session, case, metric, output, found[output])

    session.ranks.on_first("sensitivity", write)
    return found
