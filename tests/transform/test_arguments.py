"""Wrong arguments of every function of `ps.transform`: each is an error of penstock's, at the call."""

import inspect
import re

import numpy as np
import pytest

import penstock as ps
from penstock.errors import InvalidArgumentError, InvalidTypeError, PenstockError
from penstock.transform.symbols import trace

T = ps.transform
SHAPES = {"x": (), "v": (3,), "w": (), "r": (None,)}

FUNCTIONS = sorted(name for name, entry in vars(T).items() if inspect.isfunction(entry) and not name.startswith("_"))

REQUIRED = {
    "x": lambda c: c["x"],
    "key": lambda c: c["w"],
    "strings": lambda c: c["w"],
    "tokens": lambda c: T.split(c["w"]),
    "input_tensor": lambda c: T.split(c["w"]),
    "columns": lambda c: [c["w"], c["w"]],
    "transformed_feature": lambda c: T.bucketize(c["x"], 3),
    "deferred_vocab_filename_tensor": lambda c: T.vocabulary(c["w"]),
    "num_buckets": 3,
    "epsilon": 0.1,
    "dtype": "float32",
    "output_dim": 1,
    "bucket_boundaries": [1.0, 2.0],
    "hash_buckets": 3,
    "value": 1.0,
    "pattern": "a",
    "rewrite": "b",
    "ngram_range": (1, 2),
    "separator": " ",
    "shape": [None, 3],
    "function": np.sqrt,
    "top_k": 2,
    "vocab_size": 3,
}

WRONG = [
    *(object(), None, "oops", "", "(", b"q", -1, 0, 1.5, float("nan"), float("inf"), [1, "a"], [], {}, True, {1}),
    *(lambda: 1, 1j, int, 10**30, [3.0, 1.0], np.zeros((2, 2)), [[1], [2, 3]], np.datetime64("2020-01-01")),
    np.array([None, 1], object),
]


def other_column():
    kept = []
    trace(SHAPES, lambda c: kept.append(c["x"]) or {"y": c["x"]})
    return kept[0]


def call(name, columns, /, **changed):
    function = getattr(T, name)
    arguments = {}
    for parameter in inspect.signature(function).parameters.values():
        if parameter.name in changed or parameter.default is not parameter.empty or parameter.kind > 3:
            continue
        if name == "call" and parameter.name == "columns":
            continue
        if parameter.kind != parameter.VAR_KEYWORD:
            given = REQUIRED[parameter.name]
            arguments[parameter.name] = given(columns) if inspect.isfunction(given) else given
    return function(**arguments | changed)


def parameters_of(name):
    parameters = inspect.signature(getattr(T, name)).parameters.values()
    names = {parameter.name for parameter in parameters if parameter.kind != parameter.VAR_KEYWORD}
    if len(names) < len(parameters):
        names |= inspect.signature(T.vocabulary).parameters.keys()
    return sorted(names - {"columns"} if name == "call" else names)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in FUNCTIONS if name not in ("analyze", "compare")])
def test_wrong_arguments_are_refused_at_the_call(name):
    raw, kept = [], other_column()

    def function(columns):
        for parameter in parameters_of(name):
            for wrong in [*WRONG, kept, columns["x"], columns["w"]]:
                try:
                    call(name, columns, **{parameter: wrong})
                except PenstockError:
                    pass
                except Exception as error:
                    raw.append((parameter, wrong, repr(error)))
        return {"y": columns["x"]}

    trace(SHAPES, function)
    assert raw == []


