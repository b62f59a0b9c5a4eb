import functools
import json
import os
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from sklearn.base import clone
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
from skvfusion.fusion.validation import read_stack
from skvfusion.layers import take_layers

N, N_LAYERS, DIM = 14_000, 12, 256
MB = 1e6
LAYER = N * DIM * 4 / MB
# What each way of training may take, in MB, of a map of 172 MB in float32 and 86 MB in float16.
BATCHES = 50
LAYERS = 2 * LAYER + 40
OTHER = 5 * LAYER + 40
ALLOWANCES = {
    "float32": {
        "load": OTHER,
        "VFusion, the encoder alone": BATCHES,
        "AttentiveFusion, quarterly": BATCHES,
        "LayerProbe, mlp": BATCHES,
        "SuperLearner, mlp": BATCHES,
        "MixtureOfExperts, joint": BATCHES,
        "VFusion, quarterly": LAYERS,
        "LayerProbe": LAYERS,
        "LayerProbe, best": LAYERS,
        "NeuralLogitController, quarterly": LAYERS,
        "LayerVoting, naive Bayes, quarterly": OTHER,
    },
    "float16": {
        "load": LAYERS,
        "VFusion, the encoder alone, quarterly, standard": BATCHES,
        "LayerVoting, mlp, quarterly": BATCHES,
        "LayerVoting, calibrated, quarterly": LAYERS,
        "SuperLearner, quarterly": LAYERS,
        "MixtureOfExperts, quarterly": LAYERS,
    },
}
FITS = [(dtype, name) for dtype, cases in ALLOWANCES.items() for name in cases if name != "load"]
on_linux = pytest.mark.skipif(
    sys.platform != "linux", reason="only Linux limits anonymous memory and leaves memory maps out of it"
)


