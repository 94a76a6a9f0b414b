"""The names that ``prepare`` would give to the calls of one witnessed forward."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx, nn

from qtune.capture.finish import build
from qtune.capture.members import find_submodule
from qtune.capture.structure import LEAF
from qtune.capture.tape import Tape
from qtune.errors import QtuneError
from qtune.nn.qat.functional import is_functional
from qtune.prepare.operators import Operators
from qtune.profiler.op_facts import place_of

_PLACE = "profiled"
"""Key of ``node.meta``: number of the call that the node stands for."""

_CHILDREN = ("_modules", "_parameters", "_buffers")


@dataclass(frozen=True, slots=True)
class OperatorName:
    """What a call is to all stages: its name, its type in the float model, the registry's name.

    ``module`` and ``method`` as in :class:`~qtune.profiler.op_info.OpInfo`.
    """

    name: str
    op_type: str
    op: str
    module: str
    method: str


def operator_names(
    model: nn.Module, tape: Tape, places: Mapping[fx.Node, int]
) -> dict[int, OperatorName] | None:
    """Number of a call -> what it is, without those that are no operators (constants, items).

    ``None`` where the forward can't be recorded, so that no stage would have names.
    """
    if tape.problem is not None:
        return None
    for node, place in places.items():
        node.meta[_PLACE] = place
    try:
        tape.emit("output", "output", ((),), kind="output")
        call: dict[str, Any] = {"in_spec": None, "signature": inspect.Signature(), "constants": {}}
        graph = build(tape, _outline(model, {}), call, LEAF, ())
        ops = Operators(graph, model.training)
        ops.replace_calls()
    except QtuneError:
        return None
    return {
        node.meta[_PLACE]: _named(model, ops, node)
        for node in ops.graph.nodes
        if {_PLACE, "name"} <= set(node.meta)
    }


def _named(model: nn.Module, ops: Operators, node: fx.Node) -> OperatorName:
    name, op = str(node.meta["name"]), ops.op(node)
    module = place_of(name, str(node.meta.get("scope") or ""))
    if op is None:
        return OperatorName(name, str(node.meta["op"]), "", module, "")
    owner = find_submodule(model, name)
    method = op.op if owner is not None and is_functional(owner) else ""
    return OperatorName(name, op.float_type, op.op, module, method)


def _outline(module: nn.Module, known: dict[nn.Module, nn.Module]) -> nn.Module:
    """The module tree again, with the same tensors; replacing its children leaves ``module`` be."""
    if isinstance(module, torch.jit.ScriptModule):
        return module  # called as a whole
    if module not in known:
        twin = known[module] = module.__class__.__new__(module.__class__)
        twin.__dict__ = {**module.__dict__}
        for group in _CHILDREN:
            twin.__dict__[group] = dict(module.__dict__[group])
        for name, child in module._modules.items():
            if child is not None:
                twin.__dict__["_modules"][name] = _outline(child, known)
    return known[module]
