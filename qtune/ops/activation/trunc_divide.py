"""trunc_divide: a division by a number, rounded towards 0; a table."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from qtune.ops.activation.dividing import refuse_integers
from qtune.ops.activation.table_rule import FloatForm, Spellings, table_operator
from qtune.ops.kernel import Builder, LowerCall
from qtune.ops.registry import register


def _trunc_divide(input: torch.Tensor, *, divisor: Any) -> torch.Tensor:
    return torch.div(input, divisor, rounding_mode="trunc")


def _lower(b: Builder, call: LowerCall) -> Any:
    refuse_integers(call, "div with rounding_mode='trunc'")
    attrs = {"divisor": float(call.attrs["divisor"])}
    return b.add("DivTrunc", [call.operands[0]], attrs, domain="qtune")


register(
    replace(
        table_operator(
            "trunc_divide",
            _trunc_divide,
            FloatForm("DivTrunc", "qtune"),
            Spellings(),
            defaults={"divisor": 0.25},
            doc="trunc(input / divisor); what div becomes with rounding_mode='trunc'",
        ),
        lower=_lower,
    )
)
