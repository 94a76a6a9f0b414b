import copy
import pickle

import pytest
import torch

from qtune.dtype import qint8, qint16
from qtune.errors import QconfigError
from qtune.qconfig.qconfig import QConfig, get_default_qconfig, get_qconfig
from qtune.quantizers.fake_cast import FakeCast
from qtune.quantizers.fake_quantize import FakeQuantize
from qtune.quantizers.fixed import FixedScaleObserver
from qtune.quantizers.mse import MSEObserver
from qtune.quantizers.observer import MinMaxObserver, MovingAveragePerChannelMinMaxObserver

OUTPUT = FakeQuantize.with_args(dtype="qint16")


def observer(constructor):
    return constructor().activation_post_process


def test_activation_is_the_old_name_of_output():
    assert QConfig(activation=OUTPUT).output is OUTPUT
    assert QConfig(output=OUTPUT).activation is OUTPUT
    with pytest.raises(QconfigError, match="old name of output"):
        QConfig(output=OUTPUT, activation=OUTPUT)


def test_documented_order_of_ports():
    weight = FakeQuantize.with_args(ch_axis=0)
    qconfig = QConfig(OUTPUT, weight, None)
    assert (qconfig.input, qconfig.weight, qconfig.output) == (OUTPUT, weight, None)


def test_a_qconfig_can_be_called():
    """The documents write ready-made qconfigs with and without parentheses."""
    qconfig = get_qconfig()
    assert qconfig() is qconfig


def test_ports_must_build_fake_quantizes():
    with pytest.raises(QconfigError, match="weight must be None or build a FakeQuantize"):
        QConfig(weight=qint8)


def test_qconfigs_compare_copy_and_pickle():
    """A float model with module.qconfig is deep-copied and saved."""
    qconfig = get_qconfig(observer=MSEObserver)
    assert qconfig == get_qconfig(observer=MSEObserver) != get_qconfig()
    assert copy.deepcopy(qconfig) == qconfig == pickle.loads(pickle.dumps(qconfig))


def test_default_qconfig_is_min_max_int8():
    """api.md: the defaults of get_qconfig."""
    qconfig = get_qconfig()
    assert qconfig.input is None
    assert type(observer(qconfig.output)) is MinMaxObserver
    assert qconfig.output().dtype is qconfig.weight().dtype is qint8
    assert observer(qconfig.output).averaging_constant == 0.01
    weights = observer(qconfig.weight)
    assert type(weights) is MovingAveragePerChannelMinMaxObserver
    assert weights.ch_axis == 0


def test_observer_is_that_of_inputs_and_outputs():
    qconfig = get_qconfig(observer=MSEObserver, in_dtype=qint16)
    assert type(observer(qconfig.input)) is type(observer(qconfig.output)) is MSEObserver
    assert qconfig.input().dtype is qint16
    assert type(observer(qconfig.weight)) is MovingAveragePerChannelMinMaxObserver


@pytest.mark.parametrize("value", [None, torch.float32, "torch.float32"])
def test_ports_can_be_left_out(value):
    qconfig = get_qconfig(weight_dtype=value, out_dtype=value)
    assert qconfig == QConfig()


def test_torch_dtypes_are_taken():
    assert get_qconfig(out_dtype=torch.qint8).output().dtype is qint8


def test_fix_scale_keeps_the_scale_of_the_first_batch():
    qconfig = get_qconfig(in_dtype=qint8, fix_scale=True)
    for constructor in (qconfig.input, qconfig.output):
        fq = constructor()
        fq(torch.tensor([1.0]))
        fq(torch.tensor([9.0]))
        assert fq.scale.item() == torch.tensor(1.0).div(127.5).item()
    assert observer(qconfig.weight).averaging_constant == 1


