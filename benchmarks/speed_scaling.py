"""The part of speed.py about scaling: how time and memory grow with samples, layers, dimensions and classes."""

from dataclasses import asdict, dataclass, replace

import numpy as np
import pandas as pd
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedKFold, cross_val_predict
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import nn

from benchmarks.speed_engine import ENCODER_ALONE, hand_written_vfusion
from benchmarks.speed_fusion import TextbookALF, all_linear_probes, stack_like_a_vits, train_loop
from benchmarks.timing import interleaved, peak_mib
from skvfusion import AttentiveFusionClassifier, SuperLearnerClassifier, VFusionClassifier

EPOCHS = 4
ALF_STEPS = 8
PREDICTED_BATCH = 256
TOLERANCE = 1e-4
# So many times the numbers of the base, beyond which alternatives that take minutes are left out.
DEAR_UP_TO = 2
COLUMNS = ["curve", "value", "what", "seconds", "alternative", "alternative_seconds", "peak_mib"]


@dataclass(frozen=True)
class Point:
    """The size of a made-up problem. The engine deals ``n`` into whole batches, so that steps can be counted."""

    n: int
    layers: int
    dim: int
    classes: int
    batch: int

    @property
    def numbers(self):
        return self.n * self.layers * self.dim * self.classes

    def data(self):
        return stack_like_a_vits(self.n, self.layers, self.dim, self.classes)


# All curves cross at the base.
BASE = Point(n=1024, layers=12, dim=192, classes=10, batch=256)
CURVES = {"n": [256, 512, 1024, 2048], "layers": [3, 6, 12, 24], "dim": [96, 192, 384], "classes": [5, 10, 40]}
QUICK_BASE = Point(n=128, layers=3, dim=16, classes=3, batch=32)
QUICK_CURVES = {"n": [64, 128], "layers": [2, 3], "dim": [16, 32], "classes": [3, 5]}


def scaling(args):
    base, curves = (QUICK_BASE, QUICK_CURVES) if args.quick else (BASE, CURVES)
    repetitions = min(args.repetitions, 3)
    print(f"\nAll curves pass through {asdict(base)}; ratio is seconds to the alternative's in the same run.")
    print(f"LogisticRegression has scikit-learn's loose default tolerance of {TOLERANCE:g}; the probes go on to 1e-6,")
    print("so the ratio flatters scikit-learn. Its loops are timed once, and up to twice that problem's size only.\n")
    print("| curve | value | what | seconds | alternative | its seconds | ratio | peak MiB |")
    print("|---|---:|---|---:|---|---:|---:|---:|")
    rows, measured = [], {}
    for curve, values in curves.items():
        for value in values:
            point = replace(base, **{curve: value})
            for what, work in WORKS.items():
                if (what, point) not in measured:
                    measured[what, point] = work.measure(point, base, repetitions)
                rows.append(dict(zip(COLUMNS, (curve, value, what, *measured[what, point]), strict=True)))
                print(markdown_row(rows[-1]), flush=True)
    frame = pd.DataFrame(rows, columns=COLUMNS)
    print_slopes(frame)
    if args.csv:
        frame.to_csv(args.csv, index=False)


def markdown_row(row):
    """Return a row of the table; what was not measured stays empty."""
    numbers = [row["alternative_seconds"], row["seconds"] / row["alternative_seconds"]]
    shown = ["" if np.isnan(number) else f"{number:.3f}" for number in numbers]
    left = f"| {row['curve']} | {row['value']} | {row['what']} | {row['seconds']:.3f} | {row['alternative']}"
    return f"{left} | {' | '.join(shown)} | {row['peak_mib']:.1f} |"


def print_slopes(frame):
    """Print the slopes of log(seconds) over log(value): 1 is proportional growth, 0 none."""
    print(
        "\nSlopes of log(seconds) over log(value):\n\n| curve | what | slope | its alternative's |\n|---|---|---:|---:|"
    )
    for (curve, what), part in frame.groupby(["curve", "what"], sort=False):
        ours = log_log_slope(part["value"], part["seconds"])
        theirs = log_log_slope(part["value"], part["alternative_seconds"])
        print(f"| {curve} | {what} | {ours:.2f} | {'' if np.isnan(theirs) else f'{theirs:.2f}'} |")


def log_log_slope(values, seconds):
    """Return the slope of the least-squares line, nan with fewer than two measured values."""
    known = np.isfinite(seconds)
    return np.polyfit(np.log(values[known]), np.log(seconds[known]), 1)[0] if known.sum() > 1 else np.nan


