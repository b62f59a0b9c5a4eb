"""Which of scikit-learn's tools take 3-D layer stacks: the table of docs/scikit-learn.md.

``python tests/fusion/test_tools.py`` writes the table anew; the tests here run every tool, and what the table says to
do instead of those that refuse.
"""

import re
import warnings
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import numpy as np
import pytest
from sklearn import calibration, model_selection
from sklearn.base import clone
from sklearn.calibration import CalibratedClassifierCV, CalibrationDisplay
from sklearn.compose import ColumnTransformer
from sklearn.decomposition import PCA
from sklearn.dummy import DummyClassifier
from sklearn.ensemble import AdaBoostClassifier, BaggingClassifier, StackingClassifier, VotingClassifier
from sklearn.experimental import enable_halving_search_cv  # noqa: F401
from sklearn.feature_selection import RFE, RFECV, SelectFromModel, SelectKBest, SequentialFeatureSelector
from sklearn.frozen import FrozenEstimator
from sklearn.inspection import partial_dependence, permutation_importance
from sklearn.metrics import ConfusionMatrixDisplay, DetCurveDisplay, PrecisionRecallDisplay, RocCurveDisplay
from sklearn.model_selection import (
    FixedThresholdClassifier,
    GridSearchCV,
    HalvingGridSearchCV,
    HalvingRandomSearchCV,
    LearningCurveDisplay,
    RandomizedSearchCV,
    TunedThresholdClassifierCV,
    ValidationCurveDisplay,
)
from sklearn.multiclass import OneVsOneClassifier, OneVsRestClassifier, OutputCodeClassifier
from sklearn.multioutput import ClassifierChain, MultiOutputClassifier
from sklearn.pipeline import FeatureUnion, Pipeline, make_pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler
from sklearn.semi_supervised import SelfTrainingClassifier
from sklearn.utils._param_validation import InvalidParameterError

from skvfusion import LayerProbeClassifier, SuperLearnerClassifier, VFusionClassifier

PAGE = Path(__file__).parents[2] / "docs" / "scikit-learn.md"
BEGIN, END = "<!-- table: python tests/fusion/test_tools.py -->", "<!-- end of table -->"

N_LAYERS = 6
STACKED = LayerProbeClassifier(2)
FLAT = LayerProbeClassifier(2, n_layers=N_LAYERS)
TINY = VFusionClassifier(hidden=8, latent_dim=4, random_state=0)

FLATTEN = "`X.reshape(len(X), -1)`, and `n_layers=` in the classifier"


class Tool(NamedTuple):
    """A tool: how it is run on stacks, and, if it refuses them, what to do instead and how that is run."""

    name: str
    run: Callable
    note: str = ""
    instead: Callable | None = None


def fits(make):
    """Return a run that fits a meta-estimator and predicts."""

    def run(X, y, classifier=STACKED):
        assert make(clone(classifier)).fit(X, y).predict(X).shape == (len(X),)

    return run


def flat(run):
    """Return the same run on flattened stacks."""
    return lambda X, y: run(X.reshape(len(X), -1), y, FLAT)


def refuses(name, run, note=FLATTEN, instead=None):
    """Return a tool with what to do instead of it: by default, the same on flattened stacks."""
    return Tool(name, run, note, instead or flat(run))


def split(X, y):
    X_train, X_test, y_train, y_test = model_selection.train_test_split(X, y, stratify=y, random_state=0)
    assert STACKED.fit(X_train, y_train).score(X_test, y_test) > 0.5


def call(function, shape, **params):
    """Return a run that calls a function of model_selection and checks its result's shape."""

    def run(X, y):
        result = function(clone(STACKED), X, y, **params)
        result = result if isinstance(result, np.ndarray) else result["test_score"]
        assert result.shape == shape(X)

    return run


def curve(function, **params):
    def run(X, y):
        _, scores = function(clone(STACKED), X, y, cv=2, **params)[-2:]
        assert np.isfinite(scores).all()

    return run


def search(make, grid, classifier=STACKED):
    def run(X, y):
        searched = make(clone(classifier), grid)
        assert searched.fit(X, y).predict(X).shape == (len(X),)
        assert np.isfinite(searched.cv_results_["mean_test_score"]).any()

    return run


def binary(make):
    """Return a run of a tool for two classes."""

    def run(X, y, classifier=STACKED):
        assert make(clone(classifier)).fit(X, y > 0).predict(X).shape == (len(X),)

    return run


