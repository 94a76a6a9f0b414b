import pytest
import torch

from qtune.dtype import qint8, qint16
from qtune.errors import ArgumentError, MarchError, QconfigError
from qtune.march import march
from qtune.ops.spec import Rule
from qtune.qconfig.outputs import LAST_GEMM
from qtune.qconfig.qconfig import QConfig, get_qconfig
from qtune.qconfig.resolve import resolve
from qtune.qconfig.templates import ConvDtypeTemplate, MatmulDtypeTemplate, ModuleNameTemplate
from qtune.quantizers.fixed import FixedScaleObserver
from qtune.quantizers.mse import MSEObserver
from tests.qconfig.nets import (
    add,
    chain,
    decision,
    dequant,
    dtypes,
    gemm,
    matmul,
    quant,
    relu,
    solve,
)

ALL_INT8 = ModuleNameTemplate({"": qint8})


def test_default_is_int8_with_a_high_precision_end():
    """api.md: what prepare does without a setter."""
    with march("nash-e"):
        result = resolve(chain())
    plans = result.plans
    assert plans["quant"].output.dtype is qint8
    assert plans["conv1"].output is None
    assert plans["conv1"].weight.dtype is qint8
    assert plans["relu1"].output.dtype is qint8
    assert plans["pool"].output is None
    assert plans["pool"].dtype is qint8
    assert plans["conv2"].output is None
    assert plans["conv2"].high_precision
    assert plans["conv2"].weight.dtype is qint8
    assert not plans["dequant"].float_reason
    assert not any(plan.inputs or plan.float_reason for plan in plans.values())
    assert result.corrections == result.unmatched_rules == result.refused == ()
    assert decision(result, "conv2").rule == LAST_GEMM


def test_no_march_is_a_clear_error():
    with pytest.raises(MarchError, match="no march is set"):
        resolve(chain())


def test_every_operator_has_a_plan_and_a_decision():
    result = solve(chain(), ALL_INT8)
    assert list(result.plans) == [v.name for v in chain()]
    assert {d.name for d in result.explanation} == set(result.plans)


def test_global_int16():
    result = solve(chain(), ModuleNameTemplate({"": qint16}))
    assert dtypes(result) == {
        "quant": "qint16",
        "conv1": "None",
        "relu1": "qint16",
        "pool": "qint16",
        "conv2": "None",
        "dequant": "None",
    }
    assert result.plans["conv1"].weight.dtype is qint8


@pytest.mark.parametrize("key", ["conv1", "relu1"])
def test_a_rule_for_any_member_names_the_fused_output(key):
    """A37: a rule for the conv still holds when conv and relu are one group."""
    result = solve(chain(), ModuleNameTemplate({"": qint8, key: qint16}))
    assert result.plans["relu1"].output.dtype is qint16
    assert result.plans["pool"].dtype is qint16
    assert result.unmatched_rules == ()


def test_of_two_members_named_the_last_wins_and_the_other_is_reported():
    result = solve(chain(), ModuleNameTemplate({"conv1": qint16, "relu1": qint8}))
    assert result.plans["relu1"].output.dtype is qint8
    assert len(result.unmatched_rules) == 1
    assert result.unmatched_rules[0].startswith("ModuleNameTemplate 'conv1' output: no operator")


def test_conv_template_inserts_an_input_where_the_producer_differs():
    rules = (ModuleNameTemplate({"": qint8, "relu1": qint16}), ConvDtypeTemplate())
    result = solve(chain(), *rules)
    assert result.plans["pool"].dtype is qint16
    (port,) = result.plans["conv2"].inputs.items()
    assert port[0] == 0
    assert port[1].dtype is qint8
    assert result.plans["conv1"].inputs == {}
    assert decision(result, "conv2", "input-0").reason == "pool gives qint16"
    wide = solve(chain(), rules[0], ConvDtypeTemplate(input_dtype=qint16))
    assert wide.plans["conv2"].inputs == {}
    assert wide.plans["conv1"].inputs[0].dtype is qint16


