"""Models, and everything around them, are as before."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from torch import nn

from qtune.profiler.undisturbed import same_randomness, undisturbed


def draws() -> list[float]:
    return [float(torch.rand(())), random.random(), float(np.random.rand())]  # noqa: NPY002


@pytest.mark.parametrize("error", [None, ValueError, KeyboardInterrupt])
def test_random_state_flags_and_gradients_are_as_before(error: type[BaseException] | None) -> None:
    net = nn.Sequential(nn.Linear(2, 2), nn.Dropout())
    net[0].eval()
    gradient = net[0].weight.grad = torch.ones(2, 2)
    net[0].bias.requires_grad_(False)
    with undisturbed(net):
        expected = draws()
    try:
        with undisturbed(net):
            assert draws() == expected
            assert not net[1].training
            assert not net(torch.ones(1, 2)).requires_grad
            if error is not None:
                raise error
    except (ValueError, KeyboardInterrupt) as caught:
        assert type(caught) is error  # noqa: PT017
    assert draws() == expected
    assert (net.training, net[0].training, net[1].training) == (True, False, True)
    assert net[0].weight.grad is gradient
    assert not net[0].bias.requires_grad
    assert torch.is_grad_enabled()


def test_both_models_draw_the_same_numbers_from_every_generator() -> None:
    with same_randomness():
        first = draws()
    with same_randomness():
        assert draws() == first
