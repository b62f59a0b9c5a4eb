import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

from skvfusion import AttentiveFusionClassifier, LayerProbeClassifier, VFusionClassifier

MINIBATCHES = {
    "check_sample_weight_equivalence_on_dense_data": "Trained by mini-batches: a sample of weight 2 is seen once with "
    "twice the gradient, a repeated one twice in other batches. scikit-learn's MLPClassifier passes with lbfgs only."
}

ESTIMATORS = [
    (VFusionClassifier(), MINIBATCHES),
    (VFusionClassifier(scaling=None, early_stopping=False, max_epochs=50), MINIBATCHES),
    (LayerProbeClassifier(), {}),
    (LayerProbeClassifier(layer="best"), {}),
    (LayerProbeClassifier(probe="mlp"), MINIBATCHES),
    (AttentiveFusionClassifier(min_steps=50, max_epochs=20), MINIBATCHES),
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
