"""The window that trainers share, without threads: a clock goes on where a reader waits, the stream gives numbers."""

from collections.abc import Callable
from itertools import islice
from threading import Condition
from typing import Any

import pytest

from penstock.data.block import Block
from penstock.data.skipped import Skips
from penstock.errors import LostDataWorkerError, ServiceError
from penstock.service.wire.subjects import PassInfo, Span
from penstock.service.wire.worker_messages import Fetch
from penstock.service.worker import shared_window as under_test
from penstock.service.worker.shared_window import SharedReader, SharedWindow
from penstock.service.worker.spans import UserCalls

_BOOT = 1000.0
_ROW = 8
_PIECE = 256
_ENDLESS = 1 << 30


class Numbers:
    """The rows from 0 to `length` - 1; it notes what it was asked for, and when."""

    def __init__(self, shared: "Shared", length: int) -> None:
        self.shared, self.length = shared, length
        self.given = 0
        self.asked: list[tuple[float, int]] = []
        self.closed = False

    def pull(self, need: int, allow: int) -> Block | None:
        self.asked.append((self.shared.now, allow))
        start, stop = self.given, min(self.given + allow, self.length)
        if start in self.shared.failing:
            self.given += 1
            raise self.shared.failing[start]
        stop = min((row for row in self.shared.failing if start < row < stop), default=stop)
        self.given = stop
        return Block.of_rows(list(range(start, stop))) if start < stop else None

    def close(self) -> None:
        self.closed = True


class Shared:
    """A window, and what happens while a reader waits, in order; a reader that waits for nothing fails."""

    def __init__(
        self,
        monkeypatch: pytest.MonkeyPatch,
        length: int = _ENDLESS,
        window_bytes: int = 1 << 20,
        most_bytes: int = 1 << 20,
    ) -> None:
        self.now = _BOOT
        self.meanwhile: list[Callable[[], Any]] = []
        self.failing: dict[int, Exception] = {}
        self.numbers = Numbers(self, length)
        self.opened = False
        shared = self

        class Clocked(Condition):
            def wait(self, timeout: float | None = None) -> bool:
                if shared.meanwhile:
                    shared.meanwhile.pop(0)()
                    return True
                assert timeout is not None and timeout > 0, "it waits for ever"
                assert shared.now < _BOOT + 100, "it waits for too long"
                shared.now += timeout
                return False

        monkeypatch.setattr(under_test, "Condition", Clocked)
        self.window = SharedWindow(self._open, window_bytes, lambda: most_bytes, UserCalls(), clock=lambda: self.now)

    def _open(self) -> Any:
        assert not self.opened, "all read from one stream"
        self.opened = True
        return self.numbers, Skips()

    def enter(self, trainer: str, consumer: str = "c", position: int = 0, holds_back: bool = False) -> Any:
        return self.window.enter(trainer, consumer, position, holds_back)

    def take(self, reader: Any, rows: int) -> list[int]:
        """So many numbers for a reader, or all that are left."""
        taken: list[int] = []
        while len(taken) < rows:
            piece, stop = self.window.read(reader, rows - len(taken))
            if piece is None:
                break
            assert isinstance(piece.found, Block) and piece.found.length > 0
            taken += map(int, piece.found.rows())
            assert (piece.position, stop) == (taken[-1] + 1 - len(piece.found), taken[-1] + 1)
            self.window.moved(reader, stop)
        return taken


def test_two_trainers_get_all_elements_which_are_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    shared = Shared(monkeypatch, length=50)
    fast, slow = shared.enter("fast"), shared.enter("slow")
    assert shared.take(fast, 20) == list(range(20))
    assert shared.numbers.given == 20, "no more than a reader wants"
    assert shared.take(slow, 10) == list(range(10))
    assert shared.take(fast, 99) == list(range(20, 50))
    assert shared.take(slow, 99) == list(range(10, 50))
    assert shared.window.read(slow, 5) == shared.window.read(fast, 5) == (None, 50)
    assert shared.now == _BOOT, "nobody has waited"


def test_what_was_made_before_is_said_to_be_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    shared = Shared(monkeypatch)
    first, second = shared.enter("a"), shared.enter("b")
    for reader, kept in ((first, False), (second, True), (first, True)):
        reader.position = 0
        piece, _ = shared.window.read(reader, 1)
        assert piece is not None and piece.kept is kept


def test_readers_that_begin_or_come_later_do_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    shared = Shared(monkeypatch)
    first = shared.enter("a")
    assert shared.take(first, 5) == [0, 1, 2, 3, 4]
    later = shared.enter("b", position=9)
    assert shared.take(later, 2) == [9, 10]
    assert shared.now == _BOOT


def test_readers_of_one_trainer_get_each_element_once(monkeypatch: pytest.MonkeyPatch) -> None:
    shared = Shared(monkeypatch)
    one, two, other = shared.enter("a", "1"), shared.enter("a", "2"), shared.enter("b", "1")
    taken = [shared.take(reader, 2) for reader in (one, two, one, two)]
    assert taken == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert shared.take(other, 3) == [0, 1, 2], "another trainer gets all"
    shared.window.leave(two)
    third = shared.enter("a", "3", position=3)
    assert shared.take(third, 1) == [8], "one of them still reads"
    shared.window.leave(one)
    shared.window.leave(third)
    assert shared.take(shared.enter("a", "4", position=3), 2) == [3, 4], "none of them reads any more"


def test_a_reader_that_comes_again_shares_nothing_with_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    shared = Shared(monkeypatch)
    assert shared.take(shared.enter("a"), 6) == [0, 1, 2, 3, 4, 5]
    assert shared.take(shared.enter("a", position=2), 6) == [2, 3, 4, 5, 6, 7]


