"""Short names of backbones, and what is known of each without building it."""

from dataclasses import asdict, dataclass

import pandas as pd


@dataclass(frozen=True)
class Alias:
    """What a short name stands for, at the image size that is used unless another is asked for."""

    model: str  # timm's name
    depth: int  # blocks
    dim: int  # width of a token
    n_prefix: int  # CLS, and registers after it
    n_patches: int
    image_size: int


EMBEDDED = "nano"

#: Facts of each short name; every model has a CLS token that all blocks carry.
ALIAS_FACTS = {
    "dinov2_s": Alias("vit_small_patch14_dinov2.lvd142m", 12, 384, 1, 256, 224),
    "dinov2_b": Alias("vit_base_patch14_dinov2.lvd142m", 12, 768, 1, 256, 224),
    "dinov2_l": Alias("vit_large_patch14_dinov2.lvd142m", 24, 1024, 1, 256, 224),
    "dinov2_g": Alias("vit_giant_patch14_dinov2.lvd142m", 40, 1536, 1, 256, 224),
    "dinov2_reg_s": Alias("vit_small_patch14_reg4_dinov2.lvd142m", 12, 384, 5, 256, 224),
    "dinov2_reg_b": Alias("vit_base_patch14_reg4_dinov2.lvd142m", 12, 768, 5, 256, 224),
    "dinov2_reg_l": Alias("vit_large_patch14_reg4_dinov2.lvd142m", 24, 1024, 5, 256, 224),
    "dinov2_reg_g": Alias("vit_giant_patch14_reg4_dinov2.lvd142m", 40, 1536, 5, 256, 224),
    "dinov3_s": Alias("vit_small_patch16_dinov3.lvd1689m", 12, 384, 5, 256, 256),
    "dinov3_b": Alias("vit_base_patch16_dinov3.lvd1689m", 12, 768, 5, 256, 256),
    "dinov3_l": Alias("vit_large_patch16_dinov3.lvd1689m", 24, 1024, 5, 256, 256),
    "in21k_ti": Alias("vit_tiny_patch16_224.augreg_in21k", 12, 192, 1, 196, 224),
    "in21k_s": Alias("vit_small_patch16_224.augreg_in21k", 12, 384, 1, 196, 224),
    "in21k_b": Alias("vit_base_patch16_224.augreg_in21k", 12, 768, 1, 196, 224),
    "in21k_l": Alias("vit_large_patch16_224.augreg_in21k", 24, 1024, 1, 196, 224),
    "clip_b32": Alias("vit_base_patch32_clip_quickgelu_224.openai", 12, 768, 1, 49, 224),
    "clip_b16": Alias("vit_base_patch16_clip_quickgelu_224.openai", 12, 768, 1, 196, 224),
    "clip_l14": Alias("vit_large_patch14_clip_quickgelu_224.openai", 24, 1024, 1, 256, 224),
    "mae_b": Alias("vit_base_patch16_224.mae", 12, 768, 1, 196, 224),
    "mae_l": Alias("vit_large_patch16_224.mae", 24, 1024, 1, 196, 224),
    "deit3_s": Alias("deit3_small_patch16_224.fb_in22k_ft_in1k", 12, 384, 1, 196, 224),
    "deit3_b": Alias("deit3_base_patch16_224.fb_in22k_ft_in1k", 12, 768, 1, 196, 224),
    "deit3_l": Alias("deit3_large_patch16_224.fb_in22k_ft_in1k", 24, 1024, 1, 196, 224),
    EMBEDDED: Alias("embedded, no download", 12, 128, 1, 16, 32),
}

#: Short names of timm models with a CLS token.
ALIASES = {alias: facts.model for alias, facts in ALIAS_FACTS.items() if alias != EMBEDDED}


def alias_table():
    """Return the short names and their facts as a table.

    Returns
    -------
    DataFrame
        Indexed by ``alias``, with the columns ``model`` (timm's name), ``depth`` (blocks), ``dim`` (width of a token),
        ``n_prefix`` (prefix tokens: 1 is CLS, 5 are CLS and 4 registers), ``n_patches`` and ``image_size`` (pixels;
        224 for DINOv2, else the model's own).

    Examples
    --------
    >>> from skvfusion.extraction import alias_table
    >>> alias_table().loc["dinov2_b", ["depth", "dim", "n_patches"]].tolist()
    [12, 768, 256]
    """
    rows = {alias: asdict(facts) for alias, facts in ALIAS_FACTS.items()}
    return pd.DataFrame.from_dict(rows, orient="index").rename_axis("alias")
