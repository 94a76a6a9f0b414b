"""Type and shape of a value of a module, as the conversion needs them."""

from __future__ import annotations

import onnx_ir as ir

from qtune.errors import ConvertError


def dtype_of(value: ir.Value) -> ir.DataType:
    """The element type; ``ConvertError`` where the module does not say."""
    if value.dtype is None:
        raise ConvertError(f"{value.name}: the value has no dtype; export the model again")
    return value.dtype


def shape_of(value: ir.Value | None) -> tuple[int, ...] | None:
    """The static shape; ``None`` where there is none."""
    if value is None or value.shape is None or not value.shape.is_static():
        return None
    return tuple(value.shape.numpy())
