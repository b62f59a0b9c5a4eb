import pickle

import numpy as np
import pytest
import torch
from joblib import Parallel, delayed, parallel_config
from numpy.testing import assert_allclose, assert_array_equal
from scipy.special import log_softmax
from sklearn.base import BaseEstimator, ClassifierMixin, clone
from sklearn.naive_bayes import GaussianNB

from skvfusion import (
    LayerProbeClassifier,
    LayerVotingClassifier,
    NeuralLogitControllerClassifier,
    VFusionClassifier,
)
from skvfusion.fusion.logit_controller import LogitControllerNet

pytestmark = pytest.mark.usefixtures("one_thread")

WEIGHTINGS = ["softplus", "temperature", "exp", "raw"]
every_weighting = pytest.mark.parametrize("weighting", WEIGHTINGS)

FAST = {"hidden": 16, "lr": 3e-3, "max_epochs": 20, "cv": 3, "random_state": 0}
# Leaves the controller where it starts.
STILL = {"hidden": 16, "lr": 1e-12, "weight_decay": 0, "max_epochs": 2, "cv": 2, "random_state": 0}


class Reader(ClassifierMixin, BaseEstimator):
    """A probe that learns nothing: its layer's first numbers are its logits."""

    def fit(self, X, y):
        self.classes_ = np.unique(y)
        return self

    def predict_proba(self, X):
        return np.exp(log_softmax(X[:, : len(self.classes_)], axis=1))


def hard_stack(make_stack, **params):
    X, y = make_stack(n_per_class=40, n_layers=4, signal_layers=(0, 1, 3), strength=1.5, **params)
    return X[:-40], y[:-40], X[-40:], y[-40:]


def one_of_two_is_right(n=400, dim=6):
    """Two layers, one of which shows the class and the other a wrong one; their last number says which is which."""
    rng = np.random.default_rng(0)
    y, right = rng.integers(0, 3, n), rng.integers(0, 2, n)
    X = rng.normal(size=(n, 2, dim)).astype(np.float32)
    X[np.arange(n), right, y] += 4
    X[np.arange(n), 1 - right, (y + rng.integers(1, 3, n)) % 3] += 4
    X[:, :, -1] += (4 * right - 2)[:, None]
    return X, y, right


