"""PrepareMethod.EAGER: layers replaced one by one, the model's own forward kept."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qtune.check.qat_model import check_qat_model
from qtune.errors import ExportError, NotCalibratedError, PrepareError
from qtune.modes import consistency_level, qat_mode
from qtune.nn.eager import as_graph
from qtune.nn.prepared import PreparedModel
from qtune.nn.qat import QATOp
from qtune.quantization import (
    DeQuantStub,
    FakeQuantState,
    FloatFunctional,
    PrepareMethod,
    QuantStub,
    convert,
    explain,
    fuse_known_modules,
    fuse_modules,
    get_default_qconfig,
    hbdk4,
    prepare,
    prepare_calibration,
    prepare_qat,
    set_fake_quantize,
)
from qtune.quantization.qconfig_template import default_qat_qconfig_setter
from tests.quantization.flow import calib, off, run

X = torch.randn(3, 1, 16, 16, generator=torch.Generator().manual_seed(1))


class Net(nn.Module):
    """Everything that eager mode replaces, and a forward with an if."""

    def __init__(self) -> None:
        super().__init__()
        self.quant = QuantStub(scale=1 / 128)
        self.conv, self.bn, self.relu = nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU()
        self.conv2, self.add, self.relu2 = nn.Conv2d(8, 8, 1), FloatFunctional(), nn.ReLU()
        self.pool, self.up = nn.MaxPool2d(2), nn.ConvTranspose2d(8, 8, 3, 2, 1)
        self.norm, self.softmax, self.cat = nn.LayerNorm(16), nn.Softmax(-1), FloatFunctional()
        self.act, self.mean = nn.GELU(), nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(16, 4)
        self.dequant = nn.ModuleList([DeQuantStub()])

    def forward(self, x: Tensor, twice: bool = False) -> Tensor:
        x = self.quant(x)
        x = self.relu(self.bn(self.conv(x)))
        x = self.relu2(self.add.add(self.conv2(x), x))
        x = self.up(self.pool(x), output_size=x.shape[-2:])
        x = self.cat.cat([self.norm(x), self.softmax(x)], 1)
        if twice:
            x = self.act(x)
        x = self.mean(self.act(x)).flatten(1)
        result: Tensor = self.dequant[0](self.fc(x))
        return result


GROUPS = [["conv", "bn", "relu"], ["conv2", "add", "relu2"]]


def fused() -> nn.Module:
    torch.manual_seed(0)
    net = Net().eval()
    net.bn.running_mean.uniform_(-1, 1)
    net.bn.running_var.uniform_(0.5, 2)
    return fuse_modules(net, GROUPS)


def eager(model: nn.Module, **options: Any) -> nn.Module:
    result: nn.Module = prepare(model, method=PrepareMethod.EAGER, **options)
    return result


def test_the_model_keeps_its_class_and_its_names_and_holds_plain_operators() -> None:
    net = fused()
    before = copy.deepcopy(net.state_dict())
    model = eager(net)
    assert type(model) is Net
    assert all(torch.equal(net.state_dict()[key], value) for key, value in before.items())
    own = {name for name, module in model.named_modules() if isinstance(module, QATOp)}
    assert {"quant", "conv", "relu", "add", "cat", "fc", "dequant.0", "norm.rsqrt"} <= own
    assert {"conv.weight", "norm.weight", "fc.bias"} <= set(dict(model.named_parameters()))


def test_float_state_equals_the_float_model_and_both_branches_run() -> None:
    net = fused()
    model = eager(net)
    off(model)
    for twice in (False, True):
        # the batch norm is folded: float32 sums in another order
        torch.testing.assert_close(model(X, twice), net(X, twice), rtol=1e-5, atol=1e-6)


def test_only_the_last_layer_of_a_group_has_a_scale() -> None:
    model = eager(fused())
    have = {n: getattr(model, n).activation_post_process is not None for n in sum(GROUPS, [])}
    assert have == {
        "conv": False, "bn": False, "relu": True, "conv2": False, "add": False, "relu2": True,
    }  # fmt: skip
    assert isinstance(model.quant.activation_post_process.scale, Tensor)
    assert float(model.quant.activation_post_process.scale) == 1 / 128


def test_graph_form_export_and_conversion_agree_with_the_eager_model() -> None:
    model = eager(fused())
    calib(model, [X])
    expected = run(model, X)
    graph = as_graph(model, X)
    assert isinstance(graph, PreparedModel)
    assert torch.equal(run(graph, X), expected)
    qat = hbdk4.export(model, X)
    assert torch.equal(qat[0](X), expected)
    integers = hbdk4.convert(qat)[0](X)
    assert torch.equal(run(convert(model), X), integers)
    step = float(model.fc.activation_post_process.scale)
    assert (integers - expected).abs().max() <= 2 * step  # requantize against float, and tables
    assert torch.equal(run(graph, X[:1]), run(model, X[:1]))


@pytest.mark.parametrize("mode", ["with_bn", "with_bn_reverse_fold"])
def test_batch_norms_that_the_qat_mode_keeps_train_and_export(mode: str) -> None:
    with qat_mode(mode):
        model = prepare_qat(fused())
    calib(model, [X])
    assert type(model.bn).__name__ == "BatchNorm2d"
    expected = run(model, X)
    qat = hbdk4.export(model, X)
    assert torch.equal(qat[0](X), expected)
    assert torch.equal(run(convert(model), X), hbdk4.convert(qat)[0](X))
    set_fake_quantize(model.train(), FakeQuantState.QAT)
    model(X).sum().backward()
    assert model.bn.weight.grad is not None


def test_torchs_own_stubs_and_functionals_are_taken() -> None:
    quantization = pytest.importorskip("torch.ao.quantization")
    functional = pytest.importorskip("torch.ao.nn.quantized").FloatFunctional

    class Torchs(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.quant, self.dequant = quantization.QuantStub(), quantization.DeQuantStub()
            self.conv, self.add = nn.Conv2d(1, 1, 1), functional()

        def forward(self, x: Tensor) -> Tensor:
            x = self.quant(x)
            result: Tensor = self.dequant(self.add.add(self.conv(x), x))
            return result

    model = eager(Torchs().eval())
    calib(model, [X])
    integers = hbdk4.convert(hbdk4.export(model, X))
    assert torch.equal(run(convert(model), X), integers[0](X))
    assert isinstance(model.add, QATOp)


def test_the_check_of_an_eager_model_names_layers_that_were_not_fused() -> None:
    model = eager(fuse_modules(Net().eval(), GROUPS[:1]))
    report = check_qat_model(model, X)
    assert [item.names for item in report.unfused] == [("conv2", "add", "relu2")]
    assert report.call_counts["act"] == 1


def test_calibration_state_loads_into_a_qat_model_and_training_moves_weights() -> None:
    model = eager(fused())
    calib(model, [X])
    qat = prepare_qat(fused())
    qat.load_state_dict(model.state_dict())
    set_fake_quantize(qat, FakeQuantState.VALIDATION)
    assert torch.equal(run(qat, X), run(model, X))
    set_fake_quantize(qat.train(), FakeQuantState.QAT)
    before = qat.conv.weight.detach().clone()
    optimizer = torch.optim.SGD(qat.parameters(), 0.1)
    qat(X).square().sum().backward()
    optimizer.step()
    assert not torch.equal(before, qat.conv.weight)
    assert qat.norm.weight.grad is not None


@pytest.mark.parametrize("again", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))])
def test_copies_behave_alike(again: Any) -> None:
    model = eager(fused())
    calib(model, [X])
    assert torch.equal(run(again(model), X), run(model, X))


def test_functions_in_forward_stay_float_and_are_named() -> None:
    class Bare(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(1, 2, 1)

        def forward(self, x: Tensor) -> Tensor:
            return torch.exp(F.relu(self.conv(x)))

    model = eager(Bare().eval())
    calib(model, [X])
    graph = as_graph(model, X)
    assert [(o.name, o.op) for o in graph.float_ops] == [("_generated_exp_0", "exp")]
    assert "eager mode replaces layers only" in graph.float_ops[0].reason


def test_qconfig_none_keeps_modules_float_and_the_nearest_qconfig_decides() -> None:
    net = fused()
    net.qconfig = get_default_qconfig()
    net.fc.qconfig = get_default_qconfig(activation_fake_quant=None)
    net.norm.qconfig = None
    model = prepare_qat(net)
    assert type(model.norm) is nn.LayerNorm
    assert model.fc.activation_post_process is None
    assert model.fc.weight_fake_quant is not None
    calib(model, [X])
    floats = {item.name for item in as_graph(model, X).float_ops}
    assert "norm" in floats


def test_decisions_are_explained_for_layers_only(caplog: pytest.LogCaptureFixture) -> None:
    model = prepare_qat(fused(), qconfig_setter=default_qat_qconfig_setter)
    assert not caplog.records
    explained = {line.name for line in explain(model).decisions}
    assert {"quant", "conv", "relu", "norm.rsqrt", "fc"} <= explained
    assert not [name for name in explained if name.startswith("_")]


def test_inplace_uses_the_model_up() -> None:
    net = fused()
    weight = net.conv.weight
    model = prepare_qat(net, inplace=True)
    assert model is net
    assert model.conv.weight is weight


class NonLeaf(nn.Module):
    """It holds a tensor with a gradient history, which torch can't copy."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.gain = nn.Conv2d(3, 3, 1), nn.Parameter(torch.ones(3))
        self.factor = self.gain * 2

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.conv(x) * self.factor.view(1, -1, 1, 1)
        return result


