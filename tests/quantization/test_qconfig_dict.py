"""``qconfig_dict`` on real models, and the article's own way by ``module.qconfig``."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qtune import march
from qtune.dtype import qint16
from qtune.errors import QconfigError
from qtune.quantization import (
    DeQuantStub,
    QuantStub,
    explain,
    get_default_calib_qconfig,
    get_default_qat_out_qconfig,
    get_default_qat_qconfig,
    get_qconfig,
    prepare,
)
from qtune.quantization.qconfig import (
    default_calib_8bit_fake_quant_qconfig,
    default_calib_out_8bit_fake_quant_qconfig,
    default_qat_8bit_fake_quant_qconfig,
    default_qat_16bit_fake_quant_qconfig,
    default_qat_out_8bit_fake_quant_qconfig,
)
from qtune.quantization.qconfig_setter import ModuleNameTemplate, QconfigSetter
from qtune.quantization.qconfig_template import (
    ModuleNameQconfigSetter,
    default_qat_qconfig_setter,
    qat_8bit_weight_16bit_act_qconfig_setter,
    sensitive_op_qat_8bit_weight_16bit_act_qconfig_setter,
)

from .configured import IMAGE, Toy, Warped, dtype_of, observer_of

Q8, Q16, OUT = (
    default_qat_8bit_fake_quant_qconfig,
    default_qat_16bit_fake_quant_qconfig,
    default_qat_out_8bit_fake_quant_qconfig,
)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(4, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.conv(x)) + x


class Blocks(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.one, self.two = nn.Conv2d(3, 4, 1), Block(), Block()
        self.classifier = nn.Conv2d(4, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.two(self.one(self.stem(x))))


def got(model: Any, *names: str) -> list[str]:
    return [dtype_of(model, name) for name in names]


RESULTS = ("stem", "_generated_add_0", "_generated_add_1", "classifier")


def test_everything_by_the_empty_key_and_the_output_by_name() -> None:
    """The guide's correct practice."""
    model = prepare(Blocks(), IMAGE, {"module_name": {"classifier": OUT}, "": Q8})
    names = [n.name for n in explain(model).decisions]
    assert {"_generated_add_0", "_generated_add_1"} <= set(names)
    assert got(model, *RESULTS) == ["qint8", "qint8", "qint8", "torch.float32"]


def test_names_beat_types_and_types_beat_the_rest() -> None:
    """A37: a rule by type holds for the fused group."""
    given = {
        "": Q8,
        "module_type": [(Block, Q16)],
        "module_name": [("two", Q8), ("classifier", OUT)],
    }
    model = prepare(Blocks(), IMAGE, given)
    assert got(model, *RESULTS) == ["qint8", "qint16", "qint8", "torch.float32"]
    assert explain(model).of("_generated_add_0").rule == "qconfig_dict module_type Block"
    assert explain(model).unmatched_rules == ()


@pytest.mark.parametrize("form", [dict, lambda d: list(d.items()), lambda d: tuple(d.items())])
def test_lists_of_pairs_and_dicts_are_the_same(form: Any) -> None:
    given = {"": Q8, "module_type": form({nn.Conv2d: Q16}), "module_name": form({"stem": Q8})}
    model = prepare(Blocks(), IMAGE, given)
    assert got(model, "stem", "_generated_relu_0", "classifier") == ["qint8", "qint16", "qint16"]


def test_the_innermost_class_and_the_most_specific_name_win() -> None:
    by_type = {"": Q8, "module_type": [(Block, Q8), (nn.Conv2d, Q16), (nn.Module, Q8)]}
    model = prepare(Blocks(), IMAGE, by_type)
    assert got(model, "stem", "_generated_relu_0") == ["qint16", "qint16"]
    assert dtype_of(model, "_generated_add_0") == "qint8"
    by_name = {"": Q8, "module_name": [("one.conv", Q16), ("one", Q8)]}
    model = prepare(Blocks(), IMAGE, by_name)
    assert got(model, "_generated_relu_0", "_generated_add_0") == ["qint16", "qint8"]


def test_functions_inherit_the_qconfig_of_their_module() -> None:
    model = prepare(Blocks(), IMAGE, {"": Q8, "module_name": [("one", Q16), ("classifier", OUT)]})
    assert got(model, *RESULTS) == ["qint8", "qint16", "qint8", "torch.float32"]


