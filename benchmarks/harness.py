"""What every table has in common: how its cells are computed, kept and resumed, and how it is published."""

import os
import platform
import sys
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import partial
from importlib.metadata import version
from pathlib import Path
from time import perf_counter

import numpy as np
import torch
from joblib import Parallel, delayed

from benchmarks.features import load_features
from benchmarks.options import arguments, set_label, set_names
from benchmarks.results_file import ResultsFile, commit, read_facts, write_facts
from skvfusion.layers import resolve_layers
from skvfusion.metrics import balanced_accuracy, expected_calibration_error, negative_log_likelihood

__all__ = ["Method", "arguments", "classifier", "publish", "run_cells", "score", "write_provenance"]

PACKAGES = ("skvfusion", "torch", "timm", "scikit-learn", "skorch", "numpy", "pandas")


@dataclass(frozen=True)
class Method:
    """A row of a table.

    Attributes
    ----------
    label : str
        What the table calls it.
    run : callable
        ``run(features, seed, device)`` returns figures, a dict of floats such as ``{"accuracy": 0.9}``. With several
        processes it has to be picklable.
    """

    label: str
    run: object


def classifier(label, make, tokens="cls", layers=None):
    """Return the method that fits a classifier on the training part and scores it on the test part.

    Parameters
    ----------
    label : str
        What tables call it.
    make : callable
        ``make(random_state=, device=)`` returns an unfitted classifier with ``predict_proba``.
    tokens : {"cls", "mean", "cls+mean"}, default="cls"
        What it gets of each layer.
    layers : layer selection, default=None
        What it gets of the layers, as in :func:`skvfusion.resolve_layers`; None for all.

    Returns
    -------
    Method
        Its figures are those of :func:`score`, ``fit_seconds`` and ``predict_seconds``.
    """
    return Method(label, partial(_fit_and_score, make, tokens, layers))


def _fit_and_score(make, tokens, layers, features, seed, device):
    X, X_test = features.tokens(tokens)
    if layers is not None:
        kept = resolve_layers(layers, X.shape[1])
        X, X_test = X[:, kept], X_test[:, kept]
    estimator = make(random_state=seed, device=device)
    start = perf_counter()
    estimator.fit(X, features.y)
    fitted = perf_counter()
    probabilities = estimator.predict_proba(X_test)
    times = {"fit_seconds": fitted - start, "predict_seconds": perf_counter() - fitted}
    return score(estimator.classes_, probabilities, features.y_test, features.groups_test) | times


def score(classes, probabilities, y, groups=None):
    """Return the figures of class probabilities.

    Parameters
    ----------
    classes : array of shape (n_known,)
        The labels that the columns stand for. Samples of other classes count as wrong, their probability as 0.
    probabilities : array of shape (n, n_known)
        Rows sum to 1.
    y : array of shape (n,)
        True labels.
    groups : array of shape (n,), default=None
        Subgroups of the samples.

    Returns
    -------
    dict of str to float
        ``accuracy``, ``balanced_accuracy``, ``nll``, ``ece``; with groups, ``group_accuracy`` (the mean over groups)
        and ``worst_group_accuracy``.
    """
    every = np.unique(np.concatenate([classes, y]))
    full = np.zeros((len(y), len(every)))
    full[:, np.searchsorted(every, classes)] = probabilities
    codes = np.searchsorted(every, y)
    right = full.argmax(axis=1) == codes
    return {
        **accuracies(right, groups),
        "balanced_accuracy": balanced_accuracy(codes, full),
        "nll": negative_log_likelihood(codes, full),
        "ece": expected_calibration_error(codes, full),
    }


def accuracies(right, groups=None):
    """Return the share of samples that are classified right, with groups also their mean and the least of them."""
    figures = {"accuracy": float(right.mean())}
    if groups is not None:
        by_group = [float(right[groups == group].mean()) for group in np.unique(groups)]
        figures |= {"group_accuracy": float(np.mean(by_group)), "worst_group_accuracy": min(by_group)}
    return figures


