"""Which operators of a folded graph have a form in HBIR."""

from __future__ import annotations

import onnx_ir as ir

from qtune.errors import OnnxImportError
from qtune.hbir import hz_calibration
from qtune.hbir.onnx_import.branches import is_control, refusal
from qtune.hbir.onnx_import.contrib import UNOPTIMIZED
from qtune.hbir.onnx_import.evaluate import SIZES
from qtune.hbir.onnx_import.form import rewrites
from qtune.hbir.onnx_import.node_chain import DOMAIN
from qtune.hbir.onnx_import.pairs import QUANTIZERS
from qtune.ops.registry import kernel

_SIZED_BY_DATA = ("Compress", "NonMaxSuppression", "NonZero", "Unique")


def no_form(node: ir.Node, name: str) -> str | None:
    """Why the operator of ``node``, called ``name``, has no form; ``None`` where it has one."""
    if node.op_type == hz_calibration.OP_TYPE:
        return None
    if node.domain not in ("", "ai.onnx"):
        hint = f". {UNOPTIMIZED}" if node.domain == DOMAIN else ""
        return f"{name}: {node.domain}::{node.op_type} has no form here{hint}"
    if is_control(node):
        return refusal(node, name)
    if node.op_type in SIZES:
        return (
            f"{name}: {node.op_type}: a size of what it looks at is open. Fix all sizes of the "
            "inputs, the first ones too: input_dict of build_model and OnnxStages, input_shapes of "
            "import_onnx, --input-shape of the command"
        )
    known = node.op_type in QUANTIZERS or node.op_type in rewrites()
    if known or kernel("", node.op_type) is not None:
        return None
    if node.op_type in _SIZED_BY_DATA:
        return (
            f"{name}: {node.op_type} has no form here: data decide how large its result is. Cut "
            "the model before it (build_model: output_nodes; onnx.utils.extract_model) and compute "
            "it behind the model"
        )
    return f"{name}: {node.op_type} has no form here"


def refuse_unsupported(model: ir.Model) -> None:
    """Raise one ``OnnxImportError`` with a line for each node whose operator has no form."""
    lines = [line for node in model.graph if (line := no_form(node, node.name or ""))]
    if lines:
        text = "".join(f"\n  - {line}" for line in lines)
        raise OnnxImportError(f"{len(lines)} node(s) can't be imported:{text}")
