import importlib.metadata
import io
import json
import os
import pickle
import re
import subprocess
import sys
import warnings
import zipfile
from pathlib import Path

import joblib
import numpy as np
import pandas as pd
import pytest
import skops.io
import torch
from numpy.testing import assert_array_equal
from sklearn.base import BaseEstimator, TransformerMixin, clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.datasets import load_digits
from sklearn.ensemble import StackingClassifier, VotingClassifier
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, StratifiedKFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from skorch.callbacks import Callback
from skorch.exceptions import DeviceWarning

import skvfusion
from skvfusion import (
    AttentiveFusionClassifier,
    LayerProbeClassifier,
    LayerVotingClassifier,
    LayerwiseFeatureExtractor,
    MixtureOfExpertsClassifier,
    NeuralLogitControllerClassifier,
    SuperLearnerClassifier,
    VFusionClassifier,
    persistence,
)

pytestmark = pytest.mark.usefixtures("one_thread")

FAST = {"max_epochs": 3, "hidden": 16, "latent_dim": 8, "random_state": 0}
CLASSIFIERS = [
    pytest.param(VFusionClassifier(**FAST), id="vfusion"),
    pytest.param(VFusionClassifier(**FAST, early_stopping=True), id="vfusion, validated"),
    pytest.param(LayerProbeClassifier(layer=2), id="linear"),
    pytest.param(LayerProbeClassifier(layer="best", cv=3, random_state=0), id="best"),
    pytest.param(LayerProbeClassifier(layer=2, probe="mlp", **FAST), id="mlp"),
    pytest.param(AttentiveFusionClassifier(min_steps=20, max_epochs=2, random_state=0), id="alf"),
    pytest.param(SuperLearnerClassifier(cv=3, random_state=0), id="super learner"),
    pytest.param(NeuralLogitControllerClassifier(cv=3, max_epochs=2, random_state=0), id="controller"),
    pytest.param(MixtureOfExpertsClassifier(cv=3, max_epochs=2, random_state=0), id="experts"),
    pytest.param(LayerVotingClassifier(random_state=0), id="voting"),
    pytest.param(LayerVotingClassifier(probe=LogisticRegression()), id="voting of any"),
]
every_classifier = pytest.mark.parametrize("classifier", CLASSIFIERS)

SECRET = []


def leak(*args):
    """What an attack would call."""
    SECRET.append(args)


class Attack:
    def __reduce__(self):
        return leak, ("reduced",)


class Quiet(Callback):
    pass


class OwnTransformer(TransformerMixin, BaseEstimator):
    """A transformer as a user would write it."""

    def fit(self, X, y=None):
        return self

    def transform(self, X):
        return 2 * X


@pytest.fixture
def path(tmp_path):
    return tmp_path / "model.skops"


@pytest.fixture
def saved(path, make_stack):
    """Return a saved VFusionClassifier's path."""
    X, y = make_stack()
    skvfusion.save(VFusionClassifier(**FAST).fit(X, y), path)
    return path


@pytest.fixture(autouse=True)
def nothing_leaks():
    SECRET.clear()
    yield
    assert SECRET == []


def there_and_back(model, path, **kwargs):
    skvfusion.save(model, path, **kwargs)
    return skvfusion.load(path, **kwargs)


def rewrite(path, change):
    """Let ``change`` edit the schema of a model file."""
    with zipfile.ZipFile(path) as file:
        members = {name: file.read(name) for name in file.namelist()}
    schema = json.loads(members["schema.json"])
    change(schema)
    members["schema.json"] = json.dumps(schema)
    with zipfile.ZipFile(path, "w") as file:
        for name, content in members.items():
            file.writestr(name, content)


def in_place_of_the_model(**node):
    return lambda schema: schema["content"].update(model=node)


# Round trips


@every_classifier
def test_a_fitted_model_predicts_the_same(classifier, path, make_stack, global_rngs_untouched):
    X, y = make_stack()
    fitted = clone(classifier).fit(X, y)
    loaded = there_and_back(fitted, path)
    assert type(loaded) is type(fitted)
    assert_array_equal(loaded.predict_proba(X), fitted.predict_proba(X))
    assert_array_equal(loaded.predict(X), fitted.predict(X))
    assert vars(loaded).keys() == vars(fitted).keys()
    if hasattr(fitted, "history_"):
        pd.testing.assert_frame_equal(loaded.history_, fitted.history_)
        assert (loaded.n_iter_, loaded.device_) == (fitted.n_iter_, "cpu")


