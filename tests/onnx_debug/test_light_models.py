"""Classic networks of the onnx package: only their structure is real, all weights are constant."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from qtune.onnx_debug import build_model
from qtune.onnx_debug.build.result import BuildResult
from qtune.onnx_debug.load import load_calibrated

LIGHT = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
MAX = {"model_config": {"activation": {"calibration_type": "max"}}}


@pytest.mark.parametrize("name", ["squeezenet", "shufflenet"])
def test_only_the_softmax_stays_float(name: str) -> None:
    path = LIGHT / f"light_{name}.onnx"
    if not path.exists():
        pytest.skip("this onnx package ships no light models")
    data = [np.random.default_rng(0).normal(0, 1, (1, 3, 224, 224)).astype(np.float32)]
    result = build_model(
        str(path),
        "nash-e",
        data,
        MAX,
        return_builder=True,
        save_model=False,
        verbose=False,
    )
    assert isinstance(result, BuildResult)
    kinds = {node.name: node.op_type for node in result.optimized.graph.node}
    assert {kinds[node] for node in result.info["stays_float"]} == {"Softmax"}
    gemms = [n for n in load_calibrated(result.calibrated).nodes if n.op_type in ("Conv", "Gemm")]
    assert gemms
    assert all(len(node.calibrations) == 2 for node in gemms)
    integer = {node.op_type for node in result.quantized.model.graph}
    assert "QConv" in integer
    assert "Conv" not in integer
    scores = np.asarray(result.quantized[0](data[0])[0])
    # equal weights give equal scores; the softmax stays float, so only float rounding is left
    np.testing.assert_allclose(scores, 1 / 1000, rtol=1e-5)
