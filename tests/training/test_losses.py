import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from torch.nn import functional as F

from skvfusion.training.losses import PENALTIES, FusionLoss, correlation_penalty

pytestmark = pytest.mark.usefixtures("one_thread")

PATIENT = settings(deadline=None)  # a busy machine is not a failure
EPS = 1e-5  # the penalty's own eps is 1e-6
SHAPES = [(20, 5), (5, 20), (6, 6), (300, 8), (8, 300), (2, 2), (2, 7), (3, 2)]


def gaussian(batch, k, seed=0, rank=None):
    """Samples around a mean; correlated, of unit variance, if a rank is given."""
    rng = np.random.default_rng(seed)
    Z = rng.normal(size=(batch, rank or k))
    if rank is not None:
        Z = Z @ rng.normal(size=(rank, k))
        Z /= Z.std(axis=0)
    return torch.from_numpy(Z + rng.normal(size=k))


def correlated(batch, k, seed=0):
    return gaussian(batch, k, seed, rank=k)


def mean_squared_correlation(Z):
    """The penalty by its definition."""
    R = np.corrcoef(Z.numpy(), rowvar=False)
    k = len(R)
    return (np.square(R).sum() - k) / (k * (k - 1))


latents = st.tuples(st.integers(2, 12), st.integers(2, 12)).flatmap(
    lambda shape: arrays(np.float64, shape, elements=st.floats(-1e3, 1e3, allow_subnormal=False))
)


@PATIENT
@given(latents)
def test_penalty_lies_between_0_and_1(Z):
    penalty = correlation_penalty(torch.from_numpy(Z)).item()
    assert -EPS <= penalty <= 1 + EPS


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_penalty_equals_numpys_correlations(shape):
    Z = correlated(*shape)
    assert correlation_penalty(Z).item() == pytest.approx(mean_squared_correlation(Z), abs=EPS)


@pytest.mark.parametrize("shape", [(6, 9), (4, 7), (9, 17)], ids=str)
def test_both_gram_matrices_give_the_same(shape):
    Z = correlated(*shape)
    # Every sample twice: the same correlations, from the other product.
    assert shape[0] < shape[1] <= 2 * shape[0]
    torch.testing.assert_close(correlation_penalty(Z), correlation_penalty(torch.cat([Z, Z])), rtol=1e-9, atol=1e-12)


@PATIENT
@given(st.sampled_from(SHAPES), st.integers(0, 99), st.data())
def test_shifting_scaling_and_mirroring_dimensions_does_not_matter(shape, seed, data):
    Z = correlated(*shape, seed=seed)
    vector = lambda elements: torch.tensor(data.draw(st.lists(elements, min_size=shape[1], max_size=shape[1])))  # noqa: E731
    scale, sign, shift = vector(st.floats(0.5, 2)), vector(st.sampled_from([-1.0, 1.0])), vector(st.floats(-50, 50))
    before, after = correlation_penalty(Z), correlation_penalty(Z * scale * sign + shift)
    torch.testing.assert_close(after, before, rtol=0, atol=1e-4)


@PATIENT
@given(st.sampled_from(SHAPES), st.randoms(use_true_random=False))
def test_the_order_of_dimensions_and_samples_does_not_matter(shape, random):
    Z = correlated(*shape)
    samples, dims = (random.sample(range(n), n) for n in shape)
    torch.testing.assert_close(correlation_penalty(Z[samples][:, dims]), correlation_penalty(Z), rtol=0, atol=1e-12)


@pytest.mark.parametrize("k", [2, 5, 50])
@pytest.mark.parametrize("batch", [2, 10, 100])
def test_identical_dimensions_give_1(batch, k):
    Z = gaussian(batch, 1).expand(-1, k) * torch.tensor([1.0, -3.0]).repeat(k)[:k] + 5
    assert correlation_penalty(Z).item() == pytest.approx(1, abs=EPS)


def test_uncorrelated_dimensions_give_0():
    Z, _ = torch.linalg.qr(gaussian(30, 8) - gaussian(30, 8).mean(0))
    assert correlation_penalty(Z - Z.mean(0)).item() == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize("batch", [16, 64, 256, 512])
def test_independent_gaussians_give_one_over_batch_less_one(batch):
    penalty = np.mean([correlation_penalty(gaussian(batch, 64, seed)).item() for seed in range(10)])
    assert penalty == pytest.approx(1 / (batch - 1), rel=0.05)


@PATIENT
@given(st.integers(2, 40), st.integers(2, 40), st.integers(1, 40), st.integers(0, 99))
def test_a_low_rank_bounds_the_penalty_from_below(batch, k, rank, seed):
    Z = gaussian(batch, k, seed, rank=rank)
    r = torch.linalg.matrix_rank(Z - Z.mean(0), rtol=1e-9).item()
    assert 1 <= r <= min(batch - 1, rank, k)
    assert correlation_penalty(Z).item() >= (k / r - 1) / (k - 1) - EPS


def penalty_and_gradient(Z):
    Z = Z.clone().requires_grad_()
    penalty = correlation_penalty(Z)
    if penalty.requires_grad:
        penalty.backward()
    return penalty.item(), torch.zeros(()) if Z.grad is None else Z.grad


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("value", [0.0, 1.0, 0.1, -3.7])
@pytest.mark.parametrize("shape", [(20, 4), (4, 20)], ids=str)
def test_a_constant_dimension_counts_as_uncorrelated(shape, value, dtype):
    batch, k = shape
    rest = correlated(batch, k - 1).to(dtype)
    Z = torch.cat([rest, torch.full((batch, 1), value, dtype=dtype)], dim=1)
    penalty, gradient = penalty_and_gradient(Z)
    expected = mean_squared_correlation(rest.double()) * (k - 1) * (k - 2) / (k * (k - 1))
    assert penalty == pytest.approx(expected, abs=1e-4)
    assert torch.isfinite(gradient).all()


