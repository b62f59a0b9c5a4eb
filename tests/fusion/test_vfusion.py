import numpy as np
import pandas as pd
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from skorch.callbacks import Callback
from torch import nn

from skvfusion import LayerProbeClassifier, VFusionClassifier
from skvfusion.fusion.encoder import ACTIVATIONS, VFusionNet
from skvfusion.training.losses import PENALTIES

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
    fitted = VFusionClassifier(**FAST, probe_share=0).fit(X, y)
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


def test_names_need_a_fit():
    with pytest.raises(NotFittedError):
        VFusionClassifier().get_feature_names_out()


def test_transform_names_its_features_in_a_pipeline(make_stack):
    X, y = make_stack()
    pipeline = make_pipeline(StandardScaler(), VFusionClassifier(n_layers=6, **FAST)).set_output(transform="pandas")
    table = pd.DataFrame(X.reshape(60, -1), index=np.arange(60) + 100).add_prefix("feature")
    frame = pipeline.fit(table, y).transform(table)
    assert list(frame.columns) == list(pipeline.get_feature_names_out()) == [f"vfusionclassifier{i}" for i in range(8)]
    assert list(frame.index) == list(table.index)


def test_the_latent_feeds_another_classifier(make_stack):
    X, y = make_stack()
    pipeline = make_pipeline(VFusionClassifier(**FAST), LogisticRegression()).set_output(transform="pandas").fit(X, y)
    assert list(pipeline[-1].feature_names_in_) == list(pipeline[0].get_feature_names_out())
    assert pipeline.score(X, y) > 0.8


def test_transform_does_not_mind_underflow(make_stack):
    X, y = make_stack()
    X = X.astype(np.float64)
    X[:, :, 0] = 1e-300
    with np.errstate(all="raise"):
        fitted = VFusionClassifier(**FAST).fit(X, y)
        assert np.isfinite(fitted.transform(X)).all()
        assert np.isfinite(fitted.latent_correlation(X)).all()


def test_latent_correlation_is_numpys(make_stack):
    X, y = make_stack()
    fitted = VFusionClassifier(**FAST).fit(X, y)
    expected = np.corrcoef(fitted.transform(X), rowvar=False)
    correlation = fitted.set_output(transform="pandas").latent_correlation(X)
    assert correlation.shape == (8, 8)
    assert correlation.dtype == np.float64
    assert_allclose(correlation, expected, atol=1e-12)
    assert_array_equal(np.diag(correlation), 1)
    assert_array_equal(correlation, correlation.T)


@pytest.mark.parametrize("layer_norm", [("hidden", "latent"), ()])
def test_a_constant_latent_correlates_with_nothing(layer_norm, make_stack):
    X, y = make_stack()
    fitted = VFusionClassifier(layer_norm=layer_norm, **FAST).fit(X, y)
    assert_array_equal(fitted.latent_correlation(np.repeat(X[:1], 30, axis=0)), np.eye(8))


def test_a_constant_latent_dimension_correlates_with_nothing(make_stack):
    X, y = make_stack()
    fitted = VFusionClassifier(layer_norm=(), **FAST).fit(X, y)
    last = [module for module in fitted.net_.module_.encoder if hasattr(module, "weight")][-1]
    with torch.no_grad():
        last.weight[:, 3] = 0
    correlation = fitted.latent_correlation(X)
    assert_array_equal(correlation[3], np.eye(8)[3])
    assert np.count_nonzero(correlation) == 7 * 7 + 1


def test_latent_correlation_needs_two_samples_and_a_fit(make_stack):
    X, y = make_stack()
    with pytest.raises(NotFittedError):
        VFusionClassifier().latent_correlation(X)
    fitted = VFusionClassifier(**FAST).fit(X, y)
    assert fitted.latent_correlation(X[:2]).shape == (8, 8)
    with pytest.raises(ValueError, match="A correlation needs at least 2 samples; X has 1"):
        fitted.latent_correlation(X[:1])


@pytest.mark.parametrize(("kind", "weight"), [("correlation", 10), ("cosine", 10), ("covariance", 0.7), ("decov", 0.1)])
def test_penalty_falls_on_the_latent(kind, weight, make_stack):
    X, y = make_stack(n_per_class=60, n_classes=6, signal_layers=(1, 3))
    penalties, accuracies = [], []
    for orthogonality in (0, weight):
        fitted = VFusionClassifier(
            hidden=64,
            latent_dim=16,
            orthogonality=orthogonality,
            orthogonality_kind=kind,
            max_epochs=30,
            random_state=0,
        ).fit(X, y)
        penalties.append(PENALTIES[kind](torch.from_numpy(fitted.transform(X))).item())
        accuracies.append(fitted.score(X, y))
    assert penalties[1] < 0.3 * penalties[0]
    assert min(accuracies) > 0.9


