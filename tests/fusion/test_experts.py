import pickle

import numpy as np
import pytest
import torch
from joblib import Parallel, delayed, parallel_config
from numpy.testing import assert_allclose, assert_array_equal
from scipy.special import log_softmax, softmax
from sklearn.base import BaseEstimator, ClassifierMixin, clone
from sklearn.naive_bayes import GaussianNB
from sklearn.tree import DecisionTreeClassifier

from skvfusion import LayerProbeClassifier, LayerVotingClassifier, MixtureOfExpertsClassifier, VFusionClassifier

pytestmark = pytest.mark.usefixtures("one_thread")

FAST = {"hidden": 16, "lr": 3e-3, "max_epochs": 20, "cv": 3, "random_state": 0}
# Leaves the gate where it starts.
STILL = {"hidden": 16, "lr": 1e-12, "weight_decay": 0, "max_epochs": 2, "cv": 2, "random_state": 0}
KINDS = [
    pytest.param({}, id="frozen"),
    pytest.param({"experts": "joint", "lr": 0.01}, id="joint"),
    pytest.param({"hidden": None, "lr": 0.01}, id="linear gate"),
    pytest.param({"experts": "joint", "hidden": None, "lr": 0.01}, id="joint, linear gate"),
]
every_kind = pytest.mark.parametrize("kind", KINDS)


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


def layer_proba(X_train, y_train, X):
    return np.stack([LayerProbeClassifier(i).fit(X_train, y_train).predict_proba(X) for i in range(X.shape[1])], axis=1)


def mixed(weights, probabilities):
    return np.einsum("nl,nlc->nc", weights, probabilities)


def joint_probabilities(fitted, X):
    """What the experts of a net without scaling say."""
    experts = fitted.net_.module_.experts
    parts = X.reshape(len(X), len(experts), -1).astype(float)
    logits = [
        parts[:, i] @ expert.weight.detach().numpy() + expert.bias.detach().numpy() for i, expert in enumerate(experts)
    ]
    return softmax(np.stack(logits, axis=1), axis=2)


@pytest.mark.parametrize("hidden", [16, None])
@pytest.mark.parametrize("n_classes", [2, 3])
def test_untrained_it_is_the_probability_vote(hidden, n_classes, make_stack):
    X, y, X_test, _ = hard_stack(make_stack, n_classes=n_classes)
    vote = LayerVotingClassifier("proba").fit(X, y)
    fitted = MixtureOfExpertsClassifier(**STILL | {"hidden": hidden}).fit(X, y)
    assert_allclose(fitted.layer_weights(X_test), 1 / 4, rtol=1e-5)
    assert_allclose(fitted.predict_proba(X_test), vote.predict_proba(X_test), atol=1e-6)


@pytest.mark.parametrize("hidden", [16, None])
def test_untrained_joint_experts_count_equally(hidden, make_stack):
    X, y, X_test, _ = hard_stack(make_stack)
    fitted = MixtureOfExpertsClassifier("joint", scaling=None, **STILL | {"hidden": hidden}).fit(X, y)
    assert_allclose(fitted.layer_weights(X_test), 1 / 4, rtol=1e-5)
    assert_allclose(fitted.predict_proba(X_test), joint_probabilities(fitted, X_test).mean(axis=1), atol=1e-6)


def test_a_constant_gate_averages_with_its_weights(make_stack):
    X, y, X_test, _ = hard_stack(make_stack)
    fitted = MixtureOfExpertsClassifier(**STILL).fit(X, y)
    weights = [0.1, 0.2, 0.3, 0.4]
    with torch.no_grad():
        fitted.net_.module_.gate[-1].bias.copy_(torch.tensor(weights).log() + 5)
    assert_allclose(fitted.layer_weights(X_test), np.tile(weights, (40, 1)), rtol=1e-5)
    expected = np.einsum("nlc,l->nc", layer_proba(X, y, X_test), weights)
    assert_allclose(fitted.predict_proba(X_test), expected, atol=1e-6)


@pytest.mark.parametrize("hidden", [16, None])
@pytest.mark.parametrize("n_classes", [2, 3])
def test_probabilities_are_the_probes_mixed_by_the_gate(hidden, n_classes, make_stack):
    X, y, X_test, _ = hard_stack(make_stack, n_classes=n_classes)
    fitted = MixtureOfExpertsClassifier(**FAST | {"hidden": hidden}).fit(X, y)
    weights = fitted.layer_weights(X_test)
    proba = fitted.predict_proba(X_test)
    assert np.ptp(weights, axis=0).min() > 0.05
    assert_allclose(proba, mixed(weights, layer_proba(X, y, X_test)), atol=1e-5)
    logits = fitted.probes_.logits(X_test[:, :, None])
    assert_allclose(proba, mixed(weights, softmax(logits, axis=2)), atol=1e-5)


