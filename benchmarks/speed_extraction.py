"""The part of speed.py about extraction: from images to layer stacks."""

import os
import resource
import tempfile
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from sklearn.datasets import load_sample_images
from torch.utils.data import Dataset

from benchmarks.timing import interleaved, report
from skvfusion import LayerwiseFeatureExtractor
from skvfusion.devices import resolve_device
from skvfusion.extraction import cache_info
from skvfusion.extraction.backbones import get_backbone
from skvfusion.extraction.taps import layer_tokens

SIZE = (500, 375)


def extraction(args):
    name, n_images, batch, n_watched = (
        ("test_vit", 20, 4, 40) if args.quick else ("vit_small_patch16_224", 200, 8, 1000)
    )
    with tempfile.TemporaryDirectory() as folder:
        paths = write_photos(Path(folder), max(n_images, n_watched), args.images)
        # First, before anything else has raised the peak.
        watch_memory(name, paths[:n_watched], batch)
        compare(args, name, paths[:n_images], batch, os.path.join(folder, "cache"))


def write_photos(folder, n, source):
    """Write JPEGs of about 500x375: the pictures below ``source``, or windows of scikit-learn's two photographs."""
    if source:
        found = sorted(path for path in Path(source).rglob("*") if path.suffix.lower() in (".jpg", ".jpeg", ".png"))
        photos = (Image.open(found[index % len(found)]).convert("RGB").resize(SIZE) for index in range(n))
    else:
        samples = [Image.fromarray(image) for image in load_sample_images().images]
        space = (samples[0].width - SIZE[0], samples[0].height - SIZE[1])
        corners = np.random.default_rng(0).integers(0, space, (n, 2))
        photos = (samples[i % 2].crop((x, y, x + SIZE[0], y + SIZE[1])) for i, (x, y) in enumerate(corners))
    paths = [folder / f"{index}.jpg" for index in range(n)]
    # One at a time, or writing them would take more memory than what is measured.
    for index, (path, photo) in enumerate(zip(paths, photos, strict=True)):
        photo.putpixel((0, 0), (index % 256, index // 256, 0))  # no two are alike, or one would be computed once
        photo.save(path, quality=90)
    return paths


def compare(args, name, paths, batch, cache):
    backbone = get_backbone(name, "random", None, resolve_device("cpu"))
    options = {"backbone": name, "weights": "random", "batch_size": batch, "device": "cpu"}
    ours, cached = LayerwiseFeatureExtractor(**options), LayerwiseFeatureExtractor(**options, cache=cache)
    chunk = len(paths) // args.repetitions
    pixels = [backbone.pixels(Image.open(path)) for path in paths]
    every_layer = range(backbone.depth)

    def part(repetition):
        return (range(repetition * chunk, (repetition + 1) * chunk),)

    def ready(rows):
        return torch.stack([backbone.normalize(pixels[row][None])[0] for row in rows]).split(batch)

    batches = {part(repetition)[0]: ready(*part(repetition)) for repetition in range(args.repetitions)}

    @torch.inference_mode()
    def bare(rows):
        for images in batches[rows]:
            backbone.model.forward_features(images)

    @torch.inference_mode()
    def one_by_one(rows):
        for row in rows:
            backbone.model(backbone.transform(Image.open(paths[row]).convert("RGB"))[None])

    def pass_per_layer(rows):
        for images in batches[rows]:
            for layer in every_layer:
                layer_tokens(backbone, images, [layer], ["cls"])

    files = [str(path) for path in paths]
    tensors = [image / 255 for image in pixels]
    first = interleaved({"first": lambda: cached.transform(files)}, 1, warm_up=False)["first"][0]
    alternatives = {
        "forward_features of ready batches": bare,
        "every layer's CLS of ready batches": lambda rows: [
            layer_tokens(backbone, images, list(every_layer), ["cls"]) for images in batches[rows]
        ],
        "transform, from ready tensors": lambda rows: ours.transform([tensors[row] for row in rows]),
        "transform, from JPEG files": lambda rows: ours.transform([files[row] for row in rows]),
        "transform, from JPEG files, cached": lambda rows: cached.transform([files[row] for row in rows]),
        "one pass per layer, ready batches": pass_per_layer,
        "one image at a time, JPEG files, last layer": one_by_one,
        **transformers_alternative(backbone, files, batch),
    }
    seconds = interleaved(alternatives, args.repetitions, inputs=part)
    report(f"Extraction: {chunk} JPEGs of {SIZE[0]}x{SIZE[1]}, {name} (random weights), batches of {batch}", seconds)
    bare_seconds = np.median(seconds["forward_features of ready batches"]) * len(paths) / chunk
    print(f"{'first call with the cache, all images':46} {first:8.3f} {first / bare_seconds:7.3f}")
    print(cache_info(cache))


def transformers_alternative(backbone, files, batch):
    """Return the same network in Hugging Face transformers with ``output_hidden_states``, if that is installed."""
    try:
        from transformers import ViTConfig, ViTImageProcessor, ViTModel
    except ImportError:
        print("transformers is not installed: no comparison with it.")
        return {}
    config = ViTConfig(
        hidden_size=backbone.dim,
        num_hidden_layers=backbone.depth,
        num_attention_heads=backbone.model.blocks[0].attn.num_heads,
        intermediate_size=backbone.model.blocks[0].mlp.fc1.out_features,
        image_size=backbone.image_size,
        patch_size=backbone.model.patch_embed.patch_size[0],
    )
    model = ViTModel(config, add_pooling_layer=False).eval()
    side = {"height": backbone.image_size, "width": backbone.image_size}
    processor = ViTImageProcessor(size=side)

    @torch.inference_mode()
    def run(rows):
        for start in range(rows.start, rows.stop, batch):
            images = [Image.open(files[row]).convert("RGB") for row in rows[start - rows.start :][:batch]]
            states = model(**processor(images, return_tensors="pt"), output_hidden_states=True).hidden_states
            torch.stack([state[:, 0] for state in states[1:]], dim=1)

    return {"transformers, output_hidden_states, JPEG files": run}


class Watched(Dataset):
    """Paths that note the peak of the memory when a tenth more of them has been asked for."""

    def __init__(self, paths):
        self.paths = paths
        self.peaks = []

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, index):
        if index % (len(self.paths) // 10) == 0:
            self.peaks.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
        return str(self.paths[index])


def watch_memory(name, paths, batch):
    extractor = LayerwiseFeatureExtractor(name, weights="random", batch_size=batch, device="cpu")
    extractor.transform(paths[: 4 * batch])
    images = Watched(paths)
    stack = extractor.transform(images)
    growth = images.peaks[-1] - images.peaks[1]
    share = stack.nbytes / 2**20 * 0.8
    print(
        f"\nPeak RSS after each tenth of {len(paths)} images, MiB: {' '.join(f'{peak:.0f}' for peak in images.peaks)}"
    )
    print(f"From the second tenth to the last it grew by {growth:.1f}; the stack itself by {share:.1f}.")
