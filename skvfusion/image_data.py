"""Images and their labels as people have them on disk: a folder per class, or a table."""

import os
import unicodedata
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from .image_table import COLUMNS, few, read_rows

#: Endings of the files that are taken for images in a folder; a table may name any file.
IMAGE_ENDINGS = frozenset(
    {
        ".avif",
        ".bmp",
        ".dib",
        ".gif",
        ".ico",
        ".j2k",
        ".jfif",
        ".jp2",
        ".jpe",
        ".jpeg",
        ".jpg",
        ".pbm",
        ".pgm",
        ".png",
        ".pnm",
        ".ppm",
        ".tga",
        ".tif",
        ".tiff",
        ".webp",
    }
)
TABLE_ENDINGS = (".csv", ".tsv", ".txt")
SPLITS = ("train", "test")

# What others call train and test.
_TRAIN_NAMES = ("train", "training")
_TEST_NAMES = ("test", "testing", "val", "valid", "validation", "dev")


@dataclass(frozen=True)
class ImageData:
    """Images of known class.

    Attributes
    ----------
    paths : list of str
        The files, absolute.
    labels : ndarray of str of shape (n_images,)
        Their classes.
    groups : ndarray of str of shape (n_images,) or None
        What belongs together, such as a patient's images.
    split : ndarray of str of shape (n_images,) or None
        ``"train"`` or ``"test"`` for each image, if the data says so.
    notes : list of str
        What was left out, or looks like a mistake: a sentence each.
    """

    paths: list
    labels: np.ndarray
    groups: np.ndarray | None = None
    split: np.ndarray | None = None
    notes: list = field(default_factory=list)

    def __len__(self):
        """Return the number of images."""
        return len(self.paths)

    def take(self, rows):
        """Return some of the images.

        Parameters
        ----------
        rows : array of int
            Which.

        Returns
        -------
        ImageData
        """
        return replace(
            self,
            paths=[self.paths[row] for row in rows],
            labels=self.labels[rows],
            groups=None if self.groups is None else self.groups[rows],
            split=None if self.split is None else self.split[rows],
        )


def read_images(data, *, groups=None):
    """Find images and their classes; no image is opened.

    Parameters
    ----------
    data : str or path
        A folder with a sub-folder per class, whose name is the label, or with ``train`` and ``test`` (in whatever
        case) that hold such sub-folders. Images are found at any depth below a class, by the ending of their names,
        through links, too; what begins with a dot is left out.

        Or a table with the columns ``path`` and ``label`` and perhaps ``group`` and ``split`` (train or test), in any
        order, separated by commas, semicolons or tabs, in UTF-8. Other columns are ignored. A relative path starts
        from the table's folder.
    groups : str or path, default=None
        A table with the columns ``path`` and ``group`` that gives each image its group. A relative path starts from
        this table's folder.

    Returns
    -------
    ImageData
        Sorted by split, class and path if they come from a folder; in the order of a table.

    Raises
    ------
    FileNotFoundError
        If there is no such folder or file.
    ValueError
        If there are no images, or the folders or the table are not as described; the message says what was found.
    """
    path = expand_user(data)
    if not path.exists():
        raise FileNotFoundError(f"There is no folder or file {path}.")
    found = _read_folder(path) if path.is_dir() else _read_table(path)
    return found if groups is None else _with_groups(found, expand_user(groups))


def check_trainable(data, at_least=2):
    """Raise ValueError unless a classifier can learn from these images and be tested on them.

    Parameters
    ----------
    data : ImageData
        The images.
    at_least : int, default=2
        How many images of each class there must be to learn from; where there is no test split, that is in all.
    """
    train = data.labels if data.split is None else data.labels[data.split == "train"]
    where = "" if data.split is None else " to train on"
    counts = Counter(train.tolist())
    if data.split is not None:
        unknown = Counter(data.labels[data.split == "test"].tolist())
        unknown = {label: count for label, count in sorted(unknown.items()) if label not in counts}
        if unknown:
            raise ValueError(
                f"{_count(len(unknown), 'class', 'classes')} in the test split cannot be learned, because there is no "
                f"image of {'it' if len(unknown) == 1 else 'them'} to train on: {_tally(unknown)}. Add images to the "
                "training split or take the class out of the test split."
            )
    if len(counts) < 2:
        raise ValueError(
            f"There are images of one class only{where}, {next(iter(counts))!r}; there must be at least two "
            "classes. DATA is the folder that holds a sub-folder per class."
        )
    few = {label: count for label, count in sorted(counts.items()) if count < at_least}
    if few:
        raise ValueError(
            f"There must be at least {at_least} images of each class{where}, and there are fewer of "
            f"{_count(len(few), 'class', 'classes')}: {_tally(few)}. Add images, or take the class out."
        )


