"""GraphModel as a module: copies, files, observation, edits, structured inputs and outputs."""

from __future__ import annotations

import copy
import io
import pickle
from collections import OrderedDict, defaultdict, namedtuple
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from qtune.capture import GraphModel, capture
from qtune.errors import CaptureError, GuardError

from .replay import assert_replays, targets
from .test_guards import Lambda, data


class Net(nn.Module):
    """Tied weights, a constant, a size guard, a slice, an in-place call."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(4, 4)
        self.b = nn.Linear(4, 4)
        self.b.weight = self.a.weight
        self.shift = torch.arange(4.0)

    def forward(self, x: Tensor) -> tuple[Tensor, int]:
        if x.shape[1] != 4:
            raise ValueError("4 features expected")
        y = self.b(self.a(x).relu_()) + self.shift
        y[..., 1:3] *= 2
        y = F.max_pool1d(y[:, None], 2, stride=2).to(
            torch.float32, memory_format=torch.preserve_format
        )
        return y.reshape(x.shape[0], -1), x.shape[0]


def assert_works(recorded: GraphModel) -> None:
    assert recorded.a.weight is recorded.b.weight
    out, rows = recorded(data(5, 4))
    assert rows == 5
    assert out.shape == (5, 2)
    with pytest.raises(GuardError, match=r"`x.shape\[1\] == 4`"):
        recorded(data(2, 5))


def test_deepcopy_is_independent_and_equal() -> None:
    """A25"""
    recorded = capture(Net(), data(2, 4))
    expected = recorded(data(3, 4))[0]
    copied = copy.deepcopy(recorded)
    assert_works(copied)
    assert copied.report == recorded.report
    assert [n.meta for n in copied.graph.nodes] == [n.meta for n in recorded.graph.nodes]
    next(iter(copied.graph.nodes)).meta["mine"] = 1
    with torch.no_grad():
        copied.a.weight.zero_()
        copied._constant_0.zero_()
    assert torch.equal(recorded(data(3, 4))[0], expected)
    assert "mine" not in next(iter(recorded.graph.nodes)).meta


def test_pickle_and_save_of_the_whole_model(tmp_path: Path) -> None:
    recorded = capture(Net(), data(2, 4))
    expected = recorded(data(3, 4))[0]
    again = pickle.loads(pickle.dumps(recorded))
    assert_works(again)
    torch.save(recorded, tmp_path / "model.pt")
    loaded = torch.load(tmp_path / "model.pt", weights_only=False)
    assert_works(loaded)
    assert torch.equal(loaded(data(3, 4))[0], expected)
    assert [n.name for n in loaded.graph.nodes] == [n.name for n in recorded.graph.nodes]


def test_compiled_steps_are_not_pickled() -> None:
    recorded = capture(Net(), data(2, 4))
    before = len(pickle.dumps(recorded))
    recorded(data(2, 4))
    assert len(pickle.dumps(recorded)) == before


def test_graphs_of_thousands_of_nodes_pickle() -> None:
    def long(x: Tensor) -> Tensor:
        for _ in range(3000):
            x = x + 1
        return x

    recorded = capture(LongNet(), data(1, 2))
    again = pickle.loads(pickle.dumps(recorded))
    assert torch.equal(copy.deepcopy(again)(data(1, 2)), long(data(1, 2)))


class LongNet(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        for _ in range(3000):
            x = x + 1
        return x


def test_state_dict_goes_both_ways() -> None:
    model = Net()
    recorded = copy.deepcopy(capture(model, data(2, 4)))
    other = Net()
    recorded.load_state_dict(other.state_dict())
    assert torch.equal(recorded(data(3, 4))[0], other(data(3, 4))[0])
    model.load_state_dict(recorded.state_dict())
    assert torch.equal(model.a.weight, other.a.weight)
    buffer = io.BytesIO()
    torch.save(recorded.state_dict(), buffer)
    buffer.seek(0)
    recorded.load_state_dict(torch.load(buffer, weights_only=True))


def test_moving_the_model_moves_everything() -> None:
    recorded = copy.deepcopy(capture(Net(), data(2, 4))).to("meta")
    assert all(b.device.type == "meta" for b in recorded.buffers())
    assert not any(isinstance(value, Tensor) for value in vars(recorded).values())


def test_training_mode_and_shared_children_follow() -> None:
    model = nn.Sequential(nn.BatchNorm1d(3)).eval()
    recorded = copy.deepcopy(capture(model, data(4, 3)))
    assert not recorded.training
    recorded.train()
    assert recorded[0].training if hasattr(recorded, "__getitem__") else True
    recorded(data(4, 3))
    assert not torch.equal(recorded.get_buffer("0.running_mean"), model[0].running_mean)


def test_submodules_may_have_the_names_of_attributes() -> None:
    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.graph = nn.Linear(3, 3)
            self.report = nn.Linear(3, 3)
            self.interface = nn.Parameter(data(3))

        def forward(self, x: Tensor) -> Tensor:
            return self.report(self.graph(x)) + self.interface

    recorded = assert_replays(Named(), data(2, 3), data(4, 3))
    assert set(recorded.state_dict()) == set(Named().state_dict())


def test_run_nodes_shows_and_replaces_results() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 2))
    recorded = capture(model, data(2, 3))
    seen: list[tuple[str, tuple[int, ...]]] = []

    def show(node: fx.Node, result: Any) -> Any:
        seen.append((str(node.target), tuple(result.shape)))
        return result

    x = data(4, 3)
    assert torch.equal(recorded.run_nodes(x, show), model(x))
    assert seen == [("input", (4, 3)), ("0", (4, 3)), ("1", (4, 3)), ("2", (4, 2))]
    zeroed = recorded.run_nodes(x, lambda n, r: r * 0 if n.target == "1" else r)
    assert torch.equal(zeroed, model[2](torch.zeros(4, 3)))


def test_results_are_shown_before_a_later_call_changes_them_in_place() -> None:
    """A31"""
    model = nn.Sequential(nn.Conv2d(1, 4, 1), nn.ReLU(inplace=True))
    recorded = capture(model, data(4, 1, 3, 3))
    kept: dict[str, Tensor] = {}

    def keep(node: fx.Node, result: Any) -> Any:
        kept[str(node.target)] = result.detach().clone()
        return result

    x = data(4, 1, 3, 3)
    recorded.run_nodes(x, keep)
    assert torch.equal(kept["0"], model[0](x))
    assert kept["0"].min() < 0
    assert kept["1"].min() == 0


def test_replaced_submodule_takes_effect_at_once() -> None:
    recorded = capture(nn.Sequential(nn.Linear(3, 3), nn.ReLU()), data(2, 3))
    x = data(2, 3)
    recorded(x)
    recorded.set_submodule("0", nn.Identity())
    assert torch.equal(recorded(x), x.relu())


def test_edited_graph_runs_after_recompile() -> None:
    recorded = capture(Lambda(lambda x: x.relu() + 1), data(2, 3))
    recorded(data(2, 3))
    relu = next(n for n in recorded.graph.nodes if n.target == "relu")
    relu.target = "sigmoid"
    recorded.recompile()
    assert torch.equal(recorded(data(2, 3)), data(2, 3).sigmoid() + 1)
    built = GraphModel(
        recorded, recorded.graph, recorded.in_spec, recorded.out_spec, recorded.signature
    )
    assert torch.equal(built(data(2, 3)), data(2, 3).sigmoid() + 1)


def test_values_are_freed_after_their_last_use() -> None:
    import weakref

    recorded = capture(nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.ReLU()), data(2, 3))
    alive: dict[str, Any] = {}

    def watch(node: fx.Node, result: Any) -> Any:
        if node.target == "2":
            assert alive["0"]() is None
        alive[str(node.target)] = weakref.ref(result)
        return result

    with torch.no_grad():
        recorded.run_nodes(data(2, 3), watch)


@dataclass
class Out:
    """The output of A18."""

    boxes: Tensor
    aux: dict[str, Any]


@dataclass(frozen=True)
class Frozen:
    value: Tensor
    label: str = "x"


class Pair(NamedTuple):
    first: Tensor
    second: list[Tensor]


Point = namedtuple("Point", "x y")  # noqa: PYI024 - both kinds exist


class ModelOutput(OrderedDict):  # type: ignore[type-arg]
    """Like the outputs of transformers: a mapping and a dataclass in one."""

    def __post_init__(self) -> None:
        for f in fields(self):  # type: ignore[arg-type]
            if getattr(self, f.name) is not None:
                self[f.name] = getattr(self, f.name)


@dataclass
class TokenOutput(ModelOutput):
    logits: Tensor | None = None
    hidden: tuple[Tensor, ...] | None = None
    missing: Tensor | None = None


OUTPUTS: dict[str, Any] = {
    "dataclass": lambda x: Out(x * 2, {"k": (x + 1, None)}),
    "frozen dataclass": lambda x: Frozen(x * 2),
    "named tuple": lambda x: Pair(x * 2, [x, x + 1]),
    "collections.namedtuple": lambda x: Point(x, y=x * 2),
    "list of dicts": lambda x: [{"a": x * 2}, {"b": x - 1}],
    "ordered dict": lambda x: OrderedDict(a=x * 2, b=x),
    "default dict": lambda x: defaultdict(list, a=x * 2),
    "model output": lambda x: TokenOutput(logits=x * 2, hidden=(x, x + 1)),
    "torch's named result": lambda x: torch.max(x, dim=1),
    "single": lambda x: x * 2,
    "nothing": lambda x: (None, x * 2),
    "plain values": lambda x: {"x": x * 2, "name": "out", "flags": (True, 1.5, torch.float16)},
    "sizes": lambda x: (x.shape, x.shape[0] * 2, x.numel()),
    "input itself": lambda x: (x, x, [x * 2] * 2),
}


@pytest.mark.parametrize("name", OUTPUTS)
def test_outputs_keep_their_structure(name: str) -> None:
    """A18"""
    assert_replays(Lambda(OUTPUTS[name]), data(2, 3), data(4, 3))


@pytest.mark.parametrize("name", ["dataclass", "named tuple", "list of dicts", "model output"])
def test_inputs_may_be_structured(name: str) -> None:
    class Total(nn.Module):
        def forward(self, batch: Any) -> Tensor:
            if isinstance(batch, Out):
                return batch.boxes + batch.aux["k"][0]
            if isinstance(batch, Pair):
                return batch.first + batch.second[1]
            if isinstance(batch, list):
                return batch[0]["a"] + batch[1]["b"]
            return batch["logits"] + batch.hidden[0]

    make = OUTPUTS[name]
    assert_replays(Total(), (make(data(2, 3)),), (make(data(4, 3)),))


def test_output_of_another_class_with_tensors_is_refused() -> None:
    class Boxes:
        def __init__(self, tensor: Tensor) -> None:
            self.tensor = tensor

    with pytest.raises(CaptureError, match="the output is a Boxes that holds tensors"):
        capture(Lambda(Boxes), data(2, 3))
    with pytest.raises(CaptureError, match="input 'args-0' is a Boxes that holds tensors"):
        capture(Lambda(lambda boxes, x: x), (Boxes(data(2, 3)), data(2, 3)))


def test_targets_are_the_callables_of_torch() -> None:
    def forward(x: Tensor) -> Tensor:
        x = F.relu(torch.add(x, 1)).view(x.shape[0], -1)
        x += 1
        return x[:, 1:] @ x[:, 1:].T

    found = targets(assert_replays(Lambda(forward), data(2, 3), data(4, 5)))
    assert [t for t in found if t in (F.relu, torch.add)] == [torch.add, F.relu]
    assert {"view", "add_", "__getitem__", "matmul", getattr} <= set(found)


def test_recorded_model_can_be_recorded_again() -> None:
    recorded = capture(Net(), data(2, 4))
    again = capture(nn.Sequential(recorded, nn.ReLU())[0], data(2, 4))
    assert torch.equal(again(data(3, 4))[0], recorded(data(3, 4))[0])
    assert [info.name for info in again.report.constants] == []
