"""Findings of `penstock inspect` in files of one kind."""

import os
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import pyarrow.parquet as pq

import penstock as ps
from penstock.cli.example_features import features_of
from penstock.cli.file_kinds import TABLES, Kind, columns_in_folders, dataset_of
from penstock.formats.remote.remote_files import open_remote_bytes
from penstock.paths import has_protocol
from penstock.printing import in_bytes, one_line
from penstock.structure import flatten

_GOOD_GROUP: Final = 20_000
"""Rows of a Parquet row group above which a row at random costs much more than one in order."""
_SHOWN: Final = 10
_SAMPLE: Final = 100
"""How many records are looked into for the features of Examples."""
_WIDTH: Final = 100
_RANDOM_READS: Final = {
    "ArrayRecord": "good, by ps.ArrayRecordDataset, if its groups are small: write group_size:1",
    "MDS": "good, by ps.MdsDataset: each shard says where its samples begin",
    "NumPy": "good: any row by a slice",
    "Arrow": "good: any row from memory",
    "penstock": "good: any row by memory map",
    "CSV": "good, by ps.CsvDataset: it finds out once where rows begin",
    "TSV": "good, by ps.CsvDataset: it finds out once where rows begin",
    "JSON lines": "good, by ps.JsonLinesDataset: it finds out once where rows begin",
    "TFRecord": 'good, by ps.FilesDataset(files, "tfrecord"): it finds out once where records begin',
    "text": 'good, by ps.FilesDataset(files, "text"): it finds out once where lines begin',
    "tar": "good, by ps.TarDataset: it finds out once where samples begin",
}


@dataclass
class Findings:
    """Findings about the files of one kind.

    Attributes:
        kind: theirs.
        names: of the files.
        rows: how many each has; only those that were read, where all were not.
        schema: what a row is, in words.
        nulls: in how many rows columns are null, or have nulls in lists.
        records: the first bytes that are elements, which may be Examples.
        first: the first elements.
        problems: in words.
        count: how many things are wrong, of which `problems` has the first.
        images: the first images, for a contact sheet.
    """

    kind: Kind
    names: list[str]
    rows: list[int] = field(default_factory=list)
    schema: str = ""
    nulls: Counter[str] = field(default_factory=Counter)
    records: list[bytes] = field(default_factory=list)
    first: list[Any] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    count: int = 0
    images: list[np.ndarray[Any, Any]] = field(default_factory=list)

    def wrong(self, what: str) -> None:
        """Note something that is wrong."""
        self.count += 1
        if len(self.problems) < _SHOWN:
            self.problems.append(what)

    def lines(self) -> Iterator[str]:
        """The report."""
        yield f"{self.kind.shown}: {len(self.names):,} {'file' if len(self.names) == 1 else 'files'}{self._size()}"
        yield f"  rows          {self._rows()}"
        yield f"  schema        {self.schema or 'unknown: no row could be read'}"
        if self.nulls:
            counted = (f"{name} in {count:,} {'row' if count == 1 else 'rows'}" for name, count in self.nulls.items())
            yield f"  nulls         {one_line(', '.join(counted), 4 * _WIDTH)}: mask_nulls reads them"
        features = features_of(self.records) if self.records else None
        if features is not None:
            yield f"  Examples      {_features(features)}"
        yield f"  random reads  {self._random_reads()}"
        for number, element in enumerate(self.first):
            yield f"  element {number:<5} {_shown(element)}"
        yield f"  problems      {self.count or 'none'}"
        yield from (f"    {one_line(problem, 300)}" for problem in self.problems)
        if self.count > len(self.problems):
            yield f"    and {self.count - len(self.problems):,} more"

    def _size(self) -> str:
        if any(map(has_protocol, self.names)):
            return ""
        return f", {in_bytes(sum(map(_bytes_of, self.names)))}"

    def _rows(self) -> str:
        total = f"{sum(self.rows):,}"
        if self.kind.is_image or len(self.rows) < 2:
            return total
        return f"{total}, from {min(self.rows):,} to {max(self.rows):,} in a file"

    def _random_reads(self) -> str:
        if self.kind.is_image:
            return "good: a file for each row"
        if self.kind.compression:
            return "bad: compressed files are read from front to back"
        if self.kind.name != "Parquet":
            return _RANDOM_READS.get(self.kind.name, "unknown")
        largest = max(map(_largest_group, self.names), default=0)
        if largest <= _GOOD_GROUP:
            return f"good: row groups of up to {largest:,} rows"
        return (
            f"bad: a row at random decodes a row group of up to {largest:,} rows; write groups of a few thousand, for "
            "example by pyarrow.parquet.write_table(table, file, row_group_size=2000)"
        )


def _bytes_of(name: str) -> int:
    below = [os.path.join(name, one) for one in os.listdir(name)] if os.path.isdir(name) else [name]
    return sum(map(os.path.getsize, below))


def _largest_group(name: str) -> int:
    try:
        with pq.ParquetFile(open_remote_bytes(name) if has_protocol(name) else name) as file:
            return max((file.metadata.row_group(n).num_rows for n in range(file.metadata.num_row_groups)), default=0)
    except (OSError, ValueError):  # said by who reads it
        return 0


