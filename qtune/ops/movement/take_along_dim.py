"""take_along_dim: gather whose operands broadcast; keeps the input's scale."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from qtune.ops.kernel import Builder, LowerCall, Value
from qtune.ops.movement.index_select import MARCH
from qtune.ops.movement.moving import axis_of, int64, no_flops
from qtune.ops.movement.reshape import emit_reshape
from qtune.ops.registry import register
from qtune.ops.spec import Bound, FunctionTarget, MethodTarget, OpSpec, Rule, Sample


def _bind(input: Any, indices: Any, dim: Any = None) -> Bound:
    return Bound((input, indices), {"dim": None if dim is None else int(dim)})


def float_kernel(x: torch.Tensor, index: torch.Tensor, *, dim: int | None) -> torch.Tensor:
    """Elements of ``x`` along ``dim``; ``None``: both flattened."""
    return torch.take_along_dim(x, index) if dim is None else torch.take_along_dim(x, index, dim)


def _lower(b: Builder, call: LowerCall) -> Any:
    x, index = call.operands
    shapes = [call.input_shapes[0] or (), call.input_shapes[1] or ()]
    if call.attrs["dim"] is None:
        flat = [emit_reshape(b, value, [-1], "flat") for value in (x, index)]
        return b.add("GatherElements", flat, {"axis": 0})
    axis = axis_of(call.attrs["dim"], len(shapes[0]))
    others = np.broadcast_shapes(*(s[:axis] + (1,) + s[axis + 1 :] for s in shapes))
    values = [
        _expand(b, value, shape, [*others[:axis], shape[axis], *others[axis + 1 :]])
        for value, shape in zip((x, index), shapes, strict=True)
    ]
    return b.add("GatherElements", values, {"axis": axis})


def _expand(b: Builder, value: Any, shape: tuple[int, ...], wanted: Sequence[int]) -> Value:
    if list(shape) == list(wanted):
        return value
    # In ONNX a 1 keeps the input's size, so that a size that does not change stays open.
    target = [1 if size == own else size for size, own in zip(wanted, shape, strict=True)]
    return b.add("Expand", [value, b.constant(int64(target), "shape")])


def _sample(rng: np.random.Generator) -> Sample:
    shape = tuple(int(v) for v in rng.integers(1, 5, 3))
    dim = None if not rng.integers(4) else int(rng.integers(-3, 3))
    if dim is None:
        rows = int(np.prod(shape))
        return Sample((shape, (int(rng.integers(1, 6)),)), {"dim": None}, indices={1: rows})
    chosen = [size if rng.integers(2) else 1 for size in shape]
    chosen[dim] = int(rng.integers(1, 6))
    return Sample((shape, tuple(chosen)), {"dim": dim}, indices={1: shape[dim]})


register(
    OpSpec(
        name="take_along_dim",
        family="movement",
        rule=Rule.INPUT_SCALE,
        roles=("input", "index"),
        targets=(
            FunctionTarget(torch.take_along_dim, _bind),
            MethodTarget("take_along_dim", _bind),
        ),
        float_kernel=float_kernel,
        lower=_lower,
        march=MARCH,
        flops=no_flops,
        sample=_sample,
        doc="gather whose operands broadcast",
    )
)
