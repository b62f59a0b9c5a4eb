"""What the commands for folders of images do; how they are called is in :mod:`skvfusion.cli`."""

import csv
import io
import os
import sys
import warnings
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from sklearn.base import clone

from .compare import run_comparison
from .console import estimator_facts, model_facts, print_comparison, print_predictions
from .devices import resolve_device
from .display import new_figure
from .extraction import alias_table
from .image_copies import find_copies
from .image_data import check_trainable, expand_user, list_images, read_images
from .image_model import (
    facts_of,
    load_image_model,
    make_extractor,
    pack_model,
    predict_layers,
    refusing_damage,
)
from .persistence import load, save
from .report import REPORT_FILES, write_report

MODEL = "model.skvfusion"
ON_ERROR = ("raise", "skip")
PREDICTION_COLUMNS = ("path", "class", "probability", "depth", "other_layers", "disagreement")

# Of each class one image to test on, and two to learn from, of which cross-validation leaves one out.
_AT_LEAST = 3
_AT_LEAST_IN_TRAIN = 2


def compare_images(
    data,
    report,
    *,
    backbone,
    groups=None,
    cache=None,
    on_error="raise",
    methods="all",
    test_size=0.25,
    cv=None,
    seed=0,
    device="auto",
    n_jobs=None,
    command=None,
    **extraction,
):
    """Compare all methods on a folder of images; write the report and the best model.

    Parameters
    ----------
    data, groups
        As in :func:`skvfusion.image_data.read_images`.
    report : Path
        The folder to write to: the report, its tables and pictures, and ``model.skvfusion``.
    backbone : str
        The backbone.
    cache : Path, default=None
        Where the layers of images are kept for other runs; None is ``cache`` in the report's folder.
    on_error : {"raise", "skip"}, default="raise"
        What to do about images that cannot be read: stop, or go on without them and list them.
    methods, test_size, cv, n_jobs
        As in :func:`skvfusion.compare.compare`.
    seed : int, default=0
        Seeds the split, the training and the bootstrap.
    device : str, default="auto"
        Where to compute.
    command : str, default=None
        How this was called, for the report.
    **extraction
        Parameters of the extractor.

    Raises
    ------
    ValueError, OSError, ImportError
        For whatever the user can change, as far as possible before anything is computed.
    """
    report = expand_user(report)
    cache = report / "cache" if cache is None else expand_user(cache)
    _check_outputs("--report", [report / name for name in (MODEL, *REPORT_FILES)], data, groups)
    _check_outside(data, {"--report": report, "--cache": cache})
    resolve_device(device)
    new_figure()  # a library that is missing should show before the work is done
    found = read_images(data, groups=groups)
    _tell(*found.notes)
    _check(found)
    if cv is not None and found.split is not None:
        raise ValueError(f"--cv is for data without a test split, and {data} has one; leave out --cv.")
    extractor = _make_extractor(backbone, device=device, cache=cache, **extraction)
    print(f"{_describe(found)}; {len(extractor.layers_)} layers of {backbone!r}", flush=True)
    report.mkdir(parents=True, exist_ok=True)
    X, kept = _transform(extractor, found.paths, on_error)
    if len(kept) < len(found):
        found = found.take(kept)
        _check(found)
    train, test = _split(found)
    every = train if test is None else np.concatenate([train, test])
    if test is not None:
        _tell_of_copies(found, train, test)
    print("Comparing the methods", flush=True)
    comparison = run_comparison(
        X[train],
        found.labels[train],
        X_test=None if test is None else X[test],
        y_test=None if test is None else found.labels[test],
        groups=None if found.groups is None else found.groups[every],
        methods=methods,
        test_size=test_size,
        cv=cv,
        n_jobs=n_jobs,
        device=device,
        random_state=seed,
        progress=_on_terminal(),
    )
    if comparison.best is None:
        raise ValueError(f"No method could be fitted. The first says: {comparison.frame['error'].iloc[0]}")
    evaluated = (train if test is None else test)[comparison.rows]
    learned = np.setdiff1d(train, evaluated) if cv is None else train
    if test is None and cv is None:
        _tell_of_copies(found, learned, evaluated)
    print("Learning from the training images which disagreement of layers is unusual", flush=True)
    name = os.path.basename(os.path.realpath(expand_user(data)))
    model = pack_model(
        extractor,
        comparison,
        X[learned],
        found.labels[learned],
        groups=None if found.groups is None else found.groups[learned],
        data=name,
        evaluation="in cross-validation" if cv is not None else "that were held out",
        device=device,
        seed=seed,
    )
    save(model, report / MODEL)
    path = write_report(
        report,
        comparison,
        images=[found.paths[row] for row in evaluated],
        title=f"Is it worth fusing the layers on {name}?",
        facts={
            "data": os.fspath(data),
            "backbone": backbone,
            "n_train": len(learned),
            "n_test": len(evaluated),
            "seed": seed,
            "versions": model.facts_["versions"],
            "command": command,
        },
        model=MODEL,
    )
    print_comparison(comparison)
    print(f"Wrote {path}, the tables and pictures in it, and the model {report / MODEL}")


