"""The graph form of a model that was prepared in eager mode."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import fx, nn

from qtune.capture.inputs import as_example_list
from qtune.capture.leaf import is_leaf
from qtune.capture.recorder import capture
from qtune.errors import PrepareError
from qtune.nn.eager import EagerFacts, forget_forward
from qtune.nn.float_mode import unquantized
from qtune.nn.prepared import FloatOp, PreparedModel, UnfusedOps
from qtune.nn.qat import QATOp
from qtune.nn.qat.functional import FloatFunctional
from qtune.nn.table import forget_sources, note_sources
from qtune.ops.spec import Rule
from qtune.prepare.fuse import GROUP, fuse
from qtune.prepare.operators import FLOAT_REASON, Operators
from qtune.prepare.region import classify

NOT_A_LAYER = (
    "eager mode replaces layers only; a function in forward stays float. Use a FloatFunctional or "
    "a layer, or prepare with another method"
)
_NOT_REPLACED = "eager mode left this layer float: its qconfig is None"


def eager_graph(model: nn.Module, example_inputs: Any, facts: EagerFacts) -> PreparedModel:
    """Record ``model``, which stays as it is, with its operators as they are.

    Raises ``PrepareError`` where forward does not call fused layers one after the other.
    """
    twin = copy.deepcopy(model)
    forget_forward(twin)
    _settle_functionals(twin, example_inputs)
    with unquantized(twin):
        graph = capture(twin, example_inputs, leaf=_is_leaf)
    ops = Operators(graph, model.training)
    own = [node for node in ops.graph.nodes if ops.op(node) is not None]
    for node in own:
        _to_canonical(ops, node)
    ops.replace_calls()
    for op in _operators(ops):
        op.call_form = None
    prepared = _described(ops, own, facts)
    prepared.recompile()
    forget_sources(prepared)
    note_sources(prepared)
    return prepared


def _settle_functionals(model: nn.Module, example_inputs: Any) -> None:
    """Let each ``FloatFunctional`` that was never called learn which operator it is."""
    waiting = {p for p, m in model.named_modules() if isinstance(m, FloatFunctional)}
    waiting = {path for path in waiting if not model.get_submodule(path).is_called}
    if not waiting:
        return
    probe = copy.deepcopy(model)
    for inputs in as_example_list(example_inputs):
        with unquantized(probe), torch.no_grad():
            probe(*inputs.args, **inputs.kwargs)
    for path in waiting:
        known, own = probe.get_submodule(path), model.get_submodule(path)
        own.op, own.attrs, own.is_called = known.op, known.attrs, known.is_called


def _is_leaf(module: nn.Module) -> bool:
    return isinstance(module, QATOp) or is_leaf(module)


def _operators(ops: Operators) -> Iterator[QATOp]:
    found = (ops.op(node) for node in ops.graph.nodes)
    return (op for op in found if op is not None)


def _to_canonical(ops: Operators, node: fx.Node) -> None:
    """One operand per role, as in every prepared graph."""
    op = ops.op(node)
    if op is None:
        return
    if op.call_form is not None:
        node.args, node.kwargs = op.call_form.operands(node.args, node.kwargs)
    node.meta.update(op=op.op, name=op.name)


def _described(ops: Operators, own: list[fx.Node], facts: EagerFacts) -> PreparedModel:
    """The model with its reports: what stays float, and what could be fused."""
    floats = dict(_float_reasons(ops, own))
    region = classify(ops, floats, strip=False)
    fusion = fuse(ops, region, facts.qat_mode)
    wanted = {op.name: op.group for op in _operators(ops) if op.group}
    _check_groups(own, wanted)
    for node in own:
        node.meta.pop(GROUP, None)
        if node.meta["name"] in wanted:
            node.meta[GROUP] = wanted[node.meta["name"]]
    prepared = PreparedModel.of(ops.model)
    prepared.march, prepared.qat_mode = facts.march, facts.qat_mode
    prepared.resolution = facts.resolution
    metas = {node.meta["name"]: node.meta for node in ops.graph.nodes if "name" in node.meta}
    prepared.float_ops = tuple(FloatOp.of(metas[name], why) for name, why in floats.items())
    unmarked = (
        UnfusedOps(tuple(n.meta["name"] for n in group.nodes), "fuse_modules was not called on it")
        for group in fusion.groups
        if not any(n.meta["name"] in wanted for n in group.nodes)
    )
    prepared.unfused = (
        *unmarked,
        *(UnfusedOps(tuple(n.meta["name"] for n in i.nodes), i.reason) for i in fusion.unfused),
    )
    return prepared


def _float_reasons(ops: Operators, own: list[fx.Node]) -> Iterator[tuple[str, str]]:
    known = set(own)
    for node in ops.graph.nodes:
        name = node.meta.get("name")
        if name is None or node in known:
            continue
        op = ops.op(node)
        if op is not None and op.spec.rule in (Rule.INPUT_SCALE, Rule.NO_SCALE):
            continue  # what comes on a grid stays on it
        if op is not None:
            yield name, _NOT_REPLACED if op.params or op.float_repr is not None else NOT_A_LAYER
        elif FLOAT_REASON in node.meta:
            yield name, str(node.meta[FLOAT_REASON])


def _check_groups(own: list[fx.Node], wanted: Mapping[str, str]) -> None:
    """Whether forward calls the layers of each group one after the other, and nothing between."""
    groups: dict[str, list[fx.Node]] = {}
    for node in own:
        if node.meta["name"] in wanted:
            groups.setdefault(wanted[node.meta["name"]], []).append(node)
    for name, nodes in groups.items():
        for before, after in itertools.pairwise(nodes):
            if before not in after.all_input_nodes or len(before.users) > 1:
                raise PrepareError(
                    f"{before.meta['name']} was fused with the layers up to {name}, but in forward "
                    f"its result does not go to {after.meta['name']} alone; leave one of them out "
                    "of fuse_modules"
                )
