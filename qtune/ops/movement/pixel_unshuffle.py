"""pixel_unshuffle: r by r blocks of a channel become channels; keeps the input's scale."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch.nn.functional as F
from torch import nn

from qtune.ops.kernel import Builder, LowerCall
from qtune.ops.movement.blocks import emit_shuffle
from qtune.ops.movement.moving import no_flops
from qtune.ops.registry import register
from qtune.ops.spec import Bound, FunctionTarget, ModuleTarget, OpSpec, Rule, Sample


def _bind(input: Any, downscale_factor: Any) -> Bound:
    return Bound((input,), {"downscale_factor": downscale_factor})


def _bind_module(module: nn.PixelUnshuffle, input: Any) -> Bound:
    return _bind(input, module.downscale_factor)


def _lower(b: Builder, call: LowerCall) -> Any:
    shape, r = call.input_shapes[0] or (), int(call.attrs["downscale_factor"])
    *lead, channels, height, width = shape
    n = len(lead)
    split = [0] * n + [channels, height // r, r, width // r, r]
    order = [*range(n), n, n + 2, n + 4, n + 1, n + 3]
    joined = [0] * n + [channels * r * r, height // r, width // r]
    return emit_shuffle(b, call.operands[0], split, order, joined)


def _sample(rng: np.random.Generator) -> Sample:
    n, c, r, h, w = (int(v) for v in rng.integers(1, 4, 5))
    return Sample(((n, c, h * r, w * r),), {"downscale_factor": r})


register(
    OpSpec(
        name="pixel_unshuffle",
        family="movement",
        rule=Rule.INPUT_SCALE,
        roles=("input",),
        targets=(
            ModuleTarget(nn.PixelUnshuffle, _bind_module),
            FunctionTarget(F.pixel_unshuffle, _bind),
        ),
        float_kernel=F.pixel_unshuffle,
        lower=_lower,
        flops=no_flops,
        sample=_sample,
        doc="r by r blocks of a channel become channels",
    )
)
