import numpy as np
import pytest
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer

from skvfusion import LatentCorrelationDisplay, LayerProbeClassifier, VFusionClassifier


@pytest.fixture
def fitted(make_stack):
    X, y = make_stack()
    return VFusionClassifier(hidden=8, latent_dim=4, max_epochs=2, random_state=0).fit(X, y), X


def test_the_matrix_is_drawn_on_a_scale_around_0():
    matrix = np.array([[1.0, -0.5], [-0.5, 1.0]])
    display = LatentCorrelationDisplay(matrix).plot()
    (image,) = display.ax_.get_images()
    assert image.get_array().tolist() == matrix.tolist()
    assert image.get_clim() == (-1, 1)
    assert image.get_cmap().name == "PuOr"


def test_the_title_leaves_out_the_diagonal():
    matrix = np.eye(3)
    matrix[0, 1] = matrix[1, 0] = 0.6
    assert LatentCorrelationDisplay(matrix).plot().ax_.get_title() == "mean square beside the diagonal: 0.120"


def test_one_dimension_has_nothing_beside_the_diagonal():
    assert LatentCorrelationDisplay([[1.0]]).plot().ax_.get_title() == ""


def test_from_estimator_draws_the_classifiers_correlation(fitted):
    clf, X = fitted
    display = LatentCorrelationDisplay.from_estimator(clf, X)
    assert display.correlation.tolist() == clf.latent_correlation(X).tolist()


def test_from_estimator_reads_a_pipeline(fitted):
    clf, X = fitted
    pipeline = make_pipeline(FunctionTransformer(np.negative), clf)
    display = LatentCorrelationDisplay.from_estimator(pipeline, -X)
    assert display.correlation.tolist() == clf.latent_correlation(X).tolist()


def test_a_classifier_without_latent_raises(make_stack):
    X, y = make_stack()
    with pytest.raises(TypeError, match="LayerProbeClassifier has no latent; pass a fitted VFusionClassifier"):
        LatentCorrelationDisplay.from_estimator(LayerProbeClassifier().fit(X, y), X)
