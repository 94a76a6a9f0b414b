"""Files of onnxruntime's quantizer: imported, converted, run; integers against onnxruntime."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch

from qtune.bpu import compiler
from qtune.bpu.ort import run_in_onnxruntime
from qtune.errors import OnnxImportError
from qtune.hbir.module import HbirModule
from qtune.hbir.onnx_import import import_onnx

from .quantized_files import NETS, STYLES, graph_of, quantized_file, samples

Array = np.ndarray[Any, Any]


@pytest.fixture(scope="module", params=[(n, s) for n in NETS for s in STYLES], ids="-".join)
def case(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, HbirModule, HbirModule, tuple[int, ...]]:
    net, style = request.param
    path = quantized_file(tmp_path_factory.mktemp("qdq"), net, style)
    module = compiler.load(path)
    return path, module, compiler.convert(module, "nash-e"), NETS[net][1]


def _by_onnxruntime(path: Path, x: Array) -> Array:
    """What the file's own nodes compute, in float32, without fusing them."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    (result,) = session.run(None, {"x": x})
    return np.asarray(result)


def _check_close(got: Array, expected: Array, step: float) -> None:
    """Float sums and half-even ties against integers and half up.

    A tie that falls the other way is one step of an operator; in a chain of operators the next one
    may turn it into a second step of the result. Nearly all elements meet no tie at all.
    """
    steps = np.abs(got - expected) / step
    assert steps.max() <= 2 + 1e-3  # the quotient is float32
    assert (steps < 0.5).mean() > 0.9


def _output_scale(module: HbirModule) -> float:
    (node,) = [n for n in module.model.graph if n.outputs[0].is_graph_output()]
    scale = node.inputs[1].const_value
    return float(scale.numpy().reshape(()))


def test_integers_are_near_onnxruntime(case: Any) -> None:
    path, _, integers, shape = case
    x = samples(shape, 77)
    (got,) = integers[0].feed({"x": x}).values()
    _check_close(got, _by_onnxruntime(path, x), _output_scale(integers))


def test_fast_kernels_reference_and_function_bodies_agree(case: Any) -> None:
    _, _, integers, shape = case
    x = samples(shape, 78)
    (fast,) = integers[0].feed({"x": x}).values()
    (reference,) = integers[0].run({"x": x}, mode="reference").values()
    (bodies,) = run_in_onnxruntime(integers, {"x": x}).values()
    np.testing.assert_array_equal(fast, reference.numpy())
    np.testing.assert_array_equal(fast, bodies)


def test_another_batch_size_runs(case: Any) -> None:
    path, module, integers, shape = case
    assert module[0].open_batch
    x = samples((5, *shape[1:]), 79)
    (got,) = integers[0].feed({"x": x}).values()
    _check_close(got, _by_onnxruntime(path, x), _output_scale(integers))


def test_saved_and_compiled_module_gives_the_same_bits(case: Any, tmp_path: Path) -> None:
    _, module, integers, shape = case
    x = torch.from_numpy(samples(shape, 80))
    compiler.save(module, tmp_path / "qat.bc")
    again = compiler.convert(compiler.load(tmp_path / "qat.bc"), "nash-e")
    hbm = compiler.compile(again, tmp_path / "net.hbm", "nash-e")
    assert torch.equal(hbm[0](x)[0], integers[0](x)[0])


def test_names_of_the_file_are_kept(case: Any) -> None:
    path, module, _, _ = case
    names = set(module[0].operator_names())
    kinds = {"Conv", "Gemm", "MatMul"}
    layers = [n.name for n in onnx.load(str(path)).graph.node if n.op_type in kinds]
    assert layers
    assert set(layers) <= names | set(module[0].groups())


def _pair(scale: Array, zero: Array, source: str, result: str) -> list[onnx.NodeProto]:
    make = onnx.helper.make_node
    return [
        make("QuantizeLinear", [source, "s", "z"], [f"{result}_q"]),
        make("DequantizeLinear", [f"{result}_q", "s", "z"], [result]),
    ]


def test_imported_quantize_rounds_ties_to_even() -> None:
    """Case A21, part d."""
    scale, zero = np.array(1.0, np.float32), np.array(0, np.int8)
    model = graph_of(_pair(scale, zero, "x", "y"), (6,), {"s": scale, "z": zero})
    module = import_onnx(model)
    x = np.array([0.5, 1.5, 2.5, -0.5, -1.5, -2.5], np.float32)
    expected = np.array([0, 2, 2, 0, -2, -2], np.float32)
    for each in (module, compiler.convert(module, "nash-e")):
        (got,) = each[0].feed({"x": x}).values()
        np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("point", [-128, 17, 127])
