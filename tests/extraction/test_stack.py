import pickle

import joblib
import numpy as np
import pytest
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline

import skvfusion
from skvfusion import BackboneStack, LayerProbeClassifier, LayerwiseFeatureExtractor

CLASSIFIERS = [
    skvfusion.VFusionClassifier(max_epochs=5, random_state=0),
    skvfusion.AttentiveFusionClassifier(max_epochs=3, min_steps=0, random_state=0),
    skvfusion.SuperLearnerClassifier(cv=2, random_state=0),
    skvfusion.NeuralLogitControllerClassifier(cv=2, max_epochs=2, random_state=0),
    skvfusion.MixtureOfExpertsClassifier(cv=2, max_epochs=2, random_state=0),
    skvfusion.LayerVotingClassifier(),
    skvfusion.LayerProbeClassifier(),
]


@pytest.fixture(scope="module")
def narrow(tiny_vit):
    return LayerwiseFeatureExtractor(tiny_vit(), layers=[-1], device="cpu")


@pytest.fixture(scope="module")
def wide():
    return LayerwiseFeatureExtractor("nano", layers=[-2, -1], device="cpu")


def test_layers_follow_each_other_and_narrow_ones_are_filled_with_zeros(narrow, wide, images):
    stack = BackboneStack([("narrow", narrow), ("wide", wide)]).fit_transform(images)
    assert stack.shape == (5, 3, 128)
    assert stack.dtype == np.float32
    np.testing.assert_array_equal(stack[:, :1, :64], narrow.transform(images))
    np.testing.assert_array_equal(stack[:, 0, 64:], 0)
    np.testing.assert_array_equal(stack[:, 1:], wide.transform(images))


def test_attributes_say_what_is_where(narrow, wide):
    stack = BackboneStack([("narrow", narrow), ("wide", wide)]).fit()
    assert stack.layer_names_ == ["narrow_block5", "wide_block10", "wide_block11"]
    assert stack.dims_ == {"narrow": 64, "wide": 128}
    assert stack.dim_ == 128
    assert stack.token_names_ == ["cls"]
    assert not hasattr(narrow, "layers_")


def test_several_tokens_keep_their_axis(narrow, wide, images):
    parts = [("n", clone(narrow).set_params(tokens="cls+mean")), ("w", clone(wide).set_params(tokens="cls+mean"))]
    stack = BackboneStack(parts).fit_transform(images)
    assert stack.shape == (5, 3, 2, 128)
    np.testing.assert_array_equal(stack[:, :1, :, :64], parts[0][1].transform(images))


def test_different_tokens_are_refused(narrow, wide, images):
    stack = BackboneStack([("a", narrow), ("b", clone(wide).set_params(tokens="cls+mean"))])
    for method in (stack.fit, stack.transform):
        with pytest.raises(ValueError, match=r"different tokens: .*'a': 'cls'"):
            method(images)


def test_as_many_tokens_of_another_kind_are_refused(narrow, wide, images):
    stack = BackboneStack([("a", narrow), ("b", clone(wide).set_params(tokens="mean"))])
    with pytest.raises(ValueError, match=r"'a': 'cls', 'b': 'mean'"):
        stack.transform(images)


def test_flat_parts_are_refused(narrow, images):
    with pytest.raises(ValueError, match="output='stack'"):
        BackboneStack([("a", clone(narrow).set_params(output="flat"))]).transform(images)


@pytest.mark.parametrize(
    "extractors",
    [
        [],
        None,
        "dino",
        [LayerwiseFeatureExtractor()],
        [("a",)],
        [("a", LayerProbeClassifier())],
        [("a", LayerwiseFeatureExtractor)],
        [("a", "nano")],
    ],
    ids=repr,
)
def test_what_is_no_list_of_named_extractors_is_refused(extractors, images):
    with pytest.raises(ValueError, match=r"is not a list of \(name, extractor\)"):
        BackboneStack(extractors).transform(images)


