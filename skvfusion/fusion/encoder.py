"""The encoder of VFusion: all layers' tokens, pressed by a small MLP into one latent, which a linear head reads."""

from numbers import Integral, Real

import numpy as np
import torch
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
        self.register_buffer("gain", torch.ones(width, dtype=torch.float32))
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
        latent = self.encoder(self.scaling(X) * self.gain)
        return self.head(latent), latent

    def set_gain(self, gain):
        """Multiply each scaled layer by its number of ``gain``, an array of shape (n_layers,)."""
        self.gain.copy_(torch.from_numpy(np.repeat(gain, len(self.gain) // len(gain))))


def _norm(width):
    return nn.LayerNorm(width, elementwise_affine=False)


def _widths(hidden):
    return [hidden] if isinstance(hidden, Integral) else list(hidden)


class EncoderClassifier(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseTorchClassifier):
    """VFusion as the paper has it: scaled tokens, an encoder, a linear head. Nothing else has a say.

    With one layer it is an MLP probe, as which it serves :mod:`skvfusion.fusion.probes`. The parameters are described
    at :class:`skvfusion.VFusionClassifier`.
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
