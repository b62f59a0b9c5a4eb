import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from skvfusion.recoverability import (
    corrected_recovery_rate,
    correction_entropy,
    cumulative_accuracy,
    destructive_overthinking,
    first_correct_layer,
    gap_closure,
    layer_accuracy,
    layer_harm,
    layer_recovery,
    oracle_accuracy,
    recovery_rate,
    wasteful_overthinking,
)
from skvfusion.recoverability.metrics import recovery_beyond_chance

PATIENT = settings(deadline=None)  # a busy machine is not a failure
METRICS = [
    layer_accuracy,
    oracle_accuracy,
    recovery_rate,
    corrected_recovery_rate,
    layer_recovery,
    layer_harm,
    correction_entropy,
    cumulative_accuracy,
    destructive_overthinking,
    first_correct_layer,
    wasteful_overthinking,
]
READINGS = ["A", "B", "C"]


@st.composite
def predictions_and_labels(draw, min_layers=1):
    """Predictions of 1 to 6 layers on 1 to 25 samples of up to 4 classes."""
    shape = draw(st.tuples(st.integers(min_layers, 6), st.integers(1, 25)))
    classes = st.integers(0, draw(st.integers(1, 3)))
    return draw(arrays(int, shape, elements=classes)), draw(arrays(int, shape[1], elements=classes))


def by_hand():
    """Three layers on five samples; the last gets samples 1 to 4 wrong, the others get 1 and 2 right."""
    return np.array([[0, 0, 2, 1, 2], [1, 1, 0, 1, 2], [0, 0, 0, 1, 2]]), np.array([0, 1, 2, 0, 1])


def test_by_hand():
    predictions, y = by_hand()
    assert layer_accuracy(predictions, y).tolist() == [0.4, 0.2, 0.2]
    assert oracle_accuracy(predictions, y) == 0.6
    assert recovery_rate(predictions, y) == 0.5
    assert layer_recovery(predictions, y).tolist() == [0.25, 0.25, 0]
    assert layer_harm(predictions, y).tolist() == [0, 1, 0]


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
    single = layer_recovery(predictions, y)
    np.testing.assert_allclose(single, (predictions[:, wrong] == y[wrong]).mean(axis=1), rtol=1e-12)
    assert single[-1] == 0
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
    scalars = [recovery_rate, corrected_recovery_rate, correction_entropy, destructive_overthinking]
    assert {type(metric(predictions, y)) for metric in [*scalars, wasteful_overthinking]} == {float}
    assert layer_accuracy(predictions, y).shape == (2,)


@PATIENT
@given(predictions_and_labels())
def test_recovery_and_harm_make_up_what_a_layer_differs_in_accuracy(case):
    predictions, y = case
    last = layer_accuracy(predictions, y)[-1]
    assume(0 < last < 1)
    gained, lost = (1 - last) * layer_recovery(predictions, y), last * layer_harm(predictions, y)
    np.testing.assert_allclose(layer_accuracy(predictions, y), last + gained - lost, atol=1e-12)


def test_recovery_needs_errors_and_harm_needs_right_answers():
    assert np.isnan(layer_recovery([[1, 0], [1, 1]], [1, 1])).tolist() == [True, True]
    assert np.isnan(layer_harm([[1, 0], [0, 0]], [1, 1])).tolist() == [True, True]


def test_one_class_leaves_nothing_to_recover():
    predictions, y = np.zeros((3, 4), dtype=int), np.zeros(4, dtype=int)
    assert oracle_accuracy(predictions, y) == 1
    assert np.isnan([recovery_rate(predictions, y), corrected_recovery_rate(predictions, y)]).all()
    assert np.isnan(correction_entropy(predictions, y))
    assert layer_harm(predictions, y).tolist() == [0, 0, 0]


# ---------------------------------------------------------------------------------------- the correction for chance


