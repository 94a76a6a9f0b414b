"""build_model from end to end: stages, files, dtypes, node_info, what is refused."""

from __future__ import annotations

import csv
import io
import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from qtune.bpu import compiler
from qtune.errors import ArgumentError, OnnxImportError
from qtune.onnx_debug import BuildResult, build_model, check_model
from qtune.onnx_debug.load import load_calibrated

from .models import classifier, items, model, weights

make = helper.make_node
MAX = {"model_config": {"activation": {"calibration_type": "max"}}}


def build(source: Any, data: Any = None, **options: Any) -> BuildResult:
    given = items(1, 3, 8, 8) if data is None else data
    options = {"march": "nash-e", "quant_config": MAX, "save_model": False, **options}
    result = build_model(source, cali_data=given, verbose=False, return_builder=True, **options)
    assert isinstance(result, BuildResult)
    return result


def test_all_files_of_a_build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    source = classifier()
    before = source.SerializeToString()
    result = build(
        source, name_prefix="out/net", save_model=True, debug_methods="dump_calibration_data"
    )
    assert source.SerializeToString() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out"]
    names = [path.name for path in sorted((tmp_path / "out").iterdir())]
    assert names == [
        "calibration_data",
        "net_calibrated_model.onnx",
        "net_node_info.csv",
        "net_optimized_float_model.onnx",
        "net_original_float_model.onnx",
        "net_ptq_model.onnx",
        "net_quant_info.json",
        "net_quantized_model.bc",
    ]
    assert (tmp_path / "out/net_original_float_model.onnx").read_bytes() == before
    x = items(1, 3, 8, 8)[0]
    np.testing.assert_array_equal(np.load("out/calibration_data/x/0.npy"), x)
    module = compiler.load("out/net_quantized_model.bc")
    want = result.quantized[0].feed({"x": x})["y"]
    np.testing.assert_array_equal(module[0].feed({"x": x})["y"], want)
    assert load_calibrated("out/net_calibrated_model.onnx").names("weight")
    info = json.loads(Path("out/net_quant_info.json").read_text())
    assert info["march"] == "nash-e"
    assert info["calibration"]["method"] == "max"
    assert build(source, data="out/calibration_data").calibrated == result.calibrated


def test_two_builds_write_the_same_bytes(tmp_path: Path) -> None:
    for name in ("a", "b"):
        build(classifier(), name_prefix=tmp_path / name / "net", save_model=True, quant_config=None)
    first, second = (sorted((tmp_path / name).iterdir()) for name in ("a", "b"))
    assert [path.name for path in first] == [path.name for path in second]
    assert len(first) == 7
    for one, other in zip(first, second, strict=True):
        assert one.read_bytes() == other.read_bytes(), one.name
    assert (tmp_path / "a/net_quant_info.json").read_text().endswith("}\n")


def test_node_info_has_a_row_for_every_node(tmp_path: Path) -> None:
    result = build(classifier(), name_prefix=str(tmp_path) + "/", save_model=True)
    rows = list(csv.DictReader(io.StringIO((tmp_path / "model_node_info.csv").read_text())))
    assert list(rows[0]) == [
        "Node",
        "NodeType",
        "ON",
        "Threshold",
        "Calibrated Cosine",
        "Quantized Cosine",
        "Output Data Type",
    ]
    by_name = {row["Node"]: row for row in rows}
    assert list(by_name) == [
        n.name for n in result.calibrated.graph.node if n.op_type != "HzCalibration"
    ]
    assert {row["ON"] for row in rows} == {"BPU"}
    assert by_name["pool"]["Output Data Type"] == "si8"
    assert by_name["head"]["Output Data Type"] == "f32"
    assert by_name["twin"]["Quantized Cosine"] == "--"  # it joined the sum behind it
    threshold = load_calibrated(result.calibrated).calibrations["x_HzCalibration"].threshold
    assert float(by_name["stem"]["Threshold"]) == pytest.approx(threshold, rel=1e-5)  # six digits
    cosines = [float(row["Calibrated Cosine"]) for row in rows]
    assert min(cosines) > 0.99
    assert max(cosines) < 1


