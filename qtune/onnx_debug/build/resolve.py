"""From a configuration to the number of bits of every node of one model."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping

import onnx

from qtune.errors import ArgumentError
from qtune.hbir.onnx_import.load import own_operators
from qtune.onnx_debug.build.config import ROOT, NodeSetting, QuantConfig, Subgraph
from qtune.onnx_debug.build.facts import Kind, NodeFacts, float_tensors
from qtune.onnx_debug.build.named import unknown
from qtune.onnx_debug.build.place import Wishes
from qtune.onnx_debug.build.wiring import Slot, Wiring, wiring_of

_log = logging.getLogger(__name__)


def resolved(
    config: QuantConfig,
    proto: onnx.ModelProto,
    facts: Mapping[str, NodeFacts],
    source: onnx.ModelProto,
) -> Wishes:
    """What ``config`` asks of the nodes of the optimized model ``proto``.

    Priority: node, subgraph, operator type, ``all_node_type``, int8. ``source``: the model as it
    came; nodes of it that the optimization removed may be named, and are logged. Raises
    ``ArgumentError`` for names that neither has.
    """
    wiring = wiring_of(proto.graph)
    _check_op_types(config, proto, source)
    bits = dict.fromkeys(facts, config.all_bits or 8)
    for name, fact in facts.items():
        bits[name] = config.ops.get(fact.op_type, bits[name])
    for label, subgraph in config.subgraphs.items():
        bits |= dict.fromkeys(_inside(label, subgraph, wiring), subgraph.bits)
    inputs: dict[Slot, int] = {}
    for name, setting in config.nodes.items():
        if not _is_there(name, facts, source):
            continue
        if setting.bits is not None:
            bits[name] = setting.bits
        _check_inputs(name, setting, facts[name])
        inputs |= {(name, index): width for index, width in setting.inputs.items()}
    outputs = {}
    if config.output_bits is not None:
        floats = float_tensors(proto)
        outputs = {name: config.output_bits for name in wiring.outputs if name in floats}
    return Wishes(bits, inputs, outputs)


def _check_op_types(config: QuantConfig, proto: onnx.ModelProto, source: onnx.ModelProto) -> None:
    """An operator type that the model has not is a warning, one that ONNX has not an error."""
    there = {node.op_type for node in (*proto.graph.node, *source.graph.node)}
    for op_type in config.ops:
        if op_type in there:
            continue
        if not (onnx.defs.has(op_type) or op_type in own_operators()):
            raise unknown(f"{ROOT}: op_config", "operator type", op_type, there)
        _log.warning("op_config: the model has no node of the type %s", op_type)


def _is_there(name: str, facts: Mapping[str, NodeFacts], source: onnx.ModelProto) -> bool:
    if name in facts:
        return True
    if name not in {node.name for node in source.graph.node}:
        raise unknown(f"{ROOT}: node_config", "node", name, facts)
    _log.warning("node_config: %s is gone in the optimized model, its entry has no effect", name)
    return False


def _check_inputs(name: str, setting: NodeSetting, fact: NodeFacts) -> None:
    for index, bits in setting.inputs.items():
        if fact.kind is Kind.INTEGER and index not in fact.inputs:
            raise ArgumentError(
                f"{ROOT}: node_config: {name}: input{index} has no scale; those with one are "
                f"{', '.join(f'input{i}' for i in fact.inputs) or 'none'}"
            )
        if bits == 32:
            raise ArgumentError(
                f"{ROOT}: node_config: {name}: input{index} can't be float32 alone, the BPU takes "
                "all operands as integers; set qtype to float32 to keep the whole node float"
            )


def _inside(label: str, subgraph: Subgraph, wiring: Wiring) -> set[str]:
    """Nodes between the inputs and the outputs of a subgraph, both ends included."""
    where = f"{ROOT}: subgraph_config: {label}"
    starts = _ends(where, subgraph.inputs, wiring, forward=True)
    ends = _ends(where, subgraph.outputs, wiring, forward=False)
    found = _reached(starts, wiring, forward=True) & _reached(ends, wiring, forward=False)
    if not found:
        raise ArgumentError(
            f"{where}: no node lies between {', '.join(subgraph.inputs)} and "
            f"{', '.join(subgraph.outputs)}"
        )
    return found


def _ends(where: str, names: Collection[str], wiring: Wiring, *, forward: bool) -> set[str]:
    found: set[str] = set()
    for name in names:
        if name in wiring.nodes:
            found.add(name)
        elif forward and name in wiring.slots:
            found |= {node for node, _ in wiring.slots[name]}
        elif not forward and name in wiring.maker:
            found.add(wiring.maker[name])
        else:
            raise unknown(where, "node or tensor", name, {*wiring.nodes, *wiring.shapes})
    return found


def _reached(starts: Collection[str], wiring: Wiring, *, forward: bool) -> set[str]:
    found, waiting = set(starts), list(starts)
    while waiting:
        node = wiring.nodes[waiting.pop()]
        if forward:
            near = {user for out in node.output for user, _ in wiring.slots.get(out, ())}
        else:
            near = {wiring.maker[name] for name in node.input if name in wiring.maker}
        waiting += near - found
        found |= near
    return found
