import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from torch.nn import functional as F

from skvfusion.training.losses import (
    PENALTIES,
    FusionLoss,
    correlation_penalty,
    cosine_penalty,
    covariance_penalty,
    decov_penalty,
)

pytestmark = pytest.mark.usefixtures("one_thread")

PATIENT = settings(deadline=None)  # a busy machine is not a failure
EPS = 1e-5  # the penalties' own eps is 1e-6
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


def off_diagonal(matrix):
    return np.square(matrix).sum() - np.square(np.diag(matrix)).sum()


def by_definition(kind, Z):
    """Any penalty by its definition."""
    Z = Z.numpy()
    k = Z.shape[1]
    if kind == "correlation":
        return off_diagonal(np.corrcoef(Z, rowvar=False)) / (k * (k - 1))
    if kind == "cosine":
        unit = Z / np.linalg.norm(Z, axis=0)
        return off_diagonal(unit.T @ unit) / (k * (k - 1))
    if kind == "covariance":
        return off_diagonal(np.cov(Z, rowvar=False)) / k
    return off_diagonal(np.cov(Z, rowvar=False, bias=True)) / 2


every_kind = pytest.mark.parametrize("kind", list(PENALTIES))
normalised = pytest.mark.parametrize("kind", ["correlation", "cosine"])
centred = pytest.mark.parametrize("kind", ["correlation", "covariance", "decov"])
unnormalised = pytest.mark.parametrize("kind", ["covariance", "decov"])

latents = st.tuples(st.integers(2, 12), st.integers(2, 12)).flatmap(
    lambda shape: arrays(np.float64, shape, elements=st.floats(-1e3, 1e3, allow_subnormal=False))
)


@normalised
@PATIENT
@given(latents)
def test_normalised_penalties_lie_between_0_and_1(kind, Z):
    penalty = PENALTIES[kind](torch.from_numpy(Z)).item()
    assert -EPS <= penalty <= 1 + EPS


def test_penalties_by_hand():
    # Centred columns (-2, 0, 2) and (-1, -1, 2): products 6, 8, 6. Uncentred products: 18, 20, 18.
    Z = torch.tensor([[0.0, 1.0], [2.0, 1.0], [4.0, 4.0]], dtype=torch.float64)
    assert correlation_penalty(Z).item() == pytest.approx(6**2 / (8 * 6), abs=EPS)
    assert cosine_penalty(Z).item() == pytest.approx(18**2 / (20 * 18), abs=EPS)
    assert covariance_penalty(Z).item() == pytest.approx(2 * (6 / 2) ** 2 / 2)
    assert decov_penalty(Z).item() == pytest.approx(2 * (6 / 3) ** 2 / 2)


@every_kind
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_penalties_equal_numpys(kind, shape):
    Z = correlated(*shape)
    assert PENALTIES[kind](Z).item() == pytest.approx(by_definition(kind, Z), rel=EPS, abs=1e-4)


@pytest.mark.parametrize("kind", ["correlation", "cosine", "decov"])
@pytest.mark.parametrize("shape", [(6, 9), (4, 7), (9, 17)], ids=str)
def test_both_gram_matrices_give_the_same(kind, shape):
    Z = correlated(*shape)
    # Every sample twice: the same moments, from the other product.
    assert shape[0] < shape[1] <= 2 * shape[0]
    torch.testing.assert_close(PENALTIES[kind](Z), PENALTIES[kind](torch.cat([Z, Z])), rtol=1e-9, atol=1e-12)


def per_dimension(k, seed, low, high):
    return torch.from_numpy(np.random.default_rng(seed).uniform(low, high, size=k))


@centred
@PATIENT
@given(st.sampled_from(SHAPES), st.integers(0, 99))
def test_shifting_dimensions_does_not_matter_to_centred_penalties(kind, shape, seed):
    Z = correlated(*shape, seed=seed)
    shifted = Z + per_dimension(shape[1], seed, -50, 50)
    torch.testing.assert_close(PENALTIES[kind](shifted), PENALTIES[kind](Z), rtol=1e-4, atol=1e-4)


def test_shifting_dimensions_away_from_0_makes_their_cosine_1():
    Z = gaussian(100, 5)
    assert cosine_penalty(Z - Z.mean(0)).item() < 0.1
    assert cosine_penalty(Z - Z.mean(0) + 100).item() == pytest.approx(1, abs=0.01)


@normalised
@PATIENT
@given(st.sampled_from(SHAPES), st.integers(0, 99))
def test_scaling_dimensions_does_not_matter_to_normalised_penalties(kind, shape, seed):
    Z = correlated(*shape, seed=seed)
    scaled = Z * per_dimension(shape[1], seed, 0.5, 2)
    torch.testing.assert_close(PENALTIES[kind](scaled, eps=0), PENALTIES[kind](Z, eps=0), rtol=1e-9, atol=1e-12)


