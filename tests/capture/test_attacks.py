"""Forwards that are hard to record: right numbers on other inputs too, or a clear refusal."""

from __future__ import annotations

import copy
import functools
import math
import operator
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qtune.capture import capture
from qtune.errors import CaptureError, GuardError

from .replay import assert_equal, assert_same_call
from .test_guards import Lambda, data


def matched(x: Tensor) -> Tensor:
    match tuple(x.shape):
        case (4, _):
            return x
        case (rows, 3):
            return x * rows
        case _:
            return x * 3


def starred(x: Tensor) -> Tensor:
    first, *rest = x
    return first + sum(rest)


def caught(x: Tensor) -> Tensor:
    try:
        if x.shape[0] > 4:
            raise ValueError
        return x
    except ValueError:
        return x * 2


FORWARDS: dict[str, Callable[[Tensor], Any]] = {
    "star unpacking": starred,
    "map over rows": lambda x: torch.stack(list(map(torch.neg, x))),
    "reversed rows": lambda x: torch.stack([r * i for i, r in enumerate(reversed(x))]),
    "dict of rows": lambda x: torch.stack(list(dict(zip("abcdefghi", x, strict=False)).values())),
    "builtin sum": lambda x: sum(x),
    "builtin max of data": lambda x: x * max(x[0, 0], x[0, 1]),
    "any of data": lambda x: x * 2 if any(x[0] > 1) else x,
    "sorted data": lambda x: torch.stack(sorted(x[0])),
    "shape equals": lambda x: x * 2 if x.shape in [(4, 3), (7, 3)] else x,
    "shape count": lambda x: x * x.shape.count(3) + x.shape.index(3),
    "shape slice": lambda x: x.reshape(x.shape[:-1] + (-1, 1)),
    "shape star": lambda x: x.expand(torch.Size([2, *x.shape])),
    "shape times": lambda x: x * len(x.shape * 2),
    "shape text": lambda x: x * len(str(x.shape)) + float(".".join(map(str, x.shape))),
    "product": lambda x: x * math.prod(x.shape) + functools.reduce(operator.mul, x.shape),
    "ceil": lambda x: F.pad(x, (0, math.ceil(x.shape[1] / 4) * 4 - x.shape[1])),
    "set of sizes": lambda x: x * len({x.shape[0], 4, 3}),
    "counter": lambda x: x * Counter([x.shape[0], 4])[4],
    "chain": lambda x: x if 2 < x.shape[0] < 6 else x * 2,
    "or": lambda x: x * (x.shape[0] - 4 or 7),
    "match": matched,
    "list index": lambda x: x * [4, 7, 5, 3, 9].index(x.shape[0]),
    "range down": lambda x: sum((x[i] for i in range(x.shape[0] - 1, -1, -1)), torch.zeros(())),
    "bytes": lambda x: x * len(bytes(x.shape[0])) + ord(chr(x.shape[0] + 60)),
    "operator index": lambda x: x * operator.index(x.shape[0]),
    "attribute getter": lambda x: operator.attrgetter("T")(x) * operator.methodcaller("sum")(x),
    "bound method": lambda x: functools.partial(x.add, 1)() * x.size(0),
    "default argument": lambda x: (lambda n=x.shape[0]: x * n)(),
    "caught error": caught,
    "size as result": lambda x: (x.shape, list(x.size()), slice(0, x.shape[0]), x.dtype),
    "masked count": lambda x: x[x > 0] * x[x > 0].shape[0],
    "repeat by data": lambda x: x.repeat_interleave((x[:, 0] > 0).long() + 1, 0),
    "out argument": lambda x: torch.add(x, 1, out=torch.empty_like(x)) * 2,
    "transposed in place": lambda x: x.clone().t_().unsqueeze_(0).squeeze_(0),
    "swapped": lambda x: operator.sub(*(lambda a, b: (b.add_(1), a))(x * 2, x * 3)),
    "raw functions": lambda x: (torch.ops.aten.relu(x), torch._C._nn.gelu(x), torch._VF.relu(x)),
}


@pytest.mark.parametrize("name", FORWARDS)
def test_forwards_are_right_or_refuse_other_inputs(name: str) -> None:
    model = Lambda(FORWARDS[name])
    recorded = capture(model, data(4, 3), fixed=True)
    assert_equal(recorded(data(4, 3)), model(data(4, 3)))
    for other in (data(4, 3) - 1, data(7, 3), -data(3, 3).abs(), data(5, 3)):
        try:
            actual = recorded(other)
        except GuardError:
            continue
        assert_equal(actual, model(other))


class Lent(nn.Module):
    """A layer that computes with weights made by another one."""

    def __init__(self) -> None:
        super().__init__()
        self.hyper = nn.Linear(3, 9)
        self.layer = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        weights = {"weight": self.hyper(x.mean(0)).view(3, 3)}
        return self.layer(torch.func.functional_call(self.layer, weights, (x,)))


