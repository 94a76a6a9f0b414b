"""The structure of prepared models, and what bad arguments get."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qtune import march
from qtune.dtype import qint8, qint16
from qtune.errors import MarchError, PrepareError, QconfigError
from qtune.nn.prepared import PreparedModel
from qtune.nn.qat import iter_stubs
from qtune.quantization import (
    DeQuantStub,
    FakeQuantize,
    FakeQuantState,
    FloatFunctional,
    MovingAveragePerChannelMinMaxObserver,
    PrepareMethod,
    QConfig,
    QconfigSetter,
    QuantStub,
    get_qconfig,
    prepare,
    set_fake_quantize,
)
from qtune.quantization.observer_v2 import MinMaxObserver
from qtune.quantization.qconfig_setter import ModuleNameTemplate
from tests.quantization.flow import calib, names, off, op, out_scale, prep, run, s8, scales


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
        self.fc = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(F.relu(self.conv(x)).mean((2, 3)))


X = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(3))


def test_a_model_without_stubs_gets_them_at_inputs_and_outputs() -> None:
    p = prep(Small(), X)
    assert names(p) == [
        "_input_0_quant",
        "conv",
        "_generated_relu_0",
        "_generated_mean_0",
        "fc",
        "_output_0_dequant",
    ]
    assert isinstance(p, PreparedModel)
    assert p.float_ops == ()
    assert {q.state for _, _, q in iter_stubs(p)} == {FakeQuantState.QAT}
    assert type(op(p, "conv")).__name__ == "Conv2d"
    assert op(p, "conv").float_type == "torch.nn.modules.conv.Conv2d"
    assert op(p, "_generated_relu_0").float_type == "torch.nn.functional.relu"


def test_the_last_gemm_before_the_output_is_high_precision() -> None:
    p = prep(Small(), X)
    assert op(p, "fc").activation_post_process is None
    assert op(p, "fc").weight_fake_quant is not None


class Stubbed(nn.Module):
    def __init__(self, stub: Any = QuantStub, destub: Any = DeQuantStub) -> None:
        super().__init__()
        self.before, self.conv, self.after = nn.Conv2d(3, 3, 1), nn.Conv2d(3, 4, 1), nn.Linear(4, 2)
        self.quant, self.dequant = stub(), destub()

    def forward(self, x: Tensor) -> Tensor:
        y = self.dequant(F.relu(self.conv(self.quant(self.before(x)))))
        return self.after(y.mean((2, 3)))


def torch_stubs() -> tuple[Any, Any]:
    from torch.ao.quantization import DeQuantStub as D
    from torch.ao.quantization import QuantStub as Q

    return Q, D


@pytest.mark.parametrize("stubs", [(QuantStub, DeQuantStub), torch_stubs()])
def test_with_stubs_only_what_lies_between_is_quantized(stubs: tuple[Any, Any]) -> None:
    model = Stubbed(*stubs)
    p = prep(model, X)
    assert {name for name, _, _ in iter_stubs(p)} == {"quant", "conv", "_generated_relu_0"}
    outside = {item.name for item in p.float_ops}
    assert outside == {"before", "after", "_generated_mean_0"}
    assert all("outside QuantStub" in item.reason for item in p.float_ops)
    off(p)
    assert torch.equal(run(p, X), run(model, X))
    calib(p, [X])
    # int8 on results of about 1: the roundings of two layers
    assert (run(p, X) - run(model, X)).abs().max() < 0.1


def test_method_jit_quantizes_what_lies_outside_the_stubs_too() -> None:
    p = prep(Stubbed(), X, method=PrepareMethod.JIT)
    assert {"before", "conv", "after"} <= {name for name, _, _ in iter_stubs(p)}
    assert p.float_ops == ()


def test_a_stub_with_a_scale_keeps_it() -> None:
    class Fixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.quant, self.conv = QuantStub(scale=1 / 128), nn.Conv2d(3, 4, 1)

        def forward(self, x: Tensor) -> Tensor:
            return self.conv(self.quant(x))

    p = prep(Fixed(), X)
    calib(p, [X * 10])
    assert out_scale(p, "quant") == 1 / 128


class Island(nn.Module):
    """A float operator in the middle."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(3, 4, 1), nn.Conv2d(4, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.fft.fft(self.a(x)).real
        return self.b(y)


def test_an_unknown_operator_stays_float_with_a_reason_between_stubs() -> None:
    model = Island()
    p = prep(model, X)
    (first, *_) = p.float_ops
    assert first.name == "_generated_fft_0"
    assert first.reason.startswith("no operator of the registry fits torch.fft.fft: complex")
    assert "_generated_fft_0_input_dequant" in names(p)
    assert any(name.endswith("_activation_post_process") for name in names(p))
    off(p)
    assert torch.equal(run(p, X), run(model, X))
    calib(p, [X])
    # int8: the transform sums the roundings of a row
    assert (run(p, X) - run(model, X)).abs().max() < 0.5


