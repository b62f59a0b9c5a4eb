import inspect

import joblib
import numpy as np
import pytest
from numpy.testing import assert_array_equal
from pandas.testing import assert_frame_equal
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.metrics import accuracy_score, balanced_accuracy_score, log_loss, roc_auc_score
from sklearn.model_selection import GroupKFold, KFold
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer

import skvfusion
from skvfusion import (
    AttentiveFusionClassifier,
    LayerProbeClassifier,
    LayerVotingClassifier,
    MixtureOfExpertsClassifier,
    NeuralLogitControllerClassifier,
    SuperLearnerClassifier,
    VFusionClassifier,
    compare,
)
from skvfusion.compare import run_comparison
from skvfusion.methods import METHODS, Method
from skvfusion.recoverability import gap_closure, layer_accuracy, oracle_accuracy

pytestmark = pytest.mark.usefixtures("one_thread")

# Those that train no net, which is most of the time.
QUICK = ["last", "best", "average", "vote", "calibrated", "super_learner"]
TIMES = ["fit_seconds", "predict_seconds"]
COLUMNS = [
    "label",
    "accuracy",
    "balanced_accuracy",
    "nll",
    "ece",
    "auc",
    "gain",
    "gain_low",
    "gain_high",
    "gap_closed",
    "validation_accuracy",
    *TIMES,
    "error",
]
SHORT = {
    "last_mlp": lambda **params: LayerProbeClassifier(-1, "mlp", max_epochs=2, hidden=8, latent_dim=4, **params),
    "nlc": lambda **params: NeuralLogitControllerClassifier(max_epochs=1, hidden=8, **params),
    "moe": lambda **params: MixtureOfExpertsClassifier(max_epochs=1, hidden=8, **params),
    "alf": lambda n_jobs, **params: AttentiveFusionClassifier(max_epochs=2, min_steps=0, **params),
    "vfusion": lambda n_jobs, **params: VFusionClassifier(max_epochs=2, hidden=8, latent_dim=4, **params),
}


def brief_vfusion(n_jobs, **params):
    return VFusionClassifier(max_epochs=15, hidden=32, latent_dim=8, **params)


@pytest.fixture
def make_small(make_stack):
    """Return a maker of stacks with three layers, which are quickly learned from."""
    return lambda **params: make_stack(**{"n_layers": 3, "signal_layers": (1,)} | params)


@pytest.fixture
def register(monkeypatch):
    """Return a function that enters a method into the registry until the test ends."""

    def register(key, make):
        monkeypatch.setitem(METHODS, key, Method(f"my {key}", make))

    return register


@pytest.fixture
def short(register):
    """Let the nets train for a moment only."""
    for key, make in SHORT.items():
        register(key, make)


class Centroid(ClassifierMixin, BaseEstimator):
    """Nearest class mean of the flattened stack, as fast as can be; fits can fail, and are taken down."""

    def __init__(self, fails=lambda y: None, fits=None):
        self.fails = fails
        self.fits = fits

    def fit(self, X, y, groups=None):
        self.fails(y)
        if self.fits is not None:
            self.fits.append((X, y, groups))
        self.classes_ = np.unique(y)
        self.means_ = np.array([X[y == label].reshape(np.sum(y == label), -1).mean(axis=0) for label in self.classes_])
        return self

    def predict_proba(self, X):
        distances = np.square(X.reshape(len(X), 1, -1) - self.means_).sum(axis=2)
        scores = np.exp(distances.min(axis=1, keepdims=True) - distances)
        return scores / scores.sum(axis=1, keepdims=True)


def train_rows(comparison, n):
    return np.setdiff1d(np.arange(n), comparison.rows)


# ---- what is known beforehand


