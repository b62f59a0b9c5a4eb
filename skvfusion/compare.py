"""Every method on the same splits: is it worth fusing the layers, by how much, and how sure is that?"""

from dataclasses import dataclass
from functools import partial
from numbers import Integral, Real

import numpy as np
import pandas as pd
import torch
from sklearn.utils._param_validation import Interval, validate_params

from .devices import resolve_device
from .methods import METHODS
from .metrics import balanced_accuracy, expected_calibration_error, macro_auc, negative_log_likelihood
from .recoverability import bootstrap_interval, gap_closure, oracle_accuracy
from .training.seeding import draw_seed
from .trials import plan_jobs, read_data, read_methods, run_jobs, split_data, warn_of_what_cannot_be_learned

_PARAMETERS = {
    "methods": [str, list, tuple],
    "test_size": [Interval(Real, 0, 1, closed="neither")],
    "cv": ["cv_object", None],
    "n_bootstrap": [Interval(Integral, 1, None, closed="left")],
    "n_jobs": [Integral, None],
    "device": [str, torch.device],
    "random_state": ["random_state"],
    "progress": ["boolean"],
}

_COLUMNS = [
    "label",
    "accuracy",
    "balanced_accuracy",
    "nll",
    "ece",
    "auc",
    "gain",
    "gain_low",
    "gain_high",
    "gap_closed",
    "validation_accuracy",
    "fit_seconds",
    "predict_seconds",
    "error",
]


@dataclass
class Comparison:
    """What :func:`run_comparison` found.

    Attributes
    ----------
    frame : DataFrame
        The table that :func:`compare` returns.
    classes : ndarray of shape (n_classes,)
        The labels of y and y_test, sorted: the columns of all probabilities.
    y : ndarray of shape (n,)
        True labels of the evaluated samples.
    rows : ndarray of int of shape (n,)
        Their positions in X, or in X_test if that was given; ascending.
    groups : ndarray of shape (n,) or None
        Their groups, as given.
    layer_predictions : ndarray of shape (n_layers, n)
        Labels that each layer's linear probe, fitted on the training part, predicts for them.
    layer_probabilities : ndarray of shape (n_layers, n, n_classes)
        The probes' probabilities; 0 for a class that is not in the training part.
    probabilities : dict of str to ndarray of shape (n, n_classes)
        Those of each method that did not fail.
    estimators : dict of str to classifier
        Each such method, fitted on the training part; with ``cv``, fitted again on all of X.
    best : str or None
        The method with the highest ``validation_accuracy``, the first in METHODS of equals; if none has one, the first
        in METHODS that did not fail. It is chosen without the samples that are evaluated, except with ``cv``, where
        every sample is evaluated: ``frame.attrs["best_accuracy"]`` is then the accuracy of choosing honestly.
    """

    frame: pd.DataFrame
    classes: np.ndarray
    y: np.ndarray
    rows: np.ndarray
    groups: np.ndarray | None
    layer_predictions: np.ndarray
    layer_probabilities: np.ndarray
    probabilities: dict
    estimators: dict
    best: str | None