def test_module_qconfig_beats_the_dict() -> None:
    net = Blocks()
    net.one.qconfig = Q8  # type: ignore[assignment]
    net.two.conv.qconfig = None  # type: ignore[assignment]
    model = prepare(net, IMAGE, {"": Q8, "module_name": [("one", Q16), ("classifier", OUT)]})
    assert dtype_of(model, "_generated_add_0") == "qint8"
    assert "two.conv" in {op.name for op in model.float_ops}


def test_none_keeps_a_module_or_a_type_float() -> None:
    model = prepare(Blocks(), IMAGE, {"": Q8, "module_name": [("one", None), ("classifier", OUT)]})
    assert {"one.conv", "_generated_add_0"} <= {op.name for op in model.float_ops}
    model = prepare(Blocks(), IMAGE, {"": Q8, "module_type": [(Block, None)]})
    assert {"two.conv", "_generated_add_1"} <= {op.name for op in model.float_ops}
    assert dtype_of(model, "stem") == "qint8"


def test_without_a_rule_operators_stay_float() -> None:
    model = prepare(Blocks(), IMAGE, {})
    assert {"stem", "one.conv", "classifier"} <= {op.name for op in model.float_ops}
    net = Blocks()
    net.qconfig = get_default_qat_qconfig()  # type: ignore[assignment]
    assert dtype_of(prepare(net, IMAGE, {}), "stem") == "qint8"


def test_a_setter_may_stand_for_a_qconfig() -> None:
    """The guide: qconfig_dict={"": default_qat_qconfig_setter}."""
    model = prepare(Toy(), IMAGE, {"": default_qat_qconfig_setter})
    assert got(model, "mid", "classifier") == ["qint8", "torch.float32"]
    new = QconfigSetter(get_qconfig(), [ModuleNameTemplate({"mid": qint16})])
    assert dtype_of(prepare(Toy(), IMAGE, {"": new}), "mid") == "qint16"
    stacked = (ModuleNameQconfigSetter({"mid": Q16}), default_qat_qconfig_setter)
    assert dtype_of(prepare(Toy(), IMAGE, {"": stacked}), "mid") == "qint16"
    wide = {"": Q8, "module_name": {"mid": qat_8bit_weight_16bit_act_qconfig_setter}}
    model = prepare(Toy(), IMAGE, {**wide})
    assert got(model, "relu0", "mid") == ["qint8", "qint16"]
    row = [["mid", "output", "Conv2d", 1.0], ["relu0", "output", "ReLU", 0.5]]
    table = sensitive_op_qat_8bit_weight_16bit_act_qconfig_setter(row, topk=2)
    model = prepare(Toy(), IMAGE, {"": default_qat_qconfig_setter, "module_name": {"mid": table}})
    assert got(model, "relu0", "mid") == ["qint8", "qint16"]


@pytest.mark.parametrize("order", [("one", "one.conv"), ("one.conv", "one")])
def test_of_two_setters_that_of_the_most_specific_name_counts(order: tuple[str, str]) -> None:
    narrow, wide = default_qat_qconfig_setter, qat_8bit_weight_16bit_act_qconfig_setter
    for whole, part, expected in ((narrow, wide, "qint16"), (wide, narrow, "qint8")):
        setters = {"one": whole, "one.conv": part}
        pairs = [(name, setters[name]) for name in order]
        model = prepare(Blocks(), IMAGE, {"": narrow, "module_name": pairs})
        assert dtype_of(model, "_generated_relu_0") == expected  # conv and relu are one group


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"conv": Q8}, 'names of operators belong under "module_name"'),
        ({"": Q8, "module_name": "conv"}, "expected pairs"),
        ({"": Q8, "module_name": 3}, "a list of pairs or a dict"),
        ({"": Q8, "module_name": [("conv",)]}, "expected pairs"),
        ({"": Q8, "module_name": [("conv", "qint8")]}, "must be a QconfigSetter"),
        ({"": Q8, "module_type": [("Conv2d", Q8)]}, "expected a module class"),
        ({"": Q8, "module_type": [(nn.Conv2d, default_qat_qconfig_setter)]}, "QConfig or None"),
        ({"": 3}, "must be a QconfigSetter"),
    ],
)
def test_other_forms_are_refused(given: Any, text: str) -> None:
    with pytest.raises(QconfigError, match=text):
        prepare(Toy(), IMAGE, given)


