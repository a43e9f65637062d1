"""The control channel alone: threads of this process are the workers, the sockets are real."""

import logging
import os
import re
import socket
import struct
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from typing import Any

import forked
import msgspec
import pytest
from ipv6 import needs_ipv6
from until import until

from penstock.distribute.control import channel as channel_module
from penstock.distribute.control import hub as hub_module
from penstock.distribute.control.channel import Control
from penstock.distribute.control.hub import Hub
from penstock.distribute.control.messages import MAXIMUM_BYTES, GatherItem
from penstock.distribute.feed.agreement import ExchangedAgreement
from penstock.distribute.feed.steps import HostStep
from penstock.errors import WorkerError
from penstock.rpc import line as line_module
from penstock.rpc.line import Line
from penstock.rpc.listener import Address, dial
from penstock.rpc.proof import NotAdmittedError
from penstock.runtime.channel import Closed
from penstock.runtime.stacks import threads_in_words
from penstock.structure import LEAF

HOST = "127.0.0.1"


@contextmanager
def connected(workers: int, hub: Hub | None = None, host: str = HOST, more: int = 0) -> Iterator[list[Control]]:
    """All workers' ends of a channel. Those still open at the end are closed, and then the hub ends too.

    Args:
        more: how many workers come in another way.
    """
    hub = hub or Hub(host, workers)
    with ExitStack() as open_ends:
        controls = []
        for worker in range(workers):
            controls.append(Control((host, hub.port), hub.key, worker, workers + more))
            open_ends.callback(controls[-1].close)
        yield controls
    hub._server._thread.join(timeout=30)
    assert not hub._server._thread.is_alive()
    assert [control._thread.is_alive() for control in controls] == [False] * workers


@contextmanager
def at_once(controls: list[Control], call: Callable[[Control], Any]) -> Iterator[list[Future[Any]]]:
    """The results of `call` on every worker, each in a thread of its own."""
    with ThreadPoolExecutor(len(controls)) as threads:
        yield [threads.submit(call, control) for control in controls]


def results(controls: list[Control], call: Callable[[Control], Any]) -> list[Any]:
    with at_once(controls, call) as futures:
        return [future.result(timeout=30) for future in futures]


def errors(controls: list[Control], call: Callable[[Control], Any]) -> list[str]:
    with at_once(controls, call) as futures:
        return [f"{type(future.exception(timeout=30)).__name__}: {future.exception()}" for future in futures]


def lose(control: Control) -> None:
    """End a worker's connection as its death would."""
    control._line.connection.shut_down()


def wait_until(control: Control, condition: Callable[[], bool]) -> None:
    with control._changed:
        assert control._changed.wait_for(condition, timeout=30)


# Calls that all make


@pytest.mark.extended
def test_another_call_of_one_worker_fails_all() -> None:
    with connected(2) as controls:
        for control in controls:
            control.check_collective("strategy.run(step)")
        controls[0].check_collective("strategy.reduce")
        controls[1].check_collective("strategy.run(step)")
        message = r"worker [01] of 2 made strategy.(run\(step\)|reduce) as call 2, where worker [01] of 2 made strategy"
        for control in controls:
            wait_until(control, lambda control=control: control._failure is not None)
            with pytest.raises(WorkerError, match=message):
                control.check_collective("strategy.run(step)")


def test_a_call_that_one_worker_never_makes_fails_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel_module, "TICK_SECONDS", 0.01)
    with connected(2) as controls:
        for control in controls:
            control.check_collective("strategy.run(step)")
        controls[0].check_collective("strategy.run(step)")
        controls[0]._absent_seconds = 0.5
        message = "worker 1 of 2 did not come to call 2, strategy.run(step), within 0.5 seconds"
        for control in controls:
            wait_until(control, lambda control=control: control._failure is not None)
            with pytest.raises(WorkerError, match=re.escape(f"worker 0 of 2 has given up: {message}")):
                control.check_collective("strategy.run(step)")


# Preemption


