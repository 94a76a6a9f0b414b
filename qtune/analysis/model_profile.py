"""``ModelProfile``: what the older tools found on two stages, and its page ``profiler.html``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from qtune.analysis.similarity import Row, similarity_section
from qtune.check.called import COLUMNS as CALL_COLUMNS
from qtune.check.report import CheckReport, message_table, output_table, weight_table
from qtune.profiler.featuremap import COLUMNS as FEATURE_COLUMNS
from qtune.profiler.metric import Metric
from qtune.profiler.similarity_function import similarity
from qtune.profiler.weights import COLUMNS as WEIGHT_COLUMNS
from qtune.report.page import Section, Table, render

Options = Mapping[str, Mapping[str, Any]]
"""Tool -> its own arguments."""


@dataclass(frozen=True, slots=True)
class ModelProfile:
    """What the tools returned, for both models where there are two of it.

    ``page``: the file. ``unfused``: ``None`` without a float model.
    """

    page: Path
    similarity: list[Row]
    statistics: tuple[list[list[Any]], list[list[Any]]]
    calls: tuple[dict[str, int], dict[str, int]]
    unfused: list[list[str]] | None
    weights: dict[str, dict[str, Tensor]]
    qconfig: CheckReport


def page(profile: ModelProfile, subtitle: str, options: Options) -> str:
    """``profiler.html``; ``options``: what the tools were told."""
    chosen = options.get("featuremap_similarity", {})
    distance = similarity(chosen.get("similarity_func", "Cosine"), "model_profiler")
    sections = [
        similarity_section(profile.similarity, distance, chosen.get("threshold")),
        *(
            Section(f"Statistics of the {which} model", tables=[_statistics(rows)])
            for which, rows in zip(("first", "second"), profile.statistics, strict=True)
        ),
        Section("Calls of each module", tables=[_calls(profile)]),
        *_unfused(profile.unfused),
        Section("Weights", tables=[_weights(profile, options)]),
        Section("Qconfig", preformatted=_qconfig(profile.qconfig)),
    ]
    return render("Profile of two stages", sections, subtitle=subtitle, sortable=True)


def _statistics(rows: list[list[Any]]) -> Table:
    cells = [dict(zip(FEATURE_COLUMNS, row, strict=True)) for row in rows]
    numeric = ("Module Index", "Min", "Max", "Mean", "Var", "Scale")
    return Table(FEATURE_COLUMNS, cells, numeric=numeric)


def _calls(profile: ModelProfile) -> Table:
    name, times = CALL_COLUMNS
    columns = (name, f"{times} (first)", f"{times} (second)")
    names = dict.fromkeys([*profile.calls[0], *profile.calls[1]])
    rows = [
        {columns[0]: item, columns[1]: a, columns[2]: b, "bad": (a or 1, b or 1) != (1, 1)}
        for item in names
        for a, b in [(profile.calls[0].get(item), profile.calls[1].get(item))]
    ]
    return Table(columns, rows, bad="bad", numeric=columns[1:])


def _unfused(groups: list[list[str]] | None) -> list[Section]:
    if groups is None:
        return []
    text = [", ".join(group) for group in groups] or ["All fusable modules are fused."]
    return [Section("Fusable modules that are not fused", text=text)]


def _weights(profile: ModelProfile, options: Options) -> Table:
    name, value, atol = WEIGHT_COLUMNS
    given = options.get("compare_weights", {}).get("similarity_func", "Cosine")
    distance = similarity(given, "model_profiler")
    rows = [
        {
            name: weight,
            value: distance(pair["float"], pair["quantized"]),
            atol: Metric.ATOL(pair["float"], pair["quantized"]),
        }
        for weight, pair in profile.weights.items()
    ]
    return Table(WEIGHT_COLUMNS, rows, numeric=WEIGHT_COLUMNS[1:])


def _qconfig(report: CheckReport) -> list[str]:
    tables = [output_table(report.outputs), weight_table(report.weights)]
    return [*tables, message_table(report.messages)]
