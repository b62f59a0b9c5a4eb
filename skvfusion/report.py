"""A comparison as one self-contained HTML page that answers first whether fusing pays."""

import base64
import datetime
import json
import re
import shlex
from io import BytesIO
from pathlib import Path

import numpy as np
import pandas as pd
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from .display import FirstCorrectLayerDisplay, LayerAgreementDisplay, RecoverabilityDisplay
from .extraction.images import ImageSequence
from .recoverability import (
    corrected_recovery_rate,
    correction_entropy,
    first_correct_layer,
    layer_accuracy,
    layer_harm,
    layer_recovery,
    oracle_accuracy,
    prediction_depth,
    recovery_rate,
)
from .verdict import (
    compared_methods,
    fused_method,
    label_of,
    number,
    percent,
    points,
    seconds,
    short_label_of,
    verdict,
    whole_percent,
)

_TABLES = ("results.csv", "layers.csv", "classes.csv")
_PICTURES = ("depth", "first_correct_layer", "layer_agreement")
#: All that is written.
REPORT_FILES = ("report.html", *_TABLES, *(f"{name}.png" for name in _PICTURES))

THUMBNAIL = 96
MAX_THUMBNAILS = 12
MAX_CLASSES = 24

_FACTS = {
    "data": "Data",
    "backbone": "Backbone",
    "n_train": "Training images",
    "n_test": "Evaluated images",
    "seed": "Seed",
    "versions": "Versions",
    "command": "Command",
    "date": "Date",
}

# Characters that HTML forbids, and halves of surrogate pairs, which stand for bytes of file names that are not UTF-8.
_FORBIDDEN = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufdd0-\ufdef\ufffe\uffff]")


def write_report(folder, comparison, *, images=None, title="Is it worth fusing the layers?", facts=None, model=None):
    """Write what a comparison found as a page for a reader in a hurry, with its tables and pictures beside it.

    The page, ``report.html``, needs neither network nor JavaScript; all pictures are in it. Written beside it are
    ``results.csv`` (a row per method), ``layers.csv``, ``classes.csv``, and the pictures as PNG files: ``depth.png``,
    ``first_correct_layer.png`` and ``layer_agreement.png``.

    Parameters
    ----------
    folder : str or path
        Where to write; made if it does not exist, and files of these names in it are replaced.
    comparison : Comparison
        What :func:`skvfusion.compare.run_comparison` returned.
    images : list of paths or other collection of images, default=None
        The evaluated samples in the comparison's order, for thumbnails of those that change; None leaves these out.
    title : str, default="Is it worth fusing the layers?"
        The page's title.
    facts : dict, default=None
        How the figures came about, shown in this order: ``data``, ``backbone``, ``n_train``, ``n_test``, ``seed``,
        ``versions`` (a dict), ``command``, ``date``, or whatever else. Without a date, today's is added.
    model : str, default=None
        Name of the file in ``folder`` that holds the saved model, for the page to say how to use it; None leaves that
        out.

    Returns
    -------
    Path
        Of ``report.html``.

    Raises
    ------
    ValueError
        If ``images`` are not as many as the evaluated samples, or ``folder`` is a file.
    ImportError
        If matplotlib is not installed.

    Notes
    -----
    The page speaks of one fusing method: the comparison's choice if that fuses, or else the fusing method with the
    highest validation accuracy. Both are choices that the evaluated images had no part in.
    """
    folder, n = Path(folder), len(comparison.y)
    if images is not None and len(images) != n:
        raise ValueError(f"There are {len(images)} images but {n} evaluated samples; pass one image for each sample.")
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{folder} is a file; give a folder to write the report into.")
    folder.mkdir(parents=True, exist_ok=True)
    fused = fused_method(comparison)
    layers, classes = _layer_table(comparison), _class_table(comparison, fused)
    for name, table in zip(_TABLES, (comparison.frame, layers, classes), strict=True):
        _write_csv(table, folder / name)
    page = _template().render(
        title=title,
        verdict=verdict(comparison),
        fused=None if fused is None else short_label_of(comparison, fused),
        methods=_method_rows(comparison),
        pictures=_draw(comparison, fused, folder),
        layers=layers,
        changes=_changes(comparison, fused, images),
        classes=_most_changed(classes),
        n_classes=len(classes),
        figures=_recoverability(comparison, fused),
        model=None if model is None or comparison.best is None else Path(model).name,
        chosen=None if comparison.best is None else label_of(comparison, comparison.best),
        facts=_facts(facts or {}),
    )
    path = folder / "report.html"
    path.write_bytes(page.encode("utf-8"))
    return path


