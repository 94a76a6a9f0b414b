"""What remainder, fmod and floor_divide share: a divisor that is a number, a table of one operand.

A quantized dividend becomes a table; integers stay integers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from qtune.errors import ExportError
from qtune.ops.kernel import LowerCall
from qtune.ops.spec import Bound


def bind_divisor(operator: str) -> Callable[..., Bound]:
    """``f(input, other)``; ``other`` has to be a number."""

    def bind(input: Any, other: Any) -> Bound:
        return Bound((input,), {"divisor": number_of(operator, input, other)})

    return bind


def number_of(operator: str, input: Any, other: Any) -> int | float:
    """``other``, if it is a number and ``input`` is none."""
    if isinstance(other, int | float) and not isinstance(input, int | float):
        return other
    raise NotImplementedError(
        f"{operator} has an integer form for a tensor divided by a number only. Keep it outside "
        "the quantized region, or write it with div, floor and mul"
    )


def is_integer(call: LowerCall) -> bool:
    """Whether the dividend is an integer tensor."""
    return bool(call.input_dtypes) and str(call.input_dtypes[0]).startswith(("int", "uint"))


def refuse_integers(call: LowerCall, what: str) -> None:
    """Raise for an integer dividend."""
    if is_integer(call):
        raise ExportError(
            f"{call.name}: {what} of integers has no HBIR form. Compute it before the model, or "
            "from sizes, which become constants"
        )
