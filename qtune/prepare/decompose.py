"""Replaces quantized operators that the BPU runs as several others (softmax, division, ...)."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence, Set
from typing import Any

import torch
from torch import fx
from torch.fx.node import map_arg

from qtune.capture.ambient import AUTOCAST, GRAD
from qtune.capture.branches import ASIDE
from qtune.capture.guards import check_comparison, check_length, check_value, is_guard
from qtune.capture.source import call_site
from qtune.dtype import QuantDType
from qtune.errors import PrepareError
from qtune.march import get_march
from qtune.nn.prepared import ORIGIN_CALL
from qtune.nn.qat import QATOp
from qtune.nn.qat.composite import Composite
from qtune.ops.registry import spec as registry_spec
from qtune.ops.spec import Bound, Rule
from qtune.prepare.constants import depends_on_data, example_value
from qtune.prepare.operators import FLOAT_REASON, Call, Operators, holds_nodes, is_structural

FORCED_DTYPE = "forced_dtype"
"""Key of ``node.meta``: the dtype that a part keeps whatever the configuration says."""

BOUNDS = "bounds"
"""Key of ``node.meta``: what the values of a part can't leave."""

ORIGIN = "origin"
"""Key of ``node.meta``: the name of the decomposed operator that a node is a part of."""

_INHERITED = ("scope", "source", "kind", AUTOCAST, GRAD, ASIDE)
_FACTS = (getattr, torch.is_floating_point, "dim", "size")
"""Targets of nodes that read the shape or the dtype of a tensor, not its values."""


def decompose_all(ops: Operators, nodes: Sequence[fx.Node]) -> None:
    """Replace every operator among ``nodes`` whose rule is ``DECOMPOSED`` by its parts.

    So is one that the march refuses as a whole and that has ``steps``.

    All calls of a shared operator become calls of the same parts, also those that are not among
    ``nodes``: on constants, or outside the stubs.
    """
    composed = {op.name for node in nodes if (op := _composed(ops, node)) is not None}
    calls = [(node, ops.op(node)) for node in ops.graph.nodes]
    for node, op in calls:
        if op is not None and op.name in composed and not node._erased:
            _Parts(ops, node, op).replace()


def undecomposable(ops: Operators, nodes: Sequence[fx.Node]) -> dict[str, tuple[str, str]]:
    """Operators that :func:`decompose_all` would raise ``NotImplementedError`` for, and why.

    Name -> (operator, reason). The graph and its operators are left as they were.
    """
    composed = {op.name for node in nodes if (op := _composed(ops, node)) is not None}
    found: dict[str, tuple[str, str]] = {}
    for node in list(ops.graph.nodes):
        op = ops.op(node)
        if op is None or op.name not in composed or op.name in found:
            continue
        try:
            _Parts(ops, node, op).try_out()
        except NotImplementedError as error:
            found[op.name] = (op.op, str(error))
    return found


def _composed(ops: Operators, node: fx.Node) -> QATOp | None:
    """The operator of a call that has to become several."""
    op = ops.op(node)
    if op is None or not (op.spec.rule is Rule.DECOMPOSED or _needs_steps(node, op)):
        return None
    return op


def emit_parts(ops: Operators, node: fx.Node, op: QATOp, attrs: Mapping[str, Any]) -> Any:
    """Put the parts of ``op`` in the place of its call ``node``; they may be there already.

    Returns what replaces the result, as the operator's ``decompose`` does. The operator itself
    need not be in the model; its name is that of the container of the parts.
    """
    if op.spec.decompose is None:
        raise PrepareError(f"{op.name}: {op.op} has no decomposition; it needs one")
    parts = _Parts(ops, node, op)
    with ops.graph.inserting_before(node):
        result = op.spec.decompose(parts, Bound(parts.operands(), attrs))
    ops.graph.erase_node(node)
    return result