def test_int16_by_node_reaches_the_integers() -> None:
    config = {**MAX, "node_config": {"head": {"qtype": "int16"}}}
    result = build(classifier(), quant_config=config)
    made = load_calibrated(result.calibrated).calibrations
    # the pooled map passes through Flatten: both ends share a grid
    assert {name for name, node in made.items() if node.bits == 16} == {
        "gp_HzCalibration",
        "f_HzCalibration",
    }
    row = next(node for node in result.nodes if node.node_type == "GlobalAveragePool")
    assert row.output_type == "si16"


def test_int16_that_the_march_has_not_falls_back_and_is_listed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    config = {**MAX, "op_config": {"Conv": {"qtype": "int16"}}}
    result = build(classifier(), march="bernoulli2", quant_config=config)
    assert {node.bits for node in load_calibrated(result.calibrated).calibrations.values()} == {8}
    assert "twin" in result.info["int16_refused"]
    assert "twin (Conv) gets int8, not int16" in caplog.text


def test_a_float_node_and_what_the_march_refuses_are_listed_with_reasons() -> None:
    nodes = [
        make("Conv", ["x", "w"], ["c"], pads=[1] * 4, name="conv"),
        make("ConvTranspose", ["c", "t"], ["u"], strides=[2, 2], name="up"),
        make("Relu", ["u"], ["r"], name="relu"),
        make("Conv", ["r", "w"], ["y"], name="last"),
    ]
    constants = {"w": weights(3, 3, 3, 3), "t": weights(3, 3, 2, 2)}
    source = model(nodes, {"x": [1, 3, 8, 8]}, {"y": [1, 3, 14, 14]}, constants)
    result = build(source, quant_config={**MAX, "node_config": {"last": {"qtype": "float32"}}})
    reasons = result.info["stays_float"]
    assert "stride (2, 2) must be smaller than the kernel" in reasons["up"]
    assert reasons["last"] == "the configuration keeps it float32"
    assert {node.node: node.on for node in result.nodes} == {
        "conv": "BPU",
        "up": "CPU",
        "relu": "CPU",
        "last": "CPU",
    }


def test_a_float_operator_on_codes_is_not_held_to_the_limits_of_the_march() -> None:
    nodes = [
        make("MaxPool", ["x"], ["p"], kernel_shape=[2, 2], name="pool"),
        make("Conv", ["p", "w"], ["c"], name="conv"),
        make("Flatten", ["p"], ["f"], name="flat"),
        make("Gemm", ["f", "big"], ["y"], name="wide"),
    ]
    constants = {"w": weights(3, 3, 1, 1), "big": weights(3 * 63 * 63, 2)}
    sizes = {"y": [1, 2], "c": [1, 3, 63, 63]}
    source = model(nodes, {"x": [1, 3, 64, 64]}, sizes, constants)
    result = build(source, data=items(1, 3, 64, 64, count=1))
    assert list(result.info["stays_float"]) == ["wide"]


def test_the_method_with_the_least_loss_is_taken_and_all_are_told() -> None:
    data = items(1, 3, 8, 8)
    result = build(classifier(), data, quant_config=None)
    found = result.info["calibration"]
    assert list(found["losses"]) == ["max", "percentile 0.9999", "percentile 0.99995", "kl"]
    assert found["losses"][found["method"]] == max(found["losses"].values())
    same = build(classifier(), data, quant_config=None)
    assert same.calibrated.SerializeToString() == result.calibrated.SerializeToString()


def test_each_tensor_may_have_a_method_of_its_own() -> None:
    config = {
        "model_config": {
            "activation": {"calibration_type": ["kl", "max"]},
            "layerwise_search": {"metric": "mse"},
        }
    }
    data = items(1, 3, 8, 8)
    data[0][0, 0, 0, 0] = 60.0  # without it no input reaches 4, and max wastes its codes on it
    result = build(classifier(), data, quant_config=config)
    method = result.info["calibration"]["method"]
    chosen = {method} if isinstance(method, str) else set(method.values())
    assert chosen <= {"kl", "max"}
    assert result.info["calibration"]["chosen_by"] == "layerwise_search"


