"""The older setters on real models: dtypes, observers and scales."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from qtune import march
from qtune.dtype import qint8, qint16
from qtune.errors import QconfigError
from qtune.nn.prepared import PreparedModel
from qtune.quantization import (
    FakeQuantState,
    explain,
    get_default_qconfig,
    prepare,
    set_fake_quantize,
)
from qtune.quantization import qconfig_template as templates
from qtune.quantization.qconfig import (
    default_calib_8bit_fake_quant_qconfig,
    default_qat_8bit_fake_quant_qconfig,
    default_qat_16bit_fake_quant_qconfig,
)

from .configured import IMAGE, Toy, Warped, dtype_of, observer_of
from .flow import calib, op, out_scale, prep, s8, s16, scales

FIXED = {
    "default_calibration_qconfig_setter": ("qint8", "MSEObserver", 0.01),
    "default_qat_qconfig_setter": ("qint8", "MovingAverageMinMaxObserver", 0.01),
    "default_qat_fixed_act_qconfig_setter": ("qint8", "MovingAverageMinMaxObserver", 0),
    "calibration_8bit_weight_16bit_act_qconfig_setter": ("qint16", "MSEObserver", 0.01),
    "qat_8bit_weight_16bit_act_qconfig_setter": ("qint16", "MovingAverageMinMaxObserver", 0.01),
    "qat_8bit_weight_16bit_fixed_act_qconfig_setter": ("qint16", "MovingAverageMinMaxObserver", 0),
}


@pytest.mark.parametrize(("name", "expected"), FIXED.items())
def test_fixed_setters_differ_in_dtype_observer_and_update_rule(name: str, expected: Any) -> None:
    model = prep(Toy(), IMAGE, qconfig_setter=getattr(templates, name))
    observer = observer_of(model, "relu0")
    got = (dtype_of(model, "relu0"), type(observer).__name__, observer.averaging_constant)
    assert got == expected
    assert dtype_of(model, "conv0", "weight") == "qint8"
    weights = observer_of(model, "conv0", "weight")
    assert type(weights).__name__ == "MovingAveragePerChannelMinMaxObserver"
    assert dtype_of(model, "classifier") == "torch.float32"


def trained_scale(setter: Any, dtype: Any) -> tuple[float, float]:
    """The scale after a first batch, and after a second of eight times the range."""
    model = prep(Toy(scale=None), IMAGE, qconfig_setter=setter)
    set_fake_quantize(model.train(), FakeQuantState.QAT)
    model(IMAGE)
    first = out_scale(model, "quant")
    model(8 * IMAGE)
    return first, out_scale(model, "quant")


def test_fixed_activation_setters_keep_the_scale_and_the_others_move_it() -> None:
    first, second = trained_scale(templates.default_qat_fixed_act_qconfig_setter, qint8)
    assert first == second == s8(float(IMAGE.abs().max()))
    first, second = trained_scale(templates.default_qat_qconfig_setter, qint8)
    # one step of 0.01 towards eight times the range; float32 mean of two maxima
    assert second == pytest.approx(first * 1.07, rel=1e-5)


@pytest.mark.parametrize("name", FIXED)
def test_the_way_to_the_grid_of_a_sampling_is_int16(name: str) -> None:
    model = prep(Warped(), IMAGE, qconfig_setter=getattr(templates, name))
    way = ["to_grid", "_generated_mul_0", "_generated_tanh_0"]
    assert [dtype_of(model, step) for step in way] == ["qint16"] * 3
    own = FIXED[name][0]
    assert dtype_of(model, "_generated_relu_0") == own
    sampled = op(model, "_generated_grid_sample_0")
    assert sampled.activation_post_process is None or own == "qint16"


def test_outputs_that_can_not_be_high_precision_get_a_hint(caplog: Any) -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 1), nn.ReLU())
    prepare(model, IMAGE, templates.default_qat_qconfig_setter)
    (record,) = [r for r in caplog.records if "high precision" in r.message]
    assert record.message.endswith(
        "1 output(s) of the model can't be high precision: 1: 1 is fused into 0"
    )
    caplog.clear()
    prepare(nn.Sequential(nn.Conv2d(3, 4, 1)), IMAGE, templates.default_qat_qconfig_setter)
    assert not caplog.records


class Both(nn.Module):
    """One result that leaves the model and is used inside, one that is moved before it leaves."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = (nn.Conv2d(3, 3, 1) for _ in range(3))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = self.first(x)
        return y, self.second(y), self.third(y).permute(0, 2, 3, 1)


