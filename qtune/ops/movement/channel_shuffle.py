"""channel_shuffle: channels of several groups dealt out in turn; keeps the input's scale."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn

from qtune.ops.kernel import Builder, LowerCall
from qtune.ops.movement.blocks import emit_shuffle
from qtune.ops.movement.moving import no_flops
from qtune.ops.registry import register
from qtune.ops.spec import Bound, FunctionTarget, ModuleTarget, OpSpec, Rule, Sample


def _bind(input: Any, groups: Any) -> Bound:
    return Bound((input,), {"groups": groups})


def _bind_module(module: nn.ChannelShuffle, input: Any) -> Bound:
    return _bind(input, module.groups)


def float_kernel(x: torch.Tensor, *, groups: int) -> torch.Tensor:
    """``x`` with channel ``g * (C / groups) + i`` moved to place ``i * groups + g``."""
    return torch.channel_shuffle(x, groups)


def _lower(b: Builder, call: LowerCall) -> Any:
    shape, groups = call.input_shapes[0] or (), int(call.attrs["groups"])
    _, channels, *rest = shape
    split = [0, groups, channels // groups, *rest]
    order = [0, 2, 1, *range(3, len(split))]
    return emit_shuffle(b, call.operands[0], split, order, [0, channels, *rest])


def _sample(rng: np.random.Generator) -> Sample:
    n, c, g, h, w = (int(v) for v in rng.integers(1, 4, 5))
    return Sample(((n, c * g, h, w),), {"groups": g})


register(
    OpSpec(
        name="channel_shuffle",
        family="movement",
        rule=Rule.INPUT_SCALE,
        roles=("input",),
        targets=(
            ModuleTarget(nn.ChannelShuffle, _bind_module),
            FunctionTarget(torch.channel_shuffle, _bind),
            FunctionTarget(torch.native_channel_shuffle, _bind),
        ),
        float_kernel=float_kernel,
        lower=_lower,
        flops=no_flops,
        sample=_sample,
        doc="channels of several groups dealt out in turn",
    )
)
