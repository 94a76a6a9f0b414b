"""``check_qconfig``: how every operator is quantized, as ``qconfig_info.txt``."""

from __future__ import annotations

import os
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from torch import nn

from qtune.capture.inputs import Inputs, as_inputs
from qtune.check.qat_model import report_on
from qtune.check.report import (
    CheckReport,
    Message,
    OutputConfig,
    WeightConfig,
    message_table,
    output_table,
    weight_table,
)
from qtune.errors import ArgumentError
from qtune.nn.eager import as_graph
from qtune.nn.float_mode import all_float
from qtune.nn.prepared import PreparedModel
from qtune.nn.qat.kind import is_of
from qtune.ops.op_types import as_names, as_types
from qtune.report.files import write_text
from qtune.report.screen import show

FILE = "qconfig_info.txt"

CheckFunction = Callable[[nn.Module, Any, Any], None]
_Row = TypeVar("_Row", OutputConfig, WeightConfig, Message)


def check_qconfig(
    model: nn.Module,
    example_inputs: Any,
    prefixes: str | Sequence[str] = (),
    types: Any = (),
    custom_check_func: CheckFunction | None = None,
    out_dir: str | os.PathLike[str] | None = None,
) -> CheckReport:
    """Write ``qconfig_info.txt``: outputs, weights and unusual settings of a prepared model.

    Every call of a shared operator has a line, the later ones with ``(1)``, ``(2)``, ... behind
    the name. The last table is shown on the screen, too. ``prefixes`` and ``types``: only operators
    whose name begins so, or that are of these classes or functions (one, or several);
    both together mean both. ``custom_check_func(module, input, output)`` is called for each of them
    while the model runs once in float. ``out_dir``: default the current directory. Returns the
    report, of all operators.
    """
    inputs = as_inputs(example_inputs, "check_qconfig", ArgumentError)
    graph = as_graph(model, inputs)
    if not isinstance(graph, PreparedModel):
        raise ArgumentError(
            f"check_qconfig: expected a model made by prepare but got {type(model).__name__}"
        )
    whole, graph = graph, graph.select_branch(inputs)
    report = report_on(graph, whole, inputs)
    starts, kinds = as_names(prefixes) or (), as_types(types) or ()
    chosen = dict(_chosen(graph, starts, kinds))
    if not chosen:
        raise ArgumentError(
            f"check_qconfig: no operator begins with {list(starts)} and is one of {list(kinds)}"
        )
    if custom_check_func is not None:
        _run_hooked(graph, inputs, chosen, custom_check_func)
    tables = list(_tables(report, chosen))
    write_text(Path(out_dir or ".") / FILE, "\n\n".join(tables) + "\n")
    show(tables[-1])
    return report


def _chosen(
    model: PreparedModel, prefixes: tuple[str, ...], types: Sequence[Any]
) -> Iterator[tuple[str, nn.Module]]:
    for _, op in model.operators():
        named = not prefixes or op.name.startswith(prefixes)
        if named and (not types or is_of(op, types)):
            yield op.name, op


def _tables(report: CheckReport, chosen: Container[str]) -> Iterator[str]:
    """Every call of a shared operator has a row."""
    counts = report.call_counts

    def rows(items: Sequence[_Row]) -> list[_Row]:
        return [
            replace(item, name=name)
            for item in items
            if item.name in chosen
            for name in _calls(item.name, counts.get(item.name, 1))
        ]

    yield output_table(rows(report.outputs))
    yield weight_table(rows(report.weights))
    yield message_table(rows(report.messages))


def _calls(name: str, count: int) -> list[str]:
    return [name, *(f"{name}({number})" for number in range(1, count))]


def _run_hooked(
    model: PreparedModel, inputs: Inputs, chosen: Mapping[str, nn.Module], check: CheckFunction
) -> None:
    handles = [
        module.register_forward_hook(lambda m, args, result: check(m, args, result))
        for module in dict.fromkeys(chosen.values())
    ]
    try:
        with all_float(model):
            model(*inputs.args, **inputs.kwargs)
    finally:
        for handle in handles:
            handle.remove()
