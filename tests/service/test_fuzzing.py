"""Bytes from others that were damaged, cut or made up: an error that is said, no crash, no memory by their own word."""

import socket
import tracemalloc
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import penstock as ps
from penstock.service.wire import BlockHeader, ColumnHeader, unpack

_MOST_BYTES = 1 << 27


def _loaded() -> Any:
    spec = spec_from_file_location("fuzzing", Path(__file__).parent / "fuzzing.py")
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


fuzzing = _loaded()


def damaged(seeds: list[bytes]) -> st.SearchStrategy[bytes]:
    """Anything at all, or whole inputs of which pieces were replaced, repeated or cut off."""

    def change(seed: bytes, at: int, removed: int, put: bytes) -> bytes:
        at %= len(seed) + 1
        return seed[:at] + put + seed[at + removed :]

    numbers = st.sampled_from(
        [b"\xcf" + b"\xff" * 8, b"\xd3\x80" + b"\0" * 7, b"\xce\x7f\xff\xff\xff", b"\xc0", b"\x91"]
    )
    once = st.builds(
        change, st.sampled_from(seeds), st.integers(0, 1 << 16), st.integers(0, 9), st.binary(max_size=9) | numbers
    )
    twice = once.flatmap(lambda seed: st.builds(change, st.just(seed), st.integers(0, 1 << 16), st.just(1), numbers))
    return st.binary(max_size=200) | once | twice


@pytest.mark.filterwarnings("ignore:Data type alias:DeprecationWarning")
@pytest.mark.parametrize("name", fuzzing.TARGETS)
def test_damaged_bytes_are_refused(name: str) -> None:
    @settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
    @given(damaged(fuzzing.seeds(name)))
    def run(content: bytes) -> None:
        fuzzing.TARGETS[name](content)

    tracemalloc.start()
    try:
        run()
        assert tracemalloc.get_traced_memory()[1] < _MOST_BYTES
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("name", fuzzing.TARGETS)
def test_whole_bytes_are_taken_and_cut_ones_refused(name: str) -> None:
    for seed in fuzzing.seeds(name):
        for end in range(0, len(seed) + 1, 1 + len(seed) // 200):
            fuzzing.TARGETS[name](seed[:end])


def test_a_negative_shape_of_items_without_bytes_does_not_end_the_process() -> None:
    header = BlockHeader(["leaf", [], []], 1, (ColumnHeader((-1,), "V0"),))
    with pytest.raises(ps.ServiceError, match=r"a column came with the shape \(-1,\)"):
        unpack(header, [np.empty(0, np.uint8)])


def test_a_body_is_whole_however_much_memory_was_taken_for_it_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fuzzing.line, "_PIECE", 5)
    (ours, theirs), block = socket.socketpair(), fuzzing._socket_block()
    with ours, theirs:
        theirs.sendall(block)
        _, body, _ = fuzzing.line.receive(ours)
    assert block.endswith(body.tobytes()) and body.size > 100
