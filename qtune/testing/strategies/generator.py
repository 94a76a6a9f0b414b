"""A stand-in for ``numpy.random.Generator`` whose numbers hypothesis draws, and shrinks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from hypothesis import strategies as st

Draw = Callable[[st.SearchStrategy[Any]], Any]
_SIXTEENTHS = 16


class DrawnGenerator:
    """What the samplers of the registry draw from, one choice of hypothesis per number.

    ``integers``, ``random``, ``uniform``, ``permutation`` and ``choice`` shrink towards the
    smallest number and the first element. Any other method is that of a NumPy generator whose seed
    is drawn.
    """

    def __init__(self, draw: Draw) -> None:
        self._draw = draw
        self._rest: np.random.Generator | None = None

    def integers(
        self, low: int, high: int | None = None, size: Any = None, *, endpoint: bool = False
    ) -> Any:
        """Whole numbers from ``low`` to below ``high``, or from 0 to below ``low``."""
        first, end = (0, low) if high is None else (low, high)
        one = st.integers(int(first), int(end) - (not endpoint))
        return self._filled(one, size, np.int64)

    def random(self, size: Any = None) -> Any:
        """Sixteenths from 0 to below 1."""
        one = st.integers(0, _SIXTEENTHS - 1).map(lambda n: n / _SIXTEENTHS)
        return self._filled(one, size, np.float64)

    def uniform(self, low: float = 0.0, high: float = 1.0, size: Any = None) -> Any:
        """Numbers from ``low`` to below ``high`` in sixteen steps, which keeps literals short."""
        one = st.integers(0, _SIXTEENTHS - 1)
        steps = self._filled(one, size, np.float64)
        return low + (high - low) * steps / _SIXTEENTHS

    def permutation(self, x: Any) -> Any:
        """The elements (of ``range(x)``) in any order; shrinks towards the given one."""
        items = np.arange(x) if isinstance(x, int | np.integer) else np.asarray(x)
        order = self._draw(st.permutations(range(len(items))))
        return items[np.asarray(order, dtype=np.int64)]

    def choice(self, a: Any, size: Any = None, replace: bool = True) -> Any:
        """Elements of ``a`` (of ``range(a)``); without ``replace`` no two the same."""
        items = np.arange(a) if isinstance(a, int | np.integer) else np.asarray(a)
        if not replace:
            picked = self.permutation(items)
            return picked[0] if size is None else picked[: int(np.prod(size))].reshape(size)
        return items[self.integers(len(items), size=size)]

    def _filled(self, one: st.SearchStrategy[Any], size: Any, dtype: Any) -> Any:
        if size is None:
            return dtype(self._draw(one))
        shape = (size,) if isinstance(size, int | np.integer) else tuple(size)
        count = int(np.prod(shape))
        return np.array([self._draw(one) for _ in range(count)], dtype=dtype).reshape(shape)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        if self._rest is None:
            self._rest = np.random.default_rng(self._draw(st.integers(0, 2**16)))
        return getattr(self._rest, name)
