"""The QAT modes that keep batch norms: WithBN and WithBNReverseFold."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qtune import Inputs
from qtune.errors import ArgumentError, ExportError, PrepareError
from qtune.hbir.export import export as export_directly
from qtune.modes import FuseMode, QATMode, consistency_level, qat_mode
from qtune.nn.prepared import PreparedModel
from qtune.nn.qat import iter_stubs
from qtune.quantization import (
    DeQuantStub,
    FakeQuantState,
    QuantStub,
    absorb_bn,
    fuse_known_modules,
    fuse_modules,
    get_default_qat_qconfig,
    get_default_qconfig,
    load_observer_params,
    prepare,
    prepare_qat,
    set_fake_quantize,
)
from qtune.quantization import convert as convert_modules
from qtune.quantization.hbdk4 import convert, export, pre_export

from .flow import calib, names, off, op, out_scale, run, s8, scales

WITH, REVERSE = QATMode.WithBN, QATMode.WithBNReverseFold
BOTH = [WITH, REVERSE]


@pytest.fixture(params=BOTH, ids=str)
def mode(request: pytest.FixtureRequest) -> Iterator[QATMode]:
    with qat_mode(request.param) as chosen:
        yield chosen


def random_norm(channels: int, rank: int = 2, cls: Any = None) -> nn.Module:
    """A batch norm whose treatment can't go unnoticed: factors of both signs, one of them 0."""
    known: dict[int, Any] = {0: nn.BatchNorm1d, 1: nn.BatchNorm1d, 3: nn.BatchNorm3d}
    bn = (cls or known.get(rank, nn.BatchNorm2d))(channels)
    bn.running_mean.uniform_(-1, 1)
    bn.running_var.uniform_(0.5, 2)
    nn.init.uniform_(bn.weight, 0.5, 1.5)
    nn.init.uniform_(bn.bias, -1, 1)
    with torch.no_grad():
        bn.weight[0] = 0.0
        bn.weight[1] *= -1
    return bn


LAYERS: dict[str, tuple[int, Any]] = {
    "conv1d": (1, lambda: nn.Conv1d(4, 6, 3, padding=1)),
    "conv2d": (2, lambda: nn.Conv2d(4, 6, 3, padding=1, groups=2, bias=False)),
    "conv3d": (3, lambda: nn.Conv3d(4, 6, 3, padding=1)),
    "conv_transpose1d": (1, lambda: nn.ConvTranspose1d(4, 6, 3, padding=1)),
    "conv_transpose2d": (2, lambda: nn.ConvTranspose2d(4, 6, 3, padding=1, bias=False)),
    "grouped": (2, lambda: nn.ConvTranspose2d(4, 6, 3, padding=1, groups=2)),
    "depthwise": (2, lambda: nn.ConvTranspose2d(4, 4, 3, padding=1, groups=4)),
    "conv_transpose3d": (3, lambda: nn.ConvTranspose3d(4, 6, 3, padding=1)),
    "linear": (0, lambda: nn.Linear(4, 6)),
}


class Group(nn.Module):
    """A GEMM, a batch norm, and what may follow."""

    def __init__(self, layer: str, tail: str) -> None:
        super().__init__()
        rank, make = LAYERS[layer]
        self.gemm, self.rank, self.tail = make(), rank, tail
        self.channels = 4 if layer == "depthwise" else 6
        self.bn, self.drop = random_norm(self.channels, rank), nn.Dropout(0.25)

    def forward(self, x: Tensor) -> Tensor:
        y = self.bn(self.gemm(x))
        if "add" in self.tail:
            y = y + (x if self.channels == 4 else torch.cat([x, x[:, :2]], 1))
        return self.drop(F.relu(y) if "relu" in self.tail else y)

    def data(self) -> Tensor:
        return torch.randn(6, 4, *[5] * self.rank)


def stats(model: nn.Module) -> dict[str, Tensor]:
    return {k: v for k, v in model.state_dict().items() if "running" in k or "tracked" in k}


def same_stats(a: nn.Module, b: nn.Module) -> bool:
    return all(torch.equal(v, stats(a)[k]) for k, v in stats(b).items())


def trained(model: PreparedModel, x: Tensor, steps: int = 3, lr: float = 0.05) -> PreparedModel:
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    set_fake_quantize(model.train(), FakeQuantState.QAT)
    for _ in range(steps):
        optimizer.zero_grad()
        model(x).pow(2).mean().backward()
        optimizer.step()
    set_fake_quantize(model.eval(), FakeQuantState.VALIDATION)
    return model