@every_classifier
def test_an_unfitted_model_keeps_its_parameters(classifier, path, make_stack):
    X, y = make_stack()
    loaded = there_and_back(clone(classifier), path)
    assert repr(loaded.get_params()) == repr(classifier.get_params())
    with pytest.raises(NotFittedError):
        loaded.predict(X)
    assert_array_equal(loaded.fit(X, y).predict_proba(X), clone(classifier).fit(X, y).predict_proba(X))


@every_classifier
def test_a_loaded_model_can_be_saved_cloned_and_refitted(classifier, path, make_stack):
    X, y = make_stack()
    fitted = clone(classifier).fit(X, y)
    loaded = there_and_back(there_and_back(fitted, path), path)
    assert_array_equal(loaded.predict_proba(X), fitted.predict_proba(X))
    assert_array_equal(clone(loaded).fit(X, y).predict_proba(X), fitted.predict_proba(X))
    assert_array_equal(loaded.fit(X, y).predict_proba(X), fitted.predict_proba(X))


@every_classifier
@pytest.mark.parametrize(
    "labels",
    [
        pytest.param(np.array(["cat", "dog", "älg"]), id="str"),
        pytest.param(np.array(["b", "a"], dtype=object), id="object"),
        pytest.param(np.array([False, True]), id="bool"),
        pytest.param(np.array([-1, 7], dtype=np.int8), id="int8"),
        pytest.param(np.array([-1.0, 2.0]), id="float"),
    ],
)
def test_labels(classifier, labels, path, make_stack):
    X, y = make_stack(n_classes=len(labels))
    fitted = clone(classifier).fit(X, labels[y])
    loaded = there_and_back(fitted, path)
    assert loaded.classes_.dtype == labels.dtype
    assert_array_equal(loaded.predict(X), fitted.predict(X))


def test_latents(path, make_stack):
    X, y = make_stack()
    fitted = VFusionClassifier(**FAST).fit(X, y)
    assert_array_equal(there_and_back(fitted, path).transform(X), fitted.transform(X))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("layers", [0, -1]),
        ("layers", slice(None, None, 2)),
        ("layers", (1, 2)),
        ("class_weight", {0: 1.0, 1: 2, 2: np.float32(3)}),
        ("class_weight", {np.int64(0): 1.0, np.int64(1): 2.0, np.int64(2): 3.0}),
        ("class_weight", "balanced"),
        ("device", torch.device("cpu")),
        ("scaling", None),
        ("lr", np.float64(1e-3)),
        ("callbacks", []),
    ],
)
def test_parameters_of_any_kind(name, value, path, make_stack):
    X, y = make_stack()
    fitted = VFusionClassifier(**FAST).set_params(**{name: value}).fit(X, y)
    loaded = there_and_back(fitted, path)
    assert loaded.get_params()[name] == value
    assert type(loaded.get_params()[name]) is type(value)
    assert_array_equal(loaded.predict_proba(X), fitted.predict_proba(X))


def test_a_random_state_goes_on_where_it_was(path, make_stack):
    X, y = make_stack()
    fitted = VFusionClassifier(**FAST | {"random_state": np.random.RandomState(3)}).fit(X, y)
    loaded = there_and_back(fitted, path)
    assert_array_equal(loaded.fit(X, y).predict_proba(X), fitted.fit(X, y).predict_proba(X))


def test_a_splitter_as_parameter(path, make_stack):
    X, y = make_stack()
    cv = StratifiedKFold(3, shuffle=True, random_state=0)
    loaded = there_and_back(LayerProbeClassifier("best", cv=cv).fit(X, y), path)
    assert loaded.cv.get_n_splits() == 3
    assert (loaded.cv.shuffle, loaded.cv.random_state) == (True, 0)


def test_feature_names(path, make_stack):
    X, y = make_stack()
    frame = pd.DataFrame(X.reshape(60, 48), columns=[f"x{i}" for i in range(48)])
    fitted = VFusionClassifier(**FAST, n_layers=6).fit(frame, y)
    loaded = there_and_back(fitted, path)
    assert_array_equal(loaded.feature_names_in_, fitted.feature_names_in_)
    assert_array_equal(loaded.predict_proba(frame), fitted.predict_proba(frame))


