"""Readers of the forms in which sets lie on disk; each takes the root folder first and returns a :class:`Split`.

None of them downloads. Labels are read at once, images when they are asked for.
"""

import inspect
import io
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pandas as pd
from PIL import Image
from torch.utils.data import ConcatDataset, Dataset, Subset
from torchvision import datasets

from skvfusion.image_data import read_images

from .split import Split, draw_per_class, draw_split

#: The 15 corruptions of the published CIFAR-C and ImageNet-C sets that count; the four "extra" ones do not.
PUBLISHED_CORRUPTIONS = (
    "gaussian_noise",
    "shot_noise",
    "impulse_noise",
    "defocus_blur",
    "glass_blur",
    "motion_blur",
    "zoom_blur",
    "snow",
    "frost",
    "fog",
    "brightness",
    "contrast",
    "elastic_transform",
    "pixelate",
    "jpeg_compression",
)
SEVERITIES = (1, 2, 3, 4, 5)


def from_torchvision(root, folder, dataset, train, test):
    """Read a set with two calls of its torchvision class.

    Parameters
    ----------
    root : path
        Where the sets lie.
    folder : str
        Folder below it that is torchvision's root.
    dataset : type
        The class.
    train, test : dict
        Its arguments for either part.
    """
    (images, y, classes), (images_test, y_test, _) = (
        _torchvision_part(dataset, Path(root) / folder, arguments) for arguments in (train, test)
    )
    return Split(images, y, images_test, y_test, classes=classes)


def _torchvision_part(dataset, folder, arguments):
    # A loader that returns the path gives paths and labels without decoding anything.
    has_files = "loader" in inspect.signature(dataset).parameters
    part = dataset(folder, **arguments, **({"loader": str} if has_files else {}))
    if has_files:
        images, y = zip(*(part[row] for row in range(len(part))), strict=True)
        images = list(images)
    else:
        images, y = part, _labels(part)
    y = np.asarray(y, dtype=np.int64)
    return images, y, list(getattr(part, "classes", map(str, range(y.max() + 1))))


def _labels(part):
    # torchvision's classes have no common name for the labels, and asking for items would decode the images.
    if hasattr(part, "_samples"):
        return [label for _, label in part._samples]
    return next(getattr(part, name) for name in ("targets", "labels", "_labels") if hasattr(part, name))


def caltech101(root, folder="caltech101", per_class=30):
    """Read Caltech-101, without the background class, and draw 30 training images of each class."""
    whole = datasets.Caltech101(Path(root) / folder)
    y = np.array(whole.y)
    train, test = draw_per_class(y, per_class)
    return Split(Subset(whole, train.tolist()), y[train], Subset(whole, test.tolist()), y[test], None, whole.categories)


class TarImages(Dataset):
    """Images in the tar files of a webdataset, found once and read one by one.

    Parameters
    ----------
    shards : list of path
        Tar files that hold ``KEY.webp`` (or .png, .jpg) and ``KEY.cls`` for each image.

    Attributes
    ----------
    y : ndarray of int
        Labels.
    """

    def __init__(self, shards):
        self._places, labels = [], []
        for shard in shards:
            places, classes = {}, {}
            with tarfile.open(shard) as tar:
                for member in tar:
                    key, _, ending = member.name.rpartition(".")
                    if ending == "cls":
                        classes[key] = int(tar.extractfile(member).read())
                    elif ending in ("webp", "png", "jpg", "jpeg"):
                        places[key] = (shard, member.offset_data, member.size)
            self._places += places.values()
            labels += [classes[key] for key in places]
        self.y = np.array(labels, dtype=np.int64)

    def __len__(self):
        return len(self._places)

    def __getitem__(self, index):
        shard, offset, size = self._places[index]
        with open(shard, "rb") as file:
            file.seek(offset)
            return Image.open(io.BytesIO(file.read(size)))


