"""TensorFlow's names: what errors say to whoever uses them, held against the list that TensorFlow gave of itself.

`list_tensorflow_names.py` wrote that list.
"""

import inspect
import json
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import penstock as ps
from penstock.errors import MissingExtraError

HERE = Path(__file__).parent
LISTED = json.loads((HERE / "tensorflow_names.json").read_text())
DOCS = HERE.parent / "docs"


def numbers() -> ps.Dataset:
    return ps.Dataset.range(4)


SAID = {
    "map_func": (lambda: numbers().map(map_func=abs), r"map\(map_func=...\) .* here it is map\(fn=...\)"),
    "name": (lambda: numbers().take(2, name="two"), r"take\(name=...\) .* the line of your program"),
    "two at once": (lambda: numbers().flat_map(map_func=abs, name="x"), r"flat_map\(fn=...\); flat_map\(name=...\)"),
    "generator": (lambda: ps.Dataset.from_generator(generator=iter), r"here it is from_generator\(fn=...\)"),
    "output_types": (
        lambda: ps.Dataset.from_generator(iter, output_types=int),
        r"here it is from_generator\(output_signature=...\)",
    ),
    "filenames": (lambda: ps.TFRecordDataset(filenames=["a"]), r"here it is TFRecordDataset\(files=...\)"),
    "num_parallel_reads": (lambda: ps.TextLineDataset("a", num_parallel_reads=4), r"interleave\("),
    "parallel batch": (lambda: numbers().batch(2, deterministic=False), r"the order is always kept"),
    "options": (lambda: ps.HostStrategy().distribute_dataset(numbers(), options=None), r"input_options=..."),
    "run options": (lambda: ps.HostStrategy().run(abs, (1,), options=None), r"run compiles"),
    "reduce_op": (lambda: ps.HostStrategy().reduce(reduce_op="SUM", value=1), r"here it is reduce\(op=...\)"),
    "of a replica": (
        lambda: ps.HostStrategy().run(lambda: ps.get_replica_context().all_reduce(reduce_op="SUM", value=1)),
        r"all_reduce\(op=...\)",
    ),
    "cross_device_ops": (lambda: ps.MirroredStrategy(cross_device_ops=None), r"MirroredStrategy\(.* XLA chooses"),
    "of input options": (
        lambda: ps.InputOptions(experimental_fetch_to_device=False),
        r"InputOptions\(fetch_to_device=",
    ),
    "of options": (lambda: ps.Options(experimental_deterministic=False), r"here it is Options\(deterministic=...\)"),
    "filename": (lambda: ps.TFRecordWriter(filename="a"), r"here it is TFRecordWriter\(path=...\)"),
    "of a service": (lambda: ps.service.DispatcherConfig(job_gc_timeout_ms=10), r"job_gc_seconds=..., in seconds"),
}


@pytest.mark.parametrize("name", SAID)
def test_a_keyword_of_tensorflows_is_answered_with_ours(name):
    call, message = SAID[name]
    with pytest.raises(ps.InvalidTypeError, match=message):
        call()


def test_other_arguments_that_do_not_fit_are_answered_with_those_that_do():
    with pytest.raises(TypeError, match=r"argument 'fun'(; it|\. Did you mean 'fn'\? It) takes fn, num_parallel_calls"):
        numbers().map(fun=abs)
    with pytest.raises(TypeError, match=r"but 3 were given; it takes fn, output_signature$"):
        ps.Dataset.from_generator(iter, (int,), ((),))
    with pytest.raises(TypeError, match=r"missing 1 required positional argument: 'batch_size'; it takes batch_size"):
        numbers().batch()
    with pytest.raises(TypeError, match=r"but 2 were given; it takes none$"):
        numbers().unbatch(3)


def test_a_type_error_inside_of_a_call_arrives_as_itself():
    with pytest.raises(TypeError, match=r"takes 0 positional arguments but 1 was given$"):
        numbers().apply(lambda: None)


ATTRIBUTES = {
    "experimental_distribute_dataset": (ps.HostStrategy(), "here it is HostStrategy.distribute_dataset"),
    "experimental_local_results": (ps.HostStrategy(), "here it is HostStrategy.local_results"),
    "cluster_resolver": (ps.HostStrategy(), "coordinator_address"),
    "restore": (iter(numbers()), "here it is DatasetIterator.load_state_dict"),
    "next": (iter(numbers()), r"use next\(iterator\)"),
    "experimental_distribute": (ps.Options(), r"say ps.Options\(auto_shard_policy=...\)"),
    "autotune": (ps.Options(), "num_parallel_calls and prefetch"),
}


@pytest.mark.parametrize("name", ATTRIBUTES)
def test_an_attribute_of_tensorflows_is_answered_with_ours(name):
    value, message = ATTRIBUTES[name]
    assert not hasattr(value, name)
    with pytest.raises(AttributeError, match=message):
        getattr(value, name)


def test_options_say_how_to_set_what_was_assigned():
    options = ps.Options()
    with pytest.raises(AttributeError, match=r"say ps.Options\(deterministic=...\)"):
        options.experimental_deterministic = False
    with pytest.raises(AttributeError, match=r"say ps.Options\(seed=...\)"):
        options.seed = 3


