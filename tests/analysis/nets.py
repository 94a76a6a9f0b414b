"""Small nets whose numbers can be told by hand, and how to calibrate them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qtune.capture.inputs import as_inputs
from qtune.nn.prepared import PreparedModel
from qtune.quantization import FakeQuantState, prepare, set_fake_quantize


class Sum(nn.Module):
    """``x1 + x2`` of one row: a linear layer with weights 1."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(2, 1, bias=False)
        nn.init.ones_(self.fc.weight)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(x)


class Block(nn.Module):
    """conv + bn + relu, a residual add, a sigmoid, a linear head."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU())
        self.conv = nn.Conv2d(8, 8, 3, padding=1)
        self.head = nn.Linear(8, 4)
        with torch.no_grad():
            self.stem[1].running_mean.uniform_(-0.2, 0.2)
            self.stem[1].running_var.uniform_(0.5, 1.5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        x = torch.sigmoid(self.conv(x) + x)
        return self.head(F.adaptive_avg_pool2d(x, 1).flatten(1))


class Pair(NamedTuple):
    score: Tensor
    index: Tensor


@dataclass
class Detection:
    boxes: Tensor
    aux: dict[str, Any]
    ids: Tensor


class Detector(nn.Module):
    """Nested outputs, one of them integer, one ``None``."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 1)

    def forward(self, x: Tensor, ids: Tensor) -> Detection:
        y = self.conv(x)
        return Detection(y, {"k": (y * 2, None)}, ids + 1)


def calibrated(model: nn.Module, *examples: Any, setter: Any = None) -> PreparedModel:
    """Prepared and calibrated on ``examples``, in VALIDATION."""
    prepared = prepare(model.eval(), examples[0], setter)
    set_fake_quantize(prepared.eval(), FakeQuantState.CALIBRATION)
    for example in examples:
        inputs = as_inputs(example)
        prepared(*inputs.args, **inputs.kwargs)
    set_fake_quantize(prepared, FakeQuantState.VALIDATION)
    return prepared


def fingerprint(model: nn.Module) -> dict[str, Any]:
    """Everything an analysis has to leave as it was."""
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    facts: dict[str, Any] = {}
    for name, module in model.named_modules():
        hooks = len(module._forward_hooks) + len(module._forward_pre_hooks)
        dtype = str(getattr(module, "dtype", ""))
        facts[name] = (module.training, hooks, getattr(module, "state", None), dtype)
    grads = {name: p.grad for name, p in model.named_parameters()}
    return {"state": state, "facts": facts, "grads": grads, "rng": torch.get_rng_state()}


def assert_same(before: dict[str, Any], model: nn.Module) -> None:
    after = fingerprint(model)
    assert after["facts"] == before["facts"]
    assert after["grads"] == before["grads"]
    assert torch.equal(after["rng"], before["rng"])
    assert after["state"].keys() == before["state"].keys()
    for name, tensor in before["state"].items():
        assert torch.equal(after["state"][name], tensor), name
