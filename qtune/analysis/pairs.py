"""Which two models may be compared under which analysis type (the documents' table)."""

from __future__ import annotations

from torch import nn

from qtune.errors import AnalysisError
from qtune.hbir.module import HbirModule
from qtune.nn.prepared import PreparedModel
from qtune.nn.table import TableOp
from qtune.ops.spec import Rule
from qtune.profiler.observe import Model, is_converted, is_prepared, require_torch

QUANTIZED = "quantized"
"""The analysis type of the older toolchain: a converted torch model is analysed."""

FLOAT, CALIB, PRE_EXPORT = "float", "calib", "pre_export"
QAT_BC, QUANTIZED_BC = "qat_bc", "quantized_bc"
CONVERTED = "converted"

ALLOWED = {
    # two imported ONNX files, float and calibrated, are modules of the stage qat
    "fake_quant": {(FLOAT, CALIB), (CALIB, CALIB), (QAT_BC, QUANTIZED_BC), (QAT_BC, QAT_BC)},
    "pre_export": {(CALIB, PRE_EXPORT)},
    "export": {(PRE_EXPORT, QAT_BC), (CALIB, QAT_BC)},
    "convert": {(PRE_EXPORT, QUANTIZED_BC), (CALIB, QUANTIZED_BC), (QAT_BC, QUANTIZED_BC)},
    QUANTIZED: {(CALIB, CONVERTED)},
}


def kind_of(model: Model) -> str:
    """``float``, ``calib``, ``pre_export``, ``converted``, ``qat_bc`` or ``quantized_bc``."""
    if isinstance(model, HbirModule):
        return QUANTIZED_BC if model.stage == "quantized" else QAT_BC
    if not isinstance(model, nn.Module):
        raise AnalysisError(
            f"expected a torch module or an HBIR module but got {type(model).__name__}"
        )
    if is_converted(model):
        return CONVERTED
    if not is_prepared(model):
        return FLOAT
    prepared = require_torch(model, "QuantAnalysis")
    has_tables = any(isinstance(op, TableOp) for _, op in prepared.operators())
    return PRE_EXPORT if has_tables else CALIB


def check_pair(baseline: Model, analysed: Model, analysis_type: str) -> tuple[str, str]:
    """The kinds of both models; ``AnalysisError`` if the type does not compare these two."""
    if analysis_type not in ALLOWED:
        raise AnalysisError(
            f"unknown analysis_model_type {analysis_type!r}; choose one of: {', '.join(ALLOWED)}"
        )
    allowed = ALLOWED[analysis_type]
    fits = {(a, b) for a in _could_be(baseline) for b in _could_be(analysed)} & allowed
    kinds = (kind_of(baseline), kind_of(analysed))
    if not fits:
        listed = ", ".join(f"{a} and {b}" for a, b in sorted(allowed))
        raise AnalysisError(
            f"analysis type {analysis_type!r} compares {listed}; got {kinds[0]} and {kinds[1]}"
        )
    return kinds if kinds in fits else sorted(fits)[0]


def _could_be(model: Model) -> set[str]:
    """All kinds: a model without look-up tables is the same before and after pre_export."""
    kind = kind_of(model)
    if not isinstance(model, PreparedModel) or kind == PRE_EXPORT:
        return {kind}
    has_functions = any(op.spec.rule is Rule.TABLE for _, op in model.operators())
    return {CALIB} if has_functions else {CALIB, PRE_EXPORT}
