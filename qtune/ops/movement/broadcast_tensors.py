"""broadcast_tensors: tensors expanded to one shape; each keeps its scale."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from qtune.ops.kernel import Builder, LowerCall
from qtune.ops.movement.moving import int64, no_flops
from qtune.ops.registry import register
from qtune.ops.spec import (
    Bound,
    DecomposeBuilder,
    FunctionTarget,
    MarchRule,
    OpSpec,
    Rule,
    Sample,
)


def _bind(*tensors: Any) -> Bound:
    given = tensors[0] if len(tensors) == 1 and isinstance(tensors[0], tuple | list) else tensors
    return Bound(tuple(given))


def float_kernel(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """``tensors`` broadcast together."""
    return tuple(torch.broadcast_tensors(*tensors))  # type: ignore[no-untyped-call]


def _lower(b: Builder, call: LowerCall) -> Any:
    shapes = [shape or () for shape in call.input_shapes]
    wanted = np.broadcast_shapes(*shapes)
    return tuple(
        b.add("Expand", [value, b.constant(int64(_open(shape, wanted)), "shape")])
        for value, shape in zip(call.operands, shapes, strict=True)
    )


def _open(shape: tuple[int, ...], wanted: tuple[int, ...]) -> list[int]:
    """The target of Expand; in ONNX a 1 keeps the input's size."""
    padded = (1,) * (len(wanted) - len(shape)) + shape
    return [1 if own == size else size for own, size in zip(padded, wanted, strict=True)]


def _decompose(builder: DecomposeBuilder, bound: Bound) -> Any:
    shapes = [builder.shape(tensor) for tensor in bound.tensors]
    wanted = np.broadcast_shapes(*shapes)
    model = next((t for t, s in zip(bound.tensors, shapes, strict=True) if s == wanted), None)
    if model is None:
        raise NotImplementedError(
            f"broadcast_tensors of {shapes}: none of them has the common shape {wanted}, which "
            "would be fixed then; expand each with .expand()"
        )
    return tuple(
        tensor
        if shape == wanted
        else builder.call("expand_as", (tensor, model), part=f"expand_{index}")
        for index, (tensor, shape) in enumerate(zip(bound.tensors, shapes, strict=True))
    )


def _sample(rng: np.random.Generator) -> Sample:
    shape = tuple(int(v) for v in rng.integers(1, 5, 3))
    return Sample((shape, (1, *shape[1:]), shape[1:]))


register(
    OpSpec(
        name="broadcast_tensors",
        family="movement",
        rule=Rule.DECOMPOSED,
        roles=("*tensors",),
        targets=(FunctionTarget(torch.broadcast_tensors, _bind),),
        float_kernel=float_kernel,
        lower=_lower,
        decompose=_decompose,
        march=(MarchRule(("bayes", "nash")),),
        flops=no_flops,
        sample=_sample,
        doc="tensors expanded to one shape",
    )
)
