"""A dataset as bytes, to be sent to the data workers: the only place in the service where anything is pickled.

Bytes: 8 of `_MAGIC`; 8 with the length of the header (little-endian); the header, MessagePack of `_Header`; then its
parts one after the other, each beginning at a multiple of 16: first the pickle of (nodes, options), by cloudpickle with
protocol 5, then the arrays' buffers as they are. The arrays of a loaded dataset are views of the bytes: none is copied.
"""

import logging
import pickle
import platform
from typing import Any

import msgspec
import numpy as np

from penstock.data.node import Node
from penstock.errors import InvalidTypeError, ServiceError
from penstock.options import Options
from penstock.printing import text_of_error
from penstock.runtime.sending import dumps
from penstock.service.wire.interfaces import UnusableDataWorkerError
from penstock.service.wire.subjects import UNDECODABLE
from penstock.service.wire.unpicklable import culprit_of
from penstock.version import VERSION

_MAGIC = b"penstk01"
_ALIGNMENT = 16
LARGE_BYTES = 1_000_000_000
"""Above this size, a warning says that every worker receives a copy."""

_logger = logging.getLogger(__name__)


class _Header(msgspec.Struct, frozen=True):
    """The header before the parts: the versions that wrote them, and the length of each."""

    versions: dict[str, str]
    lengths: list[int]


_header_of = msgspec.msgpack.Decoder(_Header).decode


def versions() -> dict[str, str]:
    """The versions that a worker and a trainer must share: two numbers of Python's and NumPy's, all of penstock's."""
    return {
        "Python": _two_numbers(platform.python_version()),
        "NumPy": _two_numbers(np.__version__),
        "penstock": VERSION,
    }


def _two_numbers(version: str) -> str:
    return ".".join(version.split(".")[:2])


def to_bytes(node: Node, options: Options) -> bytes:
    """A dataset as bytes.

    Functions of the main program travel as code, functions of modules by name: the workers must have these modules.

    Raises:
        InvalidTypeError: something in it exists in this process only, such as a lock, an open file or a running
            generator; the message names it and where it hangs.
    """
    buffers: list[pickle.PickleBuffer] = []
    try:
        pickled = dumps(([*node.walk_all()], options), buffer_callback=buffers.append)
    except Exception as error:
        raise InvalidTypeError(f"the data workers cannot be given this dataset: {culprit_of(node, error)}") from error
    parts = [memoryview(pickled), *(buffer.raw() for buffer in buffers)]
    total = sum(part.nbytes for part in parts)
    if total > LARGE_BYTES:
        _logger.warning(
            "%s holds %.1f GB of arrays, a copy of which goes to every data worker: save them once with "
            "Dataset.save, where all workers can read them, and begin with Dataset.load",
            node.label,
            total / 1e9,
        )
    header = msgspec.msgpack.encode(_Header(versions(), [part.nbytes for part in parts]))
    pieces: list[bytes | memoryview] = [_MAGIC, len(header).to_bytes(8, "little"), header]
    end = 16 + len(header)
    for part in parts:
        padding = -end % _ALIGNMENT
        pieces += [bytes(padding), part]
        end += padding + part.nbytes
    return b"".join(pieces)


def from_bytes(definition: bytes) -> tuple[Node, Options]:
    """The dataset that `to_bytes` wrote. Its arrays are views of `definition`.

    Raises:
        UnusableDataWorkerError: it was written by another version of Python, NumPy or penstock.
        ServiceError: it needs a module that is not installed here.
    """
    header, begin = _header(definition)
    ours = versions()
    different = [name for name, version in ours.items() if header.versions.get(name) != version]
    if different:
        raise UnusableDataWorkerError(
            f"the dataset comes from a trainer with {_described(header.versions, different)}, this data worker has "
            f"{_described(ours, different)}: install the same on both, and start an upgraded dispatcher with an "
            "empty work_dir"
        )
    parts, view = [], memoryview(definition)
    for length in header.lengths:
        begin += -begin % _ALIGNMENT
        parts.append(view[begin : begin + length])
        begin += length
    try:
        nodes, options = pickle.loads(parts[0], buffers=parts[1:])  # what the user's trainer registered
    except ImportError as error:
        raise ServiceError(
            f"the dataset's functions need a module that this data worker lacks ({error}): install it on the workers, "
            "or define the functions in the main program, which is sent along"
        ) from error
    except Exception as error:
        raise ServiceError(f"this data worker cannot load the dataset: {text_of_error(error)}") from error
    return nodes[-1], options


def _header(definition: bytes) -> tuple[_Header, int]:
    """The header, and where the parts begin."""
    if definition[:8] != _MAGIC:
        raise ServiceError("the definition is no dataset of this version of penstock: register it again")
    end = 16 + int.from_bytes(definition[8:16], "little")
    try:
        return _header_of(definition[16:end]), end
    except UNDECODABLE as error:
        raise ServiceError("the definition of the dataset has no complete header: register it again") from error


def _described(found: dict[str, Any], names: list[str]) -> str:
    return ", ".join(f"{name} {found.get(name, 'unknown')}" for name in names)
