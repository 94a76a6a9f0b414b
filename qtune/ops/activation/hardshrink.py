"""hardshrink: x outside -lambd .. lambd, else 0; a table."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch.nn.functional as F
from torch import nn

from qtune.ops.activation.shrinking import bind_shrink, bind_shrink_module, lower_shrink
from qtune.ops.activation.table_rule import FloatForm, Spellings, table_operator
from qtune.ops.kernel import Builder, LowerCall
from qtune.ops.registry import register


def _lower(b: Builder, call: LowerCall) -> Any:
    return lower_shrink(b, call, 0.0)


register(
    replace(
        table_operator(
            "hardshrink",
            F.hardshrink,
            FloatForm("Shrink"),
            Spellings(
                modules=(nn.Hardshrink,),
                functions=(F.hardshrink,),
                methods=("hardshrink",),
                bind=bind_shrink,
                bind_module=bind_shrink_module,
            ),
            defaults={"lambd": 0.5},
            doc="x outside -lambd .. lambd, else 0",
        ),
        lower=_lower,
        kernels=(),  # Shrink is softshrink's
    )
)