def expand_user(path):
    """Return a path that a user typed with the home folder in place of ``~``.

    Parameters
    ----------
    path : str or path
        It may begin with ``~`` or ``~name``; if there is no such home folder, that is a name like any other.

    Returns
    -------
    Path
        One that :meth:`pathlib.Path.expanduser` leaves alone.
    """
    path = os.path.expanduser(path)
    return Path(os.path.abspath(path) if path.startswith("~") else path)


def list_images(paths):
    """Turn files and folders into a list of files.

    Parameters
    ----------
    paths : list of str or path
        Files are taken as they are; of a folder, all images at any depth.

    Returns
    -------
    list of str

    Raises
    ------
    ValueError
        If a folder holds no image.
    """
    found = []
    for path in paths:
        if not os.path.isdir(path):
            found.append(os.fspath(path))
            continue
        images, _ = _images_below(Path(path))
        if not images:
            raise ValueError(f"The folder {path} holds no images ({_endings()}).")
        found += images
    return found


def _read_folder(folder):
    subfolders = _subfolders(folder)
    by_name = {sub.name.lower(): sub for sub in subfolders}
    splits = [by_name[name] for name in SPLITS if name in by_name]
    if len(splits) < 2:
        _check_names_of_split(folder, by_name)
    if len(splits) == 2 and any(_subfolders(split) for split in splits):
        unused = [sub.name for sub in subfolders if sub not in splits]
        notes = [f"Not used, because only train and test are: {few(unused)}."] if unused else []
        parts = {name: _read_classes(split, notes) for name, split in zip(SPLITS, splits, strict=True)}
    elif len(splits) == len(subfolders) == 1 and _subfolders(splits[0]):
        missing = SPLITS[splits[0].name.lower() == "train"]
        raise ValueError(
            f"{folder} holds {splits[0].name} but no {missing} beside it. Add {missing}, or pass {splits[0]} itself, "
            "from which a test split is then drawn."
        )
    elif subfolders and len(splits) == 2:
        raise ValueError(f"{splits[0]} and {splits[1]} hold no sub-folders; each must have a sub-folder per class.")
    else:
        notes = []
        parts = {None: _read_classes(folder, notes)}
    images = [(path, label, split) for split, part in parts.items() for path, label in part]
    paths, labels, split = zip(*images, strict=True)
    return ImageData(list(paths), np.array(labels), None, None if None in parts else np.array(split), notes)


def _check_names_of_split(folder, by_name):
    """Refuse sub-folders that are parts of a split under other names than train and test: they look like classes."""
    train, test = ([name for name in names if name in by_name] for names in (_TRAIN_NAMES, _TEST_NAMES))
    parts = [by_name[name] for name in train + test]
    if len(parts) < 2 or (len(parts) < len(by_name) and not all(_subfolders(part) for part in parts)):
        return
    renamed = [
        f"rename {by_name[names[0]].name} to {name}" if names else f"add {name}"
        for name, names in zip(SPLITS, (train, test), strict=True)
        if name not in names
    ]
    alone = by_name[train[0]] if train else parts[0]
    raise ValueError(
        f"{folder} holds {few([part.name for part in parts])}, which look like the parts of a split, not like "
        f"classes. A split must be in train and test, each with a sub-folder per class: {' and '.join(renamed)}. Or "
        f"pass {alone} alone, from which a test split is then drawn; or, if these are classes, a CSV with the columns "
        "path and label."
    )


