"""Max pools: the input's codes, border qmin, no indices."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from qtune.dtype import QuantDType
from qtune.ops.registry import find_function, spec

from ..movement.pipeline import DTYPES, build, check
from ..movement.spelling import operator_of, operator_of_module

X = torch.from_numpy(np.random.default_rng(0).uniform(-1, 1, (2, 3, 19, 17)).astype(np.float32))
POOL = {
    "kernel_size": (3, 3),
    "stride": (2, 2),
    "padding": (1, 1),
    "dilation": (1, 1),
    "ceil_mode": False,
}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"ceil_mode": True, "padding": (0, 0)},
        {"ceil_mode": True, "kernel_size": (2, 2), "stride": (3, 3)},
        {"dilation": (2, 3), "padding": (0, 1)},
        {"kernel_size": (5, 5), "stride": (1, 1), "padding": (2, 2)},
        {"kernel_size": (2, 4), "stride": (4, 1), "padding": (1, 0), "ceil_mode": True},
    ],
    ids=str,
)
def test_every_geometry_takes_torchs_elements(changes: dict[str, Any], dtype: QuantDType) -> None:
    check("max_pool2d", [X], {**POOL, **changes}, dtype)


def test_a_negative_map_keeps_its_maxima_at_the_border() -> None:
    x = -X.abs() - 1
    line = check("max_pool2d", [x], POOL)
    assert line.integer_results([x])[0].max() < 0


def test_maps_of_more_than_255_elements_are_pooled_whole() -> None:
    """torch's own 8-bit max_pool2d refuses them in channels_last."""
    x = torch.rand(1, 4, 40, 40, generator=torch.Generator().manual_seed(0)) - 0.5
    check("max_pool2d", [x], {**POOL, "kernel_size": (40, 40), "padding": (0, 0)})


def test_a_window_of_border_only_is_qmin() -> None:
    x = torch.full((1, 1, 3, 3), 0.5)
    attrs = {**POOL, "kernel_size": (2, 2), "dilation": (4, 4), "padding": (1, 1)}
    line = build("max_pool2d", [x], attrs, scales=[1 / 128])
    assert line.float_results([x])[0].tolist() == [[[[float("-inf")]]]]
    assert line.integer_results([x])[0].tolist() == [[[[-1.0]]]]


def test_an_unbatched_map_is_pooled() -> None:
    check("max_pool2d", [X[0]], POOL)


def test_spellings() -> None:
    y = X[0]
    assert operator_of(lambda: F.max_pool2d(X, 2)) == "max_pool2d"
    assert operator_of(lambda: F.max_pool2d(X, 2, [])) == "max_pool2d"
    assert operator_of(lambda: F.max_pool2d(X, (2, 3), (1, 1), 1, ceil_mode=True)) == "max_pool2d"
    assert operator_of(lambda: torch.max_pool2d(X, 3, 2)) == "max_pool2d"
    assert operator_of(lambda: F.max_pool1d(y, 2)) == "max_pool1d"
    assert operator_of(lambda: torch.max_pool1d(y, 2, 1)) == "max_pool1d"
    assert operator_of(lambda: F.adaptive_max_pool2d(X, 3)) == "adaptive_max_pool2d"
    assert operator_of_module(nn.MaxPool2d(3, 2, 1, ceil_mode=True), X) == "max_pool2d"
    assert operator_of_module(nn.MaxPool1d(3, 2), y) == "max_pool1d"
    assert operator_of_module(nn.AdaptiveMaxPool2d((2, 3)), X) == "adaptive_max_pool2d"


def test_indices_are_refused() -> None:
    for module, x in (
        (nn.MaxPool2d(2, return_indices=True), X),
        (nn.MaxPool1d(2, return_indices=True), X[0]),
        (nn.AdaptiveMaxPool2d(2, return_indices=True), X),
    ):
        with pytest.raises(NotImplementedError, match="return_indices"):
            operator_of_module(module, x)
    assert find_function(F.max_pool2d_with_indices) is None


def test_marches_limit_kernels_strides_and_pads() -> None:
    checks = {rule.series[0]: rule.check for rule in spec("max_pool2d").march}
    shape = (1, 3, 300, 300)
    for series, kernel, fits in (
        ("bernoulli", 64, True),
        ("bernoulli", 65, False),
        ("nash", 256, True),
        ("nash", 257, False),
    ):
        refuse = checks[series]
        assert refuse is not None
        attrs = {**POOL, "kernel_size": (kernel, 2)}
        assert (refuse(attrs, [shape], shape) is None) == fits
    refuse = checks["bayes"]
    assert refuse is not None
    assert "8192" in str(refuse(POOL, [(1, 3, 9000, 10)], shape))
