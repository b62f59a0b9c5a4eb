"""The script that measures speed runs; how fast anything is, is not tested."""

import re
import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from benchmarks import speed, speed_scaling
from benchmarks.timing import peak_mib

ROOT = Path(__file__).parents[2]


def ratios_of(printed):
    """Return (name, ratio) of every row that report printed."""
    rows = re.findall(r"^(.+?) +\d+\.\d{3} +(\d+\.\d{3})$", printed, re.MULTILINE)
    return [(name, float(ratio)) for name, ratio in rows]


@pytest.mark.parametrize("command", [["-m", "benchmarks.speed"], ["benchmarks/speed.py"]])
def test_it_runs_as_a_module_and_as_a_file(command):
    helped = subprocess.run([sys.executable, *command, "--help"], cwd=ROOT, capture_output=True, text=True, check=True)
    assert "python -m benchmarks.speed" in helped.stdout
    for what in speed.BENCHMARKS:
        assert f"--what {what}" in helped.stdout


@pytest.mark.parametrize("arguments", [["--repetitions", "0"], ["--what", "engine", "--csv", "figures.csv"]])
def test_arguments_that_mean_nothing_are_refused(arguments, capsys):
    with pytest.raises(SystemExit, match="2"):
        speed.main(arguments)
    assert arguments[-2] in capsys.readouterr().err


def test_figures_that_could_not_be_written_are_not_measured(tmp_path, capsys):
    path = tmp_path / "absent" / "figures.csv"
    with pytest.raises(SystemExit, match="2"):
        speed.main(["--what", "scaling", "--quick", "--csv", str(path)])
    printed = capsys.readouterr()
    assert f"there is no folder {path.parent}" in printed.err
    assert printed.out == ""


def test_engine_compares_fit_with_torch_and_skorch(capsys):
    speed.main(["--what", "engine", "--quick", "--repetitions", "1"])
    ratios = dict(ratios_of(capsys.readouterr().out))
    assert ratios.pop("hand-written torch loop") == 1
    assert set(ratios) == {"skorch, DataLoader", "VFusionClassifier.fit"}
    assert all(ratio > 0 for ratio in ratios.values())


def test_extraction_is_compared_with_its_alternatives(capsys):
    speed.main(["--what", "extraction", "--quick", "--repetitions", "2"])
    printed = capsys.readouterr().out
    ratios = dict(ratios_of(printed))
    assert ratios.pop("forward_features of ready batches") == 1
    assert {
        "transform, from ready tensors",
        "transform, from JPEG files",
        "transform, from JPEG files, cached",
        "one pass per layer, ready batches",
        "one image at a time, JPEG files, last layer",
    } < set(ratios)
    assert all(ratio > 0 for ratio in ratios.values())
    assert re.search(r"grew by \d+\.\d; the stack itself by \d+\.\d", printed)


def test_every_fusion_method_is_compared(capsys):
    speed.main(["--what", "fusion", "--quick", "--repetitions", "1"])
    printed = capsys.readouterr().out
    rows = ratios_of(printed)
    assert [ratio for _, ratio in rows[::2]] == [1] * 7
    assert {name for name, _ in rows[1::2]} == {
        "AttentiveFusionClassifier's net",
        "VFusionClassifier.fit",
        "AttentiveFusionClassifier.fit",
        "MixtureOfExpertsClassifier.fit",
        "NeuralLogitControllerClassifier.fit",
        "all 3 linear probes",
        "SuperLearnerClassifier",
    }
    above = re.findall(r"^layer +\d+: .*ours (-?\d\.\de[+-]\d+)$", printed, re.MULTILINE)
    assert len(above) == 2
    assert max(abs(float(value)) for value in above) < 1e-4


def test_compare_is_compared_with_a_loop(capsys):
    speed.main(["--what", "compare", "--quick", "--repetitions", "1"])
    printed = capsys.readouterr().out
    rows = ratios_of(printed)
    assert [ratio for _, ratio in rows[::2]] == [1, 1]
    assert [name for name, _ in rows[1::2]] == ["skvfusion.compare", "all 3 linear probes"]
    assert all(ratio > 0 for _, ratio in rows)
    peaks = re.findall(r"^(\S.+?) +(\d+\.\d)$", printed, re.MULTILINE)
    assert [name for name, _ in peaks] == [name for name, _ in rows]


def test_scaling_prints_ratios_slopes_and_writes_them(capsys, tmp_path):
    csv = tmp_path / "scaling.csv"
    speed.main(["--what", "scaling", "--quick", "--repetitions", "1", "--csv", str(csv)])
    printed = capsys.readouterr().out
    frame = pd.read_csv(csv)
    assert list(frame) == ["curve", "value", "what", "seconds", "alternative", "alternative_seconds", "peak_mib"]
    assert len(frame) == 2 * 4 * len(speed_scaling.WORKS)
    assert (frame["seconds"] > 0).all()
    assert (frame["peak_mib"] >= 0).all()
    rows = [line for line in printed.splitlines() if re.match(r"\| \w+ \| \d+ \|", line)]
    assert len(rows) == len(frame)
    ratios = [cells[7] for cells in (line.split("|") for line in rows) if cells[7].strip()]
    assert len(ratios) == frame["alternative_seconds"].notna().sum()
    assert all(float(ratio) >= 0 for ratio in ratios)
    assert (frame["seconds"] / frame["alternative_seconds"]).dropna().gt(0).all()
    slopes = re.findall(r"^\| \w+ \| \D+ \| (-?\d+\.\d\d) \|", printed, re.MULTILINE)
    assert len(slopes) == 4 * len(speed_scaling.WORKS)
    assert np.isfinite([float(slope) for slope in slopes]).all()


def test_scaling_times_dear_alternatives_up_to_twice_the_base_only():
    base = speed_scaling.QUICK_BASE
    work = speed_scaling.WORKS["all linear probes"]
    larger = speed_scaling.replace(base, n=4 * base.n)
    assert np.isfinite(work.measure(base, base, 1)[2])
    assert np.isnan(work.measure(larger, base, 1)[2])


def test_log_log_slope_is_the_exponent():
    values = pd.Series([1.0, 2.0, 4.0, 8.0])
    assert speed_scaling.log_log_slope(values, 3 * values**1.5) == pytest.approx(1.5)
    assert np.isnan(speed_scaling.log_log_slope(values, values.where(values < 2)))


def test_peak_is_what_the_run_needs_beyond_what_was_there():
    here = np.ones(100 * 2**17)  # of this process, so not of the fresh one
    assert 39 < peak_mib(partial, np.ones, 40 * 2**17) < 45
    assert here.nbytes == 100 * 2**20
