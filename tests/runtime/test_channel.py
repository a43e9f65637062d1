"""The channel between two threads: order, bounds, and both ways of ending."""

import threading
import weakref
from functools import partial
from queue import SimpleQueue

import pytest

from penstock.runtime.channel import Channel, Closed


def in_thread(work):
    thread = threading.Thread(target=work)
    thread.start()
    return thread


def test_items_come_in_order_and_never_more_than_fit():
    channel = Channel(5)
    seen = []

    def produce():
        for number in range(100):
            channel.put(number, weight=2)

    producer = in_thread(produce)
    for _ in range(100):
        seen.append(channel.get())
        assert channel._weight <= 5
    producer.join()
    assert seen == list(range(100))


def test_an_item_heavier_than_the_channel_passes_alone():
    channel = Channel(2)
    channel.put("heavy", weight=10)
    assert channel.get() == "heavy"


def test_room_waits_until_something_was_taken():
    channel = Channel(3)
    channel.put("a", weight=3)
    found = []
    waiter = in_thread(lambda: found.append(channel.room()))
    assert channel.get() == "a"
    waiter.join()
    assert found == [3]


@pytest.mark.parametrize("blocked", [lambda c: c.put("x", 9), lambda c: c.room()])
def test_closing_wakes_a_producer(blocked):
    channel = Channel(1)
    channel.put("full")
    outcome = []

    def produce():
        try:
            blocked(channel)
        except Closed:
            outcome.append("closed")

    producer = in_thread(produce)
    channel.close()
    producer.join()
    assert outcome == ["closed"]


def test_closing_wakes_a_consumer_and_stays_closed():
    channel = Channel(1)
    outcome = []

    def consume():
        try:
            channel.get()
        except Closed:
            outcome.append("closed")

    consumer = in_thread(consume)
    channel.close()
    consumer.join()
    assert outcome == ["closed"]
    with pytest.raises(Closed):
        channel.put("late")
    with pytest.raises(Closed):
        channel.get()


@pytest.mark.parametrize("end", [lambda channel: channel.put(1, weight=2), lambda channel: channel.room()])
def test_a_channel_that_is_closed_just_before_its_producer_waits_ends_it(end):
    """As when Python collects a forgotten iterator in the thread that produces for it."""
    channel = Channel(1)
    channel.put(0)

    class Closing(SimpleQueue):
        def get(self):
            channel.close()
            return super().get()

    channel._wake_producer = Closing()
    with pytest.raises(Closed):
        end(channel)


def test_a_channel_that_is_closed_just_before_its_consumer_waits_ends_it():
    channel = Channel(1)

    class Closing(SimpleQueue):
        def get(self):
            channel.close()
            return super().get()

    channel._items = Closing()
    with pytest.raises(Closed):
        channel.get()


def test_what_is_put_while_the_channel_is_closed_is_not_kept():
    channel = Channel(2)

    class Closing(SimpleQueue):
        def put(self, entry):
            if entry is not None:
                channel.close()
            super().put(entry)

    class Item:
        pass

    channel._items = Closing()
    item = Item()
    forgotten = weakref.ref(item)
    with pytest.raises(Closed):
        channel.put(item)
    del item
    assert forgotten() is None


@pytest.mark.slow
def test_several_consumers_get_each_item_once_and_all_end():
    channel = Channel(3)
    taken = [[] for _ in range(4)]

    def consume(own):
        try:
            while True:
                own.append(channel.get())
        except Closed:
            own.append(None)

    consumers = [in_thread(partial(consume, own)) for own in taken]
    for number in range(2000):
        channel.put(number)
    while channel._weight:
        channel.room()
    channel.close()
    for consumer in consumers:
        consumer.join()
    assert sorted(number for own in taken for number in own[:-1]) == list(range(2000))
    assert [own[-1] for own in taken] == [None] * 4
    assert all(own[:-1] == sorted(own[:-1]) for own in taken)
