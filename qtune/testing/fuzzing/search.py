"""The search for the smallest example that fails. Needs the package hypothesis."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from hypothesis import given, reject, settings
from hypothesis.errors import HypothesisException, Unsatisfiable
from hypothesis.strategies import SearchStrategy

from qtune.errors import MarchError
from qtune.testing.fuzzing.difference import Difference

Check = Callable[[Any], Difference | None]


@dataclass(frozen=True, slots=True)
class Failure:
    """The smallest example found, and how it fails."""

    example: Any
    difference: Difference


class NothingFitsError(Exception):
    """No example was possible, such as for an operator that a march refuses."""


class _DiffersError(Exception):
    """Tells hypothesis that an example fails."""


def smallest_failure(
    examples: SearchStrategy[Any], check: Check, how: settings
) -> tuple[Failure | None, int]:
    """Return the smallest example for which ``check`` gives a difference, and how many were run.

    An error of ``check`` is a difference too; a ``MarchError`` says that the example is none.
    """
    found: list[Failure] = []
    count = 0

    @how
    @given(examples)
    def run(example: Any) -> None:
        nonlocal count
        count += 1
        difference = _difference(check, example)
        if difference is not None:
            found[:] = [Failure(example, difference)]
            raise _DiffersError

    try:
        run()
    except _DiffersError:
        return found[0], count
    except Unsatisfiable as error:
        raise NothingFitsError(str(error)) from None
    return None, count


def _difference(check: Check, example: Any) -> Difference | None:
    try:
        return check(example)
    except HypothesisException:
        raise
    except MarchError:
        return reject()
    except Exception as error:  # noqa: BLE001 - whatever a kernel raises is what fuzzing looks for
        text = str(error).splitlines()
        return Difference(type(error).__name__, got=text[0] if text else "an error",
                          expected="a result")  # fmt: skip
