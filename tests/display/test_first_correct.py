import numpy as np

from skvfusion import FirstCorrectLayerDisplay
from skvfusion.recoverability import RecoverabilityScorer

Y = np.array([0, 1, 1, 0, 2])
LAYERS = np.array([[0, 0, 0, 1, 0], [0, 1, 0, 0, 0], [1, 1, 1, 1, 0]])


def legend(display):
    return [text.get_text() for text in display.ax_.get_legend().get_texts()]


def test_from_predictions_counts_first_rights_and_what_the_last_layer_loses():
    display = FirstCorrectLayerDisplay.from_predictions(Y, LAYERS)
    assert display.counts.tolist() == [1, 2, 1]
    assert display.lost.tolist() == [1, 1, 0]
    assert display.never == 1
    assert legend(display) == ["last layer right too: 2", "last layer wrong: 2", "no layer right: 1"]


def test_the_bars_are_stacked_and_that_of_no_layer_stands_apart():
    display = FirstCorrectLayerDisplay([10, 4, 3], never=2, lost=[5, 1, 0]).plot()
    kept, lost, never = display.ax_.containers
    assert [bar.get_height() for bar in kept] == [5, 3, 3]
    assert [bar.get_height() for bar in lost] == [5, 1, 0]
    assert [bar.get_y() for bar in lost] == [5, 3, 3]
    assert [bar.get_height() for bar in never] == [2]
    assert never[0].get_x() > kept[-1].get_x() + 1
    assert [text.get_text() for text in display.ax_.texts] == ["10", "4", "3", "2"]
    assert [label.get_text() for label in display.ax_.get_xticklabels()] == ["0", "1", "2", "none"]


def test_the_highest_bar_and_its_count_are_inside():
    display = FirstCorrectLayerDisplay([400, 4, 3], lost=[0, 0, 0]).plot()
    display.figure_.draw_without_rendering()
    (highest,) = (text for text in display.ax_.texts if text.get_text() == "400")
    assert highest.get_window_extent().y1 < display.ax_.get_window_extent().y1


def test_without_losses_there_is_nothing_to_tell_apart():
    assert legend(FirstCorrectLayerDisplay([10, 4]).plot()) == ["a layer right: 14", "no layer right: 0"]


def test_no_samples_at_all():
    assert legend(FirstCorrectLayerDisplay([0, 0]).plot()) == ["a layer right: 0", "no layer right: 0"]


def test_one_layer():
    display = FirstCorrectLayerDisplay.from_predictions(Y, LAYERS[-1:])
    assert display.counts.tolist() == [2]
    assert display.lost.tolist() == [0]
    assert display.never == 3


def test_string_labels():
    names = np.array(["cat", "dog", "fox"])
    display = FirstCorrectLayerDisplay.from_predictions(names[Y], names[LAYERS])
    assert display.counts.tolist() == [1, 2, 1]


def test_from_estimator_evaluates_the_scorer(make_stack):
    X, y = make_stack()
    scorer = RecoverabilityScorer("linear", layers=[0, 2, 5], cv=3, random_state=0).fit(X, y)
    display = FirstCorrectLayerDisplay.from_estimator(scorer)
    assert display.layers == [0, 2, 5]
    assert display.counts.sum() + display.never == len(y)
    assert [label.get_text() for label in display.ax_.get_xticklabels()] == ["0", "2", "5", "none"]
