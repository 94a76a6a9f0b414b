"""Replaces quantized operators that the BPU runs as several others (softmax, division, ...)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import fx
from torch.fx.node import map_arg

from qtune.capture.ambient import AUTOCAST, GRAD
from qtune.dtype import QuantDType
from qtune.errors import PrepareError
from qtune.nn.qat import QATOp
from qtune.nn.qat.composite import Composite
from qtune.ops.registry import spec as registry_spec
from qtune.ops.spec import Bound, OpSpec, Rule
from qtune.quantization.operators import Call, Operators, holds_nodes, is_structural

FORCED_DTYPE = "forced_dtype"
"""Key of ``node.meta``: the dtype that a part keeps whatever the configuration says."""

_INHERITED = ("scope", "source", "kind", AUTOCAST, GRAD)


def decompose_all(ops: Operators, nodes: Sequence[fx.Node]) -> None:
    """Replace every operator among ``nodes`` whose rule is ``DECOMPOSED`` by its parts."""
    for node in nodes:
        op = ops.op(node)
        if op is not None and op.spec.rule is Rule.DECOMPOSED:
            _Parts(ops, node, op).replace()


class _Parts:
    """The ``DecomposeBuilder`` of one call."""

    def __init__(self, ops: Operators, node: fx.Node, op: QATOp) -> None:
        self.ops = ops
        self.node = node
        self.op = op

    def replace(self) -> None:
        node, spec = self.node, self.op.spec
        if spec.decompose is None:
            raise PrepareError(f"{self.op.name}: {spec.name} has no decomposition; it needs one")
        self._make_room()
        with self.ops.graph.inserting_before(node):
            attrs = {**self.op.attrs, **node.kwargs}
            result = spec.decompose(self, Bound(self._operands(), attrs))
        if isinstance(result, tuple):
            _redirect_items(node, result)
        else:
            node.replace_all_uses_with(result)
        self.ops.graph.erase_node(node)

    def call(
        self,
        op_name: str,
        tensors: Sequence[Any],
        attrs: Mapping[str, Any] | None = None,
        *,
        part: str,
        forced_dtype: QuantDType | None = None,
    ) -> Any:
        spec = registry_spec(op_name)
        name = f"{self.op.name}.{part}"
        call = Call(spec, Bound(tuple(tensors), dict(attrs or {})), name, self.op.float_type)
        meta = {key: self.node.meta[key] for key in _INHERITED if key in self.node.meta}
        meta["origin"] = self.op.name
        inherited = self.node.meta.get(FORCED_DTYPE)
        if forced_dtype is not None or inherited is not None:
            meta[FORCED_DTYPE] = forced_dtype or inherited
        new = self.ops.insert(call, {**meta, **_example(spec, tensors, attrs or {})})
        part_op = self.ops.op(new)
        if spec.rule is not Rule.DECOMPOSED or part_op is None:
            return new
        return self._nested(new, part_op)

    def is_tensor(self, value: Any) -> bool:
        return isinstance(value, fx.Node) and isinstance(value.meta.get("dtype"), torch.dtype)

    def shape(self, tensor: Any) -> tuple[int, ...]:
        return tuple(tensor.meta["shape"])

    def dtype(self, tensor: Any) -> Any:
        return tensor.meta["dtype"]

    def _nested(self, node: fx.Node, op: QATOp) -> Any:
        """The result of a part that is decomposed itself."""
        probe = self.ops.graph.call_function(_keep, (node,))
        _Parts(self.ops, node, op).replace()
        result = probe.args[0]
        self.ops.graph.erase_node(probe)
        return result

    def _make_room(self) -> None:
        """Put a container where the operator is; parameters keep their names."""
        if isinstance(self.ops.model.get_submodule(self.op.name), Composite):
            return
        container = Composite(self.op.op, self.op.name, self.op.float_type)
        for name, parameter in self.op.named_parameters(recurse=False, remove_duplicate=False):
            container.register_parameter(name, parameter)
        for name, buffer in self.op.named_buffers(recurse=False, remove_duplicate=False):
            container.register_buffer(name, buffer)
        self.ops.install(self.op.name, container, self.op)

    def _operands(self) -> tuple[Any, ...]:
        """The operands; parameters of the operator as attributes of the model."""
        roles = self.op.roles(len(self.node.args))
        return tuple(
            self._parameter(role) if value is None and role in self.op.params else value
            for role, value in zip(roles, self.node.args, strict=True)
        )

    def _parameter(self, role: str) -> fx.Node | None:
        attribute = self.op.params[role]
        value = getattr(self.op, attribute)
        if value is None:
            return None
        node = self.ops.graph.get_attr(f"{self.op.name}.{attribute}")
        node.meta.update(shape=tuple(value.shape), dtype=value.dtype, scope="")
        return node


def _keep(value: Any) -> Any:
    """Holds the place of a result while its node is replaced."""
    return value


def _redirect_items(node: fx.Node, results: tuple[fx.Node, ...]) -> None:
    """Replace the items of a tuple by the nodes that make them now."""
    for user in list(node.users):
        if not is_structural(user):
            raise PrepareError(f"{node.meta.get('name')}: its tuple of results is used as a whole")
        user.replace_all_uses_with(results[user.args[1]])  # type: ignore[index]
        user.graph.erase_node(user)


def _example(spec: OpSpec, tensors: Sequence[Any], attrs: Mapping[str, Any]) -> dict[str, Any]:
    """Shape and dtype of a part's result, found on tensors without data."""
    if spec.float_kernel is None or holds_nodes(tuple(attrs.values())):
        raise PrepareError(f"{spec.name} can't be a part: its result has no known shape")
    empty = map_arg(tuple(tensors), _meta_tensor)
    result = spec.float_kernel(*empty, **attrs)
    if isinstance(result, tuple):
        return {"shape": [tuple(r.shape) for r in result], "dtype": [r.dtype for r in result]}
    return {"shape": tuple(result.shape), "dtype": result.dtype}


def _meta_tensor(node: fx.Node) -> Any:
    return torch.empty(node.meta["shape"], dtype=node.meta["dtype"], device="meta")
