"""How nodes run: on float kernels, on fast integer kernels, or on the NumPy reference."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx_ir as ir
import torch

from qtune.arith_fast.held import held_from_plain, plain_from_held
from qtune.errors import RunError
from qtune.hbir.attributes import node_attributes
from qtune.hbir.builder import META_RANGE
from qtune.hbir.verify import describe_node, is_codes, is_integer_node
from qtune.ops.kernel import HbirKernel, KernelNode
from qtune.ops.registry import kernel

Array = np.ndarray[Any, Any]
Call = tuple[Callable[..., Any], tuple[ir.Value, ...]]


def owner_of(node: ir.Node) -> HbirKernel:
    """The kernel of ``node``; ``RunError`` where the registry has none."""
    found = kernel(node.domain, node.op_type)
    if found is None:
        raise RunError(
            f"{describe_node(node)}: no kernel for {node.domain or 'onnx'}::{node.op_type}. Was "
            "the file made by another version? Export the model again"
        )
    return found


def _missing(node: ir.Node, kind: str) -> RunError:
    return RunError(
        f"{describe_node(node)}: {node.op_type} has no {kind} kernel; it can't run in this module"
    )


def array_of(value: ir.Value) -> Array:
    """The content of an initializer, safe to keep."""
    if value.const_value is None:
        raise RunError(f"{value.name}: expected an initializer with content")
    return np.array(value.const_value.numpy(), copy=True)


def tensor_of(value: ir.Value) -> torch.Tensor:
    """The content of an initializer as a torch tensor."""
    return torch.from_numpy(array_of(value))


def _taken(node: ir.Node) -> tuple[ir.Value, ...]:
    return tuple(v for v in node.inputs if v is not None and v.const_value is None)


class FloatStrategy:
    """torch's own kernels on plain tensors: qat modules, and what stays float after convert."""

    def callable_for(self, node: ir.Node) -> Call:
        """``run_float`` with attributes and initializers bound."""
        run = owner_of(node).run_float
        if run is None:
            raise _missing(node, "float")
        attrs = node_attributes(node)
        bound = [None if v is None or v.const_value is None else tensor_of(v) for v in node.inputs]
        places = [i for i, v in enumerate(node.inputs) if v is not None and v.const_value is None]

        def call(*tensors: torch.Tensor) -> Any:
            arguments = list(bound)
            for place, tensor in zip(places, tensors, strict=True):
                arguments[place] = tensor
            return run(attrs, *arguments)

        return call, _taken(node)

    def constant(self, value: ir.Value) -> torch.Tensor:
        """A torch tensor."""
        return tensor_of(value)

    def enter(self, value: ir.Value, tensor: torch.Tensor) -> torch.Tensor:
        """Slot form of a plain tensor."""
        return tensor

    def leave(self, value: ir.Value, slot: torch.Tensor) -> torch.Tensor:
        """Plain tensor of a slot."""
        return slot


class FastStrategy:
    """Fast kernels on held codes; what is float between borders runs as in ``FloatStrategy``."""

    def __init__(self) -> None:
        self._float = FloatStrategy()

    def callable_for(self, node: ir.Node) -> Call:
        """The fast kernel, prepared with everything constant."""
        if not is_integer_node(node):
            return self._on_plain_memory(node)
        make = owner_of(node).fast
        if make is None:
            raise _missing(node, "fast")
        return make(kernel_node(node)), _taken(node)

    def _on_plain_memory(self, node: ir.Node) -> Call:
        """The float kernel on contiguous tensors: float sums depend on the memory format."""
        run, takes = self._float.callable_for(node)

        def call(*tensors: torch.Tensor) -> Any:
            return run(*(tensor.contiguous() for tensor in tensors))

        return call, takes

    def constant(self, value: ir.Value) -> Any:
        """Held codes, or a torch tensor."""
        return self.enter(value, tensor_of(value))

    def enter(self, value: ir.Value, tensor: torch.Tensor) -> torch.Tensor:
        """Hold plain codes."""
        if not is_codes(value):
            return tensor
        return held_from_plain(tensor)

    def leave(self, value: ir.Value, slot: torch.Tensor) -> torch.Tensor:
        """Plain codes of held ones."""
        return plain_from_held(slot) if is_codes(value) else slot


class ReferenceStrategy:
    """The NumPy oracle: int64 codes, float nodes through torch."""

    def __init__(self) -> None:
        self._float = FloatStrategy()

    def callable_for(self, node: ir.Node) -> Call:
        """The reference kernel on NumPy arrays."""
        if not is_integer_node(node):
            return self._on_arrays(node)
        run = owner_of(node).reference
        if run is None:
            raise _missing(node, "reference")
        attrs = node_attributes(node)
        inputs = tuple(node.inputs)
        bound = [
            None if v is None or v.const_value is None else _widen(array_of(v)) for v in inputs
        ]
        places = [i for i, v in enumerate(inputs) if v is not None and v.const_value is None]

        def call(*arrays: Array) -> Any:
            arguments: list[Any] = list(bound)
            for place, array in zip(places, arrays, strict=True):
                arguments[place] = array
            return run(attrs, *arguments)

        return call, _taken(node)

    def _on_arrays(self, node: ir.Node) -> Call:
        run, takes = self._float.callable_for(node)

        def call(*arrays: Array) -> Any:
            result = run(*(torch.from_numpy(np.asarray(array, order="C")) for array in arrays))
            many = result if isinstance(result, (tuple, list)) else (result,)
            return tuple(tensor.numpy() for tensor in many)

        return call, takes

    def constant(self, value: ir.Value) -> Array:
        """A NumPy array, integers as int64."""
        return _widen(array_of(value))

    def enter(self, value: ir.Value, tensor: torch.Tensor) -> Array:
        """A NumPy array, codes as int64."""
        array: Array = tensor.numpy()
        return array.astype(np.int64) if is_codes(value) else array

    def leave(self, value: ir.Value, slot: Array) -> torch.Tensor:
        """Plain tensor of an array."""
        if is_codes(value):
            return plain_codes(value, slot)
        return torch.from_numpy(np.asarray(slot, order="C"))


def _widen(array: Array) -> Array:
    return array.astype(np.int64) if array.dtype.kind in "iu" else array


def plain_codes(value: ir.Value, codes: Array) -> torch.Tensor:
    """Codes in the element type of ``value``."""
    if value.dtype is None:
        raise RunError(f"{value.name}: the value has no dtype")
    return torch.from_numpy(np.asarray(codes, order="C").astype(value.dtype.numpy()))


def kernel_node(node: ir.Node) -> KernelNode:
    """What a fast kernel may know before it runs."""
    return KernelNode(
        node.op_type,
        node_attributes(node),
        {
            i: array_of(v)
            for i, v in enumerate(node.inputs)
            if v is not None and v.const_value is not None
        },
        tuple(None if v is None else _element(v) for v in node.inputs),
        tuple(_element(v) for v in node.outputs),
        {
            i: _code_range(v)
            for i, v in enumerate(node.inputs)
            if v is not None and META_RANGE in v.metadata_props
        },
    )


def _element(value: ir.Value) -> str:
    if value.dtype is None:
        raise RunError(f"{value.name}: the value has no dtype; export the model again")
    return str(value.dtype.numpy())


def _code_range(value: ir.Value) -> tuple[int, int]:
    low, high = value.metadata_props[META_RANGE].split(",")
    return int(low), int(high)
