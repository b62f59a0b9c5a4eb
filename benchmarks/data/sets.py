"""The tables: the in-distribution sets, then those with a shift between training and test."""

from functools import partial
from importlib.resources import files

from torchvision import datasets

from . import fetch, loaders
from .image_set import ImageSet, from_archives, from_clip_benchmark, from_medmnist, from_torchvision

# ImageNet-R's classes, which OpenOOD's ImageNet-200 took over; timm brings the list.
IMAGENET_200 = (files("timm.data") / "_info" / "imagenet_r_synsets.txt").read_text().split()

_ALF, _BOTH = ("alf",), ("vfusion", "alf")
_FLAG = ({"train": True}, {"train": False})
_SPLIT = ({"split": "train"}, {"split": "test"})
_PETS = ({"split": "trainval"}, {"split": "test"})
_OFFICIAL, _NO_VAL, _VTAB = "official", "official; its val unused", "VTAB's (clip-benchmark); its val unused"
_FIRST, _VAL = "official, the first of ten; its val unused", "official val as test"
_RESEARCH, _UNSTATED, _KAGGLE = "non-commercial research", "none stated", "Kaggle's terms"
_PATHOLOGY = (
    "adipose",
    "background",
    "debris",
    "lymphocytes",
    "mucus",
    "smooth muscle",
    "normal colon mucosa",
    "cancer-associated stroma",
    "colorectal adenocarcinoma epithelium",
)
_BLOOD = (
    "basophil",
    "eosinophil",
    "erythroblast",
    "immature granulocytes",
    "lymphocyte",
    "monocyte",
    "neutrophil",
    "platelet",
)
_SKIN = (
    "actinic keratoses and intraepithelial carcinoma",
    "basal cell carcinoma",
    "benign keratosis-like lesions",
    "dermatofibroma",
    "melanoma",
    "melanocytic nevi",
    "vascular lesions",
)
_IMAGENET_STEPS = (
    "register at https://image-net.org/download and put ILSVRC2012_devkit_t12.tar.gz, ILSVRC2012_img_train.tar and "
    "ILSVRC2012_img_val.tar into ROOT/imagenet."
)
_ZENODO = "https://zenodo.org/records"

# fmt: off: a row a set

# name, title, task, classes, train, test, split, licence, torchvision's class, its arguments for train and test
_TORCHVISION = [
    ("cifar10", "CIFAR-10", "objects, 32x32", 10, 50000, 10000, _OFFICIAL, _UNSTATED, datasets.CIFAR10, _FLAG),
    ("cifar100", "CIFAR-100", "objects, 32x32", 100, 50000, 10000, _OFFICIAL, _UNSTATED, datasets.CIFAR100, _FLAG),
    ("mnist", "MNIST", "handwritten digits", 10, 60000, 10000, _OFFICIAL, "CC BY-SA 3.0", datasets.MNIST, _FLAG),
    ("svhn", "SVHN", "house numbers", 10, 73257, 26032, _OFFICIAL, _RESEARCH, datasets.SVHN, _SPLIT),
    ("pets", "Oxford-IIIT Pets", "breeds", 37, 3680, 3669, _OFFICIAL, "CC BY-SA 4.0", datasets.OxfordIIITPet, _PETS),
    ("food101", "Food-101", "dishes", 101, 75750, 25250, _OFFICIAL, _UNSTATED, datasets.Food101, _SPLIT),
]
_TORCHVISION_BOTH = [
    ("stl10", "STL-10", "objects, 96x96", 10, 5000, 8000, _OFFICIAL, _UNSTATED, datasets.STL10, _SPLIT),
    ("flowers102", "Flowers-102", "flowers", 102, 1020, 6149, _NO_VAL, _UNSTATED, datasets.Flowers102, _SPLIT),
    ("aircraft", "FGVC-Aircraft", "variants", 100, 3334, 3333, _NO_VAL, _RESEARCH, datasets.FGVCAircraft, _SPLIT),
    ("dtd", "DTD", "textures", 47, 1880, 1880, _FIRST, "research", datasets.DTD, _SPLIT),
    ("gtsrb", "GTSRB", "traffic signs", 43, 26640, 12630, _OFFICIAL, _UNSTATED, datasets.GTSRB, _SPLIT),
]

_RETINA = "wds_vtab-diabetic_retinopathy"