# Of each column of the methods' table how it is written and which of its values is best; the template explains them.
_COLUMNS = {
    "accuracy": (percent, max),
    "gain": (points, max),
    "validation_accuracy": (percent, max),
    "balanced_accuracy": (percent, max),
    "auc": (number, max),
    "nll": (number, min),
    "ece": (percent, min),
    "gap_closed": (whole_percent, max),
    "fit_seconds": (seconds, None),
    "predict_seconds": (seconds, None),
}


def _method_rows(comparison):
    """Make the rows of the methods' table; cells that read as the best value of their column are marked."""
    frame, keys = comparison.frame, compared_methods(comparison)
    best = {}
    for column, (show, best_of) in _COLUMNS.items():
        values = frame.loc[[key for key in keys if key in comparison.probabilities], column].dropna()
        if best_of is not None and len(values):
            best[column] = show(best_of(values))
    rows = []
    for key in keys:
        texts = {column: show(float(frame.loc[key, column])) for column, (show, _) in _COLUMNS.items()}
        rows.append(
            {
                "label": label_of(comparison, key),
                "chosen": key == comparison.best,
                "failed": key not in comparison.probabilities,
                "error": frame.loc[key, "error"] or "",
                "cells": {column: {"text": text, "best": text == best.get(column)} for column, text in texts.items()},
                "interval": None if key == "last" else [frame.loc[key, "gain_low"], frame.loc[key, "gain_high"]],
            }
        )
    return rows


def _layer_table(comparison):
    """Per layer, shallow to deep: accuracy, R_l, H_l, and how many images no shallower layer gets right."""
    predictions, y = comparison.layer_predictions, comparison.y
    first = first_correct_layer(predictions, y)
    table = pd.DataFrame(
        {
            "accuracy": layer_accuracy(predictions, y),
            "recovery": layer_recovery(predictions, y),
            "harm": layer_harm(predictions, y),
            "first_correct": [int(np.sum(first == layer)) for layer in range(len(predictions))],
        }
    )
    return table.rename_axis("layer")


def _class_table(comparison, fused):
    """Per class: how many samples, and the accuracy of the last layer and of the fusing method; most gained first."""
    y = np.asarray(comparison.y)
    table = pd.DataFrame({"n": pd.Series(y).value_counts(sort=False).sort_index()}).rename_axis("class")
    right = {"last": comparison.layer_predictions[-1] == y}
    if fused is not None:
        right[fused] = _predictions(comparison, fused) == y
    for key, correct in right.items():
        table[key] = pd.Series(correct).groupby(y).mean()
    if fused is not None:
        table["difference"] = table[fused] - table["last"]
        table = table.sort_values("difference", ascending=False, kind="stable")
    return table


