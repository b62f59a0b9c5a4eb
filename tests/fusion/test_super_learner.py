import numpy as np
import pytest
import sklearn
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.testing import assert_allclose, assert_array_equal
from scipy.optimize import minimize, nnls
from scipy.special import log_softmax, softmax
from sklearn.metrics import log_loss
from sklearn.model_selection import GroupKFold, KFold, cross_validate
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KNeighborsClassifier

from skvfusion import LayerProbeClassifier, SuperLearnerClassifier
from skvfusion.fusion.super_learner import least_squares_weights, likelihood_weights, logit_weights

pytestmark = pytest.mark.usefixtures("one_thread")

PATIENT = settings(deadline=None, max_examples=60)  # a busy machine is not a failure
COMBINERS = ["nll", "nnls", "logit"]
every_combiner = pytest.mark.parametrize("combiner", COMBINERS)


def layers_logits(n=60, n_layers=5, n_classes=3, seed=0):
    """Logits of layers of unequal skill, and the labels."""
    rng = np.random.default_rng(seed)
    codes = rng.integers(0, n_classes, n)
    logits = 2 * rng.normal(size=(n, n_layers, n_classes))
    logits += np.linspace(0, 3, n_layers)[:, None] * np.eye(n_classes)[codes][:, None]
    return logits, codes


def at_labels(logits, codes):
    return log_softmax(logits, axis=2)[np.arange(len(codes)), :, codes]


def even(n):
    return np.full(n, 1 / n)


def mixture_loss(log_likelihood, weight, a):
    """Negative log-likelihood of the mixture, safe from underflow."""
    largest = log_likelihood.max(axis=1)
    return -weight @ (largest + np.log(np.exp(log_likelihood - largest[:, None]) @ a))


def gains(log_likelihood, weight, a):
    P = np.exp(log_likelihood - log_likelihood.max(axis=1, keepdims=True))
    return weight @ (P / (P @ a)[:, None])


def expectation_maximisation(log_likelihood, weight, n_steps):
    P = np.exp(log_likelihood - log_likelihood.max(axis=1, keepdims=True))
    a = even(P.shape[1])
    for _ in range(n_steps):
        a = a * (weight @ (P / (P @ a)[:, None]))
    return a


def assert_optimal(log_likelihood, weight, a):
    assert np.isfinite(a).all()
    assert (a >= 0).all()
    assert a.sum() == pytest.approx(1, abs=1e-12)
    gain = gains(log_likelihood, weight, a)
    assert gain.max() <= 1 + 1e-6
    assert_allclose(a * gain, a, atol=1e-6)


likelihoods = st.tuples(st.integers(1, 12), st.integers(1, 6)).flatmap(
    lambda shape: st.tuples(
        arrays(np.float64, shape, elements=st.floats(-1e4, 0) | st.floats(-5, 0)),
        arrays(np.float64, shape[0], elements=st.floats(-6, 0)).map(lambda exponents: 10**exponents),
    )
)


@PATIENT
@given(likelihoods)
def test_likelihood_weights_are_optimal_whatever_the_likelihoods(case):
    log_likelihood, weight = case
    weight = weight / weight.sum()
    assert_optimal(log_likelihood, weight, likelihood_weights(log_likelihood, weight))


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("shape", [(30, 2), (200, 12), (5, 12), (2000, 24)])
def test_likelihood_weights_are_optimal(seed, shape):
    rng = np.random.default_rng(seed)
    log_likelihood = at_labels(*layers_logits(*shape, seed=seed))
    weight = rng.uniform(0, 2, shape[0])
    weight /= weight.sum()
    a = likelihood_weights(log_likelihood, weight)
    assert_optimal(log_likelihood, weight, a)
    assert mixture_loss(log_likelihood, weight, a) <= mixture_loss(log_likelihood, weight, even(shape[1]))


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("spread", [10, 100, 1000])
def test_likelihood_weights_of_very_unequal_samples_are_optimal(seed, spread):
    rng = np.random.default_rng(seed)
    log_likelihood = -spread * rng.exponential(size=(12, 6))
    weight = rng.random(12) ** 5 + 1e-6
    weight /= weight.sum()
    assert_optimal(log_likelihood, weight, likelihood_weights(log_likelihood, weight))