@validate_params(_PARAMETERS, prefer_skip_nested_validation=True)
def compare(
    X,
    y,
    *,
    methods="all",
    X_test=None,
    y_test=None,
    test_size=0.25,
    cv=None,
    groups=None,
    n_bootstrap=1000,
    n_jobs=None,
    device="auto",
    random_state=0,
    progress=False,
):
    """Compare the methods on the same splits of the same layer stacks.

    Nothing is selected on what is evaluated: layers, weights, temperatures and the best method are chosen by
    cross-validation inside the training part.

    Parameters
    ----------
    X : array-like of shape (n_samples, n_layers, dim), (n_samples, n_layers, n_tokens, dim) or (n_samples, dim)
        Layer stacks, shallow to deep. A memory map is passed to the jobs as such; each job then copies the rows that it
        trains on, unless these are all.
    y : array-like of shape (n_samples,)
        Labels of any kind that can be sorted.
    methods : "all", str or list of str, default="all"
        Keys of :data:`skvfusion.methods.METHODS`.
    X_test, y_test : array-like, default=None
        Samples to evaluate on, of the same kind; all of X is then the training part.
    test_size : float, default=0.25
        Share of the samples to hold out, without X_test and cv. It is stratified: of each class this share, rounded,
        but at least one sample, and never its last. With groups, these are dealt into folds as by StratifiedGroupKFold
        and the share is as near as whole folds allow.
    cv : int, cross-validation splitter or iterable of splits, default=None
        Evaluate on out-of-fold predictions instead. An int means shuffled, stratified folds that keep groups together,
        as many as the second-largest class has samples (or as there are groups) if these are fewer.
    groups : array-like of shape (n_samples,) or (n_samples + n_test,), default=None
        Samples of a group (a patient, a site) are never on both sides of a split, also not inside the training part and
        inside methods whose ``fit`` takes groups, and are resampled together for the intervals. With X_test, groups of
        its samples may follow; without them they are resampled one by one.
    n_bootstrap : int, default=1000
        Resamples for the intervals.
    n_jobs : int, default=None
        Fits to run at once, as in joblib, by default in processes. It changes nothing but the times.
    device : str or torch.device, default="auto"
        Where to compute, as in :class:`skvfusion.VFusionClassifier`.
    random_state : int, RandomState instance or None, default=0
        Seeds splits, methods and resampling; an int is also the ``random_state`` of each method.
    progress : bool, default=False
        Whether to show a bar that counts the fits.

    Returns
    -------
    DataFrame
        A row for each method, in the order of METHODS unless ``methods`` is a list; the index is its key. Columns:

        - ``label``: its name.
        - ``accuracy``; ``balanced_accuracy``: the mean recall of the classes that are evaluated.
        - ``nll``, ``ece``, ``auc``: :func:`negative_log_likelihood`, :func:`expected_calibration_error` and
          :func:`macro_auc` of :mod:`skvfusion.metrics`.
        - ``gain``: accuracy minus that of the last layer's linear probe; ``gain_low`` and ``gain_high`` bound its 95 %
          interval, the percentiles of a paired bootstrap of the evaluated samples (or groups). It says how sure the
          gain is for new samples, not for other training data.
        - ``gap_closed``: (accuracy - best) / (oracle - best), section 2.8 of VFusion's evaluation. "best" is the
          accuracy of the single layer whose linear probe is best in cross-validation of the training part, not of the
          layer that the evaluated samples like best. nan if the oracle is no better, or no layer could be chosen.
        - ``validation_accuracy``: by cross-validation inside the training part, in 5 folds stratified by class, of 10
          samples or fewer in folds of one; with groups, in 5 folds that keep them together, as many as the
          second-largest class has samples or as there are groups if these are fewer. With ``cv``, the mean over the
          training parts. nan if that is impossible, which ``error`` then says.
        - ``fit_seconds``: wall time of a fit, the mean over the folds of ``cv``; ``predict_seconds``: of predicting all
          evaluated samples. With ``n_jobs``, fits share the machine and take longer.
        - ``error``: "" or the message of what went wrong. If the method itself failed, all figures are nan.

        ``attrs`` has ``best`` (see :class:`Comparison`); ``best_accuracy``, that of the method with the highest
        validation accuracy, chosen for each fold of ``cv`` by its training part; ``last_accuracy``,
        ``best_layer_accuracy`` and ``oracle_accuracy`` of the linear probes; ``n_train`` (of a fold, on average) and
        ``n_test``; and ``unknown_classes``, a list of labels.

    Warns
    -----
    UserWarning
        If an evaluated sample is of a class that is not in its training part (``unknown_classes``). Its predictions
        count as wrong, and its probability as 0, for all methods. Or if a group is on both sides of a split that was
        given.

    Raises
    ------
    ValueError
        If X, y and the other arguments do not fit each other or cannot be split, or there is only one class. A method
        that fails has it in its row instead.

    Examples
    --------
    >>> import numpy as np
    >>> from skvfusion import compare
    >>> rng = np.random.default_rng(0)
    >>> y = np.repeat(["cat", "dog"], 40)
    >>> X = rng.normal(size=(80, 4, 8))
    >>> X[:, 1, 0] += 3 * (y == "dog")
    >>> table = compare(X, y, methods=["last", "best", "super_learner"])
    >>> table.gain.round(2).tolist()
    [0.0, 0.5, 0.5]
    """
    return run_comparison(
        X,
        y,
        methods=methods,
        X_test=X_test,
        y_test=y_test,
        test_size=test_size,
        cv=cv,
        groups=groups,
        n_bootstrap=n_bootstrap,
        n_jobs=n_jobs,
        device=device,
        random_state=random_state,
        progress=progress,
    ).frame


