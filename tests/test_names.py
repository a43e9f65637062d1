"""The public names: what `dir(ps)` and `import *` show, and what stands for names whose extra is missing."""

import ast
import inspect
import json
import os
import re
import subprocess
import sys
import tomllib
from importlib.util import find_spec
from pathlib import Path

import pytest

import penstock as ps
from penstock.other_names import PLACES

# Runs where no package of any extra can be imported: each expression on a line of its own, what it gives or raises.
WITHOUT_EXTRAS = """
import inspect, json, sys

BLOCKED = {"jax", "jaxlib", "keras", "orbax", "array_record", "fsspec", "obstore", "tensorflow", "PIL", "simplejpeg"}
BLOCKED |= {"soundfile", "av", "ray", "tokenizers", "torch"}

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in BLOCKED:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Blocked())
import penstock as ps

found = {}
for text in json.loads(sys.argv[1]):
    names = {"ps": ps, "inspect": inspect}
    try:
        if text.startswith("from "):
            exec(text, names)
            found[text] = sorted(set(names) - {"__builtins__"})
        else:
            found[text] = repr(eval(text, names))
    except Exception as error:
        found[text] = f"{type(error).__name__}: {error}"
print(json.dumps(found))
"""

USES = {
    "ps.Checkpoint()": ("ps.Checkpoint needs the package", "checkpoint"),
    "ps.Checkpoint.restore": ("ps.Checkpoint needs the package", "checkpoint"),
    "ps.MirroredStrategy()": ("ps.MirroredStrategy needs the package jax, which is not installed", "jax"),
    "isinstance(3, ps.TPUStrategy)": ("ps.TPUStrategy needs the package jax, which is not installed", "jax"),
    "ps.training.compute_average_loss([1.0])": (
        "ps.training.compute_average_loss needs the package jax, which is not installed",
        "jax",
    ),
    "ps.keras.value_and_grad": ("ps.keras needs the package", "keras"),
    "ps.image.decode(b'')": ("images need simplejpeg and Pillow", "image"),
    "ps.audio.decode(b'')": ("ps.audio needs the package soundfile", "audio"),
    "ps.jax.loader(dataset, None)": ("ps.jax needs the package jax", "jax"),
    "ps.ray.PenstockConfig()": ("ps.ray needs the package ray", "ray"),
    "ps.ray.ParameterServers()": ("ps.ray needs the package ray", "ray"),
    "ps.torch.loader(None)": ("ps.torch needs the package torch", "torch"),
    "ps.text.tokenizer('tokenizer.json')": ("ps.text.tokenizer needs the package tokenizers", "text"),
    "ps.video.decode(b'')": ("ps.video needs the package av", "video"),
    "ps.ArrayRecordDataset('x')": ("ps.ArrayRecordDataset needs the package array_record", "array-record"),
    "ps.Dataset.list_files('s3://bucket/*')": (
        "'s3://bucket/*': files with a protocol, such as s3:// or gs://, need obstore",
        "cloud",
    ),
}
LOOKS = [
    "hasattr(ps, 'Checkpoint')",
    "hasattr(ps, 'Chekpoint')",
    "len(inspect.getmembers(ps)) == len(dir(ps))",
    "ps.MirroredStrategy",
    "from penstock import Checkpoint",
    "from penstock import *",
    "ps.latest_checkpoint('/nowhere')",
    "ps.preprocessing.Rescaling(2.0)(3.0)",
]


