"""The search for the smallest example that fails. Needs the package hypothesis."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from tempfile import TemporaryDirectory
from typing import Any

from hypothesis import configuration, given, reject, settings
from hypothesis.errors import Flaky, HypothesisException, Unsatisfiable
from hypothesis.strategies import SearchStrategy

from qtune.errors import MarchError
from qtune.testing.fuzzing.difference import Difference

Check = Callable[[Any], Difference | None]

ATTEMPTS = 150
"""So many smaller examples are tried: each runs a model, and beyond them little is gained."""


PADDING_COPIED = "Using padding='same' with even kernel lengths"
"""torch's word on its own speed, once a process; no fault where a project makes warnings errors."""


@dataclass(frozen=True, slots=True)
class Failure:
    """The smallest example found, and how it fails."""

    example: Any
    difference: Difference


_UNSTEADY = Difference(
    "not repeatable", got="another outcome for the same inputs", expected="always the same one"
)


class NothingFitsError(Exception):
    """No example was possible, such as for an operator that a march refuses."""


class _DiffersError(Exception):
    """Tells hypothesis that an example fails."""


class _Enough(BaseException):  # noqa: N818 - no error: it leaves hypothesis, which catches those
    """Ends a search whose example is small enough."""


def smallest_failure(
    examples: SearchStrategy[Any], check: Check, how: settings
) -> tuple[Failure | None, int]:
    """Return the smallest example for which ``check`` gives a difference, and how many were run
    until one failed.

    An error of ``check`` is a difference too; a ``MarchError`` says that the example is none.
    """
    search = _Search(check)

    @how
    @given(examples)
    def run(example: Any) -> None:
        if search.fails(example):
            raise _DiffersError

    try:
        with _hypothesis_elsewhere(), _without_local_constants(), warnings.catch_warnings():
            warnings.filterwarnings("ignore", PADDING_COPIED, UserWarning)
            run()
    except (_DiffersError, _Enough):
        return search.last, search.count
    except Flaky:
        return search.last and Failure(search.last.example, _UNSTEADY), search.count
    except Unsatisfiable as error:
        raise NothingFitsError(str(error)) from None
    return None, search.count


@contextmanager
def _hypothesis_elsewhere() -> Iterator[None]:
    """Keep what hypothesis writes beside its database out of the working folder.

    It notes constants of the modules that are loaded, whatever its settings say. Tests of the
    user's own keep their folder.
    """
    before = getattr(configuration, _HOME, None)
    with TemporaryDirectory(prefix="qtune-fuzz-") as folder:
        configuration.set_hypothesis_home_dir(folder)
        try:
            yield
        finally:
            configuration.set_hypothesis_home_dir(before)


@contextmanager
def _without_local_constants() -> Iterator[None]:
    """Draw no numbers from the source of the modules that happen to be loaded.

    They would make the examples of a run depend on what else ran before it, and reading all of
    qtune from a checkout takes seconds. hypothesis has no setting for it; where it has no such
    function either, nothing changes.
    """
    providers: Any = sys.modules.get("hypothesis.internal.conjecture.providers")
    known = getattr(providers, _LOCAL, None)
    if known is None:
        yield
        return
    nothing = providers.Constants()
    setattr(providers, _LOCAL, lambda: nothing)
    try:
        yield
    finally:
        setattr(providers, _LOCAL, known)


_LOCAL = "_get_local_constants"
_HOME = "__hypothesis_home_directory"
"""Where hypothesis keeps the folder; it has a public setter, and no getter that creates none."""


class _Search:
    """What was run so far; ``last``: the latest example that failed, the smallest so far."""

    def __init__(self, check: Check) -> None:
        self._check = check
        self._attempts = 0
        self.count = 0
        self.last: Failure | None = None

    def fails(self, example: Any) -> bool:
        """Run one example; end the search after enough attempts to make a failing one smaller."""
        if self._attempts >= ATTEMPTS:
            raise _Enough
        self.count += self.last is None
        self._attempts += self.last is not None
        difference = _difference(self._check, example)
        if difference is None:
            return False
        self.last = Failure(example, difference)
        return True


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
