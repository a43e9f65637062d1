"""The dispatcher's machine alone, told of everything, the time too, gives every element to the right reader."""

from typing import Any

import pytest
from deciding import CheckedMachine

from penstock.service.config import DispatcherConfig
from penstock.service.dispatcher.machine.knowledge import Knowledge
from penstock.service.dispatcher.machine.report import log_lines
from penstock.service.dispatcher.machine.state import Consumer, Epoch
from penstock.service.dispatcher.machine.updates import Stopping
from penstock.service.wire.dispatcher_messages import (
    ConsumerHeartbeat,
    ConsumerNews,
    DatasetFound,
    DatasetRegistered,
    Done,
    EpochOpened,
    GetDataset,
    GetStatus,
    Lease,
    Leased,
    OpenEpoch,
    RegisterDataset,
    ReleaseConsumer,
    Status,
    Stop,
    WorkerHeartbeat,
    WorkerHello,
    WorkerNews,
    WorkerWelcome,
)
from penstock.service.wire.policy import ShardingPolicy
from penstock.service.wire.spans import insert, without
from penstock.service.wire.subjects import DatasetInfo, Endpoint, JobParameters, PassKind, Refused, Span

OFF, DYNAMIC, FILE, DATA = ShardingPolicy.OFF, ShardingPolicy.DYNAMIC, ShardingPolicy.FILE, ShardingPolicy.DATA


_BOOT = 1000.0
"""No clock starts at 0, where a sum of two times is like their difference."""


def span(start: int, stop: int, pass_number: int = 0, skip: int = 0, more: int = 0) -> Span:
    return Span(pass_number=pass_number, start=start, stop=stop, skip=skip, more=more)


class Dispatcher:
    """A machine, a clock, and one line for each thing that a peer may say."""

    def __init__(self, **config: Any) -> None:
        self.machine = CheckedMachine(DispatcherConfig(**config), now=_BOOT)
        self.now = _BOOT

    def tell(self, message: Any) -> Any:
        return self.machine.answer(message, self.now)

    def wait(self, seconds: float) -> None:
        """Time goes by, in steps as small as the server's."""
        until = self.now + seconds
        while self.now < until:
            self.now = min(until, self.now + 0.5)
            self.machine.pass_time(self.now)

    def dataset(self, length: int = 100, kind: PassKind = "rows", dataset_id: str = "") -> str:
        info = DatasetInfo(kind=kind, length=length, cardinality=length)
        reply = self.tell(RegisterDataset(definition=b"%d" % length, info=info, dataset_id=dataset_id))
        assert isinstance(reply, DatasetRegistered)
        return reply.dataset_id

    def worker(self, address: str = "host:1", process: str = "", tags: list[str] | None = None) -> int:
        reply = self.tell(WorkerHello(endpoint=Endpoint(address=address, process=process), tags=tags or []))
        assert isinstance(reply, WorkerWelcome), reply
        return reply.worker_id

    def workers(self, count: int) -> list[int]:
        return [self.worker(f"host{number}:1") for number in range(count)]

    def open(
        self,
        dataset_id: str,
        policy: ShardingPolicy = DYNAMIC,
        job: str = "job",
        consumer: str = "a",
        epoch: int = 0,
        resumed: list[Span] | None = None,
        index: int = -1,
        **parameters: Any,
    ) -> Any:
        return self.tell(
            OpenEpoch(
                job_name=job,
                parameters=JobParameters(dataset_id=dataset_id, policy=policy, **parameters),
                epoch=epoch,
                seed=7,
                consumer=consumer,
                consumer_index=index,
                resumed=resumed,
            )
        )

    def opened(self, *arguments: Any, **keywords: Any) -> EpochOpened:
        reply = self.open(*arguments, **keywords)
        assert isinstance(reply, EpochOpened), reply
        return reply

    def lease(self, reader: EpochOpened, positions: int, consumed: list[Span] | None = None, **more: Any) -> Leased:
        """What a reader is granted; it hands all of it on at once, and says so."""
        more = {"unread": 0, **more}
        reply = self.ask(reader, positions, consumed=consumed or [], **more)
        if reply.spans:
            self.ask(reader, 0, unread=0)
        return reply

    def ask(self, reader: EpochOpened, positions: int, **more: Any) -> Leased:
        reply = self.tell(Lease(consumer_id=reader.consumer_id, positions=positions, **more))
        assert isinstance(reply, Leased), reply
        return reply

    def beat(self, reader: EpochOpened) -> Any:
        return self.tell(ConsumerHeartbeat(consumer_id=reader.consumer_id))

    def release(self, reader: EpochOpened, consumed: list[Span] | None = None) -> None:
        message = ReleaseConsumer(consumer_id=reader.consumer_id, consumed=consumed or [])
        assert isinstance(self.tell(message), Done)

    def drained(self, reader: EpochOpened, at_a_time: int = 1000) -> list[Span]:
        """All that is left for a reader, consumed as it comes."""
        spans: list[Span] = []
        consumed: list[Span] = []
        while not (leased := self.lease(reader, at_a_time, consumed)).ended:
            assert leased.spans, "it is to wait"
            consumed = leased.spans
            spans += leased.spans
        return spans


def numbers(spans: list[Span]) -> list[int]:
    return [position for one in spans for position in range(one.start, one.stop)]


def refusal(reply: Any) -> str:
    assert isinstance(reply, Refused), reply
    return f"{reply.kind}: {reply.reason}"


# Datasets


def test_the_content_of_a_dataset_is_its_name() -> None:
    dispatcher = Dispatcher()
    assert dispatcher.dataset(10) == dispatcher.dataset(10) != dispatcher.dataset(11)


def test_a_dataset_keeps_the_id_that_it_was_given() -> None:
    dispatcher = Dispatcher()
    assert dispatcher.dataset(10, dataset_id="ten") == dispatcher.dataset(10, dataset_id="ten") == "ten"
    found = dispatcher.tell(GetDataset(dataset_id="ten"))
    assert isinstance(found, DatasetFound)
    assert (found.definition, found.info.length) == (b"10", 10)
    assert dispatcher.tell(GetDataset(dataset_id="ten", with_definition=False)).definition == b""


def test_an_id_belongs_to_one_dataset() -> None:
    dispatcher = Dispatcher()
    dispatcher.dataset(10, dataset_id="ten")
    info = DatasetInfo(kind="rows", length=11, cardinality=11)
    reply = dispatcher.tell(RegisterDataset(definition=b"11", info=info, dataset_id="ten"))
    assert refusal(reply).startswith("InvalidArgumentError: another dataset is registered as 'ten'")


def test_an_unknown_dataset_is_to_be_registered_first() -> None:
    dispatcher = Dispatcher()
    expected = "InvalidArgumentError: the dispatcher knows no dataset 'no': call ps.service.register_dataset first"
    assert refusal(dispatcher.tell(GetDataset(dataset_id="no"))).startswith(expected)
    assert refusal(dispatcher.open("no")).startswith(expected)


