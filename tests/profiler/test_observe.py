"""What is kept of a run: one record per operator, as values."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from qtune.capture.inputs import Inputs
from qtune.errors import AnalysisError, NotCalibratedError
from qtune.profiler.observe import float_twin, observe, require_torch
from qtune.quantization import hbdk4, prepare
from tests.analysis.nets import Block, calibrated


def test_a_later_in_place_operator_does_not_change_a_record() -> None:
    """A31."""
    model = nn.Sequential(nn.Conv2d(1, 4, 1), nn.ReLU(inplace=True)).eval()
    x = torch.randn(4, 1, 3, 3)
    twin = float_twin(model, Inputs(x))
    records = observe(twin, Inputs(x), keep_inputs=True).records
    assert records["0"].value.min() < 0
    assert torch.equal(records["0"].value, model[0](x))
    assert torch.equal(records["1"].inputs[0], model[0](x))
    assert not any(m._forward_hooks for m in twin.modules())


def test_members_of_a_group_are_float_and_the_last_one_quantized() -> None:
    x = torch.rand(2, 3, 8, 8)
    model = calibrated(Block(), x)
    records = observe(model, Inputs(x)).records
    assert (records["stem.0"].dtype, records["stem.0"].scale) == ("torch.float32", None)
    last = records["stem.2"]
    assert last.dtype == "qint8"
    codes = (last.value / last.scale).round()
    assert torch.equal(codes * last.scale, last.value)
    assert last.scale == float(model.get_submodule("stem.2").activation_post_process.scale)
    assert records["head"].dtype == "torch.float32"  # high precision
    assert records["stem.0"].input_shapes[:2] == ((2, 3, 8, 8), (8, 3, 3, 3))


def test_second_calls_and_second_results_have_names_of_their_own() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.fc(self.fc(x))

    x = torch.rand(2, 4)
    model = calibrated(Twice(), x)
    records = observe(model, Inputs(x)).records
    assert list(records) == ["_input_0_quant", "fc", "fc_1", "_output_0_dequant"]
    assert records["fc_1"].owner == "fc"
    exported = observe(hbdk4.export(model, x), Inputs(x)).records
    assert list(exported) == list(records)
    assert torch.equal(exported["fc_1"].value, records["fc_1"].value)


def test_all_stages_give_records_under_the_same_names() -> None:
    x = torch.rand(2, 3, 8, 8)
    model = calibrated(Block(), x)
    stages = [model, hbdk4.pre_export(model), hbdk4.export(model, x)]
    stages.append(hbdk4.convert(stages[-1], "nash-e"))
    names = [set(observe(stage, Inputs(x)).records) for stage in stages]
    assert names[0] == names[1] == names[2]
    assert names[3] < names[0]  # fused groups are one operator
    integer = observe(stages[3], Inputs(x)).records["stem.2"]
    assert integer.dtype == "qint8"
    assert integer.op_type.startswith("qtune.QConv")


def test_a_model_without_calibration_names_all_its_fake_quantizes() -> None:
    model = prepare(nn.Linear(2, 2), torch.rand(1, 2)).eval()
    with pytest.raises(NotCalibratedError, match=r"_input_0_quant.*0|_input_0_quant"):
        observe(model, Inputs(torch.rand(1, 2)))


def test_what_prepare_did_not_make_is_refused_by_name() -> None:
    with pytest.raises(AnalysisError, match="tune works on the model that prepare returned"):
        require_torch(nn.Linear(1, 1), "tune")