@pytest.mark.parametrize("method", [prepare_qat, prepare_calibration])
def test_what_cannot_be_copied_is_prepared_in_place(method: Any) -> None:
    """The guide's common issues: set inplace to True."""
    with pytest.raises(PrepareError, match="make no copy with inplace=True"):
        method(NonLeaf())
    model = NonLeaf()
    assert method(model, inplace=True) is model
    assert isinstance(model.conv, QATOp)


def test_a_layer_with_a_forward_of_its_own_stays_float_and_is_named(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The guide's common issues: call the layer as a submodule."""

    class Scaled(nn.Conv2d):
        def forward(self, input: Tensor) -> Tensor:
            return super().forward(input) * 2

    net = nn.Sequential(nn.Conv2d(3, 3, 1), Scaled(3, 3, 1), Scaled(3, 3, 1), nn.Identity())
    net[2].qconfig = None
    model = prepare_qat(net.eval())
    assert "with a forward of their own: 1 (Scaled). Call the layer as a submodule" in caplog.text
    assert (type(model[1]), type(model[3])) == (Scaled, nn.Identity)


def test_every_fake_quantize_without_data_is_named_in_one_error() -> None:
    model = eager(fused())
    set_fake_quantize(model.eval(), FakeQuantState.VALIDATION)
    with pytest.raises(NotCalibratedError) as caught:
        model(X)
    assert "relu" in str(caught.value)
    assert "fc" in str(caught.value)


def test_a_floatfunctional_is_one_operator_only() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.f = FloatFunctional()

        def forward(self, x: Tensor) -> Tensor:
            result: Tensor = self.f.mul(self.f.add(x, x), x)
            return result

    model = eager(Twice())
    set_fake_quantize(model.eval(), FakeQuantState.CALIBRATION)
    with pytest.raises(PrepareError, match=r"f: this FloatFunctional was called as add and now"):
        model(X)


def test_all_methods_of_floatfunctional_are_torchs_own() -> None:
    class Methods(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            names = ("add", "sub", "mul", "matmul", "add_relu", "add_scalar", "mul_scalar", "cat")
            self.f = nn.ModuleDict({f"m_{name}": FloatFunctional() for name in names})

        def forward(self, x: Tensor) -> list[Tensor]:
            f = {name[2:]: module for name, module in self.f.items()}
            found = [f[n].__getattribute__(n)(x, x) for n in ("add", "sub", "mul", "matmul")]
            found += [f["add_relu"].add_relu(x, x), f["add_scalar"].add_scalar(x, 0.5)]
            return [*found, f["mul_scalar"].mul_scalar(x, 2.0), f["cat"].cat([x, x], 1)]

    net = Methods()
    model = eager(net)
    off(model)
    assert all(torch.equal(a, b) for a, b in zip(model(X), net(X), strict=True))


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (nn.MultiheadAttention(8, 2, batch_first=True), (2, 5, 8)),
        (nn.LSTM(8, 4, batch_first=True), (2, 5, 8)),
        (nn.GroupNorm(2, 4), (2, 4, 6, 6)),
        (nn.Embedding(9, 4), None),
        (nn.PReLU(4), (2, 4, 3)),
        (nn.Conv1d(4, 4, 3, groups=2), (2, 4, 9)),
    ],
)
def test_decomposed_and_other_layers_run_in_float_as_before(layer: Any, shape: Any) -> None:
    class Around(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = layer

        def forward(self, x: Tensor) -> Any:
            several = isinstance(layer, nn.MultiheadAttention)
            result = self.layer(x, x, x) if several else self.layer(x)
            return result[0] if isinstance(result, tuple) else result

    net = Around().eval()
    model = eager(net)
    off(model)
    x = torch.arange(6).reshape(2, 3) if shape is None else torch.randn(shape)
    # decomposed layers compute in another order than torch's fused kernels
    torch.testing.assert_close(run(model, x), run(net, x), rtol=1e-4, atol=1e-5)


def test_layers_that_are_not_called_in_the_order_of_their_group_are_an_error() -> None:
    class Apart(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.relu = nn.Conv2d(1, 1, 1), nn.ReLU()

        def forward(self, x: Tensor) -> Tensor:
            y = self.conv(x)
            result: Tensor = self.relu(y) + y
            return result

    model = eager(fuse_modules(Apart().eval(), ["conv", "relu"]))
    calib(model, [X])
    with pytest.raises(PrepareError, match=r"conv was fused with the layers up to relu, but in"):
        hbdk4.export(model, X)


def test_what_needs_a_graph_is_refused_with_the_way_out() -> None:
    with pytest.raises(PrepareError, match="eager mode has none. Use prepare_qat_fx"):
        prepare_qat(fused(), hybrid=True)
    with consistency_level(2), pytest.raises(PrepareError, match="consistency level 2 ties"):
        prepare_qat(fused())
    with pytest.raises(PrepareError, match="prepared already; pass the float model"):
        prepare(eager(fused()), X)
    with pytest.raises(PrepareError, match="no layer to replace"):
        prepare_qat(nn.Conv2d(1, 1, 1))
    with pytest.raises(ExportError, match="give example_inputs"):
        hbdk4.pre_export(eager(fused()))
    with pytest.raises(PrepareError, match="verbose=1 checks the model on example_inputs"):
        prepare_qat(fused(), verbose=1)


@pytest.mark.parametrize(
    ("names", "text"),
    [
        (["conv", "pool"], r"\[Conv2d, MaxPool2d\] is no known pattern"),
        (["relu", "conv"], "is no known pattern"),
        (["conv"], "is no known pattern"),
        (["conv", "nothing"], "has no layer 'nothing'"),
    ],
)
def test_unknown_patterns_are_refused(names: list[str], text: str) -> None:
    with pytest.raises(PrepareError, match=text):
        fuse_modules(Net(), names)
    with pytest.raises(PrepareError, match="is fused already"):
        fuse_modules(fused(), GROUPS)


def test_torchs_own_fuse_modules_takes_our_fuser() -> None:
    torch_fuse = pytest.importorskip("torch.ao.quantization").fuse_modules
    net = Net().eval()
    same = torch_fuse(net, GROUPS, fuser_func=fuse_known_modules)
    assert torch.equal(same(X), net(X))
    assert eager(same).conv.group == "relu"
