"""Fit and score classifiers on a memory map with a limit on memory; run by test_memory_maps.py as a process of its own.

Takes a folder with X.npy and y.npy, X's dtype, and the allowance of each case in MB as JSON. Prints JSON: for each case
the peak of anonymous memory above what the process had before, in MB, the accuracy, and the error if there was one.
"""

import contextlib
import ctypes
import gc
import json
import resource
import sys
import threading
import time
import warnings
from pathlib import Path

import numpy as np
from sklearn.naive_bayes import GaussianNB

from skvfusion.fusion import (
    AttentiveFusionClassifier,
    LayerProbeClassifier,
    LayerVotingClassifier,
    MixtureOfExpertsClassifier,
    NeuralLogitControllerClassifier,
    SuperLearnerClassifier,
    VFusionClassifier,
)

MB = 1e6
NET = {"max_epochs": 1, "batch_size": 256, "early_stopping": True, "random_state": 0, "device": "cpu"}
LINEAR = {"C": 1e-4, "cv": 2, "device": "cpu"}
SMALL = {"hidden": 16, "latent_dim": 8}
ALONE = {"probe_share": 0, "layer_emphasis": 0}
BY_BATCHES = {
    "float32": {
        "VFusion, the encoder alone": VFusionClassifier(**SMALL, **NET, **ALONE),
        "AttentiveFusion, quarterly": AttentiveFusionClassifier(**NET, layers="quarterly", n_heads=4, min_steps=0),
        "LayerProbe, mlp": LayerProbeClassifier(0, "mlp", **SMALL, **NET),
        "SuperLearner, mlp": SuperLearnerClassifier(probe=VFusionClassifier(**SMALL, **NET), cv="holdout"),
        "MixtureOfExperts, joint": MixtureOfExpertsClassifier("joint", hidden=16, **NET),
    },
    "float16": {
        "VFusion, the encoder alone, quarterly, standard": VFusionClassifier(
            **SMALL, **NET, **ALONE, layers="quarterly", scaling="standard"
        ),
        "LayerVoting, mlp, quarterly": LayerVotingClassifier(
            probe=VFusionClassifier(**SMALL, **NET), layers="quarterly"
        ),
    },
}
BY_LAYERS = {
    "float32": {
        "VFusion, quarterly": VFusionClassifier(**SMALL, **NET, layers="quarterly"),
        "LayerProbe": LayerProbeClassifier(**LINEAR),
        "LayerProbe, best": LayerProbeClassifier("best", **LINEAR),
        "NeuralLogitController, quarterly": NeuralLogitControllerClassifier(
            hidden=16, **LINEAR | NET, layers="quarterly"
        ),
    },
    "float16": {
        "LayerVoting, calibrated, quarterly": LayerVotingClassifier("calibrated", **LINEAR, layers="quarterly"),
        "SuperLearner, quarterly": SuperLearnerClassifier(**LINEAR, layers="quarterly"),
        "MixtureOfExperts, quarterly": MixtureOfExpertsClassifier(hidden=16, **LINEAR | NET, layers="quarterly"),
    },
}
OTHERS = {
    "float32": {"LayerVoting, naive Bayes, quarterly": LayerVotingClassifier(probe=GaussianNB(), layers="quarterly")},
    "float16": {},
}


def status(name):
    """Return an entry of the kernel's record of this process, in bytes."""
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(f"{name}:"))
    return int(line.split()[1]) * 1024


@contextlib.contextmanager
def limited(allowance, peak):
    """Limit anonymous memory to what there is plus an allowance, and append to ``peak`` how much of that was used."""
    gc.collect()
    with contextlib.suppress(AttributeError):
        # So that memory which is free but not given back is not used unseen.
        ctypes.CDLL(None).malloc_trim(0)
    ended = threading.Event()
    seen = []

    def watch():
        while not ended.is_set():
            seen.append(status("RssAnon"))
            time.sleep(0.001)

    watcher = threading.Thread(target=watch)
    watcher.start()
    unlimited = resource.getrlimit(resource.RLIMIT_DATA)
    before = status("RssAnon")
    resource.setrlimit(resource.RLIMIT_DATA, (status("VmData") + int(allowance), unlimited[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, unlimited)
        ended.set()
        watcher.join()
        peak.append((max(seen) - before) / MB)


def load(X, y):
    """Do what none of the classifiers may."""
    return len(np.array(X))


def fit_and_score(classifier):
    def run(X, y):
        classifier.fit(X, y)
        if hasattr(classifier, "attention_weights"):
            classifier.attention_weights(X)
        return classifier.score(X, y)

    return run


def measure(task, X, y, allowance):
    """Return the peak in MB, the accuracy and the error of a task."""
    peak, accuracy, error = [], None, None
    try:
        with limited(allowance, peak):
            accuracy = task(X, y)
    except (MemoryError, RuntimeError) as caught:  # numpy's and torch's ways of saying so
        error = f"{type(caught).__name__}: {caught}"
    return {"peak": peak[0], "accuracy": accuracy, "error": error}


def main(folder, dtype, allowances):
    warnings.simplefilter("error")
    tasks = {
        name: fit_and_score(classifier)
        for cases in (BY_BATCHES, BY_LAYERS, OTHERS)
        for name, classifier in cases[dtype].items()
    }
    X, y = np.load(folder / "X.npy", mmap_mode="r"), np.load(folder / "y.npy")
    for task in tasks.values():
        # What is set up by the first call and kept, such as the linear algebra's buffers, is not for the data.
        task(np.array(X[:300]), y[:300])
    tasks["load"] = load
    print(json.dumps({name: measure(tasks[name], X, y, mb * MB) for name, mb in allowances.items()}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], json.loads(sys.argv[3]))
