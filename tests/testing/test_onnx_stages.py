"""OnnxStages: what they give, what the content key sees, what the store keeps."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnxruntime.quantization import (
    CalibrationDataReader,
    QuantFormat,
    QuantType,
    quantize_static,
)

from qtune.errors import ArgumentError, OnnxImportError
from qtune.testing import (
    DirectoryStore,
    OnnxStages,
    assert_bit_exact,
    assert_consistency,
    assert_qconfig,
    assert_scale_in,
)
from qtune.testing.origin import origin_of

from ..onnx_debug import nets as debug_nets
from . import onnx_nets

IMAGES = onnx_nets.images()
MAX = {"model_config": {"activation": {"calibration_type": "max"}}}


def made(model: Any = None, data: Any = None, **rest: Any) -> OnnxStages:
    given = onnx_nets.normed() if model is None else model
    how = {"march": "nash-e", "quant_config": MAX, "name": "net", **rest}
    return OnnxStages(given, IMAGES if data is None else data, **how)


@pytest.fixture(scope="module")
def stages(tmp_path_factory: pytest.TempPathFactory) -> OnnxStages:
    return made(store=DirectoryStore(tmp_path_factory.mktemp("store")))


def test_stages_are_built_run_and_agree(stages: OnnxStages) -> None:
    (x, *_) = IMAGES
    kinds = [stages.float.kind, stages.optimized.kind, stages.calibrated.kind]
    assert kinds == ["float", "float", "calibrated"]
    expected = stages.float(x)
    for model in (stages.optimized, stages.calibrated):
        np.testing.assert_allclose(model(x), expected, atol=0.1)  # int8: a few steps of 0.03
    assert stages.qat_bc.stage == "qat"
    assert stages.quantized_bc.march == "nash-e"
    assert_consistency(stages.float, stages.quantized_bc, inputs=IMAGES, min_cosine=0.99)
    assert_consistency(stages.qat_bc, stages.quantized_bc, inputs=IMAGES, max_qscale_diff=1)
    (integers,) = stages.quantized_bc[0](torch.from_numpy(x))
    (compiled,) = stages.hbm[0](torch.from_numpy(x))
    assert torch.equal(integers, compiled)
    assert torch.equal(stages.example_inputs.args[0], torch.from_numpy(x))


def test_every_layer_of_the_float_file_has_its_counterpart(stages: OnnxStages) -> None:
    result = assert_consistency(
        stages.float, stages.quantized_bc, inputs=IMAGES, per_layer=True, min_cosine=0.98
    )
    assert [layer.name for layer in result.layers] == ["image_quant", "act", "head"]
    assert result.table == ""  # none was left out
    assert result.provenance["content"] == stages.provenance["content"]
    assert Path(str(result.artefact)).name == "quantized.bc"


def test_nothing_is_built_before_it_is_asked_for(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path)
    stages = made(store=store)
    assert stages.float(IMAGES[0]).shape == (1, 2, 6, 6)
    assert store.built == []
    _ = stages.qat_bc
    assert sorted(Path(name).name for name in store.built) == ["calibrated.onnx", "qat.bc"]


def test_the_store_gives_the_same_stages_back(tmp_path: Path) -> None:
    first, second = DirectoryStore(tmp_path), DirectoryStore(tmp_path)
    one, other = made(store=first), made(store=second)
    before, after = one.calibrated, other.calibrated
    assert before.proto.SerializeToString() == after.proto.SerializeToString()
    assert_bit_exact(one.quantized_bc, inputs=IMAGES, against=other.quantized_bc)
    assert len(second.built) == 0
    assert {Path(name).name for name in second.found} == {"calibrated.onnx", "quantized.bc"}
    assert Path(str(origin_of(after).artefact)).is_file()


def with_changed_weight() -> onnx.ModelProto:
    model = onnx_nets.normed()
    array = onnx.numpy_helper.to_array(model.graph.initializer[0]).copy()
    array.flat[0] += np.float32(1e-6)
    model.graph.initializer[0].CopyFrom(onnx.numpy_helper.from_array(array, "w"))
    return model


@pytest.mark.parametrize(
    "changed",
    [
        lambda: made(with_changed_weight()),
        lambda: made(data=IMAGES[:-1]),
        lambda: made(data=IMAGES[::-1]),
        lambda: made(march="nash-m"),
        lambda: made(quant_config=None),
        lambda: made(quant_config={**MAX, "op_config": {"Conv": {"qtype": "int16"}}}),
    ],
    ids=["weight", "fewer items", "order of items", "march", "methods", "int16"],
)
def test_whatever_changes_the_artefact_changes_the_key(changed: Callable[[], OnnxStages]) -> None:
    assert changed().key != made().key


def test_equal_content_has_one_key_however_it_comes(tmp_path: Path) -> None:
    proto = onnx_nets.normed()
    onnx.save(proto, tmp_path / "net.onnx")
    external = {"save_as_external_data": True, "location": "net.data", "size_threshold": 0}
    onnx.save(onnx_nets.normed(), tmp_path / "external.onnx", **external)
    folder = tmp_path / "data" / "image"
    folder.mkdir(parents=True)
    for index, image in enumerate(IMAGES):
        np.save(folder / f"{index}.npy", image)
    keys = {
        made().key,
        made(name="another name in reports").key,
        made(tmp_path / "net.onnx").key,
        made(tmp_path / "external.onnx").key,
        made(data=folder.parent).key,
        made(data={"image": IMAGES}).key,
        made(data=[{"image": torch.tensor(image)} for image in IMAGES]).key,
        made(data=lambda: list(IMAGES)).key,
    }
    assert len(keys) == 1


def test_edited_external_data_change_the_key(tmp_path: Path) -> None:
    path, data = tmp_path / "net.onnx", tmp_path / "net.data"
    onnx.save(
        onnx_nets.normed(), path, save_as_external_data=True, location=data.name, size_threshold=0
    )
    before = made(path).key
    content = bytearray(data.read_bytes())
    content[0] ^= 1
    data.write_bytes(content)
    assert made(path).key != before


def test_a_calibrated_model_is_taken_as_it_is() -> None:
    proto = debug_nets.residual()
    before = proto.SerializeToString()
    stages = OnnxStages(proto, march="nash-e")
    data = debug_nets.data()
    assert (stages.float.kind, stages.optimized.kind) == ("float", "float")
    assert stages.calibrated.proto.SerializeToString() == before
    assert_consistency(stages.calibrated, stages.qat_bc, inputs=data, min_cosine=0.999999)
    assert_consistency(stages.float, stages.quantized_bc, inputs=data, min_cosine=0.99)
    assert proto.SerializeToString() == before


class Reader(CalibrationDataReader):  # type: ignore[misc]
    """The images, as onnxruntime's quantizer asks for them."""

    def __init__(self) -> None:
        self.items = iter([{"image": image} for image in IMAGES])

    def get_next(self) -> Any:
        return next(self.items, None)


