"""The calibrated model in standard operators, run by onnxruntime beside the calibrated one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from qtune.bpu.ort import new_session
from qtune.onnx_debug import build_model, insert_calibration
from qtune.onnx_debug.build.pairs_model import pairs_model
from qtune.onnx_debug.load import load_calibrated

from .models import classifier, items


def run(proto: onnx.ModelProto, x: Any) -> Any:
    (result,) = new_session(proto.SerializeToString(), optimized=False).run(None, {"x": x})
    return result


@pytest.mark.parametrize("bits", ["int8", "int16"])
def test_pairs_compute_what_calibration_nodes_do(bits: str) -> None:
    config = {"model_config": {"all_node_type": bits}}
    model = insert_calibration(classifier(), items(1, 3, 8, 8), "nash-m", quant_config=config)
    before = model.SerializeToString()
    made = pairs_model(model)
    assert model.SerializeToString() == before
    onnx.checker.check_model(made, full_check=True)
    kinds = {node.op_type for node in made.graph.node}
    assert "HzCalibration" not in kinds
    assert {entry.domain for entry in made.opset_import} == {""}
    assert not made.functions
    for x in items(1, 3, 8, 8):
        # no value of this net is on a tie, so that half up and half even agree; onnxruntime's own
        # float kernels are the same
        np.testing.assert_array_equal(run(made, x), run(model, x))


def test_a_tie_is_one_step_off() -> None:
    model = insert_calibration(
        classifier(),
        items(1, 3, 8, 8),
        quant_config={"node_config": {"stem": {"threshold": 4.0}}},
    )
    made = pairs_model(model)
    value = np.full((1, 3, 8, 8), 2.5 / 32, np.float32)  # half way between the codes 2 and 3
    grids = []
    for proto in (model, made):
        copy = onnx.ModelProto()
        copy.CopyFrom(proto)
        del copy.graph.output[:]
        copy.graph.output.append(onnx.helper.make_empty_tensor_value_info("x_calibrated"))
        grids.append(run(copy, value)[0, 0, 0, 0])
    assert grids == [3 / 32, 2 / 32]


def test_the_file_is_a_product_of_a_build(tmp_path: Path) -> None:
    data = {"x": items(1, 3, 8, 8)}
    made = build_model(classifier(), "nash-e", data, name_prefix=tmp_path / "n", verbose=False)
    found = load_calibrated(tmp_path / "n_ptq_model.onnx")
    assert set(found.names("node")) == set(load_calibrated(made).names("node"))
    weights = [found.calibrations[name] for name in found.names("weight")]
    assert all(item.is_stored for item in weights)
