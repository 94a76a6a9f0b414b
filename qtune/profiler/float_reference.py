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
from qtune.nn.float_mode import all_float
from qtune.nn.prepared import PreparedModel
from qtune.ops.registry import find_module
from qtune.ops.spec import FuseRole
from qtune.prepare.absorb import absorbed
from qtune.prepare.operators import Operators
from qtune.profiler.observe import (
    Model,
    is_converted,
    is_prepared,
    operator_of,
    require_torch,
    stream,
    stream_graph,
)
from qtune.profiler.record import Kept, Observation, OnRecord, OpRecord

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
    with torch.no_grad():
        graph = capture(float_model, inputs, fixed=True)
        give_calls(graph.graph.nodes, prepared.call_order)
        outputs, values = _float_values(graph, inputs, prepared.call_names)
    folded = folded_operators(float_model, prepared)
    calls: Counter[str] = Counter()

    def real(node: fx.Node, name: str, result: Any) -> Any:
        value = values.get((name, calls[name]))
        calls[name] += 1
        return value if name not in folded and _alike(value, result) else result

    types = {op.name: op.float_type for _, op in prepared.operators()}
    with all_float(prepared):
        stream_graph(
            prepared,
            inputs,
            lambda record: note(_as_float(record, types.get(record.owner))),
            replace=real,
        )
    return outputs


def _as_float(record: OpRecord, float_type: str | None) -> OpRecord:
    return record if float_type is None else replace(record, op_type=float_type)


def _float_values(
    graph: GraphModel, inputs: Inputs, call_names: Mapping[Any, str]
) -> tuple[Any, dict[tuple[str, int], Any]]:
    """The outputs, and results by (operator name, number of the call)."""
    names = _operator_names(graph, call_names)
    found: dict[tuple[str, int], Any] = {}
    calls: Counter[str] = Counter()
    places = {node: place for place, node in enumerate(graph.graph.nodes)}

    def keep(node: fx.Node, result: Any) -> Any:
        name = names.get(places[node])
        if name is not None:
            found[name, calls[name]] = _copy(result)
            calls[name] += 1
        return result

    return graph.run_nodes(inputs, keep), found


def _operator_names(graph: GraphModel, call_names: Mapping[Any, str]) -> dict[int, str]:
    """Place of a node in the float graph -> name that ``prepare`` gives to its operator."""
    twin = copy.deepcopy(graph)
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


def _copy(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, Tensor) else value
