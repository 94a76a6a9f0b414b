"""One operator of a module as a callable of its own: its error on a given input."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import onnx_ir as ir
import torch

from qtune.arith.quantize import quantize
from qtune.arith_fast.capability import guard
from qtune.bpu.interpreter import Program, op_result, strategy_for
from qtune.bpu.plan import result_info
from qtune.dtype import quant_dtype
from qtune.errors import ArgumentError, RunError
from qtune.hbir.builder import (
    META_DTYPE,
    META_GROUP,
    META_OP,
    META_RESULT,
    META_SCALE,
    META_STAGE,
    names_of,
)
from qtune.hbir.result import OpResult
from qtune.hbir.verify import is_codes


class OperatorRunner:
    """A whole fused group, fed with real numbers.

    ``inputs`` maps the name of each producer (an operator, or a graph input; ``name:1`` for its
    second output) to its shape. A call takes a float tensor for each, quantizes it onto the grid
    that the operator expects and returns the operator's :class:`OpResult`.
    """

    def __init__(self, name: str, nodes: Sequence[ir.Node], program: Program) -> None:
        self.name = name
        self._program = program
        self._info = result_info(_result_node(name, nodes))
        self._keys = {producer_key(value): value for value in program.inputs}

    @property
    def inputs(self) -> dict[str, tuple[int, ...]]:
        """Shape of each input by the name of its producer."""
        return {key: _shape(value) for key, value in self._keys.items()}

    def __call__(self, inputs: Mapping[str, torch.Tensor]) -> OpResult:
        """Run on one tensor for each producer."""
        if set(inputs) != set(self._keys):
            raise RunError(
                f"operator {self.name!r} takes the results of {sorted(self._keys)}, got "
                f"{sorted(inputs)}"
            )
        tensors = [_enter(self.name, key, value, inputs[key]) for key, value in self._keys.items()]
        (result,) = self._program.run(tensors).values()
        return op_result(self._info, result)


def extract_operator(model: ir.Model, name: str) -> OperatorRunner:
    """The operator ``name`` of ``model``, or the fused group that it is part of."""
    nodes = _nodes_of(model, name)
    inside = {value for node in nodes for value in node.outputs}
    outside: dict[ir.Value, None] = {}
    for node in nodes:
        for value in node.inputs:
            if value is not None and value.const_value is None and value not in inside:
                outside[value] = None
    result = _result_node(name, nodes).outputs[0]
    strategy = strategy_for(model.metadata_props.get(META_STAGE, ""), "fast")
    program = Program(nodes, list(outside), [result], strategy)
    return OperatorRunner(name, nodes, program)


def _nodes_of(model: ir.Model, name: str) -> list[ir.Node]:
    groups = {node.metadata_props[META_GROUP] for node in model.graph if name in names_of(node)}
    if not groups:
        known = [n.metadata_props[META_OP] for n in model.graph if META_RESULT in n.metadata_props]
        raise ArgumentError(f"no operator {name!r} in this module; it has: {', '.join(known)}")
    return [node for node in model.graph if node.metadata_props.get(META_GROUP) in groups]


def _result_node(name: str, nodes: Sequence[ir.Node]) -> ir.Node:
    for node in reversed(nodes):
        if META_RESULT in node.metadata_props:
            return node
    raise ArgumentError(f"operator {name!r} has no result of its own")


def producer_key(value: ir.Value) -> str:
    """Name under which ``value`` is fed: its operator, or the graph input."""
    node = value.producer()
    if node is None:
        return value.name or ""
    index = node.outputs.index(value)
    op = node.metadata_props.get(META_OP, node.name or "")
    return op if index == 0 else f"{op}:{index}"


def _shape(value: ir.Value) -> tuple[int, ...]:
    return () if value.shape is None else tuple(value.shape.numpy())


def _enter(name: str, key: str, value: ir.Value, tensor: Any) -> torch.Tensor:
    if not isinstance(tensor, torch.Tensor) or tuple(tensor.shape) != _shape(value):
        got = tuple(tensor.shape) if isinstance(tensor, torch.Tensor) else type(tensor).__name__
        raise RunError(f"operator {name!r}: {key!r} must be a tensor {_shape(value)}, got {got}")
    plain = tensor.detach().cpu()
    if not is_codes(value) or not plain.is_floating_point():
        return plain
    props = value.metadata_props
    codes = quantize(plain.numpy(), float(props[META_SCALE]), quant_dtype(props[META_DTYPE]))
    with guard():
        return torch.from_numpy(codes).to(_torch_dtype(value))


def _torch_dtype(value: ir.Value) -> torch.dtype:
    found = getattr(torch, "int8" if value.dtype is None else str(value.dtype.numpy()))
    if not isinstance(found, torch.dtype):
        raise RunError(f"{value.name}: no torch dtype for {value.dtype}")
    return found
