"""``hybrid``: which operators run in float on the CPU, between dequantize and quantize."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from torch import fx, nn

from qtune.errors import PrepareError
from qtune.march import March
from qtune.ops.spec import Rule
from qtune.prepare.configure import operator_views
from qtune.prepare.operators import Operators
from qtune.prepare.region import Region
from qtune.qconfig.march_check import refusal

_KEYS = ("module_name", "module_type")


@dataclass(frozen=True, slots=True)
class Hybrid:
    """The operators that the user keeps on the CPU.

    ``enabled``: whether operators that the march can't run go there, too. ``names``: of operators
    or of modules that contain them. ``types``: module classes.
    """

    enabled: bool = False
    names: tuple[str, ...] = ()
    types: tuple[type, ...] = ()

    @classmethod
    def of(cls, hybrid: Any, hybrid_dict: Any) -> Hybrid:
        """Read the arguments of ``prepare``; raise ``PrepareError`` for others."""
        if not isinstance(hybrid, bool):
            raise PrepareError(f"prepare: hybrid must be True or False but got {hybrid!r}")
        if hybrid_dict is None:
            return cls(hybrid)
        if not hybrid:
            raise PrepareError("prepare: hybrid_dict needs hybrid=True")
        if not isinstance(hybrid_dict, Mapping) or not set(hybrid_dict) <= set(_KEYS):
            raise PrepareError(
                "prepare: hybrid_dict takes lists under 'module_name' and 'module_type', got "
                f"{hybrid_dict!r}"
            )
        names, types = (_list(key, hybrid_dict.get(key)) for key in _KEYS)
        if not all(isinstance(name, str) and name for name in names):
            raise PrepareError(f"prepare: hybrid_dict['module_name'] holds names, got {names!r}")
        if not all(isinstance(item, type) for item in types):
            raise PrepareError(f"prepare: hybrid_dict['module_type'] holds classes, got {types!r}")
        return cls(True, tuple(names), tuple(types))

    def chosen(self, ops: Operators, model: nn.Module) -> dict[str, str]:
        """Operators that the user chose, and why; ``PrepareError`` for what names none."""
        paths = {name: f"hybrid_dict names {name}" for name in self.names}
        for path, module in model.named_modules():
            if isinstance(module, self.types):
                paths[path] = f"hybrid_dict has its type {type(module).__name__}"
        found: dict[str, str] = {}
        used: set[str] = set()
        for node in ops.graph.nodes:
            if ops.op(node) is None:
                continue
            hits = [path for path in paths if _inside(path, node)]
            used.update(hits)
            if hits:
                found[node.meta["name"]] = paths[max(hits, key=len)]
        self._check_used(used, ops, model)
        return found

    def _check_used(self, used: set[str], ops: Operators, model: nn.Module) -> None:
        known = {str(node.meta["name"]) for node in ops.graph.nodes if "name" in node.meta}
        known |= {path for path, _ in model.named_modules() if path}
        for name in self.names:
            if name not in used:
                near = ", ".join(get_close_matches(name, sorted(known), n=3))
                hint = f"; close: {near}" if near else ""
                raise PrepareError(
                    f"prepare: hybrid_dict['module_name'] has {name!r}, but no operator has this "
                    f"name or lies in a module of this name{hint}"
                )
        for cls in self.types:
            if not any(path in used for path, m in model.named_modules() if isinstance(m, cls)):
                raise PrepareError(
                    f"prepare: hybrid_dict['module_type'] has {cls.__name__}, but no operator lies "
                    "in a module of this type"
                )


def refused_whole(
    ops: Operators, region: Region, model: nn.Module, march: March
) -> dict[str, tuple[str, str]]:
    """Operators that would be decomposed but that the march lacks: name -> (operator, reason)."""
    composed = {
        op.name
        for node in region.quantized
        if (op := ops.op(node)) is not None and op.spec.rule is Rule.DECOMPOSED
    }
    found = {}
    for view in operator_views(ops, region, model) if composed else ():
        reason = refusal(view, march) if view.name in composed else None
        if reason is not None:
            found[view.name] = (view.op, reason)
    return found


def _list(key: str, value: Any) -> Sequence[Any]:
    if value is None:
        return ()
    if not isinstance(value, (list, tuple)):
        raise PrepareError(f"prepare: hybrid_dict[{key!r}] must be a list but got {value!r}")
    return value


def _inside(path: str, node: fx.Node) -> bool:
    """Whether the operator is ``path``, or lies in the module there."""
    places = (str(node.meta.get(key, "")) for key in ("name", "origin", "scope"))
    return any(f"{place}.".startswith(f"{path}.") for place in places if place) or not path
