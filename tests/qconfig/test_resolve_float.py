from dataclasses import replace

import pytest
import torch

from qtune.dtype import qint8
from qtune.march import March
from qtune.qconfig.templates import ConvDtypeTemplate, MatmulDtypeTemplate, ModuleNameTemplate
from tests.qconfig.nets import add, chain, decision, dequant, dtypes, gemm, quant, solve

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


@pytest.mark.parametrize(("first", "later"), [("half", "whole"), ("whole", "half")])
def test_calls_of_a_shared_operator_in_float16_and_in_integers_get_one_input(first, later):
    views = [
        quant(consumers=("half", "whole")),
        add("half", "quant", "quant"),
        add("whole", "quant", "quant"),
        gemm("conv", first, later_producers=((later, None, None),)),
        add("sum", first, "whole", later_producers=((later, "whole"),)),
        dequant("dequant", "conv", is_model_output=True),
    ]
    mapping = {"": qint8, "half": torch.float16}
    result = solve(views, ModuleNameTemplate(mapping), march=March.NASH_H)
    assert result.plans["conv"].inputs[0].dtype == qint8
    assert set(result.plans["sum"].inputs) == {0}
    assert result.plans["sum"].inputs[0].dtype == qint8
    reason = "one of the calls of this shared operator gives torch.float16"
    assert decision(result, "sum", "input-0").reason == reason
    alike = [replace(view, later_producers=()) for view in views]
    assert (
        0 in solve(alike, ModuleNameTemplate(mapping), march=March.NASH_H).plans["sum"].inputs
    ) == (first == "half")
