"""script_profile and compare_script_models: traced converted models against the reference."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from qtune.errors import ArgumentError, ConvertError, MarchError
from qtune.nn.quantized import QTensor
from qtune.quantization import convert
from qtune.utils.quant_profiler import compare_script_models, script_profile

from .stages import X, eager_net, prepared_net

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
"""torch announces the end of torch.jit, which the documents' flow uses."""

FILE = "horizon_script_result.pt"


@pytest.fixture(scope="module")
def prepared() -> Any:
    from qtune.march import march

    torch.manual_seed(0)
    with march("nash-e"), pytest.MonkeyPatch.context() as patch:
        patch.setenv("QTUNE_RUN_DIR", "")
        return prepared_net()[1]


def trace(model: nn.Module) -> torch.jit.ScriptModule:
    return torch.jit.trace(model, X)


def test_every_operator_is_compared_with_the_reference(
    prepared: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = script_profile(trace(convert(prepared)), X, out_dir=tmp_path)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split("  ")[0] == "name"
    assert lines[0].endswith("if equal")
    assert lines[-1] == "Torch run pt output is same with hbdk parser."
    rows = dict(line.split() for line in lines[2:-1])
    assert list(rows) == list(found)
    assert set(rows.values()) == {"True"}
    assert {"relu", "shared", "shared_1", "_generated_split_0:1", "head"} <= set(found)


def test_results_are_codes_and_the_file_holds_them(prepared: Any, tmp_path: Path) -> None:
    model = convert(prepared)
    found = script_profile(model, X, tmp_path)
    saved = torch.load(tmp_path / FILE)
    assert list(saved) == list(found)
    assert all(torch.equal(saved[name], found[name]) for name in found)
    quant = model.get_submodule("_input_0_quant")
    result: QTensor = quant(X)
    assert torch.equal(found["_input_0_quant"], result.int_repr())
    assert found["_generated_softmax_0.exp"].dtype == torch.int16
    assert found["head"].dtype == torch.float32


def test_a_wrong_kernel_is_found(
    prepared: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any
) -> None:
    from qtune.nn.quantized import recording

    real = recording._Recorder.__torch_dispatch__

    def wrong(self: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = real(self, func, types, args, kwargs)
        if func.name() == "qtune::run_program" and args[2].startswith("relu|"):
            result[0].flatten()[0] += 1
        return result

    monkeypatch.setattr(recording._Recorder, "__torch_dispatch__", wrong)
    script_profile(convert(prepared), X, tmp_path)
    last = capsys.readouterr().out.splitlines()[-1]
    assert last == "Torch and the HBIR reference differ: relu, " + last.partition("relu, ")[2]


def test_marked_nodes_only(prepared: Any, tmp_path: Path) -> None:
    found = script_profile(
        convert(prepared),
        X,
        tmp_path,
        mark_node_func=lambda node: "split" in str(node),
        compare_with_hbdk_parser=False,
    )
    assert list(found) == ["_generated_split_0", "_generated_split_0:1"]
    assert list(torch.load(tmp_path / FILE)) == list(found)


def test_eager_models_and_models_that_return_codes(tmp_path: Path) -> None:
    model = convert(eager_net())
    names = ["quant", "relu", "side", "add", "dequant"]
    assert list(script_profile(model, X, tmp_path)) == names
    model.dequant = nn.Identity()
    with pytest.raises(ConvertError, match="put a DeQuantStub before each output"):
        script_profile(model, X, tmp_path)
    alone = script_profile(model, X, tmp_path, compare_with_hbdk_parser=False)
    assert alone["add"].dtype == torch.int8


def test_another_march_is_refused(prepared: Any, tmp_path: Path) -> None:
    with pytest.raises(MarchError, match="script_profile: the model was made for the march nash-e"):
        script_profile(convert(prepared), X, tmp_path, march="bayes")


def test_two_scripts_of_one_model_are_equal(
    prepared: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    script = trace(convert(prepared))
    with pytest.raises(MarchError, match="bayes"):
        compare_script_models(script, script, X, "bayes")
    comparison = compare_script_models(script, script, X)
    assert comparison
    assert capsys.readouterr().out.splitlines()[-1] == "All ops in two ScriptModules are same."


def test_the_operator_that_changed_is_named(
    prepared: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    other = copy.deepcopy(prepared)
    with torch.no_grad():
        other.head.weight.mul_(0.5)
    comparison = compare_script_models(trace(convert(prepared)), trace(convert(other)), X)
    assert not comparison
    assert comparison.different == ["head"]
    assert comparison.to_dict()["equal"]["relu"] is True
    assert capsys.readouterr().out.splitlines()[-1] == "The two ScriptModules differ: head."


@pytest.mark.parametrize("traced", [False, True])
def test_a_list_of_examples_is_refused(prepared: Any, tmp_path: Path, traced: bool) -> None:
    model = convert(prepared)
    model = torch.jit.trace(model, X) if traced else model
    with pytest.raises(ArgumentError, match="script_profile: .*forward takes .* pass one$"):
        script_profile(model, [X, X], tmp_path)


def test_other_models_are_refused(prepared: Any, tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="expected a model that convert made"):
        script_profile(prepared, X, tmp_path)
    with pytest.raises(ConvertError, match="runs no operator of a converted model"):
        script_profile(torch.jit.trace(nn.ReLU(), X), X, tmp_path)
