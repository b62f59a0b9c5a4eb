import contextlib
import hashlib
import io
import os
import re
import struct
import threading
import time
import warnings
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image, ImageCms, ImageDraw, ImageFont
from PIL import ImageSequence as PILSequence
from torch.utils.data import Dataset, Subset, TensorDataset

from skvfusion.extraction.images import ImageSequence
from skvfusion.extraction.pixels import JPEG_MARGIN

PAGE = Path(__file__).parents[2] / "docs" / "images.md"

RED, GREEN, BLUE = (255, 0, 0), (0, 255, 0), (0, 0, 255)
WHITE, BLACK = (255, 255, 255), (0, 0, 0)


def read(item):
    image = ImageSequence([item])[0]
    assert isinstance(image, Image.Image)
    assert image.mode == "RGB"
    return np.asarray(image)


def first_pixel(item):
    return tuple(read(item)[0, 0].tolist())


def encode(image, file_format="PNG", **options):
    file = io.BytesIO()
    image.save(file, file_format, **options)
    return file.getvalue()


def solid(mode, colour, size=(3, 2)):
    return Image.new(mode, size, colour)


def palette_image():
    image = Image.fromarray(np.array([[0, 1], [2, 1]], dtype=np.uint8)).convert("P")
    image.putpalette([*RED, *GREEN, *BLUE])
    return image


@pytest.fixture(scope="module")
def pixels():
    return np.random.default_rng(0).integers(0, 256, (3, 4, 5, 3), dtype=np.uint8)


@pytest.fixture
def paths(tmp_path, pixels):
    names = [tmp_path / f"{index}.png" for index in range(len(pixels))]
    for name, image in zip(names, pixels, strict=True):
        Image.fromarray(image).save(name)
    return names


class ImageDataset(Dataset):
    def __init__(self, items):
        self.items = items

    def __len__(self):
        return len(self.items)

    def __getitem__(self, index):
        return self.items[index]


def lab(colour):
    profile = ImageCms.createProfile("LAB")
    return ImageCms.profileToProfile(solid("RGB", colour), ImageCms.createProfile("sRGB"), profile, outputMode="LAB")


@pytest.mark.parametrize(
    ("image", "expected"),
    [
        (solid("L", 7), (7, 7, 7)),
        (solid("1", 0), BLACK),
        (solid("1", 1), WHITE),
        (solid("RGB", (1, 2, 3)), (1, 2, 3)),
        (solid("RGBX", (1, 2, 3, 0)), (1, 2, 3)),
        (solid("LA", (10, 255)), (10, 10, 10)),
        (solid("LA", (10, 0)), WHITE),
        (solid("LA", (0, 51)), (204, 204, 204)),
        (solid("RGBA", (*RED, 255)), RED),
        (solid("RGBA", (*RED, 0)), WHITE),
        (solid("RGBA", (*RED, 51)), (255, 204, 204)),
        (solid("RGBA", (*BLACK, 204)), (51, 51, 51)),
        (solid("CMYK", (0, 0, 0, 0)), WHITE),
        (solid("CMYK", (255, 0, 0, 0)), (0, 255, 255)),
        (solid("CMYK", (0, 0, 0, 255)), BLACK),
        (solid("I", 0), BLACK),
        (solid("I", 0x80FF), (128, 128, 128)),
        (solid("I", 0xFFFF), WHITE),
        (solid("I", 70000), WHITE),
        (solid("I", -5), BLACK),
        (solid("I;16", 0x80FF), (128, 128, 128)),
        (solid("F", 0.0), BLACK),
        (solid("F", 0.2), (51, 51, 51)),
        (solid("F", 1.0), WHITE),
    ],
    ids=lambda value: value.mode if isinstance(value, Image.Image) else str(value),
)
def test_pil_mode_becomes_rgb(image, expected):
    assert first_pixel(image) == expected


@pytest.mark.parametrize("image", [solid("RGB", (200, 60, 90)).convert(mode) for mode in ("YCbCr", "HSV")])
def test_other_colour_space_becomes_rgb(image):
    np.testing.assert_allclose(first_pixel(image), (200, 60, 90), atol=3)


def test_lab_becomes_rgb():
    np.testing.assert_allclose(first_pixel(lab((200, 60, 90))), (200, 60, 90), atol=3)


def test_palette_becomes_its_colours():
    np.testing.assert_array_equal(read(palette_image()), [[RED, GREEN], [BLUE, GREEN]])


@pytest.mark.parametrize("file_format", ["PNG", "GIF"])
def test_transparent_palette_entry_becomes_white(file_format):
    content = encode(palette_image(), file_format, transparency=1)
    np.testing.assert_array_equal(read(content), [[RED, WHITE], [BLUE, WHITE]])


@pytest.mark.parametrize(
    ("image", "transparent"), [(solid("L", 9), 9), (solid("1", 0), 0), (solid("RGB", (9, 8, 7)), (9, 8, 7))]
)
def test_transparent_colour_of_a_png_becomes_white(image, transparent):
    assert first_pixel(encode(image, transparency=transparent)) == WHITE


def test_opaque_colours_of_a_png_with_a_transparent_one_stay():
    assert first_pixel(encode(solid("RGB", (9, 8, 7)), transparency=(1, 2, 3))) == (9, 8, 7)


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA"])
def test_png_file_reads_as_the_image_it_was_saved_from(tmp_path, pixels, mode):
    image = Image.fromarray(pixels[0]).convert(mode)
    image.save(tmp_path / "image.png")
    np.testing.assert_array_equal(read(tmp_path / "image.png"), image.convert("RGB"))


def test_cmyk_jpeg_file_is_read(tmp_path):
    solid("CMYK", (255, 0, 0, 0), (16, 16)).save(tmp_path / "image.jpg", quality=95)
    np.testing.assert_allclose(first_pixel(tmp_path / "image.jpg"), (0, 255, 255), atol=3)


@pytest.mark.parametrize("suffix", ["png", "tif"])
def test_16_bit_file_keeps_its_upper_8_bits(tmp_path, suffix):
    values = np.array([[0, 0xFF, 0x100], [0x80FF, 0xFEFF, 0xFFFF]], dtype=np.uint16)
    Image.fromarray(values).save(tmp_path / f"image.{suffix}")
    grey = read(tmp_path / f"image.{suffix}")
    np.testing.assert_array_equal(grey, np.repeat((values >> 8)[..., None], 3, axis=2))


def test_float_tiff_file_is_scaled(tmp_path):
    Image.fromarray(np.full((2, 3), 0.2, dtype=np.float32)).save(tmp_path / "image.tif")
    assert first_pixel(tmp_path / "image.tif") == (51, 51, 51)


