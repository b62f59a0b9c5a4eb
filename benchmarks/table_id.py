"""Methods on clean image sets: the main table of VFusion (arXiv 2607.10391), in accuracy.

    python -m benchmarks.table_id --data DATA --backbone papers
    python -m benchmarks.table_id --quick

Everything reads CLS tokens unless its name says otherwise. Nothing but what is named "looks at the test labels" does.
"""

from functools import lru_cache, partial

import pandas as pd
from scipy.special import softmax
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler

from benchmarks.harness import Method, arguments, classifier, publish, run_cells, score, write_provenance
from benchmarks.summaries import (
    gap_closed,
    mean_table,
    paired_difference,
    points,
    to_markdown,
    worst_differences,
)
from skvfusion import AttentiveFusionClassifier, LayerVotingClassifier, VFusionClassifier
from skvfusion.methods import METHODS
from skvfusion.recoverability import oracle_accuracy

TABLE = "table_id"
LAST, BEST, SUPER_LEARNER, ALF, VFUSION = (
    METHODS[key].label for key in ("last", "best", "super_learner", "alf", "vfusion")
)
LOGITS = "average of the layers' logits"
CONCATENATION = "logistic regression, all layers"
ALF_BOTH, VFUSION_BOTH = f"{ALF}, CLS and mean", f"{VFUSION}, CLS and mean"
HINDSIGHT = "best single layer in hindsight (looks at the test labels)"
ORACLE = "any-layer oracle (looks at the test labels)"

# VFusion's averages over its 16 sets, of which no list is published.
PAPER = (
    "VFusion's paper, 16 sets: VFusion 91.4, +1.9 over the best single layer, +1.7 over Super Learner, 45 % of the gap "
    "closed. Its sets and backbones are others, so compare the differences rather than the accuracies."
)


def concatenation(random_state, device):
    """Return a converged logistic regression on all layers side by side, standardised."""
    return make_pipeline(
        FunctionTransformer(flatten),
        StandardScaler(),
        LogisticRegression(C=1.0, max_iter=10_000),
    )


def flatten(X):
    return X.reshape(len(X), -1)


def fusion(make, random_state, device):
    return make(random_state=random_state, device=device)


@lru_cache(maxsize=1)
def layer_logits(features, device):
    """Return the test logits of every layer's linear probe, and the probes' labels; fitted once for all that ask."""
    X, X_test = features.cls()
    voting = LayerVotingClassifier(device=device).fit(X, features.y)
    return voting.probes_.logits(X_test[:, :, None]), voting.classes_


def hindsight(features, seed, device):
    """Return the figures of the layer whose linear probe is best on the test part."""
    logits, classes = layer_logits(features, device)
    accuracies = (classes[logits.argmax(axis=2)] == features.y_test[:, None]).mean(axis=0)
    best = len(accuracies) - 1 - int(accuracies[::-1].argmax())  # of equals the deepest
    return score(classes, softmax(logits[:, best], axis=1), features.y_test, features.groups_test) | {"layer": best}


def oracle(features, seed, device):
    """Return the accuracy of choosing for each test image a layer whose linear probe is right, if there is one."""
    logits, classes = layer_logits(features, device)
    return {"accuracy": oracle_accuracy(classes[logits.argmax(axis=2)].T, features.y_test)}


def methods():
    """Return the rows, from the plainest: those of METHODS in its order, and the others beside their like."""
    rows = {key: classifier(method.label, partial(method.make, n_jobs=None)) for key, method in METHODS.items()}
    beside = {
        "best": [Method(HINDSIGHT, hindsight)],
        "moe": [classifier(CONCATENATION, concatenation)],
        "alf": [classifier(ALF_BOTH, partial(fusion, AttentiveFusionClassifier), tokens="cls+mean")],
        "vfusion": [classifier(VFUSION_BOTH, partial(fusion, VFusionClassifier), tokens="cls+mean")],
    }
    found = []
    for key, row in rows.items():
        if key == "average":
            found.append(classifier(LOGITS, partial(fusion, partial(LayerVotingClassifier, "logit"))))
        found += [row, *beside.get(key, [])]
    return [*found, Method(ORACLE, oracle)]


