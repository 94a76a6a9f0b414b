"""Turns every recorded call that the registry knows into a ``QATOp`` without fake-quantizes.

Afterwards the graph holds ``QATOp`` calls, structural nodes (attributes, items of tuples, sizes)
and the calls that nothing in the registry fits; those carry the reason in ``meta``.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx, nn
from torch.fx.node import map_arg
from torch.overrides import resolve_name

from qtune.capture.branches import BLOCK, CALL, is_aside
from qtune.capture.graph import GraphModel
from qtune.capture.handlers import HOOKED
from qtune.capture.members import find_submodule
from qtune.capture.state import keep_state
from qtune.errors import QtuneError
from qtune.nn.qat import QATOp, qat_class
from qtune.nn.qat.op import TRAINING
from qtune.ops import registry
from qtune.ops.spec import Bound, OpSpec
from qtune.ops.uncovered import no_operator
from qtune.prepare.constants import example_value
from qtune.prepare.functionals import name_functional_calls
from qtune.prepare.naming import Namer, flat

FLOAT_REASON = "float_reason"
"""Key of ``node.meta``: why a call stays float."""

_CALLS = ("call_module", "call_function", "call_method")


@dataclass(frozen=True, slots=True)
class Call:
    """One call in canonical form.

    ``module``: the float module that owns the parameters ``params`` (role -> attribute).
    ``float_class``: the registered class that ``module`` is an instance of.
    """

    spec: OpSpec
    bound: Bound
    name: str
    float_type: str
    module: nn.Module | None = None
    params: Mapping[str, str] = field(default_factory=dict)
    float_class: type | None = None


class Operators:
    """The graph of ``model`` while its calls are replaced. ``training``: the flag at capture.

    ``call_names``: names of calls of functions by their identity and operator, where known.
    """

    def __init__(
        self, model: GraphModel, training: bool, call_names: Mapping[Any, str] | None = None
    ) -> None:
        self.model = model
        self.graph = model.graph
        self.names = Namer(model)
        self.training = training
        self._replaced: dict[str, nn.Module] = {}
        self.call_names = dict(call_names or {})
        self._paths: dict[nn.Module, list[str]] = {}
        for path, module in self.model.named_modules(remove_duplicate=False):
            self._paths.setdefault(module, []).append(path)

    def replace_calls(self) -> None:
        """Replace every call of a known operator; name and mark the others."""
        name_functional_calls(self.model, self.graph)
        for node in sorted(self.graph.nodes, key=is_aside):  # the names of what counts come first
            if node.op in _CALLS and has_tensor_result(node) and not is_structural(node):
                self._replace(node)
        remove_unused_attributes(self.graph)

    def insert(self, call: Call, meta: Mapping[str, Any]) -> fx.Node:
        """Insert a call of the operator at the graph's insertion point and return its node.

        A name that is in use already means the same operator: a module called several times.
        """
        attrs = dict(call.bound.attrs)
        for key in call.spec.weight_attrs:
            attrs[key] = map_arg(attrs[key], lambda node: example_value(self.model, node))
        dynamic = {k: v for k, v in attrs.items() if holds_nodes(v)}
        static = {k: v for k, v in attrs.items() if k not in dynamic}
        op = self._existing(call)
        if op is None:
            op = self._create(call, static)
        elif op.attrs != static:
            dynamic = {**static, **dynamic}
        node = self.graph.call_module(call.name, tuple(call.bound.tensors), dynamic)
        node.meta.update(meta)
        node.meta.update(op=call.spec.name, name=call.name)
        return node

    def op(self, node: fx.Node) -> QATOp | None:
        """The operator that a node calls."""
        if node.op != "call_module":
            return None
        module = self.model.get_submodule(str(node.target))
        return module if isinstance(module, QATOp) else None

    def erase(self, node: fx.Node) -> None:
        """Erase an unused node, and the operator that no other node calls."""
        self.graph.erase_node(node)
        target = str(node.target)
        if node.op != "call_module" or self.graph.find_nodes(op="call_module", target=target):
            return
        module = self.model.get_submodule(target)
        if next(module.parameters(), None) is None and next(module.buffers(), None) is None:
            for path in self._paths.pop(module, [target]):
                owner, _, name = path.rpartition(".")
                delattr(self.model.get_submodule(owner), name)

    def owned(self, path: str, spec: OpSpec, bound: Bound) -> Call | None:
        """The call of the layer at ``path`` if ``bound`` computes just that with its parameters:
        its weight, or for operators without one (norms) the first that it has.

        It takes the layer's name and parameters.
        """
        if not path or not _is_attribute_of(_parameter(spec, bound), path):
            return None
        owner = self.float_module(path)
        found = registry.find_module(type(owner))
        if found is None or found[0] is not spec:
            return None
        own = {
            role: str(value.target).rpartition(".")[2]
            for role, value in zip(spec.roles, bound.tensors, strict=False)
            if _is_attribute_of(value, path)
        }
        tensors = [None if _is_attribute_of(v, path) else v for v in bound.tensors]
        attrs = dict(bound.attrs)
        if attrs.get(TRAINING) is owner.training:
            attrs[TRAINING] = None
        shared = Bound(tuple(tensors), attrs)
        return Call(spec, shared, path, _qualified(type(owner)), owner, own, found[1].cls)

    def install(self, name: str, module: nn.Module, replaced: nn.Module | None = None) -> None:
        """Put ``module`` at ``name``, and wherever else ``replaced`` is found."""
        paths = self._paths.pop(replaced, []) if replaced is not None else []
        paths = list(dict.fromkeys([name, *paths]))
        for path in paths:
            self.model.set_submodule(path, module)
        self._paths[module] = paths

    @contextmanager
    def unchanged(self, op: QATOp) -> Iterator[None]:
        """Put ``op`` back into its place when the block ends, with all that was known."""
        paths, replaced = dict(self._paths), dict(self._replaced)
        try:
            yield
        finally:
            self._paths, self._replaced = paths, replaced
            self.install(op.name, op, op)

    def _replace(self, node: fx.Node) -> None:
        call = self._canonical(node)
        if isinstance(call, str):
            self._keep_float(node, call)
            return
        with self.graph.inserting_before(node):
            new = self.insert(call, node.meta)
        node.replace_all_uses_with(new)
        self.graph.erase_node(node)

    def _keep_float(self, node: fx.Node, reason: str) -> None:
        op = _spelling(self.model, node)
        name = node.meta.get("name")
        if name is None:
            is_module = node.op == "call_module"
            name = str(node.target) if is_module else self._generated(node, op.rpartition(".")[2])
        node.meta.update({"op": op, "name": name, FLOAT_REASON: reason})

    def _canonical(self, node: fx.Node) -> Call | str:
        """The call, or the reason why there is none."""
        try:
            if node.op == "call_module":
                return self._module_call(node)
            return self._function_call(node)
        except (NotImplementedError, QtuneError, TypeError) as error:
            return str(error)

    def _module_call(self, node: fx.Node) -> Call | str:
        name = str(node.target)
        module = self.float_module(name)
        found = registry.find_module(type(module))
        if found is None:
            return f"no operator of the registry fits {_qualified(type(module))}"
        spec, target = found
        params = target.filled(module, spec.roles)
        reason = _hook_at_work(node, module, params.values())
        if reason is not None:
            return reason
        bound = target.bind(module, *node.args, **node.kwargs)
        kind = _qualified(type(module))
        return Call(spec, bound, name, kind, module, params, target.cls)

    def float_module(self, name: str) -> nn.Module:
        """The float module at ``name``, also after an operator took its place."""
        return self._replaced.get(name) or self.model.get_submodule(name)

    def _function_call(self, node: fx.Node) -> Call | str:
        if node.target is keep_state:
            return (
                "forward changes a parameter or buffer in place, and the BPU keeps no state from "
                "run to run; pass it in and out of forward"
            )
        spelling = _spelling(self.model, node)
        if node.op == "call_method":
            found: Any = registry.find_method(str(node.target))
        else:
            found = registry.find_function(node.target)
        if found is None:
            return no_operator(spelling)
        spec, target = found
        bound = target.bind(*node.args, **node.kwargs)
        owned = self.owned(node.meta.get("scope", ""), spec, bound)
        if owned is not None:
            return owned
        return Call(spec, bound, self._function_name(node, spec), spelling)

    def _function_name(self, node: fx.Node, spec: OpSpec) -> str:
        """The name of the ``FloatFunctional`` that made the call, else a generated one."""
        path = node.meta.get("name")
        if path is None:
            return self._generated(node, spec.name)
        other = self.model.get_submodule(path)
        is_other = isinstance(other, QATOp) and other.op != spec.name
        return f"{path}.{spec.name}" if is_other else str(path)

    def _generated(self, node: fx.Node, op: str) -> str:
        """A new name, or that of the same call in another branch or run of a dynamic block."""
        block = flat(node.meta[BLOCK][0]) + "_" if BLOCK in node.meta else ""
        call = node.meta.get(CALL)
        name = None if call is None else self.call_names.get((call, op))
        if name is None:
            name = self.names.generated(f"{block}{op}")
            if call is not None:
                self.call_names[call, op] = name
        return name

    def _existing(self, call: Call) -> QATOp | None:
        module = find_submodule(self.model, call.name)
        return module if isinstance(module, QATOp) else None

    def _create(self, call: Call, attrs: Mapping[str, Any]) -> QATOp:
        cls = qat_class(call.spec, call.float_class)
        op = cls(call.spec.name, call.name, attrs, float_type=call.float_type)
        if call.module is not None:
            op.adopt(call.module, call.params)
        op.train(self.training if call.module is None else call.module.training)
        if call.module is None and attrs.get(TRAINING) is op.training:
            op.attrs[TRAINING] = None
        self.install(call.name, op, call.module)
        if call.module is not None:
            self._replaced[call.name] = call.module
        return op


def _hook_at_work(node: fx.Node, module: nn.Module, params: Iterable[str]) -> str | None:
    """Why a layer computes something else than its class does, if a hook makes it so."""
    if node.meta.get(HOOKED):
        return "a forward hook of it changes its input or result; do that in the caller's forward"
    computed = [name for name in params if isinstance(vars(module).get(name), torch.Tensor)]
    if computed:
        return (
            f"its {computed[0]} is no parameter but set by a hook (torch.nn.utils.weight_norm?); "
            "use torch.nn.utils.parametrizations or register a parameter"
        )
    return None


def has_tensor_result(node: fx.Node) -> bool:
    """Whether the node makes a tensor or a tuple of tensors, not a size or a number."""
    dtype = node.meta.get("dtype")
    if isinstance(dtype, (tuple, list)):
        return any(isinstance(item, torch.dtype) for item in dtype)
    return isinstance(dtype, torch.dtype)


def has_float_result(node: fx.Node) -> bool:
    """Whether the node makes a floating-point tensor, or a tuple with one."""
    dtype = node.meta.get("dtype")
    items: Sequence[Any] = dtype if isinstance(dtype, (tuple, list)) else (dtype,)
    return any(isinstance(item, torch.dtype) and item.is_floating_point for item in items)


def is_structural(node: fx.Node) -> bool:
    """Whether the node takes one item of a tuple of results."""
    if node.target is not operator.getitem or not isinstance(node.args[0], fx.Node):
        return False
    return not isinstance(node.args[0].meta.get("dtype"), torch.dtype)


def holds_nodes(value: Any) -> bool:
    """Whether an argument holds fx nodes (sizes computed while the model runs)."""
    found: list[fx.Node] = []
    map_arg(value, found.append)
    return bool(found)


def remove_unused_attributes(graph: fx.Graph) -> None:
    """Erase ``get_attr`` nodes that nothing uses."""
    for node in list(graph.nodes):
        if node.op == "get_attr" and not node.users:
            graph.erase_node(node)


def _parameter(spec: OpSpec, bound: Bound) -> Any:
    if spec.weight_role is not None:
        return bound.tensors[spec.roles.index(spec.weight_role)]
    values = (v for v in bound.tensors if isinstance(v, fx.Node) and v.op == "get_attr")
    return next(values, None)


def _is_attribute_of(value: Any, path: str) -> bool:
    is_attribute = isinstance(value, fx.Node) and value.op == "get_attr"
    return is_attribute and str(value.target).rpartition(".")[0] == path


def _qualified(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"


def _spelling(model: nn.Module, node: fx.Node) -> str:
    """How the user wrote the call: ``torch.nn.functional.relu``, ``torch.Tensor.view``."""
    if node.op == "call_module":
        return _qualified(type(model.get_submodule(str(node.target))))
    if node.op == "call_method":
        return f"torch.Tensor.{node.target}"
    known = resolve_name(node.target)
    module = getattr(node.target, "__module__", None)
    return known or f"{module}.{getattr(node.target, '__name__', node.target)}"
