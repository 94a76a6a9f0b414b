import pytest
from torch import nn

from qtune.dtype import qint8, qint16
from qtune.errors import QconfigError
from qtune.qconfig.plan import UNSET
from qtune.qconfig.qconfig import get_qconfig
from qtune.qconfig.setter import QconfigSetter, default_setter, find_qconfig
from qtune.qconfig.templates import ConvDtypeTemplate, MatmulDtypeTemplate, ModuleNameTemplate


def model():
    return nn.ModuleDict({"body": nn.ModuleDict({"conv": nn.Conv2d(1, 1, 1)})})


def test_documented_call():
    """tuning_tool: positional reference and a list of templates."""
    templates = [ModuleNameTemplate({"": qint8}), ConvDtypeTemplate(), MatmulDtypeTemplate()]
    setter = QconfigSetter(get_qconfig(), templates)
    assert setter == default_setter()
    assert setter == QconfigSetter(reference_qconfig=get_qconfig(), templates=templates)


def test_the_global_template_must_be_first():
    with pytest.raises(QconfigError, match="must be the first template, here it is number 2"):
        QconfigSetter(get_qconfig(), [ConvDtypeTemplate(), ModuleNameTemplate({"": qint8})])
    QconfigSetter(get_qconfig(), [ConvDtypeTemplate(), ModuleNameTemplate({"a": qint8})])


def test_wrong_types_are_refused():
    with pytest.raises(QconfigError, match="reference_qconfig must be a QConfig"):
        QconfigSetter(qint8, [])
    with pytest.raises(QconfigError, match="is no template"):
        QconfigSetter(get_qconfig(), [{"": qint8}])


def test_nearest_attribute_is_found():
    m = model()
    assert find_qconfig(m, "body.conv") == (UNSET, "")
    m.qconfig = get_qconfig()
    assert find_qconfig(m, "body.conv") == (m.qconfig, "")
    m["body"].qconfig = get_qconfig(out_dtype=qint16)
    assert find_qconfig(m, "body.conv") == (m["body"].qconfig, "body")
    m["body"]["conv"].qconfig = None
    assert find_qconfig(m, "body.conv") == (None, "body.conv")
    assert find_qconfig(m, "") == (m.qconfig, "")


def test_functions_have_the_qconfig_of_the_module_around_them():
    m = model()
    m["body"].qconfig = None
    assert find_qconfig(m, "body._generated_add_0") == (None, "body")
    assert find_qconfig(m, "_generated_add_0") == (UNSET, "")


def test_foreign_qconfigs_are_refused_by_place():
    m = model()
    m["body"].qconfig = {"": qint8}
    with pytest.raises(QconfigError, match="body.qconfig: expected a qtune QConfig or None"):
        find_qconfig(m, "body.conv")
