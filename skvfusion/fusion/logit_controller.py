"""Neural Logit Controller: a small net that rescales each layer's logits, image by image."""

from math import expm1, log
from numbers import Integral

import torch
from sklearn.utils._param_validation import Interval, StrOptions
from torch import nn
from torch.nn import functional as F

from ..training.scaling import InputScaling
from ..training.seeding import SeededLinear, generator
from .gated import BaseGatedClassifier

# What the net's output means, and the output that gives each of L layers the weight 1 / L.
WEIGHTINGS = {
    "softplus": (F.softplus, lambda n_layers: log(expm1(1 / n_layers))),
    "temperature": (lambda t: 1 / F.softplus(t), lambda n_layers: log(expm1(n_layers))),
    "exp": (torch.exp, lambda n_layers: -log(n_layers)),
    "raw": (lambda a: a, lambda n_layers: 1 / n_layers),
}


class LogitControllerNet(nn.Module):
    """An MLP from all layers' scaled tokens to a weight for each layer's logits; at the start, all weigh the same."""

    def __init__(self, n_layers, n_tokens, dim, scaling, weighting, hidden, seed):
        super().__init__()
        rng = generator(seed)
        self.scaling = InputScaling(scaling, n_layers, n_tokens, dim)
        self.weighting, start = WEIGHTINGS[weighting][0], WEIGHTINGS[weighting][1](n_layers)
        self.controller = nn.Sequential(
            SeededLinear(n_layers * n_tokens * dim, hidden, rng), nn.ReLU(), SeededLinear(hidden, n_layers, rng)
        )
        nn.init.zeros_(self.controller[-1].weight)
        nn.init.constant_(self.controller[-1].bias, start)

    def forward(self, X, logits):
        """Return the weighted sum of the logits (batch, n_layers, n_classes), and the weights (batch, n_layers)."""
        weights = self.weighting(self.controller(self.scaling(X)))
        return (weights[:, :, None] * logits).sum(1), weights


class NeuralLogitControllerClassifier(BaseGatedClassifier):
    """Neural Logit Controller (NLC) over the layers: the sum of their probes' logits, weighted anew for each image.

    A small MLP reads all layers' tokens and gives each layer a weight, the same for all classes; the probes stay as
    they are. It learns from cross-fitted logits; then the probes are fitted again on all samples.

    Parameters
    ----------
    hidden : int, default=128
        Width of the controller's hidden layer; the default is that of Rodriguez-Opazo et al.
    weighting : {"softplus", "temperature", "exp", "raw"}, default="softplus"
        What makes weights of the controller's outputs: their softplus, one divided by it (the paper speaks of
        temperatures), their exponential, or nothing, which allows negative weights. The paper does not say. With each,
        all layers weigh the same at the start of training.
    probe : {"linear", "mlp"} or classifier, default="linear"
        The probe of each layer: multinomial logistic regression, :class:`VFusionClassifier` on the one layer, or any
        classifier with ``predict_proba``, which is cloned for each layer and reads it scaled and flattened.
    C : float, default=1.0
        Inverse strength of the linear probes' L2 penalty, as in ``LogisticRegression``.
    cv : int, cross-validation splitter, iterable of splits or "holdout", default=5
        How the samples are split for cross-fitting. An int means shuffled, stratified folds, as many as the
        second-largest class has samples if these are fewer, which keep ``groups`` together if ``fit`` is given any.
        ``"holdout"`` sets ``validation_fraction`` of the samples aside, once, as the paper does.
    n_jobs : int, default=None
        Parallel jobs for MLPs and other classifiers, as in joblib; linear probes use torch's threads.
    layers : str, int, list of int or slice, default="all"
        Which of X's layers to use; see :func:`skvfusion.resolve_layers`.
    n_layers : int, default=None
        Splits a flattened 2-D X into this many equal layers; None reads 2-D as one layer, of which nothing is fused.
    scaling : {"standard", "layer", "token", "l2", None}, default="layer"
        Input scaling, as in :class:`VFusionClassifier`; folds have statistics of their own.
    max_epochs, lr, weight_decay, batch_size, early_stopping, validation_fraction, patience
        Training of the controller, as in :class:`VFusionClassifier`, but with the paper's learning rate, and for 10
        epochs only: on a few hundred images, 60 made the log-loss about twice as high. MLPs as probes have
        VFusionClassifier's defaults; pass one as ``probe`` to change them.
    device, verbose, callbacks
        Where it is trained and what is shown of it, as in :class:`VFusionClassifier`.
    class_weight : dict or "balanced", default=None
        Weights of the classes, multiplied into the sample weights.
    random_state : int, RandomState instance or None, default=None
        Seeds folds and training; an int gives the same bits on every call, also in parallel threads or processes.

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
        The labels.
    layers_ : list of int
        The layers that are combined, by index into X.
    probes_ : object
        The layers' probes, fitted on all samples; ``probes_.logits(stack)``, with a stack of shape
        (n_samples, n_combined_layers, n_tokens, dim), returns their logits.
    net_ : skorch.NeuralNet
        The trained controller.
    history_ : DataFrame
        A row per epoch of the controller.
    n_iter_ : int
        Epochs that were run.
    device_ : str
        The device that was used.
    n_layers_in_, n_tokens_in_, dim_in_ : int
        Shape of a sample in ``fit``. ``n_features_in_`` is their product.

    See Also
    --------
    MixtureOfExpertsClassifier : Weighs probabilities instead of logits, with weights that sum to 1.
    SuperLearnerClassifier : Weights that are the same for all images.

    References
    ----------
    Rodriguez-Opazo et al., "Synergy and Diversity in CLIP: Enhancing Performance Through Adaptive Backbone
    Ensembling", ICLR 2025, arXiv 2405.17139: controller, its width, learning rate and weight decay, with backbones
    where VFusion (arXiv 2607.10391) has layers.

    Examples
    --------
    >>> import numpy as np
    >>> from skvfusion import NeuralLogitControllerClassifier
    >>> rng = np.random.default_rng(0)
    >>> y = np.repeat(["cat", "dog"], 20)
    >>> X = rng.normal(size=(40, 12, 8)) + (y == "dog")[:, None, None]
    >>> NeuralLogitControllerClassifier(random_state=0).fit(X, y).layer_weights(X).shape
    (40, 12)
    """

    _parameter_constraints: dict = {
        **BaseGatedClassifier._parameter_constraints,
        "hidden": [Interval(Integral, 1, None, closed="left")],
        "weighting": [StrOptions(set(WEIGHTINGS))],
    }

    def __init__(
        self,
        hidden=128,
        *,
        weighting="softplus",
        probe="linear",
        C=1.0,
        cv=5,
        n_jobs=None,
        layers="all",
        n_layers=None,
        scaling="layer",
        max_epochs=10,
        lr=2e-4,
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
        self.weighting = weighting
        self.probe = probe
        self.C = C
        self.cv = cv
        self.n_jobs = n_jobs
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

    def _module(self, n_layers, n_tokens, dim, n_classes, seed):
        return LogitControllerNet, {
            "n_layers": n_layers,
            "n_tokens": n_tokens,
            "dim": dim,
            "scaling": self.scaling,
            "weighting": self.weighting,
            "hidden": self.hidden,
            "seed": seed,
        }
