"""Where a pipeline is cut, and what is refused: by hand, for each rule."""

import numpy as np
import pytest

import penstock as ps
from penstock.data.dataset import Dataset
from penstock.rng import mix
from penstock.service.wire.policy import ShardingPolicy as Policy
from penstock.service.wire.subjects import PassInfo
from penstock.service.worker.cut import check_shared, cut, kind_of
from penstock.service.worker.pass_nodes import check_policy, nodes_of_pass, seed_of


def odd(x):
    return x % 2 == 1


def double(x):
    return 2 * x


def some(x):
    return ps.Dataset.range(int(x))


def shuffled(x):
    return ps.Dataset.range(int(x)).shuffle(10)


def random_map(x, rng):
    return x + rng.integers(9)


SOURCE = ps.Dataset.range(10)
STREAM = ps.Dataset.from_generator(lambda: iter(range(10)))

# dataset, kind, positions, names of the nodes above
TOTALS = ps.Reducer(lambda key: 0, lambda total, x: total + x, lambda total: total)
CUTS = {
    "rows": (SOURCE.map(double).shuffle(5).batch(2).repeat(), "rows", -1, []),
    "rows with randomness": (SOURCE.map(random_map, seed=1).take(4), "rows", 4, []),
    "rows whatever was prefetched": (SOURCE.map(double).prefetch(2).batch(2).prefetch(), "rows", 5, []),
    "rows drawn by weight": (SOURCE.map(double).sample(list(range(10)), num=7).batch(2), "rows", 4, []),
    "rows of a part": (SOURCE.map(double).split([0.5, 0.5], seed=1)[1].batch(2), "rows", 3, []),
    "filter": (SOURCE.filter(odd).map(double), "groups", 10, []),
    "files": (ps.TextLineDataset(ps.Dataset.from_tensor_slices(["a", "b", "c"])).map(int).filter(odd), "groups", 3, []),
    "flat_map": (SOURCE.shuffle(9).flat_map(shuffled).map(double), "groups", 10, []),
    "unbatch": (SOURCE.batch(3).unbatch().filter(odd), "groups", 10, []),
    "unbatch of a function": (SOURCE.batch(3).map(double).unbatch().filter(odd), "groups", 4, []),
    "batches of a stream": (SOURCE.filter(odd).batch(2).map(double), "groups", 10, ["batch", "map"]),
    "count": (SOURCE.filter(odd).take(3).enumerate(), "groups", 10, ["take", "enumerate"]),
    "the last prefetch": (SOURCE.filter(odd).prefetch(1).batch(2).prefetch(), "groups", 10, ["batch", "prefetch"]),
    "a map by number": (SOURCE.filter(odd).map(random_map, seed=1), "groups", 10, ["map"]),
    "a map over a shuffled stream": (
        SOURCE.filter(odd).shuffle(4).take(9).map(double).repeat(2).map(double).batch(2).map(double),
        "groups",
        10,
        ["shuffle", "take", "repeat", "batch", "map"],
    ),
    "datasets without randomness by number": (SOURCE.filter(odd).flat_map(some), "groups", 10, []),
    "datasets with randomness by number": (SOURCE.filter(odd).flat_map(shuffled), "groups", 10, ["flat_map"]),
    "a generator": (STREAM.map(double).filter(odd).batch(2), "sequence", -2, []),
    "several streams": (ps.Dataset.zip(SOURCE.filter(odd), SOURCE).map(lambda a, b: a), "sequence", -2, []),
    "choices": (ps.Dataset.choose_from_datasets([SOURCE, SOURCE], SOURCE.map(lambda x: x % 2)), "sequence", -2, []),
    "a mixture": (ps.Dataset.mix({"a": SOURCE, "b": SOURCE}, stop="all").map(double), "rows", 20, []),
    "work for nobody below": (SOURCE.shuffle(3).scan(0, lambda s, x: (s + x, s)).map(double), "sequence", 10, []),
    "work above work": (SOURCE.map(double).scan(0, lambda s, x: (s + x, s)).map(double), "rows", 10, ["scan", "map"]),
    "a counted stream": (SOURCE.filter(odd).assert_cardinality(5).map(double), "groups", 10, ["assert_cardinality"]),
    "counted rows": (SOURCE.map(double).assert_cardinality(10), "rows", 10, []),
    "groups that are reduced": (SOURCE.map(double).group_by_reducer(odd, TOTALS), "rows", 10, ["group_by_reducer"]),
    "rows that are left out": (
        SOURCE.map(double).ignore_errors().filter(odd).batch(2),
        "rows",
        10,
        ["ignore_errors", "filter", "batch"],
    ),
    "rows that fail anywhere": (
        SOURCE.map(double).filter(odd).map(double).batch(2).with_options(ps.Options(on_error="skip")),
        "groups",
        10,
        ["ignore_errors", "batch", "ignore_errors"],
    ),
    "a stream whose rows fail": (
        STREAM.map(double).with_options(ps.Options(on_error="skip")),
        "sequence",
        -2,
        ["ignore_errors"],
    ),
    "a cache in memory": (SOURCE.map(double).cache().shuffle(3), "rows", 10, []),
    "a cache in files": (SOURCE.map(double).cache("d").shuffle(3), "rows", 10, ["cache", "shuffle"]),
    "a cache in files beside": (ps.Dataset.zip(SOURCE.map(double).cache("d"), SOURCE), "sequence", 10, []),
}


