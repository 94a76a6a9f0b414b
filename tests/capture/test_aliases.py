"""In-place calls and views: the graph is right as recorded, and with every node a pure function."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qtune.capture import capture
from qtune.errors import CaptureError

from .replay import assert_replays, targets
from .test_guards import Lambda


def data(*shape: int) -> Tensor:
    """Whole numbers, so that no sum depends on its order."""
    return torch.randint(-9, 9, shape, generator=torch.Generator().manual_seed(sum(shape))).float()


class InPlace(nn.Module):
    """The model of A15."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
        self.conv2 = nn.Conv2d(4, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv(x)
        y.relu_()
        y += 1
        y[:, 0] *= 2
        return self.conv2(y)


def test_in_place_calls_take_over_the_value() -> None:
    """A15"""
    recorded = assert_replays(InPlace(), data(1, 3, 6, 6), data(4, 3, 9, 7))
    names = ["conv", "relu_", "add_", "__getitem__", "mul_", "__setitem__", "conv2"]
    assert targets(recorded)[1:-1] == names
    nodes = {node.target: node for node in recorded.graph.nodes}
    assert nodes["__setitem__"].args[0] is nodes["add_"]
    assert nodes["__setitem__"].args[2] is nodes["mul_"]
    assert nodes["conv2"].args[0] is nodes["__setitem__"]


def test_users_tensor_is_left_alone_and_changed_where_the_model_changes_it() -> None:
    x = data(1, 3, 6, 6)
    recorded = capture(InPlace(), x)
    before = x.clone()
    recorded(x)
    assert torch.equal(x, before)
    capture(Lambda(lambda t: t.relu_() + 1), x)(x)
    assert torch.equal(x, before.relu())


def changed_view(x: Tensor) -> Tensor:
    y = x * 1
    y[:, 0].mul_(2)
    return y + 1


def changed_select(x: Tensor) -> Tensor:
    y = x * 1
    y.select(1, -1).relu_()
    torch.select(y, 0, index=0).add_(3)
    return y.sum(0)


def changed_narrow(x: Tensor) -> Tensor:
    y = x * 1
    y.narrow(1, 1, 2).zero_()
    return y * 2


def changed_reshape(x: Tensor) -> Tensor:
    y = x * 1
    y.view(-1).sub_(1)
    v = y.flatten()
    v[2:5] = 9.0
    return y * v.view(y.shape)


def changed_transpose(x: Tensor) -> Tensor:
    y = x * 1
    y.t()[0] = 5.0
    return y + x


def base_changes_under_a_view(x: Tensor) -> Tensor:
    y = x * 1
    v = y[1:]
    w = v.t()
    y.relu_()
    return w.sum() + v * 2


def siblings(x: Tensor) -> Tensor:
    y = x * 1
    a, b = y[:, :2], y[:, 1:]
    a += 1
    b *= 2
    a -= 3
    return a.sum() + b.sum() * 2 + y


def disjoint_chunks(x: Tensor) -> Tensor:
    a, b = (x * 1).chunk(2, 0)
    a.relu_()
    return torch.cat([b, a])


def chunk_of_changed_base(x: Tensor) -> Tensor:
    y = x * 1
    a, b = y.chunk(2, 0)
    y += 1
    return a * b


def detached(x: Tensor) -> Tensor:
    y = x * 1
    y.detach().add_(1)
    y.data.mul_(2)
    return y


def nested_item_assignment(x: Tensor) -> Tensor:
    y = x * 1
    y[1][0] = 4.0
    y[0][1:] += x[0][1:]
    return y * 2


def masked_assignment(x: Tensor) -> Tensor:
    y = x.clone()
    y[y < 0] = 0
    y[:, torch.tensor([0, 2])] = x[:, :2]
    return y


def assignment_of_changed_other_view(x: Tensor) -> Tensor:
    y = x * 1
    v = y[0]
    v.add_(1)
    y[1] = v
    return y


def out_argument(x: Tensor) -> Tensor:
    y = torch.empty_like(x)
    torch.add(x, x, out=y)
    return y * 2


def functional_in_place(x: Tensor) -> Tensor:
    y = x * 1
    F.relu(y, inplace=True)
    F.leaky_relu_(y, 0.2)
    return y + 1


def accumulated(x: Tensor) -> Tensor:
    total = torch.zeros(1, 3)
    rows = torch.from_numpy(torch.zeros(1, 3).numpy())
    for _ in range(2):
        total += x.sum(0)
        rows += x.sum(0)
    return total + rows


def filled_constant_view(x: Tensor) -> Tensor:
    table = torch.from_numpy(torch.zeros(2, 3).numpy())
    table[0] = x.sum(0)
    return table * 2


def metadata_in_place(x: Tensor) -> Tensor:
    y = x * 1
    y.unsqueeze_(0).transpose_(1, 2)
    return y.squeeze_(0)


CASES: tuple[Callable[[Tensor], Tensor], ...] = (
    changed_view,
    changed_select,
    changed_narrow,
    changed_reshape,
    changed_transpose,
    base_changes_under_a_view,
    siblings,
    disjoint_chunks,
    chunk_of_changed_base,
    detached,
    nested_item_assignment,
    masked_assignment,
    assignment_of_changed_other_view,
    out_argument,
    functional_in_place,
    accumulated,
    filled_constant_view,
    metadata_in_place,
)


@pytest.mark.parametrize("function", CASES, ids=lambda f: f.__name__)
def test_value_after_changes_in_place(function: Callable[[Tensor], Tensor]) -> None:
    recorded = assert_replays(Lambda(function), data(4, 3), data(4, 3) * 2)
    first, second = recorded(data(4, 3)), recorded(data(4, 3))  # nothing is left from a call
    assert torch.equal(first, second)


@pytest.mark.parametrize(
    "function", [f for f in CASES if f not in (disjoint_chunks, changed_reshape)]
)
def test_value_after_changes_in_place_at_other_batches(
    function: Callable[[Tensor], Tensor],
) -> None:
    assert_replays(Lambda(function), data(4, 3), data(6, 3), data(2, 3))


def test_module_in_place_takes_over_the_value() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 1), nn.ReLU(inplace=True), nn.Conv2d(4, 2, 1))
    recorded = assert_replays(model, data(1, 3, 5, 5), data(2, 3, 4, 4))
    calls = [n for n in recorded.graph.nodes if n.op == "call_module"]
    assert [n.args[0] for n in calls[1:]] == calls[:-1]


