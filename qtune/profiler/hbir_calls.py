"""What a running HBIR function shows of one run, operator by operator."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

import onnx_ir as ir
import torch

from qtune.hbir.builder import (
    META_DTYPE,
    META_OP,
    META_RESULT,
    META_SCALE,
    META_SOURCE,
    META_TYPE,
)
from qtune.hbir.module import Function
from qtune.hbir.result import Observer, OpResult, Watch
from qtune.profiler.call_writer import CallWriter, OpCall
from qtune.profiler.observe_hbir import operand_keys
from qtune.profiler.op_facts import place_of
from qtune.profiler.tensor_info import Seen

CallContext = Callable[[], AbstractContextManager[CallWriter]]


def watch_function(function: Function, calls: CallContext) -> Watch:
    """What :func:`qtune.hbir.result.watched` takes: every run becomes one call of ``calls``."""
    operators = _operators(function.model.graph)
    names = [item.name for item in function.inputs]

    @contextmanager
    def watch(tensors: Sequence[Any]) -> Iterator[Observer]:
        with calls() as writer:
            run = _HbirCalls(operators, writer, dict(zip(names, tensors, strict=True)))
            yield run
            run.finish()

    return watch


@dataclass(frozen=True, slots=True)
class _Operator:
    """What the graph says about an operator. ``sources``: keys of the results that it takes;
    ``constants``: its weight and bias.
    """

    op_type: str
    op: str
    source: str
    module: str
    sources: tuple[str, ...]
    constants: Mapping[str, Seen]


class _HbirCalls:
    """Writes every operator of one run; results wait until the last operator took them."""

    def __init__(
        self, operators: Mapping[str, _Operator], writer: CallWriter, inputs: Mapping[str, Any]
    ) -> None:
        self._operators = operators
        self._writer = writer
        self._waiting = Counter(key for op in operators.values() for key in op.sources)
        self._values = {key: Seen.of(tensor) for key, tensor in inputs.items()}
        self._last: tuple[str, list[Seen]] = ("", [])

    def __call__(self, name: str, result: OpResult) -> None:
        """Take one result; the several of one operator follow each other as ``op``, ``op:1``."""
        scale = None if result.scale is None else (result.scale,)
        seen = Seen(result.values, result.dtype, scale)
        if self._waiting[name]:
            self._values[name] = seen
        last, results = self._last
        if last and name == f"{last}:{len(results)}":
            results.append(seen)
            return
        self.finish()
        self._last = (name, [seen])

    def finish(self) -> None:
        """Write the operator whose results are all there."""
        name, results = self._last
        if not name:
            return
        op = self._operators[name]
        taken = [self._values[key] for key in op.sources if key in self._values]
        operands = {str(index): value for index, value in enumerate(taken)}
        facts = (op.constants, op.op, op.module, "", op.source)
        self._writer.add(OpCall(name, op.op_type, operands, results, *facts))
        for key in op.sources:
            self._waiting[key] -= 1
            if not self._waiting[key]:
                self._values.pop(key, None)
        self._last = ("", [])


def _operators(graph: ir.Graph) -> dict[str, _Operator]:
    nodes: dict[str, list[ir.Node]] = {}
    for node in graph:
        nodes.setdefault(node.metadata_props.get(META_OP, ""), []).append(node)
    keys = operand_keys(list(graph))
    results = {
        node.metadata_props[META_OP]: node for node in graph if META_RESULT in node.metadata_props
    }
    return {
        name: _operator(name, result, nodes[name], keys[name]) for name, result in results.items()
    }


def _operator(
    name: str, result: ir.Node, nodes: Sequence[ir.Node], sources: tuple[str, ...]
) -> _Operator:
    facts: dict[str, str] = {}
    for node in reversed(nodes):
        facts.update(node.metadata_props)
    source, _, scope = facts.get(META_SOURCE, "").strip(" ()").partition(", in ")
    found = {value.name: value for node in nodes for value in node.inputs if value is not None}
    constants = {role: found.get(f"{name}.{role}") for role in ("weight", "bias")}
    return _Operator(
        f"{result.domain or 'onnx'}.{result.op_type}",
        facts.get(META_TYPE, ""),
        source,
        place_of(name, scope),
        sources,
        {role: _constant(v) for role, v in constants.items() if v and v.const_value is not None},
    )


def _constant(value: ir.Value) -> Seen:
    content: Any = value.const_value
    tensor = torch.from_numpy(content.numpy().copy())
    props = value.metadata_props
    if META_SCALE not in props:
        return Seen(tensor, str(tensor.dtype))
    scale = float(props[META_SCALE])
    return Seen(tensor.float() * scale, props.get(META_DTYPE, str(tensor.dtype)), (scale,))