def _most_changed(table):
    """Return the table of classes, or of very many those that change most."""
    if len(table) <= MAX_CLASSES:
        return table
    return pd.concat([table.head(MAX_CLASSES // 2), table.tail(MAX_CLASSES // 2)])


def _predictions(comparison, key):
    return np.asarray(comparison.classes)[np.asarray(comparison.probabilities[key]).argmax(axis=1)]


def _changes(comparison, fused, images):
    """Find the images that inner layers rescue and those that fusing breaks, with thumbnails of the clearest."""
    y, layers = np.asarray(comparison.y), np.asarray(comparison.layer_predictions)
    last, inner = layers[-1] == y, (layers[:-1] == y).any(axis=0)
    answers = None if fused is None else _predictions(comparison, fused)
    right = last if fused is None else answers == y
    first = first_correct_layer(layers, y)
    source = None if images is None else ImageSequence(images)

    def cards(chosen, probabilities, certain):
        order = np.lexsort((-_of_true_class(comparison, probabilities), ~certain))
        return [
            {
                "thumbnail": None if source is None else _thumbnail(source, int(row)),
                "file": _file_name(images, int(row)),
                "true": y[row],
                "last": layers[-1, row],
                "first": None if first[row] < 0 else int(first[row]),
                "fused": None if answers is None else answers[row],
                "right": bool(right[row]),
            }
            for row in order[chosen[order]][:MAX_THUMBNAILS]
        ]

    rescuable, broken = ~last & inner, last & ~right
    fused_probabilities = comparison.layer_probabilities[-1] if fused is None else comparison.probabilities[fused]
    return {
        "n": len(y),
        "n_wrong": int(np.sum(~last)),
        "n_rescuable": int(np.sum(rescuable)),
        "n_rescued": int(np.sum(rescuable & right)),
        "n_together": int(np.sum(~last & ~inner & right)),
        "n_broken": int(np.sum(broken)),
        "rescued": cards(rescuable, fused_probabilities, right),
        "broken": cards(broken, comparison.layer_probabilities[-1], last),
    }


def _of_true_class(comparison, probabilities):
    """Return each sample's probability of its true class; 0 for a class that was not trained on."""
    return ((np.asarray(comparison.classes) == np.asarray(comparison.y)[:, None]) * probabilities).sum(axis=1)


def _thumbnail(source, row):
    """Return an image as a small JPEG in a data URI; None if it cannot be read any more."""
    try:
        image = source.source(row).rgb(THUMBNAIL)
    except ValueError:
        return None
    image.thumbnail((THUMBNAIL, THUMBNAIL))
    buffer = BytesIO()
    image.save(buffer, "JPEG", quality=85)
    return {"uri": _data_uri("image/jpeg", buffer.getvalue()), "width": image.width, "height": image.height}


def _file_name(images, row):
    """Name an image by its last two path parts, or by its position if it is no path."""
    if isinstance(images, np.ndarray | pd.Series | list | tuple):
        item = images.iloc[row] if isinstance(images, pd.Series) else images[row]
        if isinstance(item, str | Path):
            return "/".join(Path(item).parts[-2:])
    return f"image {row}"


def _data_uri(kind, data):
    return f"data:{kind};base64,{base64.b64encode(data).decode('ascii')}"


def _draw(comparison, fused, folder):
    """Draw the pictures and write them as PNG files; returns what the page embeds."""
    predictions, y = comparison.layer_predictions, comparison.y
    fused_predictions = None if fused is None else _predictions(comparison, fused)
    name = {} if fused is None else {"fused_name": short_label_of(comparison, fused)}
    displays = (
        RecoverabilityDisplay.from_predictions(y, predictions, fused_predictions, rates=True, **name),
        FirstCorrectLayerDisplay.from_predictions(y, predictions),
        LayerAgreementDisplay.from_predictions(predictions),
    )
    pictures = zip(_PICTURES, displays, strict=True)
    return {key: _save_picture(display.figure_, folder / f"{key}.png") for key, display in pictures}


def _save_picture(figure, path):
    buffer = BytesIO()
    figure.savefig(buffer, format="png", dpi=2 * figure.dpi)  # sharp where a page's pixel is two of the screen's
    path.write_bytes(buffer.getvalue())
    width, height = figure.get_size_inches() * figure.dpi
    return {"uri": _data_uri("image/png", buffer.getvalue()), "width": round(width), "height": round(height)}


def _recoverability(comparison, fused):
    """Return the figures that say what inner layers know and the last one does not."""
    predictions, y = comparison.layer_predictions, comparison.y
    return {
        "oracle": oracle_accuracy(predictions, y),
        "recovery": recovery_rate(predictions, y),
        "corrected": corrected_recovery_rate(predictions, y, n_draws=None),
        "entropy": correction_entropy(predictions, y),
        "depth": np.median(prediction_depth(predictions)),
        "gap_closed": np.nan if fused is None else comparison.frame.loc[fused, "gap_closed"],
    }


def _facts(facts):
    """Return how the figures came about, the known facts first and a date in any case."""
    facts = {"date": datetime.datetime.now().astimezone().strftime("%Y-%m-%d %H:%M %Z")} | facts
    known = [key for key in _FACTS if key in facts]
    return {_FACTS.get(key, key): facts[key] for key in known + [key for key in facts if key not in _FACTS]}


def _write_csv(table, path):
    table.to_csv(path, encoding="utf-8", errors="backslashreplace")


def _without_forbidden(value):
    # What has __html__ is markup already; as a plain str it would be escaped again.
    return _FORBIDDEN.sub("\ufffd", value) if isinstance(value, str) and not hasattr(value, "__html__") else value


def _template():
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent / "assets"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_without_forbidden,
    )
    environment.filters |= {
        "percent": percent,
        "points": points,
        "decimals": number,
        "python": json.dumps,
        "shell": shlex.quote,
    }
    return environment.get_template("report.html")