@validate_params(_PARAMETERS, prefer_skip_nested_validation=True)
def run_comparison(
    X,
    y,
    *,
    methods="all",
    X_test=None,
    y_test=None,
    test_size=0.25,
    cv=None,
    groups=None,
    n_bootstrap=1000,
    n_jobs=None,
    device="auto",
    random_state=0,
    progress=False,
):
    """Do what :func:`compare` does, and keep the predictions and the fitted classifiers.

    Parameters
    ----------
    X, y, methods, X_test, y_test, test_size, cv, groups, n_bootstrap, n_jobs, device, random_state, progress
        As in :func:`compare`.

    Returns
    -------
    Comparison
        The table, what was predicted, and classifiers to use.

    Examples
    --------
    >>> import numpy as np
    >>> from skvfusion.compare import run_comparison
    >>> rng = np.random.default_rng(0)
    >>> y = np.repeat(["cat", "dog"], 40)
    >>> X = rng.normal(size=(80, 4, 8))
    >>> X[:, 1, 0] += 3 * (y == "dog")
    >>> comparison = run_comparison(X, y, methods=["last", "best", "super_learner"])
    >>> comparison.best, comparison.estimators["best"].layer_
    ('best', 1)
    """
    keys = read_methods(methods)
    resolve_device(device)
    seed = random_state if isinstance(random_state, Integral) else draw_seed(random_state)
    data = read_data(X, y, X_test, y_test, groups)
    splits = split_data(data, cv, test_size, seed)
    unknown = warn_of_what_cannot_be_learned(data, splits)
    jobs, impossible = plan_jobs(keys, splits, data, seed, refit=cv is not None)
    outcomes = run_jobs(jobs, data, {"random_state": seed, "device": device, "n_jobs": None}, n_jobs, progress)
    return _evaluate(keys, splits, data, outcomes, impossible, unknown, n_bootstrap, seed)