@pytest.mark.parametrize("activation", ["QInt8", "QUInt8"])
def test_qdq_files_of_onnxruntime_are_calibrated_models(tmp_path: Path, activation: str) -> None:
    source, target = tmp_path / "net.onnx", tmp_path / "qdq.onnx"
    onnx.save(made().optimized.proto, source)
    quantize_static(
        source,
        target,
        Reader(),
        quant_format=QuantFormat.QDQ,
        activation_type=QuantType[activation],
        per_channel=True,
    )
    stages = OnnxStages(target, march="nash-e")
    assert (stages.float.kind, stages.calibrated.path) == ("float", str(target))
    assert_consistency(stages.calibrated, stages.qat_bc, inputs=IMAGES, min_cosine=0.99999)
    assert_consistency(source, stages.quantized_bc, inputs=IMAGES, min_cosine=0.99)
    assert_consistency(stages.qat_bc, stages.quantized_bc, inputs=IMAGES, max_qscale_diff=1)
    assert_qconfig(stages.calibrated, dtypes={"conv": "qint8", "head weight": "qint8"})
    assert len(assert_scale_in(stages.calibrated, high=1).layers) == 5  # image, w, r, v, map


def test_sizes_that_the_model_leaves_open_are_those_of_the_data() -> None:
    model = onnx_nets.normed()
    for info in (*model.graph.input, *model.graph.output):
        info.type.tensor_type.shape.dim[2].dim_param = "H"
    stages = made(model)
    assert stages.qat_bc[0].inputs[0].shape[1:] == (3, 6, 6)
    assert_consistency(
        stages.float, stages.quantized_bc, inputs=IMAGES, per_layer=True, min_cosine=0.98
    )


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: OnnxStages(onnx_nets.normed(), march="nash-e").calibrated, "give calibration dat"),
        (lambda: OnnxStages(onnx_nets.chain(), IMAGES, march="nash-e").float, "leave calibration "),
        (
            lambda: OnnxStages(onnx_nets.chain(), march="nash-e", quant_config={}).calibrated,
            "net is calibrated already; leave quant_config out",
        ),
        (lambda: OnnxStages("net.txt", IMAGES, march="nash-e").float, "a path must end with .onnx"),
        (lambda: OnnxStages(torch.nn.ReLU(), IMAGES, march="nash-e").float, "model must be the pa"),
        (lambda: made(data=IMAGES[0].astype(np.float64)).key, "nothing is converted silently"),
        (lambda: made(data={"x": IMAGES}).key, "has x, which the model has not"),
        (lambda: made(quant_config="gone.json").key, "quant_config: there is no file gone.json"),
    ],
)
def test_wrong_arguments_are_named(make: Callable[[], object], text: str) -> None:
    with pytest.raises(ArgumentError, match=text):
        make()