@PATIENT
@given(predictions_and_labels())
def test_chance_is_the_answers_to_other_errors_with_the_same_last_answer(case):
    predictions, y = case
    errors = np.flatnonzero(predictions[-1] != y)
    recovered, chance = [], []
    for i in errors:
        others = [j for j in errors if j != i and predictions[-1, j] == predictions[-1, i]]
        if others:
            recovered.append(y[i] in predictions[:-1, i])
            chance.append(np.mean([y[i] in predictions[:-1, j] for j in others]))
    rate, by_chance = (np.mean(recovered), np.mean(chance)) if chance else (np.nan, np.nan)
    expected = np.nan if by_chance > 1 - 1e-12 else (rate - by_chance) / (1 - by_chance)
    corrected = corrected_recovery_rate(predictions, y, n_draws=None)
    assert corrected == pytest.approx(expected, abs=1e-9, nan_ok=True)
    assert not corrected > 1


def test_copies_of_a_sample_are_not_others(rng):
    predictions, y = rng.integers(0, 4, (5, 60)), rng.integers(0, 4, 60)
    twice = np.tile(np.arange(60), 2)
    assert recovery_beyond_chance(predictions[:, twice], y[twice], twice) == pytest.approx(
        corrected_recovery_rate(predictions, y, n_draws=None)
    )


@pytest.mark.parametrize("seed", range(3))
def test_drawn_exchanges_approach_the_average_over_all(seed):
    rng = np.random.default_rng(seed)
    predictions, y = rng.integers(0, 4, (5, 200)), rng.integers(0, 4, 200)
    exact = corrected_recovery_rate(predictions, y, n_draws=None)
    drawn = corrected_recovery_rate(predictions, y, n_draws=2000, random_state=seed)
    assert drawn == pytest.approx(exact, abs=0.01)
    assert drawn != exact


def test_drawn_exchanges_are_the_same_for_the_same_seed_only(global_rngs_untouched):
    rng = np.random.default_rng(0)
    predictions, y = rng.integers(0, 4, (5, 50)), rng.integers(0, 4, 50)
    first, again, other = (
        corrected_recovery_rate(predictions, y, n_draws=5, random_state=seed)
        for seed in (0, np.random.RandomState(0), 1)
    )
    assert first == again != other


@pytest.mark.parametrize("n_draws", [200, None])
@pytest.mark.parametrize("agreement", [0, 0.9])
def test_guessing_layers_recover_much_but_not_beyond_chance(rng, n_draws, agreement):
    y = rng.integers(0, 10, 4000)
    guesses = np.where(rng.random((12, 4000)) < agreement, rng.integers(0, 10, 4000), rng.integers(0, 10, (12, 4000)))
    assert recovery_rate(guesses, y) > (0.6 if agreement == 0 else 0.1)
    assert corrected_recovery_rate(guesses, y, n_draws=n_draws) == pytest.approx(0, abs=0.05)


@pytest.mark.parametrize("n_draws", [200, None])
def test_of_two_classes_the_last_answer_tells_all(rng, n_draws):
    y = rng.integers(0, 2, 200)
    predictions = np.where(rng.random((4, 200)) < 0.7, y, 1 - y)
    assert 0.5 < recovery_rate(predictions, y) < 1
    assert corrected_recovery_rate(predictions, y, n_draws=n_draws) == pytest.approx(0, abs=1e-9)


def test_errors_without_company_are_left_out():
    # The errors on samples 0 and 1 share the last answer 2, that on sample 2 has another.
    predictions, y = [[0, 1, 3, 0], [2, 2, 4, 3]], [0, 1, 0, 3]
    assert corrected_recovery_rate(predictions, y) == corrected_recovery_rate(predictions, y, n_draws=None) == 1
    assert np.isnan(corrected_recovery_rate([[0, 1], [2, 3]], [0, 1], n_draws=None))


def test_where_chance_recovers_all_there_is_nothing_beyond_it():
    assert np.isnan(corrected_recovery_rate([[0, 0], [1, 1]], [0, 0], n_draws=None))
    assert np.isnan(corrected_recovery_rate([[0, 0], [1, 1]], [0, 0]))


