"""Parts in the runtime's blocked layout, with weights as inputs, against sessions built by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from qtune.errors import RunError
from qtune.hbir import hz_calibration
from qtune.onnx_debug import blocked, plan, structures
from qtune.onnx_debug.blocked import Form
from qtune.onnx_debug.data import CalibrationDataSet
from qtune.onnx_debug.load import load_calibrated
from qtune.onnx_debug.runner import Runner
from qtune.onnx_debug.segments import Wiring
from qtune.onnx_debug.sizes import inferred_sizes
from qtune.onnx_debug.switches import Sessions

from . import brute, nets, nets_branches
from .nets_branches import grid

Array = np.ndarray[Any, Any]

ATOL = 2e-5  # float32 sums of up to 300 products of size 1 in another order
_CONVS: dict[str, tuple[tuple[int, ...], dict[str, Any]]] = {
    "w0": ((20, 3, 3, 3), {"pads": [1] * 4}),  # narrow input, filled up output
    "w1": ((24, 20, 3, 3), {"auto_pad": "SAME_UPPER"}),  # filled up input and output
    "w2": ((32, 24, 1, 1), {}),
    "w3": ((32, 1, 3, 3), {"group": 32, "pads": [1] * 4}),  # depthwise
    "w4": ((32, 16, 3, 3), {"group": 2, "pads": [1] * 4}),  # groups: stays as it is
    "w5": ((32, 32, 3, 3), {"pads": [2] * 4, "dilations": [2, 2]}),
}


@pytest.fixture(params=["blocked", "not on this machine"])
def layout(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param != "blocked":
        monkeypatch.setattr(blocked, "block_of_machine", lambda: 0)
    return str(request.param)


@pytest.fixture(params=["one", "each atom"], autouse=True)
def segment_count(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    starts = {"one": lambda n: [0], "each atom": lambda n: list(range(n))}
    monkeypatch.setattr(plan, "cuts", lambda works, *rest: starts[request.param](len(works)))


def images(free: bool = False, pool: str = "Max") -> onnx.ModelProto:
    """Convolutions of all kinds, a residual sum, pooling and a product; weights calibrated.

    ``free``: the channels of the input are not stated. ``pool``: what kind of pooling.
    """
    rng = np.random.default_rng(5)
    std = {name: 1 / np.sqrt(np.prod(shape[1:])) for name, (shape, _) in _CONVS.items()}
    weights = {
        n: rng.normal(0, std[n], shape).astype(np.float32) for n, (shape, _) in _CONVS.items()
    }
    weights["w6"] = rng.normal(0, 0.2, (32, 10)).astype(np.float32)
    constants = weights | {"b1": rng.normal(0, 0.1, 24).astype(np.float32)}
    constants["b6"] = rng.normal(0, 0.1, 10).astype(np.float32)
    nodes = [grid(name, 1.0) for name in weights]
    nodes[2] = hz_calibration.make_node(
        "w2_HzCalibration", "w2", "w2_q", per_channel(weights["w2"])
    )

    def conv(x: str, index: int, bias: str = "") -> str:
        inputs = [x, f"w{index}_q", *filter(None, [bias])]
        attributes = _CONVS[f"w{index}"][1]
        nodes.append(helper.make_node("Conv", inputs, [f"c{index}"], f"Conv_{index}", **attributes))
        return f"c{index}"

    def op(kind: str, inputs: list[str], y: str, **attributes: Any) -> str:
        nodes.append(helper.make_node(kind, inputs, [y], f"{kind}_{y}", **attributes))
        return y

    r = op("Relu", [conv("x", 0)], "r")
    d = conv(op("Relu", [conv(r, 1, "b1")], "s"), 2)
    nodes.append(grid("c2", 4.0))
    e = op("Relu", [op("Add", [conv("c2_q", 3), d], "a")], "e")
    window = {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1] * 4}
    h = op("Add", [e, conv(e, 4)], "h")
    p = op(f"{pool}Pool", [conv(h, 5)], "p", **window)
    flat = op("Flatten", [op(f"Global{pool}Pool", [op("Add", [p, p], "pp")], "g")], "f")
    op("Gemm", [flat, "w6_q", "b6"], "y")
    channels = "c" if free else 3
    graph = helper.make_graph(
        nodes,
        "images",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, (1, channels, 10, 10))],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, (1, 10))],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    hz_calibration.declare(model)
    return model


def per_channel(weight: Array) -> hz_calibration.Calibration:
    peaks = np.abs(weight).max(axis=(1, 2, 3)).astype(np.float32)
    return hz_calibration.Calibration((peaks / np.float32(127.5)).astype(np.float32), peaks, 8, 0)


def image(channels: int = 3, seed: int = 1) -> Array:
    return np.random.default_rng(seed).normal(0, 1, (1, channels, 10, 10)).astype(np.float32)


def runner(proto: onnx.ModelProto, data: list[Any]) -> Runner:
    model = load_calibrated(proto)
    return Runner(model, CalibrationDataSet(data, model.inputs))


@pytest.mark.parametrize("pool", ["Max", "Average"])
def test_each_node_alone_gives_what_a_session_of_its_own_gives(layout: str, pool: str) -> None:
    proto, x = images(pool=pool), image()
    run = runner(proto, [x])
    for on in [(), *((name,) for name in run.model.calibrations)]:
        expected = brute.values(proto, on, {"x": x}, ["y"])["y"]
        np.testing.assert_allclose(run.values(0, on)["y"], expected, rtol=0, atol=ATOL)


_SUMS: dict[str, list[tuple[str, list[str], str]]] = {
    "conv first": [("Conv", ["r", "w"], "c"), ("Add", ["c", "r"], "y")],
    "conv last": [("Conv", ["r", "w"], "c"), ("Add", ["r", "c"], "y")],
    "relu of a sum": [("Conv", ["r", "w"], "c"), ("Add", ["c", "x"], "s"), ("Relu", ["s"], "y")],
    "sum of a relu": [("Conv", ["r", "w"], "c"), ("Relu", ["c"], "s"), ("Add", ["s", "r"], "y")],
    "two convs": [
        ("Conv", ["r", "w"], "c"),
        ("Conv", ["c", "w", "b"], "d"),
        ("Conv", ["r", "w"], "e"),
        ("Add", ["d", "e"], "y"),
    ],
    "two sums": [("Conv", ["r", "w"], "c"), ("Add", ["c", "r"], "s"), ("Add", ["s", "x"], "y")],
    "twice": [("Conv", ["r", "w"], "c"), ("Add", ["c", "c"], "y")],
    "read again": [
        ("Conv", ["r", "w"], "c"),
        ("Add", ["c", "r"], "s"),
        ("Sub", ["s", "c"], "y"),
    ],
    "two relus": [("Conv", ["r", "w"], "c"), ("Relu", ["c"], "s"), ("Relu", ["s"], "y")],
    "not the last": [
        ("Conv", ["r", "w"], "c"),
        ("Sigmoid", ["r"], "z"),
        ("Add", ["c", "z"], "y"),
    ],
}


@pytest.mark.parametrize("steps", _SUMS.values(), ids=_SUMS)
def test_a_convolution_adds_an_image_where_nothing_else_reads_it(
    steps: list[tuple[str, list[str], str]], layout: str
) -> None:
    rng = np.random.default_rng(8)
    weight = rng.normal(0, 0.1, (16, 16, 3, 3)).astype(np.float32)
    make = helper.make_node
    nodes = [grid("x", 3.0), make("Relu", ["x_q"], ["r"], "r")]
    for index, (kind, inputs, output) in enumerate(steps):
        pads = {"pads": [1] * 4} if kind == "Conv" else {}
        nodes.append(make(kind, inputs, [output], f"{kind}_{index}", **pads))
    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, (2, 16, 6, 6)) for n in "xy"]
    constants = [numpy_helper.from_array(weight, "w")]
    constants.append(numpy_helper.from_array(weight[:, 0, 0, 0].copy(), "b"))
    graph = helper.make_graph(nodes, "sums", ends[:1], ends[1:], constants)
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    hz_calibration.declare(proto)
    x = rng.normal(0, 1, (2, 16, 6, 6)).astype(np.float32)
    expected = brute.values(proto, [], {"x": x}, ["y"])["y"]
    np.testing.assert_allclose(runner(proto, [x]).values(0)["y"], expected, rtol=0, atol=ATOL)


def test_a_sum_behind_a_convolution_takes_no_pass_of_its_own() -> None:
    block = blocked.block_of_machine()
    if not block:
        pytest.skip("this machine has no blocked layout")
    shapes = dict.fromkeys(["r", "c", "s", "y"], (1, 16, 6, 6))
    made = blocked.Rewriting(
        {"w": (16, 16, 3, 3)}, {"r": 16}, shapes, {"r": 2, "c": 1, "s": 1, "y": 1}, set(shapes)
    )
    for kind, inputs, output in _SUMS["conv first"][:1] + _SUMS["relu of a sum"][1:]:
        names = ["r" if name == "x" else name for name in inputs]
        made.add(helper.make_node(kind, names, [output]))
    made.end(["y"])
    kinds = [node.op_type for node in made.nodes]
    assert kinds == ["ReorderInput", "Conv", "ReorderOutput"]
    assert [len(node.input) for node in made.nodes] == [1, 4, 1]
    assert helper.get_node_attr_value(made.nodes[1], "activation") == b"Relu"


def test_the_layout_is_used_where_the_machine_has_one() -> None:
    run = runner(images(), [image()])
    run.values(0)
    rewritten = {form.source for form in run._sessions._in_form}
    convs = {"w0_q", "w1_q", "w2_q", "w3_q", "w5_q", "b1"}
    assert rewritten == (convs if blocked.block_of_machine() else set())


def test_all_tensors_within_parts_can_be_asked_for(layout: str) -> None:
    proto, x = images(), image()
    names = ["c0", "r", "s", "c2", "a", "e", "c4", "pp", "g"]
    on = ["w0_HzCalibration", "w3_HzCalibration"]
    expected = brute.values(proto, on, {"x": x}, names)
    for name, array in runner(proto, [x]).values(0, on, names).items():
        np.testing.assert_allclose(array, expected[name], rtol=0, atol=ATOL)


def test_items_of_other_sizes_run_after_the_first(layout: str) -> None:
    proto = images()
    for axis in (0, 2, 3):
        proto.graph.input[0].type.tensor_type.shape.dim[axis].dim_param = f"free{axis}"
    proto.graph.output[0].type.tensor_type.shape.dim[0].dim_param = "free0"
    small, large = image(), np.concatenate([image(seed=2).repeat(2, 2)] * 2)
    run = runner(proto, [small, large])
    for index, x in enumerate((small, large)):
        on = ["w2_HzCalibration", "c2_HzCalibration"]
        expected = brute.values(proto, on, {"x": x}, ["y"])["y"]
        np.testing.assert_allclose(run.values(index, on)["y"], expected, rtol=0, atol=ATOL)


def test_channels_that_the_weights_do_not_take_are_refused(layout: str) -> None:
    """Four in the place of three, at first and after an item that is right."""
    message = "onnxruntime can't run the nodes? Conv_0.*"
    with pytest.raises(RunError, match=message):
        runner(images(free=True), [image(channels=4)]).values(0)
    run = runner(images(free=True), [image(), image(channels=4)])
    run.values(0)
    told = f"{message}: x has the shape .*, the weights take 3 channels"
    has_layout = layout == "blocked" and blocked.block_of_machine()
    with pytest.raises(RunError, match=told if has_layout else message):
        run.values(1)


def test_atoms_of_the_same_structure_share_a_session(
    layout: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three layers, each behind a calibration node of its own, on images of different sizes."""
    made: list[bytes] = []
    new = structures.new_session
    monkeypatch.setattr(structures, "new_session", lambda d, **kw: made.append(d) or new(d, **kw))
    monkeypatch.setattr(plan, "cuts", lambda works, *rest: list(range(len(works))))
    window = {"kernel_shape": [2, 2], "strides": [2, 2]}
    nodes = []
    for index in range(3):
        nodes.append(grid(f"t{index}", 3.0))
        inputs, outputs = [f"t{index}_q"], [f"t{index + 1}"]
        nodes.append(helper.make_node("MaxPool", inputs, outputs, f"MaxPool_{index}", **window))
    graph = helper.make_graph(
        nodes,
        "layers",
        [helper.make_tensor_value_info("t0", TensorProto.FLOAT, (1, 3, 16, 16))],
        [helper.make_tensor_value_info("t3", TensorProto.FLOAT, (1, 3, 2, 2))],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    hz_calibration.declare(proto)
    x = np.random.default_rng(6).normal(0, 1, (1, 3, 16, 16)).astype(np.float32)
    run = runner(proto, [x])
    for on in ([], ["t1_HzCalibration"]):
        expected = brute.values(proto, on, {"t0": x}, ["t3"])["t3"]
        np.testing.assert_array_equal(run.values(0, on)["t3"], expected)
    assert len(made) == 1


def test_no_weight_is_serialized(layout: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """So no part comes near the 2 GB that protobuf can write."""
    sizes: list[int] = []
    new = structures.new_session
    monkeypatch.setattr(
        structures, "new_session", lambda d, **kw: sizes.append(len(d)) or new(d, **kw)
    )
    run = runner(images(), [image()])
    run.values(0, ["w1_HzCalibration"])
    list(run.stream(0, ["w1_HzCalibration"]))
    assert max(sizes) < 24 * 20 * 3 * 3 * 4  # the bytes of w1 alone


def test_a_moved_weight_has_the_bits_of_the_calibrated_one_in_its_form() -> None:
    if not blocked.block_of_machine():
        pytest.skip("this machine has no blocked layout")
    run = runner(images(), [image()])
    run.values(0)
    sessions, items = run._sessions, run.model.calibrations
    for name in ("w0", "w1", "w2", "w3", "w5"):
        item, weight = items[f"{name}_HzCalibration"], run._wiring.array(name)
        form = next(form for form in sessions._in_form if form.source == item.output)
        expected = form.of(sessions.calibrate(item, weight))
        for _ in range(3):  # in memory of the moment, kept, and what was kept
            np.testing.assert_array_equal(sessions._moved(form, item, 0), expected)


def test_a_form_is_what_its_sizes_say() -> None:
    weight = np.arange(4 * 4, dtype=np.float32).reshape(4, 4, 1, 1)
    got = Form("w", 2, is_inner=True).of(weight)
    for index in np.ndindex(2, 2, 2, 2):
        o, i, inner, outer = index
        flat = ((o * 2 + i) * 2 + inner) * 2 + outer
        assert got.reshape(-1)[flat] == weight[2 * o + outer, 2 * i + inner, 0, 0]
    filled = Form("w", 8).of(weight)
    assert filled.shape == (8, 4, 1, 1)
    np.testing.assert_array_equal(filled.reshape(4, 8)[:, :4], weight.reshape(4, 4).T)
    np.testing.assert_array_equal(filled.reshape(4, 8)[:, 4:], 0)


@pytest.mark.parametrize("make", [images, nets.residual, nets_branches.branches])
def test_sizes_are_inferred_as_a_run_has_them(make: Any) -> None:
    model = load_calibrated(make())
    feed = {
        port.name: np.zeros([n or 1 for n in port.shape or ()], port.dtype) for port in model.inputs
    }
    wiring = Wiring(model)
    got = inferred_sizes(wiring, feed)
    atoms = [wiring.part(*bounds) for bounds in wiring.atoms()]
    expected = plan._probed(Sessions(wiring), atoms, feed)
    assert {name: got[name] for name in expected} == expected


def test_sizes_that_cannot_be_inferred_come_from_a_run() -> None:
    x = image()
    nodes = [
        helper.make_node("NonZero", ["x"], ["n"], "NonZero_n"),
        helper.make_node("Cast", ["n"], ["z"], "Cast_z", to=TensorProto.FLOAT),
        grid("z", 10.0),
        helper.make_node("ReduceMean", ["z_q"], ["y"], "ReduceMean_y", keepdims=0),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, (1, 3, 10, 10))],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ())],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    hz_calibration.declare(proto)
    run = runner(proto, [x])
    assert "n" not in inferred_sizes(run._wiring, {"x": x})
    on = ["z_HzCalibration"]
    expected = brute.values(proto, on, {"x": x}, ["y"])["y"]
    np.testing.assert_allclose(run.values(0, on)["y"], expected, rtol=1e-6)  # a mean of 900 numbers