def oriented(array, orientation):
    return {
        1: array,
        2: array[:, ::-1],
        3: array[::-1, ::-1],
        4: array[::-1],
        5: array.transpose(1, 0, 2),
        6: np.rot90(array, -1),
        7: array[::-1, ::-1].transpose(1, 0, 2),
        8: np.rot90(array),
    }[orientation]


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize(("suffix", "tolerance"), [("jpg", 12), ("png", 0)])
def test_exif_orientation_moves_the_pixels(tmp_path, orientation, suffix, tolerance):
    quadrants = np.array([[RED, GREEN, WHITE], [BLUE, BLACK, WHITE]], dtype=np.uint8).repeat(16, 0).repeat(16, 1)
    exif = Image.Exif()
    exif[0x0112] = orientation
    path = tmp_path / f"image.{suffix}"
    Image.fromarray(quadrants).save(path, exif=exif, **({"quality": 100, "subsampling": 0} if tolerance else {}))
    actual, expected = read(path), oriented(quadrants, orientation)
    assert actual.shape == expected.shape
    np.testing.assert_allclose(actual.astype(int), expected, atol=tolerance)


@pytest.mark.parametrize("suffix", ["gif", "png", "tif"])
def test_animated_file_becomes_its_first_frame_and_is_closed(tmp_path, suffix):
    frames = [solid("RGB", colour) for colour in (RED, GREEN, BLUE)]
    path = tmp_path / f"image.{suffix}"
    frames[0].save(path, save_all=True, append_images=frames[1:])
    assert first_pixel(path) == RED
    assert first_pixel(path.read_bytes()) == RED


@pytest.mark.parametrize("name", ["image.png", "with space.png", "Größe é 図 🦊.png"])
@pytest.mark.parametrize("kind", [str, Path])
def test_path_is_read(tmp_path, pixels, name, kind):
    Image.fromarray(pixels[0]).save(tmp_path / name)
    np.testing.assert_array_equal(read(kind(tmp_path / name)), pixels[0])


@pytest.mark.parametrize("file_format", ["PNG", "BMP", "TIFF", "PPM"])
def test_encoded_bytes_are_read(pixels, file_format):
    np.testing.assert_array_equal(read(encode(Image.fromarray(pixels[0]), file_format)), pixels[0])


@pytest.mark.parametrize(
    ("array", "expected"),
    [
        (np.full((2, 3), 7, np.uint8), (7, 7, 7)),
        (np.full((2, 3, 1), 7, np.uint8), (7, 7, 7)),
        (np.full((2, 3, 3), (1, 2, 3), np.uint8), (1, 2, 3)),
        (np.full((2, 3, 4), (*RED, 51), np.uint8), (255, 204, 204)),
        (np.full((2, 3), 0x80FF, np.uint16), (128, 128, 128)),
        (np.full((2, 3, 3), (0, 0x1FF, 0xFFFF), np.uint16), (0, 1, 255)),
        (np.full((2, 3), 0x80FF, ">u2"), (128, 128, 128)),
        (np.full((2, 3), True), WHITE),
        (np.full((2, 3, 3), (True, False, True)), (255, 0, 255)),
        (np.full((2, 3), 0.2), (51, 51, 51)),
        (np.full((2, 3, 3), (0, 0.2, 1), np.float32), (0, 51, 255)),
        (np.full((2, 3), 0.25, np.float16), (64, 64, 64)),
    ],
    ids=lambda value: f"{value.dtype}{value.shape}" if isinstance(value, np.ndarray) else "",
)
def test_array_becomes_rgb(array, expected):
    assert read(array).shape == (2, 3, 3)
    assert first_pixel(array) == expected


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_every_8_bit_value_survives_scaling_to_unit_floats(dtype):
    values = np.arange(256, dtype=np.uint8).reshape(16, 16)
    np.testing.assert_array_equal(read(values.astype(dtype) / dtype(255))[..., 0], values)


def test_array_view_is_read_as_it_looks(pixels):
    view = pixels[0, ::2, ::-1]
    view.flags.writeable = False
    np.testing.assert_array_equal(read(view), view)


@pytest.mark.parametrize(
    ("tensor", "expected"),
    [
        (torch.full((1, 2, 3), 7, dtype=torch.uint8), (7, 7, 7)),
        (torch.full((2, 3), 7, dtype=torch.uint8), (7, 7, 7)),
        (torch.tensor([0, 0.2, 1]).view(3, 1, 1).expand(3, 2, 3), (0, 51, 255)),
        (torch.tensor([True, False, True]).view(3, 1, 1).expand(3, 2, 3), (255, 0, 255)),
        (torch.tensor([255, 0, 0, 51], dtype=torch.uint8).view(4, 1, 1).expand(4, 2, 3), (255, 204, 204)),
        (torch.full((3, 2, 3), 0.2, requires_grad=True), (51, 51, 51)),
        (torch.full((3, 2, 3), 0.25, dtype=torch.bfloat16), (64, 64, 64)),
        (torch.full((3, 2, 3), 0.25, dtype=torch.float16), (64, 64, 64)),
    ],
    ids=lambda value: f"{value.dtype}{tuple(value.shape)}" if isinstance(value, torch.Tensor) else "",
)
def test_chw_tensor_becomes_rgb(tensor, expected):
    assert read(tensor).shape == (2, 3, 3)
    assert first_pixel(tensor) == expected


@pytest.mark.parametrize("item", [np.array([[9]], np.uint8), torch.full((3, 1, 1), 9, dtype=torch.uint8)])
def test_image_of_one_pixel(item):
    np.testing.assert_array_equal(read(item), [[[9, 9, 9]]])


def objects_of(images):
    objects = np.empty(len(images), dtype=object)
    for index, image in enumerate(images):
        objects[index] = image
    return objects


def collections_of(pixels):
    """All kinds of collection that hold the same three images."""
    arrays, pil = list(pixels), [Image.fromarray(image) for image in pixels]
    tensor = torch.from_numpy(pixels.transpose(0, 3, 1, 2).copy())
    objects = objects_of(pil)
    return {
        "list of arrays": arrays,
        "tuple of arrays": tuple(arrays),
        "list of PIL images": pil,
        "list of bytes": [encode(image) for image in pil],
        "list of tensors": list(tensor),
        "mixed list": [arrays[0], pil[1], tensor[2]],
        "array (n, H, W, C)": pixels,
        "tensor (n, C, H, W)": tensor,
        "object array": objects,
        "object column": objects[:, None],
        "list of bytearrays": [bytearray(encode(image)) for image in pil],
        "object array of arrays": objects_of(arrays),
        "Series of images": pd.Series(pil, index=[7, 8, 9]),
        "DataFrame of images": pd.DataFrame({"image": pil}, index=[7, 8, 9]),
        "Dataset of images": ImageDataset(pil),
        "Dataset of (image, label)": ImageDataset([(image, 1) for image in pil]),
        "TensorDataset": TensorDataset(tensor, torch.zeros(len(tensor))),
        "Subset": Subset(ImageDataset([None, *pil]), [1, 2, 3]),
    }


