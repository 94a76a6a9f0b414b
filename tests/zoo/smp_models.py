"""segmentation-models-pytorch: decoders over encoders that need no torchvision."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial

import torch
from torch import Tensor, nn

from .runner import Architecture
from .torchvision_stub import stubbed

PAIRS = [
    ("Unet", "tu-resnet18"),
    ("Unet", "efficientnet-b0"),
    ("Unet", "mit_b0"),
    ("Unet", "mobileone_s0"),
    ("UnetPlusPlus", "tu-resnet18"),
    ("UnetPlusPlus", "tu-mobilenetv3_small_100"),
    ("FPN", "tu-resnet18"),
    ("FPN", "tu-convnext_atto"),
    ("Linknet", "tu-resnet18"),
    ("MAnet", "tu-resnet18"),
    ("PAN", "tu-resnet18"),
    ("PSPNet", "tu-resnet18"),
    ("DeepLabV3", "tu-resnet18"),
    ("DeepLabV3Plus", "tu-resnet18"),
    ("DeepLabV3Plus", "tu-mobilenetv2_100"),
    ("UPerNet", "tu-resnet18"),
    ("UPerNet", "tu-swin_tiny_patch4_window7_224"),
    ("Segformer", "mit_b0"),
    ("Segformer", "tu-resnet18"),
    ("DPT", "tu-vit_tiny_patch16_224"),
]
SIZES: Mapping[str, int] = {"tu-swin_tiny_patch4_window7_224": 224, "tu-vit_tiny_patch16_224": 224}
"""Of encoders for one image size; the others run at 64 and 128."""


def architectures() -> Iterator[Architecture]:
    """All of them. Needs segmentation-models-pytorch and timm."""
    for decoder, encoder in PAIRS:
        size = 128 if decoder == "PAN" else SIZES.get(encoder, 64)  # it pools 8 times
        others = [(3, size)] if encoder in SIZES else [(3, size), (1, 2 * size)]
        yield Architecture(
            name=f"{decoder} {encoder}",
            build=partial(_build, decoder, encoder),
            example=partial(_images, 2, size),
            others=tuple(partial(_images, *other) for other in others),
        )


def _images(count: int, size: int) -> Tensor:
    return torch.randn(count, 3, size, size)


def _build(decoder: str, encoder: str) -> nn.Module:
    with stubbed():
        import segmentation_models_pytorch as smp

        cls = getattr(smp, decoder)
        model: nn.Module = cls(encoder_name=encoder, encoder_weights=None, classes=3)
    return model