def answers(control: Control, questions: int) -> list[bool]:
    return [control.asked_to_end(signalled=False) for _ in range(questions)]


@pytest.mark.parametrize("signalled", [0, 1, 2])
def test_all_workers_end_at_the_first_question_that_none_has_asked_yet(signalled: int) -> None:
    with connected(3) as controls:
        before = [0, 2, 5]
        for control, count in zip(controls, before, strict=True):
            assert answers(control, count) == [False] * count
        first = controls[signalled].asked_to_end(signalled=True)
        assert first is (signalled == 2)
        for control, count in zip(controls, before, strict=True):
            left = 5 - count - (control.worker == signalled and not first)
            assert answers(control, left + 2) == [False] * left + [True, True]
        assert [control.sent for control in controls] == [1, 1, 1]


def test_workers_that_are_all_signalled_end_at_one_question() -> None:
    with connected(3) as controls:
        assert answers(controls[1], 1) == [False]
        assert results(controls, lambda control: control.asked_to_end(signalled=True)) == [False, True, False]
        assert results(controls, lambda control: control.asked_to_end(signalled=True)) == [True] * 3


def test_a_worker_that_is_lost_before_it_has_told_is_not_waited_for() -> None:
    with connected(2) as controls:
        lose(controls[1])
        with pytest.raises(WorkerError, match="worker 1 of 2 was lost: its process has ended"):
            controls[0].asked_to_end(signalled=True)


def test_a_worker_that_has_left_keeps_no_other_from_going_on() -> None:
    with connected(2) as controls:
        controls[1].close()
        wait_until(controls[0], lambda: controls[0]._left == {1})
        assert controls[0].asked_to_end(signalled=True) is False


# Agreement


def test_a_gather_gives_every_worker_all_values_in_the_workers_order() -> None:
    with connected(3) as controls:
        values = [None, {"rows": [1, 2.5, "three"]}, [[True], []]]
        assert results(controls, lambda control: control.gather("a", values[control.worker], Any)) == [values] * 3
        assert [control.sent for control in controls] == [1, 1, 1]


def test_turns_of_a_topic_stay_in_order_with_one_worker_ahead() -> None:
    with connected(3) as controls:

        def turns(control: Control) -> list[Any]:
            return [control.gather("a", [turn, control.worker], list[int]) for turn in range(50)]

        expected = [[[turn, worker] for worker in range(3)] for turn in range(50)]
        assert results(controls, turns) == [expected] * 3


@needs_ipv6
@pytest.mark.parametrize("host", ["::1", "localhost"])
def test_workers_meet_at_an_address_of_ipv6(host: str) -> None:
    with connected(2, host=host) as controls:
        agree(controls)


@needs_ipv6
@pytest.mark.parametrize("host", ["::1", "127.0.0.1"])
def test_a_hub_that_others_reach_listens_at_addresses_of_both_kinds(host: str) -> None:
    """It does not know by which one they come: here it is told of one that this machine does not have."""
    with connected(2, Hub("2001:db8::7", 2), host) as controls:
        agree(controls)


def test_no_turn_waits_for_an_acknowledgement() -> None:
    """Small messages in a row wait for one, 40 ms each, unless the sockets at both ends are told otherwise."""
    hub = Hub(HOST, 3)
    with connected(3, hub) as controls:
        agree(controls)
        assert [sends_at_once(line.fileno()) for line in hub._lines.values()] == [True] * 3
        assert [sends_at_once(control._line.fileno()) for control in controls] == [True] * 3


def sends_at_once(descriptor: int) -> bool:
    with socket.socket(fileno=os.dup(descriptor)) as same:
        return same.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) != 0


@pytest.mark.slow
def test_topics_do_not_mix_whatever_order_they_are_asked_in() -> None:
    topics = [f"iteration {number}" for number in range(8)]
    with connected(3) as controls, ThreadPoolExecutor(24) as threads:
        # Every worker has a thread for each topic, as several iterations at a time have.
        futures = {
            (control.worker, topic): threads.submit(
                lambda control=control, topic=topic: [
                    control.gather(topic, [topic, turn, control.worker], list[str | int], closed=lambda: False)
                    for turn in range(20)
                ]
            )
            for control in controls
            for topic in (topics if control.worker % 2 else reversed(topics))
        }
        for (_, topic), future in futures.items():
            expected = [[[topic, turn, worker] for worker in range(3)] for turn in range(20)]
            assert future.result(timeout=30) == expected


