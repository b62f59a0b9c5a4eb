"""The model of a folder of images: a pipeline from paths to classes, and what is known of it."""

import datetime
import os
import warnings
from importlib.metadata import version
from pathlib import Path

import numpy as np
from sklearn.base import clone
from sklearn.pipeline import Pipeline
from sklearn.utils.validation import check_is_fitted

from .agreement import fit_layer_probes, is_unusual, layer_disagreement, learn_agreement
from .devices import resolve_device
from .extraction import LayerwiseFeatureExtractor
from .extraction.backbones import get_backbone
from .persistence import load

_VERSIONS = ("skvfusion", "torch", "timm", "scikit-learn", "numpy")
_FOLDER = "local-dir:"


def make_extractor(backbone, *, weights=None, **params):
    """Return an extractor that finds its files from any working folder.

    Parameters
    ----------
    backbone, weights, **params
        Parameters of the extractor.

    Returns
    -------
    LayerwiseFeatureExtractor
    """
    if backbone.startswith(_FOLDER):
        backbone = _FOLDER + os.path.abspath(backbone.removeprefix(_FOLDER))
    if weights not in (None, "random"):
        weights = os.path.abspath(Path(weights).expanduser())
    return LayerwiseFeatureExtractor(backbone, weights=weights, **params)


def pack_model(extractor, comparison, X, y, *, groups=None, data, evaluation, device="auto", seed=0):
    """Return the best model of a comparison as a pipeline from image files to classes, with what is known of it.

    Parameters
    ----------
    extractor : LayerwiseFeatureExtractor
        Fitted.
    comparison : Comparison
        Whose ``best`` is taken, as it was fitted.
    X : array of shape (n_samples, n_layers, ...)
        The layer stacks that it was fitted on.
    y, groups : arrays of shape (n_samples,)
        Their labels, and their groups or None.
    data : str
        What the data is called.
    evaluation : str
        How the accuracy of the comparison came about.
    device : str, default="auto"
        Where to fit the probes.
    seed : int, default=0
        Seeds the folds.

    Returns
    -------
    Pipeline
        Without the cache, or anything else of this machine but the path of ``weights``. What is known is in its
        attribute ``facts_``, a dict that ``skvfusion info`` prints and by which ``skvfusion predict`` warns.
    """
    classifier, row = comparison.estimators[comparison.best], comparison.frame.loc[comparison.best]
    portable = clone(extractor).set_params(cache=None, device="auto", progress=False)
    model = Pipeline([("layers", portable), ("clf", classifier)])
    model.facts_ = {
        "method": str(row["label"]),
        "classes": [str(label) for label in classifier.classes_],
        "layers": list(extractor.layer_names_),
        "tokens": list(extractor.token_names_),
        "image_size": int(extractor.image_size_),
        "fingerprint": fingerprint(extractor),
        "data": data,
        "n_train": len(y),
        "n_test": len(comparison.y),
        "validation_accuracy": float(row["validation_accuracy"]),
        "accuracy": float(row["accuracy"]),
        "evaluation": evaluation,
        "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
        "versions": {name: version(name) for name in _VERSIONS},
        "probes": fit_layer_probes(X, y, device=device),
        "agreement": learn_agreement(X, y, classifier, groups=groups, device=device, seed=seed),
    }
    return model


def fingerprint(extractor):
    """Return what tells an extractor's backbone, its weights and its preprocessing from all others, as text."""
    device = resolve_device(extractor.device)
    return get_backbone(extractor.backbone, extractor.weights, extractor.image_size, device).fingerprint.hex()


def load_image_model(path, *, weights=None, **params):
    """Load a model that takes images.

    Parameters
    ----------
    path : str or path
        The file.
    weights : str or path, default=None
        The backbone's weights, if they are not where they were; None leaves that to the model.
    **params
        Parameters of the extractor that belong to a machine or a run, not to the model.

    Returns
    -------
    Pipeline
        Of an extractor and, fitted, the rest.

    Raises
    ------
    ValueError
        If the file is not a model, or one that takes something else than images.

    Warns
    -----
    UserWarning
        If the backbone is not as it was in training.
    """
    model = load(path)
    if not isinstance(model, Pipeline) or not isinstance(model[0], LayerwiseFeatureExtractor) or len(model) < 2:
        raise ValueError(
            f"{path} holds a {type(model).__name__} that takes something else than images. Use it in Python, by "
            "skvfusion.load; or save a Pipeline of a LayerwiseFeatureExtractor and a classifier."
        )
    if not hasattr(model, "predict_proba"):
        raise ValueError(f"{path} holds a {type(model[-1]).__name__}, which gives no probabilities; use it in Python.")
    check_is_fitted(model[-1])
    if weights is not None:
        params["weights"] = make_extractor(model[0].backbone, weights=weights).weights
    model[0].set_params(**params)
    facts = facts_of(model)
    if facts and fingerprint(model[0]) != facts["fingerprint"]:
        warnings.warn(
            f"The backbone {model[0].backbone!r} is not the one that {path} was trained with: its weights differ, or "
            "the libraries that build it. Predictions may be wrong. It was trained with "
            + ", ".join(f"{name} {number}" for name, number in facts["versions"].items())
            + ".",
            stacklevel=2,
        )
    return model


def facts_of(model):
    """Return what :func:`pack_model` noted of a model; None if it was not made by that."""
    facts = getattr(model, "facts_", None)
    return facts if isinstance(facts, dict) and {"probes", "agreement", "fingerprint"} <= facts.keys() else None


def predict_layers(pipeline, X):
    """Predict from layer stacks what ``skvfusion predict`` prints.

    Parameters
    ----------
    pipeline : Pipeline
        A model of :func:`pack_model`; of any other, nothing is known of disagreement.
    X : array of shape (n_samples, n_layers, ...)
        The output of its first step.

    Returns
    -------
    classes : list
        The most probable class.
    probabilities : list of float
        Its probability.
    depths : list of int or ""
        The first layer, counted from 0, from which on the probes of all layers agree with the class; the number of
        layers, if the last one does not agree.
    others : list of int or ""
        How many layers' probes give another class.
    disagreement : list of {"yes", "no", ""}
        "yes" where that is unusual; see :func:`skvfusion.agreement.learn_agreement`.
    """
    probabilities = pipeline[1:].predict_proba(X)
    answers = np.asarray(pipeline.classes_)[probabilities.argmax(axis=1)]
    depths = others = disagreement = [""] * len(X)
    facts = facts_of(pipeline)
    if facts:
        depths, others = layer_disagreement(facts["probes"], X, answers)
        if facts["agreement"]:
            disagreement = ["yes" if unusual else "no" for unusual in is_unusual(depths, others, facts["agreement"])]
        depths, others = depths.tolist(), others.tolist()
    return answers.tolist(), probabilities.max(axis=1).tolist(), depths, others, disagreement
