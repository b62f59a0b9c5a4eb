import json
import shlex

import numpy as np
import pandas as pd
import pytest
from sklearn.dummy import DummyClassifier

from benchmarks.features import Features
from benchmarks.harness import Method, arguments, classifier, publish, run_cells, score, write_provenance
from benchmarks.options import public_command
from skvfusion import LayerProbeClassifier


def load(name, backbone, **_):
    """Made-up features; "absent" is not there."""
    if name == "absent":
        raise FileNotFoundError("absent: get it by `fetch absent`")
    rng = np.random.default_rng(0)
    y = np.repeat([0, 1, 2], 8)
    X = rng.normal(size=(24, 3, 2, 4)).astype(np.float32)
    X[:, -1, 0, :3] += 2 * np.eye(3)[y]
    return Features(name, backbone.name, X, y, X, y, fingerprint=f"{name} {backbone.model}"[-8:])


class Counted:
    """A method that notes its runs."""

    def __init__(self, fails=()):
        self.seeds, self.fails = [], fails

    def __call__(self, features, seed, device):
        self.seeds.append(seed)
        if seed in self.fails:
            raise ValueError("no\nluck")
        return {"accuracy": 0.5 + seed / 10}


def parse(tmp_path, *words):
    return arguments("doc").parse_args(["--out", str(tmp_path), "--sets", "made", "--backbone", "nano", *words])


def make_probe(random_state, device):
    return LayerProbeClassifier(random_state=random_state, device="cpu")


def make_dummy(random_state, device):
    return DummyClassifier(strategy="prior")


def test_a_classifier_is_scored_on_the_test_part(tmp_path):
    frame = run_cells(parse(tmp_path, "--seeds", "1"), "t", [classifier("probe", make_probe)], load=load)
    assert frame.columns[:5].tolist() == ["set", "backbone", "shots", "seed", "method"]
    assert frame.columns[-2:].tolist() == ["error", "commit"]
    assert frame.loc[0, "accuracy"] > 0.8
    assert frame.loc[0, "fit_seconds"] > 0
    assert frame.loc[0, "error"] == ""


def test_layers_and_tokens_are_those_asked_for(tmp_path):
    shapes = []

    class Noting(DummyClassifier):
        def fit(self, X, y):
            shapes.append(X.shape)
            return super().fit(X, y)

    def make(random_state, device):
        return Noting()

    methods = [classifier("a", make), classifier("b", make, tokens="cls+mean", layers="last:2")]
    run_cells(parse(tmp_path, "--seeds", "1"), "t", methods, load=load)
    assert shapes == [(24, 3, 4), (24, 2, 2, 4)]


def test_figures_of_probabilities():
    figures = score(np.array(["a", "b"]), np.array([[0.9, 0.1], [0.2, 0.8], [0.3, 0.7]]), np.array(["a", "b", "c"]))
    assert figures["accuracy"] == pytest.approx(2 / 3)
    assert figures["balanced_accuracy"] == pytest.approx(2 / 3)
    assert figures["nll"] == pytest.approx((-np.log(0.9) - np.log(0.8) + 36.04) / 3, abs=0.01)
    assert "worst_group_accuracy" not in figures


def test_figures_of_groups():
    probabilities = np.array([[0.9, 0.1], [0.9, 0.1], [0.9, 0.1], [0.9, 0.1]])
    figures = score(np.array([0, 1]), probabilities, np.array([0, 0, 0, 1]), np.array(["x", "x", "x", "y"]))
    assert figures["accuracy"] == 0.75
    assert figures["group_accuracy"] == 0.5
    assert figures["worst_group_accuracy"] == 0


def test_finished_cells_are_not_computed_again(tmp_path):
    run = Counted()
    first = run_cells(parse(tmp_path, "--seeds", "2"), "t", [Method("m", run)], load=load)
    again = run_cells(parse(tmp_path, "--seeds", "3"), "t", [Method("m", run)], load=load)
    assert run.seeds == [0, 1, 2]
    assert first["accuracy"].tolist() == [0.5, 0.6]
    assert again["accuracy"].tolist() == [0.5, 0.6, 0.7]
    few = run_cells(parse(tmp_path, "--seeds", "1", "--shots", "2"), "t", [Method("m", run)], load=load)
    assert run.seeds == [0, 1, 2, 0]
    assert few["shots"].tolist() == ["2"]


