import pickle

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn

from skvfusion.training import seeding
from skvfusion.training.seeding import SeededDropout, SeededLinear, draw_seed, generator, spawn_seeds


@pytest.mark.parametrize("seed", [0, 1, 2**31, 2**32 - 1, np.int64(7)])
def test_an_int_always_gives_the_same_seed(seed, global_rngs_untouched):
    assert draw_seed(seed) == draw_seed(seed)


def test_different_ints_give_different_seeds():
    assert len({draw_seed(seed) for seed in range(100)}) == 100


def test_a_random_state_is_advanced(global_rngs_untouched):
    random_state = np.random.RandomState(0)
    first, second = draw_seed(random_state), draw_seed(random_state)
    assert first != second
    again = np.random.RandomState(0)
    assert (draw_seed(again), draw_seed(again)) == (first, second)


def test_none_takes_fresh_entropy(global_rngs_untouched):
    assert len({draw_seed(None) for _ in range(20)}) == 20


def test_none_does_not_read_numpys_global_generator():
    seeds = set()
    state = np.random.get_state()  # noqa: NPY002
    for _ in range(3):
        np.random.seed(0)  # noqa: NPY002
        seeds.add(draw_seed(None))
    np.random.set_state(state)  # noqa: NPY002
    assert len(seeds) == 3


def test_nonsense_is_refused():
    with pytest.raises(ValueError, match="seed"):
        draw_seed("seed")


@pytest.mark.parametrize("random_state", [0, None, np.random.RandomState(3)], ids=["int", "None", "RandomState"])
def test_a_seed_is_a_plain_int_that_every_generator_takes(random_state):
    seed = draw_seed(random_state)
    assert type(seed) is int
    assert 0 <= seed < 2**31


def test_spawned_seeds_are_distinct_and_always_the_same(global_rngs_untouched):
    seeds = spawn_seeds(5, 100)
    assert len(seeds) == len(set(seeds)) == 100
    assert seeds == spawn_seeds(5, 100)
    assert all(type(seed) is int and 0 <= seed < 2**31 for seed in seeds)


def test_spawned_seeds_differ_with_the_seed():
    assert not set(spawn_seeds(0, 50)) & set(spawn_seeds(1, 50))


def test_asking_for_more_seeds_does_not_shift_the_first():
    assert spawn_seeds(3, 8)[:3] == spawn_seeds(3, 3)


def test_generators_are_apart(global_rngs_untouched):
    first, second = generator(0), generator(0)
    drawn = torch.rand(5, generator=first)
    assert torch.equal(torch.rand(5, generator=second), drawn)
    assert not torch.equal(torch.rand(5, generator=first), drawn)


@pytest.mark.parametrize("name", ["weight", "bias"])
@pytest.mark.parametrize(("in_features", "out_features"), [(4, 3000), (100, 400)])
def test_linear_starts_uniform_within_torchs_bounds(name, in_features, out_features):
    values = getattr(SeededLinear(in_features, out_features, generator(0)), name).detach().numpy().ravel()
    bound = in_features**-0.5
    assert np.abs(values).max() <= bound
    assert stats.kstest(values, stats.uniform(-bound, 2 * bound).cdf).pvalue > 0.01
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        torchs = getattr(nn.Linear(in_features, out_features), name).detach().numpy().ravel()
    assert stats.ks_2samp(values, torchs).pvalue > 0.01


def test_linear_has_the_same_weights_for_the_same_seed_only(global_rngs_untouched):
    first, again, other = (SeededLinear(5, 3, generator(seed)).state_dict() for seed in (0, 0, 1))
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not any(torch.equal(first[name], other[name]) for name in first)


def test_layers_from_one_generator_differ():
    rng = generator(0)
    assert not torch.equal(SeededLinear(5, 3, rng).weight, SeededLinear(5, 3, rng).weight)


def test_linear_computes_what_torchs_does():
    layer, torchs = SeededLinear(5, 3, generator(0)), nn.utils.skip_init(nn.Linear, 5, 3)
    torchs.weight.data, torchs.bias.data = layer.weight.detach().T, layer.bias.detach()
    x = torch.rand(7, 5, generator=generator(1))
    torch.testing.assert_close(layer(x), torchs(x))
    assert layer.weight.requires_grad
    assert layer.bias.requires_grad
    assert "in_features=5, out_features=3" in repr(layer)


