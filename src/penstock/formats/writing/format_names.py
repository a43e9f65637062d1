"""The formats in which datasets are saved, by their names."""

from collections.abc import Callable
from typing import Any, Final

from penstock.errors import InvalidArgumentError
from penstock.formats import writing
from penstock.formats.writing.megatron_shards import MegatronShards
from penstock.formats.writing.npy_shards import NpyShards
from penstock.formats.writing.shard_format import ShardWriter

_FORMATS: Final[dict[str, Callable[[], type[ShardWriter]]]] = {
    "array_record": lambda: writing.record_shards.array_record_shards(),
    "megatron": lambda: MegatronShards,
    "npy": lambda: NpyShards,
    "parquet": lambda: writing.parquet_shards.ParquetShards,
    "penstock": lambda: writing.row_shards.RowShards,
    "tar": lambda: writing.tar_shards.TarShards,
    "tfrecord": lambda: writing.record_shards.TFRecordShards,
}
FORMATS: Final = tuple(_FORMATS)


def shard_format(call: str, name: Any) -> type[ShardWriter]:
    """The format with this name.

    Raises:
        InvalidArgumentError: there is none of that name.
        MissingExtraError: it needs a package that is not installed.
    """
    if not isinstance(name, str) or name not in _FORMATS:
        raise InvalidArgumentError(
            f"{call}(format=...) takes one of {', '.join(map(repr, FORMATS))}, got {name!r:.200}"
        )
    return _FORMATS[name]()
