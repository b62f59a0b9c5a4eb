"""What tables say about their cells: means, ranks, paired differences and the gap that is closed."""

from typing import NamedTuple

import numpy as np
import pandas as pd

from skvfusion.recoverability import gap_closure

PAIR = ["backbone", "set"]


class Difference(NamedTuple):
    """A mean difference and the ends of its 95 % interval."""

    mean: float
    low: float
    high: float


class GapClosed(NamedTuple):
    """The share of the gap between best layer and oracle that is closed, averaged in both ways."""

    mean_of_ratios: float
    ratio_of_means: float


def means_by_pair(frame, metric="accuracy"):
    """Return the mean over seeds: rows are methods in the order of the frame, columns (backbone, set).

    Parameters
    ----------
    frame : DataFrame
        Rows of ``run_cells``.
    metric : str, default="accuracy"
        A column of it.

    Returns
    -------
    DataFrame
    """
    table = frame.pivot_table(index="method", columns=PAIR, values=metric, aggfunc="mean", sort=False, dropna=False)
    order = list(dict.fromkeys(frame["method"]))
    pairs = list(dict.fromkeys(zip(frame["backbone"], frame["set"], strict=True)))
    return table.reindex(index=order, columns=pd.MultiIndex.from_tuples(pairs, names=PAIR))


def mean_table(frame, metric="accuracy"):
    """Return a metric in percent by method and set, with its mean and mean rank.

    Parameters
    ----------
    frame : DataFrame
        Rows of ``run_cells``.
    metric : str, default="accuracy"
        A column in which more is better.

    Returns
    -------
    DataFrame
        Rows are the methods in the order of the frame; columns are (backbone, set), each the mean over seeds, then
        ``("", "mean")`` and ``("", "mean rank")`` over the pairs that every method has; nan if there are none.
    """
    table = 100 * means_by_pair(frame, metric)
    complete = table.dropna(axis=1)
    none = complete.shape[1] == 0
    table["", "mean"] = np.nan if none else complete.mean(axis=1)
    table["", "mean rank"] = np.nan if none else complete.rank(ascending=False).mean(axis=1)
    return table


def paired_difference(frame, a, b, metric="accuracy", n_draws=2000, seed=0):
    """Return how much better one method is than another, on the mean of the sets.

    Parameters
    ----------
    frame : DataFrame
        Rows of ``run_cells``.
    a, b : str
        Labels of methods; only (backbone, set, seed) that both have count.
    metric : str, default="accuracy"
        A column of it.
    n_draws : int, default=2000
        Draws of the bootstrap: of the pairs (backbone, set), and of the seeds within each.
    seed : int, default=0
        Of the draws.

    Returns
    -------
    Difference
        ``mean, low, high``, in the metric's own unit; nan if no cell has both. The interval says how sure the
        difference is for other sets of the same kind: of a few sets it is a rough one, of a single one it covers the
        seeds only.
    """
    differences = [values for values in _differences(frame, a, b, metric).values() if len(values)]
    if not differences:
        return Difference(np.nan, np.nan, np.nan)
    rng = np.random.default_rng(seed)
    drawn = [
        np.mean([rng.choice(differences[pair], len(differences[pair])).mean() for pair in pairs])
        for pairs in rng.integers(len(differences), size=(n_draws, len(differences)))
    ]
    low, high = np.quantile(drawn, [0.025, 0.975])
    return Difference(float(np.mean([values.mean() for values in differences])), float(low), float(high))


def _differences(frame, a, b, metric):
    """Return the differences by seed of each (backbone, set)."""
    cells = frame[frame["method"].isin([a, b])].set_index([*PAIR, "seed", "method"])[metric].unstack("method")
    cells = cells.reindex(columns=[a, b]).dropna() if a != b else cells.dropna()
    by_seed = cells[a] - cells[b]
    return {pair: values.to_numpy() for pair, values in by_seed.groupby(level=PAIR, sort=False)}


