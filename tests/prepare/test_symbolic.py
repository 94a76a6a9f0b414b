"""PrepareMethod.SYMBOLIC and the fx flow: example inputs are found, or must be traceable."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qtune import march
from qtune.errors import CaptureError, PrepareError
from qtune.nn.prepared import PreparedModel
from qtune.prepare.fuse_modules import fused_layers
from qtune.quantization import (
    DeQuantStub,
    FakeQuantize,
    FakeQuantState,
    FuseMode,
    PrepareMethod,
    QuantStub,
    fuse_fx,
    fuse_modules,
    get_default_qconfig,
    prepare,
    prepare_calibration_fx,
    prepare_qat,
    prepare_qat_fx,
    set_fake_quantize,
)
from qtune.quantization.quantize_fx import convert_fx
from tests.quantization.flow import calib, names, off, run


class Digits(nn.Module):
    """Sizes are fixed by ``fc``; ``mask`` is absent unless it is given."""

    classes = 10

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.bn = nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4)
        self.norm, self.fc = nn.LayerNorm(10), nn.Linear(4 * 13 * 13, 10)
        self.labels = [str(digit) for digit in range(10)]

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        x = F.max_pool2d(F.relu(self.bn(self.conv(x))), 2)
        x = self.norm(self.fc(x.view(x.size(0), -1)))
        return x if mask is None else x * mask

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(self(x), y)

    @property
    def count(self) -> int:
        return len(self.labels)


X = torch.randn(5, 1, 28, 28, generator=torch.Generator().manual_seed(2))


def _places(model: PreparedModel) -> list[Any]:
    """Scope and line of every operator; those of an input stub are those of the caller."""
    nodes = [node for node, _ in model.operators() if node.meta["name"] != "_input_0_quant"]
    return [(n.meta["name"], n.meta["scope"], n.meta["source"]) for n in nodes]


def test_without_example_inputs_the_result_is_that_of_the_recorded_model() -> None:
    net = Digits().eval()
    found = prepare_qat_fx(net)
    recorded = prepare(net, X)
    assert names(found) == names(recorded)
    assert _places(found) == _places(recorded)
    for model in (found, recorded):
        calib(model, [X])
    assert torch.equal(run(found, X), run(recorded, X))
    off(found)
    # the batch norm is folded and the layer norm decomposed: other orders of float32 sums
    torch.testing.assert_close(run(found, X), run(net, X), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("net", "x"),
    [
        (nn.Sequential(nn.Embedding(9, 4), nn.Linear(4, 2)), torch.tensor([[1, 8, 3]])),
        (nn.Sequential(nn.Linear(6, 4), nn.ReLU()), torch.randn(3, 6)),
        (nn.Sequential(nn.BatchNorm1d(6), nn.Linear(6, 4)), torch.randn(3, 6)),
        (nn.Sequential(nn.Conv1d(6, 4, 3), nn.ReLU()), torch.randn(3, 6, 9)),
        (nn.Sequential(nn.Conv3d(2, 4, 3), nn.ReLU()), torch.randn(1, 2, 5, 6, 7)),
        (nn.Sequential(nn.ReLU(), nn.Conv2d(4, 4, 7, groups=2)), torch.randn(1, 4, 9, 8)),
    ],
)
def test_what_the_first_layer_takes_is_found(net: nn.Module, x: Tensor) -> None:
    model = prepare_qat_fx(net.eval())
    off(model)
    assert torch.equal(run(model, x), run(net, x))


def test_control_flow_on_inputs_is_refused_also_with_an_example() -> None:
    class Dynamic(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x if x.sum() > 0 else -x

    with pytest.raises(CaptureError, match=r"torch.fx can't trace it .*control flow"):
        prepare(Dynamic(), X, method=PrepareMethod.SYMBOLIC)


def test_sizes_that_are_not_found_ask_for_an_example() -> None:
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(7 * 11, 2)

        def forward(self, x: Tensor) -> Tensor:
            result: Tensor = self.fc(x.view(x.size(0), 77))
            return result

    with pytest.raises(CaptureError, match=r"no sizes were found that its forward takes \(x; "):
        prepare_qat_fx(Odd())
    assert isinstance(prepare_qat_fx(Odd(), example_inputs=torch.randn(2, 7, 11)), PreparedModel)


@pytest.mark.parametrize("method", [PrepareMethod.JIT, PrepareMethod.JIT_STRIP])
def test_recording_methods_need_an_example(method: PrepareMethod) -> None:
    with pytest.raises(PrepareError, match="needs example_inputs"):
        prepare(Digits(), method=method)


def test_methods_attributes_and_properties_of_the_model_stay() -> None:
    net = Digits().eval()
    model = prepare_qat_fx(net, None, {"preserved_attributes": ["labels", "loss"]})
    for again in (model, copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert (again.classes, again.count, again.labels) == (10, 10, net.labels)
        off(again)
        y = torch.zeros(5, dtype=torch.long)
        assert torch.equal(again.loss(X, y), F.cross_entropy(again(X), y))
    calib(model, [X])
    assert convert_fx(model).count == 10
    with pytest.raises(PrepareError, match="has 'nothing', but Digits has no such attribute"):
        prepare_qat_fx(net, None, {"preserved_attributes": ["nothing"]})
    with pytest.raises(PrepareError, match="prepare_custom_config_dict takes"):
        prepare_qat_fx(net, None, {"other": []})
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = model.nothing


def test_qconfig_dict_and_setter_exclude_each_other() -> None:
    with pytest.raises(PrepareError, match="give qconfig_dict or qconfig_setter"):
        prepare_qat_fx(Digits(), {"": get_default_qconfig()}, qconfig_setter=())


def test_qconfig_dict_in_the_documents_form() -> None:
    quantized, out = get_default_qconfig(), get_default_qconfig(activation_fake_quant=None)
    model = prepare_qat_fx(
        nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Conv2d(4, 2, 3)).eval(),
        {"": quantized, "module_name": [("2", out)]},
    )
    assert model.get_submodule("2").activation_post_process is None
    assert model.get_submodule("1").activation_post_process is not None


def test_no_fuse_gives_every_operator_a_scale() -> None:
    model = prepare_qat_fx(Digits().eval(), fuse_mode=FuseMode.NoFuse)
    assert model.get_submodule("conv").activation_post_process is not None


def test_calibration_states_and_convert_fx() -> None:
    model = prepare_calibration_fx(Digits())
    assert not model.training
    assert model.get_submodule("conv").weight_fake_quant.state is FakeQuantState.CALIBRATION
    calib(model, [X])
    integers = convert_fx(model)
    step = float(model.get_submodule("norm.bias_add").activation_post_process.scale)
    assert (run(integers, X) - run(model, X)).abs().max() <= 2 * step  # requantize against float


def test_fuse_fx_marks_what_fuse_modules_would() -> None:
    class Layers(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.bn, self.relu = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU()
            self.conv2 = nn.Conv2d(4, 4, 1)

        def forward(self, x: Tensor) -> Tensor:
            return F.relu(self.conv2(self.relu(self.bn(self.conv(x)))))

    net = Layers().eval()
    marked = fuse_fx(net)
    assert fused_layers(net.conv) is None
    assert fused_layers(marked.conv) == (marked.conv, marked.bn, marked.relu)
    assert fused_layers(marked.conv2) is None  # its relu is a function
    by_hand = prepare_qat(fuse_modules(net, ["conv", "bn", "relu"]))
    by_fx = prepare_qat(marked)
    x = torch.randn(2, 3, 8, 8)
    for model in (by_hand, by_fx):
        calib(model, [x])
    assert torch.equal(run(by_hand, x), run(by_fx, x))


def test_options_without_effect_are_said() -> None:
    with pytest.raises(NotImplementedError, match="fuse_custom_config_dict"):
        fuse_fx(Digits(), {"a": 1})
    with pytest.raises(NotImplementedError, match="mapping"):
        prepare_qat(Digits(), {nn.Conv2d: nn.Conv2d})
    with pytest.raises(NotImplementedError, match="optimize_kwargs"):
        prepare_qat(Digits(), optimize_kwargs={"a": 1})
    with march.march("bernoulli2"), pytest.raises(PrepareError, match="use prepare_qat_fx"):
        prepare_qat(Digits(), optimize_graph=True)


class Joined(nn.Module):
    """Two branches of other ranges, and a relu on the way, joined twice."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.out = nn.Conv2d(3, 2, 1), nn.Conv2d(3, 2, 1), nn.Conv2d(6, 2, 1)
        self.b.weight.data.mul_(4)

    def forward(self, x: Tensor) -> Tensor:
        a, b = self.a(x), self.b(x)
        joined = torch.cat([F.max_pool2d(a, 2), F.max_pool2d(b, 2)], 1)
        result: Tensor = self.out(torch.cat([joined, F.max_pool2d(a, 2)], 1))
        return result


