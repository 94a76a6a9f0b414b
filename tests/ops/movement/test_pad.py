"""pad: constants become codes, -inf is qmin, negative amounts crop, other modes repeat codes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from qtune.dtype import QuantDType, qint8, qint16
from qtune.ops import registry
from qtune.ops.registry import spec

from .pipeline import DTYPES, build, check, on_grid

X = torch.from_numpy(np.random.default_rng(0).uniform(-1, 1, (2, 3, 5, 4)).astype(np.float32))
SCALE = 1 / 128


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    "attrs",
    [
        {"pad": (1, 2), "mode": "constant", "value": None},
        {"pad": (1, 0, -1, 2), "mode": "constant", "value": 0.0},
        {"pad": (0, 0, 0, 0, 1, 1), "mode": "constant", "value": 0.5},
        {"pad": (3, 2, 1, 4), "mode": "reflect", "value": None},
        {"pad": (3, 2, 1, 4), "mode": "replicate", "value": None},
        {"pad": (3, 2, 1, 4), "mode": "circular", "value": None},
        {"pad": (1, 2, 0, 0), "mode": "reflect", "value": None},
    ],
    ids=str,
)
def test_borders_on_the_grid_are_exact(attrs: dict[str, Any], dtype: QuantDType) -> None:
    check("pad", [X], attrs, dtype, scales=[SCALE if dtype == qint8 else 1 / 32768])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    ("value", "code"), [(float("-inf"), None), (-1e9, None), (0.3, None), (1e9, None)]
)
def test_the_border_is_the_quantized_constant(value: float, code: None, dtype: QuantDType) -> None:
    attrs = {"pad": (1, 0), "mode": "constant", "value": value}
    line = build("pad", [X], attrs, dtype, scales=[SCALE])
    border = line.integer_results([X])[0][..., 0]
    expected = np.clip(np.floor(value / SCALE + 0.5), dtype.qmin, dtype.qmax) * SCALE
    assert (border == np.float32(expected)).all()


def test_the_known_range_of_codes_grows_by_the_border() -> None:
    attrs = {"pad": (1, 1), "mode": "constant", "value": float("-inf")}
    line = build("pad", [X], attrs, qint16, scales=[SCALE])
    pads = [n for n in line.quantized.model.graph if n.op_type == "Pad16"]
    assert len(pads) == 1


def test_the_float_operator_is_torchs() -> None:
    attrs = {"pad": (1, 1, 0, 2), "mode": "constant", "value": float("-inf")}
    kernel = spec("pad").float_kernel
    assert kernel is not None
    expected = torch.nn.functional.pad(X, (1, 1, 0, 2), value=float("-inf"))
    assert torch.equal(kernel(X, **attrs), expected)
    line = build("pad", [X], attrs, scales=[SCALE])
    floats = torch.from_numpy(line.float_results([X])[0])
    assert torch.equal(floats[..., :-2, 1:-1], on_grid(X, SCALE, qint8))


@pytest.mark.parametrize("mode", ["reflect", "edge", "wrap"])
@pytest.mark.parametrize(
    ("shape", "pads"),
    [
        ((4,), (1, 2)),
        ((3, 4), (1, 0, 2, 1)),
        ((3, 4, 5), (1, 2, 3, 0, 1, 2)),
        ((2, 3, 4, 5), (1, 0, 2, 1, 0, 1, 1, 3)),
        ((2, 2, 3, 4, 2), (0, 1, 1, 0, 1, 0, 0, 2, 1, 0)),
        ((2, 3, 4, 5), (0, 0, -1, 1, 0, 0, 2, -2)),
        ((1, 3, 3), (0, 0, 5, 0, 0, 4)),  # more than there is
    ],
)
def test_imported_borders_of_any_dimension_repeat_as_numpy_does(
    shape: tuple[int, ...], pads: tuple[int, ...], mode: str
) -> None:
    rng, kernel = np.random.default_rng(1), registry.kernel("", "Pad")
    assert kernel is not None
    assert kernel.run_float is not None
    assert kernel.reference is not None
    for x in (rng.normal(size=shape).astype(np.float32), rng.normal(size=shape) > 0):
        given = torch.from_numpy(x), torch.tensor(pads)
        found = kernel.run_float({"mode": mode}, *given)
        assert np.array_equal(found.numpy(), kernel.reference({"mode": mode}, x, pads))