def test_module_qconfig_none_keeps_a_part_float() -> None:
    model = nn.Sequential(
        nn.Conv2d(3, 4, 1), nn.Sequential(nn.Conv2d(4, 4, 1), nn.ReLU()), nn.Conv2d(4, 2, 1)
    )
    model[1].qconfig = None
    p = prep(model, X)
    assert {name for name, _, _ in iter_stubs(p)} == {
        "_input_0_quant",
        "0",
        "1_1_activation_post_process",
        "2",
    }
    assert {item.name for item in p.float_ops} == {"1.0", "1.1"}
    assert all("qconfig of 1 is None" in item.reason for item in p.float_ops)
    assert "1_0_input_dequant" in names(p)


def test_a_template_keeps_an_operator_float_between_quantized_ones() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 1), nn.Sigmoid(), nn.Conv2d(4, 2, 1))
    template = ModuleNameTemplate({"": qint8, "1": torch.float32})
    p = prep(model, X, qconfig_setter=QconfigSetter(get_qconfig(), [template]))
    assert {item.name for item in p.float_ops} == {"1"}
    assert "1_input_dequant" in names(p)
    assert "1_activation_post_process" in names(p)
    calib(p, [X])
    # int8 on results of about 1: the roundings of two layers
    assert (run(p, X) - run(model, X)).abs().max() < 0.1


def test_int16_activations_and_ports_by_name() -> None:
    template = ModuleNameTemplate({"": qint16, "fc": {"output": qint8, "weight": qint8}})
    p = prep(Small(), X, qconfig_setter=QconfigSetter(get_qconfig(), [template]))
    kinds = {(name, kind): q.dtype for name, kind, q in iter_stubs(p)}
    assert kinds["_input_0_quant", "output"] is qint16
    assert kinds["conv", "weight"] is qint8
    assert kinds["fc", "output"] is qint8


def test_decomposed_operators_have_int16_inside_and_keep_their_name() -> None:
    p = prep(nn.Sequential(nn.Linear(4, 5), nn.Softmax(-1)), torch.randn(3, 4))
    parts = {name: q.dtype for name, kind, q in iter_stubs(p) if name.startswith("1.")}
    assert parts["1.exp"] is qint16
    assert parts["1.mul"] is qint8
    assert all(n.meta["origin"] == "1" for n, o in p.operators() if o.name.startswith("1."))


class Multi(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 6, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        a, b = self.conv(x).chunk(2, 1)
        c, _ = x.split([1, 2], 1)
        return a * b, a, c


def test_operators_with_several_results_keep_the_grid_of_their_input() -> None:
    model = Multi()
    p = prep(model, X)
    off(p)
    for got, expected in zip(run(p, X), run(model, X), strict=True):
        assert torch.equal(got, expected)
    calib(p, [X])
    _, a, c = run(p, X)
    conv = op(p, "conv").activation_post_process
    assert conv is not None
    for value, scale in (
        (a, conv.scale),
        (c, op(p, "_input_0_quant").activation_post_process.scale),
    ):
        steps = value / scale
        assert (steps - steps.round()).abs().max() <= 1e-3  # float32 quotients of up to 127


@pytest.mark.parametrize("shape", [(1, 3, 8, 8), (5, 3, 8, 8), (2, 3, 13, 9)])
def test_other_batch_and_image_sizes(shape: tuple[int, ...]) -> None:
    model = Small().eval()
    p = prep(model, X)
    off(p)
    x = torch.randn(shape)
    # numerics page section 4: 1e-5 where batch norm is folded or an operator decomposed
    assert torch.allclose(run(p, x), run(model, x), rtol=1e-5, atol=1e-6)
    calib(p, [X])
    assert run(p, x).shape == (shape[0], 2)


def test_the_float_model_is_untouched() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4), nn.ReLU()).train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    state = torch.get_rng_state()
    p = prepare(model, X)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), state)
    assert model.training
    assert p.training
    assert [type(m).__name__ for m in model] == ["Conv2d", "BatchNorm2d", "ReLU"]
    with torch.no_grad():
        next(iter(p.parameters())).fill_(7)
    assert torch.equal(model[0].weight, before["0.weight"])


