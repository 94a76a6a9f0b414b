"""Capture without example inputs: symbolic tracing by torch.fx (PrepareMethod.SYMBOLIC).

No guards and no shapes: control flow on inputs fails in torch.fx, and sizes are proxies.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor, fx, nn

from qtune.capture.graph import GraphModel
from qtune.capture.guards import CaptureReport, ConstantInfo
from qtune.capture.interface import call_arguments, signature_of
from qtune.capture.leaf import hands_on, is_leaf
from qtune.capture.restore import restored
from qtune.capture.source import caller, place_of
from qtune.capture.structure import LEAF, Kind, Spec, flatten, leaf_names
from qtune.errors import ArgumentError, CaptureError

Leaf = Callable[[nn.Module], bool]


def capture_symbolic(
    model: nn.Module, leaf: Leaf | None = None, arguments: Mapping[str, Any] | None = None
) -> GraphModel:
    """Trace ``model`` with torch.fx; every argument of its forward is one input, defaults included.

    ``leaf`` as in :func:`~qtune.capture.recorder.capture`. ``arguments``: all arguments of the
    call by name; then their tensors are the inputs, and everything else is as given. Nodes have
    ``scope``, ``source`` and ``kind`` in their meta, but no ``shape`` and ``dtype``. The result
    shares modules with ``model``, which stays as it was. Raises ``CaptureError`` where torch.fx
    fails.
    """
    if not isinstance(model, nn.Module):
        raise ArgumentError(f"capture: a torch.nn.Module was expected, got {type(model).__name__}")
    signature = signature_of(model)
    tracer = _Tracer(leaf or is_leaf, signature, arguments)
    with restored(model):
        try:
            graph = tracer.trace(model)
        except Exception as error:
            place = place_of(error)
            raise CaptureError(
                f"{type(model).__name__}: torch.fx can't trace it ({type(error).__name__}"
                f"{f' at {place}' if place else ''}: {error}). Take PrepareMethod.JIT_STRIP, which "
                "records the model while it runs on example_inputs"
            ) from error
        constants = _constants(graph, model)
    out_spec = _flat_output(graph)
    report = CaptureReport(
        constants=tuple(
            ConstantInfo(name, tuple(value.shape), str(value.dtype), "")
            for name, value in constants.items()
        )
    )
    in_spec, fixed = tracer.interface()
    traced = GraphModel(model, graph, in_spec, out_spec, signature, fixed, report)
    for name, value in constants.items():
        traced.add_constant(name, value)
    return traced


class _Tracer(fx.Tracer):
    """torch.fx's tracer with our rule for leaves and our meta data."""

    def __init__(
        self, leaf: Leaf, signature: inspect.Signature, arguments: Mapping[str, Any] | None
    ) -> None:
        super().__init__()
        self._leaf = leaf
        self._scopes = [""]
        self._signature = signature
        self._arguments = None if arguments is None else dict(arguments)

    def interface(self) -> tuple[Spec | None, dict[int, Any]]:
        """Structure of the arguments, and those of their leaves that are no inputs, by place."""
        if self._arguments is None:
            return None, {}
        leaves, spec = flatten(self._arguments)
        fixed = {i: leaf for i, leaf in enumerate(leaves) if not isinstance(leaf, Tensor)}
        return spec, fixed

    def create_args_for_root(
        self, root_fn: Callable[..., Any], is_module: bool, concrete_args: Any = None
    ) -> tuple[Callable[..., Any], list[Any]]:
        if self._arguments is None:
            return super().create_args_for_root(root_fn, is_module, concrete_args)
        leaves, spec = flatten(self._arguments)
        filled = [
            self.create_proxy("placeholder", name, (), {}) if isinstance(leaf, Tensor) else leaf
            for name, leaf in zip(leaf_names(spec), leaves, strict=True)
        ]
        args, kwargs = call_arguments(self._signature, filled, spec)
        model: Any = self.root
        return (lambda root: model.forward(*args, **kwargs)), [model]

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return self._leaf(m)

    def call_module(
        self,
        m: nn.Module,
        forward: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        path = self.path_of_module(m)
        if hands_on(m, args):
            return forward(*args, **kwargs)
        if self._leaf(m):
            return super().call_module(m, forward, args, kwargs)
        self._scopes.append(path)
        try:
            return super().call_module(m, forward, args, kwargs)
        finally:
            self._scopes.pop()

    def create_node(self, kind: str, *args: Any, **kwargs: Any) -> fx.Node:
        node = super().create_node(kind, *args, **kwargs)
        node.meta.update(scope=self._scopes[-1], source=caller(), kind=_kind(node))
        return node


def _kind(node: fx.Node) -> str:
    fixed = {"placeholder": "input", "get_attr": "attribute", "output": "output"}
    return fixed.get(node.op, "op")


def _constants(graph: fx.Graph, model: nn.Module) -> dict[str, Tensor]:
    """Constants that torch.fx has put on the model, which is about to be restored."""
    names = [str(node.target) for node in graph.nodes if node.op == "get_attr"]
    found = {name: vars(model).get(name) for name in names}
    return {name: value for name, value in found.items() if isinstance(value, Tensor)}


def _flat_output(graph: fx.Graph) -> Spec:
    """Make the output node a flat tuple of leaves; return their structure."""
    output = next(node for node in graph.nodes if node.op == "output")
    leaves, spec = flatten(output.args[0])
    output.args = (tuple(leaves),)
    return _with_plain_classes(spec)


def _with_plain_classes(spec: Spec) -> Spec:
    """torch.fx has made immutable lists and dicts of the output's own."""
    if spec.kind is Kind.LEAF or spec.cls is None:
        return LEAF if spec.kind is Kind.LEAF else spec
    plain = {"immutable_list": list, "immutable_dict": dict}.get(spec.cls.__name__, spec.cls)
    children = tuple(_with_plain_classes(child) for child in spec.children)
    return Spec(spec.kind, plain, spec.keys, children)