@pytest.mark.parametrize(("name", "shares"), [("bernoulli2", True), ("nash-e", False)])
def test_optimize_graph_gives_cat_and_its_inputs_one_scale_on_bernoulli(
    name: str, shares: bool
) -> None:
    x = torch.randn(2, 3, 8, 8)
    with march.march(name):
        net = Joined().eval()
        model = prepare_qat_fx(net, optimize_graph=True)
        calib(model, [x])
        ends = ("a", "b", "_generated_cat_0", "_generated_cat_1")
        found = {float(model.get_submodule(n).activation_post_process.scale) for n in ends}
        assert (len(found) == 1) is shares
        if shares:
            widest = max(float(run(part, x).abs().max()) for part in (net.a, net.b))
            assert found.pop() == pytest.approx(widest / 127.5, rel=0.02)  # of quantized inputs
        again = prepare_qat_fx(net, optimize_graph=True)
        again.load_state_dict(model.state_dict())
        expected = run(model, x)
        assert torch.equal(run(copy.deepcopy(model), x), expected)
        set_fake_quantize(again.eval(), FakeQuantState.VALIDATION)
        assert torch.equal(run(again, x), expected)
        # a requantize against float, and the high-precision output behind it
        assert (run(convert_fx(model), x) - expected).abs().max() <= 0.05 * expected.abs().max()