@pytest.mark.parametrize("kind", collections_of(np.zeros((3, 1, 1, 3), np.uint8)))
def test_collection_holds_each_image(pixels, kind):
    sequence = ImageSequence(collections_of(pixels)[kind])
    assert len(sequence) == 3
    for index, expected in enumerate(pixels):
        np.testing.assert_array_equal(sequence[index], expected)


@pytest.mark.parametrize(
    "wrap",
    [
        list,
        lambda paths: sorted(paths[0].parent.glob("*.png")),
        lambda paths: [str(path) for path in paths],
        lambda paths: np.array([str(path) for path in paths]),
        lambda paths: np.array(paths, dtype=object),
        lambda paths: pd.Series([str(path) for path in paths], dtype="str", index=[3, 1, 2]),
        lambda paths: pd.Series([str(path) for path in paths], dtype="string"),
        lambda paths: pd.Series([str(path) for path in paths], dtype=object),
        lambda paths: pd.Series([str(path) for path in paths], dtype="category"),
        lambda paths: pd.DataFrame({"path": [str(path) for path in paths]}, index=[3, 1, 2]),
        lambda paths: pd.DataFrame({"path": paths}),
        lambda paths: ImageDataset([(str(path), 0) for path in paths]),
    ],
    ids=[
        "Path",
        "sorted glob",
        "str",
        "str array",
        "object array",
        "str Series",
        "string Series",
        "object Series",
        "category Series",
        "DataFrame",
        "DataFrame of Path",
        "Dataset",
    ],
)
def test_collection_of_paths(paths, pixels, wrap):
    sequence = ImageSequence(wrap(paths))
    assert len(sequence) == 3
    for index, expected in enumerate(pixels):
        np.testing.assert_array_equal(sequence[index], expected)


@pytest.mark.parametrize("as_batch", [np.asarray, torch.from_numpy])
def test_batch_of_grey_images(as_batch):
    grey = np.random.default_rng(0).integers(0, 256, (5, 6, 7), dtype=np.uint8)
    sequence = ImageSequence(as_batch(grey))
    assert len(sequence) == 5
    for index, expected in enumerate(grey):
        np.testing.assert_array_equal(np.asarray(sequence[index])[..., 1], expected)


def test_images_are_read_only_when_asked_for(tmp_path):
    path = tmp_path / "later.png"
    sequence = ImageSequence([path])
    solid("RGB", RED).save(path)
    assert sequence[0].getpixel((0, 0)) == RED


def test_given_images_are_not_changed():
    image, array = solid("RGBA", (*RED, 51)), np.full((2, 3, 4), (*RED, 51), np.uint8)
    before = image.copy(), array.copy()
    read(image)
    read(array)
    assert image == before[0]
    np.testing.assert_array_equal(array, before[1])


@pytest.mark.parametrize(
    "image",
    ["image.png", Path("image.png"), b"\x89PNG", solid("RGB", RED)],
    ids=["str", "Path", "bytes", "PIL"],
)
def test_single_image_has_to_be_in_a_list(image):
    with pytest.raises(ValueError, match=r"single image .* put it into a list: \[X\]"):
        ImageSequence(image)


@pytest.mark.parametrize(
    "empty",
    [
        [],
        (),
        np.empty((0, 8, 8)),
        np.empty((0, 4, 4, 3), np.uint8),
        np.array([], dtype=object),
        torch.empty(0, 3, 4, 4),
        pd.DataFrame({"path": []}),
        pd.Series([], dtype="str"),
        ImageDataset([]),
    ],
    ids=lambda value: type(value).__name__,
)
def test_empty_collection_raises(empty):
    with pytest.raises(ValueError, match="holds no images: it is empty"):
        ImageSequence(empty)


@pytest.mark.parametrize(
    ("X", "named"),
    [
        ({"image.png": 0}, "X is a dict"),
        ({"image.png"}, "X is a set"),
        ((path for path in ["image.png"]), r"X is a generator; if it yields images, make it a list: list\(X\)"),
        (iter(["image.png"]), r"X is a list_iterator;.* list\(X\)"),
        (Path().glob("*.png"), r"list\(X\)"),
        (None, "X is a NoneType"),
        (3, "X is a int"),
        (np.zeros((4, 5)), r"shape \(4, 5\)"),
        (np.zeros(5), r"shape \(5,\)"),
        (np.array(5), r"shape \(\)"),
        (np.zeros((1, 1, 4, 5, 3)), r"shape \(1, 1, 4, 5, 3\)"),
        (torch.zeros(4, 5), r"shape \(4, 5\)"),
        (torch.zeros(1, 1, 3, 4, 5), r"shape \(1, 1, 3, 4, 5\)"),
    ],
)
def test_no_collection_of_images_raises_and_says_what_to_pass(X, named):
    with pytest.raises(ValueError, match=rf"{named}.*Pass a list of paths"):
        ImageSequence(X)


@pytest.mark.parametrize("shape", [(8, 9, 3), (8, 9, 4)])
def test_array_of_a_single_colour_image_has_to_be_in_a_list(shape):
    image = np.zeros(shape, np.uint8)
    with pytest.raises(ValueError, match=r"looks like one HxWxC image; pass \[X\]"):
        ImageSequence(image)
    assert len(ImageSequence([image])) == 1
    assert len(ImageSequence(image[..., None])) == 8


@pytest.mark.parametrize("shape", [(3, 8, 9), (4, 8, 9)])
def test_tensor_of_a_single_colour_image_has_to_be_in_a_list(shape):
    image = torch.zeros(shape)
    with pytest.raises(ValueError, match=r"looks like one CxHxW image; pass \[X\]"):
        ImageSequence(image)
    assert len(ImageSequence([image])) == 1
    assert len(ImageSequence(image[:, None])) == shape[0]


def test_array_of_paths_and_labels_raises():
    with pytest.raises(ValueError, match=r"shape \(2, 2\); pass the one column"):
        ImageSequence(np.array([["a.png", "cat"], ["b.png", "dog"]]))


@pytest.mark.parametrize("n_columns", [0, 2])
def test_data_frame_with_other_than_one_column_raises(n_columns):
    frame = pd.DataFrame(np.full((1, n_columns), "image.png"))
    with pytest.raises(ValueError, match=f"DataFrame with {n_columns} columns.*one column"):
        ImageSequence(frame)