def display(kind):
    """Return a run that draws a binary classifier's display."""

    def run(X, y):
        kind.from_estimator(clone(STACKED).fit(X, y > 0), X, y > 0)

    return run


def in_front(make):
    """Return a run of a transformer in front of a classifier."""

    def run(X, y, classifier=STACKED):
        make_pipeline(make(), clone(classifier)).fit(X, y).predict(X)

    return run


def with_memory(X, y):
    with TemporaryDirectory() as folder:
        pipeline = Pipeline([("half", FunctionTransformer(_halve)), ("probe", clone(STACKED))], memory=folder)
        assert pipeline.fit(X, y).score(X, y) == pipeline.fit(X, y).score(X, y)


def _halve(X):
    return X / 2


def pandas_output(X, y):
    make_pipeline(FunctionTransformer(_halve), clone(STACKED)).set_output(transform="pandas").fit(X, y).predict(X)


def default_output(X, y):
    make_pipeline(FunctionTransformer(_halve), clone(STACKED)).set_output(transform="default").fit(X, y).predict(X)


def semi_supervised(X, y, classifier=STACKED):
    partly = np.where(np.arange(len(y)) % 3 == 0, -1, y)
    SelfTrainingClassifier(clone(classifier)).fit(X, partly).predict(X)


def many_outputs(make):
    def run(X, y, classifier=STACKED):
        both = np.stack([y > 0, y > 1], 1)
        assert make(clone(classifier)).fit(X, both).predict(X).shape == both.shape

    return run


def frozen(X, y):
    calibrated = CalibratedClassifierCV(FrozenEstimator(clone(STACKED).fit(X, y))).fit(X, y)
    assert calibrated.predict(X).shape == (len(X),)


def importance(X, y, classifier=STACKED):
    fitted = clone(classifier).fit(X, y)
    assert permutation_importance(fitted, X, y, n_repeats=1).importances_mean.shape == (X.shape[1],)


def dependence(X, y, classifier=STACKED):
    partial_dependence(clone(classifier).fit(X, y > 0), X, [2], grid_resolution=5)


def layer_search(X, y):
    grid = {"layers": [[0], [2], "strided", "all"]}
    found = GridSearchCV(SuperLearnerClassifier(cv=2, random_state=0), grid, cv=2).fit(X, y)
    assert found.best_params_["layers"] != [0]
    best = LayerProbeClassifier("best", cv=2, random_state=0).fit(X, y)
    assert best.layer_scores_.shape == (N_LAYERS,)


def scaled_inside(X, y):
    for scaling in ("standard", "layer"):
        assert LayerProbeClassifier(2, scaling=scaling).fit(X, y).score(X, y) > 0.5


def reduced_outside(X, y):
    reduced = X.reshape(-1, X.shape[-1]) @ np.linalg.svd(X.reshape(-1, X.shape[-1]), full_matrices=False)[2][:4].T
    assert clone(STACKED).fit(reduced.reshape(*X.shape[:2], 4), y).n_layers_in_ == N_LAYERS


def columns(X, y, classifier=STACKED):
    chosen = ColumnTransformer([("all", "passthrough", list(range(X.shape[1])))])
    make_pipeline(chosen, clone(classifier)).fit(X, y).predict(X)


def union(X, y):
    parts = FeatureUnion([("one", FunctionTransformer()), ("two", FunctionTransformer(_halve))])
    assert make_pipeline(parts, clone(STACKED)).fit(X, y).predict(X).shape == (len(X),)


def flat_union(X, y):
    parts = FeatureUnion([(str(k), FunctionTransformer(_flattened, kw_args={"factor": k})) for k in (1, 2)])
    pipeline = make_pipeline(parts, LayerProbeClassifier(2, n_layers=2 * N_LAYERS))
    assert pipeline.fit(X, y)[-1].n_layers_in_ == 2 * N_LAYERS


def _flattened(X, factor):
    return factor * X.reshape(len(X), -1)


def by_epochs(make, grid):
    return lambda classifier, _: make(classifier, grid, resource="max_epochs", min_resources=1, max_resources=4, cv=2)


def calibrate(method):
    return fits(lambda classifier: CalibratedClassifierCV(classifier, method=method, cv=2))


def members(classifier):
    return [("probe", classifier), ("dummy", DummyClassifier())]