def run_cells(args, table, methods, load=load_features, variants=None):
    """Compute the cells of a table that are not in its file yet.

    Parameters
    ----------
    args : Namespace
        Of :func:`arguments`.
    table : str
        The name of the file in ``args.out``.
    methods : list of Method
        The rows.
    load : callable, default=load_features
        ``load(name, backbone, data=, cache=, device=, progress=)`` returns Features.
    variants : dict of str to str, default=None
        What else tells these cells from others in the file, such as ``{"tap": "norm2"}``; a column each.

    Returns
    -------
    DataFrame
        A row for each (backbone, set, seed, method) asked for whose set and backbone are there.

    Raises
    ------
    SystemExit
        If there is no such row.
    """
    variants = {"part": "validation"} | (variants or {}) if args.validation else variants or {}
    file = ResultsFile(args, table, variants)
    names, shots = set_names(args), str(args.shots or "all")
    order = {method.label: position for position, method in enumerate(methods)}
    for backbone in args.backbones:
        for name in names:
            missing = [
                (method, seed)
                for seed in range(args.seeds)
                for method in methods
                if not file.has((set_label(name), backbone.name, shots, str(seed), method.label))
            ]
            if not missing:
                continue
            try:
                features = load(
                    name,
                    backbone,
                    data=args.data,
                    cache=args.cache,
                    device=args.device,
                    progress=sys.stderr.isatty(),
                )
            except OSError as error:
                print(f"{set_label(name)}, {backbone.name}: {error}", file=sys.stderr)
                continue
            file.note(set_label(name), backbone, features)
            jobs = (
                delayed(_run_cell)(method, features, args.validation, args.shots, seed, args.device)
                for method, seed in missing
            )
            for label, seed, figures in Parallel(args.n_jobs, return_as="generator_unordered")(jobs):
                file.add((set_label(name), backbone.name, shots, str(seed), label), figures)
    frame = file.frame()
    asked = (
        frame["set"].isin([set_label(name) for name in names])
        & frame["backbone"].isin([backbone.name for backbone in args.backbones])
        & frame["method"].isin(list(order))
        & (frame["shots"] == shots)
        & (frame["seed"] < args.seeds)
    )
    frame = frame[asked]
    if frame.empty:
        raise SystemExit(f"{table}: none of the sets {', '.join(names)} is there with its features; see above.")
    sets = {set_label(name): position for position, name in enumerate(names)}
    backbones = {backbone.name: position for position, backbone in enumerate(args.backbones)}
    ranks = {"set": sets, "backbone": backbones, "method": order}
    return frame.sort_values(
        ["backbone", "set", "seed", "method"], key=lambda column: column.map(ranks.get(column.name, lambda each: each))
    ).reset_index(drop=True)


def _run_cell(method, features, validation, shots, seed, device):
    try:
        features = features.validation(seed) if validation else features
        return method.label, seed, method.run(features.few(shots, seed), seed, device)
    except Exception as error:  # one method's failure must not end the night's run
        return method.label, seed, {"error": " ".join(f"{type(error).__name__}: {error}".split())}


def write_provenance(args, table):
    """Add to ``<out>/<table>.json`` what the table was made with.

    Parameters
    ----------
    args : Namespace
        Of :func:`arguments`.
    table : str
        The table's name.
    """
    path = args.out / f"{table}.json"
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    facts = {
        "command": args.command,
        "replaced in the command": "folders: DATA/ is --data, CACHE/ --cache, OUT/ --out, WEIGHTS/ that of the weights",
        "commit": commit(),
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "seeds": list(range(args.seeds)),
        "versions": {"python": platform.python_version()} | {name: version(name) for name in PACKAGES},
        "hardware": {"cpu": _cpu_model(), "cores": os.cpu_count(), "gpu": gpu},
    }
    write_facts(path, facts | {key: value for key, value in read_facts(path).items() if key in ("sets", "backbones")})


def _cpu_model():
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def publish(args, table, markdown):
    """Write ``<out>/<table>.md`` and print it.

    Parameters
    ----------
    args : Namespace
        Of :func:`arguments`.
    table : str
        The table's name.
    markdown : str
        The text; a line that says which command made it is added.
    """
    text = f"Made by `{args.command}`.\n\n{markdown.strip()}\n"
    (args.out / f"{table}.md").write_text(text)
    print(text)
