"""The part of speed.py about compare: every method on the same splits, against a plain user's loop."""

import numpy as np
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import accuracy_score, balanced_accuracy_score, log_loss
from sklearn.model_selection import StratifiedKFold, cross_val_score, train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import skvfusion
from benchmarks.speed_fusion import stack_like_a_vits
from benchmarks.timing import interleaved, peak_mib, report
from skvfusion import LayerProbeClassifier, LayerVotingClassifier
from skvfusion.methods import METHODS
from skvfusion.trials import deal_folds

CHEAP = ["last", "best", "average", "super_learner"]
TOLERANCE = 1e-4


def compare(args):
    n, layers, dim, n_classes = (100, 3, 16, 3) if args.quick else (400, 12, 192, 10)
    methods = CHEAP if args.quick else list(METHODS)
    problem = (n, layers, dim, n_classes)
    print(f"\n{n} samples of {layers} x {dim}, {n_classes} classes; {len(methods)} methods: {', '.join(methods)}")
    show(
        f"compare: a quarter held out, 5 validation folds in the rest, {len(methods)} methods",
        {
            "cross_val_score, fit, predict_proba in a loop": (one_by_one, *problem, methods),
            "skvfusion.compare": (compared, *problem, methods),
        },
        # The dearest have thousands of training steps before them, and no cold caches to speak of.
        repetitions=min(args.repetitions, 2),
        warm_up=args.quick,
    )
    print("skvfusion.compare also probes every layer and resamples the gains; the loop does neither.")
    show(
        "The part with the linear probes: the best layer by 5 folds, then all layers' probabilities",
        {
            f"{layers} LogisticRegression(tol={TOLERANCE:g}), one by one": (layer_by_layer, *problem),
            f"all {layers} linear probes": (all_layers, *problem),
        },
        repetitions=min(args.repetitions, 3),
        warm_up=True,
    )
    print("LogisticRegression stops further from the optimum, with its default tolerance.")


def show(title, alternatives, repetitions, warm_up):
    """Print the times of alternatives, given as what prepares them with its arguments, and their peaks of memory."""
    runs = {name: prepare(*arguments) for name, (prepare, *arguments) in alternatives.items()}
    report(title, interleaved(runs, repetitions, warm_up))
    print("Peak memory in a fresh process, MiB above that of the imports and the data:")
    for name, (prepare, *arguments) in alternatives.items():
        print(f"{name:46} {peak_mib(prepare, *arguments):8.1f}")


def make_split(n, layers, dim, n_classes):
    """Return X_train, X_test, y_train, y_test, and folds of the training part as compare deals them."""
    X, y = stack_like_a_vits(n, layers, dim, n_classes)
    parts = train_test_split(X, y, test_size=0.25, stratify=y, random_state=0)
    return *parts, deal_folds(parts[2], 0)


def compared(n, layers, dim, n_classes, methods):
    X, X_test, y, y_test, _ = make_split(n, layers, dim, n_classes)
    return lambda: skvfusion.compare(X, y, methods=methods, X_test=X_test, y_test=y_test, device="cpu")


def one_by_one(n, layers, dim, n_classes, methods):
    """Return what a user writes who knows scikit-learn only: the same classifiers, folds and figures."""
    X, X_test, y, y_test, folds = make_split(n, layers, dim, n_classes)

    def run():
        for key in methods:
            classifier = METHODS[key].make(random_state=0, device="cpu", n_jobs=None)
            cross_val_score(classifier, X, y, cv=folds, error_score="raise")
            probabilities = classifier.fit(X, y).predict_proba(X_test)
            predicted = classifier.classes_[probabilities.argmax(axis=1)]
            accuracy_score(y_test, predicted)
            balanced_accuracy_score(y_test, predicted)
            log_loss(y_test, probabilities, labels=classifier.classes_)

    return run


def all_layers(n, layers, dim, n_classes):
    """Return what compare does with the linear probes, with scikit-learn's StandardScaler for scaling."""
    X, X_test, y, _, _ = make_split(n, layers, dim, n_classes)
    options = {"cv": layer_folds(y), "scaling": "standard", "device": "cpu", "random_state": 0}

    def run():
        best = LayerProbeClassifier("best", **options).fit(X, y)
        voting = LayerVotingClassifier(**options).fit(X, y)
        return best.layer_, voting.probes_.logits(X_test[:, :, None])

    return run


def layer_by_layer(n, layers, dim, n_classes):
    X, X_test, y, _, _ = make_split(n, layers, dim, n_classes)
    folds = layer_folds(y)

    def run():
        probe = make_pipeline(StandardScaler(), LogisticRegression(tol=TOLERANCE, max_iter=5000))
        accuracies = [cross_val_score(probe, X[:, layer], y, cv=folds).mean() for layer in range(layers)]
        probabilities = [probe.fit(X[:, layer], y).predict_proba(X_test[:, layer]) for layer in range(layers)]
        return int(np.argmax(accuracies)), probabilities

    return run


def layer_folds(y):
    return list(StratifiedKFold(5, shuffle=True, random_state=0).split(y, y))
