"""Names of other libraries, as errors and the page on other loaders answer them."""

import re
from pathlib import Path

import pytest

import penstock as ps


def numbers() -> ps.Dataset:
    return ps.Dataset.range(4)


def test_an_attribute_of_tensorflow_is_answered_with_ours():
    with pytest.raises(AttributeError, match=r"which is TensorFlow's name: there is no experimental"):
        _ = ps.experimental


def test_names_of_tf_data_are_said_to_be_in_the_package_itself():
    with pytest.raises(
        AttributeError, match=r"'penstock.data' has no attribute 'AUTOTUNE': public names are in ps itself"
    ):
        _ = ps.data.AUTOTUNE


def test_other_names_that_there_are_not_get_the_usual_error():
    with pytest.raises(AttributeError, match=r"^module 'penstock' has no attribute 'ParquetDatset'$"):
        _ = ps.ParquetDatset
    with pytest.raises(AttributeError, match=r"^'Dataset' object has no attribute 'btach'$"):
        _ = numbers().btach


@pytest.mark.parametrize("module", ["torch", "jax"])
def test_arguments_of_pytorchs_data_loader_are_answered(module):
    pytest.importorskip(module)
    loader = getattr(ps, module).loader
    with pytest.raises(ps.InvalidTypeError, match=r"\(batch_size=...\) is DataLoader's and .*: dataset.batch\(n\)"):
        loader(numbers(), batch_size=32, shuffle=True)
    with pytest.raises(ps.InvalidTypeError, match=r"unexpected keyword argument 'batchsize'.* takes dataset, "):
        loader(numbers(), batchsize=32)
    page = (Path(__file__).parent.parent / "docs" / "pytorch.md").read_text().partition("## Coming from DataLoader")[2]
    for cell in re.findall(r"^\| ([^|(.]*) \|", page, re.MULTILINE):
        for argument in set(re.findall(r"`(\w+)`", cell)) - {"dataset", "pin_memory"}:
            with pytest.raises(ps.InvalidTypeError, match=rf"\({argument}=...\) is DataLoader's and not"):
                loader(numbers(), **{argument: None})


def test_what_the_page_on_other_loaders_advises_exists():
    page = (Path(__file__).parent.parent / "docs" / "coming-from-other-loaders.md").read_text()
    for used in re.findall(r"\bps\.(\w+)", page):
        assert hasattr(ps, used), used
    advice = [line.split("|")[2].strip() for line in page.splitlines() if line.startswith("| `")]
    assert len(advice) > 60
    for told in advice:
        for used in re.findall(r"(?:\bps\.Dataset\.|\bdataset\.|^)(\w+)\(", told):
            assert hasattr(ps.Dataset, used) or used in ("len", "list"), told
