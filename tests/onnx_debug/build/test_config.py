"""quant_config: what each level says, who wins, and what is refused."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from onnx import helper

from qtune.errors import ArgumentError
from qtune.onnx_debug.build.config import read_config
from qtune.onnx_debug.build.facts import facts_of
from qtune.onnx_debug.build.methods import Method
from qtune.onnx_debug.build.optimize import optimized
from qtune.onnx_debug.build.place import Wishes
from qtune.onnx_debug.build.resolve import resolved

from .models import classifier, model, weights

make = helper.make_node


def wishes(config: dict[str, Any]) -> Wishes:
    source = classifier()
    proto = optimized(source)
    return resolved(read_config(config), proto, facts_of(proto), source)


def test_a_node_wins_over_a_subgraph_that_over_its_type_that_over_all() -> None:
    found = wishes(
        {
            "model_config": {"all_node_type": "int16"},
            "op_config": {"Conv": {"qtype": "int8"}, "MaxPool": {"qtype": "float32"}},
            "subgraph_config": {
                "tail": {"inputs": ["p"], "outputs": ["a"], "qtype": "float32"},
            },
            "node_config": {"twin_1": {"qtype": "int16", "input1": "int8"}},
        }
    )
    assert found.bits["stem"] == 8
    assert found.bits["pool"] == 32
    assert found.bits["twin"] == 32
    assert found.bits["twin_1"] == 16
    assert found.bits["head"] == 16
    assert found.inputs == {("twin_1", 1): 8}


def test_without_a_word_everything_is_int8() -> None:
    assert set(wishes({}).bits.values()) == {8}


def test_methods_multiply_with_their_options() -> None:
    config = read_config(
        {
            "model_config": {
                "activation": {"calibration_type": ["max", "kl"], "max_percentile": [0.99, 1.0]},
                "layerwise_search": {"metric": "mse"},
            }
        }
    )
    assert config.methods == (Method("max", 0.99), Method("max", 1.0), Method("kl"))
    assert (config.layerwise_search, config.modelwise_search) == ("mse", None)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"modelconfig": {}}, "quant_config: no key 'modelconfig'; close matches: model_config"),
        ({"op_config": {"Convv": {"qtype": "int8"}}}, "no operator type 'Convv'; close.*Conv"),
        (
            {"op_config": {"Conv": {"qtype": "int4"}}},
            "op_config: Conv: qtype: expected one of int8",
        ),
        ({"node_config": {"steem": {"qtype": "int8"}}}, "no node 'steem'; close matches: stem"),
        ({"node_config": {"stem": {"input2": "int8"}}}, "stem: input2 has no scale"),
        ({"node_config": {"stem": {"input0": "float32"}}}, "input0 can't be float32 alone"),
        (
            {"model_config": {"activation": {"per_channel": True}}},
            "per_channel is asked for, but the BPU takes one symmetric scale",
        ),
        ({"model_config": {"activation": {"asymmetric": True}}}, "asymmetric is asked for"),
        ({"model_config": {"activation": {"calibration_type": "kll"}}}, "expected one of max"),
        ({"model_config": {"modelwise_search": {"metric": "msee"}}}, "metric.*msee.*mse"),
        (
            {"subgraph_config": {"s": {"inputs": ["head"], "outputs": ["stem"], "qtype": "int8"}}},
            "no node lies between head and stem",
        ),
        (
            {"model_config": {"weight": {"bias_correction": {"num_sample": 0}}}},
            "num_sample must be a whole number from 1 on",
        ),
    ],
)
def test_what_is_unknown_or_wrong_is_named(config: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        wishes(config)


def test_a_node_that_was_folded_away_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    nodes = [
        make("Conv", ["x", "w"], ["c"], name="conv"),
        make("Identity", ["c"], ["i"], name="gone"),
        make("Relu", ["i"], ["y"], name="relu"),
    ]
    source = model(nodes, {"x": [1, 3, 4, 4]}, {"y": [1, 3, 2, 2]}, {"w": weights(3, 3, 3, 3)})
    proto = optimized(source)
    config = read_config({"node_config": {"gone": {"qtype": "int16"}}})
    resolved(config, proto, facts_of(proto), source)
    assert "gone is gone in the optimized model" in caplog.text


def test_a_file_is_read_and_a_broken_one_named(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"model_config": {"all_node_type": "int16"}}))
    assert read_config(path).all_bits == 16
    path.write_text("{")
    with pytest.raises(ArgumentError, match=r"config.json is no JSON"):
        read_config(path)
    with pytest.raises(ArgumentError, match=r"absent.json can't be read"):
        read_config(tmp_path / "absent.json")


WHOLE: dict[str, Any] = {
    "model_config": {
        "all_node_type": "int16",
        "model_output_type": "int8",
        "activation": {
            "calibration_type": ["max", "kl", "mix"],
            "num_bin": [1024, 2048],
            "max_num_bin": 16384,
            "max_percentile": [0.99, 1.0],
            "per_channel": False,
            "asymmetric": False,
        },
        "weight": {"bias_correction": {"num_sample": 1, "metric": "mse"}},
        "modelwise_search": {"metric": "mse"},
    },
    "op_config": {"Conv": {"qtype": "int16"}},
    "node_config": {"a": {"qtype": "int8", "input1": {"qtype": "int8", "threshold": 1.0}}},
    "subgraph_config": {"s": {"inputs": ["a"], "outputs": ["b"], "qtype": "int8"}},
}
OF_NO_KEY = (-1, "x", ["x", 1], [None], (), {1: 2}, float("nan"), object())
"""Values that no key takes, but for names of nodes and tensors."""


def paths(level: Mapping[str, Any], before: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for key, value in level.items():
        yield (*before, key)
        if isinstance(value, Mapping):
            yield from paths(value, (*before, key))


def changed(path: tuple[str, ...], value: Any) -> dict[str, Any]:
    made = copy.deepcopy(WHOLE)
    level = made
    for key in path[:-1]:
        level = level[key]
    level[path[-1]] = value
    return made


def test_a_wrong_value_of_any_key_names_its_path() -> None:
    assert read_config(WHOLE).nodes["a"].thresholds == {1: 1.0}
    for path in paths(WHOLE):
        for value in OF_NO_KEY:
            if path[-1] in ("inputs", "outputs") and value == "x":
                continue
            with pytest.raises(ArgumentError) as caught:
                read_config(changed(path, value))
            assert str(caught.value).startswith("quant_config: "), (path, value)
            assert path[-1] in str(caught.value), (path, value)


def test_an_unknown_key_of_any_level_is_refused() -> None:
    for path in paths(WHOLE):
        if len(path) == 2 and path[0] != "model_config":
            continue  # names of nodes and operators, which the model decides
        with pytest.raises(ArgumentError, match=f"quant_config.*'{path[-1]}x'"):
            read_config(changed((*path[:-1], f"{path[-1]}x"), 1))


@pytest.mark.parametrize(
    ("activation", "message"),
    [
        ({"num_bin": []}, "num_bin: expected a number or a list"),
        ({"calibration_type": "max", "num_bin": 512}, "num_bin has no effect on max"),
        ({"calibration_type": "kl", "max_percentile": 0.9}, "max_percentile has no effect on kl"),
        ({"calibration_type": "skip", "num_bin": 512}, "num_bin has no effect on skip"),
        ({"calibration_type": ["max", "skip"]}, "skip can't be one of several"),
        ({"calibration_type": []}, "expected a name or a list of names"),
    ],
)
def test_what_would_have_no_effect_is_refused(activation: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=f"quant_config: model_config: activation: .*{message}"):
        read_config({"model_config": {"activation": activation}})


def test_searches_need_a_choice_and_exclude_each_other() -> None:
    one = {"activation": {"calibration_type": "max"}, "layerwise_search": True}
    with pytest.raises(ArgumentError, match="nothing to choose from, calibration_type gives max"):
        read_config({"model_config": one})
    two = {"modelwise_search": True, "layerwise_search": {"metric": "mse"}}
    with pytest.raises(ArgumentError, match="give one of them"):
        read_config({"model_config": two})


@pytest.mark.parametrize(
    "config",
    [
        {"model_config": {"all_node_type": "float16"}},
        {"node_config": {"stem": {"input0": {"qtype": "float16"}}}},
        {"model_config": {"activation": {"calibration_type": "histogram"}}},
    ],
)
def test_what_is_documented_but_not_done_is_said(config: dict[str, Any]) -> None:
    with pytest.raises(NotImplementedError, match="quant_config: .*: (float16|histogram)"):
        read_config(config)