def test_without_an_input_rule_operands_come_as_they_are():
    result = solve(chain(), ModuleNameTemplate({"": qint8, "relu1": qint16}))
    assert result.plans["conv2"].inputs == {}


def test_later_template_wins_unless_frozen():
    later = ModuleNameTemplate({"relu1": qint8, "conv2": {"input": qint8}})
    for freeze, expected in ((False, qint8), (True, qint16)):
        first = ModuleNameTemplate({"": qint8, "relu1": qint16, "conv2": {"input": qint16}}, freeze)
        result = solve(chain(), first, later)
        assert result.plans["relu1"].output.dtype is expected
        kept = ModuleNameTemplate({"": qint8, "conv2": {"input": qint16}}, freeze)
        result = solve(chain(), kept, ConvDtypeTemplate())
        assert [p.dtype for p in result.plans["conv2"].inputs.values()] == (
            [qint16] if freeze else []
        )


def test_most_specific_name_wins_within_a_template():
    views = [
        quant("quant"),
        gemm("body.a.conv", "quant", scope="body.a"),
        gemm("body.b.conv", "body.a.conv", scope="body.b"),
        add("_generated_add_0", "body.b.conv", "body.a.conv", scope="body.b"),
        dequant("dequant", "_generated_add_0", is_model_output=True),
    ]
    mapping = {"body": qint16, "": qint8, "body.b": qint8, "body.b.conv": qint16}
    result = solve(views, ModuleNameTemplate(mapping))
    assert dtypes(result) == {
        "quant": "qint8",
        "body.a.conv": "qint16",
        "body.b.conv": "qint16",
        "_generated_add_0": "qint8",
        "dequant": "None",
    }


def test_a_prefix_ends_at_a_dot():
    views = [quant("quant"), add("layer1", "quant", "quant"), add("layer10", "layer1", "quant")]
    result = solve(views, ModuleNameTemplate({"": qint8, "layer1": qint16}))
    assert result.plans["layer10"].output.dtype is qint8


def test_names_that_match_nothing_are_reported_with_close_ones():
    """A37."""
    result = solve(chain(), ModuleNameTemplate({"": qint8, "conv11": qint16, "far.away": qint8}))
    assert result.unmatched_rules == (
        "ModuleNameTemplate 'conv11' output: no operator or module has this name; "
        "close: conv1, conv2",
        "ModuleNameTemplate 'far.away' output: no operator or module has this name",
    )


def test_ports_that_do_not_exist_are_reported():
    result = solve(
        chain(), ModuleNameTemplate({"pool": {"weight": qint8}, "quant": {"input": qint8}})
    )
    assert [text.split(":")[0] for text in result.unmatched_rules] == [
        "ModuleNameTemplate 'pool' weight",
        "ModuleNameTemplate 'quant' input",
    ]


def test_threshold_fixes_the_scale_by_the_grid():
    """numerics.md section 6: T / 128 and T / 32768."""
    mapping = {"": qint8, "quant": 1.0, "relu1": {"dtype": qint16, "threshold": 2.0}}
    result = solve(chain(), ModuleNameTemplate(mapping))
    fq = result.plans["quant"].output.make(name="quant")
    assert isinstance(fq.activation_post_process, FixedScaleObserver)
    assert fq.observed
    assert fq.scale.tolist() == [1 / 128]
    assert fq.name == "quant"
    assert result.plans["relu1"].output.make().scale.tolist() == [2 / 32768]


def test_scale_of_the_stub_itself_is_kept():
    """QuantStub(scale=1/128), beside a template that says something else."""
    stub = quant(fixed_scale=1 / 128, takes_float=True)
    result = solve([stub], ModuleNameTemplate({"": qint8, "quant": 3.0}))
    assert result.plans["quant"].output.make().scale.tolist() == [1 / 128]
    assert decision(result, "quant").reason == "quant_stub fixes its scale at 0.0078125"


def test_a_stub_behind_a_float_operator_gets_no_input():
    views = [
        quant("q1", consumers=("out",)),
        dequant("out", "q1", consumers=("q2",)),
        quant("q2", producers=("out",), takes_float=True),
    ]
    plan = solve(views, ALL_INT8).plans["q2"]
    assert plan.output.dtype is qint8
    assert plan.inputs == {}


