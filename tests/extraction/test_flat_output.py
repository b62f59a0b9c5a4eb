"""Flat output: names, containers, and scikit-learn's tools that take no stacks."""

import numpy as np
import pandas as pd
import pytest
from PIL import Image
from sklearn import config_context
from sklearn.base import clone
from sklearn.compose import ColumnTransformer
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import FeatureUnion, make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from skvfusion import LayerwiseFeatureExtractor, VFusionClassifier


@pytest.fixture(scope="module")
def make(tiny_vit):
    def build(**parameters):
        return LayerwiseFeatureExtractor(**{"backbone": tiny_vit(), "device": "cpu", "output": "flat", **parameters})

    return build


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    rng = np.random.default_rng(0)
    folder = tmp_path_factory.mktemp("images")
    rows = []
    for index in range(24):
        light = index % 2
        Image.fromarray(rng.integers(100 * light, 150 + 100 * light, (32, 32, 3), dtype=np.uint8)).save(
            folder / f"{index}.png"
        )
        rows.append({"path": str(folder / f"{index}.png"), "site": "ab"[index % 3 == 0], "label": light})
    return pd.DataFrame(rows, index=np.arange(100, 124))


@pytest.mark.parametrize(
    ("parameters", "first", "last"),
    [
        ({}, "block0_cls_0", "block5_cls_63"),
        ({"tokens": "cls+mean", "layers": [1, 3]}, "block1_cls_0", "block3_mean_63"),
        ({"tap": "norm2"}, "block1.norm2_cls_0", "norm_cls_63"),
    ],
    ids=str,
)
def test_every_number_has_a_name(make, images, parameters, first, last):
    extractor = make(**parameters)
    names = extractor.get_feature_names_out()
    flat = extractor.transform(images)
    assert flat.shape == (5, len(names))
    assert (names[0], names[-1]) == (first, last)
    assert len(set(names)) == len(names)
    stack = clone(extractor).set_params(output="stack").transform(images)
    np.testing.assert_array_equal(flat, stack.reshape(5, -1))


def test_names_are_in_the_order_of_layers_tokens_and_dimensions(make, images):
    extractor = make(tokens="cls+mean")
    column = list(extractor.get_feature_names_out()).index("block2_mean_7")
    stack = clone(extractor).set_params(output="stack").transform(images)
    np.testing.assert_array_equal(extractor.transform(images)[:, column], stack[:, 2, 1, 7])


def test_stacks_have_no_feature_names(make):
    assert not hasattr(make(output="stack"), "get_feature_names_out")


@pytest.mark.parametrize("globally", [True, False])
def test_pandas_output_has_names_and_the_index_of_the_input(make, table, globally):
    extractor = make()
    with config_context(transform_output="pandas" if globally else "default"):
        if not globally:
            extractor.set_output(transform="pandas")
        frame = extractor.fit_transform(table[["path"]])
    assert list(frame.columns) == list(extractor.get_feature_names_out())
    assert list(frame.index) == list(table.index)
    np.testing.assert_array_equal(frame.to_numpy(), make().transform(table["path"]))


def test_polars_output(make, table):
    polars = pytest.importorskip("polars")
    frame = make().set_output(transform="polars").fit_transform(table["path"])
    assert isinstance(frame, polars.DataFrame)
    assert frame.shape == (24, 384)


@pytest.mark.parametrize("column", ["path", ["path"]], ids=["series", "frame"])
@pytest.mark.parametrize("pandas", [True, False])
def test_column_transformer(make, table, column, pandas):
    columns = ColumnTransformer(
        [("image", make(), column), ("site", OneHotEncoder(sparse_output=False), ["site"])],
    )
    if pandas:
        columns.set_output(transform="pandas")
    features = columns.fit_transform(table)
    assert features.shape == (24, 384 + 2)
    assert columns.get_feature_names_out()[0] == "image__block0_cls_0"
    pipeline = make_pipeline(columns, StandardScaler(), LogisticRegression())
    assert cross_val_score(pipeline, table, table["label"], cv=3, error_score="raise").mean() > 0.9


def test_feature_union_of_two_backbones(make, table):
    union = FeatureUnion([("tiny", make()), ("nano", LayerwiseFeatureExtractor("nano", output="flat", device="cpu"))])
    paths = table["path"].tolist()
    assert union.fit_transform(paths).shape == (24, 384 + 12 * 128)
    assert union.get_feature_names_out()[-1] == "nano__block11_cls_127"
    with config_context(transform_output="pandas"):
        assert list(clone(union).fit_transform(paths).columns) == list(union.get_feature_names_out())


def test_classifiers_take_flat_rows_with_the_number_of_layers(make, table):
    y = table["label"].to_numpy()
    flat = make_pipeline(make(), VFusionClassifier(n_layers=6, max_epochs=5, random_state=0)).fit(table["path"], y)
    stack = make_pipeline(make(output="stack"), VFusionClassifier(max_epochs=5, random_state=0)).fit(table["path"], y)
    np.testing.assert_array_equal(flat.predict_proba(table["path"]), stack.predict_proba(table["path"]))
    assert flat[-1].n_layers_in_ == 6


def test_the_output_setting_survives_a_clone(make, table):
    copied = clone(make().set_output(transform="pandas"))
    assert isinstance(copied.fit_transform(table["path"]), pd.DataFrame)
