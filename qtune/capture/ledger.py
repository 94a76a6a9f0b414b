"""Every tensor of a recording, known by identity, and which of them share memory.

References are kept, so that no ``id`` and no storage address is used twice. A change in place is
*missing* from all other tensors that see the same memory: their nodes stand for the value before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from sys import getrefcount

import torch
from torch import Tensor, fx


@dataclass(slots=True, eq=False)
class Entry:
    """A tensor and the node that stands for its present value.

    ``first``: the node that made the tensor. ``parent``: the tensor that this one is a view of;
    ``parent_node``: the parent's node when the view was taken.
    """

    tensor: Tensor
    node: fx.Node
    parent: Entry | None = None
    parent_node: fx.Node | None = None
    missing: list[Change] = field(default_factory=list)
    first: fx.Node = field(init=False)

    def __post_init__(self) -> None:
        self.first = self.node

    def ancestry(self) -> list[Entry]:
        """This entry, its parent, and so on."""
        chain: list[Entry] = [self]
        while chain[-1].parent is not None:
            chain.append(chain[-1].parent)
        return chain


@dataclass(frozen=True, slots=True, eq=False)
class Change:
    """One change in place; ``entry`` is the tensor it was made through."""

    entry: Entry


@dataclass(slots=True)
class Group:
    """The entries on one storage. ``changed``: something was changed in place."""

    entries: list[Entry] = field(default_factory=list)
    changed: bool = False


class Ledger:
    """All entries, by identity of the tensor and by storage."""

    def __init__(self) -> None:
        self._by_id: dict[int, Entry] = {}
        self._groups: dict[int, Group] = {}

    def find(self, tensor: Tensor) -> Entry | None:
        """The entry of ``tensor``."""
        return self._by_id.get(id(tensor))

    def group(self, tensor: Tensor) -> Group | None:
        """What is known on the storage of ``tensor``."""
        key = storage_key(tensor)
        return None if key is None else self._groups.get(key)

    def enter(self, tensor: Tensor, node: fx.Node, sources: list[Tensor]) -> Entry:
        """A new tensor that ``node`` made from ``sources``; a view if it shares memory with one."""
        entry = Entry(tensor, node)
        self._by_id[id(tensor)] = entry
        key = storage_key(tensor)
        if key is None:
            return entry
        for source in sources:
            parent = self.find(source)
            if parent is not None and storage_key(source) == key:
                entry.parent, entry.parent_node = parent, parent.node
                break
        self._groups.setdefault(key, Group()).entries.append(entry)
        return entry

    def readers(self, entry: Entry, node: fx.Node) -> tuple[str, ...]:
        """Names of the nodes other than ``node`` that read the memory of ``entry``."""
        group = self.group(entry.tensor)
        entries = [entry] if group is None else group.entries
        sources = {source for e in entries for source in (e.node, e.first)}
        users = {user.name for source in sources for user in source.users if user is not node}
        return tuple(sorted(users))

    def entries(self) -> list[Entry]:
        """All entries."""
        return list(self._by_id.values())

    def unchanged(self) -> Iterator[Entry]:
        """Entries whose memory no one changed in place."""
        for entry in self._by_id.values():
            group = self.group(entry.tensor)
            if group is not None and not group.changed:
                yield entry

    def release(self, is_wanted: Callable[[Entry], bool]) -> None:
        """Forget memory whose tensors nobody else holds, unless an entry ``is_wanted``."""
        for key, group in list(self._groups.items()):
            # two references: the entry's own and the one that is counted with
            if all(getrefcount(e.tensor) <= 2 and not is_wanted(e) for e in group.entries):
                del self._groups[key]
                for entry in group.entries:
                    del self._by_id[id(entry.tensor)]

    def changed(self, entry: Entry) -> None:
        """``entry`` was changed in place: whatever else sees that memory misses the change."""
        group = self.group(entry.tensor)
        if group is None:
            return
        group.changed = True
        change = Change(entry)
        for other in group.entries:
            if other is not entry and overlap(other.tensor, entry.tensor):
                # an earlier one through the same tensor is contained in the new one
                other.missing[:] = [old for old in other.missing if old.entry is not entry]
                other.missing.append(change)


def storage_key(tensor: Tensor) -> int | None:
    """Identity of the memory of a tensor, or ``None`` for tensors without a plain storage.

    The address, where there is one: NumPy and DLPack make other storages of the same memory.
    """
    try:
        storage = tensor.untyped_storage()
        return int(storage.data_ptr() or storage._cdata)
    except (NotImplementedError, RuntimeError):
        return None


def same_geometry(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors on one storage are the same elements in the same places."""
    return (
        a.dtype == b.dtype
        and a.shape == b.shape
        and a.stride() == b.stride()
        and a.storage_offset() == b.storage_offset()
    )


def overlap(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors on one storage have an element in common."""
    if a.dtype != b.dtype or same_geometry(a, b):
        return True
    if not (a.numel() and b.numel()):
        return False
    last_a, last_b = last_element(a), last_element(b)
    if last_a < b.storage_offset() or last_b < a.storage_offset():
        return False
    seen = torch.zeros(max(last_a, last_b) + 1, dtype=torch.bool)
    geometry(seen, a).fill_(True)
    return bool(geometry(seen, b).any())


def geometry(flat: Tensor, like: Tensor) -> Tensor:
    """A view of ``flat`` with the sizes, strides and offset of ``like``."""
    return flat.as_strided(like.shape, like.stride(), like.storage_offset())


def last_element(tensor: Tensor) -> int:
    """Index of the last element in its storage."""
    steps = zip(tensor.shape, tensor.stride(), strict=True)
    return int(tensor.storage_offset()) + sum((size - 1) * stride for size, stride in steps)
