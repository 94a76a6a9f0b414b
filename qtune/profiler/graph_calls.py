"""What a recorded graph (prepared or converted) shows of one forward, operator by operator."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from torch import Tensor, fx, nn
from torch.fx.node import map_arg

from qtune.capture.graph import GraphModel
from qtune.capture.program import OnResult
from qtune.nn.propagate import value_quantizers
from qtune.profiler.call_writer import CallWriter, OpCall
from qtune.profiler.observe import operator_name
from qtune.profiler.op_facts import (
    is_layer,
    method_of,
    operator_type,
    parameters_of,
    registry_name,
)
from qtune.profiler.tensor_info import Seen, leaves

CallContext = Callable[[], AbstractContextManager[CallWriter]]


def watch_graph(
    model: GraphModel, calls: CallContext
) -> Callable[[], AbstractContextManager[OnResult]]:
    """What ``GraphModel.watched`` takes: every forward becomes one call of ``calls``."""

    @contextmanager
    def watch() -> Iterator[OnResult]:
        with calls() as writer:
            yield _GraphCalls(model, writer)

    return watch


class _GraphCalls:
    """Writes every operator of one forward.

    Values are copied when they are made, since a later operator may change them in place, and
    forgotten when no node needs them any more.
    """

    def __init__(self, model: GraphModel, writer: CallWriter) -> None:
        self._model = model
        self._writer = writer
        self._quantizers = value_quantizers(model)
        self._values: dict[fx.Node, Any] = {}
        self._waiting = {node: len(node.users) for node in model.graph.nodes}

    def __call__(self, node: fx.Node, result: Any) -> Any:
        """Take the result of one node; it goes on unchanged."""
        seen = self._seen(result, self._quantizers.get(node))
        name = operator_name(node)
        results = list(leaves(seen))
        if name and results:
            self._writer.add(self._call(name, node, results))
        self._values[node] = seen
        self._forget(node)
        return result

    def _call(self, name: str, node: fx.Node, results: list[Seen]) -> OpCall:
        module = self._module(node)
        operands: dict[Any, Any] = dict(enumerate(map_arg(node.args, self._values.get)))
        operands.update(map_arg(node.kwargs, self._values.get))
        layer = module is not None and (is_layer(module) or not registry_name(module))
        return OpCall(
            name,
            str(node.meta["op"]) if module is None else operator_type(module),
            {str(key): value for key, value in operands.items()},
            results,
            parameters_of(module),
            registry_name(module),
            name if layer else str(node.meta.get("scope") or ""),
            method_of(module),
            str(node.meta.get("source") or ""),
        )

    def _module(self, node: fx.Node) -> nn.Module | None:
        return self._model.get_submodule(str(node.target)) if node.op == "call_module" else None

    def _forget(self, node: fx.Node) -> None:
        for source in (node, *node.all_input_nodes):
            self._waiting[source] -= source is not node
            if self._waiting[source] <= 0:
                self._values.pop(source, None)

    def _seen(self, value: Any, quantizer: Any) -> Any:
        if isinstance(value, Tensor):
            return Seen.of(value, quantizer)
        if isinstance(value, Mapping):
            return {key: self._seen(item, quantizer) for key, item in value.items()}
        if isinstance(value, tuple | list):
            return [self._seen(item, quantizer) for item in value]
        return value