def test_a_worker_alone_waits_for_nobody() -> None:
    with connected(1) as (control,):
        assert control.gather("a", 7, int) == [7]


def test_long_messages_arrive_whole() -> None:
    with connected(2) as controls:
        sizes = [list(range(worker, 200_000)) for worker in range(2)]
        assert results(controls, lambda control: control.gather("a", sizes[control.worker], list[int])) == [sizes] * 2


def test_a_worker_that_says_something_else_is_named() -> None:
    with connected(2) as controls:
        controls[1].post(GatherItem.of(1, "a", "a word"))
        with pytest.raises(WorkerError, match=r"worker 1 of 2 said something else than worker 0 of 2 at a \(Expected"):
            controls[0].gather("a", 1, int)


def step_of(rows: int, *all_rows: int) -> HostStep:
    return HostStep(LEAF, [], (rows,), all_rows or None)


def test_workers_tell_each_other_of_every_step() -> None:
    with connected(2) as controls:
        lengths = [[2, 2, 1], [2]]

        def facts(control: Control) -> list[Any]:
            asked = ExchangedAgreement(control, "iteration 0", same=False)
            own = [step_of(rows) for rows in lengths[control.worker]]
            return [asked.facts_of(number, own[number] if number < len(own) else None) for number in range(4)]

        for found in results(controls, facts):
            assert [(one.ended, one.sizes) for one in found] == [
                (False, [(2,), (2,)]),
                (False, [(2,), (0,)]),
                (False, [(1,), (0,)]),
                (True, [(), ()]),
            ]


def test_workers_that_should_have_the_same_batches_and_do_not_say_so() -> None:
    def asked(control: Control) -> Any:
        return ExchangedAgreement(control, "iteration 0", same=True).facts_of(0, step_of(2, 2, 2 + control.worker))

    with connected(2) as controls:
        for message in errors(controls, asked):
            assert "iteration 0: the workers read different data: worker 0 has a batch of 4 rows, worker 1" in message
            assert "a batch of 5 rows. Under AutoShardPolicy.DATA the dataset must be the same" in message


# Failures


@pytest.mark.parametrize("lost", [1, 2])
def test_a_lost_worker_makes_the_others_raise(lost, caplog) -> None:
    with connected(3) as controls:
        others = [control for control in controls if control.worker != lost]
        with at_once(others, lambda control: control.gather("a", 1, int)) as futures:
            lose(controls[lost])
            said = {str(future.exception(timeout=30)) for future in futures}
        assert said == {f"worker {lost} of 3 was lost: its process has ended"}
        assert {type(future.exception()) for future in futures} == {WorkerError}
        for control in others:  # and for good
            with pytest.raises(WorkerError, match="was lost"):
                control.gather("b", 1, int, timeout=30)
            with pytest.raises(WorkerError, match="was lost"):
                control.check_in_main()
    assert f"worker {lost} of 3 was lost: its process has ended" in caplog.text


def test_what_a_lost_worker_has_said_before_still_counts() -> None:
    with connected(2) as controls:
        controls[1].post(GatherItem.of(1, "a", "said"))
        lose(controls[1])
        wait_until(controls[0], lambda: controls[0]._failure is not None)
        assert controls[0].gather("a", "own", str) == ["own", "said"]
        with pytest.raises(WorkerError, match="worker 1 of 2 was lost"):
            controls[0].gather("a", "own", str)