def test_without_weight_the_kind_of_penalty_does_not_matter(make_stack):
    X, y = make_stack()
    first, *others = (
        VFusionClassifier(orthogonality=0, orthogonality_kind=kind, **FAST).fit(X, y).predict_proba(X)
        for kind in PENALTIES
    )
    for other in others:
        assert_array_equal(other, first)


def test_the_default_net_stays_what_it_was(make_stack):
    X, y = make_stack()
    fitted = VFusionClassifier(max_epochs=2, random_state=0).fit(X, y)
    # Files of earlier models are read by these names.
    assert [(name, tuple(tensor.shape)) for name, tensor in fitted.net_.module_.state_dict().items()] == [
        ("gain", (48,)),
        ("scaling.mean", (6, 1, 8)),
        ("scaling.divisor", (6, 1, 8)),
        ("encoder.0.weight", (48, 512)),
        ("encoder.0.bias", (512,)),
        ("encoder.4.weight", (512, 128)),
        ("encoder.4.bias", (128,)),
        ("head.weight", (128, 3)),
        ("head.bias", (3,)),
    ]
    spelled_out = VFusionClassifier(
        hidden=[512], activation="gelu", layer_norm=["latent", "hidden"], max_epochs=2, random_state=0
    )
    assert_array_equal(spelled_out.fit(X, y).predict_proba(X), fitted.predict_proba(X))


def layers_of(net):
    return [type(module).__name__.removeprefix("Seeded") for module in net.encoder]


def encoder(**params):
    shape = {"n_layers": 2, "n_tokens": 1, "dim": 5, "n_classes": 2, "scaling": None}
    return VFusionNet(**shape | {"hidden": 7, "latent_dim": 4, "dropout": 0.5, "seed": 0} | params)


@pytest.mark.parametrize(
    ("params", "expected"),
    [
        ({}, "Linear LayerNorm GELU Dropout Linear LayerNorm"),
        ({"layer_norm": ()}, "Linear GELU Dropout Linear"),
        ({"layer_norm": ("input",)}, "LayerNorm Linear GELU Dropout Linear"),
        ({"layer_norm": ("hidden",)}, "Linear LayerNorm GELU Dropout Linear"),
        ({"layer_norm": ("latent",)}, "Linear GELU Dropout Linear LayerNorm"),
        ({"hidden": [8, 6]}, "Linear LayerNorm GELU Dropout Linear LayerNorm GELU Dropout Linear LayerNorm"),
        ({"hidden": []}, "Linear LayerNorm"),
        ({"activation": "relu"}, "Linear LayerNorm ReLU Dropout Linear LayerNorm"),
        ({"activation": "silu"}, "Linear LayerNorm SiLU Dropout Linear LayerNorm"),
        ({"activation": "tanh"}, "Linear LayerNorm Tanh Dropout Linear LayerNorm"),
    ],
)
def test_the_encoder_is_built_as_asked(params, expected):
    net = encoder(**params)
    assert layers_of(net) == expected.split()
    assert net(torch.zeros(3, 2, 1, 5))[1].shape == (3, 4)
    assert all(module.weight is None for module in net.encoder if isinstance(module, nn.LayerNorm))


def test_hidden_layers_of_equal_width_drop_different_units():
    net = encoder(hidden=[50, 50])
    masks = [module.train()(torch.ones(4, 50)) for module in net.encoder if hasattr(module, "p")]
    assert len(masks) == 2
    assert not torch.equal(*masks)


@pytest.mark.parametrize(
    "params",
    [
        *({"activation": activation} for activation in ACTIVATIONS),
        {"hidden": (32, 16)},
        {"hidden": []},
        {"hidden": [np.int64(16)]},
        {"hidden": [2, 1], "layer_norm": []},
        {"latent_dim": 1, "layer_norm": ["hidden"]},
        {"layer_norm": ("input", "hidden", "latent")},
        {"layer_norm": ("input",), "scaling": None},
        {"layer_norm": ()},
        {"hidden": [], "layer_norm": (), "orthogonality_kind": "covariance"},
    ],
    ids=str,
)
def test_encoder_options_learn_and_clone(params, make_stack):
    X, y = make_stack(n_per_class=40, n_classes=2)
    given = VFusionClassifier(**FAST | {"max_epochs": 60, "lr": 5e-3} | params)
    before = {name: value[:] for name, value in params.items() if isinstance(value, list)}
    fitted = clone(given).fit(X, y)
    assert fitted.score(X, y) > 0.9
    assert_array_equal(given.fit(X, y).predict_proba(X), fitted.predict_proba(X))
    for name, value in params.items():
        assert getattr(given, name) is value
        assert value == before.get(name, value)


def test_activations_differ(make_stack):
    X, y = make_stack()
    outputs = [VFusionClassifier(activation=name, **FAST).fit(X, y).transform(X) for name in ACTIVATIONS]
    assert all(not np.allclose(outputs[0], other) for other in outputs[1:])


