"""pixel_shuffle: r*r channels become one of r times the size; keeps the input's scale."""

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


def _bind(input: Any, upscale_factor: Any) -> Bound:
    return Bound((input,), {"upscale_factor": upscale_factor})


def _bind_module(module: nn.PixelShuffle, input: Any) -> Bound:
    return _bind(input, module.upscale_factor)


def _lower(b: Builder, call: LowerCall) -> Any:
    shape, r = call.input_shapes[0] or (), int(call.attrs["upscale_factor"])
    *lead, channels, height, width = shape
    n = len(lead)
    split = [0] * n + [channels // (r * r), r, r, height, width]
    order = [*range(n), n, n + 3, n + 1, n + 4, n + 2]
    joined = [0] * n + [channels // (r * r), height * r, width * r]
    return emit_shuffle(b, call.operands[0], split, order, joined)


def _sample(rng: np.random.Generator) -> Sample:
    n, c, r, h, w = (int(v) for v in rng.integers(1, 4, 5))
    return Sample(((n, c * r * r, h, w),), {"upscale_factor": r})


register(
    OpSpec(
        name="pixel_shuffle",
        family="movement",
        rule=Rule.INPUT_SCALE,
        roles=("input",),
        targets=(
            ModuleTarget(nn.PixelShuffle, _bind_module),
            FunctionTarget(F.pixel_shuffle, _bind),
        ),
        float_kernel=F.pixel_shuffle,
        lower=_lower,
        flops=no_flops,
        sample=_sample,
        doc="r*r channels become one channel of r times the size",
    )
)
