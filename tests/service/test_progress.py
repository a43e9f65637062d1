"""What a reader has got, delivered and may lose, how much it asks for at a time, and what a state of that says."""

from itertools import pairwise
from threading import RLock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.data.block import Block
from penstock.errors import StateMismatchError
from penstock.service.reader.distribute_options import DistributeOptions
from penstock.service.reader.epoch_progress import AsArrived, EpochProgress, GivenUp, InOrder, RoundRobin
from penstock.service.reader.fetch_task import ENDLESS, Arrived, FetchedBehind, FetchTask, Raised, offset_after
from penstock.service.reader.leases import Leases
from penstock.service.reader.pace import SpanPace, Usage
from penstock.service.reader.progress import PassProgress, past_of
from penstock.service.reader.read_options import ReadOptions
from penstock.service.transport.dispatcher_client import DispatcherClient
from penstock.service.wire.dispatcher_messages import Leased
from penstock.service.wire.policy import ShardingPolicy
from penstock.service.wire.spans import merged
from penstock.service.wire.subjects import PassInfo, Span
from penstock.service.wire.worker_messages import Chunk, LeftOut, RowLeftOut

DYNAMIC = DistributeOptions(policy=ShardingPolicy.DYNAMIC, service="")


def block_of(rows: range) -> Block:
    return Block.of_rows(list(rows))


def arrived(start: int, rows: int) -> Arrived:
    return Arrived(Chunk(position=start, skip=0, rows=rows), block_of(range(start, start + rows)))


def reader_alone(length: int) -> tuple[EpochProgress, PassProgress]:
    """The position of a reader of one pass, and its progress in that."""
    position = EpochProgress(
        ReadOptions(settings=DYNAMIC, dataset_id="", kind="rows"), shared=False, replay=None, number=0
    )
    position.update([PassInfo(number=0, length=length)])
    return position, position.passes[0]


def deliver(position: EpochProgress, task: FetchTask) -> None:
    position.deliver(task)
    position.finish(task)


def unread(state: list, length: int) -> list[int]:
    """The positions that a reader which is restored from a state reads."""
    progress = PassProgress(0, length)
    progress.restore(state)
    left = [position for task in progress.open for position in range(task.span.start, task.span.stop)]
    while not progress.all_begun:
        task = progress.begin(3)
        left += range(task.span.start, task.span.stop)
    return left


def test_a_pass_that_nobody_has_begun_is_a_number() -> None:
    assert PassProgress(0, 10).state() == [0, []]


def test_parts_that_were_begun_and_not_deliveries_are_not_consumed() -> None:
    progress = PassProgress(0, 10)
    progress.begin(4)
    progress.begin(4)
    assert progress.state() == [0, []]


def test_a_part_in_the_middle_that_is_missing_is_a_hole() -> None:
    position, progress = reader_alone(10)
    first, second = progress.begin(4), progress.begin(4)
    second.arrive(arrived(4, 4), "rows", 1)
    second.complete = True
    deliver(position, second)
    assert progress.state() == [8, [[0, 4, 0]]]
    first.arrive(arrived(0, 2), "rows", 1)
    deliver(position, first)
    assert progress.state() == [8, [[2, 4, 0]]]


def test_the_last_part_may_be_taken_as_if_less_of_it_were_deliveries() -> None:
    position, progress = reader_alone(10)
    task = progress.begin(10)
    task.arrive(arrived(0, 10), "rows", 1)
    task.complete = True
    deliver(position, task)
    assert progress.state() == [10, []]
    assert progress.state({task: (7, 0)}) == [7, []]


def test_in_groups_elements_are_counted_from_where_their_block_begins() -> None:
    chunk = Chunk(position=5, skip=2, rows=4)
    assert offset_after(chunk, "groups", 1) == (5, 6)
    assert offset_after(chunk, "rows", 1) == (9, 0)
    assert offset_after(chunk, "sequence", 3) == (17, 0)


def test_an_endless_part_is_where_it_is() -> None:
    position, progress = reader_alone(-2)
    task = progress.begin(ENDLESS)
    task.arrive(arrived(0, 7), "sequence", 1)
    deliver(position, task)
    assert progress.state() == [7, []]


def test_what_is_no_state_is_refused() -> None:
    with pytest.raises(StateMismatchError, match="no state of a pass of the data service: 'x'"):
        PassProgress(0, 10).restore("x")  # type: ignore[arg-type]


