"""The features that tables are made from: every layer's CLS token and mean patch token, extracted once."""

from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from sklearn.model_selection import train_test_split

from benchmarks.backbones import BackboneNotFound
from skvfusion import LayerwiseFeatureExtractor
from skvfusion.devices import resolve_device
from skvfusion.extraction.backbones import get_backbone

CACHE = Path("~/.cache/skvfusion-benchmarks")
TOKENS = {"cls": 0, "mean": 1, "cls+mean": slice(None)}


@dataclass(frozen=True, eq=False)
class Features:
    """The layer stacks of an image set.

    Attributes
    ----------
    dataset, backbone : str
        Their names.
    X, X_test : float32 array of shape (n, n_layers, 2, dim)
        CLS and mean of the patches, shallow to deep.
    y, y_test : array of shape (n,)
        Labels.
    groups_test : array of str of shape (n_test,) or None
        Subgroups of the test part.
    fingerprint : str
        Of the backbone: it differs with network, weights and preprocessing. "" if unknown.
    """

    dataset: str
    backbone: str
    X: np.ndarray
    y: np.ndarray
    X_test: np.ndarray
    y_test: np.ndarray
    groups_test: np.ndarray | None = None
    fingerprint: str = ""
    _few: dict = field(default_factory=dict, repr=False)

    def tokens(self, tokens):
        """Return X and X_test with these tokens only: "cls", "mean" or "cls+mean"."""
        kept = TOKENS[tokens]
        return np.ascontiguousarray(self.X[:, :, kept]), np.ascontiguousarray(self.X_test[:, :, kept])

    def cls(self):
        """Return X and X_test of the CLS tokens, of shape (n, n_layers, dim)."""
        return self.tokens("cls")

    def mean(self):
        """Return X and X_test of the mean patch tokens, of shape (n, n_layers, dim)."""
        return self.tokens("mean")

    def few(self, shots, seed):
        """Return the same with at most ``shots`` training images of each class.

        Parameters
        ----------
        shots : int or None
            None keeps all.
        seed : int
            Which images these are.

        Returns
        -------
        Features
            The same object for the same arguments, as long as these are the last.
        """
        if shots is None:
            return self
        if (shots, seed) not in self._few:
            order = np.random.default_rng(seed).permutation(len(self.y))
            rows = [order[self.y[order] == label][:shots] for label in np.unique(self.y)]
            rows = np.sort(np.concatenate(rows))
            self._few.clear()
            self._few[shots, seed] = replace(self, X=self.X[rows], y=self.y[rows], _few={})
        return self._few[shots, seed]

    def validation(self, seed):
        """Return a quarter of the training images, stratified, as the test part, and the rest to train on.

        What is chosen by it has not seen the test part.

        Parameters
        ----------
        seed : int
            Which images these are.

        Returns
        -------
        Features
            Without groups, of which the training part has none.
        """
        train, test = self.validation_rows(seed)
        return replace(
            self,
            X=self.X[train],
            y=self.y[train],
            X_test=self.X[test],
            y_test=self.y[test],
            groups_test=None,
            _few={},
        )

    def validation_rows(self, seed):
        """Return which training images :meth:`validation` trains on, and which it tests on."""
        return train_test_split(np.arange(len(self.y)), test_size=0.25, stratify=self.y, random_state=seed)


def load_features(name, backbone, data=None, cache=CACHE, device="auto", tap="block", norm="last", progress=False):
    """Read an image set and extract its features, or take them from the cache.

    Parameters
    ----------
    name : str
        A set, as :func:`benchmarks.data.read_set` takes it.
    backbone : Backbone
        The backbone.
    data, cache : str or path
        The folders of the image sets and of the features.
    device, tap, norm, progress
        As in LayerwiseFeatureExtractor.

    Returns
    -------
    Features

    Raises
    ------
    SetNotFound
        If the set is not in ``data``; the message says how to get it.
    BackboneNotFound
        If the weights are not here or do not fit.
    """
    from benchmarks.data import read_set  # it needs packages that made-up features do not

    extractor = LayerwiseFeatureExtractor(
        backbone.model,
        weights=backbone.weights,
        tokens="cls+mean",
        tap=tap,
        norm=norm,
        cache=Path(cache).expanduser(),
        device=device,
        progress=progress,
    )
    split = read_set(name, data)
    try:
        extractor.fit()
    except (OSError, ValueError) as error:
        raise BackboneNotFound(f"Backbone {backbone.public} is left out: {error}") from error
    return Features(
        dataset=name,
        backbone=backbone.name,
        X=extractor.transform(split.images),
        y=np.asarray(split.y),
        X_test=extractor.transform(split.images_test),
        y_test=np.asarray(split.y_test),
        groups_test=None if split.groups_test is None else np.asarray(split.groups_test),
        fingerprint=get_backbone(backbone.model, backbone.weights, None, resolve_device(device)).fingerprint.hex(),
    )
