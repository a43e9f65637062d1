"""Copies some arrays of a remote checkpoint: only their bytes, into sparse files of the original size.

Orbax stores the content of all arrays in a few files, in directories `d`, with a tree that locates each array. This is
TensorStore's format OCDBT; the tree is read by TensorStore's documented dump.
"""

import posixpath
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import tensorstore

_TREE = "arrays/manifest.ocdbt"

_PIECE_BYTES = 16 << 20
_PIECES_AT_ONCE = 16


def copy_arrays(system: Any, remote: str, local: Path, names: Collection[str]) -> bool:
    """Copy what Orbax needs of a checkpoint to restore some of its arrays.

    Args:
        system: the file system of `remote`.
        remote: the checkpoint.
        local: the directory to copy it to.
        names: of the arrays.

    Returns:
        Whether it was done; False for arrays in another format, as in checkpoints that other programs wrote.
    """
    sizes = {posixpath.relpath(path, remote): about["size"] for path, about in system.find(remote, detail=True).items()}
    if _TREE not in sizes:
        return False
    for file in sizes:
        (local / file).parent.mkdir(parents=True, exist_ok=True)
    whole = [file for file in sizes if Path(file).parent.name != "d"]
    system.get([f"{remote}/{file}" for file in whole], [str(local / file) for file in whole])
    for file in sizes.keys() - whole:
        with open(local / file, "wb") as empty:
            empty.truncate(sizes[file])
    arrays = tensorstore.KvStore.open({"driver": "file", "path": f"{local}/arrays/"}).result()
    newest = tensorstore.ocdbt.dump(arrays).result()["versions"][-1]
    if newest["root_height"] > 0:  # more than a hundred megabytes of names
        return False
    _copy_ranges(system, remote, local, [newest["root"]["location"]])
    entries = tensorstore.ocdbt.dump(arrays, newest["root"]["location"]).result()["entries"]
    needed = [entry for entry in entries if entry["key"].decode().rpartition("/")[0] in names]
    _copy_ranges(system, remote, local, [entry["indirect_value"] for entry in needed if "indirect_value" in entry])
    return True


def _copy_ranges(system: Any, remote: str, local: Path, locations: list[str]) -> None:
    pieces = [piece for location in locations for piece in _pieces(location)]
    for first in range(0, len(pieces), _PIECES_AT_ONCE):
        files, starts, stops = map(list, zip(*pieces[first : first + _PIECES_AT_ONCE], strict=True))
        found = system.cat_ranges([f"{remote}/{file}" for file in files], starts, stops, on_error="raise")
        for file, start, content in zip(files, starts, found, strict=True):
            with open(local / file, "r+b") as copy:
                copy.seek(start)
                copy.write(content)


def _pieces(location: str) -> Iterator[tuple[str, int, int]]:
    _, base, file, start, length = location.split(":")
    stop = int(start) + int(length)
    for piece in range(int(start), stop, _PIECE_BYTES):
        yield f"arrays/{base}{file}", piece, min(piece + _PIECE_BYTES, stop)