@pytest.fixture(scope="module")
def without_extras():
    program = [sys.executable, "-c", WITHOUT_EXTRAS, json.dumps([*USES, *LOOKS])]
    done = subprocess.run(program, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


@pytest.mark.parametrize("use", USES)
def test_using_a_name_whose_extra_is_missing_says_what_to_install(without_extras, use):
    what, extra = USES[use]
    assert without_extras[use].startswith(f"MissingExtraError: {what}")
    assert without_extras[use].endswith(f": pip install 'penstock-data[{extra}]'")


def test_names_whose_extra_is_missing_can_be_looked_up(without_extras):
    assert without_extras["hasattr(ps, 'Checkpoint')"] == "True"
    assert without_extras["hasattr(ps, 'Chekpoint')"] == "False"
    assert without_extras["len(inspect.getmembers(ps)) == len(dir(ps))"] == "True"
    needs = "pip install 'penstock-data[jax]'"
    assert without_extras["ps.MirroredStrategy"] == f"<ps.MirroredStrategy, which needs {needs}>"
    assert without_extras["from penstock import Checkpoint"] == ["Checkpoint", "inspect", "ps"]
    assert set(without_extras["from penstock import *"]) == {*dir(ps), "ps", "inspect"}
    assert without_extras["ps.latest_checkpoint('/nowhere')"] == "None"
    assert without_extras["ps.preprocessing.Rescaling(2.0)(3.0)"].endswith("6.0)")


def test_only_public_names_are_shown():
    tree = ast.parse(Path(ps.__file__).read_text())
    written = {
        alias.asname
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module.startswith("penstock")
        for alias in node.names
    }
    public = {name for name in written if not name.startswith("_")} | {"keras"}
    assert set(dir(ps)) == set(ps.__all__) == public
    assert {name for name, value in inspect.getmembers(ps, inspect.ismodule)} == {
        "audio",
        "errors",
        "files",
        "image",
        "jax",
        "keras",
        "parameter_server",
        "preprocessing",
        "ray",
        "service",
        "testing",
        "text",
        "tfrecord",
        *(["torch"] if find_spec("torch") else []),
        "training",
        "transform",
        "types",
        "video",
    }
    assert (
        ps.__version__
        == tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]["version"]
    )


@pytest.mark.parametrize("name", PLACES)
def test_a_name_that_is_in_a_module_is_answered_with_the_module(name):
    assert hasattr(getattr(ps, PLACES[name]), name)
    with pytest.raises(
        AttributeError, match=rf"'penstock' has no attribute '{name}': it is ps\.{PLACES[name]}\.{name}$"
    ):
        getattr(ps, name)


def names_in(module: Path) -> set[str]:
    """The public names of a module: those it imports from others, and the errors that only `ps.errors` has."""
    nodes = list(ast.walk(ast.parse(module.read_text())))
    imported = {alias.asname for node in nodes if isinstance(node, ast.ImportFrom) for alias in node.names}
    return {name for name in imported if name and name[0] != "_"} | {
        node.name for node in nodes if isinstance(node, ast.ClassDef) and node.name not in ps.__all__
    }


def test_the_reference_has_every_public_name_once():
    expected = []
    for name in ps.__all__:
        places = [Path(ps.__file__).parent / place for place in (f"{name}/__init__.py", f"{name}.py")]
        module = next((place for place in places if place.exists()), None)
        expected += [f"{name}.{inner}" for inner in names_in(module)] if module else [name]
    pages = (Path(__file__).parent.parent / "docs" / "reference").glob("*.md")
    found = [name for page in pages for name in re.findall(r"^::: penstock\.(.*)$", page.read_text(), re.MULTILINE)]
    assert sorted(found) == sorted(expected)


@pytest.mark.slow
def test_a_source_tree_that_is_not_installed_works(tmp_path):
    (tmp_path / "penstock").symlink_to(Path(ps.__file__).parent)
    program = """
import importlib.metadata, sys
def missing(name):
    raise importlib.metadata.PackageNotFoundError(name)
importlib.metadata.version = missing
import penstock as ps
with ps.service.DispatchServer() as dispatcher:
    address = dispatcher.target.split("://")[1]
    with ps.service.WorkerServer(ps.service.WorkerConfig(dispatcher_address=address)):
        dataset = ps.Dataset.range(3).apply(ps.service.distribute("distributed_epoch", address))
        assert [int(row) for row in dataset] == [0, 1, 2]
    assert ps.service.status(dispatcher).version == ps.__version__
"""
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    subprocess.run([sys.executable, "-c", program], env=environment, check=True)
