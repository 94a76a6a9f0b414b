"""One branch of a recorded model as a model of its own, over the same modules."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from torch import fx, nn

from qtune.capture.branches import Branch

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
    view._growth = None
    return view


def _paths(graph: fx.Graph) -> dict[str, Any]:
    """Names of what the graph calls and reads, as nested dicts; an empty one is kept whole."""
    tree: dict[str, Any] = {}
    for node in graph.nodes:
        if node.op not in ("call_module", "get_attr"):
            continue
        level = tree
        *path, last = str(node.target).split(".")
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
