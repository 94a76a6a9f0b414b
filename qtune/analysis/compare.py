"""Compare two runs operator by operator: the rows of ``compare_per_layer_out_0``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from qtune.analysis.advice import advise, non_finite
from qtune.analysis.own_error import OwnError
from qtune.profiler.metric import Metric, MetricInfo
from qtune.profiler.observe import Observation, OpRecord
from qtune.profiler.op_types import is_one_of
from qtune.report.progress import progress
from qtune.report.table import text_table

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


@dataclass(frozen=True, slots=True)
class LayerComparison:
    """All operators that both runs have, in order of execution."""

    columns: tuple[str, ...]
    rows: tuple[Mapping[str, Any], ...]
    names: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.rows)

    def __str__(self) -> str:
        return text_table(self.rows, self.columns, index=True)

    def only(self, wanted: Set[str] | None) -> LayerComparison:
        """The rows of the ``wanted`` operators; all of them for ``None``."""
        if wanted is None:
            return self
        kept = [i for i, name in enumerate(self.names) if name in wanted]
        rows = tuple(self.rows[i] for i in kept)
        return LayerComparison(self.columns, rows, tuple(self.names[i] for i in kept))

    def to_dict(self) -> dict[str, Any]:
        """Plain containers."""
        return {"columns": list(self.columns), "rows": [dict(row) for row in self.rows]}

    def to_pandas(self) -> pd.DataFrame:
        """One row per operator; the operators' names are the index."""
        import pandas as pd

        return pd.DataFrame(self.rows, columns=list(self.columns), index=list(self.names))


@dataclass(frozen=True, slots=True)
class Facts:
    """What the caller knows beside the two runs.

    ``owners``: operators whose result has a fake-quantize of its own (others keep their input's
    scale, and advice on it belongs to the owner); ``None`` if not known. ``fixed``: operators with
    a fixed scale. ``outputs``: GEMMs whose result leaves the model quantized. ``qat_bc`` and
    ``int_bc``: own errors in the two HBIR stages.
    """

    owners: frozenset[str] | None = None
    fixed: frozenset[str] = frozenset()
    outputs: frozenset[str] = frozenset()
    qat_bc: Mapping[str, OwnError] | None = None
    int_bc: Mapping[str, OwnError] | None = None


def compare(
    baseline: Observation, analysed: Observation, metrics: Sequence[MetricInfo], facts: Facts
) -> LayerComparison:
    """Join the two runs on operator names; results of different shapes are left out."""
    per_tensor = [m for m in metrics if m.scope == "pertensor"]
    order = {name: i for i, name in enumerate(METRIC_ORDER)}
    ordered = sorted(per_tensor, key=lambda m: order.get(m.name, len(order)))
    rows, names = [], []
    for name, record in progress(analysed.records.items(), "compare", unit="op"):
        base = baseline.records.get(name)
        if base is None or base.value.shape != record.value.shape:
            continue
        rows.append(_row(base, record, ordered, facts))
        names.append(name)
    columns = (*HEAD, *(m.name for m in ordered), *TAIL)
    return LayerComparison(columns, tuple(rows), tuple(names))


def selected(
    run: Observation, prefixes: Sequence[str] | None, types: Sequence[Any] | None
) -> set[str] | None:
    """Operators of ``run`` by name prefix and type (both, if both are given); ``None`` for all."""
    if prefixes is None and types is None:
        return None
    return {
        name
        for name, record in run.records.items()
        if (prefixes is None or name.startswith(tuple(prefixes)))
        and (types is None or is_one_of(types, record.op, record.op_type))
    }


def _row(
    base: OpRecord, record: OpRecord, metrics: Sequence[MetricInfo], facts: Facts
) -> dict[str, Any]:
    name = record.name
    row: dict[str, Any] = {
        "mod_name": "" if name.startswith(GENERATED) else name,
        "base_op_type": base.op_type,
        "analy_op_type": record.op_type,
        "shape": f"torch.Size({list(record.value.shape)})",
        "dtype": record.dtype,
        "qscale": record.scale,
    }
    row |= {m.name: _distance(m, base.value, record.value) for m in metrics}
    row["max_qscale_diff"] = _steps(base, record)
    for what in ("min", "max", "mean"):
        row[f"base_model_{what}"] = _statistic(base.value, what)
        row[f"analy_model_{what}"] = _statistic(record.value, what)
    row["same_in_qatbc_qdiff"] = _own(facts.qat_bc, name)
    row["same_in_intbc_qdiff"] = _own(facts.int_bc, name)
    row["advice"] = _advice(base, record, facts)
    return row


def _advice(base: OpRecord, record: OpRecord, facts: Facts) -> str:
    name = record.owner or record.name
    if facts.owners is not None and name not in facts.owners:
        return " ".join(non_finite(record, base))
    fixed, is_output = name in facts.fixed, name in facts.outputs
    return advise(record, base, fixed_scale=fixed, is_output=is_output)


def _steps(base: OpRecord, record: OpRecord) -> float | None:
    distance = None if record.scale is None else Metric.ATOL(base.value, record.value)
    return None if distance is None or record.scale is None else distance / record.scale


def _distance(metric: MetricInfo, base: Tensor, value: Tensor) -> float | None:
    """Indices and masks have no distance (they would dwarf the curves)."""
    if not (value.is_floating_point() or value.is_complex()):
        return None
    return metric(base, value)


def _statistic(value: Tensor, what: str) -> float | None:
    if value.numel() == 0:
        return None
    if value.is_complex():
        value = torch.view_as_real(value)
    functions: dict[str, Callable[[Tensor], Tensor]]
    functions = {"min": torch.min, "max": torch.max, "mean": torch.mean}
    return float(functions[what](value.double()))


def _own(errors: Mapping[str, OwnError] | None, name: str) -> float | None:
    error = errors.get(name) if errors is not None else None
    return None if error is None else error.steps