class Probabilities(nn.Sequential):
    """Softmax is decomposed, for which eager mode makes an example as well."""

    def __init__(self) -> None:
        layers = [nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4), nn.Softmax(1)]
        super().__init__(QuantStub(), *layers, DeQuantStub())


@pytest.mark.parametrize("dtype", [torch.half, torch.bfloat16, torch.double], ids=str)
@pytest.mark.parametrize("method", [PrepareMethod.SYMBOLIC, PrepareMethod.EAGER])
def test_examples_are_found_in_the_dtype_of_the_model(
    method: PrepareMethod, dtype: torch.dtype
) -> None:
    """A20 without example inputs."""
    model, x = Probabilities().eval().to(dtype), torch.randn(2, 3, 5, 5).to(dtype)
    p = prepare(model, method=method)
    calib(p, [x])
    y = run(p, x)
    assert y.dtype == dtype
    assert (y - run(model, x)).abs().max() <= 0.1  # int8 steps of the logits and probabilities
    assert {s.scale.dtype for s in p.modules() if isinstance(s, FakeQuantize)} == {torch.float32}


def test_a_custom_dict_of_fuse_modules_that_means_nothing_is_refused() -> None:
    with pytest.raises(PrepareError, match="additional_fuser_method_mapping', got 'mapping'"):
        fuse_modules(Digits(), ["conv", "bn"], fuse_custom_config_dict={"mapping": {}})