@pytest.mark.parametrize("case", CUTS)
def test_where_a_pipeline_is_cut(case):
    dataset, kind, length, above = CUTS[case]
    divided = cut(dataset.node)
    assert (divided.kind, divided.length, [node.name for node in divided.above]) == (kind, length, above)
    # A worker sees the nodes alone, and comes to the same kind without calling any function.
    assert kind_of(divided.worker) == (kind, length)


def test_interleave_is_by_row_unless_the_order_counts():
    dataset = SOURCE.interleave(some, cycle_length=4, block_length=2)
    divided = cut(dataset.node)
    assert divided.kind == "groups"
    assert sorted(Dataset(divided.worker)) == sorted(dataset)
    assert list(Dataset(divided.worker)) == list(SOURCE.flat_map(some))
    assert cut(dataset.node, ordered=True).kind == "sequence"
    above = cut(SOURCE.map(double).interleave(some, 4).node, ordered=True)
    assert (above.kind, [node.name for node in above.above]) == ("rows", ["interleave"])


def test_the_random_keys_of_interleave_stay_when_it_is_by_row():
    dataset = SOURCE.interleave(shuffled, cycle_length=4).with_options(ps.Options(seed=3))
    divided = cut(dataset.node)
    produced = list(map(int, Dataset(divided.worker, dataset.options())))
    assert sorted(produced) == sorted(map(int, dataset))
    one_by_one = SOURCE.interleave(shuffled, cycle_length=1).with_options(ps.Options(seed=3))
    assert produced == list(map(int, one_by_one))


def test_explain_says_what_runs_where_and_why():
    dataset = SOURCE.filter(odd).shuffle(4).map(double).batch(2)
    assert cut(dataset.node).explain() == "\n".join(
        [
            "in the trainer",
            "  batch(batch_size=2)",
            "  shuffle(buffer_size=4)",
            "on the data workers "
            "(shuffle(buffer_size=4) must see the whole stream; map(function=double) moved below it)",
            "  map(function=double)",
            "  filter(predicate=odd)",
            "  range(start=0, stop=10, step=1)",
        ]
    )


@pytest.mark.parametrize(
    ("dataset", "culprit"),
    [
        (SOURCE.filter(odd).take(4), r"take\(count=4\)"),
        (SOURCE.filter(odd).batch(2).skip(1), r"skip\(count=1\)"),
        (SOURCE.filter(odd).enumerate(), r"enumerate\(\)"),
        (SOURCE.filter(odd).unique(), r"unique\(\)"),
        (SOURCE.filter(odd).take_while(odd), r"take_while\(predicate=odd\)"),
        (SOURCE.map(double).scan(0, lambda s, x: (s, x)), r"scan\(.*\)"),
        (SOURCE.filter(odd).map(random_map, seed=1), r"map\(function=random_map, seed=1\)"),
        (SOURCE.filter(odd).window(3), r"window\(.*\)"),
        (SOURCE.filter(odd).assert_cardinality(5), r"assert_cardinality\(expected=5\)"),
        (SOURCE.filter(odd).group_by_reducer(odd, TOTALS), r"group_by_reducer\(.*\)"),
    ],
)
def test_what_must_see_all_elements_is_refused_above_a_shared_job(dataset, culprit):
    with pytest.raises(ps.InvalidArgumentError, match=culprit + " at .* must see all elements.*omit job_name"):
        check_shared(cut(dataset.node))


def test_what_works_on_any_elements_may_stand_above_a_shared_job():
    dataset = SOURCE.filter(odd).batch(2).map(double).shuffle(3).prefetch(1).repeat(2)
    check_shared(cut(dataset.node))
    check_shared(cut(SOURCE.take(4).enumerate().node))  # by index: on the workers


