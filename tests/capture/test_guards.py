"""Control flow: other sizes either replay right or are refused with a GuardError, never wrong."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qtune.capture import Inputs, capture
from qtune.errors import CaptureError, GuardError

from .replay import assert_replays, assert_same_call


class Lambda(nn.Module):
    """A model of one expression."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Any) -> Any:
        return self.function(*args)


def data(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


class ShapeFlow(nn.Module):
    """The model of A17."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 3, 3)

    def forward(self, x: Tensor, e: Tensor) -> Tensor:
        while e.dim() < x.dim():
            e = e[..., None]
        if x.shape[-1] % 2:
            x = F.pad(x, (0, 1))
        return self.conv(x) * e


@pytest.mark.parametrize("recorded_width", [8, 9, 11])
@pytest.mark.parametrize("batch", [1, 4])
def test_control_flow_on_shapes_is_right_or_refused(recorded_width: int, batch: int) -> None:
    """A17"""
    model = ShapeFlow()
    recorded = capture(model, (data(1, 3, 8, recorded_width), data(1, 3)), fixed=True)
    for width in (8, 9, 11):
        inputs = (data(batch, 3, 8, width), data(batch, 3))
        if width % 2 == recorded_width % 2:
            assert_same_call(recorded, model, inputs)
        else:
            with pytest.raises(GuardError, match=r"size guard `x\.shape\[3\] % 2 [!=]= 0` from"):
                recorded(*inputs)


def test_guard_names_condition_source_and_remedy() -> None:
    recorded = capture(ShapeFlow(), (data(1, 3, 8, 8), data(1, 3)), fixed=True)
    with pytest.raises(GuardError) as raised:
        recorded(data(1, 3, 8, 9), data(1, 3))
    text = str(raised.value)
    assert "`x.shape[3] % 2 == 0` from test_guards.py:" in text
    assert "does not hold (got 1 and 0)" in text
    assert "record an example of the other path" in text


def test_rank_is_guarded_where_it_decides() -> None:
    recorded = capture(ShapeFlow(), (data(1, 3, 8, 8), data(1, 3)), fixed=True)
    assert any(guard.text == "x.dim() == 4" for guard in recorded.report.guards)
    with pytest.raises(GuardError, match=r"`e.dim\(\) == 2`"):
        recorded(data(1, 3, 8, 8), data(1, 3, 1))


SAME_VALUE: dict[str, Callable[[Tensor], Any]] = {
    "bool": lambda x: x * 2 if x.shape[0] else x,
    "equal": lambda x: x * 2 if x.shape[0] == 4 else x,
    "not equal": lambda x: x * 2 if x.shape[0] != 4 else x,
    "less": lambda x: x * 2 if x.shape[0] < 5 else x,
    "reflected": lambda x: x * 2 if x.shape[0] >= 5 else x,
    "range": lambda x: sum((x[i] for i in range(x.shape[0])), torch.zeros(())),
    "len range": lambda x: sum((x[i] for i in range(len(x))), torch.zeros(())),
    "index": lambda x: x * [0, 1, 2, 3, 4, 5, 6, 7, 8, 9][x.shape[0]],
    "slice of a list": lambda x: x * sum([1, 2, 3, 4, 5, 6, 7][: x.shape[0]]),
    "repeated list": lambda x: x * sum([1] * x.shape[0]),
    "division": lambda x: x * (x.shape[0] / 3),
    "reflected division": lambda x: x * (3 / x.shape[0]),
    "power": lambda x: x * x.shape[0] ** 2,
    "square root": lambda x: x * math.sqrt(x.shape[0]),
    "logarithm": lambda x: x * math.log(x.shape[0]),
    "greatest divisor": lambda x: x * math.gcd(x.shape[0], 6),
    "format": lambda x: x * len(f"{'x' * 3}{x.shape[0] * 3}") * float(f"{x.shape[0]}"),
    "percent": lambda x: x * float("%d" % x.shape[0]),  # noqa: UP031
    "string": lambda x: x * float(str(x.shape[0])),
    "repr": lambda x: x * float(repr(x.size(0))),
    "hash": lambda x: x * {4: 1.0, 5: 2.0, 6: 3.0, 9: 4.0}[x.shape[0]],
    "membership": lambda x: x * 2 if x.shape[0] in (4, 6) else x,
    "int": lambda x: x * int(x.shape[0] * 0.7),
    "round": lambda x: x * round(x.shape[0], -1),
    "float": lambda x: x * float(x.shape[0]),
    "shift": lambda x: x * (1 << x.shape[0]),
    "and": lambda x: x * (x.shape[0] & 3),
    "max": lambda x: x * max(x.shape[0], 5),
    "min": lambda x: x * min(5, x.shape[0]),
    "sorted": lambda x: x * sorted([x.shape[0], 5])[0],
    "numel of a size": lambda x: x * x.shape.numel(),
    "tuple comparison": lambda x: x * 2 if x.shape == (4, 3) else x,
    "iteration": lambda x: sum((row * i for i, row in enumerate(x)), torch.zeros(())),
    "zip": lambda x: torch.stack([a + b for a, b in zip(x, x * 2, strict=True)]),
    "list": lambda x: torch.stack(list(x)[1:]),
    "unbind": lambda x: x.unbind(0)[-1],
    "split": lambda x: torch.cat(x.split(2)[1:]),
    "chunk": lambda x: x.chunk(3, 0)[-1],
}


@pytest.mark.parametrize("name", SAME_VALUE)
def test_sizes_that_leave_are_right_or_refused(name: str) -> None:
    model = Lambda(SAME_VALUE[name])
    recorded = assert_replays(model, data(4, 3))
    for rows in (3, 5, 6, 9):
        try:
            expected = model(data(rows, 3))
        except (IndexError, KeyError):
            expected = None
        try:
            actual = recorded(data(rows, 3))
        except GuardError:
            continue
        assert torch.equal(actual, expected)


def test_arithmetic_that_stays_symbolic_needs_no_guard() -> None:
    def sizes(x: Tensor) -> Tensor:
        n, c = x.shape
        q, r = divmod(n, 3)
        return x.new_zeros(2 * n + c // 2 - r % 2, q + 1, -(-n // 2), 7 - 1 % n)

    recorded = assert_replays(Lambda(sizes), data(4, 3), data(7, 5), data(5, 2))
    assert [guard.text for guard in recorded.report.guards] == ["args-0.dim() == 2"]


def test_one_condition_is_one_guard() -> None:
    def often(x: Tensor) -> Tensor:
        for _ in range(3):
            if x.shape[0] > 2 and x.shape[0] > 2:
                x = x + 1
        return x

    texts = [g.text for g in capture(Lambda(often), data(4, 3)).report.guards]
    assert texts.count("args-0.shape[0] > 2") == 1


def test_guards_on_sizes_that_are_used_for_constants_only_still_hold() -> None:
    def mask(x: Tensor) -> Tensor:
        return torch.tensor([float(i) for i in range(x.shape[0])])

    recorded = assert_replays(Lambda(mask), data(4, 3))
    with pytest.raises(GuardError, match="shape.0. == 4"):
        recorded(data(5, 3))


DATA: dict[str, Callable[[Tensor], Any]] = {
    "bool": lambda x: x * 2 if (x > 10).any() else x + 1,
    "bool of one": lambda x: x * 2 if x.max() > 10 else x + 1,
    "int": lambda x: x * int(x.argmax()),
    "item": lambda x: x * x.max().item(),
    "float": lambda x: x * float(x.mean()),
    "tolist": lambda x: x * sum(x.argmax(1).tolist()),
    "index": lambda x: x * [5, 6, 7][x[0].argmax()],
    "equal": lambda x: x * 2 if torch.equal(x, x.abs()) else x + 1,
    "allclose": lambda x: x * 2 if torch.allclose(x, x.abs()) else x + 1,
    "contains": lambda x: x * 2 if 0.5 in x else x + 1,
    "format": lambda x: x * float(f"{x.argmax():d}"),
    "nonzero": lambda x: x * len(x.nonzero()) if len((x > 0).nonzero()) else x,
    "is nonzero": lambda x: x * 2 if torch.is_nonzero(x[0, 0] > 0) else x,
}


@pytest.mark.parametrize("name", DATA)
def test_data_that_decides_is_right_or_refused(name: str) -> None:
    model, x = Lambda(DATA[name]), data(4, 3)
    recorded = assert_replays(model, x)
    refused = 0
    for other in (x + 20, x.flip(0), x.flip(1), x.abs(), torch.full((4, 3), 0.5), -x):
        try:
            actual = recorded(other)
        except GuardError:
            refused += 1
            continue
        assert torch.equal(actual, model(other))
    assert refused or name == "nonzero"  # how many there are stays symbolic


def test_value_of_a_parameter_that_decides_is_guarded() -> None:
    class Gate(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.alpha = nn.Parameter(torch.tensor(0.5))

        def forward(self, x: Tensor) -> Tensor:
            return x * 2 if self.alpha > 0 else x

    recorded = copy.deepcopy(assert_replays(Gate(), data(2, 3), data(4, 4)))
    with torch.no_grad():
        recorded.alpha.neg_()
    with pytest.raises(GuardError, match=r"`bool\(gt\) == True`"):
        recorded(data(2, 3))


def test_constant_values_and_shapes_of_parameters_need_no_guard() -> None:
    class Static(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(data(3, 3))
            self.table = torch.arange(5)

        def forward(self, x: Tensor) -> Tensor:
            steps = int(torch.arange(3).sum()) + int(self.table[2]) + self.weight.shape[0]
            for _ in range(steps):
                x = x @ self.weight
            return x / self.weight.dim()

    recorded = assert_replays(Static(), data(2, 3), data(5, 3))
    assert recorded.report.guards == ()


def test_dtype_is_guarded_where_it_is_read() -> None:
    recorded = assert_replays(
        Lambda(lambda x: x.masked_fill(x < 0, torch.finfo(x.dtype).min)), data(2, 3), data(4, 3)
    )
    with pytest.raises(GuardError, match=r"`args-0.dtype == torch.float32`"):
        recorded(data(2, 3).double())
    free = capture(Lambda(lambda x: x + 1), data(2, 3))
    assert free(data(2, 3).double()).dtype is torch.float64


class Options(nn.Module):
    def forward(
        self, x: Tensor, task: str = "double", negate: bool = False, by: Any = None
    ) -> Tensor:
        x = x * 2 if task == "double" else x
        x = -x if negate else x
        return x + by["value"] if by else x


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        (Inputs(data(2, 3), "none"), "input 'task' was 'double' when .* now it is 'none'"),
        (Inputs(data(2, 3), negate=True), "input 'negate' was False .* now it is True"),
        (Inputs(data(2, 3), by={"value": data(3)}), "the inputs have the structure"),
        (Inputs(torch.zeros(2, 3).numpy()), "input 'x' is numpy.ndarray; a torch.Tensor"),
    ],
)
def test_other_arguments_than_recorded_are_refused(inputs: Inputs, message: str) -> None:
    recorded = capture(Options(), data(2, 3), fixed=True)
    assert torch.equal(recorded(data(4, 3), task="double"), data(4, 3) * 2)
    with pytest.raises(GuardError, match=message):
        recorded(*inputs.args, **inputs.kwargs)


def test_missing_arguments_are_a_type_error_as_in_the_model() -> None:
    with pytest.raises(TypeError, match="missing a required argument: 'x'"):
        capture(Options(), data(2, 3))()


def test_training_flag_that_decides_is_guarded() -> None:
    class DropPath(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Sequential(nn.Identity())

        def forward(self, x: Tensor) -> Tensor:
            return x if not self.training else x * torch.rand(x.shape[0], 1).round()

    model = nn.Sequential(DropPath()).eval()
    recorded = assert_replays(model, data(2, 3), data(5, 3))
    recorded.train()
    with pytest.raises(GuardError, match=r"guard `0.training == False` from test_guards.py"):
        recorded(data(2, 3))


@pytest.mark.parametrize("training", [True, False])
def test_training_flag_compared_by_identity_is_guarded_too(training: bool) -> None:
    class Identity(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x * 2 if self.training is True else x

    model = Identity().train(training)
    recorded = assert_replays(model, data(2, 3))
    with pytest.raises(GuardError, match=f"`training == {training}`"):
        recorded.train(not training)(data(2, 3))


def test_training_flag_in_a_call_that_takes_only_bools_is_guarded() -> None:
    class Direct(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.dropout(x, 0.5, self.training)

    recorded = assert_replays(Direct().eval(), data(2, 3))
    with pytest.raises(GuardError, match="`training == False`"):
        recorded.train()(data(2, 3))


def test_size_in_torch_code_that_cannot_take_it_is_refused() -> None:
    with pytest.raises(CaptureError, match=r"pass int\(size\) there"):
        capture(Lambda(lambda x: x * torch.sym_not(torch.SymBool(x.shape[0].node))), data(2, 3))
