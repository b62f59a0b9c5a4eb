"""Measure speed as ratios to a named alternative in the same run.

    python benchmarks/speed.py --what engine

Figures are medians over interleaved repetitions, so that a busy machine slows both sides alike.
"""

import argparse
import time

import numpy as np
import torch
from PIL import Image
from sklearn.preprocessing import LabelEncoder
from torch import nn

from skvfusion import LayerwiseFeatureExtractor, VFusionClassifier
from skvfusion.devices import resolve_device
from skvfusion.extraction.backbones import get_backbone
from skvfusion.extraction.extractor import layer_tokens
from skvfusion.training.losses import correlation_penalty


def interleaved(alternatives, repetitions):
    """Time each callable in turn, ``repetitions`` times over; return the median seconds of each by name."""
    seconds = {name: [] for name in alternatives}
    for repetition in range(repetitions + 1):
        for name, run in alternatives.items():
            start = time.perf_counter()
            run()
            if repetition:  # the first round warms up
                seconds[name].append(time.perf_counter() - start)
    return {name: np.array(values) for name, values in seconds.items()}


def report(title, seconds):
    """Print medians of the seconds and of the paired ratios to the first row."""
    reference = next(iter(seconds))
    print(f"\n{title}")
    print(f"{'':46} {'seconds':>8} {'ratio':>7}")
    for name, values in seconds.items():
        print(f"{name:46} {np.median(values):8.3f} {np.median(values / seconds[reference]):7.3f}")


def hand_written_vfusion(X, y, epochs, batch_size):
    """The same model, data, schedule and number of steps as VFusionClassifier, as one plain torch loop."""
    X, y = torch.from_numpy(X), torch.from_numpy(LabelEncoder().fit_transform(y))
    mean = X.mean(0)
    scale = (X - mean).square().mean(0).mean(-1, keepdim=True).sqrt()
    encoder = nn.Sequential(
        nn.Linear(X[0].numel(), 512),
        nn.LayerNorm(512, elementwise_affine=False),
        nn.GELU(),
        nn.Dropout(0.3),
        nn.Linear(512, 128),
        nn.LayerNorm(128, elementwise_affine=False),
    )
    head = nn.Linear(128, int(y.max()) + 1)
    optimizer = torch.optim.AdamW([*encoder.parameters(), *head.parameters()], lr=1e-3, weight_decay=0.01)
    n_batches = round(len(X) / batch_size)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs * n_batches, 1e-6)
    for _ in range(epochs):
        for rows in torch.randperm(len(X)).tensor_split(n_batches):
            latent = encoder(((X[rows] - mean) / scale).flatten(1))
            loss = nn.functional.cross_entropy(head(latent), y[rows]) + 0.1 * correlation_penalty(latent)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()


def engine(args):
    n, layers, dim, epochs, batch = (500, 12, 64, 3, 64) if args.quick else (4000, 12, 384, 20, 256)
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(n, layers, dim)).astype(np.float32), rng.integers(0, 10, n)
    ours = VFusionClassifier(max_epochs=epochs, batch_size=batch, early_stopping=False, device="cpu", random_state=0)
    seconds = interleaved(
        {
            "hand-written torch loop": lambda: hand_written_vfusion(X, y, epochs, batch),
            "VFusionClassifier.fit": lambda: ours.fit(X, y),
        },
        args.repetitions,
    )
    report(f"Fit: {epochs} epochs, {n} samples of {layers} x {dim}, batches of {batch}", seconds)

    name = "test_vit" if args.quick else "vit_small_patch16_224"
    backbone = get_backbone(name, "random", None, resolve_device("cpu"))
    size, n_images, batch = backbone.image_size, 8 if args.quick else 32, 8
    images = [Image.fromarray(rng.integers(0, 255, (size, size, 3), dtype=np.uint8)) for _ in range(n_images)]
    ready = torch.stack([backbone.transform(image) for image in images]).split(batch)
    extractor = LayerwiseFeatureExtractor(name, weights="random", batch_size=batch, device="cpu").fit()

    @torch.inference_mode()
    def bare(batches):
        for part in batches:
            backbone.model.forward_features(part)

    def bare_from_images():
        bare(
            torch.stack([backbone.transform(image) for image in images[i : i + batch]])
            for i in range(0, n_images, batch)
        )

    every_layer = list(range(backbone.depth))
    title = f"Extraction: {n_images} images, {name} (random weights), batches of {batch}"
    seconds = interleaved(
        {
            "forward_features, last layer only": lambda: bare(ready),
            "every layer's CLS": lambda: [layer_tokens(backbone, x, every_layer, ["cls"], "last") for x in ready],
        },
        args.repetitions,
    )
    report(f"{title}, preprocessed", seconds)
    seconds = interleaved(
        {
            "timm's transform, then forward_features": bare_from_images,
            "LayerwiseFeatureExtractor.transform": lambda: extractor.transform(images),
        },
        args.repetitions,
    )
    report(f"{title}, from PIL images", seconds)


BENCHMARKS = {"engine": engine}


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--what", choices=BENCHMARKS, default="engine")
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--threads", type=int, default=None, help="torch threads (default: torch's own choice)")
    parser.add_argument("--quick", action="store_true", help="tiny sizes, to try the script")
    args = parser.parse_args(argv)
    if args.threads:
        torch.set_num_threads(args.threads)
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, {args.repetitions} repetitions")
    BENCHMARKS[args.what](args)


if __name__ == "__main__":
    main()
