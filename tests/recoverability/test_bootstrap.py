import numpy as np
import pytest

from skvfusion.recoverability import (
    bootstrap_interval,
    corrected_recovery_rate,
    geometric_disagreement,
    layer_accuracy,
    recovery_rate,
)


@pytest.fixture
def coin(rng):
    """Right and wrong answers, half each."""
    return rng.permutation(np.arange(400) % 2)


def test_the_interval_of_a_mean_is_about_that_of_the_normal_distribution(coin):
    low, high = bootstrap_interval(np.mean, coin, n_draws=4000)
    assert type(low) is type(high) is float
    deviation = 1.96 * coin.std() / np.sqrt(len(coin))
    assert [low, high] == pytest.approx([0.5 - deviation, 0.5 + deviation], abs=0.006)


def test_a_higher_level_is_wider(coin):
    narrow, wide = (bootstrap_interval(np.mean, coin, level=level) for level in (0.5, 0.99))
    assert wide[0] < narrow[0] < narrow[1] < wide[1]


def test_intervals_cover_the_truth_about_as_often_as_they_say():
    rng = np.random.default_rng(0)
    covered = 0
    for _ in range(200):
        low, high = bootstrap_interval(np.mean, rng.random(100) < 0.3, n_draws=200, random_state=rng.integers(2**31))
        covered += low <= 0.3 <= high
    assert 0.88 <= covered / 200 <= 0.99


def test_arrays_are_drawn_together(coin):
    difference = bootstrap_interval(lambda one, other: np.mean(one) - np.mean(other), coin, coin)
    assert difference == (0, 0)


def test_the_same_seed_gives_the_same_interval(coin, global_rngs_untouched):
    first, again, other = (
        bootstrap_interval(np.mean, coin, n_draws=50, random_state=seed) for seed in (0, np.random.RandomState(0), 1)
    )
    assert first == again != other
    assert bootstrap_interval(np.mean, coin, n_draws=50, random_state=None) != first


def test_a_metric_of_many_numbers_has_an_interval_for_each(rng):
    y = rng.integers(0, 3, 100)
    predictions = np.array([rng.integers(0, 3, 100), y])
    low, high = bootstrap_interval(layer_accuracy, predictions, y, n_draws=100)
    assert low.shape == high.shape == (2,)
    assert low[0] < layer_accuracy(predictions, y)[0] < high[0] < low[1] == high[1] == 1


def test_the_samples_axis_can_be_another(rng):
    logits, y = rng.normal(size=(3, 50, 4)), rng.integers(0, 4, 50)
    low, high = bootstrap_interval(geometric_disagreement, logits, y, axis=(1, 0), n_draws=100)
    assert low < geometric_disagreement(logits, y) < high


def test_groups_are_drawn_as_a_whole(coin):
    # All samples of a group are alike, so that there are 20 observations rather than 400.
    value, group = np.repeat(np.arange(20) % 2, 20), np.repeat(list("abcdefghijklmnopqrst"), 20)
    alone = bootstrap_interval(np.mean, value)
    together = bootstrap_interval(np.mean, value, groups=group)
    assert np.ptp(together) > 3 * np.ptp(alone)
    assert (np.array(together) * 20) % 1 == pytest.approx(0)


def test_groups_of_one_sample_are_samples(coin):
    low, high = bootstrap_interval(np.mean, coin, groups=np.arange(len(coin)))
    assert [low, high] == pytest.approx(bootstrap_interval(np.mean, coin), abs=0.02)


def test_draws_without_a_value_do_not_count():
    predictions, y = np.array([[0, 1, 1], [1, 0, 0]]), np.array([0, 0, 0])
    low, high = bootstrap_interval(recovery_rate, predictions, y)  # the one error is missing from many draws
    assert (low, high) == (1, 1)


def test_a_metric_that_never_has_a_value_has_no_interval():
    assert np.isnan(bootstrap_interval(recovery_rate, [[0, 0]], [0, 0])).all()


def corrected(predictions, y):
    return corrected_recovery_rate(predictions, y, n_draws=None)


def test_intervals_of_guesses_corrected_rate_cover_0_about_as_often_as_they_say():
    covered = 0
    for seed in range(20):
        rng = np.random.default_rng(seed)
        low, high = bootstrap_interval(corrected, rng.integers(0, 10, (6, 200)), rng.integers(0, 10, 200), n_draws=100)
        covered += low <= 0 <= high
    assert covered >= 17


def test_knowledge_has_a_corrected_rate_above_0(rng):
    y = rng.integers(0, 10, 400)
    knowing = np.where(rng.random((6, 400)) < 0.2, y, rng.integers(0, 10, (6, 400)))
    low, high = bootstrap_interval(corrected, knowing, y, n_draws=200)
    assert 0 < low < high


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n_draws": 0}, "n_draws=0 must be an integer of at least 1"),
        ({"n_draws": 10.0}, "n_draws=10.0 must be an integer"),
        ({"level": 95}, "level=95 must lie between 0 and 1"),
        ({"axis": (0, 0)}, "names 2 axes for 1 arrays"),
        ({"groups": [0, 1]}, "an entry for each of the 400 samples"),
    ],
)
def test_options_that_do_not_fit_are_named(coin, options, message):
    with pytest.raises(ValueError, match=message):
        bootstrap_interval(np.mean, coin, **options)


def test_unequal_numbers_of_samples_are_named():
    with pytest.raises(ValueError, match=r"have \[3, 4\] samples along axes \[-1, -1\]"):
        bootstrap_interval(recovery_rate, np.zeros((2, 3)), np.zeros(4))


def test_nothing_to_draw_from_is_named():
    with pytest.raises(ValueError, match="at least one"):
        bootstrap_interval(np.mean, [])