def members():
    return [("a", VFusionClassifier(**FAST)), ("b", LayerProbeClassifier())]


@pytest.mark.parametrize(
    "model",
    [
        pytest.param(make_pipeline(FunctionTransformer(np.negative), VFusionClassifier(**FAST)), id="pipeline"),
        pytest.param(make_pipeline(VFusionClassifier(**FAST), LogisticRegression()), id="latents"),
        pytest.param(VotingClassifier(members(), voting="soft"), id="voting"),
        pytest.param(StackingClassifier(members(), cv=2), id="stacking"),
        pytest.param(CalibratedClassifierCV(VFusionClassifier(**FAST), cv=2), id="calibrated"),
    ],
)
def test_scikit_learns_compositions(model, path, make_stack):
    X, y = make_stack()
    fitted = clone(model).fit(X, np.array(["a", "b", "c"])[y])
    loaded = there_and_back(fitted, path)
    assert_array_equal(loaded.predict_proba(X), fitted.predict_proba(X))
    assert_array_equal(loaded.predict(X), fitted.predict(X))


def test_the_best_estimator_of_a_search(path, make_stack):
    X, y = make_stack()
    search = GridSearchCV(VFusionClassifier(**FAST), {"layers": ["all", [2]]}, cv=2).fit(X, y)
    loaded = there_and_back(search.best_estimator_, path)
    assert_array_equal(loaded.predict_proba(X), search.predict_proba(X))


def test_an_extractor_goes_without_its_backbone(path):
    images, y = load_digits(return_X_y=True)
    images, y = list(images[:30].reshape(-1, 8, 8) / 16), y[:30]
    pipeline = make_pipeline(LayerwiseFeatureExtractor("nano"), VFusionClassifier(**FAST)).fit(images, y)
    loaded = there_and_back(pipeline, path)
    assert_array_equal(loaded.predict_proba(images), pipeline.predict_proba(images))
    backbone = Path(skvfusion.__file__).parent / "assets" / "nano.safetensors"
    assert path.stat().st_size < 300_000 < backbone.stat().st_size


def test_an_extractor_with_weights_from_a_path(path, tmp_path):
    extractor = LayerwiseFeatureExtractor("test_vit", weights=tmp_path / "weights.pt")
    assert there_and_back(extractor, path).weights == tmp_path / "weights.pt"


@pytest.mark.parametrize("as_text", [True, False])
def test_paths_of_both_kinds(path, as_text):
    assert isinstance(there_and_back(VFusionClassifier(), str(path) if as_text else path), VFusionClassifier)


def test_a_file_has_about_the_size_of_the_weights(path, make_stack):
    X, y = make_stack()
    fitted = VFusionClassifier(512, 128, max_epochs=2, random_state=0).fit(X, y)
    skvfusion.save(fitted, path)
    assert path.stat().st_size < 4 * sum(p.numel() for p in fitted.net_.module_.parameters()) + 10_000


def test_a_new_process_loads_the_file_and_predicts_the_same(tmp_path, path, make_stack):
    X, y = make_stack()
    model = VotingClassifier(
        [("vfusion", VFusionClassifier(**FAST)), ("mlp", LayerProbeClassifier(probe="mlp", **FAST))], voting="soft"
    ).fit(X, y)
    skvfusion.save(model, path)
    np.save(tmp_path / "X.npy", X)
    code = (
        "import sys, numpy, skvfusion, torch; torch.set_num_threads(1);"
        "numpy.save('proba.npy', skvfusion.load(sys.argv[1]).predict_proba(numpy.load('X.npy')))"
    )
    subprocess.run([sys.executable, "-c", code, path], cwd=tmp_path, check=True, timeout=120)
    assert_array_equal(np.load(tmp_path / "proba.npy"), model.predict_proba(X))


def test_a_model_fitted_on_a_gpu_loads_without_one(path, make_stack):
    X, y = make_stack()
    fitted = make_pipeline(FunctionTransformer(), VFusionClassifier(**FAST)).fit(X, y)
    expected = fitted.predict_proba(X)
    fitted[-1].net_.device = "cuda:77"
    with pytest.warns(DeviceWarning, match="fitted on cuda:77, which is not available here"):
        skvfusion.save(fitted, path)
    with pytest.warns(DeviceWarning, match="fitted on cuda:77, which is not available here"):
        loaded = skvfusion.load(path)
    assert_array_equal(loaded.predict_proba(X), expected)
    assert loaded[-1].device_ == "cpu"


