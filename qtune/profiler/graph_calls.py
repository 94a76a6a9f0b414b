"""What a recorded graph (prepared or converted) shows of one forward, operator by operator."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from torch import Tensor, fx
from torch.fx.node import map_arg

from qtune.capture.graph import GraphModel
from qtune.capture.nodes import map_leaves
from qtune.capture.program import OnResult
from qtune.nn.propagate import value_quantizers
from qtune.profiler.call_writer import CallWriter, OpCall
from qtune.profiler.live_values import LiveValues
from qtune.profiler.observe import operator_name, type_name
from qtune.profiler.op_facts import method_of, parameters_of, place_of, registry_name
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
    """Writes every operator of one forward when its result is there."""

    def __init__(self, model: GraphModel, writer: CallWriter) -> None:
        self._model = model
        self._writer = writer
        self._quantizers = value_quantizers(model)
        self._live = LiveValues(model)

    def __call__(self, node: fx.Node, result: Any) -> Any:
        """Take the result of one node; it goes on unchanged."""
        name = operator_name(node)
        results = list(leaves(self._seen(node, result))) if name else []
        if results:
            self._writer.add(self._call(name, node, results))
        self._live.take(node, result)
        return result

    def _call(self, name: str, node: fx.Node, results: list[Seen]) -> OpCall:
        is_module = node.op == "call_module"
        module = self._model.get_submodule(str(node.target)) if is_module else None
        given = {**{str(index): arg for index, arg in enumerate(node.args)}, **node.kwargs}
        operands: Any = map_arg(given, self._operand)
        return OpCall(
            name,
            str(node.meta["op"]) if module is None else type_name(module),
            operands,
            results,
            parameters_of(module),
            registry_name(module),
            place_of(name, str(node.meta.get("scope") or "")),
            method_of(name, module),
            str(node.meta.get("source") or ""),
        )

    def _operand(self, node: fx.Node) -> Any:
        return self._seen(node, self._live.value(node))

    def _seen(self, node: fx.Node, value: Any) -> Any:
        port = self._quantizers.get(node)
        return map_leaves(value, lambda v: Seen.of(v, port) if isinstance(v, Tensor) else v)
