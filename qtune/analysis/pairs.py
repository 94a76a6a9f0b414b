"""Which two models may be compared under which analysis type (the documents' table)."""

from __future__ import annotations

from torch import nn

from qtune.analysis.observe import Model, is_prepared
from qtune.errors import AnalysisError
from qtune.hbir.module import HbirModule
from qtune.nn.table import TableOp

ALLOWED = {
    "fake_quant": {("float", "calib"), ("calib", "calib"), ("qat_bc", "quantized_bc")},
    "pre_export": {("calib", "pre_export")},
    "export": {("pre_export", "qat_bc"), ("calib", "qat_bc")},
    "convert": {
        ("pre_export", "quantized_bc"),
        ("qat_bc", "quantized_bc"),
        ("calib", "quantized_bc"),
    },
}


def kind_of(model: Model) -> str:
    """``float``, ``calib``, ``pre_export``, ``qat_bc`` or ``quantized_bc``."""
    if isinstance(model, HbirModule):
        return "quantized_bc" if model.stage == "quantized" else "qat_bc"
    if not isinstance(model, nn.Module):
        raise AnalysisError(
            f"expected a torch module or an HBIR module but got {type(model).__name__}"
        )
    if not is_prepared(model):
        return "float"
    has_tables = any(isinstance(module, TableOp) for module in model.modules())
    return "pre_export" if has_tables else "calib"


def check_pair(baseline: Model, analysed: Model, analysis_type: str) -> tuple[str, str]:
    """The kinds of both models; ``AnalysisError`` if the type does not compare these two."""
    if analysis_type not in ALLOWED:
        raise AnalysisError(
            f"unknown analysis_model_type {analysis_type!r}; choose one of: {', '.join(ALLOWED)}"
        )
    pair = (kind_of(baseline), kind_of(analysed))
    # a model without tables is the same before and after pre_export
    same = (pair[0].replace("calib", "pre_export"), pair[1].replace("calib", "pre_export"))
    if pair not in ALLOWED[analysis_type] and same not in ALLOWED[analysis_type]:
        allowed = ", ".join(f"{a} and {b}" for a, b in sorted(ALLOWED[analysis_type]))
        raise AnalysisError(
            f"analysis type {analysis_type!r} compares {allowed}; got {pair[0]} and {pair[1]}"
        )
    return pair
