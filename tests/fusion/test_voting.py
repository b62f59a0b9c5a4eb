import numpy as np
import pytest
from joblib import parallel_config
from numpy.testing import assert_allclose, assert_array_equal
from scipy.special import log_softmax, softmax
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.model_selection import KFold
from sklearn.naive_bayes import GaussianNB

from skvfusion import LayerProbeClassifier, LayerVotingClassifier, VFusionClassifier
from skvfusion.fusion.voting import best_temperatures

pytestmark = pytest.mark.usefixtures("one_thread")

VOTINGS = ["logit", "proba", "calibrated", "majority"]
every_voting = pytest.mark.parametrize("voting", VOTINGS)


class Reader(ClassifierMixin, BaseEstimator):
    """A probe that learns nothing: its layer's first numbers are its logits."""

    fitted_on = []

    def fit(self, X, y, sample_weight=None):
        self.classes_ = np.unique(y)
        self.fitted_on.append(len(X))
        return self

    def predict_proba(self, X):
        return softmax(X[:, : len(self.classes_)], axis=1)


def reading(voting, **params):
    return LayerVotingClassifier(voting, probe=Reader(), scaling=None, random_state=0, **params)


def layer_log_proba(X_train, y_train, X, **params):
    return np.stack(
        [
            LayerProbeClassifier(layer, **params).fit(X_train, y_train).predict_log_proba(X)
            for layer in range(X.shape[1])
        ],
        axis=1,
    )


def cross_entropy(logits, y):
    return -log_softmax(logits, axis=1)[np.arange(len(y)), y].mean()


def majority(log_proba):
    proba = np.exp(log_proba)
    votes = np.zeros(proba[:, 0].shape)
    for layer in range(proba.shape[1]):
        votes[np.arange(len(votes)), proba[:, layer].argmax(axis=1)] += 1
    return votes, proba.sum(axis=1)


def hard_stack(make_stack, **params):
    """Layers that disagree, in halves for training and testing."""
    X, y = make_stack(n_per_class=60, n_layers=4, signal_layers=(0, 1, 3), strength=1.2, **params)
    return X[:90], y[:90], X[90:], y[90:]


@pytest.mark.parametrize("n_classes", [2, 3])
def test_logit_vote_is_the_mean_of_the_layers_logits(n_classes, make_stack):
    X, y, X_test, _ = hard_stack(make_stack, n_classes=n_classes)
    fitted = LayerVotingClassifier("logit").fit(X, y)
    log_proba = layer_log_proba(X, y, X_test)
    assert_allclose(fitted.predict_proba(X_test), softmax(log_proba.mean(axis=1), axis=1), rtol=1e-9)
    layers = [LayerProbeClassifier(layer).fit(X, y).decision_function(X_test) for layer in range(4)]
    assert_allclose(fitted.decision_function(X_test), np.mean(layers, axis=0), rtol=1e-9)


@pytest.mark.parametrize("n_classes", [2, 3])
def test_proba_vote_is_the_mean_of_the_layers_probabilities(n_classes, make_stack):
    X, y, X_test, _ = hard_stack(make_stack, n_classes=n_classes)
    fitted = LayerVotingClassifier("proba").fit(X, y)
    assert_allclose(fitted.predict_proba(X_test), np.exp(layer_log_proba(X, y, X_test)).mean(axis=1), rtol=1e-9)
    assert_allclose(LayerVotingClassifier().fit(X, y).predict_proba(X_test), fitted.predict_proba(X_test))


@pytest.mark.parametrize("n_classes", [2, 3])
def test_majority_vote_counts_the_layers_predictions(n_classes, make_stack):
    X, y, X_test, _ = hard_stack(make_stack, n_classes=n_classes)
    votes, summed = majority(layer_log_proba(X, y, X_test))
    fitted = LayerVotingClassifier("majority").fit(X, y)
    best = np.lexsort((summed, votes), axis=1)[:, -1]
    tied = np.sort(votes, axis=1)[:, -2] == votes.max(axis=1)
    assert tied.sum() > 3
    assert (best != votes.argmax(axis=1)).any()
    assert (best != summed.argmax(axis=1)).any()
    assert_array_equal(fitted.predict(X_test), best)
    assert_allclose(fitted.predict_proba(X_test), (votes + summed / 4) / 5, rtol=1e-9)


