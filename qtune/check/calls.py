"""How often each module of a prepared model runs in one forward."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from torch import fx, nn

from qtune.capture.guards import is_guard
from qtune.capture.inputs import Inputs
from qtune.capture.leaf import is_leaf
from qtune.capture.restore import restored
from qtune.nn.float_mode import all_float
from qtune.nn.prepared import PreparedModel
from qtune.nn.qat.op import QATOp


def call_counts(model: PreparedModel, inputs: Inputs) -> dict[str, int]:
    """Runs of every operator, and of every float layer that is no operator, on ``inputs``.

    The time steps of a recurrent layer are one run of its parts.

    The model runs once, in float, and is left as it was: states, flags, hooks, random state. A
    model whose forward took a branch for training can't run in eval mode; its recorded calls are
    counted, as are those of a model with several branches (the most that one of them makes; those
    that prepare recorded by itself do not count).
    """
    modules = dict(countable(model))
    if model.graph_branches or _is_for_training(model):
        return _as_the_user_calls(model, _recorded_counts(model, modules))
    calls: Counter[str] = Counter()
    handles: list[Any] = []

    def count(name: str) -> None:
        calls[name] += 1

    try:
        for name, module in modules.items():
            handles.append(module.register_forward_hook(lambda m, a, r, n=name: count(n)))
        with restored(model), all_float(model):
            model(*inputs.args, **inputs.kwargs)
    finally:
        for handle in handles:
            handle.remove()
    return _as_the_user_calls(model, {name: calls[name] for name in modules})


def _as_the_user_calls(model: PreparedModel, counts: dict[str, int]) -> dict[str, int]:
    """Runs of parts, divided by how often one call of their layer runs them."""
    nodes = model.calls(parts=True)
    calls = model.calls()
    return {
        name: count * calls[name] // nodes[name] if name in calls else count
        for name, count in counts.items()
    }


def _is_for_training(model: PreparedModel) -> bool:
    """Whether a guard of the graph holds in training mode only."""
    for node in model.graph.nodes:
        flag = node.args[0] if is_guard(node) else None
        if not isinstance(flag, fx.Node) or flag.op != "get_attr" or node.args[1] is not True:
            continue
        if str(flag.target).rpartition(".")[2] == "training":
            return True
    return False


def _recorded_counts(model: PreparedModel, modules: Mapping[str, nn.Module]) -> dict[str, int]:
    """Calls in the graph, each of which runs once."""
    given = (branch for branch in model.graph_branches if not branch.aside)
    paths = [branch.members(model.graph) for branch in given] or [set(model.graph.nodes)]
    calls = [
        Counter(
            id(model.get_submodule(str(node.target))) for node in path if node.op == "call_module"
        )
        for path in paths
    ]
    return {name: max(one[id(module)] for one in calls) for name, module in modules.items()}


def uncalled(model: PreparedModel) -> dict[str, nn.Module]:
    """The float layers that no branch calls, by name."""
    targets = {str(node.target) for node in model.graph.nodes if node.op == "call_module"}
    called = {id(model.get_submodule(target)) for target in targets}
    return {name: module for name, module in countable(model) if id(module) not in called}


def countable(model: PreparedModel) -> Iterator[tuple[str, nn.Module]]:
    """Name and module of everything that a forward may call: operators, then other float layers.

    Parts of a layer (what an operator or a called layer holds) are no layers of their own, and a
    layer whose weight is used directly counts as used.
    """
    operators = {op.name: op for _, op in model.operators()}
    yield from operators.items()
    read = {str(node.target) for node in model.graph.nodes if node.op == "get_attr"}
    seen = {id(op) for op in operators.values()}
    for path, module in _layers(model, ""):
        is_read = any(target.startswith(f"{path}.") for target in read)
        if id(module) not in seen and not is_read:
            seen.add(id(module))
            yield path, module


def _layers(module: nn.Module, path: str) -> Iterator[tuple[str, nn.Module]]:
    for name, child in module.named_children():
        where = f"{path}.{name}" if path else name
        if isinstance(child, QATOp) or is_leaf(child):
            yield (child.name if isinstance(child, QATOp) else where), child
        else:
            yield from _layers(child, where)
