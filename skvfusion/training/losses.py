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
    k = Z.shape[1]
    if k < 2 or len(Z) < 2:
        return Z.new_zeros(())
    mean = Z.mean(0)
    Z = Z - mean
    variance = Z.square().mean(0)
    # What rounding the mean leaves of a constant dimension is not variance.
    varies = variance > (10 * torch.finfo(Z.dtype).eps * mean.abs()) ** 2
    floor = eps * variance.mean().detach()
    Z = Z * varies * torch.where(varies, variance + floor, 1.0).rsqrt()
    # ||Z'Z||_F = ||ZZ'||_F, so the smaller of the two Gram matrices will do.
    gram = Z.T @ Z if k <= len(Z) else Z @ Z.T
    # Row by row, because torch sums a large tensor at once in an order that depends on the number of threads.
    total = (gram / len(Z)).square().sum(1).sum()
    diagonal = Z.square().mean(0).square().sum()
    return (total - diagonal) / (k * (k - 1))


PENALTIES = {"correlation": correlation_penalty}


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
