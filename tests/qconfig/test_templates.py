import pytest
import torch

from qtune.dtype import float16, qint8, qint16
from qtune.errors import QconfigError
from qtune.qconfig.dtypes import Float
from qtune.qconfig.rules import Level, match
from qtune.qconfig.templates import ConvDtypeTemplate, MatmulDtypeTemplate, ModuleNameTemplate
from tests.qconfig.nets import add, gemm, matmul, quant


def settings(value, *group):
    group = group or (gemm("conv", "quant"),)
    return {
        s.port: (s.dtype, s.threshold) for s in ModuleNameTemplate({"conv": value}).settings(group)
    }


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (qint16, {"output": (qint16, None)}),
        (torch.qint8, {"output": (qint8, None)}),
        ("qint16", {"output": (qint16, None)}),
        (torch.float32, {"output": (Float.PORT, None)}),
        (None, {"output": (Float.OPERATOR, None)}),
        ({"dtype": qint16}, {"output": (qint16, None)}),
        ({"output": qint8, "weight": qint16}, {"output": (qint8, None), "weight": (qint16, None)}),
        ({"input": qint16}, {"input-0": (qint16, None)}),
        ({"dtype": {"weight": None}}, {"weight": (Float.PORT, None)}),
        ({"weight": qint8, "threshold": 2}, {"weight": (qint8, None), "output": (None, 2.0)}),
    ],
)
def test_documented_forms_of_dtypes(value, expected):
    assert settings(value) == expected


def test_documented_forms_of_thresholds():
    conv = (gemm("conv", "quant"),)
    template = ModuleNameTemplate({"conv": {"dtype": qint16, "threshold": 2}})
    assert [(s.port, s.dtype, s.threshold) for s in template.settings(conv)] == [
        ("output", qint16, None),
        ("output", None, 2.0),
    ]
    assert settings(0.5) == settings({"threshold": 0.5}) == {"output": (None, 0.5)}
    by_port = {"threshold": {"output": 1.0, "input": 2.0, "weight": 3.0}}
    assert settings(by_port) == {
        "output": (None, 1.0),
        "weight": (None, 3.0),
        "input-0": (None, 2.0),
    }


def test_inputs_one_by_one():
    operands = add("conv", "a", "b")
    assert settings({"input": (qint8, qint16)}, operands) == {
        "input-0": (qint8, None),
        "input-1": (qint16, None),
    }


@pytest.mark.parametrize(
    ("mapping", "message"),
    [
        ({"conv": {}}, "expected a dtype"),
        ({"conv": {"output": qint8, "dtype": qint8}}, "expected a dtype"),
        ({"conv": {"bias": qint8}}, "expected a dtype"),
        ({"conv": {"dtype": {"bias": qint8}}}, "'bias' is no port"),
        ({"conv": {"threshold": -1}}, "a threshold is a positive number"),
        ({"conv": True}, "a threshold is a positive number"),
        ({"conv": float("nan")}, "a threshold is a positive number"),
        ({"conv": "qint9"}, "ModuleNameTemplate 'conv': expected a quantized dtype"),
        (
            {"conv": torch.int32},
            r"\(qint4, .*\), or torch.float16, or torch.float32 or None for float but got torch",
        ),
        ({"conv": {"output": [qint8, qint8]}}, "output takes one dtype"),
        ({3: qint8}, "a name must be a string"),
        ([("conv", qint8)], "expected a mapping"),
    ],
)
def test_malformed_mappings_are_refused_at_once(mapping, message):
    with pytest.raises(QconfigError, match=message):
        ModuleNameTemplate(mapping)


@pytest.mark.parametrize("spelling", [torch.float16, "float16", "torch.float16", float16])
def test_float16_is_a_dtype_in_every_spelling(spelling):
    assert settings(spelling) == {"output": (float16, None)}


def test_match_levels():
    view = add("body.a.conv", "x", scope="body.a")
    assert match("", view) == (Level.GLOBAL, 0)
    assert match("body", view) == (Level.PREFIX, 1)
    assert match("body.a", view) == (Level.PREFIX, 2)
    assert match("body.a.conv", view) == (Level.EXACT, 3)
    assert match("body.a.con", view) is match("a", view) is match("body.ab", view) is None
    function = add("_generated_add_0", "x", scope="body.a")
    assert match("body.a", function) == (Level.PREFIX, 2)


def test_conv_template_defaults_to_int8_on_gemms_with_weights_only():
    group = (gemm("conv", "quant"),)
    found = [(s.port, s.dtype) for s in ConvDtypeTemplate().settings(group)]
    assert found == [("input-0", qint8), ("weight", qint8)]
    assert not list(ConvDtypeTemplate().settings((matmul("mm", "a", "b"), quant("q"))))
    assert not list(ConvDtypeTemplate(None, None).settings(group))


def test_matmul_template_takes_a_pair():
    group = (matmul("mm", "a", "b"),)
    for value, expected in (
        (qint16, [("input-0", qint16), ("input-1", qint16)]),
        ((qint8, qint16), [("input-0", qint8), ("input-1", qint16)]),
        ([None, qint16], [("input-1", qint16)]),
    ):
        template = MatmulDtypeTemplate(value)
        assert [(s.port, s.dtype) for s in template.settings(group)] == expected
    assert not list(MatmulDtypeTemplate().settings((gemm("conv", "a"),)))
    with pytest.raises(QconfigError, match="one dtype or a pair"):
        list(MatmulDtypeTemplate((qint8, qint8, qint8)).settings(group))
