"""check_model, compile_model, export_hbir, perf_model, visualize_model on converted models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx
import pytest
import torch
from torch import Tensor, nn

from qtune.bpu import compiler
from qtune.bpu.compiler import Hbm
from qtune.errors import ArgumentError, ConvertError, MarchError
from qtune.quantization import (
    check_model,
    compile_model,
    convert,
    export_hbir,
    hbdk4,
    perf_model,
    visualize_model,
)
from qtune.utils import check_model as facade

from .flow import calib, prep

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
"""torch announces the end of torch.jit, which the documents' flow uses."""

X = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(2))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.act = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU()
        self.last = nn.Conv2d(4, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.act(self.norm(self.conv(x))))


class Twice(nn.Module):
    """A deploy model that runs its part two times."""

    def __init__(self, part: nn.Module) -> None:
        super().__init__()
        self.part = part

    def forward(self, x: Tensor, y: Tensor) -> dict[str, Tensor]:
        return {"x": self.part(x), "y": self.part(y)}


class WithCpu(nn.Module):
    def __init__(self, part: nn.Module) -> None:
        super().__init__()
        self.part = part

    def forward(self, x: Tensor) -> Tensor:
        return self.part(x * 2)


@pytest.fixture(scope="module")
def made() -> dict[str, Any]:
    return {}


@pytest.fixture
def model(made: dict[str, Any]) -> Any:
    if not made:
        prepared = prep(Net(), X)
        calib(prepared, [X])
        made.update(prepared=prepared, model=convert(prepared))
    return made["model"]


@pytest.fixture
def traced(model: Any) -> Any:
    return torch.jit.trace(model, X)


def test_the_joined_module_is_that_of_the_whole_conversion(
    model: Any, made: dict[str, Any], tmp_path: Path
) -> None:
    names = export_hbir(model, X, tmp_path / "m.bc")
    assert names == (["_input_0"], ["_output_0"])
    joined = compiler.load(tmp_path / "m.bc")[0]
    whole = hbdk4.convert(hbdk4.export(made["prepared"], X))[0]
    assert torch.equal(joined(X), whole(X))
    assert torch.equal(joined(X), model(X))
    assert torch.equal(joined.run({"_input_0": X}, "reference")["_output_0"], whole(X))
    assert set(joined.groups().items()) <= set(whole.groups().items())


def test_a_part_that_runs_twice_gets_two_names(model: Any) -> None:
    from qtune.capture.inputs import Inputs
    from qtune.nn.quantized.recording import Recording

    y = X.flip(0)
    module = Recording(torch.jit.trace(Twice(model), (X, y), strict=False), Inputs(X, y)).module()
    result = module[0](X, y)
    assert torch.equal(result["x"], model(X))
    assert torch.equal(result["y"], model(y))
    names = module[0].operator_names()
    assert "act" in names
    assert "act_1" in names
    assert len(names) == len(set(names))


