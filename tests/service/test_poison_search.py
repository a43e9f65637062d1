"""Which position is taken for the reason that workers are lost."""

from penstock.service.reader.poison_search import PoisonSearch
from penstock.service.wire.subjects import Span


def span(start: int, stop: int) -> Span:
    return Span(pass_number=0, start=start, stop=stop)


def test_a_position_is_blamed_when_three_workers_were_lost_over_it_alone() -> None:
    search = PoisonSearch()
    assert search.next(span(0, 100), 1) == span(0, 100)
    assert not search.worker_lost(1, span(0, 100))
    assert search.next(span(0, 100), 1) == span(0, 10)
    assert search.next(span(50, 100), 1) == span(50, 60)
    assert not search.worker_lost(2, span(50, 60))
    assert search.next(span(57, 100), 1) == span(57, 58)
    assert search.alone
    assert [search.worker_lost(worker, span(57, 58)) for worker in (3, 4, 5)] == [False, False, True]


def test_what_follows_a_blamed_position_is_not_blamed_for_the_same_workers() -> None:
    search = PoisonSearch()
    for worker in (1, 2, 3, 4):
        search.worker_lost(worker, span(0, 1))
    assert not search.worker_lost(4, span(1, 2))


def test_a_worker_counts_once() -> None:
    search = PoisonSearch()
    lost = [search.worker_lost(worker, span(0, 1)) for worker in (1, 2, 2, 2, 3, 4)]
    assert lost == [False, False, False, False, False, True]


def test_what_lies_behind_is_suspected_no_more() -> None:
    search = PoisonSearch()
    search.worker_lost(1, span(0, 100))
    search.worker_lost(2, span(50, 60))
    assert search.next(span(60, 100), 1) == span(60, 100)
    assert not search.worker_lost(3, span(60, 100))


def test_a_stream_is_blamed_only_where_no_element_came_from_six_workers() -> None:
    search = PoisonSearch()
    for worker, start in enumerate((0, 10, 20, 30)):  # it goes on after each loss
        assert not search.stream_lost(worker, span(start, 1 << 62), 1)
    assert not search.stream_lost(5, span(30, 1 << 62), 1)
    assert not search.alone
    assert not search.stream_lost(6, span(30, 1 << 62), 1)
    assert search.next(span(30, 1 << 62), 2) == span(30, 32)
    assert search.alone
    blamed = [search.stream_lost(worker, span(33, 34), 1) for worker in (7, 8, 9)]
    assert blamed == [False, False, True]
