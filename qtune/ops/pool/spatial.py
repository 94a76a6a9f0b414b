"""Pools of unbatched or 1-d maps run as pools of batched 2-d maps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from qtune.ops.kernel import Attrs, Builder, LowerCall
from qtune.ops.movement.moving import int64
from qtune.ops.pool.windows import unread

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


def fitted(b: Builder, value: Any, shape: Sequence[int], attrs: Attrs) -> tuple[Any, Any]:
    """The map [N, C, H, W] and pads of a strided pool without what its windows do not read."""
    pads = tuple(attrs["padding"])
    rest = unread(shape[2:], attrs)
    spared = [min(part, pad) for part, pad in zip(rest, pads, strict=True)]
    cut = [(axis, rest[axis] - spared[axis]) for axis in range(2) if rest[axis] > spared[axis]]
    if cut:
        columns = ([0 for _ in cut], [shape[2 + a] - n for a, n in cut], [2 + a for a, _ in cut])
        names = ("starts", "ends", "axes")
        bounds = [b.constant(int64(c), name) for c, name in zip(columns, names, strict=True)]
        value = b.add("Slice", [value, *bounds])
    return value, pads + tuple(pad - part for pad, part in zip(pads, spared, strict=True))
