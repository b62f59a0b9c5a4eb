"""What each choice in VFusion is worth: one change at a time against the defaults of VFusionClassifier.

    python -m benchmarks.ablation_vfusion --data DATA --sets trashnet6 --backbone clip_b16
    python -m benchmarks.ablation_vfusion --data DATA --sets trashnet6 --backbone clip_b16 --validation --shots 20
    python -m benchmarks.ablation_vfusion --quick

With --validation the test images are not looked at: so the defaults were chosen. A value that is the default is left
out, so that this follows when a default changes. --quick tries one value of each.
"""

from functools import partial

import pandas as pd

from benchmarks.features import load_features
from benchmarks.harness import arguments, classifier, publish, run_cells, write_provenance
from benchmarks.summaries import compared, to_markdown
from skvfusion import VFusionClassifier
from skvfusion.training.losses import PENALTIES
from skvfusion.training.scaling import SCALINGS

TABLE = "ablation_vfusion"
DEFAULT = "VFusion, default"
TOKENS = "tokens=cls+mean"

VALUES = {
    "probe_share": (0, 0.5, 0.7, 0.9, 1),
    "layer_emphasis": (0, 4, 8, 16),
    "orthogonality": (0, 0.01, 0.1, 1),
    "orthogonality_kind": tuple(PENALTIES),
    "latent_dim": (32, 64, 128, 256),
    "hidden": (128, 256, 512, 1024, ()),
    "dropout": (0, 0.1, 0.3, 0.5),
    "lr": (3e-4, 1e-3, 3e-3),
    "weight_decay": (0.01, 0.3),
    "max_epochs": (20, 60, 120),
    "scaling": SCALINGS,
    "layer_norm": ((), ("hidden",), ("latent",), ("hidden", "latent"), ("input", "hidden", "latent")),
}

# The encoder as in the paper, and its inputs scaled otherwise: the probes' share would hide what that does.
PAPER = {"probe_share": 0, "layer_emphasis": 0}

# Other features instead of another classifier: what load_features is asked for.
EXTRACTIONS = {"tap=norm2": {"tap": "norm2"}, "norm=all": {"norm": "all"}}


def changes(defaults, quick=False):
    """Return the parameters of each variant by its label: one value that is not the default.

    Parameters
    ----------
    defaults : dict
        The classifier's parameters.
    quick : bool, default=False
        Whether to take the first such value of each parameter only.

    Returns
    -------
    dict of str to dict
    """
    found = {}
    for parameter, values in VALUES.items():
        others = [value for value in values if _items(value) != _items(defaults[parameter])]
        for value in others[:1] if quick else others:
            found[f"{parameter}={value}"] = {parameter: value}
    return found


def as_in_the_paper(defaults, quick=False):
    """Return the parameters of the encoder alone by label: its inputs scaled as by default, or in each other way."""
    found = {"the paper's": PAPER}
    for scaling in () if quick else SCALINGS:
        if scaling != defaults["scaling"]:
            found[f"the paper's, scaling={scaling}"] = PAPER | {"scaling": scaling}
    return found


def _items(value):
    """Return what is listed, so that a list equals a tuple, and a single width a list of it."""
    return tuple(value) if isinstance(value, list | tuple) else (value,)


def make(params, random_state, device):
    return VFusionClassifier(**params, random_state=random_state, device=device)


def methods(quick=False):
    defaults = VFusionClassifier().get_params()
    variants = {DEFAULT: {}} | changes(defaults, quick) | as_in_the_paper(defaults, quick)
    found = [classifier(name, partial(make, params)) for name, params in variants.items()]
    return [*found, classifier(TOKENS, partial(make, {}), tokens="cls+mean")]


def summary(frame, quick=False):
    """Return the table in Markdown, from the rows of :func:`run`."""
    names = [method.label for method in methods(quick)] + list(EXTRACTIONS)
    rows = pd.DataFrame([{"change": name} | compared(frame, name, DEFAULT) for name in names]).set_index("change")
    return (
        "# VFusion, one change at a time\n\nAccuracy in percent, differences in points to the defaults, paired by set, "
        f"backbone and seed; a pair is a set and a backbone.\n\n{to_markdown(rows, 1)}\n\n"
        "The kinds of penalty are compared at the default weight, although they differ in scale: 'covariance' and "
        "'decov' are up to about latent_dim and latent_dim² / 2 times as large as 'correlation'. \"The paper's\" is "
        "probe_share=0, layer_emphasis=0."
    )


def run(args):
    """Return the rows of all variants; features that another tap or norm gives are extracted for these alone."""
    frames = [run_cells(args, TABLE, methods(args.quick))]
    for name, options in EXTRACTIONS.items() if not args.same_features else ():
        method = classifier(name, partial(make, {}))
        frames.append(run_cells(args, TABLE, [method], load=partial(load_features, **options), variants=options))
    return pd.concat(frames, ignore_index=True)


def main(argv=None):
    parser = arguments(__doc__)
    parser.add_argument("--same-features", action="store_true", help="leave out other taps and norms, to be extracted")
    args = parser.parse_args(argv)
    frame = run(args)
    write_provenance(args, TABLE)
    publish(args, TABLE, summary(frame, args.quick))


if __name__ == "__main__":
    main()