def test_restart_forgets_once_for_all_calls_of_a_table(tmp_path):
    run = Counted()
    run_cells(parse(tmp_path, "--seeds", "1"), "t", [Method("m", run)], load=load)
    args = parse(tmp_path, "--seeds", "1", "--restart")
    run_cells(args, "t", [Method("m", run)], load=load)
    run_cells(args, "t", [Method("n", run)], load=load)
    assert len(run.seeds) == 3
    assert pd.read_csv(tmp_path / "t.csv")["method"].tolist() == ["m", "n"]


def test_a_method_that_fails_is_noted_and_tried_again(tmp_path, capsys):
    run = Counted(fails=[0])
    frame = run_cells(parse(tmp_path, "--seeds", "2"), "t", [Method("m", run)], load=load)
    assert frame["error"].tolist() == ["ValueError: no luck", ""]
    assert np.isnan(frame.loc[0, "accuracy"])
    assert "no luck" in capsys.readouterr().err
    run.fails = ()
    frame = run_cells(parse(tmp_path, "--seeds", "2"), "t", [Method("m", run)], load=load)
    assert run.seeds == [0, 1, 0]
    assert frame["error"].tolist() == ["", ""]
    assert len(pd.read_csv(tmp_path / "t.csv")) == 2


def test_what_was_finished_before_an_interrupt_is_kept(tmp_path):
    def interrupted(features, seed, device):
        raise KeyboardInterrupt

    methods = [Method("m", Counted()), Method("n", interrupted)]
    with pytest.raises(KeyboardInterrupt):
        run_cells(parse(tmp_path, "--seeds", "1"), "t", methods, load=load)
    assert pd.read_csv(tmp_path / "t.csv")["method"].tolist() == ["m"]


def test_a_broken_last_line_is_computed_again(tmp_path):
    run = Counted()
    run_cells(parse(tmp_path, "--seeds", "2"), "t", [Method("m", run)], load=load)
    path = tmp_path / "t.csv"
    path.write_text("\n".join([*path.read_text().splitlines()[:-1], "made,nano,al"]))
    frame = run_cells(parse(tmp_path, "--seeds", "2"), "t", [Method("m", run)], load=load)
    assert run.seeds == [0, 1, 1]
    assert frame["accuracy"].tolist() == [0.5, 0.6]
    assert len(pd.read_csv(path)) == 2


def test_variants_are_cells_of_their_own(tmp_path):
    run = Counted()
    args = parse(tmp_path, "--seeds", "1")
    for variants in (None, {"tap": "norm2"}, {"tap": "block"}, {"tap": "norm2"}):
        frame = run_cells(args, "t", [Method("m", run)], load=load, variants=variants)
        assert len(frame) == 1
    assert len(run.seeds) == 3
    assert frame["tap"].tolist() == ["norm2"]
    with pytest.raises(ValueError, match="colour"):
        run_cells(args, "t", [Method("m", run)], load=load, variants={"colour": "red"})


def test_validation_cells_are_kept_apart_and_never_see_the_test_part(tmp_path):
    seen = []

    def run(features, seed, device):
        seen.append((len(features.y), len(features.y_test)))
        return {"accuracy": 0.5}

    for further in ((), ("--validation",), ("--validation",)):
        frame = run_cells(parse(tmp_path, "--seeds", "1", *further), "t", [Method("m", run)], load=load)
    assert seen == [(24, 24), (18, 6)]
    assert frame["part"].tolist() == ["validation"]


def test_absent_sets_are_skipped_with_how_to_get_them(tmp_path, capsys):
    args = arguments("doc").parse_args(["--out", str(tmp_path), "--sets", "absent", "made", "--backbone", "nano"])
    frame = run_cells(args, "t", [Method("m", Counted())], load=load)
    assert set(frame["set"]) == {"made"}
    assert "fetch absent" in capsys.readouterr().err
    args.sets = ["absent"]
    with pytest.raises(SystemExit, match="absent"):
        run_cells(args, "t", [Method("m", Counted())], load=load)


