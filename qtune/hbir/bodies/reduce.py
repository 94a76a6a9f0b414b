"""Reductions of codes: exact int64 sums with one requantize, extrema (numerics.md section 3)."""

from __future__ import annotations

from qtune.arith.requantize import TIE_BITS
from qtune.hbir.bodies.elementwise import HEADER, ROUND_SHIFT, SATURATE, function
from qtune.hbir.domain import DomainOp

_AXES = """
    axes_t = Constant <value_ints: ints = @axes> ()
"""

_SUM_ATTRS = {"axes": "ints", "keepdims": "int", "lo": "int", "hi": "int", "to": "int"}
_CUMSUM_ATTRS = {"axis": "int", "lo": "int", "hi": "int", "to": "int"}
_EXTREMUM_ATTRS = {"axes": "ints", "keepdims": "int", "to": "int"}


def _extremum(name: str, op: str) -> str:
    nodes = f"""
    wide = Cast <to = 6> (x)
    reduced = {op} <keepdims: int = @keepdims> (wide, axes_t)
    y = Cast <to: int = @to> (reduced)
"""
    return function(name, ("x",), tuple(_EXTREMUM_ATTRS), _AXES + nodes)


def _arg_extremum(name: str, op: str) -> str:
    nodes = f"""
    wide = Cast <to = 6> (x)
    y = {op} <axis: int = @axis, keepdims: int = @keepdims> (wide)
"""
    return function(name, ("x",), ("axis", "keepdims"), nodes)


def _truth(name: str, op: str) -> str:
    nodes = f"""
    wide = Cast <to = 6> (x)
    reduced = {op} <keepdims: int = @keepdims> (wide, axes_t)
    y = Cast <to = 9> (reduced)
"""
    return function(name, ("x",), ("axes", "keepdims"), _AXES + nodes)


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
    "QReduceSumUp": function(
        "QReduceSumUp",
        ("x", "m", "n"),
        tuple(_SUM_ATTRS),
        _AXES
        + """
    x_i = Cast <to = 7> (x)
    total = ReduceSum <keepdims: int = @keepdims> (x_i, axes_t)
    parts = Constant <value_int: int = 64> ()
    unit = Constant <value_int: int = 1> ()
    parted = Mul (total, parts)
    raised = Add (parted, unit)
    acc = Mul (raised, m)
""".replace("64", str(1 << TIE_BITS))
        + ROUND_SHIFT
        + SATURATE,
    ),
    "QReduceMax": _extremum("QReduceMax", "ReduceMax"),
    "QReduceMin": _extremum("QReduceMin", "ReduceMin"),
    "QArgMax": _arg_extremum("QArgMax", "ArgMax"),
    "QArgMin": _arg_extremum("QArgMin", "ArgMin"),
    "QCumSum": function(
        "QCumSum",
        ("x", "m", "n"),
        tuple(_CUMSUM_ATTRS),
        """
    axis_t = Constant <value_int: int = @axis> ()
    x_i = Cast <to = 7> (x)
    total = CumSum (x_i, axis_t)
    acc = Mul (total, m)
"""
        + ROUND_SHIFT
        + SATURATE,
    ),
    "QTopK": f"""{HEADER}
QTopK <axis, k, largest, to> (x) => (values, indices)
{{
    wide = Cast <to = 7> (x)
    k_t = Constant <value_ints: ints = @k> ()
    chosen, indices = TopK <axis: int = @axis, largest: int = @largest> (wide, k_t)
    values = Cast <to: int = @to> (chosen)
}}""",
    "AnyTrue": _truth("AnyTrue", "ReduceMax"),
    "AllTrue": _truth("AllTrue", "ReduceMin"),
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
        DomainOp(
            "QReduceSumUp",
            ("x", "m", "n"),
            _SUM_ATTRS,
            "QReduceSum of 64 * sum(x) + 1: its ties go up whichever way m was rounded",
        ),
        DomainOp("QReduceMax", ("x",), _EXTREMUM_ATTRS, "largest code along axes"),
        DomainOp("QReduceMin", ("x",), _EXTREMUM_ATTRS, "smallest code along axes"),
        DomainOp(
            "QArgMax",
            ("x",),
            {"axis": "int", "keepdims": "int"},
            "index (int64) of the largest code along axis, the lowest one in a tie",
        ),
        DomainOp(
            "QArgMin",
            ("x",),
            {"axis": "int", "keepdims": "int"},
            "index (int64) of the smallest code along axis, the lowest one in a tie",
        ),
        DomainOp(
            "QCumSum",
            ("x", "m", "n"),
            _CUMSUM_ATTRS,
            "clip((running sum of x along axis * m + half) >> n, lo, hi)",
        ),
        DomainOp(
            "QTopK",
            ("x",),
            {"axis": "int", "k": "ints", "largest": "int", "to": "int"},
            "the k largest or smallest codes along axis in order, and their indices (int64), the "
            "lowest first in a tie",
            ("values", "indices"),
        ),
        DomainOp(
            "AnyTrue",
            ("x",),
            {"axes": "ints", "keepdims": "int"},
            "whether any element of the mask is true along axes",
        ),
        DomainOp(
            "AllTrue",
            ("x",),
            {"axes": "ints", "keepdims": "int"},
            "whether every element of the mask is true along axes",
        ),
    )
}
