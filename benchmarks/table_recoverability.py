"""What inner layers know where the last layer errs, by set, and what it goes with across sets.

python -m benchmarks.table_recoverability --data DATA --backbone dinov2_b
python -m benchmarks.table_recoverability --quick
"""

from functools import partial

import numpy as np
import pandas as pd
from scipy.stats import pearsonr, spearmanr

from benchmarks.harness import Method, arguments, publish, run_cells, write_provenance
from benchmarks.summaries import to_markdown
from skvfusion import LayerProbeClassifier, RecoverabilityScorer
from skvfusion.recoverability import correction_entropy, geometric_disagreement

TABLE = "table_recoverability"
# VFusion (arXiv 2607.10391), table 1.
PAPER_RANGE = "18 % to 76 %"
EXPECTED = {
    "entropy_A": "+",
    "entropy_B": "+",
    "entropy_C": "+",
    "geometric_A": "-",
    "geometric_B": "-",
}


def figures(probe, features, seed, device):
    """Return the figures of recoverability of the CLS tokens, shares in [0, 1]."""
    X, X_test = features.cls()
    scorer = RecoverabilityScorer(probe, device=device, random_state=seed).fit(X, features.y)
    result = scorer.evaluate(X_test, features.y_test)
    best = LayerProbeClassifier("best", probe, device=device, random_state=seed).fit(X, features.y).layer_
    accuracy, harm = result.layer_accuracy, result.layer_harm
    predicted, y = result.predictions, result.y
    distance = partial(geometric_disagreement, result.logits, y, classes=result.classes)
    off_diagonal = np.triu_indices(len(accuracy), k=1)
    return {
        "last": accuracy[-1],
        "best_validation": accuracy[best],
        "oracle": result.oracle_accuracy,
        "recovery": result.recovery_rate,
        "recovery_corrected": result.corrected_recovery_rate,
        "harm_best": harm[best],
        "harm_mean": np.mean(harm[:-1]),
        "harm_max": np.max(harm[:-1]),
        **{f"entropy_{r}": correction_entropy(predicted, y, reading=r) for r in "ABC"},
        **{f"geometric_{r}": distance(reading=r) for r in "AB"},
        "pairwise_disagreement": result.pairwise_disagreement[off_diagonal].mean(),
        "confusion_auroc": result.summary(n_draws=1).loc["confusion_auroc", "value"],
    }


def by_pair(frame):
    """Return the figures of each (backbone, set), the mean over seeds."""
    columns = [name for name in FIGURES if name in frame]
    return frame.groupby(["backbone", "set"], sort=False)[columns].mean()


FIGURES = (
    "last",
    "best_validation",
    "oracle",
    "recovery",
    "recovery_corrected",
    "harm_best",
    "harm_mean",
    "harm_max",
    *EXPECTED,
    "pairwise_disagreement",
    "confusion_auroc",
)


def correlations(pairs):
    """Return how recovery goes with each figure of EXPECTED, by backbone and over all pairs.

    Parameters
    ----------
    pairs : DataFrame
        Of :func:`by_pair`.

    Returns
    -------
    DataFrame
        The number of pairs, Pearson's and Spearman's coefficients and their p-values; nan for fewer than three pairs
        or where a figure is the same for all.
    """
    rows = {}
    parts = dict(iter(pairs.groupby(level="backbone", sort=False)))
    if len(parts) > 1:
        parts["all"] = pairs
    for backbone, part in parts.items():
        for name, sign in EXPECTED.items():
            known = part[["recovery", name]].dropna()
            row = {"pairs": len(known), "the paper's sign": sign}
            for title, correlate in {"Pearson": pearsonr, "Spearman": spearmanr}.items():
                usable = len(known) >= 3 and known.nunique().min() > 1
                r, p = correlate(known["recovery"], known[name]) if usable else (np.nan, np.nan)
                row |= {title: float(r), f"{title}'s p": float(p)}
            rows[backbone, name] = row
    return pd.DataFrame.from_dict(rows, orient="index").rename_axis(["backbone", "figure"])


def summary(frame, probe):
    """Return the tables in Markdown."""
    pairs = by_pair(frame)
    shown = pairs.copy()
    shown.columns = [name.replace("_", " ") for name in shown.columns]
    recovery = pairs["recovery"].dropna()
    span = f"{100 * recovery.min():.0f} % to {100 * recovery.max():.0f} %" if len(recovery) else "undefined"
    return "\n\n".join(
        [
            f"# Recoverability, {probe} probes\n\nShares, means over seeds. Recovery is the share of the last layer's "
            "errors that some inner layer gets right; an oracle, not accuracy to be had.",
            to_markdown(shown, 3),
            f"Recovery here: {span} over {len(recovery)} (backbone, set); the paper: {PAPER_RANGE} over 16 sets. "
            "Harm is the share of the last layer's right answers that a layer gets wrong: the best layer by "
            "validation, and the mean and the most over inner layers.",
            "## Recovery across sets",
            to_markdown(correlations(pairs), 2),
            "Few sets say little: of 5 sets a coefficient needs to be beyond 0.88 to have p < 0.05, and no p-value "
            "is corrected for the number of coefficients. Several backbones' pairs of one set are dependent, "
            'so that the p-values of "all" are too small. The formulas are readings; the paper\'s are not known.',
        ]
    )


def main(argv=None):
    parser = arguments(__doc__)
    parser.add_argument("--probe", choices=["mlp", "linear"], default="mlp", help="probe of each layer; the paper: mlp")
    args = parser.parse_args(argv)
    method = Method(f"{args.probe} probes", partial(figures, args.probe))
    frame = run_cells(args, TABLE, [method])
    write_provenance(args, TABLE)
    publish(args, TABLE, summary(frame, args.probe))


if __name__ == "__main__":
    main()
