"""``prefixes`` and ``types``: which operators of a model the caller means."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import nn

from qtune.analysis.ablation import all_ports, is_selected
from qtune.errors import AnalysisError
from qtune.nn.qat.op import iter_ops
from qtune.ops.op_types import nearest
from qtune.profiler.observe import type_name

_SHOWN = 5


def check_selection(
    model: nn.Module, prefixes: Sequence[str] | None, types: Sequence[Any] | None
) -> None:
    """Raise ``AnalysisError`` for a prefix or a type that no operator of ``model`` answers to.

    Also where operators answer, but none has a fake-quantize. ``model``: with all its branches.
    """
    names = [op.name for op in iter_ops(model)]
    for prefix in prefixes or ():
        if not any(name.startswith(prefix) for name in names):
            near = nearest(prefix, names)
            raise AnalysisError(
                f"sensitivity: no operator's name begins with {prefix!r}; "
                + (f"near it: {', '.join(near)}" if near else f"there are {_some(names)}")
            )
    for wanted in types or ():
        if not any(is_selected(op, None, (wanted,)) for op in iter_ops(model)):
            known = sorted({type_name(op) for op in iter_ops(model)})
            raise AnalysisError(
                f"sensitivity: no operator is of the type {wanted!r}; this model has: "
                f"{', '.join(known)}"
            )
    if (prefixes is not None or types is not None) and not all_ports(model, prefixes, types):
        raise AnalysisError(f"sensitivity: {_why_empty(model, prefixes, types)}")


def _why_empty(
    model: nn.Module, prefixes: Sequence[str] | None, types: Sequence[Any] | None
) -> str:
    found = [op.name for op in iter_ops(model) if is_selected(op, prefixes, types)]
    if found:
        return (
            f"{_some(found)} have no fake-quantize of their own (in a fused group the last "
            "operator has it, and the weight); name others"
        )
    if prefixes and types:
        return f"no operator has both one of the prefixes {prefixes} and one of the types {types}"
    return "prefixes and types are empty; leave them out to rank everything"


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more
