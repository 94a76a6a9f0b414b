"""``fuzz``: one decorator that makes a test of a function or a table and its reference."""

from __future__ import annotations

import inspect
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from qtune.errors import ArgumentError, NonFiniteError
from qtune.testing.fuzzing.difference import Difference, first_difference
from qtune.testing.fuzzing.operator import conclude_fuzz
from qtune.testing.fuzzing.snippet import pair_snippet, table_snippet
from qtune.testing.fuzzing.table import TableCall

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

Target = Callable[..., Any]
_MARCH, _DTYPES = "nash-e", ("qint8", "qint16")


@dataclass(frozen=True, slots=True)
class _Options:
    """What the decorator was given."""

    against: Target
    inputs: Sequence[Any] | None
    max_steps: float | None
    scale: float | None
    examples: int | None
    march: str
    dtypes: Sequence[str]


def fuzz(
    against: Target,
    *,
    inputs: Sequence[Any] | None = None,
    max_steps: float | None = None,
    scale: float | None = None,
    examples: int | None = None,
    march: str = _MARCH,
    dtypes: Sequence[str] = _DTYPES,
) -> Callable[[Target | nn.Module], Callable[[], None]]:
    """Make a test that searches inputs for which a function strays from ``against``.

    On a function: ``inputs`` holds one entry per argument: a strategy (of hypothesis or
    ``qtune.testing.strategies``), a dtype (``"qint8"``: codes; where only dtypes are given they
    share one drawn shape), or ``(dtype, shape)``. Results (tensors, arrays, numbers, or several)
    must have equal shapes and differ by at most ``max_steps`` (0) steps of ``scale`` (1: results
    are codes); NaN equals NaN.

    On a table (``SegmentLUT`` or another module that becomes a table): the integer table on
    ``march``, in each of ``dtypes``, against ``against`` on the same grid, within ``max_steps``
    (the documented bound: 0 for qint8, 1 for qint16). ``inputs``: one strategy of real tensors.

    The result is a function without arguments: pytest collects it, and it can be called. It raises
    ``AssertionError`` with the smallest failing example as a script. ``target`` and ``against``
    are its attributes.
    """
    options = _Options(against, inputs, max_steps, scale, examples, march, dtypes)
    _check(options)
    home = sys._getframe(1).f_globals.get("__name__", "__main__")

    def decorate(target: Target | nn.Module) -> Callable[[], None]:
        is_table = isinstance(target, nn.Module)
        if inspect.iscoroutinefunction(target) or inspect.isgeneratorfunction(target):
            raise ArgumentError(f"fuzz: {target!r} must return its result: no generator, no async")
        (_check_table if is_table else _check_function)(options)

        def test() -> None:
            __tracebackhide__ = True
            run = _fuzz_table if is_table else _fuzz_function
            run(target, options, _place(home, test))

        test.__module__ = home
        test.__name__ = test.__qualname__ = getattr(target, "__name__", "test_table")
        test.__doc__ = getattr(target, "__doc__", None) if not is_table else None
        marks = {"target": target, "against": against, "place_as": target}
        for name, value in marks.items() if not is_table else list(marks.items())[:2]:
            setattr(test, name, value)  # place_as: pytest shows the line of the function
        return test

    return decorate


def _check(options: _Options) -> None:
    if not callable(options.against):
        raise ArgumentError(f"fuzz: against must be callable but got {options.against!r}")
    steps, scale = options.max_steps, options.scale
    if steps is not None and not (_is_number(steps) and steps >= 0):
        raise ArgumentError(f"fuzz: max_steps must be a number from 0 but got {steps!r}")
    if scale is not None and not (_is_number(scale) and scale > 0):
        raise ArgumentError(f"fuzz: scale must be a number above 0 but got {scale!r}")


def _check_table(options: _Options) -> None:
    if options.scale is not None:
        raise ArgumentError("fuzz: scale is for functions; a table has the step of its own results")
    if options.inputs is not None and len(options.inputs) != 1:
        raise ArgumentError(f"fuzz: a table has one input; got inputs of {len(options.inputs)}")


def _check_function(options: _Options) -> None:
    if not options.inputs:
        raise ArgumentError("fuzz: give inputs=, one strategy or dtype for each argument")
    if (options.march, tuple(options.dtypes)) != (_MARCH, _DTYPES):
        raise ArgumentError("fuzz: march and dtypes are for tables; a function has neither")


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def compare(got: Any, expected: Any, max_steps: float = 0, scale: float | None = None) -> Any:
    """The :class:`Difference` of two results of any form, ``None`` where they agree.

    Their dtypes may differ. ``max_steps``: how many times ``scale`` (1) they may be apart.
    """
    left, right = _tensors(got), _tensors(expected)
    steps = [1.0 if scale is None else float(scale)] * len(left)
    return first_difference(left, right, steps, max_steps)


def _tensors(value: Any) -> list[Tensor]:
    """As float64 tensors, which hold every code and every float32."""
    items = value if isinstance(value, tuple | list) else (value,)
    if any(x is None for x in items):  # two functions that return nothing would always agree
        raise ArgumentError(
            "a result is None: return the tensor, also where it is changed in place"
        )
    return [
        x.detach().double() if isinstance(x, Tensor) else torch.from_numpy(np.array(x, np.float64))
        for x in items
    ]


