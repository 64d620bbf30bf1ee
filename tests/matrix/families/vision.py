"""Image classifiers, towers of images, detectors and segmenters."""

from __future__ import annotations

from typing import Any

import transformers as hf

from tests.matrix.families.sizes import CLIP_VISION, EDGE, IMAGES, SIZED, SMALL, Family

_SWIN: dict[str, Any] = {
    "image_size": EDGE, "patch_size": 2, "embed_dim": 16, "depths": [1, 1], "num_heads": [2, 4],
    "window_size": 4,
}  # fmt: skip
_CONVNEXT: dict[str, Any] = {
    "image_size": EDGE, "hidden_sizes": [16, 32], "depths": [1, 1], "num_stages": 2,
}  # fmt: skip
_RESNET: dict[str, Any] = {"embedding_size": 16, "hidden_sizes": [16, 32], "depths": [1, 1]}
_DETR: dict[str, Any] = {
    "d_model": 32, "encoder_layers": 1, "decoder_layers": 2, "encoder_attention_heads": 4,
    "decoder_attention_heads": 4, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "num_queries": 6,
    "use_timm_backbone": False, "use_pretrained_backbone": False, "num_labels": 5,
}  # fmt: skip


def _backbone() -> Any:
    return hf.ResNetConfig(
        embedding_size=16, hidden_sizes=[16, 32, 32, 32], depths=[1, 1, 1, 1], layer_type="basic",
        out_features=["stage4"],
    )  # fmt: skip


