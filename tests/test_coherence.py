"""The same thing is said in the same way everywhere."""

import inspect
from types import ModuleType

import pytest

import penstock as ps
from penstock.extras import Missing
from penstock.options import as_member
from penstock.service.wire.policy import ShardingPolicy, as_policy


@pytest.mark.parametrize("name", ["DATA", "data", "Data"])
def test_enums_take_their_names_in_any_case(name):
    assert ps.Options(auto_shard_policy=name).auto_shard_policy is ps.AutoShardPolicy.DATA
    assert as_policy(name) is ShardingPolicy.DATA
    mode = name.replace("DATA", "PER_REPLICA").replace("data", "per_replica").replace("Data", "Per_Replica")
    assert ps.InputOptions(replication_mode=mode).replication_mode is ps.types.InputReplicationMode.PER_REPLICA


def test_names_of_the_other_enums_are_taken_in_any_case():
    assert as_policy("DISTRIBUTED_EPOCH") is as_policy("dynamic") is ShardingPolicy.DYNAMIC
    assert ps.InputOptions(partial_batch="Pad").partial_batch is ps.types.PartialBatch.PAD
    assert as_member("reduce", ps.ReduceOp, "mean") is ps.ReduceOp.MEAN
    assert ps.Options(on_error="SKIP").on_error == "skip"


@pytest.mark.parametrize(
    ("call", "kind", "message"),
    [
        (lambda: ps.Options(auto_shard_policy="rows"), ValueError, r'takes one of "OFF", "AUTO", .*got \'rows\''),
        (lambda: ps.Options(auto_shard_policy=2), TypeError, r"takes a ps.AutoShardPolicy or one of .*got 2"),
        (lambda: as_policy("rows"), ValueError, r'"distributed_epoch", "OFF", .*got \'rows\''),
        (
            lambda: as_member("reduce", ps.ReduceOp, "max"),
            ValueError,
            r'takes one of "SUM", "MEAN", got \'max\'',
        ),
    ],
)
def test_what_is_no_name_is_answered_with_the_names(call, kind, message):
    with pytest.raises(kind, match=message):
        call()


def test_shuffle_without_a_size_shuffles_everything_over_an_index():
    dataset = ps.Dataset.range(1000)
    assert list(dataset.shuffle(seed=3)) == list(dataset.shuffle(1000, seed=3)) != list(range(1000))


@pytest.mark.parametrize(
    ("dataset", "why"),
    [(ps.Dataset.range(9).filter(lambda x: x > 1), "a stream"), (ps.Dataset.range(9).repeat(), "endless")],
)
def test_shuffle_without_a_size_is_refused_where_all_rows_would_be_held(dataset, why):
    with pytest.raises(ps.InvalidArgumentError, match=f"shuffle without a buffer_size .* is {why}: give the number"):
        dataset.shuffle()


def test_get_next_in_map_does_not_end_a_list_in_silence():
    iterator = iter(ps.Dataset.range(3))
    with pytest.raises(ps.OutOfRangeError, match="no further element"):
        list(map(lambda _: iterator.get_next(), range(100)))  # noqa: C417  # what a user wrote
    with pytest.raises(StopIteration) as ended:
        next(iterator)
    assert type(ended.value) is StopIteration


def test_get_next_of_steps_does_not_end_a_list_in_silence():
    with iter(ps.HostStrategy(2).distribute_dataset(ps.Dataset.range(8).batch(4))) as steps:
        with pytest.raises(ps.OutOfRangeError, match="no further step"):
            list(map(lambda _: steps.get_next(), range(100)))  # noqa: C417  # what a user wrote
        with pytest.raises(StopIteration) as ended:
            next(steps)
        assert type(ended.value) is StopIteration


def test_shard_with_two_autotunes_is_no_hint():
    with pytest.raises(ps.InvalidArgumentError, match=r"shard\(num_shards=...\) must be at least 1, got -1"):
        ps.Dataset.range(4).shard(ps.AUTOTUNE, ps.AUTOTUNE)


# Flags that may stand without their name, as they do in TensorFlow's programs.
POSITIONAL = {
    "Dataset.batch(drop_remainder)",
    "Dataset.map(deterministic)",
    "Dataset.list_files(shuffle)",
    "Dataset.shuffle(reshuffle_each_iteration)",
    "keras.value_and_grad(has_aux)",
}


def test_flags_are_given_by_name():
    found = set()
    for name in dir(ps):
        public = getattr(ps, name)
        if type(public) is Missing:  # of an extra that the tests' packages do not bring
            continue
        members = vars(public).values() if isinstance(public, ModuleType) else [public]
        prefix = f"{name}." if isinstance(public, ModuleType) else ""
        for member in members:
            if callable(member) and getattr(member, "__module__", "").startswith("penstock"):
                found |= {prefix + flag for flag in positional_flags(member)}
    found = {flag for flag in found if not flag.startswith("transform.")}  # the signatures of TensorFlow Transform
    assert found == POSITIONAL


def positional_flags(public):
    """The flags of a public function, or of a class and its methods, that may be given without their names."""
    calls = {public.__name__: public}
    if inspect.isclass(public):
        for name, member in inspect.getmembers(public, callable):
            if not name.startswith("_") and name not in dir(str):
                calls[f"{public.__name__}.{name}"] = member
    for call, function in calls.items():
        try:
            parameters = inspect.signature(function).parameters.values()
        except ValueError:  # of what is written in C
            continue
        for parameter in parameters:
            flag = isinstance(parameter.default, bool) or str(parameter.annotation) in ("bool", "bool | None")
            if flag and parameter.kind is parameter.POSITIONAL_OR_KEYWORD:
                yield f"{call}({parameter.name})"


@pytest.mark.parametrize(
    ("module", "names"),
    [
        (ps.keras, {"DatasetInput", "KeepPosition", "WriteReport", "as_input", "value_and_grad"}),
        (ps.testing, {"assert_same_elements", "check_conformance", "check_service", "conformance"}),
    ],
)
def test_modules_show_no_internals(module, names):
    assert {name for name in dir(module) if not name.startswith("_")} == names


def shown(kind):
    """The names that a class has for users; `dir` also lists those of TensorFlow's, which raise an AttributeError."""
    return {name for name in dir(kind) if not name.startswith("_") and hasattr(kind, name)}


def test_strategies_and_steps_show_no_internals():
    assert shown(ps.HostStrategy) == shown(ps.Strategy)
    assert shown(ps.types.DistributedDataset) == {"cardinality", "element_spec", "explain"}
    assert shown(ps.types.DistributedIterator) == shown(ps.types.DatasetIterator)


def test_iterators_show_no_internals():
    assert shown(ps.types.DatasetIterator) == {
        "close",
        "dashboard",
        "element_spec",
        "errors",
        "explain",
        "get_next",
        "get_next_as_optional",
        "load_state_dict",
        "metrics",
        "remix",
        "report",
        "rows",
        "state_dict",
        "step",
    }
