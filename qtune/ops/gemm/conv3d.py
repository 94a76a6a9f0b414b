"""conv3d: convolution of volumes; the integer operators are those of conv2d, at rank 5."""

from __future__ import annotations

import torch
from torch import nn

from qtune.ops.gemm import convolution, limits
from qtune.ops.gemm.samples import sample_conv
from qtune.ops.registry import register
from qtune.ops.spec import FunctionTarget, FuseRole, ModuleTarget, OpSpec, Rule

register(
    OpSpec(
        name="conv3d",
        family="gemm",
        rule=Rule.OWN_SCALE,
        roles=convolution.ROLES,
        targets=(
            ModuleTarget(nn.Conv3d, convolution.bind_module(3), convolution.PARAMS),
            FunctionTarget(torch.conv3d, convolution.bind_function(3)),
        ),
        float_kernel=convolution.float_kernel,
        lower=convolution.lower,
        weight_role="weight",
        weight_axis=lambda attrs: 0,
        weight_attrs=("groups",),
        fuse=FuseRole.GEMM,
        march=limits.CONV3D,
        flops=convolution.flops,
        sample=lambda rng: sample_conv(rng, rank=3),
        doc="three-dimensional convolution",
    )
)
