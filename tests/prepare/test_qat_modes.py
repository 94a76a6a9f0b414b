"""The QAT modes that keep batch norms: WithBN and WithBNReverseFold."""

from __future__ import annotations

import copy
import io
import pickle

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from qtune.errors import ArgumentError, ExportError
from qtune.hbir.export import export as export_directly
from qtune.modes import QATMode, qat_mode
from qtune.nn.qat import iter_stubs
from qtune.quantization import (
    FakeQuantState,
    absorb_bn,
    get_default_qconfig,
    prepare,
    set_fake_quantize,
)
from qtune.quantization.hbdk4 import convert, export, pre_export
from tests.quantization.flow import calib, names, op, out_scale, run, s8, scales

from .kept_norms import (
    LAYERS,
    REVERSE,
    WITH,
    Group,
    Residual,
    mode,
    random_norm,
    same_stats,
    stats,
    trained,
)

__all__ = ["mode"]

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
    for each, expected in ((WITH, weight), (REVERSE, weight * factor.view(-1, 1, 1, 1))):
        with qat_mode(each):
            p = prepare(model, x)
        calib(p, [x])
        absmax = expected.float().abs().amax((1, 2, 3)).detach()
        wanted = torch.where(absmax > 0, absmax / 127.5, 2.0**-23)  # 2**-23: absmax is 0
        assert torch.equal(scales(p)["0", "weight"], wanted)
        assert op(p, "0").activation_post_process is None
        assert out_scale(p, "1") == s8(float(run(model[:2], x).abs().max()))


@pytest.mark.parametrize("layer", ["conv2d", "grouped", "linear"])
def test_reverse_fold_on_the_ranges_of_fuse_bn_has_its_bits(layer: str) -> None:
    model = Group(layer, "add relu").eval()
    x = model.data()
    fused = prepare(model, x)
    with qat_mode(REVERSE):
        kept = prepare(model, x)
    for prepared in (fused, kept):
        calib(prepared, [x])
    ranges = {(name, kind): stub for name, kind, stub in iter_stubs(fused)}
    for name, kind, stub in iter_stubs(kept):
        if kind == "weight":
            assert torch.equal(stub.scale, ranges[name, kind].scale)
        else:  # torch's own norm while calibrating: the last bits of these differ
            stub.load_state_dict(ranges[name, kind].state_dict())
    assert torch.equal(run(kept, x), run(fused, x))


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
