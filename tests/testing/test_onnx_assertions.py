"""Every assertion on ONNX models: by path, as ``ModelProto``, and what it refuses."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper

from qtune.errors import ArgumentError
from qtune.march import march
from qtune.onnx_debug.data import CalibrationDataSet
from qtune.onnx_debug.load import load_calibrated
from qtune.onnx_debug.sensitivity import get_sensitivity_of_nodes
from qtune.testing import (
    OnnxStages,
    assert_accuracy_drop_below,
    assert_bit_exact,
    assert_close,
    assert_consistency,
    assert_latency_below,
    assert_no_saturation,
    assert_no_shared_ops,
    assert_no_unfused,
    assert_on_bpu,
    assert_qconfig,
    assert_scale_in,
    assert_sensitivity_below,
)
from qtune.testing.onnx_clipping import is_clipped, onnx_clipping

from ..onnx_debug import nets as debug_nets
from . import onnx_nets

DATA = debug_nets.data()
X = DATA[0]


@pytest.fixture(scope="module")
def stages() -> OnnxStages:
    return OnnxStages(debug_nets.residual(), march="nash-e")


@pytest.fixture(scope="module")
def paths(stages: OnnxStages, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The same as files: float.onnx, calibrated.onnx, qat.bc, quantized.bc, model.hbm."""
    folder = tmp_path_factory.mktemp("files")
    onnx.save(stages.float.proto, folder / "float.onnx")
    onnx.save(debug_nets.residual(), folder / "calibrated.onnx")
    stages.qat_bc.save(folder / "qat.bc")
    stages.quantized_bc.save(folder / "quantized.bc")
    return {path.name: str(path) for path in folder.iterdir()} | {"hbm": str(stages.hbm.path)}


@pytest.mark.parametrize("baseline", ["float.onnx", "calibrated.onnx", "qat.bc"])
@pytest.mark.parametrize("per_layer", [False, True], ids=["outputs", "layers"])
def test_consistency_of_files(paths: dict[str, str], baseline: str, per_layer: bool) -> None:
    result = assert_consistency(
        paths[baseline], paths["quantized.bc"], inputs=DATA, min_cosine=0.99, per_layer=per_layer
    )
    assert result.model == "quantized"
    assert result.artefact == paths["quantized.bc"]
    names = ["x_quant", "Relu_1", "Conv_2", "Add_3", "Flatten_4", "Gemm_5"]
    assert [layer.name for layer in result.layers] == (names if per_layer else ["output y"])


def test_consistency_in_steps_is_that_of_the_modules(paths: dict[str, str]) -> None:
    found = assert_consistency(
        paths["qat.bc"], paths["quantized.bc"], inputs=DATA, max_qscale_diff=1
    )
    assert found.metrics["max_qscale_diff"] == 1
    other = assert_consistency(
        debug_nets.residual(), Path(paths["quantized.bc"]), inputs=DATA, max_qscale_diff=1
    )
    assert other.metrics["max_qscale_diff"] == 1


@pytest.mark.parametrize(
    "inputs",
    [X, torch.from_numpy(X), (X,), {"x": X}, [X], {"x": [X]}],
    ids=["array", "tensor", "tuple", "dict", "list", "dict of lists"],
)
def test_inputs_come_in_every_form(stages: OnnxStages, inputs: Any) -> None:
    whole = assert_consistency(stages.float, stages.calibrated, inputs=X, max_atol=10)
    found = assert_consistency(stages.float, stages.calibrated, inputs=inputs, max_atol=10)
    assert found.metrics == whole.metrics


def test_sensitivity_is_the_debuggers(stages: OnnxStages) -> None:
    result = assert_sensitivity_below(
        stages.calibrated, DATA, metric="cosine-similarity", limit=0.9
    )
    expected: dict[str, Any] = {}
    for kind in ("weight", "activation"):
        expected |= get_sensitivity_of_nodes(
            debug_nets.residual(), calibrated_data=DATA, node_type=kind, data_num=None
        )
    found = {layer.name: round(float(layer.value or 0), 5) for layer in result.layers}
    assert found == {name: values["cosine-similarity"] for name, values in expected.items()}
    assert result.metrics == {"sensitivity_cosine": min(x.value for x in result.layers)}
    assert {layer.name: layer.source for layer in result.layers}["r_HzCalibration"] == (
        "Conv_2;Add_3"
    )


def test_sensitivity_takes_the_metrics_of_both_worlds(stages: OnnxStages) -> None:
    ours = assert_sensitivity_below(stages.calibrated, DATA, metric="ATOL", limit=10)
    theirs = assert_sensitivity_below(stages.calibrated, DATA, metric="chebyshev", limit=10)
    assert [a.value for a in ours.layers] == [b.value for b in theirs.layers]


def test_rounded_ports_get_more_bits_and_clipped_ones_a_range(stages: OnnxStages) -> None:
    with pytest.raises(AssertionError, match="c_HzCalibration covers 5, these inputs reach 6.3"):
        assert_sensitivity_below(stages.calibrated, DATA, limit=0.1)
    with pytest.raises(AssertionError, match='"node_config": {"Conv_0": {"qtype": "int16"}'):
        assert_sensitivity_below(stages.calibrated, np.zeros_like(X) + 0.25, limit=0.001)


