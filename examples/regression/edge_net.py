"""A hand-made edge detector (Sobel filters, absolute values, a blur), a photo, and its edges.

Weights and pixels are multiples of a power of two, so that float sums are exact: every machine gets
the same float results.
"""

from __future__ import annotations

import numpy as np
import torch
from skimage import data, filters
from torch import Tensor, nn

SOBEL = torch.tensor([[-1.0, 0.0, 1.0], [-2.0, 0.0, 2.0], [-1.0, 0.0, 1.0]]) / 8
BLUR = torch.tensor([[1.0, 2.0, 1.0], [2.0, 4.0, 2.0], [1.0, 2.0, 1.0]]) / 16
SIZE = 32


class EdgeNet(nn.Module):
    """(N, 1, 32, 32) in [0, 1) to a map of edges: abs(dx) + abs(dy), blurred."""

    def __init__(self) -> None:
        super().__init__()
        self.dx = fixed(SOBEL)
        self.dy = fixed(SOBEL.T)
        self.blur = fixed(BLUR)

    def forward(self, x: Tensor) -> Tensor:
        return self.blur(self.dx(x).abs() + self.dy(x).abs())


def fixed(kernel: Tensor) -> nn.Conv2d:
    """A convolution of one channel with these weights."""
    conv = nn.Conv2d(1, 1, 3, padding=1, bias=False)
    with torch.no_grad():
        conv.weight.copy_(kernel[None, None])
    return conv


def squares(photo: np.ndarray) -> Tensor:
    """A photo of 512 x 512 pixels as 256 squares."""
    rows = torch.from_numpy(photo).float().unfold(0, SIZE, SIZE)
    return rows.unfold(1, SIZE, SIZE).reshape(-1, 1, SIZE, SIZE)


def calibration() -> list[Tensor]:
    """Every other square, in batches of 16, in steps of 1 / 256."""
    return list(squares(data.camera() / 256)[::2].split(16))


def holdout() -> Tensor:
    """64 of the squares between them."""
    return squares(data.camera() / 256)[1::4]


def edge_share(found: Tensor) -> float:
    """Of the pixels that ``found`` or scikit-image calls an edge, the share that both do.

    Without two pixels at the border of each square, which see the zeros around it.
    """
    edges = filters.gaussian(filters.sobel(data.camera() / 256), sigma=0.7)
    ours, theirs = inner(found) > 0.1, inner(squares(edges))[1::4] > 0.115
    return float((ours & theirs).sum() / (ours | theirs).sum())


def inner(images: Tensor) -> Tensor:
    """Without two pixels on each side."""
    return images[..., 2:-2, 2:-2]