class _Parts:
    """The ``DecomposeBuilder`` of one call."""

    def __init__(self, ops: Operators, node: fx.Node, op: QATOp) -> None:
        self.ops = ops
        self.node = node
        self.op = op
        self._made: list[fx.Node] = []

    def _emit(self) -> Any:
        """Put the parts in front of the call; what replaces its result."""
        spec = self.op.spec
        emit = spec.steps.emit if spec.decompose is None and spec.steps else spec.decompose
        if emit is None:
            raise PrepareError(f"{self.op.name}: {spec.name} has no decomposition; it needs one")
        self._make_room()
        with self.ops.graph.inserting_before(self.node):
            return emit(self, Bound(self.operands(), {**self.op.attrs, **self.node.kwargs}))

    def try_out(self) -> None:
        """Emit the parts and take them out again."""
        before = set(self.ops.graph.nodes)
        with self.ops.unchanged(self.op):
            try:
                self._emit()
            finally:
                _erase_all_but(before, self.ops.graph)

    def replace(self) -> None:
        node = self.node
        sources = node.all_input_nodes
        try:
            result = self._emit()
        except NotImplementedError as error:
            where = call_site(node.meta)
            raise NotImplementedError(f"{self.op.name}{where}: {error}") from error
        if isinstance(result, tuple):
            _redirect_items(node, result)
        else:
            node.replace_all_uses_with(result)
        self.ops.graph.erase_node(node)
        self._remove_unused(sources)
        self._take_knobs()

    def call(
        self,
        op_name: str,
        tensors: Sequence[Any],
        attrs: Mapping[str, Any] | None = None,
        *,
        part: str,
        forced_dtype: QuantDType | None = None,
        bounds: tuple[float, float] | None = None,
    ) -> Any:
        spec = registry_spec(op_name)
        name = f"{self.op.name}.{part}"
        bound = Bound(tuple(tensors), dict(attrs or {}))
        call = self.ops.owned(name, spec, bound)
        if call is None:
            call = Call(spec, bound, name, self.op.float_type)
        meta = self._meta()
        inherited = self.node.meta.get(FORCED_DTYPE)
        if forced_dtype is not None or inherited is not None:
            meta[FORCED_DTYPE] = forced_dtype or inherited
        if bounds is not None:
            meta[BOUNDS] = bounds
        new = self.ops.insert(call, {**meta, **self._example(spec.float_kernel, spec.name, bound)})
        self._made.append(new)
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

    def items(self, result: Any) -> tuple[Any, ...]:
        facts = zip(result.meta["shape"], result.meta["dtype"], strict=True)
        return tuple(self._item(result, i, shape, dtype) for i, (shape, dtype) in enumerate(facts))

    def constant(self, value: Any, *, part: str) -> Any:
        owner, name, number = self.ops.model.get_submodule(self.op.name), part, 0
        while (known := getattr(owner, name, None)) is not None and not torch.equal(known, value):
            number += 1
            name = f"{part}_{number}"
        owner.register_buffer(name, value, persistent=False)
        return self._attribute(name, value)

    def is_constant(self, tensor: Any) -> bool:
        return not depends_on_data(tensor)

    def known(self, tensor: Any) -> Any:
        return example_value(self.ops.model, tensor)

    def made_by(self, tensor: Any) -> tuple[str, Bound] | None:
        op = self.ops.op(tensor)
        return None if op is None else (op.op, Bound(tensor.args, {**op.attrs, **tensor.kwargs}))

    def float_call(
        self, function: Callable[..., Any], args: Sequence[Any], *, part: str, reason: str
    ) -> Any:
        node = self.ops.graph.call_function(function, tuple(args))
        name = getattr(function, "__name__", str(function))
        node.meta.update(self._meta())
        node.meta.update(self._example(function, name, Bound(tuple(args))))
        node.meta.update({"op": name, "name": f"{self.op.name}.{part}", FLOAT_REASON: reason})
        self._made.append(node)
        return node

    def require_size(self, tensor: Any, dim: int, why: str) -> int:
        expected = self.shape(tensor)[dim]
        size = self.ops.graph.call_method("size", (tensor, dim))
        size.meta.update(self._meta(), kind="size")
        text = f"{self.op.name}: {why}"
        place = str(self.node.meta.get("source", ""))
        self._guard(check_comparison, ("==", size, expected, True, text, place))
        return expected

    def require(self, check: Callable[..., bool], tensor: Any, why: str) -> None:
        held = self.ops.graph.call_function(check, (tensor,))
        held.meta.update(self._meta(), kind="value")
        place = str(self.node.meta.get("source", ""))
        self._guard(check_value, (held, True, f"{self.op.name}: {why}", place))

    def _guard(self, check: Callable[..., Any], args: tuple[Any, ...]) -> None:
        self.ops.graph.call_function(check, args).meta.update(self._meta(), kind="guard")

    def _meta(self) -> dict[str, Any]:
        meta = {key: self.node.meta[key] for key in _INHERITED if key in self.node.meta}
        first = self.node.meta.get(ORIGIN_CALL, self.node.name)
        return {**meta, ORIGIN: self.op.name, ORIGIN_CALL: first}

    def _item(self, result: fx.Node, index: int, shape: Any, dtype: Any) -> fx.Node:
        item = self.ops.graph.call_function(operator.getitem, (result, index))
        item.meta.update(self._meta(), kind="item", shape=shape, dtype=dtype)
        self._made.append(item)
        return item

    def _nested(self, node: fx.Node, op: QATOp) -> Any:
        """The result of a part that is decomposed itself."""
        probe = self.ops.graph.call_function(_keep, (node,))
        self._made.pop()
        _Parts(self.ops, node, op).replace()
        result = probe.args[0]
        self.ops.graph.erase_node(probe)
        return result

    def _make_room(self) -> None:
        """Put a container where the operator is; parameters and children keep their names."""
        if isinstance(self.ops.model.get_submodule(self.op.name), Composite):
            return
        container = Composite(self.op.op, self.op.name, self.op.float_type)
        for name, parameter in self.op.named_parameters(recurse=False, remove_duplicate=False):
            container.register_parameter(name, parameter)
        for name, buffer in self.op.named_buffers(recurse=False, remove_duplicate=False):
            container.register_buffer(name, buffer)
        for name, child in self.op.named_children():
            container.add_module(name, child)
        container.train(self.op.training)
        self.ops.install(self.op.name, container, self.op)

    def _take_knobs(self) -> None:
        """What the user set on the float module about the tables of its parts."""
        container = self.ops.model.get_submodule(self.op.name)
        if isinstance(container, Composite):
            container.take_knobs(self.ops.float_module(self.op.name))

    def operands(self) -> tuple[Any, ...]:
        """The operands; parameters of the operator as attributes of the model."""
        roles = self.op.roles(len(self.node.args))
        return tuple(
            self._parameter(role) if value is None and role in self.op.params else value
            for role, value in zip(roles, self.node.args, strict=True)
        )

    def _parameter(self, role: str) -> fx.Node | None:
        value = self.op.param(role)
        return None if value is None else self._attribute(self.op.params[role], value)

    def _attribute(self, name: str, value: torch.Tensor) -> fx.Node:
        node = self.ops.graph.get_attr(f"{self.op.name}.{name}")
        node.meta.update(shape=tuple(value.shape), dtype=value.dtype, scope="", kind="attribute")
        self._made.append(node)
        return node

    def _example(self, function: Any, name: str, bound: Bound) -> dict[str, Any]:
        """Shape and dtype of a part's result, found on tensors without data."""
        attrs = map_arg(dict(bound.attrs), self.known)
        if function is None or holds_nodes(tuple(attrs.values())):
            raise PrepareError(f"{name} can't be a part: its result has no known shape")
        with torch.no_grad():
            result = function(*map_arg(bound.tensors, _meta_tensor), **attrs)
        if isinstance(result, tuple):
            return {"shape": [tuple(r.shape) for r in result], "dtype": [r.dtype for r in result]}
        return {"shape": tuple(result.shape), "dtype": result.dtype}

    def _remove_unused(self, sources: Sequence[fx.Node]) -> None:
        """Erase the parts that no result needs, and what only the replaced operator used."""
        for node in reversed(self._made):
            if not node.users and not is_guard(node):
                self.ops.erase(node)
        waiting = list(sources)
        while waiting:
            node = waiting.pop()
            _detach_facts(node)
            if node.op in ("placeholder", "output") or node.users or node._erased:
                continue
            waiting += node.all_input_nodes
            self.ops.erase(node)


