"""A15, A16, A17 on models with several branches and on the other operators of their kind."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qtune import Inputs
from qtune.quantization import hbdk4
from tests.cases.steps import calib, distance, off, prep, run, stubs
from tests.cases.test_forward_code import Shapes, sized


def test_each_example_of_control_flow_on_shapes_is_a_branch() -> None:
    """A17 with an example of each path every size equals the float model."""
    model = Shapes().eval()
    flat = (torch.randn(1, 3, 8, 8), torch.randn(1, 3, 1, 1))
    p = prep(model, [Inputs(*sized(1, 8)), Inputs(*sized(1, 9)), Inputs(*flat)])
    off(p)
    for width in (8, 9, 10, 11):
        for batch in (1, 4):
            data = sized(batch, width)
            assert torch.equal(run(p, data), run(model, data))
    assert torch.equal(run(p, flat), run(model, flat))
    calib(p, [sized(2, 8), sized(2, 9), flat])
    for width in (8, 9):
        data = sized(2, width)
        module = hbdk4.export(p, data)
        assert torch.equal(module[0](*data), run(p, data))
        integer = hbdk4.convert(module)[0](*data)
        assert distance(integer, run(p, data)) <= 0.02 * float(run(p, data).abs().max())


SHAPE_DECISIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "loop over rows": lambda x: torch.stack([x[:, i] * (i + 1) for i in range(x.shape[1])], 1),
    "padding to a multiple": lambda x: F.pad(x, (0, -x.shape[-1] % 4)),
    "window that must fit": lambda x: F.avg_pool2d(x, min(3, x.shape[-1])),
    "two ways by area": lambda x: x * 2 if x.shape[-1] * x.shape[-2] > 60 else x + 1,
    "position table": lambda x: x + torch.arange(x.shape[-1]) / x.shape[-1],
}


@pytest.mark.parametrize("kind", SHAPE_DECISIONS)
def test_decisions_on_shapes_with_an_example_of_each_size(kind: str) -> None:
    """A17 the whole kind: sizes in loops, pads, windows, comparisons and tables."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, 3, 1)

        def forward(self, x: Tensor) -> Tensor:
            return SHAPE_DECISIONS[kind](self.conv(x))

    model, sizes = Model().eval(), [(3, 8, 8), (3, 8, 9), (3, 6, 7)]
    p = prep(model, [Inputs(torch.randn(1, *size)) for size in sizes])
    off(p)
    for size in sizes:
        for batch in (1, 3):
            x = torch.randn(batch, *size)
            assert torch.equal(run(p, x), run(model, x))


MASKS: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "where": lambda x, ids: (torch.where(ids > 2, x, -x), ids * 2),
    "masked_fill": lambda x, ids: (x.masked_fill(ids == 3, 0.0), ids.bool()),
    "index_select": lambda x, ids: (x.index_select(1, ids[0] % 3), ids.argsort(1)),
    "gather": lambda x, ids: (x.gather(1, ids % 3), ids.cumsum(1)),
    "logical": lambda x, ids: (x * ((x > 0) & ~(ids > 3)), (x > 0) ^ (ids > 3)),
    "advanced index": lambda x, ids: (x[:, ids[0] % 3], ids[:, 0]),
    "boolean assignment": lambda x, ids: (_masked(x, ids > 2), ids.clamp(1, 3)),
    "comparison": lambda x, ids: (x * (ids >= 2).to(x.dtype), ids.eq(2)),
}


def _masked(x: Tensor, mask: Tensor) -> Tensor:
    return torch.where(mask, x.new_zeros(()), x)


@pytest.mark.parametrize("kind", MASKS)
def test_integer_and_bool_results_are_exact_and_unobserved(kind: str) -> None:
    """A16 the whole kind: masks, indices and their arithmetic."""

    class Model(nn.Module):
        def forward(self, x: Tensor, ids: Tensor) -> Any:
            return MASKS[kind](x, ids)

    model, x, ids = Model(), torch.randn(2, 6), torch.randint(0, 6, (2, 6))
    p = prep(model, (x, ids))
    off(p)
    expected = run(model, (x, ids))
    assert torch.equal(run(p, (x, ids))[0], expected[0])
    calib(p, [(x, ids)])
    y, second = run(p, (x, ids))
    assert second.dtype is expected[1].dtype
    assert torch.equal(second, expected[1])
    # one step of qint8 for the input and one for the result, absmax / 127.5 each
    assert distance(y, expected[0]) <= 2 * float(x.abs().max()) / 127.5
    floating = {n.meta["name"] for n, _ in p.operators() if n.meta["dtype"] is torch.float32}
    assert {name for name, _ in stubs(p)} <= floating


def test_in_place_changes_stay_in_their_branch() -> None:
    """A15 one path changes a shared value in place, the other does not."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.conv2 = nn.Conv2d(3, 4, 3), nn.Conv2d(4, 2, 1)

        def forward(self, x: Tensor, change: bool) -> Tensor:
            y = self.conv(x)
            if change:
                y.relu_()
                y += 1
                y[:, 0] *= 2
            return self.conv2(y)

    model, x = Model().eval(), torch.randn(2, 3, 6, 6)
    examples = [(x, True), (x, False)]
    p = prep(model, examples)
    off(p)
    for inputs in examples:
        assert torch.equal(run(p, inputs), run(model, inputs))
    calib(p, examples)
    for inputs in examples:
        expected = run(model, inputs)
        # about one step of 1/127.5 for each of the four to six operators of the path
        assert distance(run(p, inputs), expected) <= 0.05 * float(expected.abs().max())
