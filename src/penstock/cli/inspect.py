"""`penstock inspect`."""

import argparse
from html import escape
from pathlib import Path
from typing import Any, Final

import numpy as np

import penstock as ps
from penstock.cli.arguments import Commands, add_command, count, failed, say
from penstock.cli.file_kinds import Kind, files_of, kind_of
from penstock.cli.findings import look_into
from penstock.data.shown_rows import shown_rows
from penstock.formats import media

_TILE: Final = 128
_TILES_ACROSS: Final = 8
_TILES: Final = 64


def add_inspect(commands: Commands) -> None:
    """Add the command to the parser."""
    examples = (
        "Examples: penstock inspect data/train.parquet;  penstock inspect 'data/*.tfrecord' --first 1;  "
        "penstock inspect pictures/ --sheet sheet.png"
    )
    parser = add_command(commands, "inspect", _inspect, examples)
    parser.add_argument(
        "files",
        nargs="+",
        metavar="FILE|GLOB|DIRECTORY",
        help="a file, a pattern in quotes such as 'data/*.csv', or a directory for all files below it; also with a "
        "protocol, as s3://bucket/data/*.parquet",
    )
    parser.add_argument("--first", type=count, metavar="N", default=3, help="how many elements are shown (default: 3)")
    parser.add_argument(
        "--sheet",
        metavar="OUT.png",
        help=f"write the first {_TILES} images, from image files or from columns that hold them, as one image",
    )
    parser.add_argument(
        "--html", metavar="OUT.html", help="write the first elements as a page, with pictures, players and histograms"
    )


def _inspect(options: argparse.Namespace) -> int:
    """Describe files of data: format, rows, schema, first elements, damage.

    For each format that is among the files it says how many files and rows there are, what a row is, the first
    elements, whether rows can be read in random order at little cost, and the damage. The format follows from the first
    bytes of a file, not from its name alone. All rows are read, so that every checksum is verified. Of a directory that
    ps.transform.analyze has written, the learned values are shown. The status is 0 if nothing is wrong, otherwise 1.
    """
    transforms = [given for given in options.files if (Path(given) / "transform.json").is_file()]
    for given in transforms:
        say(ps.transform.TransformOutput(given).summary())
    files = [given for given in options.files if given not in transforms]
    names = list(dict.fromkeys(name for given in files for name in files_of("inspect", given)))
    kinds: dict[Kind, list[str]] = {}
    images: list[np.ndarray[Any, Any]] = []
    tables: list[str] = []
    problems = 0
    for name in names:
        try:
            kinds.setdefault(kind_of(name), []).append(name)
        except ps.StorageError as error:
            problems += 1
            failed(str(error))
    for number, (kind, group) in enumerate(kinds.items()):
        wanted = _TILES - len(images) if options.sheet else 0
        found = look_into(kind, group, elements=options.first, images=wanted)
        say("\n".join(["", *found.lines()][number == 0 :]))
        problems += found.count
        images += found.images[:wanted]
        if options.html:
            tables.append(f"<h3>{escape(kind.shown)}</h3>{shown_rows(found.first)}")
    if options.sheet:
        _write_sheet(options.sheet, images)
    if options.html:
        page = f"<!doctype html><meta charset='utf-8'><meta name='color-scheme' content='light dark'>{''.join(tables)}"
        _write(options.html, page.encode(errors="replace"))
        say(f"\nwrote {options.html}")
    return 1 if problems else 0


def _write_sheet(path: str, images: list[np.ndarray[Any, Any]]) -> None:
    if not images:
        raise ps.InvalidArgumentError("inspect --sheet: there is no image in these files")
    across = min(_TILES_ACROSS, len(images))
    down = -(-len(images) // across)
    sheet = np.full((down * _TILE, across * _TILE, 3), 32, np.uint8)
    for number, image in enumerate(images):
        top, left = number // across * _TILE, number % across * _TILE
        sheet[top : top + _TILE - 4, left : left + _TILE - 4] = ps.image.resize(
            image, (_TILE - 4, _TILE - 4), pad_to_aspect_ratio=True
        )
    _write(path, media.images.encode_png(sheet))
    say(f"\nwrote {path}: {len(images)} images")


def _write(path: str, content: bytes) -> None:
    try:
        Path(path).write_bytes(content)
    except OSError as error:
        raise ps.StorageError(f"{path!r} cannot be written: {error.strerror or error}") from error
