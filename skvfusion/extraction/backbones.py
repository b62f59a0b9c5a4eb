"""Building frozen backbones: their names and image sizes, and which of them have the tokens asked for."""

import hashlib
import inspect
import json
import os
import re
import threading
from collections import OrderedDict
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import timm
import torch
from PIL import Image
from timm.data import create_transform, resolve_data_config
from torch import nn
from torchvision.transforms import Resize

from .aliases import ALIASES, EMBEDDED
from .nano import build_nano, nano_state_dict
from .weights import folder_stamp, hub_address, load_weights, pretrained_overlay, shortened, weights_source

_WITH_CLS = (
    "'nano', 'dinov2_s', 'in21k_s', 'clip_b16' or another of skvfusion.extraction.ALIASES, or a timm ViT, DeiT, BEiT "
    "or EVA model with a CLS token"
)

# A random control is the same network for everybody.
_RANDOM_WEIGHTS_SEED = 0


@dataclass(frozen=True, eq=False)
class Backbone:
    """A frozen network in eval mode on its device, and what is needed to feed it."""

    model: nn.Module
    architecture: str  # timm's name, without a tag
    model_args: dict  # with which a local folder's model differs from its architecture
    config: dict  # of the preprocessing, as timm's create_transform takes it
    image_size: int
    device: torch.device
    output_fmt: str  # in which forward_intermediates returns patch tokens: "NLC", or "NCHW" where it knows nothing else
    n_patches: int
    lock: threading.RLock = field(default_factory=threading.RLock, repr=False)  # for whoever hooks into the network

    @property
    def depth(self):
        """Number of blocks."""
        return len(self.model.feature_info)

    @property
    def dim(self):
        """Width of a token."""
        return self.model.feature_info[0]["num_chs"]

    @property
    def n_tokens(self):
        """Tokens per image, a rough measure of what an image costs."""
        return self.n_patches + (self.model.num_prefix_tokens if self.has_prefix else 0)

    @property
    def has_prefix(self):
        """Whether all blocks carry tokens in front of the patches: CLS, registers, or both with CLS first."""
        parameters = inspect.signature(self.model.forward_intermediates).parameters
        return "return_prefix_tokens" in parameters and self.model.num_prefix_tokens > 0

    @property
    def has_cls(self):
        """Whether the first of these is a CLS token."""
        return self.has_prefix and _cls_token(self.model) is not None

    @property
    def norms(self):
        """The norms after the last block: of every token, and of a pooled token in models that pool patches."""
        # Some of timm's classifiers hold the blocks in an encoder, and their own norm is of another width.
        blocks = self.model if hasattr(self.model, "blocks") else getattr(self.model, "encoder", self.model)
        norms = [getattr(blocks, name, None) or nn.Identity() for name in ("norm", "fc_norm")]
        # Where there is the first, the second belongs to the classification head.
        return norms if isinstance(norms[0], nn.Identity) else [norms[0], nn.Identity()]

    @property
    def shorter_side(self):
        """Length in pixels to which an image's shorter side is resized before the crop; None if another rule holds."""
        first = self._to_pixels.transforms[0]
        return first.size if isinstance(first, Resize) and isinstance(first.size, int) else None

    def pixels(self, image):
        """Resize and crop an RGB PIL image as the model was evaluated; a uint8 tensor (3, size, size)."""
        with torch.device("cpu"):  # whatever the caller's default is
            return self._to_pixels(image)

    def normalize(self, batch):
        """Turn such pixels into the network's input, float32, on the device they are on."""
        mean, std = (values.to(batch.device) for values in self._statistics)
        return batch.to(torch.float32).div_(255).sub_(mean).div_(std)

    def transform(self, image):
        """Turn an RGB PIL image into the network's input, (3, size, size), on the CPU."""
        return self.normalize(self.pixels(image)[None])[0]

    @cached_property
    def fingerprint(self):
        """32 bytes that differ if the network, its weights or the preprocessing do, and are the same in any process."""
        facts = {
            "architecture": self.architecture,
            "modules": re.sub(r" at 0x[0-9a-f]+", "", str(self.model)),
            "model_args": self.model_args,
            "preprocessing": self.config,
            "image_size": self.image_size,
        }
        digest = hashlib.blake2b(json.dumps(facts, sort_keys=True, default=str).encode(), digest_size=32)
        for name, value in sorted(self.model.state_dict().items()):
            digest.update(f"{name} {tuple(value.shape)} {value.dtype} ".encode())
            digest.update(value.cpu().contiguous().numpy().data)
        return digest.digest()

    @cached_property
    def _to_pixels(self):
        return create_transform(**self.config, is_training=False, normalize=False)

    @cached_property
    def _statistics(self):
        return [
            torch.tensor(self.config[name], dtype=torch.float32, device=self.device).view(-1, 1, 1)
            for name in ("mean", "std")
        ]


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
    if name.startswith(_FOLDER):
        name = _FOLDER + os.path.expanduser(name.removeprefix(_FOLDER))
    source = weights_source(weights)
    stamp = folder_stamp(name.removeprefix(_FOLDER)) if name.startswith(_FOLDER) else None
    key = (name, stamp, source, image_size, device)
    with _lock:
        if key not in _recent:
            _recent[key] = _build(name, source[0] if isinstance(source, tuple) else source, image_size, device)
            if len(_recent) > _MAX_RECENT:
                _recent.popitem(last=False)
        _recent.move_to_end(key)
        return _recent[key]


