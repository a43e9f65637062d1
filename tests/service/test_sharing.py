"""Several readers of one job: in step, each with everything, or each with its share."""

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
from forked import Forked

import penstock as ps
from penstock.service.transport.dispatcher_client import DispatcherClient
from penstock.service.wire.dispatcher_messages import GetStatus, WorkerHello
from penstock.service.wire.subjects import Endpoint


@pytest.fixture
def target() -> Iterator[str]:
    with ps.service.DispatchServer(ps.service.DispatcherConfig(heartbeat_seconds=0.5)) as dispatcher:
        address = dispatcher.target.split("://")[1]
        config = ps.service.WorkerConfig(dispatcher_address=address)
        with ps.service.WorkerServer(config), ps.service.WorkerServer(config):
            yield dispatcher.target


def together(count: int, read: Callable[[int], list[object]]) -> list[list[object]]:
    """What `count` readers get that run at the same time."""
    results: list[list[object]] = [[] for _ in range(count)]

    def run(index: int) -> None:
        results[index] = read(index)

    threads = [threading.Thread(target=run, args=(index,)) for index in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def coordinated(dataset: ps.Dataset, target: str, name: str, index: int, count: int, mode: str) -> ps.Dataset:
    transformation = ps.service.distribute(mode, target, job_name=name, consumer_index=index, num_consumers=count)
    return dataset.apply(transformation)


def test_in_every_round_consumers_get_neighbours_of_one_worker(target: str) -> None:
    def read(index: int) -> list[object]:
        dataset = coordinated(ps.Dataset.range(1 << 40), target, "rounds", index, 2, "parallel_epochs")
        with iter(dataset) as iterator:
            return [int(x) for x in islice(iterator, 8)]

    # Two workers go through the whole range; in turn each gives a group of two.
    assert together(2, read) == [[0, 0, 2, 2, 4, 4, 6, 6], [1, 1, 3, 3, 5, 5, 7, 7]]


def test_a_coordinated_distributed_epoch_gives_every_element_once(target: str) -> None:
    def read(index: int) -> list[object]:
        dataset = coordinated(ps.Dataset.range(12), target, "once", index, 2, "distributed_epoch")
        return [int(x) for x in dataset]

    # Of two workers the first has the even rows, the second the odd ones.
    assert together(2, read) == [[0, 1, 4, 5, 8, 9], [2, 3, 6, 7, 10, 11]]


def test_a_single_coordinated_consumer_has_the_rounds_in_order(target: str) -> None:
    dataset = coordinated(ps.Dataset.range(200), target, "single", 0, 1, "distributed_epoch")
    # In turn the worker of the even rows and that of the odd ones, as with any number of consumers.
    assert [int(x) for x in dataset] == list(range(200))


def test_what_fills_no_round_is_left_out(target: str) -> None:
    def read(index: int) -> list[object]:
        dataset = coordinated(ps.Dataset.range(11), target, "left", index, 2, "distributed_epoch")
        return [int(x) for x in dataset]

    # The even rows 0 to 10 make three rounds, the odd ones 1 to 9 two, and 9 is left.
    assert together(2, read) == [[0, 1, 4, 5, 8], [2, 3, 6, 7, 10]]


def bucketed() -> ps.Dataset:
    """Batches of sentences of like length, always two in a row of the same bucket."""
    rng = np.random.default_rng(0)
    lengths = rng.integers(1, 41, 400)
    sentences = ps.Dataset.range(400).map(lambda i: np.ones(lengths[i], np.int64))
    return sentences.group_by_window(
        key_func=lambda sentence: len(sentence) // 10,
        reduce_func=lambda _, window: window.padded_batch(4, drop_remainder=True),
        window_size=8,
    )


@pytest.mark.slow
def test_sequences_of_like_length_meet_in_a_step(target: str) -> None:
    def read(index: int) -> list[object]:
        dataset = coordinated(bucketed(), target, "lengths", index, 2, "parallel_epochs")
        with iter(dataset) as iterator:
            return [batch.shape for batch in islice(iterator, 40)]

    first, second = together(2, read)
    assert len(first) == 40
    assert [shape[1] // 10 for shape in first] == [shape[1] // 10 for shape in second]  # type: ignore[index]


def test_another_number_of_consumers_is_refused(target: str) -> None:
    dataset = ps.Dataset.range(1 << 40)
    with iter(coordinated(dataset, target, "count", 0, 1, "parallel_epochs")) as iterator:
        next(iterator)
        with (
            pytest.raises(ps.InvalidArgumentError, match="num_consumers"),
            iter(coordinated(dataset, target, "count", 0, 2, "parallel_epochs")) as other,
        ):
            next(other)


@pytest.mark.parametrize(
    ("other", "difference"),
    [
        (ps.Dataset.range(1 << 40).batch(8), r"'batch\(batch_size=8\) .*' instead of 'batch\(batch_size=4\) "),
        (ps.Dataset.range(1 << 40), r"'range\(.*' instead of 'batch\(batch_size=4\) "),
        (ps.Dataset.range(1 << 41).batch(4), "'.* index, 549,755,813,888' instead of '.* index, 274,877,906,944'"),
    ],
)
def test_a_job_of_another_dataset_is_refused(target: str, other: ps.Dataset, difference: str) -> None:
    def shared(dataset: ps.Dataset) -> ps.Dataset:
        return dataset.apply(ps.service.distribute("distributed_epoch", target, job_name="taken"))

    with iter(shared(ps.Dataset.range(1 << 40).batch(4))) as iterator:
        next(iterator)
        with pytest.raises(ps.InvalidArgumentError, match=f"'taken'.* which has the step {difference}"):
            next(iter(shared(other)))


def test_a_job_of_a_dataset_with_other_contents_is_refused(target: str) -> None:
    def shared(values: np.ndarray) -> ps.Dataset:
        dataset = ps.Dataset.from_tensor_slices(values)
        return dataset.apply(ps.service.distribute("distributed_epoch", target, job_name="contents"))

    with iter(shared(np.arange(1000))) as iterator:
        next(iterator)
        with pytest.raises(ps.InvalidArgumentError, match="which has the same steps, with other functions or contents"):
            next(iter(shared(np.arange(1000) + 1)))


def slowly(x: np.ndarray) -> np.ndarray:
    """Blocks stay small, and all workers have their turn."""
    time.sleep(0.002)
    return x


def cached(target: str, trainer: str, name: str) -> ps.Dataset:
    cache = ps.service.CrossTrainerCache(trainer)
    numbers = ps.Dataset.range(1 << 40).map(slowly).repeat()
    return numbers.apply(ps.service.distribute("distributed_epoch", target, job_name=name, cross_trainer_cache=cache))


@pytest.mark.slow
def test_trainers_with_ids_of_their_own_get_the_same_elements(target: str) -> None:
    # Of two workers each has a half, in its order. Which of them answers first is nobody's promise.
    seen: dict[tuple[str, int], list[int]] = {(trainer, half): [] for trainer in "ab" for half in range(2)}
    with iter(cached(target, "a", "cache")) as first, iter(cached(target, "b", "cache")) as second:
        while min(map(len, seen.values())) < 30:
            for trainer, x in (("a", next(first)), ("b", next(second))):
                seen[trainer, int(x) % 2].append(int(x))
    for (_, half), elements in seen.items():
        assert elements == list(range(half, half + 2 * len(elements), 2))


@pytest.mark.slow
def test_readers_of_one_trainer_share_its_elements(target: str) -> None:
    given: list[int] = []
    with iter(cached(target, "a", "one")) as first, iter(cached(target, "a", "one")) as second:
        given += [int(next(first)), int(next(second))]  # both read from here on
        begun = set(given)
        for _ in range(60):
            given += [int(next(first)), int(next(second))]
    later = [x for x in given[2:] if x not in begun]
    assert len(set(later)) == len(later)
    assert len(later) >= 118


def test_trainers_that_begin_together_meet_the_same_elements(target: str) -> None:
    def read(index: int) -> list[object]:
        with iter(cached(target, "ab"[index], "together")) as iterator:
            return [int(x) for x in islice(iterator, 100)]

    first, second = together(2, read)
    assert len({*first} & {*second}) >= 50


@pytest.mark.parametrize("policy", ["DATA", "FILE_OR_DATA"])
def test_a_static_policy_gives_every_element_once(policy: str) -> None:
    config = ps.service.DispatcherConfig(worker_addresses=("localhost", "localhost"))
    with ps.service.DispatchServer(config) as dispatcher:
        worker = ps.service.WorkerConfig(dispatcher_address=dispatcher.target.split("://")[1])
        with ps.service.WorkerServer(worker), ps.service.WorkerServer(worker):
            mode = ps.service.ShardingPolicy[policy]
            dataset = ps.Dataset.range(9).apply(ps.service.distribute(mode, dispatcher.target))
            assert sorted(int(x) for x in dataset) == list(range(9))


def test_files_go_to_workers_by_their_place(tmp_path: Path) -> None:
    for number in range(3):
        (tmp_path / f"{number}.txt").write_text(f"{number}a\n{number}b\n")
    config = ps.service.DispatcherConfig(worker_addresses=("localhost", "localhost"))
    with ps.service.DispatchServer(config) as dispatcher:
        worker = ps.service.WorkerConfig(dispatcher_address=dispatcher.target.split("://")[1])
        with ps.service.WorkerServer(worker), ps.service.WorkerServer(worker):
            files = ps.TextLineDataset(sorted(map(str, tmp_path.glob("*.txt"))))
            dataset = files.apply(ps.service.distribute(ps.service.ShardingPolicy.FILE, dispatcher.target))
            assert sorted(dataset) == ["0a", "0b", "1a", "1b", "2a", "2b"]


def test_a_static_policy_without_a_list_of_workers_is_refused(target: str) -> None:
    dataset = ps.Dataset.range(9).apply(ps.service.distribute(ps.service.ShardingPolicy.DATA, target))
    with pytest.raises(ps.InvalidArgumentError, match="worker_addresses"):
        list(dataset)


def test_local_workers_only(target: str) -> None:
    dataset = ps.Dataset.range(9).apply(ps.service.distribute("distributed_epoch", target, target_workers="LOCAL"))
    assert [int(x) for x in dataset] == list(range(9))


def await_workers(target: str, count: int) -> None:
    client = DispatcherClient(target)
    while len(client.ask(GetStatus()).workers) < count:
        time.sleep(0.01)
    client.close()


@pytest.mark.slow
@pytest.mark.parametrize(("policy", "count"), [("DATA", 6), ("OFF", 12), ("DYNAMIC", 12)])
def test_a_reader_beside_its_worker_has_what_belongs_to_that_worker(policy: str, count: int) -> None:
    """Two machines, a trainer and a data worker on each: together they read everything once, or each all of it."""
    config = ps.service.DispatcherConfig(worker_addresses=("localhost", "localhost"))
    with ps.service.DispatchServer(config) as dispatcher:
        address = dispatcher.target.split("://")[1]
        elsewhere = Forked("-m", "penstock", "worker", "--log-level=warning", "--dispatcher", address)
        try:
            with ps.service.WorkerServer(ps.service.WorkerConfig(dispatcher_address=address)):
                await_workers(dispatcher.target, 2)
                mode = ps.service.distribute(
                    ps.service.ShardingPolicy[policy], dispatcher.target, target_workers="LOCAL"
                )
                given = [int(x) for x in ps.Dataset.range(12).apply(mode)]
        finally:
            elsewhere.terminate()
            elsewhere.wait()
    assert len(given) == count
    assert given in ([*range(0, 12, 2)], [*range(1, 12, 2)], [*range(12)])


def test_a_trainer_beside_its_worker_shares_what_that_worker_makes() -> None:
    with ps.service.DispatchServer() as dispatcher:
        config = ps.service.WorkerConfig(dispatcher_address=dispatcher.target.split("://")[1])
        client = DispatcherClient(dispatcher.target)
        with ps.service.WorkerServer(config):
            client.ask(WorkerHello(endpoint=Endpoint(address="elsewhere:1", process="another")))
            cache = ps.service.CrossTrainerCache("a")
            mode = ps.service.distribute(
                "parallel_epochs", dispatcher.target, job_name="j", cross_trainer_cache=cache, target_workers="LOCAL"
            )
            with iter(ps.Dataset.range(4).repeat().apply(mode)) as elements:
                assert [int(next(elements)) for _ in range(12)] == [0, 1, 2, 3] * 3
        client.close()


def test_without_local_workers_none_are_waited_for() -> None:
    with ps.service.DispatchServer() as dispatcher:
        dataset = ps.Dataset.range(9).apply(
            ps.service.distribute("distributed_epoch", dispatcher.target, target_workers="LOCAL")
        )
        with pytest.raises(ps.errors.ServiceError, match="there is none"):
            list(dataset)


@pytest.mark.extended
@pytest.mark.parametrize("limit", [1, 5])
def test_a_reader_that_waits_keeps_no_more_from_others_than_it_may(limit: int, target: str) -> None:
    def reader(count: int | None) -> ps.Dataset:
        shared = ps.service.distribute(
            "distributed_epoch", target, job_name="limited", max_outstanding_requests=count, compression=None
        )
        return ps.Dataset.range(1000).apply(shared)

    with iter(reader(limit)) as idle:
        given = [int(next(idle)) for _ in range(3)]
        others = [int(x) for x in reader(None)]
        assert len(others) >= 1000 - 3 - limit
        assert sorted([*given, *others, *map(int, idle)]) == list(range(1000))


def shared_job(dataset: ps.Dataset, target: str, name: str) -> ps.Dataset:
    return dataset.apply(ps.service.distribute("distributed_epoch", target, job_name=name))


@pytest.mark.extended
def test_readers_that_all_wait_do_not_hand_the_last_element_on_for_ever(target: str) -> None:
    """Each gave back what it had begun for the other one that waited too, before the first element of it was made."""

    def slowly(x: int) -> int:
        time.sleep(0.4)
        return x

    def read(_: int) -> list[int]:
        rows = ps.Dataset.range(1).flat_map(lambda _: ps.Dataset.range(4)).map(slowly)
        job = ps.service.distribute("distributed_epoch", target, job_name="all wait", max_outstanding_requests=1)
        return [int(x) for x in rows.apply(job)]

    with ThreadPoolExecutor(2) as pool:
        given = list(pool.map(read, range(2)))
    assert sorted(given[0] + given[1]) == list(range(4))


@pytest.mark.extended
def test_a_second_reader_gets_what_an_idle_first_one_has_not_read(target: str) -> None:
    readers = [shared_job(ps.Dataset.range(50_000).map(lambda x: x + 1).batch(32), target, "idle") for _ in range(2)]
    with iter(readers[0]) as idle, iter(readers[1]) as other:
        given = [next(idle)]
        given += other
        assert len(given) == 1563
        assert list(idle) == []
    assert sorted(np.concatenate(given)) == list(range(1, 50_001))


@pytest.mark.extended
def test_a_second_reader_gets_what_a_restored_one_that_is_idle_had_before(target: str) -> None:
    restored, other = (iter(shared_job(ps.Dataset.range(2000), target, "restored")) for _ in range(2))
    with restored, other:
        given = list(islice(restored, 30))
        state = restored.state_dict()
        for _ in range(300):
            next(restored)
        restored.load_state_dict(state)
        given += [next(restored), *other, *restored]
    assert sorted(given) == list(range(2000))


@pytest.mark.slow
def test_endless_training_resumes_where_another_reader_had_an_epoch(target: str) -> None:
    readers = [shared_job(ps.Dataset.range(5), target, "endless").repeat() for _ in range(2)]
    with iter(readers[0]) as first, iter(readers[1]) as second:
        had = [int(next(first)) for _ in range(5)]  # the epoch that the second one begins with
        had += [int(next(second)) for _ in range(5)]
    assert sorted(had) == sorted([*range(5), *range(5)])


@pytest.mark.slow
@pytest.mark.parametrize("times", [1, 2])
def test_a_state_of_an_earlier_epoch_loses_nothing(times: int, target: str) -> None:
    with iter(shared_job(ps.Dataset.range(20), target, f"crossed {times}").repeat(3)) as iterator:
        given = [int(x) for x in islice(iterator, 5)]
        state = iterator.state_dict()
        for _ in range(times):
            assert len(list(islice(iterator, 23))) == 23, "the rest of the epoch, and 8 elements of the next"
            iterator.load_state_dict(state)
        given += [int(x) for x in iterator]
    assert sorted(given) == [x for x in range(20) for _ in range(3)]


def test_an_empty_dataset_of_a_shared_job_is_not_repeated_for_ever(target: str) -> None:
    dataset = shared_job(ps.Dataset.range(50).filter(lambda x: x < 0), target, "empty").repeat()
    assert list(dataset) == []


@pytest.mark.slow
def test_elements_go_to_whoever_consumes_them(target: str) -> None:
    """A quick reader, which takes nine elements for each of a slow one, need not wait for what that one has."""
    readers = [shared_job(ps.Dataset.range(300).map(lambda x: x + 1), target, "paces") for _ in range(2)]
    with iter(readers[0]) as quick, iter(readers[1]) as slow:
        of_slow, of_quick = [], []
        for _ in range(25):
            of_slow.append(int(next(slow)))
            of_quick += [int(x) for x in islice(quick, 9)]
        assert (len(of_slow), len(of_quick)) == (25, 225)
        rest = [int(x) for reader in (quick, slow) for x in reader]
        assert sorted(of_slow + of_quick + rest) == list(range(1, 301))


def test_a_registered_dataset_is_had_by_its_id(target: str) -> None:
    name = ps.service.register_dataset(target, ps.Dataset.range(6).map(lambda x: (x, np.float32(x))), dataset_id="six")
    dataset = ps.service.from_dataset_id("distributed_epoch", target, name)
    assert dataset.element_spec == (ps.TensorSpec((), np.int64), ps.TensorSpec((), np.float32))
    assert [int(x) for x, _ in dataset] == list(range(6))
    with pytest.raises(ps.InvalidArgumentError, match="other elements"):
        ps.service.from_dataset_id("distributed_epoch", target, name, element_spec=ps.TensorSpec((), np.int32))


def test_an_id_that_nobody_registered(target: str) -> None:
    with pytest.raises(ps.InvalidArgumentError, match="nobody.*register_dataset"):
        ps.service.from_dataset_id("distributed_epoch", target, "nobody")


def test_a_registered_pipeline_that_streams_is_made_by_one_worker(target: str) -> None:
    dataset = ps.Dataset.range(20).filter(lambda x: x % 2 == 0).take(4)
    name = ps.service.register_dataset(target, dataset)
    assert [int(x) for x in ps.service.from_dataset_id("distributed_epoch", target, name)] == [0, 2, 4, 6]


@pytest.mark.slow
def test_the_rest_of_filtered_rows_comes_from_where_a_reader_left(target: str) -> None:
    dataset = ps.Dataset.range(2000).filter(lambda x: x % 2 == 0)
    shared = ps.service.distribute("distributed_epoch", target, job_name="left")
    with iter(dataset.apply(shared)) as leaving:
        had = [int(next(leaving)) for _ in range(401)]
    with iter(dataset.apply(shared)) as other:
        had += [int(x) for x in other]
    assert len(set(had)) == len(had)


@pytest.mark.slow
def test_two_strategies_share_a_named_job_without_sharding_it_again(target: str) -> None:
    def read(index: int) -> list[object]:
        strategy = ps.HostStrategy(replicas_per_worker=2, num_workers=2, worker_index=index)
        dataset = ps.Dataset.range(24).batch(4)
        dataset = dataset.apply(ps.service.distribute("distributed_epoch", target, job_name="workers"))
        found: list[object] = []
        for step in strategy.distribute_dataset(dataset):
            found += [int(x) for part in step.values for x in part]
        return found

    first, second = together(2, read)
    assert sorted(first + second) == list(range(24))  # type: ignore[type-var]


def test_a_job_for_one_reader_is_sharded_by_rows(target: str) -> None:
    found = []
    for index in range(2):
        strategy = ps.HostStrategy(num_workers=2, worker_index=index)
        dataset = ps.Dataset.range(12).batch(4).apply(ps.service.distribute("distributed_epoch", target))
        found.append([part.tolist() for step in strategy.distribute_dataset(dataset) for part in step.values])
    assert found == [[[0, 1], [4, 5], [8, 9]], [[2, 3], [6, 7], [10, 11]]]


def test_parallel_epochs_without_a_name_cannot_be_sharded(target: str) -> None:
    strategy = ps.HostStrategy(num_workers=2)
    dataset = ps.Dataset.range(12).batch(4).apply(ps.service.distribute("parallel_epochs", target))
    with pytest.raises(ps.InvalidArgumentError, match="give it a job_name"):
        strategy.distribute_dataset(dataset)


@pytest.mark.extended
def test_readers_that_describe_one_dataset_on_two_lines_share_a_job(target: str) -> None:
    shared = ps.service.distribute("distributed_epoch", target, job_name="lines", max_outstanding_requests=1)
    first = ps.Dataset.range(50).map(lambda x: x if x not in {1, 2} else -x).apply(shared)
    second = ps.Dataset.range(50).map(lambda x: x if x not in {1, 2} else -x).apply(shared)
    with iter(first) as one, iter(second) as other:
        given = [int(next(one)), int(next(other))]
        given += [int(x) for reader in (one, other) for x in reader]
    assert sorted(map(abs, given)) == list(range(50))


def test_an_id_is_given_to_an_equal_dataset_again_and_to_no_other(target: str) -> None:
    ps.service.register_dataset(target, ps.Dataset.range(3), dataset_id="numbers")
    assert ps.service.register_dataset(target, ps.Dataset.range(3), dataset_id="numbers") == "numbers"
    with pytest.raises(ps.InvalidArgumentError, match="another dataset is registered as 'numbers'"):
        ps.service.register_dataset(target, ps.Dataset.range(4), dataset_id="numbers")


def test_a_second_run_under_the_name_of_the_first_read_nothing_in_silence(
    target: str, caplog: pytest.LogCaptureFixture
) -> None:
    def program() -> list[int]:
        shared = ps.service.distribute("distributed_epoch", target, job_name="again")
        return [int(x) for x in ps.Dataset.range(5).apply(shared)]

    assert sorted(program()) == list(range(5))
    assert caplog.messages == []
    assert program() == []
    assert "nothing is left of epoch 0 of the job 'again': other readers have consumed it" in caplog.text
