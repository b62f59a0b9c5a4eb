"""Train the embedded backbone ``nano`` on CIFAR-10's training images and write its weights.

    python benchmarks/train_nano.py --data CIFAR10_FOLDER          # train/<class>/*.jpg and test/<class>/*.jpg
    python benchmarks/train_nano.py --download SOME_FOLDER         # torchvision's own copy

The test images are used once, after training, to state the linear-probe accuracy; nothing is chosen on them.
"""

import argparse
import importlib.metadata
import json
import math
import time
from pathlib import Path

import numpy as np
import timm.data
import timm.optim
import torch
from safetensors.torch import save_file
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import nn
from torchvision.datasets import CIFAR10, ImageFolder
from tqdm import tqdm

from skvfusion.extraction.nano import PRETRAINED_CFG, build_nano

RECIPE = {
    "data": "CIFAR-10, the 50000 training images",
    "optimizer": "muon (timm; AdamW for vectors)",
    "learning_rate": 2e-3,
    "weight_decay": 0.05,
    "schedule": "linear warm-up over 5 % of the steps, then cosine to 0",
    "batch_size": 128,
    "label_smoothing": 0.1,
    "augmentation": "flip, 4-pixel shift, mixup 0.2 or cutmix 1.0 on half the batches but not in the last fifth",
    "drop_path_rate": 0.05,
}


def load_split(args, split):
    """Return one split as uint8 images of shape (n, 3, 32, 32) and integer labels."""
    if args.download:
        dataset = CIFAR10(args.download, train=split == "train", download=True)
        images, labels = dataset.data, dataset.targets
    else:
        dataset = ImageFolder(Path(args.data) / split)
        images = np.stack(
            [np.asarray(dataset.loader(path)) for path, _ in tqdm(dataset.samples, desc=split, disable=None)]
        )
        labels = dataset.targets
    images, labels = torch.from_numpy(images).permute(0, 3, 1, 2).contiguous(), torch.tensor(labels)
    return (images[::50], labels[::50]) if args.quick else (images, labels)


def normalise(images):
    mean, std = (torch.tensor(PRETRAINED_CFG[key]).view(1, 3, 1, 1) for key in ("mean", "std"))
    return (images.float() / 255 - mean) / std


def augment(images, generator):
    """Flip and shift every image by itself; the border is filled by reflection."""
    n = len(images)
    padded = nn.functional.pad(images.float(), (4, 4, 4, 4), mode="reflect")
    top, left = (torch.randint(0, 9, (n, 1), generator=generator) + torch.arange(32) for _ in range(2))
    flip = torch.rand(n, generator=generator) < 0.5
    left[flip] = left[flip].flip(1)
    return padded[
        torch.arange(n).view(n, 1, 1, 1),
        torch.arange(3).view(1, 3, 1, 1),
        top[:, None, :, None],
        left[:, None, None, :],
    ]


def train(model, images, labels, args):
    torch.manual_seed(args.seed)
    np.random.seed(args.seed)  # timm's Mixup draws from numpy's global generator
    generator = torch.Generator().manual_seed(args.seed)
    optimizer = timm.optim.create_optimizer_v2(
        model, opt="muon", lr=RECIPE["learning_rate"], weight_decay=RECIPE["weight_decay"]
    )
    mixes = [
        timm.data.Mixup(0.2, 1.0, prob=prob, label_smoothing=RECIPE["label_smoothing"], num_classes=10)
        for prob in (0.5, 0.0)
    ]
    batch_size = RECIPE["batch_size"]
    n_batches = len(images) // batch_size
    total, warm_up = args.epochs * n_batches, max(1, args.epochs * n_batches // 20)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min((step + 1) / warm_up, 0.5 + 0.5 * math.cos(math.pi * step / total))
    )
    for epoch in range(args.epochs):
        model.train()
        mix, losses = mixes[epoch >= 0.8 * args.epochs], []
        order = torch.randperm(len(images), generator=generator)[: n_batches * batch_size].view(n_batches, batch_size)
        for rows in tqdm(order, desc=f"epoch {epoch + 1}/{args.epochs}", leave=False, disable=None):
            batch, target = mix(normalise(augment(images[rows], generator)), labels[rows])
            loss = nn.functional.cross_entropy(model(batch), target)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            losses.append(loss.item())
        print(
            f"epoch {epoch + 1}/{args.epochs} loss {np.mean(losses):.3f} after {time.time() - args.start:.0f} s",
            flush=True,
        )


@torch.inference_mode()
def features(model, images):
    """Return the normed CLS token of the last block, shape (n, 128)."""
    model.eval()
    return torch.cat([model.forward_features(normalise(batch))[:, 0] for batch in images.split(500)]).numpy()


def probe_accuracy(model, train_set, test_set):
    """Return the test accuracy of a logistic regression on the frozen last-layer feature."""
    probe = make_pipeline(StandardScaler(), LogisticRegression(max_iter=500))
    probe.fit(features(model, train_set[0]), train_set[1].numpy())
    return probe.score(features(model, test_set[0]), test_set[1].numpy())


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--data", help="folder with train/<class>/ and test/<class>/ image files")
    source.add_argument("--download", help="folder into which torchvision downloads CIFAR-10")
    parser.add_argument("--epochs", type=int, default=24)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--quick", action="store_true", help="a fiftieth of the images, to try the script")
    parser.add_argument(
        "--out", type=Path, default=Path(__file__).parents[1] / "skvfusion" / "assets" / "nano.safetensors"
    )
    args = parser.parse_args()
    args.start = time.time()
    torch.set_num_threads(args.threads)

    train_set, test_set = load_split(args, "train"), load_split(args, "test")
    torch.manual_seed(args.seed)
    model = build_nano(num_classes=10, drop_path_rate=RECIPE["drop_path_rate"])
    untrained = probe_accuracy(model, train_set, test_set)
    print(f"untrained: linear-probe accuracy {untrained:.4f}", flush=True)
    train(model, *train_set, args)
    minutes = (time.time() - args.start) / 60

    model.reset_classifier(0)
    weights = {k: v.half() if v.is_floating_point() else v for k, v in model.state_dict().items()}
    model.load_state_dict({k: v.float() if v.is_floating_point() else v for k, v in weights.items()})
    facts = {
        **RECIPE,
        "epochs": args.epochs,
        "seed": args.seed,
        "training_minutes": round(minutes, 1),
        "linear_probe_test_accuracy": round(probe_accuracy(model, train_set, test_set), 4),
        "linear_probe_test_accuracy_untrained": round(untrained, 4),
        "versions": {name: importlib.metadata.version(name) for name in ("torch", "timm", "scikit-learn")},
        "licence": "BSD-3-Clause, as skvfusion",
    }
    args.out.parent.mkdir(parents=True, exist_ok=True)
    save_file(weights, args.out, metadata={"skvfusion": json.dumps(facts)})
    print(json.dumps(facts, indent=2))
    print(args.out, args.out.stat().st_size, "bytes")


if __name__ == "__main__":
    main()
