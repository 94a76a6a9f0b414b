"""assert_no_saturation: real values beyond the range, or codes at its ends."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

from qtune.errors import ArgumentError
from qtune.march import march
from qtune.prepare.rundir import run_files_in
from qtune.quantization import prepare
from qtune.quantizers.state import FakeQuantState
from qtune.testing import Stages, assert_no_saturation

from . import nets
from .failing import Models, X


@pytest.fixture(scope="module")
def narrow() -> Stages:
    return Models(partial(Stages)).narrow


def shares(model: Any, inputs: Any, **options: Any) -> dict[str, float]:
    result = assert_no_saturation(model, inputs=inputs, max_share=1, **options)
    return {layer.name: layer.value for layer in result.layers}


def test_real_values_beyond_the_grid_count(narrow: Stages) -> None:
    """c1 has the scale 1/256: -128.5/256 to 127.5/256 is kept, 33 to 64 and 32 to 63 are not."""
    found = shares(narrow.calib, X)
    assert found.pop("c1 output") == 64 / 128
    assert set(found.values()) == {0.0}
    assert {"c1 weight", "_input_0_quant output"} <= set(found)


def test_codes_at_the_ends_count_in_a_module(narrow: Stages) -> None:
    """Of the same values also 127/256 and -128/256, rounded or exact, are at the ends."""
    for module in (narrow.qat_bc, narrow.quantized_bc):
        found = shares(module, X)
        assert found["c1"] == 66 / 128
        assert "c6" not in found  # high precision


def test_several_batches_are_one_share(narrow: Stages) -> None:
    batches = [X[:1], X[1:], torch.zeros(2, 1, 8, 8)]
    assert shares(narrow.calib, batches)["c1 output"] == 64 / 256
    assert shares(narrow.quantized_bc, batches)["c1"] == 66 / 256


def test_rows_that_only_fill_the_batch_do_not_count(narrow: Stages) -> None:
    assert shares(narrow.quantized_bc, X[:1])["c1"] == 33 / 64


def test_nan_and_infinities_are_clipped(narrow: Stages) -> None:
    bad = X.clone()
    bad[0, 0, 0, :2] = torch.tensor([math.nan, math.inf])
    assert shares(narrow.calib, bad, names="_input_0_quant")["_input_0_quant output"] == 2 / 128


def test_chosen_ports_only(narrow: Stages) -> None:
    assert set(shares(narrow.calib, X, names=["c0", "c2 weight"])) == {
        "c0 weight",
        "c0 output",
        "c2 weight",
    }
    assert set(shares(narrow.quantized_bc, X, names="c[12]")) == {"c1", "c2"}


def test_a_member_of_a_group_means_the_result_of_the_group(stages: Stages) -> None:
    found = shares(stages.quantized_bc, nets.batches()[0], names="stem")
    assert set(found) == {"_generated_relu_0"}


def test_the_model_stays_as_it_was(narrow: Stages) -> None:
    model = narrow.calib
    quantizers = [m for m in model.modules() if hasattr(m, "quant_min")]
    before = {name: value.clone() for name, value in model.state_dict().items()}
    shares(model, X)
    assert {q.state for q in quantizers} == {FakeQuantState.VALIDATION}
    assert not any(module._forward_hooks for module in model.modules())
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name])


def test_a_limit_that_is_barely_broken_looks_broken(narrow: Stages) -> None:
    with pytest.raises(AssertionError) as caught:
        assert_no_saturation(narrow.calib, inputs=X, max_share=0.4999999)
    assert str(caught.value).startswith(
        "no_saturation: c1 output: got 50% saturated, limit <= 49.99999%\n"
    )
    assert assert_no_saturation(narrow.calib, inputs=X, max_share=0.5)
    assert assert_no_saturation(narrow.calib, inputs=X, max_share=0.5).metrics == {"saturated": 0.5}


def test_wrong_arguments_are_named(narrow: Stages) -> None:
    for wrong in (-0.1, 1.5):
        with pytest.raises(ArgumentError, match="max_share is a share from 0 to 1 but got"):
            assert_no_saturation(narrow.calib, inputs=X, max_share=wrong)
    for wrong in ("1%", math.nan):
        with pytest.raises(ArgumentError, match="max_share must be a number but got"):
            assert_no_saturation(narrow.calib, inputs=X, max_share=wrong)
    with pytest.raises(ArgumentError, match="no operator is called 'c9'"):
        assert_no_saturation(narrow.calib, inputs=X, max_share=1, names="c9")
    for model in (narrow.calib, narrow.quantized_bc):
        with pytest.raises(ArgumentError, match="names is empty; leave it out for all ports"):
            assert_no_saturation(model, inputs=X, max_share=1, names=[])
    with pytest.raises(ArgumentError, match="expected a model made by prepare or an HBIR module"):
        assert_no_saturation(narrow.float, inputs=X, max_share=1)


def test_a_model_that_was_never_calibrated_is_refused() -> None:
    with march("nash-e"), run_files_in(None):
        raw = prepare(nets.make(), nets.batches()[0])
    with pytest.raises(ArgumentError, match="_input_0_quant output has no scale yet: calibrate"):
        assert_no_saturation(raw, inputs=nets.batches()[0], max_share=1)


def test_codes_at_the_ends_are_counted_exactly() -> None:
    inside, beyond = torch.linspace(0.1, 0.9, 49)[None], torch.zeros(1, 49)
    beyond[0, 3] = 5.0
    module = Stages(nn.ReLU(), [inside], march="nash-e").quantized_bc
    result = assert_no_saturation(module, inputs=beyond, max_share=1)
    assert {layer.found for layer in result.layers} == {"1 of 49 at the ends"}  # 1 / 49 * 49 < 1
