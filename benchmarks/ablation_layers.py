"""Which layers to fuse: VFusion, ALF and Super Learner on each layer selection, against all layers.

    python -m benchmarks.ablation_layers --data DATA --sets trashnet6 --backbone clip_b16
    python -m benchmarks.ablation_layers --quick

The selections are those of skvfusion.layers; a selection says which layers the classifier gets, nothing else changes.
"""

from functools import partial

import pandas as pd

from benchmarks.harness import arguments, classifier, publish, run_cells, write_provenance
from benchmarks.summaries import compared, to_markdown
from skvfusion import AttentiveFusionClassifier, SuperLearnerClassifier, VFusionClassifier

TABLE = "ablation_layers"
FUSIONS = {
    "VFusion": VFusionClassifier,
    "ALF": AttentiveFusionClassifier,
    "Super Learner": SuperLearnerClassifier,
}
SELECTIONS = ("all", "second_half", "strided", "quarterly", "last:4", "last:2", "last")
QUICK_SELECTIONS = ("all", "strided", "last")

# VFusion (arXiv 2607.10391): points below all layers, on the average of its 16 sets.
PAPER = {"second_half": "-0.3", "strided": "-0.9"}


def label(fusion, selection):
    return f"{fusion}, {selection}"


def make(fusion, selection, random_state, device):
    return FUSIONS[fusion](layers=selection, random_state=random_state, device=device)


def methods(selections=SELECTIONS):
    return [
        classifier(label(fusion, selection), partial(make, fusion, selection))
        for fusion in FUSIONS
        for selection in selections
    ]


def summary(frame, selections=SELECTIONS):
    """Return a table of each fusion in Markdown, from the rows of ``run_cells``."""
    parts = [
        "# Which layers to fuse\n\nAccuracy in percent, differences in points to all layers; a pair is a set and a "
        "backbone."
    ]
    for fusion in FUSIONS:
        rows = []
        for selection in selections:
            row = {"layers": selection} | compared(frame, label(fusion, selection), label(fusion, "all"))
            rows.append(row | ({"the paper's difference": PAPER.get(selection, "")} if fusion == "VFusion" else {}))
        parts.append(f"## {fusion}\n\n{to_markdown(pd.DataFrame(rows).set_index('layers'), 1)}")
    parts.append(
        "The paper's differences are VFusion's (arXiv 2607.10391), means over its 16 sets; at which layer its strided "
        "selection starts is not known."
    )
    return "\n\n".join(parts)


def main(argv=None):
    args = arguments(__doc__).parse_args(argv)
    selections = QUICK_SELECTIONS if args.quick else SELECTIONS
    frame = run_cells(args, TABLE, methods(selections))
    write_provenance(args, TABLE)
    publish(args, TABLE, summary(frame, selections))


if __name__ == "__main__":
    main()
