"""Super Learner: one weight for each layer's probe, learned from cross-fitted predictions."""

import numpy as np
from scipy.optimize import minimize, nnls
from scipy.special import log_softmax, softmax
from sklearn.utils._param_validation import StrOptions

from ..layers import resolve_layers, take_layers
from .cross_fitting import BaseProbeEnsemble, fold_accuracies, log_probabilities

COMBINERS = ("nll", "nnls", "logit")
# Logits times more than this are certain of everything.
_LARGEST_WEIGHT = 100.0


class SuperLearnerClassifier(BaseProbeEnsemble):
    """Super Learner over the layers: their probes' predictions, weighted by what cross-validation found them worth.

    Every layer's probe is cross-fitted on the same folds. The weights, which are not negative and sum to 1, minimise a
    loss of the combined out-of-fold predictions; then the probes are fitted again on all samples.

    Parameters
    ----------
    combiner : {"nll", "nnls", "logit"}, default="nll"
        What the weights minimise. ``"nll"``: the negative log-likelihood of the weighted average of probabilities, a
        convex problem solved exactly. ``"nnls"``: its squared distance to the one-hot labels, by non-negative least
        squares, scaled to sum 1 afterwards, as the original paper's software does by default. ``"logit"``: the negative
        log-likelihood of the weighted sum of logits, as for deep networks [2]_; here the sum of the weights is free too
        and kept as ``logit_scale_``.
    probe : {"linear", "mlp"} or classifier, default="linear"
        The probe of each layer: multinomial logistic regression, :class:`VFusionClassifier` on the one layer, or any
        classifier with ``predict_proba``, which is cloned for each layer and reads it scaled and flattened.
    C : float, default=1.0
        Inverse strength of the linear probes' L2 penalty, as in ``LogisticRegression``.
    cv : int, cross-validation splitter, iterable of splits or "holdout", default=5
        How the samples are split for cross-fitting, the same for every layer. An int means shuffled, stratified folds,
        as many as the second-largest class has samples if these are fewer, which keep ``groups`` together if ``fit`` is
        given any. ``"holdout"`` sets ``validation_fraction`` of the samples aside, once. The probes that predict are
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
        The layers that are combined, by index into X.
    layer_weights_ : ndarray of shape (n_combined_layers,)
        Their weights, which sum to 1.
    logit_scale_ : float
        What the weighted mean of the logits is multiplied by; only with ``combiner="logit"``.
    cv_scores_ : ndarray of shape (n_combined_layers, n_splits)
        Accuracy of each layer's probe on each test fold.
    oof_proba_ : float32 ndarray of shape (n_samples, n_combined_layers, n_classes)
        Out-of-fold probabilities, in the order of ``classes_``: 0 for a class that the fold's probes have not seen, NaN
        for samples in no test fold or of weight 0.
    probes_ : object
        The layers' probes, fitted on all samples; ``probes_.logits(stack)``, with a stack of shape
        (n_samples, n_combined_layers, n_tokens, dim), returns their logits.
    n_layers_in_, n_tokens_in_, dim_in_ : int
        Shape of a sample in ``fit``. ``n_features_in_`` is their product.

    See Also
    --------
    LayerVotingClassifier : The same without learning weights.
    NeuralLogitControllerClassifier : Weights that depend on the image.

    References
    ----------
    .. [1] van der Laan, Polley and Hubbard, "Super Learner", Statistical Applications in Genetics and Molecular Biology
       6(1), 2007.
    .. [2] Ju, Bibaut and van der Laan, "The relative performance of ensemble methods with deep convolutional neural
       networks for image classification", arXiv 1704.01664, 2018.

    VFusion (arXiv 2607.10391) names it as its strongest baseline; which of the combiners it means is not known.

    Examples
    --------
    >>> import numpy as np
    >>> from skvfusion import SuperLearnerClassifier
    >>> rng = np.random.default_rng(0)
    >>> y = np.repeat([0, 1], 30)
    >>> X = rng.normal(size=(60, 4, 8))
    >>> X[:, 2] += y[:, None]
    >>> SuperLearnerClassifier(random_state=0).fit(X, y).layer_weights_.argmax()
    np.int64(2)
    """

    _fitted_last = "probes_"

    _parameter_constraints: dict = {
        **BaseProbeEnsemble._parameter_constraints,
        "combiner": [StrOptions(set(COMBINERS))],
    }

    def __init__(
        self,
        combiner="nll",
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
        self.combiner = combiner
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
        logits, usable, splits = self._cross_fit(stack, codes, weight, groups, seed)
        self.cv_scores_ = fold_accuracies(logits, codes, weight, splits)
        self.oof_proba_ = softmax(logits, axis=2)
        self._combine(logits[usable].astype(np.float64), codes[usable], None if weight is None else weight[usable])
        self.probes_ = self._refit(stack, codes, weight, seed)

    def _combine(self, logits, codes, weight):
        weight = np.full(len(codes), 1 / len(codes)) if weight is None else weight / weight.sum()
        if self.combiner == "logit":
            free = logit_weights(logits, codes, weight)
            self.logit_scale_ = float(free.sum())
            self.layer_weights_ = free / free.sum()
        elif self.combiner == "nnls":
            self.layer_weights_ = least_squares_weights(softmax(logits, axis=2), codes, weight)
        else:
            at_label = log_softmax(logits, axis=2)[np.arange(len(codes)), :, codes]
            self.layer_weights_ = likelihood_weights(at_label, weight)

    def _logits(self, stack):
        logits = self.probes_.logits(take_layers(stack, self.layers_))
        if hasattr(self, "logit_scale_"):
            return self.logit_scale_ * np.einsum("nlc,l->nc", logits, self.layer_weights_)
        return log_probabilities(np.einsum("nlc,l->nc", softmax(logits, axis=2), self.layer_weights_))


def likelihood_weights(log_likelihood, weight):
    """Maximise the weighted log-likelihood of a mixture over the simplex.

    Sequential quadratic programming: since the likelihood grows with the weights' sum, maximising it minus that sum
    over non-negative weights gives the same ones, and each quadratic model of that is a non-negative least squares.

    Parameters
    ----------
    log_likelihood : array of shape (n_samples, n_layers)
        Log-probability that each layer gives to each sample's label.
    weight : array of shape (n_samples,)
        Sample weights, which sum to 1.

    Returns
    -------
    ndarray of shape (n_layers,)
        The mixture's weights a. With m = mixture of the likelihoods p, ``sum_i weight_i p_il / m_i`` is 1 where a is
        positive and at most 1 elsewhere.
    """
    # A factor common to all layers does not matter to the weights, so that no likelihood need underflow.
    P = np.exp(log_likelihood - log_likelihood.max(axis=1, keepdims=True))
    a = np.full(P.shape[1], 1 / P.shape[1])

    def objective(a):
        with np.errstate(divide="ignore"):
            return a.sum() - weight @ np.log(P @ a)

    for _ in range(100):
        ratio = P / (P @ a)[:, None]
        gain = weight @ ratio
        if np.abs(a * (gain - 1)).max() < 1e-12 and gain.max() < 1 + 1e-9:
            break
        hessian = (ratio * weight[:, None]).T @ ratio
        step = _nonnegative_quadratic(hessian, 2 * gain - 1) - a
        slope, before = (1 - gain) @ step, objective(a)
        # No sample may lose more than 9 tenths of its likelihood at a time: Newton's method takes long to mend that.
        size = min(1.0, 0.9 / max(-(ratio @ step).min(), 0.9))
        while objective(a + size * step) > before + 1e-4 * size * slope and size > 1e-8:
            size /= 2
        a = np.maximum(a + size * step, 0)
    return a / a.sum()


def least_squares_weights(probabilities, codes, weight):
    """Fit the one-hot labels by the layers' probabilities with non-negative least squares, scaled to sum 1.

    Parameters
    ----------
    probabilities : array of shape (n_samples, n_layers, n_classes)
        Predictions of the layers.
    codes : array of int of shape (n_samples,)
        Encoded labels.
    weight : array of shape (n_samples,)
        Sample weights.

    Returns
    -------
    ndarray of shape (n_layers,)
    """
    gram = np.einsum("nlc,n,nmc->lm", probabilities, weight, probabilities, optimize=True)
    a = _nonnegative_quadratic(gram, weight @ probabilities[np.arange(len(codes)), :, codes])
    # Layers that are certain and wrong about every sample deserve no weight, but something has to be said.
    return a / a.sum() if a.sum() > 0 else np.full(len(a), 1 / len(a))


def logit_weights(logits, codes, weight):
    """Minimise the cross-entropy of a weighted sum of logits over non-negative weights.

    Parameters
    ----------
    logits : array of shape (n_samples, n_layers, n_classes)
        Logits of the layers.
    codes : array of int of shape (n_samples,)
        Encoded labels.
    weight : array of shape (n_samples,)
        Sample weights, which sum to 1.

    Returns
    -------
    ndarray of shape (n_layers,)
        At most 100 each: samples that a layer separates without error would make its weight infinite.
    """
    rows = np.arange(len(codes))
    at_label = weight @ logits[rows, :, codes]

    def cross_entropy(a):
        scores = log_softmax(np.einsum("nlc,l->nc", logits, a), axis=1)
        expected = np.einsum("nlc,nc->l", logits, np.exp(scores) * weight[:, None], optimize=True)
        return -weight @ scores[rows, codes], expected - at_label

    n_layers = logits.shape[1]
    found = minimize(
        cross_entropy,
        np.full(n_layers, 1 / n_layers),
        jac=True,
        method="L-BFGS-B",
        bounds=[(0, _LARGEST_WEIGHT)] * n_layers,
        options={"maxiter": 1000, "ftol": 1e-13, "gtol": 1e-8},
    ).x
    # Probes that are no better than chance are best not listened to, but something has to be said.
    return found if found.sum() > 0 else np.full(n_layers, np.finfo(np.float64).tiny)


def _nonnegative_quadratic(hessian, linear):
    """Minimise ``0.5 x' hessian x - linear' x`` over non-negative x."""
    eigenvalues, vectors = np.linalg.eigh(hessian)
    # Layers that predict the same make the Hessian singular; any division of their weight among them will do.
    root = np.sqrt(np.maximum(eigenvalues, 1e-12 * eigenvalues[-1]))
    return nnls(root[:, None] * vectors.T, vectors.T @ linear / root)[0]