def test_knowing_layers_recover_beyond_chance(rng):
    y = rng.integers(0, 4, 1000)
    knowing = np.where(rng.random(1000) < 0.5, y, rng.integers(0, 4, 1000))
    predictions = np.array([knowing, rng.integers(0, 4, 1000)])
    assert 0.4 < corrected_recovery_rate(predictions, y) < 0.6


def test_one_layer_recovers_nothing_beyond_chance_either():
    assert corrected_recovery_rate([[0, 1, 1]], [0, 0, 0]) == 0
    assert corrected_recovery_rate([[0, 1, 1]], [0, 0, 0], n_draws=None) == 0


@pytest.mark.parametrize("n_draws", [0, -1])
def test_at_least_one_draw(n_draws):
    with pytest.raises(ValueError, match="must be at least 1, or None"):
        corrected_recovery_rate([[0, 1]], [0, 0], n_draws=n_draws)


# --------------------------------------------------------------------------------------------- entropy of corrections


@PATIENT
@given(predictions_and_labels(min_layers=2), st.sampled_from(READINGS))
def test_entropy_is_a_share_of_the_largest(case, reading):
    predictions, y = case
    entropy = correction_entropy(predictions, y, reading=reading)
    if recovery_rate(predictions, y) > 0:
        assert -1e-12 <= entropy <= 1 + 1e-12
    else:
        assert np.isnan(entropy)


@PATIENT
@given(predictions_and_labels(min_layers=2))
def test_entropy_c_is_at_most_b(case):
    predictions, y = case
    assume(recovery_rate(predictions, y) > 0)
    b, c = (correction_entropy(predictions, y, reading=reading) for reading in "BC")
    assert c <= b + 1e-12


@PATIENT
@given(st.integers(3, 12), st.integers(1, 5), st.integers(0, 3))
def test_equal_corrections_have_entropy_1_of_a_and_b(n_layers, n_each, n_lost):
    inner = n_layers - 1
    n_samples = inner * n_each + n_lost
    predictions = np.ones((n_layers, n_samples), dtype=int)
    for layer in range(inner):
        predictions[layer, layer * n_each : (layer + 1) * n_each] = 0
    entropies = [correction_entropy(predictions, np.zeros(n_samples, dtype=int), reading=r) for r in READINGS]
    assert entropies == pytest.approx([1, 1, 0])


@PATIENT
@given(st.integers(3, 12), st.data())
def test_a_single_correcting_layer_has_entropy_0(n_layers, data):
    predictions = np.ones((n_layers, 5), dtype=int)
    predictions[data.draw(st.integers(0, n_layers - 2)), : data.draw(st.integers(1, 5))] = 0
    entropies = [correction_entropy(predictions, np.zeros(5, dtype=int), reading=r) for r in READINGS]
    assert entropies == [0, 0, 0]
    assert not np.signbit(entropies).any()


def test_entropies_by_hand():
    # Errors corrected by layers {0}, {0, 1}, {0, 1} and none; sample 4 is no error.
    predictions = np.array([[0, 0, 0, 1, 0], [1, 0, 0, 1, 0], [1, 1, 1, 1, 0]])
    y = np.zeros(5, dtype=int)
    a = -(3 / 5 * np.log(3 / 5) + 2 / 5 * np.log(2 / 5))
    b = -(2 / 3 * np.log(2 / 3) + 1 / 3 * np.log(1 / 3))
    c = 2 / 3 * np.log(2)
    raw = [correction_entropy(predictions, y, reading=r, normalize=False) for r in READINGS]
    assert raw == pytest.approx([a, b, c])
    normalised = [correction_entropy(predictions, y, reading=r) for r in READINGS]
    assert normalised == pytest.approx([value / np.log(2) for value in (a, b, c)])