@unnormalised
@pytest.mark.parametrize("scale", [0.1, 3.0])
def test_the_other_penalties_can_be_lowered_by_shrinking(kind, scale):
    Z = correlated(20, 5)
    torch.testing.assert_close(PENALTIES[kind](scale * Z), scale**4 * PENALTIES[kind](Z))


@every_kind
@PATIENT
@given(st.sampled_from(SHAPES), st.integers(0, 99))
def test_mirroring_dimensions_does_not_matter(kind, shape, seed):
    Z = correlated(*shape, seed=seed)
    mirrored = Z * per_dimension(shape[1], seed, -1, 1).sign()
    torch.testing.assert_close(PENALTIES[kind](mirrored), PENALTIES[kind](Z), rtol=1e-9, atol=1e-12)


@every_kind
@PATIENT
@given(st.sampled_from(SHAPES), st.randoms(use_true_random=False))
def test_the_order_of_dimensions_and_samples_does_not_matter(kind, shape, random):
    Z = correlated(*shape)
    samples, dims = (random.sample(range(n), n) for n in shape)
    torch.testing.assert_close(PENALTIES[kind](Z[samples][:, dims]), PENALTIES[kind](Z), rtol=1e-9, atol=1e-12)


@normalised
@pytest.mark.parametrize("k", [2, 5, 50])
@pytest.mark.parametrize("batch", [2, 10, 100])
def test_identical_dimensions_give_1(kind, batch, k):
    Z = (gaussian(batch, 1) + 5).expand(-1, k) * torch.tensor([1.0, -3.0]).repeat(k)[:k]
    assert PENALTIES[kind](Z).item() == pytest.approx(1, abs=EPS)


@every_kind
def test_uncorrelated_dimensions_around_0_give_0(kind):
    Z, _ = torch.linalg.qr(gaussian(30, 8) - gaussian(30, 8).mean(0))
    assert PENALTIES[kind](Z - Z.mean(0)).item() == pytest.approx(0, abs=1e-9)


@PATIENT
@given(st.integers(3, 40), st.integers(2, 40), st.integers(0, 99))
def test_for_standardised_dimensions_the_kinds_differ_by_factors(batch, k, seed):
    Z = correlated(batch, k, seed)
    Z = (Z - Z.mean(0)) / Z.std(0, correction=0)
    mean = correlation_penalty(Z).item()
    assert cosine_penalty(Z).item() == pytest.approx(mean, abs=1e-9)
    assert decov_penalty(Z).item() == pytest.approx(k * (k - 1) / 2 * mean, rel=EPS)
    assert covariance_penalty(Z).item() == pytest.approx((k - 1) * (batch / (batch - 1)) ** 2 * mean, rel=EPS)


@every_kind
@pytest.mark.parametrize("batch", [16, 64, 256, 512])
def test_independent_gaussians_give_what_chance_gives(kind, batch):
    k = 64
    expected = {
        "correlation": 1 / (batch - 1),
        "cosine": 1 / batch,
        "covariance": (k - 1) / (batch - 1),
        "decov": k * (k - 1) / 2 * (batch - 1) / batch**2,
    }
    samples = [torch.from_numpy(np.random.default_rng(seed).normal(size=(batch, k))) for seed in range(10)]
    assert np.mean([PENALTIES[kind](Z).item() for Z in samples]) == pytest.approx(expected[kind], rel=0.05)


@normalised
@PATIENT
@given(st.integers(2, 40), st.integers(2, 40), st.integers(1, 40), st.integers(0, 99))
def test_a_low_rank_bounds_the_penalty_from_below(kind, batch, k, rank, seed):
    Z = gaussian(batch, k, seed, rank=rank)
    # Columns much smaller than the rest count less, by the eps that keeps constant ones from counting.
    Z = Z / Z.square().mean(0).sqrt()
    if kind == "correlation":
        Z = (Z - Z.mean(0)) / Z.std(0, correction=0)
    counted = Z - Z.mean(0) if kind == "correlation" else Z
    r = torch.linalg.matrix_rank(counted, rtol=1e-9).item()
    assert 1 <= r <= min(batch, rank + 1, k)
    assert PENALTIES[kind](Z).item() >= (k / r - 1) / (k - 1) - EPS


def penalty_and_gradient(kind, Z):
    Z = Z.clone().requires_grad_()
    penalty = PENALTIES[kind](Z)
    if penalty.requires_grad:
        penalty.backward()
    return penalty.item(), torch.zeros(()) if Z.grad is None else Z.grad


@centred
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("value", [0.0, 1.0, 0.1, -3.7])
@pytest.mark.parametrize("shape", [(20, 4), (4, 20)], ids=str)
def test_a_constant_dimension_counts_as_uncorrelated(kind, shape, value, dtype):
    batch, k = shape
    rest = correlated(batch, k - 1).to(dtype)
    Z = torch.cat([rest, torch.full((batch, 1), value, dtype=dtype)], dim=1)
    penalty, gradient = penalty_and_gradient(kind, Z)
    pairs = {"correlation": (k - 2) / k, "covariance": (k - 1) / k, "decov": 1}
    assert penalty == pytest.approx(by_definition(kind, rest.double()) * pairs[kind], rel=1e-4, abs=1e-4)
    assert torch.isfinite(gradient).all()


