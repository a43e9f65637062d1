"""Bytes from others that were damaged, cut or made up: an error that is said, no crash, no memory by their own word."""

import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import penstock as ps
from penstock.formats.columns import encode_column
from penstock.service.wire.blocks import BlockHeader, ColumnHeader, unpack
from penstock.service.wire.compression import CODECS, compress, decompress

_MOST_BYTES = 1 << 27


def _loaded(name: str) -> Any:
    spec = spec_from_file_location(name, Path(__file__).parent / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


fuzzing = _loaded("fuzzing")
live = _loaded("fuzzing_live")


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


@contextmanager
def no_memory_by_others_word() -> Iterator[None]:
    """Python's, NumPy's and Arrow's."""
    arrows = pa.default_memory_pool()
    before = arrows.max_memory()  # of all the tests so far
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < _MOST_BYTES
        assert arrows.max_memory() <= max(before, arrows.bytes_allocated() + _MOST_BYTES)
    finally:
        tracemalloc.stop()


TARGETS = [
    pytest.param(name, marks=[pytest.mark.extended] if name in fuzzing.fuzzing_files.TARGETS else [])
    for name in fuzzing.TARGETS
]


@pytest.mark.extended
@pytest.mark.filterwarnings("ignore:Data type alias:DeprecationWarning")
@pytest.mark.parametrize("name", TARGETS)
def test_damaged_bytes_are_refused(name: str) -> None:
    @settings(suppress_health_check=list(HealthCheck))
    @given(damaged(fuzzing.seeds(name)))
    def run(content: bytes) -> None:
        fuzzing.TARGETS[name](content)

    with no_memory_by_others_word():
        run()


def test_bytes_changed_at_random_find_a_fault(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    seen = []

    def target(content: bytes) -> None:
        seen.append(content)
        assert content[:1] == b"a"

    monkeypatch.setitem(fuzzing.TARGETS, "token_files", target)
    with pytest.raises(AssertionError):
        fuzzing._fuzz_at_random("token_files", [])
    last = Path(capfd.readouterr().out.partition("its last input is in ")[2].strip())
    assert last.read_bytes() == seen[-1] and len(set(seen)) > len(seen) // 2
    fuzzing._fuzz_at_random("definitions", ["-max_total_time=0.05"])
    assert int(capfd.readouterr().out.split("\n")[1].removesuffix(" inputs")) > 0


@pytest.mark.extended
@pytest.mark.parametrize("way", live.WAYS)
def test_messages_of_any_content_do_no_harm(way: str) -> None:
    live.WAYS[way](15)


@pytest.mark.extended
@pytest.mark.parametrize("name", TARGETS)
def test_whole_bytes_are_taken_and_cut_ones_refused(name: str) -> None:
    for seed in fuzzing.seeds(name):
        for end in range(0, len(seed) + 1, 1 + len(seed) // 200):
            fuzzing.TARGETS[name](seed[:end])


def test_a_negative_shape_of_items_without_bytes_does_not_end_the_process() -> None:
    header = BlockHeader(["leaf", [], []], 1, (ColumnHeader((-1,), "V0"),))
    with pytest.raises(ps.errors.ServiceError, match=r"a column came with the shape \(-1,\)"):
        unpack(header, [np.empty(0, np.uint8)])


def a_string_in_a_stream(text: str, options: pa.ipc.IpcWriteOptions | None = None) -> bytearray:
    """What `pack` makes of a column of one string, but for the options."""
    field, column = encode_column("rows", np.array([text], object))
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, pa.schema([field]), options=options) as writer:
        writer.write_batch(pa.RecordBatch.from_arrays([column], schema=pa.schema([field])))
    return bytearray(sink.getvalue())


def unpacked_string(stream: bytes, dtype: Any = None) -> Any:
    header = BlockHeader(["leaf", [], []], 1, (ColumnHeader((1,), dtype, arrow=True),))
    return unpack(header, [np.frombuffer(stream, np.uint8)]).columns[0][0]


@pytest.mark.parametrize("codec", ["lz4", "zstd"])
def test_a_compressed_column_cannot_claim_memory(codec: str) -> None:
    """Arrow takes what a compressed buffer says that it will become before it looks at it."""
    assert unpacked_string(bytes(a_string_in_a_stream("x" * 1000))) == "x" * 1000
    stream = a_string_in_a_stream("x" * 1000, pa.ipc.IpcWriteOptions(compression=codec))
    claims = stream.copy()
    at = stream.rindex((1000).to_bytes(8, "little"))  # before the letters
    claims[at : at + 8] = (1 << 33).to_bytes(8, "little")
    for compressed in (stream, claims):
        with (
            no_memory_by_others_word(),
            pytest.raises(ps.errors.ServiceError, match="is an Arrow stream with compression"),
        ):
            unpacked_string(bytes(compressed))


def test_a_column_of_objects_cannot_claim_memory_by_its_dtype() -> None:
    stream = bytes(a_string_in_a_stream("x"))
    with no_memory_by_others_word(), pytest.raises(ps.errors.ServiceError, match="to become one of U500000000"):
        unpacked_string(stream, "U500000000")


@pytest.mark.parametrize("codec", [*CODECS, "", "GZIP"])
def test_a_compressed_buffer_cannot_claim_more_than_it_can_hold(codec: str) -> None:
    with (
        no_memory_by_others_word(),
        pytest.raises(ps.errors.ServiceError, match=f"100 bytes of codec '{codec}' came that"),
    ):
        decompress(codec, np.zeros(100, np.uint8), 1 << 30)


@pytest.mark.slow
@pytest.mark.parametrize("codec", CODECS)
def test_the_most_compressible_bytes_are_not_refused(codec: str) -> None:
    zeros = np.zeros(1 << 25, np.uint8)
    [compressed] = compress(codec, [zeros])
    assert compressed.size < zeros.size // 20
    assert np.array_equal(decompress(codec, compressed, zeros.size), zeros)


@pytest.mark.parametrize("codec", CODECS)
def test_a_damaged_compressed_buffer_is_an_error_of_the_service(codec: str) -> None:
    with pytest.raises(ps.errors.ServiceError, match=f"100 bytes of codec {codec} came that are damaged"):
        decompress(codec, np.full(100, 255, np.uint8), 200)
