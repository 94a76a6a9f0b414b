"""Pools of unbatched or 1-d maps run as pools of batched 2-d maps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from qtune.ops.kernel import Builder, LowerCall
from qtune.ops.movement.moving import int64

Emit = Callable[[Any, tuple[int, ...]], Any]
"""``emit(value, shape)``: emits the pool of a value of shape [N, C, H, W]."""


def on_maps(b: Builder, call: LowerCall, spatial: int, emit: Emit) -> Any:
    """Emit a pool over the last ``spatial`` dimensions on a 4-d view of the operand."""
    shape = call.input_shapes[0] or ()
    axes = [] if len(shape) > spatial + 1 else [0]
    axes += [2] if spatial == 1 else []
    full = list(shape)
    for axis in axes:
        full.insert(axis, 1)
    value = call.operands[0]
    if not axes:
        return emit(value, tuple(full))
    value = b.add("Unsqueeze", [value, b.constant(int64(axes), "axes")])
    return b.add("Squeeze", [emit(value, tuple(full)), b.constant(int64(axes), "axes")])
