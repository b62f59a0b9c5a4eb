import os
import re
import shlex
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from sklearn.datasets import load_digits

import skvfusion
from skvfusion import cli, commands, demo

EXTRACTION = ["--backbone", "--weights", "--image-size", "--layers", "--tokens", "--tap", "--device", "--cache"]
COMMANDS = {
    "demo": ["--seeds", "--seed", "--device", "--out"],
    "compare": [*EXTRACTION, "--report", "--groups", "--on-error", "--methods", "--test-size", "--cv", "--seed"],
    "predict": ["--csv", "--weights", "--device", "--cache", "--on-error"],
    "info": ["MODEL"],
    "extract": [*EXTRACTION, "--out", "--groups", "--on-error", "--dtype"],
    "backbones": ["--help"],
}


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


@pytest.mark.parametrize("command", [None, *COMMANDS])
def test_help_exits_0_with_an_example(command, capsys):
    assert exit_code(*([command] if command else []), "--help") == 0
    printed, errors = capsys.readouterr()
    assert errors == ""
    assert printed.startswith("usage: skvfusion")
    assert f"example: skvfusion {command or 'demo'}" in printed


@pytest.mark.parametrize("command", COMMANDS)
def test_the_example_of_a_command_is_understood(command, capsys):
    exit_code(command, "--help")
    (example,) = re.findall("example: skvfusion (.*)", " ".join(capsys.readouterr().out.split()))
    argv = shlex.split(example.partition(" > ")[0])
    assert cli._parser().parse_args(argv).run


def test_help_lists_the_commands_and_exit_codes(capsys):
    exit_code("--help")
    printed = capsys.readouterr().out
    assert "compare fusing the layers with using one" in printed
    assert all(re.search(rf"^ +{command}\s", printed, re.MULTILINE) for command in COMMANDS)
    assert "exit codes: 0 all went well, 1 nobody read the output, 2 an error of the user's, 130 interrupted" in printed


@pytest.mark.parametrize(
    ("command", "option"), [(command, option) for command, options in COMMANDS.items() for option in options]
)
def test_help_lists_every_option(command, option, capsys):
    exit_code(command, "--help")
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
        (["compare", "photos"], "--report"),
        (["compare", "photos", "--report", "out", "--methods", "vfusion,magic"], "'magic' is none of last, last_mlp"),
        (["compare", "photos", "--report", "out", "--test-size", "1"], "'1' is not a number between 0 and 1"),
        (["compare", "photos", "--report", "out", "--cv", "1"], "'1' is not a whole number of at least 2"),
        (["compare", "photos", "--report", "out", "--on-error", "ignore"], "ignore"),
        (["predict", "model.skvfusion"], "IMAGES"),
        (["extract", "photos"], "--out"),
        (["extract", "photos", "--out", "x.npy", "--dtype", "int8"], "int8"),
        (["info"], "MODEL"),
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


@pytest.fixture
def called(monkeypatch):
    """Record with what a command is called instead of running it."""
    calls = []
    for name in ("compare_images", "predict_images", "extract_images"):
        monkeypatch.setattr(cli, name, lambda name=name, **arguments: calls.append({"name": name, **arguments}))
    return calls


def test_options_reach_compare(called, tmp_path):
    argv = f"compare photos --report {tmp_path} --backbone nano --layers=3,-1 --methods last,alf --cv 4 --seed 7"
    assert cli.main([*argv.split(), "--weights", "random", "--image-size", "64", "--cache", "c"]) == 0
    (call,) = called
    assert call["command"] == f"skvfusion {argv} --weights random --image-size 64 --cache c"
    expected = {"data": "photos", "report": tmp_path, "backbone": "nano", "layers": [3, -1], "methods": ["last", "alf"]}
    expected |= {"cv": 4, "seed": 7, "weights": "random", "image_size": 64, "cache": Path("c"), "on_error": "raise"}
    assert {name: call[name] for name in expected} == expected


def test_layers_by_name_or_number(called):
    for text, layers in {"all": "all", "strided:3": "strided:3", "5": [5], "-1": [-1]}.items():
        cli.main(["extract", "photos", "--out", "x.npy", "--layers", text])
        assert called[-1]["layers"] == layers


