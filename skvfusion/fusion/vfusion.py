"""VFusion: all layers' tokens, concatenated and pressed by a small MLP into one latent, read by a linear head."""

from numbers import Integral, Real

import numpy as np
from sklearn.base import ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.validation import check_is_fitted
from torch import nn

from ..training.losses import PENALTIES, FusionLoss
from ..training.scaling import InputScaling
from ..training.seeding import SeededDropout, SeededLinear, generator
from .base import POSITIVE_INT, BaseTorchClassifier
from .validation import read_stack

ACTIVATIONS = {"gelu": nn.GELU, "relu": nn.ReLU, "silu": nn.SiLU, "tanh": nn.Tanh}
NORM_POSITIONS = ("input", "hidden", "latent")

# LayerNorm leaves of two numbers only their order, and nothing of one.
NORM_MIN_WIDTH = 3


class VFusionNet(nn.Module):
    """Scaling, an MLP encoder to the latent, then a linear head.

    The encoder is a Linear, LayerNorm, activation and dropout for each hidden width, then Linear and LayerNorm to the
    latent. Which of the LayerNorms there are, ``layer_norm`` says; it may ask for one in front of all, too.

    The LayerNorms have no gain and bias of their own: the linear maps around them can express these, and torch sums
    their gradients in an order that depends on the number of threads, so that a fit in a worker process would differ.
    """

    def __init__(
        self,
        n_layers,
        n_tokens,
        dim,
        n_classes,
        scaling,
        hidden,
        latent_dim,
        dropout,
        seed,
        activation="gelu",
        layer_norm=("hidden", "latent"),
    ):
        super().__init__()
        rng = generator(seed)
        self.scaling = InputScaling(scaling, n_layers, n_tokens, dim)
        width = n_layers * n_tokens * dim
        encoder = [_norm(width)] if "input" in layer_norm else []
        for depth, units in enumerate(_widths(hidden)):
            encoder.append(SeededLinear(width, units, rng))
            if "hidden" in layer_norm:
                encoder.append(_norm(units))
            # Layers of equal width must not drop the same units.
            encoder += [ACTIVATIONS[activation](), SeededDropout(dropout, seed + depth)]
            width = units
        encoder.append(SeededLinear(width, latent_dim, rng))
        if "latent" in layer_norm:
            encoder.append(_norm(latent_dim))
        self.encoder = nn.Sequential(*encoder)
        self.head = SeededLinear(latent_dim, n_classes, rng)

    def forward(self, X):
        """Return the logits and the latent of a batch of shape (batch, n_layers, n_tokens, dim)."""
        latent = self.encoder(self.scaling(X))
        return self.head(latent), latent


def _norm(width):
    return nn.LayerNorm(width, elementwise_affine=False)


def _widths(hidden):
    return [hidden] if isinstance(hidden, Integral) else list(hidden)