# What save refuses


@pytest.mark.parametrize(
    ("model", "culprit"),
    [
        (VFusionClassifier(callbacks=[Quiet()]), "test_persistence.Quiet"),
        (VFusionClassifier(callbacks=[Quiet]), "test_persistence.Quiet"),
        (make_pipeline(FunctionTransformer(lambda X: X), VFusionClassifier()), "<lambda>"),
        (make_pipeline(FunctionTransformer(leak), VFusionClassifier()), "test_persistence.leak"),
        (make_pipeline(FunctionTransformer(os.system), VFusionClassifier()), "posix.system"),
        (make_pipeline(OwnTransformer(), VFusionClassifier()), "test_persistence.OwnTransformer"),
        (VFusionClassifier(class_weight={False: 1, True: 2}), "class_weight, 0 and 1 mean False and True"),
        (VFusionClassifier(class_weight={1: 1, "1": 2}), "keys"),
        (VFusionClassifier(class_weight={(1, 2): 1}), "keys"),
        (Attack(), "test_persistence.Attack"),
    ],
)
def test_what_could_not_be_loaded_is_not_saved(model, culprit, path):
    path.write_text("what was there before")
    with pytest.raises(ValueError, match=f"This {type(model).__name__} cannot be saved.*{culprit}"):
        skvfusion.save(model, path)
    assert path.read_text() == "what was there before"
    assert list(path.parent.iterdir()) == [path]


def test_a_type_that_the_user_vouches_for(path, make_stack, monkeypatch):
    monkeypatch.setitem(sys.modules, __name__, sys.modules.get(__name__, _this_module()))
    X, y = make_stack()
    fitted = make_pipeline(OwnTransformer(), VFusionClassifier(**FAST)).fit(X, y)
    name = f"{__name__}.OwnTransformer"
    for trusted in ([name], name, {name}):
        assert_array_equal(there_and_back(fitted, path, trusted=trusted).predict(X), fitted.predict(X))
    with pytest.raises(ValueError, match=rf"not trusted: {name}\. Nothing of it was run.*trusted="):
        skvfusion.load(path)


def _this_module():
    """Make what holds these classes importable, which it is not under pytest's importlib mode."""
    module = type(sys)(__name__)
    vars(module).update(globals())
    return module


def test_what_is_written_but_does_not_load_is_not_saved(path):
    with pytest.raises(ValueError, match="what was written does not load"):
        skvfusion.save(make_pipeline(FunctionTransformer(lambda X: X)), path, trusted=[f"{__name__}.<lambda>"])
    assert not path.exists()


@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_a_failing_save_leaves_the_file_that_was_there(step, saved, monkeypatch):
    def fail(*args):
        raise OSError("No space left on device")

    before = saved.read_bytes()
    with monkeypatch.context() as patched:
        patched.setattr(os, step, fail)
        with pytest.raises(OSError, match="No space left"):
            skvfusion.save(VFusionClassifier(), saved)
    assert saved.read_bytes() == before
    assert list(saved.parent.iterdir()) == [saved]


def test_saving_replaces_a_file(saved):
    skvfusion.save(LayerProbeClassifier(), saved)
    assert isinstance(skvfusion.load(saved), LayerProbeClassifier)
    assert list(saved.parent.iterdir()) == [saved]


@pytest.mark.skipif(os.name == "nt", reason="is about Unix permissions")
def test_a_file_has_ordinary_permissions(saved):
    other = saved.with_name("other")
    other.touch()
    assert saved.stat().st_mode == other.stat().st_mode


def test_saving_to_nowhere(tmp_path):
    with pytest.raises(ValueError, match="is a folder; give the name of a file"):
        skvfusion.save(VFusionClassifier(), tmp_path)
    with pytest.raises(FileNotFoundError, match=r"the folder .*nowhere does not exist"):
        skvfusion.save(VFusionClassifier(), tmp_path / "nowhere" / "model.skops")


# Files that are not ours, or damaged


def zipped(**files):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as file:
        for name, content in files.items():
            file.writestr(name, content)
    return buffer.getvalue()