def test_signal_in_an_inner_layer_is_found_and_gained(make_small, register):
    register("vfusion", brief_vfusion)
    X, y = make_small(n_per_class=60, strength=4)
    comparison = run_comparison(X, y, methods=["last", "best", "super_learner", "vfusion"])
    frame = comparison.frame
    assert frame.accuracy["last"] < 0.55
    for key in ("best", "super_learner", "vfusion"):
        assert frame.accuracy[key] > 0.8
        assert frame.gain_low[key] > 0.2
    assert comparison.best == "best"
    assert comparison.estimators["best"].layer_ == 1
    assert frame.attrs["best_layer_accuracy"] == frame.accuracy["best"]
    assert frame.attrs["last_accuracy"] == frame.accuracy["last"]
    assert layer_accuracy(comparison.layer_predictions, comparison.y).argmax() == 1


@pytest.mark.parametrize(
    ("methods", "cv"), [([*QUICK, "vfusion"], None), (["last", "best", "average", "super_learner"], 3)]
)
def test_shuffled_labels_gain_nothing(methods, cv, make_small, register):
    register("vfusion", brief_vfusion)
    X, y = make_small(n_per_class=40, signal_layers=(1, 2))
    y = np.random.default_rng(3).permutation(y)
    frame = compare(X, y, methods=methods, cv=cv, test_size=0.5)
    assert (frame.gain_low <= 0).all()
    assert (frame.gain_high >= 0).all()
    assert (frame.gain_high - frame.gain_low)[1:].min() > 0.05
    assert frame.accuracy.between(0.15, 0.5).all()
    assert frame.validation_accuracy.between(0.15, 0.5).all()


def test_a_perfect_last_layer_leaves_nothing_to_gain(make_small):
    X, y = make_small(signal_layers=(2,), strength=15)
    frame = compare(X, y, methods=["last", "best", "super_learner"])
    assert (frame[["accuracy", "balanced_accuracy", "auc", "validation_accuracy"]] == 1).all(axis=None)
    assert (frame[["gain", "gain_low", "gain_high"]] == 0).all(axis=None)
    assert frame.gap_closed.isna().all()
    assert frame.attrs["oracle_accuracy"] == 1
    assert frame.attrs["best"] == "last"


def test_remembering_the_training_samples_helps_nowhere(make_small, register):
    flat = FunctionTransformer(lambda X: X.reshape(len(X), -1))
    register("memory", lambda **params: make_pipeline(flat, KNeighborsClassifier(1)))
    X, y = make_small(n_per_class=40, signal_layers=())
    for options in ({}, {"cv": 4}, {"X_test": X[:60], "y_test": y[:60]}):
        part = slice(60, None) if "X_test" in options else slice(None)
        row = compare(X[part], y[part], methods=["memory"], **options).loc["memory"]
        assert row.accuracy < 0.6
        assert row.validation_accuracy < 0.6


def test_the_last_layers_probe_gains_exactly_nothing_over_itself(make_small):
    X, y = make_small(strength=1.5, signal_layers=(1, 2))
    for cv in (None, 3):
        row = compare(X, y, methods="last", cv=cv).loc["last"]
        assert [row.gain, row.gain_low, row.gain_high] == [0, 0, 0]


# ---- what is in the table


def test_it_has_a_row_for_each_method_and_what_was_agreed(make_small, register):
    for key in METHODS:
        register(key, lambda **params: Centroid())
    X, y = make_small(n_per_class=20, strength=1)
    frame = compare(X, y)
    assert list(frame.index) == list(METHODS)
    assert frame.index.name == "method"
    assert list(frame.columns) == COLUMNS
    assert frame.label.to_dict() == {key: method.label for key, method in METHODS.items()}
    assert (frame.error == "").all()
    assert frame.drop(columns="error").notna().all(axis=None)
    assert (frame[TIMES] > 0).all(axis=None)
    assert (frame.gain_low <= frame.gain).all()
    assert (frame.gain <= frame.gain_high).all()


