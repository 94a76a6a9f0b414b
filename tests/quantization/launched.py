"""A training script as users write it, for ``torchrun``: calibrate, train, save on rank 0."""

from __future__ import annotations

import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import qtune
from qtune.quantization import (
    FakeQuantState,
    QconfigSetter,
    auto_calibrate,
    get_default_qconfig,
    prepare,
    set_fake_quantize,
)
from qtune.quantization.qconfig_setter import ModuleNameTemplate


def main(file: str) -> None:
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    rank = dist.get_rank()
    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    torch.manual_seed(0)
    qtune.set_march("nash-e")
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten())
    net.append(nn.Linear(4 * 16, 3))
    data = TensorDataset(torch.randn(16, 3, 6, 6), torch.randint(3, (16,)))
    loader = DataLoader(data, batch_size=2, sampler=DistributedSampler(data))
    synchronized = get_default_qconfig(activation_qkwargs={"is_sync_quantize": True})
    setter = QconfigSetter(synchronized, [ModuleNameTemplate({"": "qint8"})])
    model = prepare(net.eval(), data[:2][0], setter).to(device)
    run = DistributedDataParallel(model)
    auto_calibrate(run, [(x.to(device), y) for x, y in loader], progress=True)
    set_fake_quantize(run.train(), FakeQuantState.QAT)
    optimizer = torch.optim.SGD(run.parameters(), lr=0.01)
    for x, y in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(run(x.to(device)), y.to(device)).backward()
        optimizer.step()
    everyone: list[object] = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, {k: v.tolist() for k, v in model.state_dict().items()})
    if rank == 0:
        torch.save({"state": model.state_dict(), "states": everyone}, file)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
