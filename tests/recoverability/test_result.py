import numpy as np
import pytest
from scipy.special import softmax
from sklearn.metrics import roc_auc_score

from skvfusion.recoverability import (
    RecoverabilityResult,
    RecoverabilityScorer,
    confusion_score,
    corrected_recovery_rate,
    correction_entropy,
    geometric_disagreement,
    layer_accuracy,
    oracle_accuracy,
    pairwise_disagreement,
    prediction_depth,
    recovery_rate,
    wasteful_overthinking,
)

NAMES = np.array(["cat", "dog", "eel"])


@pytest.fixture
def logits_and_y(rng):
    """Four layers that know a little of 120 samples of 3 classes."""
    y = rng.integers(0, 3, 120)
    return 1.5 * rng.normal(size=(4, 120, 3)) + np.linspace(0.5, 2, 4)[:, None, None] * np.eye(3)[y], y


@pytest.fixture
def result(logits_and_y, rng):
    logits, y = logits_and_y
    groups = np.array(["lake", "sea"])[(rng.random(120) < 0.3).astype(int)]
    return RecoverabilityResult(logits, NAMES[y], NAMES, layers=[2, 5, 8, 11], groups=groups)


def test_figures_are_those_of_the_functions(result, logits_and_y):
    logits, y = logits_and_y
    predicted = logits.argmax(axis=2)
    assert result.predictions.tolist() == NAMES[predicted].tolist()
    np.testing.assert_allclose(result.probabilities, softmax(logits, axis=2))
    assert result.layer_accuracy.tolist() == layer_accuracy(predicted, y).tolist()
    assert result.oracle_accuracy == oracle_accuracy(predicted, y)
    assert result.recovery_rate == recovery_rate(predicted, y)
    assert result.corrected_recovery_rate == corrected_recovery_rate(predicted, y, n_draws=None)
    assert result.pairwise_disagreement.tolist() == pairwise_disagreement(predicted).tolist()
    assert result.prediction_depth.tolist() == prediction_depth(predicted).tolist()
    np.testing.assert_allclose(result.confusion_score, confusion_score(softmax(logits, axis=2)))


def test_the_summary_is_made_of_the_functions(result, logits_and_y):
    logits, y = logits_and_y
    predicted, value = logits.argmax(axis=2), result.summary(n_draws=10)["value"]
    expected = {
        "last_accuracy": layer_accuracy(predicted, y)[-1],
        "best_accuracy": layer_accuracy(predicted, y).max(),
        "oracle_accuracy": oracle_accuracy(predicted, y),
        "recovery_rate": recovery_rate(predicted, y),
        "corrected_recovery_rate": corrected_recovery_rate(predicted, y, n_draws=None),
        "wasteful_overthinking": wasteful_overthinking(predicted, y),
        **{f"correction_entropy_{reading}": correction_entropy(predicted, y, reading=reading) for reading in "ABC"},
        **{f"geometric_disagreement_{reading}": geometric_disagreement(logits, y, reading=reading) for reading in "AB"},
        **{
            f"geometric_disagreement_{reading}_raw": geometric_disagreement(logits, y, reading=reading, center=False)
            for reading in "AB"
        },
        "confusion": confusion_score(softmax(logits, axis=2)).mean(),
        "confusion_auroc": roc_auc_score(predicted[-1] != y, confusion_score(softmax(logits, axis=2))),
        "prediction_depth": prediction_depth(predicted).mean(),
    }
    assert value[~value.index.str.startswith("worst_group")].to_dict() == pytest.approx(expected)


def test_intervals_hold_their_values_and_narrow_with_samples(result, logits_and_y):
    summary = result.summary(n_draws=300)
    inside = summary["value"].between(summary["low"], summary["high"])
    # The best of several is biased upwards in every draw, the worst downwards.
    assert inside.drop("best_accuracy").loc[:"prediction_depth"].all()
    logits, y = logits_and_y
    repeated = RecoverabilityResult(np.tile(logits, (1, 4, 1)), np.tile(y, 4), [0, 1, 2], layers=range(4))
    wide, narrow = ((s["high"] - s["low"])["last_accuracy"] for s in (summary, repeated.summary(n_draws=300)))
    assert 0.4 * wide < narrow < 0.6 * wide