def write_map(folder, dtype):
    """Write a stack whose first dimensions tell the classes apart, block by block, and its labels."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, 3, N)
    X = np.lib.format.open_memmap(folder / "X.npy", mode="w+", dtype=dtype, shape=(N, N_LAYERS, DIM))
    noise = rng.normal(size=(1000, N_LAYERS, DIM)).astype(np.float32)
    signal = 3 * np.eye(3, DIM, dtype=np.float32)
    for start in range(0, N, 1000):
        X[start : start + 1000] = noise + signal[y[start : start + 1000], None]
    np.save(folder / "y.npy", y)


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """Return a function that gives what a process of its own measured, for each case of one dtype."""

    @functools.cache
    def measure(dtype):
        folder = tmp_path_factory.mktemp("map")
        write_map(folder, dtype)
        script = Path(__file__).with_name("fit_within_limit.py")
        # One thread reads one layer. Arrays are given back as soon as they are freed, so that the figures
        # are those of what is alive.
        done = subprocess.run(
            [sys.executable, script, folder, dtype, json.dumps(ALLOWANCES[dtype])],
            env=os.environ | {"OMP_NUM_THREADS": "1", "MALLOC_MMAP_THRESHOLD_": "1000000"},
            capture_output=True,
            text=True,
            check=False,
        )
        (folder / "X.npy").unlink()
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return measure


@on_linux
@pytest.mark.parametrize("dtype", ALLOWANCES)
def test_a_map_that_is_loaded_exceeds_the_largest_allowance(measured, dtype):
    assert ALLOWANCES[dtype]["load"] == max(ALLOWANCES[dtype].values())
    assert measured(dtype)["load"]["error"].startswith("MemoryError")


@on_linux
@pytest.mark.parametrize(("dtype", "name"), FITS)
def test_a_map_larger_than_the_memory_is_fitted_and_scored(measured, dtype, name):
    result = measured(dtype)[name]
    print(f"{name}, {dtype}: {result}")  # pytest -rP shows it
    assert result["error"] is None
    assert result["peak"] <= ALLOWANCES[dtype][name]
    assert result["accuracy"] > 0.5


FAST = {"max_epochs": 2, "early_stopping": True, "random_state": 0}
CLASSIFIERS = [
    pytest.param(VFusionClassifier(**FAST), id="VFusion"),
    pytest.param(VFusionClassifier(**FAST, scaling="standard"), id="VFusion, standard"),
    pytest.param(VFusionClassifier(**FAST, scaling="l2"), id="VFusion, l2"),
    pytest.param(VFusionClassifier(**FAST, scaling="token"), id="VFusion, token"),
    pytest.param(VFusionClassifier(**FAST, layers="quarterly"), id="VFusion, quarterly"),
    pytest.param(AttentiveFusionClassifier(**FAST, min_steps=0, layers="quarterly"), id="Attentive, quarterly"),
    pytest.param(LayerProbeClassifier(1, "mlp", **FAST), id="LayerProbe, mlp"),
    pytest.param(LayerProbeClassifier("best", C=0.01, cv=2, random_state=0), id="LayerProbe, best"),
    pytest.param(LayerVotingClassifier(probe="mlp", layers="quarterly", **FAST), id="LayerVoting, mlp, quarterly"),
    pytest.param(
        LayerVotingClassifier(probe=GaussianNB(), layers="quarterly"), id="LayerVoting, naive Bayes, quarterly"
    ),
    pytest.param(
        LayerVotingClassifier("calibrated", C=0.01, cv=2, layers="quarterly", random_state=0),
        id="LayerVoting, calibrated, quarterly",
    ),
    pytest.param(
        SuperLearnerClassifier(C=0.01, cv=2, layers="quarterly", random_state=0), id="SuperLearner, quarterly"
    ),
    pytest.param(
        NeuralLogitControllerClassifier(C=0.01, cv=2, layers="quarterly", **FAST),
        id="NeuralLogitController, quarterly",
    ),
    pytest.param(MixtureOfExpertsClassifier(C=0.01, cv=2, layers="quarterly", **FAST), id="MoE, quarterly"),
    pytest.param(MixtureOfExpertsClassifier("joint", layers="quarterly", **FAST), id="MoE, joint, quarterly"),
]
every_classifier = pytest.mark.parametrize("classifier", CLASSIFIERS)


def samples(dtype, n_tokens=None, size=1.0):
    """90 stacks of 12 layers, with a signal of three classes in all of them."""
    rng = np.random.default_rng(0)
    y = np.arange(90) % 3
    shape = (90, 12, 6) if n_tokens is None else (90, 12, n_tokens, 6)
    X = rng.normal(size=shape) + 2 * np.eye(3, 6)[y].reshape(90, *(len(shape) - 2) * [1], 6)
    return (size * X / np.abs(X).max()).astype(dtype), y


@pytest.mark.usefixtures("one_thread")
@every_classifier
@pytest.mark.parametrize(("dtype", "n_tokens"), [(np.float32, None), (np.float16, None), (np.float16, 2)])
def test_a_read_only_map_gives_the_bits_of_the_array(classifier, dtype, n_tokens, tmp_path):
    X, y = samples(dtype, n_tokens)
    np.save(tmp_path / "X.npy", X)
    mapped = np.load(tmp_path / "X.npy", mmap_mode="r")
    expected, fitted = clone(classifier).fit(X, y), clone(classifier).fit(mapped, y)
    assert_array_equal(fitted.predict_proba(mapped), expected.predict_proba(X))
    for method in ("layer_weights", "attention_weights", "transform"):
        if hasattr(fitted, method):
            assert_array_equal(getattr(fitted, method)(mapped), getattr(expected, method)(X))


@pytest.mark.usefixtures("one_thread")
@every_classifier
def test_float16_gives_the_bits_of_float32_even_where_sums_overflow(classifier):
    X, y = samples(np.float16, size=60_000)
    in_float16, in_float32 = clone(classifier).fit(X, y), clone(classifier).fit(X.astype(np.float32), y)
    found = in_float16.predict_proba(X)
    assert np.isfinite(found).all()
    assert_array_equal(found, in_float32.predict_proba(X.astype(np.float32)))


def test_layers_at_uneven_distances_are_read_only_where_rows_are_asked_for(tmp_path):
    X, _ = samples(np.float16, 2)
    np.save(tmp_path / "X.npy", X)
    view = take_layers(np.load(tmp_path / "X.npy", mmap_mode="r"), [3, 6, 9, 11])
    assert isinstance(view.X, np.memmap)
    assert (view.shape, view.dtype, view.ndim, len(view)) == ((90, 4, 2, 6), np.float16, 4, 90)
    for rows in (np.array([5, 2, 70]), slice(3, 80, 7), slice(None), np.arange(0)):
        assert_array_equal(view[rows], X[rows][:, [3, 6, 9, 11]])
        assert view[rows].flags.c_contiguous
    assert_array_equal(np.asarray(view, dtype=np.float32), X[:, [3, 6, 9, 11]].astype(np.float32))


@pytest.mark.parametrize("indices", [[0, 2, 3], [1], [0, 1], [3, 0]], ids=str)
def test_layers_of_layers_are_the_layers_of_the_stack(indices):
    X, _ = samples(np.float32)
    view = take_layers(X, [3, 6, 9, 11])
    assert_array_equal(take_layers(view, indices), X[:, [3, 6, 9, 11]][:, indices])


def test_layers_at_uneven_distances_pickle():
    X, _ = samples(np.float32)
    assert_array_equal(pickle.loads(pickle.dumps(take_layers(X, [0, 1, 5]))), X[:, [0, 1, 5]])


@pytest.mark.parametrize("n_layers", [None, 12])
def test_a_map_that_is_read_stays_a_view(n_layers, tmp_path):
    X, y = samples(np.float16)
    np.save(tmp_path / "X.npy", X if n_layers is None else X.reshape(90, -1))
    mapped = np.load(tmp_path / "X.npy", mmap_mode="r")
    stack, _ = read_stack(VFusionClassifier(n_layers=n_layers), mapped, reset=True, y=y)
    assert np.shares_memory(stack, mapped)
    assert_array_equal(stack[:, :, 0], X)