def test_the_figures_are_those_of_the_predictions(make_small):
    X, y = make_small(strength=1.5, n_per_class=40)
    comparison = run_comparison(X, np.array(["c", "a", "b"])[y], methods=["last", "super_learner"])
    row, probabilities = comparison.frame.loc["super_learner"], comparison.probabilities["super_learner"]
    predicted = comparison.classes[probabilities.argmax(axis=1)]
    assert row.accuracy == accuracy_score(comparison.y, predicted)
    assert row.balanced_accuracy == pytest.approx(balanced_accuracy_score(comparison.y, predicted))
    assert row.nll == pytest.approx(log_loss(comparison.y, probabilities))
    assert row.auc == pytest.approx(roc_auc_score(comparison.y, probabilities, multi_class="ovr"))
    assert row.gain == row.accuracy - np.mean(comparison.layer_predictions[-1] == comparison.y)
    oracle = oracle_accuracy(comparison.layer_predictions, comparison.y)
    assert comparison.frame.attrs["oracle_accuracy"] == oracle
    assert row.gap_closed == gap_closure(row.accuracy, comparison.frame.attrs["best_layer_accuracy"], oracle)


def test_auc_of_two_classes(make_small):
    X, y = make_small(n_classes=2, strength=1)
    comparison = run_comparison(X, y, methods="super_learner")
    expected = roc_auc_score(comparison.y, comparison.probabilities["super_learner"][:, 1])
    assert comparison.frame.auc["super_learner"] == expected


@pytest.mark.parametrize("cv", [None, 3])
def test_predictions_are_those_of_a_classifier_fitted_on_the_rest(cv, make_small):
    X, y = make_small()
    folds = None if cv is None else list(KFold(cv, shuffle=True, random_state=0).split(X))
    comparison = run_comparison(X, y, methods=["super_learner"], cv=folds, random_state=3)
    folds = folds or [(train_rows(comparison, len(y)), comparison.rows)]
    assert_array_equal(comparison.rows, np.sort(np.concatenate([test for _, test in folds])))
    for train, test in folds:
        alone = SuperLearnerClassifier(random_state=3).fit(X[train], y[train])
        places = np.searchsorted(comparison.rows, test)
        assert_array_equal(comparison.probabilities["super_learner"][places], alone.predict_proba(X[test]))
        for layer in range(X.shape[1]):
            probe = LayerProbeClassifier(layer).fit(X[train], y[train])
            assert_array_equal(comparison.layer_predictions[layer, places], probe.predict(X[test]))
            probabilities = comparison.layer_probabilities[layer, places]
            np.testing.assert_allclose(probabilities, probe.predict_proba(X[test]), atol=1e-12)


def test_estimators_are_those_that_were_evaluated(make_small):
    X, y = make_small()
    comparison = run_comparison(X, y, methods=["average", "calibrated"])
    for key, estimator in comparison.estimators.items():
        assert_array_equal(estimator.predict_proba(X[comparison.rows]), comparison.probabilities[key])


def test_with_cv_estimators_have_learned_from_all_samples(make_small):
    X, y = make_small()
    comparison = run_comparison(X, y, methods=["average"], cv=3)
    expected = LayerVotingClassifier().fit(X, y)
    assert_array_equal(comparison.estimators["average"].predict_proba(X), expected.predict_proba(X))
    assert_array_equal(comparison.rows, np.arange(len(y)))
    assert_array_equal(comparison.y, y)


def test_compare_takes_what_run_comparison_takes():
    ours, theirs = (inspect.signature(function).parameters for function in (compare, run_comparison))
    assert {name: parameter.default for name, parameter in ours.items()} == {
        name: parameter.default for name, parameter in theirs.items()
    }
    assert skvfusion.compare is compare


# ---- splits


def test_the_hold_out_is_stratified(make_small):
    X, y = make_small(n_per_class=20)
    y = np.where(np.arange(len(y)) < 30, y, np.minimum(y, 1))
    comparison = run_comparison(X, y, methods=["average"], test_size=0.3)
    assert_array_equal(np.bincount(comparison.y), np.rint(0.3 * np.bincount(y)))
    assert comparison.frame.attrs["n_test"] == len(comparison.rows)
    assert comparison.frame.attrs["n_train"] == len(y) - len(comparison.rows)