# The mean of equal numbers is not always that number: where it is not, rounding leaves a small constant.
@pytest.mark.parametrize("shape", [(3, 5), (8, 8), (100, 5), (100, 128)], ids=str)
@pytest.mark.parametrize("value", [0.0, 0.1, 0.7])
def test_dimensions_that_are_all_constant_give_0(shape, value):
    penalty, gradient = penalty_and_gradient(torch.linspace(value, 3 * value, shape[1]).expand(shape))
    assert penalty == pytest.approx(0, abs=EPS)
    assert torch.isfinite(gradient).all()


@pytest.mark.parametrize("shape", [(1, 5), (10, 1), (1, 1), (0, 5)], ids=str)
def test_one_sample_or_one_dimension_gives_0(shape):
    penalty, gradient = penalty_and_gradient(torch.full(shape, 0.3))
    assert penalty == 0
    assert torch.isfinite(gradient).all()


@pytest.mark.parametrize("shape", [(8, 4), (4, 8), (5, 5), (2, 3)], ids=str)
def test_gradient_is_right(shape):
    Z = correlated(*shape).requires_grad_()
    assert torch.autograd.gradcheck(correlation_penalty, (Z,), eps=1e-6, atol=1e-4)


def test_gradient_descent_decorrelates():
    Z = correlated(50, 6).requires_grad_()
    before = correlation_penalty(Z).item()
    optimizer = torch.optim.Adam([Z], lr=0.05)
    for _ in range(200):
        optimizer.zero_grad()
        correlation_penalty(Z).backward()
        optimizer.step()
    assert correlation_penalty(Z).item() < 0.1 * before


def test_penalty_keeps_the_dtype_and_does_not_change_its_input():
    Z = gaussian(10, 4).float()
    before = Z.clone()
    assert correlation_penalty(Z).dtype == torch.float32
    assert correlation_penalty(Z).shape == ()
    assert torch.equal(Z, before)


@pytest.fixture
def batch():
    """Logits, latents, labels."""
    return gaussian(12, 3), gaussian(12, 6, seed=1), torch.arange(12) % 3


def loss(batch, weights=None, training=True, **params):
    logits, latent, labels = batch
    return FusionLoss(**params).train(training)((logits, latent), labels if weights is None else (labels, weights))


def test_without_a_penalty_it_is_cross_entropy(batch):
    logits, _, labels = batch
    expected = F.cross_entropy(logits, labels)
    torch.testing.assert_close(loss(batch), expected)
    torch.testing.assert_close(loss(batch, orthogonality=0.0, training=False), expected)


@pytest.mark.parametrize("orthogonality", [0.0, 0.3])
@pytest.mark.parametrize("training", [True, False])
def test_weights_of_1_are_no_weights(batch, orthogonality, training):
    params = {"orthogonality": orthogonality, "training": training}
    torch.testing.assert_close(loss(batch, torch.ones(12), **params), loss(batch, **params))


def test_doubling_a_weight_adds_the_samples_share_once_more(batch):
    logits, _, labels = batch
    weights = torch.ones(12)
    weights[4] = 2
    share = F.cross_entropy(logits[4:5], labels[4:5]) / 12
    torch.testing.assert_close(loss(batch, weights), loss(batch) + share)


def test_doubling_all_weights_doubles_the_loss(batch):
    torch.testing.assert_close(loss(batch, torch.full((12,), 2.0)), 2 * loss(batch))


def test_a_weight_of_0_takes_the_samples_gradient_away(batch):
    logits, latent, labels = batch
    logits = logits.clone().requires_grad_()
    weights = torch.ones(12)
    weights[4] = 0
    loss((logits, latent, labels), weights).backward()
    assert (logits.grad.abs().sum(1) == 0).tolist() == (weights == 0).tolist()


@pytest.mark.parametrize("container", [tuple, list])
def test_weights_come_in_a_tuple_or_list(batch, container):
    logits, latent, labels = batch
    weights = torch.linspace(0, 2, 12)
    expected = (F.cross_entropy(logits, labels, reduction="none") * weights).mean()
    torch.testing.assert_close(FusionLoss()((logits, latent), container([labels, weights])), expected)


@pytest.mark.parametrize("orthogonality", [0.1, 1, 7.5])
def test_the_penalty_counts_while_training_only(batch, orthogonality):
    plain, penalty = loss(batch), correlation_penalty(batch[1])
    torch.testing.assert_close(loss(batch, orthogonality=orthogonality), plain + orthogonality * penalty)
    torch.testing.assert_close(loss(batch, orthogonality=orthogonality, training=False), plain)


def test_the_penalty_moves_the_latent(batch):
    logits, latent, labels = batch
    latent = latent.clone().requires_grad_()
    loss((logits, latent, labels), orthogonality=1.0).backward()
    assert latent.grad.abs().max() > 0


def test_kinds_of_penalty():
    assert PENALTIES["correlation"] is correlation_penalty
    with pytest.raises(KeyError):
        FusionLoss(0.1, "unknown")