def test_the_summary_is_the_same_for_the_same_seed_only(result):
    first, again, other = (result.summary(n_draws=20, random_state=seed) for seed in (0, 0, 1))
    assert first.equals(again)
    assert first["value"].equals(other["value"])
    assert not first["low"].equals(other["low"])


def test_the_interval_of_the_corrected_rate_is_around_it_even_with_few_errors_of_a_kind(rng):
    y = rng.integers(0, 40, 100)
    strength = np.array([1.5, 1.5, 1.5, 0])[:, None, None]
    result = RecoverabilityResult(rng.normal(size=(4, 100, 40)) + strength * np.eye(40)[y], y, np.arange(40), range(4))
    row = result.summary(n_draws=300).loc["corrected_recovery_rate"]
    # Taking a bootstrap's copies of a sample for others would move it by 0.4 of its width.
    assert abs((row["low"] + row["high"]) / 2 - row["value"]) < 0.2 * (row["high"] - row["low"])


def test_clusters_widen_the_intervals(logits_and_y):
    logits, y = logits_and_y
    # Ten copies of each of twelve samples are twelve observations, if one says so.
    logits, y = np.repeat(logits[:, :12], 10, axis=1), np.repeat(y[:12], 10)
    widths = []
    for clusters in (None, np.repeat(np.arange(12), 10)):
        summary = RecoverabilityResult(logits, y, [0, 1, 2], range(4), clusters=clusters).summary(n_draws=200)
        widths.append((summary["high"] - summary["low"])["last_accuracy"])
    assert widths[1] > 2 * widths[0]


def test_the_frame_has_a_row_per_layer(result):
    frame = result.to_frame()
    assert frame.index.tolist() == [2, 5, 8, 11]
    assert frame.index.name == "layer"
    assert frame["accuracy"].tolist() == result.layer_accuracy.tolist()
    assert frame["recovery"].tolist() == result.layer_recovery.tolist()
    assert frame["harm"].tolist() == result.layer_harm.tolist()
    assert frame["cumulative_accuracy"].iloc[-1] == result.oracle_accuracy
    np.testing.assert_allclose(frame["first_correct"].cumsum(), frame["cumulative_accuracy"])
    assert frame["settled"].sum() == pytest.approx(1)
    assert frame["disagreement"].iloc[-1] == frame["confusion"].iloc[-1] == 0
    assert frame["confusion"].sum() == pytest.approx(result.confusion_score.mean())
    a = geometric_disagreement(result.logits, result.y, classes=NAMES)
    assert frame["cosine_distance"].iloc[:-1].mean() == pytest.approx(a)


def test_figures_by_group_are_those_of_the_groups_samples(result):
    by_group = result.by_group()
    assert by_group.index.tolist() == ["lake", "sea"]
    for group, row in by_group.iterrows():
        rows = result.groups == group
        assert row["n_samples"] == rows.sum()
        assert row["last_accuracy"] == np.mean(result.predictions[-1, rows] == result.y[rows])
        assert row["oracle_accuracy"] == oracle_accuracy(result.predictions[:, rows], result.y[rows])
        assert row["recovery_rate"] == recovery_rate(result.predictions[:, rows], result.y[rows])


def test_the_worst_group_is_the_one_with_the_least(result):
    by_group, worst = result.by_group(), result.worst_group()
    for figure, row in worst.iterrows():
        assert row["value"] == by_group[figure].min() == by_group.loc[row["group"], figure]
    summary = result.summary(n_draws=20)
    for figure in worst.index:
        assert summary.loc[f"worst_group_{figure}", "value"] == worst.loc[figure, "value"]
    worst_by_layer = result.to_frame()["worst_group_accuracy"]
    assert worst_by_layer.iloc[-1] == worst.loc["last_accuracy", "value"]


def test_a_group_without_errors_has_no_recovery_rate(logits_and_y):
    logits, y = logits_and_y
    right = logits[-1].argmax(axis=1) == y
    result = RecoverabilityResult(logits, y, [0, 1, 2], range(4), groups=right)
    assert np.isnan(result.by_group().loc[True, "recovery_rate"])
    assert result.worst_group().loc["recovery_rate", "group"] == False  # noqa: E712
    alone = RecoverabilityResult(logits[:, right], y[right], [0, 1, 2], range(4), groups=right[right])
    assert alone.worst_group().loc["recovery_rate", "group"] is None
    assert np.isnan(alone.summary(n_draws=10).loc["worst_group_recovery_rate"]).all()


