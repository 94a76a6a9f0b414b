"""Reading gate files: every mistake names the line where it is."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from qtune.testing.gatefile import GateFileError, read

from .conftest import Load
from .projects import EXAMPLE

MODEL = """\
[model]
factory = "my_models:resnet18"
march = "nash-e"
calibration = "my_data:calib"
inputs = "my_data:holdout"
"""
AT = "resnet.qtune.toml:"


def test_the_example_has_its_values(load: Load) -> None:
    file = load(EXAMPLE)
    assert file.model.factory == "my_models:resnet18"
    assert [check.name for check in file.checks] == [
        "no_shared_ops[calib]",
        "consistency[float-quantized_bc]",
        "sensitivity_below[calib]",
        "baseline[float-quantized_bc]",
    ]
    assert [file.check_line(check) for check in file.checks] == [10, 13, 20, 25]
    assert file.checks[1].per_layer
    assert file.checks[1].arguments["min_cosine"] == 0.98


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[model\n", r"1: no TOML: Expected '\]' .*\(column 7\)"),
        ('[model]\nfactory = "a\n', r"2: no TOML: Illegal character '\\n' \(column 13\)"),
        ('[model]\nmarch = """\n\nx', r"4: no TOML: .*end of document"),
        ("a = " + "[" * 100_000, r"1: no TOML: maximum recursion depth"),
        ("a = " + "9" * 5000, r"1: no TOML: Exceeds the limit .* digits"),
        ("", r"1: there is no \[model\]; it needs at least factory"),
        ("model = 1\n", r"1: model must be a table, \[model\], but is an int"),
        (MODEL, r"1: there is no \[\[check\]\]"),
        (f"{MODEL}\n[check]\nkind = 'x'\n", r"7: check must be an array of tables"),
        (f"{MODEL}\n[[chek]]\n", r"7: unknown table 'chek'; close matches: check; expected \[mod"),
        (f"{MODEL}marsh = 'x'\n", r"6: \[model\]: unknown key 'marsh'; close matches: march; it "),
        (f"{MODEL}name = 3\n", r"6: \[model\]: name must be a text but is 3 \(an int\)"),
        (
            f"{MODEL}evaluate = 'top1'\n",
            r"6: \[model\]: evaluate must be module:name but is",
        ),
        (
            MODEL.replace("nash-e", "nash-q"),
            r"3: \[model\]: march: .*nash-q.*nash-e",
        ),
    ],
)
def test_mistakes_in_the_file_and_in_the_model(load: Load, text: str, expected: str) -> None:
    with pytest.raises(GateFileError, match=re.escape(AT) + expected):
        load(text)


