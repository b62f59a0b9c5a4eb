import numpy as np
import pytest

from skvfusion import AttentionDisplay, AttentiveFusionClassifier, LayerProbeClassifier

pytestmark = pytest.mark.usefixtures("one_thread")


def fit(X, y, layers="all"):
    return AttentiveFusionClassifier(layers=layers, max_epochs=1, min_steps=3, random_state=0).fit(X, y)


@pytest.fixture
def two_tokens(make_stack):
    X, y = make_stack(n_layers=6)
    return np.stack([X, X[::-1]], axis=2), y


def texts(labels):
    return [label.get_text() for label in labels]


def test_a_row_for_each_data_set_the_tokens_side_by_side():
    display = AttentionDisplay({"pets": [[0.1, 0.2], [0.3, 0.4]], "cars": [[0.0, 0.1], [0.5, 0.4]]}, layers=[5, 11])
    (image,) = display.plot().ax_.get_images()
    assert image.get_array().tolist() == [[0.1, 0.3, 0.2, 0.4], [0.0, 0.5, 0.1, 0.4]]
    assert texts(display.ax_.get_yticklabels()) == ["pets", "cars"]
    assert texts(display.ax_.get_xticklabels()) == ["5", "11", "5", "11"]
    assert texts(display.ax_.texts) == ["CLS", "mean"]
    assert image.get_clim() == (0, 0.5)


def test_one_token_needs_no_heading():
    display = AttentionDisplay({"pets": [0.1, 0.9]}).plot()
    assert texts(display.ax_.texts) == []
    assert display.ax_.get_images()[0].get_array().tolist() == [[0.1, 0.9]]


@pytest.mark.parametrize(
    ("tokens", "expected"), [(None, ["token 0", "token 1", "token 2"]), (["a", "b", "c"], ["a", "b", "c"])]
)
def test_more_kinds_of_token_are_numbered_unless_named(tokens, expected):
    assert texts(AttentionDisplay({"pets": np.full((2, 3), 1 / 6)}, tokens=tokens).plot().ax_.texts) == expected


def test_names_of_another_number_of_tokens_raise():
    with pytest.raises(ValueError, match="tokens names 1 kinds of token, but there are 2"):
        AttentionDisplay({"pets": np.full((2, 2), 0.25)}, tokens=["CLS"]).plot()


def test_where_layers_are_labelled_sparsely_blocks_do_not_run_into_each_other():
    display = AttentionDisplay({"pets": np.full((24, 2), 1 / 48)}).plot()
    assert 23 in display.ax_.get_xticks()
    assert 24 not in display.ax_.get_xticks()
    assert 47 in display.ax_.get_xticks()


def test_from_estimator_averages_over_images_and_heads(two_tokens):
    X, y = two_tokens
    clf = fit(X, y, layers=[1, 3, 5])
    display = AttentionDisplay.from_estimator(clf, X)
    (attention,) = display.attention.values()
    assert attention == pytest.approx(clf.attention_weights(X).mean(axis=(0, 1)))
    assert attention.sum() == pytest.approx(1)
    assert display.layers == [1, 3, 5]
    assert texts(display.ax_.get_yticklabels()) == ["AttentiveFusionClassifier"]


def test_one_classifier_looks_at_several_data_sets(two_tokens):
    X, y = two_tokens
    clf = fit(X, y)
    display = AttentionDisplay.from_estimator(clf, {"first": X[:30], "second": X[30:]})
    assert display.attention["second"] == pytest.approx(clf.attention_weights(X[30:]).mean(axis=(0, 1)))
    assert texts(display.ax_.get_yticklabels()) == ["first", "second"]


def test_each_data_set_may_have_a_classifier_of_its_own(make_stack):
    sets = {"first": make_stack(seed=0), "second": make_stack(seed=1)}
    fitted = {name: fit(*data) for name, data in sets.items()}
    display = AttentionDisplay.from_estimator(fitted, {name: X for name, (X, _) in sets.items()})
    expected = fitted["second"].attention_weights(sets["second"][0]).mean(axis=(0, 1))
    assert display.attention["second"] == pytest.approx(expected)
    assert display.attention["second"].shape == (6,)


def test_names_that_differ_raise(two_tokens):
    X, y = two_tokens
    clf = fit(X, y)
    with pytest.raises(ValueError, match=r"\['a'\] but the data sets \['b'\]"):
        AttentionDisplay.from_estimator({"a": clf}, {"b": X})


def test_classifiers_of_different_layers_raise(two_tokens):
    X, y = two_tokens
    fitted = {"a": fit(X, y, layers=[0, 1]), "b": fit(X, y, layers=[0, 2])}
    with pytest.raises(ValueError, match="different layers"):
        AttentionDisplay.from_estimator(fitted, {"a": X, "b": X})


def test_classifiers_without_attention_raise(make_stack):
    X, y = make_stack()
    with pytest.raises(TypeError, match="LayerProbeClassifier has no attention; pass a fitted Attentive"):
        AttentionDisplay.from_estimator(LayerProbeClassifier().fit(X, y), X)