def test_without_groups_there_are_no_figures_by_group(logits_and_y):
    result = RecoverabilityResult(*logits_and_y, [0, 1, 2], range(4))
    assert "worst_group_accuracy" not in result.to_frame()
    assert not result.summary(n_draws=10).index.str.startswith("worst").any()
    for method in (result.by_group, result.worst_group):
        with pytest.raises(ValueError, match=r"pass evaluate\(X, y, groups=...\)"):
            method()


def test_one_layer_recovers_nothing(logits_and_y):
    logits, y = logits_and_y
    result = RecoverabilityResult(logits[-1:], y, [0, 1, 2], [11])
    value = result.summary(n_draws=10)["value"]
    assert value["recovery_rate"] == value["corrected_recovery_rate"] == value["wasteful_overthinking"] == 0
    assert value["last_accuracy"] == value["best_accuracy"] == value["oracle_accuracy"]
    assert value.filter(like="entropy").isna().all()
    assert value.filter(like="geometric").isna().all()
    assert result.to_frame().loc[11, "settled"] == 1


@pytest.mark.parametrize("n_classes", [1, 3])
def test_without_errors_of_the_last_layer_what_depends_on_them_is_undefined(rng, n_classes):
    logits = rng.normal(size=(3, 30, n_classes))
    result = RecoverabilityResult(logits, logits[-1].argmax(axis=1), np.arange(n_classes), range(3))
    summary = result.summary(n_draws=10)
    undefined = summary.index[summary["value"].isna()]
    assert set(undefined) == {
        "recovery_rate",
        "corrected_recovery_rate",
        "confusion_auroc",
        *summary.filter(like="entropy", axis=0).index,
        *summary.filter(like="geometric", axis=0).index,
    }
    assert summary.loc[undefined].isna().all(axis=None)
    assert summary.drop(undefined).notna().all(axis=None)
    frame = result.to_frame()
    assert set(frame.columns[frame.isna().any()]) == {"recovery", "cosine_distance"}


def test_a_label_that_is_no_class_is_never_recognised(logits_and_y):
    logits, y = logits_and_y
    result = RecoverabilityResult(logits, np.where(y == 0, "gnu", NAMES[y]), NAMES, range(4))
    known = layer_accuracy(logits.argmax(axis=2)[:, y > 0], y[y > 0])[-1]
    assert result.layer_accuracy[-1] == pytest.approx(known * np.mean(y > 0))
    value = result.summary(n_draws=10)["value"]
    assert value["last_accuracy"] == result.layer_accuracy[-1]
    assert value["oracle_accuracy"] == result.oracle_accuracy < np.mean(y > 0)


def test_what_does_not_fit_is_named(logits_and_y):
    logits, y = logits_and_y
    with pytest.raises(ValueError, match="must name the 4 layers"):
        RecoverabilityResult(logits, y, [0, 1, 2], [0, 1])
    with pytest.raises(ValueError, match="y has shape"):
        RecoverabilityResult(logits, y[:5], [0, 1, 2], range(4))
    with pytest.raises(ValueError, match="classes has shape"):
        RecoverabilityResult(logits, y, [0, 1], range(4))
    with pytest.raises(ValueError, match="groups must be one-dimensional with an entry for each of the 120 samples"):
        RecoverabilityResult(logits, y, [0, 1, 2], range(4), groups=[1, 2])


def test_it_says_what_it_is_in_a_line(result):
    assert repr(result).startswith("RecoverabilityResult(n_layers=4, n_samples=120, last_accuracy=0.")
    assert "\n" not in repr(result)


def test_groups_of_several_kinds_are_told_apart():
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(60, 3, 4)), np.arange(60) % 2
    scorer = RecoverabilityScorer("linear").fit(X, y)
    mixed = scorer.evaluate(X, y, groups=np.array(["a", 1] * 30, dtype=object))
    plain = scorer.evaluate(X, y, groups=np.array(["a", "1"] * 30))
    assert set(mixed.by_group().index) == {"a", 1}
    assert mixed.by_group().loc["a"].equals(plain.by_group().loc["a"])
    assert mixed.summary().equals(plain.summary())
