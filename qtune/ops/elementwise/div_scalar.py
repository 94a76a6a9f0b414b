"""div_scalar: division by a number, the integer rule of which is a product with ``1 / c``."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from qtune.errors import ConvertError
from qtune.ops.elementwise import limits
from qtune.ops.elementwise.binding import output_elements, sample_unary
from qtune.ops.elementwise.operands import codes, copy_node, is_plain, scalar, scaled_by
from qtune.ops.kernel import Builder, ConvertContext, FloatNode, HbirKernel, LowerCall, Operand
from qtune.ops.registry import register
from qtune.ops.spec import OpSpec, Rule, Sample


def _div(input: Any, *, divisor: Any) -> torch.Tensor:
    return torch.div(input, divisor)


def _lower(b: Builder, call: LowerCall) -> Any:
    divisor = b.constant(np.array(call.attrs["divisor"], dtype=np.float32), "divisor")
    return b.add("Div", [call.operands[0], divisor])


def _convert(ctx: ConvertContext, node: FloatNode) -> Operand:
    if is_plain(node):
        return copy_node(ctx, node)
    divisor = scalar(node, 1)
    if not divisor:
        raise ConvertError(
            f"{node.name}: the divisor of Div must be a number other than 0 here, got "
            f"{'a tensor' if divisor is None else divisor}. prepare and build_model "
            "replace a tensor divisor by a reciprocal table and a product; in an ONNX file that is "
            "calibrated already, write Reciprocal and Mul"
        )
    return scaled_by(codes(ctx, node, 0), 1.0 / divisor)


def _sample(rng: np.random.Generator) -> Sample:
    return Sample(sample_unary(rng).shapes, {"divisor": float(rng.uniform(0.1, 9.0))})


register(
    OpSpec(
        name="div_scalar",
        family="elementwise",
        rule=Rule.OWN_SCALE,
        roles=("input",),
        targets=(),
        float_kernel=_div,
        lower=_lower,
        kernels=(
            HbirKernel("Div", run_float=lambda attrs, a, b: torch.div(a, b), convert=_convert),
        ),
        march=limits.NOT_BERNOULLI,
        flops=output_elements,
        sample=_sample,
        doc="input / number; what div becomes where the divisor is a number",
    )
)