def _evaluate(keys, splits, data, outcomes, impossible, unknown, n_bootstrap, seed):
    rows = np.concatenate([test for _, test in splits])
    order = np.argsort(rows)
    rows = rows[order]
    codes = data.test_codes[rows]
    layers = [outcomes[None, split, None] for split in range(len(splits))]
    layer_probabilities = np.concatenate([layer.probabilities for layer in layers], axis=1)[:, order]
    layer_codes = layer_probabilities.argmax(axis=2)
    reference = {
        "last_accuracy": np.mean(layer_codes[-1] == codes),
        "best_layer_accuracy": _best_layer_accuracy(layers, splits, data),
        "oracle_accuracy": oracle_accuracy(layer_codes, codes),
    }
    records, probabilities, estimators, validation = [], {}, {}, {}
    for key in keys:
        parts = [outcomes[key, split, None] for split in range(len(splits))]
        refit = outcomes.get((key, None, None), parts[0])
        validation[key], doubt = _validate(key, splits, outcomes, impossible)
        failed = next((part.error for part in [*parts, refit] if part.error), "")
        record = {"label": METHODS[key].label, "error": failed or (doubt and f"validation: {doubt}")}
        if not failed:
            probabilities[key] = np.concatenate([part.probabilities for part in parts])[order]
            estimators[key] = refit.estimator
            record |= _figures(codes, probabilities[key], reference)
            record["validation_accuracy"] = validation[key].mean()
            record["fit_seconds"] = np.mean([part.fit_seconds for part in parts])
            record["predict_seconds"] = np.sum([part.predict_seconds for part in parts])
        records.append(record)
    frame = pd.DataFrame(records, index=pd.Index(keys, name="method"), columns=_COLUMNS)
    if probabilities:
        groups = None if data.test_groups is None else data.test_groups[rows]
        interval = _gain_intervals(codes, probabilities, layer_codes[-1], groups, n_bootstrap, seed)
        frame.loc[list(probabilities), ["gain_low", "gain_high"]] = interval
    best = _choose(frame["validation_accuracy"][list(probabilities)])
    chosen = [
        _choose(pd.Series({key: validation[key][split] for key in probabilities})) for split in range(len(splits))
    ]
    frame.attrs = {
        "best": best,
        "best_accuracy": _accuracy_of_chosen(chosen, outcomes),
        **{name: float(value) for name, value in reference.items()},
        "n_train": float(np.mean([len(train) for train, _ in splits])),
        "n_test": len(rows),
        "unknown_classes": unknown,
    }
    return Comparison(
        frame=frame,
        classes=data.classes,
        y=data.test_y[rows],
        rows=rows,
        groups=None if data.given_groups is None else data.given_groups[rows],
        layer_predictions=data.classes[layer_codes],
        layer_probabilities=layer_probabilities,
        probabilities=probabilities,
        estimators=estimators,
        best=best,
    )


def _figures(codes, probabilities, reference):
    accuracy = np.mean(probabilities.argmax(axis=1) == codes)
    return {
        "accuracy": accuracy,
        "balanced_accuracy": balanced_accuracy(codes, probabilities),
        "nll": negative_log_likelihood(codes, probabilities),
        "ece": expected_calibration_error(codes, probabilities),
        "auc": macro_auc(codes, probabilities),
        "gain": accuracy - reference["last_accuracy"],
        "gap_closed": gap_closure(accuracy, reference["best_layer_accuracy"], reference["oracle_accuracy"]),
    }


def _gain_intervals(codes, probabilities, last, groups, n_bootstrap, seed):
    """Return the intervals of the methods' gains over the last layer, of shape (n_methods, 2)."""
    hits = np.array([each.argmax(axis=1) == codes for each in probabilities.values()], dtype=float)
    interval = bootstrap_interval(
        partial(np.mean, axis=1), hits - (last == codes), n_draws=n_bootstrap, groups=groups, random_state=seed
    )
    return np.transpose(interval)


def _validate(key, splits, outcomes, impossible):
    """Return the accuracy inside each training part, nan where there is none, and why."""
    accuracies, doubt = np.full(len(splits), np.nan), ""
    for split in range(len(splits)):
        folds = [(job, out) for job, out in outcomes.items() if job[:2] == (key, split) and job[2] is not None]
        problem = impossible.get(split) or next((out.error for _, out in folds if out.error), "")
        doubt = doubt or problem
        if not problem:
            accuracies[split] = np.concatenate([out.hits for _, out in folds]).mean()
    return accuracies, doubt


def _best_layer_accuracy(layers, splits, data):
    """Return the accuracy of the layers that cross-validation chose in each training part."""
    if any(layer.best_layer is None for layer in layers):
        return np.nan
    hits = [
        layer.probabilities[layer.best_layer].argmax(axis=1) == data.test_codes[test]
        for layer, (_, test) in zip(layers, splits, strict=True)
    ]
    return np.concatenate(hits).mean()


def _choose(accuracies):
    """Return the key of the highest accuracy; of equals, or if none is known, the first in METHODS."""
    keys = [key for key in METHODS if key in accuracies.index]
    return max(keys, key=lambda key: np.nan_to_num(accuracies[key], nan=-1.0), default=None)


def _accuracy_of_chosen(chosen, outcomes):
    if None in chosen:
        return np.nan
    return float(np.concatenate([outcomes[key, split, None].hits for split, key in enumerate(chosen)]).mean())
