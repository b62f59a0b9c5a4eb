import io
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image, ImageCms
from torch.utils.data import Dataset, Subset, TensorDataset

from skvfusion.extraction.images import ImageSequence

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


def collections_of(pixels):
    """All kinds of collection that hold the same three images."""
    arrays, pil = list(pixels), [Image.fromarray(image) for image in pixels]
    tensor = torch.from_numpy(pixels.transpose(0, 3, 1, 2).copy())
    objects = np.empty(len(pil), dtype=object)
    objects[:] = pil
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
        ((path for path in ["image.png"]), "X is a generator"),
        (iter(["image.png"]), "X is a list_iterator"),
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


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("missing", "there is no such file"),
        ("corrupt", "not an image file that Pillow can read"),
        ("empty", "not an image file that Pillow can read"),
        ("truncated", "(?i:truncated)"),
        ("folder", "(?i:directory|permission)"),
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
        (np.array([[0, 255.0]]), r"ndarray \(1, 2\)", r"run from 0 to 255; scale them to \[0, 1\]"),
        (np.array([[-0.1, 1]]), r"ndarray \(1, 2\)", "run from -0.1 to 1"),
        (np.array([[0, 1.001]]), r"ndarray \(1, 2\)", "run from 0 to 1.001"),
        (np.array([[np.nan, 0.5]]), r"ndarray \(1, 2\)", "nan"),
        (np.array([[np.inf, 0.5]]), r"ndarray \(1, 2\)", "inf"),
        (torch.full((3, 2, 2), 2.0), r"Tensor \(3, 2, 2\)", "run from 2 to 2"),
        (solid("F", 2.0), r"Image \(3, 2\)", "run from 2 to 2"),
        (solid("F", float("nan")), r"Image \(3, 2\)", "nan"),
        (float("nan"), "float", "it is a float, not a path"),
        (5, "int", "it is a int, not a path"),
        ((np.zeros((4, 4), np.uint8), 1), "tuple", "it is a tuple, not a path"),
        ([[0, 1], [1, 0]], "list", "it is a list, not a path"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_unusable_item_raises_saying_what_it_is(item, described, reason):
    sequence = ImageSequence([solid("RGB", RED), item])
    with pytest.raises(ValueError, match=rf"^Image 1 \({described}\) cannot be used: .*{reason}"):
        sequence[1]
