"""Pictures of the tables, drawn from their raw CSV files.

python -m benchmarks.figures --results benchmarks/results
"""

import argparse
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from benchmarks.summaries import PAIR, means_by_pair, paired_difference
from skvfusion import SeverityDisplay
from skvfusion.display.base import BLUE, GREY, line_style
from skvfusion.methods import METHODS

LAST, SUPER_LEARNER, VFUSION = (METHODS[key].label for key in ("last", "super_learner", "vfusion"))
_DPI = 150
_SIZES = {"n": "samples", "layers": "layers", "dim": "dimensions", "classes": "classes"}
_EXPLAINED = {
    "entropy_A": "correction entropy (A, normalised)",
    "geometric_A": "geometric disagreement (A, cosine distance)",
}


def new_figure(height, columns=1):
    figure = Figure(figsize=(7, height), layout="constrained")
    return figure, figure.subplots(1, columns, squeeze=False)[0]


def gains_by_method(frame):
    """Draw each method's gain over the last layer: a dot for each (backbone, set), and the mean with its interval."""
    # The oracle is no method, and so far off that the others could not be told apart.
    frame = frame[~frame["method"].str.contains("oracle")]
    means = means_by_pair(frame)
    gains = (100 * (means - means.loc[LAST])).drop(index=LAST)
    figure, (ax,) = new_figure(1.3 + 0.32 * len(gains))
    for row, (method, of_pairs) in enumerate(gains.iterrows()):
        values = of_pairs.dropna()
        # Spread in a fixed order, so that equal gains can be told apart and the picture is the same each time.
        ax.plot(values, row + np.linspace(-0.22, 0.22, len(values)), "o", color=GREY, alpha=0.45, markersize=3.5)
        mean, low, high = (100 * value for value in paired_difference(frame, method, LAST))
        ax.errorbar(mean, row, xerr=[[mean - low], [high - mean]], fmt="D", color=BLUE, markersize=6, capsize=3)
    ax.axvline(0, color="black", linewidth=0.8)
    ax.set_yticks(range(len(gains)), gains.index)
    ax.invert_yaxis()
    ax.set_xlabel("gain over the last layer, points")
    ax.set_title("Gain by method: (backbone, set) in grey,\nmean with 95 % bootstrap interval in blue", fontsize=10)
    ax.grid(axis="x", alpha=0.3)
    return figure


def against_super_learner(frame):
    """Draw VFusion's gain against Super Learner's, a dot for each (backbone, set)."""
    means = means_by_pair(frame)
    gains = 100 * (means - means.loc[LAST]).reindex([SUPER_LEARNER, VFUSION]).dropna(axis=1)
    figure, (ax,) = new_figure(5.5)
    for i, backbone in enumerate(gains.columns.unique("backbone")):
        x, y = gains[backbone].to_numpy()
        ax.plot(x, y, **line_style(i) | {"linestyle": ""}, label=backbone)
        for name, *at in zip(gains[backbone].columns, x, y, strict=True):
            ax.annotate(name, at, xytext=(5, 3), textcoords="offset points", fontsize=7, color=GREY)
    ax.axline((0, 0), slope=1, color="black", linewidth=0.8, linestyle="--", label="equal gains")
    ax.axhline(0, color="black", linewidth=0.5)
    ax.axvline(0, color="black", linewidth=0.5)
    ax.set_xlabel("Super Learner's gain over the last layer, points")
    ax.set_ylabel("VFusion's gain over the last layer, points")
    ax.set_title("VFusion's gain against Super Learner's, by backbone and set", fontsize=10)
    ax.legend(fontsize=8)
    ax.margins(0.12)
    return figure


def accuracy_by_severity(frame):
    """Draw each method's accuracy by severity of the corruption, 0 being clean images; None without corrupted ones."""
    frame = frame[frame["corruption"] != "shifted"]
    # Every curve over the same cells, or a method that failed on a hard set would look better than it is.
    cells = frame.pivot_table(
        index=["severity", "corruption", *PAIR, "seed"], columns="method", values="accuracy", sort=False
    ).dropna()
    table = cells.groupby(level="severity").mean().T
    if table.shape[1] < 2:
        return None
    figure, (ax,) = new_figure(4.6 + 0.2 * len(table) / 2)
    curves = {method: values.to_numpy() for method, values in table.iterrows()}
    SeverityDisplay(curves, severities=list(table.columns)).plot(ax)
    ax.set_xlabel("severity of the corruption (0: clean), mean over corruptions, sets, backbones and seeds")
    return figure


