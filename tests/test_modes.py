import pytest

from qtune import qat_mode as qat_mode_facade
from qtune.errors import ArgumentError
from qtune.modes import (
    ConsistencyStrategy,
    QATMode,
    consistency_level,
    get_consistency_level,
    get_qat_mode,
    level_on,
    qat_mode,
    set_qat_mode,
)


def test_fuse_bn_is_the_default():
    assert get_qat_mode() is QATMode.FuseBN


def test_documented_values():
    assert [mode.value for mode in QATMode] == ["fuse_bn", "with_bn", "with_bn_reverse_fold"]


@pytest.mark.parametrize("value", [QATMode.WithBN, "with_bn", "WithBN"])
def test_member_string_and_name_are_accepted(value):
    with qat_mode(QATMode.FuseBN):
        set_qat_mode(value)
        assert get_qat_mode() is QATMode.WithBN


def test_context_restores_the_mode_after_an_error():
    def failing():
        with qat_mode("with_bn_reverse_fold") as mode:
            assert get_qat_mode() is mode is QATMode.WithBNReverseFold
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        failing()
    assert get_qat_mode() is QATMode.FuseBN


def test_unknown_mode_lists_the_known_ones():
    with pytest.raises(ArgumentError, match="fuse_bn, with_bn, with_bn_reverse_fold"):
        set_qat_mode("bn")


def test_consistency_level_is_unset():
    assert get_consistency_level() is None
    ConsistencyStrategy.set_consistency_level(None)
    with consistency_level(None) as level:
        assert level is None


@pytest.mark.parametrize("level", range(5))
def test_level_holds_until_it_is_unset(level):
    ConsistencyStrategy.set_consistency_level(level)
    assert get_consistency_level() == level
    with consistency_level(None):
        assert get_consistency_level() is None
    assert get_consistency_level() == level
    ConsistencyStrategy.set_consistency_level(None)
    assert get_consistency_level() is None


def test_context_restores_the_level_after_an_error():
    def failing():
        with consistency_level(3) as level:
            assert get_consistency_level() == level == 3
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        failing()
    assert get_consistency_level() is None


def test_toolchain_path_serves_the_strategy():
    assert qat_mode_facade.ConsistencyStrategy is ConsistencyStrategy


@pytest.mark.parametrize("march", ["nash-e", "nash-m"])
def test_levels_exist_on_nash_e_and_nash_m(march, caplog):
    assert level_on(2, march, "prepare") == 2
    assert caplog.text == ""


@pytest.mark.parametrize("march", ["nash-p", "nash-b", "bayes", "bernoulli2"])
def test_level_is_unset_with_a_warning_on_other_marches(march, caplog):
    assert level_on(2, march, "prepare") is None
    assert f"prepare: consistency level 2 has no effect on {march}" in caplog.text
    caplog.clear()
    assert level_on(None, march, "prepare") is None
    assert caplog.text == ""


@pytest.mark.parametrize("level", [5, -1, True, "1"])
def test_other_levels_are_refused(level):
    with pytest.raises(ArgumentError, match="expected 0 to 4"):
        ConsistencyStrategy.set_consistency_level(level)
