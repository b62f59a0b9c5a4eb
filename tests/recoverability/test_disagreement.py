import itertools

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays
from sklearn.metrics.pairwise import cosine_distances

from skvfusion.recoverability import geometric_disagreement, pairwise_disagreement

PATIENT = settings(deadline=None)  # a busy machine is not a failure
READINGS = ["A", "B"]
every_reading = pytest.mark.parametrize("reading", READINGS)
either_centring = pytest.mark.parametrize("center", [True, False])

shapes = st.tuples(st.integers(2, 5), st.integers(1, 5), st.integers(2, 4))
some_logits = shapes.flatmap(lambda shape: arrays(float, shape, elements=st.integers(-9, 9).map(float)))


def wrong_labels(logits):
    """Labels that the last layer gets wrong, all of them."""
    return logits[-1].argmin(axis=1)


@PATIENT
@given(some_logits, st.sampled_from(READINGS), st.booleans())
def test_disagreement_lies_between_0_and_2(logits, reading, center):
    y = wrong_labels(logits)
    assume((logits[-1].argmax(axis=1) != y).any())
    assert -1e-12 <= geometric_disagreement(logits, y, reading=reading, center=center) <= 2 + 1e-12


@PATIENT
@given(
    arrays(float, st.tuples(st.integers(1, 5), st.integers(2, 4)), elements=st.integers(-9, 9).map(float)),
    arrays(float, 4, elements=st.floats(1e-3, 1e3)),
    st.sampled_from(READINGS),
    st.booleans(),
)
def test_proportional_logits_do_not_disagree(last, factors, reading, center):
    assume((np.ptp(last, axis=1) > 0).all())
    logits = np.stack([*(factor * last for factor in factors), last])
    y = wrong_labels(logits)
    assert geometric_disagreement(logits, y, reading=reading, center=center) == pytest.approx(0, abs=1e-9)


@PATIENT
@given(some_logits, st.booleans())
def test_readings_are_the_means_over_their_pairs(logits, center):
    y = wrong_labels(logits)
    wrong = logits[-1].argmax(axis=1) != y
    vectors = logits - logits.mean(axis=2, keepdims=True) if center else logits
    vectors = np.where(np.abs(vectors) < 1e-12, 0, vectors)
    assume(wrong.any())
    assume((np.abs(vectors).max(axis=2) > 0).all())  # vectors of zeros have a test of their own
    by_sample = [cosine_distances(vectors[:, sample]) for sample in np.flatnonzero(wrong)]
    n_layers = len(logits)
    a = np.mean([distance[:-1, -1].mean() for distance in by_sample])
    b = np.mean([[d[l, m] for l, m in itertools.combinations(range(n_layers), 2)] for d in by_sample])  # noqa: E741
    assert geometric_disagreement(logits, y, center=center) == pytest.approx(a, abs=1e-9)
    assert geometric_disagreement(logits, y, reading="B", center=center) == pytest.approx(b, abs=1e-9)


@every_reading
def test_centring_takes_away_what_softmax_does_not_see(rng, reading):
    logits = rng.normal(size=(4, 30, 5))
    y = rng.integers(0, 5, 30)
    shifted = logits + rng.normal(size=(4, 30, 1))
    before, after = (geometric_disagreement(z, y, reading=reading) for z in (logits, shifted))
    assert after == pytest.approx(before)
    before, after = (geometric_disagreement(z, y, reading=reading, center=False) for z in (logits, shifted))
    assert abs(after - before) > 0.01


@either_centring
def test_opposite_logits_disagree_most(center):
    assert geometric_disagreement([[[1.0, -1.0]], [[-2.0, 2.0]]], [0], center=center) == pytest.approx(2)


def test_only_the_last_layers_errors_count():
    logits = np.array([[[1.0, -1.0], [-1.0, 1.0]], [[1.0, -1.0], [1.0, -1.0]]])
    assert geometric_disagreement(logits, [1, 0]) == pytest.approx(0)
    assert geometric_disagreement(logits, [0, 1]) == pytest.approx(2)
    assert geometric_disagreement(logits, [1, 1]) == pytest.approx(1)


@every_reading
@either_centring
def test_without_errors_or_inner_layers_there_is_no_disagreement(rng, reading, center):
    logits = rng.normal(size=(3, 10, 4))
    options = {"reading": reading, "center": center}
    assert np.isnan(geometric_disagreement(logits, logits[-1].argmax(axis=1), **options))
    assert np.isnan(geometric_disagreement(logits[-1:], wrong_labels(logits), **options))
    assert np.isnan(geometric_disagreement(logits[:, :, :1], np.zeros(10), **options))  # one class


@every_reading
def test_logits_without_a_direction_are_at_right_angles_to_all(reading):
    for equal in (0.0, 0.1, 1e8 + 0.1):
        logits = np.array([np.full((1, 3), equal), [[3.0, 1.0, 2.0]]])
        assert geometric_disagreement(logits, [1], reading=reading) == 1


@either_centring
@pytest.mark.parametrize("size", [1e-300, 1e300])
def test_the_size_of_logits_does_not_matter(rng, center, size):
    logits = rng.normal(size=(3, 20, 4))
    y = rng.integers(0, 4, 20)
    expected = geometric_disagreement(logits, y, center=center)
    assert geometric_disagreement(size * logits, y, center=center) == pytest.approx(expected)


def test_labels_of_any_kind(rng):
    logits = rng.normal(size=(3, 20, 3))
    y, names = rng.integers(0, 3, 20), np.array(["cat", "dog", "eel"])
    assert geometric_disagreement(logits, names[y], classes=names) == geometric_disagreement(logits, y)


def test_a_label_that_is_no_class_is_an_error(rng):
    logits = rng.normal(size=(3, 1, 2))
    assert geometric_disagreement(logits, ["eel"], classes=["cat", "dog"]) >= 0


@pytest.mark.parametrize(
    ("y", "classes", "message"),
    [
        (["cat"], None, "pass classes="),
        ([2], None, "column indices 0 to 1"),
        ([0, 1], None, r"y has shape \(2,\)"),
        ([0], [0, 1, 2], r"classes has shape \(3,\)"),
    ],
)
def test_labels_that_do_not_fit_are_named(rng, y, classes, message):
    with pytest.raises(ValueError, match=message):
        geometric_disagreement(rng.normal(size=(3, 1, 2)), y, classes=classes)


def test_an_unknown_reading_is_named_even_without_errors():
    with pytest.raises(ValueError, match="reading='C' is unknown; use one of 'A', 'B'"):
        geometric_disagreement([[[1.0, 0.0]], [[1.0, 0.0]]], [0], reading="C")


@PATIENT
@given(arrays(int, array_shapes(min_dims=2, max_dims=2, max_side=6), elements=st.integers(0, 2)))
def test_pairwise_disagreement_is_the_share_of_differing_labels(predictions):
    found = pairwise_disagreement(predictions)
    expected = [[np.mean(one != other) for other in predictions] for one in predictions]
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(found, found.T)
    assert (np.diag(found) == 0).all()


def test_pairwise_disagreement_of_strings():
    assert pairwise_disagreement([["cat", "dog"], ["cat", "eel"]])[0, 1] == 0.5


def test_pairwise_disagreement_names_shapes_that_do_not_fit():
    with pytest.raises(ValueError, match=r"predictions has shape \(3,\)"):
        pairwise_disagreement([0, 1, 2])
