"""Fuzz one operator of the registry: its kernels, or its integers against its fake-quant model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from qtune.dtype import quant_dtype
from qtune.errors import ArgumentError
from qtune.ops import registry
from qtune.testing.fuzzing.bars import ROUNDED, bar
from qtune.testing.fuzzing.call import OperatorCall
from qtune.testing.fuzzing.difference import Difference, first_difference
from qtune.testing.fuzzing.line import Line
from qtune.testing.fuzzing.operands import LEFT_OUT
from qtune.testing.fuzzing.snippet import INTEGERS, KERNELS, call_snippet
from qtune.testing.record import conclude
from qtune.testing.result import AssertionResult

PROPERTIES = (KERNELS, INTEGERS)


def kernels_differ(call: OperatorCall) -> Difference | None:
    """Where the fast kernels stray from the NumPy reference; they must agree in every bit."""
    line = call.line()
    return first_difference(line.run("fast"), line.run("reference"))


def integers_differ(call: OperatorCall) -> Difference | None:
    """Where the integers stray from the fake-quant model by more than the operator's bar."""
    line = call.line()
    got = line.run("fast")
    return first_difference(got, line.expected(got), line.steps, _limit(line))


def _limit(line: Line) -> float:
    call = line.call
    return bar(call.entry, quant_dtype(call.dtype), line.prepared, call.inputs) + ROUNDED


def fuzz_operator(
    op: str,
    prop: str = KERNELS,
    *,
    march: str = "nash-e",
    dtypes: Sequence[str] = ("qint8", "qint16"),
    examples: int | None = None,
    database: Path | None = None,
) -> AssertionResult:
    """Fuzz the operator ``op`` and return the result; raise ``AssertionError`` if it fails.

    ``prop``: ``"kernels"`` (the fast kernels give the bits of the NumPy reference) or
    ``"integers"`` (the integer model stays within the documented bar of the fake-quant model).
    ``march`` and ``dtypes``: as in ``strategies.operators``; ``examples``: how many (40).
    ``database``: a folder that remembers failing examples. The message holds the smallest failing
    example as a script. Raises ``RegistryError`` for an unknown operator.
    """
    __tracebackhide__ = True
    if prop not in PROPERTIES:
        raise ArgumentError(f"fuzz_operator: prop must be one of {PROPERTIES}, got {prop!r}")
    registry.spec(op)
    if op in LEFT_OUT:
        raise ArgumentError(f"fuzz_operator: {op!r} is left out: {LEFT_OUT[op]}")
    from qtune.testing.fuzzing.profile import profile
    from qtune.testing.fuzzing.search import smallest_failure
    from qtune.testing.strategies import operators

    check = kernels_differ if prop == KERNELS else integers_differ
    calls = operators(op, dtypes=dtypes, march=march, for_=prop)
    failure, count = smallest_failure(calls, check, profile(examples, database))
    found = None if failure is None else failure.difference
    snippet = "" if failure is None else _snippet(failure.example, prop)
    return conclude_fuzz(f"{op}[{prop}]", found, snippet, count, {"march": march})


def _snippet(call: OperatorCall, prop: str) -> str:
    if prop == KERNELS:
        return call_snippet(call, prop)
    try:
        limit = _limit(call.line())
    except Exception:  # noqa: BLE001 - the line itself fails: that is what the snippet shows
        limit = ROUNDED
    return call_snippet(call, prop, limit)


def conclude_fuzz(
    name: str,
    found: Difference | None,
    snippet: str,
    count: int,
    provenance: dict[str, object],
) -> AssertionResult:
    """Record the result of a search; raise ``AssertionError`` with the snippet if it failed."""
    __tracebackhide__ = True
    result = AssertionResult(
        check="fuzz",
        model=name,
        ok=found is None,
        where="" if found is None else name,
        got=f"{count} equal" if found is None else found.headline,
        limit="" if found is None else f"<= {found.limit:g}",
        metrics={"examples": count, "distance": 0.0 if found is None else found.distance},
        table="" if found is None else f"{found}\nthe smallest example, as a script:\n\n{snippet}",
        provenance=provenance,
    )
    try:
        return conclude(result)
    except AssertionError as error:
        error.qtune_snippet = snippet  # type: ignore[attr-defined]
        raise
