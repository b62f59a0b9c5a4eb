"""What VFusion learns from the layers' probes: their say in the prediction, and how large each layer comes in."""

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal
from scipy.special import log_softmax, softmax
from sklearn.metrics import log_loss

import skvfusion
from skvfusion import LayerProbeClassifier, LayerVotingClassifier, SuperLearnerClassifier, VFusionClassifier
from skvfusion.fusion import cross_fitting
from skvfusion.fusion.emphasis import EMPHASES, nearness, strongest_emphasis
from skvfusion.fusion.encoder import EncoderClassifier

FAST = {"max_epochs": 5, "hidden": 16, "latent_dim": 8}
ALONE = {"probe_share": 0, "layer_emphasis": 0}


def test_all_share_to_the_probes_is_their_mean_and_the_super_learner(make_stack):
    X, y = make_stack()
    fused = VFusionClassifier(probe_share=1, random_state=0, **FAST).fit(X, y)
    probes = LayerVotingClassifier(scaling="token").fit(X, y).probes_.logits(X[:, :, None])
    mean = log_softmax(fused.logit_scale_ * np.einsum("nlc,l->nc", probes, fused.layer_weights_), axis=1)
    learner = SuperLearnerClassifier("logit", random_state=0).fit(X, y)
    assert_array_equal(fused.super_learner_.layer_weights_, learner.layer_weights_)
    expected = softmax((2 * mean + learner.predict_log_proba(X)) / 3, axis=1)
    assert_allclose(fused.predict_proba(X), expected, atol=1e-9)


def test_the_probes_are_as_sure_as_samples_they_have_not_seen_allow(make_stack):
    X, y = make_stack()
    fused = VFusionClassifier(random_state=0, **FAST).fit(X, y)
    unseen = np.log(SuperLearnerClassifier(scaling="token", random_state=0).fit(X, y).oof_proba_)
    mean = np.einsum("nlc,l->nc", unseen, fused.layer_weights_)
    losses = {
        scale: log_loss(y, softmax(scale * fused.logit_scale_ * mean, axis=1), labels=fused.classes_)
        for scale in (0.9, 1, 1.1)
    }
    assert min(losses, key=losses.get) == 1


def test_without_share_and_emphasis_it_is_the_encoder_and_fits_no_probes(make_stack):
    X, y = make_stack()
    fused = VFusionClassifier(random_state=0, **ALONE, **FAST).fit(X, y)
    assert_array_equal(fused.predict_proba(X), EncoderClassifier(random_state=0, **FAST).fit(X, y).predict_proba(X))
    assert (
        fused.super_learner_
        is fused.probes_
        is fused.layer_weights_
        is fused.logit_scale_
        is fused.layer_gains_
        is None
    )


def test_without_share_the_probes_are_not_kept(make_stack):
    X, y = make_stack()
    fused = VFusionClassifier(probe_share=0, random_state=0, **FAST).fit(X, y)
    assert fused.probes_ is None
    assert fused.layer_gains_.argmax() == 2


def test_without_emphasis_all_layers_count_alike(make_stack):
    X, y = make_stack()
    fused = VFusionClassifier(layer_emphasis=0, random_state=0, **FAST).fit(X, y)
    assert_allclose(fused.layer_weights_, np.full(6, 1 / 6))
    assert_allclose(fused.net_.module_.gain, np.ones(48))


@pytest.mark.parametrize("share", [0.3, 0.7])
def test_the_prediction_is_the_geometric_mean_of_encoder_and_probes(share, make_stack):
    X, y = make_stack()
    fused, encoder, probes = (
        VFusionClassifier(probe_share=each, random_state=0, **FAST).fit(X, y).predict_log_proba(X)
        for each in (share, 0, 1)
    )
    assert_allclose(fused, np.log(softmax((1 - share) * encoder + share * probes, axis=1)), atol=1e-9)


@pytest.mark.parametrize("scaling", ["layer", "standard", "token", "l2", None])
def test_a_layer_counts_more_the_better_its_probe(scaling, make_stack):
    X, y = make_stack(signal_layers=(2,))
    fused = VFusionClassifier(scaling=scaling, layer_emphasis=3, random_state=0, **FAST).fit(X, y)
    near = {}
    for each in ("token", scaling):
        learner = SuperLearnerClassifier(scaling=each, random_state=0).fit(X, y)
        near[each] = nearness(learner.cv_scores_.mean(axis=1), len(y))
    assert fused.layer_gains_.argmax() == 2
    assert_allclose(fused.layer_gains_ / fused.layer_gains_[2], near[scaling] ** 3)
    assert np.square(fused.layer_gains_).mean() == pytest.approx(1)
    assert fused.layer_weights_.sum() == pytest.approx(1)
    assert_allclose(fused.layer_weights_ / fused.layer_weights_[2], near["token"] ** 9)
    module = fused.net_.module_
    assert_allclose(module.gain.reshape(6, 8)[:, 0], fused.layer_gains_, rtol=1e-6)
    # The net multiplies by it: without, the same weights would give other latents.
    before = fused.transform(X)
    module.gain.fill_(1)
    assert not np.allclose(fused.transform(X), before)


