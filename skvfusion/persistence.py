"""Model files that load without executing code: a format of skops behind a gate that lets in only known types."""

import importlib.metadata
import json
import os
import sys
import uuid
import warnings
import zipfile
from io import BytesIO
from pathlib import Path

from sklearn.base import BaseEstimator
from torch import nn

FORMAT = "skvfusion model"
VERSION = 1

# The oldest protocol of skops that this format was ever written with; readers of older ones are laxer.
_OLDEST_PROTOCOL = 2
# What describes a model without its arrays takes some hundred KiB; a small file may unpack to far more.
_LARGEST_SCHEMA = 64 * 2**20
_PACKAGE = __package__
_STATE = f"{_PACKAGE}.fusion."
# Warned of when they differ, and only noted, respectively.
_WATCHED = ("skvfusion", "torch", "scikit-learn")
_NOTED = ("numpy", "skops", "skorch")

# What parameters and fitted attributes may hold beside what skops trusts. All of it only stores what it is given.
_HARMLESS = {
    "sklearn.utils._bunch.Bunch",
    "sklearn.calibration._CalibratedClassifier",
    "sklearn.calibration._SigmoidCalibration",
    "torch.device",
    *(f"{module}.{name}" for module in ("pathlib", "pathlib._local") for name in ("PosixPath", "WindowsPath")),
    *(
        f"sklearn.model_selection._split.{name}"
        for name in (
            "GroupKFold",
            "GroupShuffleSplit",
            "KFold",
            "LeaveOneGroupOut",
            "LeaveOneOut",
            "LeavePGroupsOut",
            "LeavePOut",
            "PredefinedSplit",
            "RepeatedKFold",
            "RepeatedStratifiedKFold",
            "ShuffleSplit",
            "StratifiedGroupKFold",
            "StratifiedKFold",
            "StratifiedShuffleSplit",
            "TimeSeriesSplit",
        )
    ),
}


def save(model, path, *, trusted=()):
    """Save a model to a file that :func:`load` reads without executing code.

    The file is written as a whole or not at all, and only if it can be loaded again. A backbone's weights are never in
    it.

    Parameters
    ----------
    model : estimator
        A classifier of this package, fitted or not, or a scikit-learn estimator that contains some: a pipeline, a
        voting or stacking classifier, the ``best_estimator_`` of a grid search.
    path : str or path
        The file; one that exists is replaced. ``.skops`` is a fitting ending.
    trusted : list of str, default=()
        Full names of further types that the model may contain. :func:`load` must be given them too.

    Raises
    ------
    ValueError
        If the model contains something that cannot be saved, or ``path`` is a folder.
    FileNotFoundError
        If the file's folder does not exist.

    Examples
    --------
    >>> import os, tempfile
    >>> import skvfusion
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     skvfusion.save(skvfusion.VFusionClassifier(hidden=64), os.path.join(folder, "model.skops"))
    ...     os.listdir(folder)
    ['model.skops']
    """
    from skops import io as skops_io  # here and below, because it takes a second and most runs need none of it

    path = Path(path)
    if path.is_dir():
        raise ValueError(f"{path} is a folder; give the name of a file.")
    if not path.parent.is_dir():
        raise FileNotFoundError(f"{path} cannot be written: the folder {path.parent} does not exist.")
    content = {"format": FORMAT, "version": VERSION, "library_versions": _versions(), "model": model}
    try:
        data = skops_io.dumps(content, compression=zipfile.ZIP_DEFLATED, compresslevel=1)
        schema = _read_schema(data)
        _check_keys(schema)
    except Exception as error:
        raise ValueError(f"This {type(model).__name__} cannot be saved: {error}") from error
    unknown, refused = _audit(data, schema, trusted)
    if refused:
        raise ValueError(
            f"This {type(model).__name__} cannot be saved, because load would not trust what it contains: "
            f"{', '.join(refused)}. Set the parameter that holds it to None or to something else (for a search, save "
            "its best_estimator_), or, for types that you vouch for, give save and load trusted=[their names]."
        )
    try:
        skops_io.loads(data, trusted=unknown)
    except Exception as error:
        raise ValueError(
            f"This {type(model).__name__} cannot be saved, because what was written does not load: {error}"
        ) from error
    _replace(path, data)