@given(st.integers(1, 40), st.lists(st.tuples(st.integers(0, 4), st.integers(1, 5)), max_size=60))
def test_what_was_deliveries_and_what_a_state_leaves_are_all_positions_once(
    length: int, moves: list[tuple[int, int]]
) -> None:
    position, progress = reader_alone(length)
    handed: list[int] = []
    for choice, rows in moves:
        if choice == 0 and not progress.all_begun:
            progress.begin(rows)
        elif progress.open:
            task = progress.open[choice % len(progress.open)]
            rows = min(rows, task.span.stop - task.fetch_position)
            start = task.fetch_position
            task.arrive(arrived(start, rows), "rows", 1)
            task.complete = task.fetch_position == task.span.stop
            deliver(position, task)
            handed += range(start, start + rows)
        assert sorted(handed + unread(progress.state(), length)) == list(range(length))


def test_in_order_only_the_first_part_is_deliveries_from() -> None:
    progress = PassProgress(0, 10)
    first, second = progress.begin(5), progress.begin(5)
    delivery, passes = InOrder(), {0: progress}
    second.arrive(arrived(5, 5), "rows", 1)
    assert delivery.next_task(passes, 0) is None
    assert delivery.awaited(passes, 0) == [first]
    first.arrive(arrived(0, 1), "rows", 1)
    assert delivery.next_task(passes, 0) is first


def test_as_it_comes_blocks_are_deliveries_in_the_order_of_their_arrival() -> None:
    progress = PassProgress(0, 10)
    first, second = progress.begin(5), progress.begin(5)
    delivery = AsArrived()
    for task in (second, first, second):
        delivery.arrived(task)
    assert [delivery.next_task({0: progress}, 0) for _ in range(4)] == [second, first, second, None]


def test_in_order_no_pass_is_kept_waiting_by_another() -> None:
    passes = {number: PassProgress(number, 10) for number in range(2)}
    (first, second), other = [passes[0].begin(5) for _ in range(2)], passes[1].begin(5)
    delivery, given_out = InOrder(), []
    second.arrive(arrived(5, 5), "rows", 1)
    assert delivery.next_task(passes, 0) is None
    assert delivery.awaited(passes, 0) == [first, other]
    for task, rows in ((first, (0, 1)), (first, (1, 4)), (other, (0, 5))):
        task.arrive(arrived(*rows), "rows", 1)
    assert not delivery.awaited(passes, 0)  # something else can be delivered
    turn = 0
    while (task := delivery.next_task(passes, turn)) is not None:
        item, turn = delivery.item_of(task), task.pass_number + 1
        assert isinstance(item, Arrived)
        given_out.append((task.pass_number, item.chunk.position))
        task.items.popleft()
        if not task.items:
            passes[task.pass_number].open.remove(task)
    assert given_out == [(0, 0), (1, 0), (0, 1), (0, 5)]


def test_in_turns_each_pass_gives_one_element_until_it_has_ended() -> None:
    passes = {number: PassProgress(number, -2) for number in range(2)}
    delivery, given_out = RoundRobin(stride=2), []
    for number, rows in {0: 3, 1: 1}.items():
        task = passes[number].begin(ENDLESS)
        chunk = Chunk(position=1, skip=0, rows=rows)  # of the second of two consumers
        task.arrive(Arrived(chunk, block_of(range(10 * number, 10 * number + rows))), "sequence", 2)
        task.complete = True
        passes[number].length = 2 * rows
    turn = 0
    while (task := delivery.next_task(passes, turn)) is not None:
        item, turn = delivery.item_of(task), task.pass_number + 1
        assert isinstance(item, Arrived)
        given_out.append((item.chunk.position, *map(int, item.block.rows())))
        task.items.popleft()
        if task.done:
            passes[task.pass_number].open.remove(task)
    assert given_out == [(1, 0), (1, 10), (3, 1), (5, 2)]


def leased(*spans: Span) -> Leases:
    leases = Leases(0, DispatcherClient("localhost:1"), RLock(), lambda: (0, False, False))
    leases.granted(Leased(spans=list(spans)))
    return leases


def test_what_was_leased_is_fetched_in_pieces() -> None:
    leases = leased(Span(pass_number=0, start=10, stop=15))
    pieces = [leases.next(room) for room in (9, 1, 0, 9, 9)]
    assert [piece and (piece.start, piece.stop) for piece in pieces] == [(10, 12), (12, 13), None, (13, 15), None]


def test_a_span_that_skips_is_not_cut_at_its_first_piece() -> None:
    span = Span(pass_number=0, start=10, stop=15, skip=7)
    assert leased(span).next(1) == span


