"""The operators of prepared models, one class per operator: ``Conv2d``, ``ReLU``, ``Add``, ...

The classes are made from the registry on first use; each is a :class:`~qtune.nn.qat.op.QATOp`
named like the float class, so that models pickle and print as one expects.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from qtune.nn.qat.op import QATOp, iter_ops, iter_ports, iter_stubs
from qtune.ops.registry import specs
from qtune.ops.spec import ModuleTarget, OpSpec

__all__ = ["QATOp", "class_name", "iter_ops", "iter_ports", "iter_stubs", "qat_class"]


def class_name(spec: OpSpec, float_class: type | None = None) -> str:
    """Name of an operator's class: that of the float class, else the operator's own.

    ``float_class`` is the registered base class where the model uses a subclass of it. A function
    takes the name of the module class of the same name (``F.conv2d`` -> ``Conv2d``).
    """
    if float_class is not None:
        return float_class.__name__
    plain = spec.name.replace("_", "")
    for target in spec.targets:
        if isinstance(target, ModuleTarget) and target.cls.__name__.lower() == plain:
            return target.cls.__name__
    return "".join(part.capitalize() for part in spec.name.split("_"))


def qat_class(spec: OpSpec, float_class: type | None = None) -> type[QATOp]:
    """The class of an operator (see :func:`class_name`)."""
    return _make(class_name(spec, float_class))


@cache
def _names() -> frozenset[str]:
    names = set()
    for spec in specs().values():
        names.add(class_name(spec))
        names.update(t.cls.__name__ for t in spec.targets if isinstance(t, ModuleTarget))
    return frozenset(names)


@cache
def _make(name: str) -> type[QATOp]:
    text = f"The operator of a prepared model that stands for ``{name}``."
    return type(name, (QATOp,), {"__module__": __name__, "__qualname__": name, "__doc__": text})


def __getattr__(name: str) -> Any:
    if not name.startswith("_") and name in _names():
        return _make(name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(set(__all__) | _names())
