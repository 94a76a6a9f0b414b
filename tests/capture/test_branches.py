"""Several graphs for one model: one branch per path, picked by the guards of a call."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qtune.capture import GraphModel, Inputs, capture
from qtune.errors import CaptureError, GuardError

from .replay import assert_equal, assert_same_call, called_modules, targets
from .test_guards import Lambda, ShapeFlow, data


class Tasks(nn.Module):
    """A backbone and a head per task; an optional mask."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(inplace=True))
        self.heads = nn.ModuleDict({"seg": nn.Linear(4, 2), "det": nn.Linear(4, 5)})

    def forward(
        self, x: Tensor, task: tuple[str, ...] = ("seg",), mask: Tensor | None = None
    ) -> Any:
        x = self.backbone(x)
        if mask is not None:
            x = x * mask
        found = {name: F.relu(self.heads[name](x)) for name in task}
        return found if len(found) > 1 else found.popitem()[1]


def examples() -> list[Inputs]:
    return [
        Inputs(data(2, 3)),
        Inputs(data(2, 3), ("det",)),
        Inputs(data(2, 3), ("det", "seg")),
        Inputs(data(2, 3), mask=data(4)),
    ]


def test_every_example_runs_its_own_path_with_the_structure_of_its_result() -> None:
    model = Tasks().eval()
    recorded = capture(model, examples(), fixed=True)
    for example in examples():
        assert_same_call(recorded, model, example)
    for rows in (1, 5):
        assert_same_call(recorded, model, Inputs(data(rows, 3), ("det", "seg")))


def test_what_paths_have_in_common_is_in_the_graph_once() -> None:
    recorded = capture(Tasks().eval(), examples(), fixed=True)
    calls = called_modules(recorded)
    assert [calls.count(f"backbone.{n}") for n in range(3)] == [1, 1, 1]
    assert calls.count("heads.det") == 1
    assert calls.count("heads.seg") == 2  # behind the mask it has another input


def test_an_example_of_a_known_path_adds_nothing() -> None:
    one = capture(Tasks().eval(), data(2, 3), fixed=True)
    two = capture(Tasks().eval(), [Inputs(data(2, 3)), Inputs(data(7, 3))], fixed=True)
    assert not two.graph_branches
    assert targets(two) == targets(one)


def test_tasks_in_another_order_are_the_same_operators() -> None:
    recorded = capture(
        Tasks().eval(), [Inputs(data(2, 3), ("seg", "det")), Inputs(data(2, 3), ("det", "seg"))]
    )
    assert len(called_modules(recorded)) == 5
    ours = recorded(data(2, 3), ("det", "seg"))
    assert list(ours) == ["det", "seg"]


def test_sizes_pick_the_path() -> None:
    """A17"""
    model = ShapeFlow()
    even, odd = (data(1, 3, 8, 8), data(1, 3)), (data(1, 3, 8, 9), data(1, 3))
    deep = (data(1, 3, 8, 8), data(1, 3, 1, 1))
    recorded = capture(model, [even, odd, deep], fixed=True)
    for width in (8, 9, 11):
        for batch in (1, 4):
            assert_same_call(recorded, model, (data(batch, 3, 8, width), data(batch, 3)))
    assert_same_call(recorded, model, (data(2, 3, 8, 10), data(2, 3, 1, 1)))
    with pytest.raises(GuardError) as caught:
        recorded(data(1, 3, 8, 9), data(1, 3, 1, 1))
    text = str(caught.value)
    assert "none of the 3 recorded branches" in text
    assert "example 0: guard `e.dim() == 2`" in text
    assert "example 2: size guard `x.shape[3] % 2 == 0` from test_guards.py:" in text
    assert "example_inputs=[qtune.Inputs(...), qtune.Inputs(...)]" in text


