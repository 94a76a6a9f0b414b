"""The files that ``prepare`` leaves behind, and where.

The run directory is ``./.model_check_results``; the environment variable ``QTUNE_RUN_DIR`` names
another one, empty it turns the files off. Where it is not set, :func:`run_files_in` may choose.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import torch

from qtune.check.qat_model import check_qat_model
from qtune.nn.prepared import PreparedModel
from qtune.nn.qat import iter_ports
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
    """dtype names by operator and port (``output``, ``weight``, ``input-0``, ...)."""
    found: dict[str, dict[str, str]] = {}
    for name, port, quantizer in iter_ports(model):
        found.setdefault(name, {})[port] = str(quantizer.dtype)
    return found


def write_run_files(model: PreparedModel, inputs: Any) -> None:
    """Write ``qconfig_dtypes.pt`` (+ ``.py``), ``fx_graph.txt`` and ``model_check_result.txt``.

    A directory that can't be written to is a warning, not an error: the model is fine.
    """
    directory = run_directory()
    if directory is None:
        return
    dtypes = dtypes_of(model)
    try:
        write_with(directory / "qconfig_dtypes.pt", lambda path: torch.save(dtypes, path))
        write_text(directory / "qconfig_dtypes.pt.py", _readable(dtypes))
        write_text(directory / "fx_graph.txt", graph_text(model))
        check_qat_model(model, inputs, save_results=True, out_dir=directory)
    except OSError as error:
        _log.warning("prepare: no files in %s: %s", directory, error)


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
