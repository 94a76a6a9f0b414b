"""The tuning tool's script for several processes: every method, in all of them."""

import argparse
import os
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from horizon_plugin_profiler import QuantAnalysis
from horizon_plugin_profiler.utils.entities import Metric
from horizon_plugin_pytorch.dtype import qint8
from horizon_plugin_pytorch.march import set_march
from horizon_plugin_pytorch.quantization import (
    FakeQuantState,
    QconfigSetter,
    QuantStub,
    get_qconfig,
    observer_v2,
    prepare,
    set_fake_quantize,
)
from horizon_plugin_pytorch.quantization.qconfig_setter import ModuleNameTemplate
from torch import nn
from torch.ao.quantization import DeQuantStub
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler


class Images(Dataset):
    def __init__(self, count, size=32):
        self.data = torch.randn(
            count, 3, size, size, generator=torch.Generator().manual_seed(count)
        )

    def __len__(self):
        return len(self.data)

    def __getitem__(self, index):
        return self.data[index]


def stage(inputs, outputs):
    conv = nn.Conv2d(inputs, outputs, kernel_size=3, stride=1, padding=1)
    return nn.Sequential(conv, nn.BatchNorm2d(outputs), nn.ReLU(), nn.MaxPool2d(2, 2))


class ConvNet(nn.Module):
    def __init__(self, classes=10):
        super().__init__()
        self.quant, self.dequant = QuantStub(), DeQuantStub()
        self.layer1, self.layer2 = stage(3, 16), stage(16, 32)
        self.fc = nn.Linear(8 * 8 * 32, classes)

    def forward(self, x):
        x = self.layer2(self.layer1(self.quant(x)))
        return self.dequant(self.fc(x.reshape(x.size(0), -1)))


def make_calib(float_net):
    return prepare(
        float_net,
        torch.rand((1, 3, 32, 32)),
        QconfigSetter(
            reference_qconfig=get_qconfig(observer=observer_v2.MSEObserver),
            templates=[ModuleNameTemplate({"": qint8})],
        ),
    )


def write_checkpoints(folder):
    """What a project has from its training and its calibration."""
    torch.manual_seed(0)
    set_march("nash-e")
    net = ConvNet()
    torch.save(net.state_dict(), f"{folder}/float.pt")
    calib = make_calib(net)
    set_fake_quantize(calib.eval(), FakeQuantState.CALIBRATION)
    calib(Images(4).data)
    torch.save(calib.state_dict(), f"{folder}/calib.pt")


def setup(rank, world_size, config):
    os.environ["MASTER_ADDR"] = config["master_addr"]
    os.environ["MASTER_PORT"] = str(config["master_port"])
    dist.init_process_group(backend="nccl", rank=rank, world_size=world_size)
    torch.cuda.set_device(rank)


def quant_analysis(rank, world_size, config):
    torch.set_num_threads(1)
    setup(rank, world_size, config)
    set_march("nash-e")
    out_dir = config["output_dir"]
    float_net = ConvNet()
    dataset = Images(6)
    sampler = DistributedSampler(dataset, num_replicas=world_size, rank=rank, shuffle=False)
    loader = DataLoader(
        dataset,
        batch_size=1,
        sampler=sampler,
        num_workers=config["num_workers"],
        pin_memory=True,
    )
    float_net.load_state_dict(torch.load(f"{out_dir}/float.pt"))
    calib_net = make_calib(float_net)
    calib_net.load_state_dict(torch.load(f"{out_dir}/calib.pt"))
    float_net.eval()
    set_fake_quantize(calib_net.eval(), FakeQuantState.VALIDATION)
    qa = QuantAnalysis(
        baseline_model=float_net,
        analysis_model=calib_net,
        analysis_model_type="fake_quant",
        device_ids=rank,
        out_dir=out_dir,
    )
    qa.auto_find_bad_case(data_generator=loader, num_steps=100, topk=2)
    qa.run(metric=Metric.ATOL)
    qa.compare_per_layer()
    qa.sensitivity(metric=Metric.ATOL, use_sensitivity_v2=True)
    dist.destroy_process_group()


def main():
    parser = argparse.ArgumentParser(description="QuantAnalysis in several processes")
    parser.add_argument("--nnodes", type=int, default=1)
    parser.add_argument("--nproc_per_node", type=int, default=torch.cuda.device_count())
    parser.add_argument("--node_rank", type=int, default=0)
    parser.add_argument("--master_addr", type=str, default="localhost")
    parser.add_argument("--master_port", type=int, default=29500)
    parser.add_argument("--num_workers", type=int, default=0)
    parser.add_argument("--output_dir", type=str, default="./quant_analysis_output")
    args = parser.parse_args()
    Path(args.output_dir).mkdir(parents=True, exist_ok=True)
    write_checkpoints(args.output_dir)
    world_size = args.nnodes * args.nproc_per_node
    if args.node_rank == 0:
        print(f"processes: {world_size}, master: {args.master_addr}:{args.master_port}")
    mp.spawn(quant_analysis, args=(world_size, vars(args)), nprocs=args.nproc_per_node, join=True)


if __name__ == "__main__":
    main()
