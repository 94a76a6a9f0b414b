"""timm: which architectures, at which sizes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from .runner import Architecture
from .torchvision_stub import stubbed

SMALL = [
    "convmixer_768_32",
    "convnext_atto",
    "convnext_atto_rms",
    "cs3darknet_focus_s",
    "cs3sedarknet_l",
    "cspresnet50",
    "cspnext_tiny",
    "csatv2",
    "davit_tiny",
    "densenet121",
    "dla34",
    "dla60_res2net",
    "dm_nfnet_f0",
    "dpn68b",
    "eca_nfnet_l0",
    "edgenext_xx_small",
    "efficientnet_b0",
    "efficientvit_b0",
    "efficientvim_m1",
    "ese_vovnet19b_dw",
    "fasternet_t0",
    "fastvit_t8",
    "fbnetv3_b",
    "focalnet_tiny_srf",
    "gcresnet33ts",
    "gernet_s",
    "ghostnet_100",
    "ghostnetv2_100",
    "ghostnetv3_050",
    "hardcorenas_a",
    "hgnet_tiny",
    "hgnetv2_b0",
    "hrnet_w18_small",
    "iformer_t",
    "inception_next_atto",
    "lcnet_050",
    "lcnetv2_small",
    "legacy_seresnet18",
    "lowformer_b0",
    "mambaout_femto",
    "mixnet_s",
    "mnasnet_small",
    "mobilenetv2_050",
    "mobilenetv3_small_050",
    "mobilenetv4_conv_small",
    "mobileone_s0",
    "mobilevit_xxs",
    "mobilevitv2_050",
    "nextvit_small",
    "nf_resnet26",
    "pvt_v2_b0",
    "rdnet_tiny",
    "regnetx_002",
    "regnety_002",
    "repghostnet_050",
    "repvit_m0_9",
    "res2net50_14w_8s",
    "resnest14d",
    "resnet18",
    "resnet18d",
    "resnetv2_50",
    "resnext26ts",
    "rexnet_100",
    "selecsls42",
    "semnasnet_050",
    "shvit_s1",
    "skresnet18",
    "starnet_s050",
    "test_byobnet",
    "test_convnext",
    "test_convnext2",
    "test_convnext3",
    "test_efficientnet",
    "test_efficientnet_evos",
    "test_efficientnet_gn",
    "test_efficientnet_ln",
    "test_mambaout",
    "test_nfnet",
    "test_resnet",
    "tf_efficientnet_b0",
    "tf_efficientnetv2_b0",
    "tf_mixnet_s",
    "twins_pcpvt_small",
    "twins_svt_small",
    "vgg11",
    "vgg11_bn",
    "xception41p",
    "poolformer_s12",
    "poolformerv2_s12",
    "caformer_s18",
    "convformer_s18",
    "cpubone_nano",
]
"""Take any image size; run at 64 and 96."""

LARGE = ["inception_v3", "legacy_xception", "inception_resnet_v2", "inception_v4"]
"""Take any size, but not a small one."""

IMG_SIZE: Mapping[str, int] = {
    "beit_base_patch16_224": 64,
    "cait_xxs24_224": 64,
    "convit_tiny": 64,
    "crossvit_9_240": 240,
    "crossvit_tiny_240": 240,
    "coat_lite_tiny": 64,
    "coat_tiny": 64,
    "deit3_small_patch16_224": 64,
    "deit_tiny_distilled_patch16_224": 64,
    "eva02_tiny_patch14_224": 56,
    "gcvit_xxtiny": 224,
    "gmlp_ti16_224": 64,
    "hiera_tiny_224": 224,
    "mixer_s32_224": 64,
    "resmlp_12_224": 64,
    "mvitv2_tiny": 224,
    "nest_tiny": 224,
    "pit_ti_224": 224,
    "samvit_base_patch16_224": 64,
    "swin_tiny_patch4_window7_224": 224,
    "swinv2_tiny_window8_256": 256,
    "swinv2_cr_tiny_224": 224,
    "test_vit": 64,
    "test_vit2": 64,
    "test_vit3": 64,
    "test_vit4": 64,
    "test_vit_relpos": 64,
    "test_coatnet": 64,
    "test_maxvit": 64,
    "tnt_s_patch16_224": 64,
    "visformer_small": 224,
    "vit_small_r26_s32_224": 64,
    "vit_tiny_patch16_224": 64,
    "vit_srelpos_small_patch16_224": 64,
    "vitamin_small_224": 64,
    "volo_d1_224": 64,
    "xcit_nano_12_p16_224": 64,
}
"""Models that are made for one image size (the option ``img_size``)."""

FIXED: Mapping[str, int] = {
    "botnet26t_256": 256,
    "halonet26t": 256,
    "lambda_resnet26t": 256,
    "efficientformer_l1": 224,
    "efficientformerv2_s0": 224,
    "efficientvit_m0": 224,
    "levit_128s": 224,
    "levit_conv_128s": 224,
    "sequencer2d_s": 224,
    "swiftformer_xs": 224,
    "tiny_vit_5m_224": 224,
}
"""Models of one image size that has no option."""

FEATURES = ("resnet18", "mobilenetv3_small_050", "hrnet_w18_small", "convnext_atto", "pvt_v2_b0")
"""Also run with ``features_only``: the maps of all stages, as detectors take them."""

REASONS: Mapping[str, str] = {}
"""Why an architecture may be further from the float model than numerics.md says."""


def architectures() -> Iterator[Architecture]:
    """All of them. Needs timm."""
    yield from (_architecture(name, 64, (96,)) for name in SMALL)
    yield from (_architecture(name, 160, (192,)) for name in LARGE)
    for name, size in IMG_SIZE.items():
        yield _architecture(name, size, (), img_size=size)
    yield from (_architecture(name, size, (size + 32,)) for name, size in FIXED.items())
    for name in FEATURES:
        yield _architecture(name, 64, (96,), features_only=True)


def _architecture(name: str, size: int, others: tuple[int, ...], **options: Any) -> Architecture:
    shapes = [(3, size, size), *((1, other, other) for other in others)]
    return Architecture(
        name=f"{name} features" if options.get("features_only") else name,
        build=partial(_build, name, options),
        example=partial(_images, 2, size, size),
        others=tuple(partial(_images, *shape) for shape in shapes),
        loose=REASONS.get(name, ""),
    )


def _images(count: int, height: int, width: int) -> Tensor:
    return torch.randn(count, 3, height, width)


def _build(name: str, options: dict[str, Any]) -> nn.Module:
    with stubbed():
        import timm

        model: nn.Module = timm.create_model(name, pretrained=False, **options)
    return model