def check_tokens(backbone, tokens, name):
    """Raise ValueError if the model does not have the tokens asked for, naming what would work."""
    if "cls" not in tokens or backbone.has_cls:
        return
    if backbone.has_prefix:
        tokens_it_has = f"only {backbone.model.num_prefix_tokens} register tokens and no CLS token"
    elif _cls_token(backbone.model) is not None:
        tokens_it_has = "a CLS token in its last blocks only, and so no CLS token per layer"
    else:
        tokens_it_has = "no CLS token"
    raise ValueError(
        f"backbone={name!r} has {tokens_it_has}. Use tokens='mean', which averages its patch tokens, "
        f"or another backbone: {_WITH_CLS}."
    )


_FOLDER = "local-dir:"
_lock = threading.RLock()
_recent = OrderedDict()


def _after_fork_in_child():
    # A thread that held one of these is not there to release it.
    global _lock  # noqa: PLW0603
    _lock = threading.RLock()
    for backbone in _recent.values():
        object.__setattr__(backbone, "lock", threading.RLock())


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)

# GridSearchCV over two backbones alternates between them; more would keep much memory for little.
_MAX_RECENT = 2


def _build(name, weights, image_size, device):
    architecture, model_args = (EMBEDDED, {}) if name == EMBEDDED else _architecture(name)
    # timm initialises from torch's global CPU generator; leave that as it was. Neither the caller's default device nor
    # the default dtype may change what is drawn.
    with torch.random.fork_rng(devices=[]), torch.device("cpu"), _float32_by_default():
        torch.default_generator.manual_seed(_RANDOM_WEIGHTS_SEED)
        if name == EMBEDDED:
            model = _build_nano(weights, image_size)
        else:
            # 518, for which timm's DINOv2 is made, costs 12 times as much; a folder that names a size means it.
            own_size = 224 if "dinov2" in architecture and "img_size" not in model_args else None
            model = _build_timm(name, architecture, weights, image_size, own_size)
    model.requires_grad_(False).eval().to(torch.float32)
    if not all(torch.isfinite(value).all() for value in model.state_dict().values()):
        raise ValueError(
            f"backbone={name!r} has weights that are NaN or infinite in float32: they are damaged, or their training "
            "diverged."
        )
    size = image_size or _default_size(model)
    config = resolve_data_config({"input_size": (3, size, size)}, model=model)
    output_fmt, n_patches = _try(model, size, name)
    backbone = Backbone(model.to(device), architecture, model_args, config, size, device, output_fmt, n_patches)
    _check_preprocessing(backbone, name)
    return backbone


@contextmanager
def _float32_by_default():
    """Let tensors be float32 unless told otherwise, for callers who changed that; torch knows one default only."""
    default = torch.get_default_dtype()
    if default == torch.float32:
        yield
        return
    torch.set_default_dtype(torch.float32)
    try:
        yield
    finally:
        torch.set_default_dtype(default)


def _check_preprocessing(backbone, name):
    """Raise ValueError if the settings of the preprocessing, which a folder may state, cannot be used."""
    try:
        usable = torch.isfinite(backbone.normalize(backbone.pixels(Image.new("RGB", (8, 8)))[None])).all()
    except Exception as error:  # anything may be written there
        raise ValueError(f"backbone={name!r} states a preprocessing that fails: {error!r}.") from error
    if not usable:
        raise ValueError(f"backbone={name!r} states a preprocessing that divides by zero: {backbone.config}.")


def _build_nano(weights, image_size):
    model = build_nano()
    if weights is None:
        model.load_state_dict(nano_state_dict())
    elif weights != "random":
        load_weights(model, weights, EMBEDDED)
    if image_size is not None:
        _check_multiple(image_size, 8, EMBEDDED)
        model.set_input_size((image_size, image_size))
    return model


def _build_timm(name, architecture, weights, image_size, own_size):
    size = image_size or own_size
    arguments = {"num_classes": 0, **({} if size is None else {"img_size": size})}
    # A folder's weights are where its settings are.
    remote = weights is None and not name.startswith(_FOLDER)
    if remote:
        _check_before_download(name, arguments)
    try:
        overlay = pretrained_overlay(name) if remote else {}
        model = timm.create_model(name, pretrained=weights is None, pretrained_cfg_overlay=overlay, **arguments)
    except Exception as error:
        raise _explained(error, name, architecture, image_size) from error
    _check_tappable(model, name)
    if image_size is not None:
        _check_multiple(image_size, model.feature_info[0]["reduction"], name)
    if weights not in (None, "random"):
        load_weights(model, weights, name)
    return model