CASES = [(layer, "add relu") for layer in LAYERS]
CASES += [("conv2d", ""), ("conv2d", "relu"), ("conv2d", "add"), ("linear", "")]


@pytest.mark.parametrize(("layer", "tail"), CASES)
def test_float_state_is_the_float_model_in_training_and_in_eval(
    mode: QATMode, layer: str, tail: str
) -> None:
    model = Group(layer, tail)
    x = model.data()
    p = prepare(model.train(), x)
    assert p.unfused == ()
    assert set(model.state_dict()) <= set(p.state_dict())  # names of a float checkpoint
    set_fake_quantize(p.train(), FakeQuantState._FLOAT)
    results = []
    for module in (p, model):
        torch.manual_seed(5)
        results.append(module(x))
    assert torch.equal(*results)
    assert same_stats(p, model)
    assert torch.equal(run(p.eval(), x), run(model.eval(), x))


@pytest.mark.parametrize(("layer", "tail"), CASES)
def test_eval_after_training_has_the_bits_of_the_absorbed_model_and_of_its_bc(
    mode: QATMode, layer: str, tail: str
) -> None:
    model = Group(layer, tail)
    x = model.data()
    p = prepare(model, x)
    calib(p, [x, model.data()])
    trained(p, x)
    y = run(p, x)
    absorbed = pre_export(p)
    assert op(absorbed, "bn").op == "identity"
    assert op(p, "bn").op == "batch_norm"
    assert torch.equal(run(absorbed, x), y)
    bc = export(p, x)
    assert torch.equal(bc[0](x), y)
    step = max(float(q.scale.max()) for _, kind, q in iter_stubs(p) if kind == "output")
    # numerics page section 2: float and integer sums round differently only next to a tie
    assert (convert(bc)[0](x) - y).abs().max() <= step * 1.001
    set_fake_quantize(absorbed, FakeQuantState._FLOAT)
    set_fake_quantize(p, FakeQuantState._FLOAT)
    # folding is float64 rounded once; what differs is the order of float32 sums
    assert torch.allclose(run(absorbed, x), run(p, x), rtol=1e-5, atol=1e-5)


def test_absorbing_while_training_keeps_every_bit_with_reverse_fold() -> None:
    model = nn.Sequential(nn.Conv2d(3, 6, 3), random_norm(6), nn.ReLU(), nn.Conv2d(6, 2, 1))
    x = torch.randn(4, 3, 8, 8)
    with qat_mode(REVERSE):
        p = trained(prepare(model, x), x)
    y, before = run(p, x), scales(p)
    assert absorb_bn(p) is p
    assert torch.equal(run(p, x), y)
    assert all(torch.equal(before[key], value) for key, value in scales(p).items())
    trained(p, x)  # trains on without norms
    assert torch.equal(export(p, x)[0](x), run(p, x))


def test_absorbing_while_training_observes_the_weight_anew_in_with_bn() -> None:
    model = nn.Sequential(nn.Conv2d(3, 6, 3), random_norm(6))
    x = torch.randn(4, 3, 8, 8)
    with qat_mode(WITH):
        p = trained(prepare(model, x), x, lr=0.5)
    y = run(p, x)
    absorb_bn(p)
    weight = op(p, "0").weight_fake_quant
    assert weight is not None
    absmax = p.get_submodule("0").weight.detach().abs().amax((1, 2, 3))  # type: ignore[operator]
    expected = torch.where(absmax > 0, absmax / 127.5, 2.0**-23)  # channel 0 has gamma 0
    assert torch.equal(weight.scale, expected)
    assert not torch.equal(run(p, x), y)
    assert (run(p, x) - y).abs().max() < 0.05 * y.abs().max()
    before = weight.scale.clone()
    trained(p, x)
    assert not torch.equal(weight.scale, before)  # it still follows the data


def test_a_given_scale_of_a_weight_is_scaled_with_it() -> None:
    model = nn.Sequential(nn.Conv2d(3, 6, 3), random_norm(6))
    x = torch.randn(4, 3, 8, 8)
    with qat_mode(WITH):
        p = prepare(model, x)
    calib(p, [x])
    weight = op(p, "0").weight_fake_quant
    assert weight is not None
    weight.set_qparams(torch.full((6,), 0.01))
    y = run(p, x)
    absorb_bn(p)
    factor = model[1].weight / torch.sqrt(model[1].running_var.double() + 1e-5)
    expected = (0.009999999776482582 * factor.abs()).float()
    expected[0] = 2.0**-23  # gamma is 0, and so is the weight
    # float32 against float64 products: the last bit
    assert torch.allclose(weight.scale, expected, rtol=2e-7, atol=0)
    assert torch.equal(run(p, x), y)