def test_an_unnamed_dataset_without_readers_is_forgotten() -> None:
    dispatcher = Dispatcher(dataset_gc_seconds=60)
    unnamed, named = dispatcher.dataset(10), dispatcher.dataset(11, dataset_id="eleven")
    reader = dispatcher.opened(unnamed, job="")
    for _ in range(100):
        dispatcher.wait(1)
        dispatcher.beat(reader)
    assert isinstance(dispatcher.tell(GetDataset(dataset_id=unnamed)), DatasetFound)
    dispatcher.release(reader)
    dispatcher.wait(62)
    assert isinstance(dispatcher.tell(GetDataset(dataset_id=unnamed)), Refused)
    assert isinstance(dispatcher.tell(GetDataset(dataset_id=named)), DatasetFound)


# Workers


def test_workers_that_report_stay_and_silent_ones_are_lost() -> None:
    dispatcher = Dispatcher(heartbeat_seconds=2, missed_heartbeats=3)
    kept, lost = dispatcher.workers(2)
    for _ in range(4):
        dispatcher.wait(2)
        assert dispatcher.tell(WorkerHeartbeat(worker_id=kept)) == WorkerNews(known=True, datasets=[])
    reader = dispatcher.opened(dispatcher.dataset())
    assert [worker.worker_id for worker in reader.workers] == [kept]
    assert dispatcher.tell(WorkerHeartbeat(worker_id=lost)).known is False


def test_a_worker_that_says_hello_twice_is_one_worker() -> None:
    dispatcher = Dispatcher()
    assert dispatcher.worker("host:1", "process") == dispatcher.worker("host:1", "process")


def test_a_worker_back_under_its_address_replaces_the_old_one() -> None:
    dispatcher = Dispatcher()
    old, new = dispatcher.worker("host:1", "process 1"), dispatcher.worker("host:1", "process 2")
    assert old != new
    reader = dispatcher.opened(dispatcher.dataset())
    assert [worker.worker_id for worker in reader.workers] == [new]


def test_a_worker_that_leaves_is_asked_nothing_more() -> None:
    dispatcher = Dispatcher()
    staying, leaving = dispatcher.workers(2)
    reader = dispatcher.opened(dispatcher.dataset(), OFF)
    assert [part.worker_id for part in reader.passes] == [staying, leaving]
    assert dispatcher.tell(WorkerHeartbeat(worker_id=leaving, leaving=True)).known
    news = dispatcher.beat(reader)
    assert isinstance(news, ConsumerNews)
    assert [worker.worker_id for worker in news.workers] == [staying]
    assert [part.worker_id for part in news.passes] == [staying, staying]
    dispatcher.tell(WorkerHeartbeat(worker_id=leaving, left=True))
    assert [worker.alive for worker in dispatcher.tell(GetStatus()).workers] == [True, False]


def test_the_status_tells_workers_that_left_from_leaving_or_lost_ones() -> None:
    dispatcher = Dispatcher(heartbeat_seconds=2, missed_heartbeats=15)
    gone, leaving, lost, busy = dispatcher.workers(4)
    for worker in (gone, leaving):
        dispatcher.tell(WorkerHeartbeat(worker_id=worker, leaving=True))
    dispatcher.tell(WorkerHeartbeat(worker_id=gone, left=True))
    dispatcher.wait(20)
    for worker in (leaving, busy):
        dispatcher.tell(WorkerHeartbeat(worker_id=worker, leaving=worker == leaving, rows=6, seconds=3))
    dispatcher.wait(15)
    shown = {worker.info.worker_id: worker for worker in dispatcher.tell(GetStatus()).workers}
    assert [shown[worker].left for worker in (gone, leaving, lost, busy)] == [True, False, False, False]
    assert [shown[worker].alive for worker in (gone, leaving, lost, busy)] == [False, True, False, True]
    assert [shown[worker].elements_per_second for worker in (gone, leaving, lost, busy)] == [0, 2, 0, 2]


def test_a_worker_with_no_address_or_of_a_stopping_dispatcher_is_refused() -> None:
    dispatcher = Dispatcher()
    hello = WorkerHello(endpoint=Endpoint(address="nowhere"))
    assert 'which is no "host:port": start it with a --worker-address' in refusal(dispatcher.tell(hello))
    assert isinstance(dispatcher.tell(WorkerHello(endpoint=Endpoint(address="somewhere:1"))), WorkerWelcome)
    dispatcher.tell(Stop())
    hello = WorkerHello(endpoint=Endpoint(address="somewhere:2"))
    assert "this dispatcher is stopping: it takes no more workers" in refusal(dispatcher.tell(hello))


def test_a_reader_is_believed_about_a_worker_that_missed_a_report() -> None:
    dispatcher = Dispatcher(heartbeat_seconds=2)
    worker = dispatcher.worker()
    reader = dispatcher.opened(dispatcher.dataset())
    report = ConsumerHeartbeat(consumer_id=reader.consumer_id, lost_workers=[worker, 99])
    dispatcher.now = _BOOT + 2.9
    dispatcher.tell(report)
    assert len(dispatcher.beat(reader).workers) == 1, "perhaps it is the reader that is cut off"
    dispatcher.now = _BOOT + 3.1
    dispatcher.tell(report)
    assert dispatcher.beat(reader).workers == []


def test_lost_workers_are_forgotten_after_a_while() -> None:
    dispatcher = Dispatcher(worker_gc_seconds=60)
    dispatcher.worker()
    dispatcher.wait(30)
    assert len(dispatcher.tell(GetStatus()).workers) == 1
    dispatcher.wait(60)
    assert dispatcher.tell(GetStatus()).workers == []


def test_listed_workers_get_their_places_in_whatever_order_they_come() -> None:
    dispatcher = Dispatcher(worker_addresses=["a", "b:7", "a:%port%"])
    ids = [dispatcher.worker(address) for address in ("a:5", "b:7", "a:6")]
    places = {worker.info.worker_id: worker.info.place for worker in dispatcher.tell(GetStatus()).workers}
    assert [places[number] for number in ids] == [0, 1, 2]


def test_a_worker_that_is_not_listed_is_refused_with_an_explanation() -> None:
    dispatcher = Dispatcher(worker_addresses=["a:%port%", "b:7"])
    reply = dispatcher.tell(WorkerHello(endpoint=Endpoint(address="b:8")))
    assert refusal(reply).startswith(
        "InvalidArgumentError: the address 'b:8' of this worker is not in the dispatcher's worker_addresses "
        "('a:%port%', 'b:7')"
    )
    dispatcher.worker("a:1")
    reply = dispatcher.tell(WorkerHello(endpoint=Endpoint(address="a:2")))
    assert "are taken by other workers (a:1): stop one of them" in refusal(reply)