def parts(dataset, policy, count):
    return [
        [np.asarray(x).tolist() for x in Dataset(nodes_of_pass(dataset.node, policy, pass_of(index, count)))]
        for index in range(count)
    ]


def pass_of(index, count):
    return PassInfo(number=index, shard_index=index, num_shards=count)


def test_off_is_everything_for_everybody():
    assert parts(SOURCE, Policy.OFF, 2) == [list(range(10))] * 2
    assert seed_of(5, Policy.OFF, pass_of(0, 1)) == 5
    assert seed_of(5, Policy.OFF, pass_of(2, 1)) == mix(5, 2)
    assert seed_of(5, Policy.DATA, pass_of(2, 3)) == 5


def test_data_is_every_nth_element():
    assert parts(SOURCE.filter(odd), Policy.DATA, 2) == [[1, 5, 9], [3, 7]]
    assert parts(SOURCE.batch(4), Policy.DATA, 2) == [[[0, 1, 2, 3], [8, 9]], [[4, 5, 6, 7]]]


def test_dynamic_in_parts_is_the_pipeline_over_every_nth_row():
    # Coordinated reads: each worker makes batches of its own.
    assert parts(SOURCE.filter(odd).batch(2), Policy.DYNAMIC, 3) == [[[3, 9]], [[1, 7]], [[5]]]
    assert parts(SOURCE.batch(4), Policy.DYNAMIC, 2) == [[[0, 1, 2, 3], [8, 9]], [[4, 5, 6, 7]]]
    assert parts(STREAM.batch(4), Policy.DYNAMIC, 2) == [[[0, 1, 2, 3], [8, 9]], [[4, 5, 6, 7]]]


def test_file_is_every_nth_file(tmp_path):
    for name in range(3):
        (tmp_path / f"{name}").write_text(f"{name}a\n{name}b\n")
    dataset = ps.TextLineDataset(ps.Dataset.list_files(str(tmp_path / "*"))).batch(3)
    expected = [[["0a", "0b", "2a"], ["2b"]], [["1a", "1b"]]]
    assert parts(dataset, Policy.FILE, 2) == expected
    assert parts(dataset, Policy.FILE_OR_DATA, 2) == expected
    message = r"reads 3 files, fewer than the 4 workers: use ShardingPolicy.DATA, or more"
    for policy in (Policy.FILE, Policy.FILE_OR_DATA):
        with pytest.raises(ps.InvalidArgumentError, match=message):
            nodes_of_pass(dataset.node, policy, pass_of(0, 4))


def test_file_without_files_is_refused_and_file_or_data_falls_back():
    with pytest.raises(ps.InvalidArgumentError, match=r"ShardingPolicy.FILE does not fit: range\(.* reads no files"):
        check_policy(SOURCE.node, Policy.FILE)
    assert parts(SOURCE, Policy.FILE_OR_DATA, 3) == [[0, 3, 6, 9], [1, 4, 7], [2, 5, 8]]


def test_hint_divides_where_it_stands_and_nowhere_else():
    hinted = SOURCE.shard(ps.SHARD_HINT, ps.SHARD_HINT).filter(odd).batch(2)
    assert parts(hinted, Policy.HINT, 3) == [[[3, 9]], [[1, 7]], [[5]]]
    for policy in (Policy.OFF, Policy.DYNAMIC, Policy.FILE, Policy.DATA, Policy.FILE_OR_DATA):
        with pytest.raises(ps.InvalidArgumentError, match="works under ShardingPolicy.HINT only"):
            check_policy(hinted.node, policy)
    with pytest.raises(ps.InvalidArgumentError, match="ShardingPolicy.HINT needs a place to shard at"):
        check_policy(SOURCE.node, Policy.HINT)


@pytest.mark.parametrize("policy", [Policy.OFF, Policy.DYNAMIC, Policy.DATA, Policy.FILE_OR_DATA])
@pytest.mark.parametrize("case", CUTS)
def test_the_kind_of_a_pass_is_the_same_for_any_number_of_parts(case, policy):
    node = CUTS[case][0].node
    if policy is Policy.FILE_OR_DATA and case == "files":
        kinds = [kind_of(nodes_of_pass(node, policy, pass_of(0, count)))[0] for count in (1, 2)]
        assert kinds == ["groups", "groups"]
        return
    kinds = {
        kind_of(nodes_of_pass(node, policy, pass_of(index, count)))[0] for count in (1, 2) for index in range(count)
    }
    assert len(kinds) == 1