def computed_shape() -> onnx.ModelProto:
    """A free batch that decides an inner shape: two items make one row."""
    make = onnx.helper.make_node
    nodes = [
        make("Gemm", ["x", "w"], ["g"], name="gemm"),
        make("Shape", ["x"], ["s"], name="shape"),
        make("Gather", ["s", "zero"], ["n"], name="gather"),
        make("Div", ["n", "two"], ["half"], name="div"),
        make("Concat", ["half", "eight"], ["t"], axis=0, name="cat"),
        make("Reshape", ["g", "t"], ["r"], name="rows"),
        make("MatMul", ["r", "v"], ["y"], name="last"),
    ]
    rng = np.random.default_rng(0)
    constants = {
        "w": rng.normal(0, 0.5, (4, 4)).astype(np.float32),
        "v": rng.normal(0, 0.5, (8, 3)).astype(np.float32),
        "zero": np.array([0]),
        "two": np.array([2]),
        "eight": np.array([8]),
    }
    info = onnx.helper.make_tensor_value_info
    tensors = [onnx.numpy_helper.from_array(array, name) for name, array in constants.items()]
    ends = (
        [info("x", onnx.TensorProto.FLOAT, ["n", 4])],
        [info("y", onnx.TensorProto.FLOAT, ["m", 3])],
    )
    graph = onnx.helper.make_graph(nodes, "net", *ends, tensors)
    return onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)])


def test_input_dict_fixes_sizes_that_inner_shapes_are_computed_from() -> None:
    data = [np.random.default_rng(i).normal(0, 1, (6, 4)).astype(np.float32) for i in range(2)]
    with pytest.raises(OnnxImportError, match="shape: Shape: a size .* is open. .*input_dict"):
        _ = made(computed_shape(), data).calibrated
    stages = made(computed_shape(), data, input_dict={"x": [6, 4]})
    (got,) = stages.quantized_bc[0](torch.from_numpy(data[0]))
    assert got.shape == (3, 3)
    assert_consistency(stages.float, stages.quantized_bc, inputs=data, min_cosine=0.99)
    sizes = {"x": [6, 4]}
    calibrated = OnnxStages(stages.calibrated.proto, march="nash-e", input_dict=sizes)
    assert calibrated.qat_bc.stage == "qat"
    with pytest.raises(ArgumentError, match="has the shape .6, 4., the input 'x' takes .8, 4."):
        _ = made(computed_shape(), data, input_dict={"x": {"input_shape": [8, 4]}}).data[0]
    with pytest.raises(ArgumentError, match="input 'x' has the shape .*, got input_shape .6, 5."):
        _ = made(computed_shape(), data, input_dict={"x": [6, 5]}).given


def test_open_sizes_of_a_calibrated_model_name_the_remedy() -> None:
    model = debug_nets.residual()
    dims = model.graph.input[0].type.tensor_type.shape.dim
    sizes = [dim.dim_value for dim in dims]
    dims[2].dim_param = "height"
    with pytest.raises(ArgumentError, match="have open sizes .*: input_dict=.'x': "):
        _ = OnnxStages(model, march="nash-e").qat_bc
    assert OnnxStages(model, march="nash-e", input_dict={"x": sizes}).qat_bc.stage == "qat"