@pytest.mark.parametrize("kind", ["lsq", "pact"])
def test_a_learned_scale_is_absorbed_too(mode: QATMode, kind: str) -> None:
    model, x = Residual(), torch.randn(4, 3, 8, 8)
    model.qconfig = get_default_qconfig(activation_fake_quant=kind, weight_fake_quant=kind)
    p = trained(prepare(model, x), x, lr=1e-3)
    y = run(p, x)
    assert torch.equal(export(p, x)[0](x), y)
    absorb_bn(p)
    if kind == "lsq" or mode is REVERSE:
        assert torch.equal(run(p, x), y)
    # alpha = 128 scales is rounded once more
    assert torch.allclose(run(p, x), y, rtol=1e-3, atol=0.02 * float(y.abs().max()))
    before = {k: v.detach().clone() for k, v in p.named_parameters()}
    trained(p, x, lr=1e-3)
    learns = "scale" if kind == "lsq" else "alpha"
    kept = {f"{name}.weight_fake_quant.{learns}" for name in ("backbone.0", "neck.0")}
    assert kept <= before.keys()
    moved = {k for k, v in p.named_parameters() if not torch.equal(before[k], v)}
    # nothing is clipped, and only what is clipped moves an alpha
    assert moved >= before.keys() - (kept if kind == "pact" else set()) or kind == "pact"
    assert {"backbone.0.weight", "neck.0.bias"} <= moved


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.backbone = nn.Sequential(nn.Conv2d(3, 4, 3), random_norm(4), nn.ReLU())
        self.neck = nn.Sequential(nn.Conv2d(4, 4, 3, padding=1), random_norm(4))

    def forward(self, x: Tensor) -> Tensor:
        x = self.backbone(x)
        return F.relu(x + self.neck(x))


def test_norms_are_absorbed_part_by_part(mode: QATMode) -> None:
    x = torch.randn(4, 3, 8, 8)
    p = trained(prepare(Residual(), x), x)
    absorb_bn(p, ["backbone"])
    assert [op(p, n).op for n in ("backbone.1", "neck.1")] == ["identity", "batch_norm"]
    run(p, x)
    with pytest.raises(ArgumentError, match=r"in 'backbone'; kept are: neck\.1"):
        absorb_bn(p, "backbone")
    absorb_bn(p, "neck.1")
    assert op(p, "neck.1").op == "identity"
    assert absorb_bn(p) is p  # nothing is left
    assert names(p).count("neck.1") == 1
    assert torch.equal(export(p, x)[0](x), run(p, x))


def test_a_graph_with_kept_norms_is_not_exported_directly(mode: QATMode) -> None:
    x = torch.randn(4, 3, 8, 8)
    p = trained(prepare(Residual(), x), x)
    with pytest.raises(ExportError, match=r"keeps 2 batch norms \(backbone\.1, neck\.1\)"):
        export_directly(p, x)
    part = copy.deepcopy(p)
    pre_export(part, inplace=True)
    assert op(part, "neck.1").op == "identity"


def test_a_gamma_of_zero_trains_without_nan(mode: QATMode) -> None:
    """A29"""
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)), torch.randn(4, 3, 8, 8)
    model[1].weight.data[0] = 0.0
    model[1].bias.data[0] = 0.25
    p = prepare(model.train(), x)
    set_fake_quantize(p, FakeQuantState._FLOAT)
    first = copy.deepcopy(p)(x)
    assert torch.equal(first, copy.deepcopy(model)(x))
    assert torch.equal(first[:, 0], torch.full_like(first[:, 0], 0.25))
    set_fake_quantize(p, FakeQuantState.QAT)
    optimizer = torch.optim.SGD(p.parameters(), lr=0.1)
    for step in range(1, 4):
        loss = p(x).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        assert loss.isfinite()
        assert all(v.grad is not None and v.grad.isfinite().all() for v in p.parameters())
        optimizer.step()
        assert int(p.state_dict()["1.num_batches_tracked"]) == step
    assert float(p.state_dict()["1.weight"][0]) != 0.0  # it learns


