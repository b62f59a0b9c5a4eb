import warnings

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.model_selection import GroupKFold, KFold, LeaveOneOut, ShuffleSplit, StratifiedKFold
from sklearn.naive_bayes import GaussianNB

from skvfusion import LayerProbeClassifier, SuperLearnerClassifier
from skvfusion.fusion.cross_fitting import fold_accuracies, log_probabilities, make_splits

pytestmark = pytest.mark.usefixtures("one_thread")

FAST = {"max_epochs": 3, "batch_size": 16}


def split(codes, cv=5, weight=None, groups=None, fraction=0.2, seed=0):
    return make_splits(cv, np.zeros((len(codes), 1, 1, 1)), codes, weight, groups, fraction, seed)


def balanced(n=60, n_classes=3):
    return np.random.default_rng(0).permutation(np.arange(n) % n_classes)


def grouped(n=60, n_groups=12):
    return np.random.default_rng(1).integers(0, n_groups, n)


def cross_fit(X, y, weight=None, groups=None, cv=3, seed=0, **params):
    """Return out-of-fold logits, usable rows, splits, and the classifier."""
    classifier = SuperLearnerClassifier(cv=cv, random_state=seed, **params)
    classifier.classes_, codes = np.unique(y, return_inverse=True)
    return *classifier._cross_fit(X[:, :, None], codes, weight, groups, seed), classifier


def test_an_int_means_shuffled_stratified_folds():
    codes = balanced()
    splits = split(codes, 5)
    assert len(splits) == 5
    assert_array_equal(np.sort(np.concatenate([test for _, test in splits])), np.arange(60))
    for train, test in splits:
        assert_array_equal(np.union1d(train, test), np.arange(60))
        assert len(np.intersect1d(train, test)) == 0
        assert_array_equal(np.bincount(codes[test]), [4, 4, 4])
    assert not np.array_equal(splits[0][1], np.arange(12))


@pytest.mark.parametrize("groups", [None, grouped()])
@pytest.mark.parametrize("cv", [4, "holdout"])
def test_the_seed_decides_the_folds(cv, groups):
    codes = balanced()
    tested = [[test.tolist() for _, test in split(codes, cv, groups=groups, seed=seed)] for seed in (1, 1, 2)]
    assert tested[0] == tested[1] != tested[2]


@pytest.mark.parametrize("cv", [2, 5, "holdout", GroupKFold(4)])
def test_a_group_is_never_on_both_sides(cv):
    groups = grouped()
    for train, test in split(balanced(), cv, groups=groups):
        assert len(test) > 0
        assert not set(groups[train]) & set(groups[test])


def test_groups_of_any_kind():
    groups = np.array([f"patient {group}" for group in grouped()])
    for train, test in split(balanced(), 3, groups=groups):
        assert not set(groups[train]) & set(groups[test])


def test_folds_of_groups_are_no_more_than_groups():
    groups = np.arange(60) % 3
    assert len(split(balanced(n_classes=2), 10, groups=groups)) == 3


def test_holdout_sets_a_fraction_of_each_class_aside_once():
    codes = balanced()
    ((train, test),) = split(codes, "holdout", fraction=0.3)
    assert_array_equal(np.bincount(codes[test]), [6, 6, 6])
    assert_array_equal(np.sort(np.concatenate([train, test])), np.arange(60))


def test_holdout_of_groups_sets_a_fraction_of_the_groups_aside():
    groups = np.arange(60) % 10
    ((train, test),) = split(balanced(), "holdout", groups=groups, fraction=0.3)
    assert len(set(groups[test])) == 3
    assert_array_equal(np.sort(np.concatenate([train, test])), np.arange(60))


@pytest.mark.parametrize("iterable", [list, iter])
def test_splits_are_taken_as_they_are(iterable):
    splits = [(np.array([0, 1, 4, 5]), np.array([2, 3])), (np.array([2, 3]), np.array([0, 1]))]
    found = split(np.array([0, 1, 0, 1, 0, 1]), iterable(splits))
    for expected, got in zip(splits, found, strict=True):
        assert_array_equal(expected[0], got[0])
        assert_array_equal(expected[1], got[1])


def test_a_splitter_sees_the_labels():
    codes = balanced()
    for expected, got in zip(StratifiedKFold(4).split(codes, codes), split(codes, StratifiedKFold(4)), strict=True):
        assert_array_equal(expected[1], got[1])


