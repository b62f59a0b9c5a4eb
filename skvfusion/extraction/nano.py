"""The embedded backbone ``nano``: a 12-block ViT for 32x32 images whose weights ship with the package."""

import json
from functools import partial
from importlib.resources import as_file, files

import torch
from safetensors import safe_open
from timm.data.constants import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD
from timm.models.vision_transformer import VisionTransformer
from timm.models.vision_transformer_hybrid import ConvStem, HybridEmbed

IMAGE_SIZE = 32
WEIGHTS = files("skvfusion") / "assets" / "nano.safetensors"

#: What the weights were trained with; :func:`timm.data.resolve_data_config` reads it from the model.
PRETRAINED_CFG = {
    "architecture": "skvfusion_nano",
    "input_size": (3, IMAGE_SIZE, IMAGE_SIZE),
    "mean": IMAGENET_DEFAULT_MEAN,
    "std": IMAGENET_DEFAULT_STD,
    "interpolation": "bicubic",
    "crop_pct": 1.0,
    "num_classes": 0,
}


def build_nano(num_classes=0, img_size=IMAGE_SIZE, **kwargs):
    """Build the untrained network: 12 blocks of width 128 over a CLS token and a 4x4 grid of patches.

    Three strided convolutions make the patches instead of one, because a plain patch projection needs far more
    images and epochs than CIFAR-10 and two cores offer to learn the same thing.

    Parameters
    ----------
    num_classes : int, default=0
        Width of the classification head; 0 for none.
    img_size : int, default=32
        Side of the square input, in pixels; a multiple of 8.
    **kwargs
        Passed to :class:`timm.models.vision_transformer.VisionTransformer`.

    Returns
    -------
    timm.models.vision_transformer.VisionTransformer
        In train mode, randomly initialised from torch's global generator.
    """
    stem = ConvStem(channels=(32, 64, 128), stride=(2, 2, 2), kernel_size=3, padding=1)
    model = VisionTransformer(
        img_size=img_size,
        patch_size=1,
        embed_dim=128,
        depth=12,
        num_heads=4,
        mlp_ratio=2,
        num_classes=num_classes,
        embed_layer=partial(HybridEmbed, backbone=stem, proj=False),
        **kwargs,
    )
    model.pretrained_cfg = dict(PRETRAINED_CFG)
    return model


def nano_state_dict():
    """Return the embedded weights as float32 tensors by parameter name (they are stored as float16)."""
    with as_file(WEIGHTS) as path, safe_open(path, framework="pt") as stored:
        return {name: _as_float32(stored.get_tensor(name)) for name in stored.keys()}  # noqa: SIM118 (not a dict)


def nano_metadata():
    """Return how the embedded weights came about: recipe, seed, versions and linear-probe accuracies, as a dict."""
    with as_file(WEIGHTS) as path, safe_open(path, framework="pt") as stored:
        return json.loads(stored.metadata()["skvfusion"])


def _as_float32(tensor):
    return tensor.to(torch.float32) if tensor.is_floating_point() else tensor