def test_likelihood_weights_are_where_expectation_maximisation_goes():
    logits, codes = layers_logits(200)
    log_likelihood, weight = at_labels(logits, codes), even(200)
    a = likelihood_weights(log_likelihood, weight)
    assert 1 < np.count_nonzero(a > 1e-9) < 5
    slow = expectation_maximisation(log_likelihood, weight, 20_000)
    assert_allclose(a, slow, atol=1e-4)
    loss, of_slow = mixture_loss(log_likelihood, weight, a), mixture_loss(log_likelihood, weight, slow)
    assert of_slow - 1e-7 < loss <= of_slow + 1e-13


@PATIENT
@given(likelihoods)
def test_the_mixture_is_no_worse_than_any_layer_or_few_steps_of_expectation_maximisation(case):
    log_likelihood, weight = case
    weight = weight / weight.sum()
    loss = mixture_loss(log_likelihood, weight, likelihood_weights(log_likelihood, weight))
    few_steps = mixture_loss(log_likelihood, weight, expectation_maximisation(log_likelihood, weight, 20))
    slack = 1e-9 * max(1, abs(loss))
    assert loss <= (-weight @ log_likelihood).min() + slack
    assert loss <= few_steps + slack


def test_likelihood_weights_ignore_what_all_layers_share():
    log_likelihood = at_labels(*layers_logits())
    shift = np.random.default_rng(0).uniform(-1e4, 0, (60, 1))
    assert_allclose(
        likelihood_weights(log_likelihood + shift, even(60)), likelihood_weights(log_likelihood, even(60)), atol=1e-7
    )


def test_a_perfect_layer_gets_all_the_weight():
    logits, codes = layers_logits()
    logits[:, 1] = 1e3 * np.eye(3)[codes]
    one = np.eye(5)[1]
    assert_allclose(likelihood_weights(at_labels(logits, codes), even(60)), one, atol=1e-8)
    assert_allclose(least_squares_weights(softmax(logits, axis=2), codes, even(60)), one, atol=1e-8)
    by_logits = logit_weights(logits, codes, even(60))
    assert (np.einsum("nlc,l->nc", logits, by_logits).argmax(axis=1) == codes).all()


def test_a_layer_that_is_certain_and_wrong_is_worth_something_only_where_others_are_worse():
    # Two layers, each certain and right about half of the samples: the best mixture gives each its share.
    log_likelihood = np.where(np.arange(10)[:, None] < [[7, 0]], 0.0, -1e4)
    log_likelihood[7:, 1] = 0.0
    assert_allclose(likelihood_weights(log_likelihood, even(10)), [0.7, 0.3], atol=1e-8)


def test_identical_layers_predict_as_one():
    logits, codes = layers_logits(n_layers=2)
    doubled = np.repeat(logits, [1, 4], axis=1)
    for fit, data in (
        (likelihood_weights, lambda logits: (at_labels(logits, codes), even(60))),
        (least_squares_weights, lambda logits: (softmax(logits, axis=2), codes, even(60))),
        (logit_weights, lambda logits: (logits, codes, even(60))),
    ):
        a, b = fit(*data(doubled)), fit(*data(logits))
        assert_allclose([a[0], a[1:].sum()], b, atol=1e-5)


@pytest.mark.parametrize(
    ("fit", "prepare"),
    [
        (likelihood_weights, lambda logits, codes: (at_labels(logits, codes),)),
        (least_squares_weights, lambda logits, codes: (softmax(logits, axis=2), codes)),
        (logit_weights, lambda logits, codes: (logits, codes)),
    ],
)
def test_weights_of_samples_count_like_repetition(fit, prepare):
    logits, codes = layers_logits()
    times = np.random.default_rng(0).integers(0, 4, 60)
    repeated = np.repeat(np.arange(60), times)
    weighted = fit(*prepare(logits, codes), times / times.sum())
    assert_allclose(weighted, fit(*prepare(logits[repeated], codes[repeated]), even(len(repeated))), atol=1e-5)
    assert not np.allclose(weighted, fit(*prepare(logits, codes), even(60)), atol=1e-3)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("n_layers", [1, 2, 5, 12])
