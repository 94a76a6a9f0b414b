"""round: to the nearest whole number, half to even as torch has it; a table."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from qtune.ops.activation.table_rule import FloatForm, Spellings, table_operator
from qtune.ops.kernel import Builder, LowerCall
from qtune.ops.registry import register
from qtune.ops.spec import Bound


def _bind(input: Any, *, decimals: int = 0) -> Bound:
    return Bound((input,), {"decimals": int(decimals)})


def _round(input: torch.Tensor, *, decimals: int = 0) -> torch.Tensor:
    return torch.round(input, decimals=decimals)


def _lower(b: Builder, call: LowerCall) -> Any:
    decimals = call.attrs["decimals"]
    if decimals == 0:
        return b.add("Round", [call.operands[0]])
    return b.add("RoundDecimals", [call.operands[0]], {"decimals": decimals}, domain="qtune")


_SPELLINGS = Spellings(
    functions=(torch.round, torch.special.round),
    methods=("round", "round_"),
    bind=_bind,
)
_DOC = "nearest whole number (or multiple of 10 ** -decimals), half to even"
_WHOLE = table_operator("round", _round, FloatForm("Round"), _SPELLINGS, doc=_DOC)
_SPEC = table_operator(
    "round",
    _round,
    FloatForm("RoundDecimals", "qtune"),
    _SPELLINGS,
    defaults={"decimals": 0},
    doc=_DOC,
)

register(replace(_SPEC, lower=_lower, kernels=(*_WHOLE.kernels, *_SPEC.kernels)))