LAYERS = {"layer": [0, 2, 4]}
LOGSPACE = {"C": np.logspace(-2, 2, 5)}
TOOLS = [
    Tool("`train_test_split`", split),
    Tool("`cross_val_score`", call(model_selection.cross_val_score, lambda X: (3,), cv=3)),
    Tool("`cross_validate`", call(model_selection.cross_validate, lambda X: (3,), cv=3)),
    Tool("`cross_val_predict`", call(model_selection.cross_val_predict, lambda X: (len(X),), cv=3)),
    Tool("`GridSearchCV`", search(lambda c, grid: GridSearchCV(c, grid, cv=2), LAYERS)),
    Tool("`RandomizedSearchCV`", search(lambda c, grid: RandomizedSearchCV(c, grid, n_iter=2, cv=2), LOGSPACE)),
    Tool("`HalvingGridSearchCV` by samples", search(lambda c, grid: HalvingGridSearchCV(c, grid, cv=2), LAYERS)),
    Tool(
        "`HalvingGridSearchCV` by `max_epochs`",
        search(by_epochs(HalvingGridSearchCV, {"lr": [1e-3, 1e-2]}), None, TINY),
    ),
    Tool(
        "`HalvingRandomSearchCV`",
        search(lambda c, grid: HalvingRandomSearchCV(c, grid, cv=2, random_state=0), LOGSPACE),
    ),
    Tool("`learning_curve`", curve(model_selection.learning_curve, train_sizes=[0.5, 1.0], shuffle=True)),
    Tool(
        "`validation_curve`",
        curve(model_selection.validation_curve, param_name="layer", param_range=range(N_LAYERS)),
    ),
    Tool("`permutation_test_score`", curve(model_selection.permutation_test_score, n_permutations=2)),
    Tool("`Pipeline`, also with `memory=`", with_memory),
    Tool("`FunctionTransformer` in a pipeline", in_front(lambda: FunctionTransformer(_halve))),
    Tool("`CalibratedClassifierCV`, sigmoid", calibrate("sigmoid")),
    Tool("`CalibratedClassifierCV`, isotonic", calibrate("isotonic")),
    Tool("`CalibratedClassifierCV`, temperature (scikit-learn 1.8)", calibrate("temperature")),
    Tool("`TunedThresholdClassifierCV`", binary(lambda c: TunedThresholdClassifierCV(c, cv=2))),
    Tool("`FixedThresholdClassifier`", binary(lambda c: FixedThresholdClassifier(c, threshold=0.3))),
    Tool("`FrozenEstimator`", frozen),
    Tool("`VotingClassifier`", fits(lambda c: VotingClassifier(members(c), voting="soft"))),
    Tool("`StackingClassifier`", fits(lambda c: StackingClassifier(members(c), cv=2))),
    refuses(
        "`StackingClassifier(passthrough=True)`",
        fits(lambda c: StackingClassifier(members(c), cv=2, passthrough=True)),
    ),
    Tool("`OneVsRestClassifier`", fits(OneVsRestClassifier)),
    refuses("`OneVsOneClassifier`", fits(OneVsOneClassifier)),
    refuses(
        "`OutputCodeClassifier`",
        fits(lambda c: OutputCodeClassifier(c, random_state=0)),
        f"{FLATTEN}; or try another `random_state`: it refuses codes with a column that is the same for all classes",
    ),
    refuses("`BaggingClassifier`", fits(lambda c: BaggingClassifier(c, n_estimators=2, random_state=0))),
    Tool("`AdaBoostClassifier`", fits(lambda c: AdaBoostClassifier(c, n_estimators=2, random_state=0))),
    refuses("`SelfTrainingClassifier`", semi_supervised),
    Tool("`MultiOutputClassifier`", many_outputs(MultiOutputClassifier)),
    # Flattening is no help, because a chain appends the earlier labels as columns.
    refuses(
        "`ClassifierChain`",
        many_outputs(ClassifierChain),
        "`MultiOutputClassifier`",
        many_outputs(MultiOutputClassifier),
    ),
    Tool("`DummyClassifier`", lambda X, y: DummyClassifier().fit(X, y).score(X, y)),
    refuses(
        "`StandardScaler` and other scalers", in_front(StandardScaler), "`scaling=` in the classifier", scaled_inside
    ),
    refuses(
        "`PCA`",
        in_front(lambda: PCA(4)),
        "reduce the last axis: `X.reshape(-1, dim)`, transform, reshape back",
        reduced_outside,
    ),
    *(
        refuses(
            f"`{name}`",
            run,
            '`GridSearchCV` over `layers`, `LayerProbeClassifier("best")`',
            layer_search,
        )
        for name, run in {
            "SelectKBest": in_front(lambda: SelectKBest(k=2)),
            "SelectFromModel": in_front(lambda: SelectFromModel(clone(STACKED))),
            "RFE": fits(lambda c: RFE(c, n_features_to_select=2)),
            "RFECV": fits(lambda c: RFECV(c, cv=2)),
            "SequentialFeatureSelector": in_front(lambda: SequentialFeatureSelector(clone(STACKED), cv=2)),
        }.items()
    ),
    refuses("`ColumnTransformer`", columns),
    refuses(
        "`FeatureUnion` of stacks",
        union,
        'steps that flatten, such as extractors with `output="flat"`, and as `n_layers=` all their layers',
        flat_union,
    ),
    refuses(
        '`set_output(transform="pandas")`',
        pandas_output,
        'leave it at `"default"`; extractors ignore it for stacks, `FunctionTransformer` warns that a stack cannot be '
        "a table",
        default_output,
    ),
    refuses("`permutation_importance`", importance),
    refuses("`partial_dependence`", dependence),
    *(
        Tool(f"`{kind.__name__}.from_estimator`", display(kind))
        for kind in (
            ConfusionMatrixDisplay,
            RocCurveDisplay,
            PrecisionRecallDisplay,
            DetCurveDisplay,
            CalibrationDisplay,
            LearningCurveDisplay,
        )
    ),
    Tool(
        "`ValidationCurveDisplay.from_estimator`",
        lambda X, y: ValidationCurveDisplay.from_estimator(
            clone(STACKED), X, y, param_name="layer", param_range=range(2), cv=2
        ),
    ),
]
every_tool = pytest.mark.parametrize("tool", TOOLS, ids=[tool.name.replace("`", "") for tool in TOOLS])