def test_least_squares_weights_are_scipys_on_the_stacked_problem(seed, n_layers):
    logits, codes = layers_logits(n_layers=n_layers, seed=seed)
    weight = np.random.default_rng(seed).uniform(0.1, 1, 60)
    proba, root = softmax(logits, axis=2), np.sqrt(weight)
    stacked = (proba * root[:, None, None]).transpose(0, 2, 1).reshape(-1, n_layers)
    expected = nnls(stacked, (np.eye(3)[codes] * root[:, None]).ravel())[0]
    found = least_squares_weights(proba, codes, weight)
    assert_allclose(found, expected / expected.sum(), atol=1e-6)
    assert found.sum() == pytest.approx(1)


def test_least_squares_of_layers_that_are_all_certain_and_wrong_are_weights_nevertheless():
    codes = np.zeros(6, dtype=int)
    a = least_squares_weights(np.tile([0.0, 1.0], (6, 3, 1)), codes, even(6))
    assert_allclose(a.sum(), 1)
    assert (a >= 0).all()


@pytest.mark.parametrize("seed", range(5))
def test_logit_weights_are_optimal(seed):
    logits, codes = layers_logits(seed=seed)
    weight = np.random.default_rng(seed).uniform(0.1, 1, 60)
    weight /= weight.sum()
    a = logit_weights(logits, codes, weight)
    proba = softmax(np.einsum("nlc,l->nc", logits, a), axis=1)
    gradient = np.einsum("nlc,nc,n->l", logits, proba - np.eye(3)[codes], weight)
    assert (a >= 0).all()
    assert a.max() < 100
    assert gradient.min() > -1e-5
    assert np.abs(gradient * a).max() < 1e-5


def test_logit_weights_keep_their_scale():
    logits, codes = layers_logits(200)
    a = logit_weights(logits, codes, even(200))
    assert_allclose(logit_weights(logits / 4, codes, even(200)), 4 * a, rtol=1e-3, atol=1e-4)
    temperature = minimize(lambda t: log_loss(codes, softmax(t * logits[:, 3], axis=1)), 1.0).x
    assert_allclose(logit_weights(logits[:, [3]], codes, even(200)), temperature, rtol=1e-3)


def test_logit_weights_of_separable_logits_are_bounded():
    codes = np.arange(30) % 3
    a = logit_weights(np.eye(3)[codes][:, None].repeat(2, axis=1) * 0.01, codes, even(30))
    assert_allclose(a, 100)


def test_logit_weights_of_logits_that_mislead_are_next_to_nothing():
    codes = np.arange(30) % 3
    a = logit_weights(-np.eye(3)[codes][:, None].repeat(2, axis=1), codes, even(30))
    assert 0 < a.sum() < 1e-300
    assert_allclose(a / a.sum(), 0.5)


@every_combiner
@pytest.mark.parametrize("probe", ["linear", KNeighborsClassifier()])
def test_the_layers_that_know_get_the_weight(combiner, probe, make_stack):
    X, y = make_stack(n_per_class=40, n_layers=8, signal_layers=(3, 4, 5), strength=2.0)
    fitted = SuperLearnerClassifier(combiner, probe=probe, cv=3, random_state=0).fit(X[:90], y[:90])
    weights = fitted.layer_weights_
    assert weights.shape == (8,)
    assert weights.min() >= 0
    assert weights.sum() == pytest.approx(1)
    assert weights[3:6].sum() > 0.8
    assert np.count_nonzero(weights[3:6] > 0.05) >= 2
    assert_allclose(fitted.predict_proba(X[90:]).sum(axis=1), 1)
    assert fitted.score(X[90:], y[90:]) > LayerProbeClassifier(4).fit(X[:90], y[:90]).score(X[90:], y[90:])