def dumped_by_joblib():
    buffer = io.BytesIO()
    joblib.dump(Attack(), buffer)
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        pytest.param(b"", "is empty", id="empty"),
        pytest.param(b"\x00\x01random bytes" * 50, "is of another kind", id="bytes"),
        pytest.param(b"PK\x03\x04 and so on", "is damaged or incomplete", id="zip's first bytes"),
        pytest.param(pickle.dumps(Attack()), "is a pickle", id="pickle"),
        pytest.param(pickle.dumps(Attack(), protocol=0), "is of another kind", id="pickle of protocol 0"),
        pytest.param(dumped_by_joblib(), "is a pickle", id="joblib"),
        pytest.param(zipped(hello="x"), "is another kind of zip file", id="zip"),
        pytest.param(zipped(**{"schema.json": "not json"}), "is damaged", id="no json"),
        pytest.param(zipped(**{"schema.json": "[" * 100_000}), "is damaged", id="deep json"),
        pytest.param(zipped(**{"schema.json": "[1, 2]"}), "is a skops file of something else", id="other json"),
        pytest.param(skops.io.dumps(LogisticRegression()), "is a skops file of something else", id="estimator"),
        pytest.param(skops.io.dumps({"format": "x", "version": 1}), "is a skops file of something else", id="dict"),
        pytest.param(skops.io.dumps(VFusionClassifier()), "is a skops file of something else", id="without header"),
    ],
)
def test_files_that_are_not_models(content, message, path):
    path.write_bytes(content)
    expected = f"{re.escape(str(path))} {message}.*expected a file written by skvfusion.save"
    with pytest.raises(ValueError, match=expected):
        skvfusion.load(path)


def test_a_zip_for_later_readers_is_damaged(path):
    content = bytearray(zipped(**{"schema.json": "{}"}))
    content[content.index(b"PK\x01\x02") + 6] = 99
    path.write_bytes(content)
    with pytest.raises(ValueError, match="is damaged or incomplete; expected a file written by"):
        skvfusion.load(path)


def test_a_description_that_unpacks_to_far_more_is_not_read(path, monkeypatch):
    monkeypatch.setattr(persistence, "_LARGEST_SCHEMA", 1000)
    monkeypatch.setattr(zipfile.ZipFile, "read", lambda *args: pytest.fail("was read"))
    path.write_bytes(zipped(**{"schema.json": " " * 1001}))
    with pytest.raises(ValueError, match=r"is damaged: its schema\.json takes 1001 bytes, and 1000 are allowed; "):
        skvfusion.load(path)


def test_a_torch_file_is_another_kind_of_zip(path):
    torch.save({"weight": torch.zeros(2)}, path)
    with pytest.raises(ValueError, match="is another kind of zip file"):
        skvfusion.load(path)


def test_missing_files_and_folders(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"There is no file .*model\.skops"):
        skvfusion.load(tmp_path / "model.skops")
    with pytest.raises(ValueError, match="is a folder; expected a file written by"):
        skvfusion.load(tmp_path)


@pytest.mark.parametrize("share", [0.01, 0.3, 0.9, 0.999])
def test_truncated_files(saved, share):
    content = saved.read_bytes()
    saved.write_bytes(content[: int(share * len(content))])
    with pytest.raises(ValueError, match="damaged or incomplete"):
        skvfusion.load(saved)


def test_every_flipped_byte_is_noticed_or_harmless(saved, make_stack):
    X, _ = make_stack()
    content = saved.read_bytes()
    expected = skvfusion.load(saved).predict_proba(X)
    rng = np.random.default_rng(0)
    noticed = 0
    for position in rng.integers(0, len(content), 60):
        damaged = bytearray(content)
        damaged[position] ^= 0xFF
        saved.write_bytes(damaged)
        try:
            loaded = skvfusion.load(saved)
        except ValueError:
            noticed += 1
        else:
            assert_array_equal(loaded.predict_proba(X), expected)
    assert noticed > 40


def test_a_missing_array_is_damage(saved):
    with zipfile.ZipFile(saved) as file:
        schema = file.read("schema.json")
    saved.write_bytes(zipped(**{"schema.json": schema}))
    with pytest.raises(ValueError, match="cannot be read"):
        skvfusion.load(saved)


