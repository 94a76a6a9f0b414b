"""One planted fault per kind: the gate must fail, and its message must name the culprit."""

from __future__ import annotations

import copy

import digits_model as digits
import faulty_models as faulty
import pytest
from filelock import FileLock

from pytest_qtune import assert_no_shared_ops, assert_no_unfused, assert_sensitivity_below


@pytest.fixture(scope="session")
def trained(tmp_path_factory):
    shared = tmp_path_factory.getbasetemp().parent
    with FileLock(shared / "digits.lock"):
        return digits.trained(shared)


@pytest.fixture(scope="session")
def build(qtune_stages):
    def stages_of(model, name):
        return qtune_stages(model, digits.calibration_batches, march="nash-e", name=name)

    return stages_of


def test_a_shared_operator_is_named(build, trained):
    model = faulty.copy_weights(trained, faulty.SharedConv())
    stages = build(model, "digits with a shared conv")
    with pytest.raises(AssertionError, match=r"(?s)^no_shared_ops: conv: got 2 calls.*run again:"):
        assert_no_shared_ops(stages.calib, inputs=digits.holdout())


def test_an_unfused_batch_norm_is_named(build, trained):
    model = faulty.copy_weights(trained, faulty.UnfusedBatchNorm())
    stages = build(model, "digits with an unfused bn")
    with pytest.raises(AssertionError, match=r"(?s)^no_unfused: conv \+ bn: .*used elsewhere"):
        assert_no_unfused(stages.calib, inputs=digits.holdout())


def test_a_huge_range_is_named_as_the_most_sensitive_layer(build, trained):
    model = faulty.with_huge_channel(copy.deepcopy(trained))
    assert digits.accuracy(model) == pytest.approx(digits.accuracy(trained), abs=0.005)  # float
    stages = build(model, "digits with a huge channel")
    with pytest.raises(AssertionError, match=r"^sensitivity_below: .*got L1") as failure:
        assert_sensitivity_below(stages.calib, digits.holdout(), metric="L1", limit=0.2)
    layers = failure.value.qtune_result.layers
    worst = sorted(layers, key=lambda layer: -layer.badness)[:2]
    # the channel runs through the block's result and its mean; both are hostile to int8
    assert {layer.name for layer in worst} == {"body.2 output", "_generated_mean_0 output"}
