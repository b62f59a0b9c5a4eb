"""What the fusion nets minimise: weighted cross-entropy plus a penalty on dependent latent dimensions."""

import torch
from torch import nn
from torch.nn import functional as F


def correlation_penalty(Z, eps=1e-6):
    """Mean squared correlation between different dimensions of a batch of latents.

    .. math:: \\frac{1}{k(k-1)} \\sum_{i \\ne j} R_{ij}^2

    with :math:`R` the correlation matrix of the columns. It lies in [0, 1] up to ``eps``, does not change when a
    dimension is shifted, scaled or mirrored, and is about 1 / (B - 1) for B independent samples. Constant dimensions
    count as uncorrelated.

    Parameters
    ----------
    Z : tensor of shape (batch, k)
        Latents.
    eps : float, default=1e-6
        Added to each dimension's variance relative to the mean variance of all dimensions, so that constant columns
        give 0 with finite gradients.

    Returns
    -------
    tensor of shape ()

    References
    ----------
    VFusion (arXiv 2607.10391), the regulariser on the latent; this normalisation is ours.
    """
    if _has_no_pairs(Z):
        return Z.new_zeros(())
    mean = Z.mean(0)
    # What rounding the mean leaves of a constant dimension is not variance.
    noise = (10 * torch.finfo(Z.dtype).eps * mean.abs()) ** 2
    return _off_diagonal(_scale_columns(Z - mean, noise, eps)) / _n_pairs(Z)


def cosine_penalty(Z, eps=1e-6):
    """Mean squared cosine between different dimensions of a batch of latents.

    .. math:: \\frac{1}{k(k-1)} \\sum_{i \\ne j} G_{ij}^2, \\quad G = \\hat Z^T \\hat Z

    with :math:`\\hat Z` the latents with columns of unit length: orthogonality as such, not uncorrelatedness. It lies
    in [0, 1] up to ``eps`` and does not change when a dimension is scaled or mirrored, but does when one is shifted:
    two dimensions far from 0 count as dependent however they vary. Of centred columns it is the mean squared
    correlation, and about 1 / B for B independent samples around 0. Dimensions that are 0 throughout count as
    orthogonal.

    Parameters
    ----------
    Z : tensor of shape (batch, k)
        Latents.
    eps : float, default=1e-6
        Added to each dimension's mean square relative to that of all dimensions, so that columns of 0 give 0 with
        finite gradients.

    Returns
    -------
    tensor of shape ()

    References
    ----------
    VFusion (arXiv 2607.10391) calls its regulariser an orthogonality loss; this is the literal reading of the name.
    """
    if _has_no_pairs(Z):
        return Z.new_zeros(())
    return _off_diagonal(_scale_columns(Z, 0.0, eps)) / _n_pairs(Z)


def covariance_penalty(Z):
    """Squared covariance between different dimensions of a batch of latents, summed and divided by their number.

    .. math:: \\frac{1}{k} \\sum_{i \\ne j} C_{ij}^2, \\quad C = \\frac{1}{B-1} \\sum_b (z_b - \\bar z)(z_b - \\bar z)^T

    It does not change when a dimension is shifted or mirrored, and has no upper bound: scaling the latent by s
    multiplies it by s⁴. Shrinking the latent therefore lowers it without decorrelating anything, unless something holds
    the scale, such as a LayerNorm. For dimensions of unit variance it is k - 1 times the mean squared correlation.

    Parameters
    ----------
    Z : tensor of shape (batch, k)
        Latents.

    Returns
    -------
    tensor of shape ()

    References
    ----------
    Bardes, Ponce and LeCun, "VICReg: Variance-Invariance-Covariance Regularization for Self-Supervised Learning",
    ICLR 2022: the covariance term, for one view.
    """
    if _has_no_pairs(Z):
        return Z.new_zeros(())
    batch, k = Z.shape
    return _off_diagonal(Z - Z.mean(0)) * (batch / (batch - 1)) ** 2 / k


def decov_penalty(Z):
    """Half the summed squared covariance between different dimensions of a batch of latents.

    .. math:: \\frac{1}{2} (\\|C\\|_F^2 - \\|\\operatorname{diag} C\\|_2^2), \\quad
        C = \\frac{1}{B} \\sum_b (z_b - \\bar z)(z_b - \\bar z)^T

    It ignores and can be gamed by the same as :func:`covariance_penalty`, of which it is k / 2 times, but for the
    divisor B. For dimensions of unit variance it is k(k - 1) / 2 times the mean squared correlation.

    Parameters
    ----------
    Z : tensor of shape (batch, k)
        Latents.

    Returns
    -------
    tensor of shape ()

    References
    ----------
    Cogswell et al., "Reducing Overfitting in Deep Networks by Decorrelating Representations", ICLR 2016,
    arXiv 1511.06068.
    """
    if _has_no_pairs(Z):
        return Z.new_zeros(())
    return _off_diagonal(Z - Z.mean(0)) / 2


def _has_no_pairs(Z):
    """Tell whether there are too few dimensions or samples for anything to be dependent."""
    return len(Z) < 2 or Z.shape[1] < 2


def _n_pairs(Z):
    return Z.shape[1] * (Z.shape[1] - 1)


def _scale_columns(Z, noise, eps):
    """Scale the columns to mean square 1, and those whose mean square is not above ``noise`` to 0."""
    square = Z.square().mean(0)
    # The gradient of 1 / sqrt(square) overflows below the second number.
    counts = (square > noise) & (square > torch.finfo(Z.dtype).tiny ** (2 / 3))
    floor = eps * square.mean().detach()
    return Z * counts * torch.where(counts, square + floor, 1.0).rsqrt()


def _off_diagonal(Z):
    """Sum the squares of the off-diagonal elements of Z'Z / B."""
    # ||Z'Z||_F = ||ZZ'||_F, so the smaller of the two Gram matrices will do.
    # Zeros up to a multiple of 16, so that no thread gets a part of a vector register and rounds differently.
    filled = F.pad(Z, (0, -Z.shape[1] % 16, 0, -len(Z) % 16))
    gram = filled.T @ filled if Z.shape[1] <= len(Z) else filled @ filled.T
    # Row by row, because torch sums a large tensor at once in an order that depends on the number of threads.
    total = (gram / len(Z)).square().sum(1).sum()
    return total - Z.square().mean(0).square().sum()


PENALTIES = {
    "correlation": correlation_penalty,
    "cosine": cosine_penalty,
    "covariance": covariance_penalty,
    "decov": decov_penalty,
}


class FusionLoss(nn.Module):
    """Weighted cross-entropy, plus ``orthogonality`` times a latent penalty while training.

    The penalty is left out in eval mode: the validation loss compares epochs by how well they classify.
    """

    def __init__(self, orthogonality=0.0, orthogonality_kind="correlation"):
        super().__init__()
        self.orthogonality = orthogonality
        self.penalty = PENALTIES[orthogonality_kind]

    def forward(self, output, target):
        """Return the loss of ``(logits, latent)`` against labels, or a tuple of labels and weights."""
        logits, latent = output
        if isinstance(target, (tuple, list)):
            labels, weights = target
            loss = (F.cross_entropy(logits, labels, reduction="none") * weights).mean()
        else:
            loss = F.cross_entropy(logits, target)
        if self.training and self.orthogonality > 0:
            loss = loss + self.orthogonality * self.penalty(latent)
        return loss