def test_thresholds_per_port():
    mapping = {"": qint8, "conv2": {"threshold": {"input": 4.0, "weight": 0.5, "output": 8.0}}}
    plans = solve(chain(), ModuleNameTemplate(mapping)).plans["conv2"]
    assert plans.inputs[0].make().scale.tolist() == [4 / 128]
    assert plans.output.make().scale.tolist() == [8 / 128]
    weight = plans.weight.make(3, 0)
    assert weight.scale.tolist() == [0.5 / 128] * 3
    assert weight.ch_axis == 0


def test_named_output_of_the_last_gemm_is_quantized():
    for value in (qint8, qint16, 3.0, {"output": qint8}):
        result = solve(chain(), ModuleNameTemplate({"": qint8, "conv2": value}))
        assert not result.plans["conv2"].high_precision
        assert result.plans["conv2"].output.dtype in {qint8, qint16}


def test_frozen_global_dtype_also_holds_for_the_end():
    result = solve(chain(), ModuleNameTemplate({"": qint8}, freeze=True))
    assert result.plans["conv2"].output.dtype is qint8


def test_end_with_a_fused_relu_is_not_high_precision_and_says_so():
    views = [
        quant(consumers=("conv",)),
        gemm("conv", "quant", group="relu", consumers=("relu",)),
        relu("relu", "conv", group="relu", is_model_output=True),
    ]
    result = solve(views, ALL_INT8)
    assert result.plans["relu"].output.dtype is qint8
    assert decision(result, "relu").reason == "not high precision: relu is fused into it"


def test_end_with_a_fused_add_is_high_precision():
    views = [
        quant(consumers=("conv", "add")),
        gemm("conv", "quant", group="add", consumers=("add",)),
        add("add", "conv", "quant", group="add", is_model_output=True),
    ]
    result = solve(views, ALL_INT8)
    assert result.plans["add"].high_precision
    assert result.plans["add"].output is None
    assert not result.plans["conv"].high_precision


def test_end_with_another_user_keeps_its_scale():
    views = [
        quant(consumers=("conv",)),
        gemm("conv", "quant", consumers=("dequant", "pool")),
        dequant("dequant", "conv", is_model_output=True),
        relu("pool", "conv", is_model_output=True),
    ]
    result = solve(views, ALL_INT8)
    assert result.plans["conv"].output.dtype is qint8
    assert result.plans["pool"].dtype is qint8


def test_matmul_template_takes_one_dtype_or_a_pair():
    views = [
        quant("q"),
        quant("k"),
        matmul("scores", "q", "k", consumers=("out",)),
        add("out", "scores", "q", is_model_output=True),
    ]
    same = solve(views, ALL_INT8, MatmulDtypeTemplate(qint16)).plans["scores"]
    assert {i: p.dtype for i, p in same.inputs.items()} == {0: qint16, 1: qint16}
    pair = solve(views, ALL_INT8, MatmulDtypeTemplate((qint8, qint16))).plans["scores"]
    assert {i: p.dtype for i, p in pair.inputs.items()} == {1: qint16}
    half = solve(views, ALL_INT8, MatmulDtypeTemplate((None, qint16))).plans["scores"]
    assert {i: p.dtype for i, p in half.inputs.items()} == {1: qint16}


def test_matmul_and_conv_templates_keep_to_their_kind():
    views = [quant("q"), gemm("conv", "q"), matmul("mm", "conv", "q")]
    result = solve(views, ALL_INT8, ConvDtypeTemplate(qint16), MatmulDtypeTemplate())
    assert {i: p.dtype for i, p in result.plans["conv"].inputs.items()} == {0: qint16}
    assert result.plans["mm"].inputs == {}


