"""A small project for gate files: the example of docs, with the modules that it names."""

from __future__ import annotations

from pathlib import Path

EXAMPLE = """\
# resnet.qtune.toml: each check becomes one test item, a per-layer check one item per layer
[model]
factory = "my_models:resnet18"
march = "nash-e"
calibration = "my_data:calib"
inputs = "my_data:holdout"
evaluate = "my_eval:top1"          # callable(model) -> float, for accuracy checks
# artefact = "resnet.bc"           # pins a committed integer model

[[check]]
kind = "no_shared_ops"

[[check]]
kind = "consistency"
from = "float"
to = "quantized_bc"
per_layer = true
min_cosine = 0.98

[[check]]
kind = "sensitivity_below"
metric = "ATOL"
limit = 0.05

[[check]]
kind = "baseline"
metrics = ["sqnr_db", "top1"]
max_drop = 0.5
"""
MODEL = EXAMPLE.partition("[[check]]")[0]

MODULES = {
    "my_models.py": '''\
from torch import nn


class Net(nn.Module):
    """conv with batch norm and relu, conv, mean, linear."""

    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 4, 3, padding=1)
        self.bn1 = nn.BatchNorm2d(4)
        self.relu = nn.ReLU()
        self.conv2 = nn.Conv2d(4, 4, 3, padding=1)
        self.head = nn.Linear(4, 4)

    def forward(self, x):
        x = self.relu(self.bn1(self.conv1(x)))
        return self.head(self.conv2(x).mean((2, 3)))


def resnet18():
    return Net()


def shared():
    net = Net()
    net.conv2 = net.conv1 = nn.Conv2d(3, 3, 3, padding=1)
    net.bn1 = nn.Identity()
    net.head = nn.Linear(3, 4)
    return net


def broken():
    raise ValueError("no weights today")
''',
    "my_data.py": """\
import torch


def calib():
    return [torch.randn(4, 3, 6, 6) for _ in range(2)]


def holdout():
    return torch.randn(4, 3, 6, 6, generator=torch.Generator().manual_seed(7))


def loader():
    return ((torch.randn(4, 3, 6, 6), torch.zeros(4)) for _ in range(2))


def empty():
    return []
""",
    "my_eval.py": """\
import my_data


def top1(model):
    return float((model(my_data.holdout()).argmax(-1) == 0).float().mean())
""",
}


def write(folder: Path, text: str = EXAMPLE, name: str = "resnet.qtune.toml") -> Path:
    """The project in ``folder``; the path of its gate file."""
    for file, content in MODULES.items():
        (folder / file).write_text(content)
    path = folder / name
    path.write_text(text)
    return path
