"""Where a backbone's weights come from: files of any usual naming, and the Hugging Face hub with its cache."""

import contextlib
import io
import os
import re
import ssl
import sys
import threading
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path

import timm
import torch
from huggingface_hub import constants, try_to_load_from_cache
from timm.models import load_state_dict

from .aliases import EMBEDDED

# What training code and libraries wrap a network in: DataParallel, torch.compile, transformers' timm wrapper, modules.
_WRAPPERS = ("module.", "_orig_mod.", "timm_model.", "model.", "backbone.")
# What they put on top of it, which is no part of the backbone.
_HEADS = ("head.", "head_dist.", "fc.", "classifier.")
_HUB_FILES = ("model.safetensors", "pytorch_model.bin")
_SUFFIXES = (".safetensors", ".bin", ".pt", ".pth", ".tar")
# Seconds. huggingface_hub itself retries for minutes.
_PATIENCE = 5


def weights_source(weights):
    """Return what identifies weights: None, ``"random"``, or a file's path, time and size.

    Parameters
    ----------
    weights : str or path, default=None
        As a user passes it.

    Returns
    -------
    None, "random" or tuple of (Path, int, int)
        A file that was written anew is other weights.

    Raises
    ------
    ValueError
        If there is no such file.
    """
    if weights in (None, "random"):
        return weights
    path = Path(os.path.expanduser(weights)).resolve()
    if not path.is_file():
        raise ValueError(
            f"weights={os.fspath(weights)!r} is no file; pass a state dict, None (pretrained) or 'random'."
        )
    return path, path.stat().st_mtime_ns, path.stat().st_size


def folder_stamp(folder):
    """Return name, time and size of a local folder's settings and weight files, which change when it is rewritten."""
    files = [path for path in Path(folder).glob("*") if path.name == "config.json" or path.suffix in _SUFFIXES]
    return tuple(sorted((path.name, path.stat().st_mtime_ns, path.stat().st_size) for path in files))


def load_weights(model, path, name):
    """Load a state dict, whose parameters must be the model's but for a classification head.

    Taken are timm's own naming and everything that timm converts (original DINOv2, DINOv3, OpenAI and OpenCLIP, among
    others), ViT, DeiT and DINOv2 as transformers saves them, chunked blocks, and all of this below the prefixes that
    wrappers add. Position embeddings of another image size are resampled.

    Parameters
    ----------
    model : nn.Module
        timm's, on the CPU; changed in place.
    path : path
        A .safetensors, .pt or .pth file. Nothing in it is executed.
    name : str
        The backbone's, for messages.

    Raises
    ------
    ValueError
        If the file cannot be read, is damaged, or holds other parameters or shapes.
    """
    try:
        original = load_state_dict(str(path), weights_only=True)
        state = _to_timm(original, model, name)
        finite = all(torch.isfinite(value).all() for value in state.values())
    except Exception as error:  # a damaged or foreign file can fail in any way
        raise ValueError(f"weights={str(path)!r} is not a state dict that can be read: {error!r}") from error
    if not finite:
        raise ValueError(f"weights={str(path)!r} hold NaN or infinity; they are damaged, or their training diverged.")
    try:
        missing, unexpected = model.load_state_dict(state, strict=False)
    except RuntimeError as error:
        raise ValueError(
            f"The weights in {str(path)!r} have other shapes than {name!r}: {shortened(str(error))}"
        ) from error
    if missing or unexpected:
        foreign = any("embeddings." in key for key in original)
        raise ValueError(
            f"The weights in {str(path)!r} are not of {name!r}: {len(missing)} parameters are missing from the file "
            f"(such as {missing[:3]}), {len(unexpected)} in it are unknown to the model (such as {unexpected[:3]})."
            + foreign
            * " Of transformers' models, only ViT, DeiT and DINOv2 are converted; save others from timm."
        )


def shortened(text, length=500):
    """Return a text whose end is left out if it is long, as torch's lists of all parameters are."""
    return text if len(text) <= length else f"{text[:length]} ..."


def _to_timm(state, model, name):
    state = _from_transformers(_unwrap(state))
    own = model.state_dict()
    state = {_rename(key, own): value for key, value in state.items()}
    convert = getattr(sys.modules[type(model).__module__], "checkpoint_filter_fn", None)
    if convert is not None and name != EMBEDDED:
        # One of timm's converters prints what is no error.
        with contextlib.redirect_stdout(io.StringIO()):
            state = convert(state, model)
    heads = (*_HEADS, *_classifiers(model))
    return {key: value for key, value in state.items() if key in own or not key.startswith(heads)}


def _unwrap(state):
    """Strip a prefix as long as all keys have it, those of a head beside the backbone excepted."""
    while prefix := next((prefix for prefix in _WRAPPERS if any(key.startswith(prefix) for key in state)), None):
        if not all(key.startswith((prefix, *_HEADS)) for key in state):
            break
        state = {key.removeprefix(prefix): value for key, value in state.items() if key.startswith(prefix)}
    return state


def _rename(key, own):
    """Undo DINOv2's chunks of blocks for sharded training, and write LayerScale as timm's ViT does."""
    key = re.sub(r"^blocks\.\d+\.(\d+)\.", r"blocks.\1.", key)
    scale = re.sub(r"\.gamma_([12])$", r".ls\1.gamma", key)
    return scale if scale in own else key


def _classifiers(model):
    names = getattr(model, "pretrained_cfg", {}).get("classifier") or ()
    return tuple(f"{name}." for name in ([names] if isinstance(names, str) else names))


