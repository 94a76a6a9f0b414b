"""conv_transpose2d: transposed convolution, one weight scale per real output channel."""

from __future__ import annotations

import torch
from torch import nn

from qtune.ops.gemm import limits, reference, transposed
from qtune.ops.gemm.fast import fast_conv_transpose
from qtune.ops.gemm.kernels import integer_kernels
from qtune.ops.gemm.samples import sample_conv_transpose
from qtune.ops.kernel import HbirKernel
from qtune.ops.registry import register
from qtune.ops.spec import FunctionTarget, FuseRole, ModuleTarget, OpSpec, Rule

register(
    OpSpec(
        name="conv_transpose2d",
        family="gemm",
        rule=Rule.OWN_SCALE,
        roles=transposed.ROLES,
        targets=(
            ModuleTarget(nn.ConvTranspose2d, transposed.bind_module(2), transposed.PARAMS),
            FunctionTarget(torch.conv_transpose2d, transposed.bind_function(2)),
        ),
        float_kernel=transposed.float_kernel,
        lower=transposed.lower,
        kernels=(
            HbirKernel("ConvTranspose", run_float=transposed.run_float, convert=transposed.convert),
            *integer_kernels("QConvTranspose", reference.conv_transpose, fast_conv_transpose),
        ),
        weight_role="weight",
        weight_axis=lambda attrs: 1,
        weight_groups=lambda attrs: int(attrs["groups"]),
        weight_attrs=("groups",),
        fuse=FuseRole.GEMM,
        march=limits.CONV_TRANSPOSE,
        flops=transposed.flops,
        sample=lambda rng: sample_conv_transpose(rng, rank=2),
        doc="two-dimensional transposed convolution",
    )
)
