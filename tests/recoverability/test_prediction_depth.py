import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays
from scipy.special import softmax

from skvfusion.recoverability import confusion_score, prediction_depth

PATIENT = settings(deadline=None)  # a busy machine is not a failure

some_predictions = arrays(int, array_shapes(min_dims=2, max_dims=2, max_side=6), elements=st.integers(0, 2))
some_logits = arrays(float, array_shapes(min_dims=3, max_dims=3, max_side=5), elements=st.floats(-50, 50))


@PATIENT
@given(some_predictions)
def test_all_layers_from_the_prediction_depth_on_agree_and_the_one_before_does_not(predictions):
    for sample, depth in enumerate(prediction_depth(predictions)):
        assert (predictions[depth:, sample] == predictions[-1, sample]).all()
        assert depth == 0 or predictions[depth - 1, sample] != predictions[-1, sample]


def test_prediction_depth_of_one_layer_is_0():
    assert prediction_depth([["cat", "dog"]]).tolist() == [0, 0]


def test_a_prediction_that_returns_settles_only_then():
    assert prediction_depth([[1], [0], [1]]).tolist() == [2]


@pytest.mark.parametrize("predictions", [np.zeros(3), np.zeros((0, 3)), np.zeros((2, 0)), np.zeros((2, 3, 4))])
def test_prediction_depth_names_shapes_that_do_not_fit(predictions):
    with pytest.raises(ValueError, match=r"pass \(n_layers, n_samples\)"):
        prediction_depth(predictions)


@PATIENT
@given(some_logits)
def test_confusion_is_the_sum_of_distances_between_probabilities(logits):
    probabilities = softmax(logits, axis=2)
    expected = [
        sum(np.abs(layer[sample] - probabilities[-1, sample]).sum() for layer in probabilities)
        for sample in range(logits.shape[1])
    ]
    confusion = confusion_score(probabilities)
    np.testing.assert_allclose(confusion, expected, atol=1e-12)
    assert (confusion <= 2 * (len(logits) - 1) + 1e-9).all()


def test_no_confusion_in_one_layer_or_one_class(rng):
    assert confusion_score(softmax(rng.normal(size=(1, 4, 3)), axis=2)).tolist() == [0] * 4
    assert confusion_score(np.ones((3, 4, 1))).tolist() == [0] * 4


def test_certain_layers_that_contradict_the_last_are_most_confusing():
    assert confusion_score([[[1, 0]], [[1, 0]], [[0, 1]]]).tolist() == [4]


@pytest.mark.parametrize("bad", [[[[2.0, 1.0]]], [[[1.5, -0.5]]]], ids=["logits", "negative"])
def test_confusion_refuses_what_is_no_probability(bad):
    with pytest.raises(ValueError, match="Logits become probabilities by a softmax"):
        confusion_score(bad)


def test_confusion_names_what_is_not_finite():
    probabilities = np.full((2, 3, 2), 0.5)
    probabilities[1, 2, 0] = np.nan
    with pytest.raises(ValueError, match="that of layer 1, sample 2, class 0 is nan"):
        confusion_score(probabilities)


def test_confusion_names_shapes_that_do_not_fit():
    with pytest.raises(ValueError, match=r"probabilities has shape \(2, 3\); pass \(n_layers, n_samples, n_classes\)"):
        confusion_score(np.full((2, 3), 0.5))
