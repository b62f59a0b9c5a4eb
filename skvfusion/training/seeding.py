"""Randomness apart from the global generators of torch and numpy, so that parallel fits do not disturb one another."""

import numpy as np
import torch
from sklearn.utils import check_random_state
from torch import nn
from torch.nn import functional as F


def draw_seed(random_state):
    """Draw one seed below 2**31 from a scikit-learn style ``random_state``.

    ``None`` takes fresh entropy from the operating system rather than numpy's global generator, which is left alone.
    """
    if random_state is None:
        return int(np.random.SeedSequence().generate_state(1)[0] >> 1)
    return int(check_random_state(random_state).randint(2**31 - 1))


def spawn_seeds(seed, n):
    """Derive ``n`` independent seeds from one, so that one part of a fit can change without shifting the others."""
    return [int(word >> 1) for word in np.random.SeedSequence(seed).generate_state(n)]


def generator(seed, device="cpu"):
    """Return a torch generator of its own."""
    return torch.Generator(device=device).manual_seed(seed)


class SeededLinear(nn.Module):
    """A linear layer with ``nn.Linear``'s initial distribution, drawn from ``rng`` instead of the global generator.

    Its bits do not depend on the number of threads. The weight lies as (in_features, out_features): the product that
    gives its gradient then has few columns where there are few classes, not few rows, which the usual BLAS would deal
    out to its threads and round differently by their number. For the same reason both sides are filled up with zeros
    to a multiple of 16 while multiplying, so that no thread gets a part of a vector register.
    """

    def __init__(self, in_features, out_features, rng):
        super().__init__()
        bound = in_features**-0.5
        self.weight = nn.Parameter(
            torch.empty(in_features, out_features, dtype=torch.float32).uniform_(-bound, bound, generator=rng)
        )
        self.bias = nn.Parameter(torch.empty(out_features, dtype=torch.float32).uniform_(-bound, bound, generator=rng))

    def forward(self, x):
        """Return ``x @ weight + bias``."""
        inputs, outputs = self.weight.shape
        more_inputs, more_outputs = (0, -inputs % 16), (0, -outputs % 16)
        weight = F.pad(self.weight, more_outputs + more_inputs)
        return torch.addmm(F.pad(self.bias, more_outputs), F.pad(x, more_inputs), weight)[:, :outputs]

    def extra_repr(self):
        """Show the widths, as ``nn.Linear`` does."""
        return "in_features={}, out_features={}".format(*self.weight.shape)


class SeededDropout(nn.Module):
    """Dropout whose masks come from a generator of its own, made anew from ``seed`` on whatever device it runs on."""

    def __init__(self, p, seed):
        super().__init__()
        self.p = p
        self.seed = seed
        self._rng = None

    def forward(self, x):
        """Zero each element with probability ``p`` and rescale the rest; the identity in eval mode."""
        if not self.training or self.p == 0:
            return x
        if self._rng is None or self._rng.device != x.device:
            self._rng = generator(self.seed, x.device)
        keep = torch.empty_like(x).bernoulli_(1 - self.p, generator=self._rng)
        return x * keep.div_(1 - self.p)

    def extra_repr(self):
        """Show the probability, as ``nn.Dropout`` does."""
        return f"p={self.p}"

    def __getstate__(self):
        # Generators of a GPU cannot be loaded without one; a fitted model needs none.
        return {**self.__dict__, "_rng": None}