def test_weights_that_do_not_fit_are_damage(saved):
    def rename(schema):
        net = schema["content"]["model"]["content"]["content"]["net_"]["content"]["content"]
        weights = net["weights"]["content"]
        weights["other"] = weights.pop(next(iter(weights)))

    rewrite(saved, rename)
    with pytest.raises(ValueError, match=r"(?s)cannot be loaded.*other.*It is damaged, or was saved with versions"):
        skvfusion.load(saved)


# Versions


def test_a_newer_format_asks_for_an_upgrade(saved):
    rewrite(saved, lambda schema: schema["content"]["version"].update(content="2"))
    with pytest.raises(ValueError, match=r"of version 2, .*reads up to version 1\. Upgrade skvfusion"):
        skvfusion.load(saved)


def saved_with(library, version):
    return lambda schema: schema["content"]["library_versions"]["content"][library].update(content=json.dumps(version))


@pytest.mark.parametrize("library", ["skvfusion", "torch", "scikit-learn"])
def test_other_versions_of_what_matters_are_warned_of_once(saved, library):
    now = importlib.metadata.version(library)
    rewrite(saved, saved_with(library, "0.0.7"))
    with pytest.warns(UserWarning, match=rf"saved with {library} 0\.0\.7 \(now {now}\)") as record:
        skvfusion.load(saved)
    assert [Path(warning.filename).name for warning in record] == [Path(__file__).name]


@pytest.mark.parametrize("library", ["numpy", "skops", "skorch"])
def test_other_versions_of_the_rest_are_not(saved, library):
    rewrite(saved, saved_with(library, "0.0.7"))
    skvfusion.load(saved)


def test_another_patch_release_is_not_warned_of(saved):
    major, minor = importlib.metadata.version("torch").split(".")[:2]
    rewrite(saved, saved_with("torch", f"{major}.{minor}.99"))
    skvfusion.load(saved)


# The gate


def functions_of_skops(name):
    """Return the ways in which a schema may ask for something by its name."""
    module, _, attribute = name.rpartition(".")
    arguments = {"__class__": "tuple", "__module__": "builtins", "__loader__": "TupleNode", "content": []}
    named = {"__class__": attribute, "__module__": module}
    empty = {"__class__": "dict", "__module__": "builtins", "__loader__": "DictNode", "content": {}}
    empty["key_types"] = {"__class__": "list", "__module__": "builtins", "__loader__": "ListNode", "content": []}
    return [
        {**named, "__loader__": "FunctionNode"},
        {**named, "__loader__": "TypeNode"},
        {**named, "__loader__": "ObjectNode"},
        {**named, "__loader__": "ObjectNode", "content": empty},
        {**named, "__loader__": "ConstructorFromReduceNode", "content": arguments},
        {**named, "__loader__": "ListNode", "content": []},
        {**named, "__loader__": "SetNode", "content": []},
        {**named, "__loader__": "TupleNode", "content": []},
        {**named, "__loader__": "LossNode", "__reduce__": {"args": arguments}, "content": empty},
        {**named, "__loader__": "DictNode", "content": {}, "key_types": empty["key_types"]},
        {**named, "__loader__": "RandomStateNode", "content": arguments},
        {**named, "__loader__": "DTypeNode", "content": arguments},
    ]


@pytest.mark.parametrize(
    "name",
    [
        "os.system",
        "posix.system",
        "builtins.eval",
        "builtins.exec",
        "builtins.__import__",
        "subprocess.Popen",
        "pickle.loads",
        "joblib.load",
        "torch.load",
        "skvfusion.load",
        "skvfusion.persistence.os",
        "skvfusion.persistence.load",
        "skvfusion.persistence.Path",
        "skvfusion.persistence.BytesIO",
        "skvfusion.persistence._replace",
        "skvfusion.persistence.os.system",
        "skvfusion.training.net.copy",
        "skvfusion.training.net.train_net",
        "skvfusion.training.net.NeuralNet",
        "skvfusion.training.net.nn",
        "skvfusion.fusion.VFusionClassifier",
        "skvfusion.fusion.base.Parallel",
        "skvfusion.fusion.layer_probe.LogisticRegression",
        "skvfusion.fusion.vfusion.VFusionClassifier.fit",
        "skvfusion.fusion.no_such_module.Thing",
        "skvfusion.display.RecoverabilityDisplay",
        "skvfusion.__main__.main",
        "skvfusionevil.Thing",
        "skvfusion.",
    ],
)
def test_what_is_not_ours_is_refused_before_anything_runs(name, saved, monkeypatch):
    def forbidden(*args, **kwargs):
        raise AssertionError("something was built")

    monkeypatch.setattr(skops.io, "loads", forbidden)
    n_modules = len(sys.modules)
    for node in functions_of_skops(name):
        rewrite(saved, in_place_of_the_model(**node))
        with pytest.raises(ValueError, match=r"refused|cannot be read"):
            skvfusion.load(saved)
    assert len(sys.modules) == n_modules


