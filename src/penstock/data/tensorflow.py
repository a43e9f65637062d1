"""What TensorFlow calls the arguments and methods of a dataset, where it is something else."""

from penstock.tensorflow_names import Names, NotHere, TensorFlowNames

_IN_ORDER = NotHere("the order is always kept, and threads change the speed alone")
_ONE_FORMAT = NotHere("there is one format, which is read by memory map and not compressed")
_ONE_WRITER = NotHere("one process writes all elements in their order, each once")

DATASET = TensorFlowNames(
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
            "compression": _ONE_FORMAT,
            "reader_func": NotHere("there is one part, and any row of it can be read: shuffle or map the dataset"),
            "wait": NotHere("the directory appears when it is complete"),
        },
        "map": {
            "map_func": "fn",
            "synchronous": NotHere("without num_parallel_calls the function runs where the element is asked for"),
            "use_unbounded_threadpool": NotHere("num_parallel_calls is the number of threads"),
        },
        "ragged_batch": {"row_splits_dtype": NotHere("rows are arrays of their own, without row splits")},
        "range": {"output_type": NotHere("the numbers are int64; another dtype comes from .map(numpy.float32), say")},
        "save": {"compression": _ONE_FORMAT, "shard_func": _ONE_WRITER, "checkpoint_args": _ONE_WRITER},
        "zip": {"datasets": NotHere("give them without a keyword: zip(first, second)")},
    },
    of_all_methods={
        "name": NotHere("steps have no names; errors and explain() name the line of your program that added one"),
    },
    attributes={
        "make_one_shot_iterator": NotHere("use iter(dataset)"),
        "make_initializable_iterator": NotHere("use iter(dataset)"),
        "snapshot": NotHere("use cache(directory), or save(path) and ps.Dataset.load(path)"),
        "sparse_batch": NotHere("there are no sparse tensors; padded_batch and ragged_batch take unequal rows"),
        "variant_tensor": NotHere("a dataset is no tensor"),
    },
)
"""Of `ps.Dataset` and all its methods."""

ITERATOR = TensorFlowNames(
    attributes={
        "initializer": NotHere("an iterator begins when it is made, by iter(dataset)"),
        "next": NotHere("use next(iterator)"),
        "restore": "load_state_dict",
        "save": "state_dict",
    }
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
"""Of `ps.TFRecordDataset` and `ps.TextLineDataset`."""
