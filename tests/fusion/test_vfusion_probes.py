"""What VFusion learns from the layers' probes: their say in the prediction, and how large each layer comes in."""

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal
from scipy.special import softmax

import skvfusion
from skvfusion import LayerProbeClassifier, SuperLearnerClassifier, VFusionClassifier
from skvfusion.fusion import cross_fitting
from skvfusion.fusion.encoder import EncoderClassifier

FAST = {"max_epochs": 5, "hidden": 16, "latent_dim": 8}
ALONE = {"probe_share": 0, "layer_emphasis": 0}


def test_all_share_to_the_probes_is_the_super_learner_of_logits(make_stack):
    X, y = make_stack()
    fused = VFusionClassifier(probe_share=1, random_state=0, **FAST).fit(X, y)
    learner = SuperLearnerClassifier("logit", random_state=0).fit(X, y)
    assert_allclose(fused.predict_proba(X), learner.predict_proba(X), atol=1e-12)
    assert_array_equal(fused.layer_weights_, learner.layer_weights_)
    assert fused.logit_scale_ == learner.logit_scale_


def test_without_share_and_emphasis_it_is_the_encoder_and_fits_no_probes(make_stack):
    X, y = make_stack()
    fused = VFusionClassifier(random_state=0, **ALONE, **FAST).fit(X, y)
    assert_array_equal(fused.predict_proba(X), EncoderClassifier(random_state=0, **FAST).fit(X, y).predict_proba(X))
    assert fused.probes_ is fused.layer_weights_ is fused.logit_scale_ is fused.layer_gains_ is None


def test_what_is_switched_off_is_not_kept(make_stack):
    X, y = make_stack()
    emphasis = VFusionClassifier(probe_share=0, random_state=0, **FAST).fit(X, y)
    assert emphasis.probes_ is emphasis.layer_weights_ is emphasis.logit_scale_ is None
    assert emphasis.layer_gains_.shape == (6,)
    share = VFusionClassifier(layer_emphasis=0, random_state=0, **FAST).fit(X, y)
    assert share.layer_gains_ is None
    assert share.probes_ is not None


@pytest.mark.parametrize("share", [0.3, 0.7])
def test_the_prediction_is_the_geometric_mean_of_encoder_and_probes(share, make_stack):
    X, y = make_stack()
    fused, encoder, probes = (
        VFusionClassifier(probe_share=each, random_state=0, **FAST).fit(X, y).predict_log_proba(X)
        for each in (share, 0, 1)
    )
    assert_allclose(fused, np.log(softmax((1 - share) * encoder + share * probes, axis=1)), atol=1e-9)


@pytest.mark.parametrize("scaling", ["layer", "standard", "token", "l2", None])
def test_a_layer_comes_in_larger_the_better_its_probe(scaling, make_stack):
    X, y = make_stack(signal_layers=(2,))
    fused = VFusionClassifier(scaling=scaling, layer_emphasis=3, random_state=0, **FAST).fit(X, y)
    learner = SuperLearnerClassifier("logit", scaling=scaling, random_state=0).fit(X, y)
    accuracy = learner.cv_scores_.mean(axis=1)
    assert fused.layer_gains_.argmax() == 2
    assert_allclose(fused.layer_gains_ / fused.layer_gains_[2], (accuracy / accuracy[2]) ** 3)
    assert np.square(fused.layer_gains_).mean() == pytest.approx(1)
    # The net multiplies by them: without, the same weights would give other latents.
    module = fused.net_.module_
    assert_allclose(module.gain.reshape(6, 8)[:, 0], fused.layer_gains_, rtol=1e-6)
    before = fused.transform(X)
    module.gain.fill_(1)
    assert not np.allclose(fused.transform(X), before)


def test_layers_whose_probes_are_equally_good_come_in_alike(rng):
    y = np.repeat([0, 1], 20)
    X = np.repeat(rng.normal(size=(40, 1, 8)) + y[:, None, None], 3, axis=1)
    fused = VFusionClassifier(random_state=0, **FAST).fit(X, y)
    assert_array_equal(fused.layer_gains_, np.ones(3))


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
    assert fused.layer_gains_ is None
    assert_allclose(fused.predict_proba(X).sum(axis=1), 1)


def test_samples_of_a_group_are_never_parted(rng):
    # Pairs of equal images with random labels: cross-fitted across pairs, every layer seems to know them by heart.
    y = np.repeat(rng.integers(0, 2, 30), 2)
    X = np.repeat(rng.normal(size=(30, 3, 40)), 2, axis=0)
    parted = VFusionClassifier(random_state=0, **FAST).fit(X, y)
    kept = VFusionClassifier(random_state=0, **FAST).fit(X, y, groups=np.repeat(np.arange(30), 2))
    assert kept.logit_scale_ < 0.2 * parted.logit_scale_


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
    assert [len(each) for each in sizes] == [5, 1]
    assert sizes[1] == [500]


def test_a_sample_of_weight_0_counts_as_absent(make_stack):
    X, y = make_stack()
    weight = np.ones(len(y))
    weight[::7] = 0
    fused = VFusionClassifier(random_state=0, **FAST).fit(X, y, sample_weight=weight)
    without = VFusionClassifier(random_state=0, **FAST).fit(X[weight > 0], y[weight > 0])
    assert_allclose(fused.layer_weights_, without.layer_weights_, atol=1e-4)
    assert_allclose(fused.layer_gains_, without.layer_gains_)


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
