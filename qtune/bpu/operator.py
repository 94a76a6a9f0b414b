"""One operator of a module as a callable of its own: its error on a given input."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import onnx_ir as ir
import torch

from qtune.arith.quantize import quantize
from qtune.bpu.interpreter import Program, op_result, strategy_for
from qtune.bpu.plan import result_info
from qtune.bpu.strategies import plain_codes
from qtune.dtype import quant_dtype
from qtune.errors import ArgumentError, NonFiniteError, RunError
from qtune.hbir.builder import (
    META_BATCH,
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

    def __init__(self, name: str, result: ir.Node, program: Program, open_batch: bool) -> None:
        self.name = name
        self.open_batch = open_batch
        self._program = program
        self._info = result_info(result)
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
        tensors = [self._enter(key, value, inputs[key]) for key, value in self._keys.items()]
        (result,) = self._program.run(tensors).values()
        return op_result(self._info, result)

    def _enter(self, key: str, value: ir.Value, tensor: Any) -> torch.Tensor:
        """Check a tensor and put it on the grid of ``value``."""
        shape, first = _shape(value), 1 if self.open_batch else 0
        got = tuple(tensor.shape) if isinstance(tensor, torch.Tensor) else type(tensor).__name__
        if not isinstance(got, tuple) or len(got) != len(shape) or got[first:] != shape[first:]:
            raise RunError(f"operator {self.name!r}: {key!r} must be a tensor {shape}, got {got}")
        plain: torch.Tensor = tensor.detach().cpu()
        if not is_codes(value) or not plain.is_floating_point():
            return plain
        props = value.metadata_props
        dtype = quant_dtype(props[META_DTYPE])
        try:
            codes = quantize(plain.numpy(), float(props[META_SCALE]), dtype)
        except NonFiniteError as error:
            raise NonFiniteError(f"operator {self.name!r}, input {key!r}: {error}") from None
        return plain_codes(value, codes)


def extract_operator(model: ir.Model, name: str) -> OperatorRunner:
    """The operator ``name`` of ``model``, or the fused group that it is part of."""
    own = _nodes_of(model, name)
    nodes = _with_pieces(model, own)
    inside = {value for node in nodes for value in node.outputs}
    outside: dict[ir.Value, None] = {}
    for node in nodes:
        for value in node.inputs:
            if value is not None and value.const_value is None and value not in inside:
                outside[value] = None
    result = _result_node(name, own)
    strategy = strategy_for(model.metadata_props.get(META_STAGE, ""), "fast")
    program = Program(nodes, list(outside), [result.outputs[0]], strategy)
    is_open = model.metadata_props.get(META_BATCH) == "open"
    return OperatorRunner(name, result, program, is_open)


def _with_pieces(model: ir.Model, nodes: Sequence[ir.Node]) -> list[ir.Node]:
    """``nodes``, and those that cut a piece for them out of an operator's operand.

    An unbind is one node per piece. The operator's name stands for the first piece only, so the
    others can't be fed by name: they are cut again.
    """
    results = {
        (node.metadata_props.get(META_OP), node.op_type)
        for node in model.graph
        if META_RESULT in node.metadata_props
    }
    wanted = set(nodes)
    queue = [(node, False) for node in nodes]
    while queue:
        user, is_piece = queue.pop()
        for value in user.inputs:
            maker = None if value is None else value.producer()
            if maker is None or maker in wanted or META_RESULT in maker.metadata_props:
                continue
            op = maker.metadata_props.get(META_OP)
            same = is_piece and op == user.metadata_props.get(META_OP)
            if same or (op, maker.op_type) in results:
                wanted.add(maker)
                queue.append((maker, True))
    return [node for node in model.graph if node in wanted]


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