def _read_classes(folder, notes):
    """Return (path, label) of the images in the sub-folders; add to ``notes`` what is left out."""
    loose, left_out, empty, found = [], [], [], []
    for entry in sorted(folder.iterdir()):
        if not entry.name.startswith(".") and not entry.is_dir():
            (loose if _is_image(entry.name) else left_out).append(entry.name)
    for subfolder in _subfolders(folder):
        images, others = _images_below(subfolder)
        found += [(path, _normal(subfolder.name)) for path in images]
        left_out += [os.path.relpath(other, folder) for other in others]
        if not images:
            empty.append(subfolder.name)
    if not found and loose:
        raise ValueError(
            f"{folder} holds {_count(len(loose), 'image')} but no sub-folder per class with images. Move the images of "
            "each class to a sub-folder that has the name of the class, or pass a CSV with the columns path and label."
        )
    if not found:
        nothing = "is empty" if not left_out and not empty else f"holds no images ({_endings()})"
        raise ValueError(f"{folder} {nothing}; expected a sub-folder per class with its images.")
    if loose:
        notes.append(f"Left out {_count(len(loose), 'image')} in {folder} but in no class: {few(loose)}.")
    if left_out:
        notes.append(f"Left out {_count(len(left_out), 'file')} without an image's ending: {few(left_out)}.")
    if empty:
        notes.append(f"Left out {_count(len(empty), 'sub-folder')} of {folder} without images: {few(empty)}.")
    return found


def _images_below(folder):
    """Return the images at any depth and the files that are none, sorted; hidden ones are left out."""
    images, others, seen = [], [], set()
    for parent, folders, files in os.walk(os.path.abspath(folder), followlinks=True):
        # Links may lead round in circles, or twice to the same place.
        real = os.path.realpath(parent)
        folders[:] = [] if real in seen else sorted(name for name in folders if not name.startswith("."))
        for name in [] if real in seen else files:
            if not name.startswith("."):
                (images if _is_image(name) else others).append(os.path.join(parent, name))
        seen.add(real)
    return sorted(images), sorted(others)


def _read_table(path):
    if path.suffix.lower() not in TABLE_ENDINGS:
        raise ValueError(f"{path} is neither a folder nor a table ({', '.join(TABLE_ENDINGS)}).")
    rows = read_rows(path, ("path", "label"))
    files = [row["path"] for row in rows]
    if not any(os.path.lexists(file) for file in files):
        raise ValueError(
            f"None of the {len(files)} files that {path} names exists. Relative paths start from the table's folder, "
            f"so the first is {files[0]}."
        )
    columns = {name: np.array([_normal(row[name]) for row in rows]) for name in COLUMNS[1:] if name in rows[0]}
    split = columns.get("split")
    if split is not None:
        split = np.array([value.lower() for value in split])
        if set(split) != set(SPLITS):
            raise ValueError(
                f"The column split of {path} holds {few(sorted(set(split.tolist())))}; it must hold train and test, "
                "both, and nothing else."
            )
    return ImageData(files, columns["label"], columns.get("group"), split)


def _with_groups(data, path):
    if data.groups is not None:
        raise ValueError("The groups are given twice, by the column group of the data and by --groups; leave one out.")
    if not path.is_file():
        raise FileNotFoundError(f"There is no file {path}; --groups takes a CSV with the columns path and group.")
    rows = read_rows(path, ("path", "group"))
    group_of = {_normal(row["path"]): _normal(row["group"]) for row in rows}
    names = [_normal(file) for file in data.paths]
    missing = [file for file, name in zip(data.paths, names, strict=True) if name not in group_of]
    if missing:
        raise ValueError(
            f"{path} gives no group for {len(missing)} of the {len(names)} images, first {missing[0]}. Relative paths "
            f"in it start from its folder, so its first row stands for {next(iter(group_of))}."
        )
    unused = len(group_of.keys() - set(names))
    notes = [f"{path} also names {_count(unused, 'file')} that {'is' if unused == 1 else 'are'} not in the data."]
    return replace(
        data, groups=np.array([group_of[name] for name in names]), notes=data.notes + (notes if unused else [])
    )


def _subfolders(folder):
    return sorted(entry for entry in folder.iterdir() if entry.is_dir() and not entry.name.startswith("."))


def _is_image(name):
    return os.path.splitext(name)[1].lower() in IMAGE_ENDINGS


def _normal(text):
    # The same letters may be written in two ways, and macOS names files in another one than people type.
    return unicodedata.normalize("NFC", text)


def _endings():
    return "names that end in " + ", ".join(sorted(IMAGE_ENDINGS))


def _count(number, noun, plural=None):
    return f"{number} {noun if number == 1 else plural or noun + 's'}"


def _tally(counts):
    shown = [f"{label!r} ({count})" for label, count in counts.items()]
    return ", ".join(shown[:5]) + (f" and {len(shown) - 5} more" if len(shown) > 5 else "")
