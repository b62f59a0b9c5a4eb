"""Images in, every layer's token out, in one pass through a frozen backbone."""

import os
from contextlib import nullcontext
from numbers import Integral

import numpy as np
import torch
from sklearn.base import BaseEstimator, _fit_context
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.metaestimators import available_if
from tqdm import tqdm

from ..devices import resolve_device
from ..layers import resolve_layers
from .backbones import check_tokens, get_backbone
from .base import ImageTransformer
from .cache import FeatureCache
from .feed import ArraySink, Feed
from .images import ImageSequence
from .memory_map import FileSink
from .recipe import DTYPES, Recipe, resolve_dtype
from .taps import NORMS, TAPS, TOKENS, check_tap, tap_names

# Tokens in a batch: 8 images of a ViT-S/14 at 224 pixels, which is near the best on a CPU; a GPU wants more at once.
_CPU_TOKENS = 8 * 257
_GPU_TOKENS = 2**15


class LayerwiseFeatureExtractor(ImageTransformer, BaseEstimator):
    """Turn images into layer stacks: the token of every block of a frozen Vision Transformer, in one pass.

    The transformer learns nothing from data. The network is built when it is first needed and is shared, within a
    process, by all extractors with the same backbone, weights, image size and device. Pickles, copies and hashes hold
    the parameters and nothing else; ``fit`` builds the network and sets the attributes, but ``transform`` needs no fit.

    Each different image is computed once in a call, and with ``cache`` once for all calls, processes and runs.

    Parameters
    ----------
    backbone : str, default="dinov2_s"
        An alias (``skvfusion.extraction.ALIASES``), ``"nano"`` (embedded, needs no download), any timm model name, or
        ``"local-dir:/path"`` as in timm.
    layers : str, int, list of int or slice, default="all"
        Which layers to keep; see :func:`skvfusion.resolve_layers`. Without a cache, blocks above the deepest one kept
        are not computed.
    tokens : {"cls", "mean", "cls+mean"}, default="cls"
        ``"cls"``: the class token. ``"mean"``: the mean of the patch tokens, without class and register tokens.
        ``"cls+mean"``: both, in this order, on an axis of their own.
    tap : {"block", "norm2"}, default="block"
        Where a layer is read. ``"block"``: the residual stream after each block, as in VFusion (arXiv 2607.10391).
        ``"norm2"``: where Attentive Layer Fusion (arXiv 2601.09322) reads, which also gives as many layers as there are
        blocks: what the MLP of every block but the first is fed with (after attention and its norm), and then the
        output of the final norm.
    norm : {"last", "all", "none"}, default="last"
        Where the network's final norm is applied: to the last layer only, so that the deepest one is the ordinary
        feature; to all (``tap="block"`` only); or to none. Whether the VFusion paper norms inner layers is unknown.
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
    dtype : {"auto", "float32", "bfloat16", "float16"}, default="auto"
        What matrices are multiplied in, by automatic mixed precision; results are float32. ``"auto"`` is bfloat16 on
        CUDA devices that compute in it (since Ampere) and float32 elsewhere: on most CPUs less precision is slower.
    batch_size : int or "auto", default="auto"
        Images in a forward pass. ``"auto"`` goes by the number of tokens: 8 images of a ViT-S/14 at 224 pixels on a
        CPU, more on a GPU. It does not change the result beyond float noise. A batch that does not fit into the memory
        is halved, with one message to the logger ``"skvfusion"``.
    n_threads : int, default=None
        Threads that read and decode images while the backbone computes. None takes as many as torch computes with,
        which in a worker process of joblib is its share of the cores.
    cache : str or path, default=None
        A folder in which results are kept, by the content of image, backbone, weights, preprocessing, tap, tokens, norm
        and library versions: no image goes through the same backbone twice, whatever the layers, in folds, candidates,
        fits, processes or runs. An interrupted run loses one batch at most. See
        :func:`skvfusion.extraction.cache_info` and :func:`skvfusion.extraction.limit_cache`.
    output : {"stack", "flat"}, default="stack"
        ``"stack"`` is what the classifiers here take. ``"flat"`` gives rows of numbers with names, also as DataFrame by
        ``set_output``, for ColumnTransformer, FeatureUnion and classifiers with ``n_layers``.
    on_error : {"raise", "nan"}, default="raise"
        What to do about an image that cannot be read: raise an error that names its position and path, or fill its row
        with NaN and warn once, at the end.
    progress : bool, default=False
        Whether to show a progress bar.

    Attributes
    ----------
    layers_ : list of int
        The layers that are kept, shallow to deep.
    layer_names_ : list of str
        ``"block0"``, ... for these; with ``tap="norm2"`` ``"block1.norm2"``, ..., ``"norm"``.
    token_names_ : list of str
        ``["cls"]``, ``["mean"]`` or both.
    dim_ : int
        Width of a token.
    image_size_ : int
        Side of the network's input in pixels.
    device_ : str
        The device that is used.
    dtype_ : str
        What matrices are multiplied in.

    See Also
    --------
    BackboneStack : Several backbones side by side.

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
        "tokens": [StrOptions(set(TOKENS))],
        "tap": [StrOptions(set(TAPS))],
        "norm": [StrOptions(set(NORMS))],
        "image_size": [Interval(Integral, 1, None, closed="left"), None],
        "weights": [str, os.PathLike, None],
        "device": [str, torch.device],
        "dtype": [StrOptions(set(DTYPES))],
        "batch_size": [Interval(Integral, 1, None, closed="left"), StrOptions({"auto"})],
        "n_threads": [Interval(Integral, 1, None, closed="left"), None],
        "cache": [str, os.PathLike, None],
        "output": [StrOptions({"stack", "flat"})],
        "on_error": [StrOptions({"raise", "nan"})],
        "progress": ["boolean"],
    }

    def __init__(
        self,
        backbone="dinov2_s",
        *,
        layers="all",
        tokens="cls",
        tap="block",
        norm="last",
        image_size=None,
        weights=None,
        device="auto",
        dtype="auto",
        batch_size="auto",
        n_threads=None,
        cache=None,
        output="stack",
        on_error="raise",
        progress=False,
    ):
        self.backbone = backbone
        self.layers = layers
        self.tokens = tokens
        self.tap = tap
        self.norm = norm
        self.image_size = image_size
        self.weights = weights
        self.device = device
        self.dtype = dtype
        self.batch_size = batch_size
        self.n_threads = n_threads
        self.cache = cache
        self.output = output
        self.on_error = on_error
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
            If the backbone is unknown or does not have such tokens, layers, taps, weights or image size.
        OSError
            If pretrained weights cannot be downloaded.
        """
        recipe, layers = self._recipe()
        backbone = recipe.backbone
        self.layers_ = layers
        self.layer_names_ = self._layer_names(recipe, layers)
        self.token_names_ = recipe.tokens
        self.dim_ = backbone.dim
        self.image_size_ = backbone.image_size
        self.device_ = str(backbone.device)
        self.dtype_ = str(recipe.dtype).removeprefix("torch.")
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
            float32, shallow to deep. For ``output="flat"``, an ndarray or DataFrame of shape (n, n_features).

        Raises
        ------
        ValueError
            If X is empty or, unless ``on_error="nan"``, an image cannot be read; the message names its position and
            path. What was computed before is in the cache.
        """
        self._validate_params()
        images = ImageSequence(X)
        recipe, layers = self._recipe()
        sink = ArraySink(self._shape(recipe, layers, len(images)))
        self._feed(images, recipe, layers, sink)
        return sink.rows

    def extract(self, X, out, *, dtype="float32"):
        """Extract into a memory-mapped .npy file, for sets larger than memory.

        Until it is complete, the file is called ``out`` + ".part". If the run is interrupted, the same call goes on
        from there, and if it was complete, it has nothing to do: images are read again, to see that they are the same,
        but computed only where they are not. A small file, ``out`` + ".rows", tells which image each row is of. A call
        with another number of images or other parameters begins anew; with ``cache``, this too computes nothing twice.

        Parameters
        ----------
        X : list, array, tensor, DataFrame or Dataset of n images
            As in :meth:`transform`.
        out : str or path
            The file to write; replaced if it exists and holds something else.
        dtype : {"float32", "float16"} or numpy dtype, default="float32"
            What is stored; float16 takes half of the space and keeps three digits. Classifiers compute in float32.

        Returns
        -------
        memmap of shape (n, n_layers, dim) or, for ``tokens="cls+mean"``, (n, n_layers, 2, dim)
            The file, read-only; every classifier takes it as X. For ``output="flat"``, of shape (n, n_features).

        Raises
        ------
        ValueError
            As :meth:`transform`; also if a number is too large for float16.
        OSError
            If the file cannot be written, does not fit on the disk, or is being written by another process.

        Examples
        --------
        >>> import tempfile
        >>> from sklearn.datasets import load_digits
        >>> from skvfusion import LayerwiseFeatureExtractor
        >>> images = load_digits().images[:4] / 16
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     LayerwiseFeatureExtractor("nano").extract(images, f"{folder}/features.npy").shape
        (4, 12, 128)
        """
        self._validate_params()
        if not isinstance(dtype, (str, type, np.dtype)) or dtype not in ("float32", "float16", np.float32, np.float16):
            raise ValueError(f"dtype={dtype!r} cannot be stored; use 'float32' or 'float16'.")
        images = ImageSequence(X)
        recipe, layers = self._recipe()
        shape = self._shape(recipe, layers, len(images))
        with FileSink(out, shape, dtype, recipe.key(repr(layers).encode())) as sink:
            self._feed(images, recipe, layers, sink)
            return sink.finish()

    @available_if(lambda self: self.output == "flat")
    def get_feature_names_out(self, input_features=None):
        """Return the names of the columns of flat output.

        Parameters
        ----------
        input_features : ignored
            For the sake of scikit-learn.

        Returns
        -------
        ndarray of str objects
            ``"block0_cls_0"``, ...: layer, token and dimension.
        """
        recipe, layers = self._recipe()
        names = [
            f"{layer}_{token}_{dim}"
            for layer in self._layer_names(recipe, layers)
            for token in recipe.tokens
            for dim in range(recipe.backbone.dim)
        ]
        return np.array(names, dtype=object)

    def set_output(self, *, transform=None):
        """Set the container of flat output; a stack has more than two axes, so it stays an array.

        Parameters
        ----------
        transform : {"default", "pandas", "polars"}, default=None
            As in scikit-learn; None changes nothing.

        Returns
        -------
        self : object
            The extractor.
        """
        return super().set_output(transform=transform) if self.output == "flat" else self

    def _recipe(self):
        """Return what is computed of an image, and the layers of it that are kept."""
        # An int whatever kind of integer a search's grid holds: it goes into keys.
        image_size = None if self.image_size is None else int(self.image_size)
        backbone = get_backbone(self.backbone, self.weights, image_size, resolve_device(self.device))
        check_tokens(backbone, self.tokens, self.backbone)
        check_tap(backbone, self.tap, self.norm, self.backbone)
        dtype = resolve_dtype(self.dtype, backbone.device)
        recipe = Recipe(backbone, self.tokens.split("+"), self.tap, self.norm, dtype)
        return recipe, resolve_layers(self.layers, backbone.depth)

    def _feed(self, images, recipe, layers, sink):
        cache = nullcontext() if self.cache is None else FeatureCache(self.cache)
        # tqdm starts a thread even where it shows nothing.
        bar = tqdm(total=len(images), desc=self.backbone, unit="image") if self.progress else nullcontext()
        with cache as entered, bar as shown:
            Feed(
                images,
                recipe,
                layers,
                sink,
                cache=entered,
                batch_size=self._batch_size(recipe.backbone),
                n_threads=self.n_threads or torch.get_num_threads(),
                on_error=self.on_error,
                bar=shown,
            ).run()

    def _shape(self, recipe, layers, n_images):
        shape = [n_images, len(layers), len(recipe.tokens), recipe.backbone.dim]
        if self.output == "flat":
            return [n_images, int(np.prod(shape[1:]))]
        return shape if len(recipe.tokens) > 1 else [n_images, shape[1], shape[3]]

    def _layer_names(self, recipe, layers):
        names = tap_names(self.tap, recipe.backbone.depth)
        return [names[layer] for layer in layers]

    def _batch_size(self, backbone):
        if self.batch_size != "auto":
            return self.batch_size
        budget = _CPU_TOKENS if backbone.device.type == "cpu" else _GPU_TOKENS
        return max(1, budget // backbone.n_tokens)
