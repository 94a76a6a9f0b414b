"""Calibration and training of prepared models under DistributedDataParallel, 2 processes (gloo)."""

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import qtune
from qtune.march import march
from qtune.quantization import (
    FakeQuantize,
    FakeQuantState,
    QConfig,
    QconfigSetter,
    get_qconfig,
    prepare,
    set_fake_quantize,
)
from qtune.quantization.observer_v2 import MinMaxObserver
from qtune.quantization.qconfig_setter import ModuleNameTemplate

from ..ranks import RANKS, on_ranks

pytestmark = pytest.mark.skipif(not dist.is_available(), reason="no torch.distributed")

BATCH, STEPS = 4, 3


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 6, 3)
        self.bn = nn.BatchNorm2d(6)
        self.fc = nn.Linear(6, 5)

    def forward(self, x):
        return self.fc(torch.relu(self.bn(self.conv(x))).mean((2, 3)))


def data(step):
    """One whole batch; later ones are wider, so that scales move."""
    generator = torch.Generator().manual_seed(step)
    images = torch.randn(RANKS * BATCH, 3, 9, 9, generator=generator) * (1 + step)
    images[BATCH:] *= 2  # the second rank sees other ranges than the first
    return images, torch.randint(5, (RANKS * BATCH,), generator=generator)


def prepared(synchronize=True):
    torch.manual_seed(0)
    output = FakeQuantize.with_args(observer=MinMaxObserver, is_sync_quantize=synchronize)
    qconfig = QConfig(weight=get_qconfig().weight, output=output)
    setter = QconfigSetter(qconfig, [ModuleNameTemplate({"": qtune.qint8})])
    return prepare(Net().eval(), torch.randn(2, 3, 9, 9), setter)


def scales(model):
    return {path: module.scale.clone() for path, module in fake_quantizes(model)}


def fake_quantizes(model):
    return [(path, m) for path, m in model.named_modules() if isinstance(m, FakeQuantize)]


def calibrated(model, run, parts):
    set_fake_quantize(model, FakeQuantState.CALIBRATION)
    with torch.no_grad():
        for step in range(STEPS):
            run(data(step)[0][parts])
    return scales(model)


def trained(model, run, parts):
    set_fake_quantize(model, FakeQuantState.QAT)
    model.train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(STEPS):
        images, labels = data(step)
        optimizer.zero_grad()
        nn.functional.cross_entropy(run(images[parts]), labels[parts]).backward()
        optimizer.step()
    return scales(model)


def steps(model, run, parts):
    """What a process has after calibration and after training."""
    before = dict(model.named_buffers())
    found = {"calibrated": calibrated(model, run, parts)}
    found["trained"] = trained(model, run, parts)
    found["weights"] = {name: p.detach().clone() for name, p in model.named_parameters()}
    after = dict(model.named_buffers())
    found["moved"] = [name for name in after if before.get(name) is not after[name]]
    found["states"] = sorted({module.state.name for _, module in fake_quantizes(model)})
    return found


def worker(rank):
    parts = slice(rank * BATCH, (rank + 1) * BATCH)
    found = {}
    for synchronize in (True, False):
        model = prepared(synchronize)
        found[synchronize] = steps(model, DistributedDataParallel(model), parts)
    return found


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """What each of the two processes found, and one process that has all data."""
    with march("nash-e"), pytest.MonkeyPatch.context() as environment:
        environment.setenv("QTUNE_RUN_DIR", "")
        found = on_ranks(worker, tmp_path_factory.mktemp("ranks"))
        alone = prepared()
        one = steps(alone, alone, slice(None))
    return found, one


def largest_difference(found, expected):
    """Relative to the expected value."""
    assert found.keys() == expected.keys()
    return max(
        float((found[name] - value).abs().max() / value.abs().max())
        for name, value in expected.items()
    )


@pytest.mark.parametrize("stage", ["calibrated", "trained"])
def test_all_ranks_have_equal_scales_with_sync_on(results, stage):
    """A27."""
    (first, second), _ = results
    assert first[True][stage].keys() == second[True][stage].keys()
    for name, scale in first[True][stage].items():
        assert torch.equal(scale, second[True][stage][name]), name


def test_calibrating_in_two_processes_is_calibrating_in_one(results):
    (first, _), alone = results
    # float32 kernels sum in another order at another batch size
    assert largest_difference(first[True]["calibrated"], alone["calibrated"]) < 1e-5


def test_training_in_two_processes_is_training_in_one(results):
    (first, second), alone = results
    for name, weight in first[True]["weights"].items():
        assert torch.equal(weight, second[True]["weights"][name]), name
    # a rounding that falls the other way moves one gradient by a step of the grid
    assert largest_difference(first[True]["weights"], alone["weights"]) < 1e-2
    assert largest_difference(first[True]["trained"], alone["trained"]) < 1e-2


def test_without_sync_a_rank_follows_its_own_data(results):
    (first, second), _ = results
    name = "_input_0_quant.activation_post_process"
    assert not torch.equal(first[False]["calibrated"][name], second[False]["calibrated"][name])


def test_buffers_stay_in_place_under_ddp(results):
    """DDP keeps references to the buffers that it found when it wrapped the model."""
    for rank in results[0]:
        assert rank[True]["moved"] == rank[False]["moved"] == []


def test_all_ranks_report_the_same_state(results):
    for rank in results[0]:
        assert rank[True]["states"] == ["QAT"]
