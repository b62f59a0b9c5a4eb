"""Tiny copies of the image sets in the forms in which they lie on disk: two classes, as few images as will do."""

import io
import json
import pickle
import struct
import tarfile

import numpy as np
import scipy.io
from PIL import Image

from benchmarks.data.loaders import PUBLISHED_CORRUPTIONS
from benchmarks.data.sets import IMAGENET_200

GREY = 64


def picture(path, value=GREY, size=(8, 6)):
    """Save an image of one grey that names its row: pixels hold ``value``."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, (value,) * 3).save(path)


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def grey(*shape):
    return np.full(shape, GREY, np.uint8)


def cifar(folder, train, test, meta, label, names):
    folder.mkdir(parents=True)
    for name in train + test:
        (folder / name).write_bytes(pickle.dumps({"data": grey(2, 3072), label: [0, 1]}))
    (folder / meta).write_bytes(pickle.dumps({names: ["a", "b"]}))


def cifar10(root):
    batches = [f"data_batch_{number}" for number in range(1, 6)]
    cifar(root / "cifar10/cifar-10-batches-py", batches, ["test_batch"], "batches.meta", "labels", "label_names")


def cifar100(root):
    folder = root / "cifar100/cifar-100-python"
    cifar(folder, ["train"], ["test"], "meta", "fine_labels", "fine_label_names")


def mnist(root):
    folder = root / "mnist/MNIST/raw"
    folder.mkdir(parents=True)
    for part, n in (("train", 4), ("t10k", 2)):
        images = struct.pack(">4i", 2051, n, 28, 28) + grey(n, 28, 28).tobytes()
        (folder / f"{part}-images-idx3-ubyte").write_bytes(images)
        (folder / f"{part}-labels-idx1-ubyte").write_bytes(struct.pack(">2i", 2049, n) + bytes([0, 1] * (n // 2)))


def svhn(root):
    (root / "svhn").mkdir()
    for part, n in (("train", 4), ("test", 2)):
        # Ten stands for the digit 0.
        labels = np.array([[10], [1]] * (n // 2))
        scipy.io.savemat(root / f"svhn/{part}_32x32.mat", {"X": grey(32, 32, 3, n), "y": labels})


def stl10(root):
    folder = root / "stl10/stl10_binary"
    folder.mkdir(parents=True)
    for part, n in (("train", 4), ("test", 2), ("unlabeled", 1)):
        (folder / f"{part}_X.bin").write_bytes(grey(n, 3, 96, 96).tobytes())
        (folder / f"{part}_y.bin").write_bytes(bytes([1, 2] * (n // 2)))
    write(folder / "class_names.txt", "a\nb\n")


def flowers102(root):
    folder = root / "flowers102/flowers-102"
    for number in range(1, 9):
        picture(folder / f"jpg/image_{number:05}.jpg")
    scipy.io.savemat(folder / "imagelabels.mat", {"labels": [[1, 2] * 4]})
    scipy.io.savemat(folder / "setid.mat", {"trnid": [[1, 2, 3, 4]], "valid": [[7, 8]], "tstid": [[5, 6]]})


def aircraft(root):
    folder = root / "aircraft/fgvc-aircraft-2013b/data"
    write(folder / "variants.txt", "A 1\nB 2\n")
    for part, n in (("train", 4), ("test", 2)):
        lines = [f"{part}{row} {('A 1', 'B 2')[row % 2]}" for row in range(n)]
        write(folder / f"images_variant_{part}.txt", "\n".join(lines))
        for row in range(n):
            picture(folder / f"images/{part}{row}.jpg")


def pets(root):
    folder = root / "pets/oxford-iiit-pet"
    for part, n in (("trainval", 4), ("test", 2)):
        names = [f"{('Abyssinian', 'beagle')[row % 2]}_{part}{row}" for row in range(n)]
        write(
            folder / f"annotations/{part}.txt", "\n".join(f"{name} {row % 2 + 1} 1 1" for row, name in enumerate(names))
        )
        for name in names:
            picture(folder / f"images/{name}.jpg")


def food101(root):
    folder = root / "food101/food-101"
    for part, n in (("train", 2), ("test", 1)):
        names = {label: [f"{label}/{part}{row}" for row in range(n)] for label in "ab"}
        write(folder / f"meta/{part}.json", json.dumps(names))
        for name in [*names["a"], *names["b"]]:
            picture(folder / f"images/{name}.jpg")


def dtd(root):
    folder = root / "dtd/dtd/dtd"
    for part, n in (("train", 2), ("test", 1)):
        names = [f"{label}/{part}{row}.jpg" for label in "ab" for row in range(n)]
        write(folder / f"labels/{part}1.txt", "\n".join(names))
        for name in names:
            picture(folder / f"images/{name}")


def gtsrb(root):
    folder = root / "gtsrb/gtsrb"
    for label in ("00000", "00001"):
        for row in range(2):
            picture(folder / f"GTSRB/Training/{label}/{row}.ppm")
    for row in range(2):
        picture(folder / f"GTSRB/Final_Test/Images/{row}.ppm")
    write(folder / "GT-final_test.csv", "Filename;Width;ClassId\n0.ppm;8;0\n1.ppm;8;1\n")


def caltech101(root):
    for label, n in (("BACKGROUND_Google", 1), ("a", 31), ("b", 33)):
        for row in range(n):
            picture(root / f"caltech101/caltech101/101_ObjectCategories/{label}/image_{row + 1:04}.jpg")


def webdataset(folder):
    write(folder / "classnames.txt", "a\nb\n")
    for part, n_shards in (("train", 2), ("test", 1)):
        (folder / part).mkdir()
        for shard in range(n_shards):
            with tarfile.open(folder / part / f"{shard}.tar", "w") as tar:
                for row in range(2):
                    file = io.BytesIO()
                    Image.new("RGB", (8, 6), (GREY,) * 3).save(file, "webp", lossless=True)
                    for ending, content in (("cls", str(row).encode()), ("webp", file.getvalue())):
                        member = tarfile.TarInfo(f"s{2 * shard + row:07}.{ending}")
                        member.size = len(content)
                        tar.addfile(member, io.BytesIO(content))


def medmnist(root, name):
    (root / "medmnist").mkdir()
    arrays = {}
    for part, n in (("train", 4), ("val", 2), ("test", 2)):
        arrays[f"{part}_images"] = grey(n, 28, 28, 3)
        arrays[f"{part}_labels"] = np.array([[0], [1]] * (n // 2), np.uint8)
    np.savez_compressed(root / f"medmnist/{name}_224.npz", **arrays)


def imagenet(root):
    # The last class is one that ImageNet-200 lacks.
    for label in (*IMAGENET_200[:2], "n99999999"):
        for row in range(2):
            picture(root / f"imagenet/train/{label}/{label}_{row}.JPEG")
        picture(root / f"imagenet/val/{label}/val_{label}.JPEG")


def cub200(root):
    folder = root / "CUB_200_2011"
    names = [f"{label}/{row}.jpg" for label in ("001.A", "002.B") for row in range(3)]
    for name in names:
        picture(folder / "images" / name)
    lines = {
        "images": names,
        "image_class_labels": [1, 1, 1, 2, 2, 2],
        "train_test_split": [1, 1, 0, 1, 1, 0],
        "classes": ["001.A", "002.B"],
    }
    for file, values in lines.items():
        write(folder / f"{file}.txt", "".join(f"{row} {value}\n" for row, value in enumerate(values, 1)))


def sun397(root):
    write(root / "sun397/Partitions/ClassName.txt", "/a/abbey\n/b/bar/indoor\n")
    for part, n in (("Training", 2), ("Testing", 1)):
        names = [f"{label}/{part}{row}.jpg" for label in ("/a/abbey", "/b/bar/indoor") for row in range(n)]
        write(root / f"sun397/Partitions/{part}_01.txt", "\n".join(names))
        for name in names:
            picture(root / f"sun397/SUN397{name}")


def tiny_imagenet(root):
    folder = root / "tiny-imagenet-200"
    for label in ("n01", "n02"):
        for row in range(2):
            picture(folder / f"train/{label}/images/{label}_{row}.JPEG")
    write(folder / "val/val_annotations.txt", "val_0.JPEG\tn01\t0\t0\t9\t9\nval_1.JPEG\tn02\t0\t0\t9\t9\n")
    for row in range(2):
        picture(folder / f"val/images/val_{row}.JPEG")


def cifar_c(folder):
    folder.mkdir()
    for corruption in PUBLISHED_CORRUPTIONS:
        np.save(folder / f"{corruption}.npy", grey(10, 32, 32, 3))
    np.save(folder / "labels.npy", np.array([0, 1] * 5))


def imagenet_c(root):
    imagenet(root)
    for row, corruption in enumerate(PUBLISHED_CORRUPTIONS):
        place = f"imagenet-c/{('', 'noise/')[row % 2]}{corruption}"
        for severity in range(1, 6):
            for label in (*IMAGENET_200[:2], "n99999999"):
                picture(root / f"{place}/{severity}/{label}/val_{label}.JPEG")


def celeba(root):
    folder = root / "celeba"
    files = [f"{row:06}.jpg" for row in range(1, 9)]
    for file in files:
        picture(folder / "img_align_celeba" / file)
    parts = [0, 0, 0, 0, 1, 1, 2, 2]
    write(folder / "list_eval_partition.txt", "".join(f"{f} {p}\n" for f, p in zip(files, parts, strict=True)))
    write(folder / "identity_CelebA.txt", "".join(f"{file} 1\n" for file in files))
    attributes = [f"{file} {(-1, 1)[row % 2]} {(1, -1)[row % 2]}\n" for row, file in enumerate(files)]
    write(folder / "list_attr_celeba.txt", "8\nBlond_Hair Male\n" + "".join(attributes))
    write(folder / "list_bbox_celeba.txt", "8\nimage_id x\n" + "".join(f"{file} 1\n" for file in files))
    write(folder / "list_landmarks_align_celeba.txt", "8\nx\n" + "".join(f"{file} 1\n" for file in files))


def waterbirds(root):
    lines = ["img_id,img_filename,y,split,place,place_filename"]
    for row, part in enumerate((0, 0, 0, 0, 1, 1, 2, 2)):
        lines.append(f"{row},a/{row}.jpg,{row % 2},{part},{1 - row % 2},/p/{row}.jpg")
        picture(root / f"waterbirds_v1.0/a/{row}.jpg")
    write(root / "waterbirds_v1.0/metadata.csv", "\n".join(lines))


_BY_NAME = {
    function.__name__: function
    for function in (aircraft, caltech101, celeba, cifar10, cifar100, cub200, dtd, flowers102, food101, gtsrb, mnist)
} | {
    "pets": pets,
    "stl10": stl10,
    "sun397": sun397,
    "svhn": svhn,
    "tiny_imagenet": tiny_imagenet,
    "waterbirds": waterbirds,
    "imagenet200": imagenet,
    "imagenet1k": imagenet,
    "imagenet200_c": imagenet_c,
}


def make(item, root):
    """Write a fake of a set of the registry below ``root``."""
    if item.folders[0].startswith("wds_"):
        (root / item.folders[0]).mkdir()
        webdataset(root / item.folders[0])
    elif item.folders[0].startswith("medmnist"):
        medmnist(root, item.name)
    elif item.name in ("cifar10_c", "cifar100_c"):
        _BY_NAME[item.folders[0]](root)
        cifar_c(root / item.folders[1])
    else:
        _BY_NAME[item.name](root)
