"""Values beside their baselines: numbers, arrays, hashes of outputs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from qtune.errors import ArgumentError
from qtune.testing.baseline_file import Entry, Number
from qtune.testing.baseline_identity import environment_differences
from qtune.testing.baseline_metric import Rule, fits, number_text, rule_of

if TYPE_CHECKING:
    from qtune.testing.elements import Elements

_SHOWN = 12
_OTHER_CPU = "calibrated on another CPU: bits don't compare, metrics must gate"


@dataclass(frozen=True, slots=True)
class Verdict:
    """A value beside its baseline. ``status``: equal, within, changed, stale or missing."""

    status: str
    got: str
    limit: str
    stored: str
    table: str = ""
    note: str = ""


def as_number(name: str, value: Any) -> Number | None:
    """A number as Python's; ``None`` for what has a shape."""
    if isinstance(value, bool | str | bytes) or value is None:
        raise ArgumentError(
            f"baseline of {name!r}: expected a number, an array or a tensor but got {value!r}"
        )
    if getattr(value, "shape", None) == () and callable(getattr(value, "item", None)):
        value = value.item()
    if isinstance(value, bool | complex):
        raise ArgumentError(f"baseline of {name!r}: expected a real number but got {value!r}")
    if isinstance(value, int):
        if not fits(value):
            raise ArgumentError(f"baseline of {name!r}: the number is too large for a float")
        return int(value)
    return float(value) if isinstance(value, float) else None


def compare_number(number: Number, rule: Rule, old: Entry) -> Verdict:
    """A number, by its rule."""
    equal = number == old.value or (math.isnan(number) and math.isnan(old.value))
    holds = rule.holds(number, old.value)
    status = ("equal" if equal else "within") if holds else "changed"
    got, limit, stored = rule.texts(number, old.value)
    better = status == "within" and _is_better(number, old.value, rule.direction)
    note = "better than its baseline; update it to keep that" if better else ""
    return Verdict(status, got, limit, stored, f"baseline {stored}, allowed {limit}", note)


def array_rule(
    name: str,
    value: Any,
    tolerances: Mapping[str, float | None],
    higher_is_better: bool | None,
    equal_nan: bool,
) -> tuple[Elements, Rule]:
    """An array, and the tolerance for its elements."""
    from qtune.testing.baseline_array import read_array

    array = read_array(name, value)
    numbers_only = {**tolerances, "higher_is_better": higher_is_better}
    for argument in ("max_drop", "max_rise", "higher_is_better"):
        if numbers_only[argument] is not None:
            raise ArgumentError(
                f"baseline of {name!r}: {argument} is for a number, but this is an array of shape "
                f"{array.values.shape}; give atol or rtol"
            )
    return array, replace(
        rule_of(name, rtol=tolerances["rtol"], atol=tolerances["atol"], equal_nan=equal_nan),
        direction="both",
    )


def array_value(array: Elements) -> dict[str, Any]:
    """What the file holds of an array."""
    from qtune.testing.baseline_array import to_value

    return to_value(array)


def compare_array(name: str, got: Elements, rule: Rule, old: Entry) -> Verdict:
    """An array, element by element; shape and dtype must be equal."""
    from qtune.testing.baseline_array import compare, difference_lines, from_value
    from qtune.testing.tolerance import tolerance_of

    where = f"baseline of {name!r}"
    tolerance = tolerance_of(where, None, None, None, rule.atol, rule.rtol, rule.equal_nan)
    stored = entry_text(old)
    found = compare(name, got, from_value(old.value, f"the baseline of {name!r}"), tolerance)
    if isinstance(found, tuple):
        return Verdict("changed", *found, stored)
    if not found.missed.any():
        status = "equal" if array_value(got) == dict(old.value) else "within"
        off = number_text(found.largest(found.distance))
        return Verdict(status, f"off by {off}", f"<= {tolerance}", stored)
    count, first = int(found.missed.sum()), found.index(found.worst(1)[0])
    table = "\n".join([f"worst of {count} elements that differ:", *difference_lines(found)])
    text = f"{count} of {got.values.size} elements differ, at {first}"
    return Verdict("changed", text, f"<= {tolerance}", stored, table)


def compare_outputs(new: Entry, old: Entry) -> Verdict:
    """Hashes of outputs and scales: equal scales mean equal bits (docs/numerics.md section 6)."""
    got, stored = entry_text(new), entry_text(old)
    if new.value["sha256"] == old.value.get("sha256"):
        return Verdict("equal", got, stored, stored)
    if new.value["scales"] == old.value.get("scales"):
        return Verdict("changed", got, stored, stored, "the scales are equal, the bits are not")
    cpus = {entry.environment.get("cpu_capability", "") for entry in (new, old)}
    if len(cpus) > 1:
        return Verdict("within", got, "metrics only", stored, note=_OTHER_CPU)
    return Verdict("changed", got, stored, stored, "the scales differ as well as the bits")


def notes(note: str, new: Entry, old: Entry) -> str:
    """``note``, and what else a reader may want to know."""
    environment = environment_differences(new.environment, old.environment)
    parts = [note] if note else []
    if environment:
        parts.append(f"measured elsewhere: {environment}")
    if new.tolerance != old.tolerance and new.kind == old.kind:
        parts.append(f"the tolerance was {_terms(old.tolerance)}, is now {_terms(new.tolerance)}")
    return "; ".join(parts)


def entry_value(entry: Entry) -> Number | str:
    """The number itself; text for anything else."""
    number: Number | str = entry.value if entry.kind == "metric" else entry_text(entry)
    return number


def entry_text(entry: Entry) -> str:
    """A few words for a table."""
    if entry.kind == "metric":
        return number_text(entry.value)
    if entry.kind == "outputs":
        return f"sha256 {str(entry.value.get('sha256'))[:_SHOWN]}"
    shape: Sequence[int] = entry.value.get("shape", ())
    return f"{entry.value.get('dtype')} {tuple(shape)}"


def _is_better(number: Number, baseline: Number, direction: str) -> bool:
    return {"higher": number > baseline, "lower": number < baseline}.get(direction, False)


def _terms(tolerance: Mapping[str, float]) -> str:
    return ", ".join(f"{k} {number_text(v)}" for k, v in sorted(tolerance.items())) or "none"
