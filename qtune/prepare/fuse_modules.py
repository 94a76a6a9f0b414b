"""``fuse_modules`` and ``fuse_known_modules``: which layers of an eager model are one operation.

Fusing marks the layers and changes no number: they stay where they are under their own names.
``prepare`` in eager mode makes one group of them: the last one has the scale, and the QAT mode
says what becomes of the batch norm. The other ways of ``prepare`` find the groups themselves.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import nn

from qtune.errors import PrepareError
from qtune.nn.qat.functional import is_functional
from qtune.ops.registry import find_module
from qtune.ops.spec import FuseRole

_MARK = "_qtune_fused"
_ORDER = (FuseRole.GEMM, FuseRole.BN, FuseRole.ADD, FuseRole.RELU)

Fuser = Callable[..., Sequence[nn.Module]]


class FusedLayers:
    """The layers of one group, in order of execution."""

    def __init__(self, members: Sequence[nn.Module]) -> None:
        self.members = tuple(members)


def fuse_known_modules(
    mod_list: Sequence[nn.Module],
    is_qat: bool = False,
    additional_fuser_method_mapping: Mapping[Any, Any] | None = None,
) -> list[nn.Module]:
    """Mark ``mod_list`` as one operation and return the same layers, for ``fuse_modules``.

    A convolution or linear layer, then a batch norm, the ``FloatFunctional`` of an add and a relu,
    each of them optional, in the order in which forward calls them. ``is_qat`` changes nothing:
    the QAT mode decides about the batch norm. Raises ``PrepareError`` for anything else.
    """
    if additional_fuser_method_mapping:
        raise PrepareError(
            "fuse_known_modules: additional_fuser_method_mapping replaces modules by classes of "
            "other packages, which have no quantized form here; leave it out"
        )
    roles = [_role(module) for module in mod_list]
    places = [_ORDER.index(role) for role in roles if role is not None]
    in_order = all(a < b for a, b in zip(places, places[1:], strict=False))
    if len(places) != len(roles) or not in_order or len(roles) < 2 or roles[0] is not FuseRole.GEMM:
        found = ", ".join(type(module).__name__ for module in mod_list)
        raise PrepareError(
            f"fuse_modules: [{found}] is no known pattern. Known are a convolution or Linear, then "
            "any of BatchNorm, FloatFunctional (add), ReLU, in the order in which forward calls "
            "them"
        )
    for module in mod_list:
        if fused_layers(module) is not None:
            raise PrepareError(f"fuse_modules: {type(module).__name__} is fused already")
    group = FusedLayers(mod_list)
    for module in mod_list:
        vars(module)[_MARK] = group
    return list(mod_list)


def fuse_modules(
    model: nn.Module,
    modules_to_fuse: Sequence[Any],
    inplace: bool = False,
    fuser_func: Fuser = fuse_known_modules,
    fuse_custom_config_dict: Mapping[str, Any] | None = None,
) -> nn.Module:
    """Fuse lists of layers, given by their names in ``model``; return the model, or a copy.

    ``modules_to_fuse``: one list of names or a list of such lists. The call is torch's
    (``torch.ao.quantization.fuse_modules``), which also works with our ``fuse_known_modules``.
    """
    result = model if inplace else copy.deepcopy(model)
    custom = dict(fuse_custom_config_dict or {})
    mapping = custom.pop("additional_fuser_method_mapping", None)
    if custom:
        raise PrepareError(
            "fuse_modules: fuse_custom_config_dict takes 'additional_fuser_method_mapping', got "
            f"{', '.join(map(repr, custom))}"
        )
    single = all(isinstance(item, str) for item in modules_to_fuse)
    for names in [modules_to_fuse] if single else modules_to_fuse:
        layers = [_layer(result, name) for name in names]
        fused = fuser_func(layers, additional_fuser_method_mapping=mapping)
        for name, old, new in zip(names, layers, fused, strict=True):
            if new is not old:
                result.set_submodule(name, new)
    return result


def fused_layers(module: nn.Module) -> tuple[nn.Module, ...] | None:
    """The group that ``module`` was fused into, itself included; ``None`` if it was not."""
    group = vars(module).get(_MARK)
    return group.members if isinstance(group, FusedLayers) else None


def _layer(model: nn.Module, name: str) -> nn.Module:
    try:
        return model.get_submodule(name)
    except AttributeError as error:
        raise PrepareError(
            f"fuse_modules: {type(model).__name__} has no layer {name!r} ({error})"
        ) from None


def _role(module: nn.Module) -> FuseRole | None:
    if is_functional(module):
        return FuseRole.ADD
    found = find_module(type(module))
    return None if found is None else found[0].fuse
