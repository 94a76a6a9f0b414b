"""Run a module in HBIR and show the result of every operator, with what it got."""

from __future__ import annotations

from collections import Counter
from typing import Any

import onnx_ir as ir
import torch

from qtune.bpu.operator import producer_key
from qtune.capture.inputs import Inputs
from qtune.hbir.builder import META_OP, META_RESULT
from qtune.hbir.feeding import bind_call, outputs_from
from qtune.hbir.module import HbirModule
from qtune.hbir.result import OpResult
from qtune.profiler.record import OnRecord, OpRecord

_FAKE_QUANT = "FakeQuant"
"""Begin of the types of nodes that only round and clip."""


def stream_hbir(
    module: HbirModule, inputs: Inputs, note: OnRecord, *, keep_inputs: bool = True
) -> Any:
    """Run ``module`` once, give each operator's record to ``note``, and return the outputs.

    The inputs of a record are the results of other operators and the inputs of the module that it
    takes, as real numbers; constants (weights) are no inputs.
    """
    function = module[0]
    feed = bind_call(function, inputs.args, dict(inputs.kwargs))
    taker = _Taker(module, dict(feed), note, keep_inputs)
    results = function.run(feed, observe=taker)
    return outputs_from(function, [results[item.name] for item in function.outputs])


class _Taker:
    """Gets every operator's result in order of execution; keeps those that others still take."""

    def __init__(
        self, module: HbirModule, feed: dict[str, Any], note: OnRecord, keep_inputs: bool
    ) -> None:
        graph = module.model.graph
        self.note = note
        self.feed = frozenset(feed)
        self.types = {
            node.metadata_props[META_OP]: _type_of(node)
            for node in graph
            if META_RESULT in node.metadata_props
        }
        self.takes = operand_keys(list(graph)) if keep_inputs else {}
        self.left = Counter(key for keys in self.takes.values() for key in keys)
        self.values = {k: torch.as_tensor(v) for k, v in feed.items() if k in self.left}

    def __call__(self, name: str, result: OpResult) -> None:
        owner = name.partition(":")[0] if name not in self.types else name
        first = owner == name
        keys = self.takes.get(owner, ()) if first else ()
        known = [key for key in keys if key in self.values]
        values = tuple(self.values[key] for key in known)
        shapes = tuple(tuple(value.shape) for value in values)
        self.note(
            OpRecord(
                name,
                self.types.get(owner, ""),
                result.values,
                result.scale,
                result.dtype,
                shapes,
                values,
                owner=owner,
                data=tuple(place for place, key in enumerate(known) if key in self.feed),
            )
        )
        for key in keys:
            self.left[key] -= 1
            if not self.left[key]:
                self.values.pop(key, None)
        if self.left[name]:
            self.values[name] = result.values


def _type_of(result: ir.Node) -> str:
    """The type of an operator: that of the node which computes what its own fake-quantize gets."""
    node, name = result, result.metadata_props[META_OP]
    while node.op_type.startswith(_FAKE_QUANT):
        source = node.inputs[0].producer() if node.inputs[0] is not None else None
        if source is None or source.metadata_props.get(META_OP) != name:
            break
        if source.op_type == "Identity":  # nothing was computed: the operator is its fake-quantize
            break
        node = source
    return f"{node.domain or 'onnx'}.{node.op_type}"


def operand_keys(nodes: list[ir.Node]) -> dict[str, tuple[str, ...]]:
    """Operator -> the operators (or inputs of the graph) whose results it takes, in order.

    An operator may be several nodes; values between them do not count.
    """
    own: dict[str, list[ir.Node]] = {}
    for node in nodes:
        own.setdefault(node.metadata_props.get(META_OP, ""), []).append(node)
    own.pop("", None)
    found: dict[str, dict[str, None]] = {}
    for name, members in own.items():
        inside = {value for node in members for value in node.outputs}
        keys = found.setdefault(name, {})
        for value in (value for node in members for value in node.inputs):
            if value is not None and value.const_value is None and value not in inside:
                keys[producer_key(value)] = None
    return {name: tuple(keys) for name, keys in found.items()}
