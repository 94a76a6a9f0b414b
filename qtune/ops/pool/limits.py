"""Limits of pools per march, as data (toolchain_facts sections 7.1 and 7.2)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any

from qtune.ops.spec import MarchRule

Check = Callable[[Mapping[str, Any], Sequence[Any], tuple[int, ...]], str | None]


def _within(kernel: int, stride: int, pad: int, size: int | None = None) -> Check:
    limits = {"kernel_size": kernel, "stride": stride, "padding": pad}

    def check(attrs: Mapping[str, Any], inputs: Sequence[Any], output: Any) -> str | None:
        for key, limit in limits.items():
            # A size that the model computes is known at export only.
            value = attrs.get(key, 0)
            values = tuple(value) if isinstance(value, Sequence) else (value,)
            if max(values) > limit:
                return f"{key} {values}; at most {limit}"
        if size is not None and max(inputs[0]) > size:
            return f"input shape {tuple(inputs[0])}; sizes up to {size}"
        return None

    return check


def avg_pool_march() -> tuple[MarchRule, ...]:
    """Rules of the average pools."""
    wide = _within(256, 256, 256)
    return (
        MarchRule(("bernoulli",), ("qint8",), ("qint8",), _within(7, 185, 256)),
        MarchRule(("bayes", "nash"), check=wide),
    )


def max_pool_march() -> tuple[MarchRule, ...]:
    """Rules of the max pools."""
    return (
        MarchRule(("bernoulli",), ("qint8",), ("qint8",), _within(64, 256, 256)),
        MarchRule(("bayes",), check=_within(256, 256, 255, 8192)),
        MarchRule(("nash",), check=_within(256, 256, 256)),
    )


def window_flops(attrs: Mapping[str, Any], inputs: Sequence[Any], output: Sequence[int]) -> int:
    """One operation for each element of each window; of the input where windows are computed."""
    kernel = attrs.get("kernel_size")
    return prod(inputs[0]) if kernel is None else prod(output) * prod(pair_or_one(kernel))


def pair_or_one(kernel: Any) -> tuple[int, ...]:
    """The sides of a kernel of one or two dimensions."""
    return tuple(map(int, kernel)) if isinstance(kernel, Sequence) else (int(kernel),)


def _plane(attrs: Mapping[str, Any], inputs: Sequence[Any], output: Any) -> str | None:
    height, width = inputs[0][-2:]
    if height * width > 65535:
        return f"a map of {height} x {width}; up to 65535 elements are averaged"
    return None


def adaptive_march() -> tuple[MarchRule, ...]:
    """Rules of the adaptive average pools, which are reductions of at most 65535 elements."""
    return (
        MarchRule(("bernoulli",), ("qint8",), ("qint8",), _plane),
        MarchRule(("bayes", "nash"), check=_plane),
    )
