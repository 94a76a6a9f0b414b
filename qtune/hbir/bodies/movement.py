"""Function bodies of the movement operators that standard ONNX lacks."""

from __future__ import annotations

from qtune.hbir.domain import DomainOp

SCHEMAS: dict[str, DomainOp] = {
    "Pad16": DomainOp(
        "Pad16",
        ("x", "pads", "value"),
        {"mode": "string"},
        "ONNX Pad of int16 codes; value: int16 scalar, used by the mode constant",
    ),
    "AsType": DomainOp("AsType", ("x",), {"to": "int"}, "x as the ONNX element type to"),
    "QTrilu": DomainOp(
        "QTrilu",
        ("x",),
        {"upper": "int", "k": "int", "to": "int"},
        "codes of one triangle of each matrix, the rest 0; upper: 1 for the upper one, k: diagonal",
    ),
    "SetSlice": DomainOp(
        "SetSlice",
        ("x", "value", "starts", "ends", "axes", "steps"),
        {},
        "x with the region that ONNX Slice would take replaced by value (broadcast to it)",
    ),
}

BODIES: dict[str, str] = {
    "QTrilu": """
<opset_import: ["" : 21], domain: "qtune">
QTrilu <upper, k, to> (x) => (y) {
    wide = Cast <to: int = 7> (x)
    diagonal = Constant <value_int: int = @k> ()
    kept = Trilu <upper: int = @upper> (wide, diagonal)
    y = Cast <to: int = @to> (kept)
}
""",
    "AsType": """
<opset_import: ["" : 21], domain: "qtune">
AsType <to> (x) => (y) {
    y = Cast <to: int = @to> (x)
}
""",
    "Pad16": """
<opset_import: ["" : 21], domain: "qtune">
Pad16 <mode> (x, pads, value) => (y) {
    wide = Cast <to: int = 6> (x)
    border = Cast <to: int = 6> (value)
    padded = Pad <mode: string = @mode> (wide, pads, border)
    y = Cast <to: int = 5> (padded)
}
""",
    # Every element gets its number; the numbers that the slice takes say where value goes.
    "SetSlice": """
<opset_import: ["" : 21], domain: "qtune">
SetSlice (x, value, starts, ends, axes, steps) => (y) {
    shape = Shape (x)
    zero = Constant <value_int: int = 0> ()
    one = Constant <value_int: int = 1> ()
    flat = Constant <value_ints: ints = [-1]> ()
    count = Size (x)
    numbers = Range (zero, count, one)
    places = Reshape (numbers, shape)
    region = Slice (places, starts, ends, axes, steps)
    region_shape = Shape (region)
    filled = Expand (value, region_shape)
    flat_x = Reshape (x, flat)
    flat_region = Reshape (region, flat)
    flat_filled = Reshape (filled, flat)
    replaced = ScatterElements <axis: int = 0> (flat_x, flat_region, flat_filled)
    y = Reshape (replaced, shape)
}
""",
}
