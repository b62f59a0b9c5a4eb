"""VFusion: all layers' tokens, concatenated and pressed by a small MLP into one latent, read by a linear head."""

from numbers import Integral, Real

from sklearn.base import ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.validation import check_is_fitted
from torch import nn

from ..training.losses import PENALTIES, FusionLoss
from ..training.scaling import InputScaling
from ..training.seeding import SeededDropout, SeededLinear, generator
from .base import BaseTorchClassifier
from .validation import read_stack


class VFusionNet(nn.Module):
    """Scaling, then Linear, LayerNorm, GELU, dropout, Linear, LayerNorm to the latent, then a linear head.

    The LayerNorms have no gain and bias of their own: the linear maps around them can express these, and torch sums
    their gradients in an order that depends on the number of threads, so that a fit in a worker process would differ.
    """

    def __init__(self, n_layers, n_tokens, dim, n_classes, scaling, hidden, latent_dim, dropout, seed):
        super().__init__()
        rng = generator(seed)
        self.scaling = InputScaling(scaling, n_layers, n_tokens, dim)
        self.encoder = nn.Sequential(
            SeededLinear(n_layers * n_tokens * dim, hidden, rng),
            nn.LayerNorm(hidden, elementwise_affine=False),
            nn.GELU(),
            SeededDropout(dropout, seed),
            SeededLinear(hidden, latent_dim, rng),
            nn.LayerNorm(latent_dim, elementwise_affine=False),
        )
        self.head = SeededLinear(latent_dim, n_classes, rng)

    def forward(self, X):
        """Return the logits and the latent of a batch of shape (batch, n_layers, n_tokens, dim)."""
        latent = self.encoder(self.scaling(X))
        return self.head(latent), latent


class VFusionClassifier(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseTorchClassifier):
    """Vertical fusion of a Vision Transformer's layers (VFusion).

    The chosen layers' tokens are scaled, concatenated and encoded by an MLP into a low-dimensional latent, the image's
    global token, which a linear head classifies. Encoder and head are trained together by cross-entropy plus a penalty
    on correlated latent dimensions, which keeps the small latent from storing the same thing twice.

    Parameters
    ----------
    hidden : int, default=512
        Width of the encoder's hidden layer, at least 3. The paper's value is unknown.
    latent_dim : int, default=128
        Width of the latent, at least 3. The paper's value is unknown; 128 is what its first author used elsewhere.
    dropout : float, default=0.3
        Share of hidden units dropped while training, in [0, 1).
    orthogonality : float, default=0.1
        Weight of the penalty, on the scale on which it lies in [0, 1]. 0 turns it off. The paper's value is unknown.
    orthogonality_kind : {"correlation"}, default="correlation"
        The penalty: the mean squared correlation between different latent dimensions within a batch.
    layers : str, int, list of int or slice, default="all"
        Which of X's layers to fuse; see :func:`skvfusion.resolve_layers`. The paper recommends all.
    n_layers : int, default=None
        Splits a flattened 2-D X into this many equal layers; None reads 2-D as one layer.
    scaling : {"standard", "layer", "token", None}, default="layer"
        Input scaling, with statistics of the training rows. ``"layer"`` centres every dimension and divides each layer
        by one number; ``"standard"`` divides every dimension by its standard deviation; ``"token"`` is a LayerNorm per
        token; None leaves the numbers alone.
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
        # LayerNorm leaves of two numbers only their order, and nothing of one.
        "hidden": [Interval(Integral, 3, None, closed="left")],
        "latent_dim": [Interval(Integral, 3, None, closed="left")],
        "dropout": [Interval(Real, 0, 1, closed="left")],
        "orthogonality": [Interval(Real, 0, None, closed="left")],
        "orthogonality_kind": [StrOptions(set(PENALTIES))],
    }

    def __init__(
        self,
        hidden=512,
        latent_dim=128,
        *,
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
        check_is_fitted(self)
        return self._outputs(read_stack(self, X, reset=False), 1)

    @property
    def _n_features_out(self):
        return self.net_.module_.head.weight.shape[0]

    def _module(self, n_layers, n_tokens, dim, n_classes, seed):
        return VFusionNet, {
            "n_layers": n_layers,
            "n_tokens": n_tokens,
            "dim": dim,
            "n_classes": n_classes,
            "scaling": self.scaling,
            "hidden": self.hidden,
            "latent_dim": self.latent_dim,
            "dropout": self.dropout,
            "seed": seed,
        }

    def _criterion(self):
        return FusionLoss, {"orthogonality": self.orthogonality, "orthogonality_kind": self.orthogonality_kind}