def test_a_listed_worker_comes_back_to_its_place_under_another_port() -> None:
    dispatcher = Dispatcher(worker_addresses=["a:%port%"])
    dispatcher.worker("a:1")
    dispatcher.wait(7)
    dispatcher.worker("a:2")
    assert [worker.info.place for worker in dispatcher.tell(GetStatus()).workers if worker.alive] == [0]


# Passes


def test_a_distributed_epoch_is_one_pass_that_any_worker_can_produce() -> None:
    dispatcher = Dispatcher()
    dispatcher.workers(3)
    (part,) = dispatcher.opened(dispatcher.dataset(12)).passes
    assert (part.worker_id, part.num_shards, part.length) == (-1, 1, 12)


def test_a_sequence_is_asked_of_one_worker_and_moves_when_that_is_lost() -> None:
    dispatcher = Dispatcher()
    first, second = dispatcher.workers(2)
    reader = dispatcher.opened(dispatcher.dataset(-2, "sequence"))
    assert [part.worker_id for part in reader.passes] == [first]
    for _ in range(4):
        dispatcher.wait(2)
        dispatcher.tell(WorkerHeartbeat(worker_id=second))
        news = dispatcher.beat(reader)
    assert [part.worker_id for part in news.passes] == [second]


def test_parallel_epochs_have_a_pass_for_each_worker_that_joins() -> None:
    dispatcher = Dispatcher()
    first, second = dispatcher.workers(2)
    reader = dispatcher.opened(dispatcher.dataset(5), OFF, job="")
    assert [(part.worker_id, part.length) for part in reader.passes] == [(first, 5), (second, 5)]
    third = dispatcher.worker("late:1")
    assert [part.worker_id for part in dispatcher.beat(reader).passes] == [first, second, third]


def test_a_returning_worker_takes_up_its_pass_instead_of_a_new_one() -> None:
    dispatcher = Dispatcher()
    old = dispatcher.worker("host:1", "process 1")
    reader = dispatcher.opened(dispatcher.dataset(5), OFF)
    new = dispatcher.worker("host:1", "process 2")
    assert [part.worker_id for part in dispatcher.beat(reader).passes] == [new] != [old]


def test_passes_appear_when_workers_come() -> None:
    dispatcher = Dispatcher()
    reader = dispatcher.opened(dispatcher.dataset(5), OFF)
    assert reader.passes == []
    assert dispatcher.lease(reader, 10) == Leased(retry_after=0.2)
    dispatcher.worker()
    assert numbers(dispatcher.drained(reader)) == [0, 1, 2, 3, 4]


def test_static_policies_have_a_pass_for_every_listed_worker() -> None:
    dispatcher = Dispatcher(worker_addresses=["a", "b", "c"])
    second = dispatcher.worker("b:1")
    shards = dispatcher.opened(dispatcher.dataset(10), DATA).passes
    assert [(part.shard_index, part.num_shards, part.length) for part in shards] == [(0, 3, 4), (1, 3, 3), (2, 3, 3)]
    assert [part.worker_id for part in shards] == [-1, second, -1]
    files = dispatcher.opened(dispatcher.dataset(10), FILE, job="files")
    assert [part.length for part in files.passes] == [-2, -2, -2]
    third = dispatcher.worker("c:1")
    assert [part.worker_id for part in dispatcher.beat(files).passes] == [-1, second, third]


def test_static_policies_need_a_list_of_workers() -> None:
    dispatcher = Dispatcher()
    dispatcher.worker()
    assert refusal(dispatcher.open(dispatcher.dataset(), FILE)).startswith(
        "InvalidArgumentError: ShardingPolicy.FILE gives every worker its own part, by its place in the dispatcher's "
        "list of workers, and this dispatcher has none"
    )


# Leases


def test_a_reader_alone_leases_nothing() -> None:
    dispatcher = Dispatcher()
    reader = dispatcher.opened(dispatcher.dataset(), job="")
    assert not reader.leased
    assert refusal(dispatcher.tell(Lease(consumer_id=reader.consumer_id, positions=1))).startswith(
        "InvalidArgumentError: this consumer does not lease positions"
    )


def test_leases_grow_smaller_near_the_end() -> None:
    dispatcher = Dispatcher()
    first = dispatcher.opened(dispatcher.dataset(100))
    second = dispatcher.opened(dispatcher.dataset(100), consumer="b")
    assert dispatcher.lease(first, 40).spans == [span(0, 25)]
    assert dispatcher.lease(second, 10).spans == [span(25, 35)]
    assert dispatcher.lease(second, 40).spans == [span(35, 51)]
    sizes = [one.stop - one.start for one in dispatcher.drained(first)]
    assert sizes == [12, 9, 7, 5, 4, 3, 2, 1, 1, 1, 1, 1, 1, 1]


def test_every_element_goes_to_one_reader() -> None:
    dispatcher = Dispatcher()
    readers = [dispatcher.opened(dispatcher.dataset(50), consumer=name) for name in "abc"]
    first = numbers(dispatcher.lease(readers[0], 7).spans)
    second = numbers(dispatcher.lease(readers[1], 7).spans)
    third = numbers(dispatcher.drained(readers[2]))
    assert sorted(first + second + third) == list(range(50))


def test_a_reader_asks_again_ten_times_in_a_lease_at_least() -> None:
    for lease_seconds, retry_after in ((10, 0.2), (1, 0.1)):
        dispatcher = Dispatcher(lease_seconds=lease_seconds)
        reader = dispatcher.opened(dispatcher.dataset(10), OFF)
        assert dispatcher.lease(reader, 10) == Leased(retry_after=retry_after)


def test_a_request_that_is_sent_again_is_answered_again() -> None:
    dispatcher = Dispatcher()
    reader = dispatcher.opened(dispatcher.dataset(100))
    once = dispatcher.lease(reader, 10, number=1)
    assert dispatcher.lease(reader, 10, number=1) == once == Leased(spans=[span(0, 10)])
    assert dispatcher.lease(reader, 10, once.spans, number=2).spans == [span(10, 20)]


def test_spans_are_spread_over_the_passes_of_all_workers() -> None:
    dispatcher = Dispatcher()
    dispatcher.workers(3)
    reader = dispatcher.opened(dispatcher.dataset(100), OFF)
    assert dispatcher.lease(reader, 10).spans == [span(0, 4, 0), span(0, 3, 1), span(0, 3, 2)]
    assert dispatcher.lease(reader, 3).spans == [span(3, 4, 1), span(3, 4, 2), span(4, 5, 0)]


def test_what_is_returned_goes_first_with_what_was_handed_on_left_out() -> None:
    dispatcher = Dispatcher()
    first = dispatcher.opened(dispatcher.dataset(100, "groups"))
    second = dispatcher.opened(dispatcher.dataset(100, "groups"), consumer="b")
    dispatcher.lease(first, 10)
    dispatcher.lease(first, 0, [span(0, 4, more=3)], returned=[span(4, 10)])
    assert dispatcher.lease(second, 8).spans == [span(4, 10, skip=3), span(10, 12)]