@pytest.mark.parametrize("n_classes", [2, 3])
def test_calibrated_vote_is_the_mean_of_probabilities_at_temperatures_learned_out_of_fold(n_classes, make_stack):
    X, y, X_test, _ = hard_stack(make_stack, n_classes=n_classes)
    splits = list(KFold(3).split(X))
    out_of_fold = np.concatenate([layer_log_proba(X[train], y[train], X[test]) for train, test in splits])
    temperatures = best_temperatures(out_of_fold, y)
    fitted = LayerVotingClassifier("calibrated", cv=splits).fit(X, y)
    assert_allclose(fitted.temperatures_, temperatures, rtol=1e-3)
    cooled = softmax(layer_log_proba(X, y, X_test) / fitted.temperatures_[:, None], axis=2)
    assert_allclose(fitted.predict_proba(X_test), cooled.mean(axis=1), rtol=1e-9)


def test_a_tied_majority_goes_to_the_highest_summed_probability_of_the_tied():
    layers = np.array([[0.52, 0.0, 0.48], [0.52, 0.0, 0.48], [0.0, 0.53, 0.47], [0.0, 0.53, 0.47]])
    X = np.log(np.maximum(layers, 1e-9))[None]
    fitted = reading("majority").fit(np.repeat(X, 3, axis=0), [0, 1, 2])
    assert fitted.predict(X) == [1]
    assert_allclose(fitted.predict_proba(X), [[(2 + 0.26) / 5, (2 + 0.265) / 5, 0.475 / 5]], rtol=1e-6)
    assert reading("proba").fit(np.repeat(X, 3, axis=0), [0, 1, 2]).predict(X) == [2]


def test_the_votes_can_all_differ():
    # One layer that all but excludes a class, one that is almost certain of it, two that are not sure.
    layers = np.array([[1e-6, 0.1, 0.9], [0.99, 0.005, 0.005], [0.35, 0.4, 0.25], [0.35, 0.4, 0.25]])
    X = np.log(layers)[None]
    fit_on = np.repeat(X, 3, axis=0)
    votes = {voting: reading(voting).fit(fit_on, [0, 1, 2]).predict(X)[0] for voting in ("proba", "majority", "logit")}
    assert votes == {"proba": 0, "majority": 1, "logit": 2}


def test_best_temperatures_are_those_of_a_fine_grid(rng):
    y = rng.integers(0, 3, 300)
    logits = rng.normal(size=(300, 4, 3)) * [[[1], [4], [0.1], [20]]]
    logits[np.arange(300), :, y] += [0.5, 2, 0.2, 6]
    grid = np.geomspace(0.01, 100, 4001)
    expected = [grid[np.argmin([cross_entropy(logits[:, i] / t, y) for t in grid])] for i in range(4)]
    assert len(set(expected) - {0.01, 100}) == 4
    assert_allclose(best_temperatures(logits, y), expected, rtol=3e-3)


def test_weights_move_the_best_temperature_as_repetition_does(rng):
    y = rng.integers(0, 3, 200)
    logits = rng.normal(size=(200, 2, 3)) + np.eye(3)[y][:, None]
    weight = rng.integers(0, 4, 200)
    weighted = best_temperatures(logits, y, weight)
    assert_allclose(weighted, best_temperatures(np.repeat(logits, weight, axis=0), np.repeat(y, weight)), rtol=1e-3)
    assert np.abs(weighted / best_temperatures(logits, y) - 1).min() > 0.01


def test_logits_times_3_have_3_times_the_temperature(make_stack, rng):
    X, y, X_test, _ = hard_stack(make_stack)
    plain, hotter = (reading("calibrated").fit(scale * X, y) for scale in (1, 3))
    assert_allclose(hotter.temperatures_, 3 * plain.temperatures_, rtol=1e-3)
    assert_allclose(hotter.predict_proba(3 * X_test), plain.predict_proba(X_test), atol=1e-4)


def test_a_known_temperature_is_recovered(rng):
    known = np.array([0.5, 1, 4])
    logits = np.repeat(2 * rng.normal(size=(4000, 1, 3)), 3, axis=1)
    y = np.array([rng.choice(3, p=p) for p in softmax(logits[:, 0], axis=1)])
    assert_allclose(best_temperatures(logits * known[:, None], y), known, rtol=0.1)


def test_temperatures_stay_within_bounds_where_the_best_is_none():
    y = np.tile([0, 1, 2], 30)
    right, wrong = 10 * np.eye(3)[y], -10 * np.eye(3)[y]
    cold, hot = best_temperatures(np.stack([right, wrong], axis=1), y)
    assert 0.01 <= cold < 1
    assert 99 < hot <= 100


