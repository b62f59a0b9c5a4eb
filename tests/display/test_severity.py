import numpy as np
import pytest

from skvfusion import LayerProbeClassifier, SeverityDisplay

Y = np.array(["cat", "dog", "dog", "cat"])
CLEAN = np.array(["cat", "dog", "dog", "dog"])


def test_a_curve_for_each_method():
    display = SeverityDisplay({"one": [0.9, 0.5], "other": [0.8, np.nan]}, severities=[0, 5]).plot()
    one, other = display.ax_.get_lines()
    assert (one.get_label(), other.get_label()) == ("one", "other")
    assert one.get_xdata().tolist() == [0, 5]
    np.testing.assert_array_equal(other.get_ydata(), [0.8, np.nan])
    assert display.ax_.get_xticks().tolist() == [0, 5]


def test_from_predictions_counts_what_is_right_at_each_severity():
    display = SeverityDisplay.from_predictions(Y, {"one": [CLEAN, ["dog"] * 4]})
    assert display.accuracies == {"one": [0.75, 0.5]}
    assert display.ax_.get_xticks().tolist() == [0, 1]


def test_from_predictions_averages_over_corruptions():
    corruptions = [[CLEAN, CLEAN], [Y, ["fox"] * 4]]
    assert SeverityDisplay.from_predictions(Y, {"one": corruptions}).accuracies == {"one": [0.75, 0.5]}


@pytest.mark.parametrize("predictions", [CLEAN, [CLEAN[:2]], [[[CLEAN]]], []])
def test_predictions_that_do_not_fit_raise(predictions):
    with pytest.raises(ValueError, match=r"predictions\['one'\] of shape .* do not fit 4 labels"):
        SeverityDisplay.from_predictions(Y, {"one": predictions})


def test_from_estimator_predicts_at_each_severity(make_stack):
    X, y = make_stack()
    fitted = {"last": LayerProbeClassifier().fit(X, y), "third": LayerProbeClassifier(2).fit(X, y)}
    noisy = [X, X + 5 * np.random.default_rng(0).normal(size=X.shape)]
    display = SeverityDisplay.from_estimator(fitted, noisy, y, severities=[0, 3])
    for name, clf in fitted.items():
        assert display.accuracies[name] == [clf.score(noisy[0], y), clf.score(noisy[1], y)]
    assert display.severities == [0, 3]


def test_a_single_estimator_is_called_by_its_class(make_stack):
    X, y = make_stack()
    display = SeverityDisplay.from_estimator(LayerProbeClassifier().fit(X, y), [X], y)
    assert list(display.accuracies) == ["LayerProbeClassifier"]
