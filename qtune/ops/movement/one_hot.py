"""one_hot: each index as a row of 0 and 1; integers, no scale."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from qtune.ops.kernel import Builder, LowerCall
from qtune.ops.movement.moving import int64, no_flops
from qtune.ops.quant.astype import emit_astype
from qtune.ops.registry import register
from qtune.ops.spec import Bound, FunctionTarget, MarchRule, OpSpec, Rule, Sample


def _bind(tensor: Any, num_classes: int = -1) -> Bound:
    if isinstance(num_classes, int) and num_classes < 0:
        raise NotImplementedError(
            "one_hot without num_classes: its size would depend on data; pass num_classes"
        )
    return Bound((tensor,), {"num_classes": num_classes})


def float_kernel(index: torch.Tensor, *, num_classes: int) -> torch.Tensor:
    """int64 [...] below ``num_classes`` gives int64 [..., num_classes]."""
    return F.one_hot(index, num_classes)


def _lower(b: Builder, call: LowerCall) -> Any:
    rank = len(call.input_shapes[0] or ())
    column = b.add("Unsqueeze", [call.operands[0], b.constant(int64([rank]), "axes")])
    classes = b.constant(np.arange(int(call.attrs["num_classes"])), "classes")
    return emit_astype(b, b.add("Equal", [column, classes]), torch.int64)


def _sample(rng: np.random.Generator) -> Sample:
    shape = tuple(int(v) for v in rng.integers(1, 5, 2))
    classes = int(rng.integers(1, 6))
    return Sample((shape,), {"num_classes": classes}, indices={0: classes})


register(
    OpSpec(
        name="one_hot",
        family="movement",
        rule=Rule.NO_SCALE,
        roles=("index",),
        targets=(FunctionTarget(F.one_hot, _bind),),
        float_kernel=float_kernel,
        lower=_lower,
        march=(MarchRule(("bayes", "nash")),),
        flops=no_flops,
        sample=_sample,
        doc="each index as a row of 0 and 1",
    )
)
