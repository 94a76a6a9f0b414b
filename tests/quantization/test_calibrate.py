"""auto_calibrate and its interruption, loading what a calibration found, frozen parts."""

from __future__ import annotations

import copy
import logging
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qtune.errors import ArgumentError, NotCalibratedError, PrepareError
from qtune.modes import qat_mode
from qtune.nn.prepared import PreparedModel
from qtune.nn.qat import iter_stubs
from qtune.quantization import (
    FakeQuantState,
    QconfigSetter,
    auto_calibrate,
    freeze_qat_module,
    get_default_qconfig,
    get_qconfig,
    load_observer_params,
    operators_in,
    prepare,
    set_fake_quantize,
)
from qtune.quantization.observer_v2 import HistogramObserver, MinMaxObserver, MSEObserver
from qtune.quantization.qconfig_setter import ModuleNameTemplate

from .flow import op, prep, run, s8, scales


class TwoHeads(nn.Module):
    """A backbone and two heads, one with functions in its forward."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU())
        self.left, self.right = Head(), Head()

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = self.backbone(x)
        return self.left(x), self.right(x)


class Head(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.drop, self.last = nn.Conv2d(4, 4, 1), nn.Dropout(), nn.Conv2d(4, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.drop(torch.sigmoid(self.conv(x)) + F.relu(x)))


X = torch.linspace(-1, 1, 2 * 3 * 6 * 6).reshape(2, 3, 6, 6)


def everything(model: nn.Module) -> dict[str, Any]:
    found: dict[str, Any] = {k: v.clone() for k, v in model.state_dict().items()}
    found.update({f"{n} training": m.training for n, m in model.named_modules()})
    found.update({f"{n} {k} state": q.state for n, k, q in iter_stubs(model)})
    return found


def same(a: dict[str, Any], b: dict[str, Any]) -> bool:
    if a.keys() != b.keys():
        return False
    return all(torch.equal(v, b[k]) if isinstance(v, Tensor) else v == b[k] for k, v in a.items())


def interrupted_loader() -> Iterator[Tensor]:
    yield X * 5
    raise KeyboardInterrupt


@pytest.mark.parametrize("calibrated_before", [False, True])
def test_an_interrupted_calibration_leaves_the_model_as_it_was(calibrated_before: bool) -> None:
    p = prepare(TwoHeads(), X)
    if calibrated_before:
        auto_calibrate(p, [X])
    set_fake_quantize(p.train(), FakeQuantState.QAT)
    set_fake_quantize(p.left.eval(), FakeQuantState._FLOAT)
    before = everything(p)
    with pytest.raises(KeyboardInterrupt):
        auto_calibrate(p, interrupted_loader())
    assert same(everything(p), before)
    with pytest.raises(PrepareError, match="gave no batch"):
        auto_calibrate(p, [])
    for steps in (0, -1):
        with pytest.raises(PrepareError, match=f"num_steps must be 1 or more, got {steps}"):
            auto_calibrate(p, [X], num_steps=steps)
    with pytest.raises(RuntimeError):
        auto_calibrate(p, [X * 3, X[:, :2]])  # the wrong number of channels, in forward
    assert same(everything(p), before)
    twin = auto_calibrate(copy.deepcopy(p), [X])
    assert same(everything(auto_calibrate(p, [X])), everything(twin))


@pytest.mark.parametrize("observer", [MSEObserver, HistogramObserver])
def test_what_an_observer_counts_is_undone_as_well(observer: type[MSEObserver]) -> None:
    qconfig = get_qconfig(observer)
    p = prepare(TwoHeads(), X, QconfigSetter(qconfig, [ModuleNameTemplate({"": "qint8"})]))
    with pytest.raises(KeyboardInterrupt):
        auto_calibrate(p, interrupted_loader())
    fresh = prepare(TwoHeads(), X, QconfigSetter(qconfig, [ModuleNameTemplate({"": "qint8"})]))
    fresh.load_state_dict(p.state_dict())
    for model in (p, fresh):
        auto_calibrate(model, [X, X * 2])
    assert all(torch.equal(v, scales(fresh)[key]) for key, v in scales(p).items())


def test_calibration_runs_in_eval_mode_whatever_came_before() -> None:
    p = prepare(TwoHeads(), X).train()
    seen: list[tuple[bool, bool]] = []
    layer = p.get_submodule("left.conv")
    layer.register_forward_hook(lambda m, args, y: seen.append((m.training, y.requires_grad)))
    assert not auto_calibrate(p, [X, X, X], num_steps=2).training
    assert seen == [(False, False)] * 2


def test_a_float_model_is_not_calibrated_by_mistake() -> None:
    with pytest.raises(PrepareError, match="Head holds no fake-quantize; pass what prepare"):
        auto_calibrate(Head(), [X])


def test_the_batch_that_the_model_does_not_take_is_named() -> None:
    wrong = torch.rand(1, X.shape[1] + 1, *X.shape[2:])
    with pytest.raises(RuntimeError) as raised:
        auto_calibrate(prepare(TwoHeads(), X), [X, wrong])
    note = f"raised on batch 1 of auto_calibrate, by model(Tensor{list(wrong.shape)})"
    assert note in raised.value.__notes__


def test_progress_is_shown_on_a_terminal_only(capfd: pytest.CaptureFixture[str]) -> None:
    auto_calibrate(prepare(TwoHeads(), X), [X])
    assert capfd.readouterr() == ("", "")


def test_observer_params_move_into_a_qat_model_whose_weights_stay() -> None:
    model = TwoHeads()
    calibrated = auto_calibrate(prepare(model, X), [X])
    setter = QconfigSetter(get_qconfig(MinMaxObserver), [ModuleNameTemplate({"": "qint8"})])
    other = TwoHeads()
    qat = prepare(other, X, setter)
    weights = {k: v.clone() for k, v in qat.named_parameters()}
    assert load_observer_params(calibrated, qat) is qat
    common = scales(calibrated).keys() & scales(qat).keys()
    assert len(common) > 8
    assert all(torch.equal(scales(calibrated)[key], scales(qat)[key]) for key in common)
    assert all(torch.equal(v, weights[k]) for k, v in qat.named_parameters())
    assert {q.state for _, _, q in iter_stubs(qat)} == {FakeQuantState.QAT}
    set_fake_quantize(qat.eval(), FakeQuantState.VALIDATION)
    run(qat, X)


def test_observer_params_that_do_not_fit_are_named(caplog: pytest.LogCaptureFixture) -> None:
    qat = prepare(TwoHeads(), X)
    with pytest.raises(PrepareError, match="no fake-quantize in common"):
        load_observer_params(nn.Linear(2, 2), qat)
    source = prepare(TwoHeads(), X)
    auto_calibrate(source, [X])
    narrow = prepare(nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 2, 1)), X)
    with caplog.at_level(logging.WARNING):
        load_observer_params(source, narrow)
    assert "only the calibrated model has: backbone.0.weight_fake_quant" in caplog.text
    assert "only the other model has: 0.weight_fake_quant" in caplog.text
    with qat_mode("with_bn"):
        kept = prepare(TwoHeads(), X)
    with pytest.raises(PrepareError, match="fuse_bn, the other in with_bn"):
        load_observer_params(source, kept)


def head_scales(model: PreparedModel, name: str) -> dict[tuple[str, str], Tensor]:
    inside = {o.name for o in operators_in(model, name)}
    return {key: value for key, value in scales(model).items() if key[0] in inside}


def test_the_operators_of_a_part_include_the_functions_in_its_forward() -> None:
    p = prepare(TwoHeads(), X)
    found = [o.name for o in operators_in(p, "left")]
    functions = {"_generated_sigmoid_0", "_generated_relu_0", "_generated_add_0"}
    assert set(found) == {"left.conv", "left.drop", "left.last", *functions}
    assert [o.name for o in operators_in(p, "left.last", "backbone")][0] == "backbone.0"
    with pytest.raises(ArgumentError, match=r"no operator in 'middle'; its parts are: backbone"):
        operators_in(p, "left", "middle")


def test_the_parts_named_for_a_wrong_path_are_those_with_operators() -> None:
    class Unused(TwoHeads):
        def __init__(self) -> None:
            super().__init__()
            self.aside = nn.ReLU()

    p = prepare(Unused(), X)
    with pytest.raises(ArgumentError, match=r"in 'aside'; its parts are: backbone, left, right$"):
        operators_in(p, "aside")


def test_one_head_is_calibrated_on_its_own_data_while_the_others_stay() -> None:
    p = auto_calibrate(prepare(TwoHeads(), X), [X])
    before = scales(p)
    set_fake_quantize(p, FakeQuantState.VALIDATION)
    set_fake_quantize(operators_in(p, "right"), FakeQuantState.CALIBRATION)
    for _ in range(3):
        run(p, X * 3)
    set_fake_quantize(p, FakeQuantState.VALIDATION)
    inside = head_scales(p, "right").keys()
    assert all(torch.equal(v, before[k]) for k, v in scales(p).items() if k not in inside)
    moved = {k for k in inside if not torch.equal(scales(p)[k], before[k])}
    assert {k[0] for k in moved} >= {"right.conv", "_generated_sigmoid_1", "_generated_add_1"}


@pytest.mark.parametrize("mode", ["fuse_bn", "with_bn", "with_bn_reverse_fold"])
def test_a_frozen_part_stays_while_the_rest_trains(mode: str) -> None:
    with qat_mode(mode):
        p = auto_calibrate(prepare(TwoHeads(), X), [X])
    frozen = operators_in(p, "backbone", "left")
    assert freeze_qat_module(frozen) is frozen
    freeze_qat_module(p.get_submodule("_input_0_quant"))
    inside = head_scales(p, "backbone").keys() | head_scales(p, "left").keys()
    before = everything(frozen)
    optimizer = torch.optim.SGD([v for v in p.parameters() if v.requires_grad], lr=0.1)
    for state in (FakeQuantState.QAT, FakeQuantState.CALIBRATION, FakeQuantState.QAT):
        set_fake_quantize(p.train(), state)
        sum(y.pow(2).mean() for y in p(X * 4)).backward()
        optimizer.step()
    assert all(torch.equal(v, before[k]) for k, v in frozen.state_dict().items())
    assert all(v.grad is None for v in frozen.parameters())
    set_fake_quantize(p, FakeQuantState.VALIDATION)
    left = p(X)[0]
    assert torch.equal(p(X)[0], left)  # its dropout is off in training as well
    assert all(q.scale.numel() for _, _, q in iter_stubs(p))
    assert inside.isdisjoint(head_scales(p, "right"))
    assert all(v.grad is not None for v in operators_in(p, "right").parameters())


@pytest.mark.parametrize("kind", ["lsq", "pact"])
def test_a_frozen_learned_scale_survives_calibration_of_the_model(kind: str) -> None:
    model = TwoHeads()
    model.qconfig = get_default_qconfig(activation_fake_quant=kind, weight_fake_quant=kind)
    p = auto_calibrate(prepare(model, X), [X])
    with torch.no_grad():
        for quantizer in (q for _, _, q in iter_stubs(p)):
            quantizer.get_parameter("scale" if kind == "lsq" else "alpha").mul_(1.5)
    freeze_qat_module(operators_in(p, "backbone", "left"))
    before = head_scales(p, "backbone") | head_scales(p, "left")
    auto_calibrate(p, [X * 3])
    after = scales(p)
    assert all(torch.equal(after[key], value) for key, value in before.items())


def test_freezing_what_has_no_scale_names_it() -> None:
    p = prepare(TwoHeads(), X)
    with pytest.raises(NotCalibratedError, match=r"freeze_qat_module: .*backbone\.0 weight"):
        freeze_qat_module(operators_in(p, "backbone"))
    assert all(v.requires_grad for v in p.parameters())


def test_training_without_a_state_and_without_calibration_is_qat_training(
    caplog: pytest.LogCaptureFixture,
) -> None:
    p = prepare(TwoHeads(), X).train()
    with caplog.at_level(logging.WARNING):
        p(X)
        p(X)
    assert caplog.text.count("this is QAT training") == 1
    assert op(p, "_input_0_quant").activation_post_process.scale == s8(1.0)  # type: ignore[union-attr]
    caplog.clear()
    quiet = prepare(TwoHeads(), X)
    set_fake_quantize(quiet.train(), FakeQuantState.QAT)
    quiet(X)
    calibrated = prepare(TwoHeads(), X)
    calibrated.load_state_dict(auto_calibrate(prepare(TwoHeads(), X), [X]).state_dict())
    calibrated.train()(X)
    assert "QAT training" not in caplog.text


def test_eval_without_a_state_says_that_nothing_is_calibrated() -> None:
    with pytest.raises(NotCalibratedError, match="nothing is calibrated"):
        run(prep(TwoHeads(), X), X)