@pytest.mark.parametrize(
    ("cv", "groups"),
    [
        (3, None),
        (3, grouped()),
        ("holdout", None),
        ("holdout", grouped()),
        (KFold(4), None),
        (GroupKFold(3), grouped()),
        (list(KFold(4).split(np.arange(60))), None),
    ],
)
def test_samples_without_weight_are_on_neither_side(cv, groups):
    weight = np.ones(60)
    absent = np.array([0, 7, 8, 9, 30, 59])
    weight[absent] = 0
    for train, test in split(balanced(), cv, weight, groups):
        assert len(test) > 0
        assert not np.isin(absent, np.concatenate([train, test])).any()
        assert groups is None or not set(groups[train]) & set(groups[test])


@pytest.mark.parametrize(
    ("counts", "n_folds"), [([20, 20, 20], 5), ([20, 4, 3], 4), ([20, 20, 1], 5), ([20, 2], 2), ([3, 3, 3], 3)]
)
def test_folds_are_no_more_than_the_second_largest_class_has_samples(counts, n_folds):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(split(np.repeat(np.arange(len(counts)), counts), 5)) == n_folds


def test_samples_without_weight_do_not_count_for_the_number_of_folds():
    codes = np.repeat([0, 1], 10)
    assert len(split(codes, 5, np.where(np.arange(20) < 13, 1.0, 0.0))) == 3


@pytest.mark.parametrize("groups", [None, np.zeros(11)])
def test_what_cannot_be_cross_validated_is_refused(groups):
    codes = np.array([0] * 10 + [1]) if groups is None else balanced(11, 2)
    with pytest.raises(ValueError, match="11 samples cannot be cross-validated: two classes need at least 2 samples"):
        split(codes, 5, groups=groups)


@pytest.mark.parametrize("cv", [ShuffleSplit(3, random_state=0), [(np.arange(30), np.arange(30, 60))] * 2])
def test_overlapping_test_folds_are_refused(cv):
    with pytest.raises(ValueError, match="overlapping test folds; each sample can be scored once only"):
        split(balanced(), cv)


@pytest.mark.parametrize("cv", [KFold(2), [(np.arange(10), np.arange(10, 20))]])
def test_a_training_fold_of_one_class_is_refused(cv):
    message = "makes a split whose 10 training samples are of one class. Use splits that leave at least two classes"
    with pytest.raises(ValueError, match=message):
        split(np.repeat([0, 1], 10), cv)


def test_a_training_fold_of_one_class_with_weight_is_refused():
    codes = balanced(20, 2)
    splits = list(KFold(2).split(codes))
    weight = np.ones(20)
    weight[splits[0][0][codes[splits[0][0]] == 1]] = 0
    with pytest.raises(ValueError, match="training samples are of one class"):
        split(codes, splits, weight)


@pytest.mark.parametrize(
    ("cv", "groups"), [(3, None), (3, grouped(48)), (KFold(4), None), (GroupKFold(3), grouped(48)), ("holdout", None)]
)
@pytest.mark.parametrize(
    ("probe", "params"),
    [("linear", {"scaling": "standard"}), ("mlp", FAST | {"early_stopping": False})],
    ids=["linear", "mlp"],
)
@pytest.mark.parametrize("weighted", [False, True])
def test_rows_are_scored_by_probes_that_have_not_seen_them(cv, groups, probe, params, weighted, make_stack):
    X, y = make_stack(n_per_class=16, n_layers=3)
    weight = np.random.default_rng(0).uniform(0.5, 2, 48) if weighted else None
    logits, _, splits, _ = cross_fit(X, y, weight, groups, cv, probe=probe, **params)
    assert logits.dtype == np.float32
    for train, test in splits:
        for layer in range(3):
            alone = LayerProbeClassifier(layer, probe, random_state=0, **params)
            alone.fit(X[train], y[train], None if weight is None else weight[train])
            expected = alone.predict_proba(X[test])
            found = np.exp(logits[test, layer]) / np.exp(logits[test, layer]).sum(axis=1, keepdims=True)
            assert_allclose(found, expected, atol=1e-4)


