"""conv1d: convolution of sequences; the integer operators are those of conv2d, at rank 3."""

from __future__ import annotations

import torch
from torch import nn

from qtune.ops.gemm import convolution, limits
from qtune.ops.gemm.samples import sample_conv
from qtune.ops.registry import register
from qtune.ops.spec import FunctionTarget, FuseRole, ModuleTarget, OpSpec, Rule

register(
    OpSpec(
        name="conv1d",
        family="gemm",
        rule=Rule.OWN_SCALE,
        roles=convolution.ROLES,
        targets=(
            ModuleTarget(nn.Conv1d, convolution.bind_module(1), convolution.PARAMS),
            FunctionTarget(torch.conv1d, convolution.bind_function(1)),
        ),
        float_kernel=convolution.float_kernel,
        lower=convolution.lower,
        weight_role="weight",
        weight_axis=lambda attrs: 0,
        weight_attrs=("groups",),
        fuse=FuseRole.GEMM,
        march=limits.CONV,
        flops=convolution.flops,
        sample=lambda rng: sample_conv(rng, rank=1),
        doc="one-dimensional convolution",
    )
)