def test_mlps_as_probes(make_stack):
    X, y = make_stack(n_layers=3)
    fitted = SuperLearnerClassifier(probe="mlp", cv=2, max_epochs=15, random_state=0).fit(X, y)
    assert fitted.layer_weights_.argmax() == 2
    assert fitted.score(X, y) > 0.8
    again = SuperLearnerClassifier(probe="mlp", cv=2, max_epochs=15, random_state=0, n_jobs=1).fit(X, y)
    assert_array_equal(again.predict_proba(X), fitted.predict_proba(X))


@every_combiner
def test_predictions_combine_the_probes(combiner, make_stack):
    X, y = make_stack(n_layers=4, strength=2.0)
    fitted = SuperLearnerClassifier(combiner, random_state=0).fit(X, y)
    logits = fitted.probes_.logits(X[:, :, None])
    if combiner == "logit":
        expected = softmax(fitted.logit_scale_ * np.einsum("nlc,l->nc", logits, fitted.layer_weights_), axis=1)
    else:
        expected = np.einsum("nlc,l->nc", softmax(logits, axis=2), fitted.layer_weights_)
    assert_allclose(fitted.predict_proba(X), expected, atol=1e-12)


@every_combiner
def test_weights_are_learned_from_out_of_fold_predictions(combiner, make_stack):
    X, y = make_stack(n_per_class=40, n_layers=4, signal_layers=(1, 3), strength=1.5)
    weight = np.random.default_rng(0).uniform(0, 2, 120)
    fitted = SuperLearnerClassifier(combiner, random_state=0).fit(X, y, sample_weight=weight)
    proba, share = fitted.oof_proba_.astype(float), weight / weight.sum()
    if combiner == "nll":
        expected = likelihood_weights(np.log(proba[np.arange(120), :, y]), share)
    elif combiner == "nnls":
        expected = least_squares_weights(proba, y, share)
    else:
        free = logit_weights(np.log(proba), y, share)
        expected = free / free.sum()
        assert fitted.logit_scale_ == pytest.approx(free.sum(), rel=1e-3)
    assert_allclose(fitted.layer_weights_, expected, atol=1e-4)


def test_the_loss_on_out_of_fold_predictions_is_at_most_the_best_layers(make_stack):
    X, y = make_stack(n_layers=6, signal_layers=(1, 4), strength=1.5)
    fitted = SuperLearnerClassifier(random_state=0).fit(X, y)
    at_label = fitted.oof_proba_[np.arange(60), :, y].astype(float)
    assert -np.log(at_label @ fitted.layer_weights_).mean() < -np.log(at_label).mean(axis=0).max() + 1e-6


def test_out_of_fold_predictions_are_those_of_the_folds(make_stack):
    X, y = make_stack(n_layers=3)
    splits = list(KFold(3).split(X))
    fitted = SuperLearnerClassifier(cv=splits).fit(X, y)
    assert fitted.oof_proba_.shape == (60, 3, 3)
    assert fitted.oof_proba_.dtype == np.float32
    assert fitted.cv_scores_.shape == (3, 3)
    assert_allclose(fitted.oof_proba_.sum(axis=2), 1, atol=1e-6)
    for fold, (train, test) in enumerate(splits):
        for layer in range(3):
            alone = LayerProbeClassifier(layer).fit(X[train], y[train])
            assert_allclose(fitted.oof_proba_[test, layer], alone.predict_proba(X[test]), atol=1e-4)
            assert fitted.cv_scores_[layer, fold] == alone.score(X[test], y[test])


