"""Trained public nets on real images: integers against float, beside a naive min-max simulation.

Every comparison uses the same seeded crops, and the yardstick is computed in the same run.
"""

from __future__ import annotations

import mobilenet_v2
import mtcnn
import naive
import photos
import pytest
import torch

from pytest_qtune import assert_bit_exact, assert_consistency
from qtune import qint8
from qtune.quantization import get_qconfig
from qtune.quantization.observer_v2 import MSEObserver
from qtune.quantization.qconfig_setter import (
    ConvDtypeTemplate,
    MatmulDtypeTemplate,
    ModuleNameTemplate,
    QconfigSetter,
)

MARCH = "nash-e"
BATCH = 8
FACES = {"pnet": 12, "rnet": 24, "onet": 48}


def in_batches(model, images):
    """Run in the batch size of the export, one thread's worth of memory at a time."""
    with torch.no_grad():
        return [model(batch) for batch in images.split(BATCH)]


@pytest.fixture(scope="module")
def crops():
    return photos.imagenet_crops(48, seed=1)


@pytest.fixture(scope="module")
def calibration():
    return list(photos.imagenet_crops(32, seed=0).split(BATCH))


@pytest.fixture(scope="module")
def mobilenet(qtune_stages, calibration):
    """int8 with the observer that searches for the scale of least squared error."""
    templates = [ModuleNameTemplate({"": qint8}), ConvDtypeTemplate(), MatmulDtypeTemplate()]
    return qtune_stages(
        mobilenet_v2.mobilenet_v2,
        calibration,
        march=MARCH,
        name="MobileNetV2",
        qconfig_setter=QconfigSetter(get_qconfig(observer=MSEObserver), templates),
    )


def test_mobilenet_agrees_with_float_at_least_as_often_as_naive(mobilenet, crops, calibration):
    expected = torch.cat(in_batches(mobilenet.float, crops))
    integer = torch.cat(in_batches(mobilenet.quantized_bc[0], crops))
    simulated = torch.cat(in_batches(naive.naive_int8(mobilenet.float, calibration), crops))

    def agreement(logits):
        return float((logits.argmax(1) == expected.argmax(1)).float().mean())

    assert agreement(integer) >= agreement(simulated)
    assert naive.sqnr_db(expected, integer) >= naive.sqnr_db(expected, simulated)


def test_mobilenet_operators_stay_within_one_step(mobilenet, crops):
    assert_consistency(
        mobilenet.qat_bc, mobilenet.quantized_bc, inputs=crops[:BATCH], max_qscale_diff=1
    )


def test_mobilenet_export_changes_nothing(mobilenet, crops):
    assert_consistency(mobilenet.pre_export, mobilenet.qat_bc, inputs=crops[:BATCH], max_atol=0)


@pytest.fixture(scope="module", params=FACES)
def face_net(request, qtune_stages):
    name = request.param
    images, labels = photos.faces(FACES[name])
    stages = qtune_stages(
        lambda: mtcnn.load(name), list(images[::4].split(10)), march=MARCH, name=f"MTCNN {name}"
    )
    return stages, images, labels


def face_scores(outputs):
    """The two class probabilities; PNet gives a map of one position for 12x12 images."""
    return torch.cat([out[-1].flatten(1) for out in outputs])


def run(model, images):
    with torch.no_grad():
        return face_scores([model(batch) for batch in images.split(10)])


def test_face_nets_decide_at_least_as_well_as_naive(face_net):
    stages, images, labels = face_net
    expected = run(stages.float, images)
    integer = run(stages.quantized_bc[0], images)
    simulated = run(naive.naive_int8(stages.float, images[::4].split(10)), images)

    def right(scores):
        return float((scores.argmax(1) == labels).float().mean())

    assert right(expected) >= 0.99
    assert right(integer) >= right(simulated)
    assert (integer.argmax(1) == expected.argmax(1)).float().mean() >= 0.99


def test_face_net_operators_stay_within_their_bars(face_net):
    """One step; the int16 reciprocal inside softmax may be five away (docs/numerics.md)."""
    stages, images, _ = face_net
    assert_consistency(stages.qat_bc, stages.quantized_bc, inputs=images[:10], max_qscale_diff=5)


def test_face_net_bits_are_those_of_the_reference_kernels(face_net):
    stages, images, _ = face_net
    assert_bit_exact(stages.quantized_bc, inputs=images[:10], against="reference")
