"""``assert_close``: tensors, arrays or numbers are equal, or as close as a limit asks."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from qtune.capture.structure import flatten_named
from qtune.errors import ArgumentError
from qtune.testing.distances import Distances, distances
from qtune.testing.elements import Elements, elements, type_difference
from qtune.testing.origin import called
from qtune.testing.record import conclude
from qtune.testing.result import OUTPUTS, WORST_LAYERS, AssertionResult, LayerResult
from qtune.testing.tolerance import Tolerance, step_text, tolerance_of

_CHECK = "assert_close"
_TYPE_ADVICE = "Nothing is cast or broadcast here: convert one side where you mean to."
_NAN_ADVICE = "equal_nan=True lets NaN equal NaN at the same place, and nowhere else."


def assert_close(
    actual: Any,
    expected: Any,
    *,
    steps: float | None = None,
    scale: Any = None,
    axis: int | None = None,
    atol: float | None = None,
    rtol: float | None = None,
    max_mismatches: int = 0,
    equal_nan: bool = False,
    name: str | None = None,
) -> AssertionResult:
    """Assert that two tensors have the same shape, dtype and values.

    Both sides: a torch tensor, a NumPy array, a ``QTensor``, a number, or a dict, sequence,
    namedtuple or dataclass of these. Without a limit all elements must be equal.

    * ``steps``: elements may be so many integer codes apart, counted without wrap-around. Integers
      are codes themselves; a QTensor has its own scale; real values are rounded to
      ``floor(x / scale + 0.5)``, where ``scale`` is a number or one for each channel along
      ``axis``.
    * ``atol``, ``rtol``: elements may differ by ``atol + rtol * abs(expected)``.
    * ``max_mismatches``: so many elements, of all tensors together, may miss the limit.
    * ``equal_nan``: NaN equals NaN at the same place. Any other NaN fails the assertion, whatever
      the limits; an infinity equals only itself.

    Another shape, dtype, scale or structure fails, whatever the limits: nothing is broadcast or
    cast. ``ArgumentError`` for what has no elements, or no codes to count ``steps`` in.
    """
    __tracebackhide__ = True
    tolerance = tolerance_of(_CHECK, steps, scale, axis, atol, rtol, equal_nan)
    allowed = _check_count(max_mismatches)
    label = called(name, "values")
    left, right = _leaves(actual, "actual"), _leaves(expected, "expected")
    if left.keys() != right.keys():
        return conclude(_other_structure(left, right, label))
    _check_scale_used(tolerance, [*left.values(), *right.values()])
    pairs = [_pair(key, left[key], right[key], tolerance) for key in left]
    return conclude(_Comparison(pairs, tolerance, allowed, label).result())


@dataclass(frozen=True, slots=True)
class _Pair:
    """One tensor of both sides. ``types``: what differs in shape, dtype or scale."""

    name: str
    got: Elements
    expected: Elements
    types: tuple[str, str] | None
    found: Distances | None

    @property
    def mismatches(self) -> int:
        """Elements that miss; all where the types differ."""
        if self.found is None:
            return max(self.got.values.size, self.expected.values.size, 1)
        return int(self.found.missed.sum())

    @property
    def worst(self) -> float:
        """The largest distance; NaN where there is none to tell."""
        return float("nan") if self.found is None else self.found.largest(self.found.distance)


def _pair(key: str, got: Elements, expected: Elements, tolerance: Tolerance) -> _Pair:
    types = type_difference(got, expected)
    found = None if types else distances(got, expected, tolerance, f"{_CHECK}: {key}".rstrip(": "))
    return _Pair(key, got, expected, types, found)


@dataclass(frozen=True, slots=True)
class _Comparison:
    """All pairs under one tolerance."""

    pairs: Sequence[_Pair]
    tolerance: Tolerance
    allowed: int
    label: str

    def result(self) -> AssertionResult:
        """The verdict, and what a message says."""
        count = sum(pair.mismatches for pair in self.pairs)
        total = sum(max(p.got.values.size, p.expected.values.size) for p in self.pairs)
        other_type = [pair for pair in self.pairs if pair.types]
        has_nan = any(pair.found is not None and pair.found.nan.any() for pair in self.pairs)
        ok = not other_type and not has_nan and count <= self.allowed
        where, got, limit = self._headline(ok, count, total, other_type)
        return AssertionResult(
            check="close",
            model=self.label,
            ok=ok,
            where=where,
            got=got,
            limit=limit,
            metrics={"mismatches": count, **self._largest()},
            limits={"mismatches": self.allowed, **self._bounds()},
            layers=self._layers(ok) if len(self.pairs) > 1 else (),
            measured=f"largest distance{' in steps' if self.in_steps else ''}",
            parts=OUTPUTS,
            table=self._table(count, total) if count else "",
            advice=self._advice(bool(other_type)) if not ok else "",
        )

    @property
    def in_steps(self) -> bool:
        """Whether distances are counted in codes."""
        return self.tolerance.steps is not None

    def _headline(
        self, ok: bool, count: int, total: int, other_type: Sequence[_Pair]
    ) -> tuple[str, str, str]:
        """Where, got, limit."""
        if other_type:
            got, expected = other_type[0].types or ("", "")
            return other_type[0].name or self.label, got, expected
        tail = "" if str(self.tolerance) == "0" else f" within {self.tolerance}"
        share = (self.label, f"{count} of {total} elements miss", f"{self.allowed}{tail}")
        if ok:
            return share
        pair, flat = self._worst()[0]
        if self.allowed and not _is_nan(pair, flat):
            return share
        got, expected = _texts(pair, flat)
        return _place(pair, flat), got, f"{expected}{tail}"

    def _largest(self) -> dict[str, float]:
        """The largest distance over all elements, NaN where a type differs or a NaN misses."""
        if self.in_steps:
            return {"max_steps": _top(self.pairs, lambda found: found.distance)}
        return {
            "max_abs": _top(self.pairs, lambda found: found.distance),
            "max_rel": _top(self.pairs, lambda found: found.relative),
        }

    def _bounds(self) -> dict[str, float]:
        """The limits that hold for every element, each alone."""
        steps, atol, rtol = self.tolerance.steps, self.tolerance.atol, self.tolerance.rtol
        if self.allowed or (atol and rtol):
            return {}
        if steps is not None:
            return {"max_steps": steps}
        return {"max_rel": rtol} if rtol else {"max_abs": atol}

    def _layers(self, ok: bool) -> list[LayerResult]:
        """One row for each tensor."""
        return [
            LayerResult(
                pair.name or self.label,
                pair.worst,
                ok or not pair.mismatches,
                float("inf") if pair.worst != pair.worst else pair.worst,
                tuple(pair.got.values.shape),
                pair.got.dtype,
            )
            for pair in self.pairs
        ]

    def _worst(self) -> list[tuple[_Pair, int]]:
        """The worst elements of all tensors, each with its flat index."""
        found = [
            (pair, flat)
            for pair in self.pairs
            if pair.found is not None
            for flat in pair.found.worst(WORST_LAYERS)
        ]
        return sorted(found, key=lambda item: _rank(*item))[:WORST_LAYERS]

    def _table(self, count: int, total: int) -> str:
        lines = [
            f"{pair.name or self.label}: got {pair.got}, expected {pair.expected}"
            + (f": {pair.types[0]}, expected {pair.types[1]}" if pair.got.scales else "")
            for pair in self.pairs
            if pair.types
        ]
        worst = self._worst()
        if worst:
            lines.append(f"{count} of {total} elements miss, {self.allowed} may; worst:")
            lines += [f"  {self._line(*item)}" for item in worst]
            lines.append(f"first in row-major order: {self._line(*self._first())}")
        return "\n".join(lines)

    def _first(self) -> tuple[_Pair, int]:
        """The first element that misses."""
        return next(
            (pair, int(np.argmax(pair.found.missed)))
            for pair in self.pairs
            if pair.found is not None and pair.found.missed.any()
        )

    def _line(self, pair: _Pair, flat: int) -> str:
        got, expected = _texts(pair, flat)
        line = f"{_place(pair, flat)}: got {got}, expected {expected}"
        if pair.found is None or pair.found.nan[flat]:
            return line
        distance = pair.found.distance[flat].item()
        if self.in_steps:
            return f"{line}, {step_text(distance)} apart"
        relative = float(pair.found.relative[flat])
        share = f", {relative:.3g} of it" if math.isfinite(relative) else ""
        return f"{line}, off by {distance:.6g}{share}"

    def _advice(self, other_type: bool) -> str:
        if other_type:
            return _TYPE_ADVICE
        pair, flat = self._worst()[0]
        both = _is_nan(pair, flat) and all(text == "nan" for text in _texts(pair, flat))
        return _NAN_ADVICE if both else ""


def _top(pairs: Sequence[_Pair], of: Callable[[Distances], Any]) -> float:
    found = [float("nan") if p.found is None else p.found.largest(of(p.found)) for p in pairs]
    return next((value for value in found if value != value), max(found))


def _is_nan(pair: _Pair, flat: int) -> bool:
    return pair.found is not None and bool(pair.found.nan[flat])


def _rank(pair: _Pair, flat: int) -> tuple[bool, float]:
    """Sort key: NaN first, then the largest distance."""
    if pair.found is None or _is_nan(pair, flat):
        return (False, 0.0)
    return (True, -float(pair.found.distance[flat]))


def _place(pair: _Pair, flat: int) -> str:
    index = pair.found.index(flat) if pair.found is not None else []
    return f"{pair.name} {index}".strip() if index else pair.name or "value"


def _texts(pair: _Pair, flat: int) -> tuple[str, str]:
    """Both values of an element, with as many digits as tell them apart."""
    if pair.found is None:
        return str(pair.got), str(pair.expected)
    values = [side[flat].item() for side in (pair.found.got, pair.found.expected)]
    texts = [f"{v:.7g}" if isinstance(v, float | complex) else str(v) for v in values]
    if texts[0] == texts[1]:
        texts = [repr(v) for v in values]
    return texts[0], texts[1]


def _check_count(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ArgumentError(
            f"{_CHECK}: max_mismatches must be a whole number from 0 but got {value!r}"
        )
    return value


def _check_scale_used(tolerance: Tolerance, sides: Sequence[Elements]) -> None:
    if tolerance.scale is None or any(s.kind in "fc" and s.codes is None for s in sides):
        return
    raise ArgumentError(
        f"{_CHECK}: scale belongs to real values, but these have codes already: "
        f"{', '.join(sorted({side.dtype for side in sides}))}; leave it out"
    )


def _leaves(value: Any, side: str) -> dict[str, Elements]:
    """The tensors of one side by name."""
    try:
        leaves = flatten_named(value)
    except RecursionError:
        raise ArgumentError(f"{_CHECK}: {side} is nested too deep, or holds itself") from None
    if not leaves:
        raise ArgumentError(f"{_CHECK}: {side} holds no tensor, array or number: {value!r}")
    twice = [key for key, count in Counter(key for key, _ in leaves).items() if count > 1]
    if twice:
        raise ArgumentError(
            f"{_CHECK}: {side} has two tensors that are both called {twice[0]}; rename a key"
        )
    return {key: elements(leaf, f"{_CHECK}: {side} {key}".rstrip()) for key, leaf in leaves}


def _other_structure(
    left: Mapping[str, Elements], right: Mapping[str, Elements], label: str
) -> AssertionResult:
    missing = [key or "(one tensor)" for key in right if key not in left]
    extra = [key or "(one tensor)" for key in left if key not in right]
    lines = [f"missing: {', '.join(missing)}"] if missing else []
    lines += [f"not expected: {', '.join(extra)}"] if extra else []
    nan = float("nan")
    return AssertionResult(
        check="close",
        model=label,
        ok=False,
        where=label,
        got=f"{len(missing)} missing, {len(extra)} more",
        limit="the same structure",
        metrics={"mismatches": nan},
        table="\n".join(lines),
    )