def test_bias_correction_takes_the_mean_error_off_the_bias() -> None:
    source = model(
        [make("Conv", ["x", "w", "b"], ["y"], name="conv")],
        {"x": [1, 2, 4, 4]},
        {"y": [1, 2, 4, 4]},
        {"w": weights(2, 2, 1, 1), "b": weights(2)},
    )
    data = [np.full((1, 2, 4, 4), 0.3, np.float32)]
    data[0][0, 0, 0, 0] = 10.0
    config = {
        "model_config": {**MAX["model_config"], "weight": {"bias_correction": {"metric": "mse"}}}
    }
    plain, better = (build(source, data, quant_config=c) for c in (MAX, config))
    assert better.info["bias_corrected"] == ["conv"]
    node = next(n for n in better.calibrated.graph.node if n.name == "conv")
    held = {t.name: numpy_helper.to_array(t) for t in better.calibrated.graph.initializer}
    x = data[0]
    w, b = weights(2, 2, 1, 1).reshape(2, 2), weights(2)
    exact = np.einsum("oc,chw->ohw", w, x[0]) + b.reshape(-1, 1, 1)
    got = plain.qat[0].feed({"x": x})["y"][0]
    shift = (got.astype(np.float64) - exact).mean(axis=(1, 2))
    # the sums run in another order than in NumPy
    np.testing.assert_allclose(held[node.input[2]], b - shift, rtol=1e-5, atol=1e-6)


def test_a_lost_output_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    source = model(
        [make("Conv", ["x", "w"], ["y"], name="conv")],
        {"x": [1, 1, 1, 2]},
        {"y": [1, 1, 1, 2]},
        {"w": np.ones((1, 1, 1, 1), np.float32)},
    )
    small, large = (np.array([[[[a, 0.01]]]], np.float32) for a in (0.01, 100.0))
    build(source, [small, small, small, large])  # codes of 0.78: three items of four become 0
    assert "output y: the cosine similarity of the quantized model is 0.2500" in caplog.text


def test_a_constant_with_nan_is_named() -> None:
    nodes = [make("Conv", ["x", "w"], ["y"], name="conv")]
    constants = {"w": np.full((1, 1, 1, 1), np.nan, np.float32)}
    net = model(nodes, {"x": [1, 1, 2, 2]}, {"y": [1, 1, 2, 2]}, constants)
    with pytest.raises(ArgumentError, match="the constants w hold NaN"):
        build(net, items(1, 1, 2, 2))


def test_an_input_may_be_an_output_too() -> None:
    nodes = [make("Conv", ["x", "w"], ["y"], name="conv")]
    constants = {"w": np.ones((1, 1, 1, 1), np.float32)}
    shape = [1, 1, 2, 2]
    net = model(nodes, {"x": shape}, {"y": shape, "x": shape}, constants)
    result = build(net, items(1, 1, 2, 2))
    assert [info.name for info in result.calibrated.graph.output] == ["y", "x"]
    assert result.info["outputs"]["x"]["quantized"] == 1.0


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("quant_config", 1),
        ("quant_config", {"model_config": {"activation": {"calibration_type": 1}}}),
        ("output_nodes", 1),
        ("node_dict", 1),
        ("debug_methods", 1),
        ("optimization_methods", 1),
        ("verbose", "yes"),
        ("return_builder", 1),
        ("check_mode", None),
    ],
)
def test_an_argument_of_another_type_is_refused_by_name(argument: str, value: object) -> None:
    with pytest.raises(ArgumentError, match=f"{argument}: expected|calibration_type: expected"):
        build_model(
            classifier(), cali_data=items(1, 3, 8, 8), save_model=False, **{argument: value}
        )


@pytest.mark.parametrize("prefix", ["", 5])
def test_a_prefix_that_names_no_file_is_refused(prefix: Any) -> None:
    with pytest.raises(ArgumentError, match="name_prefix: expected a folder and the first part"):
        build_model(classifier(), cali_data=items(1, 3, 8, 8), name_prefix=prefix)


def test_a_batch_may_stay_free() -> None:
    result = build(classifier(batch="n"))
    assert result.quantized[0].open_batch
    x = np.concatenate(items(1, 3, 8, 8))
    assert result.quantized[0].feed({"x": x})["y"].shape == (3, 5)


