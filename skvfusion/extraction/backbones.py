"""Building frozen backbones: their names, weights and image sizes, and which of them have the tokens asked for."""

import inspect
import json
import os
import sys
import threading
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import timm
import torch
from timm.data import create_transform, resolve_data_config
from timm.models import load_state_dict
from torch import nn

from .nano import build_nano, nano_state_dict

#: Short names of timm models with a CLS token.
ALIASES = {
    "dinov2_s": "vit_small_patch14_dinov2.lvd142m",
    "dinov2_b": "vit_base_patch14_dinov2.lvd142m",
    "dinov2_l": "vit_large_patch14_dinov2.lvd142m",
    "dinov2_g": "vit_giant_patch14_dinov2.lvd142m",
    "dinov2_reg_s": "vit_small_patch14_reg4_dinov2.lvd142m",
    "dinov2_reg_b": "vit_base_patch14_reg4_dinov2.lvd142m",
    "dinov2_reg_l": "vit_large_patch14_reg4_dinov2.lvd142m",
    "dinov2_reg_g": "vit_giant_patch14_reg4_dinov2.lvd142m",
    "dinov3_s": "vit_small_patch16_dinov3.lvd1689m",
    "dinov3_b": "vit_base_patch16_dinov3.lvd1689m",
    "dinov3_l": "vit_large_patch16_dinov3.lvd1689m",
    "in21k_ti": "vit_tiny_patch16_224.augreg_in21k",
    "in21k_s": "vit_small_patch16_224.augreg_in21k",
    "in21k_b": "vit_base_patch16_224.augreg_in21k",
    "in21k_l": "vit_large_patch16_224.augreg_in21k",
    "clip_b32": "vit_base_patch32_clip_quickgelu_224.openai",
    "clip_b16": "vit_base_patch16_clip_quickgelu_224.openai",
    "clip_l14": "vit_large_patch14_clip_quickgelu_224.openai",
    "mae_b": "vit_base_patch16_224.mae",
    "mae_l": "vit_large_patch16_224.mae",
    "deit3_s": "deit3_small_patch16_224.fb_in22k_ft_in1k",
    "deit3_b": "deit3_base_patch16_224.fb_in22k_ft_in1k",
    "deit3_l": "deit3_large_patch16_224.fb_in22k_ft_in1k",
}
EMBEDDED = "nano"
_WITH_CLS = (
    "'nano', 'dinov2_s', 'in21k_s', 'clip_b16' or another of skvfusion.extraction.ALIASES, or a timm ViT, DeiT, BEiT "
    "or EVA model with a CLS token"
)

# A random control is the same network for everybody.
_RANDOM_WEIGHTS_SEED = 0


@dataclass(frozen=True)
class Backbone:
    """A frozen network in eval mode on its device, and what is needed to feed it."""

    model: nn.Module
    transform: Any  # a PIL image in, a normalised tensor (3, size, size) out
    image_size: int
    device: torch.device

    @property
    def depth(self):
        """Number of blocks."""
        return len(self.model.blocks)

    @property
    def dim(self):
        """Width of a token."""
        return self.model.embed_dim

    @property
    def n_tokens(self):
        """Tokens per image, a rough measure of what an image costs."""
        return self.model.patch_embed.num_patches + self.model.num_prefix_tokens

    @property
    def norms(self):
        """The norms after the last block: of every token, and of a pooled token in models that pool patches."""
        norms = [getattr(self.model, name, None) or nn.Identity() for name in ("norm", "fc_norm")]
        # Where there is the first, the second belongs to the classification head.
        return norms if isinstance(norms[0], nn.Identity) else [norms[0], nn.Identity()]


def get_backbone(name, weights, image_size, device):
    """Return a backbone, built at most once while it is among the last two that were used.

    Parameters
    ----------
    name : str
        An alias, ``"nano"``, a timm model name or ``"local-dir:/path"``.
    weights : str or path, default=None
        None for pretrained weights, ``"random"``, or the path of a state dict (.safetensors, .pt, .pth).
    image_size : int or None
        Side of the square input in pixels.
    device : torch.device
        Where to put it.

    Returns
    -------
    Backbone

    Raises
    ------
    ValueError
        If the model is unknown, has no blocks to tap, or does not take that image size; if the weights do not fit.
    OSError
        If pretrained weights cannot be downloaded.
    """
    name = ALIASES.get(name, name)
    source = weights
    if weights not in (None, "random"):
        path = Path(weights).expanduser().resolve()
        if not path.is_file():
            raise ValueError(
                f"weights={os.fspath(weights)!r} is no file; pass a state dict, None (pretrained) or 'random'."
            )
        # A file that was written anew is other weights.
        source = (path, path.stat().st_mtime_ns, path.stat().st_size)
    key = (name, source, image_size, device)
    with _lock:
        if key not in _recent:
            _recent[key] = _build(name, path if isinstance(source, tuple) else source, image_size, device)
            if len(_recent) > _MAX_RECENT:
                _recent.popitem(last=False)
        _recent.move_to_end(key)
        return _recent[key]


def check_tokens(backbone, tokens, name):
    """Raise ValueError if the model does not have the tokens asked for, naming what would work."""
    model = backbone.model
    has_cls = getattr(model, "cls_token", None) is not None and model.num_prefix_tokens >= 1
    if "cls" in tokens and not has_cls:
        registers = f"only {model.num_prefix_tokens} register tokens and " if model.num_prefix_tokens else ""
        raise ValueError(
            f"backbone={name!r} has {registers}no CLS token. Use tokens='mean', which averages its patch tokens, "
            f"or another backbone: {_WITH_CLS}."
        )


