"""Arrays over memory that NumPy has not allocated, and the allocation of large arrays.

A process may name another place for its large arrays (`allocate_from`): a data worker names memory that it shares with
consumers, so that what operators gather, stack and compute is already there when it is handed over.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.runtime.memory_pool import SMALLEST, MemoryPool
from penstock.runtime.memory_thresholds import keep_freed_memory

Array = npt.NDArray[Any]
Bytes = npt.NDArray[np.uint8]

ALIGNMENT = 64
"""Where an array on a CPU device must begin: https://github.com/openxla/xla, `cpu_function_runtime::MinAlign`."""
LARGE = 1 << 16
"""The smallest size for which a special allocation is worthwhile."""

Allocate = Callable[[int], Bytes | None]
"""Returns this many bytes, aligned; None if it has no room."""


class Memory:
    """Bytes at an address, which arrays made by `array` keep alive.

    Args:
        owner: the owner of the bytes, kept alive as long as this object.
        released: called when no array shows the bytes any more. It may be called in any thread, inside of almost any
            call, because that is where garbage is collected: it must not wait, and take no lock.
    """

    __slots__ = ("__array_interface__", "_released", "owner")

    def __init__(self, address: int, size: int, owner: object, released: Callable[[], None] | None = None) -> None:
        self.__array_interface__ = {"data": (address, False), "shape": (size,), "typestr": "|u1", "version": 3}
        self.owner = owner
        self._released = released

    def array(self) -> Bytes:
        """The bytes, which may be written."""
        return np.asarray(self)

    def __del__(self) -> None:
        if self._released is not None:
            self._released()


def memory_of(array: Array) -> Memory | None:
    """The memory that an array shows, where it is a `Memory`."""
    base: Any = array.base
    while isinstance(base, np.ndarray):
        base = base.base
    return base if isinstance(base, Memory) else None


_allocators: list[Allocate] = []
_freed = MemoryPool(1 << 28)


def allocate_from(allocate: Allocate) -> None:
    """Let `empty` allocate large arrays by this function; of several, the newest is used."""
    _allocators.append(allocate)


def no_longer_from(allocate: Allocate) -> None:
    """Undo `allocate_from`."""
    _allocators.remove(allocate)


def empty(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """An uninitialised array; a large one is aligned so that JAX can use it on a CPU device without a copy."""
    array = output(shape, dtype)
    return np.empty(shape, dtype) if array is None else array


def output(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array | None:
    """An array for NumPy's argument `out`: as `empty`, but None for arrays that are not large."""
    size = dtype.itemsize * math.prod(shape)
    if size < LARGE or dtype.hasobject:
        return None
    memory = _from_allocator(size)
    if memory is None:
        memory = _kept(size) if size >= SMALLEST else _allocated(size)
    return memory.view(dtype).reshape(shape)


def shared_output(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array | None:
    """Variant of `output` for an array that needs a copy only where `allocate_from` has named a place; else None."""
    size = dtype.itemsize * math.prod(shape)
    memory = None if size < LARGE or dtype.hasobject else _from_allocator(size)
    return None if memory is None else memory.view(dtype).reshape(shape)


def _from_allocator(size: int) -> Bytes | None:
    newest = _allocators[-1:]  # at once: another thread may remove it
    return newest[0](size) if newest else None


def _allocated(size: int) -> Bytes:
    """Aligned memory of the C library, which would give that of each block back to the system before the next one."""
    keep_freed_memory()
    return _aligned(np.empty(size + ALIGNMENT, np.uint8), size)


def _kept(size: int) -> Bytes:
    """Aligned memory that is kept for others when no array shows it any more."""
    whole, released = _freed.take(size + ALIGNMENT)
    memory = _aligned(whole, size)
    return Memory(memory.ctypes.data, size, whole, released).array()


def _aligned(memory: Bytes, size: int) -> Bytes:
    start = -memory.ctypes.data % ALIGNMENT
    return memory[start : start + size]