def broken_file(path, kind):
    if kind == "truncated":
        path.write_bytes(encode(Image.radial_gradient("L"), "JPEG")[:-500])
    elif kind == "corrupt":
        path.write_bytes(b"this is no image")
    elif kind == "empty":
        path.touch()
    elif kind == "folder":
        path.mkdir()
    return path


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("missing", "there is no such file"),
        ("corrupt", "not an image file that Pillow can read"),
        ("empty", "not an image file that Pillow can read"),
        ("truncated", "(?i:truncated)"),
        ("folder", r'it is a folder; pass a list of its files: sorted\(Path\(folder\).rglob\("\*.jpg"\)\)'),
    ],
)
@pytest.mark.parametrize("as_path", [str, Path])
def test_unusable_file_raises_naming_its_index_and_path(tmp_path, kind, reason, as_path):
    good, bad = tmp_path / "good.png", tmp_path / "bäd.jpg"
    solid("RGB", RED).save(good)
    broken_file(bad, kind)
    sequence = ImageSequence([as_path(good), as_path(bad)])
    assert sequence[0].size == (3, 2)
    with pytest.raises(ValueError, match=rf"^Image 1 \({re.escape(str(bad))}\) cannot be used: .*{reason}"):
        sequence[1]


def test_unusable_item_of_nothing_is_named_by_index():
    with pytest.raises(ValueError, match=r"^Image 1 .*it is a NoneType, not a path"):
        ImageSequence([solid("RGB", RED), None])[1]


def test_item_that_a_dataset_cannot_give_is_named_by_index(tmp_path):
    class Opening(ImageDataset):
        def __getitem__(self, index):
            return Image.open(self.items[index]), 0

    solid("RGB", RED).save(tmp_path / "good.bmp")
    sequence = ImageSequence(Opening([tmp_path / "good.bmp", tmp_path / "missing.bmp"]))
    assert sequence[0].size == (3, 2)
    with pytest.raises(ValueError, match=r"^Image 1.* cannot be used: .*no such file"):
        sequence[1]


def test_missing_file_of_a_data_frame_is_named_by_position(paths):
    paths[2].unlink()
    sequence = ImageSequence(pd.DataFrame({"path": [str(path) for path in paths]}, index=[5, 6, 7]))
    with pytest.raises(ValueError, match=rf"^Image 2 \({re.escape(str(paths[2]))}\).*no such file"):
        sequence[2]


