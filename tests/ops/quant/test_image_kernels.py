"""Picture operators: NumPy oracle, torch kernel and ONNX Runtime give equal bytes."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from qtune.arith_fast.held import plain_from_held
from qtune.hbir.domain import single_node_model
from qtune.ops.kernel import KernelNode
from qtune.ops.registry import kernel

RNG = np.random.default_rng(3)


def in_onnx(op, arrays, attrs):
    model = single_node_model(op, arrays, attrs)
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    names = [item.name for item in session.get_inputs()]
    return session.run(None, dict(zip(names, arrays, strict=True)))[0]


def fast(op, arrays, attrs, out):
    kinds = tuple(str(array.dtype) for array in arrays)
    make = kernel("qtune", op).fast
    assert make is not None
    return make(KernelNode(op, attrs, {}, kinds, (out,)))(*map(torch.from_numpy, arrays))


def reference(op, arrays, attrs):
    run = kernel("qtune", op).reference
    assert run is not None
    return run(attrs, *arrays)


def test_pixels_are_centred():
    x = np.array([0, 1, 127, 128, 255], dtype=np.uint8)

    expected = [-128, -127, -1, 0, 127]
    assert reference("QPixels", [x], {}).tolist() == expected
    assert plain_from_held(fast("QPixels", [x], {}, "int8")).tolist() == expected
    assert in_onnx("QPixels", [x], {}).tolist() == expected


def test_a_chroma_pair_serves_four_pixels():
    y = np.arange(8, dtype=np.uint8).reshape(1, 2, 4, 1)
    uv = np.array([[10, 20], [30, 40]], dtype=np.uint8).reshape(1, 1, 2, 2)

    got = reference("QNv12", [y, uv], {})

    assert got[0, 0, :, 0].tolist() == [-128, -127, -126, -125]
    assert got[0, :, :, 1].tolist() == [[-118, -118, -98, -98]] * 2
    assert got[0, :, :, 2].tolist() == [[-108, -108, -88, -88]] * 2
    assert np.array_equal(plain_from_held(fast("QNv12", [y, uv], {}, "int8")).numpy(), got)
    assert np.array_equal(in_onnx("QNv12", [y, uv], {}), got)


@pytest.mark.parametrize("op", ["Pixels", "Nv12"])
def test_float_forms_are_the_codes_times_the_scale(op):
    y = RNG.integers(0, 256, (2, 4, 6, 1)).astype(np.uint8)
    uv = RNG.integers(0, 256, (2, 2, 3, 2)).astype(np.uint8)
    arrays = [y] if op == "Pixels" else [y, uv]
    attrs = {"scale": 1 / 128} | ({"zero": 128} if op == "Pixels" else {})
    run = kernel("qtune", op).run_float
    assert run is not None

    got = run(attrs, *map(torch.from_numpy, arrays)).numpy()

    codes = reference(f"Q{op}", arrays, {})
    assert got.dtype == np.float32
    assert np.array_equal(got, codes.astype(np.float32) / 128)
    assert np.array_equal(in_onnx(op, arrays, attrs), got)


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_regions_are_resized_with_equal_bytes(data):
    size = st.integers(1, 9)
    n, height, width, channels = data.draw(st.tuples(st.integers(1, 2), size, size, size))
    x = RNG.integers(0, 256, (n, height, width, channels)).astype(np.uint8)
    start = st.integers(-9, 12)
    roi = np.array(
        [
            [left, top, left + data.draw(st.integers(0, 12)), top + data.draw(st.integers(0, 12))]
            for left, top in data.draw(st.lists(st.tuples(start, start), min_size=n, max_size=n))
        ],
        dtype=np.int32,
    )
    attrs = {
        "height": data.draw(size),
        "width": data.draw(size),
        "halve": data.draw(st.sampled_from([1, 2])),
        "pad": data.draw(st.integers(0, 255)),
    }

    expected = reference("QRoiResize", [x, roi], attrs)

    assert np.array_equal(fast("QRoiResize", [x, roi], attrs, "uint8").numpy(), expected)
    assert np.array_equal(in_onnx("QRoiResize", [x, roi], attrs), expected)


def test_region_of_the_picture_itself_changes_nothing_and_half_of_it_averages():
    x = np.array([[0, 10, 20, 30]], dtype=np.uint8).reshape(1, 1, 4, 1)
    roi = np.array([[0, 0, 3, 0]], dtype=np.int32)
    attrs = {"height": 1, "width": 4, "halve": 1, "pad": 99}

    assert reference("QRoiResize", [x, roi], attrs).reshape(-1).tolist() == [0, 10, 20, 30]
    assert reference("QRoiResize", [x, roi], {**attrs, "width": 2}).reshape(-1).tolist() == [5, 25]
    outside = np.array([[-4, 0, -1, 0]], dtype=np.int32)
    assert reference("QRoiResize", [x, outside], attrs).reshape(-1).tolist() == [99] * 4
