"""Compare two runs operator by operator: the rows of ``compare_per_layer_out_0``."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from qtune.analysis.advice import Judged, advise, non_finite
from qtune.analysis.op_error import OpError
from qtune.errors import AnalysisError
from qtune.ops.op_types import as_names, as_types, is_one_of, nothing_fits
from qtune.profiler.metric import Metric, MetricInfo
from qtune.profiler.pair_sums import MEANS, TOP, distance, extremes, sums_for, sums_of
from qtune.profiler.record import Observation, OpRecord
from qtune.report.progress import progress
from qtune.report.table import format_number, text_table

if TYPE_CHECKING:
    import pandas as pd

HEAD = ("mod_name", "base_op_type", "analy_op_type", "shape", "dtype", "qscale")
TAIL = (
    "max_qscale_diff",
    "base_model_min",
    "analy_model_min",
    "base_model_max",
    "analy_model_max",
    "base_model_mean",
    "analy_model_mean",
    "same_in_qatbc_qdiff",
    "same_in_intbc_qdiff",
    "advice",
)
METRIC_ORDER = ("COSINE", "L1", "ATOL")
GENERATED = "_generated_"
_ATOL = Metric.get_metric("ATOL")


OWN = "op_error_"
"""Begin of the columns of own errors; a metric's name follows."""
OWN_TAIL = (f"{OWN}qscale_diff", f"{OWN}channel_SQNR")

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class LayerComparison:
    """All operators that both runs have, in order of execution.

    ``rows``: the documented ``columns`` and, beyond them, ``own_columns``: the operator's own error
    (:class:`~qtune.analysis.op_error.OpError`), ``None`` inside of a fused group. ``left_out``:
    operators without a row, and why.
    """

    columns: tuple[str, ...]
    rows: tuple[Row, ...]
    names: tuple[str, ...]
    own_columns: tuple[str, ...] = ()
    left_out: Mapping[str, str] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.rows)

    def __str__(self) -> str:
        return text_table(self.rows, self.columns, index=True, numbers_right=True)

    def only(self, wanted: Set[str] | None) -> LayerComparison:
        """The rows of the ``wanted`` operators; all of them for ``None``."""
        if wanted is None:
            return self
        kept = [i for i, name in enumerate(self.names) if name in wanted]
        return LayerComparison(
            self.columns,
            tuple(self.rows[i] for i in kept),
            tuple(self.names[i] for i in kept),
            self.own_columns,
            {name: why for name, why in self.left_out.items() if name in wanted},
        )

    def op_errors(self) -> LayerComparison:
        """The operators that have an own error, the worst first, with the columns of that.

        ``mod_name`` is the operator's name here, also of a function (``_generated_add_0``).

        Ordered by ``op_error_channel_SQNR``: unlike an absolute error it does not grow with the
        values, and unlike steps (about 0.5 for any rounding) and unlike the SQNR of the whole
        tensor it shows a scale that only one channel needs.
        """
        order = sorted(
            (i for i, row in enumerate(self.rows) if self._has_own(row)),
            key=lambda i: _worst_first(self.rows[i]),
        )
        columns = (*HEAD, *self.own_columns)
        rows = [{c: self.rows[i][c] for c in columns} for i in order]
        return LayerComparison(
            columns,
            tuple(row | {"mod_name": self.names[i]} for i, row in zip(order, rows, strict=True)),
            tuple(self.names[i] for i in order),
            self.own_columns,
        )

    def _has_own(self, row: Row) -> bool:
        return any(row[column] is not None for column in self.own_columns)

    def to_csv(self) -> str:
        """The same cells as the text."""
        rows = [
            [str(i), *(format_number(row[c]) for c in self.columns)]
            for i, row in enumerate(self.rows)
        ]
        buffer = io.StringIO()
        csv.writer(buffer, lineterminator="\n").writerows([["", *self.columns], *rows])
        return buffer.getvalue()

    def to_dict(self) -> dict[str, Any]:
        """Plain containers."""
        return {
            "columns": list(self.columns),
            "own_columns": list(self.own_columns),
            "names": list(self.names),
            "rows": [dict(row) for row in self.rows],
            "left_out": dict(self.left_out),
        }

    def to_pandas(self) -> pd.DataFrame:
        """One row per operator, the ``columns``; the operators' names are the index."""
        import pandas as pd

        return pd.DataFrame(self.rows, columns=list(self.columns), index=list(self.names))


def _worst_first(row: Row) -> tuple[float, float]:
    ratio, steps = row[OWN_TAIL[1]], row[OWN_TAIL[0]]
    known = math.inf if ratio is None or math.isnan(ratio) else ratio
    return known, -(steps or 0.0)


@dataclass(frozen=True, slots=True)
class Facts:
    """What the caller knows beside the two runs.

    ``owners``: operators whose result has a fake-quantize of its own (others keep their input's
    scale, and advice on it belongs to the owner); ``None`` if not known. ``fixed``: operators with
    a fixed scale. ``outputs``: GEMMs whose result leaves the model quantized. ``own``: own errors
    by the names of the records. ``stage``: ``qat`` or ``quantized`` where they are those of a
    module in HBIR against a torch model.
    """

    owners: frozenset[str] | None = None
    fixed: frozenset[str] = frozenset()
    outputs: frozenset[str] = frozenset()
    own: Mapping[str, OpError] = field(default_factory=dict)
    stage: str = ""


