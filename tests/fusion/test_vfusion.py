import numpy as np
import pandas as pd
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal
from skorch.callbacks import Callback

from skvfusion import LayerProbeClassifier, VFusionClassifier
from skvfusion.fusion.vfusion import VFusionNet
from skvfusion.training.losses import correlation_penalty

FAST = {"max_epochs": 15, "hidden": 32, "latent_dim": 8, "random_state": 0}


def test_on_the_last_layer_it_is_the_mlp_probe(make_stack):
    X, y = make_stack(n_per_class=30)
    fused = VFusionClassifier(layers=[-1], random_state=3, max_epochs=20).fit(X, y)
    probe = LayerProbeClassifier(layer=-1, probe="mlp", random_state=3, max_epochs=20).fit(X, y)
    assert_array_equal(fused.predict_proba(X), probe.predict_proba(X))


@pytest.mark.parametrize("layers", ["all", "second_half", "strided", "quarterly", [0, 2], -1, slice(1, 4)])
def test_selecting_layers_is_slicing_the_stack(layers, make_stack):
    X, y = make_stack()
    selected = VFusionClassifier(layers=layers, **FAST).fit(X, y)
    sliced = VFusionClassifier(**FAST).fit(X[:, selected.layers_], y)
    assert_array_equal(selected.predict_proba(X), sliced.predict_proba(X[:, selected.layers_]))


def test_unselected_layers_do_not_matter(make_stack):
    X, y = make_stack()
    fitted = VFusionClassifier(layers=[1, 2], **FAST).fit(X, y)
    changed = X.copy()
    changed[:, [0, 3, 4, 5]] = 99
    assert_array_equal(fitted.predict_proba(changed), fitted.predict_proba(X))


def test_layers_that_do_not_exist_are_refused(make_stack):
    X, y = make_stack()
    with pytest.raises(ValueError, match="Layer 6 does not exist: there are 6 layers"):
        VFusionClassifier(layers=[6]).fit(X, y)


