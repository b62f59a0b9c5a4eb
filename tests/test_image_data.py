import os
import unicodedata

import numpy as np
import pytest

from skvfusion.image_copies import find_copies
from skvfusion.image_data import ImageData, check_trainable, expand_user, list_images, read_images


@pytest.fixture
def make_files(tmp_path):
    """Return a function that creates empty files below a folder; no image is opened here."""

    def make(*names, folder="data"):
        for name in names:
            path = tmp_path / folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
        return tmp_path / folder

    return make


@pytest.fixture
def make_table(tmp_path):
    """Return a function that writes a table beside the files a.png, b.png and sub/c.png."""
    (tmp_path / "sub").mkdir()
    for name in ("a.png", "b.png", "sub/c.png"):
        (tmp_path / name).touch()

    def make(text, name="data.csv", encoding="utf-8"):
        path = tmp_path / name
        path.write_bytes(text.encode(encoding))
        return path

    return make


def relative(data, folder):
    return [os.path.relpath(path, folder) for path in data.paths]


def images(*labels, split=None):
    return ImageData([f"{i}.png" for i in range(len(labels))], np.array(labels), None, split and np.array(split))


def test_a_folder_per_class_sorted_by_class_and_name(make_files):
    folder = make_files("dog/2.jpg", "dog/1.PNG", "cat/3.webp")
    data = read_images(folder)
    assert relative(data, folder) == ["cat/3.webp", "dog/1.PNG", "dog/2.jpg"]
    assert data.labels.tolist() == ["cat", "dog", "dog"]
    assert (data.groups, data.split, data.notes) == (None, None, [])


@pytest.mark.parametrize("names", [("train", "test"), ("Train", "TEST")])
def test_train_and_test_folders_are_a_split(make_files, names):
    train, test = names
    folder = make_files(f"{train}/dog/1.jpg", f"{train}/cat/2.jpg", f"{test}/dog/3.jpg")
    data = read_images(folder)
    assert relative(data, folder) == [f"{train}/cat/2.jpg", f"{train}/dog/1.jpg", f"{test}/dog/3.jpg"]
    assert data.labels.tolist() == ["cat", "dog", "dog"]
    assert data.split.tolist() == ["train", "train", "test"]


def test_folders_beside_train_and_test_are_not_used_and_named(make_files):
    data = read_images(make_files("train/a/1.jpg", "test/a/2.jpg", "val/a/3.jpg"))
    assert len(data) == 2
    assert data.notes == ["Not used, because only train and test are: 'val'."]


def test_classes_may_be_called_train_among_others(make_files):
    data = read_images(make_files("train/1.jpg", "bus/2.jpg"))
    assert data.labels.tolist() == ["bus", "train"]
    assert data.split is None


@pytest.mark.parametrize(("there", "missing"), [("train", "test"), ("test", "train")])
def test_half_of_a_split_is_refused_with_both_ways_out(make_files, there, missing):
    folder = make_files(f"{there}/a/1.jpg", f"{there}/b/2.jpg")
    with pytest.raises(ValueError, match=f"no {missing} beside it. Add {missing}, or pass {folder / there} itself"):
        read_images(folder)


def test_a_split_without_classes_is_refused(make_files):
    with pytest.raises(ValueError, match="hold no sub-folders; each must have a sub-folder per class"):
        read_images(make_files("train/1.jpg", "test/2.jpg"))


def test_an_empty_half_of_a_split_is_named(make_files):
    folder = make_files("train/a/1.jpg")
    (folder / "test").mkdir()
    with pytest.raises(ValueError, match=f"{folder / 'test'} is empty; expected a sub-folder per class"):
        read_images(folder)


def test_images_at_any_depth_belong_to_the_class_at_the_top(make_files):
    folder = make_files("dog/2021/may/1.jpg", "dog/2.jpg", "cat/3.jpg")
    data = read_images(folder)
    assert relative(data, folder) == ["cat/3.jpg", "dog/2.jpg", "dog/2021/may/1.jpg"]
    assert data.labels.tolist() == ["cat", "dog", "dog"]