def test_a_given_test_set_is_evaluated_by_what_learned_from_all_of_X(make_small):
    X, y = make_small(n_per_class=30)
    comparison = run_comparison(X[:60], y[:60], X_test=X[60:], y_test=y[60:], methods=["average"])
    expected = LayerVotingClassifier().fit(X[:60], y[:60]).predict_proba(X[60:])
    assert_array_equal(comparison.probabilities["average"], expected)
    assert_array_equal(comparison.rows, np.arange(30))
    assert_array_equal(comparison.y, y[60:])


def test_what_is_chosen_does_not_depend_on_the_labels_that_are_evaluated(make_small, short):
    X, y = make_small(n_per_class=20, strength=2)
    methods = ["best", "calibrated", "super_learner", "nlc", "vfusion"]
    found = [
        run_comparison(X[:40], y[:40], X_test=X[40:], y_test=labels, methods=methods)
        for labels in (y[40:], np.random.default_rng(0).permutation(y[40:]))
    ]
    assert_array_equal(*(comparison.frame.validation_accuracy for comparison in found))
    assert found[0].best == found[1].best
    for key in methods:
        assert_array_equal(*(comparison.probabilities[key] for comparison in found))
    assert (found[0].frame.accuracy != found[1].frame.accuracy).any()


def test_the_validation_accuracy_is_of_folds_of_the_training_part(make_small, register):
    fits = []
    register("centroid", lambda **params: Centroid(fits=fits))
    X, y = make_small(n_per_class=21, strength=1.5)
    comparison = run_comparison(X, y, methods=["centroid"])
    train = X[train_rows(comparison, len(y))]
    seen = [{row.tobytes() for row in fitted} for fitted, _, _ in fits]
    everything = {row.tobytes() for row in train}
    whole = [rows for rows in seen if rows == everything]
    folds = [everything - rows for rows in seen if rows < everything]
    assert len(whole) == 1
    assert len(folds) == 5
    assert sum(len(fold) for fold in folds) == len(everything) == len(set.union(*folds))
    hits = 0
    for fitted, labels, _ in fits:
        left_out = np.array([row.tobytes() not in {seen.tobytes() for seen in fitted} for row in train])
        if left_out.any():
            model = Centroid().fit(fitted, labels)
            predicted = model.classes_[model.predict_proba(train[left_out]).argmax(axis=1)]
            hits += np.sum(predicted == y[train_rows(comparison, len(y))][left_out])
    assert comparison.frame.validation_accuracy["centroid"] == hits / len(train)


def test_the_best_of_equals_is_the_first_in_the_registry(make_small, register):
    register("twin", METHODS["average"].make)
    X, y = make_small(strength=4, signal_layers=range(3))
    frame = compare(X, y, methods=["twin", "average"])
    assert list(frame.index) == ["twin", "average"]
    assert frame.validation_accuracy["twin"] == frame.validation_accuracy["average"]
    assert frame.attrs["best"] == "average"


def test_the_best_in_validation_need_not_be_the_best_in_the_test(make_small):
    X, y = make_small(n_per_class=40, n_layers=2, signal_layers=(0,), strength=4)
    X_test, y_test = make_small(n_per_class=40, n_layers=2, signal_layers=(1,), strength=4, seed=1)
    frame = compare(X, y, X_test=X_test, y_test=y_test, methods=["last", "best"])
    assert frame.attrs["best"] == "best"
    assert frame.attrs["best_accuracy"] == frame.accuracy["best"] < 0.5


