"""What a quantized region begins and ends with."""

from __future__ import annotations

from qtune.nn.qat.op import QATOp
from qtune.ops.spec import Rule

QUANT, DEQUANT = "quant", "dequant"
_RULES = {Rule.OWN_SCALE: QUANT, Rule.NO_SCALE: DEQUANT}


def stub_kind(op: QATOp) -> str:
    """``quant`` or ``dequant`` for a stub of that kind, ``""`` for every other operator."""
    return _RULES.get(op.spec.rule, "") if op.spec.family == "quant" else ""
