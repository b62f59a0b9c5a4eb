"""Every classifier on stacks whose best answer is known."""

from functools import cache

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone

from skvfusion import (
    AttentiveFusionClassifier,
    LayerProbeClassifier,
    LayerVotingClassifier,
    MixtureOfExpertsClassifier,
    NeuralLogitControllerClassifier,
    SuperLearnerClassifier,
    VFusionClassifier,
)
from skvfusion.recoverability import layer_accuracy, oracle_accuracy, recovery_rate

pytestmark = pytest.mark.usefixtures("one_thread")

SMALL = {"hidden": 32, "latent_dim": 8, "max_epochs": 40, "random_state": 0}
BRIEF = SMALL | {"max_epochs": 15}
GATE = {"hidden": 16, "lr": 3e-3, "max_epochs": 40, "cv": 3, "random_state": 0}
FOLDS = {"cv": 3, "random_state": 0}
METHODS = {
    "vfusion": VFusionClassifier(**SMALL),
    "alf": AttentiveFusionClassifier(min_steps=200, lr=5e-3, random_state=0),
    "sl nll": SuperLearnerClassifier("nll", **FOLDS),
    "sl nnls": SuperLearnerClassifier("nnls", **FOLDS),
    "sl logit": SuperLearnerClassifier("logit", **FOLDS),
    "nlc": NeuralLogitControllerClassifier(**GATE),
    "moe": MixtureOfExpertsClassifier(**GATE),
    "moe joint": MixtureOfExpertsClassifier("joint", **GATE | {"lr": 0.01}),
    "logit": LayerVotingClassifier("logit"),
    "proba": LayerVotingClassifier("proba"),
    "calibrated": LayerVotingClassifier("calibrated", **FOLDS),
    "majority": LayerVotingClassifier("majority"),
    "best": LayerProbeClassifier("best", **FOLDS),
    "best mlp": LayerProbeClassifier(
        "best", "mlp", cv="holdout", validation_fraction=0.3, **SMALL | {"max_epochs": 15}
    ),
}
WEIGHING = ["alf", "sl nll", "sl nnls", "sl logit", "nlc", "moe", "moe joint"]
N_TRAIN = 220
N_TEST = 400


def unlabelled(rng, n_layers):
    """Noise in layers that have means of their own, by which attention knows them."""
    return rng.normal(size=(N_TRAIN + N_TEST, n_layers, 8)) + 2 * rng.normal(size=(n_layers, 8))


def signal_in_layers_3_to_5(rng):
    y = rng.integers(0, 3, N_TRAIN + N_TEST)
    X = unlabelled(rng, 8)
    X[:, 3:6, :3] += 2 * np.eye(3)[y][:, None]
    return X, y


def one_perfect_layer(rng):
    y = rng.integers(0, 3, N_TRAIN + N_TEST)
    X = unlabelled(rng, 6)
    X[:, 4, :3] += 12 * np.eye(3)[y]
    return X, y


def identical_layers(rng):
    y = rng.integers(0, 3, N_TRAIN + N_TEST)
    X = unlabelled(rng, 1)
    X[:, 0, :3] += 2 * np.eye(3)[y]
    return np.repeat(X, 5, axis=1), y


def complementary_layers(rng):
    """Layer 0 tells classes 0 and 1 from 2 and 3, layer 2 the even from the odd."""
    y = rng.integers(0, 4, N_TRAIN + N_TEST)
    X = unlabelled(rng, 4)
    X[:, 0, 0] += 5 * (y < 2)
    X[:, 2, 1] += 5 * (y % 2)
    return X, y


def pure_noise(rng):
    return unlabelled(rng, 4), rng.integers(0, 4, N_TRAIN + N_TEST)


@cache
def data(case):
    X, y = case(np.random.default_rng(0))
    X = X.astype(np.float32)
    return X[:N_TRAIN], y[:N_TRAIN], X[N_TRAIN:], y[N_TRAIN:]


@cache
def fitted(name, case):
    X, y, _, _ = data(case)
    return clone(METHODS[name]).fit(X, y)


@cache
def accuracy(name, case):
    _, _, X, y = data(case)
    return fitted(name, case).score(X, y)


@cache
def layer_predictions(case):
    X, y, X_test, _ = data(case)
    return np.array([LayerProbeClassifier(layer).fit(X, y).predict(X_test) for layer in range(X.shape[1])])


