"""Which operators a command looks at, and which of them is to blame."""

from __future__ import annotations

import argparse
import math
from typing import Any

from qtune.analysis.compare import OWN_TAIL, LayerComparison
from qtune.cli.sources import load_object

STEPS = "max_qscale_diff"


def op_types(args: argparse.Namespace) -> tuple[Any, ...] | None:
    """The classes and functions of ``--op-type``; ``None`` for all."""
    if args.op_type is None:
        return None
    return tuple(load_object(spec, "--op-type", "torch.nn:Conv2d") for spec in args.op_type)


def prefixes(args: argparse.Namespace) -> tuple[str, ...] | None:
    """The names of ``--prefix``; ``None`` for all."""
    return None if args.prefix is None else tuple(args.prefix)


def by_blame(layers: LayerComparison) -> tuple[list[int], str]:
    """Places of the operators, those to blame first, and the column that says so.

    That is an operator's own error on the baseline's input (see ``LayerComparison.op_errors``); the
    steps by which its result differs where none has an own error.
    """
    place = {name: index for index, name in enumerate(layers.names)}
    own = [place[name] for name in layers.op_errors().names]
    if own:
        return own, OWN_TAIL[1]
    return sorted(
        place.values(), key=lambda i: _badness(layers.rows[i][STEPS]), reverse=True
    ), STEPS


def worst_operator(layers: LayerComparison) -> str | None:
    """The operator to blame; ``None`` where nothing is compared."""
    order, _ = by_blame(layers)
    return layers.names[order[0]] if order else None


def _badness(value: float | None) -> float:
    """NaN is the worst, what has no value the last."""
    if value is None:
        return -math.inf
    return math.inf if math.isnan(value) else value
