"""Memory that other processes can map: segments of an arena, in nameless files that vanish with their last owner.

A segment is a file in memory (`memfd_create`; elsewhere an unlinked temporary file) in slots of one size. An array that
`Arena.allocate` gives takes one slot, until the array and everything that shows its memory is gone; the slot is then
used again, because fresh memory costs more to touch than to fill.
"""

import fcntl
import itertools
import logging
import mmap
import os
import tempfile
import threading
import weakref
from collections import defaultdict, deque
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

import numpy as np

from penstock.runtime.memory import Array, Bytes, Memory, memory_of

_logger = logging.getLogger(__name__)

_SEGMENT_BYTES = 16 << 20
"""Slots of up to a quarter of this share a segment."""
_SMALLEST_SLOT = 1 << 16
_IDLE_BYTES = 128 << 20
"""About what batches of 12 MB take in an epoch of one reader: where this was half as much, each epoch began with 15 new
segments, and a fifth of a data worker's time went into their pages."""
_MOST_SEGMENTS = 128
"""Each takes two of the process's file descriptors, of which there may be 1024 (256 on macOS)."""

_numbers = itertools.count()


class Segment:
    """A file in memory, mapped into this process.

    Attributes:
        number: differs from that of any other segment of this process.
        file: its descriptor, by which others map it.
        used: how many of its slots are taken.
    """

    def __init__(self, slots: int, slot_size: int) -> None:
        self.number = next(_numbers)
        self.size = slots * slot_size
        self.slot_size = slot_size
        self.used = 0
        self.file = nameless_file(self.size)
        weakref.finalize(self, os.close, self.file)
        self.mapping = Mapping(self.file, self.size)


class Mapping:
    """A segment's memory in this process, for as long as anything shows it.

    Raises:
        OSError: the file is smaller, or cannot be mapped.
    """

    def __init__(self, file: int, size: int, *, writable: bool = True) -> None:
        if os.fstat(file).st_size < size:
            raise OSError(f"a segment of {size} bytes has only {os.fstat(file).st_size}")
        access = mmap.ACCESS_WRITE if writable else mmap.ACCESS_READ
        self._bytes = np.frombuffer(mmap.mmap(file, size, access=access), np.uint8)
        self.address = self._bytes.ctypes.data
        self.size = size


@dataclass(frozen=True, eq=False)
class Slot:
    """A piece of memory: its segment and its place in it."""

    segment: Segment
    number: int

    @property
    def offset(self) -> int:
        """Its first byte in the segment."""
        return self.number * self.segment.slot_size


class Arena:
    """Allocates arrays in segments. Several threads may allocate at the same time.

    Args:
        idle_bytes: how many bytes may be idle, in addition to as many as are in use.
    """

    def __init__(self, idle_bytes: int = _IDLE_BYTES) -> None:
        self._idle_bytes = idle_bytes
        self._lock = threading.Lock()
        self._free: dict[int, dict[Segment, list[Slot]]] = defaultdict(dict)
        self._segments: set[Segment] = set()
        self._unused: dict[Segment, None] = {}
        self._bytes = self._unused_bytes = 0
        self._closed = self._warned = False
        # Arrays are freed by the garbage collector: it only appends their slot here, which takes no lock.
        self._returned: deque[Slot] = deque()

    def allocate(self, size: int) -> Bytes | None:
        """This many bytes; None if there is no room for more segments."""
        slot_size = slot_size_for(size)
        with self._lock:
            self._collect()
            free = self._free[slot_size]
            if not free and not self._grow(slot_size):
                return None
            segment, slots = free.popitem()
            slot = slots.pop()
            if slots:
                free[segment] = slots
            if not segment.used:
                del self._unused[segment]
                self._unused_bytes -= segment.size
            segment.used += 1
        address = slot.segment.mapping.address + slot.offset
        return Memory(address, size, slot, released=partial(self._returned.append, slot)).array()

    @property
    def nbytes(self) -> int:
        """The size of all segments that are kept for use."""
        with self._lock:
            self._collect()
            return self._bytes

    def close(self) -> None:
        """Give back all idle memory, and allocate no more. Arrays stay as they are."""
        with self._lock:
            self._closed = True
            self._collect()
            while self._unused:
                self._drop_unused()
            self._free.clear()

    def _collect(self) -> None:
        while self._returned:
            slot = self._returned.popleft()
            segment = slot.segment
            segment.used -= 1
            self._free[segment.slot_size].setdefault(segment, []).append(slot)
            if not segment.used:
                self._unused[segment] = None
                self._unused_bytes += segment.size
        while 2 * self._unused_bytes > self._bytes + self._idle_bytes:  # more than are in use, and `idle_bytes`
            self._drop_unused()

    def _drop_unused(self) -> None:
        segment, _ = self._unused.popitem()
        self._segments.remove(segment)
        self._bytes -= segment.size
        self._unused_bytes -= segment.size
        self._free[segment.slot_size].pop(segment, None)

    def _grow(self, slot_size: int) -> bool:
        if self._closed or len(self._segments) >= _MOST_SEGMENTS:
            return False
        slots = _SEGMENT_BYTES // slot_size if slot_size * 4 <= _SEGMENT_BYTES else 1
        try:
            segment = Segment(slots, slot_size)
        except OSError as error:  # which may be so for this moment only
            if not self._warned:
                self._warned = True
                _logger.warning("no memory can be shared with other processes, blocks go through a socket: %s", error)
            return False
        self._segments.add(segment)
        self._unused[segment] = None
        self._bytes += segment.size
        self._unused_bytes += segment.size
        self._free[slot_size][segment] = [Slot(segment, number) for number in range(slots)]
        return True


def slot_size_for(size: int) -> int:
    """The size of the slots for arrays of this size: at most a quarter more, in whole pages, so that there are few."""
    if size <= _SMALLEST_SLOT:
        return _SMALLEST_SLOT
    step = 1 << ((size - 1).bit_length() - 3)
    return -(-size // step) * step


def location_of(array: Array) -> tuple[Segment, int] | None:
    """The segment that holds a contiguous array, and where it begins there; None for any other memory."""
    memory = memory_of(array)
    if memory is None or not isinstance(memory.owner, Slot):
        return None
    segment = memory.owner.segment
    return segment, array.ctypes.data - segment.mapping.address


def nameless_file(size: int) -> int:
    """The descriptor of a new file of this size, which has no name: it is gone with the last that has it open.

    On Linux it cannot be made smaller, which would end processes that have it mapped.

    Raises:
        OSError: there is no room for it.
    """
    try:
        file = os.memfd_create("penstock", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    except (AttributeError, OSError):  # not Linux, or a sandbox that does not have it
        file, path = tempfile.mkstemp(prefix="penstock-")
        os.unlink(path)
    try:
        os.ftruncate(file, size)
    except OSError:
        os.close(file)
        raise
    with suppress(AttributeError, OSError):  # not Linux, or a file in a directory
        fcntl.fcntl(file, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
    return file
