"""Mixture of experts: a gate that says which layers' probes to believe, image by image."""

from numbers import Integral

import torch
from sklearn.utils._param_validation import Interval, StrOptions
from torch import nn

from ..training.batches import StackDataset
from ..training.scaling import InputScaling
from ..training.seeding import SeededLinear, generator
from .gated import BaseGatedClassifier


class MixtureOfExpertsNet(nn.Module):
    """A softmax gate over the layers, at the start the same for all; with experts of its own if they are joint."""

    def __init__(self, n_layers, n_tokens, dim, n_classes, scaling, hidden, joint, seed):
        super().__init__()
        rng = generator(seed)
        self.scaling = InputScaling(scaling, n_layers, n_tokens, dim)
        width = n_layers * n_tokens * dim
        body = [] if hidden is None else [SeededLinear(width, hidden, rng), nn.ReLU()]
        last = SeededLinear(width if hidden is None else hidden, n_layers, rng)
        nn.init.zeros_(last.weight)
        nn.init.zeros_(last.bias)
        self.gate = nn.Sequential(*body, last)
        self.experts = nn.ModuleList(
            SeededLinear(n_tokens * dim, n_classes, rng) for _ in range(n_layers if joint else 0)
        )

    def forward(self, X, logits=None):
        """Return the mixture's log-probabilities (batch, n_classes), and the gate's weights (batch, n_layers)."""
        scaled = self.scaling(X)
        if len(self.experts):
            parts = scaled.chunk(len(self.experts), dim=1)
            logits = torch.stack([expert(part) for expert, part in zip(self.experts, parts, strict=True)], 1)
        gate = self.gate(scaled).log_softmax(1)
        return (gate[:, :, None] + logits.log_softmax(2)).logsumexp(1), gate.exp()


class MixtureOfExpertsClassifier(BaseGatedClassifier):
    """Mixture of experts over the layers: their probabilities, averaged with weights that depend on the image.

    A gate reads all layers' tokens and gives the layers weights that sum to 1. The experts are the layers' probes,
    cross-fitted for the gate to learn from and then fitted again on all samples; or linear maps trained with the gate.

    Parameters
    ----------
    experts : {"frozen", "joint"}, default="frozen"
        ``"frozen"``: the experts are probes, which only the gate combines. ``"joint"``: a linear classifier for each
        layer, trained together with the gate by the mixture's likelihood; nothing is cross-fitted, and ``probe``, ``C``
        and ``cv`` are ignored.
    hidden : int or None, default=128
        Width of the gate's hidden layer; None makes the gate linear.
    probe : {"linear", "mlp"} or classifier, default="linear"
        The probe of each layer: multinomial logistic regression, :class:`VFusionClassifier` on the one layer, or any
        classifier with ``predict_proba``, which is cloned for each layer and reads it scaled and flattened.
    C : float, default=1.0
        Inverse strength of the linear probes' L2 penalty, as in ``LogisticRegression``.
    cv : int, cross-validation splitter, iterable of splits or "holdout", default=5
        How the samples are split for cross-fitting. An int means shuffled, stratified folds, as many as the
        second-largest class has samples if these are fewer, which keep ``groups`` together if ``fit`` is given any.
        ``"holdout"`` sets ``validation_fraction`` of the samples aside, once.
    n_jobs : int, default=None
        Parallel jobs for MLPs and other classifiers, as in joblib; linear probes use torch's threads.
    layers : str, int, list of int or slice, default="all"
        Which of X's layers to use; see :func:`skvfusion.resolve_layers`.
    n_layers : int, default=None
        Splits a flattened 2-D X into this many equal layers; None reads 2-D as one layer, of which nothing is fused.
    scaling : {"standard", "layer", "token", "l2", None}, default="layer"
        Input scaling, as in :class:`VFusionClassifier`; folds have statistics of their own.
    max_epochs : int or "auto", default="auto"
        Most epochs. ``"auto"`` is 10 for the gate of frozen experts, which with 60 was less accurate than none on a few
        hundred images, and 60 for joint experts, which start from nothing.
    lr : float or "auto", default="auto"
        Initial learning rate. ``"auto"`` is 2e-4 for the gate of frozen experts and 1e-3 for joint experts.
    weight_decay, batch_size, early_stopping, validation_fraction, patience
        Training of the net, as in :class:`VFusionClassifier`. MLPs as probes have VFusionClassifier's defaults; pass
        one as ``probe`` to change them.
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
        (n_samples, n_combined_layers, n_tokens, dim), returns their logits. Only with frozen experts.
    net_ : skorch.NeuralNet
        The trained gate, with the experts if they are joint.
    history_ : DataFrame
        A row per epoch.
    n_iter_ : int
        Epochs that were run.
    device_ : str
        The device that was used.
    n_layers_in_, n_tokens_in_, dim_in_ : int
        Shape of a sample in ``fit``. ``n_features_in_`` is their product.

    See Also
    --------
    NeuralLogitControllerClassifier : Weighs logits instead of probabilities, with weights of any sum.
    SuperLearnerClassifier : Weights that are the same for all images.

    References
    ----------
    Jacobs et al., "Adaptive Mixtures of Local Experts", Neural Computation 3(1), 1991. VFusion (arXiv 2607.10391)
    compares with a mixture of experts; what its gate reads, and whether its experts are trained with it, is not known.

    Examples
    --------
    >>> import numpy as np
    >>> from skvfusion import MixtureOfExpertsClassifier
    >>> rng = np.random.default_rng(0)
    >>> y = np.repeat(["cat", "dog"], 20)
    >>> X = rng.normal(size=(40, 12, 8)) + (y == "dog")[:, None, None]
    >>> MixtureOfExpertsClassifier(random_state=0).fit(X, y).layer_weights(X).sum(axis=1).round(6).max()
    np.float64(1.0)
    """

    _parameter_constraints: dict = {
        **BaseGatedClassifier._parameter_constraints,
        "experts": [StrOptions({"frozen", "joint"})],
        "hidden": [Interval(Integral, 1, None, closed="left"), None],
        "max_epochs": [*BaseGatedClassifier._parameter_constraints["max_epochs"], StrOptions({"auto"})],
        "lr": [*BaseGatedClassifier._parameter_constraints["lr"], StrOptions({"auto"})],
    }

    def __init__(
        self,
        experts="frozen",
        *,
        hidden=128,
        probe="linear",
        C=1.0,
        cv=5,
        n_jobs=None,
        layers="all",
        n_layers=None,
        scaling="layer",
        max_epochs="auto",
        lr="auto",
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
        self.experts = experts
        self.hidden = hidden
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

    def _fit(self, stack, codes, weight, groups):
        if self.experts == "joint":
            self._fit_net(stack, codes, weight)
        else:
            super()._fit(stack, codes, weight, groups)

    def _most_epochs(self, n_batches):
        if self.max_epochs == "auto":
            return 60 if self.experts == "joint" else 10
        return self.max_epochs

    def _learning_rate(self):
        if self.lr == "auto":
            return 1e-3 if self.experts == "joint" else 2e-4
        return self.lr

    def _dataset(self, stack):
        return super()._dataset(stack) if hasattr(self, "probes_") else StackDataset(stack)

    def _module(self, n_layers, n_tokens, dim, n_classes, seed):
        return MixtureOfExpertsNet, {
            "n_layers": n_layers,
            "n_tokens": n_tokens,
            "dim": dim,
            "n_classes": n_classes,
            "scaling": self.scaling,
            "hidden": self.hidden,
            "joint": self.experts == "joint",
            "seed": seed,
        }
