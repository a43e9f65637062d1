"""A worker that answers requests by the name of their dataset. As a program, a process with its own servers."""

import json
import resource
import sys
import time
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt

from penstock.data.block import Block, object_column
from penstock.errors import InvalidArgumentError
from penstock.runtime.memory import empty
from penstock.runtime.shared_memory import Arena, location_of
from penstock.service.security.credentials import ServerSettings
from penstock.service.transport.block_server import BlockServer
from penstock.service.transport.identity import this_machine, this_process
from penstock.service.transport.in_process import InProcessServer
from penstock.service.wire.interfaces import Answers
from penstock.service.wire.subjects import Endpoint, Span
from penstock.service.wire.worker_messages import Chunk, End, Failed, Fetch, Making
from penstock.structure import LEAF

LARGE = 1 << 20
begun: dict[str, int] = {}  # how many blocks of a dataset were
keeps: dict[str, npt.NDArray[np.uint8]] = {}


def produce(request: Fetch) -> Answers:
    """The answer that the name of the dataset asks for. Names may go on with ":" and a file to write to at the end."""
    name, _, note = request.dataset_id.partition(":")
    try:
        if name == "announced":
            yield Making()
        for position in range(request.span.start, request.span.stop):
            if position == 3 and name == "fails":
                rest = Span(pass_number=0, start=4, stop=request.span.stop)
                yield Failed(next=rest, module="builtins", name="KeyError", arguments=["x"], notes=["in map"])
                return
            if position == 3 and name == "refuses":
                raise InvalidArgumentError("no such span")
            if position == 3 and name == "breaks":
                raise ZeroDivisionError("a mistake of ours")
            if position == 3 and name == "sleeps":
                time.sleep(3)
            if position == 3 and name == "pauses":
                time.sleep(0.5)
            begun[name] = position + 1
            yield Chunk(position=position, skip=0, rows=2), block(name, position)
        yield End(length=request.span.stop)
    finally:
        if note:
            Path(note).write_text("closed")


def block(name: str, position: int) -> Block:
    """Two rows."""
    if name == "begun":
        return Block((np.array([begun["large"]] * 2),), LEAF, 2)
    if name == "large":  # as operators make them: in the arena, where there is one
        column = empty((2, LARGE), np.dtype(np.uint8))
        column.fill(position)
        return Block((column,), LEAF, 2)
    if name == "where":  # what the consumer should find at the same place
        column = empty((2, LARGE), np.dtype(np.uint8))
        column.fill(position)
        place = location_of(column)
        assert place is not None
        column[0, :16] = np.array([place[0].number, place[1]], np.int64).view(np.uint8)
        return Block((column,), LEAF, 2)
    if name.startswith("kept"):
        if name not in keeps:
            keeps[name] = empty((2, LARGE), np.dtype(np.uint8)) if "arena" in name else np.empty((2, LARGE), np.uint8)
            keeps[name].fill(7)
        return Block((keeps[name],), LEAF, 2).read_only()
    if name == "arena":
        return Block((np.array([arena_bytes()] * 2),), LEAF, 2)
    if name == "ragged" and position % 2:
        return Block((object_column([np.arange(position), np.arange(1)]),), LEAF, 2)
    if name == "changing":
        return Block((np.full((2, position), position, np.float32),), LEAF, 2)
    if name == "unfit":
        return Block((object_column([object(), object()]),), LEAF, 2)
    return Block((np.array([2 * position, 2 * position + 1]),), LEAF, 2)


arenas: list[Arena] = []


def arena_bytes() -> int:
    """How large this worker's arena is."""
    return arenas[0].nbytes


def main() -> None:
    """Serve until standard input ends."""
    if "--no-files" in sys.argv:  # no segment can be made any more
        resource.setrlimit(resource.RLIMIT_FSIZE, (1024, 1024))
    server = BlockServer(produce, ServerSettings().access())
    arenas.append(server.arena)
    address = f"127.0.0.1:{server.port}"
    local = InProcessServer(produce, address)
    endpoint = Endpoint(address=address, machine=this_machine(), socket=server.socket, process=this_process())
    sys.stdout.write(json.dumps(msgspec.to_builtins(endpoint)) + "\n")
    sys.stdout.flush()
    sys.stdin.read()
    local.stop()
    server.stop()


if __name__ == "__main__":
    main()
