"""Which operators of a folded graph have a form in HBIR."""

from __future__ import annotations

import onnx_ir as ir

from qtune.errors import OnnxImportError
from qtune.hbir import hz_calibration
from qtune.hbir.onnx_import.branches import CONTROL, refusal
from qtune.hbir.onnx_import.form import rewrites
from qtune.hbir.onnx_import.pairs import QUANTIZERS
from qtune.ops.registry import kernel


def no_form(node: ir.Node, name: str) -> str | None:
    """Why the operator of ``node``, called ``name``, has no form; ``None`` where it has one."""
    if node.op_type == hz_calibration.OP_TYPE:
        return None
    if node.domain not in ("", "ai.onnx"):
        return f"{name}: {node.domain}::{node.op_type} has no form here"
    if node.op_type in CONTROL:
        return refusal(node.op_type, name)
    known = node.op_type in QUANTIZERS or node.op_type in rewrites()
    if known or kernel("", node.op_type) is not None:
        return None
    return f"{name}: {node.op_type} has no form here"


def refuse_unsupported(model: ir.Model) -> None:
    """Raise one ``OnnxImportError`` with a line for each node whose operator has no form."""
    lines = [line for node in model.graph if (line := no_form(node, node.name or ""))]
    if lines:
        text = "".join(f"\n  - {line}" for line in lines)
        raise OnnxImportError(f"{len(lines)} node(s) can't be imported:{text}")