def test_with_cv_the_honest_accuracy_is_of_choices_inside_the_folds(make_small, register):
    # One method goes wrong where it has seen a certain sample, the other where it has not.
    X, y = make_small(n_per_class=20, n_layers=2, signal_layers=(0, 1))
    folds = list(KFold(2, shuffle=True, random_state=0).split(X))
    sample = X[folds[0][0][0]]

    class Wayward(Centroid):
        def __init__(self, wrong_if_seen):
            self.wrong_if_seen = wrong_if_seen

        def fit(self, X, y):
            seen = bool(np.equal(X, sample).all(axis=(1, 2)).any())
            self.fails, self.fits = (lambda y: None), None
            super().fit(X, y)
            self.means_ *= -1 if seen == self.wrong_if_seen else 1
            return self

    register("a", lambda **params: Wayward(True))
    register("b", lambda **params: Wayward(False))
    frame = compare(X, y, methods=["a", "b"], cv=folds)
    assert frame.accuracy.max() < 0.8
    assert frame.attrs["best_accuracy"] > 0.9


def test_splits_that_leave_nothing_out_and_samples_never_left_out_are_ignored(make_small):
    X, y = make_small()
    folds = [(np.arange(20, 60), np.arange(20)), (np.arange(60), np.arange(0))]
    comparison = run_comparison(X, y, methods="average", cv=folds)
    assert_array_equal(comparison.rows, np.arange(20))
    assert comparison.frame.accuracy["average"] == np.mean(
        comparison.classes[comparison.probabilities["average"].argmax(axis=1)] == y[:20]
    )


# ---- groups


@pytest.mark.parametrize("cv", [None, 3, GroupKFold(4)])
def test_groups_are_never_on_both_sides_and_reach_methods_that_take_them(cv, make_small, register):
    fits = []
    register("centroid", lambda **params: Centroid(fits=fits))
    X, y = make_small(n_per_class=24)
    groups = np.array([f"patient {k}" for k in np.random.default_rng(0).integers(0, 12, len(y))])
    of = {row.tobytes(): group for row, group in zip(X, groups, strict=True)}
    comparison = run_comparison(X, y, methods=["centroid", "super_learner"], cv=cv, groups=groups)
    assert_array_equal(comparison.groups, groups[comparison.rows])
    whole = {of[row.tobytes()] for row in X}
    for fitted, _, given in fits:
        inside = {of[row.tobytes()] for row in fitted}
        assert len(fitted) == sum(group in inside for group in groups)  # groups are whole
        assert len(set(given)) == len(inside)
        assert inside < whole or cv is not None
    assert (comparison.frame.error == "").all()
    if cv is None:
        assert not set(comparison.groups) & set(np.delete(groups, comparison.rows))
        assert 0.1 < len(comparison.rows) / len(y) < 0.4


