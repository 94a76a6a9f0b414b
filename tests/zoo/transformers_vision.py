"""transformers: models of images, sound and several of these, with tiny configurations."""

from __future__ import annotations

from collections.abc import Mapping

from .transformers_text import BERT, Options

VIT: Options = {**BERT, "image_size": 32, "patch_size": 8}
WAV: Options = {
    **BERT,
    "conv_dim": (16, 16),
    "conv_kernel": (10, 3),
    "conv_stride": (5, 2),
    "num_feat_extract_layers": 2,
    "num_conv_pos_embeddings": 8,
    "num_conv_pos_embedding_groups": 2,
}
STAGES: Options = {
    "depths": (1, 1, 1, 1),
    "num_heads": (1, 2, 4, 8),
    "embed_dim": 16,
    "image_size": 64,
    "window_size": 2,
}
CONV: Options = {"hidden_sizes": (8, 16, 24, 32), "depths": (1, 1, 2, 1)}
IMAGES: Mapping[str, tuple[int, Options]] = {
    "BeitModel": (32, VIT),
    "ConvNextModel": (64, CONV),
    "ConvNextV2Model": (64, CONV),
    "Data2VecVisionModel": (32, VIT),
    "DeiTModel": (32, VIT),
    "Dinov2Model": (32, VIT),
    "FocalNetModel": (64, {**STAGES, "focal_levels": (1, 1, 1, 1), "focal_windows": (3, 3, 3, 3)}),
    "GLPNForDepthEstimation": (
        64,
        {
            "hidden_sizes": (8, 16, 32, 64),
            "num_attention_heads": (1, 1, 2, 2),
            "depths": (1, 1, 1, 1),
            "decoder_hidden_size": 16,
        },
    ),
    "HieraModel": (
        64,
        {
            "image_size": (64, 64),
            "embed_dim": 16,
            "depths": (1, 1, 1, 1),
            "num_heads": (1, 1, 2, 2),
        },
    ),
    "IJepaModel": (32, VIT),
    "LevitModel": (
        64,
        {
            "image_size": 64,
            "hidden_sizes": (16, 32, 48),
            "num_attention_heads": (2, 2, 3),
            "depths": (1, 1, 1),
            "key_dim": (8, 8, 8),
        },
    ),
    "MobileNetV1Model": (64, {"depth_multiplier": 0.25}),
    "MobileNetV2Model": (64, {"depth_multiplier": 0.35}),
    "MobileViTModel": (
        64,
        {
            "image_size": 64,
            "hidden_sizes": (16, 24, 32),
            "neck_hidden_sizes": (8, 8, 16, 16, 24, 32, 64),
        },
    ),
    "MobileViTV2Model": (64, {"image_size": 64, "width_multiplier": 0.25}),
    "PoolFormerModel": (64, {"hidden_sizes": (8, 16, 24, 32), "depths": (1, 1, 1, 1)}),
    "PvtModel": (
        64,
        {
            "image_size": 64,
            "hidden_sizes": (8, 16, 24, 32),
            "num_attention_heads": (1, 1, 2, 2),
            "depths": (1, 1, 1, 1),
        },
    ),
    "PvtV2Model": (
        64,
        {
            "hidden_sizes": (8, 16, 24, 32),
            "num_attention_heads": (1, 1, 2, 2),
            "depths": (1, 1, 1, 1),
        },
    ),
    "RegNetModel": (
        64,
        {
            "hidden_sizes": (8, 16, 24, 32),
            "depths": (1, 1, 1, 1),
            "embedding_size": 8,
            "groups_width": 8,
        },
    ),
    "ResNetForImageClassification": (
        64,
        {"hidden_sizes": (8, 16, 24, 32), "depths": (1, 1, 1, 1), "embedding_size": 8},
    ),
    "SegformerForSemanticSegmentation": (
        64,
        {"hidden_sizes": (8, 16, 24, 32), "depths": (1, 1, 1, 1), "decoder_hidden_size": 16},
    ),
    "SwiftFormerModel": (
        64,
        {"image_size": 64, "embed_dims": (8, 16, 24, 32), "depths": (1, 1, 1, 1)},
    ),
    "Swin2SRForImageSuperResolution": (
        16,
        {
            "image_size": 16,
            "embed_dim": 16,
            "depths": (1, 1),
            "num_heads": (2, 2),
            "window_size": 4,
        },
    ),
    "SwinModel": (64, STAGES),
    "Swinv2Model": (64, STAGES),
    "TextNetModel": (64, {}),
    "ViTModel": (32, VIT),
    "ViTForImageClassification": (32, {**VIT, "num_labels": 5}),
    "ViTMSNModel": (32, VIT),
    "VitDetModel": (
        32,
        {**VIT, "pretrain_image_size": 32, "window_size": 2, "window_block_indices": (0,)},
    ),
    "YolosForObjectDetection": (32, {**VIT, "image_size": (32, 32), "num_detection_tokens": 5}),
    "UperNetForSemanticSegmentation": (64, {"hidden_size": 16}),
}
"""Take images of the given size."""

