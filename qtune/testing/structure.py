"""``assert_no_shared_ops`` and ``assert_no_unfused``: structure that harms quantization."""

from __future__ import annotations

from typing import Any

from torch import nn

from qtune.check.qat_model import CheckReport, check_qat_model
from qtune.testing.record import conclude
from qtune.testing.result import AssertionResult, LayerResult
from qtune.testing.running import model_name


def assert_no_shared_ops(
    model: nn.Module, *, inputs: Any, name: str | None = None
) -> AssertionResult:
    """Assert that every operator of a prepared model runs once in a forward on ``inputs``.

    An operator that runs twice has one scale for two results. Operators that never run are listed,
    but don't fail.
    """
    report = check_qat_model(model, inputs)
    shared = report.shared
    worst = max(shared, key=lambda n: shared[n], default="")
    layers = [
        LayerResult(op, float(count), count <= 1, float(count), dtype=_dtype(report, op))
        for op, count in report.call_counts.items()
    ]
    unused = [op for op, count in report.call_counts.items() if count == 0]
    return conclude(
        AssertionResult(
            check="no_shared_ops",
            model=model_name(model, name),
            ok=not shared,
            where=worst,
            got=f"{shared[worst]} calls" if shared else "1 call each",
            limit="1 call",
            metrics={"shared_ops": len(shared), "unused_ops": len(unused)},
            limits={"calls": 1},
            layers=layers,
            measured="calls in one forward",
            table=f"never called: {', '.join(unused)}" if unused else "",
            advice="Give each call a module of its own: one scale can't fit two results."
            if shared
            else "",
        )
    )


def assert_no_unfused(model: nn.Module, *, inputs: Any, name: str | None = None) -> AssertionResult:
    """Assert that every fusible pattern (GEMM, batch norm, add, relu) of a prepared model is fused.

    The message names the operators and what kept them apart.
    """
    report = check_qat_model(model, inputs)
    lines = [f"{' + '.join(item.names)}: {item.reason}" for item in report.unfused]
    where = " + ".join(report.unfused[0].names) if report.unfused else ""
    return conclude(
        AssertionResult(
            check="no_unfused",
            model=model_name(model, name),
            ok=not report.unfused,
            where=where,
            got=f"{len(lines)} unfused" if lines else "all fused",
            limit="0 unfused",
            metrics={"unfused_patterns": len(lines)},
            limits={"unfused_patterns": 0},
            table="\n".join(lines),
            advice="Use the result of each of them once, and each module once." if lines else "",
        )
    )


def _dtype(report: CheckReport, op: str) -> str:
    return next((row.out_dtype for row in report.outputs if row.name == op), "")