@pytest.mark.parametrize(
    ("item", "described", "reason"),
    [
        (b"no image", "8 bytes", "not an image file"),
        (b"", "0 bytes", "not an image file"),
        (encode(Image.radial_gradient("L"), "JPEG")[:-500], "[0-9]+ bytes", "(?i:truncated)"),
        (encode(Image.radial_gradient("L"), "PNG")[:-500], "[0-9]+ bytes", "(?i:truncated)"),
        (np.zeros((4, 4), np.int64), r"ndarray \(4, 4\)", "dtype int64 is none of uint8, uint16, bool and float"),
        (np.array([[0, 255]]), r"ndarray \(1, 2\)", r"within 0..255, convert it with .astype\(np.uint8\)"),
        (np.array([[-1000, 255]]), r"ndarray \(1, 2\)", "run from -1000 to 255: scale them to 0..255"),
        (np.array([[0, 255]], object), r"ndarray \(1, 2\)", r"dtype object is none of .*np.stack\(images\)"),
        (np.zeros((4, 4), complex), r"ndarray \(4, 4\)", "dtype complex128 is none of"),
        (torch.zeros(3, 4, 4, dtype=torch.int32), r"Tensor \(3, 4, 4\)", "dtype int32 is none of"),
        (np.zeros((4, 4, 2), np.uint8), r"ndarray \(4, 4, 2\)", r"shape \(4, 4, 2\) is none of HxW"),
        (np.zeros((3, 8, 8), np.uint8), r"ndarray \(3, 8, 8\)", r"shape \(3, 8, 8\) is none of HxW"),
        (np.zeros((1, 4, 4, 3), np.uint8), r"ndarray \(1, 4, 4, 3\)", "is none of HxW"),
        (np.zeros(4, np.uint8), r"ndarray \(4,\)", "is none of HxW"),
        (np.zeros((0, 4), np.uint8), r"ndarray \(0, 4\)", "is none of HxW"),
        (torch.zeros(2, 4, 4), r"Tensor \(2, 4, 4\)", "is none of HxW"),
        (torch.zeros(8, 8, 3), r"Tensor \(8, 8, 3\)", "CxHxW for a tensor"),
        (np.array([[0, 255]], np.uint16), r"ndarray \(1, 2\)", "uint16 but its values only reach 255"),
        (np.array([[0, 255.0]]), r"ndarray \(1, 2\)", r"run from 0 to 255; scale them to \[0, 1\]; divide them by 255"),
        (np.array([[0, 256.0]]), r"ndarray \(1, 2\)", r"run from 0 to 256; scale them to \[0, 1\]\.$"),
        (np.array([[-0.1, 1]]), r"ndarray \(1, 2\)", "run from -0.1 to 1; .*if they were normalised for a network"),
        (np.array([[0, 1.001]]), r"ndarray \(1, 2\)", "run from 0 to 1.001"),
        (np.array([[np.nan, 0.5]]), r"ndarray \(1, 2\)", "contain NaN"),
        (np.array([[np.inf, 0.5]]), r"ndarray \(1, 2\)", "inf"),
        (torch.full((3, 2, 2), 2.0), r"Tensor \(3, 2, 2\)", "run from 2 to 2"),
        (solid("F", 2.0), r"Image \(3, 2\)", "run from 2 to 2"),
        (solid("F", float("nan")), r"Image \(3, 2\)", "contain NaN"),
        (float("nan"), "float", "it is a float, not a path"),
        (5, "int", "it is a int, not a path"),
        ((np.zeros((4, 4), np.uint8), 1), "tuple", "it is a tuple, not a path.*only a torch Dataset"),
        ([[0, 1], [1, 0]], "list", r"it is a list, not a path.*make numbers an array with np.asarray"),
        ("https://example.org/a.jpg", "https://example.org/a.jpg", "it is a URL, and nothing is downloaded"),
        ("s3://bucket/a.jpg", "s3://bucket/a.jpg", "it is a URL"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_unusable_item_raises_saying_what_it_is(item, described, reason):
    sequence = ImageSequence([solid("RGB", RED), item])
    with pytest.raises(ValueError, match=rf"^Image 1 \({described}\) cannot be used: .*{reason}"):
        sequence[1]


def png_of_16_bits(array, colour_type):
    """Encode a 16-bit PNG, which Pillow writes in grey only."""

    def chunk(name, content):
        return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))

    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in array)
    header = struct.pack(">IIBBBBB", array.shape[1], array.shape[0], 16, colour_type, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def exif(orientation):
    exif = Image.Exif()
    exif[0x0112] = orientation
    return exif


def halves(left, right):
    image = solid("RGB", left, (32, 16))
    image.paste(right, (16, 0, 32, 16))
    return image


def frames(file_format):
    images = [solid("RGB", colour) for colour in (RED, GREEN)]
    return encode(images[0], file_format, save_all=True, append_images=images[1:], **LOSSLESS.get(file_format, {}))


LOSSLESS = {"WEBP": {"lossless": True}}


def closed_image(folder):
    solid("RGB", RED).save(folder / "closed.png")
    with Image.open(folder / "closed.png") as image:
        return image


def oversized_png():
    return encode(solid("1", 0, (20000, 20000)))


def adobe_cmyk_jpeg():
    content = encode(solid("CMYK", (255, 0, 0, 0), (16, 16)), "JPEG", quality=95)
    assert b"Adobe" in content
    return content


# One example or more for each row of the table in docs/images.md: (a function of a folder, first pixel or error).
POLICY = {
    "greyscale": [(lambda _: encode(solid("L", 7)), (7, 7, 7)), (lambda _: np.full((2, 3), 7, np.uint8), (7, 7, 7))],
    "greyscale with alpha": [(lambda _: encode(solid("LA", (0, 51))), (204, 204, 204))],
    "RGBA": [(lambda _: encode(solid("RGBA", (*RED, 51))), (255, 204, 204))],
    "palette": [(lambda _: encode(palette_image()), RED)],
    "palette with transparency": [(lambda _: encode(palette_image(), transparency=0), WHITE)],
    "PNG with one transparent colour": [
        (lambda _: encode(solid("RGB", (9, 8, 7)), transparency=(9, 8, 7)), WHITE),
        (lambda _: encode(solid("I;16", 0x12FF), transparency=0x12FF), (18, 18, 18)),
    ],
    "CMYK": [(lambda _: encode(solid("CMYK", (0, 0, 255, 0)), "TIFF"), (255, 255, 0))],
    "CMYK JPEG": [(lambda _: adobe_cmyk_jpeg(), (0, 255, 255))],
    "YCbCr": [(lambda _: encode(solid("RGB", (200, 60, 90)).convert("YCbCr"), "TIFF"), (200, 60, 90))],
    "LAB": [(lambda _: encode(lab((200, 60, 90)), "TIFF"), (200, 60, 90))],
    "HSV": [(lambda _: solid("RGB", (200, 60, 90)).convert("HSV"), (200, 60, 90))],
    "1-bit or bool": [(lambda _: encode(solid("1", 1)), WHITE), (lambda _: np.full((2, 3), True), WHITE)],
    "16-bit grey": [
        *(
            (lambda _, f=f: encode(solid("I;16", 0x80FF), f), (128, 128, 128))
            for f in ("PNG", "TIFF", "PPM", "JPEG2000")
        ),
        (lambda _: encode(solid("I", 0x80FF), "TIFF"), (128, 128, 128)),
        (lambda _: Image.frombytes("I;16B", (1, 1), b"\x80\xff"), (128, 128, 128)),
        (lambda _: np.full((2, 3), 0x80FF, np.uint16), (128, 128, 128)),
    ],
    "16-bit colour": [
        (lambda _: png_of_16_bits(np.full((2, 3, 3), (0x1FF, 0x2FF, 0x80FF)), 2), (1, 2, 128)),
        (lambda _: np.full((2, 3, 3), (0x1FF, 0x2FF, 0x80FF), np.uint16), (1, 2, 128)),
    ],
    "12-bit data in 16 bits": [(lambda _: np.full((2, 3), 0xFFF, np.uint16), (15, 15, 15))],
    "float in [0, 1]": [
        (lambda _: np.full((2, 3), 0.2), (51, 51, 51)),
        (lambda _: encode(solid("F", 0.2), "TIFF"), (51, 51, 51)),
        (lambda _: np.full((2, 3), 1 + 2e-7, np.float32), WHITE),
        (lambda _: np.full((2, 3), -2e-7, np.float32), BLACK),
    ],
    "float in another range": [(lambda _: np.full((2, 3), 255.0), "divide them by 255")],
    "float with NaN": [(lambda _: np.full((2, 3), np.nan), "NaN")],
    "uint16 array up to 255": [(lambda _: np.full((2, 3), 255, np.uint16), "convert it to uint8")],
    "other integers": [(lambda _: np.zeros((2, 3), np.int64), r"\.astype\(np.uint8\)")],
    "object array": [(lambda _: np.zeros((2, 3), object), r"np\.stack\(images\)")],
    "EXIF orientation": [
        (lambda _: encode(halves(RED, GREEN), exif=exif(3)), GREEN),
        (lambda _: encode(halves(RED, GREEN), "TIFF", exif=exif(3)), GREEN),
        (lambda _: encode(halves(RED, GREEN), "WEBP", exif=exif(3), lossless=True), GREEN),
    ],
    "unreadable EXIF data": [
        *(
            (lambda _, f=f: encode(solid("RGB", RED), f, exif=b"Exif\0\0garbage", lossless=True), RED)
            for f in ("PNG", "WEBP")
        )
    ],
    "animated GIF, WebP or PNG": [*((lambda _, f=f: frames(f), RED) for f in ("GIF", "WEBP", "PNG"))],
    "multi-page TIFF": [(lambda _: frames("TIFF"), RED)],
    "ICC profile": [
        (
            lambda _: encode(
                solid("RGB", RED), icc_profile=ImageCms.ImageCmsProfile(ImageCms.createProfile("XYZ")).tobytes()
            ),
            RED,
        )
    ],
    "1x1 pixels": [(lambda _: encode(solid("RGB", RED, (1, 1))), RED)],
    "PIL image not yet loaded": [(lambda _: Image.open(io.BytesIO(encode(solid("RGB", RED)))), RED)],
    "PIL image of a closed file": [(closed_image, r"call image\.load\(\)")],
    "truncated file": [(lambda folder: broken_file(folder / "image.jpg", "truncated"), "truncated")],
    "corrupt file": [(lambda folder: broken_file(folder / "image.jpg", "corrupt"), "not an image file")],
    "missing file": [(lambda folder: folder / "image.jpg", "no such file")],
    "folder": [(lambda folder: folder, r"sorted\(Path\(folder\)")],
    "URL": [(lambda _: "http://example.org/image.jpg", "URL")],
    "more pixels than Pillow allows": [(lambda _: oversized_png(), r"exceeds limit .*bomb.*MAX_IMAGE_PIXELS")],
}


def test_page_tells_what_becomes_of_exactly_the_cases_tested():
    table = PAGE.read_text(encoding="utf-8").split("## What becomes of it")[1].split("##")[0]
    rows = re.findall(r"^\| ([^|]+) \| [^|]+ \|$", table, flags=re.MULTILINE)
    assert rows[0] == "input"
    assert rows[1:] == list(POLICY)


@pytest.mark.parametrize(
    ("make", "expected"),
    [pytest.param(*case, id=f"{row}-{number}") for row, cases in POLICY.items() for number, case in enumerate(cases)],
)
def test_row_of_the_page_holds(tmp_path, make, expected):
    item = make(tmp_path)
    if isinstance(expected, str):
        with pytest.raises(ValueError, match=rf"^Image 0 .* cannot be used: .*{expected}"):
            ImageSequence([item])[0]
    else:
        np.testing.assert_allclose(
            first_pixel(item), expected, atol=3 if expected in [(200, 60, 90), (0, 255, 255)] else 0
        )


def test_limit_of_pixels_warns_before_it_raises(monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 6 * 6)
    with pytest.warns(Image.DecompressionBombWarning):
        assert first_pixel(encode(solid("RGB", RED, (7, 7)))) == RED


FORMATS = [
    ("JPEG", {}),
    ("JPEG", {"progressive": True}),
    ("PNG", {}),
    ("GIF", {}),
    ("BMP", {}),
    ("TIFF", {}),
    ("TIFF", {"compression": "tiff_lzw"}),
    ("WEBP", {}),
    ("JPEG2000", {}),
]


@pytest.mark.filterwarnings("ignore:Corrupt EXIF data", "ignore:Truncated File Read", "ignore:Metadata Warning")
@pytest.mark.parametrize(("file_format", "options"), FORMATS, ids=str)
@pytest.mark.parametrize("shorter_side", [None, 20])
def test_truncated_file_is_an_error_wherever_it_ends(file_format, options, shorter_side):
    content = encode(photo((160, 120)), file_format, **options)
    whole = np.asarray(ImageSequence([content]).source(0).rgb(shorter_side))
    n_errors = 0
    for length in np.linspace(0, len(content) - 1, 40).astype(int).tolist():
        try:
            image = ImageSequence([content[:length]]).source(0).rgb(shorter_side)
        except ValueError:
            n_errors += 1
        else:
            np.testing.assert_array_equal(image, whole)  # only the last bytes may be missed by nobody
    assert n_errors >= 38


def photo(size, seed=0):
    """Make a picture with structure at all scales, edges and text; 20 megapixels take a second."""
    rng = np.random.default_rng(seed)
    width, height = size
    total = np.zeros((height, width, 3), np.float32)
    cells, amplitude = 3, 60.0
    while cells < max(size):
        noise = rng.integers(
            0, 256, (max(2, cells * height // max(size)), max(2, cells * width // max(size)), 3), np.uint8
        )
        total += amplitude / 128 * (np.asarray(Image.fromarray(noise).resize(size, Image.Resampling.BICUBIC)) - 127.5)
        cells, amplitude = cells * 4, amplitude * 0.5
    image = Image.fromarray((total + 128).clip(0, 255).astype(np.uint8))
    draw = ImageDraw.Draw(image)
    for _ in range(20):
        x, y = int(rng.integers(width)), int(rng.integers(height))
        colour = tuple(rng.integers(0, 256, 3).tolist())
        draw.ellipse((x, y, x + height // 8, y + height // 10), fill=colour)
        draw.line(
            (x, y, int(rng.integers(width)), int(rng.integers(height))), fill=colour[::-1], width=max(1, height // 500)
        )
        draw.text(
            (y % width, x % height), "Layer by layer", fill=colour, font=ImageFont.load_default(size=height // 30)
        )
    return image


@pytest.fixture(scope="module")
def large_photo():
    return photo((5472, 3648))


def resized(image, side):
    width, height = image.size
    scale = side / min(width, height)
    size = (side, int(scale * height)) if width <= height else (int(scale * width), side)
    return np.asarray(image.resize(size, Image.Resampling.BICUBIC)).astype(int)


@pytest.mark.parametrize(
    ("size", "reduced"),
    [((2000, 3000), (500, 750)), ((4000, 3000), (1000, 750)), ((4032, 3024), (1008, 756)), ((5472, 3648), (684, 456))],
    ids=str,
)
@pytest.mark.parametrize("quality", [75, 85, 95])
def test_reduced_decoding_of_a_jpeg_is_as_close_to_full_decoding_as_the_page_says(large_photo, size, reduced, quality):
    source = ImageSequence([encode(large_photo.crop((0, 0, *size)), "JPEG", quality=quality)]).source(0)
    full, small = source.rgb(), source.rgb(224)
    assert (full.size, small.size) == (size, reduced)
    assert min(small.size) >= JPEG_MARGIN * 224
    difference = np.abs(resized(full, 224) - resized(small, 224))
    assert difference.mean() <= 0.5
    assert difference.max() <= 16


@pytest.mark.parametrize(
    ("size", "shorter_side", "expected"),
    [
        ((320, 240), 60, (160, 120)),
        ((320, 240), 61, (320, 240)),
        ((320, 240), 15, (40, 30)),
        ((240, 320), 15, (30, 40)),
        ((320, 242), 30, (160, 121)),
        ((321, 240), 15, (321, 240)),
        ((320, 241), 15, (320, 241)),
    ],
    ids=str,
)
@pytest.mark.parametrize("mode", ["RGB", "L", "CMYK"])
def test_scale_is_the_smallest_that_divides_the_size_and_leaves_enough(size, shorter_side, expected, mode):
    image = ImageSequence([encode(solid(mode, 0, size), "JPEG")]).source(0).rgb(shorter_side)
    assert image.size == expected
    assert image.mode == "RGB"


@pytest.mark.parametrize("orientation", range(1, 9))
def test_reduced_decoding_applies_the_orientation(orientation):
    image = photo((320, 240))
    upright = np.asarray(ImageSequence([encode(image, "JPEG", quality=95)]).source(0).rgb(50))
    actual = ImageSequence([encode(image, "JPEG", quality=95, exif=exif(orientation))]).source(0).rgb(50)
    assert upright.shape == (120, 160, 3)
    np.testing.assert_array_equal(actual, oriented(upright, orientation))


def test_first_picture_of_a_multi_picture_jpeg_is_reduced():
    first, second = photo((320, 240)), solid("RGB", RED, (320, 240))
    content = encode(first, "MPO", save_all=True, append_images=[second], quality=95)
    image = ImageSequence([content]).source(0).rgb(50)
    assert Image.open(io.BytesIO(content)).format == "MPO"
    assert image.size == (160, 120)
    assert np.abs(resized(image, 50) - resized(first, 50)).mean() < 1


@pytest.mark.parametrize("as_item", [np.asarray, encode, lambda image: image.copy()], ids=["array", "PNG", "PIL"])
def test_nothing_but_a_jpeg_is_reduced(as_item):
    image = photo((320, 240))
    np.testing.assert_array_equal(ImageSequence([as_item(image)]).source(0).rgb(15), image)


def digest(item):
    return ImageSequence([item]).source(0).digest


def test_digest_of_a_file_is_that_of_its_bytes(tmp_path, pixels):
    content = encode(Image.fromarray(pixels[0]))
    (tmp_path / "image.png").write_bytes(content)
    expected = hashlib.blake2b(content, digest_size=32, person=b"file").digest()
    assert {
        digest(item) for item in (content, bytearray(content), tmp_path / "image.png", str(tmp_path / "image.png"))
    } == {expected}


def test_digest_of_pixels_is_the_same_for_array_tensor_and_pil_image(pixels):
    array = pixels[0]
    same = [
        array,
        array.astype(np.float64) / 255,
        Image.fromarray(array),
        Image.fromarray(array).convert("RGBA"),
        Image.open(io.BytesIO(encode(Image.fromarray(array)))),
        torch.from_numpy(array.transpose(2, 0, 1).copy()),
    ]
    assert len({digest(item) for item in same}) == 1
    assert len(digest(array)) == 32


def test_digests_of_different_images_differ(pixels):
    array = pixels[0]
    changed = array.copy()
    changed[-1, -1, -1] ^= 1
    image = Image.fromarray(array)
    items = [array, changed, array.reshape(5, 4, 3), array[:, ::-1], encode(image), encode(image, "BMP")]
    assert len({digest(item) for item in items}) == len(items)


def test_digest_of_a_file_is_never_that_of_pixels(pixels):
    array = pixels[0]
    hashed = repr((5, 4)).encode() + array.tobytes()
    assert digest(array) == hashlib.blake2b(hashed, digest_size=32, person=b"pixels").digest()
    assert digest(array) != digest(hashed)


def test_what_was_hashed_is_decoded_although_the_file_changed_meanwhile(tmp_path):
    path = tmp_path / "image.png"
    solid("RGB", RED).save(path)
    source = ImageSequence([path]).source(0)
    before = source.digest
    solid("RGB", GREEN).save(path)
    assert source.rgb().getpixel((0, 0)) == RED
    assert source.digest == before == digest(encode(solid("RGB", RED)))


def test_file_is_read_once_for_digest_and_pixels(tmp_path):
    path = tmp_path / "image.png"
    solid("RGB", RED).save(path)
    source = ImageSequence([path]).source(0)
    assert source.digest == source.digest
    path.unlink()
    assert source.rgb().getpixel((0, 0)) == RED
    with pytest.raises(ValueError, match="no such file"):  # nothing was kept
        source.rgb()


def test_source_can_be_decoded_more_than_once(pixels):
    for item in (pixels[0], encode(Image.fromarray(pixels[0])), Image.fromarray(pixels[0])):
        source = ImageSequence([item]).source(0)
        assert source.digest == digest(item)
        for _ in range(2):
            np.testing.assert_array_equal(source.rgb(), pixels[0])


@pytest.mark.parametrize(
    "item", [b"no image", "missing.png", np.zeros((4, 4), np.int64), None, "http://a.b/c.png", "."]
)
def test_digest_or_pixels_of_an_unusable_image_raise_naming_it(item):
    source = ImageSequence([b"", item]).source(1)
    with pytest.raises(ValueError, match=r"^Image 1 \(.*\) cannot be used: "):
        (source.digest, source.rgb())  # bytes have a digest, whatever they are


def test_digest_of_a_missing_file_raises():
    with pytest.raises(ValueError, match=r"^Image 0 \(missing.png\) cannot be used: there is no such file\.$"):
        ImageSequence(["missing.png"]).source(0).digest  # noqa: B018


def test_source_asks_a_dataset_once_and_decodes_nothing():
    class Counting(ImageDataset):
        asked = []

        def __getitem__(self, index):
            self.asked.append(index)
            return super().__getitem__(index)

    sequence = ImageSequence(Counting([(b"no image", 0), (encode(solid("RGB", RED)), 1)]))
    sources = [sequence.source(0), sequence.source(1)]
    assert Counting.asked == [0, 1]
    assert sources[1].digest == digest(encode(solid("RGB", RED)))
    assert sources[1].rgb().getpixel((0, 0)) == RED
    assert Counting.asked == [0, 1]


def test_indexing_is_that_of_a_list(pixels):
    sequence = ImageSequence(list(pixels))
    np.testing.assert_array_equal(sequence[-1], pixels[2])
    np.testing.assert_array_equal(sequence[np.int64(1)], pixels[1])
    assert len(list(sequence)) == 3
    for index in (3, -4):
        with pytest.raises(IndexError):
            sequence[index]
    with pytest.raises(TypeError):
        sequence[0:2]


def decode_in_threads(items):
    sequence = ImageSequence(items)
    sources = [sequence.source(index) for index in range(len(items))]
    with ThreadPoolExecutor(8) as pool:
        return list(pool.map(lambda source: (source.digest, np.asarray(source.rgb())), sources))


@pytest.mark.parametrize("loaded", [False, True])
@pytest.mark.parametrize("file_format", ["JPEG", "PNG", "GIF", "BMP", "TIFF", "WEBP"])
def test_threads_may_decode_one_pil_image_at_once(file_format, loaded):
    content = encode(photo((320, 240)), file_format)
    image = Image.open(io.BytesIO(content))
    if loaded:
        image.load()
    expected = np.asarray(ImageSequence([content])[0])
    results = decode_in_threads([image] * 24)
    assert len({digest for digest, _ in results}) == 1
    for _, actual in results:
        np.testing.assert_array_equal(actual, expected)


def test_digests_of_several_images_are_taken_at_once():
    both = threading.Barrier(2, timeout=10)

    class Waiting(os.PathLike):
        def __fspath__(self):
            if threading.current_thread() is not threading.main_thread():
                with contextlib.suppress(threading.BrokenBarrierError):
                    both.wait()
            return "missing.png"

    sequence = ImageSequence([Waiting(), Waiting()])

    def both_waited(source):
        with pytest.raises(ValueError, match="no such file"):
            source.digest  # noqa: B018
        return not both.broken

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(both_waited, [sequence.source(0), sequence.source(1)])) == [True, True]


def test_threads_take_turns_reading_the_file_of_a_pil_image():
    class Slow(io.BytesIO):
        def read(self, *size):
            time.sleep(0.001)
            content = super().read(*size)
            time.sleep(0.001)
            return content

    image = photo((64, 48))
    for _, actual in decode_in_threads([Image.open(Slow(encode(image)))] * 16):
        np.testing.assert_array_equal(actual, image)


@pytest.mark.parametrize("file_format", ["JPEG", "PNG", "GIF", "BMP", "TIFF", "WEBP"])
def test_pil_image_that_is_not_loaded_stays_so(tmp_path, file_format):
    path = tmp_path / "image"
    photo((64, 48)).save(path, file_format)
    with Image.open(path) as image, Image.open(path) as untouched:
        actual = read(image)
        assert image.fp is not None
        assert not image.fp.closed
        assert image.fp.tell() == untouched.fp.tell()
        for name in ("mode", "size", "tile", "info", "format", "filename"):
            assert getattr(image, name) == getattr(untouched, name)
        np.testing.assert_array_equal(np.asarray(image.convert("RGB")), actual)


def test_pil_image_keeps_its_draft():
    content = encode(photo((320, 240)), "JPEG")
    image = Image.open(io.BytesIO(content))
    image.draft("L", (160, 120))
    expected = Image.open(io.BytesIO(content))
    expected.draft("L", (160, 120))
    np.testing.assert_array_equal(read(image), np.asarray(expected.convert("RGB")))
    assert (image.mode, image.size) == ("L", (160, 120))


def test_pil_image_is_taken_at_its_frame():
    image = Image.open(io.BytesIO(frames("TIFF")))
    image.seek(1)
    assert first_pixel(image) == GREEN
    assert image.tell() == 1
    assert [first_pixel(frame) for frame in PILSequence.Iterator(image)] == [RED, GREEN]


def test_pil_image_changed_after_loading_is_taken_as_changed(tmp_path):
    solid("RGB", RED).save(tmp_path / "image.png")
    with Image.open(tmp_path / "image.png") as image:
        image.putpixel((0, 0), GREEN)
        assert first_pixel(image) == GREEN


def test_what_comes_out_is_no_part_of_what_was_given():
    image, array = solid("RGB", RED), np.zeros((2, 3, 3), np.uint8)
    for item in (image, array):
        ImageSequence([item])[0].putpixel((0, 0), GREEN)
    assert image.getpixel((0, 0)) == RED
    assert not array.any()


def test_file_named_by_a_pil_image_is_in_the_message(tmp_path):
    path = tmp_path / "image.jpg"
    broken_file(path, "truncated")
    with (
        Image.open(path) as image,
        pytest.raises(ValueError, match=rf"{re.escape(str(path))}\) cannot be used: .*truncated"),
    ):
        ImageSequence([image])[0]


TWELVE_BIT = np.full((2, 3), 4095, np.uint16)


@pytest.mark.parametrize(
    "item",
    [
        TWELVE_BIT,
        TWELVE_BIT.astype(">u2"),
        np.full((2, 3, 3), 1000, np.uint16),
        torch.from_numpy(TWELVE_BIT),
        Image.fromarray(TWELVE_BIT),
        encode(Image.fromarray(TWELVE_BIT)),
        encode(Image.fromarray(TWELVE_BIT), "TIFF"),
        encode(Image.fromarray(TWELVE_BIT), "PPM"),
        solid("I", 1),
    ],
    ids=lambda item: type(item).__name__,
)
def test_12_bit_data_warns_when_asked(item):
    sequence = ImageSequence([item])
    assert sequence[0].size == (3, 2)
    assert list(sequence.notes) == [0]
    with pytest.warns(UserWarning, match=r"^Image 0 .* has 16 bits but no value above 4095.*`image << 4`"):
        sequence.warn()


@pytest.mark.parametrize(
    "item",
    [
        np.zeros((2, 3), np.uint16),
        np.array([[0, 4096]], np.uint16),
        np.full((2, 3), 5, np.uint8),
        solid("I;16", 0),
        solid("I;16", 4096),
        solid("I", -5),
        solid("L", 5),
        encode(solid("I;16", 0)),
    ],
    ids=lambda item: type(item).__name__,
)
def test_other_data_does_not_warn(item):
    sequence = ImageSequence([item])
    assert sequence[0].mode == "RGB"
    sequence.warn()
    assert sequence.notes == {}


@pytest.mark.parametrize("digest_first", [False, True])
def test_many_12_bit_images_warn_once_naming_the_first(tmp_path, digest_first):
    paths = [tmp_path / f"{index}.png" for index in range(20)]
    for index, path in enumerate(paths):
        Image.fromarray(TWELVE_BIT if index >= 3 else np.full((2, 3), 5, np.uint8)).save(path)
    sequence = ImageSequence(paths)
    sources = [sequence.source(index) for index in range(20)]

    def decode(source):
        return digest_first and source.digest, source.rgb()

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(decode, reversed(sources)))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        sequence.warn()
        sequence.warn()
    assert len(caught) == 1
    assert str(caught[0].message).startswith(f"Image 3 ({paths[3]}) (and 16 more) has 16 bits")


def test_uint16_array_of_8_bit_data_raises_and_does_not_warn():
    sequence = ImageSequence([np.full((2, 3), 255, np.uint16)])
    with pytest.raises(ValueError, match="convert it to uint8"):
        sequence[0]
    sequence.warn()
    assert sequence.notes == {}


@pytest.mark.parametrize("kind", ["Series", "DataFrame"])
def test_polars_column_of_paths(paths, pixels, kind):
    polars = pytest.importorskip("polars")
    column = polars.Series("path", [str(path) for path in paths])
    sequence = ImageSequence(column if kind == "Series" else column.to_frame())
    assert len(sequence) == 3
    for index, expected in enumerate(pixels):
        np.testing.assert_array_equal(sequence[index], expected)


def test_polars_frame_of_two_columns_raises():
    polars = pytest.importorskip("polars")
    with pytest.raises(ValueError, match="DataFrame with 2 columns"):
        ImageSequence(polars.DataFrame({"path": ["a.png"], "label": [1]}))


def test_equal_images_stacked_as_objects_raise_with_advice(pixels):
    stacked = np.array(list(pixels), dtype=object)
    assert stacked.shape == pixels.shape
    with pytest.raises(ValueError, match=r"stacked as objects. Pass the list of images itself or np.stack\(images\)"):
        ImageSequence(stacked)
    np.testing.assert_array_equal(ImageSequence(stacked.astype(np.uint8))[1], pixels[1])


@pytest.mark.parametrize("as_path", [str, Path])
def test_folder_as_x_raises_saying_how_to_list_it(tmp_path, as_path):
    with pytest.raises(
        ValueError, match=r'it is a folder; pass a list of its files: sorted\(Path\(folder\).rglob\("\*.jpg"\)\)'
    ):
        ImageSequence(as_path(tmp_path))


def test_url_as_x_raises():
    with pytest.raises(ValueError, match=r"X is 'https://example\.org/a\.jpg': it is a URL, and nothing is downloaded"):
        ImageSequence("https://example.org/a.jpg")


def test_images_of_any_sizes_mix(large_photo):
    items = [encode(large_photo, "JPEG"), np.zeros((1, 1), np.uint8), solid("RGB", RED, (7, 3))]
    assert [image.size for image in ImageSequence(items)] == [(5472, 3648), (1, 1), (7, 3)]
