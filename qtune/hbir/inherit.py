"""Results that keep the grid of an operand: what their values are marked with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import onnx_ir as ir

from qtune.dtype import float16
from qtune.hbir.builder import META_DTYPE, META_SCALE


def inherit_grid(result: ir.Value, operands: Sequence[Any]) -> None:
    """Mark ``result`` with scale and dtype of the first operand that has a dtype."""
    for operand in operands:
        if isinstance(operand, ir.Value) and META_DTYPE in operand.metadata_props:
            props = operand.metadata_props
            result.metadata_props.update(
                {key: props[key] for key in (META_SCALE, META_DTYPE) if key in props}
            )
            return


def inherit_float16(results: Sequence[ir.Value], operands: Sequence[Any]) -> None:
    """Several results that only move values of float16 hold float16."""
    held = str(float16)
    if any(getattr(o, "metadata_props", {}).get(META_DTYPE) == held for o in operands):
        for value in results:
            if value.dtype is not None and value.dtype.is_floating_point():
                value.metadata_props[META_DTYPE] = held