def test_an_attribute_error_of_a_function_arrives_as_itself():
    with pytest.raises(AttributeError, match="has no attribute 'shapes'"):
        _ = numbers().map(lambda x: x.shapes).element_spec
    with pytest.raises(AttributeError, match="'Dataset' object has no attribute 'shapes'"):
        _ = numbers().shapes


def test_signatures_are_what_they_are():
    assert list(inspect.signature(ps.Dataset.map).parameters)[1:] == [
        *("fn", "num_parallel_calls", "deterministic", "seed", "output_signature", "processes"),
    ]
    assert list(inspect.signature(ps.TFRecordDataset).parameters) == ["files", "compression_type"]
    assert "seed" in inspect.signature(ps.Options).parameters


# What has the same place in both, so that TensorFlow's arguments will be tried.
SAME = {
    "tf.data.Dataset.": ps.Dataset,
    "tf.data.TFRecordDataset": ps.TFRecordDataset,
    "tf.data.TextLineDataset": ps.TextLineDataset,
    "tf.data.experimental.": ps.Dataset,
    "tf.data.experimental.Reducer": ps.Reducer,
    "tf.data.experimental.TFRecordWriter": ps.TFRecordWriter,
    "tf.data.experimental.service.": ps.service,
    "tf.distribute.InputContext": ps.InputContext,
    "tf.distribute.InputContext.": ps.InputContext,
    "tf.distribute.InputOptions": ps.InputOptions,
    "tf.distribute.MirroredStrategy": ps.MirroredStrategy,
    "tf.distribute.MultiWorkerMirroredStrategy": ps.MultiWorkerMirroredStrategy,
    "tf.distribute.ReplicaContext.": ps.types.ReplicaContext,
    "tf.distribute.Strategy.": ps.HostStrategy,
    "tf.distribute.TPUStrategy": ps.TPUStrategy,
    "tf.distribute.experimental.ValueContext": ps.types.ValueContext,
}


def arguments_of_both():
    for name, arguments in LISTED.items():
        for prefix, place in SAME.items():
            ours = place if name == prefix else None
            if prefix.endswith(".") and name.startswith(prefix):
                ours = getattr(place, name.removeprefix(prefix), None)
            if callable(ours):
                yield from ((name, ours, argument) for argument in arguments or ())


def test_every_argument_of_tensorflows_is_taken_or_answered():
    found = list(arguments_of_both())
    assert len(found) > 150
    unanswered = []
    for name, ours, argument in found:
        # What is a function of a dataset there is a method here.
        if argument in inspect.signature(ours).parameters or (argument == "dataset" and "experimental" in name):
            continue
        try:
            ours(**{argument: None})
        except TypeError as error:
            if "is TensorFlow's" not in str(error):
                unanswered.append(f"{name}({argument}=...)")
    assert unanswered == []


def rows() -> Iterator[tuple[list[str], str]]:
    """The rows of the page of all names: TensorFlow's names, in full, and what stands beside them."""
    prefix = ""
    for line in (DOCS / "tensorflow-names.md").read_text().splitlines():
        if line.startswith("## "):
            prefix = line.removeprefix("## ").strip("`")
        elif line.startswith("| `"):
            names, place = line.strip("| ").split(" | ")
            yield list(in_full(prefix, re.findall("`([^`]*)`", names))), place


def in_full(prefix: str, names: list[str]) -> Iterator[str]:
    owner = ""
    for name in names:
        if not name.startswith("."):
            owner = name
        yield f"{prefix}.{owner}{name if name.startswith('.') else ''}"


def resolved(name: str) -> Any:
    """What a name of the documents, such as "ps.Dataset.map", stands for; an AttributeError where there is none.

    Of an extra that is not installed here, such as PyTorch, the names cannot be looked up.
    """
    value: Any = ps
    with suppress(MissingExtraError):
        for part in name.removeprefix("ps.").split("."):
            value = getattr(value, part)
    return value


def test_every_name_of_tensorflows_is_on_the_page_once():
    stated = Counter(name for names, _ in rows() for name in names)
    listed = set(LISTED) - {"tensorflow"}
    assert sorted(listed - stated.keys()) == []
    assert sorted(stated.keys() - listed) == []
    assert [name for name, times in stated.items() if times > 1] == []


def test_every_place_exists_or_there_is_a_reason():
    for names, place in rows():
        if not place.startswith(("not here: ", "not here yet: ")):
            assert "`ps." in place, names
        for ours in re.findall(r"`(ps\.[\w.]*\*?)`", place):
            for name in names if ours.endswith("*") else [""]:
                resolved(ours.removesuffix("*") + name.rpartition(".")[2])


@pytest.mark.parametrize("page", ["coming-from-tensorflow.md", "operators.md", "glossary.md", "preprocessing.md"])
def test_every_name_of_ours_on_a_page_exists(page):
    for name in re.findall(r"`(ps\.[\w.]*\w)[(`]", (DOCS / page).read_text()):
        resolved(name)
