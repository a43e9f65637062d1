"""The messages of readers and data workers over a line: requests, and blocks with their buffers."""

from typing import Annotated

import msgspec

from penstock.rpc.frames import BytesLocation
from penstock.service.wire.blocks import BlockHeader
from penstock.service.wire.subjects import Refused
from penstock.service.wire.worker_messages import Chunk, End, Failed, Fetch, Making


class BlockFrame(msgspec.Struct, frozen=True, tag="block"):
    """A block from a worker. A buffer with fewer bytes than its size here is compressed with `codec`."""

    chunk: Chunk
    header: BlockHeader
    places: tuple[BytesLocation, ...]
    sizes: tuple[int, ...]
    codec: str = ""


class Credit(msgspec.Struct, frozen=True, tag="credit"):
    """A reader accepts this number of further blocks."""

    blocks: Annotated[int, msgspec.Meta(ge=0, lt=1 << 32)]


class StopFetch(msgspec.Struct, frozen=True, tag="stop"):
    """A reader wants nothing more of its request."""


FromReader = Fetch | Credit | StopFetch
FromWorker = BlockFrame | End | Failed | Making | Refused
