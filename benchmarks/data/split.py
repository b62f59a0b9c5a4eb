"""What every set is read into, and the one rule by which a split is drawn where none is official."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from sklearn.model_selection import train_test_split

#: The seed of every split that has to be drawn; the papers do not state theirs.
SPLIT_SEED = 12345


class SetNotFound(FileNotFoundError):
    """A set is not there; the message holds the command or the steps that bring it."""


@dataclass(frozen=True)
class Split:
    """Images to learn from and images to be tested on.

    Attributes
    ----------
    images, images_test : sequence
        Paths, PIL images or arrays, or a torch Dataset of images: whatever ``LayerwiseFeatureExtractor.transform``
        takes. They are decoded only when they are asked for.
    y, y_test : ndarray of int
        Positions in ``classes``.
    groups_test : ndarray of str or None
        The subgroup of each test image, or the corruption and severity.
    classes : list of str
        Names of the classes.
    """

    images: Sequence
    y: np.ndarray
    images_test: Sequence
    y_test: np.ndarray
    groups_test: np.ndarray | None = None
    classes: list = field(default_factory=list)


def draw_split(y, test_size):
    """Draw a stratified split, always the same one.

    Parameters
    ----------
    y : array of shape (n_images,)
        Labels.
    test_size : float or int
        Share or number of test images.

    Returns
    -------
    train, test : ndarray of int
        Positions, ascending.
    """
    rows = train_test_split(np.arange(len(y)), test_size=test_size, stratify=y, random_state=SPLIT_SEED)
    return tuple(np.sort(part) for part in rows)


def draw_per_class(y, n_train):
    """Draw ``n_train`` images of each class to learn from, always the same ones; the rest is the test part."""
    order = np.random.default_rng(SPLIT_SEED).permutation(len(y))
    train = np.sort(np.concatenate([order[y[order] == label][:n_train] for label in np.unique(y)]))
    return train, np.setdiff1d(np.arange(len(y)), train)