def test_a_few_clipped_values_do_not_hide_that_most_is_lost_by_rounding() -> None:
    model = load_calibrated(onnx_nets.chain())
    held = model.calibrations["x_HzCalibration"]
    values = np.random.default_rng(0).uniform(-3.9, 3.9, (8, *onnx_nets.SHAPE)).astype(np.float32)
    for far, clipped in ((4.21, False), (5.0, True)):
        values[0, 0, 0, 0, 0] = far
        data = CalibrationDataSet(list(values), model.inputs)
        found = onnx_clipping(model, [held], data)[held.name]
        # a step is 1/32: 1023 values lose a twelfth of its square each, one loses (far - 127/32)^2
        assert found.by_clipping == pytest.approx((far - 127 / 32) ** 2, rel=1e-6)
        assert found.by_rounding == pytest.approx(1023 / 12 / 32**2, rel=0.05)  # an estimate
        assert is_clipped(found) == clipped


def test_scales_are_those_of_the_calibration_nodes(paths: dict[str, str]) -> None:
    result = assert_scale_in(paths["calibrated.onnx"], high=1, ranges={"* weight": (1e-6, 0.01)})
    assert len(result.layers) == 7
    assert result.metrics["max_scale"] == np.float32(6.0 / 127.5)
    with pytest.raises(AssertionError, match="w2_HzCalibration: got 0.00917511 .channel 0 of 5"):
        assert_scale_in(paths["calibrated.onnx"], ranges={"Gemm_5 weight": (None, 0.009)})


