import base64
import copy
import io
import re
from html.parser import HTMLParser

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from skvfusion import report
from skvfusion.compare import run_comparison

pytestmark = pytest.mark.usefixtures("one_thread")

PICTURES = ["depth.png", "first_correct_layer.png", "layer_agreement.png"]
METHODS = ["last", "best", "average", "super_learner"]
NASTY = "<script>alert('x')</script> & \"quoted\""
VOID = {"meta", "img", "br", "link", "input", "hr"}


class Page(HTMLParser):
    """What the tests ask of a page: its elements, its text, and whether its tags match."""

    def __init__(self, html):
        super().__init__()
        self.elements, self.text, self.open, self.mismatches = [], [], [], []
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        if not self.open or self.open.pop() != tag:
            self.mismatches.append(tag)

    def handle_data(self, data):
        if "style" not in self.open:
            self.text.append(data)

    def words(self):
        return " ".join("".join(self.text).replace("\u00a0", " ").split())

    def all(self, tag):
        return [attrs for name, attrs in self.elements if name == tag]


def plain(text):
    return text.replace("\u00a0", " ").replace("\u2212", "-")


def read(path):
    return Page(path.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def found(one_thread):
    """A comparison of a stack whose middle layers know more than its last."""
    rng = np.random.default_rng(0)
    y = rng.permutation(np.repeat(["bird", "cat", "dog"], 40))
    X = rng.normal(size=(120, 4, 6)).astype(np.float32)
    codes = np.unique(y, return_inverse=True)[1]
    for layer, strength in ((1, 2.0), (2, 2.0), (3, 1.0)):
        X[:, layer, :3] += strength * np.eye(3, dtype=np.float32)[codes]
    return run_comparison(X, y, methods=METHODS, test_size=0.5, n_bootstrap=200, device="cpu")


@pytest.fixture
def comparison(found):
    """A copy to change."""
    attrs = dict(found.frame.attrs)
    changed = copy.deepcopy(found)
    changed.frame.attrs = attrs
    return changed


@pytest.fixture(scope="module")
def images(found, tmp_path_factory):
    folder = tmp_path_factory.mktemp("images")
    paths = [folder / label / f"{row}.png" for row, label in enumerate(found.y)]
    for row, path in enumerate(paths):
        path.parent.mkdir(exist_ok=True)
        Image.new("RGB", (200, 100), (row, 100, 200)).save(path)
    return paths


@pytest.fixture(scope="module")
def written(found, images, tmp_path_factory):
    """The folder of a whole report."""
    folder = tmp_path_factory.mktemp("report")
    facts = {"n_train": 60, "data": "photos", "versions": {"skvfusion": "1.2", "torch": "2.5"}, "command": "skvfusion"}
    report.write_report(folder, found, images=images, title="My pets", facts=facts, model="pets.skvfusion")
    return folder


@pytest.fixture(scope="module")
def page(written):
    return read(written / "report.html")


def with_gain(comparison, low, high, key="average"):
    """Make ``key`` the choice, with this interval."""
    comparison.best = key
    comparison.frame.loc[key, ["gain", "gain_low", "gain_high"]] = (low + high) / 2, low, high
    comparison.frame.attrs["best_accuracy"] = comparison.frame.loc[key, "accuracy"]
    return comparison


@pytest.mark.parametrize(
    ("low", "high", "kind", "words"),
    [
        (0.011, 0.053, "gain", ["Fusing pays here.", "a gain of 3.2 points", "95 % interval +1.1 to +5.3"]),
        (-0.019, 0.031, "unclear", ["No clear gain.", "a loss of up to 1.9 to a gain of up to 3.1 points"]),
        (-0.02, 0.0, "unclear", ["No clear gain.", "so a loss of up to 2.0 points is still possible"]),
        (0.0, 0.02, "unclear", ["No clear gain.", "so a gain of up to 2.0 points is still possible"]),
        (-0.053, -0.011, "loss", ["Use the last layer.", "a loss of 3.2 points", "-5.3 to -1.1"]),
        (np.nan, np.nan, "unknown", ["Not known.", "may be chance"]),
    ],
)
def test_the_verdict_follows_from_the_interval(comparison, low, high, kind, words):
    found = report.verdict(with_gain(comparison, low, high))
    assert found["kind"] == kind
    for part in words:
        assert part in plain(f"{found['answer']} {found['sentence']}")


def test_the_verdict_names_method_both_accuracies_and_the_number_of_images(found):
    row, last = found.frame.loc["average"], found.frame.loc["last"]
    changed = copy.deepcopy(found)
    changed.best = "average"
    sentence = plain(report.verdict(changed)["sentence"])
    assert "Fusing (average of the layers)" in sentence
    assert f"{100 * row['accuracy']:.1f} % of {len(found.y)} images" in sentence
    assert f"the last layer alone {100 * last['accuracy']:.1f} %" in sentence


def test_an_interval_that_barely_excludes_0_does_not_read_as_0(comparison):
    sentence = plain(report.verdict(with_gain(comparison, 0.0004, 0.02))["sentence"])
    assert "+0.04 to +2.0" in sentence


def test_a_choice_that_does_not_fuse_is_said_and_the_best_that_fuses_on_validation_is_judged(comparison):
    comparison.best = "best"
    comparison.frame.loc[["average", "super_learner"], "validation_accuracy"] = 0.5, 0.6
    comparison.frame.loc[["average", "super_learner"], "accuracy"] = 0.9, 0.7
    found = report.verdict(comparison)
    assert "Fusing (Super Learner)" in found["sentence"]
    assert "preferred “best single layer”" in " ".join(found["notes"])


def test_without_a_method_that_fuses_there_is_no_answer(comparison, tmp_path):
    comparison.frame = comparison.frame.loc[["last", "best"]]
    comparison.best = "best"
    comparison.probabilities = {key: comparison.probabilities[key] for key in ("last", "best")}
    assert report.verdict(comparison)["kind"] == "unknown"
    text = read(report.write_report(tmp_path, comparison)).words()
    assert "None of the methods that were compared fuses layers" in text
    assert "Images that inner layers rescue" in text
    assert "Images that fusing breaks" not in text


def test_the_choice_on_out_of_fold_predictions_is_told_with_its_honest_accuracy(comparison):
    comparison.frame.attrs["best_accuracy"] = 0.123
    assert any("12.3 %" in plain(note) for note in report.verdict(comparison)["notes"])


def test_groups_are_mentioned_with_the_interval(comparison):
    assert not any("group" in note for note in report.verdict(comparison)["notes"])
    comparison.groups = np.arange(len(comparison.y))
    assert any("group" in note for note in report.verdict(comparison)["notes"])


def test_the_files_beside_the_page(written, found):
    tables = ["classes.csv", "layers.csv", "results.csv"]
    assert sorted(path.name for path in written.iterdir()) == sorted([*PICTURES, *tables, "report.html"])
    for name in PICTURES:
        assert (written / name).read_bytes().startswith(b"\x89PNG")
    results = pd.read_csv(written / "results.csv", index_col="method")
    np.testing.assert_allclose(results["accuracy"], found.frame["accuracy"])
    layers = pd.read_csv(written / "layers.csv", index_col="layer")
    np.testing.assert_allclose(layers["accuracy"], (found.layer_predictions == found.y).mean(axis=1))
    assert layers["first_correct"].sum() == (found.layer_predictions == found.y).any(axis=0).sum()
    classes = pd.read_csv(written / "classes.csv", index_col="class")
    assert classes["n"].to_dict() == dict(zip(*np.unique(found.y, return_counts=True), strict=True))
    assert classes["difference"].is_monotonic_decreasing
    weighted = np.average(classes["difference"], weights=classes["n"])
    assert weighted == pytest.approx(found.frame.loc[classes.columns[2], "gain"])


def test_the_page_needs_nothing_but_itself(written, page):
    assert not {"script", "link", "iframe", "object"} & {tag for tag, _ in page.elements}
    assert all(image["src"].startswith("data:image/") for image in page.all("img"))
    html = re.sub(r"base64,[\w+/=]+", "", (written / "report.html").read_text(encoding="utf-8"))
    assert "http" not in html.replace("http-equiv", "")
    assert "url(" not in html
    assert not any(name.startswith("on") for _, attrs in page.elements for name in attrs)


def test_the_page_is_well_formed_with_ordered_headings_scopes_alts_and_a_language(page):
    assert page.mismatches == []
    assert page.open == []
    assert page.all("html") == [{"lang": "en"}]
    headings = [int(tag[1]) for tag, _ in page.elements if re.fullmatch("h[1-6]", tag)]
    assert headings[0] == 1
    assert headings.count(1) == 1
    assert max(np.diff(headings)) <= 1
    assert all(header.get("scope") in ("row", "col") for header in page.all("th"))
    assert all(image.get("alt") and image["width"].isdigit() and image["height"].isdigit() for image in page.all("img"))
    ids = [attrs["id"] for _, attrs in page.elements if "id" in attrs]
    assert len(ids) == len(set(ids))


def test_the_embedded_pictures_are_the_files(written, page):
    embedded = [image["src"] for image in page.all("img") if image["src"].startswith("data:image/png")]
    decoded = [base64.b64decode(uri.partition(",")[2]) for uri in embedded]
    assert decoded == [(written / name).read_bytes() for name in PICTURES]


def test_thumbnails_are_small_and_show_the_right_images(page, found, images):
    thumbnails = [image["src"] for image in page.all("img") if image["src"].startswith("data:image/jpeg")]
    assert thumbnails
    first = Image.open(io.BytesIO(base64.b64decode(thumbnails[0].partition(",")[2])))
    assert first.size == (96, 48)
    row = int(re.search(r"file: (?:bird|cat|dog)/(\d+)\.png", page.words())[1])
    assert abs(first.getpixel((48, 24))[0] - row) < 12
    assert found.layer_predictions[-1, row] != found.y[row]
    assert (found.layer_predictions[:-1, row] == found.y[row]).any()


def test_the_counts_of_rescued_and_broken_images_are_those_of_the_predictions(page, found):
    key = report.fused_method(found)
    right = found.classes[found.probabilities[key].argmax(axis=1)] == found.y
    layers = found.layer_predictions == found.y
    wrong, inner = ~layers[-1], layers[:-1].any(axis=0)
    words = page.words()
    assert f"wrong on {wrong.sum()} of 60 images; on {(wrong & inner).sum()} of these" in words
    assert f"Fusing gets {(wrong & inner & right).sum()} of the {(wrong & inner).sum()} right" in words
    broken = (layers[-1] & ~right).sum()
    assert (f"Fusing is wrong on {broken} of the {layers[-1].sum()}" in words) == bool(broken)


def test_a_card_says_which_layer_was_right_first(comparison, tmp_path):
    y = comparison.y
    wrong = np.where(y == "cat", "dog", "cat")
    comparison.layer_predictions = np.array([wrong, y, y, wrong])
    comparison.layer_predictions[1, 0] = wrong[0]
    changes = report._changes(comparison, "average", None)
    assert changes["n_wrong"] == changes["n_rescuable"] == len(y)
    assert len(changes["rescued"]) == report.MAX_THUMBNAILS
    assert {card["first"] for card in changes["rescued"]} <= {1, 2}
    by_file = {card["file"]: card["first"] for card in changes["rescued"]}
    assert by_file.get("image 0", 2) == 2
    assert all(card["last"] != card["true"] for card in changes["rescued"])


def test_the_best_values_are_marked_and_none_of_a_failed_method(comparison, tmp_path):
    comparison.frame["error"] = comparison.frame["error"].astype(object)
    comparison.frame.loc["best", "error"] = f"ValueError: {NASTY}"
    comparison.frame.loc["best", ["accuracy", "nll", "auc"]] = np.nan
    comparison.probabilities.pop("best")
    rows = {row["label"]: row for row in report._method_rows(comparison)}
    failed = rows["best single layer"]
    assert failed["failed"]
    assert not any(cell["best"] for cell in failed["cells"].values())
    others = comparison.frame.drop(index="best")
    for column, best in (("accuracy", others["accuracy"].idxmax()), ("nll", others["nll"].idxmin())):
        assert rows[others.loc[best, "label"]]["cells"][column]["best"]
    page = read(report.write_report(tmp_path, comparison))
    assert f"failed: ValueError: {NASTY}" in page.words()
    assert "script" not in {tag for tag, _ in page.elements}
    assert "Failed, see the table: best single layer." in page.words()


def test_a_method_that_only_could_not_be_validated_keeps_its_figures(comparison, tmp_path):
    comparison.frame.loc["average", "error"] = "Too few samples to validate."
    comparison.frame.loc["average", "validation_accuracy"] = np.nan
    rows = {row["label"]: row for row in report._method_rows(comparison)}
    assert not rows["average of the layers"]["failed"]
    words = read(report.write_report(tmp_path, comparison)).words()
    assert "Too few samples to validate." in words
    assert "failed: Too few" not in words


def test_labels_paths_and_facts_are_shown_as_they_are_and_never_as_markup(comparison, tmp_path):
    rename = {"bird": NASTY, "cat": "cat", "dog": "d\udcffg\x01"}
    for name in ("y", "classes", "layer_predictions"):
        setattr(comparison, name, np.vectorize(rename.get, otypes=[object])(getattr(comparison, name)).astype(str))
    images = [f"/{NASTY.replace('/', '')}/{row}" for row in range(len(comparison.y))]
    path = report.write_report(
        tmp_path, comparison, images=images, title=NASTY, facts={"data": NASTY, NASTY: 1}, model='it"s.skvfusion'
    )
    page = read(path)
    assert "script" not in {tag for tag, _ in page.elements}
    assert page.mismatches == []
    words = page.words()
    assert words.count(NASTY) >= 4
    assert "d\ufffdg\ufffd" in words
    assert 'skvfusion.load("it\\"s.skvfusion")' in words
    assert "skvfusion predict 'it\"s.skvfusion' photo.jpg" in words
    assert "no picture" in words  # there are no such files
    assert NASTY in pd.read_csv(tmp_path / "classes.csv")["class"].tolist()


def test_numbers_are_in_percent_and_points_with_one_decimal(page, found):
    words = plain(page.words())
    for key in METHODS:
        assert f"{100 * found.frame.loc[key, 'accuracy']:.1f} %" in words
    assert f"{100 * found.frame.loc['average', 'gain']:+.1f}" in words


@pytest.mark.parametrize(
    ("value", "text"), [(0.0123, "+1.2"), (-0.0123, "\u22121.2"), (0, "0.0"), (1e-17, "0.0"), (-0.0003, "\u22120.03")]
)
def test_points(value, text):
    assert report.points(value) == text


def test_how_to_use_the_model_and_how_the_figures_came_about(page):
    words = page.words()
    assert 'skvfusion.load("pets.skvfusion")' in words
    assert "skvfusion predict pets.skvfusion photo.jpg" in words
    for part in ("Data photos", "Training images 60", "skvfusion 1.2, torch 2.5", "Date 20"):
        assert part in words


def test_without_a_model_file_nothing_is_said_of_one(found, tmp_path):
    assert "skvfusion.load" not in read(report.write_report(tmp_path / "new" / "folder", found)).words()


def test_of_many_classes_those_that_change_most_are_shown(comparison, tmp_path):
    n = len(comparison.y)
    names = np.array([f"class {i:02}" for i in range(n)])
    comparison.y = comparison.classes = names
    comparison.layer_predictions = np.tile(names, (4, 1))
    comparison.layer_predictions[-1, :30] = names[-1]
    probabilities = np.eye(n)
    probabilities[40:] = np.eye(n)[0]
    comparison.probabilities = dict.fromkeys(comparison.probabilities, probabilities)
    comparison.layer_probabilities = np.tile(np.eye(n), (4, 1, 1))
    page = read(report.write_report(tmp_path, comparison))
    assert f"{report.MAX_CLASSES // 2} worst of {n} classes" in page.words()
    assert len(pd.read_csv(tmp_path / "classes.csv")) == n
    shown = re.findall(r"class \d\d 1 ", page.words())
    assert len(shown) == report.MAX_CLASSES


def test_a_class_that_was_not_trained_on_counts_as_wrong(comparison, tmp_path):
    comparison.y = comparison.y.astype(object)
    comparison.y[:3] = "owl"
    table = report._class_table(comparison, "average")
    assert table.loc["owl", ["n", "last", "average"]].tolist() == [3, 0, 0]
    assert "owl" in read(report.write_report(tmp_path, comparison)).words()


def test_a_last_layer_without_errors(comparison, tmp_path):
    comparison.layer_predictions = np.tile(comparison.y, (4, 1))
    words = read(report.write_report(tmp_path, comparison)).words()
    assert "gets all 60 images right: there is nothing to rescue" in words
    assert "nan" not in words


def test_one_layer(comparison, tmp_path):
    comparison.layer_predictions = comparison.layer_predictions[-1:]
    comparison.layer_probabilities = comparison.layer_probabilities[-1:]
    words = read(report.write_report(tmp_path, comparison)).words()
    assert "on 0 of these some inner layer is right" in words
    assert "nan" not in words


def test_nothing_is_changed_and_nothing_printed(found, tmp_path, capsys, global_rngs_untouched):
    frame, y = found.frame.copy(), found.y.copy()
    report.write_report(tmp_path, found)
    pd.testing.assert_frame_equal(found.frame, frame)
    assert np.array_equal(found.y, y)
    assert capsys.readouterr() == ("", "")


def test_writing_again_replaces_the_files(found, tmp_path):
    report.write_report(tmp_path, found, title="first")
    path = report.write_report(tmp_path, found, title="second")
    assert "second" in path.read_text(encoding="utf-8")
    assert "first</title>" not in path.read_text(encoding="utf-8")


def test_errors_say_what_came(found, tmp_path):
    with pytest.raises(ValueError, match="2 images but 60 evaluated samples"):
        report.write_report(tmp_path, found, images=["a.png", "b.png"])
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="is a file"):
        report.write_report(tmp_path / "file", found)
