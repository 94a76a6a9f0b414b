"""Which fake-quantize a value of the graph is on the grid of, told without running the model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import fx, nn

from qtune.nn.qat.op import QATOp
from qtune.ops.spec import Rule
from qtune.quantizers.fake_cast import FakeCast
from qtune.quantizers.fake_quantize import FakeQuantize

Quantizers = Mapping[fx.Node, FakeQuantize | None]
Port = FakeQuantize | FakeCast


def value_quantizers(model: nn.Module) -> dict[fx.Node, FakeQuantize | None]:
    """For every node of ``model.graph`` the fake-quantize that its value comes from.

    ``None``: the value is float (inputs, members of a group before the last, high-precision
    results, float16, what follows a DeQuantStub) or no number. Values pass unchanged through
    operators that keep their input's scale and through the items of a tuple.
    """
    return {node: _grid(port) for node, port in value_ports(model).items()}


def value_ports(model: nn.Module) -> dict[fx.Node, Port | None]:
    """As :func:`value_quantizers`, with the FakeCast of values in float16."""
    found: dict[fx.Node, Port | None] = {}
    for node in model.graph.nodes:  # type: ignore[union-attr]
        found[node] = _of_node(model, node, found)
    return found


def operand_quantizer(
    op: QATOp, node: fx.Node, index: int, known: Quantizers
) -> FakeQuantize | None:
    """The fake-quantize of operand ``index`` as the operator computes with it."""
    return _grid(operand_port(op, node, index, known))


def operand_port(
    op: QATOp, node: fx.Node, index: int, known: Mapping[fx.Node, Port | None]
) -> Port | None:
    """As :func:`operand_quantizer`, with the FakeCast of an operand in float16."""
    own = op.input_fake_quants
    if str(index) in own:
        return own[str(index)]
    role = op.roles(len(node.args))[index]
    if role == op.spec.weight_role and op.weight_fake_quant is not None:
        return op.weight_fake_quant
    value = node.args[index]
    return known.get(value) if isinstance(value, fx.Node) else None


def _grid(port: Port | None) -> FakeQuantize | None:
    return port if isinstance(port, FakeQuantize) else None


def _of_node(model: nn.Module, node: fx.Node, known: Mapping[fx.Node, Port | None]) -> Port | None:
    if node.op == "call_module":
        module = model.get_submodule(str(node.target))
        return _of_operator(module, node, known) if isinstance(module, QATOp) else None
    if node.op == "call_function" and _is_item(node):
        return known.get(node.args[0])  # type: ignore[arg-type]
    return None


def _of_operator(op: QATOp, node: fx.Node, known: Mapping[fx.Node, Port | None]) -> Port | None:
    if op.activation_post_process is not None:
        return op.activation_post_process
    if op.spec.rule is not Rule.INPUT_SCALE:
        return None
    operands = (operand_port(op, node, i, known) for i in range(len(node.args)))
    return next((quantizer for quantizer in operands if quantizer is not None), None)


def _is_item(node: fx.Node) -> bool:
    source: Any = node.args[0] if node.args else None
    name = getattr(node.target, "__name__", "")
    return name == "getitem" and isinstance(source, fx.Node)