def test_external_data_beside_the_file_is_found(tmp_path: Path) -> None:
    source = classifier()
    path = tmp_path / "big.onnx"
    copy = onnx.ModelProto()
    copy.CopyFrom(source)
    onnx.save(copy, path, save_as_external_data=True, location="big.data", size_threshold=0)
    assert build(str(path)).calibrated == build(source).calibrated


def test_a_large_model_has_its_weights_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("qtune.onnx_debug.build.files.LARGEST", 100)
    big = model(
        [make("Gemm", ["x", "w"], ["y"])], {"x": [1, 64]}, {"y": [1, 64]}, {"w": weights(64, 64)}
    )
    result = build(big, items(1, 64), name_prefix=str(tmp_path / "m"), save_model=True)
    path = tmp_path / "m_calibrated_model.onnx"
    assert (tmp_path / "m_calibrated_model.onnx.data").stat().st_size == 64 * 64 * 4
    held = {t.name: numpy_helper.to_array(t) for t in onnx.load(path).graph.initializer}
    np.testing.assert_array_equal(held["w"], weights(64, 64))
    assert load_calibrated(path).names("node") == load_calibrated(result.calibrated).names("node")


def test_a_model_can_be_cut_at_a_node() -> None:
    result = build(classifier(), output_nodes=["r1"])
    assert [info.name for info in result.calibrated.graph.output] == ["r1"]
    with pytest.raises(ArgumentError, match="no node or tensor 'heads'; close matches: head"):
        build(classifier(), output_nodes=["heads"])


def test_model_output_type_puts_the_output_on_a_grid() -> None:
    config = {"model_config": {**MAX["model_config"], "model_output_type": "int8"}}
    result = build(classifier(), quant_config=config)
    node = load_calibrated(result.calibrated).calibrations["y_HzCalibration"]
    assert (node.output, node.bits, node.users) == ("y", 8, ())
    codes = result.quantized[0].feed({"x": items(1, 3, 8, 8)[0]})["y"] / node.scales[0]
    np.testing.assert_allclose(codes, np.rint(codes), atol=1e-4)  # float32 of code * scale


def test_check_model_writes_nothing_and_says_what_runs_where(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    result = check_model(classifier(batch="n"), "nash-m", {"x": {"input_shape": [2, 3, 8, 8]}})
    assert list(tmp_path.iterdir()) == []
    assert result.march.value == "nash-m"
    assert "march: nash-m" in capsys.readouterr().out


def test_nash_is_nash_e() -> None:
    assert build(classifier(), march="nash").march.value == "nash-e"


def test_caffe_and_unknown_options_are_refused_by_name() -> None:
    with pytest.raises(NotImplementedError, match="prototxt_file: Caffe models are not read"):
        build(classifier(), prototxt_file="a.prototxt")
    with pytest.raises(ArgumentError, match="no option 'output_node'; close matches: output_nodes"):
        build(classifier(), output_node="y")
    with pytest.raises(ArgumentError, match="give onnx_model or onnx_file, not both"):
        build(classifier(), onnx_file="x.onnx")
    with pytest.raises(ArgumentError, match="give the calibration data as cali_data"):
        build_model(classifier())


def test_a_model_with_operators_of_no_form_is_refused_with_all_names() -> None:
    nodes = [
        make("Det", ["x"], ["a"], name="first"),
        make("Det", ["x"], ["b"], name="second"),
    ]
    source = model(nodes, {"x": [2, 2]}, {"a": [], "b": []}, {})
    with pytest.raises(OnnxImportError, match=r"(?s)first.*second"):
        build(source, items(2, 2))


def test_values_that_become_infinite_name_the_tensor(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR)
    nodes = [
        make("Exp", ["x"], ["e"]),
        make("Sigmoid", ["e"], ["s"]),
        make("Conv", ["s", "w"], ["y"]),
    ]
    source = model(nodes, {"x": [1, 1, 2, 2]}, {"y": [1, 1, 2, 2]}, {"w": weights(1, 1, 1, 1)})
    with pytest.raises(ArgumentError, match="the tensor 'e' becomes NaN or infinite"):
        build(source, [np.full((1, 1, 2, 2), 1000, np.float32)])
