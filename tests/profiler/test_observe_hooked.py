"""Runs of converted models, with a graph and of eager mode."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from qtune.bpu.compiler import load
from qtune.capture.inputs import Inputs
from qtune.profiler.observe import is_converted, observe
from qtune.quantization import convert, hbdk4
from qtune.quantization.deploy import export_hbir

from .stages import X, eager_net, prepared_net


def results(module: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    feed = {item.name: X for item in module[0].inputs}
    module[0].run(feed, observe=lambda name, result: found.update({name: result}))
    return found


def test_the_results_are_those_of_the_exported_and_converted_module() -> None:
    _, prepared = prepared_net()
    run = observe(convert(prepared), Inputs(X))
    module = hbdk4.convert(hbdk4.export(prepared, (X,)), "nash-e")
    expected = results(module)
    assert set(expected) <= set(run.records)
    for name, result in expected.items():
        record = run.records[name]
        assert torch.equal(record.value, result.values), name
        assert (record.scale, record.dtype) == (result.scale, result.dtype), name


def test_a_model_of_eager_mode_has_the_same_records(tmp_path: Path) -> None:
    model = convert(eager_net())
    run = observe(model, Inputs(X))
    export_hbir(model, X, tmp_path / "eager.bc")
    expected = results(load(tmp_path / "eager.bc"))
    assert list(run.records) == ["quant", "relu", "side", "add", "dequant"]
    for name in expected:
        assert torch.equal(run.records[name].value, expected[name].values), name
    kept = observe(model, Inputs(X), keep_inputs=True).records["add"]
    assert [tuple(value.shape) for value in kept.inputs] == list(kept.input_shapes)
    assert torch.equal(kept.inputs[1], run.records["side"].value)
    assert not any(module._forward_hooks for name, module in model.named_modules() if name)


def test_which_models_are_converted() -> None:
    net, prepared = prepared_net()
    assert is_converted(convert(prepared))
    assert not is_converted(prepared)
    assert not is_converted(net)
    assert set(observe(prepared, Inputs(X)).records) > {"conv"}
