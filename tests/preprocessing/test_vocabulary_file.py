"""Vocabularies in files: the same results as in memory, one copy for all processes, and files that cannot work."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import pyarrow as pa
import pytest
from forked import Forked
from hypothesis import given, settings
from hypothesis import strategies as st

import penstock as ps
from penstock.preprocessing import IntegerLookup, StringLookup, TextVectorization, vocabulary_file
from penstock.preprocessing.vocabulary_file import FileKeys

lines = st.text(st.characters(codec="utf-8", exclude_characters="\n\r\x00"), min_size=1, max_size=70)


def written(path: Path, tokens: list[str], end: str = "\n") -> str:
    path.write_bytes("".join(token + end for token in tokens).encode())
    return str(path)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("vocabularies")


@pytest.mark.slow
@settings(max_examples=50)
@given(
    st.lists(lines, min_size=1, max_size=20, unique=True),
    st.lists(lines, max_size=100),
    st.sampled_from(["\n", "\r\n"]),
)
def test_a_file_gives_what_the_same_list_gives(
    folder: Path, vocabulary: list[str], tokens: list[str], end: str
) -> None:
    path = folder / f"{len(list(folder.iterdir()))}.txt"
    in_file = StringLookup(vocabulary=written(path, vocabulary, end), num_oov_indices=2)
    in_memory = StringLookup(vocabulary=vocabulary, num_oov_indices=2)
    assert in_file(tokens + vocabulary).tolist() == in_memory(tokens + vocabulary).tolist()
    assert in_file.get_vocabulary(include_special_tokens=False) == vocabulary


def test_all_modes_and_layers_take_a_file(tmp_path: Path) -> None:
    path = written(tmp_path / "words.txt", ["the", "fox", "dog"])
    assert TextVectorization(vocabulary=path)(["The fox!", "a dog"]).tolist() == [[2, 3], [1, 4]]
    assert StringLookup(vocabulary=path, output_mode="count")([["the", "the"]]).tolist() == [[0, 2, 0, 0]]
    assert StringLookup(vocabulary=path, invert=True)([0, 1, 3, 9]).tolist() == ["[UNK]", "the", "dog", "[UNK]"]
    numbers = written(tmp_path / "numbers.txt", ["12", "-7", "0"])
    assert IntegerLookup(vocabulary=numbers)([[-7, 12], [5, 0]]).tolist() == [[2, 1], [0, 3]]
    assert IntegerLookup(vocabulary=numbers, invert=True)([1, 2, 7]).tolist() == [12, -7, -1]
    assert IntegerLookup(vocabulary=numbers).get_vocabulary() == [-1, 12, -7, 0]


def test_a_path_may_be_an_object(tmp_path: Path) -> None:
    written(tmp_path / "v.txt", ["a"])
    assert StringLookup(vocabulary=tmp_path / "v.txt")("a") == 1


def test_an_index_that_cannot_be_written_whole_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*paths: object) -> None:
        raise OSError("no space left on device")

    path = written(tmp_path / "v.txt", ["a"])
    monkeypatch.setattr(vocabulary_file.os, "replace", full)
    with pytest.raises(ps.StorageError, match=r"no space left on device; give a directory with cache_dir="):
        StringLookup(vocabulary=path)
    assert os.listdir(tmp_path) == ["v.txt"]


def test_the_last_line_may_lack_its_end(tmp_path: Path) -> None:
    (tmp_path / "v.txt").write_text("a\nbc")
    assert StringLookup(vocabulary=str(tmp_path / "v.txt"))(["bc", "b"]).tolist() == [2, 0]


def test_the_index_is_made_once_and_again_when_the_file_changes(tmp_path: Path) -> None:
    path = written(tmp_path / "v.txt", ["a", "b"])
    StringLookup(vocabulary=path)
    index = tmp_path / "v.txt.penstock-index"
    made = index.stat().st_ino
    StringLookup(vocabulary=path)
    assert index.stat().st_ino == made
    written(tmp_path / "v.txt", ["b", "a", "c"])
    assert StringLookup(vocabulary=path)(["a", "c"]).tolist() == [2, 3]


@pytest.mark.parametrize("damage", [b"", b"x" * 7, b"x" * 64, b"x" * 160])
def test_a_damaged_index_is_made_anew(tmp_path: Path, damage: bytes) -> None:
    path = written(tmp_path / "v.txt", ["a", "b"])
    (tmp_path / "v.txt.penstock-index").write_bytes(damage)
    assert StringLookup(vocabulary=path)(["b"]).tolist() == [2]


def test_the_index_can_be_kept_elsewhere(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    path = written(tmp_path / "data" / "v.txt", ["a", "b"])
    cache = tmp_path / "cache"
    layer = StringLookup(vocabulary=path, cache_dir=str(cache))
    assert layer(["b"]).tolist() == [2]
    assert [file.suffix for file in cache.iterdir()] == [".penstock-index"]
    assert os.listdir(tmp_path / "data") == ["v.txt"]
    assert StringLookup.from_config(layer.get_config())(["b"]).tolist() == [2]


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a link away")
def test_an_index_that_is_another_users_link_is_refused(tmp_path: Path) -> None:
    (tmp_path / "vocabulary").write_text("rose\n")
    (tmp_path / "real").mkdir()
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "real")
    os.chown(link, 65534, 65534, follow_symlinks=False)
    with pytest.raises(ps.StorageError, match=r"index of .* is not kept at .*link is a link that user 65534 has made"):
        StringLookup(vocabulary=tmp_path / "vocabulary", cache_dir=str(link))


def test_a_place_that_cannot_be_written_is_an_error_that_names_cache_dir(tmp_path: Path) -> None:
    path = written(tmp_path / "v.txt", ["a"])
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(ps.StorageError, match=r"give a directory with cache_dir="):
        StringLookup(vocabulary=path, cache_dir=str(tmp_path / "file"))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty"),
        (b"a\n\nb\n", "line 2 is empty"),
        (b"a\nb\na\n", r"repeated: \[b'a'\]"),
        (b"a\n\n", "line 2 is empty"),
    ],
)
def test_files_that_cannot_work_are_refused(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "v.txt").write_bytes(content)
    with pytest.raises(ps.InvalidArgumentError, match=message):
        StringLookup(vocabulary=str(tmp_path / "v.txt"))
    assert os.listdir(tmp_path) == ["v.txt"]


@pytest.mark.parametrize("line", ["x", "007", " 5", "99999999999999999999"])
def test_integers_must_be_written_plainly(tmp_path: Path, line: str) -> None:
    with pytest.raises(ps.InvalidArgumentError, match="every line must be an integer"):
        IntegerLookup(vocabulary=written(tmp_path / "v.txt", ["1", line]))


def test_tokens_whose_fingerprints_collide_are_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vocabulary_file, "fingerprint64", lambda data, starts, lengths: lengths.astype(np.uint64) % 2)
    tokens = [f"token{number}" for number in range(12)]
    layer = StringLookup(vocabulary=written(tmp_path / "v.txt", tokens))
    assert layer([*tokens, "other", "odd"]).tolist() == [*range(1, 13), 0, 0]


def test_a_layer_with_a_file_is_a_few_hundred_bytes_on_the_wire(tmp_path: Path) -> None:
    path = written(tmp_path / "v.txt", [f"token{number}" for number in range(20_000)])
    layer = StringLookup(vocabulary=path)
    wire = cloudpickle.dumps(layer)
    assert len(wire) < 700
    assert cloudpickle.loads(wire)(["token19999", "x"]).tolist() == [20_000, 0]
    written(tmp_path / "v.txt", ["other"])
    with pytest.raises(ps.StorageError, match="has changed since the layer was made"):
        cloudpickle.loads(wire)


SHARED = """
import json, sys
import cloudpickle
import numpy as np
layer = cloudpickle.loads(bytes.fromhex(sys.argv[1]))
found = layer(np.array([f"token{number}" for number in range(0, 375_000, 3)]))
rest = open("/proc/self/smaps").read().split("VmFlags")
pages = [part for part in rest if sys.argv[2] in part]
def total(field):
    return sum(int(line.split()[1]) for part in pages for line in part.splitlines() if line.startswith(field))
