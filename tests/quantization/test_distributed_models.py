"""Every kind of observer, fake-quantize, batch norm and model under DistributedDataParallel."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from qtune import Inputs
from qtune.march import march
from qtune.modes import qat_mode
from qtune.quantization import (
    DeQuantStub,
    FakeQuantState,
    PrepareMethod,
    QConfig,
    QconfigSetter,
    QuantStub,
    fuse_modules,
    get_default_qconfig,
    prepare,
    set_fake_quantize,
)
from qtune.quantization.qconfig_setter import ModuleNameTemplate
from qtune.quantizers.fake_quantize import FakeQuantize

from ..quantizers.kinds import PER_CHANNEL
from ..ranks import on_ranks

pytestmark = pytest.mark.skipif(not dist.is_available(), reason="no torch.distributed")

MODES = ("with_bn", "with_bn_reverse_fold", "fuse_bn")
SYNCHRONIZED = ("observer", "eager")
"""Cases whose observers see the data of all processes."""


@dataclass
class Values:
    """What a process ends with."""

    parameters: dict[str, Tensor]
    buffers: dict[str, Tensor]


class Net(nn.Module):
    def __init__(self, norm: type[nn.Module] = nn.BatchNorm2d) -> None:
        super().__init__()
        self.quant = QuantStub()
        self.conv, self.norm, self.relu = nn.Conv2d(3, 6, 3), norm(6), nn.ReLU()
        self.fc = nn.Linear(6, 5)
        self.dequant = DeQuantStub()

    def forward(self, x: Tensor) -> Tensor:
        x = self.relu(self.norm(self.conv(self.quant(x))))
        result: Tensor = self.dequant(self.fc(x.mean((2, 3))))
        return result


class Tasks(nn.Module):
    """Each call uses one of two heads."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(4, 4)
        self.heads = nn.ModuleDict({"a": nn.Linear(4, 2), "b": nn.Linear(4, 3)})

    def forward(self, x: Tensor, task: str = "a") -> Tensor:
        result: Tensor = self.heads[task](torch.relu(self.stem(x)))
        return result


def image(seed: int, rows: int = 4) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, 3, 7, 7, generator=generator) * (1 + seed)


def net(norm: type[nn.Module] = nn.BatchNorm2d, mode: str = "fuse_bn", **options: Any) -> nn.Module:
    torch.manual_seed(0)
    with qat_mode(mode):
        prepared: nn.Module = prepare(Net(norm).eval(), image(0), **options)
    return prepared


def in_parallel(model: nn.Module, **options: Any) -> tuple[nn.Module, dict[str, Any]]:
    """``model`` under DDP, and the tensors that DDP holds."""
    held = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    return DistributedDataParallel(model, **options), held


def calibrate(run: nn.Module, calls: Sequence[Any]) -> None:
    set_fake_quantize(run.eval(), FakeQuantState.CALIBRATION)
    with torch.no_grad():
        for call in calls[:2]:
            run(*call)


def train(run: nn.Module, calls: Sequence[Any]) -> None:
    set_fake_quantize(run.train(), FakeQuantState.QAT)
    optimizer = torch.optim.SGD(run.parameters(), lr=0.01)
    for call in calls:
        optimizer.zero_grad()
        run(*call).square().mean().backward()
        optimizer.step()


def images(rank: int) -> list[Any]:
    return [(image(2 * step + rank),) for step in range(3)]


def values(model: nn.Module, held: dict[str, Any]) -> Values:
    """Parameters and buffers; they are still those that DDP holds."""
    now = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    moved = [name for name, tensor in now.items() if held.get(name) is not tensor]
    assert not moved, moved
    parameters = {name: p.detach().clone() for name, p in model.named_parameters()}
    return Values(parameters, {name: b.clone() for name, b in model.named_buffers()})


def synchronized(kind: Any) -> QconfigSetter:
    arguments = {**kind.arguments, "is_sync_quantize": True}
    output = FakeQuantize.with_args(observer=kind.cls, **arguments)
    qconfig = QConfig(weight=get_default_qconfig().weight, output=output)
    return QconfigSetter(qconfig, [ModuleNameTemplate({"": "qint8"})])


def with_observer(rank: int, kind: str) -> Values:
    model = net(qconfig_setter=synchronized(PER_CHANNEL[kind]))
    run, held = in_parallel(model)
    calibrate(run, images(rank))
    train(run, images(rank))
    return values(model, held)


def with_learned_scales(rank: int, kind: str) -> Values:
    """Not calibrated and not synchronized: the first batch of each process is another one."""
    torch.manual_seed(0)
    model = Net().eval()
    model.qconfig = get_default_qconfig(activation_fake_quant=kind, weight_fake_quant="lsq")  # type: ignore[assignment]
    prepared = prepare(model, image(0))
    run, held = in_parallel(prepared)
    train(run, images(rank))
    return values(prepared, held)


