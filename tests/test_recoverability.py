import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from skvfusion.recoverability import layer_accuracy, oracle_accuracy, recovery_rate

PATIENT = settings(deadline=None)  # a busy machine is not a failure
METRICS = [layer_accuracy, oracle_accuracy, recovery_rate]


@st.composite
def predictions_and_labels(draw, min_layers=1):
    """Predictions of 1 to 6 layers on 1 to 25 samples of up to 4 classes."""
    shape = draw(st.tuples(st.integers(min_layers, 6), st.integers(1, 25)))
    classes = st.integers(0, draw(st.integers(1, 3)))
    return draw(arrays(int, shape, elements=classes)), draw(arrays(int, shape[1], elements=classes))


def test_by_hand():
    y = np.array([0, 1, 2, 0, 1])
    predictions = np.array([[0, 0, 2, 1, 2], [1, 1, 0, 1, 2], [0, 0, 0, 1, 2]])
    assert layer_accuracy(predictions, y).tolist() == [0.4, 0.2, 0.2]
    assert oracle_accuracy(predictions, y) == 0.6
    # The last layer gets samples 1 to 4 wrong; the others get 1 and 2 right.
    assert recovery_rate(predictions, y) == 0.5


@PATIENT
@given(predictions_and_labels())
def test_layer_accuracy_is_the_share_of_right_answers(case):
    predictions, y = case
    expected = [sum(p == t for p, t in zip(layer, y, strict=True)) / len(y) for layer in predictions]
    np.testing.assert_allclose(layer_accuracy(predictions, y), expected, rtol=1e-12)


@PATIENT
@given(predictions_and_labels())
def test_recovery_rate_is_the_oracles_gain_over_the_last_layers_loss(case):
    predictions, y = case
    last = layer_accuracy(predictions, y)[-1]
    assume(last < 1)
    expected = (oracle_accuracy(predictions, y) - last) / (1 - last)
    assert recovery_rate(predictions, y) == pytest.approx(expected, abs=1e-12)


@PATIENT
@given(predictions_and_labels())
def test_oracle_is_at_least_the_best_layer(case):
    predictions, y = case
    assert layer_accuracy(predictions, y).max() <= oracle_accuracy(predictions, y) <= 1


@PATIENT
@given(predictions_and_labels(min_layers=2))
def test_recovery_rate_is_at_least_any_single_layers(case):
    predictions, y = case
    wrong = predictions[-1] != y
    assume(wrong.any())
    single = (predictions[:-1, wrong] == y[wrong]).mean(axis=1)
    assert single.max() - 1e-12 <= recovery_rate(predictions, y) <= 1


@PATIENT
@given(predictions_and_labels(min_layers=2), st.data())
def test_another_layer_never_lowers_the_oracle(case, data):
    predictions, y = case
    dropped = data.draw(st.integers(0, len(predictions) - 1))
    assert oracle_accuracy(predictions, y) >= oracle_accuracy(np.delete(predictions, dropped, axis=0), y)


@PATIENT
@given(predictions_and_labels(min_layers=2), st.randoms(use_true_random=False))
def test_the_order_of_the_inner_layers_and_of_the_samples_does_not_matter(case, random):
    predictions, y = case
    layers = [*random.sample(range(len(predictions) - 1), len(predictions) - 1), -1]
    samples = random.sample(range(len(y)), len(y))
    shuffled, y_shuffled = predictions[layers][:, samples], y[samples]
    assert oracle_accuracy(shuffled, y_shuffled) == oracle_accuracy(predictions, y)
    assert recovery_rate(shuffled, y_shuffled) == pytest.approx(recovery_rate(predictions, y), nan_ok=True)


def test_without_an_error_of_the_last_layer_there_is_no_recovery_rate():
    assert np.isnan(recovery_rate([[1, 1, 1], [0, 1, 0]], [0, 1, 0]))


@PATIENT
@given(predictions_and_labels())
def test_one_layer_recovers_nothing(case):
    predictions, y = case
    assume((predictions[-1] != y).any())
    assert recovery_rate(predictions[-1:], y) == 0
    assert oracle_accuracy(predictions[-1:], y) == layer_accuracy(predictions[-1:], y)[0]


@pytest.mark.parametrize("dtype", ["<U5", object], ids=str)
def test_string_labels(dtype):
    y = np.array(["cat", "dog", "horse", "cat"], dtype=dtype)
    predictions = np.array([["cat", "cat", "horse", "dog"], ["dog", "dog", "cat", "dog"]], dtype=dtype)
    assert layer_accuracy(predictions, y).tolist() == [0.5, 0.25]
    assert oracle_accuracy(predictions, y) == 0.75
    assert recovery_rate(predictions, y) == pytest.approx(2 / 3)


def test_boolean_labels_and_lists():
    assert layer_accuracy([[True, False], [False, False]], [True, False]).tolist() == [1.0, 0.5]


def test_results_are_plain_numbers():
    predictions, y = np.array([[0, 1], [1, 1]]), np.array([0, 0])
    assert type(oracle_accuracy(predictions, y)) is float
    assert type(recovery_rate(predictions, y)) is float
    assert layer_accuracy(predictions, y).shape == (2,)


@pytest.mark.parametrize("metric", METRICS, ids=lambda metric: metric.__name__)
@pytest.mark.parametrize(
    ("predictions", "y"),
    [
        (np.zeros(4), np.zeros(4)),
        (np.zeros((2, 3)), np.zeros(4)),
        (np.zeros((4, 2)), np.zeros(4)),
        (np.zeros((2, 4, 3)), np.zeros(4)),
        (np.zeros((2, 4)), np.zeros((4, 1))),
        (np.zeros((2, 4)), 0),
        (np.zeros((0, 4)), np.zeros(4)),
        (np.zeros((2, 0)), np.zeros(0)),
    ],
    ids=["1-D", "too few samples", "transposed", "logits", "2-D y", "scalar y", "no layer", "no sample"],
)
def test_shapes_that_do_not_fit_are_named(metric, predictions, y):
    with pytest.raises(ValueError, match=r"do not fit; pass \(n_layers, n_samples\) and \(n_samples,\)") as error:
        metric(predictions, y)
    assert f"predictions of shape {np.shape(predictions)} and y of shape {np.shape(y)}" in str(error.value)


@pytest.mark.parametrize("metric", METRICS, ids=lambda metric: metric.__name__)
def test_inputs_are_not_changed(metric):
    predictions, y = np.array([[0, 1], [1, 1]]), np.array([0, 1])
    for array in (predictions, y):
        array.flags.writeable = False
    metric(predictions, y)
