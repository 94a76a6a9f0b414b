"""split: one tensor cut into several along a dimension; each keeps the input's scale."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import numpy as np
import torch

from qtune.ops.kernel import Attrs, Builder, FloatConst, FloatNode, LowerCall
from qtune.ops.movement.moving import axis_of, int64, movement_kernel, no_flops
from qtune.ops.registry import register
from qtune.ops.spec import Bound, FunctionTarget, MethodTarget, OpSpec, Rule, Sample


def _bind(tensor: Any, split_size_or_sections: Any, dim: Any = 0) -> Bound:
    sections = split_size_or_sections
    if isinstance(sections, Sequence):
        sections = tuple(sections)
    return Bound((tensor,), {"sections": sections, "dim": dim})


def _bind_method(tensor: Any, split_size: Any, dim: Any = 0) -> Bound:
    return _bind(tensor, split_size, dim)


def _bind_sizes(input: Any, split_sizes: Any, dim: Any = 0) -> Bound:
    return _bind(input, split_sizes, dim)


def float_kernel(x: torch.Tensor, *, sections: Any, dim: int) -> tuple[torch.Tensor, ...]:
    """Pieces of the size ``sections``, or of the sizes in it, along ``dim``."""
    return tuple(torch.split(x, list(sections) if isinstance(sections, tuple) else sections, dim))


def equal_parts(size: int, part: int) -> list[int]:
    """Sizes of the pieces of ``size`` elements, all of ``part`` but the last."""
    full, rest = divmod(size, part)
    return [part] * full + ([rest] if rest or not full else [])


def emit_split(b: Builder, value: Any, parts: Sequence[int], axis: int) -> tuple[Any, ...]:
    """A Split node; always a tuple, even of one piece."""
    inputs = [value, b.constant(int64(parts), "split")]
    result = b.add("Split", inputs, {"axis": axis}, outputs=len(parts))
    return result if isinstance(result, tuple) else (result,)


def _lower(b: Builder, call: LowerCall) -> Any:
    shape, sections = call.input_shapes[0] or (1,), call.attrs["sections"]
    axis = axis_of(int(call.attrs["dim"]), len(shape))
    parts = sections if isinstance(sections, tuple) else equal_parts(shape[axis], int(sections))
    return emit_split(b, call.operands[0], parts, axis)


def _apply(attrs: Attrs, x: torch.Tensor, parts: list[int]) -> Any:
    result = torch.split(x, parts, int(attrs.get("axis", 0)))
    return result if len(result) > 1 else result[0]


def _reference(attrs: Attrs, x: np.ndarray[Any, Any], parts: Any) -> Any:
    ends = list(accumulate(int(part) for part in parts))
    result = tuple(np.split(x, ends[:-1], axis=int(attrs.get("axis", 0))))
    return result if len(result) > 1 else result[0]


def _outputs(node: FloatNode) -> int:
    parts = node.operands[1]
    if not isinstance(parts, FloatConst):
        raise NotImplementedError(f"{node.name}: Split into sizes that the graph computes")
    return int(parts.data.size)


def _sample(rng: np.random.Generator) -> Sample:
    shape = tuple(int(v) for v in rng.integers(2, 7, 4))
    dim = int(rng.integers(-4, 4))
    first = int(rng.integers(1, shape[dim]))
    sections = [first, (first, shape[dim] - first)][int(rng.integers(2))]
    return Sample((shape,), {"sections": sections, "dim": dim})


register(
    OpSpec(
        name="split",
        family="movement",
        rule=Rule.INPUT_SCALE,
        roles=("input",),
        targets=(
            FunctionTarget(torch.split, _bind),
            FunctionTarget(torch.split_with_sizes, _bind_sizes),
            FunctionTarget(torch.unsafe_split, _bind_method),
            FunctionTarget(torch.unsafe_split_with_sizes, _bind_sizes),
            MethodTarget("split", _bind_method),
            MethodTarget("split_with_sizes", _bind_sizes),
            MethodTarget("unsafe_split", _bind_method),
            MethodTarget("unsafe_split_with_sizes", _bind_sizes),
        ),
        float_kernel=float_kernel,
        lower=_lower,
        kernels=(movement_kernel("Split", _apply, _reference, outputs=_outputs),),
        flops=no_flops,
        sample=_sample,
        doc="a tensor cut into pieces of given sizes",
    )
)
