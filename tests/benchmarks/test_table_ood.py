"""Methods are fitted once and scored on every cell; the table says how accuracy falls."""

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from benchmarks.backbones import read_backbone
from benchmarks.data import corrupt, read_set
from benchmarks.features import Features
from benchmarks.table_ood import (
    BEST,
    CLEAN,
    ORACLE,
    FittedOnce,
    ShiftedFeatures,
    figures_of_oracle,
    main,
    methods,
    summary,
    take_stratified,
)
from skvfusion import LayerProbeClassifier, LayerwiseFeatureExtractor, RecoverabilityScorer
from skvfusion.methods import METHODS


def quick(folder, *more):
    main(["--quick", "--sets", "digits", "--out", str(folder), "--cache", str(folder / "cache"), *more])
    return pd.read_csv(folder / "table_ood.csv")


def made_up_features(rng, groups=None):
    X, y = rng.normal(size=(40, 3, 2, 8)).astype(np.float32), np.arange(40) % 2
    return Features("made up", "none", X, y, X, y, groups)


def test_quick_mode_scores_every_method_on_every_cell_and_resumes(tmp_path, capsys):
    frame = quick(tmp_path)
    assert frame["error"].isna().all()
    assert set(zip(frame["corruption"], frame["severity"], strict=True)) == {
        ("clean", 0),
        ("gaussian_noise", 1),
        ("gaussian_noise", 5),
    }
    assert (frame.groupby(["corruption", "severity"])["method"].nunique() == len(methods())).all()
    accuracy = frame.set_index(["corruption", "severity", "method"])["accuracy"]
    assert (accuracy.xs(ORACLE, level="method") >= accuracy.xs(BEST, level="method")).all()
    assert "corrupted / clean" in capsys.readouterr().out
    pd.testing.assert_frame_equal(quick(tmp_path), frame)


def test_validation_corrupts_training_images_that_are_not_trained_on(tmp_path):
    images = read_set("digits", None).images
    features = ShiftedFeatures(test_images=50, validation=True)
    kwargs = {"data": None, "cache": tmp_path, "device": "cpu", "progress": False}
    clean = features.load("digits", read_backbone("nano"), cell=CLEAN, **kwargs)
    assert len(clean.y) == len(images) - len(features.held_out)
    assert len(clean.y_test) == 50
    blurred = features.load("digits", read_backbone("nano"), cell=("gaussian_blur", 1), **kwargs)
    rows = features.held_out[features.rows]
    expected = LayerwiseFeatureExtractor("nano", tokens="cls+mean").fit_transform(
        corrupt([images[row] for row in rows], "gaussian_blur", 1, 0)
    )
    assert_allclose(blurred.X_test, expected, atol=1e-4)
    assert_array_equal(blurred.X, clean.X)


def test_a_method_is_fitted_once_for_each_seed(rng):
    fits = []

    def make(random_state, device):
        fits.append(random_state)
        return LayerProbeClassifier(random_state=random_state, device=device)

    run = FittedOnce(make, lambda estimator, X_test, features: {"accuracy": estimator.score(X_test, features.y_test)})
    features = made_up_features(rng)
    scores = [run(features, seed, "cpu")["accuracy"] for seed in (0, 1, 0, 1)]
    assert fits == [0, 1]
    assert scores[0] == scores[2]


def test_the_oracle_has_figures_of_groups(rng):
    groups = np.repeat(["land", "water"], 20)
    features = made_up_features(rng, groups)
    X, _ = features.cls()
    scorer = RecoverabilityScorer("linear", random_state=0).fit(X[:10], features.y[:10])
    figures = figures_of_oracle(scorer, X, features)
    assert figures["accuracy"] == scorer.evaluate(X, features.y).oracle_accuracy
    assert figures["worst_group_accuracy"] <= figures["group_accuracy"] == pytest.approx(figures["accuracy"])


def test_summary_shows_what_is_left_of_clean_accuracy():
    labels = [METHODS["last"].label, BEST, METHODS["vfusion"].label, ORACLE]
    row = {"set": "birds", "backbone": "nano", "seed": 0}
    frame = pd.DataFrame(
        {**row, "method": label, "corruption": corruption, "severity": severity, "accuracy": accuracy}
        for corruption, severity, accuracy in (("clean", 0, 0.8), ("contrast", 1, 0.6), ("contrast", 2, 0.2))
        for label in labels
    )
    line = next(line for line in summary(frame).splitlines() if line.startswith(f"| {BEST}"))
    assert [float(cell) for cell in line.strip("| ").split(" | ")[1:]] == [80, 40, 50, 60, 20]


@pytest.mark.parametrize(("n", "kept"), [(None, 40), (10, 10), (100, 40)])
def test_test_images_are_taken_in_proportion(n, kept):
    y = np.repeat([0, 1], 20)
    rows = take_stratified(y, n)
    assert np.bincount(y[rows]).tolist() == [kept // 2, kept // 2]


def test_help(capsys):
    with pytest.raises(SystemExit, match="0"):
        main(["--help"])
    assert "--corruptions" in capsys.readouterr().out
