"""Resize and Upsample of every opset: the rules of the standard, on the BPU where it has them."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from qtune.errors import OnnxImportError
from qtune.hbir.onnx_import import import_onnx

from .single_nodes import assert_like_both, assert_like_onnxruntime, make, model_of, normal

SCALES = {"s": np.array([1, 1, 2, 1.5], np.float32)}


def kinds(proto: onnx.ModelProto) -> list[str]:
    return [node.op_type for node in import_onnx(proto).model.graph]


@pytest.mark.parametrize("opset", [7, 9])
@pytest.mark.parametrize("mode", ["nearest", "linear"])
def test_upsample_keeps_the_rule_of_its_opset(opset: int, mode: str) -> None:
    x = normal(1, 2, 4, 6)
    if opset == 7:
        node = make("Upsample", ["x"], ["y"], mode=mode, scales=[1.0, 1.0, 2.0, 1.5])
        proto = model_of(node, x, opset=opset)
    else:
        proto = model_of(make("Upsample", ["x", "s"], ["y"], mode=mode), x, SCALES, opset=opset)
    assert_like_onnxruntime(proto, x)


@pytest.mark.parametrize("scale", [0.5, 0.75, 1.5, 2.0])
@pytest.mark.parametrize("mode", ["nearest", "linear"])
def test_resize_of_opset_10_keeps_its_rule(mode: str, scale: float) -> None:
    x = normal(1, 2, 4, 8)
    scales = {"s": np.array([1, 1, scale, scale], np.float32)}
    node = make("Resize", ["x", "s"], ["y"], mode=mode)
    assert_like_onnxruntime(model_of(node, x, scales, opset=10), x)


@pytest.mark.parametrize("coordinates", ["half_pixel", "pytorch_half_pixel", "align_corners",
                                         "asymmetric", "half_pixel_symmetric"])  # fmt: skip
@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
def test_every_position_rule_is_that_of_the_standard(mode: str, coordinates: str) -> None:
    x = normal(1, 2, 5, 6)
    for sizes in ([1, 2, 10, 9], [1, 2, 3, 4], [1, 2, 7, 1]):
        node = make("Resize", ["x", "", "", "n"], ["y"], mode=mode,
                    coordinate_transformation_mode=coordinates)  # fmt: skip
        proto = model_of(node, x, {"n": np.array(sizes, np.int64)})
        assert_like_onnxruntime(proto, x, atol=1e-5)  # the BPU's step has 16 fraction bits


@pytest.mark.parametrize("rounding", ["round_prefer_floor", "round_prefer_ceil", "floor", "ceil"])
def test_every_rounding_of_nearest_is_exact(rounding: str) -> None:
    x = normal(1, 2, 4, 5)
    for coordinates in ("half_pixel", "asymmetric"):
        node = make("Resize", ["x", "", "", "n"], ["y"], nearest_mode=rounding,
                    coordinate_transformation_mode=coordinates)  # fmt: skip
        proto = model_of(node, x, {"n": np.array([1, 2, 9, 4], np.int64)})
        assert_like_both(proto, x, atol=0)


@pytest.mark.parametrize("mode", ["linear", "cubic"])
def test_antialias_widens_the_taps(mode: str) -> None:
    x = normal(1, 1, 9, 12)
    node = make("Resize", ["x", "", "", "n"], ["y"], mode=mode, antialias=1)
    assert_like_both(model_of(node, x, {"n": np.array([1, 1, 4, 5], np.int64)}), x)


def test_axes_of_any_place_and_rank_are_resized() -> None:
    x = normal(3, 4, 5)
    for mode in ("nearest", "linear"):
        node = make("Resize", ["x", "", "", "n"], ["y"], mode=mode, axes=[0, 2])
        assert_like_both(model_of(node, x, {"n": np.array([6, 3], np.int64)}), x)


def test_what_the_bpu_resizes_is_one_resize() -> None:
    x = normal(1, 2, 4, 4)
    twice = {"s": np.array([1, 1, 2, 2], np.float32)}
    linear = make("Resize", ["x", "", "s"], ["y"], mode="linear")
    nearest = make("Resize", ["x", "", "s"], ["y"])  # half_pixel and round_prefer_floor
    for node in (linear, nearest):
        proto = model_of(node, x, twice)
        assert_like_both(proto, x)
        assert kinds(proto) == ["Resize"]


def test_a_nearest_rule_of_its_own_moves_elements() -> None:
    node = make("Resize", ["x", "", "s"], ["y"], nearest_mode="ceil",
                coordinate_transformation_mode="asymmetric")  # fmt: skip
    proto = model_of(node, x := normal(1, 2, 4, 4), {"s": np.array([1, 1, 1.5, 1.5], np.float32)})
    assert_like_both(proto, x, atol=0)
    assert kinds(proto) == ["Gather", "Gather"]


@pytest.mark.parametrize(
    ("attrs", "scale", "named"),
    [
        ({"coordinate_transformation_mode": "tf_crop_and_resize"}, 2, "tf_crop_and_resize"),
        ({"coordinate_transformation_mode": "align_corners"}, 0.6, r"scale 0\.6.* ratio of the"),
    ],
)
def test_a_rule_without_form_is_refused_by_name(
    attrs: dict[str, str], scale: float, named: str
) -> None:
    x = normal(1, 1, 4, 4)
    node = make("Resize", ["x", "r", "s"], ["y"], name="up", mode="linear", **attrs)
    constants = {"s": np.array([1, 1, scale, scale], np.float32),
                 "r": np.array([0, 0, 0, 0, 1, 1, 1, 1], np.float32)}  # fmt: skip
    proto = model_of(node, x, constants)
    size = int(4 * scale)
    info = onnx.helper.make_tensor_value_info("y", 1, (1, 1, size, size))
    proto.graph.output[0].CopyFrom(info)
    with pytest.raises(OnnxImportError, match=f"up: Resize: .*{named}"):
        import_onnx(proto)