def compare(
    baseline: Observation, analysed: Observation, metrics: Sequence[MetricInfo], facts: Facts
) -> LayerComparison:
    """Join the two runs on operator names, in the order of the analysed one.

    The records are read one pair at a time. Operators of one side only and results of different
    shapes have no row; ``left_out`` says so.
    """
    per_tensor = [m for m in metrics if m.scope == "pertensor"]
    order = {name: i for i, name in enumerate(METRIC_ORDER)}
    ordered = sorted(per_tensor, key=lambda m: order.get(m.name, len(order)))
    wanted = sums_for(ordered) | MEANS | TOP
    rows: dict[str, Row] = {}
    left_out: dict[str, str] = {}
    known, names = set(baseline.records), list(analysed.records)  # asking a file takes longer
    for name in progress(names, "compare", unit="op"):
        if name not in known:
            left_out[name] = "the baseline has no operator of this name"
            continue
        base, record = baseline.records[name], analysed.records[name]
        if base.value.shape == record.value.shape:
            rows[name] = _Pair(base, record, facts, wanted).row(ordered)
        else:
            shapes = " and ".join(str(tuple(r.value.shape)) for r in (base, record))
            left_out[name] = f"the results have different shapes, {shapes}"
    why = "the analysed model has no operator of this name"
    left_out |= dict.fromkeys(sorted(known - set(names)), why)
    own = (*(f"{OWN}{m.name}" for m in ordered), *OWN_TAIL)
    columns = (*HEAD, *(m.name for m in ordered), *TAIL)
    return LayerComparison(columns, tuple(rows.values()), tuple(rows), own, left_out)


def selected(
    run: Observation, prefixes: str | Sequence[str] | None, types: Any = None
) -> set[str] | None:
    """Operators of ``run`` by name prefix and type (both, if both are given); ``None`` for all.

    ``AnalysisError`` with similar names where nothing is left.
    """
    if prefixes is None and types is None:
        return None
    starts, kinds = as_names(prefixes), as_types(types)
    found = {
        name
        for name, record in run.records.items()
        if (starts is None or name.startswith(starts))
        and (kinds is None or is_one_of(kinds, record.op, record.op_type))
    }
    if not found:
        raise AnalysisError(nothing_fits("compare_per_layer", list(run.records), starts, kinds))
    return found


class _Pair:
    """The two results of one operator."""

    def __init__(
        self, base: OpRecord, record: OpRecord, facts: Facts, wanted: frozenset[str]
    ) -> None:
        self.base = base
        self.record = record
        self.facts = facts
        self.own = facts.own.get(record.name)
        self.sums = sums_of(base.value, record.value, wanted)
        ranges = None if self.sums is None else self.sums.ranges
        self.ends = ranges or (extremes(base.value), extremes(record.value))

    def row(self, metrics: Sequence[MetricInfo]) -> Row:
        """The cells, documented columns first."""
        base, record = self.base, self.record
        steps = None if self.own is None else self.own.steps
        stage = self.facts.stage
        return {
            "mod_name": "" if record.name.startswith(GENERATED) else record.name,
            "base_op_type": base.op_type,
            "analy_op_type": record.op_type,
            "shape": f"torch.Size({list(record.value.shape)})",
            "dtype": record.dtype,
            "qscale": record.scale,
            **{m.name: self._distance(m) for m in metrics},
            "max_qscale_diff": self._steps(),
            **self._statistics(),
            "same_in_qatbc_qdiff": _whole(steps) if stage == "qat" else None,
            "same_in_intbc_qdiff": _whole(steps) if stage == "quantized" else None,
            "advice": self._advice(),
            **self._own_cells(metrics),
        }

    def _distance(self, metric: MetricInfo) -> float | None:
        """Indices and masks have no distance (they would dwarf the curves)."""
        value = self.record.value
        if not (value.is_floating_point() or value.is_complex()):
            return None
        return distance(metric, self.base.value, value, self.sums)

    def _steps(self) -> float | None:
        scale = self.record.scale
        largest = None if scale is None else distance(_ATOL, *self._values, self.sums)
        return None if largest is None or scale is None else largest / scale

    @property
    def _values(self) -> tuple[Any, Any]:
        return self.base.value, self.record.value

    def _statistics(self) -> dict[str, float | None]:
        sums = self.sums
        means = [_mean(value) for value in self._values] if sums is None else sums.means
        (low, high), (other_low, other_high) = (end or (None, None) for end in self.ends)
        return {
            "base_model_min": low,
            "analy_model_min": other_low,
            "base_model_max": high,
            "analy_model_max": other_high,
            "base_model_mean": means[0],
            "analy_model_mean": means[1],
        }

    def _advice(self) -> str:
        name = self.record.owner or self.record.name
        facts = self.facts
        judged = Judged(self.base, self.record, self.ends, self.own)
        if facts.owners is not None and name not in facts.owners:
            return non_finite(judged)
        fixed, is_output = name in facts.fixed, name in facts.outputs
        return advise(judged, fixed_scale=fixed, is_output=is_output)

    def _own_cells(self, metrics: Sequence[MetricInfo]) -> dict[str, float | None]:
        own = self.own
        found: Mapping[str, float | None] = {} if own is None else own.metrics
        cells = {f"{OWN}{m.name}": found.get(m.name) for m in metrics}
        ends = (None, None) if own is None else (own.steps, own.channel_sqnr)
        return cells | dict(zip(OWN_TAIL, ends, strict=True))


def _mean(value: Any) -> float | None:
    if value.numel() == 0:
        return None
    real = torch.view_as_real(value) if value.is_complex() else value
    return float(real.mean(dtype=torch.float64))


def _whole(steps: float | None) -> float | None:
    """Both sides are codes times a scale: whole steps but for the last bits of that product."""
    return None if steps is None else float(round(steps))