def test_dropout_follows_the_mode_of_the_model() -> None:
    class Drop(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.drop = nn.Dropout(0.5)

        def forward(self, x: Tensor) -> Tensor:
            return F.dropout(self.drop(x), 0.5, self.training)

    x = torch.ones(1000)
    p = prepare(Drop().train(), x)
    set_fake_quantize(p, FakeQuantState._FLOAT)
    assert (p.train()(x) == 0).any()
    assert torch.equal(p.eval()(x), x)


def test_functional_objects_name_their_operators() -> None:
    class Adds(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.block = nn.ModuleDict({"sum": FloatFunctional(), "all": FloatFunctional()})

        def forward(self, x: Tensor) -> Tensor:
            y = self.block["sum"].add_relu(x, x)
            z = self.block["all"].mul(x, y)
            return self.block["all"].cat([z, y], 1)

    p = prep(Adds(), X)
    found = names(p)
    assert "block.sum" in found
    assert "block.all" in found
    assert "block.all.cat" in found


def test_run_files_are_written_whole(tmp_path: Path) -> None:
    p = prep(Small(), X)
    directory = tmp_path / "run"
    assert {f.name for f in directory.iterdir()} == {
        "model_check_result.txt",
        "qconfig_dtypes.pt",
        "qconfig_dtypes.pt.py",
        "fx_graph.txt",
    }
    dtypes = torch.load(directory / "qconfig_dtypes.pt")
    assert dtypes["conv"] == {"input-0": "qint8", "weight": "qint8"}
    assert dtypes["_generated_relu_0"] == {"output": "qint8"}
    assert dtypes["fc"] == {"input-0": "qint8", "weight": "qint8", "output": "torch.float32"}
    scope: dict[str, Any] = {}
    exec((directory / "qconfig_dtypes.pt.py").read_text(), scope)
    assert scope["qconfig_dtypes"] == dtypes
    assert "_generated_mean_0" in (directory / "fx_graph.txt").read_text()
    assert len(names(p)) == 6


def test_no_run_files_where_they_are_turned_off_or_impossible(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("QTUNE_RUN_DIR", "")
    prep(Small(), X)
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("QTUNE_RUN_DIR", str(tmp_path / "file"))
    with caplog.at_level(logging.WARNING):
        prep(Small(), X)
    assert "no files in" in caplog.text


def test_without_a_march_the_first_thing_is_a_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(march, "_current", None)
    with pytest.raises(MarchError, match="set_march"):
        prepare(Small())


def test_an_operator_the_march_cannot_run_is_named() -> None:
    model = nn.Sequential(nn.ConvTranspose2d(3, 4, 2, stride=2))
    with pytest.raises(MarchError, match=r"0 \(conv_transpose2d\).*stride"):
        prep(model, X)
    model[0].qconfig = None
    assert [item.name for item in prep(model, X).float_ops] == ["0"]


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ({}, PrepareError, "needs example_inputs"),
        ({"example_inputs": np.zeros((2, 3, 8, 8))}, PrepareError, "torch.from_numpy"),
        ({"example_inputs": 3}, PrepareError, "no tensor among the example inputs"),
        ({"example_inputs": X, "qconfig_setter": 3}, QconfigError, "must be a QconfigSetter"),
        ({"example_inputs": X, "method": "jit"}, PrepareError, "must be a PrepareMethod"),
    ],
)
def test_unusable_arguments(arguments: dict[str, Any], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        prepare(Small(), **arguments)


def test_models_that_cannot_be_prepared() -> None:
    with pytest.raises(PrepareError, match=r"expected a torch\.nn\.Module"):
        prepare("model", X)  # type: ignore[arg-type]
    with pytest.raises(PrepareError, match="prepared already"):
        prepare(prep(Small(), X), X)


def test_a_numpy_array_instead_of_a_tensor_is_named() -> None:
    p = prep(Small(), X)
    with pytest.raises(Exception, match=r"torch\.Tensor"):
        p(np.zeros((2, 3, 8, 8), np.float32))


def test_every_scale_covers_its_range_after_one_batch() -> None:
    p = prep(Small(), X)
    calib(p, [X])
    assert out_scale(p, "_input_0_quant") == s8(float(X.abs().max()))
    assert all(float(s.min()) > 0 for s in scales(p).values())


def test_a_fuse_mode_that_is_none_is_refused() -> None:
    wrong: Any = "nofuse"
    with pytest.raises(PrepareError, match="fuse_mode must be a FuseMode but got 'nofuse'"):
        prepare(Small(), X, fuse_mode=wrong)


@pytest.mark.parametrize(
    "options",
    [
        {"observer": MinMaxObserver, "ch_axis": 1},
        {"observer": MovingAveragePerChannelMinMaxObserver},
    ],
)
def test_activations_with_a_scale_per_channel_are_refused(options: dict[str, Any]) -> None:
    qconfig = QConfig(
        weight=FakeQuantize.with_args(observer=MinMaxObserver),
        output=FakeQuantize.with_args(**options),
    )
    with pytest.raises(QconfigError, match=r"_input_0_quant: .* one scale for an activation"):
        prepare(Small(), X, QconfigSetter(qconfig))
