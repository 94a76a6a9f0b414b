"""Some branches of a recorded model as a model of their own, over the same modules."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from torch import fx, nn

from qtune.capture.branches import Branch, is_aside

if TYPE_CHECKING:
    from qtune.capture.graph import GraphModel

_CHILDREN = ("_modules", "_parameters", "_buffers")

Model = TypeVar("Model", bound="GraphModel")


def view_of(model: Model, branch: Branch) -> Model:
    """``model`` with the graph of ``branch`` and nothing but what that uses.

    The called modules, the parameters and buffers are those of ``model``; the modules around them
    are shallow copies that hold no others.
    """
    graph = branch.cut(model.graph)
    view: Model = _thinned(model, _paths(graph))
    view._graph = graph
    view._interface = branch.interface
    view.call_order = branch.calls
    view.is_picked = True
    view.graph_branches = ()
    view._programs = {}
    view._growth = None
    return view


def without_aside(model: Model) -> Model:
    """``model`` without the branches that prepare recorded by itself; itself if it has none."""
    given = tuple(branch for branch in model.graph_branches if not branch.aside)
    if len(given) == len(model.graph_branches):
        return model
    if len(given) == 1:
        return view_of(model, given[0])
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    for node in model.graph.nodes:
        if node.op != "output" and not is_aside(node):
            copies[node] = graph.node_copy(node, copies.__getitem__)
    (output,) = model.graph.find_nodes(op="output")
    leaves: Any = output.args[0]
    stop = max(branch.stop for branch in given)  # those aside come last
    graph.output(fx.map_arg(leaves[:stop], copies.__getitem__)).meta.update(output.meta)
    view: Model = _thinned(model, _paths(graph))
    view._graph, view._programs = graph, {}
    view.graph_branches = given
    return view


def _paths(graph: fx.Graph) -> dict[str, Any]:
    """Names of what the graph calls and reads, as nested dicts; an empty one is kept whole."""
    tree: dict[str, Any] = {}
    targets = {str(n.target) for n in graph.nodes if n.op in ("call_module", "get_attr")}
    whole = {str(n.target) for n in graph.nodes if n.op == "call_module"}
    for target in sorted(targets):
        *path, last = target.split(".")
        if any(".".join(path[:depth]) in whole for depth in range(1, len(path) + 1)):
            continue  # a parameter of a layer that is called
        level = tree
        for name in path:
            level = level.setdefault(name, {})
        level.setdefault(last, {})
    return tree


def _thinned(module: Any, tree: dict[str, Any]) -> Any:
    copy = module.__class__.__new__(module.__class__)
    copy.__dict__ = dict(module.__dict__)
    for group in _CHILDREN:
        kept = {name: value for name, value in module.__dict__[group].items() if name in tree}
        copy.__dict__[group] = kept
    for name, child in copy.__dict__["_modules"].items():
        if tree[name] and isinstance(child, nn.Module):
            copy.__dict__["_modules"][name] = _thinned(child, tree[name])
    return copy