def test_a_zero_point_bounds_the_codes(point: int) -> None:
    scale, zero = np.array(0.5, np.float32), np.array(point, np.int8)
    model = graph_of(_pair(scale, zero, "x", "y"), (4,), {"s": scale, "z": zero})
    integers = compiler.convert(import_onnx(model), "nash-e")
    x = np.array([-1000.0, 1000.0, 0.0, 3.0], np.float32)
    (got,) = integers[0].feed({"x": x}).values()
    lowest, highest = (-128 - point) * 0.5, (127 - point) * 0.5
    expected = np.clip(np.array([-1000, 1000, 0, 3], np.float32), lowest, highest)
    np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize(
    ("nodes", "constants", "words"),
    [
        (
            _pair(np.array(1), np.array(0), "x", "y"),
            {"s": np.array([1, 2, 3, 4], np.float32), "z": np.zeros(4, np.int8)},
            "one per tensor",
        ),
        (
            _pair(np.array(1), np.array(0), "x", "y"),
            {"s": np.array(1, np.float32), "z": np.array(5, np.int16)},
            "int16 codes with zero point 5 don't fit in 16 bits",
        ),
        (
            [onnx.helper.make_node("Det", ["x"], ["y"], name="determinant")],
            {},
            "determinant: Det has no form here",
        ),
        (
            [onnx.helper.make_node("QLinearReduceMean", ["x"], ["y"], domain="com.microsoft")],
            {},
            "com.microsoft::QLinearReduceMean",
        ),
        (
            [onnx.helper.make_node("QLinearAdd", ["x"], ["y"], "sum", domain="com.microsoft")],
            {},
            "sum: QLinearAdd has no input 1",
        ),
    ],
)
def test_other_forms_are_refused_by_name(nodes: Any, constants: Any, words: str) -> None:
    with pytest.raises(OnnxImportError, match=words):
        import_onnx(graph_of(nodes, (4, 4), constants))


def test_weight_with_zero_point_is_refused_by_name() -> None:
    make = onnx.helper.make_node
    nodes = [
        *_pair(np.array(1), np.array(0), "x", "x_dq"),
        make("DequantizeLinear", ["w", "s", "zw"], ["w_dq"]),
        make("Conv", ["x_dq", "w_dq"], ["y"], name="first"),
    ]
    constants = {
        "s": np.array(0.1, np.float32),
        "z": np.array(0, np.int8),
        "zw": np.array(3, np.uint8),
        "w": np.ones((2, 3, 1, 1), np.uint8),
    }
    with pytest.raises(OnnxImportError, match="first: Conv: its weight has a zero point"):
        import_onnx(graph_of(nodes, (1, 3, 4, 4), constants, result=(1, 2, 4, 4)))


def test_symbolic_sizes_ask_for_input_shapes() -> None:
    nodes = [onnx.helper.make_node("Relu", ["x"], ["y"])]
    model = graph_of(nodes, ("n", 3, "h", "w"), {})
    with pytest.raises(OnnxImportError, match="input_shapes"):
        import_onnx(model)
    module = import_onnx(model, input_shapes={"x": (1, 3, 5, 7)})
    assert module[0].inputs[0].shape == (1, 3, 5, 7)


@pytest.mark.parametrize("opset", [11, 13, 17])
def test_older_opsets_are_brought_up(opset: int) -> None:
    make = onnx.helper.make_node
    nodes = [make("Clip", ["x", "lo", "hi"], ["c"]), make("Flatten", ["c"], ["y"])]
    constants = {"lo": np.array(-1, np.float32), "hi": np.array(2, np.float32)}
    module = import_onnx(graph_of(nodes, (2, 3, 2), constants, opset, (2, 6)))
    x = samples((2, 3, 2), 3) * 3
    (got,) = module[0].feed({"x": x}).values()
    np.testing.assert_array_equal(got, np.clip(x, -1, 2).reshape(2, 6))


def test_source_stays_as_it_is() -> None:
    nodes = [onnx.helper.make_node("Relu", ["x"], ["y"])]
    model = graph_of(nodes, (2, 3), {})
    before = model.SerializeToString()
    import_onnx(model)
    assert model.SerializeToString() == before


def test_a_file_that_is_none_says_so(tmp_path: Path) -> None:
    path = tmp_path / "broken.onnx"
    path.write_bytes(b"not a protobuf")
    with pytest.raises(OnnxImportError, match=r"broken\.onnx"):
        compiler.load(path)
