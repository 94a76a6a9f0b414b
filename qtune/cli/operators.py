"""Which operators a command looks at, and which of them is to blame."""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from typing import Any

from qtune.analysis.compare import LayerComparison
from qtune.cli.sources import load_object

STEPS = "max_qscale_diff"


def op_types(args: argparse.Namespace) -> tuple[Any, ...] | None:
    """The classes and functions of ``--op-type``; ``None`` for all."""
    if args.op_type is None:
        return None
    return tuple(load_object(spec, "--op-type") for spec in args.op_type)


def prefixes(args: argparse.Namespace) -> tuple[str, ...] | None:
    """The names of ``--prefix``; ``None`` for all."""
    return None if args.prefix is None else tuple(args.prefix)


def blame_column(layers: LayerComparison) -> str:
    """The column that points at the culprit: an operator's own error, else the steps it differs."""
    own = [name for name in layers.columns if name.startswith("own_")]
    return own[0] if own else STEPS


def by_blame(layers: LayerComparison) -> list[int]:
    """Places of the operators, those to blame first; NaN is the worst, without a value the last."""
    column = blame_column(layers)

    def badness(place: int) -> float:
        value = layers.rows[place][column]
        if value is None:
            return -math.inf
        return math.inf if math.isnan(value) else float(value)

    return sorted(range(len(layers)), key=badness, reverse=True)


def worst_operator(layers: LayerComparison) -> str | None:
    """The operator to blame; ``None`` where nothing is compared."""
    order: Sequence[int] = by_blame(layers)
    return layers.names[order[0]] if order else None
