"""expand: dimensions of size 1 repeated without a copy; keeps the input's scale."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from qtune.ops.kernel import Attrs, Builder, LowerCall
from qtune.ops.movement.moving import int64, movement_kernel, no_flops, sizes
from qtune.ops.registry import register
from qtune.ops.spec import Bound, FunctionTarget, MarchRule, MethodTarget, OpSpec, Rule, Sample


def _bind(input: Any, *size: Any, **kwargs: Any) -> Bound:
    kwargs.pop("implicit", None)
    return Bound((input,), {"sizes": sizes(size, "size", kwargs)})


def float_kernel(x: torch.Tensor, *, sizes: tuple[int, ...]) -> torch.Tensor:
    """``x`` broadcast to ``sizes``; -1 keeps a size."""
    return x.expand(*sizes)


def _lower(b: Builder, call: LowerCall) -> Any:
    return emit_expand(b, call, [int(size) for size in call.attrs["sizes"]])


def emit_expand(b: Builder, call: LowerCall, sizes: list[int]) -> Any:
    """Expand the first operand to ``sizes``; -1 keeps a size."""
    shape = call.input_shapes[0] or ()
    new = len(sizes) - len(shape)
    # In ONNX a 1 keeps the input's size, so that a size that does not change stays open.
    target = [
        1 if i >= new and size in (-1, shape[i - new]) else size for i, size in enumerate(sizes)
    ]
    return b.add("Expand", [call.operands[0], b.constant(int64(target), "shape")])


def _target(x: Any, shape: Any) -> tuple[int, ...]:
    return np.broadcast_shapes(tuple(x.shape), tuple(int(size) for size in shape))


def _apply(attrs: Attrs, x: torch.Tensor, shape: list[int]) -> torch.Tensor:
    return x.expand(_target(x, shape))


def _reference(attrs: Attrs, x: np.ndarray[Any, Any], shape: Any) -> np.ndarray[Any, Any]:
    return np.broadcast_to(x, _target(x, shape)).copy()


def _sample(rng: np.random.Generator) -> Sample:
    shape = tuple(int(v) for v in rng.integers(1, 3, 3))
    wider = [int(rng.integers(1, 5)) if size == 1 else size for size in shape]
    sizes = [wider, [-1, *wider[1:]], [2, *wider]][int(rng.integers(3))]
    return Sample((shape,), {"sizes": tuple(sizes)})


register(
    OpSpec(
        name="expand",
        family="movement",
        rule=Rule.INPUT_SCALE,
        roles=("input",),
        targets=(
            FunctionTarget(torch.broadcast_to, _bind),
            MethodTarget("expand", _bind),
            MethodTarget("broadcast_to", _bind),
        ),
        float_kernel=float_kernel,
        lower=_lower,
        kernels=(movement_kernel("Expand", _apply, _reference),),
        march=(MarchRule(("bayes", "nash")),),
        flops=no_flops,
        sample=_sample,
        doc="dimensions of size 1 repeated",
    )
)