def test_check_model_has_one_name_for_both_forms(
    model: Any, traced: Any, made: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    assert facade.check_model is check_model
    assert check_model(made["prepared"], X) == check_model(model, X) == check_model(traced, X) == 0
    assert check_model(torch.jit.trace(WithCpu(model), X), X) == 1
    assert "needs the result of aten::mul, which runs on the CPU" in capsys.readouterr().out
    assert check_model(model, X, input_source="pyramid") == 1  # its scale is not 1/128


@pytest.mark.parametrize("opt", ["O0", "O1", "O2", "O3", "ddr", "fast", "balance", 0, 3])
def test_every_documented_opt_compiles_to_the_same_bits(
    traced: Any, model: Any, opt: Any, tmp_path: Path
) -> None:
    assert compile_model(traced, [X], tmp_path / "m.hbm", opt=opt, progressbar=False) == 0
    assert torch.equal(Hbm(tmp_path / "m.hbm")[0](X), model(X))


def test_opt_and_balance_factor_reach_the_compiler(traced: Any, tmp_path: Path) -> None:
    found = {}
    for opt in ("O1", "ddr", "fast", "balance"):
        file = tmp_path / f"{opt}.hbm"
        compile_model(traced, X, file, opt=opt, balance_factor=40, progressbar=False, jobs=3)
        found[opt] = {k: Hbm(file).options[k] for k in ("opt", "balance", "jobs")}
    assert found["O1"] == {"opt": 1, "balance": 100, "jobs": 3}
    assert [found[opt]["balance"] for opt in ("ddr", "fast", "balance")] == [0, 100, 40]


def test_layouts_and_name_shape_the_program(traced: Any, model: Any, tmp_path: Path) -> None:
    file = tmp_path / "m.hbm"
    compile_model(
        traced, X, file, name="net", input_layout="NHWC", output_layout=["NHWC"], progressbar=False
    )
    function = Hbm(file)["net"]
    assert function.inputs[0].shape == (2, 8, 8, 3)
    got = function.feed({"_input_0": X.permute(0, 2, 3, 1).contiguous()})["_output_0"]
    assert torch.equal(got, model(X).permute(0, 2, 3, 1))


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"march": "nash-m"}, MarchError, "was made for the march nash-e, but nash-m is asked for"),
        ({"opt": "O9"}, ArgumentError, "opt must be one of O0, O1"),
        ({"opt": "balance", "balance_factor": 101}, ArgumentError, "balance must be"),
        ({"extra_args": "--core-num 2"}, ArgumentError, "are for the vendor's compiler"),
        ({"input_layout": "BPU_RAW"}, NotImplementedError, "input_layout BPU_RAW is not done"),
        ({"output_layout": ["NCHW"] * 2}, ArgumentError, "or one for each of the 1 arguments"),
        ({"input_source": "pyramid"}, ConvertError, r"at the scale 1/128.*QuantStub\(scale=1"),
        ({"input_source": "disk"}, ArgumentError, "input_source must be one of ddr, resizer"),
    ],
)
def test_what_can_not_be_honoured_is_refused(
    traced: Any, options: dict[str, Any], error: type[Exception], text: str, tmp_path: Path
) -> None:
    with pytest.raises(error, match=text):
        compile_model(traced, X, tmp_path / "m.hbm", progressbar=False, **options)
    assert not (tmp_path / "m.hbm").exists()


def test_models_without_converted_operators_are_refused(
    model: Any, made: dict[str, Any], tmp_path: Path
) -> None:
    with pytest.raises(ArgumentError, match=r"expected a model that convert made.*PreparedModel"):
        compile_model(made["prepared"], X, tmp_path / "m.hbm")
    with pytest.raises(ConvertError, match=r"runs no operator of a converted model"):
        export_hbir(torch.jit.trace(nn.ReLU(), X), X, tmp_path / "m.bc")
    with pytest.raises(ConvertError, match=r"returns a QTensor; put a DeQuantStub"):
        export_hbir(model._input_0_quant, X, tmp_path / "m.bc")
    with pytest.raises(ArgumentError, match=r"example_inputs are needed"):
        export_hbir(model, None, tmp_path / "m.bc")


def test_perf_model_gives_the_static_estimate(traced: Any, tmp_path: Path) -> None:
    short = perf_model(traced, X, out_dir=tmp_path, name="net", progressbar=False)
    estimate = short["functions"][0]["estimate"]
    assert estimate["latency_us"] > 0
    assert "operators" not in estimate
    assert {f.name for f in tmp_path.iterdir()} == {"net.html", "net.json"}
    full = perf_model(
        traced,
        X,
        out_dir=tmp_path,
        hbm=tmp_path / "kept.hbm",
        layer_details=True,
        progressbar=False,
    )
    assert full["functions"][0]["estimate"]["operators"]
    assert (tmp_path / "kept.hbm").exists()


def test_visualize_model_writes_an_onnx_file(traced: Any, tmp_path: Path) -> None:
    file = visualize_model(traced, X, save_path=tmp_path / "v.onnx", show=False)
    onnx.checker.check_model(onnx.load(file))