def test_layers_whose_probes_are_equally_good_count_alike(rng):
    y = np.repeat([0, 1], 20)
    X = np.repeat(rng.normal(size=(40, 1, 8)) + y[:, None, None], 3, axis=1)
    fused = VFusionClassifier(random_state=0, **FAST).fit(X, y)
    assert_array_equal(fused.layer_gains_, np.ones(3))
    assert_allclose(fused.layer_weights_, np.full(3, 1 / 3))


def test_layers_within_a_standard_error_of_the_best_count_alike():
    # Of 100 samples at 90 %, the standard error is 3 points.
    assert_allclose(nearness(np.array([0.6, 0.88, 0.9]), 100), [0.63 / 0.9, 1, 1])
    assert_array_equal(nearness(np.zeros(2), 100), np.ones(2))


def test_the_strongest_emphasis_is_taken_unless_layers_complement_each_other(rng):
    codes = rng.integers(0, 4, 400)
    logits = rng.normal(size=(400, 3, 4))
    logits[:, 2] += 3 * np.eye(4)[codes]
    accuracy = (logits.argmax(axis=2) == codes[:, None]).mean(axis=0)
    weight = np.ones(400)
    assert strongest_emphasis(logits, codes, weight, nearness(accuracy, 400)) == max(EMPHASES)
    # Layer 0 tells the first two classes from the others, layer 1, a little better, the even from the odd.
    logits[:, 2] = rng.normal(size=(400, 4))
    logits[:, 0] += 3 * ((np.arange(4) < 2) == (codes < 2)[:, None])
    logits[:, 1] += 5 * (np.arange(4) % 2 == (codes % 2)[:, None])
    accuracy = np.array([0.44, 0.56, 0.25])
    assert strongest_emphasis(logits, codes, weight, nearness(accuracy, 400)) < max(EMPHASES)


def test_an_emphasis_that_is_given_is_taken(make_stack):
    X, y = make_stack()
    for emphasis in (0, 2.5):
        assert VFusionClassifier(layer_emphasis=emphasis, random_state=0, **FAST).fit(X, y).layer_emphasis_ == emphasis
    assert VFusionClassifier(random_state=0, **FAST).fit(X, y).layer_emphasis_ in EMPHASES


def test_the_probes_do_not_mind_the_size_of_a_token(make_stack):
    X, y = make_stack()
    fused = VFusionClassifier(probe_share=1, random_state=0, **FAST).fit(X, y)
    fused.super_learner_ = None
    assert_allclose(fused.predict_proba(3 * X), fused.predict_proba(X), atol=1e-4)


@pytest.mark.parametrize("dim", [1, 2])
def test_tokens_that_a_layer_norm_would_erase_are_read_as_they_are(dim, rng):
    y = np.repeat([0, 1], 30)
    X = rng.normal(size=(60, 3, dim)) + 4 * y[:, None, None]
    fused = VFusionClassifier(probe_share=1, random_state=0, **FAST).fit(X, y)
    assert fused.score(X, y) > 0.95


def test_of_one_layer_nothing_is_combined(make_stack):
    X, y = make_stack()
    fused = VFusionClassifier(layers=[2], random_state=0, **FAST).fit(X, y)
    probe = LayerProbeClassifier(2, "mlp", random_state=0, **FAST).fit(X, y)
    assert_array_equal(fused.predict_proba(X), probe.predict_proba(X))
    assert fused.probes_ is None


@pytest.mark.parametrize(
    ("labels", "groups"), [([0, 0, 1], None), ([0, 1, 2], None), ([0, 0, 1, 1], [5, 5, 5, 5])], ids=str
)
def test_what_cannot_be_cross_fitted_counts_all_layers_alike(labels, groups, rng):
    X = rng.normal(size=(len(labels), 4, 8))
    fused = VFusionClassifier(random_state=0, **FAST).fit(X, labels, groups=groups)
    assert_array_equal(fused.layer_weights_, np.full(4, 0.25))
    assert_array_equal(fused.layer_gains_, np.ones(4))
    assert_allclose(fused.predict_proba(X).sum(axis=1), 1)


def test_samples_of_a_group_are_never_parted(rng):
    # Pairs of equal images with random labels: cross-fitted across pairs, every layer seems to know them by heart.
    y = np.repeat(rng.integers(0, 2, 30), 2)
    X = np.repeat(rng.normal(size=(30, 3, 40)), 2, axis=0)
    parted = VFusionClassifier(random_state=0, **FAST).fit(X, y)
    kept = VFusionClassifier(random_state=0, **FAST).fit(X, y, groups=np.repeat(np.arange(30), 2))
    assert kept.logit_scale_ < 0.2 * parted.logit_scale_


def test_the_super_learner_predicts(make_stack):
    X, y = make_stack()
    fused = VFusionClassifier(layers=[1, 2, 4], random_state=0, **FAST).fit(X, y)
    learner = SuperLearnerClassifier("logit", layers=[1, 2, 4], random_state=0).fit(X, y)
    assert_array_equal(fused.super_learner_.predict_proba(X[:, fused.layers_]), learner.predict_proba(X))
    assert not hasattr(fused.super_learner_, "oof_proba_")