def layer_accuracies(case):
    return layer_accuracy(layer_predictions(case), data(case)[3])


def shares(name, case):
    """How much each layer counts, as shares of 1: its weight, times the size of its logits where these are weighed."""
    model, (_, _, X, _) = fitted(name, case), data(case)
    if hasattr(model, "layer_weights"):
        weights = model.layer_weights(X).mean(axis=0)
    else:
        weights = model.layer_importance_ if name == "alf" else model.layer_weights_
    assert weights.min() >= 0
    if name in ("sl logit", "nlc"):
        # Probes that know little have logits so small that a large weight changes nothing.
        weights = weights * model.probes_.logits(X[:, :, None]).std(axis=(0, 2))
    return weights / weights.sum()


@pytest.mark.parametrize("name", METHODS)
def test_signal_in_some_layers_is_found(name):
    layers = layer_accuracies(signal_in_layers_3_to_5)
    assert layers[[0, 1, 2, 6, 7]].max() < 0.45 < 0.7 < layers[3:6].min()
    assert accuracy(name, signal_in_layers_3_to_5) > layers[[0, 1, 2, 6, 7]].max() + 0.25
    margin = {"majority": 0.2, "best": 0.1, "best mlp": 0.15}.get(name, 0.02)
    assert accuracy(name, signal_in_layers_3_to_5) > layers.max() - margin


@pytest.mark.parametrize(
    "name", ["vfusion", "alf", "sl nll", "sl nnls", "sl logit", "nlc", "moe", "logit", "calibrated"]
)
def test_signal_in_some_layers_is_worth_more_than_the_best_of_them(name):
    assert accuracy(name, signal_in_layers_3_to_5) > layer_accuracies(signal_in_layers_3_to_5).max() + 0.02


@pytest.mark.parametrize("name", WEIGHING)
def test_weights_concentrate_on_the_layers_with_the_signal(name):
    weights = shares(name, signal_in_layers_3_to_5)
    assert weights.shape == (8,)
    assert weights.sum() == pytest.approx(1)
    assert weights[3:6].sum() > (0.5 if name == "alf" else 0.7)
    assert weights.argmax() in (3, 4, 5)
    assert weights[[0, 1, 2, 6, 7]].mean() < 0.5 * weights[3:6].mean()


@pytest.mark.parametrize("name", ["best", "best mlp"])
def test_best_is_one_of_the_layers_with_the_signal(name):
    assert fitted(name, signal_in_layers_3_to_5).layer_ in (3, 4, 5)


@pytest.mark.parametrize("name", [name for name in METHODS if name != "majority"])
def test_a_perfect_layer_makes_a_perfect_classifier(name):
    layers = layer_accuracies(one_perfect_layer)
    assert layers[4] == 1
    assert np.delete(layers, 4).max() < 0.45
    assert accuracy(name, one_perfect_layer) > (0.95 if name == "proba" else 0.98)


def test_a_majority_of_ignorant_layers_outvotes_a_perfect_one():
    assert 0.45 < accuracy("majority", one_perfect_layer) < 0.9


@pytest.mark.parametrize(
    ("name", "share"),
    [("sl nll", 1 - 1e-6), ("sl nnls", 0.99), ("sl logit", 0.8), ("moe", 0.95), ("moe joint", 0.95), ("nlc", 0.6)],
)
def test_a_perfect_layer_gets_the_weight(name, share):
    assert shares(name, one_perfect_layer)[4] > share


def test_a_perfect_layer_gets_the_most_attention():
    assert shares("alf", one_perfect_layer).argmax() == 4


@pytest.mark.parametrize("name", ["best", "best mlp"])
def test_a_perfect_layer_is_picked(name):
    assert fitted(name, one_perfect_layer).layer_ == 4
    assert fitted(name, one_perfect_layer).layer_scores_.argmax() == 4


@pytest.mark.parametrize("name", METHODS)
def test_identical_layers_are_as_good_as_one(name):
    single = layer_accuracies(identical_layers)
    assert_array_equal(single, single[0])
    margin = 0.08 if name in ("best mlp", "moe joint") else 0.05
    assert accuracy(name, identical_layers) == pytest.approx(single[0], abs=margin)


@pytest.mark.parametrize(
    "name", ["sl nll", "sl nnls", "sl logit", "nlc", "moe", "logit", "proba", "calibrated", "majority", "best"]
)
def test_identical_probes_combined_predict_as_one(name):
    _, _, X, _ = data(identical_layers)
    assert np.mean(fitted(name, identical_layers).predict(X) == layer_predictions(identical_layers)[0]) > 0.995