def load(path, *, trusted=()):
    """Load a model that :func:`save` wrote, without executing code from the file.

    Only estimators and nets of this package, what skops trusts of scikit-learn and numpy, and plain Python are built;
    a file that names anything else is refused before any of it is imported or run.

    Parameters
    ----------
    path : str or path
        The file.
    trusted : list of str, default=()
        Full names of further types to let in, as they are listed in the error that refuses them. Their code may run:
        name only what you know, and nothing merely because a file asks for it.

    Returns
    -------
    estimator
        The model as it was saved. A net that was fitted on a device that this machine lacks is on the CPU, with a
        warning.

    Raises
    ------
    FileNotFoundError
        If there is no such file.
    ValueError
        If the file is not a model of this package, is damaged, was written by a newer version, or contains types that
        are not trusted.

    Warns
    -----
    UserWarning
        If skvfusion, torch or scikit-learn had another major or minor version when the model was saved.

    Examples
    --------
    >>> import os, tempfile
    >>> import skvfusion
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = os.path.join(folder, "model.skops")
    ...     skvfusion.save(skvfusion.LayerProbeClassifier("best"), path)
    ...     skvfusion.load(path)
    LayerProbeClassifier(layer='best')
    """
    from skops import io as skops_io

    path = Path(path)
    if path.is_dir():
        raise ValueError(f"{path} is a folder; expected a file written by skvfusion.save.")
    if not path.exists():
        raise FileNotFoundError(f"There is no file {path}.")
    data = path.read_bytes()
    try:
        schema = _read_schema(data)
    except Exception as error:
        raise ValueError(f"{path} is {_describe(data)}; expected a file written by skvfusion.save.") from error
    version, saved_with = _read_header(path, schema)
    if version > VERSION:
        raise ValueError(
            f"{path} is a model file of version {version}, and this skvfusion ({_versions()['skvfusion']}) reads up to "
            f"version {VERSION}. Upgrade skvfusion to load it."
        )
    try:
        unknown, refused = _audit(data, schema, trusted)
    except Exception as error:
        raise ValueError(f"{path} cannot be read: {error}") from error
    if refused:
        raise ValueError(
            f"{path} is refused: it contains types that are not trusted: {', '.join(refused)}. Nothing of it was run. "
            "If you know these types and where the file comes from, load it with trusted=[their names]."
        )
    _warn_of_versions(path, saved_with)
    try:
        return skops_io.loads(data, trusted=unknown)["model"]
    except Exception as error:
        raise ValueError(
            f"{path} cannot be loaded: {error}. It is damaged, or was saved with versions that differ too much from "
            f"those here: {saved_with}, now {_versions()}."
        ) from error


def _audit(data, schema, trusted):
    """List the types that skops does not trust by itself, and those of them that must not be let in."""
    from skops import io as skops_io

    if type(schema["protocol"]) is not int or schema["protocol"] < _OLDEST_PROTOCOL:
        raise ValueError(f"protocol {schema['protocol']!r} of skops was never used for this format.")
    unknown = skops_io.get_untrusted_types(data=data)
    known = _HARMLESS | _own_types(schema) | ({trusted} if isinstance(trusted, str) else set(trusted))
    return unknown, [name for name in unknown if name not in known]


def _own_types(schema):
    """Name the classes of this package that the file uses, without those it uses otherwise than save does."""
    right, wrong = set(), set()
    for node in _nodes(schema):
        module, name = node.get("__module__"), node.get("__class__")
        if isinstance(module, str) and isinstance(name, str) and module.partition(".")[0] == _PACKAGE:
            (right if node["__loader__"] == _loader(module, name) else wrong).add(f"{module}.{name}")
    return right - wrong


