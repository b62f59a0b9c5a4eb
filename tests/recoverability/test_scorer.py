import pickle

import numpy as np
import pandas as pd
import pytest
from joblib import parallel_config
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone, is_classifier
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, GroupKFold, KFold, cross_validate
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.utils.estimator_checks import parametrize_with_checks

import skvfusion
from skvfusion import LayerProbeClassifier, LayerwiseFeatureExtractor, RecoverabilityScorer, VFusionClassifier
from skvfusion.recoverability import recovery_rate

pytestmark = pytest.mark.usefixtures("one_thread")

SMALL = VFusionClassifier(hidden=32, latent_dim=8, max_epochs=15)
MINIBATCHES = {
    "check_sample_weight_equivalence_on_dense_data": "Trained by mini-batches: a sample of weight 2 is seen once with "
    "twice the gradient, a repeated one twice in other batches. scikit-learn's MLPClassifier passes with lbfgs only."
}
CHECKED = [
    (RecoverabilityScorer(VFusionClassifier(hidden=64, latent_dim=16, max_epochs=20)), MINIBATCHES),
    (RecoverabilityScorer("linear"), {}),
    (RecoverabilityScorer("linear", cv=3), {}),
    (RecoverabilityScorer(LogisticRegression(), cv="holdout", validation_fraction=0.3), {}),
]


@parametrize_with_checks(
    [estimator for estimator, _ in CHECKED],
    expected_failed_checks=lambda estimator: next(
        expected for known, expected in CHECKED if repr(known) == repr(estimator)
    ),
)
def test_scikit_learn_check(estimator, check):
    check(estimator)


@pytest.fixture
def split(make_stack):
    """A stack whose inner layers know two classes each that the last does not, and as much to test on."""
    X, y = make_stack(n_per_class=80, n_classes=4, signal_layers=(1, 2, 3), strength=1.5)
    X[:, 1, :2] -= 1.5 * np.eye(4)[y][:, :2]
    X[:, 3, 2:4] -= 1.5 * np.eye(4)[y][:, 2:]
    return X[::2], X[1::2], y[::2], y[1::2]


def linear(**params):
    return RecoverabilityScorer("linear", random_state=0, **params)


@pytest.mark.parametrize("probe", ["linear", "mlp"])
def test_the_score_is_the_recovery_rate_of_the_layers_own_probes(split, probe):
    X_train, X_test, y_train, y_test = split
    scorer = RecoverabilityScorer(probe, layers=[0, 1, 3], max_epochs=5, random_state=0).fit(X_train, y_train)
    alone = [
        LayerProbeClassifier(layer, probe, max_epochs=5, random_state=0).fit(X_train, y_train) for layer in (0, 1, 3)
    ]
    predictions = np.array([classifier.predict(X_test) for classifier in alone])
    assert scorer.layers_ == [0, 1, 3]
    assert_array_equal(scorer.evaluate(X_test, y_test).predictions, predictions)
    assert scorer.score(X_test, y_test) == recovery_rate(predictions, y_test) > 0
    assert_array_equal(scorer.predict(X_test), predictions[-1])


def test_what_other_layers_know_is_recovered(split):
    X_train, X_test, y_train, y_test = split
    result = linear(layers=[0, 1, 3]).fit(X_train, y_train).evaluate(X_test, y_test)
    summary = result.summary(n_draws=200)
    assert summary.loc["corrected_recovery_rate", "low"] > 0.1
    assert result.to_frame()["recovery"].idxmax() == 1


@pytest.mark.parametrize("cv", [None, 5])
@pytest.mark.parametrize("seed", range(3))
def test_shuffled_labels_have_a_corrected_rate_around_0(make_stack, seed, cv):
    X, y = make_stack(n_per_class=80, n_classes=5, signal_layers=(1, 2, 5), seed=seed)
    # Layers that resemble each other, as those of a real backbone do.
    X = X.cumsum(axis=1)
    y = np.random.default_rng(seed).permutation(y)
    scorer = linear(cv=cv).fit(X[::2], y[::2])
    result = scorer.evaluate(X[1::2], y[1::2]) if cv is None else scorer.evaluate()
    corrected = result.summary(n_draws=300).loc["corrected_recovery_rate"]
    assert 0.2 < result.recovery_rate < 0.8
    assert corrected["low"] <= 0 <= corrected["high"]


def test_out_of_fold_predictions_are_by_probes_that_have_not_seen_the_sample(split):
    X, _, y, _ = split
    folds = KFold(3, shuffle=True, random_state=0)
    result = linear(cv=folds).fit(X, y).evaluate()
    expected = np.empty((6, len(y)), dtype=int)
    for train, test in folds.split(X):
        expected[:, test] = linear().fit(X[train], y[train]).evaluate(X[test], y[test]).predictions
    assert_array_equal(result.predictions, expected)
    assert_array_equal(result.y, y)


