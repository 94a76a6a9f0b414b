"""Norms that a file writes with single operators, as exporters of older opsets do.

``(x - mean) / sqrt(mean((x - mean) ** 2) + eps) * weight + bias``, and ``x / max(norm(x), eps)``:
inside they need the dtypes of a layer norm and of normalize (numerics.md section 3). The nodes stay
what they are.
"""

from __future__ import annotations

import onnx_ir as ir

_BETWEEN = ("Clip", "Max", "Add", "Expand")
"""What bounds a length from below, and gives it the shape of the vectors."""

Norm = tuple[tuple[str, ...], str]
"""Names of the nodes in order, and the one whose result has the configured dtype."""


def written_norms(graph: ir.Graph) -> list[Norm]:
    """The norms of ``graph``, found by the root of ``variance + eps`` and by a vector's length."""
    finders = {"Sqrt": _norm, "ReduceL1": _unit, "ReduceL2": _unit}
    found = (finders[node.op_type](node) for node in graph if node.op_type in finders)
    return [norm for norm in found if norm is not None]


def _unit(length: ir.Node) -> Norm | None:
    """From the length of ``x`` to the division of ``x`` by it; it may be bounded and expanded."""
    nodes = [length]
    while (user := _only_user(nodes[-1])) is not None and user.op_type in _BETWEEN:
        nodes.append(user)
    if user is None or user.op_type != "Div" or user.inputs[0] is not length.inputs[0]:
        return None
    if user.inputs[1] is not nodes[-1].outputs[0]:
        return None
    names = [node.name or "" for node in (*nodes, user)]
    return tuple(names), names[-1]


def _norm(root: ir.Node) -> Norm | None:
    raised = _made_by(root.inputs[0], "Add")
    variance = None if raised is None else _mean_before(raised)
    square = None if variance is None else _made_by(variance.inputs[0], "Mul", "Pow")
    if raised is None or variance is None or square is None or not _is_square(square):
        return None
    centered, inverse = square.inputs[0], _only_user(root)
    if centered is None or inverse is None:
        return None
    before = _centering(centered)
    after = _scaled(inverse, centered)
    if after is None:
        return None
    nodes = [*before, square, variance, raised, root, *after]
    return tuple(node.name or "" for node in nodes), after[-1].name or ""


def _mean_before(raised: ir.Node) -> ir.Node | None:
    """The mean that a number is added to."""
    for value, number in (tuple(raised.inputs), tuple(raised.inputs[::-1])):
        if number is not None and number.const_value is not None and number.const_value.size == 1:
            return _made_by(value, "ReduceMean")
    return None


def _is_square(node: ir.Node) -> bool:
    base, other = node.inputs
    if node.op_type == "Mul":
        return base is other
    return other is not None and other.const_value is not None and _is_two(other.const_value)


def _is_two(tensor: ir.TensorProtocol) -> bool:
    return tensor.size == 1 and float(tensor.numpy().reshape(())) == 2.0


def _centering(centered: ir.Value) -> list[ir.Node]:
    """The mean and the difference that make ``centered``, where they do."""
    difference = _made_by(centered, "Sub")
    mean = None if difference is None else _made_by(difference.inputs[1], "ReduceMean")
    if difference is None or mean is None or mean.inputs[0] is not difference.inputs[0]:
        return []
    return [mean, difference]


def _scaled(inverse: ir.Node, centered: ir.Value) -> list[ir.Node] | None:
    """From the division to the last of weight and bias, as far as they follow."""
    if inverse.op_type == "Div" and inverse.inputs[0] is centered:
        found = [inverse]
    else:
        product = _only_user(inverse) if inverse.op_type == "Reciprocal" else None
        if product is None or product.op_type != "Mul" or centered not in product.inputs:
            return None
        found = [inverse, product]
    for op_type in ("Mul", "Add"):
        user = _only_user(found[-1])
        if user is not None and user.op_type == op_type and _has_constant(user):
            found.append(user)
    return found


def _has_constant(node: ir.Node) -> bool:
    return any(value is not None and value.const_value is not None for value in node.inputs)


def _made_by(value: ir.Value | None, *op_types: str) -> ir.Node | None:
    maker = None if value is None else value.producer()
    if maker is None or maker.domain or maker.op_type not in op_types:
        return None
    return maker


def _only_user(node: ir.Node) -> ir.Node | None:
    value = node.outputs[0]
    users = [user for user, _ in value.uses()]
    return users[0] if len(users) == 1 and not value.is_graph_output() else None