def interrupted(**_):
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("name", "argv", "kept"),
    [
        ("run_demo", ["demo"], "Nothing was written."),
        ("compare_images", ["compare", "x", "--report", "out"], "is kept in out/cache. The same command goes on"),
        (
            "compare_images",
            ["compare", "x", "--report", "out", "--cache", "c"],
            "is kept in c. The same command goes on",
        ),
        ("extract_images", ["extract", "x", "--out", "f.npy"], "is kept in f.npy.part. The same command goes on"),
        ("extract_images", ["extract", "x", "--out", "f.npy", "--cache", "c"], "is kept in c. The same command"),
        ("predict_images", ["predict", "m", "x.jpg"], "Nothing is kept; with --cache DIR, the same command would"),
        ("predict_images", ["predict", "m", "x.jpg", "--cache", "c"], "is kept in c. The same command goes on"),
    ],
)
def test_interrupting_exits_130_and_says_what_is_kept(name, argv, kept, monkeypatch, capsys):
    monkeypatch.setattr(cli, name, interrupted)
    assert cli.main(argv) == 130
    printed, errors = capsys.readouterr()
    assert printed == ""
    assert errors.strip().startswith("skvfusion: interrupted.")
    assert kept in errors


def test_warnings_are_a_line_on_stderr_and_their_format_is_restored(monkeypatch, capsys):
    before = warnings.formatwarning

    def warn():  # as warnings.warn does, which pytest intercepts
        print(warnings.formatwarning("beware", UserWarning, "file.py", 1), end="", file=sys.stderr)

    monkeypatch.setattr(cli, "list_backbones", warn)
    assert cli.main(["backbones"]) == 0
    assert capsys.readouterr().err == "skvfusion: beware\n"
    assert warnings.formatwarning is before


@pytest.mark.parametrize("on_terminal", [True, False])
def test_progress_is_shown_on_a_terminal_only(on_terminal, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: on_terminal, raising=False)
    assert commands._make_extractor("nano", device="cpu").progress is on_terminal


def test_a_folder_in_which_nothing_may_be_written_is_one_line_on_stderr(tmp_path, capsys):
    (tmp_path / "taken").write_text("mine")
    for argv in (["compare", ".", "--report"], ["extract", ".", "--out"]):
        path = tmp_path / "taken" if argv[0] == "compare" else tmp_path / "taken.txt"
        assert cli.main([*argv, str(path)]) == 2
        errors = capsys.readouterr().err
        assert len(errors.splitlines()) == 1
        assert "taken" in errors


@pytest.mark.parametrize("command", ["compare", "extract"])
@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("--backbone", "no_such_vit", "is neither an alias nor a timm model"),
        ("--layers", "thirds", "is not a layer selection"),
        ("--layers", "99", "does not exist"),
        ("--image-size", "33", "is not a multiple of the patch size"),
        ("--weights", "gone.pt", "is no file"),
        ("--device", "quantum", "is not a device"),
    ],
)
def test_options_that_fit_no_backbone_are_one_line_on_stderr(command, option, value, message, tmp_path, capsys):
    for label in "ab":
        (tmp_path / "data" / label).mkdir(parents=True)
        for i in range(3):
            (tmp_path / "data" / label / f"{i}.png").touch()
    output = ["--report", str(tmp_path / "out")] if command == "compare" else ["--out", str(tmp_path / "x.npy")]
    assert cli.main([command, str(tmp_path / "data"), *output, "--backbone", "nano", option, value]) == 2
    errors = capsys.readouterr().err
    assert len(errors.splitlines()) == 1
    assert message in errors


def test_names_that_the_terminal_cannot_show_do_no_harm(tmp_path):
    name = tmp_path / "Bär.csv"
    done = subprocess.run(
        [sys.executable, "-m", "skvfusion", "info", str(name)],
        capture_output=True,
        timeout=120,
        check=False,
        env=os.environ | {"PYTHONIOENCODING": "ascii"},
    )
    assert done.returncode == 2
    assert rb"B\xe4r.csv" in done.stderr


def test_a_reader_that_has_enough_gets_no_traceback():
    process = subprocess.Popen(
        [sys.executable, "-c", "import sys; from skvfusion.cli import main; sys.exit(main(['backbones']))"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=os.environ | {"PYTHONUNBUFFERED": "1"},
    )
    process.stdout.close()
    errors = process.stderr.read()
    process.stderr.close()
    assert process.wait(120) == 1
    assert errors == b""


@pytest.mark.skipif(sys.platform == "win32", reason="pipes end otherwise there")
def test_output_that_nobody_reads_is_exit_code_1_without_noise():
    """Short output stays in the buffer until the end, where Python itself would complain."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    process = subprocess.Popen(
        [sys.executable, "-m", "skvfusion", "backbones"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment,
    )
    process.stdout.close()
    error = process.stderr.read()
    process.stderr.close()
    assert process.wait() == 1
    assert error == b""


@pytest.mark.parametrize("jobs", ["0", "-0", "many", "1.5", "9" * 30])
def test_numbers_of_jobs_that_are_none_are_refused_at_once(jobs, capsys):
    with pytest.raises(SystemExit, match="2"):
        cli.main(["compare", "photos", "--report", "out", f"--n-jobs={jobs}"])
    assert "is not a number of jobs" in capsys.readouterr().err
