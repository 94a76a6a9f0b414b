"""Add: the bias of a quantized MatMul joins it, where ONNX has no linear layer of this rank."""

from __future__ import annotations

from typing import Any

from qtune.hbir.builder import OPERATOR_FACTS
from qtune.hbir.domain import DOMAIN
from qtune.hbir.onnx_import.form import OnnxNode, emit, register_rewrite
from qtune.ops.kernel import Builder


def _rewrite(b: Builder, node: OnnxNode) -> Any:
    for index in (0, 1):
        joined = _joined(b, node, index, 1 - index)
        if joined is not None:
            return joined
    return emit(b, node)


def _joined(b: Builder, node: OnnxNode, product: int, bias: int) -> Any:
    value, addend = node.inputs[product], node.constants[bias]
    if value is None or addend is None or not node.alone[product]:
        return None
    maker = value.producer()
    if maker is None:
        return None
    if (maker.domain, maker.op_type) != (DOMAIN, "LinearNoBias"):
        return None
    columns = node.shape(product)[-1]
    if addend.size != columns or addend.shape[-1:] != (columns,):
        return None
    operands = [*maker.inputs, b.constant(addend.reshape(-1), "bias")]
    linear = b.add("Linear", operands, {}, domain=DOMAIN)
    facts = {key: text for key, text in maker.metadata_props.items() if key in OPERATOR_FACTS}
    linear.producer().metadata_props.update(facts)
    return linear


register_rewrite("Add", _rewrite)
