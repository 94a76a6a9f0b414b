"""reshape: which sizes of the target stay open for other inputs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from qtune.ops.kernel import ExampleSize
from qtune.ops.movement.reshape import open_shape
from qtune.ops.registry import kernel

from .pipeline import build, check

N = ExampleSize(2)
CASES = [
    # x.view(x.size(0), -1)
    ((N, -1), (2, 3, 4), [0, -1]),
    # x.view(n, c * h): the one computed size follows from the others
    ((N, 12), (2, 3, 4), [-1, 12]),
    # x.view(n * c, h)
    ((ExampleSize(6), 4), (2, 3, 4), [-1, 4]),
    # x.view(n, c, h * w) with every size computed
    ((N, ExampleSize(3), ExampleSize(20)), (2, 3, 4, 5), [0, 0, -1]),
    # written as numbers: stays as it is, another batch is refused as torch refuses it
    ((2, 12), (2, 3, 4), [2, 12]),
    ((1, -1), (1, 3, 4), [1, -1]),
    ((N, ExampleSize(4), ExampleSize(3)), (2, 12), [0, 4, 3]),
]


@pytest.mark.parametrize(("shape", "before", "target"), CASES)
def test_computed_sizes_stay_open(
    shape: tuple[int, ...], before: tuple[int, ...], target: list[int]
) -> None:
    assert open_shape(shape, before) == target


OPEN_CALLS: list[tuple[str, tuple[int, ...], dict[str, Any]]] = [
    ("reshape", (2, 3, 4), {"shape": (N, -1)}),
    ("reshape", (2, 3, 4), {"shape": (N, 4, 3)}),
    ("reshape", (2, 3, 4), {"shape": (N, ExampleSize(3), 2, 2)}),
    ("flatten", (2, 3, 4), {"start_dim": 1, "end_dim": -1}),
    ("flatten", (2, 3, 4), {"start_dim": 0, "end_dim": 1}),
    ("unflatten", (2, 6), {"dim": 1, "sizes": (2, 3)}),
    ("pixel_shuffle", (2, 8, 3, 3), {"upscale_factor": 2}),
    ("channel_shuffle", (2, 8, 3, 3), {"groups": 4}),
    ("expand", (2, 1, 3), {"sizes": (N, 4, -1)}),
    ("getitem", (2, 3, 4), {"index": (slice(0, N), 1)}),
    ("flip", (2, 3), {"dims": (0, 1)}),
]


@pytest.mark.parametrize(("name", "shape", "attrs"), OPEN_CALLS)
def test_an_exported_operator_runs_with_another_batch_size(
    name: str, shape: tuple[int, ...], attrs: dict[str, Any]
) -> None:
    rng = np.random.default_rng(1)
    example, other = (
        torch.from_numpy(rng.uniform(-1, 1, (n, *shape[1:])).astype(np.float32)) for n in (2, 5)
    )
    tensors = [example, None] if name == "getitem" else [example]
    line = build(name, tensors, attrs, open_batch=True)
    whole = line.integer_results([other])[0]
    first = line.integer_results([other[:2]])[0]
    assert whole.size == 5 * first.size // 2
    if name != "flip":
        np.testing.assert_array_equal(whole.reshape(-1)[: first.size], first.reshape(-1))


def test_an_empty_batch_is_reshaped() -> None:
    found = kernel("", "Reshape")
    assert found is not None
    assert found.run_float is not None
    assert found.reference is not None
    target = np.array([0, -1])
    empty = found.run_float({}, torch.zeros(0, 3, 4), torch.from_numpy(target))
    assert empty.shape == (0, 12)
    assert found.reference({}, np.zeros((0, 3, 4), np.int64), target).shape == (0, 12)


def test_flattening_to_one_dimension_and_scalars_from_views() -> None:
    x = torch.randn(2, 3, generator=torch.Generator().manual_seed(0))
    check("reshape", [x], {"shape": (-1,)})
    check("reshape", [x], {"shape": (6, 1, 1, 1)})
