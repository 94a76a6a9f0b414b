"""Parameters of older versions: accepted, without effect, with a warning that says what to use."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import torch

from qtune.errors import AnalysisError, ArgumentError
from qtune.profiler.metric import metric_of_old_name

_DEVICE = "pass device_ids to QuantAnalysis"
_REGISTER = "register the metric with Metric.register and pass it in metric_list"

OLD_PARAMETERS: dict[str, dict[str, str]] = {
    "auto_find_bad_case": {
        "metric": "all of metric_list are searched; choose one in run or sensitivity",
        "device": _DEVICE,
        "custom_metric_func": _REGISTER,
        "custom_metric_order_seq": _REGISTER,
    },
    "run": {"device": _DEVICE},
    "sensitivity": {
        "device": _DEVICE,
        "reserve": "read the table from its end for operators that are not sensitive",
    },
}
"""Method -> parameter -> what to do now."""


def accept_old(method: str, given: Mapping[str, Any]) -> bool:
    """Warn about each old parameter in ``given``, and return whether there is one.

    Named is the line of the user's call: called by a method that is ``in_step``.

    ``TypeError`` for any other name.
    """
    known = OLD_PARAMETERS[method]
    unknown = [name for name in given if name not in known]
    if unknown:
        raise TypeError(f"{method}() got an unexpected keyword argument {unknown[0]!r}")
    for name in given:
        warnings.warn(
            f"QuantAnalysis.{method}: {name} is deprecated and has no effect; {known[name]}",
            DeprecationWarning,
            stacklevel=4,
        )
    return bool(given)


def positional(cached_attrs: Any, dump_in_run: Any) -> dict[str, Any]:
    """The old ``metric`` and ``device``, which stood where ``cached_attrs`` and ``dump_in_run`` do.

    ``AnalysisError`` for a string that is no metric.
    """
    old: dict[str, Any] = {}
    if isinstance(cached_attrs, str):
        try:
            old["metric"] = metric_of_old_name(cached_attrs)
        except ArgumentError:
            raise AnalysisError(
                f"auto_find_bad_case: cached_attrs is a tuple of names, got {cached_attrs!r}; pass "
                f"({cached_attrs!r},)"
            ) from None
    if not isinstance(dump_in_run, bool):
        old["device"] = dump_in_run
    return old


def ranking_by_place(metric: Any, prefixes: Any, types: Any) -> tuple[dict[str, Any], Any]:
    """The old ``device`` and ``reserve``, which stood where ``metric`` and ``types`` do, and the
    metric, which stood where ``prefixes`` does; ``({}, None)`` for a call of today.
    """
    is_old = isinstance(prefixes, str | None) and isinstance(types, bool | None)
    if not (is_old and _is_device(metric)):
        return {}, None
    reserve = {} if types is None else {"reserve": types}
    return {"device": metric, **reserve}, prefixes


def _is_device(value: Any) -> bool:
    if not isinstance(value, str):
        return value is None or isinstance(value, (torch.device, int))
    try:
        torch.device(value)
    except RuntimeError:  # the name of a metric
        return False
    return True
