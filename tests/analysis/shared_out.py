"""A script in the form of the tuning tool document: one analysis by several processes.

``python tests/analysis/shared_out.py OUT`` starts two processes by ``mp.spawn``;
``torchrun --nproc_per_node 2 tests/analysis/shared_out.py OUT`` is one of several;
``OUT --alone`` does the whole work in one process.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor, nn
from torch.ao.quantization import DeQuantStub, QuantStub
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler

from qtune.march import set_march
from qtune.profiler import QuantAnalysis
from qtune.profiler.utils.entities import Metric
from qtune.quantization import FakeQuantState, get_qconfig, prepare, set_fake_quantize
from qtune.quantization.qconfig_setter import ModuleNameTemplate, QconfigSetter

STEPS = 4
PROCESSES = 2
TOPK = 2


class Images(Dataset[Tensor]):
    """Seven images: with two processes one of them gets an image twice."""

    def __init__(self) -> None:
        self.data = torch.rand(7, 3, 16, 16, generator=torch.Generator().manual_seed(5))

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: int) -> Tensor:
        return self.data[index]


class ConvNet(nn.Module):
    """Two layers of conv, batch norm, relu, pool, and a linear head, between stubs."""

    def __init__(self) -> None:
        super().__init__()
        self.layer1 = self._layer(3, 8)
        self.layer2 = self._layer(8, 8)
        self.fc = nn.Linear(8 * 4 * 4, 5)
        self.quant, self.dequant = QuantStub(), DeQuantStub()

    def _layer(self, inputs: int, outputs: int) -> nn.Sequential:
        conv = nn.Conv2d(inputs, outputs, 3, padding=1)
        return nn.Sequential(conv, nn.BatchNorm2d(outputs), nn.ReLU(), nn.MaxPool2d(2))

    def forward(self, x: Tensor) -> Tensor:
        x = self.layer2(self.layer1(self.quant(x)))
        return self.dequant(self.fc(x.reshape(x.size(0), -1)))


def models() -> tuple[nn.Module, nn.Module]:
    """The float and the calibrated model, the same ones in every process."""
    torch.manual_seed(0)
    net = ConvNet().eval()
    setter = QconfigSetter(get_qconfig(), [ModuleNameTemplate({"": "qint8"})])
    calib = prepare(net, torch.rand(1, 3, 16, 16), setter)
    set_fake_quantize(calib.eval(), FakeQuantState.CALIBRATION)
    with torch.no_grad():
        calib(torch.rand(4, 3, 16, 16))
    set_fake_quantize(calib, FakeQuantState.VALIDATION)
    return net, calib


def analyse(out_dir: str, device: int, loader: DataLoader[Tensor], steps: int) -> None:
    """Bad cases, comparison, sensitivity and tuning."""
    net, calib = models()
    qa = QuantAnalysis(net, calib, "fake_quant", device_ids=device, out_dir=out_dir)
    qa.auto_find_bad_case(loader, num_steps=steps, topk=TOPK)
    qa.run(metric=Metric.ATOL)
    layers = qa.compare_per_layer()
    tables = qa.sensitivity(metric=Metric.ATOL, use_sensitivity_v2=True)
    goal = {"metric": Metric.ATOL, "threshold": 0.0, "max_tuned_stubs": 2}
    tuned = qa.tune_bad_case({"": goal})
    seen = [str(layers), *map(str, tables[""]), *map(str, tuned[""]), str(qa.badcase_report)]
    rank = dist.get_rank() if dist.is_initialized() else 0
    Path(out_dir, f"seen_by_{rank}.txt").write_text("\n\n".join(seen))


def one_of_several(rank: int, count: int, out_dir: str) -> None:
    """The work of one process."""
    set_march("nash-e")
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=count)
    images = Images()
    sampler = DistributedSampler(images, num_replicas=count, rank=rank, shuffle=False)
    analyse(out_dir, rank, DataLoader(images, batch_size=1, sampler=sampler), STEPS)
    dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("out_dir")
    parser.add_argument("--alone", action="store_true")
    given = parser.parse_args()
    Path(given.out_dir).mkdir(parents=True, exist_ok=True)
    if given.alone:
        set_march("nash-e")
        torch.set_num_threads(1)
        analyse(given.out_dir, 0, DataLoader(Images(), batch_size=1), STEPS * PROCESSES)
    elif "LOCAL_RANK" in os.environ:
        count = int(os.environ["WORLD_SIZE"])
        one_of_several(int(os.environ["RANK"]), count, given.out_dir)
    else:
        os.environ.setdefault("MASTER_ADDR", "localhost")
        mp.spawn(one_of_several, args=(PROCESSES, given.out_dir), nprocs=PROCESSES, join=True)


if __name__ == "__main__":
    main()