def test_vocabularies_of_two_names_have_two_files():
    graph = trace(SHAPES, lambda c: {f"{n}": T.apply_vocabulary(c["w"], T.vocabulary(c["w"], name=n)) for n in "ab"})
    assert len({node.arguments["vocab_filename"] for node in graph.nodes if node.is_analyzer}) == 2


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (
            lambda c: T.scale_to_z_score(c["x"], elementwise="no"),
            r"scale_to_z_score\(elementwise=...\) takes True",
        ),
        (lambda c: T.mean(c["x"], output_dtype="int32"), r"mean\(output_dtype=...\) takes a dtype of floats, got 'int"),
        (lambda c: T.mean(c["x"], name=3), r"mean\(name=...\) takes a string, got 3"),
        (lambda c: T.mean([1.0, 2.0]), r"mean\(x=...\) takes columns of a preprocessing function, .*got \[1.0, 2.0\]"),
        (lambda c: T.bucketize(c["x"], 2.5), r"bucketize\(num_buckets=...\) takes an integer, got 2.5"),
        (lambda c: T.bucketize(c["x"], 2, epsilon=float("nan")), r"bucketize\(epsilon=...\) takes a number, got nan"),
        (lambda c: T.bucketize(c["x"], 2, bins=3), "bucketize: got an unexpected keyword argument 'bins'"),
        (lambda c: T.bucketize(c["x"]), "bucketize: missing a required argument: 'num_buckets'"),
        (lambda c: T.apply_buckets(c["x"], [3.0, 1.0]), r"apply_buckets\(bucket_boundaries=...\) must be in order"),
        (
            lambda c: T.apply_buckets(c["x"], c["x"]),
            "takes a value that is the same for all rows, got <column 0: input>",
        ),
        (lambda c: T.compute_and_apply_vocabulary(c["w"], topk=3), "vocabulary: got an unexpected keyword argument 't"),
        (lambda c: T.vocabulary(c["w"], weights=2.0), r"vocabulary\(weights=...\) takes columns"),
        (lambda c: T.apply_vocabulary(c["w"], c["w"]), "takes what ps.transform.vocabulary has given, or a path"),
        (
            lambda c: T.tfidf(T.split(c["w"]), c["x"]),
            r"tfidf\(vocab_size=...\) takes a value that is the same for all rows",
        ),
        (lambda c: T.regex_replace(c["w"], "(", ""), r"regex_replace\('\(', ''\): Invalid regular expression"),
        (lambda c: T.join("ab"), "join takes a list of columns, got 'ab'"),
        (lambda c: T.split(c["w"], ""), "takes a string that is not empty"),
        (lambda c: T.vocabulary(c["w"], vocab_filename=" "), r"vocab_filename=...\) takes a name, got ' '"),
        (
            lambda c: T.hash_strings(c["w"], 3, key=[1, 2, 3]),
            r"hash_strings\(key=...\) takes 2 integers, got",
        ),
    ],
)
def test_an_error_names_the_line_the_argument_and_what_it_takes(function, message):
    with pytest.raises((InvalidArgumentError, InvalidTypeError), match=rf"test_arguments.py:\d+: .*{message}"):
        trace(SHAPES, lambda c: {"y": function(c)})


@pytest.mark.parametrize("use", [lambda c, kept: kept, lambda c, kept: c["x"] + kept, lambda c, kept: kept + 1])
def test_a_column_of_another_dataset_was_taken_for_one_of_this(use):
    kept = other_column()
    with pytest.raises(InvalidArgumentError, match=r"test_arguments.py:\d+: a column of another call"):
        trace(SHAPES, lambda c: {"y": use(c, kept)})


def test_analyze_and_compare_refuse_wrong_arguments(tmp_path):
    rows = ps.Dataset.from_tensor_slices({"x": [1.0]})
    for arguments, message in [
        ((rows, None, tmp_path), "preprocessing_fn"),
        ((rows, lambda c: {"y": c["x"]}, 3), "working_dir"),
        ((3, lambda c: {"y": c["x"]}, tmp_path), "analyze takes a ps.Dataset"),
    ]:
        with pytest.raises(InvalidTypeError, match=re.escape(message)):
            T.analyze(*arguments)
    old = T.analyze(rows, lambda c: {"y": c["x"]}, tmp_path)
    with pytest.raises(InvalidTypeError, match="takes a path, got 3|expected a path, got 3"):
        T.compare(old, 3)
    with pytest.raises(InvalidTypeError, match="working_dir"):
        T.TransformOutput(None)
