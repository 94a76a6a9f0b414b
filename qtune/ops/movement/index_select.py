"""index_select: rows chosen by a tensor of indices; keeps the input's scale."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from qtune.ops.kernel import Attrs, Builder, LowerCall
from qtune.ops.movement.moving import axis_of, movement_kernel, no_flops
from qtune.ops.registry import register
from qtune.ops.spec import Bound, FunctionTarget, MarchRule, MethodTarget, OpSpec, Rule, Sample


def _bind(input: Any, dim: Any, index: Any) -> Bound:
    return Bound((input, index), {"dim": dim})


def float_kernel(x: torch.Tensor, index: torch.Tensor, *, dim: int) -> torch.Tensor:
    """The slices of ``x`` along ``dim`` that ``index`` (int32 or int64, 1-d) names."""
    return x.index_select(dim, index)


def _lower(b: Builder, call: LowerCall) -> Any:
    axis = axis_of(int(call.attrs["dim"]), len(call.input_shapes[0] or ()))
    return b.add("Gather", list(call.operands), {"axis": axis})


def _apply(attrs: Attrs, x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    axis = axis_of(int(attrs.get("axis", 0)), x.dim())  # an imported one may count from behind
    flat = index.reshape(-1).long()
    flat = torch.where(flat < 0, flat + x.shape[axis], flat)
    rows = x.index_select(axis, flat)
    return rows.reshape(x.shape[:axis] + index.shape + x.shape[axis + 1 :])


def _reference(attrs: Attrs, x: np.ndarray[Any, Any], index: Any) -> np.ndarray[Any, Any]:
    return np.take(x, np.asarray(index), axis=int(attrs.get("axis", 0)))


def _check(attrs: Attrs, inputs: Sequence[Any], output: Any) -> str | None:
    wide = [size for size in inputs[0] if size > 65536]
    return f"input shape {tuple(inputs[0])}; sizes up to 65536" if wide else None


MARCH = (MarchRule(("bayes",)), MarchRule(("nash",), ("qint8",), ("qint8",), _check))
"""Limits of what chooses elements by index (toolchain_facts 7.1)."""


def _sample(rng: np.random.Generator) -> Sample:
    shape = tuple(int(v) for v in rng.integers(1, 5, 3))
    dim = int(rng.integers(-3, 3))
    chosen = (int(rng.integers(1, 6)),)
    return Sample((shape, chosen), {"dim": dim}, indices={1: shape[dim]})


register(
    OpSpec(
        name="index_select",
        family="movement",
        rule=Rule.INPUT_SCALE,
        roles=("input", "index"),
        targets=(
            FunctionTarget(torch.index_select, _bind),
            MethodTarget("index_select", _bind),
        ),
        float_kernel=float_kernel,
        lower=_lower,
        kernels=(movement_kernel("Gather", _apply, _reference, index=True),),
        march=MARCH,
        flops=no_flops,
        sample=_sample,
        doc="rows chosen by a tensor of indices",
    )
)
