"""Probes of all layers, fitted together: linear ones, MLPs, or any scikit-learn classifier."""

import warnings
from concurrent.futures import ThreadPoolExecutor
from threading import Lock

import numpy as np
import torch
from joblib import Parallel, delayed
from sklearn.base import clone, is_classifier
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.validation import has_fit_parameter

from ..devices import resolve_device
from ..layers import take_layers
from ..training.batches import StackDataset
from ..training.net import net_outputs
from ..training.scaling import scale, scaling_statistics
from ..training.solver import ABSENT, solve_logistic
from .encoder import EncoderClassifier
from .layer_mlps import LayerMLPs

# Up to so many products per evaluation, float64 and the last digit cost next to nothing.
_SMALL = 30_000
_SOLVER = {torch.float64: {"tol": 1e-20, "max_iter": 2000}, torch.float32: {"tol": 1e-6, "max_iter": 1000}}
# A layer is read in blocks of about this many numbers, so that a memory map is never loaded whole.
_BLOCK = 2**18
_TURN = Lock()


def fit_probes(probe, stack, codes, n_classes, weight, row_sets, *, scaling, C, mlp_params, device, n_jobs=None):
    """Fit a probe of every layer on every set of rows.

    Each probe is what fitting it alone gives: those of other layers do not change a bit of it, those of other row sets
    change linear ones by rounding at most.

    Parameters
    ----------
    probe : {"linear", "mlp"} or classifier
        ``"linear"``: multinomial logistic regression. ``"mlp"``: :class:`VFusionClassifier` with ``mlp_params``. A
        VFusionClassifier stands for itself; any other classifier is cloned for every layer and row set, reads its
        layer scaled and flattened, and needs ``predict_proba``.
    stack : array or LayerView of shape (n_samples, n_layers, n_tokens, dim)
        Validated layer stacks. Linear probes read one layer at a time into memory (one in each of torch's threads) and
        hold it twice in float32, whatever the number of row sets; a layer in float64 three times. MLPs read by
        batches; other classifiers get their layer in float64.
    codes : array of int of shape (n_samples,)
        Encoded labels.
    n_classes : int
        Number of classes.
    weight : array of shape (n_samples,) or None
        Sample weights.
    row_sets : list of arrays of int
        The rows to fit on, such as those of the folds.
    scaling, C, mlp_params, device, n_jobs
        As in the classifiers that use this; ``mlp_params`` are VFusionClassifier's, with an int as ``random_state``.

    Returns
    -------
    list
        For each row set, the probes of all layers: an object whose ``logits(stack, rows=None)`` returns float64 logits
        of shape (n_rows, n_layers, n_classes) of these rows, or all. A class without samples in the row set gets
        probability 0.
    """
    shared = (stack, codes, n_classes, weight)
    if isinstance(probe, str) and probe == "linear":
        return _fit_linear(*shared, row_sets, scaling, C, device)
    if isinstance(probe, str):
        probe = EncoderClassifier(**mlp_params)
    _check_probe(probe, weight)
    probe = _seeded(probe, mlp_params["random_state"])
    if isinstance(probe, EncoderClassifier):
        return Parallel(n_jobs=n_jobs)(delayed(MLPProbes)(probe, *shared, rows) for rows in row_sets)
    n_layers = stack.shape[1]
    fitted = Parallel(n_jobs=n_jobs)(
        delayed(_fit_classifier)(clone(probe), take_layers(stack, [layer]), codes, weight, rows, scaling)
        for rows in row_sets
        for layer in range(n_layers)
    )
    return [
        ClassifierProbes(fitted[start : start + n_layers], scaling, n_classes)
        for start in range(0, len(fitted), n_layers)
    ]


class LinearProbes:
    """Linear probes of all layers.

    Attributes
    ----------
    scaling : str or None
        Kind of input scaling.
    mean, divisor : arrays of shape (n_layers, n_tokens, dim), or None
        Its statistics.
    coef : array of shape (n_layers, n_tokens * dim, n_classes)
        Coefficients of the scaled layers.
    intercept : array of shape (n_layers, n_classes)
        Intercepts.
    """

    def __init__(self, scaling, mean, divisor, coef, intercept):
        self.scaling = scaling
        self.mean = mean
        self.divisor = divisor
        self.coef = coef
        self.intercept = intercept

    def logits(self, stack, rows=None):
        """Return float64 logits of shape (n_rows, n_layers, n_classes) of ``rows``, or all."""
        rows = np.arange(len(stack)) if rows is None else rows
        logits = np.empty((len(rows), *self.intercept.shape))
        coef = self.coef.astype(np.float64)
        layers = [take_layers(stack, [layer]) for layer in range(stack.shape[1])]
        # Blocks outside, so that a memory map is read from front to back.
        for block in _blocks(len(rows), layers[0]):
            for layer, part in enumerate(layers):
                statistics = (None, None) if self.mean is None else (self.mean[[layer]], self.divisor[[layer]])
                X = _scaled(part, rows[block], self.scaling, *statistics)
                logits[block, layer] = X @ coef[layer] + self.intercept[layer]
        return logits


