import doctest
import importlib
import inspect
import pkgutil
import re

import pytest
from sklearn.base import BaseEstimator

import skvfusion
from skvfusion import extraction, fusion

pytestmark = pytest.mark.usefixtures("one_thread")

MODULES = sorted(
    ["skvfusion"]
    + [
        module.name
        for module in pkgutil.walk_packages(skvfusion.__path__, "skvfusion.")
        if "__main__" not in module.name
    ]
)
PUBLIC = {
    name: getattr(package, name)
    for package in (skvfusion, fusion, extraction)
    for name in package.__all__
    if callable(getattr(package, name))
}
ESTIMATORS = {
    name: value for name, value in PUBLIC.items() if inspect.isclass(value) and issubclass(value, BaseEstimator)
}
SECTION = r"^{}\n-{{3,}}\n(.*?)(?=^\w[\w ]*\n-{{3,}}\n|\Z)"


def section(docstring, title):
    """The text of a numpydoc section, or None."""
    found = re.search(SECTION.format(title), inspect.cleandoc(docstring or ""), re.MULTILINE | re.DOTALL)
    return found and found[1]


def documented(docstring, title="Parameters"):
    """The names that a numpydoc section describes, with their descriptions; one entry may describe several names."""
    entries = re.findall(
        r"^(\S[^\n:]*?)(?: : [^\n]*)?\n((?:[ \n][^\n]*\n?)*)", section(docstring, title) or "", re.MULTILINE
    )
    return {name.strip(): text.strip() for names, text in entries for name in names.split(",")}


@pytest.mark.parametrize("name", MODULES)
def test_examples_run(name):
    module = importlib.import_module(name)
    result = doctest.testmod(module, raise_on_error=False)
    assert result.failed == 0


def test_the_package_is_found_and_has_examples():
    assert {"skvfusion.layers", "skvfusion.fusion.vfusion", "skvfusion.training.losses"} <= set(MODULES)
    finder = doctest.DocTestFinder()
    tests = [test for name in MODULES for test in finder.find(importlib.import_module(name))]
    assert sum(len(test.examples) for test in tests) >= 15


@pytest.mark.parametrize("name", MODULES)
def test_every_module_says_what_it_is_for(name):
    assert (importlib.import_module(name).__doc__ or "").strip()


@pytest.mark.parametrize("package", [skvfusion, fusion, extraction], ids=lambda package: package.__name__)
def test_all_lists_names_that_exist_once_and_in_order(package):
    assert list(package.__all__) == sorted(set(package.__all__))
    assert all(hasattr(package, name) for name in package.__all__)


@pytest.mark.parametrize("title", ["Parameters", "Examples"])
@pytest.mark.parametrize("name", sorted(PUBLIC))
def test_everything_public_documents_its_parameters_with_an_example(name, title):
    text = section(PUBLIC[name].__doc__, title)
    if title == "Parameters" and not inspect.signature(PUBLIC[name]).parameters:
        return
    assert text is not None
    assert ">>>" in text or title != "Examples"


@pytest.mark.parametrize("name", sorted(PUBLIC))
def test_the_documented_parameters_are_the_real_ones(name):
    parameters = inspect.signature(PUBLIC[name]).parameters
    described = documented(PUBLIC[name].__doc__) if parameters else {}
    assert set(described) == set(parameters)
    assert all(described.values())


@pytest.mark.parametrize("name", sorted(ESTIMATORS))
def test_the_documented_defaults_are_the_real_ones(name):
    stated = dict(
        re.findall(r"^(\w+) : .*default=(.+)$", section(ESTIMATORS[name].__doc__, "Parameters"), re.MULTILINE)
    )
    parameters = inspect.signature(ESTIMATORS[name]).parameters
    assert bool(stated) == any(parameter.default is not inspect.Parameter.empty for parameter in parameters.values())
    for parameter, default in stated.items():
        assert eval(default) == parameters[parameter].default, parameter


@pytest.mark.parametrize("name", sorted(ESTIMATORS))
def test_estimators_document_fitted_attributes(name):
    attributes = documented(ESTIMATORS[name].__doc__, "Attributes")
    assert attributes
    assert all(attribute.endswith(("_", "_in_")) for attribute in attributes)


METHODS = {
    f"{name}.{method}": function
    for name, estimator in sorted(ESTIMATORS.items())
    for method, function in inspect.getmembers(estimator, inspect.isfunction)
    if not method.startswith("_") and function.__module__.startswith("skvfusion")
}


@pytest.mark.parametrize("method", list(METHODS.values()), ids=list(METHODS))
def test_methods_document_their_parameters(method):
    parameters = [name for name in inspect.signature(method).parameters if name != "self"]
    assert method.__doc__
    if parameters:
        assert {name.lstrip("*") for name in documented(method.__doc__)} == set(parameters)
