"""conv2d: convolution of maps, groups and depthwise included (numerics.md section 2)."""

from __future__ import annotations

import torch
from torch import nn

from qtune.ops.gemm import convolution, limits, reference
from qtune.ops.gemm.fast import fast_conv
from qtune.ops.gemm.kernels import integer_kernels
from qtune.ops.gemm.samples import sample_conv
from qtune.ops.kernel import HbirKernel
from qtune.ops.registry import register
from qtune.ops.spec import FunctionTarget, FuseRole, ModuleTarget, OpSpec, Rule

register(
    OpSpec(
        name="conv2d",
        family="gemm",
        rule=Rule.OWN_SCALE,
        roles=convolution.ROLES,
        targets=(
            ModuleTarget(nn.Conv2d, convolution.bind_module(2), convolution.PARAMS),
            FunctionTarget(torch.conv2d, convolution.bind_function(2)),
        ),
        float_kernel=convolution.float_kernel,
        lower=convolution.lower,
        kernels=(
            HbirKernel("Conv", run_float=convolution.run_float, convert=convolution.convert),
            *integer_kernels("QConv", reference.conv, fast_conv),
        ),
        weight_role="weight",
        weight_axis=lambda attrs: 0,
        weight_attrs=("groups",),
        fuse=FuseRole.GEMM,
        march=limits.CONV,
        flops=convolution.flops,
        sample=lambda rng: sample_conv(rng, rank=2),
        doc="two-dimensional convolution",
    )
)