def test_reverse_fold_takes_the_scale_from_the_folded_weight_and_with_bn_from_its_own() -> None:
    model = nn.Sequential(nn.Conv2d(3, 6, 3), random_norm(6), nn.Conv2d(6, 2, 1)).eval()
    x = torch.randn(4, 3, 8, 8)
    weight = model[0].weight.detach().double()
    factor = model[1].weight / torch.sqrt(model[1].running_var.double() + model[1].eps)
    for mode, expected in ((WITH, weight), (REVERSE, weight * factor.view(-1, 1, 1, 1))):
        with qat_mode(mode):
            p = prepare(model, x)
        calib(p, [x])
        absmax = expected.float().abs().amax((1, 2, 3)).detach()
        wanted = torch.where(absmax > 0, absmax / 127.5, 2.0**-23)  # 2**-23: absmax is 0
        assert torch.equal(scales(p)["0", "weight"], wanted)
        assert op(p, "0").activation_post_process is None
        assert out_scale(p, "1") == s8(float(run(model[:2], x).abs().max()))


def test_a_training_step_sees_the_quantized_weight_before_the_norm(mode: QATMode) -> None:
    model, x = nn.Sequential(nn.Conv2d(3, 6, 3), random_norm(6)), torch.randn(4, 3, 8, 8)
    p = prepare(model.train(), x)
    set_fake_quantize(p, FakeQuantState.QAT)
    y = p(x)
    s = scales(p)
    source = torch.floor(x / s["_input_0_quant", "output"] + 0.5).clamp(-128, 127)
    source = source * s["_input_0_quant", "output"]
    factor = torch.ones(6)
    if mode is REVERSE:
        factor = (model[1].weight / torch.sqrt(model[1].running_var + 1e-5)).detach()
        factor[0] = 1.0
    step = (s["0", "weight"] / factor).view(-1, 1, 1, 1)
    weight = model[0].weight.detach()
    codes = torch.floor(weight / step + 0.5).clamp(-128, 127)
    quantized = codes * step
    if mode is REVERSE:
        quantized[0] = weight[0]  # gamma 0: whatever the weight, the output is beta
    norm = copy.deepcopy(model[1])
    expected, other = (norm(F.conv2d(source, w, model[0].bias)) for w in (quantized, weight))
    # float32 sums of another order; the largest weight of a channel lies on a tie (absmax / 127.5)
    # and may round either way. The weight that is not quantized is farther away
    assert (y - expected).abs().mean() <= 0.1 * (y - other).abs().mean()


def test_the_weight_gets_the_gradient_of_its_quantized_form(mode: QATMode) -> None:
    model, x = nn.Sequential(nn.Conv2d(3, 6, 3), random_norm(6)), torch.randn(4, 3, 8, 8)
    p = prepare(model.train(), x)
    set_fake_quantize(p, FakeQuantState.QAT)
    conv, norm, factors = op(p, "0"), copy.deepcopy(model[1]), torch.randn(4, 6, 6, 6)
    weight = conv.get_parameter("weight")
    quantized = conv.quantize_weight(weight, conv.attrs).detach().requires_grad_()
    (p(x) * factors).sum().backward()
    source = run(p.get_submodule("_input_0_quant"), x)
    (norm(F.conv2d(source, quantized, model[0].bias)) * factors).sum().backward()
    # numerics page section 1: the largest value of a channel has the code 128 before clamping, and
    # then no gradient
    largest = weight.abs() == weight.abs().amax((1, 2, 3), keepdim=True)
    difference = (weight.grad - quantized.grad).masked_fill(largest, 0.0)  # type: ignore[operator]
    # float32; fq(W f) / f passes the gradient through f and back
    assert difference.abs().max() < 1e-3
    own = op(p, "1").get_parameter("weight").grad
    assert torch.allclose(own, norm.weight.grad, rtol=1e-4, atol=1e-3)  # type: ignore[arg-type]


def test_a_frozen_norm_keeps_its_statistics_while_the_model_trains(mode: QATMode) -> None:
    x = torch.randn(4, 3, 8, 8)
    p = prepare(Residual(), x)
    calib(p, [x])
    before = stats(p)
    set_fake_quantize(p.train(), FakeQuantState.QAT)
    for name in ("backbone.1", "neck.1"):
        op(p, name).eval()
    y = p(x)
    y.sum().backward()
    assert all(torch.equal(before[k], v) for k, v in stats(p).items())
    assert all(v.grad is not None and v.grad.isfinite().all() for v in p.parameters())
    folded = run(p.eval(), x)
    # the same function, the weight rounded before or after folding: a few steps apart at most
    assert (y - folded).abs().max() <= 4 * max(float(s.max()) for s in scales(p).values())