def differences(frame):
    """Return VFusion's and ALF's differences to the methods that they have to beat, as text."""
    pairs = [(VFUSION, LAST), (VFUSION, BEST), (VFUSION, SUPER_LEARNER), (ALF, LAST), (ALF_BOTH, LAST)]
    rows = []
    for method, reference in pairs:
        if not {method, reference} <= set(frame["method"]):
            continue
        losses = worst_differences(frame, method, reference)
        worst = "" if losses.empty else f"{100 * losses.iloc[0]:+.1f} ({', '.join(losses.index[0][::-1])})"
        difference = points(paired_difference(frame, method, reference))
        rows.append({"method": method, "against": reference, "difference [95 %]": difference, "least": worst})
    return pd.DataFrame(rows, columns=["method", "against", "difference [95 %]", "least"]).set_index("method")


def gaps(frame):
    """Return the share of the gap to the oracle that each fusion closes, in percent."""
    rows = []
    for method in dict.fromkeys(frame["method"]):
        if method not in (LAST, BEST, HINDSIGHT, ORACLE):
            honest, hard = gap_closed(frame, method, BEST, ORACLE), gap_closed(frame, method, HINDSIGHT, ORACLE)
            rows.append(
                {
                    "method": method,
                    "mean of ratios": 100 * honest.mean_of_ratios,
                    "ratio of means": 100 * honest.ratio_of_means,
                    "from hindsight: mean of ratios": 100 * hard.mean_of_ratios,
                    "from hindsight: ratio of means": 100 * hard.ratio_of_means,
                }
            )
    return pd.DataFrame(rows).set_index("method")


def losses(frame):
    """Return each fusion's differences in points to the last layer's linear probe by (backbone, set)."""
    chosen = [row for row in (SUPER_LEARNER, ALF, ALF_BOTH, VFUSION, VFUSION_BOTH) if row in set(frame["method"])]
    table = pd.DataFrame({method: 100 * worst_differences(frame, method, LAST) for method in chosen})
    return table.rename_axis(["backbone", "set"])


def summary(frame):
    parts = ["# Methods on clean sets\n\nAccuracy in percent, means over the seeds."]
    for backbone, part in frame.groupby("backbone", sort=False):
        table = mean_table(part).droplevel("backbone", axis=1)
        parts.append(f"## {backbone}\n\n{to_markdown(table, 1)}")
    parts.append(
        "The mean rank is among all rows, 1 is the best.\n\n## Differences\n\nIn points, with 95 % bootstrap intervals "
        f'over sets and seeds; "least" is the set on which it is smallest.\n\n{to_markdown(differences(frame), 1)}'
    )
    parts.append(
        "## The gap to the oracle that is closed\n\nIn percent, from the best single layer by cross-validation, as a "
        "mean over the sets and computed from mean accuracies, and from the best layer in hindsight.\n\n"
        f"{to_markdown(gaps(frame), 1)}"
    )
    parts.append(f"## By set, against the last layer\n\nIn points.\n\n{to_markdown(losses(frame), 1)}\n\n{PAPER}")
    return "\n\n".join(parts)


def main(argv=None):
    rows = methods()
    labels = [row.label for row in rows]
    parser = arguments(__doc__)
    parser.add_argument(
        "--methods",
        nargs="+",
        metavar="ROW",
        choices=labels,
        default=labels,
        help="only these rows, as the table has them",
    )
    args = parser.parse_args(argv)
    frame = run_cells(args, TABLE, [row for row in rows if row.label in args.methods])
    write_provenance(args, TABLE)
    publish(args, TABLE, summary(frame))


if __name__ == "__main__":
    main()