def test_as_much_is_leased_at_a_time_as_lasts_for_a_while() -> None:
    now = 0.0
    pace, leases = (
        SpanPace(None),
        Leases(0, DispatcherClient("localhost:1"), RLock(), lambda: (0, False, False), clock=lambda: now),
    )
    wanted = []
    for lasts in (0.01, 0.01, 0.1, 0.3, 0.3, 0.3):
        assert leases.begin(pace, 1, 0)
        wanted.append(leases.asked_for)
        leases.granted(Leased(spans=[Span(pass_number=0, start=0, stop=leases.asked_for)]))
        assert not leases.begin(pace, 1, 0)  # before that is used up
        while leases.next(1):
            now += lasts / leases.asked_for
    assert wanted == [4, 8, 16, 16, 8, 4]


def test_a_partly_granted_lease_does_not_grow_the_next_one() -> None:
    leases = Leases(0, DispatcherClient("localhost:1"), RLock(), lambda: (0, False, False))
    for _ in range(3):
        assert leases.begin(SpanPace(None), 1, 0)
        leases.granted(Leased())
    assert leases.asked_for == 4


def test_what_was_leased_last_and_not_begun_is_given_back_first() -> None:
    leases = leased(Span(pass_number=0, start=10, stop=15), Span(pass_number=1, start=0, stop=4, more=2))
    assert leases.take_back(2) == [Span(pass_number=1, start=2, stop=4, more=2)]
    assert leases.take_back(3) == [Span(pass_number=1, start=0, stop=2), Span(pass_number=0, start=14, stop=15)]
    assert leases.not_begun == 4
    assert leases.take_back(9) == [Span(pass_number=0, start=10, stop=14)]
    assert leases.take_back(1) == []


def shared_position(*spans: Span) -> tuple[EpochProgress, list[FetchTask]]:
    reading = ReadOptions(settings=DYNAMIC, dataset_id="", kind="rows")
    position = EpochProgress(reading, shared=True, replay=None, number=0)
    position.update([PassInfo(number=0, length=100)])
    return position, [position.passes[0].adopt(span) for span in spans]


def test_begun_work_without_results_is_given_back_first() -> None:
    begun, arrived_part, asked = (Span(pass_number=0, start=start, stop=start + 10) for start in (0, 10, 20))
    position, tasks = shared_position(begun, arrived_part, asked)
    for task in tasks[:2]:
        task.arrive(arrived(task.span.start, 4), "rows", 1)
        position.order.arrived(task)
    position.deliver(tasks[0])
    position.delivered.use(4)
    assert position.unread == 6 + 10 + 10
    assert position.give_up(1) == GivenUp([asked], 0, [tasks[2]])
    assert position.give_up(1) == GivenUp([Span(pass_number=0, start=4, stop=10)], 0, [tasks[0]])
    assert position.unread == 10
    assert position.give_up(1) == GivenUp([arrived_part], 4, [tasks[1]])
    assert position.give_up(1) == GivenUp()
    assert position.all_delivered
    assert [task.span.stop - task.span.start for task in tasks] == [4, 0, 0]
    assert position.replay_from(4, bare=True)["passes"] == {"0": [4, []]}


def test_what_comes_again_to_a_restored_reader_is_not_given_back() -> None:
    reading = ReadOptions(settings=DYNAMIC, dataset_id="", kind="rows")
    replay = {"passes": {"0": [6, []]}, "turn": 0, "first": 0, "order": [[0, 0, 0, 6, 6]]}
    position = EpochProgress(reading, shared=True, replay=replay, number=2)
    position.update([PassInfo(number=0, length=100)])
    assert position.unread == 0
    assert position.give_up(10) == GivenUp()


def test_a_reader_of_a_shared_job_has_what_its_caller_uses_in_a_second() -> None:
    now = 0.0
    usage = Usage(clock=lambda: now)
    pace = SpanPace(None, usage)
    pace.arrived(rows=1000, nbytes=8000)
    pace.measured(positions=1000, nbytes=8000, seconds=0.001)
    assert pace.lease(1000, lanes=2, under_way=0) == 4, "nothing was used yet"
    for _ in range(50):
        usage.used(10)
        now += 0.1
    assert [pace.lease(1 << 20, 2, under_way) for under_way in (0, 60, 90)] == [90, 30, 0]
    now += 10
    assert pace.lease(1 << 20, 2, 0) == 4, "it has not come for long"


def test_few_positions_of_a_shared_job_are_begun_at_a_time() -> None:
    now = 0.0
    usage = Usage(clock=lambda: now)
    pace = SpanPace(None, usage)
    for _ in range(10):  # one position in ten gives an element
        pace.arrived(rows=1, nbytes=8)
        pace.measured(positions=10, nbytes=8, seconds=0.001)
    for _ in range(50):
        usage.used(1)
        now += 0.01
    assert pace.used_in(0.1) == 99
    assert pace.size(None, 2, 0) == 99