def _fuzz_function(target: Any, options: _Options, place: str) -> None:
    __tracebackhide__ = True
    from hypothesis import strategies as st

    from qtune.testing.fuzzing.profile import profile
    from qtune.testing.fuzzing.search import smallest_failure

    limits = (options.max_steps or 0, options.scale)

    def check(drawn: Sequence[Any]) -> Difference | None:
        got = target(*_copies(drawn))
        expected = options.against(*_copies(drawn))
        found: Difference | None = compare(got, expected, *limits)
        return found

    examples = _shared(options.inputs or ())
    if examples is None:
        examples = st.tuples(*map(_strategy, options.inputs or ()))
    failure, count = smallest_failure(examples, check, profile(options.examples))
    compared = "" if limits == (0, None) else f", {limits[0]}, {limits[1]}"
    text = "" if failure is None else _noted(place, pair_snippet(place, failure.example, compared))
    difference = None if failure is None else failure.difference
    conclude_fuzz(place.rpartition(".")[2], difference, text, count, {})


def _fuzz_table(target: Any, options: _Options, place: str) -> None:
    __tracebackhide__ = True
    from hypothesis import reject
    from hypothesis import strategies as st

    from qtune.testing.fuzzing.profile import profile
    from qtune.testing.fuzzing.search import smallest_failure

    def limit(call: TableCall) -> float:
        return (call.bound if options.max_steps is None else options.max_steps) + _ROUNDED

    def check(drawn: tuple[str, Tensor]) -> Difference | None:
        call = TableCall(target, drawn[1], drawn[0], options.march)
        if not bool(torch.isfinite(options.against(drawn[1].double())).all()):
            return reject()
        try:
            got, expected, step = call.run(options.against)
        except NonFiniteError:
            return reject()
        found: Difference | None = compare(got, expected, limit(call), step)
        return found

    examples = st.sampled_from(list(options.dtypes)).flatmap(
        lambda dtype: st.tuples(st.just(dtype), _reals(dtype, options.inputs))
    )
    failure, count = smallest_failure(examples, check, profile(options.examples))
    text, difference = "", None
    if failure is not None:
        dtype, x = failure.example
        allowed = limit(TableCall(target, x, dtype))
        text = _noted(place, table_snippet(place, dtype, x, options.march, allowed))
        difference = failure.difference
    conclude_fuzz(place.rpartition(".")[2], difference, text, count, {"march": options.march})


_ROUNDED = 0.01
"""Results are float32: 2**-24 of an int16 code is up to 0.002 steps, and the step itself too."""


def _reals(dtype: str, inputs: Sequence[Any] | None) -> SearchStrategy[Any]:
    from hypothesis import strategies as st

    from qtune.dtype import quant_dtype
    from qtune.testing.strategies import shapes, tensors

    if inputs:
        return _strategy(inputs[0])
    ranges = st.sampled_from((4.0, 1.0, 16.0, 0.25)).map(lambda r: r / -quant_dtype(dtype).qmin)
    return tensors(shapes(1, 2, 9), dtype, ranges)


def _shared(inputs: Sequence[Any]) -> SearchStrategy[Any] | None:
    """Codes of one drawn shape for all arguments, where only dtypes are given."""
    from hypothesis import strategies as st

    from qtune.testing.strategies import codes, shapes

    if not all(isinstance(item, str) for item in inputs):
        return None
    return shapes().flatmap(lambda shape: st.tuples(*(codes(shape, name) for name in inputs)))


def _strategy(item: Any) -> SearchStrategy[Any]:
    """What one entry of ``inputs`` stands for."""
    from hypothesis.strategies import SearchStrategy

    from qtune.testing.strategies import codes, shapes

    if isinstance(item, SearchStrategy):
        return item
    if isinstance(item, str):
        return codes(shapes(), item)
    if isinstance(item, tuple) and len(item) == 2:
        return codes(item[1], item[0])
    raise ArgumentError(
        f"fuzz: an input is a strategy, a dtype such as 'qint8', or (dtype, shape), got {item!r}"
    )


def _copies(drawn: Sequence[Any]) -> list[Any]:
    """Each function gets values of its own, which it may overwrite."""
    return [x.clone() if isinstance(x, Tensor) else np.copy(x) if isinstance(x, np.ndarray) else x
            for x in drawn]  # fmt: skip


def _place(module: str, test: Any) -> str:
    """``module.name`` of a test, for the script."""
    known = vars(sys.modules[module]) if module in sys.modules else {}
    names = [name for name, value in known.items() if value is test]
    return f"{module}.{names[0] if names else test.__name__}"


def _noted(place: str, text: str) -> str:
    """The script, after a word on why it can't run where the test has no name in a file."""
    module, _, name = place.rpartition(".")
    if module != "__main__" and name in vars(sys.modules.get(module, object)):
        return text
    return f"# {place} is no name at the top of an imported file: put it there to run this\n" + text
