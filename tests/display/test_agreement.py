import numpy as np
import pytest

from skvfusion import LayerAgreementDisplay, LayerProbeClassifier
from skvfusion.recoverability import RecoverabilityScorer

DISAGREEMENT = np.array([[0.0, 0.25, 0.75], [0.25, 0.0, 0.5], [0.75, 0.5, 0.0]])


def test_agreement_is_drawn_shallow_layers_at_the_bottom_left():
    display = LayerAgreementDisplay(DISAGREEMENT, layers=[3, 7, 11]).plot()
    (image,) = display.ax_.get_images()
    assert image.get_array().tolist() == (1 - DISAGREEMENT).tolist()
    assert image.origin == "lower"
    assert display.ax_.get_ylim() == (-0.5, 2.5)
    assert [label.get_text() for label in display.ax_.get_xticklabels()] == ["3", "7", "11"]
    assert [label.get_text() for label in display.ax_.get_yticklabels()] == ["3", "7", "11"]


def test_the_scale_runs_from_the_least_alike_to_all_alike():
    (image,) = LayerAgreementDisplay(DISAGREEMENT).plot().ax_.get_images()
    assert image.get_clim() == (0.25, 1)


@pytest.mark.parametrize("disagreement", [[[0.0]], [[0.0, 0.001], [0.001, 0.0]], [[np.nan]]])
def test_the_scale_has_some_width_whatever_the_numbers(disagreement):
    (image,) = LayerAgreementDisplay(disagreement).plot().ax_.get_images()
    assert image.get_clim() == (0.9, 1)


def test_from_predictions_counts_where_layers_differ():
    display = LayerAgreementDisplay.from_predictions([["a", "b", "b", "a"], ["a", "a", "b", "a"]], layers=["x", "y"])
    assert display.disagreement.tolist() == [[0, 0.25], [0.25, 0]]
    assert display.layers == ["x", "y"]


def test_from_estimator_evaluates_the_scorer(make_stack):
    X, y = make_stack()
    scorer = RecoverabilityScorer("linear", layers=[0, 2, 5], random_state=0).fit(X[:30], y[:30])
    display = LayerAgreementDisplay.from_estimator(scorer, X[30:], y[30:])
    result = scorer.evaluate(X[30:], y[30:])
    assert display.layers == [0, 2, 5]
    assert display.disagreement[0, 1] == (result.predictions[0] != result.predictions[1]).mean() > 0


def test_an_estimator_without_probes_raises(make_stack):
    X, y = make_stack()
    with pytest.raises(TypeError, match="LayerProbeClassifier has no probe for each layer"):
        LayerAgreementDisplay.from_estimator(LayerProbeClassifier().fit(X, y), X, y)
