"""A digits CNN from float to integers, with gates on structure, consistency and accuracy."""

from __future__ import annotations

import digits_model as digits
import pytest
from filelock import FileLock

from pytest_qtune import (
    assert_bit_exact,
    assert_consistency,
    assert_no_shared_ops,
    assert_no_unfused,
    assert_sensitivity_below,
)


@pytest.fixture(scope="session")
def float_model(tmp_path_factory):
    """Trained once for all workers."""
    shared = tmp_path_factory.getbasetemp().parent
    with FileLock(shared / "digits.lock"):
        return digits.trained(shared)


@pytest.fixture(scope="session")
def stages(qtune_stages, float_model):
    return qtune_stages(float_model, digits.calibration_batches, march="nash-e", name="digits")


def test_float_accuracy(float_model):
    assert digits.accuracy(float_model) >= 0.97


def test_integer_accuracy_is_within_one_point(stages, float_model):
    assert digits.accuracy(stages.quantized_bc[0]) >= digits.accuracy(float_model) - 0.01


def test_no_operator_is_shared(stages):
    assert_no_shared_ops(stages.calib, inputs=digits.holdout())


def test_every_fusible_pattern_is_fused(stages):
    assert_no_unfused(stages.calib, inputs=digits.holdout())


def test_integers_follow_the_fake_quant_model(stages):
    """Each operator, fed the same input, is at most one step away."""
    assert_consistency(
        stages.qat_bc, stages.quantized_bc, inputs=digits.holdout(), max_qscale_diff=1
    )


def test_outputs_follow_the_float_model(stages):
    assert_consistency(
        stages.float, stages.quantized_bc, inputs=digits.holdout(), min_cosine=0.99, min_sqnr_db=20
    )


def test_no_layer_strays_from_the_float_model(stages):
    assert_consistency(
        stages.float, stages.quantized_bc, inputs=digits.holdout(), per_layer=True, min_cosine=0.98
    )


def test_no_fragile_layer(stages):
    assert_sensitivity_below(stages.calib, digits.holdout(), metric="L1", limit=0.5)


def test_integers_are_reproducible(stages):
    """The reference kernels (plain NumPy) give the same bits as the fast ones."""
    assert_bit_exact(stages.quantized_bc, inputs=digits.holdout()[:8], against="reference")