@pytest.mark.parametrize("size", [1e-6, 7, 1e300])
def test_the_scale_of_weights_says_nothing(size, make_stack):
    X, y = make_stack()
    one = VFusionClassifier(random_state=0, **FAST).fit(X, y).predict_proba(X)
    assert_allclose(
        VFusionClassifier(random_state=0, **FAST).fit(X, y, np.full(len(y), size)).predict_proba(X), one, atol=1e-4
    )


def test_many_samples_of_weight_0_are_not_many(make_stack):
    X, y = make_stack()
    rows = np.r_[np.arange(len(y)), np.zeros(5000, dtype=int)]
    weight = np.r_[np.ones(len(y)), np.zeros(5000)]
    fused = VFusionClassifier(random_state=0, **FAST).fit(X[rows], y[rows], weight)
    without = VFusionClassifier(random_state=0, **FAST).fit(X, y)
    assert fused.super_learner_.cv_scores_.shape == without.super_learner_.cv_scores_.shape == (6, 5)
    assert_allclose(fused.layer_gains_, without.layer_gains_)


def test_parameters_that_are_set_after_fit_change_nothing(make_stack):
    X, y = make_stack()
    fused = VFusionClassifier(random_state=0, **FAST).fit(X, y)
    before = fused.predict_proba(X)
    assert_array_equal(fused.set_params(probe_share=0, layer_emphasis=3).predict_proba(X), before)


def test_a_large_hold_out_leaves_a_group_to_train_on(rng):
    X, y = rng.normal(size=(5200, 2, 3)).astype(np.float32), np.arange(5200) % 3
    fused = VFusionClassifier(random_state=0, max_epochs=1, hidden=4, latent_dim=3, validation_fraction=0.9)
    assert fused.fit(X, y, groups=np.arange(5200) % 2).super_learner_.cv_scores_.shape == (2, 1)


def test_many_samples_are_held_out_once(monkeypatch, rng):
    sizes = []
    make_splits = cross_fitting.make_splits

    def noting(*args):
        splits = make_splits(*args)
        sizes.append([len(test) for _, test in splits])
        return splits

    monkeypatch.setattr(cross_fitting, "make_splits", noting)
    for n in (4999, 5000):
        X, y = rng.normal(size=(n, 2, 3)).astype(np.float32), rng.integers(0, 2, n)
        VFusionClassifier(random_state=0, max_epochs=1, hidden=4, latent_dim=3).fit(X, y)
    assert [len(each) for each in sizes] == [5, 5, 1, 1]
    assert sizes[2] == [500]


def test_a_sample_of_weight_0_counts_as_absent(make_stack):
    X, y = make_stack()
    weight = np.ones(len(y))
    weight[::7] = 0
    fused = VFusionClassifier(random_state=0, **FAST).fit(X, y, sample_weight=weight)
    without = VFusionClassifier(random_state=0, **FAST).fit(X[weight > 0], y[weight > 0])
    assert_allclose(fused.layer_weights_, without.layer_weights_, atol=1e-4)


def test_bits_do_not_depend_on_threads(make_stack):
    X, y = make_stack()
    n_threads = torch.get_num_threads()
    found = []
    try:
        for n in (1, 2):
            torch.set_num_threads(n)
            found.append(VFusionClassifier(random_state=0, **FAST).fit(X, y).predict_proba(X))
    finally:
        torch.set_num_threads(n_threads)
    assert_array_equal(*found)


@pytest.mark.parametrize("dtype", [np.float16, np.float64])
def test_a_read_only_memory_map_gives_what_the_array_gives(dtype, make_stack, tmp_path):
    X, y = make_stack()
    np.save(tmp_path / "X.npy", X.astype(dtype))
    mapped = np.load(tmp_path / "X.npy", mmap_mode="r")
    fits = [VFusionClassifier(random_state=0, **FAST).fit(each, y) for each in (mapped, np.array(mapped))]
    assert_array_equal(*(fitted.predict_proba(X) for fitted in fits))


def test_a_model_file_has_the_probes(make_stack, tmp_path):
    X, y = make_stack()
    fitted = VFusionClassifier(random_state=0, **FAST).fit(X, y)
    skvfusion.save(fitted, tmp_path / "model.skops")
    loaded = skvfusion.load(tmp_path / "model.skops")
    assert_array_equal(loaded.predict_proba(X), fitted.predict_proba(X))
    assert_array_equal(loaded.layer_weights_, fitted.layer_weights_)


@pytest.mark.parametrize(("parameter", "value"), [("probe_share", 1.5), ("probe_share", -1), ("layer_emphasis", -1)])
def test_impossible_shares_are_refused(parameter, value, make_stack):
    with pytest.raises(ValueError, match=f"The '{parameter}' parameter of VFusionClassifier must"):
        VFusionClassifier(**{parameter: value}).fit(*make_stack())