@pytest.mark.parametrize("reading", READINGS)
def test_entropy_where_there_is_little_to_spread(reading):
    assert np.isnan(correction_entropy([[1, 0]], [0, 0], reading=reading))  # one layer
    assert np.isnan(correction_entropy([[1, 1], [0, 0]], [0, 0], reading=reading))  # no error
    assert np.isnan(correction_entropy([[1, 1], [1, 0]], [0, 0], reading=reading))  # nothing corrected
    assert correction_entropy([[0, 0], [1, 1]], [0, 0], reading=reading) == 0  # one inner layer


def test_an_unknown_reading_is_named():
    with pytest.raises(ValueError, match="reading='D' is unknown; use one of 'A', 'B', 'C'"):
        correction_entropy([[0], [1]], [0], reading="D")


# --------------------------------------------------------------------------------------------------------------- gaps


def test_gap_closure_by_hand():
    assert gap_closure(0.744, 0.731, 0.810) == pytest.approx(0.1646, abs=1e-4)
    assert gap_closure(0.5, 0.5, 0.9) == 0
    assert gap_closure(0.9, 0.5, 0.9) == 1
    assert gap_closure(0.4, 0.5, 0.9) == pytest.approx(-0.25)
    assert type(gap_closure(0.5, 0.5, 0.9)) is float


def test_without_a_gap_there_is_nothing_to_close():
    assert np.isnan(gap_closure(0.9, 0.9, 0.9))
    np.testing.assert_allclose(gap_closure([0.7, 0.9], [0.6, 0.9], [0.8, 0.9]), [0.5, np.nan])


def test_an_oracle_below_the_best_layer_is_of_other_samples():
    with pytest.raises(ValueError, match="compute both from the same predictions"):
        gap_closure(0.5, best_accuracy=0.8, oracle_accuracy=0.7)


# -------------------------------------------------------------------------------------------------------- overthinking


@PATIENT
@given(predictions_and_labels())
def test_destructive_overthinking_is_the_recovery_rate(case):
    assert destructive_overthinking(*case) == pytest.approx(recovery_rate(*case), nan_ok=True)


@PATIENT
@given(predictions_and_labels())
def test_cumulative_accuracy_rises_to_the_oracles(case):
    predictions, y = case
    cumulative = cumulative_accuracy(predictions, y)
    assert (np.diff(cumulative) >= 0).all()
    assert cumulative[0] == layer_accuracy(predictions, y)[0]
    assert cumulative[-1] == oracle_accuracy(predictions, y)
    first = first_correct_layer(predictions, y)
    shares = [np.mean((first >= 0) & (first <= depth)) for depth in range(len(predictions))]
    np.testing.assert_allclose(cumulative, shares, atol=1e-12)


@PATIENT
@given(predictions_and_labels(min_layers=2))
def test_wasteful_and_destructive_overthinking_make_up_the_inner_layers_oracle(case):
    predictions, y = case
    last = layer_accuracy(predictions, y)[-1]
    assume(0 < last < 1)
    wasteful, destructive = wasteful_overthinking(predictions, y), destructive_overthinking(predictions, y)
    inner = last * wasteful + (1 - last) * destructive
    assert oracle_accuracy(predictions[:-1], y) == pytest.approx(inner, abs=1e-12)


def test_overthinking_takes_two_layers_and_a_case():
    assert wasteful_overthinking([[0, 1]], [0, 0]) == destructive_overthinking([[0, 1]], [0, 0]) == 0
    assert np.isnan(wasteful_overthinking([[0, 0], [1, 1]], [0, 0]))
    assert np.isnan(destructive_overthinking([[0, 0], [0, 0]], [0, 0]))


@PATIENT
@given(predictions_and_labels())
def test_the_first_correct_layer_is_right_and_none_before_it(case):
    predictions, y = case
    for sample, first in enumerate(first_correct_layer(predictions, y)):
        right = [layer for layer in range(len(predictions)) if predictions[layer, sample] == y[sample]]
        assert first == min(right, default=-1)


# --------------------------------------------------------------------------------------------------- what all share


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