# name, title, task, classes, train, test, split, licence, repository of huggingface.co/clip-benchmark, papers
_CLIP_BENCHMARK = [
    ("cars", "Stanford Cars", "car models", 196, 8144, 8041, _OFFICIAL, _RESEARCH, "wds_cars", _BOTH),
    ("eurosat", "EuroSAT", "land use from space", 10, 16200, 5400, _VTAB, "MIT", "wds_vtab-eurosat", _BOTH),
    ("resisc45", "RESISC45", "land use from the air", 45, 18900, 6300, _VTAB, _UNSTATED, "wds_vtab-resisc45", _BOTH),
    ("pcam", "PatchCamelyon", "tumour in tissue", 2, 262144, 32768, _NO_VAL, "CC0", "wds_vtab-pcam", _BOTH),
    ("cifar10-alf", "CIFAR-10", "objects, 32x32", 10, 45000, 10000, _VTAB, _UNSTATED, "wds_vtab-cifar10", _ALF),
    ("cifar100-alf", "CIFAR-100", "objects, 32x32", 100, 45000, 10000, _VTAB, _UNSTATED, "wds_vtab-cifar100", _ALF),
    ("caltech101-alf", "Caltech-101", "objects", 102, 2753, 6085, _VTAB, "CC BY 4.0", "wds_vtab-caltech101", _ALF),
    ("pets-alf", "Oxford-IIIT Pets", "breeds", 37, 2944, 3669, _VTAB, "CC BY-SA 4.0", "wds_vtab-pets", _ALF),
    ("svhn-alf", "SVHN", "house numbers", 10, 65931, 26032, _VTAB, _RESEARCH, "wds_vtab-svhn", _ALF),
    ("voc2007", "PASCAL VOC 2007", "objects, cropped", 20, 7844, 14976, _NO_VAL, "Flickr's terms", "wds_voc2007", _ALF),
    ("country211", "Country-211", "place of a photo", 211, 31650, 21100, _NO_VAL, "by photo", "wds_country211", _ALF),
    ("retinopathy", "Diabetic Retinopathy", "stages", 5, 35126, 42670, _VTAB, _KAGGLE, _RETINA, _ALF),
    ("fer2013", "FER2013", "facial expressions", 7, 28709, 7178, _OFFICIAL, _KAGGLE, "wds_fer2013", _ALF),
    ("dmlab", "Dmlab", "distance in a 3-D game", 6, 65550, 22735, _VTAB, _UNSTATED, "wds_vtab-dmlab", _ALF),
]

# name, title, task, train, test, licence, classes
_MEDMNIST = [
    ("pathmnist", "PathMNIST", "tissue", 89996, 7180, "CC BY 4.0", _PATHOLOGY),
    ("bloodmnist", "BloodMNIST", "blood cells", 11959, 3421, "CC BY 4.0", _BLOOD),
    ("dermamnist", "DermaMNIST", "skin lesions", 7007, 2005, "CC BY-NC 4.0", _SKIN),
]

_CUB = {"CUB_200_2011.tgz": "https://data.caltech.edu/records/65de6-vp158/files/CUB_200_2011.tgz?download=1"}
_TINY = {"tiny-imagenet-200.zip": "http://cs231n.stanford.edu/tiny-imagenet-200.zip"}
_PRINCETON = "https://vision.princeton.edu/projects/2010/SUN"
_SUN = {
    "sun397/SUN397.tar.gz": f"{_PRINCETON}/SUN397.tar.gz",
    "sun397/Partitions/Partitions.zip": f"{_PRINCETON}/download/Partitions.zip",
}
_BIRDS = "https://worksheets.codalab.org/rest/bundles/0x505056d5cdea4e4eaa0e242cbfe2daa4/contents/blob/"

# name, title, task, classes, train, test, split, licence, addresses, reader, folder
_ARCHIVES = [
    ("cub200", "CUB-200-2011", "birds", 200, 5994, 5794, _OFFICIAL, _RESEARCH, _CUB, loaders.cub200, "CUB_200_2011"),
    (
        "tiny_imagenet",
        "Tiny-ImageNet",
        "objects, 64x64",
        200,
        100000,
        10000,
        _VAL,
        _RESEARCH,
        _TINY,
        loaders.tiny_imagenet,
        "tiny-imagenet-200",
    ),
    (
        "sun397",
        "SUN397",
        "scenes",
        397,
        19850,
        19850,
        "official, the first of ten",
        "research",
        _SUN,
        loaders.sun397,
        "sun397/SUN397",
    ),
]

