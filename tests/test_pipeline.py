"""The lines that users write, from images to predictions."""

import pickle

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from PIL import Image
from sklearn import config_context
from sklearn.base import clone
from sklearn.datasets import load_digits
from sklearn.model_selection import GridSearchCV, cross_val_predict, cross_val_score, train_test_split
from sklearn.pipeline import Pipeline, make_pipeline

from skvfusion import LayerProbeClassifier, LayerwiseFeatureExtractor, VFusionClassifier
from skvfusion.recoverability import oracle_accuracy, recovery_rate

FAST = {"max_epochs": 10, "hidden": 32, "latent_dim": 8, "random_state": 0}


@pytest.fixture(scope="module")
def digits():
    data = load_digits()
    return list(data.images[:90] / 16), data.target[:90]


def nano_pipeline(**params):
    return Pipeline([("layers", LayerwiseFeatureExtractor("nano")), ("clf", VFusionClassifier(**FAST | params))])


def test_the_missions_line(tmp_path, rng):
    paths = []
    for index in range(4):
        paths.append(tmp_path / f"{index}.png")
        Image.fromarray(rng.integers(0, 255, (20, 30, 3), dtype=np.uint8)).save(paths[-1])
    pipeline = Pipeline(
        [("layers", LayerwiseFeatureExtractor("dinov2_b", weights="random")), ("clf", VFusionClassifier(max_epochs=2))]
    )
    pipeline.fit(paths, ["cat", "dog", "cat", "dog"])
    assert pipeline["clf"].n_layers_in_ == 12
    assert pipeline["clf"].dim_in_ == 768
    assert set(pipeline.predict(paths)) <= {"cat", "dog"}


def test_grid_search_over_layers(digits):
    X, y = digits
    grid = {"clf__layers": ["all", "second_half", "strided", "last"]}
    search = GridSearchCV(nano_pipeline(), grid, cv=2, error_score="raise").fit(X, y)
    assert np.isfinite(search.cv_results_["mean_test_score"]).all()
    assert search.best_estimator_["clf"].layers == search.best_params_["clf__layers"]


def test_grid_search_over_backbones_uses_each(digits):
    X, y = digits
    pipeline = nano_pipeline().set_params(layers__weights="random")
    search = GridSearchCV(pipeline, {"layers__backbone": ["nano", "test_vit"]}, cv=2, refit=False, error_score="raise")
    scores = search.fit(X, y).cv_results_
    dims = [clone(pipeline).set_params(layers__backbone=name).fit(X, y)["clf"].dim_in_ for name in ("nano", "test_vit")]
    assert dims == [128, 64]
    assert scores["split0_test_score"][0] != scores["split0_test_score"][1]


@pytest.mark.parametrize("n_jobs", [1, 2])
def test_cross_validation_of_a_pipeline(digits, n_jobs):
    X, y = digits
    scores = cross_val_score(nano_pipeline(max_epochs=40), X, y, cv=3, n_jobs=n_jobs)
    assert scores.mean() > 0.5


def test_cross_val_predict_returns_labels(digits):
    X, y = digits
    names = np.array([f"digit {label}" for label in y])
    assert set(cross_val_predict(nano_pipeline(), X, names, cv=2)) <= set(names)


def test_pickled_pipeline_predicts_the_same_without_the_backbones_weights(digits):
    X, y = digits
    pipeline = nano_pipeline().fit(X, y)
    data = pickle.dumps(pipeline)
    assert len(data) < 500_000
    assert_array_equal(pickle.loads(data).predict_proba(X), pipeline.predict_proba(X))


def test_pandas_output_does_not_break_a_pipeline(digits):
    X, y = digits
    plain = nano_pipeline().fit(X, y).predict(X)
    with config_context(transform_output="pandas"):
        assert_array_equal(nano_pipeline().fit(X, y).predict(X), plain)
    assert_array_equal(nano_pipeline().set_output(transform="pandas").fit(X, y).predict(X), plain)


def test_pipeline_memory_reads_images_once(digits, tmp_path):
    X, y = digits
    pipeline = make_pipeline(LayerwiseFeatureExtractor("nano"), VFusionClassifier(**FAST), memory=str(tmp_path))
    first = pipeline.fit(X, y).predict(X)
    assert_array_equal(clone(pipeline).fit(X, y).predict(X), first)
    assert len(list(tmp_path.rglob("output.pkl"))) == 1


def test_latents_feed_another_estimator(digits):
    X, y = digits
    pipeline = make_pipeline(LayerwiseFeatureExtractor("nano"), VFusionClassifier(**FAST), LayerProbeClassifier())
    assert pipeline.fit(X, y).score(X, y) > 0.8


def test_a_bad_image_in_a_pipeline_is_named(digits, tmp_path):
    (tmp_path / "broken.jpg").write_bytes(b"not an image")
    X, y = digits
    with pytest.raises(ValueError, match=r"Image 89 \(.*broken\.jpg\) cannot be used"):
        nano_pipeline().fit([*X[:89], tmp_path / "broken.jpg"], y)


def test_fusing_all_layers_beats_the_last_on_digits():
    """On average over splits, the claim that the library stands for."""
    digits = load_digits()
    X = LayerwiseFeatureExtractor("nano").fit_transform(digits.images / 16)
    fused, last, mlp = [], [], []
    for seed in range(2):
        X_train, X_test, y_train, y_test = train_test_split(
            X, digits.target, test_size=0.5, stratify=digits.target, random_state=seed
        )
        fused.append(VFusionClassifier(random_state=seed).fit(X_train, y_train).score(X_test, y_test))
        last.append(LayerProbeClassifier().fit(X_train, y_train).score(X_test, y_test))
        mlp.append(LayerProbeClassifier(probe="mlp", random_state=seed).fit(X_train, y_train).score(X_test, y_test))
    probes = [LayerProbeClassifier(layer).fit(X_train, y_train).predict(X_test) for layer in range(12)]
    assert np.mean(fused) > np.mean(last) + 0.01
    assert np.mean(fused) > np.mean(mlp) + 0.01
    assert oracle_accuracy(probes, y_test) > fused[-1]
    assert 0.1 < recovery_rate(probes, y_test) < 1
