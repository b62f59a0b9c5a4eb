"""Averages and votes of the layers' probes: what any learned fusion has to beat."""

import numpy as np
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax, softmax
from sklearn.utils._param_validation import StrOptions

from ..layers import resolve_layers, take_layers
from .cross_fitting import BaseProbeEnsemble, log_probabilities

VOTINGS = ("logit", "proba", "calibrated", "majority")
# Temperatures further from 1 would mean probabilities of no use, or held-out samples without an error.
TEMPERATURES = (1e-2, 1e2)


class LayerVotingClassifier(BaseProbeEnsemble):
    """Average or vote of the layers' probes.

    Parameters
    ----------
    voting : {"logit", "proba", "calibrated", "majority"}, default="proba"
        ``"logit"`` averages the layers' logits, ``"proba"`` their probabilities (scikit-learn's
        soft voting). ``"calibrated"`` averages the probabilities after dividing each layer's logits by a temperature,
        that with the least cross-entropy on samples which the probes have not seen. ``"majority"`` counts the layers'
        predictions (hard voting); of classes with equally many, the one with the highest summed probability wins.
    probe : {"linear", "mlp"} or classifier, default="linear"
        The probe of each layer: multinomial logistic regression, :class:`VFusionClassifier` on the one layer, or any
        classifier with ``predict_proba``, which is cloned for each layer and reads it scaled and flattened.
    C : float, default=1.0
        Inverse strength of the linear probes' L2 penalty, as in ``LogisticRegression``.
    cv : int, cross-validation splitter, iterable of splits or "holdout", default=5
        How the calibrated vote comes by samples that probes have not seen. An int means shuffled, stratified folds, as
        many as the second-largest class has samples if these are fewer, which keep ``groups`` together if ``fit`` is
        given any. ``"holdout"`` sets ``validation_fraction`` of the samples aside, once. The probes that vote are
        fitted on all samples afterwards.
    n_jobs : int, default=None
        Parallel jobs for MLPs and other classifiers, as in joblib; linear probes use torch's threads.
    layers : str, int, list of int or slice, default="all"
        Which of X's layers to use; see :func:`skvfusion.resolve_layers`.
    n_layers : int, default=None
        Splits a flattened 2-D X into this many equal layers; None reads 2-D as one layer, of which nothing is fused.
    scaling : {"standard", "layer", "token", "l2", None}, default="layer"
        Input scaling, as in :class:`VFusionClassifier`; folds have statistics of their own.
    max_epochs, lr, weight_decay, batch_size, early_stopping, validation_fraction, patience
        Training of the MLPs, as in :class:`VFusionClassifier`. A VFusionClassifier as ``probe`` has its own.
    device, verbose, callbacks
        Where probes are fitted and what is shown of it, as in :class:`VFusionClassifier`.
    class_weight : dict or "balanced", default=None
        Weights of the classes, multiplied into the sample weights.
    random_state : int, RandomState instance or None, default=None
        Seeds folds and training; an int gives the same bits on every call, also in parallel threads or processes.

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
        The labels.
    layers_ : list of int
        The layers that vote, by index into X.
    temperatures_ : ndarray of shape (n_voting_layers,)
        What each layer's logits are divided by; only with ``voting="calibrated"``.
    probes_ : object
        The layers' probes, fitted on all samples; ``probes_.logits(stack)``, with a stack of shape
        (n_samples, n_voting_layers, n_tokens, dim), returns their logits.
    n_layers_in_, n_tokens_in_, dim_in_ : int
        Shape of a sample in ``fit``. ``n_features_in_`` is their product.

    See Also
    --------
    SuperLearnerClassifier : Learns how much each layer counts.

    Notes
    -----
    ``predict_proba`` of a majority vote is the share of votes, in which the mean of the layers' probabilities counts as
    one further vote; this settles ties.

    References
    ----------
    The baselines of "Synergy and Diversity in CLIP", arXiv 2405.17139, with layers in place of backbones, as VFusion
    (arXiv 2607.10391) compares with. Temperature scaling: Guo et al., "On Calibration of Modern Neural Networks",
    ICML 2017.

    Examples
    --------
    >>> import numpy as np
    >>> from skvfusion import LayerVotingClassifier
    >>> rng = np.random.default_rng(0)
    >>> y = np.repeat(["cat", "dog"], 20)
    >>> X = rng.normal(size=(40, 12, 8)) + (y == "dog")[:, None, None]
    >>> LayerVotingClassifier().fit(X, y).score(X, y)
    1.0
    """

    _fitted_last = "probes_"

    _parameter_constraints: dict = {
        **BaseProbeEnsemble._parameter_constraints,
        "voting": [StrOptions(set(VOTINGS))],
    }

    def __init__(
        self,
        voting="proba",
        *,
        probe="linear",
        C=1.0,
        cv=5,
        n_jobs=None,
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
        self.voting = voting
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
        self.layers_ = resolve_layers(self.layers, stack.shape[1])
        stack = take_layers(stack, self.layers_)
        seed = self._seed()
        self._voting = self.voting
        if self.voting == "calibrated":
            logits, usable, _ = self._cross_fit(stack, codes, weight, groups, seed)
            weight_used = None if weight is None else weight[usable]
            self.temperatures_ = best_temperatures(logits[usable], codes[usable], weight_used)
        self.probes_ = self._refit(stack, codes, weight, seed)

    def _logits(self, stack):
        logits = self.probes_.logits(take_layers(stack, self.layers_))
        if self._voting == "logit":
            return logits.mean(axis=1)
        if self._voting == "calibrated":
            logits = logits / self.temperatures_[:, None]
        probabilities = softmax(logits, axis=2)
        mean = probabilities.mean(axis=1)
        if self._voting == "majority":
            winners = logits.argmax(axis=2)
            votes = (winners[:, :, None] == np.arange(logits.shape[2])).sum(axis=1)
            mean = (votes + mean) / (logits.shape[1] + 1)
        return log_probabilities(mean)


def best_temperatures(logits, codes, weight=None):
    """Return each layer's temperature with the least cross-entropy.

    Parameters
    ----------
    logits : array of shape (n_samples, n_layers, n_classes)
        Logits of probes that have not seen the samples.
    codes : array of int of shape (n_samples,)
        Encoded labels.
    weight : array of shape (n_samples,), default=None
        Sample weights.

    Returns
    -------
    ndarray of shape (n_layers,)
        Between 0.01 and 100.
    """

    def cross_entropy(log_temperature, layer):
        scores = log_softmax(logits[:, layer].astype(np.float64) / np.exp(log_temperature), axis=1)
        return -np.average(scores[np.arange(len(codes)), codes], weights=weight)

    bounds = np.log(TEMPERATURES)
    found = [minimize_scalar(cross_entropy, bounds=bounds, args=(layer,)) for layer in range(logits.shape[1])]
    return np.exp([result.x for result in found])