def test_a_linear_encoder_is_linear(make_stack):
    X, y = make_stack()
    fitted = VFusionClassifier(hidden=[], latent_dim=8, layer_norm=(), random_state=0, max_epochs=5).fit(X, y)
    middle = fitted.transform((X[:1] + X[1:2]) / 2)
    assert_allclose(middle, fitted.transform(X[:2]).mean(axis=0, keepdims=True), atol=1e-6)


def test_layer_norm_on_the_input_forgives_a_sample_its_scale(make_stack):
    X, y = make_stack()
    with_norm, without = (
        VFusionClassifier(scaling=None, layer_norm=positions, **FAST).fit(X, y) for positions in (("input",), ())
    )
    assert_allclose(with_norm.transform(5 * X), with_norm.transform(X), atol=1e-3)
    assert not np.allclose(without.transform(5 * X), without.transform(X), atol=0.1)


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"hidden": 2}, r"The 'hidden' parameter .* at least 3, or leave 'hidden' out of layer_norm. Got 2"),
        ({"hidden": [64, 2]}, r"The 'hidden' parameter .* at least 3, .* Got \[64, 2\]"),
        ({"hidden": [64, 0], "layer_norm": ()}, r"The 'hidden' parameter .* at least 1. Got"),
        ({"hidden": [64.0]}, r"The 'hidden' parameter .* integers"),
        ({"hidden": ["64"]}, r"The 'hidden' parameter .* integers"),
        ({"hidden": 0, "layer_norm": ()}, "The 'hidden' parameter"),
        ({"hidden": "64"}, "The 'hidden' parameter"),
        ({"latent_dim": 2}, "The 'latent_dim' parameter .* leave 'latent' out"),
        ({"latent_dim": 0, "layer_norm": ()}, "The 'latent_dim' parameter"),
        ({"latent_dim": [8]}, "The 'latent_dim' parameter"),
        ({"activation": "swish"}, "The 'activation' parameter"),
        ({"layer_norm": "hidden"}, "The 'layer_norm' parameter"),
        ({"layer_norm": None}, "The 'layer_norm' parameter"),
        ({"layer_norm": ("hidden", "output")}, r"The 'layer_norm' parameter .* \('input', 'hidden', 'latent'\)"),
        ({"layer_norm": [["hidden"]]}, "The 'layer_norm' parameter"),
        ({"orthogonality_kind": "cov"}, "The 'orthogonality_kind' parameter"),
    ],
)
def test_encoders_that_cannot_be_are_refused(params, message, make_stack):
    X, y = make_stack()
    with pytest.raises(ValueError, match=message):
        VFusionClassifier(**params).fit(X, y)


def test_layer_norm_would_erase_an_input_of_two_numbers(make_stack):
    X, y = make_stack()
    tiny = X[:, :2, :1]
    with pytest.raises(ValueError, match="has 'input', but a LayerNorm would erase the 2 numbers of a sample"):
        VFusionClassifier(layer_norm=("input", "latent"), **FAST).fit(tiny, y)
    assert VFusionClassifier(**FAST).fit(tiny, y).transform(tiny).shape == (60, 8)


def test_encoder_options_can_be_searched(make_stack):
    X, y = make_stack()
    grid = {"hidden": [16, [16, 8], []], "layer_norm": [(), ("hidden", "latent")]}
    search = GridSearchCV(VFusionClassifier(**FAST), grid, cv=2).fit(X, y)
    assert np.isfinite(search.cv_results_["mean_test_score"]).all()


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


@pytest.mark.parametrize(
    ("n_classes", "params"),
    [
        (2, {}),
        (6, {}),
        (10, {}),
        *((6, {"orthogonality_kind": kind}) for kind in ("cosine", "covariance", "decov")),
        *((6, {"activation": activation}) for activation in ("relu", "silu", "tanh")),
        (6, {"hidden": [256, 256], "layer_norm": ("input", "hidden", "latent")}),
        (6, {"hidden": [], "layer_norm": ()}),
    ],
)
def test_the_number_of_threads_does_not_change_a_bit(n_classes, params, make_stack):
    X, y = make_stack(n_per_class=40, n_classes=n_classes, dim=32)
    threads = torch.get_num_threads()
    probabilities = []
    try:
        for count in (1, 2):
            torch.set_num_threads(count)
            probabilities.append(VFusionClassifier(max_epochs=5, random_state=0, **params).fit(X, y).predict_proba(X))
    finally:
        torch.set_num_threads(threads)
    assert_array_equal(*probabilities)


def test_the_networks_weights_depend_on_its_seed_only(global_rngs_untouched):
    shape = {"n_layers": 2, "n_tokens": 1, "dim": 3, "n_classes": 2, "scaling": None}
    nets = [VFusionNet(**shape, hidden=4, latent_dim=5, dropout=0.5, seed=seed) for seed in (0, 0, 1)]
    weights = [torch.cat([p.flatten() for p in net.parameters()]) for net in nets]
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])