@pytest.mark.parametrize("hidden", [16, None])
@pytest.mark.parametrize("n_tokens", [1, 2])
def test_joint_probabilities_are_the_experts_mixed_by_the_gate(hidden, n_tokens, make_stack):
    X, y, X_test, _ = hard_stack(make_stack)
    X, X_test = X.reshape(-1, 4, n_tokens, 8 // n_tokens), X_test.reshape(-1, 4, n_tokens, 8 // n_tokens)
    params = FAST | {"hidden": hidden, "scaling": None, "lr": 0.01}
    fitted = MixtureOfExpertsClassifier("joint", **params).fit(X, y)
    expected = mixed(fitted.layer_weights(X_test), joint_probabilities(fitted, X_test))
    assert_allclose(fitted.predict_proba(X_test), expected, atol=1e-5)


@every_kind
@pytest.mark.parametrize("n_classes", [2, 3])
def test_weights_and_probabilities_sum_to_1(kind, n_classes, make_stack):
    X, y, X_test, _ = hard_stack(make_stack, n_classes=n_classes)
    fitted = MixtureOfExpertsClassifier(layers=[0, 2, 3], **FAST | kind).fit(X, y)
    weights, proba = fitted.layer_weights(X_test), fitted.predict_proba(X_test)
    assert weights.shape == (40, 3)
    assert weights.dtype == np.float64
    assert weights.min() >= 0
    assert_allclose(weights.sum(axis=1), 1, rtol=1e-6)
    assert proba.shape == (40, n_classes)
    assert proba.min() >= 0
    assert_allclose(proba.sum(axis=1), 1, rtol=1e-6)
    assert_array_equal(fitted.classes_[proba.argmax(axis=1)], fitted.predict(X_test))


@every_kind
def test_logits_are_finite_far_away(kind, make_stack):
    X, y, X_test, _ = hard_stack(make_stack)
    fitted = MixtureOfExpertsClassifier(**FAST | kind).fit(X, y)
    assert np.isfinite(fitted.predict_log_proba(1e4 * X_test)).all()
    assert_allclose(fitted.layer_weights(1e4 * X_test).sum(axis=1), 1, rtol=1e-6)


@every_kind
def test_it_learns_which_layer_to_trust_for_which_image(kind):
    X, y, right = one_of_two_is_right()
    train, test = slice(0, 250), slice(250, None)
    fitted = MixtureOfExpertsClassifier(**FAST | {"max_epochs": 60} | kind).fit(X[train], y[train])
    vote = LayerVotingClassifier("proba").fit(X[train], y[train])
    layers = softmax(vote.probes_.logits(X[test][:, :, None]), axis=2)
    constant = [
        np.mean((share * layers[:, 0] + (1 - share) * layers[:, 1]).argmax(axis=1) == y[test])
        for share in np.linspace(0, 1, 101)
    ]
    assert fitted.score(X[test], y[test]) > max(constant) + 0.15
    weights = fitted.layer_weights(X[test])
    assert np.mean(weights.argmax(axis=1) == right[test]) > 0.95
    assert weights[right[test] == 0, 0].mean() > 0.8 > 0.2 > weights[right[test] == 1, 0].mean()


def test_joint_experts_learn_from_the_images_that_the_gate_gives_them():
    X, y, _ = one_of_two_is_right()
    train, test = slice(0, 250), slice(250, None)
    params = FAST | {"max_epochs": 60, "lr": 0.01}
    frozen, joint = (
        MixtureOfExpertsClassifier(experts, **params).fit(X[train], y[train]).score(X[test], y[test])
        for experts in ("frozen", "joint")
    )
    assert joint > 0.95 > frozen


@pytest.mark.parametrize("cv", [5, "holdout"])
def test_the_gate_learns_from_probes_that_have_not_seen_the_samples(cv, rng):
    y = rng.integers(0, 3, 240)
    X = rng.normal(size=(240, 2, 30))
    X[np.arange(240), 1, y] += 6
    probe = DecisionTreeClassifier()
    params = FAST | {"max_epochs": 60, "cv": cv, "validation_fraction": 0.3}
    fitted = MixtureOfExpertsClassifier(probe=probe, **params).fit(X[:120], y[:120])
    # On what they have seen, the trees of either layer make no error.
    assert (fitted.probes_.logits(X[:120, :, None]).argmax(axis=2) == y[:120, None]).all()
    assert fitted.layer_weights(X[120:])[:, 1].mean() > 0.8
    assert fitted.score(X[120:], y[120:]) > 0.9


def test_the_gate_reads_what_was_held_out_only(make_stack):
    X, y, X_test, _ = hard_stack(make_stack)
    splits = [(np.arange(50), np.arange(50, 80))]
    changed = X.copy()
    changed[:50] += 5
    fitted, other = (
        MixtureOfExpertsClassifier(probe=Reader(), **FAST | {"cv": splits}).fit(Z, y) for Z in (X, changed)
    )
    assert_allclose(fitted.net_.module_.scaling.mean[:, 0], X[50:].mean(axis=0), rtol=1e-4)
    assert_allclose(other.layer_weights(X_test), fitted.layer_weights(X_test), rtol=1e-5)


def test_joint_experts_ignore_folds_and_probes(make_stack):
    X, y, X_test, _ = hard_stack(make_stack)
    plain = MixtureOfExpertsClassifier("joint", **FAST).fit(X, y)
    other = MixtureOfExpertsClassifier("joint", probe="mlp", C=7, **FAST | {"cv": "holdout"}).fit(X, y)
    assert not hasattr(plain, "probes_")
    assert_array_equal(other.predict_proba(X_test), plain.predict_proba(X_test))
    assert_allclose(plain.net_.module_.scaling.mean[:, 0], X.mean(axis=0), rtol=1e-4)
    # One sample of a class cannot be split.
    assert MixtureOfExpertsClassifier("joint", **FAST).fit(X[:2], [0, 1]).predict(X[:2]).shape == (2,)


def test_a_refit_with_the_other_kind_of_experts_leaves_nothing_of_the_first(make_stack):
    X, y, X_test, _ = hard_stack(make_stack)
    fitted = MixtureOfExpertsClassifier(**FAST)
    for experts in ("frozen", "joint", "frozen"):
        fitted.set_params(experts=experts).fit(X, y)
        alone = MixtureOfExpertsClassifier(experts, **FAST).fit(X, y)
        assert hasattr(fitted, "probes_") == (experts == "frozen")
        assert_array_equal(fitted.predict_proba(X_test), alone.predict_proba(X_test))
        before = fitted.set_params(experts="joint" if experts == "frozen" else "frozen").predict_proba(X_test)
        assert_array_equal(before, alone.predict_proba(X_test))


@every_kind
def test_it_learns(kind, make_stack):
    X, y, X_test, y_test = hard_stack(make_stack)
    fitted = MixtureOfExpertsClassifier(**FAST | {"max_epochs": 40} | kind).fit(X, y)
    assert fitted.score(X_test, y_test) > 0.7
    assert len(fitted.history_) == fitted.n_iter_ == 40
    assert fitted.history_["train_loss"].iloc[-1] < fitted.history_["train_loss"].iloc[0]


def test_the_loss_is_the_mixtures_negative_log_likelihood(make_stack):
    X, y, _, _ = hard_stack(make_stack)
    splits = [(np.arange(50), np.arange(50, 80))]
    fitted = MixtureOfExpertsClassifier(probe=Reader(), scaling=None, **STILL | {"cv": splits}).fit(X, y)
    proba = softmax(X[50:, :, :3].astype(float), axis=2).mean(axis=1)
    likelihood = -np.log(proba[np.arange(30), y[50:]]).mean()
    assert fitted.history_["train_loss"].iloc[0] == pytest.approx(likelihood, rel=1e-4)


def test_mlps_are_those_that_the_seed_gives_alone(make_stack):
    X, y, X_test, _ = hard_stack(make_stack)
    probe = VFusionClassifier(hidden=8, latent_dim=4, max_epochs=3)
    fitted = MixtureOfExpertsClassifier(probe=probe, **FAST).fit(X, y)
    alone = [clone(probe).set_params(layers=[i], random_state=0).fit(X, y).predict_proba(X_test) for i in range(4)]
    expected = mixed(fitted.layer_weights(X_test), np.stack(alone, axis=1))
    assert_allclose(fitted.predict_proba(X_test), expected, atol=1e-5)


def test_any_classifier_serves_as_probe(make_stack):
    X, y, X_test, y_test = hard_stack(make_stack)
    fitted = MixtureOfExpertsClassifier(probe=GaussianNB(), scaling=None, **FAST).fit(X, y)
    X, X_exact = X.astype(float), X_test.astype(float)
    alone = [GaussianNB().fit(X[:, i], y).predict_proba(X_exact[:, i]) for i in range(4)]
    expected = mixed(fitted.layer_weights(X_test), np.stack(alone, axis=1))
    assert_allclose(fitted.predict_proba(X_test), expected, atol=1e-5)
    assert fitted.score(X_test, y_test) > 0.6


@every_kind
@pytest.mark.parametrize("layers", ["second_half", [0, 3], -1])
def test_selecting_layers_is_slicing_the_stack(kind, layers, make_stack):
    X, y, X_test, _ = hard_stack(make_stack)
    params = FAST | {"max_epochs": 5} | kind
    selected = MixtureOfExpertsClassifier(layers=layers, **params).fit(X, y)
    sliced = MixtureOfExpertsClassifier(**params).fit(X[:, selected.layers_], y)
    assert_array_equal(selected.predict_proba(X_test), sliced.predict_proba(X_test[:, selected.layers_]))
    assert_array_equal(selected.layer_weights(X_test), sliced.layer_weights(X_test[:, selected.layers_]))
    changed = np.full_like(X_test, 99)
    changed[:, selected.layers_] = X_test[:, selected.layers_]
    assert_array_equal(selected.predict_proba(changed), selected.predict_proba(X_test))


def fit_and_weigh(params, X, y):
    fitted = MixtureOfExpertsClassifier(**params).fit(X, y)
    return fitted.predict_proba(X), fitted.layer_weights(X)


def test_parallel_fits_give_the_same_bits(make_stack, global_rngs_untouched):
    X, y, _, _ = hard_stack(make_stack)
    kinds = [FAST | kind.values[0] for kind in KINDS]
    expected = [fit_and_weigh(params, X, y) for params in kinds]
    results = Parallel(2, backend="threading")(delayed(fit_and_weigh)(params, X, y) for params in kinds)
    for result, alone in zip(results, expected, strict=True):
        assert_array_equal(result[0], alone[0])
        assert_array_equal(result[1], alone[1])


@pytest.mark.parametrize("probe", [GaussianNB(), VFusionClassifier(hidden=8, latent_dim=4, max_epochs=2)])
def test_jobs_do_not_change_a_bit(probe, make_stack):
    X, y, _, _ = hard_stack(make_stack)
    with parallel_config("threading"):
        one, two = (fit_and_weigh(FAST | {"probe": probe, "n_jobs": jobs}, X, y) for jobs in (1, 2))
    assert_array_equal(one[0], two[0])
    assert_array_equal(one[1], two[1])


@pytest.mark.parametrize("kind", KINDS[2:])
def test_the_number_of_threads_does_not_change_a_bit(kind, make_stack):
    X, y = make_stack(n_per_class=25, n_classes=6, dim=48)
    params = {"probe": Reader(), "max_epochs": 3, "cv": 2, "random_state": 0} | kind
    results = []
    for count in (1, 2):
        torch.set_num_threads(count)
        results.append(fit_and_weigh(params, X, y))
    torch.set_num_threads(1)
    assert_array_equal(results[0][0], results[1][0])
    assert_array_equal(results[0][1], results[1][1])


@every_kind
def test_another_seed_gives_another_gate(kind, make_stack):
    X, y, _, _ = hard_stack(make_stack)
    (_, first), (_, second) = (fit_and_weigh(FAST | {"random_state": seed} | kind, X, y) for seed in (0, 1))
    assert not np.array_equal(first, second)


@every_kind
def test_a_pickle_predicts_and_weighs_the_same(kind, make_stack):
    X, y, X_test, _ = hard_stack(make_stack)
    fitted = MixtureOfExpertsClassifier(**FAST | kind).fit(X, y)
    loaded = pickle.loads(pickle.dumps(fitted))
    assert_array_equal(loaded.predict_proba(X_test), fitted.predict_proba(X_test))
    assert_array_equal(loaded.layer_weights(X_test), fitted.layer_weights(X_test))


@every_kind
def test_unseen_classes_of_a_fold_are_harmless(kind, make_stack):
    X, y, X_test, y_test = hard_stack(make_stack)
    y = y.copy()
    y[0] = 7
    fitted = MixtureOfExpertsClassifier(**FAST | {"max_epochs": 40} | kind).fit(X, y)
    assert np.isfinite(fitted.decision_function(X_test)).all()
    assert fitted.score(X_test, y_test) > 0.6


@pytest.mark.parametrize(
    ("parameter", "value"), [("experts", "thawed"), ("hidden", 0), ("probe", "knn"), ("C", 0), ("cv", "loo")]
)
def test_bad_parameters_are_refused_by_name(parameter, value, make_stack):
    X, y = make_stack()
    with pytest.raises(ValueError, match=f"The '{parameter}' parameter"):
        MixtureOfExpertsClassifier(**{parameter: value}).fit(X, y)


@pytest.mark.parametrize(("experts", "epochs", "rate"), [("frozen", 10, 2e-4), ("joint", 60, 1e-3)])
def test_automatic_training_is_short_for_a_gate_alone(experts, epochs, rate, make_stack):
    X, y = make_stack()
    fitted = MixtureOfExpertsClassifier(experts, cv=2, random_state=0).fit(X, y)
    assert fitted.n_iter_ == epochs
    assert fitted.net_.lr == rate
    chosen = MixtureOfExpertsClassifier(experts, cv=2, max_epochs=2, lr=1e-2, random_state=0).fit(X, y)
    assert (chosen.n_iter_, chosen.net_.lr) == (2, 1e-2)
