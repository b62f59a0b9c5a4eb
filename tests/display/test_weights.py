import numpy as np
import pytest
from sklearn.exceptions import NotFittedError
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer

from skvfusion import (
    LayerVotingClassifier,
    LayerWeightsDisplay,
    MixtureOfExpertsClassifier,
    NeuralLogitControllerClassifier,
    SuperLearnerClassifier,
)

pytestmark = pytest.mark.usefixtures("one_thread")
QUICK = {"layers": [0, 2, 5], "cv": 2, "random_state": 0}


@pytest.fixture
def stack(make_stack):
    return make_stack()


def line(display, name):
    (found,) = (line for line in display.ax_.get_lines() if line.get_label() == name)
    return found


def test_a_curve_for_each_method_a_band_where_there_is_one_and_equal_weights():
    display = LayerWeightsDisplay({"one": [0.1, 0.9], "other": [0.4, 0.6]}, spread={"other": [[0.3, 0.5], [0.5, 0.8]]})
    display.plot()
    assert line(display, "one").get_ydata().tolist() == [0.1, 0.9]
    assert line(display, "other").get_ydata().tolist() == [0.4, 0.6]
    assert list(line(display, "all alike").get_ydata()) == [0.5, 0.5]
    (band,) = display.ax_.collections
    assert band.get_datalim(display.ax_.transData).y0 == 0.3
    assert band.get_datalim(display.ax_.transData).y1 == 0.8


def test_super_learner_needs_no_images(stack):
    clf = SuperLearnerClassifier(**QUICK).fit(*stack)
    display = LayerWeightsDisplay.from_estimator(clf)
    assert display.weights["SuperLearnerClassifier"] == pytest.approx(clf.layer_weights_)
    assert display.spread == {}
    assert [label.get_text() for label in display.ax_.get_xticklabels()] == ["0", "2", "5"]


def test_weights_by_image_are_averaged_and_their_spread_shown(stack):
    X, y = stack
    clf = MixtureOfExpertsClassifier(max_epochs=2, **QUICK).fit(X, y)
    display = LayerWeightsDisplay.from_estimator({"experts": clf}, X)
    weights = clf.layer_weights(X)
    assert display.weights["experts"] == pytest.approx(weights.mean(axis=0))
    assert display.spread["experts"] == pytest.approx(np.quantile(weights, [0.1, 0.9], axis=0))


def test_a_controllers_weights_are_shares_image_by_image(stack):
    X, y = stack
    clf = NeuralLogitControllerClassifier(weighting="raw", max_epochs=3, lr=0.1, **QUICK).fit(X, y)
    weights = clf.layer_weights(X)
    display = LayerWeightsDisplay.from_estimator({"controller": clf}, X)
    expected = np.mean([row / np.abs(row).sum() for row in weights], axis=0)
    assert not np.allclose(weights.sum(axis=1), 1)
    assert display.weights["controller"] == pytest.approx(expected)


def test_several_classifiers_also_in_pipelines(stack):
    X, y = stack
    learner = SuperLearnerClassifier(**QUICK).fit(X, y)
    experts = MixtureOfExpertsClassifier(max_epochs=1, **QUICK).fit(X, y)
    pipeline = make_pipeline(FunctionTransformer(np.negative), experts)
    display = LayerWeightsDisplay.from_estimator({"a": learner, "b": pipeline}, -X)
    assert display.weights["b"] == pytest.approx(experts.layer_weights(X).mean(axis=0))
    assert list(display.spread) == ["b"]


def test_images_that_are_missing_raise(stack):
    clf = MixtureOfExpertsClassifier(max_epochs=1, **QUICK).fit(*stack)
    with pytest.raises(ValueError, match="MixtureOfExpertsClassifier weighs the layers anew for each image; pass X"):
        LayerWeightsDisplay.from_estimator(clf)


def test_classifiers_of_different_layers_raise(stack):
    fitted = {str(layers): SuperLearnerClassifier(layers=layers, cv=2).fit(*stack) for layers in ([0, 1], [0, 2])}
    with pytest.raises(ValueError, match="different layers"):
        LayerWeightsDisplay.from_estimator(fitted)


def test_classifiers_without_weights_raise(stack):
    with pytest.raises(TypeError, match="LayerVotingClassifier does not weigh layers; pass a fitted SuperLearner"):
        LayerWeightsDisplay.from_estimator(LayerVotingClassifier().fit(*stack))


def test_an_unfitted_classifier_raises():
    with pytest.raises(NotFittedError):
        LayerWeightsDisplay.from_estimator(SuperLearnerClassifier())


def test_an_empty_dict_raises():
    with pytest.raises(ValueError, match="empty dict"):
        LayerWeightsDisplay.from_estimator({})