@pytest.mark.parametrize("name", ["skvfusion.fusion.vfusion.VFusionNet", "skvfusion.fusion.vfusion.VFusionClassifier"])
def test_our_classes_are_only_used_as_save_uses_them(name, saved):
    right = "TypeNode" if name.endswith("Net") else "ObjectNode"
    for node in functions_of_skops(name):
        if node["__loader__"] != right:
            rewrite(saved, in_place_of_the_model(**node))
            with pytest.raises(ValueError, match=f"refused: it contains types that are not trusted: {name}"):
                skvfusion.load(saved)


def test_one_right_use_of_a_class_does_not_excuse_a_wrong_one(saved):
    name = {"__module__": "skvfusion.fusion.vfusion", "__class__": "VFusionNet", "__loader__": "ListNode"}
    rewrite(saved, lambda schema: schema["content"].update(further={**name, "content": []}))
    with pytest.raises(ValueError, match=r"refused.*skvfusion\.fusion\.vfusion\.VFusionNet"):
        skvfusion.load(saved)


def test_the_same_name_split_elsewhere_is_refused(saved):
    node = {"__module__": "skvfusion.fusion", "__class__": "vfusion.VFusionNet", "__loader__": "TypeNode"}
    rewrite(saved, lambda schema: schema["content"].update(further=node))
    with pytest.raises(ValueError, match="refused"):
        skvfusion.load(saved)


def test_methods_are_refused(saved):
    def bind(schema):
        model = schema["content"]["model"]
        owner = {"__module__": model["__module__"], "__class__": model["__class__"]}
        content = {"func": "fit", "obj": model}
        schema["content"]["model"] = {**owner, "__loader__": "MethodNode", "content": content}

    rewrite(saved, bind)
    with pytest.raises(ValueError, match="refused"):
        skvfusion.load(saved)


@pytest.mark.parametrize("protocol", [0, 1, -1, True, "2", None, 99])
def test_protocols_that_were_never_used_are_refused(saved, protocol):
    rewrite(saved, lambda schema: schema.update(protocol=protocol))
    with pytest.raises(ValueError, match="cannot be read"):
        skvfusion.load(saved)


@pytest.mark.parametrize("part", ["module", "criterion"])
@pytest.mark.parametrize(
    "node",
    [
        {"__module__": "builtins", "__class__": "map", "__loader__": "TypeNode"},
        {"__module__": "numpy", "__class__": "exp", "__loader__": "FunctionNode"},
        {"__module__": "sklearn.pipeline", "__class__": "Pipeline", "__loader__": "ObjectNode"},
    ],
)
def test_a_net_calls_nothing_but_classes_of_modules(part, node, saved):
    def swap(schema):
        schema["content"]["model"]["content"]["content"]["net_"]["content"]["content"][part] = node

    rewrite(saved, swap)
    with pytest.raises(ValueError, match=f"The net's {part} must be a class of torch modules"):
        skvfusion.load(saved)


def test_arrays_are_never_unpickled(saved):
    buffer = io.BytesIO()
    np.save(buffer, np.array([Attack()], dtype=object), allow_pickle=True)
    with zipfile.ZipFile(saved) as file:
        members = {name: file.read(name) for name in file.namelist()}
    members.update({name: buffer.getvalue() for name in members if name.endswith(".npy")})
    saved.write_bytes(zipped(**members))
    with pytest.raises(ValueError, match="cannot be loaded"):
        skvfusion.load(saved)


def test_saving_and_loading_say_nothing(path, make_stack, capsys):
    X, y = make_stack()
    fitted = VFusionClassifier(**FAST, verbose=1).fit(X, y)
    capsys.readouterr()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        there_and_back(fitted, path)
    assert capsys.readouterr() == ("", "")
