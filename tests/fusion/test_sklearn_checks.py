import numpy as np
import pytest
from numpy.testing import assert_allclose
from sklearn.base import clone
from sklearn.linear_model import LogisticRegression
from sklearn.utils.estimator_checks import parametrize_with_checks

from skvfusion import (
    AttentiveFusionClassifier,
    LayerProbeClassifier,
    LayerVotingClassifier,
    MixtureOfExpertsClassifier,
    NeuralLogitControllerClassifier,
    SuperLearnerClassifier,
    VFusionClassifier,
)

pytestmark = pytest.mark.usefixtures("one_thread")

MINIBATCHES = {
    "check_sample_weight_equivalence_on_dense_data": "Trained by mini-batches: a sample of weight 2 is seen once with "
    "twice the gradient, a repeated one twice in other batches. scikit-learn's MLPClassifier passes with lbfgs only."
}

SMALL = {"hidden": 64, "latent_dim": 16}
GATE = {"max_epochs": 20, "lr": 1e-3, "cv": 3}
LINEAR = [
    LayerProbeClassifier(),
    LayerProbeClassifier(layer="best"),
    SuperLearnerClassifier(),
    SuperLearnerClassifier("nnls", cv=3),
    SuperLearnerClassifier("logit", cv=3),
    LayerVotingClassifier("logit"),
    LayerVotingClassifier("proba"),
    LayerVotingClassifier("calibrated", cv=3),
    LayerVotingClassifier("majority"),
]
ESTIMATORS = [
    (VFusionClassifier(), MINIBATCHES),
    (VFusionClassifier(**SMALL, scaling=None, early_stopping=False, max_epochs=25), MINIBATCHES),
    (LayerProbeClassifier(**SMALL, probe="mlp", max_epochs=25), MINIBATCHES),
    (AttentiveFusionClassifier(min_steps=50, max_epochs=20), MINIBATCHES),
    (SuperLearnerClassifier(probe=VFusionClassifier(**SMALL, max_epochs=20), cv=2), MINIBATCHES),
    (SuperLearnerClassifier(probe=LogisticRegression(), cv=3), {}),
    (SuperLearnerClassifier(cv="holdout", validation_fraction=0.3), {}),
    (NeuralLogitControllerClassifier(**GATE), MINIBATCHES),
    (NeuralLogitControllerClassifier(weighting="raw", early_stopping=True, **GATE), MINIBATCHES),
    (MixtureOfExpertsClassifier(**GATE), {}),  # the checks have one layer, and its weight is 1
    (MixtureOfExpertsClassifier("joint", lr=0.01, max_epochs=30), MINIBATCHES),
    *((estimator, {}) for estimator in LINEAR),
]


@parametrize_with_checks(
    [estimator for estimator, _ in ESTIMATORS],
    expected_failed_checks=lambda estimator: next(
        expected for known, expected in ESTIMATORS if repr(known) == repr(estimator)
    ),
)
def test_scikit_learn_check(estimator, check):
    check(estimator)


@pytest.mark.parametrize(("estimator", "expected"), ESTIMATORS)
def test_every_expected_failure_has_a_sentence(estimator, expected):
    assert all(reason.endswith(".") for reason in expected.values())


@pytest.mark.parametrize("estimator", LINEAR)
def test_a_weight_is_a_repetition(estimator, make_stack, rng):
    X, y = make_stack(signal_layers=(2, 4), strength=1)
    times = rng.integers(0, 4, len(y))
    fold = np.arange(len(y)) % 3
    repeated = np.repeat(np.arange(len(y)), times)
    weighted, repeating = clone(estimator), clone(estimator)
    # Folds are drawn of samples; given ones are what can be the same.
    weighted.set_params(cv=[(np.flatnonzero(fold != k), np.flatnonzero(fold == k)) for k in range(3)])
    repeating.set_params(
        cv=[(np.flatnonzero(fold[repeated] != k), np.flatnonzero(fold[repeated] == k)) for k in range(3)]
    )
    weighted.fit(X, y, sample_weight=times)
    repeating.fit(X[repeated], y[repeated])
    assert_allclose(weighted.predict_proba(X), repeating.predict_proba(X), atol=1e-5)