class MLPProbes:
    """MLP probes of all layers, in one net.

    Attributes
    ----------
    mlps : LayerMLPs
        The trained MLPs, which know the classes that their rows had.
    n_classes : int
        Number of classes in all.
    """

    def __init__(self, template, stack, codes, n_classes, weight, rows):
        rows, present, known = _present(codes, weight, rows)
        self.n_classes = n_classes
        params = template.get_params(deep=False)
        self.mlps = LayerMLPs(**{name: params[name] for name in LayerMLPs._get_param_names()})
        self.mlps.classes_ = present
        self.mlps._fit(stack, known, weight, rows=rows)

    def logits(self, stack, rows=None):
        """Return float64 logits of shape (n_rows, n_layers, n_classes) of ``rows``, or all."""
        known = net_outputs(self.mlps.net_, StackDataset(stack, rows), 0)
        if known.shape[2] == self.n_classes:
            return known
        logits = np.repeat(known.min(axis=2, keepdims=True) + ABSENT, self.n_classes, axis=2)
        logits[:, :, self.mlps.classes_] = known
        return logits


class ClassifierProbes:
    """Classifiers of any kind, one for each layer.

    Attributes
    ----------
    probes : list of classifiers
        Fitted on encoded labels.
    scaling, means, divisors
        Kind of input scaling, and its statistics for each layer.
    n_classes : int
        Number of classes in all.
    """

    def __init__(self, fitted, scaling, n_classes):
        self.probes, self.means, self.divisors = zip(*fitted, strict=True)
        self.scaling = scaling
        self.n_classes = n_classes

    def logits(self, stack, rows=None):
        """Return float64 log-probabilities of shape (n_rows, n_layers, n_classes) of ``rows``, or all."""
        rows = np.arange(len(stack)) if rows is None else rows
        logits = np.full((len(rows), len(self.probes), self.n_classes), ABSENT)
        for layer, (probe, mean, divisor) in enumerate(zip(self.probes, self.means, self.divisors, strict=True)):
            part = take_layers(stack, [layer])
            for block in _blocks(len(rows), part):
                X = _scaled(part, rows[block], self.scaling, mean, divisor)
                # The logarithm of 0 would make every further sum infinite.
                probabilities = np.maximum(probe.predict_proba(X), np.finfo(np.float64).tiny)
                logits[block, layer, probe.classes_] = np.log(probabilities)
        return logits


def _fit_linear(stack, codes, n_classes, weight, row_sets, scaling, C, device):
    device = resolve_device(device)
    # Apple's GPUs have no float64, which the solver needs for its basis.
    device = torch.device("cpu") if device.type == "mps" else device
    rows = np.unique(np.concatenate(row_sets))
    membership = np.zeros((len(rows), len(row_sets)))
    for k, members in enumerate(row_sets):
        membership[np.searchsorted(rows, members), k] = 1 if weight is None else weight[members]

    def fit_layer(layer):
        X, statistics = _read_layer(take_layers(stack, [layer]), rows, n_classes, weight, row_sets, scaling)
        return statistics, *_solve_layer(X, codes[rows], n_classes, membership, statistics, scaling, C, device=device)

    layers = _map_single_threaded(fit_layer, range(stack.shape[1]), parallel=device.type == "cpu")
    unsolved = [layer for layer, (_, _, _, converged) in enumerate(layers) if not converged]
    if unsolved:
        warnings.warn(
            f"The linear probes of layers {unsolved} have not converged; a smaller C ({C:g} now) makes their problem "
            "easier.",
            ConvergenceWarning,
            stacklevel=2,
        )
    return [
        LinearProbes(
            scaling,
            *_join_statistics([statistics[k] for statistics, _, _, _ in layers]),
            np.stack([coef[k] for _, coef, _, _ in layers]),
            np.stack([intercept[k] for _, _, intercept, _ in layers]),
        )
        for k in range(len(row_sets))
    ]


def _map_single_threaded(function, items, parallel):
    """Map a function over items in threads that compute on one core each.

    A layer a thread is faster than all cores on one layer, and gives the same bits anywhere.
    """
    # What a thread sets is also what every thread started later begins with: it must be put back, and by turns.
    with _TURN:
        with ThreadPoolExecutor(1) as pool:
            n_threads = pool.submit(torch.get_num_threads).result()
        try:
            n_workers = n_threads if parallel else 1
            with ThreadPoolExecutor(n_workers, initializer=torch.set_num_threads, initargs=(1,)) as pool:
                return list(pool.map(function, items))
        finally:
            torch.set_num_threads(n_threads)


