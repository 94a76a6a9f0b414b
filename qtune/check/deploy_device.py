"""``check_deploy_device``: what runs on the BPU and what on the CPU (toolchain_facts 8.2)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from torch import fx, nn

from qtune.capture.graph import GraphModel
from qtune.check.border import stub_kind
from qtune.errors import ArgumentError
from qtune.nn.qat.op import QATOp
from qtune.nn.quantized import PreservedOp, QuantizedOp
from qtune.report.files import write_text
from qtune.report.screen import show
from qtune.report.table import text_table

FILE = "deploy_device.txt"
COLUMNS = ("name", "deploy device", "type")
BPU, CPU = "BPU", "CPU"
_METHOD, _FUNCTION, _MODULE = "method", "function", "module"


def check_deploy_device(
    model: Any, print_tabulate: bool = True, out_dir: str | os.PathLike[str] | None = None
) -> dict[str, tuple[str, str]]:
    """Operator -> (``BPU`` or ``CPU``, ``module``, ``function`` or ``method``) in running order.

    Quantize and dequantize stubs run on the CPU; so does everything that stays float, for which
    ``model.float_ops`` tells why, and what ``set_preserve_qat_mode`` keeps. Shows the table and
    writes it to ``deploy_device.txt`` in ``out_dir`` (default: the current directory). Needs a
    prepared or converted model with a graph (not one of eager mode).
    """
    if not isinstance(model, GraphModel) or not any(map(_is_operator, model.modules())):
        raise ArgumentError(
            "check_deploy_device: expected a model with a graph, made by prepare, prepare_qat_fx "
            f"or convert_fx, but got {type(model).__module__}.{type(model).__qualname__}"
        )
    found = dict(_devices(model))
    rows = [(name, *what) for name, what in found.items()]
    table = text_table(rows, COLUMNS, style="plain")
    if print_tabulate:
        show(table)
    write_text(Path(out_dir or ".") / FILE, table + "\n")
    return found


def _is_operator(module: nn.Module) -> bool:
    return isinstance(module, (QATOp, QuantizedOp))


def _devices(model: GraphModel) -> Iterator[tuple[str, tuple[str, str]]]:
    floats = {item.name for item in getattr(model, "float_ops", ())}
    for node in model.graph.nodes:
        name = node.meta.get("name")
        if name is None:
            continue
        op = _operator(model, node)
        on_cpu = op is None or name in floats or stub_kind(op) != "" or _is_kept(model, node)
        yield name, (CPU if on_cpu else BPU, _kind(node, op))


def _operator(model: GraphModel, node: fx.Node) -> QATOp | None:
    """The operator of a node; the last one of a converted group."""
    module = model.get_submodule(str(node.target)) if node.op == "call_module" else None
    if isinstance(module, (QuantizedOp, PreservedOp)):
        module = module.members[-1]
    return module if isinstance(module, QATOp) else None


def _is_kept(model: GraphModel, node: fx.Node) -> bool:
    return isinstance(model.get_submodule(str(node.target)), PreservedOp)


def _kind(node: fx.Node, op: QATOp | None) -> str:
    """How the user's model writes the call."""
    if op is None:
        return {"call_module": _MODULE, "call_method": _METHOD}.get(node.op, _FUNCTION)
    if op.float_type.startswith("torch.Tensor."):
        return _METHOD
    last = op.float_type.rpartition(".")[2]
    return _MODULE if last[:1].isupper() else _FUNCTION