def test_weight_scales_follow_the_weights_at_once():
    fq = get_qconfig().weight(ch_axis=0, channel_len=2)
    fq(torch.tensor([[1.0], [2.0]]))
    fq(torch.tensor([[3.0], [0.5]]))
    assert torch.equal(fq.scale, torch.tensor([3.0, 0.5]) / 127.5)


@pytest.mark.parametrize("value", [MinMaxObserver(), "min_max", FixedScaleObserver])
def test_observers_that_make_no_sense_are_refused(value):
    with pytest.raises(QconfigError, match="get_qconfig"):
        get_qconfig(observer=value)


def test_float16_output_is_a_fake_cast_and_weights_have_none():
    built = get_qconfig(out_dtype=torch.float16).output()
    assert (type(built), str(built.dtype)) == (FakeCast, "torch.float16")
    with pytest.raises(QconfigError, match="weights are qint8 or qint16"):
        get_qconfig(weight_dtype=torch.float16)


def test_get_default_qconfig_takes_names_and_options():
    qconfig = get_default_qconfig(
        activation_fake_quant="fake_quant",
        weight_fake_quant="fake_quant",
        activation_observer="mse",
        weight_observer="min_max",
        activation_qkwargs={"dtype": qint16, "is_sync_quantize": False, "averaging_constant": 0.5},
        weight_qkwargs={"dtype": qint8, "qscheme": torch.per_channel_symmetric, "ch_axis": 0},
    )
    assert type(observer(qconfig.output)) is MSEObserver
    assert qconfig.output().dtype is qint16
    assert observer(qconfig.output).averaging_constant == 0.5
    assert type(observer(qconfig.weight)) is MovingAveragePerChannelMinMaxObserver


def test_get_default_qconfig_fixed_scale():
    qconfig = get_default_qconfig(
        activation_observer="fixed_scale", activation_qkwargs={"scale": 1 / 128}
    )
    assert qconfig.output().scale.tolist() == [1 / 128]


def test_get_default_qconfig_out_layer():
    """The document's default_qat_out_8bit: activation_fake_quant=None."""
    qconfig = get_default_qconfig(activation_fake_quant=None, activation_observer=None)
    assert qconfig.output is None
    assert qconfig.weight is not None


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"activation_fake_quant": "lsq"}, "output _LearnableFakeQuantize MovingAverageMinMax"),
        ({"weight_fake_quant": "pact"}, "weight PACTFakeQuantize MovingAveragePerChannelMinMax"),
        ({"activation_observer": "percentile"}, "output FakeQuantize PercentileObserver"),
        ({"weight_observer": "mse"}, "weight FakeQuantize MSEObserver"),
    ],
)
def test_names_stand_for_the_documented_classes(options, name):
    port, fake_quant, found = name.split()
    built = getattr(get_default_qconfig(**options), port)()
    assert type(built).__name__ == fake_quant
    assert type(built.activation_post_process).__name__.startswith(found)


@pytest.mark.parametrize(
    "options",
    [
        {"activation_fake_quant": "fake"},
        {"activation_observer": "minmax"},
        {"activation_observer": None},
        {"weight_qkwargs": {"qscheme": torch.per_tensor_symmetric}},
        {"activation_fake_quant": None, "activation_qkwargs": {"dtype": qint16}},
        {"weight_fake_quant": None, "weight_qkwargs": {"dtype": qint8}},
    ],
)
def test_unknown_kinds_are_refused(options):
    with pytest.raises(QconfigError, match="get_default_qconfig"):
        get_default_qconfig(**options)


def test_a_weight_with_one_scale_for_all_channels_is_refused():
    """The axis of a weight is its operator's, so -1 would have no effect."""
    with pytest.raises(QconfigError, match="one scale per output channel, so ch_axis can't be -1"):
        QConfig(weight=FakeQuantize.with_args(observer=MinMaxObserver, ch_axis=-1))
    with pytest.raises(QconfigError, match="ch_axis can't be -1"):
        get_default_qconfig(weight_qkwargs={"ch_axis": -1})
