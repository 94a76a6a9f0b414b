"""Reshape, transpose, reshape: what the shuffles are made of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from qtune.ops.kernel import Builder
from qtune.ops.movement.reshape import emit_reshape


def emit_shuffle(
    b: Builder, value: Any, split: Sequence[int], order: Sequence[int], joined: Sequence[int]
) -> Any:
    """Split dimensions (target ``split``), reorder them, join them (target ``joined``)."""
    value = emit_reshape(b, value, list(split), "split")
    value = b.add("Transpose", [value], {"perm": list(order)})
    return emit_reshape(b, value, list(joined), "join")