def test_clipped_values_of_qdq_files_count_with_their_zero_point() -> None:
    scale, zero = np.array(1 / 64, np.float32), np.array(192, np.uint8)
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"], name="q"),
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["d"], name="d"),
        helper.make_node("Relu", ["d"], ["y"], name="relu"),
    ]
    ports = [helper.make_tensor_value_info(n, TensorProto.FLOAT, (1, 4)) for n in "xy"]
    constants = [onnx.numpy_helper.from_array(scale, "s"), onnx.numpy_helper.from_array(zero, "z")]
    graph = helper.make_graph(nodes, "qdq", ports[:1], ports[1:], constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    # codes -192 to 63 around zero: -3 to 63/64 fit, -4 and 2 do not
    x = np.array([[-4.0, -3.0, 63 / 64, 2.0]], np.float32)
    result = assert_no_saturation(model, inputs=x, max_share=0.5)
    assert result.metrics == {"saturated": 0.5}


def test_dtypes_are_those_of_the_nodes() -> None:
    model = debug_nets.residual(bits=16)
    wanted = {
        "Conv_2 input": "qint16",
        "Conv_0 weight": "qint8",
        "Conv_0": "qint16",  # the result of its group
        "Gemm_5": "torch.float32",
    }
    result = assert_qconfig(model, dtypes=wanted, high_precision_outputs=["Gemm_5"])
    assert result.metrics == {"wrong_ports": 0, "checked_ports": 4}
    with pytest.raises(AssertionError, match="^qconfig: Conv_2 input-0: got qint16, limit qint8"):
        assert_qconfig(model, dtypes={"Conv_2 input": "qint8"})


def test_calibrated_models_are_judged_as_convert_would(paths: dict[str, str]) -> None:
    with march("nash-e"):
        assert assert_on_bpu(paths["calibrated.onnx"]).metrics == {"cpu_ops": 0}
    assert assert_on_bpu(paths["quantized.bc"]).metrics == {"cpu_ops": 0}


def test_nodes_that_a_grid_keeps_apart_are_unfused(stages: OnnxStages) -> None:
    with pytest.raises(AssertionError) as caught:
        assert_no_unfused(stages.calibrated)
    lines = str(caught.value).splitlines()
    assert lines[0] == "no_unfused: Conv_2 + Add_3: got 1 unfused, limit 0 unfused"
    assert "  Conv_2 + Add_3: c is quantized between them" in lines


def test_built_models_are_fused_and_share_no_weight() -> None:
    stages = OnnxStages(onnx_nets.normed(), onnx_nets.images(), march="nash-e")
    for model in (stages.optimized, stages.calibrated):
        assert assert_no_unfused(model).metrics == {"unfused_patterns": 0}
        assert assert_no_shared_ops(model).metrics["shared_ops"] == 0


def test_files_of_modules_are_bit_exact_and_fast_enough(paths: dict[str, str]) -> None:
    assert_bit_exact(paths["quantized.bc"], inputs=DATA, against="reference")
    assert_bit_exact(paths["quantized.bc"], inputs={"x": X}, against=paths["quantized.bc"])
    for name in ("quantized.bc", "hbm"):
        assert assert_latency_below(paths[name], max_us=100).ok


@pytest.mark.parametrize("name", ["calibrated.onnx", "qat.bc", "quantized.bc", "hbm"])
def test_one_evaluate_fits_every_stage(paths: dict[str, str], name: str) -> None:
    batch = np.concatenate(DATA)

    def first(model: Any) -> float:
        scores = model(batch)
        assert isinstance(scores, np.ndarray)
        assert np.array_equal(scores, model(x=torch.from_numpy(batch)).numpy())
        return float((scores.argmax(1) == 1).mean())

    assert_accuracy_drop_below(paths["float.onnx"], paths[name], first, max_drop=34)


def test_modules_of_several_outputs_give_them_by_name() -> None:
    data = [(np.eye(4, dtype=np.float32)[:2], np.ones((2, 4), np.float32)) for _ in range(2)]
    stages = OnnxStages(onnx_nets.two_ports(), data, march="nash-e")

    def total(model: Any) -> float:
        return float(sum(model(*data[0])[name].sum() for name in ("sum", "product")))

    result = assert_accuracy_drop_below(
        stages.float, stages.quantized_bc, total, max_drop=0.1, unit="own"
    )
    assert result.baseline == "18"  # twice 8 ones and two halves
    assert_consistency(stages.float, stages.quantized_bc, inputs=data, min_cosine=0.999)


REFUSED: dict[str, tuple[Callable[[OnnxStages], object], str]] = {
    "steps of a float model": (
        lambda s: assert_consistency(s.float, s.calibrated, inputs=X, max_qscale_diff=1),
        "assert_consistency: max_qscale_diff: other: expected an HBIR module or a .bc file "
        "(stages.qat_bc or stages.quantized_bc), but got a calibrated ONNX model",
    ),
    "sensitivity of a float model": (
        lambda s: assert_sensitivity_below(s.float, X, limit=1),
        "assert_sensitivity_below: expected a calibrated model (stages.calibrated, or "
        "*_calibrated_model.onnx), but got a float ONNX model",
    ),
    "sensitivity with an unknown metric": (
        lambda s: assert_sensitivity_below(s.calibrated, X, metric="cosine", limit=1),
        "assert_sensitivity_below: no metric 'cosine'; registered: ATOL, ",
    ),
    "sensitivity at an unknown output": (
        lambda s: assert_sensitivity_below(s.calibrated, X, limit=1, output="z"),
        "assert_sensitivity_below: output: the model has no 'z'; it has y",
    ),
    "saturation of a float model": (
        lambda s: assert_no_saturation(s.float, inputs=X, max_share=0),
        "assert_no_saturation: expected a calibrated model",
    ),
    "saturation by an unknown name": (
        lambda s: assert_no_saturation(s.calibrated, inputs=X, max_share=0, names="conv_2"),
        "assert_no_saturation: names: no operator is called 'conv_2'; close: Conv_2",
    ),
    "scales of a float model": (
        lambda s: assert_scale_in(s.float),
        "assert_scale_in: expected a calibrated model",
    ),
    "dtypes of a float model": (
        lambda s: assert_qconfig(s.float, dtypes={"": "qint8"}),
        "assert_qconfig: expected a calibrated model",
    ),
    "fixed scales": (
        lambda s: assert_qconfig(s.calibrated, fixed_scales={"Conv_2": 1.0}),
        "assert_qconfig: fixed_scales: an ONNX model does not say which scales were fixed",
    ),
    "places of a float model": (
        lambda s: assert_on_bpu(s.float),
        "assert_on_bpu: expected a calibrated model",
    ),
    "bits of floats": (
        lambda s: assert_bit_exact(s.calibrated, inputs=X, against="reference"),
        "assert_bit_exact: module: expected an HBIR module or a .bc file",
    ),
    "bits against floats": (
        lambda s: assert_bit_exact(s.quantized_bc, inputs=X, against=s.float),
        "assert_bit_exact: against: expected a module, a .bc file, 'reference'",
    ),
    "time of floats": (
        lambda s: assert_latency_below(s.calibrated, max_us=1),
        "assert_latency_below: expected a converted module or a compiled program",
    ),
    "fusing of a file that nothing is fused in": (
        lambda s: assert_no_unfused(onnx_nets.normed()),
        "assert_no_unfused: expected the optimized or the calibrated model (stages.calibrated), "
        "but got a float ONNX model",
    ),
    "inputs for a graph": (
        lambda s: assert_no_shared_ops(s.calibrated, inputs=X),
        "assert_no_shared_ops: an ONNX model is a graph, nothing is run; leave inputs out",
    ),
    "values": (
        lambda s: assert_close(s.calibrated, s.float),
        "assert_close",
    ),
    "the debugger's metric for torch": (
        lambda s: assert_sensitivity_below(_prepared(), torch.zeros(1, 2), metric="mse", limit=1),
        "assert_sensitivity_below: 'mse' is a metric of the ONNX debugger",
    ),
}


def _prepared() -> Any:
    from qtune.testing import Stages

    return Stages(torch.nn.Linear(2, 2), [torch.ones(1, 2)], march="nash-e").calib


@pytest.mark.parametrize("name", REFUSED)
def test_other_stages_are_refused_in_one_line(stages: OnnxStages, name: str) -> None:
    call, text = REFUSED[name]
    with pytest.raises(ArgumentError) as caught:
        call(stages)
    assert str(caught.value).startswith(text)
    assert "\n" not in str(caught.value)