def test_hidden_files_and_folders_are_left_out_without_a_word(make_files):
    folder = make_files("dog/1.jpg", "dog/._1.jpg", "dog/.DS_Store", ".git/x.jpg", "dog/.thumbs/x.jpg", ".DS_Store")
    data = read_images(folder)
    assert relative(data, folder) == ["dog/1.jpg"]
    assert data.notes == []


def test_files_that_are_no_images_are_left_out_counted_and_named(make_files):
    folder = make_files("dog/1.jpg", "dog/notes.txt", "README", *(f"cat/{i}.xml" for i in range(9)), "cat/1.jpg")
    data = read_images(folder)
    assert relative(data, folder) == ["cat/1.jpg", "dog/1.jpg"]
    (note,) = data.notes
    assert note.startswith("Left out 11 files without an image's ending: 'README', 'cat/0.xml'")
    assert note.endswith("and 6 more.")


def test_images_outside_of_classes_are_left_out_and_named(make_files):
    folder = make_files("dog/1.jpg", "cat/1.jpg", "stray.jpg")
    data = read_images(folder)
    assert len(data) == 2
    assert data.notes == [f"Left out 1 image in {folder} but in no class: 'stray.jpg'."]


def test_sub_folders_without_images_are_left_out_and_named(make_files):
    folder = make_files("dog/1.jpg")
    (folder / "cat").mkdir()
    data = read_images(folder)
    assert data.labels.tolist() == ["dog"]
    assert data.notes == [f"Left out 1 sub-folder of {folder} without images: 'cat'."]


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["1.jpg", "2.jpg"], r"holds 2 images but no sub-folder per class"),
        (["1.jpg", "empty/notes.txt"], r"holds 1 image but no sub-folder per class"),
        (["dog/notes.txt"], r"holds no images \(names that end in .*\.jpg.*\); expected a sub-folder per class"),
        ([".hidden/1.jpg"], "is empty; expected a sub-folder per class"),
    ],
)
def test_a_folder_that_is_none_of_this_is_refused_with_what_was_found(make_files, names, message):
    with pytest.raises(ValueError, match=message):
        read_images(make_files(*names))


def test_an_empty_folder_is_refused(tmp_path):
    with pytest.raises(ValueError, match="is empty; expected a sub-folder per class with its images"):
        read_images(tmp_path)


def test_what_does_not_exist_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"There is no folder or file .*nowhere"):
        read_images(tmp_path / "nowhere")


def test_links_to_files_and_folders_are_followed(make_files, tmp_path):
    elsewhere = make_files("1.jpg", "2.jpg", folder="elsewhere")
    folder = make_files("dog/own.jpg")
    (folder / "cat").symlink_to(elsewhere)
    (folder / "dog" / "link.jpg").symlink_to(elsewhere / "1.jpg")
    assert relative(read_images(folder), folder) == ["cat/1.jpg", "cat/2.jpg", "dog/link.jpg", "dog/own.jpg"]


def test_links_in_circles_end_and_a_folder_linked_twice_counts_once(make_files):
    folder = make_files("dog/a/1.jpg")
    (folder / "dog" / "a" / "round").symlink_to(folder / "dog")
    (folder / "dog" / "b").symlink_to(folder / "dog" / "a")
    assert relative(read_images(folder), folder) == ["dog/a/1.jpg"]


def test_a_broken_link_is_an_image_that_cannot_be_read_later(make_files):
    folder = make_files("dog/1.jpg")
    (folder / "dog" / "2.jpg").symlink_to(folder / "gone.jpg")
    assert relative(read_images(folder), folder) == ["dog/1.jpg", "dog/2.jpg"]


def test_unicode_names_in_either_form_are_one_class(make_files):
    composed, decomposed = (unicodedata.normalize(form, "Bär 熊") for form in ("NFC", "NFD"))
    assert composed != decomposed
    folder = make_files(f"train/{composed}/ä 1.jpg", "train/dog/1.jpg", f"test/{decomposed}/ü.jpg")
    data = read_images(folder)
    assert data.labels.tolist() == [composed, "dog", composed]
    assert data.paths[0] == str(folder / "train" / composed / "ä 1.jpg")
    check_trainable(data, at_least=1)