_RESNET: Options = {
    "model_type": "resnet",
    "hidden_sizes": [8, 16, 24, 32],
    "depths": [1, 1, 1, 1],
    "embedding_size": 8,
    "layer_type": "basic",
}
_DETR: Options = {
    "use_timm_backbone": False,
    "use_pretrained_backbone": False,
    "backbone": None,
    "d_model": 32,
    "hidden_dim": 32,
    "num_queries": 7,
    "encoder_layers": 1,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64,
    "num_labels": 3,
}
_DETR_OF_STAGE4: Options = {**_DETR, "backbone_config": {**_RESNET, "out_features": ["stage4"]}}
_RT_DETR: Options = {
    **_DETR,
    "anchor_image_size": None,
    "encoder_hidden_dim": 32,
    "encoder_in_channels": [16, 24, 32],
    "decoder_in_channels": [32, 32, 32],
    "backbone_config": {
        "model_type": "rt_detr_resnet",
        "hidden_sizes": [8, 16, 24, 32],
        "depths": [1, 1, 1, 1],
        "embedding_size": 8,
        "layer_type": "basic",
        "out_features": ["stage2", "stage3", "stage4"],
    },
}

DETECTORS: Mapping[str, tuple[int, Options]] = {
    "DetrForObjectDetection": (64, _DETR_OF_STAGE4),
    "TableTransformerForObjectDetection": (64, _DETR_OF_STAGE4),
    "ConditionalDetrForObjectDetection": (64, _DETR_OF_STAGE4),
    "DabDetrForObjectDetection": (64, _DETR_OF_STAGE4),
    "DeformableDetrForObjectDetection": (
        64,
        {**_DETR, "backbone_config": {**_RESNET, "out_features": ["stage2", "stage3", "stage4"]}},
    ),
    "RTDetrForObjectDetection": (64, _RT_DETR),
    "RTDetrV2ForObjectDetection": (64, _RT_DETR),
    "MaskFormerForInstanceSegmentation": (
        64,
        {
            "fpn_feature_size": 32,
            "mask_feature_size": 32,
            "backbone_config": {
                **STAGES,
                "model_type": "swin",
                "out_features": ["stage1", "stage2", "stage3", "stage4"],
            },
            "decoder_config": {"model_type": "detr", **_DETR, "backbone_config": dict(_RESNET)},
        },
    ),
    "Mask2FormerForUniversalSegmentation": (
        64,
        {
            "feature_size": 32,
            "mask_feature_size": 32,
            "hidden_dim": 32,
            "encoder_layers": 1,
            "decoder_layers": 2,
            "num_attention_heads": 4,
            "encoder_feedforward_dim": 64,
            "dim_feedforward": 64,
            "num_queries": 5,
            "backbone_config": {
                **STAGES,
                "model_type": "swin",
                "out_features": ["stage1", "stage2", "stage3", "stage4"],
            },
        },
    ),
}
"""Take images and give boxes or masks."""