@pytest.mark.parametrize("name", ["sl nll", "sl nnls", "moe", "logit", "proba"])
def test_identical_probes_averaged_have_the_probabilities_of_one(name):
    X, y, X_test, _ = data(identical_layers)
    expected = LayerProbeClassifier(0).fit(X, y).predict_proba(X_test)
    assert_allclose(fitted(name, identical_layers).predict_proba(X_test), expected, atol=1e-5)


@pytest.mark.parametrize("name", ["alf", "nlc", "moe", "sl logit"])
def test_identical_layers_count_the_same(name):
    assert_allclose(shares(name, identical_layers), 1 / 5, atol=1e-3)


@pytest.mark.parametrize("name", [name for name in METHODS if name not in {"majority", "best", "best mlp"}])
def test_complementary_layers_are_better_together(name):
    layers = layer_accuracies(complementary_layers)
    assert layers.max() < 0.58
    assert accuracy(name, complementary_layers) > layers.max() + 0.08


@pytest.mark.parametrize("name", ["vfusion", "alf", "sl logit", "nlc", "logit", "calibrated"])
def test_complementary_layers_together_know_almost_everything(name):
    assert accuracy(name, complementary_layers) > 0.85


@pytest.mark.parametrize("name", [name for name in WEIGHING if name != "moe joint"])
def test_both_complementary_layers_get_weight(name):
    weights = shares(name, complementary_layers)
    assert weights[[0, 2]].min() > 1.2 * weights[[1, 3]].max()


@pytest.mark.parametrize("name", METHODS)
def test_nothing_is_learned_from_noise(name):
    assert accuracy(name, pure_noise) == pytest.approx(0.25, abs=0.09)


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize(
    "case", [signal_in_layers_3_to_5, one_perfect_layer, identical_layers, complementary_layers, pure_noise]
)
def test_probabilities_are_probabilities(name, case):
    proba = fitted(name, case).predict_proba(data(case)[2])
    assert proba.min() >= 0
    assert_allclose(proba.sum(axis=1), 1, rtol=1e-6)


def test_the_oracle_of_fitted_layers_is_at_least_the_best_and_grows_with_the_layers():
    _, _, _, y = data(signal_in_layers_3_to_5)
    predictions = layer_predictions(signal_in_layers_3_to_5)
    oracles = [oracle_accuracy(predictions[layer:], y) for layer in range(8)]
    assert oracles == sorted(oracles, reverse=True)
    assert oracles[0] >= layer_accuracy(predictions, y).max()


def test_cumulative_accuracy_of_internal_classifiers_is_the_oracle():
    _, _, _, y = data(signal_in_layers_3_to_5)
    right = [set(np.flatnonzero(layer == y)) for layer in layer_predictions(signal_in_layers_3_to_5)]
    cumulative = len(set.union(*right)) / len(y)
    assert oracle_accuracy(layer_predictions(signal_in_layers_3_to_5), y) == pytest.approx(cumulative)


def test_destructive_overthinking_is_the_recovery_rate():
    _, _, _, y = data(signal_in_layers_3_to_5)
    *inner, last = (set(np.flatnonzero(layer == y)) for layer in layer_predictions(signal_in_layers_3_to_5))
    wrong = set(range(len(y))) - last
    destructive = len(set.union(*inner) & wrong) / len(wrong)
    assert recovery_rate(layer_predictions(signal_in_layers_3_to_5), y) == pytest.approx(destructive)


@pytest.mark.parametrize("layer", [4, -1])
def test_vfusion_of_one_layer_is_that_layers_mlp(layer):
    X, y, X_test, _ = data(one_perfect_layer)
    fused = VFusionClassifier(layers=[layer], **SMALL).fit(X, y)
    probe = LayerProbeClassifier(layer, "mlp", **SMALL).fit(X, y)
    assert_array_equal(fused.predict_proba(X_test), probe.predict_proba(X_test))


def test_the_best_mlp_is_vfusion_of_the_layer_that_it_picked():
    X, y, X_test, _ = data(one_perfect_layer)
    best = fitted("best mlp", one_perfect_layer)
    fused = VFusionClassifier(layers=[best.layer_], **BRIEF).fit(X, y)
    assert_array_equal(best.predict_proba(X_test), fused.predict_proba(X_test))