@dataclass(frozen=True)
class Work:
    """Something to time, and what it is compared with.

    Attributes
    ----------
    prepare : callable
        ``prepare(point)`` makes the data and returns what to run.
    alternative : str
        What the alternative is called.
    prepare_alternative : callable
        The same for the alternative.
    dear : bool
        Whether the alternative is so slow that it is timed once, and not on much larger problems than the base.
    """

    prepare: callable
    alternative: str
    prepare_alternative: callable
    dear: bool = False

    def measure(self, point, base, repetitions):
        """Return median seconds, the alternative's name, its median seconds or nan, and the peak of memory."""
        runs = {"ours": self.prepare(point)}
        if not self.dear or point.numbers <= DEAR_UP_TO * base.numbers:
            runs["alternative"] = self.prepare_alternative(point)
        if self.dear:
            # A cold start is nothing beside what follows, but would be much of the faster side's only time.
            runs["ours"]()
        seconds = interleaved(runs, 1 if self.dear else repetitions, warm_up=not self.dear)
        medians = {name: float(np.median(values)) for name, values in seconds.items()}
        return medians["ours"], self.alternative, medians.get("alternative", np.nan), peak_mib(self.prepare, point)


def vfusion(point):
    X, y = point.data()
    classifier = fixed_vfusion(point, EPOCHS)
    return lambda: classifier.fit(X, y)


def fixed_vfusion(point, epochs):
    return VFusionClassifier(
        max_epochs=epochs,
        batch_size=point.batch,
        early_stopping=False,
        device="cpu",
        random_state=0,
        **ENCODER_ALONE,
    )


def torch_loop(point):
    X, y = point.data()
    return lambda: hand_written_vfusion(X, y, EPOCHS, point.batch)


def alf(point):
    X, y = point.data()
    classifier = AttentiveFusionClassifier(
        max_epochs=1, min_steps=ALF_STEPS, batch_size=point.batch, device="cpu", random_state=0
    )
    return lambda: classifier.fit(X, y)


def textbook_alf(point):
    X, y = map(torch.from_numpy, point.data())
    epochs = -(-ALF_STEPS // round(point.n / point.batch))

    def run():
        net = TextbookALF(point.layers, point.dim, point.classes)
        train_loop(net, (X,), y, nn.functional.cross_entropy, epochs, point.batch, weight_decay=0.1, clip=5)

    return run


def linear_probes(point):
    X, y = point.data()
    return lambda: all_linear_probes(X, y, point.classes)


def logistic_regression():
    return make_pipeline(StandardScaler(), LogisticRegression(tol=TOLERANCE, max_iter=5000))


def layer_by_layer(point):
    X, y = point.data()
    return lambda: [logistic_regression().fit(X[:, layer], y) for layer in range(point.layers)]


def folds_of(y):
    return list(StratifiedKFold(5, shuffle=True, random_state=0).split(y, y))


def super_learner(point):
    X, y = point.data()
    classifier = SuperLearnerClassifier(cv=folds_of(y), scaling="standard", device="cpu", random_state=0)
    return lambda: classifier.fit(X, y)


def cross_fitted_layer_by_layer(point):
    """Return the loop that gives the out-of-fold predictions and the probes, but no weights for them."""
    X, y = point.data()
    folds = folds_of(y)

    def run():
        for layer in range(point.layers):
            cross_val_predict(logistic_regression(), X[:, layer], y, cv=folds, method="predict_proba")
            logistic_regression().fit(X[:, layer], y)

    return run


def fitted_vfusion(point):
    """Return VFusion after an epoch on few samples, which raises the peak of the memory little."""
    X, y = point.data()
    few = np.concatenate([np.flatnonzero(y == label)[:2] for label in range(point.classes)])
    return fixed_vfusion(point, 1).fit(X[few], y[few]), X


def predict_proba(point):
    classifier, X = fitted_vfusion(point)
    return lambda: classifier.predict_proba(X)


def plain_forward(point):
    classifier, X = fitted_vfusion(point)
    module, X = classifier.net_.module_.eval(), torch.from_numpy(X[:, :, None])

    @torch.inference_mode()
    def run():
        torch.cat([module(batch)[0].softmax(1) for batch in X.split(PREDICTED_BATCH)])

    return run


WORKS = {
    "VFusionClassifier.fit": Work(vfusion, "the same steps as a plain torch loop", torch_loop),
    "AttentiveFusionClassifier.fit": Work(alf, "the same steps of the textbook form", textbook_alf),
    "all linear probes": Work(linear_probes, "LogisticRegression, layer by layer", layer_by_layer, dear=True),
    "SuperLearnerClassifier.fit": Work(
        super_learner, "cross_val_predict and fit, layer by layer", cross_fitted_layer_by_layer, dear=True
    ),
    "VFusionClassifier.predict_proba": Work(predict_proba, "the module in float32, in batches", plain_forward),
}
