import copy
import pickle

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal
from torch import nn
from torch.nn import functional as F

from skvfusion import AttentiveFusionClassifier
from skvfusion.fusion import attentive
from skvfusion.fusion.attentive import AttentiveFusionNet, BatchNorm, Jitter

FAST = {"min_steps": 60, "max_epochs": 15, "lr": 0.01, "random_state": 0}
SHAPES = [
    pytest.param((6, 1, 12, 3), "auto", id="cls"),
    pytest.param((3, 2, 12, 5), "auto", id="cls+mean"),
    pytest.param((4, 1, 10, 3), 3, id="dim is no multiple of heads"),
    pytest.param((2, 1, 4, 2), 6, id="more heads than dim"),
    pytest.param((1, 1, 8, 3), "auto", id="one token"),
]


def make_net(shape, n_heads="auto", dropout=0.0, jitter=0.0, jitter_probability=0.5, seed=0, scaling="l2"):
    n_layers, n_tokens, dim, n_classes = shape
    n_heads = n_layers * n_tokens if n_heads == "auto" else n_heads
    return AttentiveFusionNet(
        n_layers, n_tokens, dim, n_classes, scaling, n_heads, dropout, jitter, jitter_probability, seed
    )


def make_batch(shape, n=16, dtype=torch.float64):
    rng = np.random.default_rng(1)
    return torch.from_numpy(rng.normal(size=(n, *shape[:3]))).to(dtype), torch.from_numpy(
        rng.integers(shape[3], size=n)
    )


class Mask(nn.Module):
    """Dropout with a given mask."""

    def __init__(self, mask):
        super().__init__()
        self.mask = mask

    def forward(self, x):
        return x * self.mask.to(x.dtype)


class Textbook(nn.Module):
    """The head as in the paper: keys and values of every token, by torch's own operations."""

    def __init__(self, net, dropout):
        super().__init__()
        self.n_heads, dim, self.head_dim = net.query_weight.shape
        width = self.n_heads * self.head_dim
        self.query = nn.Parameter(net.query.detach()[None, None].clone())
        self.norm_q, self.norm_k, self.norm_v = (nn.LayerNorm(dim) for _ in range(3))
        self.to_q, self.to_k, self.to_v = (nn.Linear(dim, width, bias=False) for _ in range(3))
        self.dropout = dropout
        self.project = nn.Linear(width, dim)
        self.norm = nn.BatchNorm1d(dim)
        self.head = nn.Linear(dim, net.head.weight.shape[1])
        self.to(net.query.dtype)
        with torch.no_grad():
            for ours, theirs in self.shared(net):
                theirs.copy_(ours)

    def shared(self, net, of=lambda parameter: parameter):
        """Pairs of our and the textbook's parameters (or what ``of`` makes of them) in the textbook's shapes."""
        flat = [(net.query_weight, self.to_q), (net.key_weight, self.to_k), (net.value_weight, self.to_v)]
        linear = [(net.projection, self.project), (net.head, self.head)]
        return [
            (of(net.query), of(self.query)[0, 0]),
            (of(net.query_gain), of(self.norm_q.weight)),
            (of(net.query_shift), of(self.norm_q.bias)),
            (of(net.key_gain), of(self.norm_k.weight)),
            (of(net.value_gain), of(self.norm_v.weight)),
            (of(net.value_shift), of(self.norm_v.bias)),
            *((of(weight).transpose(1, 2).flatten(0, 1), of(layer.weight)) for weight, layer in flat),
            *((of(mine.weight).T, of(layer.weight)) for mine, layer in linear),
            *((of(mine.bias), of(layer.bias)) for mine, layer in linear),
            (of(net.norm.gain), of(self.norm.weight)),
            (of(net.norm.shift), of(self.norm.bias)),
        ]

    def forward(self, X):
        X = F.normalize(X.flatten(1, 2), dim=-1)
        by_head = lambda x: x.unflatten(-1, (self.n_heads, self.head_dim)).transpose(1, 2)  # noqa: E731
        q = by_head(self.to_q(self.norm_q(self.query))).expand(len(X), -1, -1, -1)
        k, v = by_head(self.to_k(self.norm_k(X))), by_head(self.to_v(self.norm_v(X)))
        attention = (self.head_dim**-0.5 * q @ k.transpose(-1, -2)).softmax(-1)
        pooled = self.dropout(attention.squeeze(2)).unsqueeze(2) @ v
        return self.head(self.norm(self.project(pooled.transpose(1, 2).flatten(1)))), attention.squeeze(2)


