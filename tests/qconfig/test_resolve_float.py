import pytest
import torch

from qtune.dtype import qint8
from qtune.qconfig.templates import ConvDtypeTemplate, MatmulDtypeTemplate, ModuleNameTemplate
from tests.qconfig.nets import (
    chain,
    decision,
    dtypes,
    solve,
)

ALL_INT8 = ModuleNameTemplate({"": qint8})


def test_float32_names_a_high_precision_output():
    """A37: ``head`` float, in the plan and for its consumer."""
    mapping = {"": qint8, "conv1": torch.float32}
    views = chain(conv1={"group": ""}, relu1={"group": ""})
    result = solve(views, ModuleNameTemplate(mapping))
    assert result.plans["conv1"].high_precision
    assert result.plans["conv1"].weight is not None
    assert result.plans["relu1"].float_reason == "its input conv1 is float"
    assert result.plans["pool"].float_reason == "its input relu1 is float"
    assert result.plans["conv2"].inputs[0].dtype is qint8, "the quantized part goes on"
    assert decision(result, "conv2", "input-0").reason == "pool is float"


def test_float32_output_of_a_fused_group_leaves_the_relu_float():
    result = solve(chain(), ModuleNameTemplate({"": qint8, "relu1": torch.float32}))
    assert result.plans["conv1"].high_precision
    assert result.plans["relu1"].float_reason == "follows the high-precision output of conv1"


@pytest.mark.parametrize("value", [None, {"weight": torch.float32}, {"input": None}])
def test_an_operator_can_be_kept_float(value):
    result = solve(chain(), ModuleNameTemplate({"": qint8, "conv2": value}), MatmulDtypeTemplate())
    plan = result.plans["conv2"]
    assert "kept float by ModuleNameTemplate 'conv2'" in plan.float_reason
    assert plan.output is plan.weight is None
    assert decision(result, "conv2", "operator").reason == plan.float_reason


def test_an_operator_kept_float_is_not_taken_back_by_the_conv_template():
    result = solve(chain(), ModuleNameTemplate({"": qint8, "conv1": None}), ConvDtypeTemplate())
    assert result.plans["conv1"].float_reason
    assert result.plans["relu1"].float_reason
    assert result.plans["conv2"].inputs[0].dtype is qint8


def test_global_float_keeps_everything_float_until_a_gemm_asks_for_its_input():
    result = solve(chain(), ModuleNameTemplate({"": torch.float32}))
    assert set(dtypes(result).values()) == {"float", "None"}
    assert all(p.float_reason for name, p in result.plans.items() if name != "dequant")
    mixed = solve(chain(), ModuleNameTemplate({"": torch.float32}), ConvDtypeTemplate())
    assert mixed.plans["conv1"].high_precision
    assert mixed.plans["conv1"].inputs[0].dtype is qint8
    assert mixed.plans["quant"].float_reason
