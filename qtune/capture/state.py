"""State that forward changes in place: parameters and buffers hold the new values afterwards."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, fx, nn

from qtune.capture.origins import owned_tensors

if TYPE_CHECKING:
    from qtune.capture.tape import Tape


def keep_state(state: Tensor, value: Tensor) -> Tensor:
    """``state`` with ``value`` in it, which is what the changes in place made of it.

    In a recorded graph they are one tensor. After prepare the changes are operators, which give
    new tensors: then the value is copied, without a gradient.
    """
    if not _is_one(state, value):
        with torch.no_grad():
            state.copy_(value)
    return state


def write_state(tape: Tape, model: nn.Module) -> None:
    """Append a call of :func:`keep_state` for every tensor of ``model`` that was changed."""
    seen: set[int] = set()
    for name, tensor in owned_tensors(model):
        entry = tape.ledger.find(tensor)
        if entry is None or id(tensor) in seen or entry.first.op != "get_attr":
            continue
        seen.add(id(tensor))
        node = tape.node_of(tensor)
        if node is not entry.first and not _writes(node, entry.first):
            state = tape.emit("get_attr", name, (), value=tensor, kind="attribute")
            tape.emit("call_function", keep_state, (state, node), value=tensor)


def _writes(node: fx.Node, state: fx.Node) -> bool:
    """``state.copy_(x)`` stays that call."""
    return node.target == "copy_" and node.args[0] is state


def _is_one(state: Tensor, value: Tensor) -> bool:
    if state is value:
        return True
    facts = [(t.data_ptr(), t.shape, t.stride(), t.dtype, t.device) for t in (state, value)]
    return facts[0] == facts[1]
