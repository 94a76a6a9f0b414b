"""How far apart fake-quant and integer model may lie, in steps of the output (numerics.md 3)."""

from __future__ import annotations

from qtune.dtype import QuantDType, qint8, qint16
from qtune.nn.prepared import PreparedModel
from qtune.nn.qat import iter_stubs
from qtune.ops.spec import OpSpec, Rule

BY_RULE = {
    (Rule.INPUT_SCALE, qint8): 0.0,
    (Rule.INPUT_SCALE, qint16): 0.0,
    (Rule.TABLE, qint8): 0.0,
    (Rule.TABLE, qint16): 1.0,
    (Rule.OWN_SCALE, qint8): 1.0,
    (Rule.OWN_SCALE, qint16): 1.0,
}
SPECIAL = {
    "abs": {qint8: 1.0, qint16: 1.0},  # of qmin saturates to qmax
    "neg": {qint8: 1.0, qint16: 1.0},
    "clamp": {qint8: 0.5, qint16: 0.5},  # a bound between two codes is rounded to one
    "relu6": {qint8: 0.5, qint16: 0.5},
    "interpolate": {qint8: 1.0, qint16: 1.0},
    "add": {qint16: 2.0},
    "sub": {qint16: 2.0},
    "sum": {qint16: 2.0},
    "batch_norm": {qint16: 2.0},  # 15 bits of M on 16 bits of code: one step, and the rounding
    "reciprocal": {qint16: 5.0},
    "rsqrt": {qint16: 5.0},
    "log": {qint16: 5.0},
    "sqrt": {qint16: 5.0},
    # Sums of their parts' bars, which are int16 inside; a qint8 result is off by one more tie.
    "softmax": {qint8: 2.0, qint16: 1.0 + 2.0 + 5.0 + 1.0},
    "log_softmax": {qint8: 2.0, qint16: 2.0 + 1.0 + 2.0 + 5.0 + 2.0},
    "div": {qint8: 2.0, qint16: 5.0 + 1.0},
    "pow": {qint8: 1.0, qint16: 5.0},
    "max": {qint8: 1.0, qint16: 1.0},
}
NARROWED = 1.0
"""More where the march takes int8 only: the codes are rounded to int8 once more, ties may part."""


def bar(entry: OpSpec, dtype: QuantDType, prepared: PreparedModel) -> float:
    """Most steps between the two results of ``entry``'s model."""
    base = SPECIAL.get(entry.name, {}).get(dtype)
    if base is None:
        base = BY_RULE[entry.rule, dtype]
    is_narrowed = dtype == qint16 and any(
        kind.startswith("input") and stub.dtype == qint8 for _, kind, stub in iter_stubs(prepared)
    )
    return base + NARROWED if is_narrowed else base
