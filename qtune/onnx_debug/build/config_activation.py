"""``model_config: activation`` of a configuration: which methods of calibration are tried."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from qtune.errors import ArgumentError
from qtune.onnx_debug.build.methods import (
    BINS,
    METHODS,
    MOST_BINS,
    PERCENTILE,
    Method,
    needs_histogram,
)
from qtune.onnx_debug.build.named import flag, one_of, section

WHERE = "quant_config: model_config: activation"
SKIP, LOAD = "skip", "load"
_ALONE: Sequence[Any] = (SKIP, LOAD)
"""``skip``: random data serve. ``load``: the grids of the file are all."""

_KEYS = (
    "calibration_type",
    "num_bin",
    "max_num_bin",
    "max_percentile",
    "per_channel",
    "asymmetric",
)
_OPTIONS = ("num_bin", "max_num_bin", "max_percentile")
_LEAST = {"num_bin": 129, "max_num_bin": 258}
_LARGEST_BINS = 1 << 20
_LACKING = {
    "histogram": "it is documented by name only; several methods under calibration_type, with "
    "modelwise_search or layerwise_search, choose by the loss",
}
"""Documented methods that are not done here -> what to do."""


def read_activation(model: Mapping[str, Any]) -> tuple[tuple[Method, ...], str]:
    """The methods (none for the automatic choice), and ``skip``, ``load`` or nothing."""
    given = section(WHERE, model.get("activation"), _KEYS)
    for key in ("per_channel", "asymmetric"):
        if flag(f"{WHERE}: {key}", given.get(key, False)):
            raise ArgumentError(
                f"{WHERE}: {key} is asked for, but the BPU takes one symmetric scale per tensor "
                "of activations; leave it out"
            )
    options = {key: given[key] for key in _OPTIONS if given.get(key) is not None}
    names = _names(given.get("calibration_type"))
    if names and names[0] in _ALONE:
        _refuse_unused(options, (), names[0])
        return (Method("max"),), names[0]
    if not names and options:
        names = ["max"] if set(options) == {"max_percentile"} else ["kl"]
    methods = tuple(m for name in names for m in variants(name, options))
    _refuse_unused(options, methods)
    return tuple(dict.fromkeys(methods)), ""


def _names(given: Any) -> list[str]:
    where = f"{WHERE}: calibration_type"
    if given is None:
        return []
    listed = [given] if isinstance(given, str) else given
    if not isinstance(listed, (list, tuple)) or not listed:
        raise ArgumentError(f"{where}: expected a name or a list of names, got {given!r}")
    for name in listed:
        check_method(where, name)
        if name in _ALONE and len(listed) > 1:
            raise ArgumentError(f"{where}: {name} can't be one of several")
    return list(dict.fromkeys(listed))


def check_method(where: str, name: Any, *more: str) -> str:
    """``name`` if it is a method of calibration, or one of ``more``."""
    if isinstance(name, str) and name in _LACKING:
        raise NotImplementedError(f"{where}: {name} has no form here: {_LACKING[name]}")
    return one_of(where, name, (*more, *METHODS, *_ALONE))


def variants(name: str, options: Mapping[str, Any]) -> list[Method]:
    """One method for every combination of the options, each a value or a list of them."""
    default = PERCENTILE if name == "percentile" else 1.0
    percentiles = [_share(v) for v in _listed("max_percentile", options, default)]
    bins = [_whole("num_bin", v) for v in _listed("num_bin", options, BINS)]
    most = _whole("max_num_bin", options.get("max_num_bin", MOST_BINS))
    if max(bins) > most:
        raise ArgumentError(f"{WHERE}: num_bin {max(bins)} is above max_num_bin {most}")
    if name in ("max", "percentile"):
        return [Method(name, share, bins[0], most) for share in percentiles]
    return [Method(name, 1.0, count, most) for count in bins]


def _refuse_unused(options: Mapping[str, Any], methods: Sequence[Method], kind: str = "") -> None:
    """An option that no method looks at would be accepted and ignored."""
    uses_shares = any(method.name in ("max", "percentile") for method in methods)
    used = {"max_percentile"} if uses_shares else set()
    if any(needs_histogram(method) for method in methods):
        used |= {"num_bin", "max_num_bin"}
    many = isinstance(options.get("num_bin"), (list, tuple)) and len(options["num_bin"]) > 1
    if many and not any(method.name in ("kl", "mix") for method in methods):
        used -= {"num_bin"}
    for key in options:
        if key not in used:
            names = ", ".join(dict.fromkeys(method.label for method in methods)) or kind
            raise ArgumentError(
                f"{WHERE}: {key} has no effect on {names}; bins are those of kl, mix and shares "
                "below 1, max_percentile is that of max and percentile. Leave it out, or name "
                "another calibration_type"
            )


def _listed(key: str, options: Mapping[str, Any], default: Any) -> list[Any]:
    value = options.get(key, default)
    if not isinstance(value, (list, tuple)):
        return [value]
    if not value:
        raise ArgumentError(f"{WHERE}: {key}: expected a number or a list of them, got {value!r}")
    return list(value)


def _share(value: Any) -> float:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not is_number or not 0.5 <= value <= 1.0:
        raise ArgumentError(f"{WHERE}: max_percentile is a share from 0.5 to 1.0, got {value!r}")
    return float(value)


def _whole(key: str, value: Any) -> int:
    is_whole = isinstance(value, int) and not isinstance(value, bool)
    if not is_whole or not _LEAST[key] <= value <= _LARGEST_BINS:
        raise ArgumentError(
            f"{WHERE}: {key} is a whole number from {_LEAST[key]} to {_LARGEST_BINS}, got {value!r}"
        )
    return int(value)
