"""What the commands print of predictions, comparisons and models."""

import numpy as np
from sklearn.pipeline import Pipeline


def print_predictions(table, facts):
    """Print a row per image, and what the warnings mean if there are some."""
    width = max(len("path"), *(len(row[0]) for row in table))
    names = max(len("class"), *(len(str(row[1])) for row in table))
    print(f"{'path':<{width}}  {'class':<{names}}  probability  disagreement")
    for path, label, probability, *_, disagreement in table:
        print(f"{path:<{width}}  {label!s:<{names}}  {probability:>11.3f}  {disagreement}".rstrip())
    n_warned = sum(row[-1] == "yes" for row in table)
    if n_warned:
        print(f"\nDisagreement on {n_warned} of {len(table)} images: {_agreement_text(facts)}.")


def print_comparison(comparison):
    """Print a row per method, and which is best in validation."""
    columns = ["label", "accuracy", "gain", "gain_low", "gain_high", "validation_accuracy", "error"]
    frame = comparison.frame.reindex(columns=columns)
    print(f"\n{'':<40}{'accuracy %':>11}{'gain':>8}{'95 % interval':>18}{'validation %':>14}")
    for row in frame.itertuples():
        print(_comparison_line(row))
    print("\ngain: percentage points over the last layer's linear probe, on images that were not learned from")
    best = frame.loc[comparison.best]
    print(f"Best in cross-validation on the training images: {best['label']}")


def _comparison_line(row):
    if np.isnan(row.accuracy):
        return f"{row.label:<40}failed: {row.error.partition(chr(10))[0]}"
    interval = "" if np.isnan(row.gain_low) else f"[{100 * row.gain_low:+.1f}, {100 * row.gain_high:+.1f}]"
    numbers = ["" if np.isnan(value) else f"{100 * value:.1f}" for value in (row.accuracy, row.validation_accuracy)]
    gain = "" if np.isnan(row.gain) else f"{100 * row.gain:+.1f}"
    return f"{row.label:<40}{numbers[0]:>11}{gain:>8}{interval:>18}{numbers[1]:>14}".rstrip()


def model_facts(model):
    """Return what is known of a model that ``skvfusion compare`` saved, as text by name."""
    facts, extractor = model.facts_, model[0]
    weights = f", weights {extractor.weights}" if extractor.weights else ""
    return {
        "classes": f"{len(facts['classes'])}: {', '.join(facts['classes'])}",
        "backbone": f"{extractor.backbone}, {facts['image_size']} pixels{weights}",
        "layers": f"{len(facts['layers'])}: {', '.join(facts['layers'])}; tokens {' and '.join(facts['tokens'])}",
        "method": facts["method"],
        "trained": f"{facts['date']}, on {facts['n_train']} images of {facts['data']}",
        "validation": f"accuracy {_percent(facts['validation_accuracy'])} in cross-validation on these",
        "test": f"accuracy {_percent(facts['accuracy'])} on {facts['n_test']} images {facts['evaluation']}",
        "disagreement": _agreement_text(facts),
        "versions": ", ".join(f"{name} {number}" for name, number in facts["versions"].items()),
    }


def estimator_facts(model):
    """Return what is known of a model that was saved from Python, as text by name."""
    facts = {"model": type(model).__name__, "saved from": "Python, so nothing is noted of its training"}
    if isinstance(model, Pipeline):
        facts["model"] = f"Pipeline of {', '.join(type(step).__name__ for _, step in model.steps)}"
    classes = getattr(model, "classes_", None)
    facts["classes"] = (
        "none: it is not fitted" if classes is None else f"{len(classes)}: {', '.join(map(str, classes))}"
    )
    return facts


def _agreement_text(facts):
    rule = facts["agreement"]
    if not rule:
        return "unknown: there were too few training images to learn what is unusual"
    n_layers = len(facts["layers"])
    if rule["depth"] < n_layers:
        where = (
            f"only from layer {rule['depth']} on, counted from 0, and {rule['others']} or more do not, or even later"
        )
    else:
        where = f"not even at the last, and {rule['others']} or more of {n_layers} do not"
    text = f"warned of where the layers' own probes give the answer {where}: {_percent(rule['share'])} of the training "
    text += "images while they were left out of training"
    if rule["accuracy"] is not None and rule["other_accuracy"] is not None:
        text += f", {_percent(rule['accuracy'])} of these correctly classified and {_percent(rule['other_accuracy'])}"
        text += " of the others"
    return text


def _percent(share):
    return f"{100 * share:.1f} %"