def both_forms(shape, n_heads, masked, dtype):
    """Our net and the textbook's with the same parameters, all of which are somewhere in the middle of a training."""
    net = make_net(shape, n_heads).to(dtype)
    rng = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=rng))
    if masked:
        tokens = shape[0] * shape[1]
        mask = torch.rand(16, net.query_weight.shape[0], tokens, generator=rng) < 0.7
        net.attention_dropout = Mask(mask / 0.7)
    textbook = Textbook(net, copy.deepcopy(net.attention_dropout))
    return net, textbook


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-10)], ids=str)
@pytest.mark.parametrize("masked", [False, True], ids=["all attention", "attention dropped"])
@pytest.mark.parametrize(("shape", "n_heads"), SHAPES)
def test_it_is_the_textbook_form_in_value_and_gradients(shape, n_heads, masked, dtype, tolerance):
    net, textbook = both_forms(shape, n_heads, masked, dtype)
    X, y = make_batch(shape, dtype=dtype)
    close = {"atol": tolerance, "rtol": tolerance}
    for ours, theirs in zip(net(X), textbook(X), strict=True):
        torch.testing.assert_close(ours, theirs, **close)
    for form in (net, textbook):
        F.cross_entropy(form(X)[0], y).backward()
    for ours, theirs in textbook.shared(net, of=lambda parameter: parameter.grad):
        torch.testing.assert_close(ours, theirs, **close)
    # The one parameter we leave out.
    assert textbook.norm_k.bias.grad.abs().max() < tolerance
    if not masked:
        torch.testing.assert_close(net.eval()(X)[0], textbook.eval()(X)[0], **close)


def test_every_parameter_is_shared_but_the_keys_shift():
    net, textbook = both_forms((6, 1, 12, 3), "auto", False, torch.float64)
    counts = [sum(p.numel() for p in form.parameters()) for form in (net, textbook)]
    assert counts[0] == counts[1] - 12
    assert sum(ours.numel() for ours, _ in textbook.shared(net)) == counts[0]


def test_the_optimiser_takes_the_textbooks_path():
    shape = (4, 2, 12, 3)
    net, textbook = both_forms(shape, "auto", True, torch.float64)
    X, y = make_batch(shape)
    for form in (net, textbook):
        optimiser = torch.optim.AdamW(form.parameters(), lr=1e-3, weight_decay=0.1)
        for _ in range(30):
            optimiser.zero_grad()
            F.cross_entropy(form(X)[0], y).backward()
            optimiser.step()
    torch.testing.assert_close(net(X)[0], textbook(X)[0], atol=1e-6, rtol=1e-6)


def test_initial_values_are_torchs():
    net = make_net((4, 1, 64, 7), n_heads=4)
    head_dim = 32
    assert net.query_weight.shape == net.key_weight.shape == net.value_weight.shape == (4, 64, head_dim)
    for weight, fan_in in [
        (net.query_weight, 64),
        (net.key_weight, 64),
        (net.value_weight, 64),
        (net.projection.weight, 4 * head_dim),
        (net.head.weight, 64),
    ]:
        assert weight.abs().max() <= fan_in**-0.5
        assert weight.std().item() == pytest.approx((3 * fan_in) ** -0.5, rel=0.1)
    assert net.query.std().item() == pytest.approx(0.02, rel=0.3)
    for gain in (net.query_gain, net.key_gain, net.value_gain, net.norm.gain):
        assert (gain == 1).all()
    for shift in (net.query_shift, net.value_shift, net.norm.shift):
        assert (shift == 0).all()


