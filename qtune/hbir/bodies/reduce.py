"""Reductions of codes: exact int64 sums with one requantize, extrema (numerics.md section 3)."""

from __future__ import annotations

from qtune.hbir.bodies.elementwise import ROUND_SHIFT, SATURATE, function
from qtune.hbir.domain import DomainOp

_AXES = """
    axes_t = Constant <value_ints: ints = @axes> ()
"""

_SUM_ATTRS = {"axes": "ints", "keepdims": "int", "lo": "int", "hi": "int", "to": "int"}
_EXTREMUM_ATTRS = {"axes": "ints", "keepdims": "int", "to": "int"}


def _extremum(name: str, op: str) -> str:
    nodes = f"""
    wide = Cast <to = 6> (x)
    reduced = {op} <keepdims: int = @keepdims> (wide, axes_t)
    y = Cast <to: int = @to> (reduced)
"""
    return function(name, ("x",), tuple(_EXTREMUM_ATTRS), _AXES + nodes)


BODIES: dict[str, str] = {
    "QReduceSum": function(
        "QReduceSum",
        ("x", "m", "n"),
        tuple(_SUM_ATTRS),
        _AXES
        + """
    x_i = Cast <to = 7> (x)
    total = ReduceSum <keepdims: int = @keepdims> (x_i, axes_t)
    acc = Mul (total, m)
"""
        + ROUND_SHIFT
        + SATURATE,
    ),
    "QReduceMax": _extremum("QReduceMax", "ReduceMax"),
    "QReduceMin": _extremum("QReduceMin", "ReduceMin"),
    "QArgMax": function(
        "QArgMax",
        ("x",),
        ("axis", "keepdims"),
        """
    wide = Cast <to = 6> (x)
    y = ArgMax <axis: int = @axis, keepdims: int = @keepdims> (wide)
""",
    ),
}

SCHEMAS: dict[str, DomainOp] = {
    op.name: op
    for op in (
        DomainOp(
            "QReduceSum",
            ("x", "m", "n"),
            _SUM_ATTRS,
            "clip((sum(x) * m + half) >> n, lo, hi); mean and sum differ in m and n",
        ),
        DomainOp("QReduceMax", ("x",), _EXTREMUM_ATTRS, "largest code along axes"),
        DomainOp("QReduceMin", ("x",), _EXTREMUM_ATTRS, "smallest code along axes"),
        DomainOp(
            "QArgMax",
            ("x",),
            {"axis": "int", "keepdims": "int"},
            "index (int64) of the largest code along axis, the lowest one in a tie",
        ),
    )
}
