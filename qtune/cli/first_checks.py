"""The checks of a first gate file: what was measured, and limits with a margin that it keeps."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from qtune.cli.outcome import InputError
from qtune.report.words import counted
from qtune.testing.gatefile import Check, GateFileError
from qtune.testing.gatefile.kinds import kinds
from qtune.testing.gatefile.run import GateRun
from qtune.testing.gatefile.toml import assignment
from qtune.testing.result import AssertionResult

ERROR_MARGIN = 1.25
"""Limits on errors are so many times what was measured."""
LATENCY_MARGIN = 1.1
SCALE_MARGIN = 2.0
"""A range of twice the width costs a bit of precision."""
LEAST_CLIPPED = 0.001
SQNR_MARGIN_DB = 1.0
LEAST_DROP_PP = 0.5
_DIGITS = 2


@dataclass(frozen=True, slots=True)
class Entry:
    """One ``[[check]]`` to write. ``comment``: what was measured; without ``keys`` it is left out.

    ``reason``: why it fails now, for ``xfail``.
    """

    kind: str
    comment: str
    keys: Mapping[str, Any] = field(default_factory=dict)
    reason: str = ""
    left_out: bool = False

    def lines(self) -> Iterator[str]:
        """As it is written."""
        if self.left_out:
            yield f"# {self.kind} is left out: {self.comment}"
            return
        yield f"# measured: {self.comment}"
        yield "[[check]]"
        yield assignment("kind", self.kind)
        yield from (assignment(key, value) for key, value in self.keys.items())
        if self.reason:
            yield assignment("xfail", self.reason)

    def to_dict(self) -> dict[str, Any]:
        """Plain containers."""
        return {
            "kind": self.kind,
            "measured": self.comment,
            "written": not self.left_out,
            "xfail": self.reason,
            **self.keys,
        }


def first_checks(gates: GateRun) -> Iterator[Entry]:
    """The checks in the order of the stages; what can't be measured says why."""
    for kind in ("no_shared_ops", "no_unfused"):
        yield _structure(gates, kind)
    yield _on_bpu(gates)
    yield _steps(gates)
    yield _outputs(gates)
    yield _per_layer(gates)
    yield _saturation(gates)
    yield _scales(gates)
    yield _precision(gates)
    yield _sensitivity(gates)
    yield _latency(gates)
    if gates.file.model.evaluate is not None:
        yield _accuracy(gates)


def _measured(gates: GateRun, kind: str, **given: Any) -> AssertionResult | Entry:
    """The result with limits that nothing breaks; or the entry that says why there is none."""
    known = kinds()[kind]
    arguments: dict[str, Any] = {
        name: None
        for name, parameter in known.arguments.items()
        if parameter.required and name in ("inputs", "evaluate")
    }
    is_onnx = gates.file.model.onnx is not None
    stages = known.default_stages(given, onnx=is_onnx)
    check = Check(kind, 1, kind, stages, arguments | given)
    try:
        return gates.results(check)[0]
    except GateFileError as error:
        return Entry(kind, _one_line(str(error)), left_out=True)


def _one_line(text: str) -> str:
    """The message without the place in a file that is yet to be written."""
    return re.sub(r"^\S+:\d+: (\[\[check\]\] 1 )?", "", " ".join(text.split()))


def _structure(gates: GateRun, kind: str) -> Entry:
    result = _measured(gates, kind)
    if isinstance(result, Entry):
        return result
    return Entry(kind, result.got, reason="" if result else result.headline)


def _on_bpu(gates: GateRun) -> Entry:
    result = _measured(gates, "on_bpu")
    if isinstance(result, Entry):
        return result
    bad = [layer.name for layer in result.layers if not layer.ok]
    return Entry("on_bpu", result.got, {"allowed": bad} if bad else {})


def _steps(gates: GateRun) -> Entry:
    result = _measured(gates, "consistency", max_qscale_diff=math.inf)
    if isinstance(result, Entry):
        return result
    steps = result.metrics["max_qscale_diff"]
    comment = f"{counted(_number(steps), 'step')} at {result.where}"
    stages = {"from": "qat_bc", "to": "quantized_bc"}
    return _limited("consistency", comment, stages, {"max_qscale_diff": _steps_limit(steps)})


def _outputs(gates: GateRun) -> Entry:
    result = _measured(gates, "consistency", min_cosine=-math.inf, min_sqnr_db=-math.inf)
    if isinstance(result, Entry):
        return result
    cosine, sqnr = result.metrics["cosine"], result.metrics["sqnr_db"]
    comment = f"cosine {_number(cosine)}, {_number(sqnr)} dB at {result.where}"
    limits = {"min_cosine": _cosine_limit(cosine), "min_sqnr_db": _sqnr_limit(sqnr)}
    return _limited("consistency", comment, {}, limits)


def _per_layer(gates: GateRun) -> Entry:
    result = _measured(gates, "consistency", min_cosine=-math.inf, per_layer=True)
    if isinstance(result, Entry):
        return result
    cosine = result.metrics["cosine"]
    comment = f"cosine {_number(cosine)} at {result.where}"
    limits = {"min_cosine": _cosine_limit(cosine)}
    return _limited("consistency", comment, {"per_layer": True}, limits)