def webdataset(root, folder):
    """Read one of the webdatasets of huggingface.co/clip-benchmark: train/N.tar, test/N.tar, classnames.txt."""
    folder = Path(root) / folder
    parts = []
    for name in ("train", "test"):
        shards = sorted((folder / name).glob("*.tar"), key=lambda shard: int(shard.stem))
        if not shards:
            raise FileNotFoundError(f"There is no tar file in {folder / name}.")
        parts.append(TarImages(shards))
    classes = (folder / "classnames.txt").read_text(encoding="utf-8").splitlines()
    return Split(parts[0], parts[0].y, parts[1], parts[1].y, classes=classes)


def medmnist(root, folder, name, classes):
    """Read a MedMNIST .npz file; its arrays are unpacked beside it once, so that they need not fit into memory."""
    file = Path(root) / folder / f"{name}.npz"
    unpacked = file.with_suffix("")
    arrays = {}
    with zipfile.ZipFile(file) as archive:
        for member in ("train_images", "train_labels", "test_images", "test_labels"):
            if not (unpacked / f"{member}.npy").exists():
                archive.extract(f"{member}.npy", unpacked)
            arrays[member] = np.load(unpacked / f"{member}.npy", mmap_mode="r")
    y, y_test = (np.array(arrays[f"{part}_labels"]).ravel().astype(np.int64) for part in ("train", "test"))
    return Split(arrays["train_images"], y, arrays["test_images"], y_test, classes=list(classes))


def folder_per_class(root, folder):
    """Read a folder with a folder per class below train and test; without these two, 20 % are drawn for testing."""
    data = read_images(Path(root) / folder)
    classes, y = np.unique(data.labels, return_inverse=True)
    if data.split is None:
        train, test = draw_split(y, 0.2)
    else:
        train, test = (np.flatnonzero(data.split == part) for part in ("train", "test"))
    images, images_test = ([data.paths[row] for row in rows] for rows in (train, test))
    return Split(images, y[train], images_test, y[test], classes=classes.tolist())


def imagenet(root, folder="imagenet", classes=None):
    """Read ImageNet as torchvision unpacks it: train and val with a folder per class; perhaps only some classes."""
    folder = Path(root) / folder
    train = read_images(folder / "train")
    classes = sorted(set(train.labels.tolist())) if classes is None else classes
    images, y = _of_classes(train, classes)
    return Split(images, y, *_of_classes(read_images(folder / "val"), classes), classes=classes)


def _of_classes(data, classes):
    code = {label: position for position, label in enumerate(classes)}
    rows = [row for row, label in enumerate(data.labels) if label in code]
    return [data.paths[row] for row in rows], np.array([code[data.labels[row]] for row in rows])