def test_out_of_fold_probability_of_a_class_that_the_fold_lacks_is_0(make_stack):
    X, y = make_stack(n_layers=3)
    labels = np.array(["cat", "dog", "eel"])[y]
    dogs = np.flatnonzero(y == 1)
    splits = [(np.setdiff1d(np.arange(60), dogs), dogs[:5]), (np.arange(30), np.setdiff1d(np.arange(30, 60), dogs[:5]))]
    fitted = SuperLearnerClassifier(cv=splits).fit(X, labels)
    assert fitted.classes_.tolist() == ["cat", "dog", "eel"]
    assert_array_equal(fitted.oof_proba_[dogs[:5], :, 1], 0)
    assert_allclose(fitted.oof_proba_[dogs[:5]][:, :, [0, 2]].sum(axis=2), 1, atol=1e-6)
    assert_array_equal(fitted.cv_scores_[:, 0], 0)
    right = fitted.oof_proba_[splits[1][1], 2].argmax(axis=1) == y[splits[1][1]]
    assert right.mean() > 0.8
    assert set(fitted.predict(X)) == {"cat", "dog", "eel"}


def test_a_holdout_is_scored_once(make_stack):
    X, y = make_stack(n_per_class=30)
    fitted = SuperLearnerClassifier(cv="holdout", validation_fraction=0.2, random_state=0).fit(X, y)
    scored = np.isfinite(fitted.oof_proba_).all(axis=(1, 2))
    assert scored.sum() == 18
    assert np.isnan(fitted.oof_proba_[~scored]).all()
    assert fitted.cv_scores_.shape == (6, 1)
    assert fitted.layer_weights_.argmax() == 2


@pytest.mark.parametrize("probe", ["linear", "mlp"])
def test_the_probes_that_predict_are_fitted_on_everything(probe, make_stack):
    X, y = make_stack(n_layers=4)
    params = {"max_epochs": 3, "random_state": 0}
    fitted = SuperLearnerClassifier(probe=probe, cv=2, **params).fit(X, y)
    proba = softmax(fitted.probes_.logits(X[:, :, None]), axis=2)
    for layer in range(4):
        assert_array_equal(proba[:, layer], LayerProbeClassifier(layer, probe, **params).fit(X, y).predict_proba(X))


def test_only_the_chosen_layers_are_combined(make_stack):
    X, y = make_stack()
    fitted = SuperLearnerClassifier(layers=[-1, 0, 2], random_state=0).fit(X, y)
    assert fitted.layers_ == [0, 2, 5]
    assert fitted.layer_weights_.shape == (3,)
    assert fitted.layer_weights_.argmax() == 1
    assert fitted.oof_proba_.shape == (60, 3, 3)
    changed = X.copy()
    changed[:, [1, 3, 4]] = 99
    assert_array_equal(fitted.predict_proba(changed), fitted.predict_proba(X))
    subset = SuperLearnerClassifier(random_state=0).fit(X[:, [0, 2, 5]], y)
    assert_array_equal(subset.layer_weights_, fitted.layer_weights_)


@every_combiner
def test_one_layer_has_all_the_weight(combiner, make_stack):
    X, y = make_stack()
    fitted = SuperLearnerClassifier(combiner, layers=2, random_state=0).fit(X, y)
    assert_allclose(fitted.layer_weights_, [1])
    if combiner != "logit":
        assert_allclose(fitted.predict_proba(X), LayerProbeClassifier(2).fit(X, y).predict_proba(X), atol=1e-12)


@every_combiner
def test_identical_layers_predict_like_their_probe(combiner, make_stack):
    X, y = make_stack(n_layers=1, signal_layers=(0,))
    fitted = SuperLearnerClassifier(combiner, random_state=0).fit(np.repeat(X, 4, axis=1), y)
    assert fitted.layer_weights_.sum() == pytest.approx(1)
    single = SuperLearnerClassifier(combiner, random_state=0).fit(X, y)
    assert_allclose(fitted.predict_proba(np.repeat(X, 4, axis=1)), single.predict_proba(X), atol=1e-4)


