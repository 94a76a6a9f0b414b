"""Ctrl-C while a calibration runs: at any operator, in the loader, as a signal."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from qtune.nn.prepared import PreparedModel
from qtune.nn.qat import QATOp, iter_stubs
from qtune.quantization import (
    DeQuantStub,
    FakeQuantState,
    PrepareMethod,
    QuantStub,
    auto_calibrate,
    get_default_qconfig,
    prepare,
    set_fake_quantize,
)
from qtune.quantizers.scope import current_scope

X = torch.linspace(-1, 1, 2 * 3 * 6 * 6).reshape(2, 3, 6, 6)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.quant, self.dequant = QuantStub(), DeQuantStub()
        self.conv, self.norm, self.relu = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU()
        self.last = nn.Conv2d(4, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.relu(self.norm(self.conv(self.quant(x))))
        result: Tensor = self.dequant(self.last(x + torch.rand(1)))
        return result


def graph() -> nn.Module:
    torch.manual_seed(0)
    return prepare(Net().eval(), X)


def learned() -> nn.Module:
    torch.manual_seed(0)
    net = Net().eval()
    net.qconfig = get_default_qconfig(activation_fake_quant="lsq", weight_fake_quant="pact")  # type: ignore[assignment]
    return prepare(net, X)


def eager() -> nn.Module:
    torch.manual_seed(0)
    net = Net().eval()
    net.qconfig = get_default_qconfig()  # type: ignore[assignment]
    prepared: nn.Module = prepare(net, method=PrepareMethod.EAGER)
    return prepared


KINDS = {"graph": graph, "learned": learned, "eager": eager}


def everything(model: nn.Module) -> dict[str, Any]:
    """What an interrupted loop leaves as it was."""
    found: dict[str, Any] = {f"state {k}": v.clone() for k, v in model.state_dict().items()}
    found |= {f"buffer {k}": v.clone() for k, v in model.named_buffers()}
    found |= {f"gradient {k}": p.grad for k, p in model.named_parameters()}
    found |= {f"wants gradient {k}": p.requires_grad for k, p in model.named_parameters()}
    for name, module in model.named_modules():
        found[f"training {name}"] = module.training
        found[f"hooks {name}"] = [*module._forward_hooks, *module._forward_pre_hooks]
    found |= {f"{kind} of {name}": q.state for name, kind, q in iter_stubs(model)}
    found["torch"], found["python"] = torch.get_rng_state(), random.getstate()
    found["numpy"] = np.random.get_state()[1].tolist()  # type: ignore[index]
    found["grad mode"], found["scope"] = torch.is_grad_enabled(), current_scope()
    return found


def check_same(model: nn.Module, before: dict[str, Any]) -> None:
    after = everything(model)
    assert after.keys() == before.keys()
    for name, value in before.items():
        is_same = torch.equal(value, after[name]) if isinstance(value, Tensor) else None
        assert value == after[name] if is_same is None else is_same, name


def in_use(model: nn.Module) -> nn.Module:
    """Calibrated on other data, in training, one part in a state of its own, with gradients."""
    auto_calibrate(model, [X / 2])
    set_fake_quantize(model.train(), FakeQuantState.QAT)
    model(X).sum().backward()
    first = next(module for module in model.modules() if isinstance(module, QATOp))
    set_fake_quantize(first.eval(), FakeQuantState._FLOAT)
    return model


def operators(model: nn.Module) -> list[QATOp]:
    return [module for module in model.modules() if isinstance(module, QATOp)]


def interrupting(op: nn.Module, at_call: int) -> None:
    calls = []

    def hook(*_: Any) -> None:
        calls.append(1)
        if len(calls) == at_call:
            raise KeyboardInterrupt

    op.register_forward_hook(hook)


@pytest.mark.parametrize("kind", KINDS)
def test_interrupted_at_any_operator_the_model_is_as_it_was(kind: str) -> None:
    count = len(operators(KINDS[kind]()))
    assert count >= 4
    for place in range(count):
        model = in_use(KINDS[kind]())
        interrupting(operators(model)[place], at_call=1 + place % 2)
        before = everything(model)
        with pytest.raises(KeyboardInterrupt):
            auto_calibrate(model, [X * 3, X * 4])
        check_same(model, before)


@pytest.mark.parametrize("kind", KINDS)
def test_a_calibration_after_an_interrupted_one_is_a_first_one(kind: str) -> None:
    model, twin = KINDS[kind](), KINDS[kind]()
    interrupting(operators(model)[2], at_call=2)
    with pytest.raises(KeyboardInterrupt):
        auto_calibrate(model, [X * 5, X * 7])
    for calibrated in (model, twin):
        torch.manual_seed(1)
        auto_calibrate(calibrated, [X, X * 2])
    found, expected = model.state_dict(), twin.state_dict()
    assert all(torch.equal(value, found[name]) for name, value in expected.items())


def drawing(error: BaseException) -> Iterator[Tensor]:
    """A loader that draws random numbers."""
    torch.rand(1), random.random(), np.random.rand()
    yield X * 5
    raise error


@pytest.mark.parametrize("kind", KINDS)
def test_interrupted_in_the_loader_random_state_goes_back_too(kind: str) -> None:
    model = in_use(KINDS[kind]())
    before = everything(model)
    with pytest.raises(KeyboardInterrupt):
        auto_calibrate(model, drawing(KeyboardInterrupt()))
    check_same(model, before)


def interrupted_in(call: Callable[[nn.Module], Any], model: nn.Module) -> None:
    interrupting(operators(model)[1], at_call=1)
    with pytest.raises(KeyboardInterrupt):
        call(model)


@pytest.mark.parametrize("kind", KINDS)
def test_a_loop_of_the_users_own_can_go_on_after_an_interrupt(kind: str) -> None:
    """Each forward is a batch of its own to the observers, also the ones after an interrupt."""
    model, twin = KINDS[kind](), KINDS[kind]()
    set_fake_quantize(model, FakeQuantState.CALIBRATION)
    interrupted_in(lambda m: m(X), model)
    model.load_state_dict(twin.state_dict())
    set_fake_quantize(twin, FakeQuantState.CALIBRATION)
    for calibrated in (model, twin):
        torch.manual_seed(1)
        with torch.no_grad():
            for data in (X, X * 2, X * 3):
                calibrated(data)
    assert current_scope() is None
    found, expected = model.state_dict(), twin.state_dict()
    assert all(torch.equal(value, found[name]) for name, value in expected.items())


_SCRIPT = """
import signal
import torch
from tests.quantization.test_interrupted import X, check_same, everything, graph, in_use
import qtune
from qtune.quantization import auto_calibrate

