"""TensorFlow's names of a dataset's arguments and methods, where they differ from penstock's."""

from typing import Final

from penstock.other_names import Names, NotHere, OtherNames

_IN_ORDER = NotHere("the order is always kept, and threads change the speed alone")
_PER_FORMAT = NotHere("format=... decides: parquet is compressed, penstock's own is read by memory map")
_BY_SHARDS = NotHere("say shards=... or rows_per_shard=...: elements are written in their order, each once")
_RESUMED = NotHere("the same call continues where it was killed")
_ANY_ROW = NotHere("any row can be read: shuffle or map the dataset")

DATASET = OtherNames(
    keywords={
        "apply": {"transformation_func": "transformation"},
        "batch": {"deterministic": _IN_ORDER},
        "counter": {"dtype": NotHere("the numbers are int64; another dtype comes from .map(numpy.float32), say")},
        "flat_map": {"map_func": "fn"},
        "from_generator": {
            "generator": "fn",
            "output_types": "output_signature",
            "output_shapes": "output_signature",
            "args": NotHere("bind them in a function: from_generator(lambda: generator(1, 2))"),
        },
        "ignore_errors": {"log_warning": "log"},
        "interleave": {"map_func": "fn", "deterministic": _IN_ORDER},
        "list_files": {"file_pattern": "pattern"},
        "load": {
            "element_spec": NotHere("the directory says what its elements are"),
            "compression": _PER_FORMAT,
            "reader_func": _ANY_ROW,
            "wait": NotHere("the directory appears when it is complete"),
        },
        "map": {
            "map_func": "fn",
            "synchronous": NotHere("without num_parallel_calls the function runs where the element is asked for"),
            "use_unbounded_threadpool": NotHere("num_parallel_calls is the number of threads"),
        },
        "ragged_batch": {"row_splits_dtype": NotHere("each row is an array, without row splits")},
        "range": {"output_type": NotHere("the numbers are int64; another dtype comes from .map(numpy.float32), say")},
        "save": {"compression": _PER_FORMAT, "shard_func": _BY_SHARDS, "checkpoint_args": _RESUMED},
        "snapshot": {"compression": _PER_FORMAT, "shard_func": _BY_SHARDS, "reader_func": _ANY_ROW},
        "zip": {"datasets": NotHere("give them without a keyword: zip(first, second)")},
    },
    of_all_methods={
        "name": NotHere("steps have no names; errors and explain() name the line of your program that added one"),
    },
    attributes={
        "make_one_shot_iterator": NotHere("use iter(dataset)"),
        "make_initializable_iterator": NotHere("use iter(dataset)"),
        "sparse_batch": NotHere("there are no sparse tensors; padded_batch and ragged_batch take unequal rows"),
        "variant_tensor": NotHere("a dataset is no tensor"),
    },
)
"""Of `ps.Dataset` and all its methods."""

ITERATOR = OtherNames(
    attributes={
        "initializer": NotHere("an iterator begins when it is made, by iter(dataset)"),
        "next": NotHere("use next(iterator)"),
        "restore": "load_state_dict",
        "save": "state_dict",
    },
)
"""Of what `iter(dataset)` gives."""

_READ_AHEAD = NotHere("files are read by chunks, whose size is chosen")
FILES: Names = {
    "filenames": "files",
    "buffer_size": _READ_AHEAD,
    "num_parallel_reads": NotHere(
        "to read several at a time, interleave(ps.TFRecordDataset, num_parallel_calls=...) over their names"
    ),
    "name": DATASET.of_all_methods["name"],
}
"""Of `ps.TFRecordDataset`, `ps.TextLineDataset` and `ps.FixedLengthRecordDataset`."""

_OF_DATASETS = "say it of the dataset: CsvDataset(...)"
CSV: Names = {
    **FILES,
    "file_pattern": "files",
    "column_names": "header",
    "column_defaults": "types",
    "record_defaults": "types",
    "select_columns": "columns",
    "select_cols": "columns",
    "label_name": "label",
    "field_delim": "delimiter",
    "na_value": "null_values",
    "use_quote_delim": NotHere("quotes around a value are always taken off, and others stay"),
    "exclude_cols": NotHere("columns=[...] names those that are read"),
    "batch_size": NotHere(f"{_OF_DATASETS}.batch(batch_size)"),
    "num_epochs": NotHere(f"{_OF_DATASETS}.repeat(num_epochs); without it one epoch is read"),
    "shuffle": NotHere(f"{_OF_DATASETS}.shuffle(), which orders all rows; without it they come in order"),
    "shuffle_buffer_size": NotHere(f"{_OF_DATASETS}.shuffle(), which orders all rows"),
    "shuffle_seed": NotHere(f"{_OF_DATASETS}.shuffle(seed=...)"),
    "prefetch_buffer_size": NotHere(f"{_OF_DATASETS}.prefetch(...)"),
    "sloppy": _IN_ORDER,
    "num_rows_for_inference": NotHere("types are guessed from the first MiB; types={...} says them"),
    "ignore_errors": NotHere(f"{_OF_DATASETS}.ignore_errors(), which counts and names the rows"),
}
"""Of `ps.CsvDataset`: the arguments of `CsvDataset` and of `make_csv_dataset`."""

PACKAGE: Final = {
    "distribute": NotHere("strategies are in ps itself, as ps.MirroredStrategy is"),
    "experimental": NotHere("there is no experimental: its names are in ps and in ps.Dataset"),
}
"""Of `ps` itself."""