@pytest.mark.parametrize("test_size", [0.1, 0.4, 0.5, 0.8])
def test_the_share_of_groups_that_is_held_out(test_size, make_small):
    X, y = make_small(n_per_class=40)
    comparison = run_comparison(X, y, methods="average", groups=np.arange(len(y)) // 3, test_size=test_size)
    assert len(comparison.rows) / len(y) == pytest.approx(test_size, abs=0.06)


def test_intervals_are_wider_if_samples_of_a_group_are_the_same(make_small):
    X, y = make_small(n_per_class=30, strength=1.5)
    X_test, y_test = make_small(n_per_class=20, strength=1.5, seed=1)
    X_test, y_test = np.repeat(X_test, 9, axis=0), np.repeat(y_test, 9)
    groups = np.concatenate([1000 + np.arange(len(y)), np.arange(len(y_test)) // 9])
    options = {"X_test": X_test, "y_test": y_test, "methods": ["super_learner"]}
    width = [
        (frame.gain_high - frame.gain_low).iloc[0]
        for frame in (compare(X, y, groups=given, **options) for given in (groups, groups[: len(y)]))
    ]
    assert width[0] == pytest.approx(3 * width[1], rel=0.25)


def test_a_group_on_both_sides_of_given_splits_is_pointed_out(make_small):
    X, y = make_small()
    with pytest.warns(UserWarning, match=r"groups are on both sides of the splits"):
        compare(X, y, methods="average", groups=np.arange(len(y)) // 7, cv=list(KFold(3).split(X)))


# ---- little data, rare classes


def test_three_images_a_class_are_enough(make_small, short):
    X, y = make_small(n_per_class=3, n_classes=3)
    frame = compare(X, y)
    assert (frame.error == "").all()
    assert frame.drop(columns="gap_closed").notna().all(axis=None)
    assert frame.attrs["n_test"] == 3


def test_three_images_of_two_classes_are_too_few_for_some_validations_only(make_small):
    X, y = make_small(n_per_class=3, n_classes=2, strength=9)
    comparison = run_comparison(X, y, methods=["last", "average", "super_learner"])
    frame = comparison.frame
    assert frame.accuracy.notna().all()
    assert_array_equal(frame.error == "", [True, True, False])
    assert frame.error["super_learner"].startswith("validation: CannotSplitError: ")
    assert_array_equal(frame.validation_accuracy.isna(), [False, False, True])
    assert set(comparison.estimators) == set(frame.index)
    assert comparison.best in ("last", "average")


def test_three_images_a_class_in_cross_validation(make_small):
    X, y = make_small(n_per_class=3, n_classes=3)
    frame = compare(X, y, methods=["last", "super_learner"], cv=5)
    assert (frame.error == "").all()
    assert frame.attrs["n_train"] == 6


def test_a_single_image_of_a_class_is_learned_from(make_small):
    X, y = make_small()
    y[0] = 7
    comparison = run_comparison(X, y, methods=["last", "super_learner"])
    assert 7 in comparison.classes
    assert 0 not in comparison.rows
    assert comparison.frame.auc.isna().all()
    assert (comparison.frame.error == "").all()
    assert comparison.frame.attrs["unknown_classes"] == []


def test_a_class_only_in_the_test_counts_as_wrong(make_small):
    X, y = make_small(strength=15, signal_layers=range(3))
    names = np.array(["ant", "bee", "cow"])[y]
    known = names != "bee"
    train, test = np.flatnonzero(known)[:30], np.concatenate([np.flatnonzero(known)[30:], np.flatnonzero(~known)])
    with pytest.warns(UserWarning, match=r"classes \['bee'\] count as wrong"):
        comparison = run_comparison(
            X[train], names[train], X_test=X[test], y_test=names[test], methods=["last", "super_learner"]
        )
    frame, missing = comparison.frame, np.mean(names[test] == "bee")
    assert comparison.classes.tolist() == ["ant", "bee", "cow"]
    assert frame.attrs["unknown_classes"] == ["bee"]
    assert frame.accuracy.tolist() == pytest.approx([1 - missing] * 2)
    assert frame.balanced_accuracy.tolist() == pytest.approx([2 / 3] * 2)
    assert frame.nll.tolist() == pytest.approx([36.04 * missing] * 2, abs=0.1)
    assert (comparison.probabilities["last"][:, 1] == 0).all()
    assert (comparison.layer_probabilities[:, :, 1] == 0).all()
    assert "bee" not in comparison.layer_predictions


def test_groups_can_be_too_few_to_validate(make_small):
    X, y = make_small()
    comparison = run_comparison(X, y, methods=["last"], groups=np.arange(len(y)) % 2, test_size=0.5)
    assert comparison.frame.error["last"].startswith("validation: ")
    assert comparison.frame.accuracy["last"] > 0
    assert comparison.best == "last"


# ---- what can go wrong


def refuse(y):
    raise RuntimeError("no such luck")


def test_a_method_that_fails_says_so_in_its_row(make_small, register):
    register("bad", lambda **params: Centroid(fails=refuse))
    register("unmade", lambda **params: 1 / 0)
    register("mute", lambda **params: LayerProbeClassifier(layer=99))
    X, y = make_small()
    for cv in (None, 3):
        comparison = run_comparison(X, y, methods=["bad", "average", "unmade", "mute"], cv=cv)
        frame = comparison.frame
        assert frame.error["bad"] == "RuntimeError: no such luck"
        assert frame.error["unmade"] == "ZeroDivisionError: division by zero"
        assert frame.error["mute"].startswith("ValueError: Layer 99 does not exist")
        assert frame.error["average"] == ""
        assert frame.loc[["bad", "unmade", "mute"]].drop(columns=["label", "error"]).isna().all(axis=None)
        assert frame.loc["average"].drop("gap_closed").notna().all()
        assert list(comparison.estimators) == list(comparison.probabilities) == ["average"]
        assert comparison.best == "average"


def test_all_methods_may_fail(make_small, register):
    register("bad", lambda **params: Centroid(fails=refuse))
    comparison = run_comparison(*make_small(), methods="bad")
    assert comparison.best is None
    assert np.isnan(comparison.frame.attrs["best_accuracy"])
    assert comparison.layer_predictions.shape == (3, len(comparison.y))


def test_what_are_no_probabilities_is_a_failure(make_small, register):
    class Logits(Centroid):
        def predict_proba(self, X):
            return 3 * super().predict_proba(X)

    register("logits", lambda **params: Logits())
    assert "rows that are no probabilities" in compare(*make_small(), methods="logits").error["logits"]


def test_another_number_of_rows_is_a_failure(make_small, register):
    class FirstOnly(Centroid):
        def predict_proba(self, X):
            return super().predict_proba(X)[:1]

    register("first", lambda **params: FirstOnly())
    frame = compare(*make_small(), methods=["average", "first"])
    assert "array of shape (1, " in frame.error["first"]
    assert frame.error["average"] == ""


def test_rows_that_sum_to_one_but_for_rounding_are_probabilities(make_small, register):
    class Rounded(Centroid):
        def predict_proba(self, X):
            return 1.00006 * super().predict_proba(X)

    register("rounded", lambda **params: Rounded())
    frame = compare(*make_small(), methods=["rounded"])
    assert frame.error["rounded"] == ""
    assert np.isfinite(frame.auc["rounded"])


def test_an_interrupt_is_no_failure_of_a_method(make_small, register):
    def interrupt(y):
        raise KeyboardInterrupt

    register("slow", lambda **params: Centroid(fails=interrupt))
    with pytest.raises(KeyboardInterrupt):
        compare(*make_small(), methods=["slow"])


def test_a_registered_method_joins_all_others(make_small, register):
    others = list(METHODS)
    for key in [*others, "own"]:
        register(key, lambda random_state, device, n_jobs: Centroid())
    frame = compare(*make_small(n_per_class=4))
    assert list(frame.index) == [*others, "own"]
    assert frame.label["own"] == "my own"
    assert frame.error["own"] == ""


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"methods": "vfuson"}, r"'vfuson' must be 'all' or keys of METHODS: last, .*vfusion"),
        ({"methods": []}, "must be 'all' or keys"),
        ({"X_test": np.zeros((2, 3, 8))}, "X_test and y_test go together"),
        ({"y_test": [0, 1]}, "X_test and y_test go together"),
        ({"X_test": np.zeros((2, 3, 8)), "y_test": [0, 1], "cv": 3}, "cv and X_test exclude each other"),
        ({"X_test": np.zeros((2, 4, 8)), "y_test": [0, 1]}, "X has 4 layers"),
        ({"X_test": np.zeros((2, 3, 8)), "y_test": [0]}, "inconsistent numbers of samples"),
        ({"X_test": np.zeros((2, 3, 8)), "y_test": ["0", "1"]}, "both must be of one kind"),
        ({"X_test": np.full((2, 3, 8), np.nan), "y_test": [0, 1]}, "contains NaN"),
        ({"cv": 1}, "'cv' parameter of compare must be an int in the range"),
        ({"cv": "holdout"}, "'cv' parameter of compare"),
        ({"test_size": 1.0}, "test_size"),
        ({"n_bootstrap": 0}, "n_bootstrap"),
        ({"groups": np.zeros(60)}, "groups"),
        ({"groups": np.zeros(3)}, "for each of the 60 samples"),
        ({"device": "abacus"}, "abacus"),
    ],
)
def test_arguments_that_do_not_fit(options, message, make_small):
    X, y = make_small()
    with pytest.raises(ValueError, match=message):
        compare(X, y, **options)