@pytest.mark.parametrize(
    ("dim", "n_heads", "head_dim"), [(384, 24, 32), (768, 24, 64), (1024, 48, 42), (4, 9, 1), (1, 1, 2)]
)
def test_heads_are_twice_as_wide_as_usual_and_at_least_1(dim, n_heads, head_dim):
    assert make_net((2, 1, dim, 2), n_heads).query_weight.shape == (n_heads, dim, head_dim)


def test_the_networks_weights_depend_on_its_seed_only(global_rngs_untouched):
    nets = [make_net((2, 1, 3, 2), dropout=0.5, jitter=0.1, seed=seed) for seed in (0, 0, 1)]
    weights = [torch.cat([p.flatten() for p in net.parameters()]) for net in nets]
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])


@pytest.mark.parametrize("n", [2, 3, 50])
def test_batch_norm_is_torchs(n):
    ours, torchs = BatchNorm(5).double(), nn.BatchNorm1d(5).double()
    rng = torch.Generator().manual_seed(0)
    for _ in range(3):
        x = torch.randn(n, 5, generator=rng, dtype=torch.float64) * 3 + 1
        torch.testing.assert_close(ours(x), torchs(x), rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(ours.running_mean, torchs.running_mean)
    torch.testing.assert_close(ours.running_var, torchs.running_var)
    torch.testing.assert_close(ours.eval()(x), torchs.eval()(x))


def test_batch_norm_of_one_sample_uses_and_keeps_the_running_statistics():
    norm = BatchNorm(4)
    norm(torch.arange(12.0).reshape(3, 4))
    before = copy.deepcopy(norm.state_dict())
    x = torch.ones(1, 4)
    assert torch.equal(norm(x), copy.deepcopy(norm).eval()(x))
    assert all(torch.equal(norm.state_dict()[name], value) for name, value in before.items())


def test_jitter_hits_its_share_of_the_samples_with_its_strength(global_rngs_untouched):
    x = torch.ones(4000, 3, 10)
    out = Jitter(0.05, 0.3, seed=0)(x)
    noise = out - x
    hit = (noise != 0).flatten(1).any(1)
    assert hit.float().mean().item() == pytest.approx(0.3, abs=0.03)
    assert noise[hit].std().item() == pytest.approx(0.05, rel=0.02)
    assert noise[hit].mean().item() == pytest.approx(0, abs=1e-3)
    assert torch.equal(x, torch.ones(4000, 3, 10))


def test_jitter_is_the_identity_where_there_is_nothing_to_do():
    x = torch.ones(20, 2, 3)
    assert Jitter(0.05, 1.0, 0).eval()(x) is x
    assert Jitter(0.0, 1.0, 0)(x) is x
    assert Jitter(0.05, 0.0, 0)(x) is x
    assert (Jitter(0.05, 1.0, 0)(x) != x).all()


def test_jitter_goes_on_and_is_the_same_for_the_same_seed_only():
    x = torch.ones(20, 2, 3)
    first, again, other = Jitter(0.05, 0.5, 0), Jitter(0.05, 0.5, 0), Jitter(0.05, 0.5, 1)
    noisy = first(x)
    assert torch.equal(again(x), noisy)
    assert not torch.equal(first(x), noisy)
    assert not torch.equal(other(x), noisy)


def test_jitter_pickles_without_its_generator():
    x = torch.ones(20, 2, 3)
    jitter = Jitter(0.05, 0.5, 3)
    first = jitter(x)
    assert torch.equal(pickle.loads(pickle.dumps(jitter))(x), first)
    assert repr(jitter) == "Jitter(std=0.05, probability=0.5)"


def test_jitter_follows_the_scaling():
    shape = (3, 1, 8, 2)
    X, _ = make_batch(shape, dtype=torch.float32)
    nets = [make_net(shape, jitter=0.05, jitter_probability=1.0) for _ in range(2)]
    torch.testing.assert_close(nets[0](1000 * X), nets[1](X))


def test_training_samples_only_see_jitter(make_stack, monkeypatch):
    X, y = make_stack()
    seen = {"noisy": 0, "clean": 0}

    def forward(self, x, original=Jitter.forward):
        out = original(self, x)
        hit = (out != x).flatten(1).any(1).sum().item()
        seen["noisy"] += hit
        seen["clean"] += len(x) - hit
        return out

    monkeypatch.setattr(Jitter, "forward", forward)
    params = {"early_stopping": True, "validation_fraction": 0.5, "min_steps": 0, "max_epochs": 2}
    fitted = AttentiveFusionClassifier(jitter_probability=1.0, **params).fit(X, y)
    # Two epochs of 30 samples for training and 30 for validation, and all 60 for the importance.
    assert seen == {"noisy": 2 * 30, "clean": 2 * 30 + 60}
    fitted.predict(X)
    assert seen == {"noisy": 2 * 30, "clean": 2 * 30 + 60 + 60}


@pytest.mark.parametrize(
    ("n_layers", "n_tokens", "dim", "n_classes"), [(12, 2, 384, 3), (12, 2, 384, 10), (12, 1, 768, 10), (3, 1, 200, 3)]
)
def test_the_number_of_threads_does_not_change_a_bit(n_layers, n_tokens, dim, n_classes, global_rngs_untouched):
    rng = np.random.default_rng(0)
    y = rng.integers(n_classes, size=512)
    X = rng.normal(size=(512, n_layers, n_tokens, dim)).astype(np.float32) + y[:, None, None, None]
    threads = torch.get_num_threads()
    fits = []
    try:
        for count in (1, 2):
            torch.set_num_threads(count)
            # So low that every step is clipped.
            clf = AttentiveFusionClassifier(
                min_steps=3, max_epochs=1, batch_size=256, gradient_clip=0.01, class_weight="balanced", random_state=0
            )
            clf.fit(X, y)
            fits.append((clf.predict_proba(X[:50]), clf.layer_importance_, clf.net_.module_.state_dict()))
    finally:
        torch.set_num_threads(threads)
    assert_array_equal(fits[0][0], fits[1][0])
    assert_array_equal(fits[0][1], fits[1][1])
    assert all(torch.equal(fits[0][2][name], fits[1][2][name]) for name in fits[0][2])


def stack_with_signal(signal_layers, n=400, n_layers=8, dim=16):
    """Layers that can be told apart by their means; some of them know the class."""
    rng = np.random.default_rng(0)
    y = rng.integers(3, size=n)
    X = rng.normal(size=(n, n_layers, dim)) + 2 * rng.normal(size=(n_layers, dim))
    X[:, signal_layers, :3] += 3 * np.eye(3)[y][:, None]
    return X.astype(np.float32), y


def test_importance_finds_the_layers_that_know():
    X, y = stack_with_signal([3, 4, 5])
    fitted = AttentiveFusionClassifier(random_state=0, min_steps=300).fit(X[:300], y[:300])
    assert fitted.score(X[300:], y[300:]) > 0.9
    inside, outside = fitted.layer_importance_[[3, 4, 5]], fitted.layer_importance_[[0, 1, 2, 6, 7]]
    assert inside.min() > 1.2 / 8
    assert outside.max() < 1 / 8
    assert fitted.layer_importance_.sum() == pytest.approx(1)


@pytest.mark.parametrize("n_tokens", [1, 2])
def test_attention_and_importance_have_documented_shapes_and_sums(n_tokens, make_stack):
    X, y = make_stack()
    X = np.stack([X, X[::-1]][:n_tokens], axis=2)
    fitted = AttentiveFusionClassifier(layers=[1, 2, 5], **FAST).fit(X, y)
    attention = fitted.attention_weights(X[:7])
    assert attention.shape == ((7, 3, 3) if n_tokens == 1 else (7, 6, 3, 2))
    assert attention.dtype == np.float64
    assert_allclose(attention.reshape(7, 3 * n_tokens, -1).sum(-1), 1)
    every = fitted.attention_weights(X).reshape(60, 3 * n_tokens, 3, n_tokens)
    assert_allclose(fitted.layer_importance_, every.sum(-1).mean((0, 1)))


def test_a_stack_with_one_token_kind_is_a_three_dimensional_stack(make_stack):
    X, y = make_stack()
    fitted = AttentiveFusionClassifier(**FAST).fit(X[:, :, None], y)
    assert fitted.attention_weights(X).shape == (60, 6, 6)
    assert_array_equal(fitted.attention_weights(X), fitted.attention_weights(X[:, :, None]))


def test_importance_is_the_mean_over_batches_and_counted_samples(make_stack, monkeypatch, tmp_path):
    X, y = make_stack()
    keep = np.random.default_rng(0).random(60) < 0.7
    np.save(tmp_path / "X.npy", X)
    expected = AttentiveFusionClassifier(**FAST).fit(X[keep], y[keep]).layer_importance_
    monkeypatch.setattr(attentive, "INFERENCE_BATCH", 7)
    weighted = AttentiveFusionClassifier(**FAST).fit(np.load(tmp_path / "X.npy", mmap_mode="r"), y, keep.astype(float))
    assert_allclose(weighted.layer_importance_, expected, rtol=1e-5)


def test_one_head_that_looks_at_one_layer_has_all_its_importance(make_stack):
    X, y = make_stack()
    fitted = AttentiveFusionClassifier(layers=[2], **FAST).fit(X, y)
    assert_array_equal(fitted.layer_importance_, [1])
    assert_array_equal(fitted.attention_weights(X), np.ones((60, 1, 1)))


def test_a_permuted_stack_has_permuted_attention():
    shape = (5, 2, 8, 3)
    net = make_net(shape).double().eval()
    X, _ = make_batch(shape)
    order = [3, 0, 4, 1, 2]
    logits, attention = net(X)
    permuted_logits, permuted_attention = net(X[:, order])
    torch.testing.assert_close(permuted_logits, logits)
    expected = attention.unflatten(-1, (5, 2))[:, :, order].flatten(2)
    torch.testing.assert_close(permuted_attention, expected)


def test_the_order_of_the_layers_does_not_matter_to_a_fit():
    X, y = stack_with_signal([3, 4, 5], n=100)
    order = np.random.default_rng(3).permutation(8)
    # Without the noise, which hits other layers after permuting.
    plain, permuted = (
        AttentiveFusionClassifier(jitter=0, attention_dropout=0, **FAST).fit(Z, y) for Z in (X, X[:, order])
    )
    assert_allclose(permuted.predict_proba(X[:, order]), plain.predict_proba(X), atol=1e-3)
    assert_allclose(permuted.layer_importance_, plain.layer_importance_[order], atol=1e-3)


def test_identical_layers_get_equal_attention(make_stack):
    X, y = make_stack()
    X = np.repeat(X[:, 2:3], 6, axis=1)
    fitted = AttentiveFusionClassifier(**FAST).fit(X, y)
    assert_allclose(fitted.attention_weights(X), 1 / 6)
    assert_allclose(fitted.layer_importance_, 1 / 6)


def test_predictions_do_not_depend_on_the_company(make_stack, monkeypatch):
    X, y = make_stack()
    fitted = AttentiveFusionClassifier(**FAST).fit(X, y)
    expected, attention = fitted.predict_proba(X), fitted.attention_weights(X)
    assert_allclose(fitted.predict_proba(X[11:12]), expected[11:12], rtol=1e-9)
    monkeypatch.setattr(attentive, "_EVAL_ROWS", 7)
    assert_allclose(fitted.predict_proba(X), expected, rtol=1e-9)
    assert_allclose(fitted.attention_weights(X), attention, rtol=1e-9)


@pytest.mark.parametrize(("max_epochs", "min_steps", "epochs"), [(3, 0, 3), (3, 20, 5), (7, 20, 7)])
def test_epochs_are_raised_to_take_enough_steps(max_epochs, min_steps, epochs, make_stack):
    X, y = make_stack()
    fitted = AttentiveFusionClassifier(max_epochs=max_epochs, min_steps=min_steps, batch_size=15).fit(X, y)
    assert fitted.n_iter_ == epochs


@pytest.mark.parametrize("n", [2, 3])
@pytest.mark.parametrize("batch_size", ["auto", 1, 2])
def test_very_few_samples(n, batch_size, make_stack):
    X, _ = make_stack(strength=0)
    y = np.arange(n) % 2
    fitted = AttentiveFusionClassifier(batch_size=batch_size, **FAST).fit(X[:n], y)
    assert np.isfinite(fitted.predict_proba(X)).all()
    assert_array_equal(fitted.predict(X[:n]), y)


def test_batches_of_one_sample_learn_too(make_stack):
    X, y = make_stack(strength=8)
    assert AttentiveFusionClassifier(batch_size=1, **FAST).fit(X, y).score(X, y) > 0.8


@pytest.mark.parametrize("n_heads", [1, 3, 20])
def test_any_number_of_heads(n_heads, make_stack):
    X, y = make_stack(strength=8)
    fitted = AttentiveFusionClassifier(n_heads=n_heads, **FAST).fit(X, y)
    assert fitted.attention_weights(X).shape == (60, n_heads, 6)
    assert fitted.score(X, y) > 0.8


def test_early_stopping_is_available(make_stack):
    X, y = make_stack(n_per_class=40, strength=0.1)
    fitted = AttentiveFusionClassifier(early_stopping=True, patience=2, max_epochs=200, random_state=0).fit(X, y)
    assert fitted.n_iter_ < 200
    assert fitted.layer_importance_.sum() == pytest.approx(1)


@pytest.mark.parametrize("scaling", ["l2", "standard", "layer", "token", None])
def test_constant_layers_are_harmless(scaling, make_stack):
    X, y = make_stack()
    X[:, :, -1] = 7
    X[:, 5] = 0
    assert np.isfinite(AttentiveFusionClassifier(scaling=scaling, **FAST).fit(X, y).predict_proba(X)).all()


def test_the_length_of_a_token_does_not_matter(make_stack):
    X, y = make_stack()
    length = np.float32(2.0) ** np.random.default_rng(0).integers(-20, 20, size=(60, 6, 1))
    here, there = (AttentiveFusionClassifier(**FAST).fit(Z, y).predict_proba(Z) for Z in (X, X * length))
    assert_allclose(here, there, rtol=1e-6)


@pytest.mark.parametrize(
    "bad",
    [
        {"n_heads": 0},
        {"n_heads": "all"},
        {"attention_dropout": 1.0},
        {"jitter": -0.1},
        {"jitter_probability": 1.5},
        {"min_steps": -1},
        {"gradient_clip": 0.0},
    ],
    ids=str,
)
def test_bad_parameters_are_refused_by_name(bad, make_stack):
    X, y = make_stack()
    with pytest.raises(ValueError, match=f"The '{next(iter(bad))}' parameter"):
        AttentiveFusionClassifier(**bad).fit(X, y)


def test_torchs_default_dtype_does_not_matter(make_stack):
    X, y = make_stack()
    expected = AttentiveFusionClassifier(**FAST).fit(X, y).predict_proba(X)
    torch.set_default_dtype(torch.float64)
    try:
        assert_array_equal(AttentiveFusionClassifier(**FAST).fit(X, y).predict_proba(X), expected)
    finally:
        torch.set_default_dtype(torch.float32)
