"""Transposed convolution: A10, A12."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from qtune.march import march

from .steps import (
    INT8,
    STEP,
    calib,
    calibrated,
    distance,
    off,
    prep,
    random_bn,
    run,
    s8,
    stubs,
    to_integer,
)

GEOMETRY: list[tuple[bool, dict[str, Any]]] = [
    (True, {}),
    (False, {"stride": 2, "padding": 1, "output_padding": 1}),
    (True, {"stride": (2, 1), "padding": (0, 2)}),
]
"""With bias or not, and arguments of the layer."""


@pytest.mark.parametrize(("bias", "geometry"), GEOMETRY)
@pytest.mark.parametrize(
    ("cin", "cout", "groups"), [(4, 6, 1), (4, 6, 2), (6, 6, 6), (4, 4, 2), (6, 3, 3)]
)
def test_batch_norm_folds_into_any_transposed_conv(
    cin: int, cout: int, groups: int, bias: bool, geometry: dict[str, Any]
) -> None:
    """A10 grouped ConvTranspose + BN: a shape error, or the wrong channels scaled."""
    conv = nn.ConvTranspose2d(cin, cout, 3, groups=groups, bias=bias, **geometry)
    model, x = nn.Sequential(conv, random_bn(cout)).eval(), torch.randn(2, cin, 5, 5)
    p = prep(model, x, INT8)
    off(p)
    assert distance(run(p, x), run(model, x)) < 1e-5  # the limit that the case names
    assert p.get_submodule("1").op == "identity"
    calib(p, [x])
    (y,) = to_integer(p, x)
    step = float(stubs(p)["1", "output"].scale)
    assert distance(y, run(p, x)) <= step * STEP
    assert distance(run(p, x), run(model, x)) <= 0.05 * float(run(model, x).abs().max())


@pytest.mark.parametrize(("name", "kernel"), [("bayes", 1), ("nash-e", 2)])
def test_each_output_channel_of_a_transposed_conv_has_its_scale(name: str, kernel: int) -> None:
    """A12 along axis 0 (input channels) the small channel would be off by 0.216."""
    conv = nn.ConvTranspose2d(3, 2, kernel, bias=False)  # nash has none of 1 x 1
    conv.weight.data.fill_(1.0)
    conv.weight.data[:, 1] = 100.0
    x = torch.zeros(2, 3, 4, 4)
    x[:, 0, ::2, ::2] = torch.rand(2, 2, 2) + 0.01  # one weight for each output
    model = nn.Sequential(conv)
    with march(name):
        p = calibrated(model, x)
        scale = stubs(p)["0", "weight"].scale
        assert scale.tolist() == [s8(1.0), s8(100.0)]
        expected = run(model, run(p.get_submodule("_input_0_quant"), x))
        (y,) = to_integer(p, x)
    for result in (run(p, x), y):
        assert distance(result[:, 0], expected[:, 0]) <= 0.0040 * STEP
        assert distance(result[:, 1], expected[:, 1]) <= 0.40 * STEP


@pytest.mark.parametrize(("cin", "cout", "groups"), [(4, 6, 2), (6, 6, 6), (6, 3, 3), (4, 4, 2)])
def test_groups_have_one_scale_per_real_output_channel(cin: int, cout: int, groups: int) -> None:
    """A12 with groups, ranges far apart in every channel."""
    conv = nn.ConvTranspose2d(cin, cout, 2, groups=groups, bias=False)
    ranges = 10.0 ** torch.linspace(-3, 2, cout)
    grouped = conv.weight.data.uniform_(-1, 1).reshape(groups, cin // groups, cout // groups, 4)
    grouped /= grouped.abs().amax((1, 3), keepdim=True)
    grouped *= ranges.reshape(groups, 1, cout // groups, 1)
    x = torch.randn(2, cin, 5, 5)
    model = nn.Sequential(conv)
    p = calibrated(model, x)
    scale = stubs(p)["0", "weight"].scale
    assert scale.shape == (cout,)
    # float32 scale or value against the float64 formula: the last bits differ
    assert torch.allclose(scale, ranges / 127.5, rtol=1e-6)
    (y,) = to_integer(p, x)
    expected = run(model, run(p.get_submodule("_input_0_quant"), x))
    for channel in range(cout):
        bound = float(expected[:, channel].abs().max())
        for result in (run(p, x), y):
            assert distance(result[:, channel], expected[:, channel]) <= 0.02 * bound
