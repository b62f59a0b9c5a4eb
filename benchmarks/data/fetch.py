"""Downloads, through torchvision and huggingface_hub; only ``python -m benchmarks.data`` calls them."""

from pathlib import Path

from huggingface_hub import snapshot_download
from torchvision import datasets
from torchvision.datasets.utils import download_and_extract_archive, download_url


def torchvision_set(root, folder, dataset, arguments):
    """Let a torchvision class download itself, once with each of the arguments."""
    (Path(root) / folder).mkdir(parents=True, exist_ok=True)
    for each in arguments:
        dataset(Path(root) / folder, download=True, **each)


def hub(root, repository, folder):
    """Download a data set of the Hugging Face hub as it is."""
    snapshot_download(repository, repo_type="dataset", local_dir=Path(root) / folder)


def archives(root, urls, folder):
    """Download archives, named by where each goes below the folder, and unpack each where it lies."""
    for name, url in urls.items():
        place = Path(root) / folder / name
        download_and_extract_archive(url, str(place.parent), filename=place.name, remove_finished=True)


def file(root, url, folder, name):
    """Download one file."""
    download_url(url, str(Path(root) / folder), name)


def unpack_imagenet(root):
    """Unpack ImageNet's three archives, which a person has put into root/imagenet."""
    for split in ("train", "val"):
        datasets.ImageNet(Path(root) / "imagenet", split=split)