def test_a_failure_takes_the_place_of_an_element() -> None:
    task = FetchTask(Span(pass_number=0, start=0, stop=10))
    task.arrive_failure(ValueError(), 3, 0)
    assert task.missing() == Span(pass_number=0, start=3, stop=10)


def group(position: int, skip: int, values: range) -> Arrived:
    return Arrived(Chunk(position=position, skip=skip, rows=len(values)), block_of(values))


def test_counts_after_the_last_position_are_fetched_and_named_there() -> None:
    task = FetchTask(Span(pass_number=0, start=3, stop=5, skip=7, more=6))
    assert task.missing() == Span(pass_number=0, start=3, stop=5, skip=7)
    task.arrive(group(4, 1, range(2)), "groups", 1)
    task.ends_at(5, 2)  # two of the first seven came behind it
    assert task.missing() == Span(pass_number=0, start=5, stop=ENDLESS, skip=2)
    task.arrive(group(5, 2, range(1)), "groups", 1)
    task.arrive_failure(ValueError(), 6, 1)
    assert task.missing() == Span(pass_number=0, start=6, stop=ENDLESS, skip=1)
    assert task.arrive(group(6, 1, range(9)), "groups", 1) == 2
    assert task.complete
    blocks, failures = ([item for item in task.items if isinstance(item, kind)] for kind in (Arrived, Raised))
    assert [offset_after(item.chunk, "groups", 1) for item in blocks] == [(4, 3), (5, 3), (5, 6)]
    assert [item.next for item in failures] == [(5, 4)]


def left_out(count: int) -> LeftOut:
    row = RowLeftOut(node="map", site="file.py:1", position=count, error="ValueError")
    return LeftOut(count=count, rows=[row])


def test_rows_skipped_after_a_span_come_last_or_with_its_count() -> None:
    task = FetchTask(Span(pass_number=0, start=3, stop=5))
    task.arrive(group(4, 1, range(2)), "groups", 1)
    task.arrive_behind(left_out(2), (5, 0))
    task.ends_at(5, 0)
    assert task.items.pop() == FetchedBehind(left_out(2), (5, 0))
    task = FetchTask(Span(pass_number=0, start=3, stop=5, more=2))
    task.arrive_behind(left_out(2), (5, 0))
    task.ends_at(5, 0)
    assert not task.items
    task.arrive(Arrived(Chunk(position=5, skip=0, rows=2, left_out=left_out(3)), block_of(range(2))), "groups", 1)
    assert task.complete
    item = task.items.pop()
    assert isinstance(item, Arrived)
    assert item.left_out == LeftOut(count=5, rows=[*left_out(2).rows, *left_out(3).rows])


def test_rows_skipped_after_elements_are_delivered_again_and_unused() -> None:
    reading = ReadOptions(settings=DYNAMIC, dataset_id="d", kind="sequence", ordered=True)
    position = EpochProgress(reading, shared=False, replay=None, number=0)
    position.update([PassInfo(number=0)])
    progress = position.passes[0]
    task = progress.begin(10)
    task.arrive(arrived(0, 3), "sequence", 1)
    task.arrive_behind(left_out(2), reading.behind(task, 10))
    task.ends_at(4, 0)
    task.complete = True
    progress.length = 4
    counted = []
    for _ in range(2):
        position.count_left_out(task, lambda number, found: counted.append((number, found.count)))
        position.deliver(task)
        finished = position.finish(task)
    assert (counted, position.delivered.number, finished) == ([(3, 2)], 4, False)  # the elements are not used
    assert position.delivered.use(3) == [task]
    assert position.replay_from(3, bare=False)["order"] == [[0, 3, 0, 1, 4]]
    assert position.replay_from(3, bare=True)["passes"] == {"0": [3, []]}
    assert position.delivered.use(4) == []
    assert position.replay_from(4, bare=True)["passes"] == {"0": [4, []]}


def test_what_is_counted_may_all_have_been_left_out_before() -> None:
    task = FetchTask(Span(pass_number=0, start=3, stop=5, skip=7, more=2))
    task.ends_at(5, 2)
    assert task.done


