"""What the marches take of element-wise operators and reductions (toolchain_facts 7.1 and 7.2)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from qtune.ops.spec import MarchRule

Shapes = Sequence[tuple[int, ...] | None]

_INT8 = ("qint8",)
_CHANNELS = 2048
MOST_REDUCED = 65535
"""Elements that nash reduces to one in a step."""
_ARGMAX_AXIS = 32767


def _add_bernoulli(attrs: Mapping[str, Any], inputs: Shapes, output: tuple[int, ...]) -> str | None:
    if any(shape is None for shape in inputs):
        return "it takes no number as an operand; make it a tensor outside, or use another march"
    if len(output) > 1 and output[1] > _CHANNELS:
        return f"at most {_CHANNELS} channels, got {output[1]}"
    return None


def _sub_bernoulli(attrs: Mapping[str, Any], inputs: Shapes, output: tuple[int, ...]) -> str | None:
    if len(output) > 1 and output[1] > _CHANNELS:
        return f"at most {_CHANNELS} channels, got {output[1]}"
    return None


def _broadcast_bayes(
    attrs: Mapping[str, Any], inputs: Shapes, output: tuple[int, ...]
) -> str | None:
    shapes = [shape for shape in inputs if shape is not None]
    if sum(math.prod(shape) < math.prod(output) for shape in shapes) > 1:
        return f"only one operand may broadcast, got {shapes}; expand one of them"
    return None


def _reduced(attrs: Mapping[str, Any], shape: tuple[int, ...]) -> set[int]:
    dim = attrs.get("dim")
    if dim is None:
        return set(range(len(shape)))
    dims = (dim,) if isinstance(dim, int) else dim
    return {d % len(shape) for d in dims}


def _allowed(attrs: Mapping[str, Any], inputs: Shapes, allowed: set[int], words: str) -> str | None:
    dims = _reduced(attrs, inputs[0] or ())
    if dims <= allowed:
        return None
    return f"it reduces {words} only, got the dimensions {sorted(dims)}"


def _channel_only(attrs: Mapping[str, Any], inputs: Shapes, output: tuple[int, ...]) -> str | None:
    return _allowed(attrs, inputs, {1}, "the channels")


def _batch_or_channel(
    attrs: Mapping[str, Any], inputs: Shapes, output: tuple[int, ...]
) -> str | None:
    return _allowed(attrs, inputs, {0, 1}, "batch or channels")


def _not_batch(attrs: Mapping[str, Any], inputs: Shapes, output: tuple[int, ...]) -> str | None:
    return _allowed(attrs, inputs, set(range(1, len(inputs[0] or ()))), "all but the batch")


def _reduced_size(attrs: Mapping[str, Any], inputs: Shapes, output: tuple[int, ...]) -> str | None:
    shape = inputs[0] or ()
    count = math.prod(shape[d] for d in _reduced(attrs, shape))
    if count > MOST_REDUCED:
        return (
            f"at most {MOST_REDUCED} elements are reduced to one, got {count}; reduce in two steps"
        )
    return None


def _argmax_axis(attrs: Mapping[str, Any], inputs: Shapes, output: tuple[int, ...]) -> str | None:
    shape = inputs[0] or ()
    longest = max((shape[d] for d in _reduced(attrs, shape)), default=0)
    if longest > _ARGMAX_AXIS:
        return f"the axis has at most {_ARGMAX_AXIS} elements, got {longest}"
    return None


NOT_BERNOULLI = (MarchRule(("bayes", "nash")),)
ADD_MUL = (
    MarchRule(("bernoulli",), _INT8, _INT8, _add_bernoulli),
    MarchRule(("bayes",), check=_broadcast_bayes),
    MarchRule(("nash",)),
)
SUB = (
    MarchRule(("bernoulli",), _INT8, _INT8, _sub_bernoulli),
    MarchRule(("bayes",), check=_broadcast_bayes),
    MarchRule(("nash",)),
)
MEAN = (
    MarchRule(("bernoulli",), _INT8, _INT8, _channel_only),
    MarchRule(("bayes",), check=_not_batch),
    MarchRule(("nash",), check=_reduced_size),
)
SUM = (
    MarchRule(("bernoulli",), _INT8, _INT8, _batch_or_channel),
    MarchRule(("bayes",), check=_not_batch),
    MarchRule(("nash",), check=_reduced_size),
)
EXTREMUM = (MarchRule(("bayes",)), MarchRule(("nash",), check=_reduced_size))
ARGMAX = (MarchRule(("bayes",)), MarchRule(("nash",), check=_argmax_axis))