def test_what_names_nothing_is_reported() -> None:
    given = {"": Q8, "module_type": [(nn.GRU, Q16)], "module_name": [("mit", Q16), ("bn", Q16)]}
    model = prepare(Toy(), IMAGE, given)
    assert explain(model).unmatched_rules == (
        "qconfig_dict module_type GRU: no operator lies in a module of this class",
        "qconfig_dict module_name 'mit': no operator or module has this name; close: mid",
    )
    assert dtype_of(model, "relu0") == "qint16"


class Detector(nn.Module):
    """The shape of the article's model: heads, and losses used in training."""

    def __init__(self) -> None:
        super().__init__()
        self.quant, self.dequant = QuantStub(scale=1 / 128), DeQuantStub()
        self.backbone = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4), nn.ReLU())
        self.convs_pred = nn.ModuleList(nn.Conv2d(4, 2, 1) for _ in range(2))
        self.loss_cls, self.loss_xy = nn.MSELoss(), nn.L1Loss()

    def forward(self, x: Tensor) -> Tensor:
        x = self.backbone(self.quant(x))
        one, two = (self.dequant(conv(x)) for conv in self.convs_pred)
        return self.loss_cls(one, torch.zeros_like(one)) + self.loss_xy(two, torch.ones_like(two))


@pytest.mark.parametrize("get", [get_default_qat_qconfig, get_default_calib_qconfig])
def test_the_articles_model(get: Any, caplog: Any) -> None:
    net = Detector()
    net.qconfig = get()  # type: ignore[assignment]
    for m in net.convs_pred:
        m.qconfig = get_default_qat_out_qconfig()  # type: ignore[assignment]
    net.loss_cls.qconfig = None  # type: ignore[assignment]
    net.loss_xy.qconfig = None  # type: ignore[assignment]
    model = prepare(net, IMAGE)
    assert got(model, "backbone.2", "convs_pred.0", "convs_pred.1") == [
        "qint8",
        "torch.float32",
        "torch.float32",
    ]
    losses = {op.name for op in model.float_ops}
    assert {"loss_cls", "loss_xy"} <= losses
    assert not caplog.records


def test_int16_for_one_layer_as_the_article_writes_it() -> None:
    net = Detector()
    net.qconfig = get_default_qat_qconfig()  # type: ignore[assignment]
    net.backbone.qconfig = default_qat_16bit_fake_quant_qconfig()  # type: ignore[assignment]
    assert dtype_of(prepare(net, IMAGE), "backbone.2") == "qint16"


def test_the_hybrid_example_of_the_guide() -> None:
    """CPU operators by name and by class; the conv before one has a high-precision output."""

    class Selu(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.selu(x)

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.quant, self.dequant, self.selu = QuantStub(), DeQuantStub(), Selu()
            self.conv0, self.prelu, self.conv4 = nn.Conv2d(3, 3, 1), nn.PReLU(), nn.Conv2d(3, 3, 1)
            self.conv3 = nn.Conv2d(3, 3, 1)

        def forward(self, x: Tensor) -> Tensor:
            x = self.conv3(self.prelu(self.conv0(self.quant(x))))
            return self.dequant(self.selu(self.conv4(x)))

    with march.march("bayes-e"):
        model = prepare(
            Net(),
            IMAGE,
            {
                "": default_calib_8bit_fake_quant_qconfig,
                "module_name": [("conv4", default_calib_out_8bit_fake_quant_qconfig)],
            },
            hybrid=True,
            hybrid_dict={"module_name": ["conv3"], "module_type": [Selu]},
        )
    assert got(model, "conv4", "prelu") == ["torch.float32", "qint8"]
    assert {"conv3", "_generated_selu_0"} <= {op.name for op in model.float_ops}
    assert type(observer_of(model, "prelu")).__name__ == "MSEObserver"


@pytest.mark.parametrize("way", ["module", "dict"])
def test_a_qconfig_of_the_whole_model_leaves_the_inside_of_operators_alone(way: str) -> None:
    """The grid of a sampling and the parts of a softmax stay int16."""
    for net, names in (
        (Warped(), ["to_grid", "_generated_mul_0", "_generated_tanh_0"]),
        (nn.Sequential(nn.Conv2d(3, 4, 1), nn.Softmax(1)), ["1.sub", "1.exp", "1.reciprocal"]),
    ):
        if way == "module":
            net.qconfig = Q8  # type: ignore[assignment]
        model = prepare(net, IMAGE, {"": Q8} if way == "dict" else None)
        assert got(model, *names) == ["qint16"] * 3
        last = "last" if isinstance(net, Warped) else "1.mul"
        assert dtype_of(model, last) == "qint8"