def test_a_trainer_that_falls_out_of_the_window_goes_on_at_its_beginning(monkeypatch: pytest.MonkeyPatch) -> None:
    shared = Shared(monkeypatch, window_bytes=3 * (_PIECE + _ROW))
    slow, fast = shared.enter("slow"), shared.enter("fast")
    assert shared.take(slow, 1) == [0]
    for number in range(10):
        assert shared.take(fast, 1) == [number]
    assert shared.window.nbytes == 3 * (_PIECE + _ROW)
    assert shared.take(slow, 2) == [7, 8]


@pytest.mark.parametrize("returns", [True, False])
def test_a_reader_that_holds_back_is_waited_for_while_it_reads(monkeypatch: pytest.MonkeyPatch, returns: bool) -> None:
    shared = Shared(monkeypatch, window_bytes=2 * (_PIECE + _ROW), most_bytes=4 * (_PIECE + _ROW))
    slow, fast = shared.enter("slow", holds_back=True), shared.enter("fast")
    for number in range(4):
        assert shared.take(fast, 1) == [number]
    assert shared.window.needed_bytes == shared.window.nbytes == 4 * (_PIECE + _ROW)
    assert shared.window.make_room(1) == 0
    if returns:
        shared.meanwhile = [lambda: shared.take(slow, 1)]
        assert shared.take(fast, 1) == [4]
        assert shared.window.needed_bytes == shared.window.nbytes == 4 * (_PIECE + _ROW), "0 is no longer needed"
        assert shared.take(slow, 4) == [1, 2, 3, 4]
        assert shared.window.needed_bytes == 0
    else:
        shared.meanwhile = [lambda: shared.window.leave(slow)]
        assert shared.take(fast, 1) == [4]
        assert shared.now == _BOOT + 10
        assert shared.window.needed_bytes == 0
        assert shared.take(shared.enter("slow", holds_back=True), 1) == [3]


def test_one_that_holds_back_keeps_no_more_than_it_has_not_had(monkeypatch: pytest.MonkeyPatch) -> None:
    shared = Shared(monkeypatch)
    slow, fast = shared.enter("slow", holds_back=True), shared.enter("fast")
    assert shared.window.needed_bytes == 0
    for _ in range(8):
        shared.take(fast, 1)
    shared.take(slow, 6)
    assert shared.window.needed_bytes == 2 * (_PIECE + _ROW)
    assert shared.window.make_room(_PIECE) == _PIECE + _ROW
    assert shared.window.make_room(1 << 20) == 5 * (_PIECE + _ROW)
    assert shared.take(slow, 2) == [6, 7]


def test_a_reader_that_replaces_itself_holds_back_from_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    shared = Shared(monkeypatch, window_bytes=_PIECE + _ROW, most_bytes=2 * (_PIECE + _ROW))
    shared.enter("a", "c", holds_back=True)
    other = shared.enter("b", "c", holds_back=True)
    again = shared.enter("a", "c", position=4, holds_back=True)
    assert shared.take(other, 6) == [0, 1, 2, 3, 4, 5]
    shared.meanwhile = [lambda: shared.take(again, 1)]
    assert shared.take(other, 1) == [6]


def test_a_failing_element_takes_one_position(monkeypatch: pytest.MonkeyPatch) -> None:
    shared = Shared(monkeypatch)
    shared.failing[3] = KeyError("x")
    reader = shared.enter("a")
    assert shared.take(reader, 3) == [0, 1, 2]
    piece, stop = shared.window.read(reader, 10)
    assert piece is not None and (piece.found, piece.position, stop) == (shared.failing[3], 3, 4)
    shared.window.moved(reader, stop)
    assert shared.take(reader, 2) == [4, 5]


@pytest.mark.parametrize(("window_bytes", "fits"), [(_ROW, True), (_ROW - 1, False)])
def test_an_element_that_does_not_fit_is_refused(
    monkeypatch: pytest.MonkeyPatch, window_bytes: int, fits: bool
) -> None:
    shared = Shared(monkeypatch, window_bytes=window_bytes)
    piece, _ = shared.window.read(shared.enter("a"), 1)
    assert piece is not None and isinstance(piece.found, Block) is fits
    if not fits:
        assert isinstance(piece.found, ServiceError)
        assert "an element of 8 bytes does not fit into the cross-trainer window of 7 bytes" in str(piece.found)


def test_a_window_that_is_closed_gives_nothing_more(monkeypatch: pytest.MonkeyPatch) -> None:
    shared = Shared(monkeypatch)
    reader = shared.enter("a")
    shared.take(reader, 3)
    shared.window.close()
    assert shared.numbers.closed and shared.window.nbytes == 0
    with pytest.raises(LostDataWorkerError):
        shared.take(reader, 1)


@pytest.mark.parametrize(("stop", "length"), [(9, -2), (99, 30)])
def test_a_span_of_a_shared_pass_ends_where_it_was_to_end_or_the_pass_does(
    monkeypatch: pytest.MonkeyPatch, stop: int, length: int
) -> None:
    shared = Shared(monkeypatch, length=30)
    shared.take(shared.enter("a"), 25)
    span = Span(pass_number=0, start=0, stop=stop)
    request = Fetch("d", epoch=0, seed=0, policy=1, pass_info=PassInfo(number=0), span=span, trainer="b", consumer="c")
    reader = SharedReader(shared.window, request)
    pieces = list(islice(iter(lambda: reader.next(3), None), 40))
    rows = [[int(row) for row in piece.found.rows()] for piece in pieces]
    assert [row for some in rows for row in some] == list(range(min(stop, 30)))
    assert all(1 <= len(some) <= 3 for some in rows)
    assert (reader.length, reader.rest().start) == (length, min(stop, 30))
