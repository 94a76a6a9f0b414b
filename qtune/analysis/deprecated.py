"""Parameters of older versions: accepted, without effect, with a warning that says what to use."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

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


def accept_old(method: str, given: Mapping[str, Any]) -> None:
    """Warn about each old parameter in ``given``; ``TypeError`` for any other name."""
    known = OLD_PARAMETERS[method]
    unknown = [name for name in given if name not in known]
    if unknown:
        raise TypeError(f"{method}() got an unexpected keyword argument {unknown[0]!r}")
    for name in given:
        warnings.warn(
            f"QuantAnalysis.{method}: {name} is deprecated and has no effect; {known[name]}",
            DeprecationWarning,
            stacklevel=3,
        )
