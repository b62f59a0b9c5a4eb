import csv
import io
import pickle
import re
import shutil

import numpy as np
import pandas as pd
import pytest
from PIL import Image
from sklearn.pipeline import Pipeline
from skops import io as skops_io

import skvfusion
from skvfusion import LayerProbeClassifier, LayerVotingClassifier, cli, commands, image_model
from skvfusion.agreement import (
    UNUSUAL,
    first_unusual,
    fit_layer_probes,
    is_unusual,
    layer_disagreement,
    learn_agreement,
)
from skvfusion.extraction import cache_info, extractor, feed
from skvfusion.methods import METHODS

pytestmark = pytest.mark.usefixtures("one_thread")

N_LAYERS, DIM = 12, 128
QUICK = ["--methods", "last,average", "--layers", "last:3"]
COLOURS = {"blue": (40, 60, 200), "grün": (40, 200, 60), "red": (200, 60, 40)}


def write_images(folder, n_per_class=10, classes=tuple(COLOURS), seed=0):
    rng = np.random.default_rng(seed)
    for label in classes:
        (folder / label).mkdir(parents=True)
        for i in range(n_per_class):
            pixels = rng.normal(COLOURS[label], 60, (32, 32, 3)).clip(0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(folder / label / f"{i}.png")
    return folder


def run(*argv):
    return cli.main(list(map(str, argv)))


def compare(data, report, *argv):
    return run("compare", data, "--backbone", "nano", "--device", "cpu", "--report", report, *QUICK, *argv)


def n_computed(cache):
    return cache_info(cache).n_computed


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    return write_images(tmp_path_factory.mktemp("data") / "photos")


@pytest.fixture(scope="module")
def report(photos, tmp_path_factory):
    folder = tmp_path_factory.mktemp("report") / "new" / "out"
    assert compare(photos, folder, "--seed", "3") == 0
    return folder


@pytest.fixture(scope="module")
def model(report):
    return report / "model.skvfusion"


def test_compare_writes_report_tables_pictures_model_and_cache(report, photos):
    names = {path.name for path in report.iterdir()}
    assert {"report.html", "results.csv", "layers.csv", "depth.png", "model.skvfusion", "cache"} <= names
    results = pd.read_csv(report / "results.csv")
    assert len(results) == 2
    assert n_computed(report / "cache") == 30
    page = (report / "report.html").read_text(encoding="utf-8")
    assert "photos" in page
    assert "skvfusion compare" in page


def test_compare_says_what_it_found_and_wrote(photos, tmp_path, capsys):
    assert compare(photos, tmp_path / "out", "--cv", "2") == 0
    printed, errors = capsys.readouterr()
    assert errors == ""
    assert printed.startswith("30 images of 3 classes; 3 layers of 'nano'\n")
    assert "last layer" in printed
    assert "Best in cross-validation on the training images: " in printed
    assert printed.rstrip().endswith(str(tmp_path / "out" / "model.skvfusion"))


def test_the_same_seed_gives_the_same_report_without_computing_an_image_again(photos, report, tmp_path):
    again = tmp_path / "again"
    assert compare(photos, again, "--seed", "3", "--cache", report / "cache") == 0
    assert n_computed(report / "cache") == 30
    first, second = (pd.read_csv(folder / "results.csv") for folder in (report, again))
    times = [column for column in first if "second" in column]
    pd.testing.assert_frame_equal(first.drop(columns=times), second.drop(columns=times))
    assert not (again / "cache").exists()


def test_an_interrupted_compare_goes_on_where_it_was(photos, report, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(extractor, "_CPU_TOKENS", 4 * 17)
    with monkeypatch.context() as patch:
        original, batches = feed.Batcher.start, []

        def start(self, *args):
            if len(batches) == 3:
                raise KeyboardInterrupt
            batches.append(args)
            return original(self, *args)

        patch.setattr(feed.Batcher, "start", start)
        assert compare(photos, tmp_path / "out", "--seed", "3") == 130
    errors = capsys.readouterr().err
    cache = tmp_path / "out" / "cache"
    assert f"interrupted. What was computed of the images is kept in {cache}. The same command goes on" in errors
    assert "Traceback" not in errors
    assert n_computed(cache) == 12
    assert compare(photos, tmp_path / "out", "--seed", "3") == 0
    assert n_computed(cache) == 30
    resumed, whole = (pd.read_csv(folder / "results.csv") for folder in (tmp_path / "out", report))
    assert resumed["accuracy"].tolist() == whole["accuracy"].tolist()


def test_the_saved_model_is_the_best_by_validation_and_predicts_from_paths(model, report, photos):
    loaded = skvfusion.load(model)
    frame = pd.read_csv(report / "results.csv")
    best = frame.loc[frame["validation_accuracy"].idxmax()]
    assert loaded.facts_["method"] == best["label"]
    assert loaded.facts_["validation_accuracy"] == pytest.approx(best["validation_accuracy"])
    assert loaded.facts_["accuracy"] == pytest.approx(best["accuracy"])
    paths = [str(photos / label / "0.png") for label in COLOURS]
    assert set(loaded.predict(paths)) <= set(COLOURS)


def test_the_saved_model_names_no_folder_of_this_machine(model):
    loaded = skvfusion.load(model)
    assert loaded[0].cache is None
    assert loaded[0].device == "auto"
    assert str(model.parent).encode() not in model.read_bytes()


def test_predictions_are_those_of_the_model_in_python(model, photos, capsys):
    paths = [str(path) for path in sorted(photos.glob("*/*.png"))]
    assert run("predict", model, *paths, "--csv", "--device", "cpu") == 0
    printed, errors = capsys.readouterr()
    assert errors == ""
    table = pd.read_csv(io.StringIO(printed))
    assert table.columns.tolist() == list(commands.PREDICTION_COLUMNS)
    assert table["path"].tolist() == paths
    loaded = skvfusion.load(model)
    loaded[0].set_params(device="cpu")
    assert table["class"].tolist() == loaded.predict(paths).tolist()
    assert table["probability"].tolist() == loaded.predict_proba(paths).max(axis=1).tolist()
    X = loaded[0].transform(paths)
    depths, others = layer_disagreement(loaded.facts_["probes"], X, table["class"].to_numpy(dtype=str))
    assert table["depth"].tolist() == depths.tolist()
    assert table["other_layers"].tolist() == others.tolist()
    unusual = is_unusual(depths, others, loaded.facts_["agreement"])
    assert table["disagreement"].tolist() == ["yes" if value else "no" for value in unusual]


def test_predict_takes_folders_and_prints_a_table_for_people(model, photos, capsys):
    assert run("predict", model, photos / "red", photos / "blue" / "1.png") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["path", "class", "probability", "disagreement"]
    assert [line.split()[0] for line in lines[1:12]] == [str(photos / "red" / f"{i}.png") for i in range(10)] + [
        str(photos / "blue" / "1.png")
    ]


def test_predict_explains_the_warning(model, photos, monkeypatch, capsys):
    monkeypatch.setattr("skvfusion.image_model.is_unusual", lambda depths, others, rule: np.ones(len(depths), bool))
    assert run("predict", model, photos / "red" / "1.png") == 0
    printed = capsys.readouterr().out
    assert re.search("Disagreement on 1 of 1 images: warned of where the layers' own probes give the answer", printed)
    assert "of the training images while they were left out of training" in printed


def test_predict_resumes_from_its_cache(model, photos, tmp_path):
    assert run("predict", model, photos, "--cache", tmp_path / "cache") == 0
    assert run("predict", model, photos, "--cache", tmp_path / "cache") == 0
    assert n_computed(tmp_path / "cache") == 30


def test_predict_stops_at_an_unreadable_image_or_lists_it(model, photos, tmp_path, capsys):
    (tmp_path / "bad.png").write_bytes(b"nothing")
    good = photos / "red" / "1.png"
    assert run("predict", model, good, tmp_path / "bad.png", "--csv") == 2
    printed, errors = capsys.readouterr()
    assert printed == ""
    assert "bad.png" in errors
    assert "--on-error skip" in errors
    assert run("predict", model, good, tmp_path / "bad.png", tmp_path / "gone.png", "--csv", "--on-error", "skip") == 0
    printed, errors = capsys.readouterr()
    assert [row["path"] for row in csv.DictReader(io.StringIO(printed))] == [str(good)]
    assert "Left out 2 of 3 images, which cannot be used:" in errors
    assert f"{tmp_path / 'bad.png'}: it is not an image file that Pillow can read." in errors
    assert f"{tmp_path / 'gone.png'}: there is no such file." in errors


def test_nothing_readable_is_an_error_even_if_errors_are_skipped(model, tmp_path, capsys):
    assert run("predict", model, tmp_path / "gone.png", "--on-error", "skip") == 2
    assert "None of the 1 images can be used:" in capsys.readouterr().err


def test_predict_warns_if_the_backbone_is_another_one(model, photos, monkeypatch):
    monkeypatch.setattr(image_model, "fingerprint", lambda extractor: "other")
    with pytest.warns(UserWarning, match="The backbone 'nano' is not the one that .* was trained with"):
        image_model.load_image_model(model, device="cpu")


def test_a_pipeline_saved_in_python_predicts_without_a_word_on_disagreement(photos, tmp_path, capsys):
    paths = sorted(map(str, photos.glob("*/*.png")))
    labels = [path.split("/")[-2] for path in paths]
    steps = [("layers", skvfusion.LayerwiseFeatureExtractor("nano")), ("clf", LayerProbeClassifier())]
    skvfusion.save(Pipeline(steps).fit(paths, labels), tmp_path / "own.skops")
    assert run("predict", tmp_path / "own.skops", paths[0], "--csv") == 0
    (row,) = csv.DictReader(io.StringIO(capsys.readouterr().out))
    assert row["class"] in COLOURS
    assert (row["depth"], row["disagreement"]) == ("", "")
    assert run("info", tmp_path / "own.skops") == 0
    printed = capsys.readouterr().out
    assert "Pipeline of LayerwiseFeatureExtractor, LayerProbeClassifier" in printed
    assert "Python, so nothing is noted of its training" in printed


@pytest.mark.parametrize("command", ["predict", "info"])
@pytest.mark.parametrize("damage", ["missing", "empty", "truncated", "other library", "pickle"])
def test_a_file_that_is_no_model_is_refused_with_a_reason(model, tmp_path, command, damage, capsys):
    path = tmp_path / "file.skvfusion"
    content = {
        "empty": b"",
        "truncated": model.read_bytes()[:-200],
        "other library": skops_io.dumps({"a": 1}),
        "pickle": pickle.dumps({"a": 1}),
    }
    reasons = {
        "missing": "There is no file",
        "empty": "is empty",
        "truncated": "is damaged or incomplete",
        "other library": "is a skops file of something else",
        "pickle": "is a pickle, which could execute anything",
    }
    if damage != "missing":
        path.write_bytes(content[damage])
    assert run(command, path, *([tmp_path / "x.png"] if command == "predict" else [])) == 2
    errors = capsys.readouterr().err
    assert len(errors.splitlines()) == 1
    assert str(path) in errors
    assert reasons[damage] in errors


def test_a_classifier_of_layer_stacks_is_not_taken_for_one_of_images(make_stack, tmp_path, capsys):
    X, y = make_stack()
    skvfusion.save(LayerProbeClassifier().fit(X, y), tmp_path / "stacks.skops")
    assert run("predict", tmp_path / "stacks.skops", tmp_path / "x.png") == 2
    assert "holds a LayerProbeClassifier that takes something else than images" in capsys.readouterr().err


def test_info_says_what_is_known(model, capsys):
    assert run("info", model) == 0
    printed = capsys.readouterr().out
    assert "classes      3: blue, grün, red" in printed
    assert "backbone     nano, 32 pixels" in printed
    assert "layers       3: block9, block10, block11; tokens cls" in printed
    assert re.search(r"trained +\d{4}-\d\d-\d\d, on 2[0-9] images of photos", printed)
    assert re.search(r"validation +accuracy \d+\.\d % in cross-validation", printed)
    assert "that were held out" in printed
    assert f"skvfusion {skvfusion.__version__}" in printed
    assert "disagreement warned of where" in printed


def test_extract_writes_features_and_a_table_that_is_data_again(photos, tmp_path, capsys):
    out = tmp_path / "new" / "features.npy"
    assert run("extract", photos, "--backbone", "nano", "--device", "cpu", "--out", out, "--dtype", "float16") == 0
    X, table = np.load(out), pd.read_csv(out.with_suffix(".csv"))
    assert X.shape == (30, N_LAYERS, DIM)
    assert X.dtype == np.float16
    assert table.columns.tolist() == ["path", "label", "row"]
    assert table["row"].tolist() == list(range(30))
    expected = skvfusion.LayerwiseFeatureExtractor("nano", device="cpu").transform(table["path"].tolist())
    np.testing.assert_array_equal(X, expected.astype(np.float16))
    assert f"Wrote {out}" in capsys.readouterr().out
    second = tmp_path / "second.npy"
    arguments = ["--backbone", "nano", "--tokens", "cls+mean", "--tap", "norm2", "--layers=0,-1"]
    assert run("extract", out.with_suffix(".csv"), *arguments, "--out", second) == 0
    assert np.load(second).shape == (30, 2, 2, DIM)


def test_extract_leaves_unreadable_images_out_of_the_table(tmp_path, capsys):
    folder = write_images(tmp_path / "photos", 2)
    (folder / "blue" / "0.png").write_bytes(b"nothing")
    out = tmp_path / "features.npy"
    arguments = ["extract", folder, "--backbone", "nano", "--out", out]
    assert run(*arguments) == 2
    assert "0.png" in capsys.readouterr().err
    assert run(*arguments, "--on-error", "skip") == 0
    assert "Left out 1 of 6 images" in capsys.readouterr().err
    assert pd.read_csv(tmp_path / "features.csv")["row"].tolist() == [1, 2, 3, 4, 5]
    assert np.isnan(np.load(out)).all(axis=(1, 2)).tolist() == [True] + [False] * 5


def test_extract_keeps_groups_and_splits(tmp_path):
    write_images(tmp_path / "photos", 2)
    rows = [f"photos/{label}/{i}.png;{label};g{i};{'train' if i else 'test'}" for label in COLOURS for i in range(2)]
    (tmp_path / "data.csv").write_text("\n".join(["path;label;group;split", *rows]), encoding="utf-8-sig")
    assert run("extract", tmp_path / "data.csv", "--backbone", "nano", "--out", tmp_path / "x.npy") == 0
    table = pd.read_csv(tmp_path / "x.csv")
    assert table.columns.tolist() == ["path", "label", "row", "group", "split"]
    assert table["group"].tolist() == ["g0", "g1"] * 3
    assert table["split"].tolist() == ["test", "train"] * 3


def test_backbones_lists_the_table(capsys):
    assert run("backbones") == 0
    printed = capsys.readouterr().out
    assert "vit_small_patch14_dinov2.lvd142m" in printed
    assert "nano" in printed


def test_three_images_a_class_are_enough_and_two_are_not(tmp_path, capsys):
    assert compare(write_images(tmp_path / "three", 3), tmp_path / "out") == 0
    assert compare(write_images(tmp_path / "two", 2), tmp_path / "out2") == 2
    assert "There must be at least 3 images of each class, and there are fewer of 3 classes" in capsys.readouterr().err


def test_given_splits_and_groups_are_kept(tmp_path, capsys):
    write_images(tmp_path / "photos" / "train", 6)
    write_images(tmp_path / "photos" / "test", 4, seed=1)
    files = sorted((tmp_path / "photos").rglob("*.png"))
    groups = [f"{path.relative_to(tmp_path)},{path.parts[-3]}{int(path.stem) // 2}" for path in files]
    (tmp_path / "groups.csv").write_text("\n".join(["path,group", *groups]), encoding="utf-8")
    assert compare(tmp_path / "photos", tmp_path / "out", "--groups", tmp_path / "groups.csv") == 0
    printed = capsys.readouterr().out
    assert "30 images of 3 classes in 5 groups, 18 to train on and 12 to test on" in printed
    assert skvfusion.load(tmp_path / "out" / "model.skvfusion").facts_["n_train"] == 18
    assert compare(tmp_path / "photos", tmp_path / "out", "--cv", "3") == 2
    assert "--cv is for data without a test split" in capsys.readouterr().err


def test_unreadable_images_are_left_out_of_the_comparison(tmp_path, capsys):
    folder = write_images(tmp_path / "photos", 5)
    (folder / "red" / "3.png").write_bytes(b"nothing")
    assert compare(folder, tmp_path / "out") == 2
    assert "3.png" in capsys.readouterr().err
    assert compare(folder, tmp_path / "out", "--on-error", "skip") == 0
    assert "Left out 1 of 15 images" in capsys.readouterr().err
    facts = skvfusion.load(tmp_path / "out" / "model.skvfusion").facts_
    assert facts["n_train"] + facts["n_test"] == 14


def test_too_few_images_after_leaving_some_out_is_said(tmp_path, capsys):
    folder = write_images(tmp_path / "photos", 3)
    (folder / "red" / "2.png").write_bytes(b"nothing")
    assert compare(folder, tmp_path / "out", "--on-error", "skip") == 2
    assert "fewer of 1 class: 'red' (2)" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("prepare", "message"),
    [
        (lambda folder: shutil.rmtree(folder / "data"), "There is no folder or file"),
        (lambda folder: shutil.rmtree(folder / "data" / "red"), "images of one class only"),
        (lambda folder: shutil.move(folder / "data" / "red" / "0.png", folder / "data"), "fewer of 1 class"),
    ],
    ids=["nowhere", "one class", "too few"],
)
def test_data_that_cannot_be_learned_from_is_one_line_before_any_image_is_computed(tmp_path, prepare, message, capsys):
    write_images(tmp_path / "data", 3, ["red", "blue"])
    prepare(tmp_path)
    assert compare(tmp_path / "data", tmp_path / "out") == 2
    errors = capsys.readouterr().err
    assert message in errors.splitlines()[-1]
    assert "Traceback" not in errors
    assert not (tmp_path / "out" / "cache").exists()


def test_depth_counts_from_where_on_layers_agree_with_the_answer(make_stack):
    X, y = make_stack(signal_layers=(3, 4, 5), strength=6.0)
    probes = fit_layer_probes(X, y, device="cpu")
    predictions = probes.probes_.logits(X[:, :, None]).argmax(axis=2)
    depths, others = layer_disagreement(probes, X, predictions[:, -1])
    for row in range(len(X)):
        agrees = predictions[row] == predictions[row, -1]
        assert agrees[depths[row] :].all()
        assert depths[row] == 0 or not agrees[depths[row] - 1]
        assert others[row] == (~agrees).sum()
    never, _ = layer_disagreement(probes, X, np.full(len(X), 99))
    assert (never == X.shape[1]).all()


@pytest.mark.parametrize(
    ("depths", "others", "expected"),
    [
        ([0] * 18 + [3, 4], [0] * 18 + [2, 3], (3, 2)),
        ([0] * 17 + [3, 3, 3], [0] * 17 + [2, 2, 2], (3, 2)),
        ([2] * 17 + [3, 3, 4], [2] * 17 + [1, 3, 1], (3, 3)),
        ([0] * 20, [0] * 20, (1, 1)),
    ],
    ids=["a tenth", "a tie above a tenth", "ties broken by the number of layers", "all agree"],
)
def test_unusual_is_what_at_most_a_tenth_reach(depths, others, expected):
    assert first_unusual(np.array(depths), np.array(others)) == expected


def test_the_rule_is_learned_from_images_left_out_of_training(make_stack):
    X, y = make_stack(n_per_class=30, signal_layers=(2, 3, 4, 5))
    rule = learn_agreement(X, y, LayerVotingClassifier(device="cpu"), device="cpu", seed=1)
    assert 0 < rule["share"] <= UNUSUAL
    # On what they were fitted on, layers agree far more.
    probes = fit_layer_probes(X, y, device="cpu")
    assert is_unusual(*layer_disagreement(probes, X, y), rule).mean() < rule["share"]
    assert rule == learn_agreement(X, y, LayerVotingClassifier(device="cpu"), device="cpu", seed=1)


def test_there_is_no_rule_where_nothing_can_be_left_out(make_stack):
    X, y = make_stack(n_per_class=1)
    assert learn_agreement(X, y, LayerProbeClassifier()) is None
    X, y = make_stack(n_per_class=4)
    assert learn_agreement(X, y, LayerProbeClassifier(), groups=np.zeros(len(y))) is None


def test_there_is_no_rule_where_folds_leave_too_few_for_the_method(make_stack):
    X, y = make_stack(n_classes=2, n_per_class=2)
    method = METHODS["super_learner"].make(device="cpu", n_jobs=None, random_state=0)
    assert learn_agreement(X, y, method, device="cpu") is None


def test_the_rule_leaves_out_as_few_as_the_validation_does(make_stack, monkeypatch):
    X, y = make_stack(n_classes=2, n_per_class=12)
    X, y, sizes = X[:14], np.sort(y)[:14], []
    fit = LayerProbeClassifier.fit
    monkeypatch.setattr(LayerProbeClassifier, "fit", lambda self, X, y: sizes.append(len(y)) or fit(self, X, y))
    assert learn_agreement(X, y, LayerProbeClassifier(device="cpu"), device="cpu") is not None
    assert sorted(sizes) == [11, 11, 11, 11, 12]


def test_a_method_that_cannot_be_fitted_to_fewer_images_is_written_without_a_rule(tmp_path, capsys):
    photos = write_images(tmp_path / "photos", 3, ["red", "blue"])
    assert compare(photos, tmp_path / "out", "--methods", "super_learner") == 0
    assert (tmp_path / "out" / "report.html").exists()
    assert run("info", tmp_path / "out" / "model.skvfusion") == 0
    assert "disagreement unknown: there were too few training images" in capsys.readouterr().out


def test_outputs_never_replace_what_is_read(photos, tmp_path, capsys):
    rows = [f"{path},{path.parent.name}" for path in sorted(photos.glob("*/*.png"))]
    text = "\n".join(["path,label", *rows])
    for name in ("photos.csv", "classes.csv"):
        (tmp_path / name).write_text(text, encoding="utf-8")
    table = tmp_path / "photos.csv"
    assert run("extract", table, "--backbone", "nano", "--out", tmp_path / "photos.npy") == 2
    assert f"{table} would be written, but is what DATA reads. Choose another --out." in capsys.readouterr().err
    assert compare(tmp_path / "classes.csv", tmp_path) == 2
    assert "classes.csv would be written, but is what DATA reads. Choose another --report" in capsys.readouterr().err
    assert compare(photos, tmp_path, "--groups", tmp_path / "classes.csv") == 2
    assert "is what --groups reads" in capsys.readouterr().err
    assert {path.name: path.read_text(encoding="utf-8") for path in tmp_path.iterdir()} == {
        "photos.csv": text,
        "classes.csv": text,
    }


def test_nothing_is_written_into_the_data(tmp_path, monkeypatch, capsys):
    data = write_images(tmp_path / "photos", 1)
    monkeypatch.chdir(data)
    for folder in ("out", ".", data / "red" / "out"):
        assert compare(".", folder) == 2
        errors = capsys.readouterr().err
        assert f"The folder {folder} of --report is inside DATA, {data}, and what is in it would be taken" in errors
        assert "Choose a folder outside of it by --report." in errors
    assert compare(data, tmp_path / "out", "--cache", data / "cache") == 2
    assert "of --cache is inside DATA" in capsys.readouterr().err
    assert run("extract", data, "--backbone", "nano", "--out", tmp_path / "x.npy", "--cache", data / "cache") == 2
    assert "of --cache is inside DATA" in capsys.readouterr().err
    assert sorted(path.name for path in data.iterdir()) == sorted(COLOURS)
    commands._check_outside(data, {"--cache": data / ".cache"})


def test_wrong_data_leaves_no_folder(tmp_path):
    assert compare(write_images(tmp_path / "photos", 1), tmp_path / "new" / "out") == 2
    assert run("extract", tmp_path / "gone", "--out", tmp_path / "new" / "x.npy") == 2
    assert [path.name for path in tmp_path.iterdir()] == ["photos"]


def test_where_nothing_can_be_written_is_said_first(photos, tmp_path, monkeypatch, capsys):
    for name in ("report.html", "model.skvfusion", "x.npy"):
        (tmp_path / name).mkdir()
        command = ["extract", photos, "--out", tmp_path / name] if name == "x.npy" else ["compare", photos, "--report"]
        assert run(*command, *([] if name == "x.npy" else [tmp_path])) == 2
        assert f"{tmp_path / name} is a folder, and a file of that name would be written" in capsys.readouterr().err
        (tmp_path / name).rmdir()
    (tmp_path / "file").touch()
    assert run("compare", photos, "--report", tmp_path / "file" / "out") == 2
    assert f"{tmp_path / 'file'} is a file; give a folder." in capsys.readouterr().err
    monkeypatch.setattr(commands.os, "access", lambda *args: False)
    assert run("compare", photos, "--report", tmp_path / "new" / "out") == 2
    assert f"Nothing can be written to the folder {tmp_path}; choose another --report." in capsys.readouterr().err


def test_images_that_are_also_to_test_on_are_counted(tmp_path, capsys):
    write_images(tmp_path / "photos" / "train", 4)
    write_images(tmp_path / "photos" / "test", 2, seed=1)
    copy = tmp_path / "photos" / "test" / "red" / "copy.png"
    shutil.copy(tmp_path / "photos" / "train" / "red" / "2.png", copy)
    assert compare(tmp_path / "photos", tmp_path / "out", "--methods", "last") == 0
    errors = capsys.readouterr().err
    assert "1 of 7 images to test on also to train on, byte by byte" in errors
    assert f"{copy} is the same image as {tmp_path / 'photos' / 'train' / 'red' / '2.png'}." in errors


def test_homes_that_are_unknown_are_names(photos, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert compare("~nosuch/x", "~nosuch/out", "--cache", "~nosuch/c", "--weights", "~nosuch/w") == 2
    assert f"There is no folder or file {tmp_path / '~nosuch' / 'x'}." in capsys.readouterr().err
    assert run("extract", photos, "--backbone", "nano", "--out", "~nosuch/x.npy", "--cache", "~nosuch/c") == 0
    assert (tmp_path / "~nosuch" / "x.csv").exists()
    monkeypatch.setenv("HOME", str(tmp_path))
    assert image_model.make_extractor("local-dir:~/x", weights="~/w").weights == str(tmp_path / "w")
    assert image_model.make_extractor("local-dir:~/x").backbone == f"local-dir:{tmp_path / 'x'}"


def _set_facts(**changes):
    return lambda model: model.facts_.update(changes)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_set_facts(classes=3), "'classes' in its facts_ is a int, and must be list"),
        (_set_facts(layers=[1]), "layers in its facts_ must hold nothing but str"),
        (_set_facts(versions=[]), "'versions' in its facts_ is a list"),
        (_set_facts(accuracy="x"), "'accuracy' in its facts_ is a str, and must be float or int"),
        (_set_facts(probes=[1]), "'probes' in its facts_ is a list"),
        (_set_facts(agreement=[1]), "'agreement' in its facts_ is a list"),
        (_set_facts(agreement={"depth": "x"}), "'depth' in its agreement is a str"),
        (_set_facts(agreement={"depth": 1}), "its agreement lacks 'others'"),
        (lambda model: model.facts_.pop("date"), "its facts_ lacks 'date'"),
        (lambda model: setattr(model, "steps", []), ""),
        (lambda model: setattr(model, "steps", [("clf", 3)]), ""),
    ],
)
@pytest.mark.parametrize("command", ["predict", "info"])
def test_a_file_that_holds_other_types_is_refused(model, photos, tmp_path, change, message, command, capsys):
    loaded = skvfusion.load(model)
    change(loaded)
    path = tmp_path / "odd.skvfusion"
    skvfusion.save(loaded, path)
    assert run(command, path, *([photos / "red" / "1.png"] if command == "predict" else [])) == 2
    errors = capsys.readouterr().err
    assert len(errors.splitlines()) == 1
    assert str(path) in errors
    assert message in errors


@pytest.mark.parametrize("change", [{"backbone": 5}, {"tokens": 1}, {"weights": 3}])
def test_a_file_whose_extractor_is_odd_is_refused(model, photos, tmp_path, change, capsys):
    loaded = skvfusion.load(model)
    loaded[0].set_params(**change)
    skvfusion.save(loaded, tmp_path / "odd.skvfusion")
    assert run("predict", tmp_path / "odd.skvfusion", photos / "red" / "1.png") == 2
    assert f"{tmp_path / 'odd.skvfusion'} is not a model of skvfusion, or is damaged: " in capsys.readouterr().err


def test_probes_without_what_they_learned_are_damage(model, photos, tmp_path, capsys):
    loaded = skvfusion.load(model)
    del loaded.facts_["probes"].probes_
    skvfusion.save(loaded, tmp_path / "odd.skvfusion")
    assert run("predict", tmp_path / "odd.skvfusion", photos / "red" / "1.png") == 2
    assert "is not a model of skvfusion, or is damaged: " in capsys.readouterr().err