def worst_differences(frame, a, b, metric="accuracy"):
    """Return the mean difference of each (backbone, set), the largest loss first.

    Parameters
    ----------
    frame, a, b, metric
        As in :func:`paired_difference`.

    Returns
    -------
    Series
    """
    values = {pair: each.mean() for pair, each in _differences(frame, a, b, metric).items()}
    index = pd.MultiIndex.from_tuples(list(values), names=PAIR) if values else pd.MultiIndex.from_arrays([[], []])
    return pd.Series(list(values.values()), index, dtype=float).sort_values()


def gap_closed(frame, method, best, oracle, metric="accuracy"):
    """Return the share of the gap between the best layer and the oracle that a method closes.

    Parameters
    ----------
    frame : DataFrame
        Rows of ``run_cells``.
    method, best, oracle : str
        Labels of methods.
    metric : str, default="accuracy"
        A column of it.

    Returns
    -------
    GapClosed
        The mean over (backbone, set) of the ratios, and the ratio of the mean accuracies, which is less swayed by sets
        without much of a gap. nan where there is no gap.
    """
    table = means_by_pair(frame, metric).reindex([method, best, oracle]).dropna(axis=1).to_numpy()
    if table.shape[1] == 0:
        return GapClosed(np.nan, np.nan)
    ratios = gap_closure(*table)
    mean = float(np.nanmean(ratios)) if not np.isnan(ratios).all() else np.nan
    return GapClosed(mean, gap_closure(*table.mean(axis=1)))


def points(difference):
    """Return a difference of shares as text, in percentage points, with its interval if there was any to be drawn."""
    mean, low, high = (100 * value for value in difference)
    if low == high:
        return f"{mean:+.1f}"
    return f"{mean:+.1f} [{low:+.1f}, {high:+.1f}]"


def compared(frame, method, reference):
    """Return a method's row of a table that compares it with a reference.

    Parameters
    ----------
    frame : DataFrame
        Rows of ``run_cells``.
    method, reference : str
        Labels of methods.

    Returns
    -------
    dict of str to str
        The mean accuracy in percent and its difference to the reference, in points with its 95 % interval, over the
        (backbone, set, seed) that both have; the set on which the difference is least; the number of (backbone, set).
    """
    row = {"accuracy": "", "difference [95 %]": "", "worst set": "", "pairs": "0"}
    cells = frame.pivot_table(index=["backbone", "set", "seed"], columns="method", values="accuracy")
    names = list(dict.fromkeys([method, reference]))
    cells = cells.reindex(columns=names).dropna()
    if cells.empty:
        return row
    means = cells.groupby(level=["backbone", "set"]).mean()
    row |= {"accuracy": f"{100 * means[method].mean():.1f}", "pairs": str(len(means))}
    if method != reference:
        differences = worst_differences(frame, method, reference)
        backbone, name = differences.index[0]
        row |= {
            "difference [95 %]": points(paired_difference(frame, method, reference)),
            "worst set": f"{name}, {backbone} ({100 * differences.iloc[0]:+.1f})",
        }
    return row


def to_markdown(frame, digits=1):
    """Return a table as Markdown.

    Parameters
    ----------
    frame : DataFrame
        Its index becomes the first column.
    digits : int, default=1
        Decimals of floats; nan becomes empty.

    Returns
    -------
    str
    """
    header = [frame.index.name or "", *(_joined(name) for name in frame.columns)]
    rows = [
        [_joined(index), *(_cell(value, digits) for value in values)]
        for index, values in zip(frame.index, frame.itertuples(index=False, name=None), strict=True)
    ]
    rule = ["---", *("--:" for _ in frame.columns)]
    return "\n".join(f"| {' | '.join(_cell(value, digits) for value in row)} |" for row in [header, rule, *rows])


def _joined(name):
    return ", ".join(str(part) for part in name if part != "") if isinstance(name, tuple) else str(name)


def _cell(value, digits):
    if isinstance(value, float | np.floating):
        return "" if np.isnan(value) else f"{value:.{digits}f}"
    return str(value).replace("\\|", "|").replace("|", "\\|")