def test_a_pass_of_unknown_length_ends_for_all_readers() -> None:
    dispatcher = Dispatcher()
    first = dispatcher.opened(dispatcher.dataset(-2))
    second = dispatcher.opened(dispatcher.dataset(-2), consumer="b")
    assert dispatcher.lease(first, 10).spans == [span(0, 10)]
    assert dispatcher.lease(second, 10).spans == [span(10, 20)]
    assert dispatcher.lease(second, 10, ended=[span(0, 12)]).ended
    assert dispatcher.lease(first, 10, [span(0, 10)]).ended
    (epoch,) = dispatcher.tell(GetStatus()).epochs
    assert (epoch.positions, epoch.consumed, epoch.leased, epoch.finished) == (12, 10, 2, False)
    dispatcher.lease(second, 0, [span(10, 12)])
    assert dispatcher.tell(GetStatus()).epochs[0].finished


def test_what_a_silent_reader_had_goes_to_others_after_its_lease() -> None:
    dispatcher = Dispatcher(lease_seconds=10, heartbeat_seconds=2)
    silent = dispatcher.opened(dispatcher.dataset(20))
    other = dispatcher.opened(dispatcher.dataset(20), consumer="b")
    assert dispatcher.lease(silent, 5).spans == [span(0, 5)]
    dispatcher.lease(silent, 0, [span(0, 2)])
    rest = dispatcher.drained(other)
    assert numbers(rest) == list(range(5, 20)), "a reader that was heard of just now is not waited for"
    dispatcher.now += 5
    assert dispatcher.lease(other, 10) == Leased(retry_after=0.2, near_end=True), "one that has fallen silent is"
    for _ in range(11):
        dispatcher.wait(1)
        dispatcher.beat(other)
    assert numbers(dispatcher.drained(other)) == [2, 3, 4]
    assert refusal(dispatcher.beat(silent)).startswith("LostLeaseError: the dispatcher knows no reader")


def test_a_dispatcher_that_stops_says_what_it_ends() -> None:
    dispatcher, _, _ = two_readers()
    (line,) = log_lines(dispatcher.machine.state, [Stopping(mode="leave")])
    assert line == "stopping after the last reader: 2 of epoch 0 of job 'job'; none of them can begin another epoch"
    (line,) = log_lines(dispatcher.machine.state, [Stopping(mode="now")])
    assert line == "stopping, and with it readers: 2 of epoch 0 of job 'job'"


def test_a_reader_hears_only_of_what_has_changed_since_it_was_told_last() -> None:
    dispatcher = Dispatcher()
    first = dispatcher.worker("host1:1")
    reader = dispatcher.opened(dispatcher.dataset(5), OFF)
    assert [worker.worker_id for worker in reader.workers] == [first]

    def hear(version: int) -> Any:
        return dispatcher.tell(ConsumerHeartbeat(consumer_id=reader.consumer_id, version=version))

    news = hear(reader.version)
    assert (news.workers, news.gone, news.whole) == ([], [], False)
    assert news == hear(news.version) or news.passes is not None
    assert hear(news.version).passes is None
    second = dispatcher.worker("host2:1")
    later = hear(news.version)
    assert ([worker.worker_id for worker in later.workers], later.gone) == ([second], [])
    assert [part.worker_id for part in later.passes] == [first, second]
    dispatcher.tell(WorkerHeartbeat(worker_id=first, left=True))
    latest = hear(later.version)
    assert (latest.workers, set(latest.gone), latest.whole) == ([], {first}, False)
    assert [part.worker_id for part in latest.passes] == [second, second]
    missed = hear(news.version)
    assert ([worker.worker_id for worker in missed.workers], set(missed.gone)) == ([second], {first})
    for unknown in (-1, latest.version + 1):
        everything = hear(unknown)
        assert everything.whole and [worker.worker_id for worker in everything.workers] == [second]
        assert len(everything.passes) == 2


def two_readers(length: int = 20) -> tuple[Dispatcher, EpochOpened, EpochOpened]:
    dispatcher = Dispatcher()
    dataset = dispatcher.dataset(length)
    return dispatcher, dispatcher.opened(dataset), dispatcher.opened(dataset, consumer="b")


def test_a_reader_waits_for_what_another_one_has_not_handed_on() -> None:
    dispatcher, idle, other = two_readers()
    assert dispatcher.ask(idle, 10, unread=0).spans == [span(0, 5)]
    rest = dispatcher.ask(other, 100, unread=0).spans
    while (leased := dispatcher.ask(other, 100, consumed=rest, unread=0, waiting=True)).spans:
        rest = leased.spans
    assert (leased.ended, leased.retry_after) == (False, 0.05)
    dispatcher.ask(idle, 0, returned=[span(1, 5)], unread=0)
    assert dispatcher.ask(other, 100, unread=0, waiting=True).spans == [span(1, 2)]
    assert numbers(dispatcher.drained(other)) == [2, 3, 4], "the element that the first one has used is not waited for"


def test_positions_are_wanted_back_for_a_reader_that_has_nothing() -> None:
    dispatcher, idle, other = two_readers(8)
    dispatcher.ask(idle, 2, unread=0)
    while dispatcher.ask(other, 100, unread=0).spans:
        pass
    assert not dispatcher.ask(idle, 0, unread=2).wanted, "the other one does not wait yet"
    assert not dispatcher.ask(other, 1, unread=0, waiting=True).ended
    assert dispatcher.ask(idle, 0, unread=2).wanted
    assert dispatcher.beat(idle).wanted
    assert not dispatcher.ask(idle, 0, unread=0).wanted, "it has nothing to give"
    assert not dispatcher.ask(idle, 0, unread=2, returned=[span(1, 2)]).wanted, "what it gives back goes first"
    assert not dispatcher.ask(idle, 0, unread=1).wanted
    assert dispatcher.ask(other, 1, unread=0, waiting=True).spans == [span(1, 2)]
    assert not dispatcher.ask(idle, 0, unread=1).wanted, "the other one has something now"
    dispatcher.ask(other, 1, unread=0, waiting=True)
    dispatcher.now += 2
    assert not dispatcher.ask(idle, 0, unread=1).wanted, "the other one has not asked for long"


def test_an_idle_reader_is_not_granted_again_what_it_gave_back() -> None:
    dispatcher, idle, other = two_readers(8)
    dispatcher.ask(idle, 2, unread=0)
    while (dispatcher.ask(other, 100, unread=0)).spans:
        pass
    assert dispatcher.ask(other, 1, unread=0, waiting=True).spans == []
    dispatcher.ask(idle, 0, unread=0, returned=[span(0, 2)])
    leased = dispatcher.ask(idle, 2, unread=0)
    assert (leased.spans, leased.ended, leased.retry_after) == ([], False, 0.2)
    assert dispatcher.ask(other, 1, unread=0, waiting=True).spans == [span(0, 1)]
    assert dispatcher.ask(idle, 2, unread=0).spans == [span(1, 2)], "the other one has something now"


