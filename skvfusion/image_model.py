"""The model of a folder of images: a pipeline from paths to classes, and what is known of it."""

import datetime
import os
import warnings
from contextlib import contextmanager
from importlib.metadata import version

import numpy as np
from sklearn.base import clone
from sklearn.pipeline import Pipeline
from sklearn.utils.validation import check_is_fitted

from .agreement import fit_layer_probes, is_unusual, layer_disagreement, learn_agreement
from .devices import resolve_device
from .extraction import LayerwiseFeatureExtractor
from .extraction.backbones import get_backbone
from .fusion import LayerVotingClassifier
from .persistence import load

_VERSIONS = ("skvfusion", "torch", "timm", "scikit-learn", "numpy")
_FOLDER = "local-dir:"
_NUMBER = (float, int)
_MAYBE = (float, int, type(None))
# What pack_model notes, and the rule among it.
_FACTS = {
    "method": (str,),
    "classes": (list,),
    "layers": (list,),
    "tokens": (list,),
    "image_size": (int,),
    "fingerprint": (str,),
    "data": (str,),
    "n_train": (int,),
    "n_test": (int,),
    "validation_accuracy": _NUMBER,
    "accuracy": _NUMBER,
    "evaluation": (str,),
    "date": (str,),
    "versions": (dict,),
    "probes": (LayerVotingClassifier,),
    "agreement": (dict, type(None)),
}
_RULE = {"depth": (int,), "others": (int,), "share": _NUMBER, "accuracy": _MAYBE, "other_accuracy": _MAYBE}


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
        backbone = _FOLDER + os.path.abspath(os.path.expanduser(backbone.removeprefix(_FOLDER)))
    if weights not in (None, "random"):
        weights = os.path.abspath(os.path.expanduser(weights))
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
        If the file is not a model, is damaged, or takes something else than images.

    Warns
    -----
    UserWarning
        If the backbone is not as it was in training.
    """
    model = load(path)
    with refusing_damage(path):
        if not isinstance(model, Pipeline) or not isinstance(model[0], LayerwiseFeatureExtractor) or len(model) < 2:
            raise ValueError(
                f"{path} holds a {type(model).__name__} that takes something else than images. Use it in Python, by "
                "skvfusion.load; or save a Pipeline of a LayerwiseFeatureExtractor and a classifier."
            )
        if not hasattr(model, "predict_proba"):
            raise ValueError(
                f"{path} holds a {type(model[-1]).__name__}, which gives no probabilities; use it in Python."
            )
        check_is_fitted(model[-1])
        if not isinstance(model[0].backbone, str):
            raise TypeError(f"its backbone is a {type(model[0].backbone).__name__}, and must be a str")
        try:
            model[0]._validate_params()
        except ValueError as error:
            raise TypeError(str(error)) from error
        facts = facts_of(model)
    if weights is not None:
        params["weights"] = make_extractor(model[0].backbone, weights=weights).weights
    model[0].set_params(**params)
    with refusing_damage(path):
        as_trained = not facts or fingerprint(model[0]) == facts["fingerprint"]
    if not as_trained:
        warnings.warn(
            f"The backbone {model[0].backbone!r} is not the one that {path} was trained with: its weights differ, or "
            "the libraries that build it. Predictions may be wrong. It was trained with "
            + ", ".join(f"{name} {number}" for name, number in facts["versions"].items())
            + ".",
            stacklevel=2,
        )
    return model


def facts_of(model):
    """Return what :func:`pack_model` noted of a model; None if it was not made by that.

    Parameters
    ----------
    model : estimator
        As it was loaded.

    Returns
    -------
    dict or None

    Raises
    ------
    TypeError
        If these notes are of other types than :func:`pack_model` notes.
    """
    facts = getattr(model, "facts_", None)
    if not isinstance(facts, dict) or not {"probes", "agreement", "fingerprint"} <= facts.keys():
        return None
    _check_types(facts, _FACTS, "facts_")
    if facts["agreement"] is not None:
        _check_types(facts["agreement"], _RULE, "agreement")
    for name in ("classes", "layers", "tokens"):
        if not all(isinstance(value, str) for value in facts[name]):
            raise TypeError(f"{name} in its facts_ must hold nothing but str")
    return facts


@contextmanager
def refusing_damage(path):
    """Turn the errors of using what was loaded from a file, if it is not as it should be, into one of the user's.

    Parameters
    ----------
    path : str or path
        The file.

    Raises
    ------
    ValueError
        In place of an AttributeError, TypeError, IndexError or KeyError.
    """
    try:
        yield
    except ValueError:  # an estimator's that is not fitted is an AttributeError, too
        raise
    except (AttributeError, TypeError, IndexError, KeyError) as error:
        raise ValueError(
            f"{path} is not a model of skvfusion, or is damaged: {error}. Use a file that skvfusion compare or "
            "skvfusion.save wrote."
        ) from error


def _check_types(values, types, name):
    if not isinstance(values, dict):
        raise TypeError(f"its {name} is a {type(values).__name__}, and must be a dict")
    for key, allowed in types.items():
        if key not in values:
            raise TypeError(f"its {name} lacks {key!r}")
        if not isinstance(values[key], allowed) or isinstance(values[key], bool):
            names = " or ".join(kind.__name__ for kind in allowed)
            raise TypeError(f"{key!r} in its {name} is a {type(values[key]).__name__}, and must be {names}")


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
