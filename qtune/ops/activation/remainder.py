"""remainder: what is left of a division by a number, with the divisor's sign; a table."""

from __future__ import annotations

import operator
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from qtune.errors import ConvertError
from qtune.ops.activation.dividing import bind_divisor, is_integer
from qtune.ops.activation.table_rule import FloatForm, Spellings, table_operator
from qtune.ops.elementwise.operands import copy_node
from qtune.ops.kernel import (
    Attrs,
    Builder,
    ConvertContext,
    FloatNode,
    HbirKernel,
    LowerCall,
    Operand,
    QConst,
    QValue,
)
from qtune.ops.registry import register


def _remainder(input: torch.Tensor, *, divisor: Any) -> torch.Tensor:
    return torch.remainder(input, divisor)


def _lower(b: Builder, call: LowerCall) -> Any:
    x, divisor = call.operands[0], call.attrs["divisor"]
    if is_integer(call) and isinstance(divisor, int):
        dtype = np.dtype(call.input_dtypes[0])
        return b.add("Mod", [x, b.constant(np.array(divisor, dtype=dtype), "divisor")])
    return b.add("Remainder", [x], {"divisor": float(divisor)}, domain="qtune")


def _run_mod(attrs: Attrs, x: torch.Tensor, divisor: torch.Tensor) -> torch.Tensor:
    function = torch.fmod if attrs.get("fmod", 0) else torch.remainder
    return function(x, divisor)


def _convert_mod(ctx: ConvertContext, node: FloatNode) -> Operand:
    if any(isinstance(operand, (QValue, QConst)) for operand in node.operands):
        raise ConvertError(
            f"{node.name}: Mod of quantized tensors has an integer rule by a constant number only"
        )
    return copy_node(ctx, node)  # of integers; the floating forms are in the domain


_SPEC = table_operator(
    "remainder",
    _remainder,
    FloatForm("Remainder", "qtune"),
    Spellings(
        functions=(torch.remainder, operator.mod, operator.imod),
        methods=("remainder", "remainder_", "__mod__", "__imod__"),
        bind=bind_divisor("remainder"),
    ),
    defaults={"divisor": 0.75},
    doc="input - divisor * floor(input / divisor), the divisor a number",
)

register(
    replace(
        _SPEC,
        lower=_lower,
        kernels=(*_SPEC.kernels, HbirKernel("Mod", run_float=_run_mod, convert=_convert_mod)),
    )
)
