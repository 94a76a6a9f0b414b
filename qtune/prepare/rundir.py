"""The files that ``prepare`` leaves behind, and where.

The run directory is ``./.model_check_results``; the environment variable ``QTUNE_RUN_DIR`` names
another one, empty it turns the files off. Where it is not set, :func:`run_files_in` may choose.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import torch
from torch import fx

from qtune.check.qat_model import check_prepared
from qtune.nn.prepared import PreparedModel
from qtune.nn.propagate import Port, operand_port, value_ports
from qtune.nn.qat import QATOp
from qtune.qconfig.dtypes import Float
from qtune.qconfig.saved import DTYPES_FILE, OPERATOR
from qtune.report.files import write_text, write_with
from qtune.report.table import text_table

DEFAULT = ".model_check_results"
VARIABLE = "QTUNE_RUN_DIR"

_log = logging.getLogger(__name__)
_default: ContextVar[Path | None] = ContextVar("run directory", default=Path(DEFAULT))


def run_directory() -> Path | None:
    """Where files go, ``None`` if they are turned off."""
    name = os.environ.get(VARIABLE)
    if name is None:
        return _default.get()
    return Path(name) if name else None


@contextmanager
def run_files_in(directory: Path | None) -> Iterator[None]:
    """Within the block, use another default run directory; ``None`` turns the files off.

    ``QTUNE_RUN_DIR`` still wins.
    """
    token = _default.set(directory)
    try:
        yield
    finally:
        _default.reset(token)


def dtypes_of(model: PreparedModel) -> dict[str, dict[str, str]]:
    """dtype names by operator and port (``output``, ``weight``, ``input-0``, ...).

    The form of ``qconfig_dtypes.pt`` (see ``LoadFromFileTemplate``). Inputs that have no
    fake-quantize of their own are there with the dtype that they come in.
    """
    known = value_ports(model)
    plans = {} if model.resolution is None else model.resolution.plans
    found = {op.name: {OPERATOR: str(Float.OPERATOR)} for op in model.float_ops}
    for node, op in model.operators():
        if op.name in found or (plans and op.name not in plans):  # what works on constants
            continue
        found[op.name] = _input_dtypes(op, node, known)
        if op.weight_fake_quant is not None:
            found[op.name]["weight"] = str(op.weight_fake_quant.dtype)
        if op.activation_post_process is not None:
            found[op.name]["output"] = str(op.activation_post_process.dtype)
        elif op.name in plans and plans[op.name].high_precision:
            found[op.name]["output"] = str(Float.PORT)
    return found


def _input_dtypes(op: QATOp, node: fx.Node, known: Mapping[fx.Node, Port | None]) -> dict[str, str]:
    own = {"bias", op.spec.weight_role}
    ports = {
        f"input-{index}": operand_port(op, node, index, known)
        for index, role in enumerate(op.roles(len(node.args)))
        if role not in own
    }
    return {name: str(port.dtype) for name, port in ports.items() if port is not None}


def write_run_files(model: PreparedModel, inputs: Any) -> None:
    """Write ``qconfig_dtypes.pt`` (+ ``.py``), ``fx_graph.txt`` and ``model_check_result.txt``.

    A directory that can't be written to is a warning, not an error: the model is fine.
    """
    directory = run_directory()
    if directory is None:
        return
    try:
        write_dtypes(model, directory)
        write_text(directory / "fx_graph.txt", graph_text(model))
        check_prepared(model, inputs, directory)
    except OSError as error:
        _log.warning("prepare: no files in %s: %s", directory, error)


def write_dtypes(model: PreparedModel, directory: Path) -> Path:
    """Write ``qconfig_dtypes.pt`` and its readable twin; return the first."""
    dtypes = dtypes_of(model)
    write_text(directory / f"{DTYPES_FILE}.py", _readable(dtypes))
    return write_with(directory / DTYPES_FILE, lambda path: torch.save(dtypes, path))


def graph_text(model: PreparedModel) -> str:
    """The graph as a table, one line per node."""
    rows = [
        (
            node.op,
            node.meta.get("name", node.name),
            node.meta.get("op", ""),
            node.meta.get("group", ""),
            ", ".join(str(n.meta.get("name", n.name)) for n in node.all_input_nodes),
            node.meta.get("shape", ""),
            node.meta.get("source", ""),
        )
        for node in model.graph.nodes
    ]
    return text_table(rows, ("node", "name", "op", "group", "inputs", "shape", "source")) + "\n"


def _readable(dtypes: dict[str, dict[str, str]]) -> str:
    lines = [f"    {name!r}: {ports!r}," for name, ports in dtypes.items()]
    return "\n".join(["qconfig_dtypes = {", *lines, "}", ""])
