"""Pictures are drawn from the tables that are there, and say which are not."""

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from benchmarks.figures import PICTURES, accuracy_by_severity, gains_by_method, main
from skvfusion.methods import METHODS

LABELS = [method.label for method in METHODS.values()]


def cells(rng, labels=LABELS, **columns):
    rows = [
        {"set": name, "backbone": backbone, "shots": "all", "seed": seed, "method": label, **columns}
        for backbone in ("clip", "dino")
        for name in ("birds", "cars", "flowers")
        for seed in range(2)
        for label in labels
    ]
    return pd.DataFrame(rows).assign(accuracy=rng.uniform(0.6, 0.7, len(rows)), error="")


def made_up_tables(folder, rng):
    cells(rng).to_csv(folder / "table_id.csv", index=False)
    parts = [cells(rng, corruption="clean", severity=0)]
    parts += [cells(rng, corruption="contrast", severity=severity) for severity in range(1, 6)]
    pd.concat(parts).assign(accuracy=lambda all: all["accuracy"] - 0.08 * all["severity"]).to_csv(
        folder / "table_ood.csv", index=False
    )
    recovery = cells(rng, ["mlp probes"])
    for name in ("recovery", "entropy_A", "geometric_A"):
        recovery[name] = rng.uniform(0.2, 0.9, len(recovery))
    recovery.to_csv(folder / "table_recoverability.csv", index=False)
    rows = [
        (curve, value, "VFusionClassifier.fit", value / 500, "plain torch loop", value / 400, 100)
        for curve in ("n", "layers", "dim", "classes")
        for value in (100, 200, 400)
    ]
    columns = ["curve", "value", "what", "seconds", "alternative", "alternative_seconds", "peak_mib"]
    pd.DataFrame(rows, columns=columns).to_csv(folder / "speed_scaling.csv", index=False)


def test_every_picture_is_drawn_and_is_not_blank(tmp_path, rng):
    made_up_tables(tmp_path, rng)
    main(["--results", str(tmp_path), "--out", str(tmp_path / "pictures")])
    for name in PICTURES:
        with Image.open(tmp_path / "pictures" / f"{name}.png") as picture:
            assert picture.width == 1050
            assert len(np.unique(np.asarray(picture.convert("L")))) > 10


def test_missing_tables_are_skipped_with_the_script_that_makes_them(tmp_path, capsys):
    main(["--results", str(tmp_path)])
    printed = capsys.readouterr().out
    assert printed.count("skipped") == len(PICTURES)
    assert "python -m benchmarks.table_recoverability makes it" in printed
    assert not list(tmp_path.iterdir())


def test_a_table_of_failures_only_is_skipped(tmp_path, rng, capsys):
    cells(rng).assign(error="ValueError: no").to_csv(tmp_path / "table_id.csv", index=False)
    main(["--results", str(tmp_path)])
    assert capsys.readouterr().out.count("has nothing to draw") == 2
    assert not list(tmp_path.glob("*.png"))


def test_the_mean_of_a_methods_gains_is_where_its_diamond_is(rng):
    frame = cells(rng)
    gain = frame.groupby("method")["accuracy"].mean()
    ax = gains_by_method(frame).axes[0]
    diamonds = [line.get_xdata()[0] for line in ax.lines if line.get_marker() == "D"]
    expected = [100 * (gain[label] - gain["last layer"]) for label in LABELS if label != "last layer"]
    assert diamonds == pytest.approx(expected)


def test_clean_images_alone_make_no_curve(rng):
    assert accuracy_by_severity(cells(rng, corruption="clean", severity=0)) is None


def test_help(capsys):
    with pytest.raises(SystemExit, match="0"):
        main(["--help"])
    assert "python -m benchmarks.figures" in capsys.readouterr().out