def test_readers_are_told_when_little_is_left() -> None:
    dispatcher, first, second = two_readers(40)
    assert not dispatcher.ask(first, 10, unread=0).near_end
    assert not dispatcher.ask(second, 7, unread=0).near_end
    assert not dispatcher.ask(first, 5, unread=0).near_end
    assert dispatcher.ask(first, 0, unread=0).near_end, "18 are free, and 22 are with readers"


def test_a_lease_far_from_the_end_looks_at_no_other_readers(monkeypatch: pytest.MonkeyPatch) -> None:
    dispatcher, first, _ = two_readers(1000)

    def readers(known: Knowledge, epoch: Epoch) -> list[Consumer]:
        pytest.fail("there may be hundreds of them")

    monkeypatch.setattr(Knowledge, "readers", readers)
    assert dispatcher.ask(first, 250, unread=0).spans == [span(0, 250)], "its share of a half"
    assert dispatcher.ask(first, 10, consumed=[span(0, 250)], unread=5).spans == [span(250, 260)]


def test_a_reader_that_is_released_gives_back_at_once() -> None:
    dispatcher = Dispatcher()
    first = dispatcher.opened(dispatcher.dataset(20))
    second = dispatcher.opened(dispatcher.dataset(20), consumer="b")
    dispatcher.lease(first, 5)
    dispatcher.release(first, [span(0, 3)])
    assert numbers(dispatcher.drained(second)) == [3, 4, *range(5, 20)]


def test_a_reader_that_has_read_everything_is_not_said_to_give_it_back() -> None:
    dispatcher = Dispatcher()
    lines: list[str] = []
    dispatcher.machine = CheckedMachine(
        DispatcherConfig(), 0.0, lambda state, updates: lines.extend(log_lines(state, updates))
    )
    for consumed in (span(0, 5), span(5, 8)):
        reader = dispatcher.opened(dispatcher.dataset(20))
        dispatcher.lease(reader, 5)
        dispatcher.release(reader, [consumed])
    assert [line for line in lines if line.startswith("reader")] == ["reader 1: gone, gives back 2 positions"]


@pytest.mark.parametrize("wrong", [span(0, 1, pass_number=1), span(3, 2), span(-1, 2), span(0, 1 << 62)])
def test_what_is_no_span_is_refused(wrong: Span) -> None:
    dispatcher = Dispatcher()
    reader = dispatcher.opened(dispatcher.dataset(20))
    message = Lease(consumer_id=reader.consumer_id, positions=1, consumed=[wrong])
    assert refusal(dispatcher.tell(message)).startswith("InvalidArgumentError: ")


# States


def test_a_restored_reader_gets_back_what_it_consumed_after_its_state() -> None:
    dispatcher = Dispatcher()
    reader = dispatcher.opened(dispatcher.dataset(100))
    other = dispatcher.opened(dispatcher.dataset(100), consumer="b")
    dispatcher.lease(reader, 10)
    dispatcher.lease(other, 10)
    dispatcher.lease(reader, 5, [span(0, 10)])
    restored = dispatcher.opened(dispatcher.dataset(100), resumed=[span(0, 4)])
    assert dispatcher.lease(restored, 8).spans == [span(4, 10), span(20, 22)]
    assert dispatcher.lease(restored, 8).spans == [span(22, 25)]
    assert dispatcher.lease(restored, 8).spans == [span(25, 33)]


def test_an_empty_reader_gets_what_a_restored_one_does_not_ask_for() -> None:
    dispatcher, first, other = two_readers(40)
    assert dispatcher.ask(first, 10, unread=0).spans == [span(0, 10)]
    restored = dispatcher.opened(dispatcher.dataset(40), resumed=[span(0, 1)])
    assert dispatcher.lease(restored, 2).spans == [span(1, 3)]
    rest: list[Span] = []
    while (spans := dispatcher.lease(other, 100, rest, waiting=True).spans)[0].start >= 10:
        rest = spans
    assert spans == [span(3, 7)], "half of it: the restored one may be slow, not idle"
    assert dispatcher.lease(restored, 1).spans == [span(7, 8)]
    assert dispatcher.lease(other, 100, spans).spans == [], "nobody waits for it"
    assert dispatcher.lease(other, 100, waiting=True).spans == [span(8, 9)]
    assert dispatcher.lease(other, 100, waiting=True).spans == [span(9, 10)]
    assert dispatcher.lease(other, 100, waiting=True).ended


def test_a_state_in_the_middle_of_a_position_continues_there() -> None:
    dispatcher = Dispatcher()
    reader = dispatcher.opened(dispatcher.dataset(100, "groups"))
    dispatcher.lease(reader, 10)
    dispatcher.lease(reader, 0, [span(0, 7, more=2)])
    restored = dispatcher.opened(dispatcher.dataset(100, "groups"), resumed=[span(0, 4, more=5)])
    assert dispatcher.lease(restored, 100).spans == [span(4, 10, skip=5)]


def test_elements_skipped_in_a_span_stay_skipped_after_a_restore() -> None:
    dispatcher = Dispatcher()
    first = dispatcher.opened(dispatcher.dataset(100, "groups"))
    dispatcher.lease(first, 10)
    dispatcher.release(first, [span(0, 4, more=3)])
    second = dispatcher.opened(dispatcher.dataset(100, "groups"), consumer="b")
    assert dispatcher.lease(second, 6).spans == [span(4, 10, skip=3)]
    dispatcher.lease(second, 0, [span(4, 6, skip=3, more=1)])
    restored = dispatcher.opened(dispatcher.dataset(100, "groups"), consumer="b", resumed=[])
    assert dispatcher.lease(restored, 6).spans == [span(4, 10, skip=3)]


def test_an_older_state_gives_back_all_up_to_the_others_positions() -> None:
    dispatcher = Dispatcher()
    first = dispatcher.opened(dispatcher.dataset(100, "groups"))
    dispatcher.lease(first, 10)
    dispatcher.release(first, [span(0, 7, more=5)])
    second = dispatcher.opened(dispatcher.dataset(100, "groups"), consumer="b")
    assert dispatcher.lease(second, 3).spans == [span(7, 10, skip=5)]
    for past, missed in (
        ([span(0, 7, more=2), span(10, 10)], span(7, 7, skip=2, more=5)),
        ([span(0, 4, more=9), span(10, 10)], span(4, 7, skip=9, more=5)),
    ):
        restored = dispatcher.opened(dispatcher.dataset(100, "groups"), resumed=past)
        assert dispatcher.lease(restored, 1).spans == [missed]
    dispatcher.release(restored, [span(4, 6, skip=9, more=1)])
    assert dispatcher.lease(second, 3).spans == [span(6, 7, skip=1, more=5), span(10, 11)]