class Ensemble(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(3, 2) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        stacked, _ = torch.func.stack_module_state(list(self.layers))
        parts = ({name: value[i] for name, value in stacked.items()} for i in range(3))
        return torch.stack([torch.func.functional_call(self.layers[0], p, (x,)) for p in parts])


class Switching(nn.Module):
    """Sets the mode of its own layers while it runs."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(3)
        self.drop = nn.Dropout(0.5)

    def forward(self, x: Tensor) -> Tensor:
        was = self.training
        self.norm.eval()
        self.drop.train()
        y = self.drop(self.norm(x))
        self.train(was)
        return y


class Doubled(nn.Linear):
    def __call__(self, x: Tensor) -> Any:
        return super().__call__(x * 2)


class OwnCall(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = Doubled(3, 3)

    def forward(self, x: Tensor) -> Any:
        return self.layer(x)


MODULES: dict[str, Callable[[], nn.Module]] = {
    "lent weights": Lent,
    "stacked states": Ensemble,
    "switched mode": Switching,
    "switched mode in training": lambda: Switching().train(),
    "own __call__": OwnCall,
}


@pytest.mark.parametrize("name", MODULES)
def test_altered_layers_are_recorded_as_what_they_compute(name: str) -> None:
    torch.manual_seed(0)
    made = MODULES[name]()
    model = made if "training" in name else made.eval()
    recorded = capture(model, data(4, 3), fixed=True)
    for rows in (4, 6):
        ours, theirs = copy.deepcopy(recorded), copy.deepcopy(model)
        torch.manual_seed(1)
        actual = ours(data(rows, 3))
        torch.manual_seed(1)
        assert_equal(actual, theirs(data(rows, 3)))
        assert_equal(dict(ours.named_buffers()), dict(theirs.named_buffers()))


def test_keyword_arguments_with_the_name_of_the_rest() -> None:
    class Rest(nn.Module):
        def forward(self, *args: Any, **k: Any) -> Tensor:
            return sum(args) * k["k"] * k["j"]

    recorded = capture(Rest(), (data(2, 3), data(2, 3)), {"k": data(3), "j": 2}, fixed=True)
    actual = recorded(data(4, 3), data(4, 3), k=data(3), j=2)
    assert torch.equal(actual, data(4, 3) * 2 * data(3) * 2)


def in_thread(x: Tensor) -> Tensor:
    found: list[Tensor] = []
    worker = threading.Thread(target=lambda: found.append(x * 2))
    worker.start()
    worker.join()
    return found[0]


def in_pool(x: Tensor) -> Tensor:
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(lambda: x * 2).result() + 1


def with_gradient(x: Tensor) -> Tensor:
    with torch.enable_grad():
        point = x.detach().requires_grad_()
        return torch.autograd.grad((point**3).sum(), point)[0]


def with_backward(x: Tensor) -> Any:
    with torch.enable_grad():
        point = x.detach().clone().requires_grad_()
        (point**3).sum().backward()
    return point.grad


class Holder:
    def __init__(self, value: Any) -> None:
        self.value = value


REFUSED: dict[str, tuple[Callable[[Tensor], Any], str]] = {
    "thread": (in_thread, "gives work to another thread"),
    "pool": (in_pool, "gives work to another thread"),
    "grad": (with_gradient, "computes gradients"),
    "backward": (with_backward, "computes gradients"),
    "object with tensors": (lambda x: Holder(x), "Holder that holds tensors or sizes"),
    "object with sizes": (lambda x: (x, Holder(x.shape[0])), "Holder that holds tensors or sizes"),
    "generator": (lambda x: (row for row in x), "an iterator"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_a_replay_would_do_wrong_is_refused(name: str) -> None:
    function, message = REFUSED[name]
    with pytest.raises(CaptureError, match=message):
        capture(Lambda(function), data(4, 3))


def test_hooks_for_all_modules_made_in_forward_are_refused() -> None:
    class Hooking(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(3, 3)

        def forward(self, x: Tensor) -> Any:
            hooks = nn.modules.module
            handle = hooks.register_module_forward_hook(lambda m, args, result: result * 2)
            try:
                return self.layer(x)
            finally:
                handle.remove()

    with pytest.raises(CaptureError, match=r"test_attacks\.py:\d+: forward registers hooks"):
        capture(Hooking(), data(4, 3))


def test_caches_that_forward_fills_are_emptied_again() -> None:
    class Cache(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tables: dict[int, Tensor] = {}
            self.seen: list[Tensor] = []
            self.names = {"kept"}

        def forward(self, x: Tensor) -> Tensor:
            rows = int(x.shape[0])
            self.names.add("new")
            self.seen.append(x)
            if rows not in self.tables:
                self.tables[rows] = torch.arange(float(rows))
            return x * self.tables[rows][:, None]

    model = Cache()
    recorded = capture(model, data(4, 3), fixed=True)
    assert (model.tables, model.seen, model.names) == ({}, [], {"kept"})
    assert_same_call(recorded, model, data(4, 3))


def test_a_lost_change_of_a_view_is_named_by_its_line() -> None:
    def change(x: Tensor) -> Tensor:
        y = x.clone()
        first, *_ = y.unbind(1)
        first.add_(1)
        return y * 2

    line = change.__code__.co_firstlineno + 3
    with pytest.raises(CaptureError, match=rf"test_attacks\.py:{line}: a view of shape \(4,\)"):
        capture(Lambda(change), data(4, 3))