def test_explain_tells_why_each_output_is_not_high_precision(caplog: Any) -> None:
    model = prepare(Both(), IMAGE, templates.default_qat_qconfig_setter)
    outputs = {output.name: output.reason for output in explain(model).outputs}
    assert outputs["first"] in {"second uses it as well", "third uses it as well"}
    assert outputs["_generated_permute_0"] == "only a GEMM has one, this is permute"
    assert dtype_of(model, "second") == "torch.float32"
    assert "2 output(s) of the model can't be high precision: " in caplog.text


def test_a_march_without_int16_says_what_it_gives_instead(caplog: Any) -> None:
    with march.march("bernoulli2"):
        model = prepare(Toy(), IMAGE, templates.qat_8bit_weight_16bit_act_qconfig_setter)
    assert dtype_of(model, "mid") == "qint8"
    assert {d.name for d in explain(model).corrections} == {"quant", "relu0", "mid"}
    assert "3 dtype(s) are not the asked ones" in caplog.text


def test_the_first_of_a_tuple_wins(caplog: Any) -> None:
    named = templates.ModuleNameQconfigSetter(
        {"mid": default_qat_16bit_fake_quant_qconfig, "conv0": None}
    )
    model = prep(Toy(), IMAGE, qconfig_setter=(named, templates.default_qat_qconfig_setter))
    assert dtype_of(model, "mid") == "qint16"
    assert model.get_submodule("conv0").weight_fake_quant is None
    assert "conv0" in {f.name for f in model.float_ops}
    assert not caplog.records
    late = (templates.default_qat_qconfig_setter, named)
    model = prep(Toy(), IMAGE, qconfig_setter=late)
    assert dtype_of(model, "mid") == "qint8"
    assert "ModuleNameQconfigSetter: default_qat_qconfig_setter before it decides" in caplog.text


def test_a_fixed_scale_by_name_as_the_guide_writes_it() -> None:
    op2_max, qint16_max = 4.0, 32768
    fixed = get_default_qconfig(
        activation_observer="fixed_scale",
        activation_qkwargs={"dtype": qint16, "scale": op2_max / qint16_max},
    )
    names = {"mid": fixed, "conv0": default_qat_8bit_fake_quant_qconfig}
    table = [["relu0", "output", "ReLU", 0.1, "qint8", "0"]]
    model = prep(
        Toy(),
        IMAGE,
        qconfig_setter=(
            templates.ModuleNameQconfigSetter(names),
            templates.sensitive_op_qat_8bit_weight_16bit_fixed_act_qconfig_setter(table, ratio=0.2),
            templates.default_calibration_qconfig_setter,
        ),
    )
    calib(model, [IMAGE])
    assert out_scale(model, "mid") == op2_max / qint16_max
    # conv0 and relu0 are one group, which the first setter names
    assert dtype_of(model, "relu0") == "qint8"
    assert explain(model).of("relu0").rule == "ModuleNameQconfigSetter 'conv0'"


ROWS = [
    ["relu0", "output", "ReLU", 0.4, "qint8", "0"],
    ["conv0", "weight", "Conv2d", 0.3, "qint8", "5(9%)"],
    ["mid", "output", "Conv2d", 0.2, "qint8", "5(9%)"],
    ["quant", "output", "QuantStub", 0.1, "qint8", "0"],
]


@pytest.mark.parametrize(
    ("limit", "raised"),
    [
        ({"topk": 1}, {"relu0"}),
        ({"topk": 2}, {"relu0", "mid"}),
        ({"ratio": 0.34}, {"relu0", "mid"}),
        ({"ratio": 1.0}, {"relu0", "mid", "quant"}),
        ({"topk": 0}, set()),
    ],
)
@pytest.mark.parametrize("kind", ["calibration", "qat", "qat_fixed"])
def test_the_most_sensitive_results_are_int16(kind: str, limit: Any, raised: set[str]) -> None:
    name = {
        "calibration": "sensitive_op_calibration_8bit_weight_16bit_act_qconfig_setter",
        "qat": "sensitive_op_qat_8bit_weight_16bit_act_qconfig_setter",
        "qat_fixed": "sensitive_op_qat_8bit_weight_16bit_fixed_act_qconfig_setter",
    }[kind]
    sensitive = getattr(templates, name)(ROWS, **limit)
    model = prep(Toy(), IMAGE, qconfig_setter=(sensitive, templates.default_qat_qconfig_setter))
    outputs = {n for n in ("quant", "relu0", "mid") if dtype_of(model, n) == "qint16"}
    assert outputs == raised
    assert dtype_of(model, "conv0", "weight") == "qint8"
    assert dtype_of(model, "classifier") == "torch.float32"
    if raised:
        observer = observer_of(model, "relu0")
        moving = "MovingAverageMinMaxObserver"
        expected = ("MSEObserver" if kind == "calibration" else moving, 0.01)
        expected = (moving, 0) if kind == "qat_fixed" else expected
        assert (type(observer).__name__, observer.averaging_constant) == expected