def test_names_must_differ(narrow):
    with pytest.raises(ValueError, match="not unique"):
        BackboneStack([("a", narrow), ("a", narrow)]).fit()


def test_parameters_of_parts_are_reached_by_name(narrow, wide, images):
    stack = BackboneStack([("narrow", narrow), ("wide", wide)])
    assert stack.get_params()["wide__layers"] == [-2, -1]
    changed = clone(stack).set_params(wide__layers="last", narrow__tokens="cls")
    assert changed.transform(images).shape == (5, 2, 128)
    assert stack.get_params()["wide__layers"] == [-2, -1]
    replaced = clone(stack).set_params(narrow=clone(wide))
    assert replaced.transform(images).shape == (5, 4, 128)


def test_pickle_is_small_and_hash_depends_on_parameters_only(narrow, wide, images):
    stack = BackboneStack([("narrow", narrow), ("wide", wide)])
    before = joblib.hash(stack)
    expected = stack.fit_transform(images)
    assert joblib.hash(stack) == joblib.hash(clone(stack)) == before
    assert len(pickle.dumps(stack)) < 20_000
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(stack)).transform(images), expected)


@pytest.fixture(scope="module")
def labelled(rng_images):
    return rng_images


@pytest.fixture(scope="module")
def rng_images():
    rng = np.random.default_rng(0)
    y = np.repeat(["dark", "light"], 12)
    X = rng.integers(0, 130, (24, 32, 32, 3), dtype=np.uint8) + (100 * (y == "light"))[:, None, None, None].astype(
        np.uint8
    )
    return X, y


@pytest.mark.parametrize("classifier", CLASSIFIERS, ids=lambda classifier: type(classifier).__name__)
def test_every_classifier_learns_from_it(classifier, narrow, wide, labelled):
    X, y = labelled
    pipeline = make_pipeline(BackboneStack([("narrow", narrow), ("wide", wide)]), clone(classifier)).fit(X, y)
    assert pipeline.score(X, y) > 0.9
    assert pipeline[-1].n_layers_in_ == 3


@pytest.mark.parametrize("scaling", ["standard", "layer", "l2", None])
def test_zeros_do_not_change_what_probes_learn(narrow, wide, labelled, scaling):
    X, y = labelled
    alone = make_pipeline(clone(narrow), LayerProbeClassifier(scaling=scaling)).fit(X, y)
    stack = BackboneStack([("narrow", narrow), ("wide", wide)])
    beside = make_pipeline(stack, LayerProbeClassifier(0, scaling=scaling)).fit(X, y)
    np.testing.assert_allclose(beside.predict_proba(X), alone.predict_proba(X), atol=1e-4)


def test_search_over_the_layers_of_a_part(narrow, wide, labelled):
    X, y = labelled
    pipeline = make_pipeline(BackboneStack([("narrow", narrow), ("wide", wide)]), LayerProbeClassifier())
    search = GridSearchCV(pipeline, {"backbonestack__wide__layers": ["last", "all"]}, cv=2, error_score="raise")
    assert search.fit(X, y).best_score_ > 0.5


@pytest.mark.parametrize("transform", ["pandas", "default"])
def test_output_setting_does_not_break_a_pipeline(narrow, wide, labelled, transform):
    X, y = labelled
    pipeline = make_pipeline(BackboneStack([("narrow", narrow), ("wide", wide)]), LayerProbeClassifier())
    assert pipeline.set_output(transform=transform).fit(X, y).predict(X).shape == y.shape


def test_stacks_may_be_nested(narrow, wide, images):
    inner = BackboneStack([("narrow", narrow)])
    stack = BackboneStack([("inner", inner), ("wide", wide)]).fit(images)
    assert stack.layer_names_ == ["inner_narrow_block5", "wide_block10", "wide_block11"]
    flat = BackboneStack([("narrow", narrow), ("wide", wide)])
    np.testing.assert_array_equal(stack.transform(images), flat.transform(images))
