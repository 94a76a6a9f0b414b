import pytest

from qtune.dtype import qint4, qint8, qint16
from qtune.errors import MarchError
from qtune.march import March
from qtune.ops.spec import MarchRule
from qtune.qconfig.templates import ConvDtypeTemplate, ModuleNameTemplate
from tests.qconfig.nets import (
    INT8_ONLY,
    chain,
    decision,
    dtypes,
    quant,
    relu,
    solve,
)

ALL_INT8 = ModuleNameTemplate({"": qint8})


def test_refused_output_dtype_is_corrected_and_reported():
    views = chain(relu1={"march": INT8_ONLY})
    result = solve(views, ModuleNameTemplate({"": qint8, "relu1": qint16}))
    assert result.plans["relu1"].output.dtype is qint8
    (line,) = result.corrections
    assert (line.name, line.port, line.asked, line.given) == ("relu1", "output", "qint16", "qint8")
    assert line.reason == "nash-e takes qint8 as output of relu"


def test_refused_input_dtype_gets_an_input_and_is_reported():
    resize = relu("resize", "q", op="interpolate", fuse=None, march=INT8_ONLY)
    result = solve([quant("q"), resize], ModuleNameTemplate({"": qint16}))
    assert result.plans["resize"].inputs[0].dtype is qint8
    assert result.plans["resize"].dtype is qint8
    line = decision(result, "resize", "input-0")
    assert (line.asked, line.given, line.corrected) == ("qint16", "qint8", True)


def test_bernoulli_has_no_int16_at_all():
    result = solve(chain(), ModuleNameTemplate({"": qint16}), march=March.BERNOULLI2)
    assert set(dtypes(result).values()) == {"qint8", "None"}
    assert {d.name for d in result.corrections} == {"quant", "relu1"}


@pytest.mark.parametrize(
    ("chip", "asked", "given"),
    [(March.BAYES, qint16, qint8), (March.NASH_E, qint16, qint16), (March.NASH_E, qint4, qint8)],
)
def test_weight_dtypes_follow_the_march(chip, asked, given):
    rules = (ALL_INT8, ConvDtypeTemplate(weight_dtype=asked))
    result = solve(chain(), *rules, march=chip)
    assert result.plans["conv1"].weight.dtype is given
    assert decision(result, "conv1", "weight").corrected is (asked is not given)


def test_an_operator_that_the_march_lacks_is_refused_by_name():
    lacking = relu("flip", "q", op="flip", march=(MarchRule(("nash",)),))
    result = solve([quant("q"), lacking], ALL_INT8, march=March.BAYES)
    assert [(r.name, r.op, r.reason) for r in result.refused] == [
        ("flip", "flip", "bayes has no flip")
    ]
    assert result.plans["flip"].float_reason
    with pytest.raises(MarchError, match=r"bayes can't run: flip \(flip\): bayes has no flip"):
        result.raise_refused("bayes")
    solve([quant("q")], ALL_INT8).raise_refused("bayes")


def test_an_operator_kept_float_is_not_refused():
    lacking = relu("flip", "q", op="flip", march=(MarchRule(("nash",)),))
    result = solve([quant("q"), lacking], ModuleNameTemplate({"flip": None}), march=March.BAYES)
    assert result.refused == ()


def test_shapes_that_break_a_limit_are_refused():
    limited = MarchRule(("nash",), check=lambda attrs, shapes, out: f"stride {attrs['stride']}")
    views = [
        quant("q"),
        relu("pool", "q", march=(limited,), attrs={"stride": 300}, input_shapes=((1, 3, 4, 4),)),
    ]
    (refused,) = solve(views, ALL_INT8).refused
    assert refused.reason == "stride 300"
    deep = relu("r", "q", input_shapes=((1, 2, 3, 4, 5),), output_shape=(1, 2, 3, 4, 5))
    (refused,) = solve([quant("q"), deep], ALL_INT8, march=March.BERNOULLI2).refused
    assert refused.reason == "a tensor of 5 dimensions; bernoulli2 takes at most 4"