def test_dropout_keeps_the_mean_and_drops_its_share(global_rngs_untouched):
    out = SeededDropout(0.3, seed=0)(torch.full((1000, 100), 2.0))
    assert (out == 0).float().mean().item() == pytest.approx(0.3, abs=0.01)
    assert out.mean().item() == pytest.approx(2.0, abs=0.03)
    torch.testing.assert_close(out.unique(), torch.tensor([0.0, 2 / 0.7]))


def test_dropout_drops_each_element_by_itself():
    kept = SeededDropout(0.5, seed=0)(torch.ones(2000, 8)).numpy() > 0
    correlation = np.corrcoef(kept.T) - np.eye(8)
    assert np.abs(correlation).max() < 0.1


def test_dropout_is_the_identity_in_eval_mode_and_for_p_0(global_rngs_untouched):
    x = torch.rand(10, 4, generator=generator(0))
    assert torch.equal(SeededDropout(0.5, seed=0).eval()(x), x)
    assert torch.equal(SeededDropout(0.0, seed=0)(x), x)


def test_dropout_masks_go_on_and_are_the_same_for_the_same_seed_only():
    x = torch.ones(20, 10)
    first, again, other = SeededDropout(0.5, 0), SeededDropout(0.5, 0), SeededDropout(0.5, 1)
    masks = [first(x), first(x)]
    assert not torch.equal(masks[0], masks[1])
    assert torch.equal(again(x), masks[0])
    assert torch.equal(again(x), masks[1])
    assert not torch.equal(other(x), masks[0])


def test_an_eval_pass_in_between_does_not_shift_the_masks():
    x = torch.ones(20, 10)
    plain, interrupted = SeededDropout(0.5, 0), SeededDropout(0.5, 0)
    plain(x), interrupted(x)
    interrupted.eval()(x)
    assert torch.equal(interrupted.train()(x), plain(x))


def test_dropouts_gradient_passes_through_what_is_kept():
    x = torch.ones(50, 10, requires_grad=True)
    out = SeededDropout(0.4, 0)(x)
    out.sum().backward()
    torch.testing.assert_close(x.grad, out.detach())


def test_dropout_does_not_change_its_input():
    x = torch.ones(50, 10)
    SeededDropout(0.5, 0)(x)
    assert torch.equal(x, torch.ones(50, 10))


def test_dropout_pickles_without_its_generator():
    x = torch.ones(20, 10)
    dropout = SeededDropout(0.5, seed=3)
    first = dropout(x)
    loaded = pickle.loads(pickle.dumps(dropout))
    assert loaded._rng is None
    assert dropout._rng is not None
    assert torch.equal(loaded(x), first)
    assert not dropout.state_dict()


def test_dropout_shows_its_probability():
    assert repr(SeededDropout(0.25, 0)) == "SeededDropout(p=0.25)"


def test_the_generator_follows_the_device(monkeypatch):
    made = []
    monkeypatch.setattr(seeding, "generator", lambda seed, device: made.append((seed, device.type)) or generator(seed))
    dropout = SeededDropout(0.5, seed=3)
    for _ in range(2):
        dropout(torch.ones(2, 2))
    assert made == [(3, "cpu")]


@pytest.mark.parametrize("classes", [3, 37, 100])
def test_a_linear_layer_has_the_same_bits_on_any_number_of_threads(classes):
    x = torch.randn(256, 200, generator=generator(1))
    results = []
    threads = torch.get_num_threads()
    try:
        for n in (1, 2, 3, 4, 8):
            torch.set_num_threads(n)
            linear = SeededLinear(200, classes, generator(0))
            inputs = x.clone().requires_grad_()
            linear(inputs).square().sum(1).mean().backward()
            results.append([linear(x).detach(), linear.weight.grad, linear.bias.grad, inputs.grad])
    finally:
        torch.set_num_threads(threads)
    assert results[0][0].shape == (256, classes)
    for other in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], other, strict=True))
