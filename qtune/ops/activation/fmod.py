"""fmod: what is left of a division by a number, with the dividend's sign; a table."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from qtune.ops.activation.dividing import bind_divisor, refuse_integers
from qtune.ops.activation.table_rule import FloatForm, Spellings, table_operator
from qtune.ops.kernel import Builder, LowerCall
from qtune.ops.registry import register


def _fmod(input: torch.Tensor, *, divisor: Any) -> torch.Tensor:
    return torch.fmod(input, divisor)


def _lower(b: Builder, call: LowerCall) -> Any:
    refuse_integers(call, "fmod")
    attrs = {"divisor": float(call.attrs["divisor"])}
    return b.add("Fmod", [call.operands[0]], attrs, domain="qtune")


register(
    replace(
        table_operator(
            "fmod",
            _fmod,
            FloatForm("Fmod", "qtune"),
            Spellings(
                functions=(torch.fmod,),
                methods=("fmod", "fmod_"),
                bind=bind_divisor("fmod"),
            ),
            defaults={"divisor": 0.75},
            doc="input - divisor * trunc(input / divisor), the divisor a number",
        ),
        lower=_lower,
    )
)
