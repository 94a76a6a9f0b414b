"""conv_transpose1d: the integer operators are those of conv_transpose2d, at rank 3."""

from __future__ import annotations

import torch
from torch import nn

from qtune.ops.gemm import limits, transposed
from qtune.ops.gemm.samples import sample_conv_transpose
from qtune.ops.registry import register
from qtune.ops.spec import FunctionTarget, FuseRole, ModuleTarget, OpSpec, Rule

register(
    OpSpec(
        name="conv_transpose1d",
        family="gemm",
        rule=Rule.OWN_SCALE,
        roles=transposed.ROLES,
        targets=(
            ModuleTarget(nn.ConvTranspose1d, transposed.bind_module(1), transposed.PARAMS),
            FunctionTarget(torch.conv_transpose1d, transposed.bind_function(1)),
        ),
        float_kernel=transposed.float_kernel,
        lower=transposed.lower,
        weight_role="weight",
        weight_axis=lambda attrs: 1,
        weight_groups=lambda attrs: int(attrs["groups"]),
        weight_attrs=("groups",),
        fuse=FuseRole.GEMM,
        march=limits.CONV_TRANSPOSE,
        flops=transposed.flops,
        sample=lambda rng: sample_conv_transpose(rng, rank=1),
        doc="one-dimensional transposed convolution",
    )
)