def test_a_failure_comes_with_its_reason() -> None:
    with connected(3) as controls:
        with at_once(controls[:2], lambda control: control.gather("a", 1, int)) as futures:
            controls[2].fail("failed in its input with KeyError: 'x'")
            said = {str(future.exception(timeout=30)) for future in futures}
        assert said == {"worker 2 of 3 failed in its input with KeyError: 'x'"}
        with pytest.raises(WorkerError, match="worker 2 of 3 failed in its input"):
            controls[2].check()


def test_the_first_failure_is_the_one_that_is_told() -> None:
    with connected(2) as controls:
        controls[1].fail("failed first")
        controls[1].fail("failed again")
        controls[1].close()
        wait_until(controls[0], lambda: controls[0]._failure is not None)
        with pytest.raises(WorkerError, match="worker 1 of 2 failed first"):
            controls[0].gather("a", 1, int)


def test_an_input_that_fails_at_a_step_ends_the_others_at_that_step() -> None:
    with connected(2) as controls:
        with at_once(controls, lambda control: control.gather("iteration 0", control.worker, int)) as futures:
            assert [future.result(timeout=30) for future in futures] == [[0, 1]] * 2
        controls[1].fail_step("iteration 0", 3, "KeyError: 'x'")
        message = "worker 1 of 2 failed at step 3 of its input with KeyError: 'x'"
        with pytest.raises(WorkerError, match=message):
            controls[0].gather("iteration 0", 1, int)
        for step in range(3):
            controls[0].check_step("iteration 0", step)
        controls[0].check_step("iteration 1", 3)
        with pytest.raises(WorkerError, match=message):
            controls[0].check_step("iteration 0", 3)


def test_a_worker_that_does_not_come_in_time_is_named() -> None:
    with connected(3) as controls:
        controls[1].post(GatherItem.of(1, "distribute_dataset (call 1)", 1))
        wait_until(controls[0], lambda: bool(controls[0]._received["distribute_dataset (call 1)"][1]))
        with pytest.raises(
            WorkerError, match=r"worker 2 of 3 did not come to distribute_dataset \(call 1\) within 0.05 seconds: every"
        ):
            controls[0].gather("distribute_dataset (call 1)", 1, int, timeout=0.05)
        for other in controls[1:]:
            wait_until(other, lambda other=other: other._failure is not None)
            with pytest.raises(WorkerError, match="worker 0 of 3 has given up: worker 2 of 3 did not come to distrib"):
                other.check()


def test_a_call_that_one_worker_alone_makes_ends() -> None:
    with connected(2) as controls:
        controls[0].call_seconds = 0.05
        with pytest.raises(WorkerError, match=r"worker 1 of 2 did not come to strategy.gather within 0.05 seconds"):
            controls[0].gather("strategy.gather", 1, int)


def test_a_thread_that_reads_ahead_waited_for_ever_for_a_worker_that_lives() -> None:
    """The main thread has not learned of it by then, and is still ended if it stays in a collective."""
    with connected(2) as controls:
        controls[0]._absent_seconds = 0.05
        message = "worker 1 of 2 did not come to iteration 0 within 0.05 seconds"
        with pytest.raises(WorkerError, match=message):
            controls[0].gather("iteration 0", 1, int, closed=lambda: False)
        assert not controls[0]._acknowledged.is_set()
        wait_until(controls[1], lambda: controls[1]._failure is not None)
        with pytest.raises(WorkerError, match=f"worker 0 of 2 has given up: {message}"):
            controls[1].check()


def test_workers_that_wait_at_different_calls_wait_for_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel_module, "_ELSEWHERE_SECONDS", 0.05)
    calls = ["strategy.gather", "checkpoint.save"]
    with connected(2) as controls:
        found = errors(controls, lambda control: control.gather(calls[control.worker], 1, int))
    waits = (
        r"worker (\d) of 2 waits at (.*) while worker (\d) of 2 waits at (.*): every worker must make the same calls"
    )
    for error in found:
        one, its_call, other, other_call = re.search(waits, error).groups()
        assert error.startswith("WorkerError") and one != other
        assert (its_call, other_call) == (calls[int(one)], calls[int(other)])


