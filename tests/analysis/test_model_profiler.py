"""model_profiler: all older tools on two adjacent stages."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import qtune.profiler
from qtune.errors import ArgumentError
from qtune.quantization import convert, prepare
from qtune.utils import quant_profiler
from qtune.utils.quant_profiler import model_profiler

from ..profiler.stages import Net, X, prepared_net
from .nets import assert_same, fingerprint

FILES = {
    "profiler.html",
    "similarity.txt",
    "ordered_op_error_similarity.txt",
    "similarity.html",
    "weight_comparison.txt",
    "qconfig_info.txt",
    "statistic_model1.txt",
    "statistic_model1.html",
    "statistic_model2.txt",
    "statistic_model2.html",
}


def test_float_and_prepared(tmp_path: Path) -> None:
    net, model = prepared_net()
    before = [(fingerprint(item), item) for item in (net, model)]
    profile = model_profiler(net, model, X, "FvsQ", tmp_path)
    assert {path.name for path in tmp_path.iterdir()} >= FILES
    assert profile.unfused == [["conv", "bn", "relu"]]
    assert profile.calls[0]["shared"] == profile.calls[1]["shared"] == 2
    assert set(profile.weights) == {"conv.weight", "shared.weight", "head.weight"}
    assert profile.qconfig.shared == {"shared": 2}
    assert profile.page == tmp_path / "profiler.html"
    page = profile.page.read_text()
    for text in ("FvsQ", "<svg", "conv, bn, relu", "shared(1)", "head.weight", "Weight qconfig:"):
        assert text in page
    for state, item in before:
        assert_same(state, item)


def test_prepared_and_converted_go_to_the_default_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    _, model = prepared_net()
    profile = model_profiler(model, convert(model), X, "QvsQ")
    assert profile.unfused is None
    assert {path.name for path in (tmp_path / "horizon_quant_debug").iterdir()} >= FILES
    assert [path.name for path in tmp_path.iterdir()] == ["horizon_quant_debug"]


def test_two_prepared_models_with_arguments_for_the_tools(tmp_path: Path) -> None:
    _, model = prepared_net()
    other = prepare(Net().eval(), X)
    other.load_state_dict(model.state_dict())
    other.eval()
    seen: list[str] = []
    options = {
        "featuremap_similarity": {"similarity_func": "SQNR", "out_dir": "elsewhere"},
        "compare_weights": {"similarity_func": "L1"},
        "get_raw_features": {"prefixes": ("head",)},
        "profile_featuremap": {"file_name": "numbers"},
        "check_qconfig": {"custom_check_func": lambda m, i, o: seen.append(m.name)},
        "get_module_called_count": {"check_leaf_module": lambda m: isinstance(m, torch.nn.Linear)},
    }
    profile = model_profiler(model, other, X, "CvsQ", tmp_path, options)
    assert "SQNR" in profile.page.read_text()
    assert seen.count("shared") == 2
    assert not Path("elsewhere").exists()
    assert {row[1] for rows in profile.statistics for row in rows} == {"head"}
    assert (tmp_path / "numbers_model2.txt").exists()


@pytest.mark.parametrize(
    ("mode", "order", "text"),
    [
        ("FvsQ", ("prepared", "float"), "compares a float with a prepared .* got a prepared"),
        ("FvsQ", ("float", "converted"), "got a float and a converted one"),
        ("QvsQ", ("float", "converted"), "compares a prepared .* with a converted"),
        ("FvsF", ("float", "prepared"), "mode must be FvsQ, QvsQ, CvsQ, got 'FvsF'"),
    ],
)
def test_only_adjacent_stages_in_their_order(
    mode: str, order: tuple[str, str], text: str, tmp_path: Path
) -> None:
    net, model = prepared_net()
    stages = {"float": net, "prepared": model, "converted": convert(model)}
    with pytest.raises(ArgumentError, match=text):
        model_profiler(stages[order[0]], stages[order[1]], X, mode, tmp_path)


def test_a_model_converted_in_place_is_named(tmp_path: Path) -> None:
    _, model = prepared_net()
    converted = convert(model, inplace=True)
    with pytest.raises(ArgumentError, match="was it converted in place"):
        model_profiler(model, converted, X, "QvsQ", tmp_path)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"check": {}}, "kwargs_dict has check; the tools are featuremap_similarity, "),
        ({"compare_weights": {"model": 1}}, r"kwargs_dict\['compare_weights'\] has model"),
        ({"check_unfused_operations": {}}, "takes a float model, and mode QvsQ has none"),
    ],
)
def test_arguments_that_have_no_place_are_refused(options: Any, text: str, tmp_path: Path) -> None:
    _, model = prepared_net()
    with pytest.raises(ArgumentError, match=text):
        model_profiler(model, convert(model), X, "QvsQ", tmp_path, options)


def test_both_import_paths_serve_the_same_tools() -> None:
    for name in quant_profiler.__all__:
        assert getattr(qtune.profiler, name) is getattr(quant_profiler, name), name
    assert {"featuremap_similarity", "model_profiler", "script_profile"} <= set(
        quant_profiler.__all__
    )
    assert not hasattr(quant_profiler, "profile_module_constraints")