def _loader(module, name):
    """Tell in which way a class of this package may occur in a file, or return None if not at all.

    Nothing is imported: all such classes were when the package was. What a module merely imported, and what is not a
    class, is not ours.
    """
    found = vars(sys.modules[module]).get(name) if module in sys.modules else None
    if not isinstance(found, type) or (found.__module__, found.__qualname__) != (module, name):
        return None
    if issubclass(found, nn.Module):
        # Only named; its weights are with the net, which builds it.
        return "TypeNode"
    # What holds an estimator's fitted state: building one runs no code of its own.
    plain = found.__bases__ == (object,) and not {"__new__", "__setstate__", "__del__"} & vars(found).keys()
    return "ObjectNode" if issubclass(found, BaseEstimator) or (plain and module.startswith(_STATE)) else None


def _nodes(schema):
    """Yield everything in a schema that skops may take for a node, and perhaps more."""
    values = [schema]
    while values:
        value = values.pop()
        if isinstance(value, dict):
            if "__loader__" in value:
                yield value
            values.extend(value.values())
        elif isinstance(value, list):
            values.extend(value)


def _check_keys(schema):
    """Refuse dicts whose keys would not come back: the file has them as text."""
    for node in _nodes(schema):
        if node["__loader__"] == "DictNode":
            types = {key["__class__"] for key in node["key_types"]["content"]}
            if types & {"bool", "bool_", "NoneType"} or len(node["key_types"]["content"]) != len(node["content"]):
                raise ValueError(
                    f"a dict with the keys {list(node['content'])} does not survive. Use keys of one type that is not "
                    "bool; as keys of class_weight, 0 and 1 mean False and True."
                )


def _read_schema(data):
    with zipfile.ZipFile(BytesIO(data)) as file:
        size = file.getinfo("schema.json").file_size
        if size > _LARGEST_SCHEMA:
            raise ValueError(f"its schema.json takes {size} bytes, and {_LARGEST_SCHEMA} are allowed.")
        return json.loads(file.read("schema.json"))


def _read_header(path, schema):
    """Return the format's version and the libraries' versions, without building anything."""
    try:
        header = {name: json.loads(schema["content"][name]["content"]) for name in ("format", "version")}
        versions = schema["content"]["library_versions"]["content"]
        saved_with = {name: json.loads(node["content"]) for name, node in versions.items()}
        if header["format"] == FORMAT and isinstance(header["version"], int):
            return header["version"], saved_with
    except Exception:  # of the many ways not to be ours, each raises another error
        pass
    raise ValueError(f"{path} is a skops file of something else; expected a file written by skvfusion.save.")


def _describe(data):
    """Tell what a file is that is not one of skops."""
    if not data:
        return "empty"
    if data.startswith(b"\x80"):
        return "a pickle, which could execute anything and is not read"
    if not data.startswith(b"PK"):
        return "of another kind"
    try:
        with zipfile.ZipFile(BytesIO(data)) as file:
            if "schema.json" not in file.namelist():
                return "another kind of zip file"
            size = file.getinfo("schema.json").file_size
    except Exception:  # zipfile has several for what it cannot read, not only its own
        return "damaged or incomplete"
    if size > _LARGEST_SCHEMA:
        return f"damaged: its schema.json takes {size} bytes, and {_LARGEST_SCHEMA} are allowed"
    return "damaged"


def _versions():
    return {name: importlib.metadata.version(name) for name in _WATCHED + _NOTED}


def _warn_of_versions(path, saved):
    now = _versions()
    different = [
        f"{name} {saved.get(name)} (now {now[name]})"
        for name in _WATCHED
        if str(saved.get(name)).split(".")[:2] != now[name].split(".")[:2]
    ]
    if different:
        message = f"{path} was saved with {', '.join(different)}; check that it still predicts the same."
        warnings.warn(message, UserWarning, stacklevel=3)


def _replace(path, data):
    """Write a file as a whole or not at all."""
    # A name of its own, opened as any file is, so that it has the permissions that the user's files have.
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        with open(temporary, "xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