def test_what_a_row_is_does_not_change_what_scores_it(make_stack):
    X, y = make_stack(n_layers=3)
    logits, _, splits, _ = cross_fit(X, y)
    changed, relabelled = X.copy(), y.copy()
    test = splits[0][1]
    changed[test] = 100.0
    relabelled[test] = np.roll(y[test], 1)
    by_others, *_ = cross_fit(changed, relabelled, cv=splits)
    probe = LayerProbeClassifier(2, random_state=0).fit(X[splits[0][0]], y[splits[0][0]])
    assert_allclose(by_others[test, 2], np.float32(probe.probe_.logits(changed[test][:, [2], None])[:, 0]), rtol=1e-3)
    assert not np.allclose(by_others[test], logits[test])


def test_what_is_in_no_test_fold_is_not_scored(make_stack):
    X, y = make_stack()
    logits, usable, ((_, test),), _ = cross_fit(X, y, cv="holdout", validation_fraction=0.2)
    assert len(test) == 12
    assert_array_equal(usable, test)
    assert_array_equal(np.isnan(logits).all(axis=(1, 2)), ~np.isin(np.arange(60), test))
    assert np.isfinite(logits[test]).all()


def test_samples_of_a_class_that_their_probes_do_not_know_are_not_usable(make_stack):
    X, y = make_stack()
    y = np.where(np.arange(60) == 17, 3, y)
    logits, usable, _, _ = cross_fit(X, y)
    assert_array_equal(usable, np.delete(np.arange(60), 17))
    assert np.isfinite(logits).all()
    assert (logits[17, :, 3] < logits[17, :, :3].min(axis=1) - 1000).all()


def test_a_class_whose_samples_are_all_in_one_fold_is_not_usable(make_stack):
    X, y = make_stack()
    splits = list(KFold(3).split(X))
    y = np.where(y == 2, 0, y)
    y[splits[1][1][:4]] = 2
    _, usable, _, _ = cross_fit(X, y, cv=splits)
    assert_array_equal(usable, np.setdiff1d(np.arange(60), splits[1][1][:4]))


def test_samples_without_weight_are_not_usable(make_stack):
    X, y = make_stack()
    weight = np.where(np.arange(60) < 50, 1.0, 0.0)
    logits, usable, _, _ = cross_fit(X, y, weight)
    assert_array_equal(usable, np.arange(50))
    assert np.isnan(logits[50:]).all()


@pytest.mark.parametrize("probe", ["linear", "mlp", GaussianNB()])
def test_a_test_fold_without_weight_is_left_out(probe, make_stack):
    X, y = make_stack()
    splits = list(KFold(3).split(X))
    absent = splits[1][1]
    weight = np.ones(60)
    weight[absent] = 0
    logits, usable, _, _ = cross_fit(X, y, weight, cv=splits, probe=probe, **FAST)
    assert_array_equal(usable, np.setdiff1d(np.arange(60), absent))
    assert np.isnan(logits[absent]).all()


def test_nothing_to_learn_from_is_refused(make_stack):
    X, y = make_stack(n_per_class=2)
    splits = [(np.flatnonzero(y < 2), np.flatnonzero(y == 2))]
    with pytest.raises(ValueError, match="has nothing to learn from: cv makes no split"):
        SuperLearnerClassifier(cv=splits).fit(X, y)


def test_a_class_of_one_sample_does_not_stop_a_fit(make_stack):
    X, y = make_stack()
    labels = np.array(["a", "b", "c", "rare"])[np.where(np.arange(60) == 17, 3, y)]
    fitted = SuperLearnerClassifier(cv=3, C=100, random_state=0).fit(X, labels)
    assert fitted.layer_weights_.argmax() == 2
    assert fitted.predict_proba(X)[17, 3] > 0.3 > 0.1 > np.delete(fitted.predict_proba(X)[:, 3], 17).max()


def test_leaving_one_out(make_stack):
    X, y = make_stack(n_per_class=5, n_layers=3)
    logits, usable, splits, _ = cross_fit(X, y, cv=LeaveOneOut())
    assert len(splits) == len(usable) == 15
    assert np.isfinite(logits).all()


def test_groups_of_another_length_are_refused(make_stack):
    X, y = make_stack()
    with pytest.raises(ValueError, match="groups must be one-dimensional with an entry for each"):
        SuperLearnerClassifier().fit(X, y, groups=np.arange(59))