def _explained(error, name, architecture, image_size):
    """Return the error to raise when timm cannot build a model."""
    if isinstance(error, (TypeError, AssertionError)) and image_size is not None:
        return ValueError(
            f"backbone={name!r} takes no image_size={image_size}: {error or 'not a size it can divide'}. Leave "
            f"image_size=None or use {_WITH_CLS}."
        )
    if name.startswith(_FOLDER):
        return ValueError(f"backbone={name!r}: the folder's model cannot be loaded: {shortened(repr(error))}")
    if isinstance(error, OSError):
        return OSError(
            f"The pretrained weights of {name!r} can be neither downloaded nor found in the local cache ({error}). "
            f"Without a connection, download them on another machine ({hub_address(name)}), copy the file and pass "
            "weights='/path/to/model.safetensors'; or use backbone='local-dir:/path/to/folder', or backbone='nano', "
            "whose weights are part of skvfusion."
        )
    known = ", ".join(timm.list_models(f"{architecture}.*", pretrained=True)) or "none"
    return ValueError(f"backbone={name!r} cannot be built: {error} Known pretrained tags: {known}.")


def _architecture(name):
    """Return timm's name of the architecture without a tag, and a folder's arguments; ValueError if it is unknown."""
    model_args = {}
    if name.startswith(_FOLDER):
        path = Path(name.removeprefix(_FOLDER)) / "config.json"
        if not path.is_file():
            raise ValueError(f"backbone={name!r}: there is no such folder, or it has no config.json, as timm writes.")
        try:
            config = json.loads(path.read_text())
            architecture, model_args = config["architecture"], config.get("model_args") or {}
            if not (isinstance(architecture, str) and isinstance(model_args, dict)):
                raise TypeError(f"architecture={architecture!r}, model_args={model_args!r}")
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
    return architecture, model_args


def _check_before_download(name, arguments):
    """Refuse a model that cannot be tapped before gigabytes are fetched for it."""
    try:
        with torch.device("meta"):
            model = timm.create_model(name, pretrained=False, **arguments)
    except Exception:  # not every model can be built without memory; building it in earnest tells what is wrong
        return
    _check_tappable(model, name)


def _check_tappable(model, name):
    """Raise ValueError unless the model tells of blocks that all have patch tokens of one number and width."""
    if not hasattr(model, "forward_intermediates"):
        reason = "does not let its inner layers be read (it has no forward_intermediates)"
    elif len({(block["num_chs"], block["reduction"]) for block in getattr(model, "feature_info", [])}) != 1:
        reason = "works in stages of several widths or resolutions, so its blocks have no tokens to stack"
    else:
        return
    raise ValueError(
        f"backbone={name!r} ({type(model).__name__}) {reason}. Use {_WITH_CLS}; or, for tokens='mean', any timm model "
        "whose blocks keep one width, such as SigLIP, CaiT, XCiT or MLP-Mixer."
    )


@torch.no_grad()
def _try(model, size, name):
    """Run the first block on one image; return the format in which patch tokens come, and how many there are."""
    image = torch.zeros(1, 3, size, size, dtype=torch.float32, device="cpu")
    arguments = {"indices": [0], "stop_early": True, "intermediates_only": True}
    try:
        try:
            tokens = model.forward_intermediates(image, output_fmt="NLC", **arguments)[0]
        except AssertionError:
            tokens = model.forward_intermediates(image, output_fmt="NCHW", **arguments)[0]
    except Exception as error:
        raise ValueError(
            f"backbone={name!r} does not run on images of {size} x {size} pixels: {error!r}. Pass an image_size that "
            f"it takes, or use {_WITH_CLS}."
        ) from error
    return ("NLC", tokens.shape[1]) if tokens.ndim == 3 else ("NCHW", tokens[0, 0].numel())


def _cls_token(model):
    # NaFlexVit keeps its tokens with the embedding of patches.
    return getattr(model, "cls_token", getattr(getattr(model, "embeds", None), "cls_token", None))


def _check_multiple(image_size, patch, name):
    if image_size % patch:
        lower = image_size // patch * patch
        near = [size for size in (lower, lower + patch) if size > 0]
        raise ValueError(
            f"image_size={image_size} is not a multiple of the patch size {patch} of {name!r}; use "
            f"{' or '.join(map(str, near))}."
        )


def _default_size(model):
    size = getattr(getattr(model, "patch_embed", None), "img_size", None)
    if size is None:
        size = model.pretrained_cfg["input_size"][-1]
    return size if isinstance(size, int) else size[0]
