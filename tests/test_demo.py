import inspect

import numpy as np
import pandas as pd
import pytest
from sklearn.datasets import load_digits

from skvfusion import RecoverabilityDisplay, demo

METHODS = [
    demo.LAST,
    demo.LAST_MLP,
    demo.BEST,
    demo.AVERAGE,
    demo.SUPER_LEARNER,
    demo.ALF,
    demo.VFUSION,
    demo.ORACLE,
]


def some_digits(n_per_class):
    """The first images of each digit, as ``load_digits`` gives all of them."""
    digits = load_digits()
    rows = np.sort(np.concatenate([np.flatnonzero(digits.target == digit)[:n_per_class] for digit in range(10)]))
    for name in ("images", "data", "target"):
        digits[name] = digits[name][rows]
    return digits


@pytest.fixture(autouse=True, scope="module")
def few_digits(one_thread):
    """Eight images a digit."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(demo, "load_digits", lambda: some_digits(8))
        yield


@pytest.fixture(scope="module")
def two_seeds(few_digits):
    lines = []
    scores, display = demo.run_demo(seeds=2, seed=3, device="cpu", report=lines.append)
    return scores, display, lines


def test_a_row_per_seed_and_a_column_per_method(two_seeds):
    scores, _, _ = two_seeds
    assert scores.index.tolist() == [3, 4]
    assert scores.index.name == "seed"
    assert list(scores.columns) == [*METHODS, demo.RECOVERY]


def test_every_figure_is_a_share_of_the_test_half(two_seeds):
    scores, _, _ = two_seeds
    counts = scores[METHODS].to_numpy() * 40
    np.testing.assert_allclose(counts, counts.round(), atol=1e-9)
    assert scores.to_numpy().min() >= 0
    assert scores.to_numpy().max() <= 1


def test_the_classifiers_are_far_better_than_chance(two_seeds):
    scores, _, _ = two_seeds
    assert scores[METHODS].to_numpy().min() > 0.3


def test_the_oracle_is_at_least_every_layer(two_seeds):
    scores, display, _ = two_seeds
    assert (scores[demo.ORACLE] >= scores[demo.LAST]).all()
    assert (scores[demo.ORACLE] >= scores[demo.BEST]).all()
    assert scores[demo.ORACLE].mean() >= np.max(display.layer_accuracy)


def test_the_recovery_rate_follows_from_the_accuracies(two_seeds):
    scores, _, _ = two_seeds
    last = scores[demo.LAST]
    assert (last < 1).all()
    np.testing.assert_allclose(scores[demo.RECOVERY], (scores[demo.ORACLE] - last) / (1 - last), atol=1e-12)


def test_the_display_holds_the_means_over_the_seeds(two_seeds):
    scores, display, _ = two_seeds
    assert isinstance(display, RecoverabilityDisplay)
    assert len(display.layer_accuracy) == 12
    assert display.layer_accuracy[-1] == pytest.approx(scores[demo.LAST].mean())
    assert display.oracle_accuracy == pytest.approx(scores[demo.ORACLE].mean())
    assert display.fused_accuracy == pytest.approx(scores[demo.VFUSION].mean())
    assert not hasattr(display, "ax_")


def test_progress_states_data_split_and_each_seed(two_seeds):
    _, _, lines = two_seeds
    text = "\n".join(lines)
    assert "80 handwritten digits of 8x8 pixels, 10 classes" in text
    assert "80 images x 12 layers x 128 dims" in text
    for seed in (3, 4):
        assert f"seed {seed}: 50% train, 50% test, stratified" in text


def test_the_same_seed_gives_the_same_figures_alone_or_among_others(two_seeds, capsys):
    scores, _, _ = two_seeds
    alone, _ = demo.run_demo(seeds=1, seed=4, device="cpu", report=lambda line: None)
    pd.testing.assert_frame_equal(alone, scores.loc[[4]], check_exact=True, check_index_type=False)
    assert capsys.readouterr() == ("", "")


def test_different_seeds_split_differently(two_seeds):
    scores, _, _ = two_seeds
    assert not np.array_equal(scores.loc[3], scores.loc[4])


def made_up_scores(n):
    accuracies = np.array(
        [[0.80, 0.81, 0.82, 0.83, 0.84, 0.85, 0.90, 0.95], [0.70, 0.75, 0.72, 0.71, 0.74, 0.75, 0.80, 0.85]]
    )[:n]
    scores = pd.DataFrame(accuracies, columns=METHODS, index=pd.RangeIndex(n, name="seed"))
    return scores.assign(**{demo.RECOVERY: np.array([0.75, 0.5])[:n]})


def test_summary_of_one_seed():
    table = demo.summarise(made_up_scores(1))
    assert table.index.tolist() == METHODS
    assert table.columns.tolist() == ["accuracy %", "gain"]
    np.testing.assert_allclose(table["accuracy %"], [80, 81, 82, 83, 84, 85, 90, 95])
    np.testing.assert_allclose(table["gain"], [0, 1, 2, 3, 4, 5, 10, 15], atol=1e-9)


def test_summary_of_several_seeds_has_means_and_standard_deviations():
    table = demo.summarise(made_up_scores(2))
    assert table.columns.tolist() == ["accuracy %", "std", "gain"]
    np.testing.assert_allclose(table["accuracy %"], [75, 78, 77, 77, 79, 80, 85, 90])
    np.testing.assert_allclose(table["std"], np.std([80, 70], ddof=1) * np.array([1, 0.6, 1, 1.2, 1, 1, 1, 1]))
    np.testing.assert_allclose(table["gain"], [0, 3, 2, 2, 4, 5, 10, 15], atol=1e-9)


def test_summary_leaves_the_scores_alone():
    scores = made_up_scores(2)
    demo.summarise(scores)
    pd.testing.assert_frame_equal(scores, made_up_scores(2))


def test_the_documented_defaults_are_the_real_ones():
    defaults = {name: parameter.default for name, parameter in inspect.signature(demo.run_demo).parameters.items()}
    assert defaults == {"seeds": 1, "seed": 0, "device": "auto", "report": print}