CLASSIFIERS: dict[str, Family] = {
    "vit": Family(
        "ViT", lambda: hf.ViTForImageClassification(hf.ViTConfig(**IMAGES, **SMALL))
    ),
    "deit": Family(
        "DeiT", lambda: hf.DeiTForImageClassification(hf.DeiTConfig(**IMAGES, **SMALL))
    ),
    "beit": Family(
        "BEiT",
        lambda: hf.BeitForImageClassification(
            hf.BeitConfig(use_relative_position_bias=True, **IMAGES, **SMALL)
        ),
    ),
    "dinov2": Family(
        "DINOv2", lambda: hf.Dinov2ForImageClassification(hf.Dinov2Config(**IMAGES, **SMALL))
    ),
    "dinov3": Family(
        "DINOv3", lambda: hf.DINOv3ViTModel(hf.DINOv3ViTConfig(**IMAGES, **SMALL))
    ),
    "swin": Family("Swin", lambda: hf.SwinForImageClassification(hf.SwinConfig(**_SWIN))),
    "swinv2": Family("Swin v2", lambda: hf.Swinv2ForImageClassification(hf.Swinv2Config(**_SWIN))),
    "resnet": Family(
        "ResNet, basic blocks",
        lambda: hf.ResNetForImageClassification(hf.ResNetConfig(layer_type="basic", **_RESNET)),
        processor=SIZED,
    ),
    "resnet-bottleneck": Family(
        "ResNet, bottleneck blocks",
        lambda: hf.ResNetForImageClassification(
            hf.ResNetConfig(layer_type="bottleneck", downsample_in_bottleneck=True, **_RESNET)
        ),
        processor=SIZED,
    ),
    "regnet": Family(
        "RegNet",
        lambda: hf.RegNetForImageClassification(
            hf.RegNetConfig(groups_width=8, **_RESNET)
        ),
        processor=SIZED,
    ),
    "convnext": Family(
        "ConvNeXt", lambda: hf.ConvNextForImageClassification(hf.ConvNextConfig(**_CONVNEXT))
    ),
    "convnextv2": Family(
        "ConvNeXt V2",
        lambda: hf.ConvNextV2ForImageClassification(hf.ConvNextV2Config(**_CONVNEXT)),
    ),
    "mobilenet-v2": Family(
        "MobileNetV2",
        lambda: hf.MobileNetV2ForImageClassification(
            hf.MobileNetV2Config(image_size=64, depth_multiplier=0.35)
        ),
    ),
    "efficientnet": Family(
        "EfficientNet",
        lambda: hf.EfficientNetForImageClassification(
            hf.EfficientNetConfig(image_size=64, width_coefficient=0.25, depth_coefficient=0.25,
                                  hidden_dim=320)
        ),
    ),
    "poolformer": Family(
        "PoolFormer",
        lambda: hf.PoolFormerForImageClassification(
            hf.PoolFormerConfig(hidden_sizes=[16, 32, 32, 32], depths=[1, 1, 1, 1])
        ),
        processor={"size": {"height": 64, "width": 64}},
    ),
    "mobilevit": Family(
        "MobileViT",
        lambda: hf.MobileViTForImageClassification(
            hf.MobileViTConfig(image_size=64, hidden_sizes=[16, 24, 32],
                               neck_hidden_sizes=[8, 8, 16, 16, 24, 24, 32], num_attention_heads=4)
        ),
    ),
    "clip-vision": Family(
        "CLIP, image tower",
        lambda: hf.CLIPVisionModelWithProjection(
            hf.CLIPVisionConfig(projection_dim=16, **CLIP_VISION)
        ),
    ),
    "siglip-vision": Family(
        "SigLIP, image tower",
        lambda: hf.SiglipVisionModel(hf.SiglipVisionConfig(**CLIP_VISION)),
    ),
}  # fmt: skip
DETECTORS: dict[str, Family] = {
    "yolos": Family(
        "YOLOS",
        lambda: hf.YolosForObjectDetection(
            hf.YolosConfig(image_size=[EDGE, EDGE], patch_size=8, num_detection_tokens=6, **SMALL)
        ),
    ),
    "detr": Family(
        "DETR",
        lambda: hf.DetrForObjectDetection(hf.DetrConfig(backbone_config=_backbone(), **_DETR)),
        processor={"size": {"height": 64, "width": 64}},
    ),
    "d-fine": Family(
        "D-FINE",
        lambda: hf.DFineForObjectDetection(
            hf.DFineConfig(
                backbone_config=hf.HGNetV2Config(
                    hidden_sizes=[16, 32, 32, 32], stem_channels=[3, 8, 16],
                    stage_in_channels=[16, 16, 32, 32],
                    stage_mid_channels=[8, 8, 16, 16], stage_out_channels=[16, 32, 32, 32],
                    stage_num_blocks=[1, 1, 1, 1], stage_numb_of_layers=[1, 1, 1, 1],
                    out_features=["stage2", "stage3", "stage4"]),
                encoder_hidden_dim=32, encoder_in_channels=[32, 32, 32], encoder_layers=1,
                encoder_ffn_dim=64, encoder_attention_heads=4, d_model=32, num_queries=6,
                decoder_in_channels=[32, 32, 32], decoder_ffn_dim=64, decoder_layers=2,
                decoder_attention_heads=4, num_denoising=0, num_labels=5)
        ),
        processor={"size": {"height": 64, "width": 64}},
    ),
    "eomt": Family(
        "EoMT",
        lambda: hf.EomtForUniversalSegmentation(
            hf.EomtConfig(num_queries=6, num_blocks=1, num_labels=4, num_upscale_blocks=1,
                          **IMAGES, **SMALL)
        ),
    ),
    "rt-detr": Family(
        "RT-DETR",
        lambda: hf.RTDetrForObjectDetection(
            hf.RTDetrConfig(
                backbone_config=hf.RTDetrResNetConfig(
                    embedding_size=16, hidden_sizes=[16, 32, 32, 32], depths=[1, 1, 1, 1],
                    layer_type="basic", out_features=["stage2", "stage3", "stage4"]),
                encoder_hidden_dim=32, encoder_in_channels=[32, 32, 32], encoder_layers=1,
                encoder_ffn_dim=64, encoder_attention_heads=4, d_model=32, num_queries=6,
                decoder_in_channels=[32, 32, 32], decoder_ffn_dim=64, decoder_layers=2,
                decoder_attention_heads=4, num_denoising=0, num_labels=5)
        ),
        processor={"size": {"height": 64, "width": 64}},
    ),
    "segformer": Family(
        "SegFormer",
        lambda: hf.SegformerForSemanticSegmentation(
            hf.SegformerConfig(hidden_sizes=[8, 16, 32, 32], depths=[1, 1, 1, 1],
                               num_attention_heads=[1, 2, 4, 4], decoder_hidden_size=32,
                               num_labels=5)
        ),
        processor={"size": {"height": 64, "width": 64}},
    ),
    "depth-anything": Family(
        "Depth Anything",
        lambda: hf.DepthAnythingForDepthEstimation(
            hf.DepthAnythingConfig(
                backbone_config=hf.Dinov2Config(
                    out_indices=[1, 2, 3, 4], reshape_hidden_states=False,
                    **{**IMAGES, **SMALL, "num_hidden_layers": 4}),
                patch_size=8, reassemble_hidden_size=32, neck_hidden_sizes=[8, 8, 16, 16],
                fusion_hidden_size=16, head_hidden_size=8)
        ),
        processor=SIZED,
    ),
}  # fmt: skip