def test_sensitive_results_are_read_as_int16_by_what_follows() -> None:
    sensitive = templates.sensitive_op_qat_8bit_weight_16bit_act_qconfig_setter(ROWS, topk=1)
    model = prep(Toy(), IMAGE, qconfig_setter=(sensitive, templates.default_qat_qconfig_setter))
    calib(model, [IMAGE])
    with torch.no_grad():
        largest = float(model.get_submodule("relu0").activation_post_process.scale) * 32767.5
    assert out_scale(model, "relu0") == s16(largest)
    assert dtype_of(model, "mid", "input-0") == "qint16"
    assert not model.get_submodule("mid").input_fake_quants


@pytest.mark.parametrize("limit", [{}, {"topk": 1, "ratio": 0.5}])
def test_topk_or_ratio_one_of_them(limit: dict[str, Any]) -> None:
    with pytest.raises(QconfigError, match="give topk or ratio, one of them"):
        templates.sensitive_op_qat_8bit_weight_16bit_act_qconfig_setter(ROWS, **limit)


@pytest.mark.parametrize(
    ("setter", "text"),
    [
        (default_calib_8bit_fake_quant_qconfig, "a QConfig is no setter"),
        ((), "an empty tuple"),
        ((3,), "must be a QconfigSetter"),
        (qint8, "must be a QconfigSetter"),
    ],
)
def test_what_is_no_setter_is_refused(setter: Any, text: str) -> None:
    with pytest.raises(QconfigError, match=text):
        prepare(Toy(), IMAGE, setter)


def test_operators_know_their_qconfig() -> None:
    wide, narrow = default_qat_16bit_fake_quant_qconfig, default_qat_8bit_fake_quant_qconfig
    net = Toy()
    net.classifier.qconfig = wide  # type: ignore[assignment]
    named = templates.ModuleNameQconfigSetter({"mid": wide, "conv0": None})
    model = prepare(net, IMAGE, (named, templates.default_qat_qconfig_setter))
    found = {n: model.get_submodule(n).qconfig for n in ("quant", "mid", "classifier", "conv0")}
    assert found == {"quant": narrow, "mid": wide, "classifier": wide, "conv0": None}


def test_module_qconfig_beats_every_setter() -> None:
    net = Toy()
    net.mid.qconfig = default_qat_16bit_fake_quant_qconfig()  # type: ignore[assignment]
    named = templates.ModuleNameQconfigSetter({"mid": default_qat_8bit_fake_quant_qconfig})
    model = prep(net, IMAGE, qconfig_setter=(named, templates.default_qat_qconfig_setter))
    assert dtype_of(model, "mid") == "qint16"
    assert any("ModuleNameQconfigSetter 'mid'" in text for text in explain(model).unmatched_rules)


def test_the_model_runs_calibrated_and_close_to_float() -> None:
    net = Toy()
    model: PreparedModel = prep(net, IMAGE, qconfig_setter=templates.default_qat_qconfig_setter)
    calib(model, [IMAGE])
    with torch.no_grad():
        error = (model(IMAGE) - net.eval()(IMAGE)).abs().max()
    assert 0 < float(error) < 0.05  # some int8 steps of activations below 1


@pytest.mark.parametrize(
    ("name", "moves"),
    [("default_qat_qconfig_setter", True), ("default_qat_fixed_act_qconfig_setter", False)],
)
def test_training_goes_on_from_the_scales_of_the_calibration(name: str, moves: bool) -> None:
    """The guide's way: calibrate by mse, load into the QAT model, train."""
    net = Toy(scale=None)
    calibrated = prep(net, IMAGE, qconfig_setter=templates.default_calibration_qconfig_setter)
    calib(calibrated, [IMAGE])
    qat = prepare(net, IMAGE, getattr(templates, name))
    qat.load_state_dict(calibrated.state_dict())
    loaded = scales(qat)
    for port, scale in scales(calibrated).items():
        assert torch.equal(loaded[port], scale)
    set_fake_quantize(qat.train(), FakeQuantState.QAT)
    optimizer = torch.optim.SGD(qat.parameters(), lr=0.1)
    qat(2 * IMAGE).square().mean().backward()
    optimizer.step()
    qat(2 * IMAGE)
    trained = scales(qat)
    changed = {port for port, scale in trained.items() if not torch.equal(scale, loaded[port])}
    activations = {(n, "output") for n in ("quant", "relu0", "mid")}
    assert changed & activations == (activations if moves else set())
    assert ("mid", "weight") in changed