def test_temperatures_are_not_learned_on_the_rows_that_the_probes_learned(rng):
    X, y = rng.normal(size=(90, 2, 80)), np.repeat([0, 1, 2], 30)
    fitted = LayerVotingClassifier("calibrated", C=100, random_state=0).fit(X, y)
    in_sample = layer_log_proba(X, y, X, C=100)
    assert best_temperatures(in_sample, y).max() < 0.5
    assert fitted.temperatures_.min() > 3


@pytest.mark.parametrize("cv", [5, "holdout"])
def test_groups_keep_twins_on_one_side(cv, rng):
    X, y = np.repeat(rng.normal(size=(30, 2, 50)), 4, axis=0), np.repeat([0, 1], 60)
    params = {"voting": "calibrated", "C": 100, "cv": cv, "validation_fraction": 0.3, "random_state": 0}
    apart = LayerVotingClassifier(**params).fit(X, y).temperatures_
    together = LayerVotingClassifier(**params).fit(X, y, groups=np.repeat(np.arange(30), 4)).temperatures_
    assert apart.max() < 0.5
    assert together.min() > 1.5


def test_holdout_fits_on_the_rest_and_then_on_everything(make_stack):
    X, y, _, _ = hard_stack(make_stack)
    Reader.fitted_on.clear()
    fitted = reading("calibrated", cv="holdout", validation_fraction=0.3).fit(X, y)
    assert len(Reader.fitted_on) == 8
    assert set(Reader.fitted_on[:4]) == {len(y) - sum(round(0.3 * count) for count in np.bincount(y))}
    assert set(Reader.fitted_on[4:]) == {len(y)}
    everything = best_temperatures(np.float64(X[:, :, :3]), y)
    assert np.all(fitted.temperatures_ != everything)
    Reader.fitted_on.clear()
    reading("calibrated", cv="holdout", validation_fraction=0.3).fit(X, y, groups=np.arange(90) // 3)
    assert Reader.fitted_on == [63] * 4 + [90] * 4


def test_only_the_calibrated_vote_needs_samples_beside_those_of_the_probes(make_stack):
    X, y, _, _ = hard_stack(make_stack)
    for voting in ("logit", "proba", "majority"):
        Reader.fitted_on.clear()
        assert not hasattr(reading(voting).fit(X, y), "temperatures_")
        assert Reader.fitted_on == [len(y)] * 4


@every_voting
def test_a_weight_counts_like_repetition(voting, make_stack):
    X, y, X_test, _ = hard_stack(make_stack)
    weight = np.where(np.arange(90) % 3, 1, 3)
    rows = np.repeat(np.arange(90), weight)
    splits = list(KFold(3).split(X))
    repeated_splits = [tuple(np.flatnonzero(np.isin(rows, part)) for part in split) for split in splits]
    weighted = LayerVotingClassifier(voting, cv=splits).fit(X, y, sample_weight=weight)
    repeated = LayerVotingClassifier(voting, cv=repeated_splits).fit(X[rows], y[rows])
    unweighted = LayerVotingClassifier(voting, cv=splits).fit(X, y)
    assert_allclose(weighted.predict_proba(X_test), repeated.predict_proba(X_test), atol=1e-4)
    assert np.abs(weighted.predict_proba(X_test) - unweighted.predict_proba(X_test)).max() > 0.01


@every_voting
def test_a_weight_of_0_is_absence(voting, make_stack):
    X, y, X_test, _ = hard_stack(make_stack)
    keep = np.arange(90) % 4 > 0
    X_bad = X.copy()
    X_bad[~keep] = 50
    weighted = LayerVotingClassifier(voting, random_state=0).fit(X_bad, y, sample_weight=keep)
    dropped = LayerVotingClassifier(voting, random_state=0).fit(X[keep], y[keep])
    assert_allclose(weighted.predict_proba(X_test), dropped.predict_proba(X_test), atol=1e-6)


@every_voting
@pytest.mark.parametrize("layers", ["second_half", [0, 3], -1, "strided"])
def test_selecting_layers_is_slicing_the_stack(voting, layers, make_stack):
    X, y, X_test, _ = hard_stack(make_stack)
    selected = LayerVotingClassifier(voting, layers=layers, random_state=0).fit(X, y)
    sliced = LayerVotingClassifier(voting, random_state=0).fit(X[:, selected.layers_], y)
    assert_array_equal(selected.predict_proba(X_test), sliced.predict_proba(X_test[:, selected.layers_]))


@every_voting
@pytest.mark.parametrize("labels", [["no", "yes"], ["cat", "dog", "horse"]])
def test_string_labels(voting, labels, make_stack):
    X, y, X_test, y_test = hard_stack(make_stack, n_classes=len(labels))
    labels = np.array(labels)
    named, coded = (LayerVotingClassifier(voting, random_state=0).fit(X, known) for known in (labels[y], y))
    assert_array_equal(named.predict(X_test), labels[coded.predict(X_test)])
    assert_array_equal(named.predict_proba(X_test), coded.predict_proba(X_test))
    assert named.score(X_test, labels[y_test]) > 0.6


@every_voting
@pytest.mark.parametrize("n_classes", [2, 3])
def test_probabilities_sum_to_1_and_logits_are_finite_for_any_certainty(voting, n_classes, make_stack):
    X, y, X_test, _ = hard_stack(make_stack, n_classes=n_classes)
    fitted = LayerVotingClassifier(voting, random_state=0).fit(X, y)
    proba = fitted.predict_proba(1e4 * X_test)
    assert (proba < 1e-300).any() or voting == "majority"
    assert_allclose(proba.sum(axis=1), 1)
    assert_array_equal(fitted.classes_[proba.argmax(axis=1)], fitted.predict(1e4 * X_test))
    assert np.isfinite(fitted.decision_function(1e4 * X_test)).all()
    assert np.isfinite(fitted.predict_log_proba(1e4 * X_test)).all()


@every_voting
def test_a_class_that_folds_have_not_seen_is_harmless(voting, make_stack):
    X, y, X_test, y_test = hard_stack(make_stack)
    y = y.copy()
    y[0] = 7
    fitted = LayerVotingClassifier(voting, random_state=0).fit(X, y)
    assert fitted.predict_proba(X_test).shape == (90, 4)
    assert np.isfinite(fitted.decision_function(X_test)).all()
    assert fitted.score(X_test, y_test) > 0.6


def test_a_sample_whose_class_the_probes_have_not_seen_tells_nothing_of_the_temperature(make_stack):
    X, y, _, _ = hard_stack(make_stack)
    expected = LayerVotingClassifier("calibrated", random_state=0).fit(X, y).temperatures_
    y = y.copy()
    y[0] = 7
    fitted = LayerVotingClassifier("calibrated", random_state=0).fit(X, y)
    assert fitted.temperatures_[[0, 1, 3]].max() < 1.5 * expected[[0, 1, 3]].max()


def test_votes_of_mlps_are_votes_of_the_mlps_alone(make_stack):
    X, y, X_test, _ = hard_stack(make_stack)
    params = {"probe": "mlp", "max_epochs": 5, "random_state": 3}
    votes = LayerVotingClassifier("proba", **params).fit(X, y).predict_proba(X_test)
    assert_allclose(votes, np.exp(layer_log_proba(X, y, X_test, **params)).mean(axis=1), rtol=1e-5)
    probe = VFusionClassifier(max_epochs=5)
    given = LayerVotingClassifier("proba", probe=probe, random_state=3).fit(X, y).predict_proba(X_test)
    assert_allclose(given, votes, rtol=1e-5)


def test_votes_of_any_classifier_are_votes_of_its_clones(make_stack):
    X, y, X_test, _ = hard_stack(make_stack)
    votes = LayerVotingClassifier("proba", probe=GaussianNB(), scaling=None).fit(X, y).predict_proba(X_test)
    X, X_test = X.astype(float), X_test.astype(float)
    alone = [GaussianNB().fit(X[:, layer], y).predict_proba(X_test[:, layer]) for layer in range(4)]
    assert_allclose(votes, np.mean(alone, axis=0), rtol=1e-9)


def test_jobs_do_not_change_the_votes(make_stack):
    X, y, X_test, _ = hard_stack(make_stack)
    probe = VFusionClassifier(hidden=8, latent_dim=4, max_epochs=2)
    with parallel_config("threading"):
        one, two = (
            LayerVotingClassifier("calibrated", probe=probe, cv=2, n_jobs=n, random_state=0).fit(X, y) for n in (1, 2)
        )
    assert_array_equal(one.temperatures_, two.temperatures_)
    assert_array_equal(one.predict_proba(X_test), two.predict_proba(X_test))


def test_one_layer_votes_as_it_predicts(make_stack):
    X, y, X_test, _ = hard_stack(make_stack)
    alone = LayerProbeClassifier(1).fit(X, y)
    for voting in VOTINGS:
        voted = LayerVotingClassifier(voting, layers=[1], random_state=0).fit(X, y)
        assert_array_equal(voted.predict(X_test), alone.predict(X_test))
