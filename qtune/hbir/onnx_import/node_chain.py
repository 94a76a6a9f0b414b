"""Standard nodes written in the place of one node of another form."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from qtune.errors import OnnxImportError
from qtune.hbir.onnx_import.names import free_name

DOMAIN = "com.microsoft"
"""The domain of onnxruntime's own operators."""

Array = np.ndarray[Any, Any]


class NodeChain:
    """The standard nodes of ``node``, all called after it; the last or main one has its name.

    ``names``: what is taken in the graph; ``known``: the constants of the graph.
    """

    def __init__(
        self, node: onnx.NodeProto, names: set[str], known: Mapping[str, onnx.TensorProto]
    ) -> None:
        self.node, self.names, self.known = node, names, known
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []
        self.attrs: dict[str, Any] = {
            item.name: helper.get_attribute_value(item) for item in node.attribute
        }

    def input(self, index: int) -> str:
        """The tensor of input ``index``; empty where it is left out."""
        return self.node.input[index] if index < len(self.node.input) else ""

    def needed(self, index: int) -> str:
        """The tensor of input ``index``; refused where it is left out."""
        if not self.input(index):
            raise OnnxImportError(f"{self.node.name}: {self.node.op_type} has no input {index}")
        return self.input(index)

    def array(self, index: int) -> Array | None:
        """The constant that input ``index`` is."""
        tensor = self.known.get(self.input(index))
        return None if tensor is None else numpy_helper.to_array(tensor)

    def add(
        self, op_type: str, inputs: list[str], output: str = "", *, main: bool = False, **attrs: Any
    ) -> str:
        """Append a node; ``output``: an output of the source node, else a new tensor.

        ``main``: it has the source's name, though its result is not the source's.
        """
        free = self._free(f"{self.node.name}_{op_type}")
        named = main or (output == self.node.output[0] and not self._has_main())
        name = self.node.name if named else free
        self.nodes.append(helper.make_node(op_type, inputs, [output or free], name=name, **attrs))
        return output or free

    def constant(self, array: Array) -> str:
        """A new constant."""
        name = self._free(f"{self.node.name}_constant")
        self.constants.append(numpy_helper.from_array(array, name))
        return name

    def number(self, value: float) -> str:
        """A float32 constant of one element."""
        return self.constant(np.array(value, dtype=np.float32))

    def plus(self, x: str, index: int) -> str:
        """``x`` and input ``index``, where that is given."""
        return self.add("Add", [x, self.input(index)]) if self.input(index) else x

    def _has_main(self) -> bool:
        return any(node.name == self.node.name for node in self.nodes)

    def _free(self, base: str) -> str:
        name = free_name(base, self.names)
        self.names.add(name)
        return name


Form = Callable[[NodeChain], None]
"""Writes the nodes of one operator."""