def test_fuses_what_no_single_layer_knows(rng):
    y = rng.integers(0, 4, 400)
    X = rng.normal(size=(400, 4, 6)).astype(np.float32)
    X[:, 0, 0] += 6 * (y % 2)
    X[:, 2, 1] += 6 * (y // 2)
    train, test = slice(0, 300), slice(300, None)
    fused = VFusionClassifier(random_state=0, hidden=64, latent_dim=16).fit(X[train], y[train])
    layers = [LayerProbeClassifier(layer).fit(X[train], y[train]).score(X[test], y[test]) for layer in range(4)]
    assert fused.score(X[test], y[test]) > 0.95
    assert max(layers) < 0.65


def test_transform_is_the_latent_that_the_head_reads(make_stack):
    X, y = make_stack()
    fitted = VFusionClassifier(**FAST).fit(X, y)
    latent = fitted.transform(X)
    head = fitted.net_.module_.head
    logits = latent @ head.weight.detach().double().numpy() + head.bias.detach().double().numpy()
    assert latent.shape == (60, 8)
    assert_allclose(logits, fitted.decision_function(X), atol=1e-6)


def test_transform_has_names(make_stack):
    X, y = make_stack()
    fitted = VFusionClassifier(**FAST).set_output(transform="pandas").fit(X, y)
    frame = fitted.transform(X)
    assert isinstance(frame, pd.DataFrame)
    assert list(frame.columns) == [f"vfusionclassifier{i}" for i in range(8)]
    assert list(frame.columns) == list(fitted.set_params(latent_dim=4).get_feature_names_out())


def test_penalty_decorrelates_the_latent(make_stack):
    X, y = make_stack(n_per_class=60, n_classes=6, signal_layers=(1, 3))
    correlation = [
        float(
            correlation_penalty(
                torch.from_numpy(
                    VFusionClassifier(orthogonality=weight, random_state=0, latent_dim=16, max_epochs=60)
                    .fit(X, y)
                    .transform(X)
                )
            )
        )
        for weight in (0, 10)
    ]
    assert correlation[1] < 0.5 * correlation[0]


def test_history_has_a_row_per_epoch(make_stack):
    X, y = make_stack()
    fitted = VFusionClassifier(early_stopping=True, **FAST).fit(X, y)
    assert len(fitted.history_) == fitted.n_iter_
    assert {"epoch", "train_loss", "valid_loss", "dur"} <= set(fitted.history_.columns)
    assert fitted.history_["train_loss"].iloc[-1] < fitted.history_["train_loss"].iloc[0]
    assert "batches" not in fitted.history_


def test_early_stopping_keeps_the_best_epoch(make_stack):
    X, y = make_stack(n_per_class=40, strength=0.5)
    fitted = VFusionClassifier(early_stopping=True, patience=3, validation_fraction=0.3, random_state=0).fit(X, y)
    best = fitted.history_["valid_loss"].argmin()
    assert fitted.n_iter_ == best + 1 + 3 < 60
    again = VFusionClassifier(early_stopping=True, patience=100, validation_fraction=0.3, random_state=0).fit(X, y)
    assert again.n_iter_ == 60
    assert again.history_["valid_loss"].iloc[best] == fitted.history_["valid_loss"].iloc[best]


@pytest.mark.parametrize(("n_per_class", "held_out"), [(20, False), (1600, False), (1700, True)])
def test_early_stopping_auto_needs_enough_data(n_per_class, held_out, make_stack):
    X, y = make_stack(n_per_class=n_per_class)
    fitted = VFusionClassifier(**FAST | {"max_epochs": 2}).fit(X, y)
    assert ("valid_loss" in fitted.history_) == held_out


def test_early_stopping_by_force_refuses_what_cannot_be_split(make_stack):
    X, _ = make_stack()
    with pytest.raises(ValueError, match="early_stopping=True has nothing to hold out"):
        VFusionClassifier(early_stopping=True, **FAST).fit(X[:4], [0, 1, 2, 3])


@pytest.mark.parametrize("scaling", ["standard", "layer"])
def test_scaling_forgives_units(scaling, make_stack):
    X, y = make_stack()
    units = np.float32([1, 1e-3, 1e3, 1, 1e5, 1])[:, None]
    here, there = (VFusionClassifier(scaling=scaling, **FAST).fit(X * u, y).predict_proba(X * u) for u in (1, units))
    assert_allclose(here, there, atol=1e-3)


def test_constant_dimensions_are_harmless(make_stack):
    X, y = make_stack()
    X[:, :, -1] = 7
    X[:, 5] = 0
    for scaling in ("standard", "layer", "token"):
        assert np.isfinite(VFusionClassifier(scaling=scaling, **FAST).fit(X, y).predict_proba(X)).all()


class _Recorder(Callback):
    def __init__(self):
        self.epochs = 0

    def on_epoch_end(self, net, **kwargs):
        self.epochs += 1


class _Interrupt(Callback):
    def on_epoch_end(self, net, **kwargs):
        if len(net.history) == 5:
            raise KeyboardInterrupt


def test_skorch_callbacks_pass_through_unchanged(make_stack):
    X, y = make_stack()
    recorder = _Recorder()
    fitted = VFusionClassifier(callbacks=[("recorder", recorder)], **FAST).fit(X, y)
    assert dict(fitted.net_.callbacks_)["recorder"].epochs == 15
    assert recorder.epochs == 0


def test_an_interrupted_fit_keeps_what_it_has(make_stack):
    X, y = make_stack()
    with pytest.warns(UserWarning, match="Training was interrupted in epoch 5 of 15"):
        fitted = VFusionClassifier(callbacks=[_Interrupt()], **FAST).fit(X, y)
    assert fitted.n_iter_ == 5
    assert fitted.predict(X).shape == (60,)


def test_verbose_prints_and_default_is_silent(make_stack, capsys):
    X, y = make_stack()
    VFusionClassifier(**FAST).fit(X, y)
    assert capsys.readouterr() == ("", "")
    VFusionClassifier(verbose=1, **FAST).fit(X, y)
    assert "train_loss" in capsys.readouterr().out


@pytest.mark.parametrize("n_classes", [2, 6, 10])
def test_the_number_of_threads_does_not_change_a_bit(n_classes, make_stack):
    X, y = make_stack(n_per_class=40, n_classes=n_classes, dim=32)
    threads = torch.get_num_threads()
    probabilities = []
    try:
        for count in (1, 2):
            torch.set_num_threads(count)
            probabilities.append(VFusionClassifier(max_epochs=5, random_state=0).fit(X, y).predict_proba(X))
    finally:
        torch.set_num_threads(threads)
    assert_array_equal(*probabilities)


def test_the_networks_weights_depend_on_its_seed_only(global_rngs_untouched):
    shape = {"n_layers": 2, "n_tokens": 1, "dim": 3, "n_classes": 2, "scaling": None}
    nets = [VFusionNet(**shape, hidden=4, latent_dim=5, dropout=0.5, seed=seed) for seed in (0, 0, 1)]
    weights = [torch.cat([p.flatten() for p in net.parameters()]) for net in nets]
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])
