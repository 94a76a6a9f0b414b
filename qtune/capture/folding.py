"""What no input, parameter or random number reaches is computed once: it becomes a constant."""

from __future__ import annotations

from torch import fx

from qtune.capture.tape import Tape

_PURE = ("op", "item", "attribute")


def fold_constants(tape: Tape) -> None:
    """Replace calls on constants only (``torch.arange(4)``, a table of anchors) by their results.

    Calls whose result is changed in place stay: every run of the graph needs a new one.
    """
    for entry in list(tape.ledger.unchanged()):
        for node in {entry.first: None, entry.node: None}:
            if _is_fixed(tape, node) and any(not _is_fixed(tape, user) for user in node.users):
                _replace(tape, node, tape.origins.keep(entry.tensor, str(node.meta["source"])))
    for node in reversed(list(tape.graph.nodes)):
        if not node.users and _is_fixed(tape, node):
            tape.graph.erase_node(node)


def _is_fixed(tape: Tape, node: fx.Node) -> bool:
    is_call = node.op in ("call_function", "call_method")
    is_pure = is_call and node.meta.get("kind") in _PURE
    return is_pure and node not in tape.varying and node not in tape.changing


def _replace(tape: Tape, node: fx.Node, name: str) -> None:
    with tape.graph.inserting_before(node):
        constant = tape.graph.get_attr(name)
    constant.meta.update(node.meta, kind="attribute")
    for user in list(node.users):
        if not _is_fixed(tape, user):
            user.replace_input_with(node, constant)
