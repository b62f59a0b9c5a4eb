import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GroupKFold, KFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from skvfusion import LayerProbeClassifier


def test_linear_probe_is_scikit_learns_logistic_regression(make_stack):
    X, y = make_stack()
    reference = make_pipeline(StandardScaler(), LogisticRegression(C=0.5)).fit(X[:, 2].astype(float), y)
    probe = LayerProbeClassifier(2, C=0.5, scaling="standard").fit(X, y)
    assert_allclose(probe.predict_proba(X), reference.predict_proba(X[:, 2].astype(float)), atol=1e-3)


@pytest.mark.parametrize("probe", ["linear", "mlp"])
@pytest.mark.parametrize(("layer", "index"), [(-1, 5), (0, 0), (-6, 0), (3, 3)])
def test_it_reads_its_layer_only(probe, layer, index, make_stack):
    X, y = make_stack()
    fitted = LayerProbeClassifier(layer, probe, max_epochs=5, random_state=0).fit(X, y)
    changed = np.full_like(X, 99)
    changed[:, index] = X[:, index]
    assert fitted.layer_ == index
    assert_array_equal(fitted.predict_proba(changed), fitted.predict_proba(X))


@pytest.mark.parametrize("layer", [6, -7])
def test_a_layer_that_does_not_exist_is_refused(layer, make_stack):
    X, y = make_stack()
    with pytest.raises(ValueError, match=f"Layer {layer} does not exist"):
        LayerProbeClassifier(layer).fit(X, y)


@pytest.mark.parametrize("probe", ["linear", "mlp"])
def test_best_is_the_layer_with_the_signal(probe, make_stack):
    X, y = make_stack(signal_layers=(4,))
    fitted = LayerProbeClassifier("best", probe, cv=3, max_epochs=30, hidden=32, latent_dim=8, random_state=0).fit(X, y)
    assert fitted.layer_ == 4
    assert fitted.layer_scores_.shape == (6,)
    assert fitted.layer_scores_.argmax() == 4
    assert fitted.layer_scores_[4] > 0.7 > 0.6 > fitted.layer_scores_[[0, 1, 2, 3, 5]].max()


def test_best_then_fits_that_layer_on_everything(make_stack):
    X, y = make_stack(signal_layers=(4,))
    best = LayerProbeClassifier("best", random_state=0).fit(X, y)
    assert_array_equal(best.predict_proba(X), LayerProbeClassifier(4).fit(X, y).predict_proba(X))


def test_of_equal_layers_the_deepest_is_best(make_stack):
    X, y = make_stack(n_layers=1, signal_layers=(0,))
    assert LayerProbeClassifier("best", random_state=0).fit(np.repeat(X, 4, axis=1), y).layer_ == 3


def test_scores_are_not_made_on_the_rows_that_were_learned(rng):
    X, y = rng.normal(size=(60, 3, 100)), rng.integers(0, 2, 60)
    fitted = LayerProbeClassifier("best", C=100, random_state=0).fit(X, y)
    assert fitted.score(X, y) == 1.0
    assert fitted.layer_scores_.max() < 0.75


def test_jobs_do_not_change_the_scores(make_stack):
    X, y = make_stack()
    scores = [LayerProbeClassifier("best", n_jobs=n, random_state=0).fit(X, y).layer_scores_ for n in (1, 2)]
    assert_array_equal(*scores)


def test_a_splitter_or_its_splits_serve_as_cv(make_stack):
    X, y = make_stack()
    splitter = KFold(3, shuffle=True, random_state=0)
    by_splitter = LayerProbeClassifier("best", cv=splitter).fit(X, y)
    by_splits = LayerProbeClassifier("best", cv=list(splitter.split(X))).fit(X, y)
    assert_array_equal(by_splitter.layer_scores_, by_splits.layer_scores_)


def test_grouped_splits_serve_as_cv(make_stack, rng):
    X, y = make_stack()
    groups = rng.integers(0, 6, 60)
    splits = list(GroupKFold(3).split(X, y, groups))
    assert LayerProbeClassifier("best", cv=splits).fit(X, y).layer_scores_.shape == (6,)


def test_folds_shrink_to_the_second_largest_class(make_stack):
    X, y = make_stack(n_classes=2)
    rows = np.flatnonzero((y == 0) | (np.cumsum(y == 1) <= 3))
    fitted = LayerProbeClassifier("best", cv=10, random_state=0).fit(X[rows], y[rows])
    assert np.isfinite(fitted.layer_scores_).all()


def test_rare_classes_do_not_stop_the_choice(make_stack):
    X, y = make_stack()
    y = y.copy()
    y[:2] = [7, 8]
    fitted = LayerProbeClassifier("best", random_state=0).fit(X, y)
    assert fitted.layer_ == 2
    assert_array_equal(fitted.classes_, [0, 1, 2, 7, 8])


def test_folds_without_weight_are_left_out(make_stack):
    X, y = make_stack()
    splits = list(KFold(3).split(X))
    weight = np.ones(60)
    weight[splits[0][1]] = 0
    fitted = LayerProbeClassifier("best", cv=splits).fit(X, y, sample_weight=weight)
    assert np.isfinite(fitted.layer_scores_).all()


def test_a_weight_counts_like_repetition(make_stack):
    X, y = make_stack()
    weight = np.where(np.arange(60) % 2, 1, 3)
    weighted = LayerProbeClassifier(2).fit(X, y, sample_weight=weight)
    repeated = LayerProbeClassifier(2).fit(np.repeat(X, weight, axis=0), np.repeat(y, weight))
    assert_allclose(weighted.predict_proba(X), repeated.predict_proba(X), atol=1e-3)


def test_attributes_of_a_choice_exist_only_after_one(make_stack):
    X, y = make_stack()
    assert not hasattr(LayerProbeClassifier().fit(X, y), "layer_scores_")
