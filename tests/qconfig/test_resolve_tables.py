from qtune.dtype import qint8, qint16
from qtune.qconfig.templates import ModuleNameTemplate
from tests.qconfig.nets import (
    add,
    decision,
    quant,
    solve,
    table,
)


def test_forced_dtype_inside_a_decomposed_operator():
    views = [
        quant("q"),
        table("softmax.exp", "q", forced_dtype=qint16),
        add("softmax.mul", "softmax.exp", "q"),
    ]
    result = solve(views, ModuleNameTemplate({"": qint8, "softmax": qint8}))
    plan = result.plans["softmax.exp"]
    assert plan.output.dtype is qint16
    assert plan.inputs[0].dtype is qint16, "a table gives qint16 only from qint16"
    assert result.plans["softmax.mul"].output.dtype is qint8
    named = solve(views, ModuleNameTemplate({"": qint8, "softmax.exp": qint8}))
    assert named.plans["softmax.exp"].output.dtype is qint8
    float_again = solve(views, ModuleNameTemplate({"": qint8, "softmax": None}))
    assert float_again.plans["softmax.exp"].float_reason


def test_int16_table_from_int8_raises_its_input():
    views = [quant("q"), table("sigmoid", "q")]
    result = solve(views, ModuleNameTemplate({"": qint8, "sigmoid": qint16}))
    assert result.plans["sigmoid"].output.dtype is qint16
    assert result.plans["sigmoid"].inputs[0].dtype is qint16
    narrow = {"dtype": {"output": qint16, "input": qint8}}
    result = solve(views, ModuleNameTemplate({"": qint8, "sigmoid": narrow}))
    line = decision(result, "sigmoid")
    assert (line.asked, line.given, line.corrected) == ("qint16", "qint8", True)
    assert line.reason == "a table gives qint16 only from qint16"


def test_int8_tables_from_int16_are_fine():
    views = [quant("q"), table("sigmoid", "q")]
    result = solve(views, ModuleNameTemplate({"": qint8, "q": qint16}))
    assert result.plans["sigmoid"].inputs == {}
    assert result.corrections == ()
