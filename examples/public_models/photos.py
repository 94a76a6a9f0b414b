"""Seeded crops of real photos and faces that installable packages ship."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from skimage import data
from sklearn.datasets import load_sample_images
from torch import Tensor

MEAN = torch.tensor([0.485, 0.456, 0.406]).view(3, 1, 1)
STD = torch.tensor([0.229, 0.224, 0.225]).view(3, 1, 1)


def _photos() -> list[np.ndarray]:
    return [data.chelsea(), data.coffee(), data.rocket(), *load_sample_images().images]


def imagenet_crops(count: int, seed: int, size: int = 224) -> Tensor:
    """``count`` random crops, resized and normalised for ImageNet nets: (count, 3, size, size)."""
    rng = np.random.default_rng(seed)
    photos = _photos()
    crops = []
    for _ in range(count):
        photo = photos[rng.integers(len(photos))]
        side = int(rng.integers(160, min(photo.shape[:2]) + 1))
        top = int(rng.integers(0, photo.shape[0] - side + 1))
        left = int(rng.integers(0, photo.shape[1] - side + 1))
        crop = np.ascontiguousarray(photo[top : top + side, left : left + side])
        image = torch.from_numpy(crop).permute(2, 0, 1).float().div(255.0)
        image = F.interpolate(image[None], (size, size), mode="bilinear", antialias=True)[0]
        crops.append((image - MEAN) / STD)
    return torch.stack(crops)


def faces(size: int) -> tuple[Tensor, Tensor]:
    """200 grey patches as (200, 3, size, size) in [-1, 1], and labels: 1 is a face."""
    patches = torch.from_numpy(data.lfw_subset()).float().unsqueeze(1)
    patches = F.interpolate(patches, (size, size), mode="bilinear", antialias=True)
    images = (patches * 255.0 - 127.5) / 128.0
    labels = torch.zeros(len(images), dtype=torch.long)
    labels[:100] = 1
    return images.expand(-1, 3, -1, -1).contiguous(), labels
