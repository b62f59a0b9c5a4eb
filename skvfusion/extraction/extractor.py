"""Images in, every layer's token out, in one pass through a frozen backbone."""

import os
from numbers import Integral

import numpy as np
import torch
from sklearn.base import BaseEstimator, TransformerMixin, _fit_context
from sklearn.utils._param_validation import Interval, StrOptions
from tqdm import tqdm

from ..devices import resolve_device
from ..layers import resolve_layers
from .backbones import check_tokens, get_backbone
from .images import ImageSequence

# Tokens in a batch: 8 images of a ViT-S/14 at 224 pixels, which is near the best on a CPU; a GPU wants more at once.
_CPU_TOKENS = 8 * 257
_GPU_TOKENS = 2**15


class LayerwiseFeatureExtractor(TransformerMixin, BaseEstimator, auto_wrap_output_keys=None):
    """Turn images into layer stacks: the token of every block of a frozen Vision Transformer, in one pass.

    The transformer learns nothing from data. The network is built when it is first needed and is shared, within a
    process, by all extractors with the same backbone, weights, image size and device; it is never part of a pickle, a
    clone or a hash.

    Parameters
    ----------
    backbone : str, default="dinov2_s"
        An alias (``skvfusion.extraction.ALIASES``), ``"nano"`` (embedded, needs no download), any timm model name, or
        ``"local-dir:/path"`` as in timm.
    layers : str, int, list of int or slice, default="all"
        Which blocks to keep; see :func:`skvfusion.resolve_layers`. Blocks above the deepest one kept are not computed.
    tokens : {"cls", "mean", "cls+mean"}, default="cls"
        ``"cls"``: the class token. ``"mean"``: the mean of the patch tokens, without class and register tokens.
        ``"cls+mean"``: both, in this order, on an axis of their own.
    norm : {"last", "all", "none"}, default="last"
        Where the network's final norm is applied: to the last block only, so that the deepest layer is the ordinary
        feature; to all blocks; or to none. Whether the VFusion paper norms inner layers is unknown.
    image_size : int, default=None
        Side of the square input in pixels, a multiple of the patch size; images are resized and cropped to it as the
        model's own evaluation transform does. None is the model's own size, but 224 for DINOv2, whose 518 costs 12
        times as much.
    weights : str or path, default=None
        None loads the pretrained weights that the model's name stands for. A path loads a state dict (.safetensors,
        .pt or .pth, for example of a fine-tuned backbone), which must fit exactly but for a classification head.
        ``"random"`` is an untrained control, always the same.
    device : str or torch.device, default="auto"
        Where the backbone runs; ``"auto"`` takes CUDA, then MPS, then the CPU. A device that is not there raises.
    batch_size : int or "auto", default="auto"
        Images in a forward pass. ``"auto"`` goes by the number of tokens: 8 images of a ViT-S/14 at 224 pixels on a
        CPU, more on a GPU. It does not change the result beyond float noise.
    progress : bool, default=False
        Whether to show a progress bar.

    Attributes
    ----------
    layers_ : list of int
        The blocks that are kept, shallow to deep.
    layer_names_ : list of str
        ``"block0"``, ... for these.
    token_names_ : list of str
        ``["cls"]``, ``["mean"]`` or both.
    dim_ : int
        Width of a token.
    image_size_ : int
        Side of the network's input in pixels.
    device_ : str
        The device that is used.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> from skvfusion import LayerwiseFeatureExtractor
    >>> images = load_digits().images[:4] / 16
    >>> LayerwiseFeatureExtractor("nano").fit_transform(images).shape
    (4, 12, 128)
    """

    _parameter_constraints: dict = {
        "backbone": [str],
        "layers": [str, Integral, "array-like", slice],
        "tokens": [StrOptions({"cls", "mean", "cls+mean"})],
        "norm": [StrOptions({"last", "all", "none"})],
        "image_size": [Interval(Integral, 1, None, closed="left"), None],
        "weights": [str, os.PathLike, None],
        "device": [str, torch.device],
        "batch_size": [Interval(Integral, 1, None, closed="left"), StrOptions({"auto"})],
        "progress": ["boolean"],
    }

    def __init__(
        self,
        backbone="dinov2_s",
        *,
        layers="all",
        tokens="cls",
        norm="last",
        image_size=None,
        weights=None,
        device="auto",
        batch_size="auto",
        progress=False,
    ):
        self.backbone = backbone
        self.layers = layers
        self.tokens = tokens
        self.norm = norm
        self.image_size = image_size
        self.weights = weights
        self.device = device
        self.batch_size = batch_size
        self.progress = progress

    @_fit_context(prefer_skip_nested_validation=True)
    def fit(self, X=None, y=None):
        """Build the backbone and check the parameters against it; no image is read.

        Parameters
        ----------
        X, y : ignored
            For the sake of pipelines.

        Returns
        -------
        self : object
            The extractor.

        Raises
        ------
        ValueError
            If the backbone is unknown or does not have such tokens, layers, weights or image size.
        OSError
            If pretrained weights cannot be downloaded.
        """
        backbone = self._backbone()
        self.layers_ = resolve_layers(self.layers, backbone.depth)
        self.layer_names_ = [f"block{layer}" for layer in self.layers_]
        self.token_names_ = self.tokens.split("+")
        self.dim_ = backbone.dim
        self.image_size_ = backbone.image_size
        self.device_ = str(backbone.device)
        return self

    def transform(self, X):
        """Extract the layers of each image.

        Parameters
        ----------
        X : list, array, tensor, DataFrame or Dataset of n images
            Paths, PIL images, encoded bytes, HxW or HxWxC arrays (uint8, uint16, bool or float in [0, 1]) and CxHxW
            tensors, in a list or Dataset; equal images as an array (n, H, W) or (n, H, W, C) or a tensor (n, C, H, W);
            a DataFrame with one column of paths. Everything is read as 8-bit RGB: orientation is applied, transparency
            is laid over white.

        Returns
        -------
        ndarray of shape (n, n_layers, dim) or, for ``tokens="cls+mean"``, (n, n_layers, 2, dim)
            float32, shallow to deep.

        Raises
        ------
        ValueError
            If X is empty or an image cannot be read; the message names its position and path.
        """
        self._validate_params()
        images = ImageSequence(X)
        backbone = self._backbone()
        layers = resolve_layers(self.layers, backbone.depth)
        tokens = self.tokens.split("+")
        size = self._batch_size(backbone)
        stack = np.empty((len(images), len(layers), len(tokens), backbone.dim), dtype=np.float32)
        with tqdm(total=len(images), desc=self.backbone, unit="image", disable=not self.progress) as bar:
            for start in range(0, len(images), size):
                rows = range(start, min(start + size, len(images)))
                batch = torch.stack([backbone.transform(images[row]) for row in rows])
                stack[rows.start : rows.stop] = layer_tokens(backbone, batch, layers, tokens, self.norm).numpy()
                bar.update(len(rows))
        return stack[:, :, 0] if len(tokens) == 1 else stack

    def set_output(self, *, transform=None):
        """Accept scikit-learn's output setting; a stack has more than two axes, so it stays an array.

        Parameters
        ----------
        transform : {"default", "pandas", "polars"}, default=None
            Ignored.

        Returns
        -------
        self : object
            The extractor.
        """
        return self

    def _backbone(self):
        backbone = get_backbone(self.backbone, self.weights, self.image_size, resolve_device(self.device))
        check_tokens(backbone, self.tokens, self.backbone)
        return backbone

    def _batch_size(self, backbone):
        if self.batch_size != "auto":
            return self.batch_size
        budget = _CPU_TOKENS if backbone.device.type == "cpu" else _GPU_TOKENS
        return max(1, budget // backbone.n_tokens)

    def __sklearn_tags__(self):
        """Say that images come in, not a table, and that nothing has to be learned first."""
        tags = super().__sklearn_tags__()
        tags.input_tags.two_d_array = False
        tags.input_tags.three_d_array = True
        tags.input_tags.string = True
        tags.requires_fit = False
        return tags


@torch.inference_mode()
def layer_tokens(backbone, batch, layers, tokens, norm):
    """Run a batch through a backbone once and return the chosen layers' tokens.

    Parameters
    ----------
    backbone : Backbone
        The network.
    batch : tensor of shape (n, 3, size, size)
        Normalised images.
    layers : list of int
        Blocks to keep, in ascending order.
    tokens : list of {"cls", "mean"}
        Tokens to keep of each.
    norm : {"last", "all", "none"}
        Where to apply the final norm.

    Returns
    -------
    tensor of shape (n, n_layers, n_tokens, dim)
        float32 on the CPU; a copy, so that the patch tokens can be freed.
    """
    outputs = backbone.model.forward_intermediates(
        batch.to(backbone.device, torch.float32),
        indices=layers,
        # Some of timm's models fail when asked for prefix tokens that they do not have.
        return_prefix_tokens=backbone.model.num_prefix_tokens > 0,
        stop_early=True,
        output_fmt="NLC",
        intermediates_only=True,
    )
    token_norm, pooled_norm = backbone.norms
    stack = []
    for layer, output in zip(layers, outputs, strict=True):
        patches, prefix = output if isinstance(output, tuple) else (output, None)
        normed = norm == "all" or (norm == "last" and layer == backbone.depth - 1)
        kept = []
        for token in tokens:
            values = prefix[:, :1] if token == "cls" else patches
            pooled = (token_norm(values) if normed else values).mean(1)
            kept.append(pooled_norm(pooled) if normed else pooled)
        stack.append(torch.stack(kept, dim=1))
    return torch.stack(stack, dim=1).float().cpu()
