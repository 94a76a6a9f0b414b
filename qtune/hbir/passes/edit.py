"""Emits nodes into the graph of a finished module, and puts them where they belong."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from qtune.errors import ArgumentError
from qtune.hbir.argument import Argument, check_alive
from qtune.hbir.builder import (
    META_OP,
    META_STAGE,
    META_TYPE,
    GraphBuilder,
    mark_codes,
    mark_result,
)
from qtune.hbir.domain import DOMAIN, functions_for
from qtune.hbir.naming import unique_name
from qtune.hbir.passes.ports import taken_names
from qtune.hbir.verify import verify

Array = np.ndarray[Any, Any]
MOVES = frozenset({"Transpose", "Identity", "Concat", "Reshape", "Squeeze", "Unsqueeze", "Flatten"})
"""Operators behind which a QuantStub still decides the grid of an input."""


@dataclass(frozen=True, slots=True)
class Grid:
    """The grid onto which a QuantStub puts an input."""

    scale: Array
    qmin: int
    qmax: int


class Edit(GraphBuilder):
    """A builder on the graph of ``model``. New nodes stay at its end until :meth:`place`."""

    def __init__(self, model: ir.Model) -> None:
        super().__init__(model.graph.name or "forward")
        self.model = model
        self.graph = model.graph
        self._taken = taken_names(model)
        self._start = len(self.graph)

    def operator_name(self, name: str) -> str:
        """``name``, numbered where an operator is called so already."""
        known = {node.metadata_props.get(META_OP, "") for node in self.graph}
        return unique_name(name, known)

    def new_input(self, name: str, dtype: ir.DataType, shape: Sequence[int]) -> ir.Value:
        """A value to become a graph input."""
        return ir.Value(
            name=self._unique(name), type=ir.TensorType(dtype), shape=ir.Shape(list(shape))
        )

    def free_name(self, value: ir.Value, aside: str) -> None:
        """Give up a value's name for another one, and call the value ``aside``."""
        self._taken.discard(value.name or "")
        value.name = self._unique(aside)

    def emit(
        self,
        op_type: str,
        inputs: Sequence[ir.Value | None],
        attrs: dict[str, Any],
        result: tuple[ir.DataType | None, Sequence[int]],
        domain: str = "",
    ) -> ir.Value:
        """Append a node with one result of a known element type and shape."""
        value: ir.Value = self.add(op_type, inputs, attrs, domain=domain)
        dtype, shape = result
        value.type = None if dtype is None else ir.TensorType(dtype)
        value.shape = ir.Shape([int(size) for size in shape])
        return value

    def on_grid(self, value: ir.Value, grid: Grid | None) -> ir.Value:
        """``value`` fake-quantized onto ``grid``: the result of the operator being emitted."""
        if grid is not None:
            value = self.fake_quant(value, grid)
        mark_result(value, self.origin.op, self.origin.group)
        return value

    def fake_quant(self, value: ir.Value, grid: Grid) -> ir.Value:
        """Append the FakeQuant onto ``grid``."""
        from qtune.ops.quant.codes import range_dtype

        scale = self.constant(grid.scale, "scale")
        limits = {"qmin": grid.qmin, "qmax": grid.qmax}
        result = self.emit(
            "FakeQuant", [value, scale], {"axis": -1, **limits}, _like(value), domain=DOMAIN
        )
        mark_codes(result, str(range_dtype(limits)), float(grid.scale))
        return result

    def place(self, before: ir.Node | None) -> None:
        """Move the new nodes in front of ``before`` (``None``: they stay at the end)."""
        new = list(self.graph)[self._start :]
        if before is not None and before not in new:
            self.graph.remove(new)
            self.graph.insert_before(before, new)

    def finish(self, metadata: Any = None) -> ir.Model:
        """Drop what nothing uses, renew the function bodies and check the module."""
        self.remove_dead_nodes()
        renew_functions(self.model)
        verify(self.model, self.model.metadata_props.get(META_STAGE, ""))
        return self.model


def _like(value: ir.Value) -> tuple[ir.DataType | None, Sequence[int]]:
    return value.dtype, shape_of(value)


def shape_of(value: ir.Value) -> tuple[int, ...]:
    """The static shape of a value."""
    return () if value.shape is None else tuple(int(size) for size in value.shape.numpy())


def renew_functions(model: ir.Model) -> None:
    """Let the model carry the bodies of exactly the domain operators that it uses."""
    used = {node.op_type for node in model.graph if node.domain == DOMAIN}
    model.functions.clear()
    for proto in functions_for(used):
        function = ir.serde.deserialize_function(proto)
        model.functions[function.identifier()] = function


def first_node(model: ir.Model) -> ir.Node | None:
    """The first node, ``None`` in an empty graph."""
    return next(iter(model.graph), None)


def before_convert(argument: Argument, method: str) -> int:
    """The place of ``argument``; raise where the module is converted already."""
    index = check_alive(argument)
    if argument.function.metadata.get(META_STAGE) != "qat":
        raise ArgumentError(
            f"{method}({argument.name!r}): operators are inserted before convert; call it on the "
            "module that export returned"
        )
    return index


def grid_of(value: ir.Value) -> Grid | None:
    """The grid of the QuantStub that ``value`` reaches through movement; ``None`` without one."""
    found = [grid for stub in _stubs(value) for grid in _scalar_grid(stub)]
    same = {(float(grid.scale), grid.qmin, grid.qmax) for grid in found}
    return found[0] if len(same) == 1 else None


def stubs_take_codes(value: ir.Value) -> None:
    """Say that the QuantStubs behind ``value`` get codes now: the march's rule for them is void."""
    stubs = _stubs(value)
    names = {stub.metadata_props.get(META_OP) for stub in stubs} - {None}
    for node in stubs[0].graph or () if stubs else ():
        if node.metadata_props.get(META_OP) in names:
            node.metadata_props.pop(META_TYPE, None)


def _stubs(value: ir.Value) -> list[ir.Node]:
    found: list[ir.Node] = []
    for use in value.uses():
        node = use.node
        if node.domain == DOMAIN and node.op_type == "FakeQuant":
            found.append(node)
        elif node.op_type in MOVES:
            found.extend(_stubs(node.outputs[0]))
    return found


def _scalar_grid(node: ir.Node) -> list[Grid]:
    scale = node.inputs[1]
    if scale is None or scale.const_value is None or scale.const_value.size != 1:
        return []
    array = np.array(scale.const_value.numpy(), dtype=np.float32).reshape(())
    limits = [int(node.attributes[key].value) for key in ("qmin", "qmax")]
    return [Grid(array, *limits)]
