"""floor_divide: a division by a number, rounded down; a table."""

from __future__ import annotations

import operator
from dataclasses import replace
from typing import Any

import torch

from qtune.ops.activation.dividing import bind_divisor, refuse_integers
from qtune.ops.activation.table_rule import FloatForm, Spellings, table_operator
from qtune.ops.kernel import Builder, LowerCall
from qtune.ops.registry import register


def _floor_divide(input: torch.Tensor, *, divisor: Any) -> torch.Tensor:
    return torch.floor_divide(input, divisor)


def _lower(b: Builder, call: LowerCall) -> Any:
    refuse_integers(call, "floor_divide")
    attrs = {"divisor": float(call.attrs["divisor"])}
    return b.add("DivFloor", [call.operands[0]], attrs, domain="qtune")


register(
    replace(
        table_operator(
            "floor_divide",
            _floor_divide,
            FloatForm("DivFloor", "qtune"),
            Spellings(
                functions=(torch.floor_divide, operator.floordiv, operator.ifloordiv),
                methods=("floor_divide", "floor_divide_", "__floordiv__", "__ifloordiv__"),
                bind=bind_divisor("floor_divide"),
            ),
            defaults={"divisor": 0.25},
            doc="floor(input / divisor), the divisor a number",
        ),
        lower=_lower,
    )
)
