"""Assertions on quantized models; usable without pytest, re-exported by ``pytest_qtune``.

Imported names load torch on first use only, so that the plugin may look at this package's results
without it.
"""

from __future__ import annotations

from qtune.lazy import importer

_HOMES = {
    "assert_accuracy_drop_below": "accuracy",
    "assert_bit_exact": "bit_exact",
    "assert_close": "close",
    "output_hash": "bit_exact",
    "fuzz": "fuzzing.decorator",
    "assert_consistency": "consistency",
    "assert_latency_below": "latency",
    "assert_no_shared_ops": "structure",
    "assert_no_unfused": "structure",
    "assert_no_saturation": "saturation",
    "assert_on_bpu": "on_bpu",
    "assert_qconfig": "qconfig",
    "assert_scale_in": "scales",
    "assert_sensitivity_below": "sensitivity",
    "Baseline": "baseline",
    "BatchedModule": "batched",
    "Stages": "stages",
    "OnnxModel": "onnx_model",
    "OnnxStages": "onnx_stages",
    "DirectoryStore": "store",
    "AssertionResult": "result",
    "LayerResult": "result",
}
__all__ = list(_HOMES)  # noqa: PLE0605 - derived from the table above
__getattr__ = importer(__name__, _HOMES)
