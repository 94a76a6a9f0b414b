"""``assert_accuracy_drop_below``: a task metric of a stage is hardly worse than the baseline's."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from torch import nn

from qtune.bpu.hbm import Program
from qtune.capture.restore import randomness_kept
from qtune.errors import ArgumentError, kind_of
from qtune.hbir.module import HbirModule
from qtune.profiler.metric import number_of
from qtune.profiler.undisturbed import refuse_observing, undisturbed
from qtune.testing.arguments import Onnx, check_limit, check_switch, is_number
from qtune.testing.batched import callable_of
from qtune.testing.limits import shortest
from qtune.testing.onnx_model import OnnxModel, as_model
from qtune.testing.origin import origin_of
from qtune.testing.put_back import put_back
from qtune.testing.record import conclude
from qtune.testing.result import AssertionResult
from qtune.testing.running import comparing

_CHECK = "assert_accuracy_drop_below"
_NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)
SHARE, PERCENT, OWN = "share", "percent", "own"
_FULL = {SHARE: 1.0, PERCENT: 100.0}
"""Unit of a metric whose drop is counted in percentage points -> its largest value."""
_PP_DECIMALS = 4
"""Of percentage points: float32 means carry noise of 1e-5; one image of a million makes 1e-4."""
_ADVICE = (
    "The metric says that there is an error, not where: assert_consistency with per_layer=True, or "
    "assert_sensitivity_below on stages.calib, finds the operator."
)
Evaluate = Callable[[Any], Any]


def assert_accuracy_drop_below(
    baseline: nn.Module | HbirModule | Program | Onnx | float,
    other: nn.Module | HbirModule | Program | Onnx,
    evaluate: Evaluate,
    *,
    max_drop: float,
    metric: str = "accuracy",
    unit: str = SHARE,
    higher_is_better: bool = True,
    name: str | None = None,
) -> AssertionResult:
    """Assert that a task metric of ``other`` is at most ``max_drop`` worse than the baseline's.

    ``evaluate(model)`` returns the metric over a data set, one number. It may call every model as
    ``model(images)``: a torch module comes in eval mode, without gradients, and is put back as it
    was; an HBIR module or a program as ``BatchedModule``, which takes any batch size; ONNX models
    and what was made from them as ``BatchedOnnx``, which takes arrays too. Both runs draw the same
    random numbers.
    ``baseline``: a model, or the number that it had.

    ``unit``: ``"share"`` (0 to 1) and ``"percent"`` (0 to 100) count the drop in percentage points,
    as the metric ``<metric>_drop_pp``; ``"own"`` in the metric's own unit, ``<metric>_drop``. The
    drop is ``baseline - other``, or ``other - baseline`` where ``higher_is_better`` is False; an
    improvement is negative. Percentage points are rounded to 4 decimals, because float32 means
    carry noise. NaN fails. What ``evaluate`` raises comes through, with a note that names the
    model; ``ArgumentError`` where it returns no number, or one outside of the unit.
    """
    __tracebackhide__ = True
    task = _Task(evaluate, metric, unit, higher_is_better)
    bound = check_limit(_CHECK, "max_drop", max_drop)
    baseline, other = _models(baseline, other)
    before = _given(baseline, task) if is_number(baseline) else task.run("baseline", baseline)
    after = task.run("other", other)
    drop = task.drop(before, after)
    ok = drop <= bound
    origin = origin_of(other, name)
    return conclude(
        AssertionResult(
            check="accuracy_drop_below",
            model=origin.model,
            ok=ok,
            where=metric,
            got=f"{drop:.4g}{task.suffix} drop, {before:.5g} to {after:.5g}",
            limit=f"<= {shortest(bound)}{task.suffix}",
            metrics={metric: after, task.drop_name: drop},
            limits={task.drop_name: bound},
            table=f"{metric} of the baseline: {before!r}, now {after!r}",
            advice="" if ok else _ADVICE,
            artefact=origin.artefact,
            provenance=origin.provenance,
            baseline=f"{before:.6g}",
        )
    )


@dataclass(frozen=True, slots=True)
class _Task:
    """What is measured, and in which unit."""

    evaluate: Evaluate
    metric: str
    unit: str
    higher_is_better: bool

    def __post_init__(self) -> None:
        if not callable(self.evaluate):
            raise ArgumentError(
                f"{_CHECK}: evaluate must be a function of a model that returns a number, but got "
                f"{kind_of(self.evaluate)}"
            )
        if not isinstance(self.metric, str) or not _NAME.fullmatch(self.metric):
            raise ArgumentError(
                f"{_CHECK}: metric is a name of letters, digits and _, such as top1, but got "
                f"{self.metric!r}"
            )
        if self.unit not in (*_FULL, OWN):
            raise ArgumentError(
                f"{_CHECK}: unit must be one of {', '.join((*_FULL, OWN))} but got {self.unit!r}"
            )
        check_switch(_CHECK, "higher_is_better", self.higher_is_better)

    @property
    def drop_name(self) -> str:
        """Name of the drop among the metrics."""
        return f"{self.metric}_drop_pp" if self.unit in _FULL else f"{self.metric}_drop"

    @property
    def suffix(self) -> str:
        """The unit of the drop in a text."""
        return " pp" if self.unit in _FULL else ""

    def drop(self, before: float, after: float) -> float:
        """How much worse ``after`` is."""
        better, worse = (before, after) if self.higher_is_better else (after, before)
        if self.unit in _FULL:
            return round(100.0 / _FULL[self.unit] * (better - worse), _PP_DECIMALS)
        if not (math.isfinite(better) and math.isfinite(worse)):
            return better - worse
        return float(Decimal(repr(better)) - Decimal(repr(worse)))  # 37.5 - 37.4 is 0.1

    def run(self, side: str, model: Any) -> float:
        """The metric of one model, checked."""
        try:
            value = self._evaluated(model)
        except Exception as error:
            error.add_note(f"raised by evaluate(model) with the {side} model")
            raise
        where = f"{_CHECK}: evaluate(model) with the {side} model"
        if isinstance(value, bool):
            raise ArgumentError(f"{where}: expected one real number but got {value!r}")
        return self.checked(number_of(value, where), where)

    def _evaluated(self, model: Any) -> Any:
        if not isinstance(model, nn.Module):
            with randomness_kept():
                return self.evaluate(callable_of(model))
        refuse_observing(model, _CHECK)
        with comparing(model), undisturbed(model), put_back(model):
            return self.evaluate(model)

    def checked(self, value: float, where: str) -> float:
        """``value`` if it lies within its unit; NaN is left to the verdict."""
        full = _FULL.get(self.unit)
        if full is None or math.isnan(value) or 0.0 <= value <= full:
            return value
        raise ArgumentError(
            f"{where}: {value!r} is no {self.unit}, which lies between 0 and {full:g}; unit may be "
            f"{', '.join((*_FULL, OWN))}"
        )


def _given(value: Any, task: _Task) -> float:
    return task.checked(check_limit(_CHECK, "baseline", value), f"{_CHECK}: baseline")


def _models(baseline: Any, other: Any) -> tuple[Any, Any]:
    """Both models, or the number of the baseline; paths are opened."""
    kinds = (nn.Module, HbirModule, Program, OnnxModel)
    found = {}
    for side, given in (("baseline", baseline), ("other", other)):
        value = found[side] = as_model(_CHECK, side, given)
        if isinstance(value, kinds) or (side == "baseline" and is_number(value)):
            continue
        number = ", or the number it had" if side == "baseline" else ""
        raise ArgumentError(
            f"{_CHECK}: {side} must be a torch module, an HBIR module or a compiled program"
            f"{number}, but got {kind_of(value)}; an ONNX model may come as its path"
        )
    return found["baseline"], found["other"]
