"""Views and changes in place, so that the graph is right when every node is a pure function.

The recorded graph runs torch's own in-place calls, on real views: that is right as it is. But
prepare turns ``y.mul_(2)`` into ``mul``, and then the nodes alone must tell which value a tensor
has. So after ``v = y[:, 0]; v.mul_(2)`` a later use of ``y`` reads ``setitem(y, (:, 0), mul(v))``,
and after ``v = y.view(-1); y.relu_()`` a later use of ``v`` reads ``view(relu(y), -1)``. Run in
place, these extra nodes copy a region onto itself or take the same view again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, fx

from qtune.capture.ledger import Change, Entry, geometry, last_element, same_geometry
from qtune.capture.nodes import name_of
from qtune.capture.source import caller
from qtune.errors import CaptureError

if TYPE_CHECKING:
    from qtune.capture.tape import Tape


class Aliases:
    """Brings the nodes of entries up to date that miss changes."""

    def __init__(self, tape: Tape) -> None:
        self._tape = tape

    def update(self, entry: Entry) -> None:
        """Give an entry a node that stands for its present value."""
        for change in list(entry.missing):
            self._apply(change, entry)

    def skip_write_back(self, base: Tensor, index: Any, value: Any) -> None:
        """``base[index] = value`` follows; if ``value`` is that very view, it is its write-back.

        This is what Python makes of ``y[:, 0] *= 2``.
        """
        entry = self._tape.ledger.find(base)
        if entry is None or not entry.missing:
            return
        *earlier, last = entry.missing
        if last.entry.tensor is not value or last.entry.parent is not entry:
            return
        first = last.entry.first
        if first.target == "__getitem__" and first.args[1] == self._tape.convert(index):
            for change in earlier:
                self._apply(change, entry)
            entry.missing.clear()

    def _apply(self, change: Change, entry: Entry) -> None:
        """Make the entry's node contain ``change``, and all that it misses from before."""
        if change not in entry.missing:
            return
        for earlier in entry.missing[: entry.missing.index(change)]:
            self._apply(earlier, entry)
        above = change.entry.ancestry()
        if entry in above:
            self._write_back(change, above[above.index(entry) - 1], entry)
        else:
            self._derive(change, entry)

    def _write_back(self, change: Change, child: Entry, parent: Entry) -> None:
        """The parent's value after the change, which was made through the child or below it."""
        self._apply(change, child)
        missing = [other for other in parent.missing if other is not change]
        parent.missing.clear()  # for now: sizes of the parent are asked for on the way
        parent.node = self._inverse(child, parent)
        parent.missing.extend(missing)

    def _derive(self, change: Change, child: Entry) -> None:
        """The child's value after its parent changed: the same view of the new value."""
        parent = child.parent
        if parent is None or child.parent_node is None:
            raise _lost(change.entry, "it shares memory with a tensor that it wasn't made from")
        self._apply(change, parent)
        child.node = self._again(child.first, {child.parent_node: parent.node})
        child.missing[:] = [other for other in child.missing if other in parent.missing]

    def _again(self, node: fx.Node, replaced: dict[fx.Node, fx.Node]) -> fx.Node:
        def new(old: fx.Node) -> fx.Node:
            if old in replaced:
                return replaced[old]
            # the call between a tensor and an item of its result (chunk, unbind)
            is_item = node.meta["kind"] == "item" and old is node.args[0]
            return self._again(old, replaced) if is_item else old

        args = fx.map_arg(node.args, new)
        kwargs = fx.map_arg(node.kwargs, new)
        copy = self._tape.emit(node.op, node.target, args, kwargs, kind=node.meta["kind"])
        copy.meta.update({key: node.meta[key] for key in ("shape", "dtype") if key in node.meta})
        return copy

    def _inverse(self, child: Entry, parent: Entry) -> fx.Node:
        first, node = child.first, child.node
        if same_geometry(child.tensor, parent.tensor):
            return node
        if first.target == "__getitem__":
            return self._setitem(parent, first.args[1], node)
        if first.target == "select" or first.target is torch.select:
            dim, index = _arguments(first, ("dim", "index"))
            return self._setitem(parent, _at(parent, dim, index), node)
        if first.target == "narrow" or first.target is torch.narrow:
            dim, start, length = _arguments(first, ("dim", "start", "length"))
            if isinstance(start, int) and isinstance(length, int):
                return self._setitem(parent, _at(parent, dim, slice(start, start + length)), node)
        if _same_order(child.tensor, parent.tensor):
            sizes = tuple(
                self._tape.conditions.size(parent.tensor, d) for d in range(parent.tensor.dim())
            )
            shape = self._tape.convert(sizes)
            return self._tape.emit(
                "call_method", "reshape", (node, shape), value=parent.tensor.detach()
            )
        order = _permutation(child.tensor, parent.tensor)
        if order is not None:
            return self._tape.emit(
                "call_method", "permute", (node, order), value=parent.tensor.detach()
            )
        raise _lost(child, f"what `{name_of(first)}` did to its shape can't be undone here")

    def _setitem(self, parent: Entry, index: Any, value: fx.Node) -> fx.Node:
        args = (parent.node, index, value)
        return self._tape.emit("call_method", "__setitem__", args, value=parent.tensor)


def _lost(child: Entry, reason: str) -> CaptureError:
    changed_at = child.node.meta.get("source") or caller()
    return CaptureError(
        f"{changed_at}: a view of shape {tuple(child.tensor.shape)} was changed in place and its "
        f"base is used afterwards; {reason}. Assign the result back to the base, for example "
        "y[index] = view, or compute a new tensor instead of changing the view"
    )


def _arguments(node: fx.Node, names: tuple[str, ...]) -> list[Any]:
    given = dict(zip(names, node.args[1:], strict=False)) | dict(node.kwargs)
    return [given[name] for name in names]


def _at(parent: Entry, dim: int, index: Any) -> tuple[Any, ...]:
    axis = dim % parent.tensor.dim()
    return (*[slice(None)] * axis, index)


def _positions(tensor: Tensor, size: int) -> Tensor:
    """For each element its place in the storage."""
    return geometry(torch.arange(size), tensor)


def _same_order(child: Tensor, parent: Tensor) -> bool:
    """Whether ``child.reshape(parent.shape)`` has the parent's elements in their places."""
    if child.numel() != parent.numel() or child.dtype != parent.dtype:
        return False
    size = last_element(parent) + 1
    ours, theirs = _positions(child, size), _positions(parent, size)
    return last_element(child) < size and torch.equal(ours.reshape(parent.shape), theirs)


def _permutation(child: Tensor, parent: Tensor) -> tuple[int, ...] | None:
    """The order of dimensions that turns ``child`` into ``parent``."""
    if child.dim() != parent.dim() or child.dtype != parent.dtype:
        return None
    ours = list(zip(child.shape, child.stride(), strict=True))
    theirs = list(zip(parent.shape, parent.stride(), strict=True))
    if sorted(ours) != sorted(theirs) or child.storage_offset() != parent.storage_offset():
        return None
    order: list[int] = []
    for pair in theirs:
        order.append(next(d for d, p in enumerate(ours) if p == pair and d not in order))
    return tuple(order)
