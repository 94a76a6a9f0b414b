"""pre_export of one sub-module, to find the table that costs accuracy."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch import Tensor, nn

from qtune.dtype import qint16
from qtune.errors import ExportError, NotCalibratedError
from qtune.nn.table import TableOp
from qtune.quantization import FakeQuantState, QconfigSetter, get_qconfig, set_fake_quantize
from qtune.quantization.hbdk4 import convert, export, pre_export
from qtune.quantization.qconfig_setter import ModuleNameTemplate

from .flow import calib, prep, run

INT16 = QconfigSetter(get_qconfig(), [ModuleNameTemplate({"": qint16})])
X = torch.randn(2, 4, 6, 6, generator=torch.Generator().manual_seed(3)) * 2


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.act, self.norm = nn.Conv2d(4, 4, 1), nn.Sigmoid(), nn.LayerNorm(6)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.act(self.conv(x)))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.soft = Block(), Block(), nn.Softmax(-1)

    def forward(self, x: Tensor) -> Tensor:
        return self.soft(self.b(self.a(x)))


def tables(model: nn.Module) -> list[str]:
    return [name for name, module in model.named_modules() if isinstance(module, TableOp)]


@pytest.fixture
def calibrated() -> nn.Module:
    p = prep(Net(), X, qconfig_setter=INT16)
    calib(p, [X])
    return p


ALL = ["a.act", "a.norm.rsqrt", "b.act", "b.norm.rsqrt", "soft.exp", "soft.reciprocal"]


@pytest.mark.parametrize(
    ("part", "made"),
    [("a", ALL[:2]), ("b.act", ALL[2:3]), ("b.norm", ALL[3:4]), ("soft", ALL[4:])],
)
def test_one_part_gets_its_tables_and_the_rest_keeps_running(
    calibrated: nn.Module, part: str, made: list[str]
) -> None:
    before = run(calibrated, X)
    original = calibrated.get_submodule(part)
    calibrated.set_submodule(part, pre_export(original))
    assert tables(calibrated) == made
    assert not tables(original)  # a copy was made
    after = run(calibrated, X)
    assert 0 < float((after - before).abs().max()) < 2e-3  # some int16 steps of 3e-5


def test_all_parts_one_by_one_are_the_pre_exported_model(calibrated: nn.Module) -> None:
    whole = run(pre_export(calibrated), X)
    for part in ("a", "b", "soft"):
        setattr(calibrated, part, pre_export(getattr(calibrated, part)))
    assert tables(calibrated) == ALL == tables(pre_export(calibrated))
    assert torch.equal(run(calibrated, X), whole)


def test_a_mixed_model_exports_and_converts_like_the_whole(calibrated: nn.Module) -> None:
    plain = export(calibrated, (X,))
    calibrated.a = pre_export(calibrated.a)
    mixed = export(calibrated, (X,))
    assert torch.equal(mixed[0](X), plain[0](X))
    assert torch.equal(convert(mixed, "nash-e")[0](X), convert(plain, "nash-e")[0](X))


def test_copies_and_pickles_of_a_model_take_parts_too(calibrated: nn.Module) -> None:
    for twin in (copy.deepcopy(calibrated), pickle.loads(pickle.dumps(calibrated))):
        twin.a.act = pre_export(twin.a.act)
        assert tables(twin) == ["a.act"]
        assert float((run(twin, X) - run(calibrated, X)).abs().max()) < 2e-3  # as above


def test_in_place_changes_the_part_itself(calibrated: nn.Module) -> None:
    part = calibrated.get_submodule("b")
    assert pre_export(part, inplace=True) is part
    assert tables(calibrated) == ALL[2:4]


def test_the_scale_of_the_last_calibration_counts(calibrated: nn.Module) -> None:
    calib(calibrated, [X * 3])
    table = pre_export(calibrated.get_submodule("a.act"))
    conv = calibrated.get_submodule("a.conv").activation_post_process
    assert torch.equal(table.input_scale, conv.scale)


def test_wrong_states_of_a_part_are_refused() -> None:
    p = prep(Net(), X, qconfig_setter=INT16)
    with pytest.raises(NotCalibratedError):
        pre_export(p.a)
    calib(p, [X])
    with pytest.raises(ExportError, match=r"model.eval\(\) first"):
        pre_export(p.a.train())
    p.eval()
    set_fake_quantize(p, FakeQuantState.CALIBRATION)
    with pytest.raises(ExportError, match=r"VALIDATION\) first"):
        pre_export(p.a)
    with pytest.raises(ExportError, match=r"got Block; call prepare.*or a sub-module of it"):
        pre_export(Block())


def test_a_shared_part_on_two_grids_needs_the_whole_model() -> None:
    class Shared(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.act = nn.Conv2d(4, 4, 1), nn.Sigmoid()

        def forward(self, x: Tensor) -> Tensor:
            return self.act(x) + self.act(self.conv(x))

    p = prep(Shared(), X, qconfig_setter=INT16)
    calib(p, [X])
    with pytest.raises(NotImplementedError, match="act is called on inputs of 2 grids"):
        pre_export(p.act)
    assert tables(pre_export(p)) == ["act", "act_1"]


def test_knobs_of_a_softmax_are_checked_where_they_are_set(calibrated: nn.Module) -> None:
    soft = calibrated.get_submodule("soft")
    soft.exp_kwargs = {"auto_divide_strategy": "evenly"}
    soft.reciprocal_kwargs = {"dividing_points": [2.0, 2.5, 6.0]}
    made = pre_export(calibrated)
    assert len(made.get_submodule("soft.reciprocal").first) == 3
    lengths = torch.diff(made.get_submodule("soft.exp").first)
    assert int(lengths.max() - lengths.min()) <= 1
    with pytest.raises(ValueError, match=r"soft\.sum_kwargs.*exp_kwargs, reciprocal_kwargs"):
        soft.sum_kwargs = {"auto_divide_strategy": "evenly"}
    with pytest.raises(ValueError, match=r"soft\.exp_kwargs.*keys out of.*got \{'strategy': 1\}"):
        soft.exp_kwargs = {"strategy": 1}
    with pytest.raises(ValueError, match="made already; set it before pre_export"):
        made.get_submodule("soft").exp_kwargs = {"auto_divide_strategy": "evenly"}


def test_a_misspelled_knob_of_a_float_layer_is_named_in_prepare() -> None:
    model = Net()
    model.soft.expo_kwargs = {"auto_divide_strategy": "evenly"}
    with pytest.raises(ValueError, match=r"soft\.expo_kwargs.*exp_kwargs, reciprocal_kwargs"):
        prep(model, X)