def recovery_against(frame):
    """Draw the recovery rate against correction entropy and geometric disagreement, a dot for each (backbone, set)."""
    probes = max(frame["method"])  # MLPs, the paper's, rather than linear ones, if both are there
    frame = frame[frame["method"] == probes]
    pairs = frame.groupby(PAIR, sort=False)[["recovery", *_EXPLAINED]].mean()
    figure, axes = new_figure(3.8, len(_EXPLAINED))
    for ax, (column, label) in zip(axes, _EXPLAINED.items(), strict=True):
        for i, (backbone, part) in enumerate(pairs.groupby(level="backbone", sort=False)):
            ax.plot(part[column], 100 * part["recovery"], **line_style(i) | {"linestyle": ""}, label=backbone)
            for (_, name), at in part[[column, "recovery"]].iterrows():
                place = (at[column], 100 * at["recovery"])
                ax.annotate(name, place, xytext=(4, 3), textcoords="offset points", fontsize=7, color=GREY)
        ax.set_xlabel(label, fontsize=9)
        ax.margins(0.15)
        low, high = ax.get_xlim()
        ax.set_xlim(low, high + 0.2 * (high - low))  # names stand to the right of their dots
        ax.grid(alpha=0.3)
    axes[0].set_ylabel("recovery rate, %")
    axes[0].legend(fontsize=8)
    figure.suptitle(f"Recovery of the last layer's errors, by backbone and set ({probes})", fontsize=10)
    return figure


def scaling(frame):
    """Draw seconds by size of the data, a panel for each curve: ours solid, what it is compared with dashed."""
    curves, works = (list(dict.fromkeys(frame[column])) for column in ("curve", "what"))
    figure = Figure(figsize=(7, 3 * -(-len(curves) // 2)), layout="constrained")
    axes = figure.subplots(-(-len(curves) // 2), 2, squeeze=False).ravel()
    for ax, curve in zip(axes, curves, strict=False):
        points = frame[frame["curve"] == curve].sort_values("value")
        for i, what in enumerate(works):
            part = points[points["what"] == what]
            style = line_style(i) | {"markersize": 4}
            ax.plot(part["value"], part["seconds"], **style | {"linestyle": "-"}, label=what)
            alternative = part["alternative"].iloc[0]
            ax.plot(part["value"], part["alternative_seconds"], **style | {"linestyle": "--"}, label=alternative)
        ax.set(xscale="log", yscale="log", xlabel=_SIZES[curve], ylabel="seconds")
        ax.xaxis.minorticks_off()
        sizes = points["value"].unique()
        ax.set_xticks(sizes, [f"{size:g}" for size in sizes])
        ax.grid(alpha=0.3, which="both")
    for ax in axes[len(curves) :]:
        ax.remove()
    lines, names = axes[0].get_legend_handles_labels()
    # Column by column: ours on the left, each beside its alternative.
    figure.legend(
        lines[::2] + lines[1::2],
        names[::2] + names[1::2],
        loc="outside lower center",
        ncols=2,
        fontsize=8,
        frameon=False,
    )
    figure.suptitle("Seconds by size of the data (VFusion: its encoder alone)", fontsize=10)
    return figure


# picture: (table it is drawn from, what draws it, script that makes the table)
PICTURES = {
    "gain_by_method": ("table_id", gains_by_method, "table_id"),
    "vfusion_against_super_learner": ("table_id", against_super_learner, "table_id"),
    "accuracy_by_severity": ("table_ood", accuracy_by_severity, "table_ood"),
    "recovery": ("table_recoverability", recovery_against, "table_recoverability"),
    "speed_scaling": ("speed_scaling", scaling, "speed"),
}


def draw_all(results, out):
    """Draw every picture whose table is in a folder, and say what is skipped.

    Parameters
    ----------
    results, out : Path
        The folders of the tables and of the pictures.

    Returns
    -------
    list of Path
        The pictures.
    """
    drawn = []
    for picture, (table, draw, script) in PICTURES.items():
        path = results / f"{table}.csv"
        if not path.exists():
            print(f"{picture}: skipped, there is no {path.name}; python -m benchmarks.{script} makes it.")
            continue
        frame = pd.read_csv(path)
        if "error" in frame:
            frame = frame[frame["error"].isna()]
        figure = draw(frame) if len(frame) else None
        if figure is None:
            print(f"{picture}: skipped, {path.name} has nothing to draw.")
            continue
        out.mkdir(parents=True, exist_ok=True)
        drawn.append(out / f"{picture}.png")
        figure.savefig(drawn[-1], dpi=_DPI)
        print(f"{picture}: {drawn[-1].name}")
    return drawn


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=Path(__file__).parent / "results", help="folder of the tables")
    parser.add_argument("--out", type=Path, help="folder of the pictures (default: that of the tables)")
    args = parser.parse_args(argv)
    draw_all(args.results, args.out or args.results)


if __name__ == "__main__":
    main()
