"""reshape, view: the same elements in another shape; keeps the input's scale."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
import torch

from qtune.ops.kernel import Attrs, Builder, ExampleSize, LowerCall
from qtune.ops.movement.moving import int64, movement_kernel, no_flops, sizes
from qtune.ops.registry import register
from qtune.ops.spec import Bound, FunctionTarget, MethodTarget, OpSpec, Rule, Sample


def _bind(input: Any, *shape: Any, **kwargs: Any) -> Bound:
    return Bound((input,), {"shape": sizes(shape, "shape", kwargs)})


def _bind_view(input: Any, *shape: Any, **kwargs: Any) -> Bound:
    name = "size" if "size" in kwargs else "dtype"
    given = sizes(shape, name, kwargs)
    if any(isinstance(size, torch.dtype) for size in given):
        raise NotImplementedError("view(dtype) reinterprets bits; codes have no such view")
    return Bound((input,), {"shape": given})


def _bind_ravel(input: Any) -> Bound:
    return Bound((input,), {"shape": (-1,)})


def float_kernel(x: torch.Tensor, *, shape: tuple[int, ...]) -> torch.Tensor:
    """``x`` in ``shape``; one size may be -1."""
    return x.reshape(shape)


def open_shape(shape: tuple[int, ...], input_shape: tuple[int, ...]) -> list[int]:
    """The target of an ONNX Reshape that fits other inputs as far as the expression says.

    A size computed from the input (:class:`ExampleSize`) that equals the input's size at the same
    place becomes 0 (copy). Where one computed size is left and no size is -1, it becomes -1:
    the count of elements fixes it, whatever the expression was. All else stays as it is.
    """
    computed = [i for i, size in enumerate(shape) if isinstance(size, ExampleSize)]
    target = [int(size) for size in shape]
    if len(computed) == 1 and -1 not in target and 0 not in target:
        target[computed[0]] = -1
        return target
    copied = [
        i for i in computed if i < len(input_shape) and target[i] == input_shape[i] and target[i]
    ]
    for i in copied:
        target[i] = 0
    left = [i for i in computed if i not in copied]
    if len(left) == 1 and -1 not in target:
        target[left[0]] = -1
    return target


def emit_reshape(b: Builder, value: Any, target: list[int], suffix: str = "") -> Any:
    """A Reshape node; in ``target`` 0 copies the input's size, -1 is computed."""
    return b.add("Reshape", [value, b.constant(int64(target), "shape")], suffix=suffix)


def _lower(b: Builder, call: LowerCall) -> Any:
    input_shape = call.input_shapes[0] or ()
    return emit_reshape(b, call.operands[0], open_shape(call.attrs["shape"], input_shape))


def _target(attrs: Attrs, x: Any, shape: Any) -> list[int]:
    """The target with numbers for 0 and -1; copied sizes cancel, so an empty batch is no riddle."""
    target = [int(size) for size in shape]
    if attrs.get("allowzero"):
        return target
    copied = [i for i, size in enumerate(target) if size == 0]
    rest = prod(size for i, size in enumerate(x.shape) if i not in copied)
    known = prod(size for size in target if size > 0)
    for i in copied:
        target[i] = x.shape[i]
    return [rest // known if size == -1 else size for size in target]


def _apply(attrs: Attrs, x: torch.Tensor, shape: list[int]) -> torch.Tensor:
    return x.reshape(_target(attrs, x, shape))


def _reference(attrs: Attrs, x: np.ndarray[Any, Any], shape: Any) -> np.ndarray[Any, Any]:
    return x.reshape(_target(attrs, x, shape))


def _sample(rng: np.random.Generator) -> Sample:
    n, c, h, w = (int(v) for v in rng.integers(1, 6, 4))
    shape = [(n, -1), (n, c, h * w), (-1, c * h, w), (n * c * h * w,)][int(rng.integers(4))]
    return Sample(((n, c, h, w),), {"shape": shape})


register(
    OpSpec(
        name="reshape",
        family="movement",
        rule=Rule.INPUT_SCALE,
        roles=("input",),
        targets=(
            FunctionTarget(torch.reshape, _bind),
            FunctionTarget(torch.ravel, _bind_ravel),
            MethodTarget("reshape", _bind),
            MethodTarget("view", _bind_view),
            MethodTarget("ravel", _bind_ravel),
        ),
        float_kernel=float_kernel,
        lower=_lower,
        kernels=(movement_kernel("Reshape", _apply, _reference),),
        flops=no_flops,
        sample=_sample,
        doc="the same elements in another shape",
    )
)
