"""Values as Python source, short where most elements are the same."""

from __future__ import annotations

import dataclasses
import sys
from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from qtune.errors import ArgumentError

_FEW = 8
"""At most this many elements besides the most frequent one are written one by one."""


def full(
    shape: tuple[int, ...], value: Any, others: Mapping[tuple[int, ...], Any], dtype: torch.dtype
) -> Tensor:
    """A tensor of ``value`` but for the elements that ``others`` holds by their index."""
    found = torch.full(shape, value, dtype=dtype)
    for index, other in others.items():
        found[index] = other
    return found


def literal(value: Any) -> str:
    """Source that makes ``value`` again, bit for bit, with ``torch``, ``numpy`` and ``full``.

    Tensors, NumPy arrays and scalars, numbers, strings, ``None``, dtypes, slices, dataclasses,
    functions of a module, and containers of these. Anything else is an ``ArgumentError``.
    """
    if isinstance(value, Tensor):
        return _tensor(value)
    if isinstance(value, np.ndarray):
        return f"{_tensor(torch.from_numpy(np.ascontiguousarray(value)))}.numpy()"
    if isinstance(value, np.generic):
        return literal(value.item())
    if isinstance(value, float) and not np.isfinite(value):
        return f'float("{value}")'
    if isinstance(value, bool | int | float | str | bytes | torch.dtype) or value is None:
        return repr(value) if not isinstance(value, int | float) else str(value)
    if value is Ellipsis:
        return "..."
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _record(value)
    if callable(value) and (name := _named(value)) is not None:
        return name
    return _container(value)


def _named(value: Any) -> str | None:
    """A function of torch, or what a module holds under a name of its own."""
    name = str(getattr(value, "__qualname__", None) or getattr(value, "__name__", ""))
    if name and getattr(torch, name, None) is value:
        return f"torch.{name}"
    home = sys.modules.get(getattr(value, "__module__", None) or "")
    return f"{home.__name__}.{name}" if home and getattr(home, name, None) is value else None


def _record(value: Any) -> str:
    """A dataclass, by its module's name."""
    fields = [f"{f.name}={literal(getattr(value, f.name))}" for f in dataclasses.fields(value)]
    return f"{type(value).__module__}.{type(value).__qualname__}({', '.join(fields)})"


def _container(value: Any) -> str:
    if isinstance(value, slice):
        return f"slice({literal(value.start)}, {literal(value.stop)}, {literal(value.step)})"
    if isinstance(value, tuple):
        inside = ", ".join(map(literal, value))
        return f"({inside},)" if len(value) == 1 else f"({inside})"
    if isinstance(value, list):
        return f"[{', '.join(map(literal, value))}]"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{literal(k)}: {literal(v)}" for k, v in value.items()) + "}"
    raise ArgumentError(
        f"a snippet can't hold a {type(value).__module__}.{type(value).__qualname__}: draw "
        "tensors, arrays, numbers and containers of these, and make the rest inside the function"
    )


def _tensor(x: Tensor) -> str:
    flat = x.detach().flatten().tolist()
    if len(set(map(repr, flat))) <= 1 or len(flat) <= _FEW:
        return _listed(x, flat)
    common = Counter(map(repr, flat)).most_common(1)[0][0]
    rare = [(i, v) for i, v in enumerate(flat) if repr(v) != common]
    if len(rare) > min(_FEW, len(flat) // 2):
        return _listed(x, flat)
    others = {tuple(map(int, np.unravel_index(i, x.shape))): v for i, v in rare}
    value = next(v for v in flat if repr(v) == common)
    return f"full({tuple(x.shape)}, {literal(value)}, {literal(others)}, {x.dtype})"


def _listed(x: Tensor, flat: list[Any]) -> str:
    if len(flat) > 1 and len(set(map(repr, flat))) == 1:
        return f"torch.full({tuple(x.shape)}, {literal(flat[0])}, dtype={x.dtype})"
    text = literal(x.tolist() if x.numel() else flat)
    kind = "" if x.dtype in _NATURAL and x.numel() else f", dtype={x.dtype}"
    shape = f".reshape({tuple(x.shape)})" if not x.numel() else ""
    return f"torch.tensor({text}{kind}){shape}"


_NATURAL = (torch.float32, torch.int64, torch.bool)
"""What ``torch.tensor`` makes of Python numbers."""