def test_paths_are_absolute_whatever_the_working_folder(make_files, monkeypatch):
    folder = make_files("dog/1.jpg")
    monkeypatch.chdir(folder.parent)
    assert read_images("data").paths == [str(folder / "dog" / "1.jpg")]


def test_a_table_with_all_columns_in_any_order(make_table, tmp_path):
    table = make_table(
        "Label,split,PATH,group,size\ncat,train,a.png,p1,1\ndog,Train,b.png,p1,2\ncat,test,sub/c.png,p2,3\n"
    )
    data = read_images(table)
    assert relative(data, tmp_path) == ["a.png", "b.png", "sub/c.png"]
    assert data.labels.tolist() == ["cat", "dog", "cat"]
    assert data.groups.tolist() == ["p1", "p1", "p2"]
    assert data.split.tolist() == ["train", "train", "test"]


@pytest.mark.parametrize(
    ("text", "encoding"),
    [
        ("path,label\na.png,x\nb.png,y\n", "utf-8"),
        ("path,label\r\na.png,x\r\n\r\nb.png,y", "utf-8-sig"),
        ("path;label\na.png;x\nb.png;y\n", "utf-8-sig"),
        ("path\tlabel\na.png\tx\nb.png\ty\n", "utf-8"),
        ('"path","label"\n"a.png",x\nb.png, y \n', "utf-8"),
    ],
    ids=["commas", "BOM, CRLF and blank lines", "BOM and semicolons", "tabs", "quotes and spaces"],
)
def test_tables_as_programs_write_them(make_table, tmp_path, text, encoding):
    data = read_images(make_table(text, encoding=encoding))
    assert relative(data, tmp_path) == ["a.png", "b.png"]
    assert data.labels.tolist() == ["x", "y"]


def test_labels_stay_as_they_are_written(make_table):
    assert read_images(make_table("path,label\na.png,01\nb.png,NA\n")).labels.tolist() == ["01", "NA"]


def test_paths_of_a_table_are_relative_to_it_or_absolute(make_table, tmp_path, monkeypatch):
    monkeypatch.chdir("/")
    data = read_images(make_table(f"path,label\n../a.png,x\n{tmp_path / 'b.png'},y\n", name="sub/data.csv"))
    assert data.paths == [str(tmp_path / "a.png"), str(tmp_path / "b.png")]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "lacks the column path and the column label: it is empty"),
        ("file,label\na.png,x\n", "lacks the column path: its first line names 'file', 'label'"),
        ("path\na.png\n", "lacks the column label: its first line names 'path'"),
        ("a.png,cat\nb.png,dog\n", "The first line must name the columns path and label"),
        ("path,label,label\na.png,x,y\n", "has the column label more than once"),
        ("path,label\n", "has a header but no rows"),
        ("path,label\na.png,x\nb.png\n", "Line 3 of .* has 1 values for 2 columns"),
        ("path,label\na,b.png,x\n", 'Line 2 of .* has 3 values for 2 columns; .*"quotation marks"'),
        ("path,label\na.png,x\nb.png, \n", "Line 3 of .* has no label"),
        ("path,label\n,x\n", "Line 2 of .* has no path"),
        ("path,label\na.png,x\n./a.png,y\n", "names .*a.png twice, in lines 2 and 3"),
        ('path,label\n"a.png,x\n', "Line 2 of .* cannot be read"),
        (
            "path,label,split\na.png,x,train\nb.png,y,val\n",
            "column split of .* holds 'train', 'val'; it must hold train",
        ),
        ("path,label,split\na.png,x,train\nb.png,y,train\n", "it must hold train and test, both"),
        ("path,label,group\na.png,x,\n", "Line 2 of .* has no group"),
        ("path,label\nx/a.png,x\n", "None of the 1 files .* exists. Relative paths start from the table's folder"),
    ],
)
def test_what_is_wrong_with_a_table_is_said(make_table, text, message):
    with pytest.raises(ValueError, match=message):
        read_images(make_table(text))


