from qtune.dtype import qint8, qint16
from qtune.march import March
from qtune.ops.spec import MarchRule
from qtune.qconfig.explain import explain
from qtune.qconfig.templates import ModuleNameTemplate
from tests.qconfig.nets import INT8_ONLY, chain, quant, relu, solve


def rows(text):
    """Cells of the table by row."""
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_table_has_each_decision_with_rule_and_reason():
    table = rows(str(explain(solve(chain(), ModuleNameTemplate({"": qint8, "relu1": qint16})))))
    assert table[0] == ["Module Name", "Port", "asked", "given", "rule", "reason"]
    assert ["relu1", "output", "qint16", "qint16", "ModuleNameTemplate 'relu1' output", ""] in table
    assert ["conv1", "weight", "qint8", "qint8", "reference qconfig", ""] in table
    assert ["pool", "output", "", "qint16", "", "keeps the scale of its input"] in table
    assert [
        "conv2",
        "output",
        "torch.float32",
        "torch.float32",
        "last GEMM before the model's end",
        "high-precision output",
    ] in table


def test_corrections_and_unmatched_rules_stand_below_the_table():
    views = chain(relu1={"march": INT8_ONLY})
    text = str(explain(solve(views, ModuleNameTemplate({"relu1": qint16, "nowhere": qint8}))))
    assert (
        "Given another dtype than asked:\n"
        "  relu1 output: asked qint16, given qint8: nash-e takes qint8 as output of relu\n" in text
    )
    assert "Rules that decided nothing:\n  ModuleNameTemplate 'nowhere' output" in text


def test_refusals_stand_below_the_table():
    views = [quant("q"), relu("flip", "q", op="flip", march=(MarchRule(("nash",)),))]
    text = str(explain(solve(views, march=March.BAYES)))
    assert "The march can't run:\n  flip (flip): bayes has no flip\n" in text


def test_nothing_stands_below_the_table_where_all_is_as_asked():
    text = str(explain(solve(chain(), ModuleNameTemplate({"": qint8}))))
    assert text.rstrip().endswith("+")
