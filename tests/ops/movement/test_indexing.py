"""Indices: what is sliced, squeezed, gathered, and what stays open for another batch size."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from qtune.ops import registry
from qtune.ops.kernel import ExampleSize
from qtune.ops.movement.indexing import OPEN, canonical_index, numpy_region, plan_index

from .pipeline import check

X = torch.arange(2 * 5 * 4 * 6, dtype=torch.float32).reshape(2, 5, 4, 6) - 100

INDICES: list[Any] = [
    0,
    (slice(None), -1),
    (slice(None), 2, 1),
    (..., 0),
    (0, ..., -1),
    (slice(1, None), slice(None, -1), ..., slice(0, 6, 2)),
    (None, 0, None, ..., None),
    (slice(None), [0, 3, -2]),
    (0, slice(None), [1, 1]),
    (slice(-100, 100),),
    (slice(None), slice(3, 3)),
    (Ellipsis,),
    (),
]


@pytest.mark.parametrize("index", INDICES, ids=str)
def test_every_index_takes_what_torch_takes(index: Any) -> None:
    items, tensors = canonical_index(index)
    assert tensors == ()
    check("getitem", [X], {"index": items})


@pytest.mark.parametrize("shape", [(3,), (2, 2), ()])
def test_a_tensor_of_indices_is_gathered_at_its_place(shape: tuple[int, ...]) -> None:
    rows = torch.from_numpy(np.random.default_rng(0).integers(-5, 5, shape))
    items, tensors = canonical_index((0, rows, ..., None))
    check("getitem", [X, *tensors], {"index": items})


def rows(*shape: int, size: int, seed: int = 0) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).integers(-size, size, shape))


@pytest.mark.parametrize(
    "index",
    [
        (slice(None), rows(3, size=5), rows(3, size=4)),
        (slice(None), rows(3, 1, size=5), rows(2, size=4, seed=1), slice(1, None)),
        (rows(2, size=2), slice(None), rows(2, size=4)),
        (slice(None), [0, -1], rows(2, size=4), [1, -2]),
        (0, rows(4, size=5), rows(4, size=4), None),
        (slice(None), [0, 2], [1, 3], slice(None, None, 2)),
    ],
    ids=str,
)
def test_several_tensors_of_indices_are_one_into_the_joined_axes(index: Any) -> None:
    items, tensors = canonical_index(index)
    check("getitem", [X, *tensors], {"index": items})


def test_a_size_of_the_input_as_the_end_keeps_the_slice_open() -> None:
    plan = plan_index((slice(0, ExampleSize(2)), slice(0, 5)), (2, 5))
    assert plan.slices == [(0, 5, 1, 1)]


def test_the_last_element_is_sliced_to_the_open_end() -> None:
    assert plan_index((-1,), (2, 5)).slices == [(-1, OPEN, 0, 1)]


def test_a_negative_step_reaches_the_first_element() -> None:
    region = numpy_region((4,), [-1], [-(2**63)], [0], [-1])
    assert np.arange(4)[region].tolist() == [3, 2, 1, 0]
    assert np.arange(4)[numpy_region((4,), [3], [0], [0], [-2])].tolist() == [3, 1]


@pytest.mark.parametrize("index", [True, 1.5, "a", [True, False], [[0], [1]]])
def test_other_indices_are_refused_by_name(index: Any) -> None:
    with pytest.raises(NotImplementedError, match="index"):
        canonical_index(index)


@pytest.mark.parametrize(
    ("start", "end", "step", "taken"),
    [
        (-6, -(2**62), -1, [0]),  # Python's [-6::-1] is empty; the standard clamps the start to 0
        (-6, -2, -1, []),
        (9, -(2**62), -2, [3, 1]),
        (-2, -(2**62), -1, [2, 1, 0]),
        (-9, 9, 2, [0, 2]),
        (2, 2, -1, []),
    ],
)
def test_an_onnx_slice_takes_what_onnxruntime_takes(
    start: int, end: int, step: int, taken: list[int]
) -> None:
    region = numpy_region((4,), [start], [end], [0], [step])
    assert np.arange(4)[region].tolist() == taken
    given = [torch.tensor([value]) for value in (start, end, 0, step)]
    kernel = registry.kernel("", "Slice")
    assert kernel is not None
    assert kernel.run_float is not None
    assert kernel.run_float({}, torch.arange(4), *given).tolist() == taken
    assert not np.arange(0)[numpy_region((0,), [start], [end], [0], [step])].size
