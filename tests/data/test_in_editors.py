"""Editors show a method's arguments and documentation; notebooks show a dataset's plan and elements."""

import importlib.resources
import inspect

import numpy as np
import pytest

import penstock as ps

METHODS = [name for name in dir(ps.Dataset) if not name.startswith("_") and callable(getattr(ps.Dataset, name))]


@pytest.mark.parametrize("name", METHODS)
def test_every_method_shows_its_arguments_and_its_documentation(name: str) -> None:
    method = getattr(ps.Dataset, name)
    parameters = inspect.signature(method).parameters.values()
    assert not {"answering", "keywords"} & {parameter.name for parameter in parameters}
    assert inspect.signature(method).return_annotation is not inspect.Signature.empty
    assert "Example:" in inspect.getdoc(method) or name == "options"


def test_a_signature_is_that_of_the_method():
    assert str(inspect.signature(ps.Dataset.take)) == "(self, count: int) -> 'Dataset[Element]'"


def test_the_package_says_that_it_has_types():
    assert importlib.resources.files("penstock").joinpath("py.typed").is_file()


def test_a_notebook_shows_plan_and_elements():
    dataset = ps.Dataset.range(10).map(lambda x: np.zeros(3, np.float32)).batch(4)
    html = dataset._repr_html_()
    assert "batch(batch_size=4)" in html
    assert "TensorSpec(shape=(None, ~3), dtype=~float32)" in html
    assert html.startswith("<p>&lt;penstock.Dataset batch(batch_size=4), cardinality 3&gt;</p>")
    assert "&lt;lambda&gt;)" in html
    assert "<lambda>" not in html


def test_a_notebook_shows_a_dataset_whose_function_fails():
    def fails(x):
        raise ValueError("<b>no</b> file")

    html = ps.Dataset.range(3).map(fails)._repr_html_()
    assert "unknown, because the function for the first element failed: ValueError: &lt;b&gt;no&lt;/b&gt; file" in html