def test_a_worker_that_has_ended_is_not_waited_for() -> None:
    with connected(2) as controls:
        with at_once(controls[:1], lambda control: control.gather("iteration 0", 1, int)) as futures:
            controls[1]._leave()
            error = futures[0].exception(timeout=30)
        assert str(error) == (
            "worker 1 of 2 has ended its program, while worker 0 of 2 waits for it at iteration 0: every worker must "
            "take the same steps"
        )
        controls[0].check()  # to end is no failure


def test_all_workers_may_leave_in_any_order() -> None:
    with connected(3) as controls:
        for worker in (0, 2, 1):
            controls[worker]._leave()
        assert [control._failure for control in controls] == [None] * 3


def test_a_gather_that_nobody_wants_any_more_ends() -> None:
    closed = threading.Event()
    with connected(2) as controls:
        with at_once(controls[:1], lambda control: control.gather("a", 1, int, closed=closed.is_set)) as futures:
            controls[0].wake()  # asks, and goes on
            closed.set()
            controls[0].wake()
            assert isinstance(futures[0].exception(timeout=30), Closed)
        asked = ExchangedAgreement(controls[0], "iteration 0", same=False)
        with at_once(controls[:1], lambda control: asked.facts_of(0, None)) as futures:
            asked.close()
            assert isinstance(futures[0].exception(timeout=30), Closed)


def test_to_close_is_to_leave_and_may_be_repeated() -> None:
    with connected(2) as controls:
        controls[1].close()
        controls[1].close()
        with pytest.raises(WorkerError, match="worker 1 of 2 has ended its program, while worker 0 of 2 waits for it"):
            controls[0].gather("a", 1, int)
        assert controls[0]._failure is None


def test_a_blamed_worker_is_named_where_its_failure_is_known() -> None:
    with connected(2) as controls:
        controls[1].fail("failed with KeyError")
        collective = RuntimeError("connection reset by peer")
        with pytest.raises(WorkerError, match="worker 1 of 2 failed with KeyError") as caught:
            controls[0].raise_cause_of(collective)
        assert caught.value.__cause__ is collective


def test_a_dump_names_the_workers_that_are_waited_for() -> None:
    with connected(3) as controls, ThreadPoolExecutor(3) as threads:
        early = [threads.submit(control.gather, "step 7", None, type(None)) for control in controls[::2]]
        awaited = "waits for worker 1 at step 7, as worker 2 of 3"
        until(lambda: awaited in threads_in_words())
        late = threads.submit(controls[1].gather, "step 7", None, type(None))
        assert [one.result(30) for one in (*early, late)] == [[None] * 3] * 3


def test_a_worker_that_was_36_s_late_for_a_call_ended_the_job() -> None:
    with connected(2) as controls:
        assert (controls[0].call_seconds, controls[0].failure_timeout_seconds) == (300, 30)
    with connected(1) as controls:
        hub = Hub(HOST, 1)
        given = Control((HOST, hub.port), hub.key, 0, 1, 7)
        assert (given.call_seconds, given.failure_timeout_seconds) == (7, 7)
        given.close()


@pytest.mark.slow
def test_a_process_that_cannot_be_told_is_ended() -> None:
    program = f"""
        import threading
        from penstock.distribute.control.channel import Control
        from penstock.distribute.control.hub import Hub
        hub = Hub({HOST!r}, 2)
        address = ({HOST!r}, hub.port)
        controls = [Control(address, hub.key, worker, 2, failure_timeout_seconds=0.1) for worker in range(2)]
        controls[1].fail("failed with KeyError")
        threading.Event().wait()  # as a collective that the other worker never joins
    """
    done = forked.run("-c", textwrap.dedent(program))
    assert done.returncode == 1
    assert (
        "penstock: WorkerError: worker 1 of 2 failed with KeyError. worker 0 of 2 did not learn of it within 0"
        in done.stderr
    )