_FOLDER = "local-dir:"
_lock = threading.RLock()
_recent = OrderedDict()
# GridSearchCV over two backbones alternates between them; more would keep much memory for little.
_MAX_RECENT = 2


def _build(name, weights, image_size, device):
    # timm initialises from torch's global CPU generator; leave that as it was.
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(_RANDOM_WEIGHTS_SEED)
        model = _build_nano(weights, image_size) if name == EMBEDDED else _build_timm(name, weights, image_size)
    _check_tappable(model, name)
    size = image_size or _default_size(model)
    config = resolve_data_config({"input_size": (3, size, size)}, model=model)
    model.requires_grad_(False).eval().to(device, torch.float32)
    return Backbone(model, create_transform(**config, is_training=False), size, device)


def _build_nano(weights, image_size):
    model = build_nano()
    if weights is None:
        model.load_state_dict(nano_state_dict())
    elif weights != "random":
        _load_weights(model, weights, EMBEDDED)
    if image_size is not None:
        _check_multiple(image_size, 8, EMBEDDED)
        model.set_input_size((image_size, image_size))
    return model


def _build_timm(name, weights, image_size):
    architecture = _architecture(name)
    size = image_size or (224 if "dinov2" in architecture else None)
    arguments = {"num_classes": 0, **({} if size is None else {"img_size": size})}
    try:
        model = timm.create_model(name, pretrained=weights is None, **arguments)
    except (TypeError, AssertionError) as error:
        if image_size is None:
            raise
        raise ValueError(
            f"backbone={name!r} takes no image_size={image_size}: {error or 'not a size it can divide'}. Leave "
            f"image_size=None or use {_WITH_CLS}."
        ) from error
    except Exception as error:
        if name.startswith(_FOLDER):
            raise ValueError(f"backbone={name!r}: the folder's model cannot be loaded: {error!r}") from error
        if isinstance(error, OSError):
            raise OSError(
                f"The pretrained weights of {name!r} can be neither downloaded nor found in the local cache. Without a "
                "connection, pass weights='/path/to/state_dict.safetensors', backbone='local-dir:/path/to/folder', or "
                "backbone='nano', whose weights are part of skvfusion."
            ) from error
        known = ", ".join(timm.list_models(f"{architecture}.*", pretrained=True)) or "none"
        raise ValueError(f"backbone={name!r} cannot be built: {error} Known pretrained tags: {known}.") from error
    if image_size is not None and hasattr(model, "patch_embed"):
        _check_multiple(image_size, model.patch_embed.patch_size[0], name)
    if weights not in (None, "random"):
        _load_weights(model, weights, name)
    return model


def _architecture(name):
    """Return timm's name of the architecture, without a tag; ValueError if timm does not know it."""
    if name.startswith(_FOLDER):
        config = Path(name.removeprefix(_FOLDER)) / "config.json"
        if not config.is_file():
            raise ValueError(f"backbone={name!r}: there is no such folder, or it has no config.json, as timm writes.")
        try:
            architecture = json.loads(config.read_text())["architecture"]
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"backbone={name!r}: config.json names no architecture: {error!r}") from error
    else:
        architecture = name.partition(".")[0]
    if not timm.is_model(architecture):
        close = timm.list_models(f"*{architecture}*")[:5] if architecture else []
        raise ValueError(
            f"backbone={name!r} is neither an alias nor a timm model{f'; close: {close}' if close else ''}. "
            f"Use {_WITH_CLS}."
        )
    return architecture


def _load_weights(model, path, name):
    convert = getattr(sys.modules[type(model).__module__], "checkpoint_filter_fn", None)
    try:
        state = load_state_dict(str(path), weights_only=True)
        if convert is not None and name != EMBEDDED:
            state = convert(state, model)
        finite = all(torch.isfinite(value).all() for value in state.values())
    except Exception as error:  # a damaged or foreign file can fail in any way
        raise ValueError(f"weights={str(path)!r} is not a state dict that can be read: {error!r}") from error
    if not finite:
        raise ValueError(f"weights={str(path)!r} hold NaN or infinity; they are damaged, or their training diverged.")
    head = model.pretrained_cfg.get("classifier") or "head"
    heads = (head,) if isinstance(head, str) else tuple(head)
    state = {key: value for key, value in state.items() if key.rpartition(".")[0] not in heads}
    try:
        missing, unexpected = model.load_state_dict(state, strict=False)
    except RuntimeError as error:
        raise ValueError(f"The weights in {str(path)!r} have other shapes than {name!r}: {error}") from error
    if missing or unexpected:
        raise ValueError(
            f"The weights in {str(path)!r} are not of {name!r}: {len(missing)} parameters are missing from the file "
            f"(such as {missing[:3]}), {len(unexpected)} in it are unknown to the model (such as {unexpected[:3]})."
        )


def _check_tappable(model, name):
    method = getattr(model, "forward_intermediates", None)
    taps = method is not None and "return_prefix_tokens" in inspect.signature(method).parameters
    if not taps or not all(
        hasattr(model, part) for part in ("blocks", "patch_embed", "num_prefix_tokens", "embed_dim")
    ):
        raise ValueError(
            f"backbone={name!r} ({type(model).__name__}) is not a ViT whose blocks all carry the same tokens, so "
            f"it has no CLS token per layer. Use {_WITH_CLS}."
        )


def _check_multiple(image_size, patch, name):
    if image_size % patch:
        lower = image_size // patch * patch
        near = [size for size in (lower, lower + patch) if size > 0]
        raise ValueError(
            f"image_size={image_size} is not a multiple of the patch size {patch} of {name!r}; use "
            f"{' or '.join(map(str, near))}."
        )


def _default_size(model):
    size = getattr(model.patch_embed, "img_size", None)
    return size[0] if size else model.pretrained_cfg["input_size"][-1]