def with_norm(rank: int, mode: str, norm: type[nn.Module] = nn.SyncBatchNorm) -> Values:
    model = net(norm, mode, qconfig_setter=synchronized(PER_CHANNEL["min_max"]))
    run, held = in_parallel(model)
    calibrate(run, images(rank))
    train(run, images(rank))
    return values(model, held)


def with_branches(rank: int) -> Values:
    """The processes take other branches in the same step."""
    torch.manual_seed(0)
    data = torch.randn(8, 4)
    model = prepare(Tasks().eval(), [Inputs(data), Inputs(data, "b")])
    run, held = in_parallel(model, find_unused_parameters=True)
    train(run, [(data * (1 + rank), "ab"[(step + rank) % 2]) for step in range(4)])
    return values(model, held)


def with_eager_model(rank: int) -> Values:
    torch.manual_seed(0)
    float_model = fuse_modules(Net().eval(), [["conv", "norm", "relu"]])
    float_model.qconfig = get_default_qconfig(activation_qkwargs={"is_sync_quantize": True})
    model = prepare(float_model, method=PrepareMethod.EAGER)
    run, held = in_parallel(model)
    calibrate(run, images(rank))
    train(run, images(rank))
    return values(model, held)


CASES: dict[str, Callable[[int], Values]] = {
    **{f"observer {k}": lambda rank, kind=k: with_observer(rank, kind) for k in PER_CHANNEL},
    **{f"scale {k}": lambda rank, kind=k: with_learned_scales(rank, kind) for k in ("lsq", "pact")},
    **{f"norm {m}": lambda rank, mode=m: with_norm(rank, mode, nn.BatchNorm2d) for m in MODES},
    **{f"synchronized norm {m}": lambda rank, mode=m: with_norm(rank, mode) for m in MODES[:2]},
    "branches": with_branches,
    "eager": with_eager_model,
}


def all_cases(rank: int) -> dict[str, Values]:
    return {name: case(rank) for name, case in CASES.items()}


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Values]]:
    with march("nash-e"), pytest.MonkeyPatch.context() as environment:
        environment.setenv("QTUNE_RUN_DIR", "")
        found = on_ranks(all_cases, tmp_path_factory.mktemp("ranks"))
    assert all(isinstance(one, dict) for one in found), found
    return found


@pytest.mark.parametrize("case", CASES)
def test_all_processes_end_with_equal_values(ranks: list[dict[str, Values]], case: str) -> None:
    """A27."""
    first, second = (rank[case] for rank in ranks)
    assert first.parameters.keys() == second.parameters.keys()
    for name, value in first.parameters.items():
        assert torch.equal(value, second.parameters[name]), name
    if case.startswith(SYNCHRONIZED):
        for name, value in first.buffers.items():
            assert torch.equal(value, second.buffers[name]), name


@pytest.mark.parametrize("kind", ["lsq", "pact"])
def test_learned_scales_train(ranks: list[dict[str, Values]], kind: str) -> None:
    own = "scale" if kind == "lsq" else "alpha"
    parameters = ranks[0][f"scale {kind}"].parameters
    found = {name: v for name, v in parameters.items() if name.endswith(f"post_process.{own}")}
    assert len(found) >= 3
    assert kind == "lsq" or any(float(value) != 6.0 for value in found.values())


@pytest.mark.parametrize("mode", MODES[:2])
def test_synchronized_norms_train_as_in_one_process_with_all_data(
    ranks: list[dict[str, Values]], mode: str
) -> None:
    with march("nash-e"):
        alone = net(mode=mode, qconfig_setter=synchronized(PER_CHANNEL["min_max"]))
    both = [(torch.cat([a, b]),) for (a,), (b,) in zip(images(0), images(1), strict=True)]
    calibrate(alone, both)
    train(alone, both)
    kept = {name: b for name, b in alone.named_buffers() if name.endswith(("_mean", "_var"))}
    assert len(kept) == 2
    synchronized_norms, own_norms = (
        [rank[f"{kind}norm {mode}"].buffers for rank in ranks] for kind in ("synchronized ", "")
    )
    for name, value in kept.items():
        for rank in synchronized_norms:
            # a rounding that falls the other way moves one value by a step of the grid
            torch.testing.assert_close(rank[name], value, rtol=1e-2, atol=1e-3)
        assert not torch.equal(own_norms[0][name], own_norms[1][name])


def test_the_step_that_takes_other_branches_in_each_process_trains_both(
    ranks: list[dict[str, Values]],
) -> None:
    with march("nash-e"):
        torch.manual_seed(0)
        before = dict(Tasks().named_parameters())
    for name, value in ranks[0]["branches"].parameters.items():
        assert not torch.equal(value, before[name]), name