@pytest.mark.slow
@given(st.data())
def test_a_restored_reader_reports_the_consumed_elements_of_its_state(data: st.DataObject) -> None:
    edges = sorted(data.draw(st.sets(st.tuples(st.integers(0, 9), st.integers(0, 3)), min_size=2, max_size=9)))
    progress, consumed = PassProgress(0, 12), []
    for first, end in pairwise(edges):
        if not data.draw(st.booleans()):
            continue  # it is with others
        task = progress.adopt(Span.between(0, first, end))
        place = data.draw(st.sampled_from([first, (first[0], first[1] + 1), (first[0] + 1, 2), end]))
        task.position, task.skip = place = min(place, end)
        consumed.append(task.until(place))
        if place == end:
            progress.finish(task)
    state = progress.state()
    restored = PassProgress(0, 12)
    restored.restore(state, shared=True)
    assert restored.state() == state
    said = [span for span in past_of({"0": state}) if span.first < span.end]
    assert said == merged(span for span in consumed if span.first < span.end)


def test_of_a_shared_position_a_state_leaves_only_what_is_with_others() -> None:
    progress = PassProgress(0, 12)
    for first, end in (((0, 0), (2, 1)), ((2, 3), (4, 0))):
        progress.finish(progress.adopt(Span.between(0, first, end)))
    holes = [Span.between(0, (2, 1), (2, 3))]
    assert progress.state() == [4, [[hole.start, hole.stop, hole.skip, hole.more] for hole in holes]]


def test_spans_grow_while_they_are_cheap() -> None:
    pace = SpanPace(None)
    sizes = []
    for _ in range(4):
        sizes.append(pace.size(None, 1, 0))
        pace.measured(positions=1, nbytes=8, seconds=1e-6)
    assert sizes == [1, 4, 16, 64]


def test_spans_at_the_end_are_not_divided_below_the_calls_that_run_together() -> None:
    pace = SpanPace(None)
    for _ in range(30):  # eight calls of 20 ms overlap: the first takes 20 ms, and then eight come every 20 ms
        pace.began(rows=1, seconds=0.02)
        pace.arrived(rows=16, nbytes=128)
        pace.measured(positions=16, nbytes=128, seconds=0.04)
    assert [pace.size(remaining, 2, 0) for remaining in (100, 40, 16, 8)] == [40, 20, 8, 7]


def test_slow_single_elements_are_fetched_one_by_one_at_the_end() -> None:
    pace = SpanPace(None)
    for _ in range(30):
        pace.began(rows=2, seconds=0.04)
        pace.arrived(rows=4, nbytes=32)
        pace.measured(positions=4, nbytes=32, seconds=0.08)
    assert [pace.size(remaining, 2, 0) for remaining in (100, 8, 4, 2, 1)] == [5, 4, 2, 1, 1]


def test_spans_take_about_100_ms() -> None:
    pace = SpanPace(None)
    for _ in range(10):
        pace.measured(positions=1, nbytes=8, seconds=0.01)
    assert pace.size(None, 1, 0) == 10


def test_spans_are_shorter_towards_the_end() -> None:
    pace = SpanPace(None)
    for _ in range(20):
        pace.measured(positions=1000, nbytes=8000, seconds=0.25)
    assert [pace.size(remaining, lanes=4, under_way=0) for remaining in (8000, 800, 80)] == [400, 200, 20]


def test_a_span_that_takes_a_worker_less_than_5_ms_is_not_cut() -> None:
    pace = SpanPace(None)
    for _ in range(20):
        pace.measured(positions=1000, nbytes=8000, seconds=0.001)
    assert [pace.size(remaining, lanes=4, under_way=0) for remaining in (80_000, 4000)] == [20_000, 5000]


def test_a_span_is_of_positions_however_many_elements_each_of_them_gives() -> None:
    pace = SpanPace(None)
    for _ in range(10):  # a position that takes 50 ms gives 1000 elements, in two blocks
        pace.measured(positions=0, nbytes=4000, seconds=0.025)
        pace.measured(positions=1, nbytes=4000, seconds=0.025)
    assert pace.size(None, 1, 0) == 2


def test_a_span_of_which_nothing_comes_costs_what_it_took_to_find_that_out() -> None:
    pace = SpanPace(None)
    for _ in range(10):
        pace.measured(positions=4, nbytes=0, seconds=0.02)
    assert pace.size(None, 1, 0) == 20


def test_no_more_is_under_way_than_the_limit() -> None:
    pace = SpanPace(limit=3)
    assert [pace.size(None, 4, under_way) for under_way in (0, 2, 3, 4)] == [1, 1, 0, 0]
    assert [pace.holds(rows) for rows in (3, 4)] == [True, False]


def test_without_a_limit_64_mebibytes_are_in_flight() -> None:
    pace = SpanPace(None)
    pace.arrived(rows=1, nbytes=16 << 20)
    pace.measured(positions=1, nbytes=16 << 20, seconds=0.001)
    assert [pace.size(None, 1, under_way) for under_way in (0, 3, 4)] == [2, 1, 0]
