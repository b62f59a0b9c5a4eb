"""What fusing the layers brings on each backbone: means over the sets that all backbones have.

    python -m benchmarks.table_backbones --data DATA --sets trashnet6 --backbone dinov2_b --backbone in21k_b
    python -m benchmarks.table_backbones --from benchmarks/results/table_id.csv
    python -m benchmarks.table_backbones --quick

With --from nothing is computed: the rows of table_id are read.
"""

from functools import partial
from pathlib import Path

import pandas as pd

from benchmarks.harness import Method, arguments, classifier, publish, run_cells, write_provenance
from benchmarks.summaries import paired_difference, points, to_markdown
from benchmarks.table_id import BEST, LAST, ORACLE, SUPER_LEARNER, VFUSION, oracle
from skvfusion.methods import METHODS

TABLE = "table_backbones"
KEYS = ("last", "best", "super_learner", "vfusion")
LABELS = (LAST, BEST, SUPER_LEARNER, VFUSION, ORACLE)


def methods():
    rows = [classifier(METHODS[key].label, partial(METHODS[key].make, n_jobs=None)) for key in KEYS]
    return [*rows, Method(ORACLE, oracle)]


def common_rows(frame):
    """Return the rows of the (set, seed) on which every method succeeded with every backbone."""
    frame = frame[frame["method"].isin(LABELS)]
    cells = frame.pivot_table(index=["set", "seed"], columns=["backbone", "method"], values="accuracy")
    wanted = pd.MultiIndex.from_product([frame["backbone"].unique(), LABELS])
    complete = cells.reindex(columns=wanted).dropna().index
    return frame[pd.MultiIndex.from_frame(frame[["set", "seed"]]).isin(complete)]


def summary(frame):
    """Return the table in Markdown.

    Parameters
    ----------
    frame : DataFrame
        Rows of ``run_cells``, also of other methods.

    Returns
    -------
    str
    """
    frame = common_rows(frame)
    if frame.empty:
        return "# Backbones\n\nNo set has a result of every method with every backbone."
    rows = []
    for backbone in frame["backbone"].unique():
        own = frame[frame["backbone"] == backbone]
        means = own.groupby(["method", "set"])["accuracy"].mean().groupby("method").mean()
        rows.append(
            {"backbone": backbone}
            | {label: f"{100 * means[label]:.1f}" for label in LABELS}
            | {f"gain over {label} [95 %]": points(paired_difference(own, VFUSION, label)) for label in (LAST, BEST)}
        )
    sets = ", ".join(frame["set"].unique())
    return (
        f"# Backbones\n\nMean accuracy in percent over {sets}, gains of VFusion in points.\n\n"
        f"{to_markdown(pd.DataFrame(rows).set_index('backbone'), 1)}\n\n"
        "The paper (arXiv 2607.10391) finds the gains largest for DINOv2 and CLIP."
    )


def read(path, shots):
    """Return the rows of a CSV that ``run_cells`` wrote.

    Parameters
    ----------
    path : path
        The file.
    shots : int or None
        Only rows with so many training images of a class; None for those with all.

    Returns
    -------
    DataFrame

    Raises
    ------
    ValueError
        If a method of this table has no such row.
    """
    frame = pd.read_csv(path, dtype={"shots": str})
    frame = frame[frame["shots"] == str(shots or "all")]
    missing = [label for label in LABELS if label not in set(frame["method"])]
    if missing:
        raise ValueError(
            f"{Path(path).name} has no rows of {missing} with shots={shots or 'all'}; pass the --shots that it "
            "was made with, or leave --from out to compute them."
        )
    return frame


def main(argv=None):
    parser = arguments(__doc__)
    parser.add_argument("--from", dest="source", metavar="CSV", help="read these rows of table_id, compute nothing")
    args = parser.parse_args(argv)
    frame = read(args.source, args.shots) if args.source else run_cells(args, TABLE, methods())
    write_provenance(args, TABLE)
    publish(args, TABLE, summary(frame))


if __name__ == "__main__":
    main()
