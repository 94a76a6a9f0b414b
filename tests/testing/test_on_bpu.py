"""assert_on_bpu: what falls back to the CPU, in every form of the model."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from qtune.errors import ArgumentError
from qtune.march import march
from qtune.prepare.rundir import run_files_in
from qtune.quantization import QuantStub, prepare
from qtune.testing import Stages, assert_on_bpu

from . import nets
from .failing import Fallback, setter

KEPT = ("elu", "tanh")


class Bordered(nets.Net):
    """With a stub of its own; what comes before it and behind the end is the user's."""

    def __init__(self) -> None:
        super().__init__()
        self.quant = QuantStub()

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(self.quant(torch.tanh(x)))


@pytest.fixture(scope="module")
def fallback(build: Any) -> Stages:
    return Stages(Fallback, [torch.ones(2, 1, 4, 4)], march="nash-e", name="net",
                  qconfig_setter=setter({}, KEPT))  # fmt: skip


@pytest.mark.parametrize("stage", ["calib", "pre_export", "qat_bc", "quantized_bc"])
def test_a_model_that_runs_whole_passes(stages: Stages, stage: str) -> None:
    result = assert_on_bpu(getattr(stages, stage))
    assert result.metrics == {"cpu_ops": 0}
    assert result.headline == "on_bpu: got 0 on the CPU, limit 0"


@pytest.mark.parametrize("stage", ["calib", "qat_bc", "quantized_bc"])
def test_all_forms_count_the_same_operators_with_their_reasons(
    fallback: Stages, stage: str
) -> None:
    with pytest.raises(AssertionError) as caught:
        assert_on_bpu(getattr(fallback, stage))
    result = caught.value.qtune_result
    assert result.metrics == {"cpu_ops": 2}
    assert [(layer.name, layer.found) for layer in result.layers] == [
        (name, f"output kept float by ModuleNameTemplate '{name}' output") for name in KEPT
    ]
    assert all(layer.source.startswith("failing.py:") for layer in result.layers)


def test_allowed_operators_are_named_and_do_not_count(fallback: Stages) -> None:
    result = assert_on_bpu(fallback.quantized_bc, allowed=KEPT)
    assert result.metrics == {"cpu_ops": 0}
    assert "may run on the CPU: elu, tanh" in result.table
    assert assert_on_bpu(fallback.calib, allowed="*")
    with pytest.raises(ArgumentError, match="allowed: no operator is called 'elo'; close: elu"):
        assert_on_bpu(fallback.quantized_bc, allowed=["elo"])


def test_what_lies_outside_of_the_stubs_is_named_and_does_not_count(build: Any) -> None:
    stages = build(Bordered)
    for model in (stages.calib, stages.qat_bc, stages.quantized_bc):
        result = assert_on_bpu(model)
        assert result.metrics == {"cpu_ops": 0}
        assert "outside of the quantized part, not counted: _generated_tanh_0" in result.table


def test_an_operator_that_nothing_can_run_is_counted(build: Any) -> None:
    class Odd(nets.Net):
        def forward(self, x: Tensor) -> Tensor:
            return torch.special.erfcx(super().forward(x))

    with march("nash-e"), run_files_in(None):
        model = prepare(nets.make(Odd), nets.batches()[0])
    with pytest.raises(AssertionError) as caught:
        assert_on_bpu(model)
    assert "_generated_erfcx_0 (test_on_bpu.py:" in str(caught.value)
    assert "no operator of the registry fits torch.special.erfcx" in str(caught.value)


def test_other_models_are_refused(stages: Stages) -> None:
    for wrong in (stages.float, nn.Identity(), 3):
        with pytest.raises(ArgumentError, match=r"expected stages\.quantized_bc, another HBIR"):
            assert_on_bpu(wrong)