def look_into(kind: Kind, names: list[str], *, elements: int, images: int) -> Findings:
    """Read all rows of files of one kind, and describe them.

    Args:
        kind: theirs.
        names: of the files.
        elements: how many of the first elements are kept.
        images: how many images are kept.
    """
    found = Findings(kind, names)
    folders = columns_in_folders(names)
    for several in [names] if kind.is_image else [[name] for name in names]:
        try:
            _read(found, several, elements, images, folders)
        except ps.PenstockError as error:
            found.wrong(str(error))
    if kind.expected and kind.expected != kind.name:
        found.wrong(f"{names[0]!r} is named as {kind.expected}, and its content is {kind.name}")
    return found


def _read(found: Findings, names: list[str], elements: int, images: int, folders: Mapping[str, type]) -> None:
    is_table = found.kind.name in TABLES
    dataset = dataset_of(found.kind, names, is_table, folders)
    sheet = _Images(found)
    with iter(dataset.ignore_errors()) as rows:
        count, first = 0, None
        for row in rows:
            element, shown = _unmasked(row, found.nulls) if is_table else (row, row)
            first = element if first is None else first
            count += 1
            if isinstance(element, bytes) and len(found.records) < _SAMPLE:
                found.records.append(element)
            if len(found.first) < elements:
                found.first.append(shown)
            if len(found.images) < images:
                sheet.take(element, count - 1)
        errors = rows.errors
    found.rows.append(count)
    for row in errors.rows:
        place = f"row {row.position}: " if row.position is not None and not found.kind.is_image else ""
        found.wrong(f"{place}{row.error}")
    found.count += errors.count - len(errors.rows)
    if first is not None:
        schema = schema_of(first)
        if found.schema and schema != found.schema:
            found.wrong(f"{names[0]!r} has other rows than {found.names[0]!r}: {schema}")
        found.schema = found.schema or schema


def _unmasked(row: Any, nulls: Counter[str], path: str = "") -> tuple[Any, Any]:
    """A row without its masks, and the same with None for what was null.

    Args:
        row: of which each column has a mask, "x_is_valid" for "x", or had one in its file.
        nulls: counts the columns that were null, or lists that had nulls in them.
        path: the name of the struct that the row is of.
    """
    if not isinstance(row, dict):
        return row, row
    plain, shown = {}, {}
    for name, value in row.items():
        if name.endswith("_is_valid") and f"{name}_is_valid" not in row:  # a column of the file would have one too
            continue
        plain[name], shown[name] = _unmasked(value, nulls, f"{path}{name}.")
        if not row.get(f"{name}_is_valid", True):
            nulls[f"{path}{name}"] += 1
            shown[name] = value if isinstance(value, np.ndarray) and len(value) else None
    return plain, shown


class _Images:
    """Takes images from elements: themselves, or those whose files are in one of their leaves.

    Args:
        found: gets the images. Damaged images of a leaf that holds images in other elements are problems.
    """

    def __init__(self, found: Findings) -> None:
        self._found = found
        self._leaves: set[int] = set()  # those that hold images
        self._failures: dict[int, list[str]] = {}  # of leaves of which this is not known yet

    def take(self, element: Any, number: int) -> None:
        """Take the images of an element."""
        if self._found.kind.is_image:
            self._found.images.append(np.asarray(element))
            return
        leaves, structure = flatten(element)
        for place, leaf in enumerate(leaves):
            if not isinstance(leaf, bytes):
                continue
            try:
                self._found.images.append(ps.image.decode(leaf))
            except ps.ElementError as error:
                name = structure.paths()[place]
                self._failures.setdefault(place, []).append(f"element {number}{name and ' at ' + name}: {error}")
            else:
                self._leaves.add(place)
        for place in self._leaves & self._failures.keys():
            for failure in self._failures.pop(place):
                self._found.wrong(failure)


def schema_of(element: Any) -> str:
    """The structure of an element, with the kind of each leaf and how many axes it has."""
    leaves, structure = flatten(element)
    return one_line(structure.shown(map(_kind_of_leaf, leaves)), 4 * _WIDTH)


def _features(features: dict[str, ps.TensorSpec]) -> str:
    """Return the features of `ps.parse_example`, as a program writes them."""
    dtypes = {"O": "object", "f": "np.float32", "i": "np.int64"}
    shown = [f"{name!r}: ps.TensorSpec({spec.shape}, {dtypes[spec.dtype.kind]})" for name, spec in features.items()]
    return f"{{{', '.join(shown)}}}"


def _kind_of_leaf(leaf: Any) -> str:
    if isinstance(leaf, (str, bytes)):
        return "text" if isinstance(leaf, str) else "bytes"
    array = np.asarray(leaf)
    return f"{array.dtype}[{', '.join('-' * array.ndim)}]" if array.ndim else str(array.dtype)


def _shown(element: Any) -> str:
    leaves, structure = flatten(element)
    shown = structure.shown([_leaf(leaf) for leaf in leaves])
    return one_line(shown, 4 * _WIDTH)


def _leaf(leaf: Any) -> str:
    if isinstance(leaf, np.ndarray) and leaf.size > 8:
        return f"{leaf.dtype}{list(leaf.shape)}"
    if isinstance(leaf, bytes) and len(leaf) > 24:
        return f"{len(leaf):,} bytes, {leaf[:16]!r}..."
    text = repr(leaf.tolist() if isinstance(leaf, (np.ndarray, np.generic)) else leaf)
    return text if len(text) <= _WIDTH else f"{text[:_WIDTH]}... ({len(leaf):,} characters)"