def test_one_class_cannot_be_compared(make_small):
    X, y = make_small()
    with pytest.raises(ValueError, match="at least 2 classes; got 1 class"):
        compare(X, np.zeros(len(y)))


# ---- the same for everybody


@pytest.mark.parametrize("backend", ["loky", "threading"])
def test_jobs_change_nothing(backend, make_small, short):
    X, y = make_small(n_per_class=10)
    methods = ["last", "super_learner", "alf", "vfusion"] if backend == "threading" else ["last", "nlc"]
    one = run_comparison(X, y, methods=methods)
    with joblib.parallel_config(backend=backend):
        two = run_comparison(X, y, methods=methods, n_jobs=2)
    assert_frame_equal(one.frame.drop(columns=TIMES), two.frame.drop(columns=TIMES), check_exact=True)
    assert one.frame.attrs == two.frame.attrs
    for key in methods:
        assert_array_equal(one.probabilities[key], two.probabilities[key])


def test_a_memory_map_is_read_by_other_processes(make_small, tmp_path):
    X, y = make_small()
    np.save(tmp_path / "X.npy", X)
    stored = np.load(tmp_path / "X.npy", mmap_mode="r")
    expected = compare(X, y, methods=["last", "average"])
    found = compare(stored, y, methods=["last", "average"], n_jobs=2)
    assert_frame_equal(found.drop(columns=TIMES), expected.drop(columns=TIMES), check_exact=True)