def test_two_int16_factors_have_no_high_precision_output():
    """numerics.md section 2.1."""
    views = [quant("q"), matmul("mm", "q", "q", is_model_output=True)]
    due = solve(views, ModuleNameTemplate({"": qint16}))
    assert due.plans["mm"].output.dtype is qint16
    assert decision(due, "mm").reason.startswith("not high precision: two int16 operands")
    asked = solve(views, ModuleNameTemplate({"": qint16, "mm": torch.float32}))
    line = decision(asked, "mm")
    assert (line.asked, line.given, line.corrected) == ("torch.float32", "qint16", True)
    assert "two int16 operands have no high-precision output" in line.reason


def test_constant_operands_get_their_own_scale():
    """A14: the broadcast parameter."""
    views = [quant("q"), add("add", "q", None, constants=frozenset({1}))]
    result = solve(views, ModuleNameTemplate({"": qint16}))
    assert result.plans["add"].inputs[1].dtype is qint16
    assert 0 not in result.plans["add"].inputs
    assert decision(result, "add", "input-1").reason == "a constant"


def test_operands_without_scale_get_none():
    """A16: a mask or an index."""
    mask = add("mask", "q", op="gt", rule=Rule.NO_SCALE)
    views = [quant("q"), mask, add("where", "mask", "q", "q", op="where")]
    result = solve(views, ALL_INT8)
    assert result.plans["where"].inputs == {}
    assert result.plans["mask"].dtype is None
    assert not result.plans["mask"].float_reason


def test_structural_float_reasons_are_kept_and_spread():
    views = [
        quant("q"),
        add("nms", "q", float_reason="nms is not in the registry"),
        relu("relu", "nms"),
        add("add", "relu", "q"),
    ]
    result = solve(views, ALL_INT8)
    assert result.plans["nms"].float_reason == "nms is not in the registry"
    assert result.plans["relu"].float_reason == "its input nms is float"
    assert result.plans["add"].inputs[0].dtype is qint8
    assert 1 not in result.plans["add"].inputs


def test_rule_for_a_result_that_keeps_its_scale_is_reported():
    result = solve(chain(), ModuleNameTemplate({"": qint8, "pool": qint16}))
    line = decision(result, "pool")
    assert (line.asked, line.given, line.corrected) == ("qint16", "qint8", True)
    assert "keeps the scale of its input" in line.reason


def test_reference_gives_observers_and_default_dtypes():
    reference = get_qconfig(observer=MSEObserver, in_dtype=qint16, out_dtype=qint16)
    result = solve(chain(), reference=reference)
    fq = result.plans["quant"].output.make()
    assert type(fq.activation_post_process) is MSEObserver
    assert fq.dtype is qint16
    result = solve(chain(), ALL_INT8, reference=reference)
    assert result.plans["conv1"].inputs[0].dtype is qint16
    assert result.plans["quant"].output.make().dtype is qint8


def test_a_constructor_that_builds_something_else_is_refused():
    own = QConfig(output=lambda: 3)
    views = chain(quant={"module_qconfig": own, "module_qconfig_path": "quant"})
    with pytest.raises(QconfigError, match="built a int"):
        solve(views, ALL_INT8)


def test_inside_a_group_nothing_is_quantized():
    views = [
        quant("q"),
        gemm("conv", "q", group="relu"),
        add("add", "q", "conv", group="relu"),
        relu("relu", "add", group="relu"),
    ]
    result = solve(views, ALL_INT8, ConvDtypeTemplate(qint16))
    assert result.plans["add"].inputs == {}
    assert result.plans["conv"].inputs[0].dtype is qint16
    assert decision(result, "conv").reason == "joins relu before its requantize"


def test_malformed_views_are_refused():
    with pytest.raises(ArgumentError, match="execution order"):
        solve([relu("relu", "q"), quant("q")], ALL_INT8)
    with pytest.raises(ArgumentError, match="occurs twice"):
        solve([quant("q"), quant("q")], ALL_INT8)
    with pytest.raises(ArgumentError, match="named after its last member"):
        solve([quant("q"), gemm("conv", "q", group="x")], ALL_INT8)
    with pytest.raises(QconfigError, match="must be decomposed"):
        solve([quant("q"), add("softmax", "q", rule=Rule.DECOMPOSED)], ALL_INT8)