def test_of_what_follows_a_state_only_what_others_have_not_read_is_left() -> None:
    dispatcher = Dispatcher()
    first = dispatcher.opened(dispatcher.dataset(10, "groups"))
    dispatcher.lease(first, 10)
    dispatcher.release(first, [span(0, 4, more=3)])
    second = dispatcher.opened(dispatcher.dataset(10, "groups"), consumer="b")
    dispatcher.lease(second, 10)
    dispatcher.release(second, [span(4, 6, skip=3, more=1)])
    restored = dispatcher.opened(dispatcher.dataset(10, "groups"), resumed=[span(0, 4, more=3), span(10, 10)])
    assert dispatcher.drained(restored) == [span(6, 10, skip=1)]


def test_a_new_dispatcher_waits_for_the_claims_of_restored_readers() -> None:
    dispatcher = Dispatcher(lease_seconds=10)
    first = dispatcher.opened(dispatcher.dataset(40), resumed=[span(0, 10)])
    assert dispatcher.lease(first, 10) == Leased(retry_after=0.2)
    second = dispatcher.opened(dispatcher.dataset(40), consumer="b", resumed=[span(10, 15), span(30, 40)])
    for _ in range(10):
        dispatcher.wait(1)
        dispatcher.beat(first)
        dispatcher.beat(second)
    assert numbers(dispatcher.drained(second)) == list(range(15, 30))
    assert dispatcher.lease(first, 10).ended


@pytest.mark.parametrize("order", ["ab", "ba"])
def test_a_new_dispatcher_gives_nothing_again_that_two_readers_had(order: str) -> None:
    dispatcher = Dispatcher(lease_seconds=10)
    pasts = {"a": [span(0, 4, more=3), span(10, 10)], "b": [span(4, 6, skip=3, more=1), span(10, 10)]}
    readers = [
        dispatcher.opened(dispatcher.dataset(12, "groups"), consumer=name, resumed=pasts[name]) for name in order
    ]
    for _ in range(10):
        dispatcher.wait(1)
        for reader in readers:
            dispatcher.beat(reader)
    assert dispatcher.drained(readers[0]) == [span(6, 10, skip=1), span(10, 11), span(11, 12)]


def test_a_restored_reader_finds_an_epoch_again_that_was_finished() -> None:
    dispatcher = Dispatcher()
    reader = dispatcher.opened(dispatcher.dataset(10))
    dispatcher.drained(reader)
    dispatcher.release(reader)
    restored = dispatcher.opened(dispatcher.dataset(10), resumed=[span(0, 7)])
    assert numbers(dispatcher.drained(restored)) == [7, 8, 9]


def test_a_state_of_something_longer_is_refused() -> None:
    dispatcher = Dispatcher()
    for past in (span(0, 11), span(0, 1, pass_number=3)):
        reply = dispatcher.open(dispatcher.dataset(10), resumed=[past])
        assert refusal(reply).startswith("StateMismatchError: the state says that position")


# Jobs


def test_readers_of_a_job_must_agree_and_are_told_on_what_they_do_not() -> None:
    dispatcher = Dispatcher()
    ten, eleven = dispatcher.dataset(10), dispatcher.dataset(11)
    dispatcher.opened(ten)
    assert f"dataset_id is {ten!r}, got {eleven!r}" in refusal(dispatcher.open(eleven, consumer="b"))
    assert "policy is DYNAMIC, got OFF" in refusal(dispatcher.open(ten, OFF, consumer="b"))
    assert "num_consumers is 0, got 2" in refusal(dispatcher.open(ten, consumer="b", index=0, num_consumers=2))
    assert "target_workers is 'AUTO', got 'ANY'" in refusal(dispatcher.open(ten, consumer="b", target_workers="ANY"))
    assert "cross_trainer is False, got True" in refusal(dispatcher.open(ten, consumer="b", cross_trainer=True))


def test_epochs_of_a_job_have_numbers_and_share_the_first_seed() -> None:
    dispatcher = Dispatcher()
    reader = dispatcher.opened(dispatcher.dataset(4))
    assert numbers(dispatcher.drained(reader)) == [0, 1, 2, 3]
    late = dispatcher.opened(dispatcher.dataset(4), consumer="b")
    assert dispatcher.drained(late) == [], "this epoch is over"
    assert numbers(dispatcher.drained(dispatcher.opened(dispatcher.dataset(4), consumer="b", epoch=1))) == [0, 1, 2, 3]
    assert dispatcher.drained(dispatcher.opened(dispatcher.dataset(4), epoch=1)) == []
    assert late.seed == 7


def test_a_name_is_free_again_after_its_job_has_finished() -> None:
    dispatcher = Dispatcher(finished_job_seconds=30)
    reader = dispatcher.opened(dispatcher.dataset(4))
    dispatcher.drained(reader)
    dispatcher.release(reader)
    dispatcher.wait(29)
    late = dispatcher.opened(dispatcher.dataset(4), consumer="late")
    assert dispatcher.drained(late) == []
    dispatcher.release(late)
    dispatcher.wait(31)
    again = dispatcher.opened(dispatcher.dataset(5), consumer="again")
    assert numbers(dispatcher.drained(again)) == [0, 1, 2, 3, 4]


@pytest.mark.slow
def test_a_job_that_was_left_unfinished_is_kept_for_longer() -> None:
    dispatcher = Dispatcher(finished_job_seconds=30, job_gc_seconds=300)
    reader = dispatcher.opened(dispatcher.dataset(8))
    dispatcher.lease(reader, 4)
    dispatcher.release(reader, [span(0, 4)])
    dispatcher.wait(299)
    second = dispatcher.opened(dispatcher.dataset(8), consumer="b")
    assert numbers(dispatcher.drained(second)) == [4, 5, 6, 7]
    third = dispatcher.opened(dispatcher.dataset(8), consumer="c", epoch=1)
    dispatcher.release(second)
    dispatcher.release(third)
    dispatcher.wait(301)
    assert dispatcher.tell(GetStatus()).epochs == []


def test_data_workers_hear_which_trainers_of_a_cache_are_silent() -> None:
    dispatcher = Dispatcher()
    worker, ten = dispatcher.worker(), dispatcher.dataset(10)
    there = dispatcher.opened(ten, consumer="there", cross_trainer=True)
    stopped = dispatcher.opened(ten, consumer="stopped", cross_trainer=True)
    dispatcher.opened(ten, job="another", consumer="alone")

    def silent() -> tuple[str, ...]:
        dispatcher.beat(there)
        news = dispatcher.tell(WorkerHeartbeat(worker_id=worker))
        assert isinstance(news, WorkerNews)
        return news.silent

    assert silent() == ()
    for _ in range(11):
        dispatcher.wait(1)
        heard = silent()
    assert heard == ("stopped",)
    dispatcher.beat(stopped)
    assert silent() == ()


