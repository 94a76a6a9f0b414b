"""The three MTCNN nets (face proposal, refinement, output), declared for the public weights."""

from __future__ import annotations

import torch
from mobilenet_v2 import package_file
from torch import Tensor, nn


def _stage(cin: int, cout: int, kernel: int, pool: int | None = None) -> nn.Sequential:
    layers: list[nn.Module] = [nn.Conv2d(cin, cout, kernel), nn.PReLU(cout)]
    if pool is not None:
        layers.append(nn.MaxPool2d(pool, 2, ceil_mode=True))
    return nn.Sequential(*layers)


def _columns_first(x: Tensor) -> Tensor:
    """The order in which the public weights expect a flattened map."""
    x = x.permute(0, 3, 2, 1).contiguous()
    return x.view(x.shape[0], -1)


class PNet(nn.Module):
    """Bx3xHxW (at least 12x12) to box offsets (4) and face probability (2) per position."""

    def __init__(self) -> None:
        super().__init__()
        self.stage1 = _stage(3, 10, 3, 2)
        self.stage2 = _stage(10, 16, 3)
        self.stage3 = _stage(16, 32, 3)
        self.face = nn.Conv2d(32, 2, 1)
        self.box = nn.Conv2d(32, 4, 1)
        self.softmax = nn.Softmax(dim=1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = self.stage3(self.stage2(self.stage1(x)))
        return self.box(x), self.softmax(self.face(x))


class RNet(nn.Module):
    """Bx3x24x24 to box offsets (4) and face probability (2)."""

    def __init__(self) -> None:
        super().__init__()
        self.stage1 = _stage(3, 28, 3, 3)
        self.stage2 = _stage(28, 48, 3, 3)
        self.stage3 = _stage(48, 64, 2)
        self.dense = nn.Sequential(nn.Linear(576, 128), nn.PReLU(128))
        self.face = nn.Linear(128, 2)
        self.box = nn.Linear(128, 4)
        self.softmax = nn.Softmax(dim=1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = self.dense(_columns_first(self.stage3(self.stage2(self.stage1(x)))))
        return self.box(x), self.softmax(self.face(x))


class ONet(nn.Module):
    """Bx3x48x48 to box offsets (4), landmarks (10) and face probability (2)."""

    def __init__(self) -> None:
        super().__init__()
        self.stage1 = _stage(3, 32, 3, 3)
        self.stage2 = _stage(32, 64, 3, 3)
        self.stage3 = _stage(64, 64, 3, 2)
        self.stage4 = _stage(64, 128, 2)
        self.dense = nn.Sequential(nn.Linear(1152, 256), nn.PReLU(256))
        self.face = nn.Linear(256, 2)
        self.box = nn.Linear(256, 4)
        self.landmarks = nn.Linear(256, 10)
        self.softmax = nn.Softmax(dim=1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        x = self.stage4(self.stage3(self.stage2(self.stage1(x))))
        x = self.dense(_columns_first(x))
        return self.box(x), self.landmarks(x), self.softmax(self.face(x))


# our module name -> the weight file's, in the order of the file
_RENAMED = {
    "pnet": (PNet, ("stage1.0", "stage1.1", "stage2.0", "stage2.1", "stage3.0", "stage3.1",
                    "face", "box")),
    "rnet": (RNet, ("stage1.0", "stage1.1", "stage2.0", "stage2.1", "stage3.0", "stage3.1",
                    "dense.0", "dense.1", "face", "box")),
    "onet": (ONet, ("stage1.0", "stage1.1", "stage2.0", "stage2.1", "stage3.0", "stage3.1",
                    "stage4.0", "stage4.1", "dense.0", "dense.1", "face", "box", "landmarks")),
}  # fmt: skip


def load(name: str) -> nn.Module:
    """``pnet``, ``rnet`` or ``onet`` with trained weights, in eval mode."""
    cls, ours = _RENAMED[name]
    path = package_file("facenet_pytorch", "data", f"{name}.pt")
    theirs = torch.load(path, map_location="cpu", weights_only=True)
    prefixes = list(dict.fromkeys(key.rsplit(".", 1)[0] for key in theirs))
    renamed = dict(zip(prefixes, ours, strict=True))
    model = cls()
    model.load_state_dict(
        {f"{renamed[k.rsplit('.', 1)[0]]}.{k.rsplit('.', 1)[1]}": v for k, v in theirs.items()}
    )
    return model.eval()
