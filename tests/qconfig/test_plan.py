import torch

from qtune.dtype import qint8, qint16
from qtune.ops.registry import spec
from qtune.qconfig.plan import UNSET, OpView, PortPlan
from qtune.qconfig.qconfig import get_default_qconfig, get_qconfig
from qtune.quantizers.fixed import FixedScaleObserver


def test_view_takes_its_facts_from_the_registry():
    view = OpView.from_spec(spec("relu"), name="act", producers=("conv",))
    assert (view.op, view.rule, view.fuse) == ("relu", spec("relu").rule, spec("relu").fuse)
    assert not view.is_gemm
    assert not view.weight
    assert view.march == spec("relu").march
    assert view.module_qconfig is UNSET


def test_plan_makes_per_tensor_and_per_channel():
    plan = PortPlan(qint8, get_qconfig().output, "rule")
    assert plan.make(name="a").scale.shape == (1,)
    weight = PortPlan(qint8, get_qconfig().weight, "rule").make(5, 1, "conv weight")
    assert (weight.scale.shape, weight.ch_axis, weight.name) == ((5,), 1, "conv weight")


def test_plan_dtype_wins_over_the_constructors():
    fq = PortPlan(qint16, get_qconfig().output, "rule").make()
    assert fq.dtype is qint16
    fq(torch.tensor([1.0]))
    assert fq.scale.item() == torch.tensor(1.0).div(32767.5).item()


def test_fixed_scale_of_a_constructor_covers_its_range_on_the_given_grid():
    qconfig = get_default_qconfig(
        activation_observer="fixed_scale",
        activation_qkwargs={"scale": 1 / 32768, "dtype": qint16},
    )
    assert PortPlan(qint8, qconfig.output, "rule").make().scale.tolist() == [1 / 128]


def test_quant_stub_takes_float_and_may_fix_its_scale():
    view = OpView.from_spec(spec("quant_stub"), name="q", attrs={"scale": 1 / 128})
    assert view.takes_float
    assert view.fixed_scale == 1 / 128
    assert not OpView.from_spec(spec("relu"), name="r", attrs={"scale": 3}).fixed_scale
    assert OpView.from_spec(spec("dequant_stub"), name="d").dequantizes


def test_given_scale_wins_over_a_threshold():
    assert PortPlan(qint16, get_qconfig().output, "rule", 1.5, 0.25).make().scale.tolist() == [0.25]


def test_threshold_makes_a_fixed_scale():
    fq = PortPlan(qint8, get_qconfig().output, "rule", 1.5).make()
    assert isinstance(fq.activation_post_process, FixedScaleObserver)
    assert fq.scale.tolist() == [1.5 / 128]
