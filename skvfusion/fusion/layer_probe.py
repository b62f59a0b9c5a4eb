"""A classifier that reads one layer: the last, any other, or the one that cross-validation finds best."""

from numbers import Integral

import numpy as np
from sklearn.utils._param_validation import StrOptions

from ..layers import resolve_layers, take_layers
from .cross_fitting import BaseProbeEnsemble, fold_accuracies
from .encoder import EncoderClassifier


class LayerProbeClassifier(BaseProbeEnsemble):
    """Probe of one layer.

    Parameters
    ----------
    layer : int or "best", default=-1
        The layer to read; negative counts from the deepest. ``"best"`` cross-validates a probe of every layer on the
        training data and takes the layer with the highest mean accuracy, the deepest of equals.
    probe : {"linear", "mlp"}, default="linear"
        ``"linear"``: multinomial logistic regression. ``"mlp"``: :class:`VFusionClassifier` on this one layer, the
        same model and, given the same ``random_state``, the same bits as ``VFusionClassifier(layers=[layer])``.
    C : float, default=1.0
        Inverse strength of the linear probe's L2 penalty, as in ``LogisticRegression``.
    cv : int, cross-validation splitter, iterable of splits or "holdout", default=5
        Folds for ``layer="best"``. An int means shuffled, stratified folds, as many as the second-largest class has
        samples if these are fewer, which keep ``groups`` together if ``fit`` is given any. ``"holdout"`` sets
        ``validation_fraction`` of the samples aside, once.
    n_jobs : int, default=None
        Parallel jobs for the folds of MLPs, as in joblib; linear probes use torch's threads.
    hidden, latent_dim, dropout, orthogonality, orthogonality_kind
        The MLP's shape and penalty, as in :class:`VFusionClassifier`.
    max_epochs, lr, weight_decay, batch_size, early_stopping, validation_fraction, patience
        The MLP's training, as in :class:`VFusionClassifier`.
    device, verbose, callbacks
        Where the MLP is trained and what is shown of it, as in :class:`VFusionClassifier`.
    scaling : {"standard", "layer", "token", "l2", None}, default="layer"
        Input scaling of either probe, as in :class:`VFusionClassifier`.
    n_layers : int, default=None
        Splits a flattened 2-D X into this many equal layers; None reads 2-D as one layer.
    class_weight : dict or "balanced", default=None
        Weights of the classes, multiplied into the sample weights.
    random_state : int, RandomState instance or None, default=None
        Seeds the MLP and the folds. The linear probe of a given layer draws nothing.

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
        The labels.
    layer_ : int
        The layer that is read.
    layer_scores_ : ndarray of shape (n_layers_in_,)
        Mean cross-validated accuracy of each layer; only with ``layer="best"``.
    probe_ : object
        The fitted probe; ``probe_.logits(stack)`` takes the layer as a stack of shape (n_samples, 1, n_tokens, dim).
    n_layers_in_, n_tokens_in_, dim_in_ : int
        Shape of a sample in ``fit``. ``n_features_in_`` is their product.

    Examples
    --------
    >>> import numpy as np
    >>> from skvfusion import LayerProbeClassifier
    >>> rng = np.random.default_rng(0)
    >>> y = np.repeat([0, 1], 20)
    >>> X = rng.normal(size=(40, 12, 8))
    >>> X[:, 4] += 2 * y[:, None]
    >>> LayerProbeClassifier(layer="best", random_state=0).fit(X, y).layer_
    4
    """

    _fitted_last = "probe_"

    _parameter_constraints: dict = {
        **EncoderClassifier._parameter_constraints,
        **BaseProbeEnsemble._parameter_constraints,
        "layer": [Integral, StrOptions({"best"})],
        "probe": [StrOptions({"linear", "mlp"})],
    }
    del _parameter_constraints["layers"]

    def __init__(
        self,
        layer=-1,
        probe="linear",
        *,
        C=1.0,
        cv=5,
        n_jobs=None,
        hidden=512,
        latent_dim=128,
        dropout=0.3,
        orthogonality=0.1,
        orthogonality_kind="correlation",
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
        self.layer = layer
        self.probe = probe
        self.C = C
        self.cv = cv
        self.n_jobs = n_jobs
        self.hidden = hidden
        self.latent_dim = latent_dim
        self.dropout = dropout
        self.orthogonality = orthogonality
        self.orthogonality_kind = orthogonality_kind
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
        seed = self._seed()
        if self.layer == "best":
            logits, _, splits = self._cross_fit(stack, codes, weight, groups, seed)
            self.layer_scores_ = np.nanmean(fold_accuracies(logits, codes, weight, splits), axis=1)
            # Of equals the deepest, which is the one that everybody would use.
            self.layer_ = int(len(self.layer_scores_) - 1 - self.layer_scores_[::-1].argmax())
        else:
            self.layer_ = resolve_layers(self.layer, stack.shape[1])[0]
        self.probe_ = self._refit(take_layers(stack, [self.layer_]), codes, weight, seed)

    def _logits(self, stack):
        return self.probe_.logits(take_layers(stack, [self.layer_]))[:, 0]