def test_cv_changes_no_probe(split):
    X_train, X_test, y_train, y_test = split
    one, other = (linear(cv=cv).fit(X_train, y_train).evaluate(X_test, y_test) for cv in (None, 4))
    assert_allclose(one.logits, other.logits, atol=1e-5)


def test_samples_in_no_test_fold_are_left_out(split):
    X, _, y, _ = split
    groups = np.arange(len(y)) % 2
    scorer = linear(cv=[(np.arange(50, len(y)), np.arange(50))]).fit(X, y)
    assert scorer.oof_logits_.shape == (6, len(y), 4)
    assert np.isnan(scorer.oof_logits_[:, 50:]).all()
    result = scorer.evaluate(groups=groups)
    assert_array_equal(result.y, y[:50])
    assert_array_equal(result.groups, groups[:50])


def test_a_class_that_a_fold_has_not_trained_on_counts_as_wrong(split):
    X, _, y, _ = split
    test = np.flatnonzero((y == 3) | (np.arange(len(y)) < 40))
    result = linear(cv=[(np.setdiff1d(np.arange(len(y)), test), test)]).fit(X, y).evaluate()
    assert_array_equal(result.y, y[test])
    assert not (result.predictions == 3).any()
    assert result.oracle_accuracy <= np.mean(y[test] < 3)


def test_groups_of_fit_are_kept_together_and_drawn_together(split, rng):
    X, _, y, _ = split
    patients = pd.factorize(rng.integers(0, 20, len(y)))[0]
    grouped, given = (
        linear(cv=cv).fit(X, y, groups=patients).evaluate()
        for cv in (GroupKFold(4), list(GroupKFold(4).split(X, y, patients)))
    )
    assert_array_equal(grouped.logits, given.logits)
    assert len(np.unique(grouped.clusters)) == 20
    assert_array_equal(patients[:, None] == patients, grouped.clusters[:, None] == grouped.clusters)
    assert grouped.groups is None


def test_groups_of_fit_may_have_names(split, rng):
    X, _, y, _ = split
    patients = np.array(["Ann", "Bob", "Cem", "Dua"])[rng.integers(0, 4, len(y))]
    assert len(np.unique(linear(cv=4).fit(X, y, groups=patients).evaluate().clusters)) == 4


def test_groups_of_evaluate_are_subpopulations(split):
    X_train, X_test, y_train, y_test = split
    groups = np.where(y_test < 2, "pet", "wild")
    by_group = linear().fit(X_train, y_train).evaluate(X_test, y_test, groups=groups).by_group()
    # The last layer with a signal is layer 3, and after it there is none: all have errors.
    assert by_group.index.tolist() == ["pet", "wild"]
    assert by_group["recovery_rate"].between(0, 1).all()


def test_evaluate_out_of_fold_takes_cv(split):
    X, _, y, _ = split
    scorer = linear(cv=3).fit(X, y)
    assert scorer.evaluate().predictions.shape == (6, len(y))
    scorer.set_params(cv=None).fit(X, y)
    with pytest.raises(ValueError, match=r"has no out-of-fold predictions: pass evaluate\(X, y\)"):
        scorer.evaluate()


def test_evaluate_takes_both_or_neither(split):
    X, _, y, _ = split
    scorer = linear(cv=3).fit(X, y)
    for arguments in ({"X": X}, {"y": y}):
        with pytest.raises(ValueError, match="takes X and y, or neither"):
            scorer.evaluate(**arguments)


def test_labels_and_groups_that_do_not_fit_are_refused(split):
    X, _, y, _ = split
    scorer = linear(cv=3).fit(X, y)
    with pytest.raises(ValueError, match="inconsistent numbers of samples"):
        scorer.score(X, y[:-1])
    with pytest.raises(ValueError, match=f"an entry for each of the {len(y)} samples"):
        scorer.evaluate(groups=[1, 2])
    with pytest.raises(ValueError, match=f"an entry for each of the {len(y)} samples"):
        scorer.evaluate(X, y, groups=[1, 2])


def test_a_label_that_was_not_in_fit_counts_as_wrong(split):
    X_train, X_test, y_train, y_test = split
    known = y_train < 3
    result = linear().fit(X_train[known], y_train[known]).evaluate(X_test, y_test)
    assert result.oracle_accuracy <= np.mean(y_test < 3)


def test_string_labels(split):
    X_train, X_test, y_train, y_test = split
    names = np.array(["ant", "bee", "cat", "dog"])
    scorer = linear(cv=3).fit(X_train, names[y_train])
    assert scorer.classes_.tolist() == names.tolist()
    assert scorer.score(X_test, names[y_test]) == linear().fit(X_train, y_train).score(X_test, y_test)
    assert set(scorer.evaluate().y) == set(names)


def test_one_layer_recovers_nothing(split):
    X_train, X_test, y_train, y_test = split
    scorer = linear().fit(X_train[:, 3], y_train)
    assert scorer.n_layers_in_ == 1
    assert scorer.score(X_test[:, 3], y_test) == 0