def test_a_dimension_of_0_counts_as_orthogonal_but_another_constant_has_a_direction():
    rest = correlated(20, 3)
    zero, one = (torch.cat([rest, torch.full((20, 1), value)], dim=1) for value in (0.0, 1.0))
    penalty, gradient = penalty_and_gradient("cosine", zero)
    assert penalty == pytest.approx(by_definition("cosine", rest) / 2, abs=EPS)
    assert torch.isfinite(gradient).all()
    assert cosine_penalty(one).item() == pytest.approx(by_definition("cosine", one), abs=EPS)


# The mean of equal numbers is not always that number: where it is not, rounding leaves a small constant.
@centred
@pytest.mark.parametrize("shape", [(3, 5), (8, 8), (100, 5), (100, 128)], ids=str)
@pytest.mark.parametrize("value", [0.0, 0.1, 0.7])
def test_dimensions_that_are_all_constant_give_0(kind, shape, value):
    penalty, gradient = penalty_and_gradient(kind, torch.linspace(value, 3 * value, shape[1]).expand(shape))
    assert penalty == pytest.approx(0, abs=EPS)
    assert torch.isfinite(gradient).all()


@every_kind
@pytest.mark.parametrize("size", [0.0, 1e-40, 1e-20, 1e-10])
@pytest.mark.parametrize("shape", [(20, 4), (4, 20)], ids=str)
def test_gradients_of_tiny_latents_are_finite(kind, shape, size):
    penalty, gradient = penalty_and_gradient(kind, (size * correlated(*shape)).float())
    assert -EPS <= penalty <= 1
    assert torch.isfinite(gradient).all()


@every_kind
@pytest.mark.parametrize("shape", [(1, 5), (10, 1), (1, 1), (0, 5)], ids=str)
def test_one_sample_or_one_dimension_gives_0(kind, shape):
    penalty, gradient = penalty_and_gradient(kind, torch.full(shape, 0.3))
    assert penalty == 0
    assert torch.isfinite(gradient).all()


@every_kind
@pytest.mark.parametrize("shape", [(8, 4), (4, 8), (5, 5), (2, 3)], ids=str)
def test_gradient_is_right(kind, shape):
    Z = correlated(*shape).requires_grad_()
    # The floors that eps sets are held constant on purpose.
    assert torch.autograd.gradcheck(PENALTIES[kind], (Z,), eps=1e-6, atol=1e-4)


@every_kind
def test_gradient_descent_lowers_the_penalty(kind):
    Z = correlated(50, 6).requires_grad_()
    before = PENALTIES[kind](Z).item()
    optimizer = torch.optim.Adam([Z], lr=0.05)
    for _ in range(200):
        optimizer.zero_grad()
        PENALTIES[kind](Z).backward()
        optimizer.step()
    assert PENALTIES[kind](Z).item() < 0.1 * before


@every_kind
def test_penalty_keeps_the_dtype_and_does_not_change_its_input(kind):
    Z = gaussian(10, 4).float()
    before = Z.clone()
    assert PENALTIES[kind](Z).dtype == torch.float32
    assert PENALTIES[kind](Z).shape == ()
    assert torch.equal(Z, before)


@every_kind
@pytest.mark.parametrize("shape", [(256, 512), (512, 256), (256, 128)], ids=str)
def test_the_number_of_threads_does_not_change_a_bit(kind, shape):
    Z = correlated(*shape).float()
    results = []
    try:
        for count in (1, 2):
            torch.set_num_threads(count)
            results.append(penalty_and_gradient(kind, Z))
    finally:
        torch.set_num_threads(1)
    assert results[0][0] == results[1][0]
    assert torch.equal(results[0][1], results[1][1])


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


@every_kind
@pytest.mark.parametrize("orthogonality", [0.1, 1, 7.5])
def test_the_penalty_counts_while_training_only(batch, orthogonality, kind):
    params = {"orthogonality": orthogonality, "orthogonality_kind": kind}
    plain, penalty = loss(batch), PENALTIES[kind](batch[1])
    torch.testing.assert_close(loss(batch, **params), plain + orthogonality * penalty)
    torch.testing.assert_close(loss(batch, training=False, **params), plain)


def test_the_penalty_moves_the_latent(batch):
    logits, latent, labels = batch
    latent = latent.clone().requires_grad_()
    loss((logits, latent, labels), orthogonality=1.0).backward()
    assert latent.grad.abs().max() > 0


def test_kinds_of_penalty():
    assert {
        "correlation": correlation_penalty,
        "cosine": cosine_penalty,
        "covariance": covariance_penalty,
        "decov": decov_penalty,
    } == PENALTIES
    assert FusionLoss().penalty is correlation_penalty
    with pytest.raises(KeyError):
        FusionLoss(0.1, "unknown")
