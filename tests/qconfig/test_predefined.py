"""The ready-made qconfigs: all documented names, what they build, and the page that lists them."""

import re
from pathlib import Path

import pytest

import qtune.quantization as quantization
from qtune.errors import QconfigError
from qtune.qconfig.predefined import RECIPES, predefined
from qtune.quantization import qconfig as facade

PAGE = Path(__file__).parents[2] / "docs" / "qconfig.md"


@pytest.mark.parametrize("name", RECIPES)
def test_facade_and_package_serve_each_name_and_a_call_gives_the_same(name):
    value = getattr(facade, name)
    assert value is getattr(quantization, name) is predefined(name) is value()
    assert name in facade.__all__


def test_the_facade_lists_nothing_that_does_not_exist():
    assert {n for n in facade.__all__ if n.startswith("default_")} == set(RECIPES)
    assert all(hasattr(facade, name) for name in facade.__all__)
    with pytest.raises(AttributeError, match="default_qat_4bit"):
        facade.default_qat_4bit_fake_quant_qconfig  # noqa: B018
    with pytest.raises(QconfigError, match="no qconfig 'default_qat_4bit'"):
        predefined("default_qat_4bit")


@pytest.mark.parametrize("name", RECIPES)
def test_names_say_what_is_built(name):
    """8bit and 16bit: the results; 32bit_out and out: high precision; fixed_act: no update."""
    qconfig = predefined(name)
    weight = qconfig.weight()
    assert (str(weight.dtype), weight.ch_axis) == ("qint8", 0)
    assert qconfig.input is None
    if "out" in name:
        assert qconfig.output is None
        return
    output = qconfig.output()
    assert str(output.dtype) == ("qint16" if "16bit" in name else "qint8")
    observer = output.activation_post_process
    kind = "MSEObserver" if "calib" in name else "MovingAverageMinMaxObserver"
    assert type(observer).__name__ == kind
    assert observer.averaging_constant == (0 if "fixed_act" in name else 0.01)
    learned = "_LearnableFakeQuantize" if "lsq" in name else "FakeQuantize"
    assert type(output).__name__ == type(weight).__name__ == learned


def test_documented_functions_return_them():
    assert quantization.get_default_qat_qconfig() is predefined(
        "default_qat_8bit_fake_quant_qconfig"
    )
    assert quantization.get_default_qat_out_qconfig() is predefined(
        "default_qat_out_8bit_fake_quant_qconfig"
    )
    assert quantization.get_default_calib_qconfig() is predefined(
        "default_calib_8bit_fake_quant_qconfig"
    )


def cells(recipe):
    if recipe.dtype is None:
        return ["high precision", ""]
    notes = ["LSQ"] if recipe.fake_quant == "lsq" else []
    notes += ["scale kept"] if recipe.averaging_constant == 0 else []
    return [str(recipe.dtype), ", ".join([recipe.observer, *notes])]


def test_the_table_of_the_docs_is_that_of_the_code():
    rows = re.findall(r"^\| `(default_\w+_qconfig)` \|(.*)\|(.*)\|$", PAGE.read_text(), re.M)
    listed = {name: [dtype.strip(), note.strip()] for name, dtype, note in rows}
    assert listed == {name: cells(recipe) for name, recipe in RECIPES.items()}


def test_the_docs_name_every_old_setter_and_template():
    from qtune.quantization import qconfig_setter, qconfig_template

    text = PAGE.read_text()
    names = [*qconfig_template.__all__, *qconfig_setter.__all__]
    assert [name for name in names if name not in text] == []