def test_a_table_in_another_encoding_is_refused_with_advice(make_table):
    with pytest.raises(ValueError, match="is not in UTF-8; save it as 'CSV UTF-8'"):
        read_images(make_table("path,label\na.png,Bär\n", encoding="latin-1"))


def test_a_file_of_another_kind_is_refused(make_table):
    with pytest.raises(ValueError, match="is neither a folder nor a table"):
        read_images(make_table("", name="data.zip"))


def test_some_missing_files_are_left_to_whoever_reads_them(make_table, tmp_path):
    data = read_images(make_table("path,label\na.png,x\ngone.png,y\n"))
    assert relative(data, tmp_path) == ["a.png", "gone.png"]


def test_groups_from_a_table_of_their_own_in_any_order(make_files, make_table):
    make_files("dog/1.jpg", "dog/2.jpg", "cat/3.jpg")
    groups = make_table("path;group\ndata/dog/2.jpg;p2\ndata/dog/1.jpg;p1\ndata/cat/3.jpg;p1\nb.png;p9\n", "groups.csv")
    data = read_images(groups.parent / "data", groups=groups)
    assert data.groups.tolist() == ["p1", "p1", "p2"]
    assert data.notes == [f"{groups} also names 1 file that is not in the data."]


def test_an_image_without_a_group_is_named(make_files, make_table):
    folder = make_files("dog/1.jpg", "cat/3.jpg")
    groups = make_table("path,group\ndog/1.jpg,p1\n", "groups.csv")
    with pytest.raises(ValueError, match=f"no group for 2 of the 2 images, first {folder}/cat/3.jpg. .* stands for "):
        read_images(folder, groups=groups)


def test_groups_given_twice_or_nowhere_are_refused(make_table, tmp_path):
    table = make_table("path,label,group\na.png,x,p\n")
    groups = make_table("path,group\na.png,p\n", "groups.csv")
    with pytest.raises(ValueError, match="given twice"):
        read_images(table, groups=groups)
    with pytest.raises(FileNotFoundError, match=r"There is no file .*gone\.csv; --groups takes a CSV"):
        read_images(make_table("path,label\na.png,x\n"), groups=tmp_path / "gone.csv")


def test_take_keeps_everything_together(make_table, tmp_path):
    table = make_table("path,label,group,split\na.png,x,p,train\nb.png,y,q,test\nsub/c.png,z,r,test\n")
    data = read_images(table).take(np.array([2, 0]))
    assert relative(data, tmp_path) == ["sub/c.png", "a.png"]
    assert [data.labels.tolist(), data.groups.tolist(), data.split.tolist()] == [
        ["z", "x"],
        ["r", "p"],
        ["test", "train"],
    ]


def test_enough_images_of_two_classes_pass():
    check_trainable(images("a", "a", "b", "b"))
    check_trainable(images("a", "a", "b", "b", "a", split=["train"] * 4 + ["test"]))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (images("a", "a"), "images of one class only, 'a'; there must be at least two"),
        (images("a", "a", split=["train", "test"]), "one class only to train on, 'a'"),
        (images("a", "a", "b"), r"at least 2 images of each class, and there are fewer of 1 class: 'b' \(1\)"),
        (
            images("a", "a", "b", "b", split=["train", "train", "train", "test"]),
            r"at least 2 images of each class to train on, and there are fewer of 1 class: 'b' \(1\)",
        ),
        (
            images("a", "b", "c", "c", "d", split=["train", "train", "test", "test", "test"]),
            r"2 classes in the test split cannot be learned, .* 'c' \(2\), 'd' \(1\)",
        ),
    ],
)
def test_what_cannot_be_learned_or_tested_is_said(data, message):
    with pytest.raises(ValueError, match=message):
        check_trainable(data)


def test_a_class_that_is_only_trained_on_is_fine():
    check_trainable(images("a", "a", "b", "b", "a", split=["train"] * 4 + ["test"]))


