"""Arrays that show a mapped file reach other processes as places in it."""

from pathlib import Path

import numpy as np
import pytest

import penstock as ps
from penstock.runtime.sending import dumps, loads


def a_map(tmp_path: Path) -> "np.memmap[tuple[int], np.dtype[np.uint8]]":
    np.arange(10_000).astype(np.uint8).tofile(tmp_path / "tokens.bin")
    return np.memmap(tmp_path / "tokens.bin", np.uint8, "r+", offset=8)


VIEWS = {
    "whole": lambda mapped: mapped,
    "a part": lambda mapped: mapped[5:-5],
    "a plain view": lambda mapped: np.asarray(mapped)[3:],
    "backwards": lambda mapped: mapped[::-1],
    "rows": lambda mapped: mapped[: 8 * 200].view(np.int64).reshape(50, 4)[1::2],
    "a column from the end": lambda mapped: mapped[:9000].reshape(-1, 3)[::-2, 1],
}


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
def test_a_view_of_a_mapped_file_is_not_copied(view, tmp_path: Path) -> None:
    array = view(a_map(tmp_path))
    sent = dumps({"tokens": array})
    found = loads(sent)["tokens"]
    assert len(sent) < 300
    assert (found.dtype, found.tolist(), found.flags.writeable) == (array.dtype, array.tolist(), False)
    array[3] += 1  # both show the same memory
    assert found[3].tolist() == array[3].tolist()


def test_what_is_in_no_file_is_sent_itself(tmp_path: Path) -> None:
    mapped = a_map(tmp_path)
    changed = np.memmap(tmp_path / "tokens.bin", np.uint8, "c")
    changed[0] = 99
    assert loads(dumps(changed))[0] == 99
    assert loads(dumps(mapped[:0])).shape == (0,)
    (tmp_path / "tokens.bin").unlink()
    assert loads(dumps(mapped)).tolist() == mapped.tolist()


def test_a_machine_without_the_file_says_so(tmp_path: Path) -> None:
    mapped = a_map(tmp_path)
    sent = dumps(mapped)
    with (tmp_path / "tokens.bin").open("ab") as file:
        file.write(b"more")
    with pytest.raises(ps.StorageError, match="it has 10004 bytes here, and 10000 where it was mapped"):
        loads(sent)
    (tmp_path / "tokens.bin").unlink()
    with pytest.raises(
        ps.StorageError, match=r"a memory map of .*/tokens\.bin cannot be made in this process: .* put the"
    ):
        loads(sent)


def test_errors_of_functions_that_were_sent_name_their_file() -> None:
    def outer() -> str:
        return (lambda: 1).__code__.co_filename

    sent = loads(dumps(outer))
    assert sent.__code__ is not outer.__code__
    assert sent.__code__.co_filename == sent() == __file__