def _needs_steps(node: fx.Node, op: QATOp) -> bool:
    """Whether the march refuses the call as a whole, and it can be made in several steps."""
    if op.spec.steps is None or holds_nodes(node.kwargs):
        return False
    attrs = {**op.attrs, **node.kwargs}
    shapes = [tuple(v.meta["shape"]) if isinstance(v, fx.Node) else None for v in node.args]
    rules = [rule for rule in op.spec.march if rule.covers(get_march())]
    output = tuple(node.meta["shape"])
    refused = all(rule.check is not None and rule.check(attrs, shapes, output) for rule in rules)
    return refused and op.spec.steps.applies(attrs, shapes)


def _keep(value: Any) -> Any:
    """Holds the place of a result while its node is replaced."""
    return value


def _detach_facts(node: fx.Node) -> None:
    """Let a mask go that only shape and dtype are still asked of: its source has the same."""
    if node.meta.get("op") != "masked_fill" or not node.users:
        return
    source = node.args[0]
    if not isinstance(source, fx.Node) or source.meta.get("shape") != node.meta.get("shape"):
        return
    if all(user.target in _FACTS for user in node.users):
        node.replace_all_uses_with(source)


def _erase_all_but(kept: Set[fx.Node], graph: fx.Graph) -> None:
    for node in reversed(list(graph.nodes)):
        if node not in kept:
            graph.erase_node(node)


def _redirect_items(node: fx.Node, results: tuple[Any, ...]) -> None:
    """Replace the items of a tuple by the nodes that make them now; tuples may be nested."""
    for user in list(node.users):
        if user.target is check_length:  # of the parts nothing else can come
            user.graph.erase_node(user)
            continue
        if not is_structural(user):
            raise PrepareError(f"{node.meta.get('name')}: its tuple of results is used as a whole")
        result: Any = results[user.args[1]]  # type: ignore[index]
        if isinstance(result, tuple):
            _redirect_items(user, result)
        else:
            user.replace_all_uses_with(result)
        user.graph.erase_node(user)


def _meta_tensor(node: fx.Node) -> Any:
    return torch.empty(node.meta["shape"], dtype=node.meta["dtype"], device="meta")