signal.signal(signal.SIGINT, signal.default_int_handler)  # jobs in the background ignore it
qtune.set_march("nash-e")
model = in_use(graph())
before = everything(model)

def endless():
    yield X
    print("running", flush=True)
    while True:
        yield X * 2

try:
    auto_calibrate(model, endless())
except KeyboardInterrupt:
    check_same(model, before)
    print("as it was")
"""


def test_a_signal_stops_a_calibration_and_the_model_is_as_it_was() -> None:
    environment = {**os.environ, "QTUNE_RUN_DIR": "", "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(
        [sys.executable, "-c", _SCRIPT],
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
        cwd=Path(__file__).parents[2],
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "running\n"
        process.send_signal(signal.SIGINT)
        try:
            assert process.communicate(timeout=60)[0] == "as it was\n"
        finally:
            process.kill()  # leaving the block waits for it
    assert process.returncode == 0


def test_progress_changes_no_result_and_writes_to_standard_error_only(
    capfd: pytest.CaptureFixture[str],
) -> None:
    found = []
    for progress in (True, False):
        model = graph()
        torch.manual_seed(1)
        auto_calibrate(model, [X, X * 2], progress=progress)
        found.append(({**model.state_dict()}, torch.get_rng_state()))
        assert isinstance(model, PreparedModel)
    (shown, state), (hidden, other) = found
    assert all(torch.equal(value, hidden[name]) for name, value in shown.items())
    assert torch.equal(state, other)
    out, err = capfd.readouterr()
    assert out == ""
    assert err.count("calibrate:   0%") == 1
    assert "2/2" in err
