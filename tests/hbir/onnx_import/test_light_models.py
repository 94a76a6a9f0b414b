"""The light models that come with the onnx package: structures of real nets, old opsets."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from qtune.hbir.onnx_import import import_onnx

LIGHT = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
SMALL = ("inception_v1", "inception_v2", "resnet50", "shufflenet", "squeezenet")
"""Those without large matrices; alexnet, densenet121, vgg19 and zfnet512 take seconds each."""


@pytest.mark.parametrize("name", SMALL)
def test_a_light_model_is_imported_and_computes_the_same(name: str) -> None:
    path = LIGHT / f"light_{name}.onnx"
    function = import_onnx(path)[0]
    (port,) = function.inputs
    x = np.random.default_rng(0).random(tuple(port.shape)).astype(np.float32)
    options = ort.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 3
    session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    (expected,) = session.run(None, {port.name: x})
    (got,) = function.feed({port.name: x}).values()
    # float32 sums in another order
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-6)