def test_a_generator_is_drawn_from_once_and_an_int_is_the_seed():
    assert SuperLearnerClassifier(random_state=5)._seed() == 5
    generator = np.random.RandomState(5)
    classifier = SuperLearnerClassifier(random_state=generator)
    assert classifier._seed() != classifier._seed()
    assert (
        SuperLearnerClassifier(random_state=np.random.RandomState(5))._seed()
        == SuperLearnerClassifier(random_state=np.random.RandomState(5))._seed()
    )


def test_accuracies_by_hand():
    logits = np.zeros((5, 2, 2))
    codes = np.array([0, 1, 0, 1, 1])
    logits[np.arange(5), 0, codes] = 1
    logits[:, 1, 0] = 1
    logits[3] = np.nan
    splits = [(None, np.array([0, 1])), (None, np.array([2, 4])), (None, np.array([], dtype=int))]
    nan = np.nan
    assert_allclose(fold_accuracies(logits, codes, None, splits), [[1, 1, nan], [0.5, 0.5, nan]])
    weight = np.array([3.0, 1.0, 0.0, 1.0, 0.0])
    assert_allclose(fold_accuracies(logits, codes, weight, splits), [[1, nan, nan], [0.75, nan, nan]])


def test_logarithms_of_probabilities_are_finite():
    assert_allclose(log_probabilities(np.array([1.0, 0.5, 0.0])), [0, np.log(0.5), np.log(np.finfo(float).tiny)])


def test_masks_and_negative_indices_are_splits_as_for_numpy(make_stack):
    X, y = make_stack()
    first = np.arange(60) < 45
    masks = SuperLearnerClassifier(cv=[(first, ~first)]).fit(X, y)
    negative = SuperLearnerClassifier(cv=[(np.arange(45), np.arange(-15, 0))]).fit(X, y)
    indices = SuperLearnerClassifier(cv=[(np.arange(45), np.arange(45, 60))]).fit(X, y)
    assert_array_equal(masks.oof_proba_, indices.oof_proba_)
    assert_array_equal(negative.oof_proba_, indices.oof_proba_)
    assert np.isfinite(masks.oof_proba_[:, 0, 0]).sum() == 15


@pytest.mark.parametrize(
    ("cv", "message"),
    [
        ([(np.arange(40), np.arange(40, 70))], "does not fit 60 samples"),
        ([(np.arange(60), np.arange(60))], "samples on both sides"),
        ([(np.r_[np.arange(40), 0], np.arange(40, 60))], "names a sample twice"),
        ([], "gives no splits"),
    ],
)
def test_splits_that_cannot_be_meant_are_refused(cv, message, make_stack):
    X, y = make_stack()
    with pytest.raises(ValueError, match=message):
        SuperLearnerClassifier(cv=cv).fit(X, y)


def test_a_used_up_generator_says_so(make_stack):
    X, y = make_stack()
    classifier = SuperLearnerClassifier(cv=StratifiedKFold(3).split(X, y)).fit(X, y)
    with pytest.raises(ValueError, match="A generator can be used once only"):
        classifier.fit(X, y)


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        ([None] * 60, "missing entries"),
        ([np.nan] + [1.0] * 59, "missing entries"),
        (np.zeros((60, 2)), "one-dimensional"),
    ],
)
@pytest.mark.parametrize("cv", [3, "holdout"])
def test_groups_that_say_nothing_are_refused(groups, message, cv, make_stack):
    X, y = make_stack()
    with pytest.raises(ValueError, match=message):
        SuperLearnerClassifier(cv=cv).fit(X, y, groups=groups)


def test_a_single_group_cannot_be_set_aside(make_stack):
    X, y = make_stack()
    with pytest.raises(ValueError, match="there is only one"):
        SuperLearnerClassifier(cv="holdout").fit(X, y, groups=["a"] * 60)


def test_rare_classes_limit_the_folds_of_groups_too(make_stack):
    X, y = make_stack(n_per_class=3, n_classes=2)
    assert SuperLearnerClassifier(cv=5).fit(X, y, groups=np.arange(6)).cv_scores_.shape == (6, 3)


def test_a_holdout_of_single_samples_speaks_of_the_holdout(make_stack):
    X, _ = make_stack()
    with pytest.raises(ValueError, match="cv='holdout' has nothing to set aside"):
        SuperLearnerClassifier(cv="holdout").fit(X[:3], [0, 1, 2])
