"""Feeding a net whole batches by one indexing operation, where a DataLoader would collate sample by sample."""

import numpy as np
import torch
from torch.utils.data import Dataset

from .seeding import generator

# Holding out a tenth of 700 hand signs, and stopping by it, cost 2.5 points of accuracy against the full schedule:
# "auto" does without until there is more to go by.
MIN_VALIDATION = 500


class StackDataset(Dataset):
    """Rows of a layer stack with their encoded labels and weights.

    Parameters
    ----------
    X : array or LayerView of shape (n_samples, ...)
        Any numeric dtype, memory order or memory map; it is read batch by batch and never written.
    rows : array of int, default=None
        The rows that belong to this data set; None for all.
    y : array of int of shape (n_samples,), default=None
        Encoded labels.
    sample_weight : array of float of shape (n_samples,), default=None
        None for equal weights.
    beside : dict of str to array of shape (n_samples, ...), default=None
        Further inputs of the module by parameter name; its stack is then called ``X``.
    """

    def __init__(self, X, rows=None, y=None, sample_weight=None, beside=None):
        self.X = X
        self.rows = np.arange(len(X)) if rows is None else rows
        self.y = y
        self.sample_weight = sample_weight
        self.beside = beside

    def __len__(self):
        """Return the number of samples."""
        return len(self.rows)

    def batch(self, positions):
        """Return the samples at ``positions`` as ``(X, target)`` tensors, X in float32; a dict of them with others."""
        rows = self.rows[positions]
        X = _float32(self.X[rows])
        if self.beside is not None:
            X = {"X": X, **{name: _float32(array[rows]) for name, array in self.beside.items()}}
        if self.y is None:
            return X, torch.zeros(0)
        target = torch.from_numpy(self.y[rows])
        if self.sample_weight is None:
            return X, target
        return X, (target, torch.from_numpy(self.sample_weight[rows]))


def _float32(array):
    return torch.from_numpy(np.asarray(array, dtype=np.float32))


class BatchIterator:
    """Yield the batches of a :class:`StackDataset`; takes the place of a torch DataLoader in a skorch net.

    With ``shuffle``, the samples are dealt into round(n / batch_size) batches of nearly equal size: no sample is left
    out of an epoch and no batch is much smaller than the others, which a penalty on batch statistics would feel.
    """

    def __init__(self, dataset, batch_size, shuffle=False, seed=0):
        self.dataset = dataset
        self.batch_size = batch_size
        self.shuffle = shuffle
        self._rng = generator(seed)

    def __len__(self):
        """Return the number of batches."""
        n = len(self.dataset)
        return max(1, round(n / self.batch_size)) if self.shuffle else -(-n // self.batch_size)

    def __iter__(self):
        """Iterate over ``(X, target)`` batches, in a new order each time if shuffled."""
        n = len(self.dataset)
        if self.shuffle:
            positions = np.array_split(torch.randperm(n, generator=self._rng).numpy(), len(self))
        else:
            positions = (slice(start, start + self.batch_size) for start in range(0, n, self.batch_size))
        for batch in positions:
            yield self.dataset.batch(batch)


def resolve_batch_size(batch_size, n_samples):
    """Return ``batch_size``; for ``"auto"`` an eighth of the samples, at least 16 and at most 256.

    An epoch then has about eight steps or more, and the learning rate time to anneal, from 128 samples on.
    """
    return min(max(n_samples // 8, 16), 256) if batch_size == "auto" else batch_size


def split_validation(y, rows, early_stopping, fraction, seed):
    """Choose the samples held out to decide when to stop.

    The rule, for small data and rare classes too: of each class ``fraction`` of its samples, rounded, are held out, but
    never its last one. True holds out at least one of every class that has two. ``"auto"`` holds out nothing if that
    would make fewer than 500 samples, or fewer than two per class on average.

    Parameters
    ----------
    y : array of int of shape (n_samples,)
        Encoded labels.
    rows : array of int
        The rows to split, in ascending order.
    early_stopping : bool or "auto"
        Whether to hold out samples at all.
    fraction : float
        Share of the samples to hold out.
    seed : int
        Seed of the split.

    Returns
    -------
    train, valid : arrays of int
        Row indices in ascending order; ``valid`` is None if nothing is held out.

    Raises
    ------
    ValueError
        If ``early_stopping=True`` and no class has two samples.
    """
    if not early_stopping:
        return rows, None
    counts = np.bincount(y[rows])
    held_out = np.rint(fraction * counts).astype(int)
    if early_stopping != "auto":
        held_out = np.maximum(held_out, 1)
    held_out = np.minimum(held_out, np.maximum(counts - 1, 0))
    if early_stopping == "auto" and held_out.sum() < max(MIN_VALIDATION, 2 * np.count_nonzero(counts)):
        return rows, None
    if not held_out.any():
        raise ValueError(
            f"early_stopping=True has nothing to hold out: each of the {np.count_nonzero(counts)} classes has a single "
            "sample. Use early_stopping='auto' or False."
        )
    shuffled = np.random.RandomState(seed).permutation(rows)
    by_class = shuffled[np.argsort(y[shuffled], kind="stable")]
    position = np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)
    valid = np.sort(by_class[position < held_out[y[by_class]]])
    return np.setdiff1d(rows, valid), valid