def cifar_c(root, clean, folder):
    """Train on clean CIFAR, test on the published .npy files; a group is a corruption at a severity.

    Parameters
    ----------
    root : path
        Where the sets lie.
    clean : callable
        ``clean(root)`` returns the clean set.
    folder : str
        Folder with ``CORRUPTION.npy``, severities one after the other, and ``labels.npy``.
    """
    split, folder = clean(root), Path(root) / folder
    arrays = [np.load(folder / f"{corruption}.npy", mmap_mode="r") for corruption in PUBLISHED_CORRUPTIONS]
    y = np.load(folder / "labels.npy").astype(np.int64)
    names = [f"{corruption}-{severity}" for corruption in PUBLISHED_CORRUPTIONS for severity in SEVERITIES]
    groups = np.repeat(names, len(y) // len(SEVERITIES))
    y_test = np.tile(y, len(arrays))
    return Split(split.images, split.y, ConcatDataset(arrays), y_test, groups, split.classes)


def imagenet_c(root, classes, folder="imagenet-c"):
    """Train on clean ImageNet, test on ImageNet-C's CORRUPTION/SEVERITY/CLASS folders, restricted to ``classes``."""
    split, folder = imagenet(root, classes=classes), Path(root) / folder
    paths, y, groups = [], [], []
    for corruption in PUBLISHED_CORRUPTIONS:
        # The published tar files unpack to the corruption's folder, or into noise, blur, weather and digital.
        places = [place for place in (folder / corruption, *folder.glob(f"*/{corruption}")) if place.is_dir()]
        if not places:
            raise FileNotFoundError(f"There is no folder {corruption} in {folder}.")
        for severity in SEVERITIES:
            found, codes = _of_classes(read_images(places[0] / str(severity)), classes)
            paths += found
            y.append(codes)
            groups += [f"{corruption}-{severity}"] * len(found)
    return Split(split.images, split.y, paths, np.concatenate(y), np.array(groups), split.classes)


def celeba(root, folder="."):
    """Read CelebA's blond against other hair, with the groups hair x sex."""
    parts = []
    for name in ("train", "test"):
        part = datasets.CelebA(Path(root) / folder, split=name, target_type="attr")
        blond, male = (part.attr[:, part.attr_names.index(column)].numpy() for column in ("Blond_Hair", "Male"))
        pictures = Path(part.root) / part.base_folder / "img_align_celeba"
        parts.append(([str(pictures / file) for file in part.filename], blond.astype(np.int64), male))
    (images, y, _), (images_test, y_test, male) = parts
    classes = ["not blond", "blond"]
    groups = [f"{classes[hair]}, {'male' if sex else 'female'}" for hair, sex in zip(y_test, male, strict=True)]
    return Split(images, y, images_test, y_test, np.array(groups), classes)


def waterbirds(root, folder="waterbirds_v1.0"):
    """Read Waterbirds as WILDS keeps it, with the groups bird x background."""
    folder = Path(root) / folder
    table = pd.read_csv(folder / "metadata.csv")
    classes, places = ["landbird", "waterbird"], ["land", "water"]
    train, test = (table[table["split"] == part] for part in (0, 2))
    images, images_test = ([str(folder / file) for file in part["img_filename"]] for part in (train, test))
    y, y_test = (part["y"].to_numpy().astype(np.int64) for part in (train, test))
    groups = [f"{classes[bird]} on {places[place]}" for bird, place in zip(y_test, test["place"], strict=True)]
    return Split(images, y, images_test, y_test, np.array(groups), classes)


def cub200(root, folder="CUB_200_2011"):
    """Read CUB-200-2011 with its official split."""
    folder = Path(root) / folder
    images, labels, in_train, names = (
        pd.read_csv(folder / f"{name}.txt", sep=" ", header=None, index_col=0)[1].to_numpy()
        for name in ("images", "image_class_labels", "train_test_split", "classes")
    )
    parts = []
    for rows in (in_train == 1, in_train == 0):
        parts += [[str(folder / "images" / file) for file in images[rows]], labels[rows].astype(np.int64) - 1]
    return Split(*parts, classes=names.tolist())


def sun397(root, folder="sun397"):
    """Read SUN397 with the first of its ten official partitions."""
    folder = Path(root) / folder
    classes = (folder / "Partitions" / "ClassName.txt").read_text().split()
    parts = []
    for name in ("Training_01.txt", "Testing_01.txt"):
        files = (folder / "Partitions" / name).read_text().split()
        parts.append([str(folder / "SUN397" / file.lstrip("/")) for file in files])
        parts.append(np.array([classes.index(file.rpartition("/")[0]) for file in files]))
    return Split(*parts, classes=classes)


def tiny_imagenet(root, folder="tiny-imagenet-200"):
    """Read Tiny-ImageNet; its validation part is the test part, as the labels of its test part are not public."""
    folder = Path(root) / folder
    images, y = _of_classes(train := read_images(folder / "train"), classes := sorted(set(train.labels.tolist())))
    table = pd.read_csv(folder / "val" / "val_annotations.txt", sep="\t", header=None)
    images_test = [str(folder / "val" / "images" / file) for file in table[0]]
    return Split(images, y, images_test, np.array([classes.index(label) for label in table[1]]), classes=classes)
