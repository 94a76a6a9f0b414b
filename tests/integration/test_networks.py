"""Real kinds of networks through every stage of the torch side."""

from __future__ import annotations

import copy
import pickle
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

from qtune.capture.structure import flatten
from qtune.nn.prepared import PreparedModel
from qtune.nn.qat import iter_stubs
from qtune.quantization import FakeQuantState, prepare, set_fake_quantize

from ..quantization.flow import calib, off, prep, run
from .networks import INT16, NETWORKS, Network

EVERY = pytest.mark.parametrize("network", NETWORKS.values(), ids=NETWORKS)


def leaves(output: Any) -> list[Tensor]:
    return flatten(output)[0]


@cache
def calibrated(network: Network, int16: bool = False) -> PreparedModel:
    """The calibrated model, made once; tests must leave it as it is."""
    data = network.data()
    p = prep(network.model(), data[0], qconfig_setter=INT16 if int16 else None)
    calib(p, data)
    return p


@EVERY
def test_float_state_equals_the_float_model(network: Network) -> None:
    model = network.model()
    p = copy.deepcopy(calibrated(network))
    assert p.float_ops == ()
    off(p)
    for shape in (network.shape, network.other):
        x = torch.randn(shape)
        for got, expected in zip(leaves(run(p, x)), leaves(run(model, x)), strict=True):
            # 1e-5 relative: folded batch norms and decomposed operators (numerics.md section 5)
            assert torch.allclose(got, expected, rtol=1e-5, atol=1e-5 * float(expected.abs().max()))


@EVERY
def test_calibration_runs_the_float_model(network: Network) -> None:
    p, (x, *_) = copy.deepcopy(calibrated(network)), network.data()
    off(p)
    expected = leaves(run(p, x))
    set_fake_quantize(p, FakeQuantState.CALIBRATION)
    assert all(map(torch.equal, leaves(run(p, x)), expected))
    assert all(bool(q.observed) for _, _, q in iter_stubs(p))


@EVERY
def test_validation_is_close_to_float_and_int16_is_closer(network: Network) -> None:
    model, data = network.model(), network.data()
    errors = []
    for int16 in (False, True):
        p = calibrated(network, int16)
        pairs = zip(leaves(run(p, data[0])), leaves(run(model, data[0])), strict=True)
        errors.append(max(float((a - b).abs().max() / b.abs().max()) for a, b in pairs))
    # a handful of int8 steps (1/127.5 each) add up over the layers of these nets
    assert errors[0] < 0.08
    # weights stay int8; activations no longer round visibly
    assert errors[1] < errors[0]


@EVERY
def test_a_training_step_gives_finite_gradients_to_every_parameter(network: Network) -> None:
    p = prepare(network.model().train(), network.data()[0])
    optimizer = torch.optim.SGD(p.parameters(), lr=0.01)
    for x in network.data():
        loss = sum(y.pow(2).mean() for y in leaves(p.train()(x)))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert all(w.grad is not None and w.grad.isfinite().all() for w in p.parameters())
    set_fake_quantize(p.eval(), FakeQuantState.VALIDATION)
    assert all(y.isfinite().all() for y in leaves(run(p, network.data()[0])))


@EVERY
def test_copies_and_pickles_give_the_same_numbers(network: Network) -> None:
    p, (x, *_) = calibrated(network), network.data()
    expected = run(p, x)
    for twin in (copy.deepcopy(p), pickle.loads(pickle.dumps(p))):
        assert all(map(torch.equal, leaves(run(twin, x)), leaves(expected)))
        assert type(run(twin, x)) is type(expected)
        assert twin.float_ops == p.float_ops
    fresh = prep(network.model(), x)
    fresh.load_state_dict(p.state_dict())
    set_fake_quantize(fresh, FakeQuantState.VALIDATION)
    assert all(map(torch.equal, leaves(run(fresh, x)), leaves(expected)))


@EVERY
def test_the_float_state_dict_keeps_its_keys(network: Network) -> None:
    model = network.model()
    p = calibrated(network)
    folded = {
        f"{name}.{key}"
        for name, module in model.named_modules()
        if isinstance(module, torch.nn.BatchNorm2d)
        for key in module.state_dict()
    }
    assert set(model.state_dict()) - folded <= set(p.state_dict())
