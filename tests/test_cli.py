import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
from sklearn.datasets import load_digits

import skvfusion
from skvfusion import cli, demo


@pytest.fixture(autouse=True)
def working_folder(tmp_path, monkeypatch):
    """Start every test in an empty folder, with few digits, and see to it that nothing was written there."""
    digits = load_digits()
    rows = np.sort(np.concatenate([np.flatnonzero(digits.target == digit)[:6] for digit in range(10)]))
    for name in ("images", "data", "target"):
        digits[name] = digits[name][rows]
    monkeypatch.setattr(demo, "load_digits", lambda: digits)
    folder = tmp_path / "working"
    folder.mkdir()
    monkeypatch.chdir(folder)
    yield folder
    assert list(folder.iterdir()) == []


@pytest.fixture
def quick_demo(monkeypatch):
    """Replace the computing by made-up figures; record with what it was called."""
    calls = []

    def run_demo(seeds, seed, device, report):
        calls.append({"seeds": seeds, "seed": seed, "device": device})
        report("progress")
        columns = [demo.LAST, demo.LAST_MLP, demo.BEST, demo.AVERAGE, demo.VFUSION, demo.ORACLE, demo.RECOVERY]
        index = pd.RangeIndex(seed, seed + seeds, name="seed")
        scores = pd.DataFrame([[0.8, 0.8, 0.8, 0.8, 0.9, 0.95, 0.75]] * seeds, columns=columns, index=index)
        return scores, demo.RecoverabilityDisplay([0.5, 0.8], oracle_accuracy=0.95, fused_accuracy=0.9)

    monkeypatch.setattr(demo, "run_demo", run_demo)
    return calls


def exit_code(*argv):
    with pytest.raises(SystemExit) as stop:
        cli.main(list(argv))
    return stop.value.code


def test_demo_end_to_end_writes_table_and_picture(one_thread, tmp_path, capsys):
    out = tmp_path / "new" / "folder"
    assert cli.main(["demo", "--seed", "5", "--device", "cpu", "--out", str(out)]) == 0
    printed, errors = capsys.readouterr()
    assert errors == ""
    assert sorted(path.name for path in out.iterdir()) == ["demo.csv", "demo.png", "demo_seeds.csv"]
    assert (out / "demo.png").read_bytes().startswith(b"\x89PNG")
    scores = pd.read_csv(out / "demo_seeds.csv", index_col="seed")
    assert scores.index.tolist() == [5]
    assert f"{100 * scores.loc[5, demo.VFUSION]:.2f}" in printed
    assert "seed 5: 50% train, 50% test, stratified" in printed
    assert "Test accuracy, seed 5" in printed
    table = pd.read_csv(out / "demo.csv", index_col="method")
    assert table.loc[demo.VFUSION, "accuracy %"] == pytest.approx(100 * scores[demo.VFUSION].mean())
    assert str(out) in printed


def test_options_reach_the_demo(quick_demo):
    assert cli.main(["demo", "--seeds", "3", "--seed", "7", "--device", "cpu"]) == 0
    assert quick_demo == [{"seeds": 3, "seed": 7, "device": "cpu"}]


def test_defaults(quick_demo):
    assert cli.main(["demo"]) == 0
    assert quick_demo == [{"seeds": 1, "seed": 0, "device": "auto"}]


def test_the_table_names_every_method_and_its_difference_to_the_last_layer(quick_demo, capsys):
    cli.main(["demo"])
    printed = capsys.readouterr().out
    for method in (demo.LAST, demo.LAST_MLP, demo.BEST, demo.AVERAGE, demo.VFUSION, demo.ORACLE):
        assert method in printed
    (line,) = (line for line in printed.splitlines() if line.startswith(demo.VFUSION))
    assert line.split()[-2:] == ["90.00", "+10.00"]
    assert "Recovery rate: inner layers are right on 75% of" in printed


def test_several_seeds_are_stated(quick_demo, capsys):
    cli.main(["demo", "--seeds", "3", "--seed", "2"])
    assert "Test accuracy, mean of seeds 2 to 4" in capsys.readouterr().out


def test_an_existing_folder_is_used(quick_demo, tmp_path):
    (tmp_path / "other.txt").write_text("mine")
    assert cli.main(["demo", "--out", str(tmp_path)]) == 0
    assert (tmp_path / "other.txt").read_text() == "mine"
    assert (tmp_path / "demo.csv").exists()


