"""What the float model itself computes, under the operator names of a prepared model.

The float model is recorded and run; its results stand for the prepared model's operators of the
same name. Operators that the float model does not have (parts of a decomposed one, a convolution
with a batch norm folded in) are computed in float by the prepared model, from the float model's
values.
"""

from __future__ import annotations

import copy
import logging
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, fx, nn

from qtune.capture.graph import GraphModel
from qtune.capture.identity import give_calls
from qtune.capture.inputs import Inputs
from qtune.capture.members import find_submodule
from qtune.capture.recorder import capture
from qtune.capture.structure import flatten_named
from qtune.nn.float_graph import FloatGraph
from qtune.nn.float_mode import all_float
from qtune.nn.prepared import ORIGIN_CALL, PreparedModel
from qtune.ops.registry import find_module
from qtune.ops.spec import FuseRole
from qtune.prepare.absorb import absorbed
from qtune.prepare.operators import Operators
from qtune.profiler.kept_state import apart
from qtune.profiler.live_values import may_write
from qtune.profiler.observe import (
    Model,
    is_converted,
    is_prepared,
    operator_name,
    operator_of,
    own_inputs,
    require_torch,
    run_model,
    stream,
    stream_graph,
)
from qtune.profiler.record import Kept, Observation, OnRecord, OpRecord, copied
from qtune.profiler.undisturbed import same_randomness

_log = logging.getLogger("qtune.analysis")

_PLACE = "float_place"
"""Key of ``node.meta``: place of a node in the recorded float graph."""


def observe_baseline(baseline: Model, analysed: Model, inputs: Inputs) -> Observation:
    """As :func:`stream_baseline`, with the values in memory."""
    kept = Kept()
    return Observation(stream_baseline(baseline, analysed, inputs, kept.note), kept)


def stream_baseline(baseline: Model, analysed: Model, inputs: Inputs, note: OnRecord) -> Any:
    """Run the baseline of a comparison; a float module under the names of the analysed model.

    Each record goes to ``note`` when it is there. Says in the log if the weights of the two differ.
    """
    if not isinstance(baseline, nn.Module) or is_prepared(baseline) or is_converted(baseline):
        return stream(baseline, inputs, note)
    prepared = require_torch(analysed, "QuantAnalysis.run")
    moved = moved_weights(baseline, prepared)
    if moved:
        _log.warning(
            "%d weights differ between the float and the analysed model (first: %s). After QAT "
            "the weights have moved, so differences per layer say little; compare with the "
            "calibrated model.",
            len(moved),
            moved[0],
        )
    return stream_float(baseline, prepared, inputs, note)


def observe_float(float_model: nn.Module, prepared: PreparedModel, inputs: Inputs) -> Observation:
    """As :func:`stream_float`, with the values in memory."""
    kept = Kept()
    return Observation(stream_float(float_model, prepared, inputs, kept.note), kept)


def stream_float(
    float_model: nn.Module, prepared: PreparedModel, inputs: Inputs, note: OnRecord
) -> Any:
    """Run ``float_model`` once and return its results by the operators of ``prepared``.

    A GEMM whose batch norm the QAT mode keeps computes both where it quantizes: so it does here.
    """
    prepared = absorbed(prepared).select_branch(inputs)
    folded = folded_operators(float_model, prepared)
    types = {op.name: op.float_type for _, op in prepared.operators()}
    with torch.no_grad():
        graph, names, outputs = _graph_of(float_model, prepared, inputs)
        values = _FloatValues(graph, names, inputs, folded)
        with all_float(prepared):
            stream_graph(
                prepared,
                inputs,
                lambda record: note(_as_float(record, types.get(record.owner))),
                replace=values.instead,
                given=values.given,
            )
    return outputs


def _as_float(record: OpRecord, float_type: str | None) -> OpRecord:
    return record if float_type is None else replace(record, op_type=float_type)


def _graph_of(
    float_model: nn.Module, prepared: PreparedModel, inputs: Inputs
) -> tuple[GraphModel, Mapping[int, str], Any]:
    """The float model's graph, names of operators by place in it, and the model's outputs.

    The graph is the one that ``prepare`` recorded where it still gives just what the model gives;
    else the model is recorded again.
    """
    known = prepared.float_graph
    with same_randomness(float_model):
        outputs = apart(float_model, run_model(float_model, inputs))
    if known is not None and _gives(known, float_model, inputs, outputs):
        return known.over(float_model), known.names, outputs
    graph = capture(float_model, own_inputs(inputs), fixed=True)
    give_calls(graph.graph.nodes, prepared.call_order)
    return graph, _operator_names(graph, prepared.call_names), outputs


