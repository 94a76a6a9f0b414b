"""Calls through a ``FloatFunctional`` take the module's name (``self.add.add(x, y)``)."""

from __future__ import annotations

from torch import fx, nn

from qtune.nn.qat.functional import is_functional

_MARK = "activation_post_process"


def name_functional_calls(model: nn.Module, graph: fx.Graph) -> None:
    """Give each such call its module's name and drop the Identity that every method ends with.

    Works for torch's class and for ours.
    """
    for node in list(graph.nodes):
        path = _functional(model, node)
        if path is None:
            continue
        call = node.args[0]
        if isinstance(call, fx.Node):
            call.meta["name"] = path
            node.replace_all_uses_with(call)
            graph.erase_node(node)


def _functional(model: nn.Module, node: fx.Node) -> str | None:
    """Path of the ``FloatFunctional`` whose closing Identity the node calls."""
    path, _, last = str(node.target).rpartition(".")
    if node.op != "call_module" or last != _MARK or not path:
        return None
    return path if is_functional(model.get_submodule(path)) else None
