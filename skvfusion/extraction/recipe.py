"""What is computed of an image, as one object: it runs batches, and its digest says when results may be reused."""

import hashlib
import importlib.metadata
import json
import logging
from dataclasses import dataclass
from functools import cached_property

import torch
from PIL import ImageFile

from .backbones import Backbone
from .taps import layer_tokens

DTYPES = ("auto", "float32", "bfloat16", "float16")

# Raised when the same parameters give other results than before, so that no cache serves the old ones.
_FORMAT = 1
# The packages that decode, resize and compute. Results of torch's patch releases differ by float noise at most.
_PACKAGES = {"timm": None, "pillow": None, "torch": 2}

_logger = logging.getLogger("skvfusion")


def resolve_dtype(dtype, device):
    """Turn a ``dtype`` parameter into a torch dtype: bfloat16 on CUDA devices that compute in it, else float32.

    On CPUs without special instructions bfloat16 is several times slower than float32, so "auto" never takes it there.
    """
    if dtype != "auto":
        return getattr(torch, dtype)
    if device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 0):
        return torch.bfloat16
    return torch.float32


@dataclass(frozen=True)
class Recipe:
    """Which numbers a backbone gives for an image.

    Parameters
    ----------
    backbone : Backbone
        The network.
    tokens : list of {"cls", "mean"}
        Tokens of each layer.
    tap : {"block", "norm2"}
        Where the blocks are tapped.
    norm : {"last", "all", "none"}
        Where the final norm is applied.
    dtype : torch.dtype
        What matrices are multiplied in, by autocasting; weights and results are float32.
    """

    backbone: Backbone
    tokens: list
    tap: str
    norm: str
    dtype: torch.dtype

    @cached_property
    def digest(self):
        """32 bytes that change whenever the results might: with weights, preprocessing, parameters or versions."""
        facts = {
            "format": _FORMAT,
            "backbone": self.backbone.fingerprint.hex(),
            "tokens": self.tokens,
            "tap": self.tap,
            "norm": self.norm,
            "dtype": str(self.dtype),
            "truncated files": ImageFile.LOAD_TRUNCATED_IMAGES,  # a setting of Pillow's that makes other images
            "versions": {name: _version(name, parts) for name, parts in _PACKAGES.items()},
        }
        return hashlib.blake2b(json.dumps(facts, sort_keys=True).encode(), digest_size=32).digest()

    def key(self, image_digest):
        """Return 32 bytes that stand for the result of an image."""
        return hashlib.blake2b(self.digest + image_digest, digest_size=32).digest()

    def start(self, pixels, layers):
        """Begin to compute a batch; on a GPU this returns before it is done, so that the CPU can prepare the next.

        Parameters
        ----------
        pixels : list of uint8 tensor of shape (3, size, size)
            Prepared images.
        layers : list of int
            Layers to compute.

        Returns
        -------
        callable
            Waits for and returns the float32 array of shape (n, n_layers, n_tokens, dim).
        """
        device = self.backbone.device
        batch = torch.stack(pixels)
        if device.type == "cuda":
            batch = batch.pin_memory()
        batch = self.backbone.normalize(batch.to(device, non_blocking=True))
        with torch.autocast(device.type, self.dtype, enabled=self.dtype != torch.float32):
            values = layer_tokens(self.backbone, batch, layers, self.tokens, self.tap, self.norm)
        if device.type != "cuda":
            return values.cpu().numpy
        result = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
        result.copy_(values, non_blocking=True)
        done = torch.cuda.Event()
        done.record(torch.cuda.current_stream(device))

        def wait():
            done.synchronize()
            return result.numpy()

        return wait


class Batcher:
    """Starts batches, and makes them smaller for good when one does not fit into the memory."""

    def __init__(self, recipe, layers, batch_size):
        self.recipe = recipe
        self.layers = layers
        self.batch_size = batch_size
        self._logged = False

    def start(self, pixels):
        """Return functions that wait for the results of consecutive parts of the batch; one if it fits."""
        try:
            return [self.recipe.start(pixels, self.layers)]
        except RuntimeError as error:
            if len(pixels) == 1 or not is_out_of_memory(error):
                raise
            half = len(pixels) // 2
        # Outside of the handler, which would keep the failed batch alive.
        if half < self.batch_size:
            if not self._logged:
                _logger.warning(
                    "A batch of %d images does not fit into the memory of %s; going on with smaller ones. "
                    "batch_size=%d avoids the attempt.",
                    len(pixels),
                    self.recipe.backbone.device,
                    half,
                )
                self._logged = True
            self.batch_size = half
        if self.recipe.backbone.device.type == "cuda":
            torch.cuda.empty_cache()
        return self.start(pixels[:half]) + self.start(pixels[half:])


def is_out_of_memory(error):
    """Tell whether torch failed for want of memory: CUDA has an exception of its own, CPU and MPS a text."""
    return isinstance(error, torch.OutOfMemoryError) or any(
        text in str(error) for text in ("DefaultCPUAllocator: can't allocate memory", "MPS backend out of memory")
    )


def _version(package, parts):
    return ".".join(importlib.metadata.version(package).partition("+")[0].split(".")[:parts])
