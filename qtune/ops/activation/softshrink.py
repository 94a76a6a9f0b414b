"""softshrink: x moved towards 0 by lambd, 0 within -lambd .. lambd; a table."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from qtune.ops.activation.shrinking import (
    bind_shrink,
    bind_shrink_module,
    lower_shrink,
    shrink,
    shrink_attrs,
)
from qtune.ops.activation.table_rule import (
    FloatForm,
    Spellings,
    deferred_table,
    table_function,
    table_operator,
)
from qtune.ops.elementwise.operands import codes, copy_node, is_plain
from qtune.ops.kernel import (
    Attrs,
    Builder,
    ConvertContext,
    FloatNode,
    HbirKernel,
    LowerCall,
    Operand,
)
from qtune.ops.registry import register


def _lower(b: Builder, call: LowerCall) -> Any:
    return lower_shrink(b, call, call.attrs["lambd"])


def _run_float(attrs: Attrs, x: torch.Tensor) -> torch.Tensor:
    return shrink(x, **shrink_attrs(attrs))


def _convert(ctx: ConvertContext, node: FloatNode) -> Operand:
    if is_plain(node):
        return copy_node(ctx, node)
    return deferred_table(codes(ctx, node, 0), table_function(shrink, shrink_attrs(node.attrs)))


register(
    replace(
        table_operator(
            "softshrink",
            F.softshrink,
            FloatForm("Shrink"),
            Spellings(
                modules=(nn.Softshrink,),
                functions=(F.softshrink,),
                bind=bind_shrink,
                bind_module=bind_shrink_module,
            ),
            defaults={"lambd": 0.5},
            doc="x moved towards 0 by lambd, 0 within -lambd .. lambd",
        ),
        lower=_lower,
        kernels=(HbirKernel("Shrink", run_float=_run_float, convert=_convert),),
    )
)
