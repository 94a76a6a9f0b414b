"""State that a forward leaves in a model: read, set, and put back as it was.

Buffers that forward writes (a recurrent state) are put back by :func:`buffers_kept`, whatever they
are called. Plain attributes (a list of frames, ``None`` before the first one) are known by name
only: the ``cached_attrs`` of an analysis.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from qtune.capture.graph import GraphModel
from qtune.capture.restore import to_the_end
from qtune.capture.structure import flatten, unflatten
from qtune.errors import AnalysisError, kind_of
from qtune.hbir.module import HbirModule

Model = nn.Module | HbirModule
Values = Mapping[str, Any]
"""Attributes by dotted name."""

_PLAIN = (bool, int, float, str)


@contextlib.contextmanager
def buffers_kept(model: nn.Module) -> Iterator[None]:
    """Put back, object and content, every buffer that the block writes or replaces."""
    places = [(m, name, t) for m in model.modules() for name, t in m._buffers.items()]
    before = [(*place, _Content(place[2])) for place in places]

    def restore() -> None:
        for module, name, tensor, content in before:
            module._buffers[name] = tensor
            content.restore()

    try:
        yield
    finally:
        to_the_end(restore)


class _Content:
    """What a buffer held, if it is there."""

    __slots__ = ("copy", "tensor", "version")

    def __init__(self, tensor: Tensor | None) -> None:
        self.tensor = None if tensor is None or tensor.is_inference() else tensor
        if self.tensor is not None:
            self.version = self.tensor._version
            self.copy = self.tensor.detach().clone()

    def restore(self) -> None:
        """Write it back, if something was written since."""
        if self.tensor is not None and self.tensor._version != self.version:
            with torch.no_grad():
                self.tensor.copy_(self.copy)


def apart(model: nn.Module, outputs: Any) -> Any:
    """The outputs, those that are buffers of ``model`` copied: putting those back changes them."""
    owned = {_storage(buffer) for buffer in model.buffers()} - {0}
    leaves, spec = flatten(outputs)
    shared = [isinstance(leaf, Tensor) and _storage(leaf) in owned for leaf in leaves]
    if not any(shared):
        return outputs
    return unflatten([v.clone() if s else v for v, s in zip(leaves, shared, strict=True)], spec)


@contextlib.contextmanager
def attributes_kept(model: Model, names: Iterable[str]) -> Iterator[None]:
    """Let the block set attributes, and change lists and dicts in them; then put back the user's.

    The block meets copies. Buffers are left to :func:`buffers_kept`.
    """
    before = []
    for path in names:
        owner, name = _owner(model, path)
        if not _is_tensor_of(owner, name):
            before.append((path, owner, name, getattr(owner, name)))

    def restore() -> None:
        for _, owner, name, value in before:
            setattr(owner, name, value)

    try:
        for path, owner, name, value in before:
            setattr(owner, name, _copied(value, path))
        yield
    finally:
        to_the_end(restore)


def _storage(value: Tensor) -> int:
    return value.untyped_storage().data_ptr() if value.layout is torch.strided else 0


def read_attributes(model: Model, names: Iterable[str]) -> dict[str, Any]:
    """Copies of the attributes as they are now: tensors, numbers, strings and ``None`` in tuples,
    lists, dicts, namedtuples and dataclasses.

    ``AnalysisError`` for an attribute that the model lacks, and for any other content.
    """
    return {path: _copied(_value(model, path), path) for path in names}


def set_attributes(model: Model, values: Values, device: torch.device | None = None) -> None:
    """Give the model's attributes these values, copied, tensors on ``device``."""
    for path, value in values.items():
        owner, name = _owner(model, path)
        fresh = _copied(value, path, device)
        if not _is_tensor_of(owner, name):
            setattr(owner, name, fresh)
            continue
        present = getattr(owner, "_buffers", {}).get(name, getattr(owner, name, None))
        if isinstance(present, Tensor) and isinstance(fresh, Tensor) and _alike(present, fresh):
            with torch.no_grad():
                present.copy_(fresh)
        elif name in owner._buffers and (fresh is None or isinstance(fresh, Tensor)):
            owner._buffers[name] = fresh
        else:
            raise AnalysisError(
                f"cached attribute {path!r}: {_what(present)} of the model can't become "
                f"{_what(fresh)}; give a tensor like it"
            )


def _copied(value: Any, name: str, device: torch.device | None = None) -> Any:
    leaves, spec = flatten(value)
    for leaf in leaves:
        if not isinstance(leaf, (Tensor, *_PLAIN)):
            raise AnalysisError(
                f"cached attribute {name!r} holds {kind_of(leaf)}; it may hold tensors, "
                "numbers, strings and None, in lists, tuples, dicts, namedtuples and dataclasses"
            )
    copies = [leaf.detach().clone() if isinstance(leaf, Tensor) else leaf for leaf in leaves]
    if device is not None:
        copies = [copy.to(device) if isinstance(copy, Tensor) else copy for copy in copies]
    return unflatten(copies, spec)


def _value(model: Model, path: str) -> Any:
    owner, name = _owner(model, path)
    buffers = getattr(owner, "_buffers", {})
    return buffers[name] if name in buffers else getattr(owner, name)


def _owner(model: Model, path: str) -> tuple[Any, str]:
    """The module or object that has the last name of the path."""
    if isinstance(model, HbirModule):
        raise AnalysisError(
            f"cached attribute {path!r}: an HBIR module has no attributes; what it keeps between "
            "frames is among its inputs and outputs"
        )
    *way, name = path.split(".")
    owner: Any = model
    for step in way:
        owner = _step(model, owner, step, path)
    _step(model, owner, name, path)
    return owner, name


def _step(model: nn.Module, owner: Any, name: str, path: str) -> Any:
    for known in ("_modules", "_buffers"):
        if name in getattr(owner, known, {}):
            return getattr(owner, known)[name]
    try:
        return getattr(owner, name)
    except AttributeError:
        hint = (
            ". prepare keeps buffers; another attribute that forward sets became a constant: make "
            "it a buffer (self.register_buffer) before prepare"
            if isinstance(model, GraphModel)
            else ""
        )
        raise AnalysisError(
            f"the model {type(model).__name__} has no attribute {path!r}{hint}"
        ) from None


def _is_tensor_of(owner: Any, name: str) -> bool:
    return isinstance(owner, nn.Module) and (name in owner._buffers or name in owner._parameters)


def _alike(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and a.dtype == b.dtype


def _what(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"a {value.dtype} tensor of shape {tuple(value.shape)}"
    return kind_of(value)
