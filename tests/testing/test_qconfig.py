"""assert_qconfig: dtypes, fixed scales and high-precision outputs, and who decided them."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from qtune.dtype import qint8, qint16
from qtune.errors import ArgumentError, QconfigError
from qtune.qconfig.templates import ConvDtypeTemplate, ModuleNameTemplate
from qtune.quantization import QconfigSetter, get_qconfig
from qtune.testing import Stages, assert_qconfig
from qtune.testing.model_ports import model_ports

from . import nets
from .failing import Chain, X

EVERYTHING = {
    "_input_0_quant": "qint8",
    "stem": qint8,
    "stem weight": torch.qint8,
    "pool": "torch.qint8",
    "head": torch.float32,
    "head input": "qint8",
    "_input_0_quant input": "float32",
}


class Sized(nets.Net):
    """Also gives an index and a mask, which are no numbers with a scale."""

    def forward(self, x: Tensor) -> Any:
        y = super().forward(x)
        return y, y.argmax(1), x > 0


def failure(model: nn.Module, **asked: Any) -> str:
    with pytest.raises(AssertionError) as caught:
        assert_qconfig(model, **asked)
    return str(caught.value)


def test_a_model_as_asked_passes(stages: Stages) -> None:
    result = assert_qconfig(
        stages.calib, dtypes=EVERYTHING, fixed_scales={}, high_precision_outputs=["head"]
    )
    assert result.headline == "qconfig: got 7 ports as asked, limit 0 wrong"
    assert result.metrics == {"wrong_ports": 0, "checked_ports": 7}


def test_every_port_is_known_by_the_name_of_reports(stages: Stages) -> None:
    found = {port.name: (port.dtype, port.decided) for port in model_ports(stages.calib)}
    assert found["stem output"] == ("qint8", "decided by ModuleNameTemplate '' output")
    assert found["stem weight"] == ("qint8", "decided by ConvDtypeTemplate")
    assert found["stem input-0"] == ("qint8", "it comes as _input_0_quant gives it")
    assert found["pool output"] == ("qint8", "keeps the scale of its input (_generated_relu_0)")
    assert "_generated_relu_0 input-0" not in found  # inside of its group
    head = ("torch.float32", "decided by last GEMM before the model's end: high-precision output")
    assert found["head output"] == head


def test_results_without_a_scale_have_the_dtype_of_the_float_model(build: Any) -> None:
    dtypes = {"_generated_argmax_0": "torch.int64", "_generated_gt_0": "torch.bool"}
    calib = build(Sized).calib
    found = {port.op: port.dtype for port in model_ports(calib) if port.kind == "output"}
    assert {name: found[name] for name in dtypes} == dtypes


def test_a_glob_means_what_can_have_a_scale_and_a_later_entry_wins(build: Any) -> None:
    calib = build(Sized).calib
    asked = {"*": "qint8", "": "qint8", "* input": "qint8", "* weight": "qint8"}
    assert assert_qconfig(calib, dtypes=asked)
    text = failure(calib, dtypes={**asked, "pool": "qint16", "_output_0_dequant": "qint8"})
    assert "worst of 2 bad ports" in text
    assert text.startswith("qconfig: pool output: got qint8, limit qint16\n")
    assert "_output_0_dequant output (" in text


def test_a_corrected_dtype_says_what_was_asked() -> None:
    setter = QconfigSetter(
        reference_qconfig=get_qconfig(), templates=[ModuleNameTemplate({"": qint16})]
    )
    stages = Stages(Chain, [X], march="bernoulli2", qconfig_setter=setter)
    text = failure(stages.calib, dtypes={"c3": "qint16"})
    assert text.startswith("qconfig: c3 output: got qint8, limit qint16\n")
    assert "decided by ModuleNameTemplate '' output: asked qint16: " in text


def test_lost_and_new_high_precision_outputs(stages: Stages) -> None:
    text = failure(stages.calib, high_precision_outputs=["body"])
    assert "body output (nets.py:28): got qint8, expected high precision; decided by " in text
    assert "head output (nets.py:29): got high precision, expected not in high precision" in text
    assert_qconfig(stages.calib, high_precision_outputs="h*")
    assert failure(stages.calib, high_precision_outputs=()).startswith(
        "qconfig: head output: got high precision, limit not in high precision\n"
    )


def test_a_fixed_scale_is_one_that_no_data_move(build: Any) -> None:
    setter = QconfigSetter(
        reference_qconfig=get_qconfig(),
        templates=[
            ModuleNameTemplate({"": qint8, "pool": qint8, "_input_0_quant": {"threshold": 1.0}}),
            ConvDtypeTemplate(),
        ],
    )
    calib = build(nets.Net, qconfig_setter=setter).calib
    assert assert_qconfig(calib, fixed_scales={"_input_0_quant": 1 / 128})
    by_hand = copy.deepcopy(calib)
    relu = by_hand.get_submodule("_generated_relu_0").activation_post_process
    same = float(relu.scale)
    text = failure(by_hand, fixed_scales={"_generated_relu_0": same})
    assert ": got scale moved by its " in text.splitlines()[0]
    assert "Observer, limit scale 0.0" in text.splitlines()[0]
    relu.set_qparams(same)
    assert assert_qconfig(by_hand, fixed_scales={"_generated_relu_0": same, "pool": same})
    assert failure(by_hand, fixed_scales={"pool": 2 * same}).startswith(
        f"qconfig: pool output: got scale {same:.7g}, limit scale {2 * same:.7g}, fixed\n"
    )
    assert failure(calib, fixed_scales={"head": 1.0}).startswith(
        "qconfig: head output: got torch.float32, no scale, limit scale 1, fixed\n"
    )


@pytest.mark.parametrize(
    ("asked", "error", "text"),
    [
        ({}, ArgumentError, "give at least one of dtypes, fixed_scales"),
        ({"dtypes": {"haed": "qint8"}}, ArgumentError, "no operator is called 'haed'; close: head"),
        ({"dtypes": {"pool weight": "qint8"}}, ArgumentError, "'pool' has no port 'weight'"),
        ({"dtypes": {"head": "int7"}}, QconfigError, "dtypes: head output: expected a quantized"),
        ({"dtypes": ["head"]}, ArgumentError, "dtypes must be a table by name"),
        (
            {"fixed_scales": {"pool": -1.0}},
            ArgumentError,
            "output: a scale is positive, got -1",
        ),
        ({"fixed_scales": {"pool": True}}, ArgumentError, "pool output must be a number but got T"),
        ({"fixed_scales": {"pool": 10**400}}, ArgumentError, "pool output is too large for a floa"),
        ({"dtypes": {}, "fixed_scales": {}}, ArgumentError, "give at least one of dtypes"),
        ({"high_precision_outputs": ["hed"]}, ArgumentError, "high_precision_outputs: no operator"),
        ({"high_precision_outputs": 3}, ArgumentError, "must be names of operators but got 3"),
    ],
)
def test_wrong_arguments_are_named(
    stages: Stages, asked: Any, error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        assert_qconfig(stages.calib, **asked)


def test_other_models_are_refused(stages: Stages) -> None:
    with pytest.raises(ArgumentError, match="expected a model made by prepare"):
        assert_qconfig(stages.float, dtypes={"head": "qint8"})