def predict_images(model, images, *, as_csv=False, cache=None, weights=None, device="auto", on_error="raise"):
    """Print the class of each image, its probability, and whether layers disagree unusually much.

    Parameters
    ----------
    model : Path
        A model file of :func:`compare_images`, or one that ``skvfusion.save`` wrote of a pipeline that takes images.
    images : list of str
        Files, and folders, of which all images at any depth are taken.
    as_csv : bool, default=False
        Whether to print a table for programs rather than for people.
    cache, weights, device, on_error
        As in :func:`compare_images`; ``weights`` replaces the path that the model names.
    """
    paths = list_images(images)
    resolve_device(device)
    cache = None if cache is None else expand_user(cache)
    pipeline = load_image_model(model, weights=weights, device=device, cache=cache, progress=_on_terminal())
    X, kept = _transform(pipeline[0], paths, on_error)
    with refusing_damage(model):
        rows = zip(*predict_layers(pipeline, X), strict=True)
    table = [(paths[row], *values) for row, values in zip(kept, rows, strict=True)]
    if not as_csv:
        print_predictions(table, facts_of(pipeline))
        return
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(PREDICTION_COLUMNS)
    writer.writerows(table)
    print(text.getvalue(), end="")


def extract_images(
    data, out, *, backbone, groups=None, cache=None, on_error="raise", dtype="float32", device="auto", **extraction
):
    """Write the layers of all images to a .npy file, and beside it a table of the same name with their labels.

    Parameters
    ----------
    data, groups, backbone, cache, on_error, device, **extraction
        As in :func:`compare_images`, but nothing is kept without ``cache``.
    out : Path
        The .npy file. The table has the columns path, label and row, and group and split if the data has; an image
        that cannot be read has a row of NaN and is not in the table.
    dtype : {"float32", "float16"}, default="float32"
        What is stored.
    """
    if out.suffix != ".npy":
        raise ValueError(f"--out {out} must end in .npy; the labels are written to a .csv file beside it.")
    out = expand_user(out)
    cache = None if cache is None else expand_user(cache)
    table = out.with_suffix(".csv")
    _check_outputs("--out", [out, table], data, groups)
    _check_outside(data, {"--cache": cache})
    resolve_device(device)
    found = read_images(data, groups=groups)
    _tell(*found.notes)
    extractor = _make_extractor(backbone, device=device, cache=cache, **extraction)
    print(f"{_describe(found)}; {len(extractor.layers_)} layers of {backbone!r}", flush=True)
    out.parent.mkdir(parents=True, exist_ok=True)
    with _reading(extractor, on_error) as reader:
        X = reader.extract(found.paths, out, dtype=dtype)
    kept = _readable(extractor, X, found.paths)
    columns = {"path": found.paths, "label": found.labels, "row": range(len(found))}
    columns |= {"group": found.groups, "split": found.split}
    columns = {name: list(values) for name, values in columns.items() if values is not None}
    # Names of files need not be text.
    with open(table, "w", newline="", encoding="utf-8", errors="surrogateescape") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        writer.writerows([values[row] for values in columns.values()] for row in kept)
    print(f"Wrote {out}, {X.dtype} of shape {X.shape}, and {table}")


def describe_model(model):
    """Print what is known of a model file.

    Parameters
    ----------
    model : Path
        The file.
    """
    loaded = load(model)
    with refusing_damage(model):
        facts = model_facts(loaded) if facts_of(loaded) else estimator_facts(loaded)
    print(model)
    for name, value in facts.items():
        print(f"  {name:<12} {value}")


def list_backbones():
    """Print the short names of backbones."""
    print(alias_table().to_string())
    print("\nAny other timm model will do, too, by its name, and local-dir:FOLDER for one on this machine.")


def _make_extractor(backbone, **params):
    """Return an extractor whose parameters are known to fit each other."""
    return make_extractor(backbone, progress=_on_terminal(), **params).fit()


