"""Bodies of the normalizations that run as one integer operator."""

from __future__ import annotations

from qtune.hbir.bodies.quant import IMPORTS
from qtune.hbir.domain import DomainOp

BODIES: dict[str, str] = {
    "QBatchNorm": f"""{IMPORTS}QBatchNorm <lo, hi, to> (x, m, n, bias) => (y)
{{
  y = qtune.RequantizeWide<lo: int = @lo, hi: int = @hi, to: int = @to>(x, m, bias, n)
}}"""
}

SCHEMAS: dict[str, DomainOp] = {
    "QBatchNorm": DomainOp(
        "QBatchNorm",
        ("x", "m", "n", "bias"),
        {"lo": "int", "hi": "int", "to": "int"},
        "Batch norm alone: (x * m + bias + 2**(n-1)) >> n, clamped; m, n and bias int64, "
        "[C, 1, ...].",
    )
}