def test_flattened_layers(split):
    X_train, X_test, y_train, y_test = split
    flat = linear(n_layers=6).fit(X_train.reshape(len(X_train), -1), y_train)
    assert flat.score(X_test.reshape(len(X_test), -1), y_test) == linear().fit(X_train, y_train).score(X_test, y_test)


def test_zero_weights_are_absent(split):
    X_train, X_test, y_train, y_test = split
    weight = np.arange(len(y_train)) % 2
    weighted = linear(cv=3).fit(X_train, y_train, sample_weight=weight)
    assert_allclose(
        weighted.evaluate(X_test, y_test).logits,
        linear().fit(X_train[1::2], y_train[1::2]).evaluate(X_test, y_test).logits,
        atol=1e-5,
    )
    assert len(weighted.evaluate().y) == weight.sum()


def test_the_same_seed_gives_the_same_bits(split, global_rngs_untouched):
    X_train, X_test, y_train, y_test = split
    first, other = (RecoverabilityScorer(SMALL, cv=2, random_state=seed).fit(X_train, y_train) for seed in (0, 1))
    with parallel_config("threading", n_jobs=2):
        again = clone(first).fit(X_train, y_train)
    assert_array_equal(first.oof_logits_, again.oof_logits_)
    assert_array_equal(first.evaluate(X_test, y_test).logits, again.evaluate(X_test, y_test).logits)
    assert not np.array_equal(first.oof_logits_, other.oof_logits_)


def test_a_probe_may_be_any_classifier(split):
    X_train, X_test, y_train, y_test = split
    scorer = RecoverabilityScorer(LogisticRegression(), scaling="standard").fit(X_train, y_train)
    linear_probes = linear(scaling="standard").fit(X_train, y_train)
    assert scorer.score(X_test, y_test) == pytest.approx(linear_probes.score(X_test, y_test), abs=0.02)


def test_inputs_are_not_changed(split):
    X, _, y, _ = split
    for array in (X, y):
        array.flags.writeable = False
    scorer = linear(cv=3)
    before = scorer.get_params()
    scorer.fit(X, y).evaluate().summary(n_draws=5)
    assert scorer.get_params() == before


# ------------------------------------------------------------------------------------------- scikit-learn's company


def test_cross_validate_scores_recovery_beside_accuracy(split):
    X, _, y, _ = split
    scorer = linear()
    assert is_classifier(scorer)
    scores = cross_validate(scorer, X, y, cv=3, scoring={"last": "accuracy"}, error_score="raise")
    rates = cross_validate(scorer, X, y, cv=3, error_score="raise")["test_score"]
    assert ((rates > 0) & (rates < 1)).all()
    assert not np.allclose(rates, scores["test_last"])


def test_grid_search_over_layers(split):
    X, _, y, _ = split
    search = GridSearchCV(linear(), {"layers": ["all", "second_half", [-1]]}, cv=3, error_score="raise").fit(X, y)
    assert search.best_params_ == {"layers": "all"}
    assert search.cv_results_["mean_test_score"][-1] == 0
    assert search.best_estimator_.evaluate(X, y).layer_accuracy.shape == (6,)


def test_pipeline_and_groups(split, rng):
    X, _, y, _ = split
    pipeline = make_pipeline(FunctionTransformer(), linear(cv=GroupKFold(3)))
    patients = rng.integers(0, 10, len(y))
    pipeline.fit(X, y, recoverabilityscorer__groups=patients)
    assert 0 < pipeline.score(X, y) < 1
    assert pipeline[-1].evaluate().clusters is not None


def test_pipeline_from_images(rng):
    images = list(rng.random((24, 8, 8)))
    y = np.arange(24) % 2
    pipeline = make_pipeline(LayerwiseFeatureExtractor("nano"), linear(cv=3)).fit(images, y)
    assert pipeline[-1].evaluate().to_frame().index.tolist() == list(range(12))


@pytest.mark.parametrize("probe", ["linear", SMALL], ids=["linear", "mlp"])
def test_clones_pickles_and_files_score_the_same(split, probe, tmp_path):
    X_train, X_test, y_train, y_test = split
    scorer = RecoverabilityScorer(probe, cv=2, random_state=0).fit(X_train, y_train)
    skvfusion.save(scorer, tmp_path / "scorer.skops")
    copies = [
        clone(scorer).fit(X_train, y_train),
        pickle.loads(pickle.dumps(scorer)),
        skvfusion.load(tmp_path / "scorer.skops"),
    ]
    expected = scorer.evaluate(X_test, y_test).logits
    for copy in copies:
        assert_array_equal(copy.evaluate(X_test, y_test).logits, expected)
        assert_array_equal(copy.evaluate().predictions, scorer.evaluate().predictions)


def test_a_result_can_be_pickled(split):
    X, _, y, _ = split
    result = linear(cv=3).fit(X, y).evaluate()
    assert pickle.loads(pickle.dumps(result)).to_frame().equals(result.to_frame())
