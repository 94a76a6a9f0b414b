"""Pictures of bytes as inputs: the numbers of the float model, and equal bits in every engine."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from qtune.bpu.compiler import convert
from qtune.errors import ArgumentError, ConvertError
from tests.hbir.passes.models import bits, qat_module

RNG = np.random.default_rng(0)
PICTURE = RNG.integers(0, 256, (2, 8, 8, 3)).astype(np.uint8)
Y = RNG.integers(0, 256, (2, 8, 8, 1)).astype(np.uint8)
UV = RNG.integers(0, 256, (2, 4, 4, 2)).astype(np.uint8)
MEAN, STD = [123.675, 116.28, 103.53], [58.395, 57.12, 57.375]


def nhwc(module):
    return module[0].inputs[0].insert_transpose([0, 3, 1, 2])[0]


def real(pictures):
    """What the float model gets: NCHW float32."""
    return np.ascontiguousarray(pictures.transpose(0, 3, 1, 2)).astype(np.float32)


def rgb_of(yuv, full):
    """BT.601 by its definition: luma from the parts of red and blue, chroma from B - Y, R - Y."""
    y, cb, cr = (yuv[..., i].astype(np.float64) for i in range(3))
    if full:
        y, cb, cr = y, (cb - 128) / 255, (cr - 128) / 255
    else:
        y, cb, cr = (y - 16) * 255 / 219, (cb - 128) / 224, (cr - 128) / 224
    red = y + 255 * 2 * (1 - 0.299) * cr
    blue = y + 255 * 2 * (1 - 0.114) * cb
    green = (y - 0.299 * red - 0.114 * blue) / 0.587
    return np.stack([red, green, blue], axis=-1)


@pytest.mark.parametrize("mode", ["skip", "bgr2rgb", "rgb2bgr"])
@pytest.mark.parametrize("is_signed", [True, False])
def test_bytes_are_normalized_as_the_float_model_was_fed(mode, is_signed):
    module = qat_module()
    (new,) = nhwc(module).insert_image_preprocess(mode, 1, MEAN, STD, is_signed)
    assert (new.dtype, new.shape) == ("int8" if is_signed else "uint8", (2, 8, 8, 3))
    feed = (PICTURE.astype(np.int16) - 128).astype(np.int8) if is_signed else PICTURE

    colours = PICTURE if mode == "skip" else PICTURE[..., ::-1]
    expected = qat_module()[0].feed({"image": real((colours - np.array(MEAN)) / np.array(STD))})
    got = module[0].feed({"image": feed})
    bits(module, {"image": feed})

    for name, value in expected.items():
        # weights of 16 bits: the input may fall on the other side of a tie of its grid, rarely
        assert np.mean(np.abs(got[name] - value) > 1e-5) < 0.05


@pytest.mark.parametrize("full", [True, False])
@pytest.mark.parametrize("order", ["rgb", "bgr"])
def test_nv12_becomes_bt601_colours(full, order):
    module = qat_module()
    mode = f"yuvbt601{'full' if full else 'video'}2{order}"
    node = nhwc(module).insert_image_preprocess(mode, 255, [0.5] * 3, [0.5] * 3)[0]

    planes = node.insert_image_convert("nv12")

    assert [str(item) for item in planes] == [
        "image_y: uint8[2, 8, 8, 1]",
        "image_uv: uint8[2, 4, 4, 2]",
    ]
    yuv = np.concatenate([Y, UV.repeat(2, axis=1).repeat(2, axis=2)], axis=3)
    colours = rgb_of(yuv, full)[..., :: 1 if order == "rgb" else -1]
    fed = real((colours / 255 - 0.5) / 0.5)
    expected = qat_module()[0].feed({"image": fed})
    feed = {"image_y": Y, "image_uv": UV}
    got = module[0].feed(feed)
    converted, _ = bits(module, feed)
    for name, value in expected.items():
        assert np.mean(np.abs(got[name] - value) > 1e-5) < 0.05  # ties, as above
    assert [op.type for op in converted[0].operations][:3] == [
        "qtune::QNv12",
        "qtune::QLinear8x16",
        "onnx::Transpose",
    ]
    assert converted.report == ()


def test_integer_preprocess_is_within_one_step_of_the_fake_quant_model():
    module = qat_module()
    nhwc(module).insert_image_preprocess("yuvbt601full2rgb", 1, MEAN, STD, False)
    feed = {"image": PICTURE}
    first = module[0].extract_function(["image"], ["image_preprocess"])
    converted = convert(module, "nash-e")
    integer = converted[0].extract_function(["image"], ["image_preprocess"])

    fake = first[0].feed(feed)
    (codes,) = integer[0].feed(feed).values()

    scale = integer[0].outputs[0].scale
    (values,) = fake.values()
    assert codes.dtype == np.int8
    assert np.abs(codes - np.round(values / scale)).max() <= 1


def test_float_input_takes_centred_pixels_without_a_conversion():
    module = qat_module()
    planes = nhwc(module).insert_image_convert("nv12")
    yuv = np.concatenate([Y, UV.repeat(2, axis=1).repeat(2, axis=2)], axis=3)
    expected = qat_module()[0].feed({"image": real((yuv.astype(np.float64) - 128) / 128)})

    feed = {"image_y": Y, "image_uv": UV}
    got = module[0].feed(feed)

    assert len(planes) == 2
    bits(module, feed)
    for name, value in expected.items():
        assert np.array_equal(got[name], value)


def test_planes_may_stand_before_an_input_with_channels_first():
    module = qat_module()
    node = (
        module[0]
        .inputs[0]
        .insert_image_preprocess("yuvbt601full2rgb", 1, MEAN, STD, image_layout="NCHW")[0]
    )
    node.insert_image_convert("nv12")
    other = qat_module()
    nhwc(other).insert_image_preprocess("yuvbt601full2rgb", 1, MEAN, STD)[0].insert_image_convert()
    feed = {"image_y": Y, "image_uv": UV}

    got, expected = bits(module, feed)[1], bits(other, feed)[1]

    for name, value in expected.items():
        assert np.array_equal(got[name], value)


def test_gray_takes_one_plane():
    module = qat_module(channels=1)

    (new,) = nhwc(module).insert_image_convert("gray")

    assert str(new) == "image: uint8[2, 8, 8, 1]"
    expected = qat_module(1)[0].feed({"image": real((Y.astype(np.float64) - 128) / 128)})
    got = module[0].feed({"image": Y})
    bits(module, {"image": Y})
    for name, value in expected.items():
        assert np.array_equal(got[name], value)


def test_region_of_the_whole_picture_is_the_picture():
    module, whole = qat_module(), qat_module()
    new = nhwc(module).insert_roi_resize("nv12")
    nhwc(whole).insert_image_convert("nv12")
    assert [item.name for item in new] == ["image_y", "image_uv", "image_roi"]
    assert str(new[2]) == "image_roi: int32[2, 4]"
    feed = {"image_y": Y, "image_uv": UV}

    roi = np.array([[0, 0, 7, 7]] * 2, dtype=np.int32)
    got = bits(module, {**feed, "image_roi": roi})[1]

    for name, value in bits(whole, feed)[1].items():
        assert np.array_equal(got[name], value)


def test_regions_of_a_larger_picture_are_resized_and_padded():
    module = qat_module()
    nhwc(module).insert_roi_resize("nv12", source_size=(12, 16))
    feed = {
        "image_y": RNG.integers(0, 256, (2, 12, 16, 1)).astype(np.uint8),
        "image_uv": RNG.integers(0, 256, (2, 6, 8, 2)).astype(np.uint8),
        "image_roi": np.array([[-3, 2, 11, 9], [40, 40, 60, 60]], dtype=np.int32),
    }

    got = bits(module, feed)[1]["_output_0"]

    # the second region lies outside: black, luma 0 and chroma 128
    black = np.full((1, 8, 8, 3), 128.0)
    black[..., 0] = 0
    fed = real(np.concatenate([black, black]) / 128 - 1)
    expected = bits(qat_module(), {"image": fed})[1]["_output_0"]
    assert np.array_equal(got[1], expected[1])
    assert not np.array_equal(got[0], got[1])


def test_inserted_inputs_compile_and_keep_their_bits(tmp_path):
    from qtune.bpu.compiler import compile

    module = qat_module()
    nhwc(module).insert_image_preprocess("yuvbt601video2bgr", 1, MEAN, STD)[0].insert_roi_resize(
        "nv12", source_size=(12, 16)
    )
    feed = {
        "image_y": RNG.integers(0, 256, (2, 12, 16, 1)).astype(np.uint8),
        "image_uv": RNG.integers(0, 256, (2, 6, 8, 2)).astype(np.uint8),
        "image_roi": np.array([[1, 2, 11, 9], [4, 0, 15, 7]], dtype=np.int32),
    }
    converted, expected = bits(module, feed)

    hbm = compile(converted, tmp_path / "m.hbm", "nash-e")

    for name, value in hbm[0].feed(feed).items():
        assert np.array_equal(value, expected[name])


def test_inserted_operators_take_any_batch_and_can_be_run_alone():
    module = qat_module()
    node = nhwc(module).insert_image_preprocess("yuvbt601full2rgb", 1, MEAN, STD)[0]
    node.insert_roi_resize("nv12", source_size=(12, 16))
    feed = {
        "image_y": RNG.integers(0, 256, (3, 12, 16, 1)).astype(np.uint8),
        "image_uv": RNG.integers(0, 256, (3, 6, 8, 2)).astype(np.uint8),
        "image_roi": np.array([[0, 0, 9, 9]] * 3, dtype=np.int32),
    }
    converted, _ = bits(module, feed)
    results = {}
    converted[0].run(feed, observe=lambda name, result: results.update({name: result}))

    names = ["image_roi_resize", "image_preprocess", "image_transpose"]
    assert converted[0].operator_names()[:3] == names
    known = {name: torch.from_numpy(array) for name, array in feed.items()}
    known.update({name: result.values for name, result in results.items()})
    for name in names:
        runner = converted[0].extract_operator(name)
        alone = runner({key: known[key] for key in runner.inputs})
        assert torch.equal(alone.codes, results[name].codes)


def test_colour_conversion_needs_int16_weights():
    module = qat_module()
    nhwc(module).insert_image_preprocess("yuvbt601full2rgb", 1, MEAN, STD)
    with pytest.raises(ConvertError, match="image_preprocess: qint8 x qint16 .* on bayes"):
        convert(module, "bayes")


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda a: a.insert_image_preprocess("yuv"), ArgumentError, "expected one of skip"),
        (lambda a: a.insert_image_preprocess("skip"), ArgumentError, r"insert_transpose.*NCHW"),
        (lambda a: a.insert_image_convert("rgb"), ArgumentError, "expected one of nv12, gray"),
        (lambda a: a.insert_image_convert("gray"), ArgumentError, r"pictures of 1 channel"),
        (lambda a: a.insert_image_convert("nv12_yh12"), NotImplementedError, "nv12_yh12"),
        (lambda a: a.insert_roi_resize("nv12", "nearest"), NotImplementedError, "interp_mode"),
        (
            lambda a: a.insert_roi_resize("nv12", pad_mode="border"),
            NotImplementedError,
            "pad_mode='border'",
        ),
        (lambda a: a.insert_roi_resize("nv12", pad_value=(0, 999)), ArgumentError, "two bytes"),
        (lambda a: a.insert_roi_resize("nv12", source_size=(9, 8)), ArgumentError, "are even"),
        (
            lambda a: a.insert_image_preprocess("skip", bit_width=10, image_layout="NCHW"),
            NotImplementedError,
            "bit_width=10",
        ),
        (
            lambda a: a.insert_image_preprocess("skip", std=[1, 0, 1], image_layout="NCHW"),
            ArgumentError,
            "must not be 0",
        ),
        (
            lambda a: a.insert_image_preprocess("skip", mean=[1.0], image_layout="NCHW"),
            ArgumentError,
            "mean must hold 3 numbers",
        ),
        *(
            (
                lambda a, mean=mean: a.insert_image_preprocess(
                    "skip", mean=mean, image_layout="NCHW"
                ),
                ArgumentError,
                "mean must hold 3 numbers",
            )
            for mean in (["a", "b", "c"], [float("nan")] * 3, None)
        ),
        (
            lambda a: a.insert_image_preprocess("skip", divisor="255", image_layout="NCHW"),
            ArgumentError,
            "divisor must be a number, got '255'",
        ),
        (
            lambda a: a.insert_image_preprocess("skip", is_signed="no", image_layout="NCHW"),
            ArgumentError,
            "is_signed must be True or False, got 'no'",
        ),
        (lambda a: a.insert_rle(), NotImplementedError, "insert_rle"),
        (
            lambda a: a.function.outputs[0].insert_image_convert("nv12"),
            ArgumentError,
            "this argument is an output",
        ),
    ],
)
def test_misuse_is_named(call, error, message):
    module = qat_module()
    with pytest.raises(error, match=message):
        call(module[0].inputs[0])
    assert module.to_bytes() == qat_module().to_bytes()
