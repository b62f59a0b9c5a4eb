"""The demonstration: handwritten digits, the embedded backbone, and what fusing its layers gains."""

import time
from contextlib import contextmanager

import numpy as np
import pandas as pd
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from .devices import resolve_device
from .display import RecoverabilityDisplay, new_figure
from .extraction import LayerwiseFeatureExtractor
from .fusion import (
    AttentiveFusionClassifier,
    LayerProbeClassifier,
    LayerVotingClassifier,
    SuperLearnerClassifier,
    VFusionClassifier,
)
from .recoverability import layer_accuracy, oracle_accuracy, recovery_rate

LAST = "last layer"
LAST_MLP = "last layer, VFusion's own MLP"
BEST = "best single layer"
AVERAGE = "average of the layers"
SUPER_LEARNER = "Super Learner, all layers"
ALF = "ALF, all layers"
VFUSION = "VFusion, all layers"
ORACLE = "any-layer oracle (looks at the labels)"
RECOVERY = "recovery rate"

TEST_SIZE = 0.5


def run_demo(seeds=1, seed=0, device="auto", report=print):
    """Compare fusing the layers with using one of them, on scikit-learn's handwritten digits.

    Parameters
    ----------
    seeds : int, default=1
        How many seeds, counting up from ``seed``; each has a train/test split of its own.
    seed : int, default=0
        The first seed.
    device : str, default="auto"
        Where to compute.
    report : callable, default=print
        Called with each line of progress.

    Returns
    -------
    scores : DataFrame
        A row per seed, columns named by method: test accuracies in [0, 1] and the recovery rate.
    display : RecoverabilityDisplay
        Accuracy by layer, averaged over the seeds; not drawn yet.
    """
    digits = load_digits()
    images, y = digits.images / 16, digits.target
    report(
        f"{len(y)} handwritten digits of {images.shape[1]}x{images.shape[2]} pixels, {len(digits.target_names)} classes"
    )
    with _timed("every layer of backbone 'nano', one pass", report):
        X = LayerwiseFeatureExtractor("nano", device=device).fit_transform(images)
    report(f"layer stack: {X.shape[0]} images x {X.shape[1]} layers x {X.shape[2]} dims")
    rows, curves = [], []
    for current in range(seed, seed + seeds):
        report(f"seed {current}: {1 - TEST_SIZE:.0%} train, {TEST_SIZE:.0%} test, stratified")
        scores, curve = _run_seed(X, y, current, device, report)
        rows.append(scores)
        curves.append(curve)
    scores = pd.DataFrame(rows, index=pd.RangeIndex(seed, seed + seeds, name="seed"))
    display = RecoverabilityDisplay(
        np.mean(curves, axis=0), oracle_accuracy=scores[ORACLE].mean(), fused_accuracy=scores[VFUSION].mean()
    )
    return scores, display


def summarise(scores):
    """Return the table that the demo prints: accuracy in percent and its gain over the last layer's, per method.

    Parameters
    ----------
    scores : DataFrame
        What :func:`run_demo` returned.

    Returns
    -------
    DataFrame
        A row per method; means over the seeds, and standard deviations if there are several.
    """
    accuracy = 100 * scores.drop(columns=RECOVERY)
    table = pd.DataFrame({"accuracy %": accuracy.mean(), "gain": accuracy.sub(accuracy[LAST], axis=0).mean()})
    if len(scores) > 1:
        table.insert(1, "std", accuracy.std())
    return table


def main(seeds, seed, device, out):
    """Run the demo, print its table and, if ``out`` is a folder, write table and picture there."""
    resolve_device(device)
    if out is not None:
        if out.exists() and not out.is_dir():
            raise ValueError(f"--out {out} is a file; give a folder.")
        out.mkdir(parents=True, exist_ok=True)
        new_figure()  # a folder or library that is missing should show before the work is done
    start = time.perf_counter()
    scores, display = run_demo(seeds, seed, device, report=lambda line: print(line, flush=True))
    table = summarise(scores)
    over = f"seed {seed}" if seeds == 1 else f"mean of seeds {seed} to {seed + seeds - 1}"
    print(f"\nTest accuracy, {over}\n")
    print(table.to_string(col_space=12, float_format="{:.2f}".format, formatters={"gain": "{:+.2f}".format}))
    print("\ngain: percentage points over the last layer, before rounding")
    print(f"Recovery rate: inner layers are right on {scores[RECOVERY].mean():.0%} of the last layer's errors.")
    print("Layers are read by logistic regressions unless named otherwise; the best is found by cross-validation.")
    print(f"Total: {time.perf_counter() - start:.0f} s")
    if out is not None:
        table.to_csv(out / "demo.csv", index_label="method")
        scores.to_csv(out / "demo_seeds.csv")
        figure = display.plot().figure_
        figure.suptitle(f"Handwritten digits, backbone 'nano', {over}")
        figure.savefig(out / "demo.png")
        print(f"Wrote demo.csv, demo_seeds.csv and demo.png into {out}")


def _run_seed(X, y, seed, device, report):
    X_train, X_test, y_train, y_test = train_test_split(X, y, test_size=TEST_SIZE, stratify=y, random_state=seed)
    n_layers = X.shape[1]
    with _timed(f"  probes of the {n_layers} layers", report):
        probes = [LayerProbeClassifier(layer).fit(X_train, y_train) for layer in range(n_layers)]
    predictions = np.stack([probe.predict(X_test) for probe in probes])
    accuracies = layer_accuracy(predictions, y_test)
    methods = {
        LAST_MLP: LayerProbeClassifier(-1, "mlp", device=device),
        BEST: LayerProbeClassifier("best", device=device),
        AVERAGE: LayerVotingClassifier(device=device),
        SUPER_LEARNER: SuperLearnerClassifier(device=device),
        ALF: AttentiveFusionClassifier(device=device),
        VFUSION: VFusionClassifier(device=device),
    }
    scores = {LAST: accuracies[-1]}
    for name, classifier in methods.items():
        with _timed(f"  {name}", report):
            scores[name] = classifier.set_params(random_state=seed).fit(X_train, y_train).score(X_test, y_test)
    scores |= {ORACLE: oracle_accuracy(predictions, y_test), RECOVERY: recovery_rate(predictions, y_test)}
    return scores, accuracies


@contextmanager
def _timed(what, report):
    start = time.perf_counter()
    yield
    report(f"{what}: {time.perf_counter() - start:.1f} s")
