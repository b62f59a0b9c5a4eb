"""What the registry says of a set, and how that is filled in for the places that sets come from."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from skvfusion.image_data import expand_user

from . import fetch, loaders
from .split import SetNotFound


@dataclass(frozen=True)
class ImageSet:
    """A set of labelled images and how to come by it.

    Attributes
    ----------
    name, title, task : str
        Its key in ``REGISTRY``, what tables call it, and what is told apart.
    n_classes, n_train, n_test : int
        Sizes of the published set; ``n_train`` is None where it is not published.
    split, licence, source : str
        Whose split, whose terms, whose page.
    read : callable
        ``read(root)`` returns a Split; :meth:`load` says what is missing.
    folders : tuple of str
        What has to lie in the root folder.
    bring : callable or None
        ``bring(root)`` downloads the set; None where a person has to.
    steps : str
        What a person has to do first.
    papers : tuple of str
        Which papers use it with this split.
    kind : str
        "id" or "ood".
    groups : bool
        Whether test images belong to groups.
    """

    name: str
    title: str
    task: str
    n_classes: int
    n_train: int | None
    n_test: int
    split: str
    licence: str
    source: str
    read: Callable
    folders: tuple
    bring: Callable | None
    steps: str = ""
    papers: tuple = ("vfusion",)
    kind: str = "id"
    groups: bool = False

    @property
    def get(self):
        """The steps that bring the set into a folder ROOT."""
        command = f"python -m benchmarks.data {self.name} --root ROOT" if self.bring else ""
        return " Then: ".join(part for part in (self.steps, command) if part)

    def load(self, root):
        """Read the set; SetNotFound, which says how to get it, if it is not below ``root`` or not whole."""
        root = expand_user(root)
        missing = [str(root / folder) for folder in self.folders if not (root / folder).exists()]
        if missing:
            raise SetNotFound(self._explain(root, f"there is no {' and no '.join(missing)}"))
        try:
            return self.read(root)
        except (FileNotFoundError, RuntimeError) as error:  # torchvision raises the latter
            raise SetNotFound(self._explain(root, str(error))) from error

    def _explain(self, root, reason):
        return (
            f"The set {self.name!r} cannot be read: {reason}. To get it: {self.get.replace('ROOT', str(root))}\n"
            "A copy with train/ and test/ and a folder per class is read as folder:PATH."
        )


def from_torchvision(*row, **more):
    """Describe a set of torchvision's: the attributes up to ``licence``, the class, its arguments for each part."""
    *about, dataset, (train, test) = row
    name = about[0]
    read = partial(loaders.from_torchvision, folder=name, dataset=dataset, train=train, test=test)
    bring = partial(fetch.torchvision_set, folder=name, dataset=dataset, arguments=(train, test))
    return ImageSet(*about, "torchvision", read, (name,), bring, **more)


def from_clip_benchmark(*row):
    """Describe a webdataset: the attributes up to ``licence``, its repository, the papers."""
    *about, repository, papers = row
    read = partial(loaders.webdataset, folder=repository)
    bring = partial(fetch.hub, repository=f"clip-benchmark/{repository}", folder=repository)
    source = f"huggingface.co/datasets/clip-benchmark/{repository}"
    return ImageSet(*about, source, read, (repository,), bring, papers=papers)


def from_archives(*row, into=".", folders=None, **more):
    """Describe a set of archives: the attributes up to ``licence``, their addresses, the reader, the folder."""
    *about, urls, read, folder = row
    bring = partial(fetch.archives, urls=urls, folder=into)
    source = next(iter(urls.values())).split("/")[2]
    return ImageSet(*about, source, read, folders or (folder,), bring, **more)


def from_medmnist(name, title, task, n_train, n_test, licence, classes):
    """Describe a set of MedMNIST+, at 224 pixels."""
    file = f"{name}_224"
    about = (name, title, task, len(classes), n_train, n_test, "official; its val unused", licence, "medmnist.com")
    read = partial(loaders.medmnist, folder="medmnist", name=file, classes=classes)
    url = f"https://zenodo.org/records/10519652/files/{file}.npz?download=1"
    bring = partial(fetch.file, url=url, folder="medmnist", name=f"{file}.npz")
    return ImageSet(*about, read, (f"medmnist/{file}.npz",), bring)