@pytest.mark.slow
def test_a_process_at_its_end_waits_for_no_worker_that_fails_then() -> None:
    """It would wait until JAX, which waits for all workers at the exit, misses that one after 100 seconds."""
    program = f"""
        import atexit
        import threading

        def wait_for_all():  # as JAX does
            controls[1].fail("failed with KeyError")
            threading.Event().wait()

        atexit.register(wait_for_all)
        from penstock.distribute.control.channel import Control
        from penstock.distribute.control.hub import Hub
        hub = Hub({HOST!r}, 2)
        controls = [Control(({HOST!r}, hub.port), hub.key, worker, 2, limit) for worker, limit in enumerate((0.1, 300))]
    """
    done = forked.run("-c", textwrap.dedent(program))
    assert done.returncode == 1
    assert done.stderr.endswith(
        "penstock: WorkerError: worker 1 of 2 failed with KeyError. worker 0 of 2 has ended its program and waits for "
        "the others no longer.\n"
    )


# Strangers


def stranger(hub: Hub) -> socket.socket:
    return socket.create_connection((HOST, hub.port), timeout=30)


def agree(controls: list[Control]) -> None:
    expected = [[control.worker for control in controls]] * len(controls)
    assert results(controls, lambda control: control.gather("a", control.worker, int)) == expected


def test_a_wrong_key_is_refused_and_the_workers_still_meet(caplog) -> None:
    caplog.set_level(logging.INFO)
    hub = Hub(HOST, 2)
    with pytest.raises(NotAdmittedError):
        Control((HOST, hub.port), b"another key", 1, 2)
    with connected(2, hub) as controls:
        agree(controls)
    assert "a caller was refused: NotAdmittedError" in caplog.text


def test_a_worker_that_comes_twice_is_turned_away(caplog) -> None:
    hub = Hub(HOST, 2)
    with closing(Control((HOST, hub.port), hub.key, 0, 2)) as first:
        for number in (0, 7):
            stranger = Control((HOST, hub.port), hub.key, number, 2)
            wait_until(stranger, lambda stranger=stranger: stranger._failure is not None)
            stranger.close()
        with closing(Control((HOST, hub.port), hub.key, 1, 2)) as second:
            agree([first, second])
    assert "turned worker 0 away" in caplog.text and "turned worker 7 away" in caplog.text