@pytest.mark.parametrize(
    ("check", "expected"),
    [
        ("", r"7: \[\[check\]\] 1: kind is missing; choose one of: .*consistency"),
        (
            "kind = 'consistancy'",
            r"8: \[\[check\]\] 1: unknown kind 'consistancy'; close match",
        ),
        ("kind = 'close'", r"8: \[\[check\]\] 1: unknown kind 'close'"),
        ("kind = ['a']", r"8: \[\[check\]\] 1: unknown kind \['a'\]"),
        (
            "kind = 'consistency'\nmin_cosin = 1",
            r"9: \[\[check\]\] 1 \(consistency\): unknown key 'min_cosin'; close matches: "
            r"min_cosine; it takes kind, from, to, inputs, max_qscale_diff, min_cosine, .*xfail$",
        ),
        ("kind = 'consistency'\nstage = 'float'", r"9: .*unknown key 'stage'"),
        (
            "kind = 'consistency'\nfrom = 'flot'",
            r"9: .*from: there is no stage 'flot'; choose one of: float, calib, .*quantized_bc$",
        ),
        (
            "kind = 'bit_exact'\nagainst = 'reference'\nstage = 'calib'",
            r"10: .*stage: it can't look at 'calib'; choose one of: qat_bc, quantized_bc$",
        ),
        ("kind = 'bit_exact'", r"7: .*\(bit_exact\): against is missing; give"),
        (
            "kind = 'consistency'\nmin_cosine = '0.9'",
            r"9: .*min_cosine must be a number but is '0.9' \(a str\)",
        ),
        ("kind = 'consistency'\nmin_cosine = true", r"9: .*must be a number but is True"),
        ("kind = 'consistency'\nper_layer = 1", r"9: .*per_layer must be true or false but is 1"),
        ("kind = 'consistency'\ninputs = 'data'", r"9: .*inputs must be module:name"),
        ("kind = 'baseline'\nmetrics = 'cosine'", r"9: .*metrics must be a list of texts but is"),
        ("kind = 'baseline'\nmetrics = ['a', 1]", r"9: .*metrics must be a list of texts"),
        ("kind = 'no_unfused'\nid = 'a b'", r"9: .*id must be letters, digits"),
        ("kind = 'no_unfused'\nxfail = true", r"9: .*xfail must be a text, the reason"),
        ("kind = 'consistency'\nxfail.conv1 = 'a'", r"9: .*xfail names layers, but per_layer"),
        (
            "kind = 'consistency'\nper_layer = true\nxfail.a = 'b'\nxfail.c = 1",
            r"11: .*c must be a text, the reason but is 1",
        ),
        ("kind = 'no_unfused'\nskip = ''", r"9: .*skip must be a text, the reason"),
        ("kind = 'no_unfused'\nslow = 'yes'", r"9: .*slow must be true or false"),
        ("kind = 'no_unfused'\nmarks = ['not a name']", r"9: .*marks must be a list of names"),
        (
            "kind = 'accuracy_drop_below'\nmax_drop = 1",
            r"7: .*\(accuracy_drop_below\): it needs evaluate; give evaluate = \"module:name\" in",
        ),
        (
            "kind = 'no_unfused'\nid = 'a'\n[[check]]\nkind = 'no_unfused'\nid = 'a'",
            r"12: \[\[check\]\] 2 \(no_unfused\): id 'a' is taken by a check before it",
        ),
    ],
)
def test_mistakes_in_a_check(load: Load, check: str, expected: str) -> None:
    with pytest.raises(GateFileError, match=re.escape(AT) + expected):
        load(f"{MODEL}\n[[check]]\n{check}\n")


def test_what_a_check_needs_of_the_model_must_be_there(load: Load) -> None:
    check = "[[check]]\nkind = 'bit_exact'\nagainst = 'reference'\n"
    with pytest.raises(GateFileError, match=r"1: \[model\]: factory is missing, which \[\[check\]"):
        load(f"[model]\n{check}")
    with pytest.raises(GateFileError, match=r"1: \[model\]: calibration is missing"):
        load(f"[model]\nfactory = 'a:b'\n{check}")
    with pytest.raises(GateFileError, match=r"4: .*\(bit_exact\): it needs inputs"):
        load(f"[model]\nfactory = 'a:b'\ncalibration = 'a:c'\n{check}")
    pinned = load(f"[model]\nartefact = 'net.bc'\ninputs = 'a:c'\n{check}")
    assert pinned.model.factory is None
    with pytest.raises(GateFileError, match=r"1: \[model\]: factory is missing"):
        load(f"[model]\nartefact = 'net.bc'\ninputs = 'a:c'\n{check}stage = 'qat_bc'\n")


def test_checks_of_one_kind_are_told_apart_by_number_or_id(load: Load) -> None:
    one = "[[check]]\nkind = 'no_unfused'\n"
    file = load(f"{MODEL}{one}{one}{one}id = 'third'\n")
    assert [check.name for check in file.checks] == [
        "no_unfused[calib]",
        "no_unfused[calib-2]",
        "no_unfused[third]",
    ]


def test_steps_alone_are_counted_from_the_fake_quant_module(load: Load) -> None:
    check = "[[check]]\nkind = 'consistency'\nmax_qscale_diff = 1\n"
    file = load(f"{MODEL}{check}{check}min_cosine = 0.9\n{check}from = 'calib'\n")
    stages = [check.stages for check in file.checks]
    assert stages == [
        ("qat_bc", "quantized_bc"),
        ("float", "quantized_bc"),
        ("calib", "quantized_bc"),
    ]


def test_bytes_that_editors_add_do_no_harm(load: Load) -> None:
    text = EXAMPLE.replace("\n", "\r\n").encode("utf-8-sig")
    assert [load(text).check_line(check) for check in load(text).checks] == [10, 13, 20, 25]
    with pytest.raises(GateFileError, match="2: not UTF-8"):
        load(b"[model]\nname = '\xff'\n")


def test_a_missing_file_is_an_error_of_its_own(tmp_path: Path) -> None:
    with pytest.raises(GateFileError, match=r"none.qtune.toml: No such file"):
        read(tmp_path / "none.qtune.toml")
