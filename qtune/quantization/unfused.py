"""``check_unfused_operations``: layers of a float model that could be one operation."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

from torch import fx, nn

from qtune.capture.inputs import as_example_list
from qtune.capture.recorder import capture
from qtune.errors import ArgumentError
from qtune.nn.qat import QATOp
from qtune.prepare.fuse import fusible
from qtune.prepare.fuse_modules import fused_layers
from qtune.prepare.operators import Operators
from qtune.report.screen import show
from qtune.report.table import shown_type, text_table

COLUMNS = ("name", "type")
SHARED = "(shared)"


def check_unfused_operations(
    model: nn.Module, example_inputs: Any, print_tabulate: bool = True
) -> list[list[str]]:
    """Names of the operators of every fusible pattern in a float model, group by group.

    Patterns that ``fuse_modules`` has marked are left out. Eager mode fuses nothing else; the
    other ways of ``prepare`` fuse them all, but those with a shared operator, whose name has
    ``(shared)`` behind it. Shows one table for each group.
    """
    if not isinstance(model, nn.Module) or any(isinstance(m, QATOp) for m in model.modules()):
        raise ArgumentError(
            "check_unfused_operations: expected a float model (before prepare) but got "
            f"{type(model).__name__}; check_qat_model takes prepared models"
        )
    examples = as_example_list(example_inputs, "check_unfused_operations", ArgumentError)
    graph = capture(copy.deepcopy(model), examples)
    ops, fusion = fusible(graph, model.training)
    layers = dict(model.named_modules())
    open_groups = [g.nodes for g in fusion.groups if not _is_marked(g.nodes, layers)]
    groups = [_rows(ops, nodes) for nodes in (*open_groups, *(i.nodes for i in fusion.unfused))]
    if print_tabulate:
        text = [text_table(rows, COLUMNS, style="plain") for rows in groups]
        show("Fusable modules are listed below:\n" + "\n\n".join(text) if text else NOTHING)
    return [[name for name, _ in rows] for rows in groups]


NOTHING = "Cannot find any fusable modules which are not fused."


def _is_marked(nodes: Sequence[fx.Node], layers: dict[str, nn.Module]) -> bool:
    found = (layers.get(str(node.meta["name"])) for node in nodes)
    return any(layer is not None and fused_layers(layer) is not None for layer in found)


def _rows(ops: Operators, nodes: Sequence[fx.Node]) -> list[tuple[str, str]]:
    rows = []
    for node in nodes:
        op = ops.op(node)
        calls = len(ops.graph.find_nodes(op="call_module", target=str(node.target)))
        name = str(node.meta["name"]) + (SHARED if calls > 1 else "")
        kind = "" if op is None else op.float_type
        rows.append((name, shown_type(kind)))
    return rows