print(json.dumps([int(found.sum()), total("Rss:"), total("Anonymous:"), len(pages)]), flush=True)
sys.stdin.readline()
"""


@pytest.mark.extended
@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="the system does not tell which pages are shared")
def test_two_processes_share_the_pages_of_a_large_vocabulary(tmp_path: Path) -> None:
    path = written(tmp_path / "v.txt", [f"token{number}" for number in range(250_000)])
    layer = StringLookup(vocabulary=path)
    keys = layer._keys
    assert isinstance(keys, FileKeys)
    assert isinstance(keys._text, np.memmap)
    for array in (keys._nexts, keys._prints, keys._order):
        assert not array.flags.owndata and not array.flags.writeable
    command = [sys.executable, "-c", SHARED, cloudpickle.dumps(layer).hex(), path]
    workers = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    try:
        reports = [json.loads(worker.stdout.readline()) for worker in workers if worker.stdout]
    finally:
        for worker in workers:
            worker.communicate("\n", timeout=60)
    expected = sum(number + 1 for number in range(0, 250_000, 3))
    for found, resident, copied, mappings in reports:
        assert found == expected
        assert mappings >= 2 and resident > 5_000 and copied == 0  # kB: all of it is the files' own pages


LOOK_UP = """
import sys
from penstock.preprocessing import StringLookup
print(StringLookup(vocabulary=sys.argv[1])(["token5", "token49999"]).tolist())
"""


@pytest.mark.extended
def test_processes_that_start_at_once_make_one_index(tmp_path: Path) -> None:
    path = written(tmp_path / "v.txt", [f"token{number}" for number in range(50_000)])
    program = tmp_path / "look_up.py"
    program.write_text(LOOK_UP)
    processes = [Forked(str(program), path, pipes=("stdout",)) for _ in range(4)]
    assert [process.communicate(timeout=60)[0] for process in processes] == ["[6, 50000]\n"] * 4
    assert sorted(os.listdir(tmp_path)) == ["look_up.py", "v.txt", "v.txt.penstock-index"]


def test_arrow_arrays_are_looked_up_too(tmp_path: Path) -> None:
    layer: Any = StringLookup(vocabulary=written(tmp_path / "v.txt", ["a", "b"]))
    assert layer(pa.array(["b", "x", "b", "a"])[1:]).tolist() == [0, 2, 1]


@pytest.mark.parametrize(
    ("layer", "tokens", "arguments", "message"),
    [
        (StringLookup, "[UNK]\na\nb\n", {}, "begins with the tokens of the mask and of unknown ones"),
        (StringLookup, "[PAD]\n[UNK]\na\n", {"mask_token": "[PAD]"}, "begins with the tokens of the mask"),
        (StringLookup, "a\n[PAD]\n", {"mask_token": "[PAD]"}, r"mask_token '\[PAD\]' is token 1: leave it out"),
        (StringLookup, "a\n[UNK]\n", {"invert": True}, r"oov_token '\[UNK\]' is token 1: leave it out"),
        (IntegerLookup, "-1\n5\n", {}, "begins with the tokens of the mask and of unknown ones"),
        (IntegerLookup, "5\n0\n", {"mask_token": 0}, "mask_token 0 is token 1"),
        (TextVectorization, "[UNK]\na\n", {"output_mode": "count"}, "begins with the tokens of the mask"),
    ],
)
def test_special_tokens_in_a_file_shifted_the_indices_of_all_others(tmp_path, layer, tokens, arguments, message):
    (tmp_path / "v.txt").write_text(tokens)
    with pytest.raises(ps.InvalidArgumentError, match=message):
        layer(vocabulary=str(tmp_path / "v.txt"), **arguments)


def test_a_token_like_that_for_unknown_ones_may_stand_behind_others(tmp_path):
    (tmp_path / "v.txt").write_text("a\n[UNK]\n")
    assert StringLookup(vocabulary=str(tmp_path / "v.txt"))(["a", "[UNK]", "b"]).tolist() == [1, 2, 0]
