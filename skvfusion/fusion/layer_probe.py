"""A classifier that reads one layer: the last, any other, or the one that cross-validation finds best."""

import warnings
from numbers import Integral, Real

import numpy as np
from joblib import Parallel, delayed
from sklearn.base import clone
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedKFold, check_cv
from sklearn.utils._param_validation import Interval, StrOptions

from ..layers import resolve_layers, take_layers
from ..training.scaling import scale, scaling_statistics
from ..training.seeding import draw_seed
from .base import BaseStackClassifier
from .vfusion import VFusionClassifier


class LayerProbeClassifier(BaseStackClassifier):
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
    cv : int or cross-validation splitter, default=5
        Folds for ``layer="best"``. An int means shuffled, stratified folds, as many as the second-largest class has
        samples if these are fewer, so that no fold trains on a single class.
    n_jobs : int, default=None
        Parallel jobs for ``layer="best"``, as in joblib.
    hidden, latent_dim, dropout, orthogonality, orthogonality_kind
        The MLP's shape and penalty, as in :class:`VFusionClassifier`.
    max_epochs, lr, weight_decay, batch_size, early_stopping, validation_fraction, patience
        The MLP's training, as in :class:`VFusionClassifier`.
    device, verbose, callbacks
        Where the MLP is trained and what is shown of it, as in :class:`VFusionClassifier`.
    scaling : {"standard", "layer", "token", None}, default="layer"
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
    probe_ : estimator
        The fitted :class:`VFusionClassifier` or ``LogisticRegression`` (which reads the scaled layer and predicts
        positions in ``classes_``).
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
        **{name: values for name, values in VFusionClassifier._parameter_constraints.items() if name != "layers"},
        "layer": [Integral, StrOptions({"best"})],
        "probe": [StrOptions({"linear", "mlp"})],
        "C": [Interval(Real, 0, None, closed="neither")],
        "cv": ["cv_object"],
        "n_jobs": [Integral, None],
    }

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

    def _fit(self, stack, codes, weight):
        if self.layer == "best":
            self.layer_scores_ = self._cross_validate(stack, codes, weight, draw_seed(self.random_state))
            # Of equals the deepest, which is the one that everybody would use.
            self.layer_ = int(len(self.layer_scores_) - 1 - self.layer_scores_[::-1].argmax())
        else:
            self.layer_ = resolve_layers(self.layer, stack.shape[1])[0]
        stack = take_layers(stack, [self.layer_])
        if self.probe == "mlp":
            self.probe_ = self._mlp().fit(_squeeze(stack), codes, sample_weight=weight)
        else:
            self._scaling = (self.scaling, *scaling_statistics(stack, np.arange(len(stack)), self.scaling, weight))
            probe = LogisticRegression(C=self.C, max_iter=2000)
            self.probe_ = probe.fit(self._scaled(stack), codes, sample_weight=weight)

    def _logits(self, stack):
        stack = take_layers(stack, [self.layer_])
        if isinstance(self.probe_, VFusionClassifier):
            return self.probe_._logits(stack)
        scores = self.probe_.decision_function(self._scaled(stack))
        # With two classes scikit-learn gives one log-odds column.
        return np.column_stack([np.zeros_like(scores), scores]) if scores.ndim == 1 else scores

    def _scaled(self, stack):
        return scale(stack.astype(np.float64), *self._scaling).reshape(len(stack), -1)

    def _mlp(self):
        shared = VFusionClassifier().get_params().keys() & self.get_params().keys()
        params = {name: value for name, value in self.get_params(deep=False).items() if name in shared}
        # The weights passed on already hold the class weights; the stack passed on has its layer axis.
        return VFusionClassifier(**params | {"class_weight": None, "n_layers": None})

    def _cross_validate(self, stack, codes, weight, seed):
        weight = np.ones(len(codes)) if weight is None else weight
        folds = self._folds(codes, weight, seed)
        probe = clone(self).set_params(layer=-1, class_weight=None, n_layers=None, random_state=seed)
        scores = Parallel(n_jobs=self.n_jobs)(
            delayed(_fold_accuracy)(clone(probe), _squeeze(take_layers(stack, [layer])), codes, weight, train, test)
            for layer in range(stack.shape[1])
            for train, test in folds
        )
        return np.nanmean(np.reshape(scores, (stack.shape[1], len(folds))), axis=1)

    def _folds(self, codes, weight, seed):
        if not isinstance(self.cv, Integral):
            return list(check_cv(self.cv, codes, classifier=True).split(codes, codes))
        counted = np.flatnonzero(weight)
        n_splits = min(self.cv, np.sort(np.bincount(codes[counted]))[-2])
        if n_splits < 2:
            raise ValueError(
                f"layer='best' cannot be cross-validated on {len(counted)} samples: two classes need at least 2 "
                "samples each. Give layer an index, or fit on more samples."
            )
        with warnings.catch_warnings():
            # A class with fewer samples than folds is absent from some folds, which is all that can be done.
            warnings.filterwarnings("ignore", message="The least populated class", category=UserWarning)
            folds = StratifiedKFold(n_splits, shuffle=True, random_state=seed).split(counted, codes[counted])
            return [(counted[train], counted[test]) for train, test in folds]


def _fold_accuracy(probe, stack, codes, weight, train, test):
    probe.fit(stack[train], codes[train], sample_weight=weight[train])
    if not weight[test].any():
        return np.nan
    return np.average(probe.predict(stack[test]) == codes[test], weights=weight[test])


def _squeeze(stack):
    """Drop a token axis of length 1, so that the inner model records the same shapes as one fitted by a user."""
    return stack[:, :, 0] if stack.shape[2] == 1 else stack
