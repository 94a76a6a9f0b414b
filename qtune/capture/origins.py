"""Tensors that no recorded call made: parameters, buffers, constants, and what must be refused."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, fx, nn

from qtune.capture.guards import ConstantInfo
from qtune.capture.ledger import Entry, storage_key
from qtune.capture.restore import plain_attributes
from qtune.capture.source import caller
from qtune.errors import CaptureError

if TYPE_CHECKING:
    from qtune.capture.tape import Tape

CONSTANT = "_constant_{}"
"""Constants are buffers of this name."""


class Origins:
    """``constants``: name to value. ``unseen``: tensors made by calls that recording can't see."""

    def __init__(self, tape: Tape, model: nn.Module) -> None:
        self._tape = tape
        self._owned: dict[int, str] = {}
        for name, tensor in owned_tensors(model):
            self._owned.setdefault(id(tensor), name)
        self._owned_storage = {storage_key(tensor) for _, tensor in owned_tensors(model)} - {None}
        self._attributes = {id(tensor): name for name, tensor in plain_attributes(model).items()}
        self._taken = {*vars(model), *(name for name, _ in owned_tensors(model))}
        self.constants: dict[str, tuple[Tensor, ConstantInfo]] = {}
        self._changed: set[fx.Node] = set()
        self._unseen: dict[int, tuple[Tensor, str]] = {}
        self.thread = ""
        """Line that started another thread, if one did."""

    def is_owned(self, tensor: Tensor) -> bool:
        """Whether the tensor is a parameter or buffer of the model."""
        return id(tensor) in self._owned

    def mark_unseen(self, tensor: Tensor, call: str) -> None:
        """``tensor`` was made or changed by ``call``, where recording can't see it."""
        self._unseen[id(tensor)] = (tensor, call)

    def is_unseen(self, tensor: Tensor) -> bool:
        """Whether :meth:`mark_unseen` was called for it."""
        return id(tensor) in self._unseen

    def adopt(self, tensor: Tensor) -> Entry:
        """Enter a tensor that no recorded call made; refuse it if it can't be a constant."""
        name = self._owned.get(id(tensor))
        if name is None:
            self._refuse_hidden(tensor)
            name = self.keep(tensor, caller())
        node = self._tape.emit("get_attr", name, (), value=tensor, kind="attribute")
        if id(tensor) in self._owned:
            self._tape.changing.add(node)
        return self._tape.ledger.enter(tensor, node, [])

    def keep(self, tensor: Tensor, source: str) -> str:
        """Keep a copy of a constant; its name."""
        number = len(self.constants)
        while CONSTANT.format(number) in self._taken or CONSTANT.format(number) in self.constants:
            number += 1
        name = CONSTANT.format(number)
        info = ConstantInfo(name, tuple(tensor.shape), str(tensor.dtype), source)
        with self._tape.paused():
            self.constants[name] = (tensor.detach().clone(), info)
        return name

    def refuse_unseen(self, tensor: Tensor) -> None:
        """Raise ``CaptureError`` for a tensor that :meth:`mark_unseen` was called for."""
        known = self._unseen.get(id(tensor))
        if known is not None:
            raise CaptureError(
                f"{caller()}: a tensor of shape {tuple(tensor.shape)} was made or changed by "
                f"{known[1]}, in code that recording can't see (a C++ extension or a legacy "
                "constructor such as torch.Tensor(2, 3)). Call it through torch functions, or "
                "wrap it in a torch.autograd.Function or torch.library.custom_op"
            )

    def change(self, entry: Entry) -> None:
        """``entry`` was changed in place: a constant below it must be copied by every call."""
        root = entry.ancestry()[-1]
        if root.first.op != "get_attr" or self.is_owned(root.tensor):
            return
        name = self._attributes.get(id(root.tensor))
        if name is not None:
            raise CaptureError(
                f"{caller()}: forward changes `{name}` in place, a plain tensor attribute whose "
                "state a recorded graph can't keep; register it with register_buffer"
            )
        self._changed.add(root.first)

    def copy_changed(self) -> None:
        """Put a ``clone`` behind every constant that the graph changes in place."""
        for node in self._changed:
            with self._tape.graph.inserting_after(node):
                clone = self._tape.graph.call_method("clone", (node,))
            clone.meta.update(node.meta, kind="op")
            for user in [user for user in node.users if user is not clone]:
                user.replace_input_with(node, clone)

    def _refuse_hidden(self, tensor: Tensor) -> None:
        self.refuse_unseen(tensor)
        if self.thread and id(tensor) not in self._attributes:
            raise CaptureError(
                f"{caller()}: a tensor of shape {tuple(tensor.shape)} comes from nowhere that "
                f"recording can see, and {self.thread} gives work to another thread, which is not "
                "recorded. Compute in the thread that calls forward"
            )
        group = self._tape.ledger.group(tensor)
        is_shared = group is not None and any(
            entry.node in self._tape.changing or group.changed for entry in group.entries
        )
        if is_shared or storage_key(tensor) in self._owned_storage:
            raise CaptureError(
                f"{caller()}: a tensor of shape {tuple(tensor.shape)} shares the memory of a "
                "recorded one, but the call that made it can't be seen (nn.Parameter(x), or a view "
                "that was taken before forward). Take the view inside forward"
            )


def owned_tensors(model: nn.Module) -> list[tuple[str, Tensor]]:
    """All parameters and buffers by name, tied ones under each of their names."""
    return [
        *model.named_parameters(remove_duplicate=False),
        *model.named_buffers(remove_duplicate=False),
    ]


def refuse_transforms(tensor: Tensor) -> None:
    """Raise ``CaptureError`` for tensors inside of torch.func transforms."""
    if torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        raise CaptureError(
            f"{caller()}: torch.func transforms (vmap, grad, jvp) can't be recorded; write the "
            "batched computation out, or put the transform into a torch.autograd.Function"
        )