def _saturation(gates: GateRun) -> Entry:
    result = _measured(gates, "no_saturation", max_share=1.0)
    if isinstance(result, Entry):
        return result
    share = result.metrics["saturated"] or 0.0
    comment = f"{100 * share:.3g} % clipped at {result.where}"
    limit = min(1.0, max(_error_limit(share) or 0.0, LEAST_CLIPPED))
    return _limited("no_saturation", comment, {}, {"max_share": limit})


def _scales(gates: GateRun) -> Entry:
    """The lower bound is that of the check: a scale below it was never calibrated."""
    result = _measured(gates, "scale_in")
    if isinstance(result, Entry):
        return result
    value = result.metrics["max_scale"]
    keys = {"high": _error_limit(value, SCALE_MARGIN)}
    found = _limited("scale_in", f"scales up to {_number(value)}", {}, keys)
    return found if result else replace(found, reason=result.headline)


def _precision(gates: GateRun) -> Entry:
    """Which outputs have full precision: a setter that loses one costs accuracy silently."""
    result = _measured(gates, "qconfig", high_precision_outputs=[])
    if isinstance(result, Entry):
        return result
    high = [layer.name.removesuffix(" output") for layer in result.layers if not layer.ok]
    comment = f"full precision of {', '.join(high) or 'no output'}"
    return Entry("qconfig", comment, {"high_precision_outputs": high})


def _sensitivity(gates: GateRun) -> Entry:
    result = _measured(gates, "sensitivity_below", metric="ATOL", limit=math.inf)
    if isinstance(result, Entry):
        return result
    value = next(iter(result.metrics.values()))
    comment = f"ATOL {_number(value)} at {result.where}"
    return _limited(
        "sensitivity_below", comment, {"metric": "ATOL"}, {"limit": _error_limit(value)}
    )


def _latency(gates: GateRun) -> Entry:
    result = _measured(gates, "latency_below", max_us=math.inf)
    if isinstance(result, Entry):
        return result
    value = result.metrics["latency_us"]
    limit = _error_limit(value, LATENCY_MARGIN)
    return _limited("latency_below", result.got, {}, {"max_us": limit})


def _accuracy(gates: GateRun) -> Entry:
    """In percentage points where the metric is a share, else in its own unit."""
    name = metric_name(str(gates.file.model.evaluate))
    given = {"metric": name, "max_drop": math.inf}
    result, unit = _measured(gates, "accuracy_drop_below", **given, unit="share"), "share"
    if isinstance(result, Entry):
        unit = "own"
        result = _measured(gates, "accuracy_drop_below", **given, unit=unit)
    if isinstance(result, Entry):
        raise InputError(f"--evaluate: {result.comment.removeprefix('[model]: evaluate: ')}")
    drop = result.metrics[next(iter(result.limits))]
    limit = _error_limit(drop)
    if limit is not None and unit == "share":
        limit = max(limit, LEAST_DROP_PP)
    return _limited(
        "accuracy_drop_below", result.got, {"metric": name, "unit": unit}, {"max_drop": limit}
    )


def metric_name(spec: str) -> str:
    """The name of a function given as ``module:name``."""
    return spec.rpartition(":")[2].rpartition(".")[2]


def _limited(
    kind: str, comment: str, keys: Mapping[str, Any], limits: Mapping[str, float | None]
) -> Entry:
    """With the limits that there are; left out where there is none, as for NaN."""
    found = {name: limit for name, limit in limits.items() if limit is not None}
    if not found:
        return Entry(kind, f"no limit holds for {comment}", left_out=True)
    return Entry(kind, comment, {**keys, **found})


def _steps_limit(value: float | None) -> int | None:
    """Whole steps; one is the published bar."""
    return None if value is None or not math.isfinite(value) else max(1, math.ceil(value))


def _cosine_limit(value: float | None) -> float | None:
    """``value`` with 1.25 times its distance from 1, to two digits of that.

    >>> _cosine_limit(0.9987), _cosine_limit(1.0)
    (0.9983, 0.99999)
    """
    if value is None or not math.isfinite(value):
        return None
    gap = max(_rounded_up(ERROR_MARGIN * (1 - value)), 1e-5)
    return round(1 - gap, 12)


def _sqnr_limit(value: float | None) -> float | None:
    """1 dB less, to the half; no limit on an infinite one."""
    if value is None or not math.isfinite(value):
        return None
    return math.floor(2 * (value - SQNR_MARGIN_DB)) / 2


def _error_limit(value: float | None, margin: float = ERROR_MARGIN) -> float | None:
    """``value`` times the margin, rounded up to two digits; an improvement is a limit of 0.

    >>> _error_limit(0.0383), _error_limit(0.0), _error_limit(1200.0, 1.1)
    (0.048, 0.0, 1400.0)
    """
    if value is None or not math.isfinite(value):
        return None
    return _rounded_up(margin * max(value, 0.0))


def _rounded_up(value: float) -> float:
    """To two digits.

    >>> _rounded_up(0.04781), _rounded_up(0.048), _rounded_up(0.0)
    (0.048, 0.048, 0.0)
    """
    if value <= 0:
        return 0.0
    unit = 10.0 ** (math.floor(math.log10(value)) + 1 - _DIGITS)
    steps = math.ceil(round(value / unit, 9))  # 0.048 / 0.001 is a little over 48
    return float(f"{steps * unit:.{_DIGITS}g}")


def _number(value: float | None) -> str:
    return "n/a" if value is None else f"{value:.5g}"
