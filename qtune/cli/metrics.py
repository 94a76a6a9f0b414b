"""Metrics and limits on them, from the options."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from qtune.analysis.quant_analysis import DEFAULT_METRIC, DEFAULT_METRICS
from qtune.cli.outcome import Gate, InputError
from qtune.cli.sources import load_object
from qtune.errors import kind_of
from qtune.profiler.bad_case_report import BadCaseReport
from qtune.profiler.metric import Metric, MetricInfo
from qtune.testing.limits import Limit

LOSS_OPTION = "--loss"


@contextmanager
def ranking_metric(args: argparse.Namespace, default: str = DEFAULT_METRIC) -> Iterator[MetricInfo]:
    """The metric that ranks: ``--metric``, else ``--loss``, which is registered for the block."""
    registered = []
    try:
        if args.loss is not None:
            function = load_object(args.loss, LOSS_OPTION)
            if not callable(function):
                raise InputError(f"{LOSS_OPTION}: {args.loss} is {kind_of(function)}")
            name = args.loss.rpartition(":")[2]
            Metric.register(name, False, "all")(function)
            registered.append(name)
        yield metric_of(args.metric or (registered or [default])[0], "--metric")
    finally:
        for name in registered:
            Metric.unregister(name)


def metric_of(name: str, option: str) -> MetricInfo:
    """The metric of that name; ``InputError`` lists the known ones."""
    try:
        return Metric.get_metric(name)
    except ValueError as error:
        raise InputError(f"{option}: {error}") from error


def metric_list(*wanted: MetricInfo) -> list[MetricInfo]:
    """The default metrics and those ``wanted``, each once."""
    known = {name: Metric.get_metric(name) for name in DEFAULT_METRICS}
    return list((known | {metric.name: metric for metric in wanted}).values())


def output_limits(args: argparse.Namespace) -> list[Limit]:
    """``--max`` and ``--min`` as limits, whose keys are the options as written."""
    given = [("--max", False, pair) for pair in args.max]
    given += [("--min", True, pair) for pair in args.min]
    return [
        limit(option, metric_of(name, option), value, ascending=ascending, name=f"{name}=")
        for option, ascending, (name, value) in given
    ]


def limit(
    option: str, metric: MetricInfo, value: float, *, ascending: bool, name: str = ""
) -> Limit:
    """One limit; ``InputError`` where ``option`` bounds the good end of the metric."""
    text = f"{option} {name}{value:g}"
    if metric.ascending != ascending:
        better, other = ("larger", "--min") if metric.ascending else ("smaller", "--max")
        raise InputError(f"{text}: a {better} {metric.name} is better, so a limit on it is {other}")
    return Limit(text, metric, value)


def measured(name: str, *, ascending: bool) -> MetricInfo:
    """A score that others have computed, as a metric: only its name and direction count."""
    return MetricInfo(name, ascending, "all", _no_metric)


def _no_metric(baseline: Any, other: Any) -> float:
    raise NotImplementedError("this score is read from a table, not computed from outputs")


def output_gates(report: BadCaseReport, limits: Sequence[Limit]) -> list[Gate]:
    """Each limit against the worst value of any output in any case."""
    return [_worst(report, limit) for limit in limits]


def at_operator(gate: Gate, operator: str | None) -> Gate:
    """The gate with the operator that is to blame."""
    return gate if operator is None else replace(gate, where={**gate.where, "operator": operator})


def _worst(report: BadCaseReport, limit: Limit) -> Gate:
    found = [
        (value, output, case)
        for output, metrics in report.values.items()
        for case, value in enumerate(metrics.get(limit.metric.name, ()))
        if value is not None
    ]
    if not found:
        return Gate(limit.key, True, None, str(limit))
    value, output, case = max(found, key=lambda item: (limit.metric.badness(item[0]), -item[2]))
    where = {"output": output, "case": case}
    return Gate(limit.key, limit.holds(value), value, str(limit), where)