def test_gradients_reach_gamma_and_beta_through_the_folded_eval_forward(mode: QATMode) -> None:
    x = torch.randn(4, 3, 8, 8)
    p = prepare(Residual(), x)
    calib(p, [x])
    p(x).sum().backward()
    assert all(v.grad is not None and v.grad.isfinite().all() for v in p.parameters())


def test_state_deepcopy_and_pickle_keep_the_tie(mode: QATMode) -> None:
    x = torch.randn(4, 3, 8, 8)
    p = trained(prepare(Residual(), x), x)
    y = run(p, x)
    copies = [copy.deepcopy(p), pickle.loads(pickle.dumps(p))]
    file = io.BytesIO()
    torch.save(p.state_dict(), file)
    file.seek(0)
    fresh = prepare(Residual(), x)
    fresh.load_state_dict(torch.load(file, weights_only=True))
    set_fake_quantize(fresh.eval(), FakeQuantState.VALIDATION)
    for twin in (*copies, fresh):
        assert torch.equal(run(twin, x), y)
        kept = op(twin, "neck.0").kept
        assert kept is op(twin, "neck.1").kept
        assert kept is not None
        assert kept.gemm is op(twin, "neck.0")
        trained(twin, x)
        assert not torch.equal(run(twin, x), y)
    assert torch.equal(run(p, x), y)


def test_a_state_of_another_mode_is_refused() -> None:
    x = torch.randn(4, 3, 8, 8)
    models = {}
    for mode in BOTH:
        with qat_mode(mode):
            models[mode] = prepare(Residual(), x)
            calib(models[mode], [x])
    with pytest.raises(RuntimeError, match=r"mode with_bn, .* prepared in with_bn_reverse_fold"):
        models[REVERSE].load_state_dict(models[WITH].state_dict())
    with pytest.raises(PrepareError, match=r"with_bn.*with_bn_reverse_fold"):
        load_observer_params(models[WITH], models[REVERSE])
    fused = prepare(Residual(), x)
    with pytest.raises(RuntimeError, match=r"neck\.1\.running_mean"):
        fused.load_state_dict(absorb_bn(models[WITH], "backbone").state_dict())
    fused.load_state_dict(absorb_bn(models[WITH]).state_dict())  # all absorbed: the same form


@pytest.mark.parametrize("level", [0, 1, 2, 3, 4])
def test_consistency_levels_hold_for_the_absorbed_model(mode: QATMode, level: int) -> None:
    model = nn.Sequential(nn.Conv2d(3, 6, 3), random_norm(6), nn.ReLU(), nn.Conv2d(6, 2, 1))
    x = torch.randn(4, 3, 8, 8)
    with consistency_level(level):
        if mode is WITH and level >= 2:
            with pytest.raises(PrepareError, match=r"0: consistency level .* 1 .*ReverseFold"):
                prepare(model, x)
            return
        p = trained(prepare(model, x), x)
    y = run(p, x)
    bc = export(p, x)
    assert torch.equal(bc[0](x), y)
    if level >= 2:
        scale = scales(p)["0", "weight"]
        assert torch.equal(torch.frexp(scale).mantissa, torch.full_like(scale, 0.5))
    step = float(scales(p)["2", "output"])
    assert (convert(bc)[0](x) - y).abs().max() <= step


def test_sync_batch_norm_is_kept_and_absorbed_like_any_other(mode: QATMode) -> None:
    model = nn.Sequential(nn.Conv2d(3, 6, 3), random_norm(6, cls=nn.SyncBatchNorm), nn.ReLU())
    x = torch.randn(4, 3, 8, 8)
    p = prepare(model.train(), x)
    set_fake_quantize(p, FakeQuantState._FLOAT)
    assert torch.equal(p(x), model(x))
    assert same_stats(p, model)
    trained(p, x)
    assert torch.equal(export(p, x)[0](x), run(p, x))