@every_combiner
def test_a_weight_counts_like_repetition_if_folds_are_alike(combiner, make_stack):
    X, y = make_stack(strength=1.5)
    times = np.random.default_rng(0).integers(1, 4, 60)
    repeated = np.repeat(np.arange(60), times)
    splits = [(np.flatnonzero(np.arange(60) % 3 != k), np.flatnonzero(np.arange(60) % 3 == k)) for k in range(3)]
    repeated_splits = [tuple(np.flatnonzero(np.isin(repeated, part)) for part in pair) for pair in splits]
    weighted = SuperLearnerClassifier(combiner, cv=splits).fit(X, y, sample_weight=times)
    again = SuperLearnerClassifier(combiner, cv=repeated_splits).fit(X[repeated], y[repeated])
    assert_allclose(weighted.layer_weights_, again.layer_weights_, atol=1e-3)
    assert_allclose(weighted.cv_scores_, again.cv_scores_)
    assert_allclose(weighted.predict_proba(X), again.predict_proba(X), atol=1e-3)


@pytest.mark.parametrize("probe", ["linear", "mlp", GaussianNB()])
def test_samples_without_weight_count_as_absent(probe, make_stack):
    X, y = make_stack(n_layers=3)
    # Whatever an absent sample is, nothing may look at it.
    with_absent = np.concatenate([X, np.full((5, 3, 8), 1e3, dtype=np.float32)])
    params = {"probe": probe, "cv": list(KFold(3).split(X)), "max_epochs": 3, "random_state": 0}
    weight = np.ones(60)
    found = SuperLearnerClassifier(**params).fit(with_absent, np.append(y, [7] * 5), np.append(weight, np.zeros(5)))
    expected = SuperLearnerClassifier(**params).fit(X, y, weight)
    assert_allclose(found.predict_proba(X)[:, :3], expected.predict_proba(X), atol=1e-6)
    assert_allclose(found.predict_proba(X)[:, 3], 0, atol=1e-300)


def test_groups_are_kept_together(rng):
    # Every sample four times: whoever splits the copies learns them by heart.
    X, y, groups = rng.normal(size=(24, 3, 60)).repeat(4, axis=0), np.repeat([0, 1], 48), np.repeat(np.arange(24), 4)
    together, apart = (SuperLearnerClassifier(random_state=0).fit(X, y, groups=given) for given in (groups, None))
    assert apart.cv_scores_.mean() > 0.95
    assert together.cv_scores_.mean() < 0.7


def test_another_combiner_leaves_nothing_of_the_first(make_stack):
    X, y = make_stack(n_layers=3)
    fitted = SuperLearnerClassifier("logit", random_state=0).fit(X, y)
    fitted.set_params(combiner="nll").fit(X, y)
    fresh = SuperLearnerClassifier(random_state=0).fit(X, y)
    assert vars(fitted).keys() == vars(fresh).keys()
    assert_array_equal(fitted.predict_proba(X), fresh.predict_proba(X))


def test_any_classifier_may_be_the_probe(make_stack):
    X, y = make_stack()
    fitted = SuperLearnerClassifier(probe=GaussianNB(), random_state=0).fit(X, y)
    assert fitted.layer_weights_.argmax() == 2
    assert fitted.score(X, y) > 0.8


def test_metadata_routing_brings_groups_and_weights(make_stack):
    X, y = make_stack(n_layers=3)
    rng = np.random.default_rng(0)
    params = {"groups": rng.integers(0, 12, 60), "sample_weight": rng.uniform(0.5, 2, 60)}
    learner = SuperLearnerClassifier(cv=GroupKFold(3), random_state=0)
    with sklearn.config_context(enable_metadata_routing=True):
        routed = learner.set_fit_request(groups=True, sample_weight=True).set_score_request(sample_weight=True)
        found = cross_validate(
            routed, X, y, params=params, cv=GroupKFold(3), return_estimator=True, return_indices=True
        )
    for estimator, train in zip(found["estimator"], found["indices"]["train"], strict=True):
        by_hand = SuperLearnerClassifier(cv=GroupKFold(3), random_state=0)
        by_hand.fit(X[train], y[train], **{name: values[train] for name, values in params.items()})
        assert_array_equal(estimator.oof_proba_, by_hand.oof_proba_)
        assert_array_equal(estimator.layer_weights_, by_hand.layer_weights_)