def noise_beside_signal(n=90, dim=80):
    """A layer of noise in so many dimensions that a probe can learn its samples by heart, and one that knows."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, 3, 2 * n)
    X = rng.normal(size=(2 * n, 2, dim)).astype(np.float32)
    X[np.arange(2 * n), 1, y] += 5
    return X[:n], y[:n], X[n:], y[n:]


@every_weighting
@pytest.mark.parametrize("n_classes", [2, 3])
def test_untrained_it_is_the_logit_vote(weighting, n_classes, make_stack):
    X, y, X_test, _ = hard_stack(make_stack, n_classes=n_classes)
    vote = LayerVotingClassifier("logit").fit(X, y)
    fitted = NeuralLogitControllerClassifier(weighting=weighting, **STILL).fit(X, y)
    assert_allclose(fitted.layer_weights(X_test), 1 / 4, rtol=1e-5)
    assert_allclose(fitted.decision_function(X_test), vote.decision_function(X_test), atol=1e-5)
    assert_array_equal(fitted.predict(X_test), vote.predict(X_test))


@every_weighting
@pytest.mark.parametrize("n_layers", [1, 2, 24, 100])
def test_every_weighting_starts_with_equal_weights_that_sum_to_1(weighting, n_layers):
    net = LogitControllerNet(n_layers, 2, 3, scaling=None, weighting=weighting, hidden=8, seed=0)
    logits = torch.randn(5, n_layers, 4, generator=torch.Generator().manual_seed(0))
    fused, weights = net(torch.ones(5, n_layers, 2, 3), logits)
    torch.testing.assert_close(weights, torch.full((5, n_layers), 1 / n_layers))
    torch.testing.assert_close(fused, logits.mean(1))


@pytest.mark.parametrize("equal", [0.01, 1, 30])
def test_equal_weights_of_any_size_decide_as_the_logit_vote(equal, make_stack):
    X, y, X_test, _ = hard_stack(make_stack)
    fitted = NeuralLogitControllerClassifier(weighting="raw", **STILL).fit(X, y)
    with torch.no_grad():
        fitted.net_.module_.controller[-1].bias.fill_(equal)
    vote = LayerVotingClassifier("logit").fit(X, y)
    assert_array_equal(fitted.predict(X_test), vote.predict(X_test))
    assert_allclose(fitted.decision_function(X_test), 4 * equal * vote.decision_function(X_test), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("weighting", "of_output"),
    [
        ("softplus", lambda t: np.log1p(np.exp(t))),
        ("temperature", lambda t: 1 / np.log1p(np.exp(t))),
        ("exp", np.exp),
        ("raw", lambda t: t),
    ],
)
def test_weights_are_what_the_weighting_makes_of_the_controllers_output(weighting, of_output, make_stack):
    X, y, X_test, _ = hard_stack(make_stack)
    fitted = NeuralLogitControllerClassifier(weighting=weighting, scaling=None, **FAST).fit(X, y)
    outputs = fitted.net_.module_.controller(torch.from_numpy(X_test.reshape(40, -1))).detach().double().numpy()
    assert_allclose(fitted.layer_weights(X_test), of_output(outputs), rtol=1e-4)


@pytest.mark.parametrize("n_classes", [2, 3])
def test_logits_are_the_weighted_sum_of_the_probes_alone(n_classes, make_stack):
    X, y, X_test, _ = hard_stack(make_stack, n_classes=n_classes)
    fitted = NeuralLogitControllerClassifier(**FAST).fit(X, y)
    weights = fitted.layer_weights(X_test)
    layers = np.stack([LayerProbeClassifier(i).fit(X, y).decision_function(X_test) for i in range(4)], axis=1)
    weighted = np.einsum("nl,nl...->n...", weights, layers)
    assert np.ptp(weights, axis=0).min() > 0.01
    assert_allclose(fitted.decision_function(X_test), weighted, atol=1e-4)
    assert_allclose(fitted.predict_proba(X_test).sum(axis=1), 1)


@every_weighting
def test_layer_weights_are_one_number_for_each_sample_and_layer(weighting, make_stack):
    X, y, X_test, _ = hard_stack(make_stack)
    fitted = NeuralLogitControllerClassifier(weighting=weighting, layers=[0, 2, 3], **FAST).fit(X, y)
    weights = fitted.layer_weights(X_test)
    assert weights.shape == (len(X_test), 3)
    assert weights.dtype == np.float64
    assert weights.min() > 0 or weighting == "raw"
    assert_allclose(fitted.layer_weights(X_test[7:8]), weights[7:8], rtol=1e-5)


@every_weighting
def test_only_raw_weights_turn_a_layer_around_that_is_always_wrong(weighting):
    rng = np.random.default_rng(0)
    y = rng.integers(0, 3, 300)
    X = rng.normal(size=(300, 2, 3))
    X[np.arange(300), :, y] += [-2, 0.3]
    fitted = NeuralLogitControllerClassifier(weighting=weighting, probe=Reader(), scaling=None, **FAST).fit(X, y)
    weights = fitted.layer_weights(X).mean(axis=0)
    assert weights[0] < weights[1]
    assert (weights[0] < 0) == (weighting == "raw")
    assert (fitted.score(X, y) > 0.8) == (weighting == "raw")


@every_weighting
def test_it_learns_which_layer_to_trust_for_which_image(weighting):
    X, y, right = one_of_two_is_right()
    train, test = slice(0, 250), slice(250, None)
    params = FAST | {"max_epochs": 60}
    fitted = NeuralLogitControllerClassifier(weighting=weighting, **params).fit(X[train], y[train])
    logits = fitted.probes_.logits(X[test][:, :, None])
    constant = [
        np.mean((share * logits[:, 0] + (1 - share) * logits[:, 1]).argmax(axis=1) == y[test])
        for share in np.linspace(0, 1, 101)
    ]
    assert fitted.score(X[test], y[test]) > max(constant) + 0.15
    weights = fitted.layer_weights(X[test])
    assert np.mean(weights.argmax(axis=1) == right[test]) > 0.95
    assert weights[right[test] == 0, 0].mean() > 3 * weights[right[test] == 1, 0].mean()


def test_it_learns_from_probes_that_have_not_seen_the_samples():
    X, y, X_test, y_test = noise_beside_signal()
    noise, signal = (LayerProbeClassifier(layer, C=10).fit(X, y) for layer in (0, 1))
    assert noise.score(X, y) == signal.score(X, y) == 1
    for cv in (5, "holdout"):
        params = FAST | {"max_epochs": 60, "cv": cv, "validation_fraction": 0.3}
        fitted = NeuralLogitControllerClassifier(C=10, **params).fit(X, y)
        weights = fitted.layer_weights(X_test).mean(axis=0)
        assert weights[0] < 0.6 * weights[1]
        assert fitted.score(X_test, y_test) > 0.8


def test_the_controller_reads_what_was_held_out_only(make_stack):
    X, y, X_test, _ = hard_stack(make_stack)
    splits = [(np.arange(50), np.arange(50, 80))]
    changed = X.copy()
    changed[:50] += 5
    fitted, other = (
        NeuralLogitControllerClassifier(probe=Reader(), **FAST | {"cv": splits}).fit(Z, y) for Z in (X, changed)
    )
    assert_allclose(fitted.net_.module_.scaling.mean[:, 0], X[50:].mean(axis=0), rtol=1e-4)
    assert_allclose(other.layer_weights(X_test), fitted.layer_weights(X_test), rtol=1e-5)


def test_the_probes_are_fitted_on_everything_in_the_end(make_stack):
    X, y, X_test, _ = hard_stack(make_stack)
    fitted = NeuralLogitControllerClassifier(**FAST | {"cv": "holdout"}).fit(X, y)
    alone = np.stack([LayerProbeClassifier(i).fit(X, y).decision_function(X_test) for i in range(4)], axis=1)
    assert_allclose(fitted.probes_.logits(X_test[:, :, None]), alone, atol=1e-9)


def test_mlps_are_those_that_the_seed_gives_alone(make_stack):
    X, y, X_test, _ = hard_stack(make_stack)
    probe = VFusionClassifier(hidden=8, latent_dim=4, max_epochs=3)
    fitted = NeuralLogitControllerClassifier(probe=probe, **FAST).fit(X, y)
    logits = fitted.probes_.logits(X_test[:, :, None])
    for layer in range(4):
        alone = clone(probe).set_params(layers=[layer], random_state=0).fit(X, y)
        assert_allclose(logits[:, layer], alone.decision_function(X_test), atol=1e-5)
    expected = (fitted.layer_weights(X_test)[:, :, None] * logits).sum(axis=1)
    assert_allclose(fitted.decision_function(X_test), expected, atol=1e-5)


def test_mlps_have_their_own_training(make_stack):
    X, y, X_test, _ = hard_stack(make_stack)
    X, y = X[:40], y[:40]
    fitted = NeuralLogitControllerClassifier(probe="mlp", layers=[1], **FAST | {"cv": "holdout"}).fit(X, y)
    alone = VFusionClassifier(layers=[1], random_state=0).fit(X, y)
    assert_allclose(fitted.probes_.logits(X_test[:, [1], None])[:, 0], alone.decision_function(X_test), atol=1e-5)


def test_any_classifier_serves_as_probe(make_stack):
    X, y, X_test, y_test = hard_stack(make_stack)
    fitted = NeuralLogitControllerClassifier(probe=GaussianNB(), scaling=None, **FAST).fit(X, y)
    X_exact, X_test_exact = X.astype(float), X_test.astype(float)
    alone = [GaussianNB().fit(X_exact[:, i], y).predict_log_proba(X_test_exact[:, i]) for i in range(4)]
    assert_allclose(fitted.probes_.logits(X_test[:, :, None]), np.stack(alone, axis=1), atol=1e-6)
    assert fitted.score(X_test, y_test) > 0.6


@pytest.mark.parametrize("layers", ["second_half", [0, 3], -1])
def test_selecting_layers_is_slicing_the_stack(layers, make_stack):
    X, y, X_test, _ = hard_stack(make_stack)
    selected = NeuralLogitControllerClassifier(layers=layers, **FAST).fit(X, y)
    sliced = NeuralLogitControllerClassifier(**FAST).fit(X[:, selected.layers_], y)
    assert_array_equal(selected.predict_proba(X_test), sliced.predict_proba(X_test[:, selected.layers_]))
    assert_array_equal(selected.layer_weights(X_test), sliced.layer_weights(X_test[:, selected.layers_]))
    changed = np.full_like(X_test, 99)
    changed[:, selected.layers_] = X_test[:, selected.layers_]
    assert_array_equal(selected.predict_proba(changed), selected.predict_proba(X_test))


def fit_and_weigh(params, X, y):
    fitted = NeuralLogitControllerClassifier(**params).fit(X, y)
    return fitted.predict_proba(X), fitted.layer_weights(X)


def test_parallel_fits_give_the_same_bits(make_stack, global_rngs_untouched):
    X, y, _, _ = hard_stack(make_stack)
    expected = fit_and_weigh(FAST, X, y)
    for results in Parallel(2, backend="threading")(delayed(fit_and_weigh)(FAST, X, y) for _ in range(2)):
        for result, alone in zip(results, expected, strict=True):
            assert_array_equal(result, alone)


@pytest.mark.parametrize("probe", [GaussianNB(), VFusionClassifier(hidden=8, latent_dim=4, max_epochs=2)])
def test_jobs_do_not_change_a_bit(probe, make_stack):
    X, y, _, _ = hard_stack(make_stack)
    with parallel_config("threading"):
        one, two = (fit_and_weigh(FAST | {"probe": probe, "n_jobs": jobs}, X, y) for jobs in (1, 2))
    assert_array_equal(one[0], two[0])
    assert_array_equal(one[1], two[1])


@pytest.mark.parametrize("weighting", ["temperature", "exp"])
def test_the_number_of_threads_does_not_change_a_bit(weighting, make_stack):
    X, y = make_stack(n_per_class=25, n_classes=6, dim=48)
    params = {"weighting": weighting, "probe": Reader(), "max_epochs": 3, "cv": 2, "random_state": 0}
    results = []
    for count in (1, 2):
        torch.set_num_threads(count)
        results.append(fit_and_weigh(params, X, y))
    torch.set_num_threads(1)
    assert_array_equal(results[0][0], results[1][0])
    assert_array_equal(results[0][1], results[1][1])


def test_another_seed_gives_another_controller(make_stack):
    X, y, _, _ = hard_stack(make_stack)
    (_, first), (_, second) = (fit_and_weigh(FAST | {"random_state": seed}, X, y) for seed in (0, 1))
    assert not np.array_equal(first, second)


def test_a_pickle_predicts_and_weighs_the_same(make_stack):
    X, y, X_test, _ = hard_stack(make_stack)
    fitted = NeuralLogitControllerClassifier(**FAST).fit(X, y)
    loaded = pickle.loads(pickle.dumps(fitted))
    assert_array_equal(loaded.predict_proba(X_test), fitted.predict_proba(X_test))
    assert_array_equal(loaded.layer_weights(X_test), fitted.layer_weights(X_test))


def test_groups_keep_twins_on_one_side(rng):
    # Twins on both sides of a split make noise look almost as good as the signal.
    groups = np.repeat(np.arange(40), 3)
    X, y = np.repeat(rng.normal(size=(40, 2, 60)), 3, axis=0), groups % 2
    X[:, 1, :2] += 5 * np.eye(2)[y]
    params = FAST | {"max_epochs": 40}
    apart, together = (
        NeuralLogitControllerClassifier(**params).fit(X, y, groups=given).layer_weights(X).mean(axis=0)
        for given in (None, groups)
    )
    assert together[0] / together[1] < 0.25
    assert apart[0] / apart[1] > 0.5


def test_unseen_classes_of_a_fold_are_harmless(make_stack):
    X, y, X_test, y_test = hard_stack(make_stack)
    y = y.copy()
    y[0] = 7
    fitted = NeuralLogitControllerClassifier(**FAST).fit(X, y)
    assert np.isfinite(fitted.decision_function(X_test)).all()
    assert fitted.score(X_test, y_test) > 0.6


def test_history_is_the_controllers(make_stack):
    X, y, _, _ = hard_stack(make_stack)
    fitted = NeuralLogitControllerClassifier(**FAST).fit(X, y)
    assert len(fitted.history_) == fitted.n_iter_ == 20
    assert fitted.history_["train_loss"].iloc[-1] < fitted.history_["train_loss"].iloc[0]


@pytest.mark.parametrize(
    ("parameter", "value"),
    [("weighting", "softmax"), ("hidden", 0), ("hidden", None), ("probe", "knn"), ("C", 0), ("cv", "loo")],
)
def test_bad_parameters_are_refused_by_name(parameter, value, make_stack):
    X, y = make_stack()
    with pytest.raises(ValueError, match=f"The '{parameter}' parameter"):
        NeuralLogitControllerClassifier(**{parameter: value}).fit(X, y)