def _check_outputs(option, files, data, groups):
    """Raise an error unless these files of one folder can be written and are none of those that are read."""
    folder = files[0].parent
    there = folder
    while not os.path.lexists(there) and there != there.parent:
        there = there.parent
    if there.exists() and not there.is_dir():
        raise ValueError(f"{there} is a file; give a folder.")
    if not os.access(there, os.W_OK | os.X_OK):
        raise PermissionError(f"Nothing can be written to the folder {there}; choose another {option}.")
    for file in files:
        if file.is_dir():
            raise ValueError(
                f"{file} is a folder, and a file of that name would be written. Rename it, or choose another {option}."
            )
        for name, source in {"DATA": data, "--groups": groups}.items():
            if source is not None and _is_same(file, expand_user(source)):
                raise ValueError(f"{file} would be written, but is what {name} reads. Choose another {option}.")


def _check_outside(data, folders):
    """Raise ValueError if one of these folders, of which one may be None, is in a folder of images, and not hidden."""
    data = os.path.realpath(expand_user(data))
    for option, folder in folders.items():
        if folder is None or not os.path.isdir(data):
            continue
        inside = Path(os.path.realpath(folder))
        if inside.is_relative_to(data) and not any(part.startswith(".") for part in inside.relative_to(data).parts):
            raise ValueError(
                f"The folder {folder} of {option} is inside DATA, {data}, and what is in it would be taken for data by "
                f"the next run. Choose a folder outside of it by {option}."
            )


def _is_same(file, other):
    try:
        return file.samefile(other)
    except OSError:  # one of them does not exist
        return os.path.realpath(file) == os.path.realpath(other)


def _tell_of_copies(found, train, test):
    """Tell of images to test on that were learned from, too."""
    copies = find_copies([found.paths[row] for row in test], [found.paths[row] for row in train])
    if copies:
        first, original = copies[0]
        _tell(
            f"{len(copies)} of {len(test)} images to test on also to train on, byte by byte, so that accuracy may look "
            f"higher than it is: {first} is the same image as {original}. Leave one of the two out, or, where the test "
            "split is drawn, give both the same group."
        )


def _check(found):
    check_trainable(found, _AT_LEAST if found.split is None else _AT_LEAST_IN_TRAIN)


def _split(found):
    """Return the rows to learn from and those to test on, or all of them and None."""
    if found.split is None:
        return np.arange(len(found)), None
    return np.flatnonzero(found.split == "train"), np.flatnonzero(found.split == "test")


def _describe(found):
    text = f"{len(found)} images of {len(np.unique(found.labels))} classes"
    if found.groups is not None:
        text += f" in {len(np.unique(found.groups))} groups"
    if found.split is not None:
        text += f", {(found.split == 'train').sum()} to train on and {(found.split == 'test').sum()} to test on"
    return text


def _transform(extractor, paths, on_error):
    """Return the layers of the images that can be read, and their rows."""
    with _reading(extractor, on_error) as reader:
        X = reader.transform(paths)
    kept = _readable(extractor, X, paths)
    return (X if len(kept) == len(paths) else X[kept]), kept


@contextmanager
def _reading(extractor, on_error):
    """Give an extractor that does about unreadable images what is wanted."""
    skip = on_error == "skip"
    try:
        with warnings.catch_warnings():
            # They are all listed afterwards.
            warnings.filterwarnings("ignore", message=".* images cannot be used; their rows are NaN")
            yield clone(extractor).set_params(on_error="nan" if skip else "raise")
    except ValueError as error:
        if skip or " cannot be used: " not in str(error):
            raise
        raise ValueError(f"{error} --on-error skip goes on without such images, and lists them.") from error


def _readable(extractor, X, paths):
    """Return the rows of images that were read; list the others."""
    unread = np.flatnonzero(np.isnan(X.reshape(len(X), -1)[:, 0]))
    if len(unread) == 0:
        return np.arange(len(X))
    reasons = [f"  {_reason(extractor, paths[row])}" for row in unread]
    if len(unread) == len(X):
        raise ValueError("\n".join([f"None of the {len(X)} images can be used:", *reasons[:5]]))
    _tell("\n".join([f"Left out {len(unread)} of {len(X)} images, which cannot be used:", *reasons]))
    return np.setdiff1d(np.arange(len(X)), unread)


def _reason(extractor, path):
    try:
        clone(extractor).set_params(progress=False).transform([path])
    except ValueError as error:
        return f"{path}: {str(error).partition(' cannot be used: ')[2] or error}"
    return f"{path}: it could not be read a moment ago"


def _on_terminal():
    return sys.stderr.isatty()


def _tell(*sentences):
    for sentence in sentences:
        print(f"skvfusion: {sentence}", file=sys.stderr, flush=True)
