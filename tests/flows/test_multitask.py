"""One graph for each task and for losses in training, on handwritten digits."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qtune import Inputs
from qtune.nn.prepared import PreparedModel
from qtune.quantization import FakeQuantState, prepare, set_fake_quantize
from qtune.quantization.hbdk4 import convert, export

from .digits import POINT, batches, example, fit


class Tasks(nn.Module):
    """The digit, or whether it is even; with labels in training the loss of the task."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(1, 16, 3, 2, 1), nn.BatchNorm2d(16), nn.ReLU())
        self.body = nn.Sequential(nn.Conv2d(16, 32, 3), nn.BatchNorm2d(32), nn.ReLU())
        self.heads = nn.ModuleDict({"digit": nn.Linear(128, 10), "even": nn.Linear(128, 2)})
        self.loss = nn.CrossEntropyLoss()
        self.loss.qconfig = None

    def forward(self, x: Tensor, labels: Tensor | None = None, task: str = "digit") -> Tensor:
        found = self.heads[task](self.body(self.stem(x)).flatten(1))
        if self.training and labels is not None:
            loss: Tensor = self.loss(found, labels)
            return loss
        result: Tensor = found
        return result


def train(model: nn.Module, epochs: int, lr: float) -> None:
    def backward(images: Tensor, labels: Tensor) -> None:
        model(images, labels).backward()
        model(images, labels % 2, task="even").backward()

    fit(model, epochs, lr, backward)


def accuracies(model: Any) -> tuple[float, float]:
    _, (images, labels) = example.split()
    with torch.no_grad():
        digit = model(images).argmax(1) == labels
        even = model(images, task="even").argmax(1) == labels % 2
    return float(digit.float().mean()), float(even.float().mean())


@pytest.fixture(scope="module")
def net() -> nn.Module:
    torch.manual_seed(0)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    model = Tasks()
    train(model, 6, 8e-3)
    torch.set_num_threads(threads)
    return model


def prepared(net: nn.Module) -> PreparedModel:
    (images, labels), _ = example.split()
    x, y = images[:8], labels[:8]
    calls = [Inputs(x), Inputs(x, task="even")]
    losses = [Inputs(x, y), Inputs(x, y % 2, task="even")]
    model: PreparedModel = prepare(net, [*calls, *(call.in_mode(training=True) for call in losses)])
    return model


def calibrate(model: nn.Module, *tasks: str) -> None:
    with torch.no_grad():
        for images in batches():
            for task in tasks:
                model(images, task=task)


def test_tasks_and_losses_share_one_model_from_calibration_to_integers(net: nn.Module) -> None:
    reference = accuracies(net)
    assert min(reference) > 0.9
    model = prepared(net)
    set_fake_quantize(model.eval(), FakeQuantState.CALIBRATION)
    calibrate(model, "digit", "even")
    set_fake_quantize(model, FakeQuantState.VALIDATION)
    assert _near(accuracies(model), reference)

    set_fake_quantize(model, FakeQuantState.QAT)
    train(model, 1, 1e-4)
    set_fake_quantize(model, FakeQuantState.VALIDATION)
    assert _near(accuracies(model), reference)
    _, (images, labels) = example.split()
    integers = convert(export(model, Inputs(images, task="even")))
    right = integers[0](images, task="even").argmax(1) == labels % 2
    assert abs(float(right.float().mean()) - reference[1]) <= POINT


def _near(found: tuple[float, ...], reference: tuple[float, ...]) -> bool:
    return all(abs(a - b) <= POINT for a, b in zip(found, reference, strict=True))


def test_only_the_head_with_a_loss_of_accuracy_is_calibrated_again(net: nn.Module) -> None:
    model = prepared(net)
    set_fake_quantize(model.eval(), FakeQuantState.CALIBRATION)
    calibrate(model, "digit", "even")
    set_fake_quantize(model, FakeQuantState.VALIDATION)
    before = copy.deepcopy(model.state_dict())
    set_fake_quantize(model.get_submodule("heads.even"), FakeQuantState.CALIBRATION)
    with torch.no_grad():
        model.get_submodule("heads.even").weight.mul_(0.5)
        model(batches()[0], task="even")
    set_fake_quantize(model, FakeQuantState.VALIDATION)
    moved = {k for k, v in model.state_dict().items() if not torch.equal(v, before[k])}
    assert moved
    assert all(key.startswith("heads.even.") for key in moved)


def test_the_loss_of_the_graph_is_torchs_own(net: nn.Module) -> None:
    model = prepared(net)
    set_fake_quantize(model.train(), FakeQuantState._FLOAT)
    (images, labels), _ = example.split()
    found = model(images[:32], labels[:32])
    model.eval()
    expected = F.cross_entropy(model(images[:32]), labels[:32])
    # the batch norms are folded, so training mode changes nothing else
    assert torch.equal(found, expected)