_CLIP_TEXT: Options = {**BERT, "projection_dim": 16, "eos_token_id": 98}
_CLIP_VISION: Options = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "image_size": 32,
    "patch_size": 8,
    "projection_dim": 16,
}

PAIRS: Mapping[str, tuple[int, Options]] = {
    "CLIPModel": (
        32,
        {"text_config": _CLIP_TEXT, "vision_config": _CLIP_VISION, "projection_dim": 16},
    ),
    "SiglipModel": (
        32,
        {"text_config": {**_CLIP_TEXT, "projection_size": 32}, "vision_config": _CLIP_VISION},
    ),
    "AltCLIPModel": (
        32,
        {"text_config": _CLIP_TEXT, "vision_config": _CLIP_VISION, "projection_dim": 16},
    ),
    "ChineseCLIPModel": (
        32,
        {"text_config": _CLIP_TEXT, "vision_config": _CLIP_VISION, "projection_dim": 16},
    ),
    "BlipModel": (
        32,
        {
            "text_config": {**_CLIP_TEXT, "encoder_hidden_size": 32},
            "vision_config": _CLIP_VISION,
            "projection_dim": 16,
        },
    ),
    "GroupViTModel": (
        32,
        {
            "text_config": _CLIP_TEXT,
            "vision_config": {
                **_CLIP_VISION,
                "depths": [1, 1, 1],
                "num_group_tokens": [8, 4, 0],
                "num_output_groups": [8, 4, 4],
            },
            "projection_dim": 16,
        },
    ),
    "OwlViTModel": (
        32,
        {"text_config": _CLIP_TEXT, "vision_config": _CLIP_VISION, "projection_dim": 16},
    ),
    "ViltModel": (32, {**VIT, "num_images": -1}),
    "FlavaModel": (
        32,
        {
            "text_config": dict(BERT),
            "image_config": dict(VIT),
            "multimodal_config": {
                "hidden_size": 32,
                "num_hidden_layers": 1,
                "num_attention_heads": 4,
                "intermediate_size": 64,
            },
        },
    ),
}
"""Take token ids, a mask and images."""

SOUND: Mapping[str, Options] = {
    "Wav2Vec2Model": {**WAV},
    "HubertModel": {**WAV},
    "WavLMModel": {**WAV, "num_buckets": 8, "max_bucket_distance": 16},
    "UniSpeechModel": {**WAV},
    "SEWModel": {**WAV, "squeeze_factor": 2},
    "Data2VecAudioModel": {**WAV},
    "Wav2Vec2ForCTC": {**WAV},
}
"""Take sound samples."""

SPECTRA: Mapping[str, tuple[tuple[int, ...], Options]] = {
    "WhisperModel": (
        (80, 60),
        {
            "vocab_size": 99,
            "d_model": 32,
            "encoder_layers": 1,
            "decoder_layers": 1,
            "encoder_attention_heads": 4,
            "decoder_attention_heads": 4,
            "encoder_ffn_dim": 64,
            "decoder_ffn_dim": 64,
            "max_source_positions": 30,
            "max_target_positions": 20,
            "use_cache": False,
            "pad_token_id": 0,
            "bos_token_id": 1,
            "eos_token_id": 2,
            "decoder_start_token_id": 1,
        },
    ),
    "Speech2TextModel": (
        (60, 80),
        {
            "vocab_size": 99,
            "d_model": 32,
            "encoder_layers": 1,
            "decoder_layers": 1,
            "encoder_attention_heads": 4,
            "decoder_attention_heads": 4,
            "encoder_ffn_dim": 64,
            "decoder_ffn_dim": 64,
            "conv_channels": 16,
            "use_cache": False,
        },
    ),
}
"""Take spectra and token ids of the decoder."""