def test_another_commit_is_warned_of(tmp_path, capsys):
    args = parse(tmp_path, "--seeds", "1")
    frame = run_cells(args, "t", [Method("m", Counted())], load=load)
    path = tmp_path / "t.csv"
    path.write_text(path.read_text().replace(frame.loc[0, "commit"], "anothercommit"))
    run_cells(args, "t", [Method("m", Counted())], load=load)
    warned = capsys.readouterr().err
    assert "anothercommit" in warned
    assert "--restart" in warned


def test_another_backbone_of_the_same_name_is_refused(tmp_path):
    run_cells(parse(tmp_path, "--seeds", "1"), "t", [Method("m", Counted())], load=load)
    args = parse(tmp_path, "--seeds", "2", "--backbone", "nano")
    args.backbones = arguments("doc").parse_args(["--backbone", "nano=dinov2_s"]).backbones
    with pytest.raises(SystemExit, match="another backbone called 'nano'"):
        run_cells(args, "t", [Method("m", Counted())], load=load)


def test_processes_give_the_same_figures(tmp_path):
    frames = [
        run_cells(
            parse(tmp_path / jobs, "--seeds", "2", "--n-jobs", jobs), "t", [classifier("d", make_dummy)], load=load
        )
        for jobs in ("1", "2")
    ]
    assert frames[0]["accuracy"].tolist() == frames[1]["accuracy"].tolist()
    assert frames[1]["error"].tolist() == ["", ""]


def test_provenance_tells_versions_sizes_and_backbones_but_no_folder(tmp_path):
    args = parse(tmp_path, "--seeds", "2", "--data", str(tmp_path / "images"))
    run_cells(args, "t", [Method("m", Counted())], load=load)
    write_provenance(args, "t")
    text = (tmp_path / "t.json").read_text()
    facts = json.loads(text)
    assert str(tmp_path) not in text
    assert facts["sets"] == {"made": {"train": 24, "test": 24, "classes": 3}}
    assert set(facts["backbones"]) == {"nano"}
    assert facts["seeds"] == [0, 1]
    assert {"python", "torch", "timm", "scikit-learn", "skvfusion"} <= set(facts["versions"])
    assert facts["hardware"]["cores"] >= 1
    run_cells(args, "t", [Method("m", Counted())], load=load)
    write_provenance(args, "t")
    assert json.loads((tmp_path / "t.json").read_text())["sets"] == facts["sets"]


def test_what_is_published_says_its_command_without_folders(tmp_path, capsys):
    args = parse(tmp_path, "--seeds", "2")
    publish(args, "t", "# Title")
    text = (tmp_path / "t.md").read_text()
    assert text.startswith(
        "Made by `python -m benchmarks.test_harness --out OUT/ --sets made --backbone nano --seeds 2`."
    )
    assert text.endswith("# Title\n")
    assert text in capsys.readouterr().out


def test_folders_are_replaced_in_a_command():
    words = ["--data=/a/b", "--cache", "/c", "--sets", "folder:/a/b/cats", "digits", "--backbone", "m=nano:/w/x.pt"]
    assert public_command("t", words) == (
        "python -m benchmarks.t --data=DATA/ --cache CACHE/ --sets folder:DATA/cats digits "
        "--backbone m=nano:WEIGHTS/x.pt"
    )


def test_a_shell_reads_a_command_as_it_was():
    words = ["--methods", "last layer, VFusion's own MLP", "any-layer oracle (looks at the test labels)"]
    assert shlex.split(public_command("t", words)) == ["python", "-m", "benchmarks.t", *words]


def test_quick_is_two_bundled_sets_and_nano_in_a_temporary_folder():
    args = arguments("doc").parse_args(["--quick"])
    assert args.sets == ["digits", "patches"]
    assert [backbone.name for backbone in args.backbones] == ["nano"]
    assert (args.seeds, args.shots) == (1, 5)
    assert "results" not in str(args.out)


def test_seeds_must_be_positive(capsys):
    with pytest.raises(SystemExit):
        arguments("doc").parse_args(["--seeds", "0"])
    assert "at least 1" in capsys.readouterr().err
