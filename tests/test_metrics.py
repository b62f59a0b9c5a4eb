import numpy as np
import pytest
from sklearn.metrics import balanced_accuracy_score, log_loss, roc_auc_score

from skvfusion.metrics import balanced_accuracy, expected_calibration_error, macro_auc, negative_log_likelihood


@pytest.fixture
def predictions(rng):
    """Codes of three classes, and probabilities that know a little of them."""
    codes = rng.permutation(np.repeat([0, 1, 2], [50, 30, 20]))
    return codes, rng.dirichlet(np.ones(3), 100) * 0.7 + 0.3 * np.eye(3)[codes]


def test_they_are_those_of_scikit_learn(predictions):
    codes, probabilities = predictions
    assert negative_log_likelihood(codes, probabilities) == pytest.approx(log_loss(codes, probabilities))
    assert macro_auc(codes, probabilities) == roc_auc_score(codes, probabilities, multi_class="ovr")
    expected = balanced_accuracy_score(codes, probabilities.argmax(axis=1))
    assert balanced_accuracy(codes, probabilities) == pytest.approx(expected)


def test_a_probability_of_0_costs_36_and_not_infinity():
    assert negative_log_likelihood([1], [[1.0, 0.0]]) == pytest.approx(36.04, abs=0.01)


def test_balanced_accuracy_ignores_classes_that_are_not_there():
    assert balanced_accuracy(np.array([0, 0, 1]), np.eye(3)[[0, 2, 1]]) == 0.75


def test_auc_of_two_classes_is_that_of_the_second(rng):
    codes, scores = rng.integers(0, 2, 50), rng.random(50)
    expected = roc_auc_score(codes, scores)
    assert macro_auc(codes, np.column_stack([1 - scores, scores])) == pytest.approx(expected)


@pytest.mark.parametrize("n_classes", [2, 3])
def test_auc_is_undefined_where_a_class_is_missing(n_classes):
    assert np.isnan(macro_auc(np.zeros(4, dtype=int), np.full((4, n_classes), 1 / n_classes)))


def test_calibration_error_by_hand():
    # Two samples at 0.95 of which one is right, two at 0.65 which both are: 0.5 * 0.45 + 0.5 * 0.35.
    sure = np.array([0.95, 0.95, 0.65, 0.65])
    probabilities = np.column_stack([sure, 1 - sure])
    assert expected_calibration_error(np.array([0, 1, 0, 0]), probabilities) == pytest.approx(0.4)


def test_errors_in_a_bin_cancel_and_those_of_two_bins_do_not():
    sure = np.array([0.61, 0.64])
    probabilities = np.column_stack([sure, 1 - sure])
    codes = np.array([0, 1])
    assert expected_calibration_error(codes, probabilities, n_bins=10) == pytest.approx(0.125)
    assert expected_calibration_error(codes, probabilities, n_bins=100) == pytest.approx((0.39 + 0.64) / 2)


def test_certain_and_right_is_calibrated():
    assert expected_calibration_error(np.arange(3), np.eye(3)) == 0


def test_calibrated_probabilities_have_a_small_error(rng):
    sure = rng.uniform(0.5, 1, 100_000)
    codes = (rng.random(100_000) > sure).astype(int)
    assert expected_calibration_error(codes, np.column_stack([sure, 1 - sure])) < 0.01
