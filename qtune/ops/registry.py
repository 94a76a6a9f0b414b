"""The one table of operators. Filled on first use by importing every file of the families."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping
from functools import cache
from types import MappingProxyType
from typing import Any

import torch

from qtune.errors import RegistryError
from qtune.ops.kernel import HbirKernel
from qtune.ops.spec import (
    ForeignTarget,
    FunctionTarget,
    MethodTarget,
    ModuleTarget,
    OpSpec,
    Target,
)

_specs: dict[str, OpSpec] = {}
_kernels: dict[tuple[str, str], HbirKernel] = {}


def register(spec: OpSpec) -> OpSpec:
    """Enter an operator; its name, targets and kernels must be new."""
    if spec.name in _specs:
        raise RegistryError(f"operator {spec.name!r} is registered twice; rename one of them")
    _specs[spec.name] = spec
    for kernel in spec.kernels:
        register_kernel(kernel)
    for index in (_index, _foreign, kernel_owners):  # made before, without an operator of a user's
        index.cache_clear()
    return spec


def register_kernel(kernel: HbirKernel) -> HbirKernel:
    """Enter an HBIR operator that belongs to no torch operator (Quantize, Requantize, ...)."""
    key = (kernel.domain, kernel.op_type)
    if key in _kernels:
        raise RegistryError(f"HBIR operator {key} is registered twice; one file must own it")
    _kernels[key] = kernel
    return kernel


@cache
def _load() -> None:
    import qtune.ops

    for family in pkgutil.iter_modules(qtune.ops.__path__):
        if not family.ispkg:
            continue
        package = importlib.import_module(f"qtune.ops.{family.name}")
        for module in pkgutil.iter_modules(package.__path__):
            importlib.import_module(f"{package.__name__}.{module.name}")


def specs() -> Mapping[str, OpSpec]:
    """All operators by name."""
    _load()
    return MappingProxyType(_specs)


def spec(name: str) -> OpSpec:
    """The operator called ``name``."""
    _load()
    try:
        return _specs[name]
    except KeyError:
        raise RegistryError(f"no operator {name!r}; known: {', '.join(sorted(_specs))}") from None


def kernel(domain: str, op_type: str) -> HbirKernel | None:
    """The HBIR operator, or ``None`` if nothing owns it."""
    _load()
    return _kernels.get((domain, op_type))


def kernels() -> Mapping[tuple[str, str], HbirKernel]:
    """All HBIR operators by (domain, op_type)."""
    _load()
    return MappingProxyType(_kernels)


@cache
def kernel_owners() -> Mapping[tuple[str, str], OpSpec]:
    """The operator that an HBIR operator belongs to, by (domain, op_type)."""
    return {(k.domain, k.op_type): entry for entry in specs().values() for k in entry.kernels}


@cache
def _index() -> dict[Any, tuple[OpSpec, Target]]:
    _load()
    index: dict[Any, tuple[OpSpec, Target]] = {}
    for entry in _specs.values():
        for target in entry.targets:
            key = _key(target)
            if key in index:
                raise RegistryError(f"{key} is claimed by {index[key][0].name} and {entry.name}")
            index[key] = (entry, target)
    return index


def _key(target: Target) -> Any:
    if isinstance(target, ModuleTarget):
        return ("module", target.cls)
    if isinstance(target, FunctionTarget):
        return ("function", target.function)
    if isinstance(target, MethodTarget):
        return ("method", target.name)
    raise RegistryError(f"not a target: {target!r}")


def find_module(cls: type) -> tuple[OpSpec, ModuleTarget] | None:
    """The operator of a module class: its own entry, or that of the nearest base class."""
    for base in cls.__mro__:
        found = _index().get(("module", base))
        if found is not None:
            return found  # type: ignore[return-value]
        foreign = _foreign().get(f"{base.__module__}.{base.__qualname__}")
        if foreign is not None:
            entry, target = foreign
            return entry, ModuleTarget(base, target.bind, target.params)
    return None


def find_function(function: Any) -> tuple[OpSpec, FunctionTarget] | None:
    """The operator of a function (``torch.add``, ``operator.add``, ``F.relu``)."""
    try:
        found = _index().get(("function", function))
    except TypeError:
        return None
    if found is not None:
        return found  # type: ignore[return-value]
    foreign = _foreign().get(_operator_name(function))
    if foreign is None:
        return None
    return foreign[0], FunctionTarget(function, foreign[1].bind)


def _operator_name(function: Any) -> str:
    """``torchvision.deform_conv2d`` of an operator of ``torch.ops``, ``""`` of anything else."""
    if isinstance(function, torch._ops.OpOverload):
        function = function.overloadpacket
    if not isinstance(function, torch._ops.OpOverloadPacket):
        return ""
    return str(function._qualified_op_name).replace("::", ".")


@cache
def _foreign() -> dict[str, tuple[OpSpec, ForeignTarget]]:
    _load()
    return {target.name: (entry, target) for entry in _specs.values() for target in entry.foreign}


def find_method(name: str) -> tuple[OpSpec, MethodTarget] | None:
    """The operator of a tensor method (``relu_``, ``__add__``, ``view``)."""
    return _index().get(("method", name))  # type: ignore[return-value]
