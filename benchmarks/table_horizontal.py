"""Several backbones side by side (HFusion and its baselines) against the layers of one (VFusion).

    python -m benchmarks.table_horizontal --data DATA --sets trashnet6 --backbone dinov2_b --backbone clip_b16
    python -m benchmarks.table_horizontal --quick

Horizontal methods get the last layer's CLS of every backbone, filled up with zeros to one width as BackboneStack does.
With --quick the second backbone is an untrained nano: the script runs, but its figures show nothing about HFusion.
"""

from argparse import Namespace
from functools import partial

import numpy as np
import pandas as pd

from benchmarks.backbones import Backbone, read_backbones
from benchmarks.features import Features, load_features
from benchmarks.harness import arguments, classifier, publish, run_cells, write_provenance
from benchmarks.summaries import compared, to_markdown
from skvfusion.methods import METHODS

TABLE = "table_horizontal"
QUICK_BACKBONES = ["nano", "untrained=nano:random"]

VERTICAL = {"last": METHODS["last"].label, "vfusion": METHODS["vfusion"].label}
HORIZONTAL = {
    "best": "best single backbone by validation",
    "average": "average of the backbones",
    "super_learner": "Super Learner over the backbones",
    "nlc": "Neural Logit Controller over the backbones",
    "moe": "Mixture of Experts over the backbones",
    "alf": "ALF over the backbones",
    "vfusion": "HFusion",
}
BOTH = {
    "super_learner": "Super Learner, all layers of all backbones",
    "vfusion": "VFusion, all layers of all backbones",
}


def methods(labels):
    return [classifier(label, partial(METHODS[key].make, n_jobs=None)) for key, label in labels.items()]


def beside(stacks):
    """Put stacks one after the other along the layers, narrow tokens filled up with zeros.

    Parameters
    ----------
    stacks : list of ndarray of shape (n_samples, n_layers, n_tokens, dim)
        Depths and widths may differ.

    Returns
    -------
    ndarray of shape (n_samples, sum of n_layers, n_tokens, largest dim)
    """
    dim = max(stack.shape[-1] for stack in stacks)
    return np.concatenate([np.pad(each, [(0, 0)] * 3 + [(0, dim - each.shape[-1])]) for each in stacks], axis=1)


def join(parts, layers=slice(None)):
    """Return the features of several backbones as those of one whose layers are theirs.

    Parameters
    ----------
    parts : list of Features
        The same images in the same order.
    layers : slice, default=slice(None)
        Which layers of each to take.

    Returns
    -------
    Features

    Raises
    ------
    ValueError
        If their labels differ.
    """
    first = parts[0]
    for part in parts[1:]:
        if not (np.array_equal(part.y, first.y) and np.array_equal(part.y_test, first.y_test)):
            raise ValueError(
                f"{first.dataset}: the labels of {part.backbone} are not those of {first.backbone}, so their images "
                "differ; extract both anew from the same folder."
            )
    return Features(
        dataset=first.dataset,
        backbone=joined_name(parts, lambda part: part.backbone),
        X=beside([part.X[:, layers] for part in parts]),
        y=first.y,
        X_test=beside([part.X_test[:, layers] for part in parts]),
        y_test=first.y_test,
        groups_test=first.groups_test,
        fingerprint=joined_name(parts, lambda part: part.fingerprint),
    )


def joined_name(parts, name):
    return " + ".join(name(part) for part in parts)


def load_joined(backbones, layers, name, _, **options):
    """Do what ``load_features`` does, for all backbones at once."""
    return join([load_features(name, backbone, **options) for backbone in backbones], layers)


def run(args):
    """Return the rows of vertical, horizontal and joint methods, ready to be compared with each other.

    Parameters
    ----------
    args : Namespace
        As parsed, with two backbones or more.

    Returns
    -------
    DataFrame
        ``backbone`` names all of them in every row, ``method`` of a vertical method says which of them it uses.
    """
    vertical = run_cells(args, TABLE, methods(VERTICAL))
    vertical["method"] += " of " + vertical["backbone"]
    several = Backbone(
        joined_name(args.backbones, lambda each: each.name), joined_name(args.backbones, lambda each: each.public)
    )
    joint = Namespace(**vars(args) | {"backbones": [several]})
    deepest = partial(load_joined, args.backbones, slice(-1, None))
    whole = partial(load_joined, args.backbones, slice(None))
    frames = [
        vertical,
        run_cells(joint, TABLE, methods(HORIZONTAL), load=deepest),
        run_cells(joint, TABLE, methods(BOTH), load=whole),
    ]
    return pd.concat(frames, ignore_index=True).assign(backbone=several.name)


def summary(frame, names, quick=False):
    """Return the table in Markdown.

    Parameters
    ----------
    frame : DataFrame
        What :func:`run` returned.
    names : list of str
        The backbones'.
    quick : bool, default=False
        Whether one of them is only there to try the script.

    Returns
    -------
    str
    """
    labels = [f"{label} of {name}" for label in VERTICAL.values() for name in names]
    labels += [*HORIZONTAL.values(), *BOTH.values()]
    rows = pd.DataFrame([{"method": label} | compared(frame, label, HORIZONTAL["best"]) for label in labels])
    warning = "\n\n**A trial run: one of the backbones is untrained, so the figures say nothing about HFusion.**"
    return (
        f"# Backbones side by side{warning if quick else ''}\n\nAccuracy in percent, differences in points to the best "
        "single backbone, chosen by cross-validation of the last layers' linear probes on the training part.\n\n"
        f"{to_markdown(rows.set_index('method'), 1)}\n\n"
        "In the paper (arXiv 2607.10391) HFusion has the best accuracy, and feature fusion is 0.5 points above "
        "logit-level aggregation such as Super Learner; whether vertical or horizontal fusion is meant is not certain."
    )


def main(argv=None):
    parser = arguments(__doc__)
    args = parser.parse_args(argv)
    if args.quick and not args.backbone:
        args.backbones = read_backbones(QUICK_BACKBONES)
    names = [backbone.name for backbone in args.backbones]
    if len(names) < 2:
        parser.error(f"a horizontal table needs two backbones or more, got {names}; pass --backbone for each.")
    frame = run(args)
    write_provenance(args, TABLE)
    publish(args, TABLE, summary(frame, names, quick=args.quick and not args.backbone))


if __name__ == "__main__":
    main()
