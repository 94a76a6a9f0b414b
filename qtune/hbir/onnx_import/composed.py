"""Operators that become several, in a file that brings grids but none for what is between these."""

from __future__ import annotations

import onnx_ir as ir

from qtune.hbir import hz_calibration
from qtune.hbir.builder import META_REASON
from qtune.hbir.onnx_import.form import is_composed
from qtune.hbir.onnx_import.pairs import QUANTIZERS


def stays_float(node: ir.Node) -> bool:
    """Whether the values that ``node`` reads leave the integers before it.

    The file says so, or it quantizes tensors and has a composed operator between them: each part of
    that would need a grid for its result.
    """
    if META_REASON in node.metadata_props:
        return True
    if node.domain or node.graph is None or not is_composed(node.op_type):
        return False
    return any(other.op_type in (*QUANTIZERS, hz_calibration.OP_TYPE) for other in node.graph)
