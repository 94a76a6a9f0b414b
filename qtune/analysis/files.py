"""The files that ``QuantAnalysis`` writes: names and contents, in one place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from zlib import crc32

import torch

from qtune.analysis import pages
from qtune.analysis.compare import LayerComparison
from qtune.analysis.summary import summarize
from qtune.errors import AnalysisError, kind_of
from qtune.profiler.bad_case_report import BadCaseReport
from qtune.profiler.metric import MetricInfo
from qtune.profiler.safe_load import load_safely
from qtune.profiler.sensitivity_table import SensitivityTable
from qtune.report.files import write_text, write_with
from qtune.report.table import text_table

CASE = "badcase.pt"
REPORT, REPORT_PAGE, CASES = "all_badcase_info.pt", "badcase_report.html", "badcase"
OP_INFOS = "op_infos"
OP_ERRORS = "compare_per_layer_op_error_0"
_LONGEST = 160
"""Bytes of an output's name in a file's name; 255 is the most that file systems take in all."""
OLD_COLUMNS = ("op_name", "sensitive_type", "op_type", "quant_dtype", "flops")


def sensitivity_stem(folder: Path, output: str, case: str, *, metric: str = "") -> Path:
    """``output_<name>_case_<index>_sensitive_ops``, with the metric in the old form."""
    middle = f"{case}_{_in_file(metric)}" if metric else case
    return folder / f"output_{_in_file(output)}_case_{middle}_sensitive_ops"


def tuned_stem(folder: Path, output: str, case: int) -> Path:
    """``output_<name>_tuned_case_<index>_sensitive_ops``."""
    return folder / f"output_{_in_file(output)}_tuned_case_{case}_sensitive_ops"


def _in_file(name: str) -> str:
    """A name as a part of a file's: without separators, and not too long for a file system.

    A name that can't stand there as it is gets its checksum, so that ``a/b`` and ``a_b`` differ.
    """
    safe = name.replace("/", "_").replace("\\", "_")
    if safe == name and len(safe.encode()) <= _LONGEST:
        return safe
    if len(safe.encode()) > _LONGEST:
        safe = safe[: _LONGEST // 8]
    return f"{safe}_{crc32(name.encode()):08x}"


def write_report(folder: Path, report: BadCaseReport) -> None:
    """Write ``all_badcase_info.pt`` and ``badcase_report.html``."""
    write_text(folder / REPORT_PAGE, pages.badcase_page(report))
    write_with(folder / REPORT, lambda path: torch.save(report, path))


def read_report(folder: Path) -> BadCaseReport:
    """Read ``all_badcase_info.pt`` (never unpickled unsafely)."""
    path = folder / REPORT
    if not path.exists():
        raise AnalysisError(f"{path} does not exist; run auto_find_bad_case first")
    report = load_safely(path)
    if not isinstance(report, BadCaseReport):
        raise AnalysisError(f"{path} holds {kind_of(report)}, not a bad case report")
    if not all(type(index) is int and index >= 0 for index in _indices(report)):
        raise AnalysisError(f"{path} is damaged: cases have whole numbers as their indices")
    return report


def _indices(report: BadCaseReport) -> list[Any]:
    """All that stands for an index (it becomes the name of a file)."""
    metrics = report.output_to_badcase_info.values()
    return [case[0] for found in metrics for cases in found.values() for case in cases]


def write_comparison(
    folder: Path, comparison: LayerComparison, metrics: Sequence[MetricInfo]
) -> None:
    """Write ``compare_per_layer_out_0.txt`` and ``.csv``, ``compare_per_layer_op_error_0.txt`` and
    ``.csv``, and ``compare_per_layer_report_0.html``.
    """
    own = comparison.op_errors()
    for stem, table in (("compare_per_layer_out_0", comparison), (OP_ERRORS, own)):
        write_text(folder / f"{stem}.txt", f"{table}\n")
        write_text(folder / f"{stem}.csv", table.to_csv())
    page = pages.compare_page(comparison, metrics)
    write_text(folder / "compare_per_layer_report_0.html", page)


def write_tables(folder: Path, tables: Mapping[str, Sequence[SensitivityTable]]) -> None:
    """Write every table, their mean and worst where there are several, and the page."""
    shown = {output: list(cases) for output, cases in tables.items()}
    for output, cases in tables.items():
        if len(cases) > 1:
            shown[output] = [summarize(cases, "mean"), summarize(cases, "worst"), *cases]
        for table in shown[output]:
            table.save(sensitivity_stem(folder, output, table.case))
    write_text(folder / "sensitivity_v2_report.html", pages.sensitivity_page(shown))


def write_list(folder: Path, output: str, case: int, metric: str, rows: Sequence[Any]) -> None:
    """Write a table of the old form: a text file only."""
    name, kind, op, dtype, flops = OLD_COLUMNS
    text = text_table(rows, (name, kind, op, metric, dtype, flops), style="plain")
    stem = sensitivity_stem(folder, output, str(case), metric=metric)
    write_text(stem.with_name(stem.name + ".txt"), text + "\n")


def read_table(folder: Path, output: str, case: int) -> SensitivityTable:
    """Read a table that ``sensitivity(use_sensitivity_v2=True)`` wrote."""
    stem = sensitivity_stem(folder, output, str(case))
    path = stem.with_name(stem.name + ".pt")
    if not path.exists():
        raise FileNotFoundError(
            f"{path} does not exist; call sensitivity(use_sensitivity_v2=True) first"
        )
    return SensitivityTable.load(path)