def _gives(known: FloatGraph, model: nn.Module, inputs: Inputs, outputs: Any) -> bool:
    """Whether a recorded graph over ``model`` gives these outputs, bit for bit."""
    try:
        with same_randomness(model):
            found = known.over(model)(*own_inputs(inputs).args, **own_inputs(inputs).kwargs)
    except Exception:  # another model, or another path: what it raises does not matter
        return False
    pairs = zip(flatten_named(outputs), flatten_named(found), strict=False)
    count = len(list(flatten_named(outputs)))
    same = [_equal(a, b) and name == other for (name, a), (other, b) in pairs]
    return all(same) and len(same) == count == len(list(flatten_named(found)))


def _equal(a: Any, b: Any) -> bool:
    if not isinstance(a, Tensor) or not isinstance(b, Tensor):
        return type(a) is type(b)
    return a.dtype == b.dtype and torch.equal(a.nan_to_num(), b.nan_to_num())


class _FloatValues:
    """Results of the float model's graph, which runs on as far as somebody asks.

    Results of operators in ``folded`` are not asked for.
    """

    def __init__(
        self, graph: GraphModel, names: Mapping[int, str], inputs: Inputs, folded: set[str]
    ) -> None:
        nodes = list(graph.graph.nodes)
        self._names = {node: names[place] for place, node in enumerate(nodes) if place in names}
        self._left = Counter(name for name in self._names.values() if name not in folded)
        writers = (node for node in nodes if may_write(graph, node))
        self._at_risk = {source for node in writers for source in node.all_input_nodes}
        self._steps = graph.stepwise(own_inputs(inputs))
        self._waiting: dict[str, list[Any]] = {}
        self._folded = folded
        self._asked: dict[fx.Node, Any] = {}

    def given(self, node: fx.Node) -> Any:
        """The float model's result for a node of the prepared graph, where it has that operator."""
        value = self._next(operator_name(node))
        self._asked[node] = value
        is_part = ORIGIN_CALL in node.meta  # of a decomposed operator: may be of another form
        return value if isinstance(value, Tensor) and not is_part else None

    def instead(self, node: fx.Node, name: str, result: Any) -> Any:
        """The result to go on with; ``result`` where the float model's is of another form."""
        value = self._asked.pop(node, None)
        return value if _alike(value, result) else result

    def _next(self, name: str) -> Any:
        if not self._left[name]:
            return None
        self._left[name] -= 1
        waiting = self._waiting.setdefault(name, [])
        while not waiting:
            node, result = next(self._steps)
            own = self._names.get(node, "")
            if own and own not in self._folded:
                kept = copied(result) if node in self._at_risk else result
                self._waiting.setdefault(own, []).append(kept)
        return waiting.pop(0)


def _operator_names(graph: GraphModel, call_names: Mapping[Any, str]) -> dict[int, str]:
    """Place of a node in the float graph -> name that ``prepare`` gives to its operator."""
    tensors = (*graph.parameters(), *graph.buffers())
    twin = copy.deepcopy(graph, {id(tensor): tensor for tensor in tensors})
    for place, node in enumerate(twin.graph.nodes):
        node.meta[_PLACE] = place
    Operators(twin, twin.training, call_names).replace_calls()
    return {
        node.meta[_PLACE]: str(node.meta["name"])
        for node in twin.graph.nodes
        if {_PLACE, "name"} <= set(node.meta)
    }


def folded_operators(float_model: nn.Module, prepared: PreparedModel) -> set[str]:
    """Operators of groups in which a batch norm of the float model was folded away.

    The Identity that stands for the batch norm gives the same result as the float one; the
    operators before it do not.
    """
    identities = {}
    for node, op in prepared.operators():
        module = find_submodule(float_model, op.name)
        found = None if module is None else find_module(type(module))
        if found is not None and found[0].fuse is FuseRole.BN and op.spec.fuse is not FuseRole.BN:
            identities[op.name] = node
    before: set[str] = set()
    for node in identities.values():
        source = node.args[0]
        maker = operator_of(prepared, source) if isinstance(source, fx.Node) else None
        if maker is not None:
            before.add(maker.name)
    return before


def moved_weights(float_model: nn.Module, prepared: PreparedModel) -> list[str]:
    """Parameters that differ between the float model and the prepared one, folded ones left out."""
    folded = folded_operators(float_model, prepared)
    found = []
    for _, op in prepared.operators():
        module = find_submodule(float_model, op.name)
        if module is None or op.name in folded:
            continue
        own = dict(op.named_parameters(recurse=False))
        for name, parameter in module.named_parameters(recurse=False):
            other = own.get(name)
            if other is not None and not torch.equal(other.cpu(), parameter.cpu()):
                found.append(f"{op.name}.{name}")
    return found


def _alike(value: Any, result: Any) -> bool:
    """Whether ``value`` can stand for ``result``: a tensor of the same shape and dtype."""
    return (
        isinstance(value, Tensor)
        and isinstance(result, Tensor)
        and value.shape == result.shape
        and value.dtype == result.dtype
    )