_IMAGENET = (("imagenet",), fetch.unpack_imagenet, _IMAGENET_STEPS)
_CALTECH = partial(fetch.torchvision_set, folder="caltech101", dataset=datasets.Caltech101, arguments=({},))
_30_A_CLASS = "30 a class drawn by seed 12345, without the background class"
_200 = ("the 200 classes of ImageNet-R; official val as test", _RESEARCH, "image-net.org")
_READ_200 = partial(loaders.imagenet, classes=IMAGENET_200)

# name, title, task, classes, train, test, split, licence, source, reader, folders, downloader, steps by hand, papers
_OTHERS = [
    (
        "caltech101",
        "Caltech-101",
        "objects",
        101,
        3030,
        5647,
        _30_A_CLASS,
        "CC BY 4.0",
        "torchvision",
        loaders.caltech101,
        ("caltech101",),
        _CALTECH,
    ),
    ("imagenet200", "ImageNet-200", "objects", 200, None, 10000, *_200, _READ_200, *_IMAGENET),
    (
        "imagenet1k",
        "ImageNet-1k",
        "objects",
        1000,
        1281167,
        50000,
        _VAL,
        _RESEARCH,
        "image-net.org",
        loaders.imagenet,
        *_IMAGENET,
        _ALF,
    ),
]

ID_SETS = [
    *(from_torchvision(*row) for row in _TORCHVISION),
    *(from_torchvision(*row, papers=_BOTH) for row in _TORCHVISION_BOTH),
    *(from_archives(*row) for row in _ARCHIVES),
    *(from_medmnist(*row) for row in _MEDMNIST),
    *(ImageSet(*row) for row in _OTHERS),
    *(from_clip_benchmark(*row) for row in _CLIP_BENCHMARK),
]


def _cifar_c(clean, file, record):
    """Describe the corrupted form of a CIFAR set."""
    return from_archives(
        f"{clean.name}_c",
        f"{clean.title}-C",
        f"{clean.task}, corrupted",
        clean.n_classes,
        clean.n_train,
        75 * clean.n_test,
        "clean train; 15 corruptions x 5 severities of the test part",
        "CC BY 4.0",
        {f"{file}.tar": f"https://zenodo.org/records/{record}/files/{file}.tar?download=1"},
        partial(loaders.cifar_c, clean=clean.read, folder=file),
        file,
        folders=(clean.name, file),
        steps=clean.get,
        kind="ood",
        groups=True,
    )


_CLEAN = {item.name: item for item in ID_SETS}
_CORRUPTED = ("noise", "blur", "weather", "digital")

OOD_SETS = [
    _cifar_c(_CLEAN["cifar10"], "CIFAR-10-C", 2535967),
    _cifar_c(_CLEAN["cifar100"], "CIFAR-100-C", 3555552),
    from_archives(
        "imagenet200_c",
        "ImageNet-200-C",
        "objects, corrupted",
        200,
        None,
        750000,
        "clean train; 15 corruptions x 5 severities of val",
        "CC BY 4.0",
        {f"{name}.tar": f"https://zenodo.org/records/2235448/files/{name}.tar?download=1" for name in _CORRUPTED},
        partial(loaders.imagenet_c, classes=IMAGENET_200),
        "imagenet-c",
        into="imagenet-c",
        folders=("imagenet", "imagenet-c"),
        steps=_CLEAN["imagenet200"].get,
        kind="ood",
        groups=True,
    ),
    ImageSet(
        "celeba",
        "CelebA",
        "blond hair or not",
        2,
        162770,
        19962,
        "official; its val unused; 4 groups blond x male",
        _RESEARCH,
        "torchvision",
        loaders.celeba,
        ("celeba",),
        partial(fetch.torchvision_set, folder=".", dataset=datasets.CelebA, arguments=({"split": "train"},)),
        steps="pip install gdown, as the files lie on Google Drive.",
        kind="ood",
        groups=True,
    ),
    from_archives(
        "waterbirds",
        "Waterbirds",
        "water or land bird",
        2,
        4795,
        5794,
        "official (WILDS); its val unused; 4 groups bird x background",
        _RESEARCH,
        {"waterbirds.tar.gz": _BIRDS},
        loaders.waterbirds,
        "waterbirds_v1.0",
        into="waterbirds_v1.0",
        kind="ood",
        groups=True,
    ),
]
