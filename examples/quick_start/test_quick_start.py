"""The quick start runs and leaves the documented files, columns and numbers."""

from __future__ import annotations

import pandas as pd
import pytest
import quick_start


@pytest.fixture(scope="module")
def results(tmp_path_factory, monkeypatch_module):
    folder = tmp_path_factory.mktemp("quick_start")
    monkeypatch_module.chdir(folder)  # prepare writes ./.model_check_results
    quick_start.main(folder / "out")
    return folder


@pytest.fixture(scope="module")
def monkeypatch_module():
    with pytest.MonkeyPatch.context() as patch:
        yield patch


def test_documented_files_are_there(results):
    found = {str(p.relative_to(results)) for p in results.rglob("*") if p.is_file()}
    assert ".model_check_results/model_check_result.txt" in found
    for name in (
        "compare_per_layer_out_0.txt",
        "compare_per_layer_out_0.csv",
        "compare_per_layer_report_0.html",
        "output__case_0_sensitive_ops.txt",
        "output__case_0_sensitive_ops.csv",
        "output__case_0_sensitive_ops.pt",
        "sensitivity_v2_report.html",
        "output__tuned_case_0_sensitive_ops.csv",
    ):
        assert f"out/floatvsqat/{name}" in found
    assert "out/qatvshbir/compare_per_layer_out_0.csv" in found


def test_the_resize_by_a_fraction_is_the_largest_difference(results):
    table = pd.read_csv(results / "out/floatvsqat/compare_per_layer_out_0.csv")
    assert table["base_op_type"].str.contains("interpolate").any()
    resize = table[table["base_op_type"].str.contains("interpolate")].iloc[0]
    assert list(resize["shape"].strip("torch.Size([])").split(", ")) == ["1", "3", "41", "41"]
    # torch steps by 1 / 1.3, the chip by 32 / 41. At the far corner the two positions are 0.3
    # pixels apart, which on neighbouring pixels of noise is up to half of the noise's range
    assert 0.05 < resize["ATOL"] / resize["base_model_max"] < 0.5
    assert resize["ATOL"] == table["ATOL"].max()
    assert table.loc[table["mod_name"] == "conv", "ATOL"].item() < 0.05


def test_sensitivity_is_sorted_by_what_int16_would_gain(results):
    table = pd.read_csv(results / "out/floatvsqat/output__case_0_sensitive_ops.csv")
    gains = table["qint8-qint16_ATOL"]
    assert (gains.diff().dropna() <= 0).all()
    assert {"output", "weight"} <= set(table["fake_stub_type"])


def test_export_changes_nothing(results):
    table = pd.read_csv(results / "out/qatvshbir/compare_per_layer_out_0.csv")
    assert (table["ATOL"] == 0).all()