def error_of(run, X, y):
    """Run a tool and return its error, or None."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            run(X, y)
    except Exception as error:
        return error
    return None


def row(tool, accepted):
    """Return a tool's row of the table."""
    return f"| {tool.name} | {'yes' if accepted else 'no'} | {tool.note} |"


def page_rows():
    """Return the rows of the table in the page."""
    table = PAGE.read_text(encoding="utf-8").split(BEGIN)[1].split(END)[0]
    return table.strip().splitlines()[2:]


@pytest.fixture
def small_stack(make_stack, one_thread):
    return make_stack(n_layers=N_LAYERS)


@every_tool
def test_the_table_says_what_happens(tool, small_stack):
    if "Display" in tool.name:
        pytest.importorskip("matplotlib").use("Agg")
    error = error_of(tool.run, *small_stack)
    if "temperature" in tool.name and not hasattr(calibration, "_TemperatureScaling"):
        assert isinstance(error, InvalidParameterError), "scikit-learn 1.7 has no such method"
        return
    assert row(tool, error is None) in page_rows(), f"the table says otherwise; the error is now {error!r}"


@pytest.mark.parametrize("tool", [tool for tool in TOOLS if tool.instead], ids=lambda tool: tool.name)
def test_what_to_do_instead_works(tool, small_stack):
    tool.instead(*small_stack)


def test_the_table_is_complete():
    assert [line.split(" | ")[0] for line in page_rows()] == [f"| {tool.name}" for tool in TOOLS]


def test_the_examples_of_the_page_run(one_thread):
    examples = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL)
    exec("\n".join(examples), {})


def write_table():
    """Run every tool and write the table into the page."""
    rng = np.random.default_rng(0)
    y = rng.permutation(np.repeat([0, 1, 2], 20))
    X = rng.normal(size=(60, N_LAYERS, 8)).astype(np.float32)
    X[:, 2, :3] += 3 * np.eye(3, dtype=np.float32)[y]
    rows = []
    for tool in TOOLS:
        error = error_of(tool.run, X, y)
        rows.append(row(tool, error is None))
        first_line = next(iter(str(error).splitlines()), "")
        print(rows[-1] if error is None else f"{rows[-1]}\n      {type(error).__name__}: {first_line[:150]}")
    text = PAGE.read_text(encoding="utf-8")
    table = "\n".join(["| tool | takes stacks | instead |", "|---|---|---|", *rows])
    PAGE.write_text(f"{text.split(BEGIN)[0]}{BEGIN}\n\n{table}\n\n{END}{text.split(END)[1]}", encoding="utf-8")


if __name__ == "__main__":
    write_table()