def test_a_reader_alone_may_be_silent_for_as_long_as_jobs_are_kept() -> None:
    dispatcher = Dispatcher(lease_seconds=10, job_gc_seconds=60)
    reader = dispatcher.opened(dispatcher.dataset(8), job="")
    dispatcher.wait(59)
    assert isinstance(dispatcher.beat(reader), ConsumerNews)
    dispatcher.wait(62)
    assert isinstance(dispatcher.beat(reader), Refused)
    assert dispatcher.tell(GetStatus()).epochs == []


# Coordinated reads


def coordinated(dispatcher: Dispatcher, index: int, consumer: str, policy: ShardingPolicy = OFF, **more: Any) -> Any:
    more = {"num_consumers": 2, **more}
    return dispatcher.open(dispatcher.dataset(-1), policy, consumer=consumer, index=index, **more)


def test_coordinated_reads_have_as_many_passes_as_there_were_workers() -> None:
    dispatcher = Dispatcher()
    first, second = dispatcher.workers(2)
    a = coordinated(dispatcher, 0, "a")
    dispatcher.worker("late:1")
    b = coordinated(dispatcher, 1, "b")
    assert a.passes == b.passes
    assert [(part.worker_id, part.num_shards, part.length) for part in a.passes] == [(first, 1, -1), (second, 1, -1)]
    assert not a.leased


def test_under_dynamic_coordinated_reads_are_shards() -> None:
    dispatcher = Dispatcher()
    dispatcher.workers(2)
    passes = coordinated(dispatcher, 0, "a", DYNAMIC).passes
    assert [(part.shard_index, part.num_shards) for part in passes] == [(0, 2), (1, 2)]


def test_passes_of_coordinated_reads_wait_for_workers_that_start_together() -> None:
    dispatcher = Dispatcher(heartbeat_seconds=2)
    reader = coordinated(dispatcher, 0, "a")
    assert reader.passes == []
    dispatcher.worker("x:1")
    dispatcher.wait(1)
    dispatcher.worker("y:1")
    assert dispatcher.beat(reader).passes == []
    dispatcher.wait(1)
    assert [part.worker_id for part in dispatcher.beat(reader).passes] == [0, 1]


def test_a_pass_of_a_lost_worker_goes_to_another_one_and_comes_back() -> None:
    dispatcher = Dispatcher()
    dispatcher.worker("x:1", "x")
    reader = coordinated(dispatcher, 0, "a")
    dispatcher.tell(WorkerHeartbeat(worker_id=0, left=True))
    assert [part.worker_id for part in dispatcher.beat(reader).passes] == [-1]
    dispatcher.worker("y:1", "y")
    assert [part.worker_id for part in dispatcher.beat(reader).passes] == [1]


def test_an_index_belongs_to_one_living_consumer() -> None:
    dispatcher = Dispatcher(heartbeat_seconds=2)
    dispatcher.worker()
    coordinated(dispatcher, 0, "a")
    reply = coordinated(dispatcher, 0, "b")
    assert refusal(reply).startswith(
        "ServiceError: the job 'job' has a consumer with consumer_index=0, which sent a message 0.0 s ago"
    )
    assert isinstance(coordinated(dispatcher, 0, "a"), EpochOpened), "the same one may open it again"
    dispatcher.now += 5
    assert isinstance(coordinated(dispatcher, 0, "b"), EpochOpened)


def three_in_rounds(reports: dict[int, list[int]], silent: int | None = None, seconds: float = 15) -> Any:
    """What a consumer with index 0 hears that replaces a silent one; the others have reported these rounds."""
    dispatcher = Dispatcher(heartbeat_seconds=2, lease_seconds=20)
    dispatcher.worker()
    readers = [coordinated(dispatcher, index, name, num_consumers=3) for index, name in enumerate("abc")]
    for step in range(2):
        for index, rounds in reports.items():
            if step == 0 or (index != 0 and index != silent):
                heard = ConsumerHeartbeat(consumer_id=readers[index].consumer_id, rounds=rounds, turn=index)
                dispatcher.tell(heard)
        dispatcher.now += seconds
    dispatcher.now -= 5
    reply = coordinated(dispatcher, 0, "d", num_consumers=3)
    assert isinstance(reply, EpochOpened)
    return reply.rounds, reply.turn


def test_a_replacement_goes_on_where_the_slowest_of_the_others_is() -> None:
    assert three_in_rounds({0: [1, 1], 1: [4, 1], 2: [2, 2]}) == ([2, 2], 2)
    assert three_in_rounds({0: [9, 9], 1: [2, 1], 2: [2, 2]}) == ([2, 1], 1)
    assert three_in_rounds({0: [1, 1], 1: [2, 1], 2: [9, 2]}, silent=1) == ([9, 2], 2), "not where a silent one was"
    assert three_in_rounds({1: [4, 1]}, seconds=6) == ([], 0), "one of them has not said where it is"


def test_a_state_of_a_job_with_fewer_workers_now_keeps_its_passes() -> None:
    for policy, passes in ((OFF, 3), (DYNAMIC, 1)):
        dispatcher = Dispatcher()
        dispatcher.worker()
        state = [span(0, 4, number) for number in range(3)] if policy == OFF else [span(0, 4)]
        reader = dispatcher.opened(dispatcher.dataset(10), policy, resumed=state)
        assert [part.number for part in reader.passes] == list(range(passes))
    dispatcher = Dispatcher()
    dispatcher.worker()
    assert len(dispatcher.opened(dispatcher.dataset(10), OFF, resumed=[span(0, 4, 1)]).passes) == 2


def test_a_second_restored_reader_brings_passes_that_the_first_one_had_not() -> None:
    dispatcher = Dispatcher()
    dispatcher.worker()
    dispatcher.opened(dispatcher.dataset(10), OFF)
    reader = dispatcher.opened(dispatcher.dataset(10), OFF, consumer="b", resumed=[span(0, 4), span(0, 4, 2)])
    assert [(part.number, part.length) for part in reader.passes] == [(0, 10), (1, 10), (2, 10)]
    third = dispatcher.opened(dispatcher.dataset(10), OFF, consumer="c", resumed=[span(0, 4, 1)])
    assert [part.number for part in third.passes] == [0, 1, 2]
    reply = dispatcher.open(dispatcher.dataset(10), DYNAMIC, "other", resumed=[span(0, 4, 2)])
    assert "which this epoch does not have: it has 1 passes" in refusal(reply)