class Functional(nn.Module):
    """A norm that is no module of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
        self.register_buffer("mean", torch.randn(4))
        self.register_buffer("var", torch.rand(4) + 0.5)

    def forward(self, x: Tensor) -> Tensor:
        return F.batch_norm(self.conv(x), self.mean, self.var)


def test_a_functional_norm_has_a_scale_of_its_own_in_these_modes(mode: QATMode) -> None:
    model, x = Functional().eval(), torch.randn(4, 3, 8, 8)
    p = prepare(model, x)
    assert f"is a function; the QAT mode {mode.value} keeps modules" in p.unfused[0].reason
    off(p)
    assert torch.equal(run(p, x), run(model, x))
    with qat_mode(QATMode.FuseBN):
        assert prepare(model, x).unfused == ()


def test_reused_layers_are_not_tied(mode: QATMode) -> None:
    """A09"""

    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.bn = nn.Conv2d(3, 4, 1), random_norm(4)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            return self.bn(self.conv(x)), self.conv(x * 2)

    model, x = Twice(), torch.randn(4, 3, 5, 5)
    p = prepare(model, x)
    assert "not fused: reused" in p.unfused[0].reason
    assert op(p, "conv").kept is None
    set_fake_quantize(p.train(), FakeQuantState._FLOAT)
    for got, expected in zip(p(x), model.train()(x), strict=True):
        assert torch.equal(got, expected)


class Stubbed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.quant, self.dequant = QuantStub(), DeQuantStub()
        self.conv, self.bn, self.relu = nn.Conv2d(3, 6, 3), random_norm(6), nn.ReLU()
        self.head = nn.Conv2d(6, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.dequant(self.head(self.relu(self.bn(self.conv(self.quant(x))))))


def test_eager_mode_keeps_and_absorbs_norms(mode: QATMode) -> None:
    model, x = Stubbed().eval(), torch.randn(4, 3, 8, 8)
    model.qconfig = get_default_qat_qconfig()
    fuse_modules(model, ["conv", "bn", "relu"], inplace=True, fuser_func=fuse_known_modules)
    p: Any = prepare_qat(model)
    assert p.conv.kept is p.bn.kept is not None
    calib(p, [x])
    trained(p, x)
    y = run(p, x)
    assert torch.equal(export(p, x)[0](x), y)
    step = float(p.relu.activation_post_process.scale)
    integer = convert_modules(copy.deepcopy(p))
    assert (run(integer, x) - y).abs().max() <= 2 * step  # through the weights of the head
    absorb_bn(p)
    assert p.bn.op == "identity"
    assert torch.equal(export(p, x)[0](x), run(p, x))
    assert mode is WITH or torch.equal(run(p, x), y)


class Branches(nn.Module):
    """Two tasks over one backbone."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 6, 3), random_norm(6), nn.ReLU())
        self.heads = nn.ModuleDict({name: nn.Conv2d(6, 2, 1) for name in ("a", "b")})

    def forward(self, x: Tensor, task: str) -> Tensor:
        x = self.stem(x)
        return self.heads[task](x)  # type: ignore[no-any-return]


def test_branches_share_a_kept_norm(mode: QATMode) -> None:
    x = torch.randn(4, 3, 8, 8)
    p = prepare(Branches(), [Inputs(x, "a"), Inputs(x, "b")])
    assert op(p, "stem.1").kept is op(p, "stem.0").kept is not None
    calib(p, [Inputs(x, "a"), Inputs(x, "b")])
    p.train()
    set_fake_quantize(p, FakeQuantState.QAT)
    sum(p(x, task).square().mean() for task in "ab").backward()  # type: ignore[union-attr]
    set_fake_quantize(p.eval(), FakeQuantState.VALIDATION)
    before = [run(p, Inputs(x, task)) for task in "ab"]
    absorbed = pre_export(p)
    after = [run(absorbed, Inputs(x, task)) for task in "ab"]
    assert all(map(torch.equal, before, after))
    assert op(absorbed, "stem.1").op == "identity"


def test_no_fuse_gives_every_operator_a_scale() -> None:
    x = torch.randn(4, 3, 8, 8)
    p = prepare(Residual().eval(), x, fuse_mode=FuseMode.NoFuse)
    quantized = {name for name, kind in scales(p) if kind == "output"}
    assert {"backbone.0", "backbone.1", "neck.0", "neck.1"} <= quantized
    off(p)
    torch.manual_seed(0)
    assert op(p, "neck.1").op == "batch_norm"
    calib(p, [x])
    assert torch.equal(export(p, x)[0](x), run(p, x))