def test_all_of_a_memory_map_is_learned_from_without_a_copy(make_small, register, tmp_path):
    fits = []
    register("centroid", lambda **params: Centroid(fits=fits))
    X, y = make_small()
    np.save(tmp_path / "X.npy", X)
    stored = np.load(tmp_path / "X.npy", mmap_mode="r")
    compare(stored, y, X_test=X, y_test=y, methods=["centroid"])
    assert any(np.shares_memory(fitted, stored) for fitted, _, _ in fits)


@pytest.mark.parametrize("random_state", [0, 11, np.random.RandomState(2)])
def test_the_same_seed_gives_the_same_table(random_state, make_small, global_rngs_untouched):
    X, y = make_small(strength=1)
    copies = X.copy(), y.copy()
    repeat = np.random.RandomState(2) if isinstance(random_state, np.random.RandomState) else random_state
    tables = [compare(X, y, methods=["last", "calibrated"], random_state=seed) for seed in (random_state, repeat)]
    assert_frame_equal(*(table.drop(columns=TIMES) for table in tables), check_exact=True)
    assert_array_equal(X, copies[0])
    assert_array_equal(y, copies[1])


def test_another_seed_splits_otherwise(make_small):
    X, y = make_small()
    rows = [run_comparison(X, y, methods="average", random_state=seed).rows for seed in (0, 1)]
    assert set(rows[0]) != set(rows[1])


def test_stacks_of_every_shape(make_small):
    X, y = make_small(dim=8)
    three = compare(X, y, methods=["last", "super_learner"])
    four = compare(X[:, :, None], y, methods=["last", "super_learner"])
    assert_frame_equal(three.drop(columns=TIMES), four.drop(columns=TIMES), check_exact=True)
    tokens = run_comparison(X.reshape(len(X), 3, 2, 4), y, methods=["super_learner"])
    assert tokens.estimators["super_learner"].n_tokens_in_ == 2
    flat = run_comparison(X[:, 1], y, methods=["last"])
    assert flat.layer_predictions.shape[0] == 1
    assert flat.frame.accuracy["last"] > 0.8
    assert flat.frame.gap_closed.isna().all()


def test_progress_is_shown_if_asked_for_only(make_small, capsys):
    X, y = make_small(n_per_class=4)
    compare(X, y, methods="average")
    silent = capsys.readouterr()
    compare(X, y, methods="average", progress=True)
    assert silent.out == silent.err == ""
    assert "compare: 100%" in capsys.readouterr().err