def test_lists_of_files_and_folders(make_files, tmp_path):
    folder = make_files("b.jpg", "deep/a.png", ".hidden.jpg", "notes.txt")
    assert list_images(["x.heic", folder]) == ["x.heic", str(folder / "b.jpg"), str(folder / "deep" / "a.png")]
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="empty holds no images"):
        list_images([tmp_path / "empty"])


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (
            ("train/dog/1.png", "val/dog/2.png"),
            "'train', 'val', which .*: rename val to test. Or pass .*train alone",
        ),
        (("Train/1.png", "Valid/2.png"), "'Train', 'Valid', .*: rename Valid to test"),
        (("training/dog/1.png", "testing/dog/2.png"), "rename training to train and rename testing to test"),
        (("training/dog/1.png", "test/dog/2.png", "cat/3.png"), ": rename training to train. Or"),
        (
            ("train/a/1.png", "dev/a/2.png", "validation/a/3.png"),
            "'train', 'validation', 'dev', .*rename validation",
        ),
        (("val/dog/1.png", "test/dog/2.png"), "'test', 'val', .*: add train. Or pass"),
    ],
)
def test_a_split_under_other_names_is_not_taken_for_classes(make_files, names, message):
    with pytest.raises(ValueError, match=message):
        read_images(make_files(*names))


def test_classes_that_happen_to_be_called_val_and_train(make_files):
    assert set(read_images(make_files("train/1.png", "val/2.png", "cat/3.png")).labels) == {"train", "val", "cat"}


def test_val_beside_train_and_test_is_not_used(make_files):
    data = read_images(make_files("train/dog/1.png", "test/dog/2.png", "val/dog/3.png"))
    assert data.notes == ["Not used, because only train and test are: 'val'."]


def test_only_a_typed_home_is_a_home(make_table, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "sub"))
    data = read_images(make_table("path,label\n~/c.png,x\n~$im.png,y\n~nosuch/d.png,y\n~root/e.png,y\n"))
    assert relative(data, tmp_path) == ["sub/c.png", "~$im.png", "~nosuch/d.png", "~root/e.png"]
    monkeypatch.chdir(tmp_path)
    assert expand_user("~/c.png") == tmp_path / "sub" / "c.png"
    assert expand_user("~nosuch/x") == tmp_path / "~nosuch" / "x"
    assert str(expand_user("a/b")) == os.path.join("a", "b")
    for arguments in ({"data": "~nosuch"}, {"data": "data.csv", "groups": "~nosuch"}):
        with pytest.raises(FileNotFoundError, match=r"There is no .*~nosuch"):
            read_images(**arguments)


@pytest.mark.parametrize(
    "text",
    [
        "sep=;\r\npath;label\r\na.png;x\r\nb.png;y\r\n",
        '"sep=|"\npath|label\na.png|x\nb.png|y\n',
        "path;label;note,with,commas\na.png;x;\nb.png;y;1,5\n",
        '"path";"label";a,b,c\na.png;x;\nb.png;y;\n',
    ],
)
def test_the_separator_is_what_the_file_says_or_what_gives_the_columns(make_table, tmp_path, text):
    data = read_images(make_table(text))
    assert relative(data, tmp_path) == ["a.png", "b.png"]
    assert data.labels.tolist() == ["x", "y"]


def test_lines_are_counted_with_the_one_that_names_the_separator(make_table):
    with pytest.raises(ValueError, match=r"Line 4 of .* has no label"):
        read_images(make_table("sep=;\npath;label\na.png;x\nb.png;\n"))


def test_copies_are_found_by_content(tmp_path):
    for name, content in {"a": b"1", "b": b"2", "c": b"1", "d": b"333", "e": b"", "f": b"", "g": b"1"}.items():
        (tmp_path / name).write_bytes(content)
    paths = {name: str(tmp_path / name) for name in "abcdefgx"}
    copies = find_copies([paths[name] for name in "cbfxg"], [paths[name] for name in "adexg"])
    assert copies == [(paths["c"], paths["a"]), (paths["g"], paths["a"])]
