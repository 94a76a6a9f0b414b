"""Members of a model by their path: what the user registered comes before attributes of classes.

A recorded model has attributes of its own (``graph``, ``report``, ``operators``), and the float
model may have a layer, a parameter or a buffer of the same name.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn


def module_at(root: nn.Module, path: Sequence[str]) -> Any:
    """The submodule at ``path``."""
    module: Any = root
    for name in path:
        module = module._modules[name]
    return module


def find_submodule(model: nn.Module, path: str) -> nn.Module | None:
    """The submodule of that name, if there is one."""
    try:
        return model.get_submodule(path)
    except AttributeError:
        return None


def attribute_at(root: nn.Module, path: Sequence[str]) -> Any:
    """The parameter, the buffer, or else the plain attribute at ``path``."""
    owner, name = module_at(root, path[:-1]), path[-1]
    for tensors in (owner._parameters, owner._buffers):
        if name in tensors:
            return tensors[name]
    return getattr(owner, name)


class Members(nn.Module):
    """A module whose own attributes and whose members may have equal names.

    ``get_submodule``, ``get_parameter``, ``get_buffer``, ``set_submodule`` and the keys of
    ``state_dict`` mean the members. ``model.<name>`` means the attribute of the class.
    """

    def get_submodule(self, target: str) -> nn.Module:
        """torch's own; a member comes before an attribute of the class."""
        first, _, rest = target.partition(".")
        member = self._modules.get(first)
        if member is None:
            return super().get_submodule(target)
        if not rest:
            return member  # a scripted one has no get_submodule
        return member.get_submodule(rest)

    def set_submodule(self, target: str, module: nn.Module, strict: bool = False) -> None:
        """torch's own; a member comes before an attribute of the class."""
        if target in self._modules and isinstance(module, nn.Module):
            self._modules[target] = module
        else:
            super().set_submodule(target, module, strict)

    def get_parameter(self, target: str) -> nn.Parameter:
        """torch's own; a member comes before an attribute of the class."""
        found = self._parameters.get(target)
        return super().get_parameter(target) if found is None else found

    def get_buffer(self, target: str) -> Tensor:
        """torch's own; a member comes before an attribute of the class."""
        found = self._buffers.get(target)
        return super().get_buffer(target) if found is None else found

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in _own_names(type(self)):  # type: ignore[arg-type]
            super().__setattr__(name, value)
        elif isinstance(value, nn.Module):
            self._modules[name] = value
        elif isinstance(value, nn.Parameter):
            self._parameters[name] = value
        elif isinstance(value, Tensor) and name in self._buffers:
            self._buffers[name] = value
        else:
            object.__setattr__(self, name, value)


@functools.cache
def _own_names(cls: type) -> frozenset[str]:
    """Names that the classes below :class:`Members` define or announce by an annotation."""
    below = cls.__mro__[: cls.__mro__.index(Members)]
    return frozenset().union(*({*vars(c), *vars(c).get("__annotations__", ())} for c in below))
