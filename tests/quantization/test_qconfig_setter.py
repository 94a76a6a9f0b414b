"""``QconfigSetter`` on real models: saved dtypes, sensitivity tables, strict mode, explain."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from qtune import march
from qtune.dtype import qint8, qint16
from qtune.errors import ArgumentError, QconfigError
from qtune.prepare.rundir import dtypes_of
from qtune.profiler import Metric, QuantAnalysis
from qtune.quantization import (
    DeQuantStub,
    PrepareMethod,
    QuantStub,
    explain,
    get_qconfig,
    prepare,
    qconfig_setter,
)
from qtune.quantization.qconfig import default_qat_8bit_fake_quant_qconfig
from qtune.quantization.qconfig_setter import (
    ConvDtypeTemplate,
    LoadFromFileTemplate,
    MatmulDtypeTemplate,
    ModuleNameTemplate,
    QconfigSetter,
    SensitivityTemplate,
)
from qtune.quantization.qconfig_template import (
    calibration_8bit_weight_16bit_act_qconfig_setter,
    default_qat_qconfig_setter,
    sensitive_op_qat_8bit_weight_16bit_act_qconfig_setter,
)

from .configured import IMAGE, Attention, Floating, Toy, Warped, dtype_of
from .flow import calib, out_scale, prep

BASE = (ModuleNameTemplate({"": qint8}), ConvDtypeTemplate(), MatmulDtypeTemplate())


def setter(*more: Any, **options: Any) -> QconfigSetter:
    return QconfigSetter(get_qconfig(), [*BASE, *more], **options)


def test_the_module_exports_setter_and_templates() -> None:
    assert set(qconfig_setter.__all__) == {
        "ConvDtypeTemplate",
        "LoadFromFileTemplate",
        "MatmulDtypeTemplate",
        "ModuleNameTemplate",
        "QconfigSetter",
        "SensitivityTemplate",
    }


WAYS: dict[str, Any] = {
    "int8": None,
    "int16": calibration_8bit_weight_16bit_act_qconfig_setter,
    "wide inputs": QconfigSetter(
        get_qconfig(out_dtype=qint16), [ConvDtypeTemplate(None, qint16), MatmulDtypeTemplate(None)]
    ),
    "by type": {
        "": default_qat_8bit_fake_quant_qconfig,
        "module_type": [(nn.Linear, get_qconfig(out_dtype=qint16))],
    },
    "float parts": setter(
        ModuleNameTemplate({"first": None, "q": torch.float32, "norm": None, "head": qint16})
    ),
}


@pytest.mark.parametrize("net", [Toy, Warped, Attention, Floating])
@pytest.mark.parametrize("way", WAYS)
def test_a_model_prepared_from_the_saved_file_has_identical_dtypes(
    net: type[nn.Module], way: str, tmp_path: Path, caplog: Any
) -> None:
    x = torch.randn(2, 4, 4, 8) if net is Attention else IMAGE
    first = dtypes_of(prepare(net(), x, WAYS[way]))
    run = tmp_path / "run"
    assert torch.load(run / "qconfig_dtypes.pt", weights_only=True) == first
    loaded = QconfigSetter(get_qconfig(), [*BASE, LoadFromFileTemplate(run)])
    again = prepare(net(), x, loaded)
    assert dtypes_of(again) == first
    assert explain(again).unmatched_rules == ()
    frozen = LoadFromFileTemplate(run / "qconfig_dtypes.pt", freeze=True)
    late = QconfigSetter(get_qconfig(out_dtype=qint16), [frozen, *BASE[1:]])
    assert dtypes_of(prepare(net(), x, late)) == first


def test_what_file_and_model_do_not_share_is_reported(tmp_path: Path) -> None:
    prepare(Toy(), IMAGE)
    model = prepare(Warped(), IMAGE, setter(LoadFromFileTemplate(tmp_path / "run")))
    unmatched = explain(model).unmatched_rules
    name = "LoadFromFileTemplate run"
    assert f"{name} 'classifier': no operator or module has this name" in unmatched
    assert f"{name}: the file has no entry for to_grid" in unmatched


@pytest.mark.parametrize(
    ("content", "text"), [(None, "does not exist"), ([1], "holds no dtypes"), ({"a": 1}, "dtypes")]
)
def test_a_file_without_dtypes_is_refused(content: Any, text: str, tmp_path: Path) -> None:
    path = tmp_path / "qconfig_dtypes.pt"
    if content is not None:
        torch.save(content, path)
    with pytest.raises(QconfigError, match=text):
        LoadFromFileTemplate(path)


def analysed(tmp_path: Path) -> tuple[QuantAnalysis, Any]:
    net = Toy().eval()
    model = prep(net, IMAGE)
    calib(model, [IMAGE])
    analysis = QuantAnalysis(net, model, "fake_quant", out_dir=str(tmp_path))
    analysis.set_bad_case(IMAGE)
    analysis.run()
    return analysis, net


def raised(model: Any) -> set[tuple[str, str]]:
    """The ports that are int16 by a table."""
    return {
        (d.name, d.port)
        for d in explain(model).decisions
        if d.rule == "SensitivityTemplate" and d.given == "qint16"
    }


@pytest.fixture(scope="module")
def tables(tmp_path_factory: Any) -> tuple[Path, dict[str, Any], dict[str, Any], dict[str, Any]]:
    folder = tmp_path_factory.mktemp("tables")
    with march.march("nash-e"):
        analysis, _ = analysed(folder)
        v2 = analysis.sensitivity(use_sensitivity_v2=True)
        goal = {"metric": Metric.ATOL, "threshold": 0.0, "max_tuned_stubs": 2}
        return folder, v2, analysis.sensitivity(), analysis.tune_bad_case({"": goal})


def test_tables_in_memory_and_saved_ones_raise_the_same_ports(tables: Any) -> None:
    folder, v2, _, _ = tables
    table = v2[""][0]
    names = [(row["op_name"], row["fake_stub_type"]) for row in table.records()]
    for given in (table, [table], v2, folder / "output__case_0_sensitive_ops.pt"):
        model = prepare(Toy(), IMAGE, setter(SensitivityTemplate(given, 2)))
        behind = {("mid", "input-0"), ("classifier", "input-0")}
        assert raised(model) - behind == set(names[:2]) - behind
        assert explain(model).unmatched_rules == ()


def test_a_saved_table_is_read_where_the_profiler_was_never_imported(tables: Any) -> None:
    path = tables[0] / "output__case_0_sensitive_ops.pt"
    known = torch.serialization.get_safe_globals()
    torch.serialization.clear_safe_globals()
    try:
        template = SensitivityTemplate(path, 2)
    finally:
        torch.serialization.add_safe_globals(known)
    assert raised(prepare(Toy(), IMAGE, setter(template)))


@pytest.mark.parametrize("kind", ["activation", "weight", "both"])
def test_the_type_of_sensitivity_chooses_among_ports(tables: Any, kind: str) -> None:
    table = tables[1][""][0]
    model = prepare(Toy(), IMAGE, setter(SensitivityTemplate(table, 1.0, kind)))
    weights = {(n, p) for n, p in raised(model) if p == "weight"}
    outputs = {(n, p) for n, p in raised(model) if p == "output"}
    every = {("conv0", "weight"), ("mid", "weight"), ("classifier", "weight")}
    assert weights == (set() if kind == "activation" else every)
    assert outputs == (
        set() if kind == "weight" else {("quant", "output"), ("relu0", "output"), ("mid", "output")}
    )


def test_a_raised_result_reaches_the_gemm_behind_it() -> None:
    rows = [["relu0", "output", "ReLU", 1.0, "qint8", "0"]]
    model = prepare(Toy(), IMAGE, setter(SensitivityTemplate(rows, 1)))
    assert dtype_of(model, "mid", "input-0") == "qint16"
    assert not model.get_submodule("mid").input_fake_quants
    assert dtype_of(model, "classifier") == "torch.float32"


def test_a_result_raised_to_float16_is_rounded_for_the_gemm_behind_it() -> None:
    """A GEMM computes in integers; its operand is qint8 as the template before says."""
    rows = [["relu0", "output", "ReLU", 1.0, "qint8", "0"]]
    raised = SensitivityTemplate(rows, 1, high_precision_dtype=torch.float16)
    with march.march("nash-p"):
        model = prepare(Toy(), IMAGE, setter(raised))
    assert dtype_of(model, "relu0") == "torch.float16"
    assert dtype_of(model, "mid", "input-0") == "qint8"
    assert not explain(model).corrections


def test_for_a_sensitive_input_its_producer_is_raised() -> None:
    rows = [["mid", "input-0", "Conv2d", 1.0, "qint8", "0"]]
    model = prepare(Toy(), IMAGE, setter(SensitivityTemplate(rows, 1)))
    assert dtype_of(model, "relu0") == dtype_of(model, "mid", "input-0") == "qint16"


def test_the_old_list_works_too(tables: Any) -> None:
    rows = tables[2][""]
    model = prepare(Toy(), IMAGE, setter(SensitivityTemplate(rows, 0.3)))
    assert raised(model)
    old = sensitive_op_qat_8bit_weight_16bit_act_qconfig_setter(rows, topk=1)
    first = next(r[0] for r in rows if r[1] == "output")
    model = prepare(Toy(), IMAGE, (old, default_qat_qconfig_setter))
    assert dtype_of(model, first) == "qint16"


def test_what_tune_bad_case_returns_needs_no_number(tables: Any) -> None:
    folder, _, _, tuned = tables
    (table,) = tuned[""]
    chosen = {
        (r["op_name"], r["fake_stub_type"])
        for r in table.records()
        if r["tuned_cumulative_ATOL"] is not None
    }
    assert 1 <= len(chosen) <= 2
    for given in (tuned, folder / "output__tuned_case_0_sensitive_ops.pt"):
        model = prepare(Toy(), IMAGE, setter(SensitivityTemplate(given)))
        behind = {("mid", "input-0"), ("classifier", "input-0")}
        assert raised(model) - behind == chosen - behind


def test_the_raised_model_is_the_calibrated_one_with_these_stubs_as_int16() -> None:
    """A32: what a search tries on the model is what preparing from scratch gives."""
    net = Toy(scale=None).eval()
    tried = prep(net, IMAGE)
    calib(tried, [IMAGE])
    rows = [["quant", "output", "", 2.0], ["mid", "weight", "", 1.5], ["relu0", "output", "", 1.0]]
    for name, port, *_ in rows:
        quantizers = {"output": "activation_post_process", "weight": "weight_fake_quant"}
        getattr(tried.get_submodule(name), quantizers[port]).set_dtype(qint16)
    fresh = prep(net, IMAGE, qconfig_setter=setter(SensitivityTemplate(rows, 3)))
    calib(fresh, [IMAGE])
    with torch.no_grad():
        assert torch.equal(fresh(IMAGE), tried(IMAGE))


ROW = ["relu0", "output", "ReLU", 1.0, "qint8", "0"]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"sensitive_table": [ROW]}, "give a number or a share"),
        ({"sensitive_table": [ROW], "topk_or_ratio": 1.5}, "at most 1.0"),
        ({"sensitive_table": [ROW], "topk_or_ratio": -1}, "a number of entries or a share"),
        ({"sensitive_table": [ROW], "topk_or_ratio": True}, "a number of entries or a share"),
        ({"sensitive_table": 3, "topk_or_ratio": 1}, "expected a sensitivity table"),
        ({"sensitive_table": [[1, 2]], "topk_or_ratio": 1}, "expected a sensitivity table"),
        ({"sensitive_table": "no/where.pt", "topk_or_ratio": 1}, "does not exist"),
        ({"sensitive_table": __file__, "topk_or_ratio": 1}, "expected the .pt file"),
        (
            {"sensitive_table": [ROW], "topk_or_ratio": 1, "sensitive_type": "weights"},
            "activation, weight, both",
        ),
    ],
)
def test_unusable_tables_and_limits_say_what_is_expected(options: Any, text: str) -> None:
    with pytest.raises(QconfigError, match=text):
        SensitivityTemplate(**options)


def test_entries_of_another_dtype_do_not_count_and_unknown_ones_are_reported() -> None:
    rows = [["quant", "output", "", 3.0, "qint16", "0"], ["gone", "output", "", 2.0, "qint8"], ROW]
    model = prepare(Toy(), IMAGE, setter(SensitivityTemplate(rows, 2)))
    assert raised(model) == {("relu0", "output")}
    assert explain(model).unmatched_rules == (
        "SensitivityTemplate 'gone' output: no operator or module has this name",
    )


@pytest.mark.parametrize("table", [[], [["relu0", "output", "ReLU", 1.0, "qint16", "0"]]])
def test_a_table_without_an_entry_to_raise_is_reported(table: Any) -> None:
    model = prepare(Toy(), IMAGE, setter(SensitivityTemplate(table, 2)))
    assert explain(model).unmatched_rules == (
        "SensitivityTemplate: no entry of its table is chosen",
    )


def test_later_templates_win_unless_an_earlier_one_froze() -> None:
    first, later = ModuleNameTemplate({"mid": qint16}), ModuleNameTemplate({"mid": qint8})
    assert dtype_of(prepare(Toy(), IMAGE, setter(first, later)), "mid") == "qint8"
    frozen = ModuleNameTemplate({"mid": qint16}, freeze=True)
    model = prepare(Toy(), IMAGE, setter(frozen, later))
    assert dtype_of(model, "mid") == "qint16"


def test_a_rule_that_another_one_overrules_everywhere_is_named() -> None:
    group = [ModuleNameTemplate({"conv0": qint16}), ModuleNameTemplate({"relu0": qint8})]
    assert explain(prepare(Toy(), IMAGE, setter(*group))).unmatched_rules == (
        "ModuleNameTemplate 'conv0' output: another rule decides the output of relu0",
    )


def test_a_fixed_range_per_port_is_the_scale_after_calibration() -> None:
    ports = {"threshold": {"output": 2.0, "input": 4.0, "weight": 1.0}}
    model = prep(Toy(), IMAGE, qconfig_setter=setter(ModuleNameTemplate({"mid": ports})))
    calib(model, [IMAGE])
    mid = model.get_submodule("mid")
    assert out_scale(model, "mid") == 2.0 / 128
    assert float(mid.input_fake_quants["0"].scale) == 4.0 / 128
    assert mid.weight_fake_quant.scale.tolist() == [1.0 / 128] * 4


MISSPELT: dict[str, tuple[Any, str]] = {
    "close name": ({"conv": qint16}, "no operator or module has this name; close: conv0"),
    "port as a name": ({"output": qint16}, "'output' is a port; write {<operator>: {'output'"),
    "fused member's input": ({"relu0": {"weight": qint16}}, "no operator under this name has such"),
    "float operator": ({"mid": qint16}, "mid stays float: module.qconfig of mid is None"),
}


@pytest.mark.parametrize("case", MISSPELT)
def test_rules_that_decide_nothing_are_named_with_the_reason(case: str, caplog: Any) -> None:
    mapping, text = MISSPELT[case]
    net = Toy()
    if case == "float operator":
        net.mid.qconfig = None  # type: ignore[assignment]
    model = prepare(net, IMAGE, setter(ModuleNameTemplate(mapping)))
    (found,) = explain(model).unmatched_rules
    assert text in found
    assert text in caplog.text
    with pytest.raises(QconfigError, match="strict: 1 rule"):
        prepare(net, IMAGE, setter(ModuleNameTemplate(mapping)), strict=True)


def test_a_name_inside_a_fused_group_is_that_of_the_group() -> None:
    for name in ("conv0", "bn", "relu0"):
        model = prepare(Toy(), IMAGE, setter(ModuleNameTemplate({name: qint16}), strict=True))
        assert dtype_of(model, "relu0") == "qint16"


def test_strict_raises_for_each_dtype_that_the_march_refuses() -> None:
    wide = setter(ModuleNameTemplate({"mid": {"weight": qint16}, "relu0": qint16}), strict=True)
    assert dtype_of(prepare(Toy(), IMAGE, wide), "mid", "weight") == "qint16"
    with march.march("bernoulli2"), pytest.raises(QconfigError) as error:
        prepare(Toy(), IMAGE, wide)
    assert "2 dtype(s) are not the asked ones" in str(error.value)
    assert "mid weight: asked qint16, given qint8: bernoulli2 takes weights" in str(error.value)
    assert "relu0 output: asked qint16, given qint8: bernoulli2 takes qint8" in str(error.value)


def test_explain_answers_per_operator_and_port() -> None:
    model = prepare(Toy(), IMAGE, setter(ModuleNameTemplate({"mid": {"weight": qint16}})))
    found = explain(model)
    weight = found.of("mid", "weight")
    assert (weight.asked, weight.given) == ("qint16", "qint16")
    assert weight.rule == "ModuleNameTemplate 'mid' weight"
    assert bool(found)
    assert not found.corrections
    frame = found.to_pandas()
    assert list(frame.columns) == ["name", "port", "asked", "given", "rule", "reason", "corrected"]
    assert len(frame) == len(found.decisions)
    assert found.to_dict()["decisions"][0]["name"] == "quant"
    with pytest.raises(ArgumentError, match="nothing was decided about weight of 'relu0'"):
        found.of("relu0", "weight")
    with pytest.raises(ArgumentError, match="made by prepare"):
        explain(Toy())


def test_explain_knows_models_of_eager_mode_and_their_parts() -> None:
    net = nn.Sequential(QuantStub(), nn.Conv2d(3, 4, 1), nn.Conv2d(4, 2, 1), DeQuantStub())
    rules = setter(ModuleNameTemplate({"1": qint16}))
    model = prepare(net, IMAGE, rules, PrepareMethod.EAGER)
    for holder in (model, model[1:3]):
        assert explain(holder).of("1").rule == "ModuleNameTemplate '1' output"


@pytest.mark.parametrize(
    ("name", "advised"), [("nash-p", True), ("nash-h", True), ("nash-e", False)]
)
def test_float16_everywhere_is_advised_where_the_march_has_it(name: str, advised: bool) -> None:
    with march.march(name):
        plain = explain(prepare(Toy(scale=None), IMAGE))
        assert bool(plain.advice) == advised
        assert not advised or "float16" in str(plain)
        if advised:
            half = QconfigSetter(
                get_qconfig(), [ModuleNameTemplate({"": torch.float16}), *BASE[1:]]
            )
            assert explain(prepare(Toy(scale=None), IMAGE, half)).advice == ()
