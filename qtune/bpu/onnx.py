"""``hbdk4.compiler.onnx`` under our roof: ONNX models in, HBIR out."""

from __future__ import annotations

from collections import Counter

import onnx as onnx_package

from qtune.hbir.module import HbirModule
from qtune.hbir.onnx_import import import_onnx
from qtune.report.screen import show

__all__ = ["export", "statistics"]


def export(proto: onnx_package.ModelProto, *, name: str | None = None) -> HbirModule:
    """Return the HBIR module of an ONNX model; see ``qtune.hbir.onnx_import.import_onnx``."""
    return import_onnx(proto, name=name)


def statistics(proto: onnx_package.ModelProto) -> list[tuple[str, int]]:
    """Operators of an ONNX model and how often each occurs, most frequent first; also shown."""
    rows = Counter(f"{n.domain or 'onnx'}::{n.op_type}" for n in proto.graph.node).most_common()
    show("\n".join(f"{name:<32} {count}" for name, count in rows))
    return rows
