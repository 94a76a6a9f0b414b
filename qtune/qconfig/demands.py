"""Operands that need a dtype for their meaning: the coordinates of a sampling are int16.

A coordinate in int8 can't point between 256 elements, so what makes it is set to int16 as well,
back to the nearest GEMM or QuantStub, whose result still is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from qtune.dtype import QuantDType
from qtune.ops.spec import Rule
from qtune.qconfig.plan import OpView


def demanded(views: Sequence[OpView]) -> list[OpView]:
    """The views, with ``forced_dtype`` on every operator that makes an operand of ``wants``."""
    members: dict[str, list[OpView]] = {}
    for view in views:
        members.setdefault(view.group or view.name, []).append(view)
    forced: dict[str, tuple[QuantDType, str]] = {}
    for view in views:
        for index, source in enumerate(view.producers):
            dtype = view.wants.get(view.role(index))
            if source is not None and dtype is not None:
                reason = f"{view.name} ({view.op}) takes its {view.role(index)} in {dtype}"
                _walk_back(source, members, forced, (dtype, reason))
    return [_with(view, forced) for view in views]


def _walk_back(
    start: str,
    members: dict[str, list[OpView]],
    forced: dict[str, tuple[QuantDType, str]],
    demand: tuple[QuantDType, str],
) -> None:
    waiting = [start]
    while waiting:
        name = waiting.pop()
        if name in forced or name not in members:
            continue
        forced[name] = demand
        group = members[name]
        if any(view.is_gemm or view.takes_float for view in group):
            continue
        waiting.extend(source for view in group for source in view.producers if source is not None)


def _with(view: OpView, forced: dict[str, tuple[QuantDType, str]]) -> OpView:
    known = forced.get(view.name)
    has_scale = view.rule in (Rule.OWN_SCALE, Rule.TABLE)
    if known is None or not has_scale or view.forced_dtype is not None:
        return view
    return replace(view, forced_dtype=known[0], forced_by=known[1])
