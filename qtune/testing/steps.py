"""Consistency in output scales: every operator of a module on the baseline's inputs."""

from __future__ import annotations

from collections.abc import Sequence

from qtune.analysis.own_error import OwnError, own_errors
from qtune.errors import ArgumentError
from qtune.hbir.feeding import bind_call
from qtune.hbir.module import HbirModule
from qtune.report.words import counted
from qtune.testing.codes import code_shares
from qtune.testing.limits import shortest, telling
from qtune.testing.origin import Origin
from qtune.testing.result import AssertionResult, LayerResult
from qtune.testing.running import AnyModel, Chunk, observations

_CLIPPED = (
    "No code differs from the nearest one: the baseline's values lie beyond the range. Calibrate "
    "with data like these, or set a larger threshold."
)
_ADVICE = (
    "The integer operator strays from its fake-quant model: a defect, or a march rule; compare it "
    "alone with module[0].extract_operator(name)."
)


def steps_result(
    baseline: AnyModel, module: HbirModule, parts: Sequence[Chunk], bound: float, origin: Origin
) -> AssertionResult:
    """The largest own error of any operator, in steps (output scales), against ``bound``."""
    found: dict[str, list[OwnError]] = {}
    for part, left in zip(parts, observations(baseline, parts), strict=True):
        feed = bind_call(module[0], part.inputs.args, dict(part.inputs.kwargs))
        for name, error in own_errors(left, feed, module).items():
            found.setdefault(name, []).append(error)
    layers = [_layer(errors, bound) for errors in found.values() if errors[0].steps is not None]
    if not layers:
        raise ArgumentError(
            "assert_consistency: no operator of the module has a scale to count steps in, and a "
            "counterpart in the baseline; compare stages of the same model, or by metrics"
        )
    worst = max(layers, key=lambda layer: layer.badness)
    return AssertionResult(
        check="consistency",
        model=origin.model,
        ok=worst.ok,
        where=worst.name,
        got=counted(telling(worst.badness, lambda steps: steps <= bound), "step"),
        limit=f"<= {shortest(bound)}",
        metrics={
            "max_qscale_diff": worst.value,
            "differing": max(layer.differing or 0.0 for layer in layers),
        },
        limits={"max_qscale_diff": bound},
        layers=origin.located(layers),
        measured="steps on the same input",
        table=_not_counted(module, {layer.name for layer in layers}),
        advice="" if worst.ok else _ADVICE if worst.differing else _CLIPPED,
        artefact=origin.artefact,
        provenance=origin.provenance,
    )


def _not_counted(module: HbirModule, judged: set[str]) -> str:
    """Operators that no limit in steps applies to."""
    names = [name for name in module[0].operator_names() if name not in judged]
    return f"without a scale, not counted in steps: {', '.join(names)}" if names else ""


def _layer(errors: Sequence[OwnError], bound: float) -> LayerResult:
    """One operator over all chunks: the largest step, the shares of all codes."""
    first = errors[0]
    steps = max(error.steps or 0.0 for error in errors)
    sizes = [error.value.numel() for error in errors]
    shares = [code_shares(e.reference, e.value, first.scale, first.dtype) for e in errors]
    differing, saturated = (
        sum((share[i] or 0.0) * n for share, n in zip(shares, sizes, strict=True)) / sum(sizes)
        for i in (0, 1)
    )
    return LayerResult(
        first.name,
        steps,
        steps <= bound,
        steps,
        tuple(first.value.shape),
        first.dtype,
        first.scale,
        differing,
        saturated,
    )