@pytest.mark.parametrize(
    "said",
    [b"", b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", bytes(200), b"penstock rpc 1\r\n" + bytes(72), b"penst"],
    ids=["nothing", "a browser's", "zeros", "wrong digest", "cut off"],
)
def test_garbage_does_not_keep_the_workers_from_meeting(said, caplog) -> None:
    caplog.set_level(logging.INFO)
    hub = Hub(HOST, 2)
    with stranger(hub) as connection:
        connection.sendall(said)
    with connected(2, hub) as controls:
        agree(controls)
    assert "a caller was refused" in caplog.text


def test_a_connection_that_drips_does_not_keep_the_workers_from_meeting() -> None:
    hub = Hub(HOST, 2)
    with stranger(hub) as connection:
        connection.sendall(b"pen")
        begun = time.monotonic()
        with connected(2, hub) as controls:
            agree(controls)
        assert time.monotonic() - begun < 5


def test_a_worker_stopped_in_the_middle_of_a_message_holds_up_nobody() -> None:
    with connected(3) as controls:
        os.write(controls[2]._line.fileno(), struct.pack("<IQ", 100, 0) + b"half of it")
        controls[1].fail("ran out of luck")
        with pytest.raises(WorkerError, match="worker 1 of 3 ran out of luck"):
            controls[0].gather("a", 1, int)


def test_a_worker_that_is_silent_is_lost_after_its_time_and_no_other(monkeypatch) -> None:
    """As one whose machine's network drops every packet."""
    monkeypatch.setattr(line_module, "SILENT_SECONDS", 0.6)
    monkeypatch.setattr(line_module, "TICK_SECONDS", 0.1)
    monkeypatch.setattr(hub_module, "TICK_SECONDS", 0.1)
    monkeypatch.setattr(channel_module, "TICK_SECONDS", 0.1)
    hub = Hub(HOST, 3)
    with connected(2, hub, more=1) as controls:
        silent = dial(Address(HOST, hub.port), hub.key, 2)
        for message in errors(controls, lambda control: control.gather("a", 1, int)):
            assert message.startswith("WorkerError: worker 2 of 3 was lost: nothing was heard of it for ")
        silent.close()


@pytest.mark.extended
def test_silence_is_no_failure_as_long_as_signs_of_life_come(monkeypatch) -> None:
    monkeypatch.setattr(line_module, "SILENT_SECONDS", 0.6)
    monkeypatch.setattr(line_module, "TICK_SECONDS", 0.05)
    monkeypatch.setattr(hub_module, "TICK_SECONDS", 0.05)
    monkeypatch.setattr(channel_module, "TICK_SECONDS", 0.05)
    with connected(2) as controls:
        with controls[0]._changed:
            assert not controls[0]._changed.wait_for(lambda: controls[0]._failure is not None, timeout=1.5)
        controls[1].post(GatherItem.of(1, "b", 1))
        assert controls[0].gather("b", 0, int) == [0, 1]


def say(line: Line[Any], content: bytes) -> None:
    """Send a frame whose tag is right, and its content any."""
    frame = struct.pack("<IQ", len(content), 0) + content
    os.write(line.fileno(), frame + line._tags.next_sent([memoryview(frame)]))


@pytest.mark.parametrize(
    "said",
    [b"", b"no message", msgspec.msgpack.encode([["item", "zero"]]), msgspec.msgpack.encode([["other", 1]])],
    ids=["empty", "text", "wrong field", "unknown kind"],
)
def test_what_is_no_message_ends_its_sender_alone(said) -> None:
    with connected(3) as controls:
        say(controls[2]._line, said)
        others = controls[:2]
        for message in errors(others, lambda control: control.gather("a", 1, int)):
            assert message.startswith("WorkerError: worker 2 of 3 was lost: a frame came that holds no message: ")
        assert [control.sent for control in others] == [1, 1]


def test_half_a_message_of_one_worker_holds_up_no_other() -> None:
    with connected(3) as controls:
        os.write(controls[2]._line.fileno(), struct.pack("<IQ", 100, 0) + b"half of it")
        controls[1].fail("ran out of luck")
        (message,) = errors(controls[:1], lambda control: control.gather("a", 1, int))
        assert message == "WorkerError: worker 1 of 3 ran out of luck"


def test_a_message_that_is_too_long_ends_its_sender_alone() -> None:
    with connected(3) as controls:
        controls[2].post(GatherItem.of(2, "a", bytes(MAXIMUM_BYTES)))
        for message in errors(controls[:2], lambda control: control.gather("a", 1, int)):
            assert message.startswith("WorkerError: worker 2 of 3 was lost: a message of 67,108,")


def test_a_hub_that_says_what_is_no_message_is_a_failure_and_no_hang() -> None:
    hub = Hub(HOST, 2)
    with connected(2, hub) as controls:
        agree(controls)
        with at_once(controls[:1], lambda control: control.gather("a", 1, int)) as futures:
            say(hub._lines[0], b"?")
            assert "worker 0 of 2 was lost: a frame came that holds no message" in str(futures[0].exception(timeout=30))


def test_nothing_stays_open(caplog) -> None:
    caplog.set_level(logging.DEBUG)
    descriptors = set(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else set()
    with connected(3) as controls:
        agree(controls)
    if descriptors:
        assert set(os.listdir("/proc/self/fd")) <= descriptors
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("penstock-control")]


def test_a_worker_whose_input_fails_raises_its_own_error() -> None:
    with connected(2) as controls:
        controls[1].fail_step("iteration 0", 2, "ValueError: bad row")
        controls[0].fail("ended with KeyError")
        wait_until(controls[1], lambda: controls[1]._failure is not None)
        controls[1].check_in_main("iteration 0")
        with pytest.raises(WorkerError, match="worker 0 of 2 ended with KeyError"):
            controls[1].check_in_main("iteration 1")