class VFusionClassifier(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseTorchClassifier):
    """Vertical fusion of a Vision Transformer's layers (VFusion).

    The chosen layers' tokens are scaled, concatenated and encoded by an MLP into a low-dimensional latent, the image's
    global token, which a linear head classifies. Encoder and head are trained together by cross-entropy plus a penalty
    on correlated latent dimensions, which keeps the small latent from storing the same thing twice.

    Parameters
    ----------
    hidden : int, list of int or tuple of int, default=512
        Widths of the encoder's hidden layers, an int for a single one. An empty list leaves a linear encoder. With a
        LayerNorm, a width is at least 3. The paper's value is unknown.
    latent_dim : int, default=128
        Width of the latent, with a LayerNorm at least 3. The paper's value is unknown; 128 is what its first author
        used elsewhere.
    activation : {"gelu", "relu", "silu", "tanh"}, default="gelu"
        What the hidden layers apply.
    layer_norm : tuple or list, default=("hidden", "latent")
        Where there is a LayerNorm, any of ``"input"`` (the scaled and concatenated tokens), ``"hidden"`` (each hidden
        layer, in front of its activation) and ``"latent"``. Empty for none.
    dropout : float, default=0.3
        Share of hidden units dropped while training, in [0, 1).
    orthogonality : float, default=0.1
        Weight of the penalty; 0 turns it off. The paper's value is unknown. The kinds of penalty differ in scale, see
        below.
    orthogonality_kind : {"correlation", "cosine", "covariance", "decov"}, default="correlation"
        The penalty on pairs of different latent dimensions, within a batch. ``"correlation"``: their mean squared
        correlation, in [0, 1]. ``"cosine"``: their mean squared cosine, in [0, 1], which penalises means other than 0
        too. ``"covariance"``: VICReg's term, their squared covariance summed and divided by ``latent_dim``.
        ``"decov"``: half that sum. The last two fall when the latent shrinks, so they want a LayerNorm at
        ``"latent"``; there they are up to about ``latent_dim - 1`` and ``latent_dim * (latent_dim - 1) / 2`` times as
        large as ``"correlation"``, and want a weight so many times smaller.
    layers : str, int, list of int or slice, default="all"
        Which of X's layers to fuse; see :func:`skvfusion.resolve_layers`. The paper recommends all.
    n_layers : int, default=None
        Splits a flattened 2-D X into this many equal layers; None reads 2-D as one layer.
    scaling : {"standard", "layer", "token", "l2", None}, default="layer"
        Input scaling, with statistics of the training rows. ``"layer"`` centres every dimension and divides each layer
        by one number, the root mean square of those that vary; ``"standard"`` divides every dimension by its standard
        deviation; ``"token"`` is a LayerNorm per token, ``"l2"`` makes each token's length 1; None leaves the numbers
        alone. Zeros that fill narrow layers up to the width of others count in ``"token"`` only.
    max_epochs : int, default=60
        Epochs over which the learning rate is annealed to almost 0 along a cosine; the most that are run.
    lr : float, default=1e-3
        Initial learning rate of AdamW.
    weight_decay : float, default=0.01
        Weight decay of AdamW.
    batch_size : int or "auto", default="auto"
        Samples in a batch. ``"auto"`` is an eighth of the training samples, but at least 16 and at most 256, so that
        small data get enough steps too. An epoch is dealt into equal batches of about this size.
    early_stopping : bool or "auto", default="auto"
        Whether to hold out samples, stop once their loss no longer falls and restore the best epoch's weights.
        ``"auto"`` does so if that makes at least 500 samples and two per class on average: with less data, the samples
        held out would be worth more for training. The last sample of a class is never held out; True holds out at
        least one of every class that has two.
    validation_fraction : float, default=0.1
        Share of the samples to hold out, stratified by class.
    patience : int, default=10
        Epochs without improvement after which to stop.
    class_weight : dict or "balanced", default=None
        Weights of the classes, multiplied into the sample weights; ``"balanced"`` gives all classes equal total weight.
    device : str or torch.device, default="auto"
        Where to compute; ``"auto"`` takes CUDA, then MPS, then the CPU. A device that is not there raises.
    random_state : int, RandomState instance or None, default=None
        Seeds the initial weights, the order of the samples, dropout and the hold-out. An int gives the same bits on
        every call, also in parallel threads or processes. None takes fresh entropy; torch's and numpy's global
        generators are neither read nor changed.
    verbose : int, default=0
        1 prints a line per epoch.
    callbacks : list of skorch callbacks, default=None
        Further callbacks for the net; they are copied, not changed.

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
        The labels.
    layers_ : list of int
        The layers that are fused, by index into X.
    n_layers_in_, n_tokens_in_, dim_in_ : int
        Shape of a sample in ``fit``. ``n_features_in_`` is their product.
    net_ : skorch.NeuralNet
        The trained net; ``net_.module_`` is the torch module.
    history_ : DataFrame
        A row per epoch: ``train_loss``, ``valid_loss`` if samples were held out, ``dur`` in seconds.
    n_iter_ : int
        Epochs that were run.
    device_ : str
        The device that was used.

    See Also
    --------
    LayerProbeClassifier : One layer only; its MLP is this model with ``layers=[layer]``.

    References
    ----------
    Di Salvo et al., "Vertical Fusion: Condensing Internal Representations for Robust ViT Classification",
    arXiv 2607.10391, 2026: the encoder and the loss. What the paper's public summaries leave open is a parameter here.

    Examples
    --------
    >>> import numpy as np
    >>> from skvfusion import VFusionClassifier
    >>> rng = np.random.default_rng(0)
    >>> y = np.repeat(["cat", "dog"], 20)
    >>> X = rng.normal(size=(40, 12, 8)) + (y == "dog")[:, None, None]
    >>> clf = VFusionClassifier(random_state=0).fit(X, y)
    >>> clf.predict(X[:1]), clf.transform(X).shape
    (array(['cat'], dtype='<U3'), (40, 128))
    """

    _parameter_constraints: dict = {
        **BaseTorchClassifier._parameter_constraints,
        "hidden": [POSITIVE_INT, list, tuple],
        "latent_dim": [POSITIVE_INT],
        "activation": [StrOptions(set(ACTIVATIONS))],
        "layer_norm": [list, tuple],
        "dropout": [Interval(Real, 0, 1, closed="left")],
        "orthogonality": [Interval(Real, 0, None, closed="left")],
        "orthogonality_kind": [StrOptions(set(PENALTIES))],
    }

    def __init__(
        self,
        hidden=512,
        latent_dim=128,
        *,
        activation="gelu",
        layer_norm=("hidden", "latent"),
        dropout=0.3,
        orthogonality=0.1,
        orthogonality_kind="correlation",
        layers="all",
        n_layers=None,
        scaling="layer",
        max_epochs=60,
        lr=1e-3,
        weight_decay=0.01,
        batch_size="auto",
        early_stopping="auto",
        validation_fraction=0.1,
        patience=10,
        class_weight=None,
        device="auto",
        random_state=None,
        verbose=0,
        callbacks=None,
    ):
        self.hidden = hidden
        self.latent_dim = latent_dim
        self.activation = activation
        self.layer_norm = layer_norm
        self.dropout = dropout
        self.orthogonality = orthogonality
        self.orthogonality_kind = orthogonality_kind
        self.layers = layers
        self.n_layers = n_layers
        self.scaling = scaling
        self.max_epochs = max_epochs
        self.lr = lr
        self.weight_decay = weight_decay
        self.batch_size = batch_size
        self.early_stopping = early_stopping
        self.validation_fraction = validation_fraction
        self.patience = patience
        self.class_weight = class_weight
        self.device = device
        self.random_state = random_state
        self.verbose = verbose
        self.callbacks = callbacks

    def transform(self, X):
        """Return the latent: each image's global token.

        Parameters
        ----------
        X : array-like
            Layer stacks with the layers, tokens and dimensions seen in ``fit``.

        Returns
        -------
        ndarray of shape (n_samples, latent_dim)
            float64. A DataFrame with columns ``vfusionclassifier0``, ... after ``set_output(transform="pandas")``.
        """
        return self._latent(X)

    def latent_correlation(self, X):
        """Return the correlations between the latent's dimensions over samples: what is left of redundancy.

        Parameters
        ----------
        X : array-like
            At least 2 layer stacks with the layers, tokens and dimensions seen in ``fit``.

        Returns
        -------
        ndarray of shape (latent_dim, latent_dim)
            float64, as of ``np.corrcoef``, but 0 beside the diagonal where a dimension is constant.
        """
        latent = self._latent(X)
        if len(latent) < 2:
            raise ValueError("A correlation needs at least 2 samples; X has 1.")
        with np.errstate(under="ignore"):
            centred = latent - latent.mean(axis=0)
            deviation = np.sqrt(np.square(centred).mean(axis=0))
            # What rounding leaves of a constant dimension is not variance.
            varies = deviation > 1e-9 * np.sqrt(np.square(latent).mean())
            standardised = np.where(varies, centred, 0.0) / np.where(varies, deviation, 1.0)
            correlation = (standardised.T @ standardised / len(latent)).clip(-1, 1)
        np.fill_diagonal(correlation, 1.0)
        return correlation

    def _latent(self, X):
        check_is_fitted(self)
        stack = read_stack(self, X, reset=False)
        with np.errstate(under="ignore"):
            return self._outputs(stack, 1)

    @property
    def _n_features_out(self):
        return self.net_.module_.head.weight.shape[0]

    def _check_encoder(self, n_inputs):
        """Check what ``_parameter_constraints`` cannot say: lists' items, and widths that a LayerNorm would erase."""
        if not all(position in NORM_POSITIONS for position in self.layer_norm):
            raise ValueError(
                "The 'layer_norm' parameter of VFusionClassifier must hold only items of "
                f"{NORM_POSITIONS}. Got {self.layer_norm!r} instead."
            )
        for name, value, position in (("hidden", self.hidden, "hidden"), ("latent_dim", self.latent_dim, "latent")):
            normed = position in self.layer_norm
            smallest = NORM_MIN_WIDTH if normed else 1
            if not all(isinstance(width, Integral) and width >= smallest for width in _widths(value)):
                advice = f", or leave {position!r} out of layer_norm" if normed else ""
                raise ValueError(
                    f"The {name!r} parameter of VFusionClassifier must hold integers of at least {smallest}{advice}. "
                    f"Got {value!r} instead."
                )
        if "input" in self.layer_norm and n_inputs < NORM_MIN_WIDTH:
            raise ValueError(
                "The 'layer_norm' parameter of VFusionClassifier has 'input', but a LayerNorm would erase the "
                f"{n_inputs} numbers of a sample. Leave 'input' out."
            )

    def _module(self, n_layers, n_tokens, dim, n_classes, seed):
        self._check_encoder(n_layers * n_tokens * dim)
        return VFusionNet, {
            "n_layers": n_layers,
            "n_tokens": n_tokens,
            "dim": dim,
            "n_classes": n_classes,
            "scaling": self.scaling,
            "hidden": [int(width) for width in _widths(self.hidden)],
            "latent_dim": int(self.latent_dim),
            "dropout": self.dropout,
            "seed": seed,
            "activation": self.activation,
            "layer_norm": tuple(self.layer_norm),
        }

    def _criterion(self):
        return FusionLoss, {"orthogonality": self.orthogonality, "orthogonality_kind": self.orthogonality_kind}
