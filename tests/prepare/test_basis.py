"""A resolution knows what it was made from, and can be asked again with more rules."""

from __future__ import annotations

import copy
import io

import torch
from torch import nn

from qtune.dtype import qint16
from qtune.march import march
from qtune.qconfig.resolve import resolve_with
from qtune.qconfig.sensitivity import SensitiveOps
from qtune.quantization import prepare


def test_more_rules_decide_as_in_prepare() -> None:
    net, x = (
        nn.Sequential(nn.Conv2d(3, 4, 1), nn.ReLU(), nn.Conv2d(4, 4, 1)).eval(),
        torch.rand(1, 3, 4, 4),
    )
    with march("nash-e"):
        resolution = prepare(net, x).resolution
    assert resolution.basis is not None
    again = resolve_with(resolution.basis, [])
    assert again == resolution
    raised = resolve_with(
        resolution.basis, [SensitiveOps((("1", "output"),), "here").raised(qint16)]
    )
    assert raised.plans["1"].output.dtype == qint16  # type: ignore[union-attr]
    assert raised.plans["0"] == resolution.plans["0"]


def test_a_copy_keeps_it_and_a_pickle_does_without() -> None:
    net, x = nn.Sequential(nn.AvgPool2d(2), nn.Conv2d(3, 4, 1)).eval(), torch.rand(1, 3, 4, 4)
    with march("nash-e"):
        model = prepare(net, x)
    assert copy.deepcopy(model).resolution.basis is model.resolution.basis
    buffer = io.BytesIO()
    torch.save(model.resolution, buffer)
    buffer.seek(0)
    loaded = torch.load(buffer, weights_only=False)
    assert loaded.basis is None
    assert loaded.plans.keys() == model.resolution.plans.keys()