@pytest.mark.parametrize("argv", [["--help"], ["demo", "--help"]], ids=" ".join)
def test_help_exits_0_with_an_example(argv, capsys):
    assert exit_code(*argv) == 0
    printed, errors = capsys.readouterr()
    assert errors == ""
    assert printed.startswith("usage: skvfusion")
    assert "example" in printed
    assert "skvfusion demo" in printed


def test_help_lists_the_commands(capsys):
    exit_code("--help")
    assert "compare fusing the layers with using one" in capsys.readouterr().out


@pytest.mark.parametrize(
    "option", ["--seeds", "--seed", "--device", "--out"], ids=["seeds", "seed", "device", "out folder"]
)
def test_help_of_the_demo_lists_every_option(option, capsys):
    exit_code("demo", "--help")
    assert option in capsys.readouterr().out


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ([], "COMMAND"),
        (["frobnicate"], "frobnicate"),
        (["demo", "--frobnicate"], "--frobnicate"),
        (["demo", "--seeds", "0"], "'0' is not a whole number of at least 1"),
        (["demo", "--seeds", "-2"], "'-2' is not a whole number of at least 1"),
        (["demo", "--seeds", "many"], "many"),
        (["demo", "--seed", "x"], "x"),
    ],
    ids=lambda value: " ".join(value) or "nothing" if isinstance(value, list) else "",
)
def test_wrong_usage_exits_2_with_a_reason(argv, message, capsys):
    assert exit_code(*argv) == 2
    printed, errors = capsys.readouterr()
    assert printed == ""
    assert message in errors.splitlines()[-1]


@pytest.mark.parametrize("seeds", ["many", "1.5"])
def test_a_count_that_is_no_number_is_explained_without_names_from_the_code(seeds, capsys):
    assert exit_code("demo", "--seeds", seeds) == 2
    assert "_positive" not in capsys.readouterr().err


@pytest.mark.parametrize("device", ["cuda:99", "quantum"])
def test_an_unusable_device_is_one_line_on_stderr(device, capsys):
    assert cli.main(["demo", "--device", device]) == 2
    errors = capsys.readouterr().err
    assert len(errors.splitlines()) == 1
    assert errors.startswith("skvfusion: ")
    assert device in errors
    assert "Traceback" not in errors


@pytest.mark.parametrize("seed", ["-1", str(2**31), "1.5"])
def test_a_seed_out_of_range_is_refused_before_any_work(seed, capsys):
    assert exit_code("demo", "--seed", seed) == 2
    printed, errors = capsys.readouterr()
    assert printed == ""
    assert "is not a whole number from 0 to 2147483647" in errors.splitlines()[-1]


def test_an_output_folder_that_is_a_file_is_one_line_on_stderr(quick_demo, tmp_path, capsys):
    (tmp_path / "taken").write_text("mine")
    assert cli.main(["demo", "--out", str(tmp_path / "taken")]) == 2
    errors = capsys.readouterr().err
    assert len(errors.splitlines()) == 1
    assert "taken" in errors
    assert (tmp_path / "taken").read_text() == "mine"


def test_drawing_without_matplotlib_is_one_line_on_stderr(quick_demo, tmp_path, monkeypatch, capsys):
    for module in ["matplotlib", *(name for name in sys.modules if name.startswith("matplotlib."))]:
        monkeypatch.setitem(sys.modules, module, None)
    assert cli.main(["demo", "--out", str(tmp_path)]) == 2
    errors = capsys.readouterr().err
    assert len(errors.splitlines()) == 1
    assert "skvfusion[plot]" in errors


def test_a_fault_of_the_program_is_not_hidden(monkeypatch):
    def broken(*args, **kwargs):
        raise ZeroDivisionError

    monkeypatch.setattr(demo, "run_demo", broken)
    with pytest.raises(ZeroDivisionError):
        cli.main(["demo"])


def test_arguments_come_from_the_process_by_default(monkeypatch, quick_demo):
    monkeypatch.setattr(sys, "argv", ["skvfusion", "demo", "--seed", "9"])
    assert cli.main() == 0
    assert quick_demo[0]["seed"] == 9


def test_as_a_module():
    done = subprocess.run(
        [sys.executable, "-m", "skvfusion", "--help"], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0
    assert done.stdout.startswith("usage: skvfusion")
    assert done.stderr == ""


def test_version(capsys):
    assert exit_code("--version") == 0
    assert capsys.readouterr().out.split() == ["skvfusion", skvfusion.__version__]
