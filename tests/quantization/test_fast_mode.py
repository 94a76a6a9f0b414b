"""``fast_mode=True`` of convert: the same bits in less time, and when modules run one by one."""

from __future__ import annotations

import copy
import io
import pickle
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from qtune.errors import ArgumentError, RunError
from qtune.nn.quantized import QuantizedOp
from qtune.quantization import compile_model, convert, convert_fx

from .article import IMAGES, qat_detector
from .flow import calib, prep

X = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(2))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.act = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU()
        self.more = nn.Sequential(*[nn.Conv2d(8, 8, 1) for _ in range(6)])
        self.register_buffer("shift", torch.ones(1, 8, 1, 1))

    def forward(self, x: Tensor) -> dict[str, Any]:
        y = self.act(self.norm(self.conv(x)))
        y = self.more(y) + y + self.shift
        return {"y": y, "best": y.argmax(1), "rows": x.shape[0]}


@pytest.fixture(scope="module")
def made() -> dict[str, Any]:
    return {}


@pytest.fixture
def prepared(made: dict[str, Any]) -> Any:
    if not made:
        made["model"] = prep(Net(), X)
        calib(made["model"], [X])
    return made["model"]


def kept(model: Any) -> list[Any]:
    """The plans of the calls so far, None for those that run module after module."""
    return list(model.plans._plans.values())


def assert_equal(got: Any, expected: Any) -> None:
    assert got.keys() == expected.keys()
    assert torch.equal(got["y"], expected["y"])
    assert torch.equal(got["best"], expected["best"])
    assert got["rows"] == expected["rows"]


def test_a_graph_runs_as_one_plan_of_the_same_bits(prepared: Any) -> None:
    slow, fast = convert(prepared), convert_fx(prepared, fast_mode=True)
    for data in (X, X, -3 * X, X[:1], torch.cat([X, X])):
        assert_equal(fast(data), slow(data))
    assert len(kept(fast)) == 3
    assert all(kept(fast))


def test_the_modules_do_not_run_then(prepared: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    fast = convert(prepared, fast_mode=True)
    expected = fast(X)

    def fails(*_: Any) -> Any:
        raise AssertionError

    monkeypatch.setattr(QuantizedOp, "forward", fails)
    assert_equal(fast(X), expected)


def test_it_is_faster(prepared: Any) -> None:
    slow, fast = convert(prepared), convert(prepared, fast_mode=True)

    def best(model: Any) -> float:
        times = []
        for _ in range(6):
            start = time.perf_counter()
            model(X[:1])
            times.append(time.perf_counter() - start)
        return min(times)

    # Measured 5 to 10 times; half is room for a busy machine.
    assert best(fast) < best(slow) / 2


def test_copies_and_files_stay_fast_and_independent(prepared: Any, tmp_path: Path) -> None:
    fast = convert(prepared, fast_mode=True)
    expected = fast(X)
    buffer = io.BytesIO()
    torch.save(fast, buffer)
    buffer.seek(0)
    copies = (
        copy.deepcopy(fast),
        pickle.loads(pickle.dumps(fast)),
        torch.load(buffer, weights_only=False),
    )
    for item in copies:
        assert kept(item) == []
        assert_equal(item(X), expected)
        assert all(kept(item))
    with torch.no_grad():
        copies[0].shift.mul_(0.5)
    assert not torch.equal(copies[0](X)["y"], expected["y"])
    assert_equal(fast(X), expected)


@pytest.mark.parametrize("key", ["act", "shift"])
def test_a_loaded_state_is_seen(prepared: Any, key: str) -> None:
    slow, fast = convert(prepared), convert(prepared, fast_mode=True)
    before = fast(X)
    state = {
        name: value // 2 if key in name and not name.endswith(("scale", "data_range")) else value
        for name, value in slow.state_dict().items()
    }
    slow.load_state_dict(state)
    fast.load_state_dict(state, assign=True)
    assert_equal(fast(X), slow(X))
    assert not torch.equal(fast(X)["y"], before["y"])


def test_hooks_see_the_calls_of_modules(prepared: Any) -> None:
    fast = convert(prepared, fast_mode=True)
    expected = fast(X)
    seen: list[Any] = []
    handle = fast.more[2].register_forward_hook(lambda *args: seen.append(args[2]))
    assert_equal(fast(X), expected)
    assert len(seen) == 1
    handle.remove()
    assert_equal(fast(X), expected)
    assert len(seen) == 1


class Reads(nn.Module):
    """Another result where the data say so."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv(x)
        return y if x.sum() > 0 else y * 2


class Noisy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x) + torch.rand(1)


class Counts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 1)
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return self.conv(x) + self.calls


@pytest.mark.parametrize("kind", [Reads, Noisy, Counts])
def test_what_another_call_may_do_otherwise_runs_by_modules(kind: Callable[[], nn.Module]) -> None:
    model = prep(kind(), X.abs())
    calib(model, [X.abs()])
    slow, fast = convert(model), convert(model, fast_mode=True)
    for _ in range(3):
        torch.manual_seed(1)
        expected = slow(X.abs())
        torch.manual_seed(1)
        assert torch.equal(fast(X.abs()), expected)
    assert kept(fast) == [None]


def test_eager_models_keep_their_modules_without_torchs_dispatcher(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    detector = qat_detector()
    slow, fast = convert(detector), convert(detector, fast_mode=True)
    expected = slow(IMAGES)
    calls: list[str] = []
    native = torch.ops.qtune.run_program
    monkeypatch.setattr(torch.ops.qtune, "run_program", lambda *a: calls.append("") or native(*a))
    assert all(map(torch.equal, fast(IMAGES), expected))
    assert len(calls) == 2  # permute and flatten of a QTensor in the user's own forward
    assert all(map(torch.equal, slow(IMAGES), expected))
    assert len(calls) > 12


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
def test_a_fast_model_is_for_python_only(prepared: Any, tmp_path: Path) -> None:
    fast = convert(prepared, fast_mode=True)
    text = r"converted with fast_mode=True.*can't be traced, checked or compiled"
    for model in (fast, fast.more):
        with pytest.raises(ArgumentError, match=text):
            compile_model(model, X, tmp_path / "m.hbm", progressbar=False)
    for model, example in ((fast, X), (fast._input_0_quant, X)):
        with pytest.raises(RunError, match=text):
            torch.jit.trace(model, example, strict=False)
    with pytest.raises(ArgumentError, match="fast_mode must be True or False, got 'yes'"):
        convert(prepared, fast_mode="yes")