_PATCHES = "embeddings.patch_embeddings.projection.weight"
# In this order. The names are those in files, and those of the modules since transformers 5.
_TRANSFORMERS_NAMES = (
    (r"^(encoder\.)?layers?\.", "blocks."),
    (r"attention\.(output\.dense|o_proj)\.", "attn.proj."),
    (r"attention\.(attention\.query|q_proj)\.", "attn.q."),
    (r"attention\.(attention\.key|k_proj)\.", "attn.k."),
    (r"attention\.(attention\.value|v_proj)\.", "attn.v."),
    (r"\.intermediate\.dense\.", ".mlp.fc1."),
    (r"\.output\.dense\.", ".mlp.fc2."),
    (r"\.mlp\.weights_in\.", ".mlp.w12."),
    (r"\.mlp\.(weights_out|down_proj)\.", ".mlp.w3."),
    (r"layernorm_before", "norm1"),
    (r"layernorm_after", "norm2"),
    (r"layer_scale(\d)\.lambda1", r"ls\1.gamma"),
    (r"^layernorm\.", "norm."),
    (r"^embeddings\.patch_embeddings\.projection\.", "patch_embed.proj."),
    (r"^embeddings\.position_embeddings$", "pos_embed"),
    (r"^embeddings\.distillation_token$", "dist_token"),
    (r"^embeddings\.", ""),  # CLS, register and mask tokens, which timm converts further
)
# What timm keeps in one matrix.
_TRANSFORMERS_PARTS = {("attn.q", "attn.k", "attn.v"): "attn.qkv", ("mlp.gate_proj", "mlp.up_proj"): "mlp.w12"}


def _transformers_name(key):
    for pattern, name in _TRANSFORMERS_NAMES:
        key = re.sub(pattern, name, key)
    return key


def _from_transformers(state):
    """Rename a ViT's, DeiT's or DINOv2's parameters as saved by transformers; others' are returned as they are."""
    prefix = next((key.removesuffix(_PATCHES) for key in state if key.endswith(_PATCHES)), None)
    if prefix is None:
        return state
    renamed = {
        _transformers_name(key.removeprefix(prefix)): value
        for key, value in state.items()
        if key.startswith(prefix) and not key.startswith(f"{prefix}pooler.")
    }
    for parts, whole in _TRANSFORMERS_PARTS.items():
        for first in [key for key in renamed if f".{parts[0]}." in key]:
            keys = [first.replace(f".{parts[0]}.", f".{part}.") for part in parts]
            if all(key in renamed for key in keys):
                renamed[first.replace(f".{parts[0]}.", f".{whole}.")] = torch.cat([renamed.pop(key) for key in keys])
    return renamed


def pretrained_overlay(name):
    """Tell timm where pretrained weights lie on this machine, or make sure that they can be downloaded.

    Parameters
    ----------
    name : str
        timm's name of a model.

    Returns
    -------
    dict
        For ``pretrained_cfg_overlay`` of :func:`timm.create_model`; with a file, timm needs no network.

    Raises
    ------
    ValueError
        If there are none.
    OSError
        If the weights are not here and their host does not answer within seconds, or must not be asked.
    """
    config = timm.get_pretrained_cfg(name)
    if config is None or config.file:
        return {}
    if not config.hf_hub_id:
        if not config.url:
            raise ValueError("timm has no pretrained weights for it; pass weights=, a path or 'random'.")
        url = urllib.parse.urlsplit(config.url)
        if not (Path(torch.hub.get_dir()) / "checkpoints" / Path(url.path).name).is_file():
            _check_reachable(f"{url.scheme}://{url.netloc}")
        return {}
    path = _cached(config)
    if path is not None:
        # That flag is about the original file, not about the one on the hub, which timm has converted.
        return {"file": path, "custom_load": False}
    if constants.HF_HUB_OFFLINE:
        raise OSError("HF_HUB_OFFLINE is set, and the file is not in Hugging Face's cache")
    _check_reachable(constants.ENDPOINT)
    return {}


def _cached(config):
    if config.hf_hub_filename:
        return None  # may be of a format of its own
    repository, _, revision = config.hf_hub_id.partition("@")
    for file in _HUB_FILES:
        path = try_to_load_from_cache(repository, file, revision=revision or None)
        if isinstance(path, str):
            return path
    return None


def hub_address(name):
    """Return the web address of a model's pretrained weights, or None if timm knows none."""
    config = timm.get_pretrained_cfg(name)
    if config is None:
        return None
    return f"{constants.ENDPOINT}/{config.hf_hub_id.partition('@')[0]}" if config.hf_hub_id else config.url or None


def _check_reachable(url):
    """Raise OSError unless a host answers in time, whatever it answers."""
    proxies = urllib.request.getproxies()
    if "all" in proxies and urllib.parse.urlsplit(url).scheme not in proxies:
        return  # a SOCKS proxy, which urllib does not speak
    failures = []

    def ask():
        try:
            with urllib.request.urlopen(urllib.request.Request(url, method="HEAD"), timeout=_PATIENCE):
                pass
        except urllib.error.HTTPError as error:
            error.close()
        except Exception as error:  # malformed answers and addresses too
            # A certificate that only the downloader's own settings may know is an answer as well.
            if not isinstance(getattr(error, "reason", error), ssl.SSLError):
                failures.append(error)

    # Looking up a name knows no timeout, hence a thread that may be left behind.
    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(_PATIENCE)
    if thread.is_alive():
        raise OSError(f"{url} does not answer within {_PATIENCE} seconds")
    if failures:
        raise OSError(f"{url} cannot be reached: {failures[0]}") from failures[0]