def _read_layer(layer, rows, n_classes, weight, row_sets, scaling):
    """Return the rows of one layer scaled by the first row set's statistics, and the statistics of all row sets."""
    # Once from where it lies, as it is: each row set's statistics take two further passes.
    layer = layer[rows]
    weight = None if weight is None else weight[rows]
    statistics = [scaling_statistics(layer, np.searchsorted(rows, members), scaling, weight) for members in row_sets]
    dtype = np.float64 if layer.size * n_classes <= _SMALL else np.float32
    return _scaled(layer, np.arange(len(rows)), scaling, *statistics[0], dtype), statistics


def _solve_layer(X, codes, n_classes, weight, statistics, scaling, C, device):
    """Return coefficients (K, features, classes), intercepts (K, classes) and success of one layer scaled K ways."""
    # The size of the weights goes into the penalty's strength, because float32 has no room for 1e40 or 1e-40.
    largest = weight.max()
    weight = weight / largest
    n_present = np.array([len(np.unique(codes[column > 0])) for column in weight.T])
    # Of two classes, LogisticRegression penalises the difference of their coefficients, which is twice each.
    ridge = np.where(n_present == 2, 2.0, 1.0) / C / largest
    stretch = shift = None
    if scaling in ("standard", "layer"):
        # All K problems read the features scaled by the first's statistics: the others' coefficients are stretched and
        # their intercepts shifted, and the penalty is on what they would be.
        mean, divisor = (
            np.stack(part).reshape(len(statistics), -1).astype(np.float64) for part in zip(*statistics, strict=True)
        )
        stretch, shift = divisor / divisor[0], (mean - mean[0]) / divisor
        squared = stretch**2
        ridge = ridge * squared[:, 0] if (squared == squared[:, :1]).all() else ridge[:, None] * squared
    X = torch.from_numpy(X).to(device)
    coef, intercept, converged = solve_logistic(
        X,
        torch.from_numpy(codes).to(device),
        torch.from_numpy(weight).to(device, X.dtype),
        torch.from_numpy(ridge).to(device),
        n_classes,
        **_SOLVER[X.dtype],
    )
    coef, intercept = coef.cpu().numpy(), intercept.cpu().numpy()
    if stretch is not None:
        coef = coef * stretch[:, :, None].astype(coef.dtype)
        intercept = intercept + np.einsum("kd,kdc->kc", shift, coef).astype(coef.dtype)
    return coef, intercept, bool(converged.all())


def _fit_classifier(probe, layer, codes, weight, rows, scaling):
    """Fit one classifier on one layer; return it with the layer's scaling statistics."""
    statistics = scaling_statistics(layer, rows, scaling, weight)
    X = _scaled(layer, rows, scaling, *statistics)
    fitted = probe.fit(X, codes[rows]) if weight is None else probe.fit(X, codes[rows], sample_weight=weight[rows])
    return fitted, *statistics


def _check_probe(probe, weight):
    if isinstance(probe, type) or not (is_classifier(probe) and hasattr(probe, "predict_proba")):
        raise ValueError(
            f"probe={probe!r} must be 'linear', 'mlp' or a classifier with predict_proba; for a classifier without it, "
            "pass CalibratedClassifierCV(classifier)."
        )
    if isinstance(probe, EncoderClassifier):
        probe._validate_params()
        for name in ("layers", "n_layers", "class_weight"):
            if getattr(probe, name) not in ("all", None):
                raise ValueError(f"VFusionClassifier as probe reads one layer; set {name} of the classifier around it.")
    elif weight is not None and not has_fit_parameter(probe, "sample_weight"):
        raise ValueError(
            f"probe={probe!r} takes no sample_weight; fit without weights, and set class_weight inside the probe if it "
            "has one."
        )


def _seeded(probe, seed):
    """Clone a classifier and give every part of it that has no ``random_state`` the same one."""
    unseeded = {
        name: seed
        for name, value in probe.get_params().items()
        if value is None and (name == "random_state" or name.endswith("__random_state"))
    }
    return clone(probe).set_params(**unseeded)


def _present(codes, weight, rows):
    """Return the rows that count, the classes that they have, and all codes by position among these."""
    rows = rows if weight is None else rows[weight[rows] > 0]
    present = np.unique(codes[rows])
    return rows, present, np.searchsorted(present, codes)


def _scaled(layer, rows, scaling, mean, divisor, dtype=np.float64):
    """Return rows of a stack of one layer scaled and flattened to (n_rows, features), computed in float64."""
    X = np.empty((len(rows), int(np.prod(layer.shape[1:]))), dtype)
    for block in _blocks(len(rows), layer):
        scaled = scale(layer[rows[block]].astype(np.float64), scaling, mean, divisor)
        X[block] = scaled.reshape(len(scaled), -1)
    return X


def _join_statistics(by_layer):
    return (
        (None, None) if by_layer[0][0] is None else tuple(np.concatenate(part) for part in zip(*by_layer, strict=True))
    )


def _blocks(n_rows, layer):
    """Return slices of as many rows of a stack of one layer as make a block."""
    size = max(1, _BLOCK // int(np.prod(layer.shape[1:])))
    return [slice(start, start + size) for start in range(0, n_rows, size)]
