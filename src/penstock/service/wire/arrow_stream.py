"""Reads Arrow IPC streams of one record batch from other processes, without trusting the sizes that they state.

A compressed buffer states its own uncompressed size, and Arrow allocates that much before it looks further. `wire.pack`
never compresses such streams (`compression.py` compresses whole buffers for the network), so a compressed batch comes
from something else. pyarrow does not tell whether a batch is compressed; its description does, a table of FlatBuffers:
https://arrow.apache.org/docs/format/Columnar.html#recordbatch-message
"""

import struct
from typing import Final

import pyarrow as pa

from penstock.service.wire.interfaces import WrongAnswerError

_MESSAGE_HEADER: Final = 2
"""The number of the field of a `Message` that holds its `RecordBatch`."""
_COMPRESSION: Final = 3
"""The number of the field of a `RecordBatch` that says how its buffers are compressed."""


def read_batch(stream: pa.Buffer) -> pa.RecordBatch:
    """The record batch of a stream, whose columns are views of it. They are not validated.

    Raises:
        WrongAnswerError: it is compressed, or the stream begins with something else than a schema and a record batch.
        ArrowException: it is no stream.
        struct.error: it is damaged.
    """
    source = pa.BufferReader(stream)
    described = pa.ipc.read_message(source)
    if described.type != "schema":
        raise WrongAnswerError(f"a column came that begins with a {described.type} instead of its schema")
    schema = pa.ipc.read_schema(described)
    message = pa.ipc.read_message(source)
    if message.type != "record batch":
        raise WrongAnswerError(f"a column came with a {message.type} instead of its rows")
    if _is_compressed(message.metadata.to_pybytes()):
        raise WrongAnswerError(
            "a column came that is an Arrow stream with compression, which penstock's data workers never send"
        )
    return pa.ipc.read_record_batch(message, schema)


def _is_compressed(metadata: bytes) -> bool:
    """Return whether the message of a record batch names a compression. Arrow has verified its tables."""
    (message,) = struct.unpack_from("<I", metadata)
    header = _field(metadata, message, _MESSAGE_HEADER)
    (offset,) = struct.unpack_from("<I", metadata, header)
    return _field(metadata, header + offset, _COMPRESSION) != 0


def _field(metadata: bytes, table: int, number: int) -> int:
    """The offset of a field of a table; 0 if it is missing."""
    (back,) = struct.unpack_from("<i", metadata, table)
    size, entry = struct.unpack_from("<H", metadata, table - back)[0], 4 + 2 * number
    if entry >= size:
        return 0
    (offset,) = struct.unpack_from("<H", metadata, table - back + entry)
    return table + offset if offset else 0
