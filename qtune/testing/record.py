"""Where assertions leave their results for whoever runs the tests (the pytest plugin).

A registry, light enough to import without torch: the plugin looks for this module in
``sys.modules`` after each test and drains it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from qtune.testing.result import AssertionResult

_MOST = 10_000  # where nobody drains (no pytest), a long-lived process must not grow
_results: deque[AssertionResult] = deque(maxlen=_MOST)


def conclude(result: AssertionResult) -> AssertionResult:
    """Record ``result``; raise ``AssertionError`` carrying it as ``.qtune_result`` if it is bad."""
    __tracebackhide__ = True
    return conclude_all([result])


def conclude_all(results: Sequence[AssertionResult]) -> AssertionResult:
    """Record all of them; raise for the first bad one, else return the first."""
    __tracebackhide__ = True  # pytest shows the caller's line, not this function
    _results.extend(results)
    for result in results:
        if not result.ok:
            error = AssertionError(result.message())
            error.qtune_result = result  # type: ignore[attr-defined]
            raise error
    return results[0]


def drain() -> list[AssertionResult]:
    """Return what was recorded since the last call, and forget it."""
    found = list(_results)
    _results.clear()
    return found


@contextmanager
def carrying_on() -> Iterator[None]:
    """A failed assertion ends the block and no more: its result is recorded."""
    try:
        yield
    except AssertionError as error:
        if not hasattr(error, "qtune_result"):  # an assert in the user's own code
            raise


@contextmanager
def kept_apart() -> Iterator[list[AssertionResult]]:
    """Results that are concluded within the block go to the list, not to the record.

    A failed assertion ends the block and no more.
    """
    before = drain()
    found: list[AssertionResult] = []
    try:
        with carrying_on():
            yield found
    finally:
        found += drain()
        _results.extend(before)
