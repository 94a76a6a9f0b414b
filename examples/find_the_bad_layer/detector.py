"""A detector's head with one fragile layer: boxes in pixels and scores share one tensor."""

from __future__ import annotations

import torch
from torch import Tensor, nn

SIZE = 640  # pixels of the photo that boxes are given in


class Detector(nn.Module):
    """(N, 3, 160, 160) to boxes in pixels and scores of two classes, for each of 20 x 20 places."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone = nn.Sequential(
            nn.Conv2d(3, 16, 3, stride=4, padding=1),
            nn.ReLU(),
            nn.Conv2d(16, 32, 3, stride=2, padding=1),
            nn.ReLU(),
        )
        self.box = nn.Conv2d(32, 4, 1)
        self.score = nn.Conv2d(32, 2, 1)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        x = self.backbone(x)
        boxes = self.box(x).sigmoid() * SIZE
        scores = self.score(x).sigmoid()
        found = torch.cat([boxes, scores], dim=1)  # one tensor, so one scale
        return {"boxes": found[:, :4], "scores": found[:, 4:]}


def detector() -> Detector:
    """Random weights, always the same ones."""
    torch.manual_seed(0)
    model = Detector()
    with torch.no_grad():
        model.box.weight *= 10  # boxes and scores all over their ranges
        model.score.weight *= 20
    return model.eval()


def images(count: int = 8, seed: int = 0) -> Tensor:
    """Smooth noise."""
    generator = torch.Generator().manual_seed(seed)
    noise = torch.randn(count, 3, 20, 20, generator=generator)
    return nn.functional.interpolate(noise, scale_factor=8.0, mode="bilinear")


def calibration() -> list[Tensor]:
    """Four batches."""
    return list(images(16).split(4))


def bad_case() -> Tensor:
    """Images that calibration never saw."""
    return images(4, seed=1)
