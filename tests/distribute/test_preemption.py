"""`ps.preemption` in one process; `tests/multi_worker/test_preemption.py` has several."""

import signal
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import penstock as ps


def test_a_signal_is_heard_inside_and_the_handler_before_comes_back() -> None:
    heard: list[int] = []
    before: Any = signal.signal(signal.SIGTERM, lambda number, _: heard.append(number))
    try:
        with ps.preemption() as preempted:
            assert not preempted.requested
            signal.raise_signal(signal.SIGTERM)
            assert preempted.requested and preempted.requested
        assert heard == []
        signal.raise_signal(signal.SIGTERM)
        assert heard == [signal.SIGTERM]
        with ps.preemption() as another:
            assert not another.requested
    finally:
        signal.signal(signal.SIGTERM, before)


def test_another_thread_than_the_main_one_is_refused() -> None:
    with ThreadPoolExecutor(1) as pool, pytest.raises(ps.InvalidArgumentError, match="as the main thread alone does"):
        pool.submit(ps.preemption().__enter__).result()