def test_a_restored_reader_is_refused_while_its_epoch_waits_for_workers() -> None:
    dispatcher = Dispatcher()
    assert dispatcher.opened(dispatcher.dataset(10), OFF).passes == []
    reply = dispatcher.open(dispatcher.dataset(10), OFF, consumer="b", resumed=[span(0, 4)])
    assert "which this epoch does not have: it has 0 passes" in refusal(reply)


def test_an_index_must_be_in_range() -> None:
    dispatcher = Dispatcher()
    for index in (-1, 2):
        assert "consumer_index must be from 0 to num_consumers - 1" in refusal(coordinated(dispatcher, index, "a"))
    assert "consumer_index must be" in refusal(dispatcher.open(dispatcher.dataset(), index=0))
    assert "coordinated reads need a job_name" in refusal(coordinated(dispatcher, 0, "a", job=""))


def test_a_restored_consumer_finds_as_many_passes_as_its_state_has() -> None:
    dispatcher = Dispatcher()
    dispatcher.worker()
    reader = coordinated(dispatcher, 0, "a", resumed=[span(0, 4, number) for number in range(3)])
    assert len(reader.passes) == 3


class CountedLookups(dict[int, Consumer]):
    """Readers of a dispatcher, of which it is counted how often one is looked at."""

    lookups = 0

    def __getitem__(self, number: int) -> Consumer:
        self.lookups += 1
        return super().__getitem__(number)


def test_a_worker_that_joined_had_all_readers_scanned_that_ever_were() -> None:
    dispatcher = Dispatcher()
    dataset = dispatcher.dataset(10)
    readers = [dispatcher.opened(dataset, consumer=f"reader {number}") for number in range(50)]
    assert len(dispatcher.lease(readers[0], 10).spans) == 1
    for reader in readers[1:]:
        dispatcher.release(reader)
    state = dispatcher.machine.state
    state.consumers = counted = CountedLookups(state.consumers)
    dispatcher.worker()
    dispatcher.tell(GetStatus())
    assert counted.lookups < 10 + len(readers), "the status counts the consumed positions of all once"


# The end


def test_a_drained_dispatcher_lets_readers_come_to_their_end() -> None:
    dispatcher = Dispatcher()
    worker = dispatcher.worker()
    dataset = dispatcher.dataset(10)
    reader = dispatcher.opened(dataset)
    assert dispatcher.tell(Stop()) == Done()
    assert refusal(dispatcher.open(dataset, consumer="b")).startswith("ServiceError: this dispatcher is stopping")
    assert dispatcher.beat(reader).stopping is False
    assert dispatcher.tell(WorkerHeartbeat(worker_id=worker)).stopping is False
    assert numbers(dispatcher.drained(reader)) == list(range(10))
    dispatcher.release(reader)
    assert dispatcher.tell(WorkerHeartbeat(worker_id=worker)).stopping is True
    assert not dispatcher.machine.may_end
    dispatcher.tell(WorkerHeartbeat(worker_id=worker, left=True))
    assert dispatcher.machine.may_end


def test_a_dispatcher_that_stops_now_tells_everybody() -> None:
    dispatcher = Dispatcher()
    worker = dispatcher.worker()
    reader = dispatcher.opened(dispatcher.dataset(10))
    dispatcher.tell(Stop(drain=False))
    assert dispatcher.beat(reader).stopping is True
    assert dispatcher.tell(WorkerHeartbeat(worker_id=worker)).stopping is True
    dispatcher.wait(7)
    assert dispatcher.machine.may_end, "a worker that does not answer is not waited for"


def test_the_status_says_what_goes_on() -> None:
    dispatcher = Dispatcher()
    worker = dispatcher.worker()
    reader = dispatcher.opened(dispatcher.dataset(10))
    dispatcher.lease(reader, 5)
    dispatcher.lease(reader, 0, [span(0, 2)])
    dispatcher.now = _BOOT + 4.0
    dispatcher.tell(WorkerHeartbeat(worker_id=worker, rows=100, bytes=4000, busy_seconds=1.5, seconds=2))
    dispatcher.tell(
        ConsumerHeartbeat(consumer_id=reader.consumer_id, elements_per_second=50, waiting_fraction=0.25, rounds=[2, 1])
    )
    dispatcher.now = _BOOT + 5.0
    status = dispatcher.tell(GetStatus())
    assert isinstance(status, Status)
    (shown,) = status.workers
    assert (shown.elements_per_second, shown.bytes_per_second, shown.busy_fraction) == (50, 2000, 0.75)
    assert (shown.seconds_since_heard, status.seconds_up, status.datasets) == (1.0, 5.0, 1)
    (epoch,) = status.epochs
    assert (epoch.job, epoch.positions, epoch.leased, epoch.consumed, epoch.finished) == ("job", 10, 3, 2, False)
    (consumer,) = epoch.consumers
    assert (consumer.elements_per_second, consumer.waiting_fraction, consumer.round) == (50, 0.25, 3)


def test_the_status_shows_what_is_read_and_the_last_finished_epoch() -> None:
    dispatcher = Dispatcher()
    dataset = dispatcher.dataset(10)
    for number in range(5):
        last = dispatcher.opened(dataset, epoch=number)
        dispatcher.drained(last)
        if number != 1:
            dispatcher.release(last)
    reader = dispatcher.opened(dataset, epoch=5)
    dispatcher.lease(reader, 4)
    assert [(epoch.epoch, epoch.finished) for epoch in dispatcher.tell(GetStatus()).epochs] == [
        (1, True),
        (4, True),
        (5, False),
    ]


# Arithmetic


@pytest.mark.parametrize(
    ("taken", "left"),
    [
        (span(0, 5), [span(5, 10, skip=2)]),
        (span(0, 5, more=1), [span(5, 10, skip=2)]),
        (span(5, 5, more=3), [span(5, 10, skip=3)]),
        (span(5, 5, skip=3, more=4), [span(5, 5, skip=2, more=3), span(5, 10, skip=4)]),
        (span(5, 7), [span(7, 10)]),
        (span(7, 8, more=1), [span(5, 7, skip=2), span(8, 10, skip=1)]),
        (span(8, 10), [span(5, 8, skip=2)]),
        (span(8, 20, skip=1), [span(5, 8, skip=2, more=1)]),
        (span(0, 20), []),
        (span(10, 12), [span(5, 10, skip=2)]),
        (span(5, 7, pass_number=1), [span(5, 10, skip=2)]),
    ],
)
def test_what_is_left_of_a_span(taken: Span, left: list[Span]) -> None:
    assert without([span(5, 10, skip=2)], taken) == left


def test_spans_that_touch_become_one() -> None:
    spans: list[Span] = []
    for start in (4, 0, 8, 2, 6):
        insert(spans, span(start, start + 2))
    insert(spans, span(0, 3, pass_number=1))
    insert(spans, span(12, 14, skip=1))
    insert(spans, span(10, 12))
    assert spans == [span(0, 12), span(12, 14, skip=1), span(0, 3, pass_number=1)]