def test_buffers_that_forward_changes_keep_their_state() -> None:
    class Counter(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("steps", torch.zeros(()))
            self.register_buffer("last", torch.zeros(3))

        def forward(self, x: Tensor) -> Tensor:
            self.steps += 1
            self.last[:] = x[0]
            return x * self.steps + self.last

    model = Counter()
    recorded = capture(model, data(2, 3))
    for _ in range(3):
        assert torch.equal(recorded(data(4, 3)), data(4, 3) * model.steps + data(4, 3)[0])
    assert model.steps == 3  # shared with the model, as documented


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (
            lambda x: (y := x * 1, y.chunk(3, 1)[0].relu_(), y)[-1],
            "changed in place and its base is used afterwards",
        ),
        (
            lambda x: (y := x * 1, y.diagonal().zero_(), y)[-1],
            "what `diagonal` did to its shape can't be undone",
        ),
    ],
)
def test_changes_that_cannot_be_followed_are_refused(
    function: Callable[[Tensor], Any], message: str
) -> None:
    with pytest.raises(CaptureError, match=message):
        capture(Lambda(function), data(4, 3))


def test_plain_attribute_that_forward_changes_is_refused() -> None:
    class State(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.state = torch.zeros(3)

        def forward(self, x: Tensor) -> Tensor:
            self.state.add_(x.sum(0))
            return x + self.state

    model = State()
    with pytest.raises(CaptureError, match=r"changes `state` in place.*register_buffer"):
        capture(model, data(2, 3))
    assert torch.equal(model.state, torch.zeros(3))


def test_assignment_to_data_is_refused() -> None:
    def assign(x: Tensor) -> Tensor:
        y = x * 1
        y.data = x * 2
        return y

    with pytest.raises(CaptureError, match=r"assigns to `.data`"):
        capture(Lambda(assign), data(2, 3))