class Stateful(nn.Module):
    """Statistics, dropout and a data-dependent branch behind them."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(3)
        self.drop = nn.Dropout(0.5)

    def forward(self, x: Tensor) -> Tensor:
        y = self.drop(self.norm(x))
        if x.mean() > 0:
            return y * 2
        return y if x.shape[0] > 3 else y - 1


def test_operators_before_a_decision_run_once() -> None:
    model = Stateful().train()
    recorded = capture(model, [data(4, 3) + 9, data(4, 3) - 9, data(2, 3) - 9], fixed=True)
    for x in (data(5, 3) - 9, data(5, 3) + 9, data(3, 3) - 9):
        ours, theirs = copy.deepcopy(recorded), copy.deepcopy(model)
        torch.manual_seed(3)
        actual = ours(x)
        after = torch.rand(1)
        torch.manual_seed(3)
        assert torch.equal(actual, theirs(x))
        assert torch.equal(after, torch.rand(1))
        assert_equal(dict(ours.named_buffers()), dict(theirs.named_buffers()))


class Decoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(3, 4)

    def forward(self, x: Tensor, target: Tensor | None = None) -> Any:
        y = self.head(x)
        if self.training:
            return {"loss": (y - target).abs().mean()}
        return y.argmax(-1)


def test_training_and_eval_paths_are_two_branches() -> None:
    model = Decoder().eval()
    train = Inputs(data(2, 3), data(2, 4)).in_mode(training=True)
    recorded = capture(model, [Inputs(data(2, 3)), train], fixed=True)
    assert not model.training
    assert_same_call(recorded, model, Inputs(data(5, 3)))
    recorded.train()
    assert_same_call(recorded, model.train(), Inputs(data(3, 3), data(3, 4)))
    with pytest.raises(GuardError, match="training == False"):
        recorded(data(2, 3))


def test_rounds_that_data_decides() -> None:
    def halve(x: Tensor) -> Tensor:
        rounds = 0
        while x.abs().max() > 1:
            x = x / 2
            rounds += 1
        return x + rounds

    model, start = Lambda(halve), torch.linspace(-1, 1, 6).reshape(2, 3)
    recorded = capture(model, [start * 2**n for n in (3, 0, 1)], fixed=True)
    for factor in (8, 7, 5, 1, 0.5, 2, 1.5):
        assert torch.equal(recorded(start * factor), model(start * factor))
    with pytest.raises(GuardError, match=r"example 0: guard `bool\(gt_2\) == True`"):
        recorded(start * 3)


def test_constants_of_branches_are_kept_apart_and_equal_ones_are_one() -> None:
    class Table(nn.Module):
        def forward(self, x: Tensor, kind: str) -> Tensor:
            x = x + torch.arange(3.0)
            return x * torch.tensor([1.0, 2.0, 3.0] if kind == "up" else [3.0, 2.0, 1.0])

    model = Table()
    recorded = capture(model, [Inputs(data(2, 3), "up"), Inputs(data(2, 3), "down")], fixed=True)
    assert len(recorded.report.constants) == 3
    for kind in ("up", "down"):
        assert_same_call(recorded, model, Inputs(data(4, 3), kind))


def test_in_place_changes_of_one_path_do_not_reach_the_other() -> None:
    class Changing(nn.Module):
        def forward(self, x: Tensor, change: bool) -> Tensor:
            y = x * 2
            left = y[:, :1]
            before = y.sum()
            if change:
                left.mul_(3)
                y += 1
            return torch.cat([y, left + before], 1)

    model = Changing()
    for order in ((True, False), (False, True)):
        recorded = capture(model, [Inputs(data(2, 3), flag) for flag in order], fixed=True)
        for flag in order:
            assert_same_call(recorded, model, Inputs(data(4, 3), flag))


def test_paths_that_nothing_tells_apart_are_refused() -> None:
    calls: list[int] = []

    def hidden(x: Tensor) -> Tensor:
        calls.append(1)
        return x + 1 if len(calls) % 2 else x * 2

    with pytest.raises(CaptureError, match="examples 0 and 1 take different paths.*argument"):
        capture(Lambda(hidden), [data(2, 3), data(2, 3)])


def test_copies_and_pickles_keep_all_branches() -> None:
    model = Tasks().eval()
    recorded = capture(model, examples())
    for other in (copy.deepcopy(recorded), pickle.loads(pickle.dumps(recorded))):
        for example in examples():
            expected = model(*example.args, **example.kwargs)
            assert_equal(other(*example.args, **example.kwargs), expected)
        with pytest.raises(GuardError, match="example 1: guard: input 'task-0'"):
            other(data(2, 3), ("pose",))


def test_one_branch_as_a_model_of_its_own_shares_the_modules() -> None:
    model = Tasks().eval()
    recorded = capture(model, examples())
    det = recorded.select_branch(Inputs(data(2, 3), ("det",)))
    assert called_modules(det) == ["backbone.0", "backbone.1", "backbone.2", "heads.det"]
    assert {name.split(".")[1] for name, _ in det.named_parameters() if "heads" in name} == {"det"}
    assert det.get_submodule("heads.det") is model.heads["det"]
    assert torch.equal(det(data(5, 3), ("det",)), model(data(5, 3), ("det",)))
    with pytest.raises(GuardError, match="'det' when the model was recorded"):
        det(data(2, 3))


def test_the_branch_of_a_call_is_found_without_a_trace() -> None:
    model = Stateful().train()
    recorded = capture(model, [data(4, 3) + 9, data(4, 3) - 9], fixed=True)
    before = copy.deepcopy(dict(recorded.named_buffers()))
    state = torch.get_rng_state()
    branch = recorded.branch_for(data(4, 3) - 9)
    assert branch is not None
    assert branch.number == 1
    assert torch.equal(torch.get_rng_state(), state)
    assert_equal(dict(recorded.named_buffers()), before)


def test_structure_of_several_branches_is_asked_of_one() -> None:
    recorded = capture(Tasks().eval(), examples())
    with pytest.raises(CaptureError, match=r"4 branches.*select_branch"):
        _ = recorded.out_spec
    assert recorded.select_branch(data(2, 3)).out_spec is not None


def observed(recorded: GraphModel, inputs: Any) -> tuple[Any, list[str]]:
    seen: list[str] = []

    def note(node: Any, value: Any) -> Any:
        seen.append(str(node.target))
        return value

    return recorded.run_nodes(inputs, note), seen


def test_observed_runs_show_the_nodes_of_the_branch_once() -> None:
    model = Tasks().eval()
    recorded = capture(model, examples())
    result, seen = observed(recorded, Inputs(data(2, 3), ("det",)))
    assert torch.equal(result, model(data(2, 3), ("det",)))
    assert [name for name in seen if "heads" in name or "back" in name] == [
        *("backbone.0", "backbone.1", "backbone.2", "heads.det")
    ]
