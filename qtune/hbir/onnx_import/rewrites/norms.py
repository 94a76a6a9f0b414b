"""The p-norm over axes, by reductions: what the Lp operators share."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from qtune.ops.kernel import Builder, Value


def norm(b: Builder, x: Value | None, axes: Sequence[int], p: int) -> Value:
    """``(sum over axes of |x| ** p) ** (1 / p)``, with its axes kept as ones."""
    powers = powered(b, x, p)
    where = b.constant(np.array(axes, dtype=np.int64), "axes")
    return root(b, b.add("ReduceSum", [powers, where], {"keepdims": 1}), p)


def powered(b: Builder, x: Value | None, p: int) -> Value:
    """``|x| ** p``."""
    if p == 1:
        made: Value = b.add("Abs", [x])
    elif p == 2:
        made = b.add("Mul", [x, x])
    else:
        made = b.add("Pow", [b.add("Abs", [x]), b.constant(np.array(p, dtype=np.float32), "p")])
    return made


def root(b: Builder, x: Value, p: int) -> Value:
    """``x ** (1 / p)`` of a number that is not negative."""
    if p == 1:
        return x
    if p == 2:
        made: Value = b.add("Sqrt", [x])
    else:
        made = b.add("Pow", [x, b.constant(np.array(1 / p, dtype=np.float32), "root")])
    return made
