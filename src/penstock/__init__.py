"""penstock carries training data from storage to every replica.

`import penstock as ps` gives everything named here. What not every program uses, such as readers of files, strategies
and all that needs JAX, is imported when it is used first. A name that needs a package which is not installed can be
looked up; using it says which extra to install.
"""

import importlib as _importlib
import time as _time
import types as _types
import typing as _typing

_begun = _time.perf_counter()

from penstock.data.dataset import Dataset as Dataset
from penstock.data.operators.grouping import Reducer as Reducer
from penstock.errors import ElementError as ElementError
from penstock.errors import InvalidArgumentError as InvalidArgumentError
from penstock.errors import InvalidTypeError as InvalidTypeError
from penstock.errors import OutOfRangeError as OutOfRangeError
from penstock.errors import PenstockError as PenstockError
from penstock.errors import PoisonError as PoisonError
from penstock.errors import StateMismatchError as StateMismatchError
from penstock.errors import StorageError as StorageError
from penstock.errors import WorkerError as WorkerError
from penstock.extras import load as _load
from penstock.options import AUTOTUNE as AUTOTUNE
from penstock.options import INFINITE_CARDINALITY as INFINITE_CARDINALITY
from penstock.options import SHARD_HINT as SHARD_HINT
from penstock.options import UNKNOWN_CARDINALITY as UNKNOWN_CARDINALITY
from penstock.options import AutoShardPolicy as AutoShardPolicy
from penstock.options import Options as Options
from penstock.spec import RaggedTensorSpec as RaggedTensorSpec
from penstock.spec import TensorSpec as TensorSpec
from penstock.statistics import process as _process
from penstock.training.keras.import_hook import connect_when_imported as _connect_when_imported

if _typing.TYPE_CHECKING:
    from penstock import audio as audio
    from penstock import errors as errors
    from penstock import files as files
    from penstock import image as image
    from penstock import jax as jax
    from penstock import keras as keras
    from penstock import parameter_server as parameter_server
    from penstock import preprocessing as preprocessing
    from penstock import ray as ray
    from penstock import service as service
    from penstock import testing as testing
    from penstock import text as text
    from penstock import tfrecord as tfrecord
    from penstock import torch as torch
    from penstock import training as training
    from penstock import transform as transform
    from penstock import types as types
    from penstock import video as video
    from penstock.data.archive_datasets import ArrayRecordDataset as ArrayRecordDataset
    from penstock.data.archive_datasets import MdsDataset as MdsDataset
    from penstock.data.archive_datasets import TarDataset as TarDataset
    from penstock.data.file_datasets import FilesDataset as FilesDataset
    from penstock.data.file_datasets import FixedLengthRecordDataset as FixedLengthRecordDataset
    from penstock.data.file_datasets import ParquetDataset as ParquetDataset
    from penstock.data.file_datasets import TextLineDataset as TextLineDataset
    from penstock.data.file_datasets import TFRecordDataset as TFRecordDataset
    from penstock.data.table_datasets import CsvDataset as CsvDataset
    from penstock.data.table_datasets import DeltaDataset as DeltaDataset
    from penstock.data.table_datasets import IcebergDataset as IcebergDataset
    from penstock.data.table_datasets import JsonLinesDataset as JsonLinesDataset
    from penstock.data.table_datasets import LanceDataset as LanceDataset
    from penstock.distribute import HostStrategy as HostStrategy
    from penstock.distribute import InputContext as InputContext
    from penstock.distribute import InputOptions as InputOptions
    from penstock.distribute import MirroredStrategy as MirroredStrategy
    from penstock.distribute import MultiWorkerMirroredStrategy as MultiWorkerMirroredStrategy
    from penstock.distribute import PerReplica as PerReplica
    from penstock.distribute import ReduceOp as ReduceOp
    from penstock.distribute import Strategy as Strategy
    from penstock.distribute import TPUStrategy as TPUStrategy
    from penstock.distribute import get_replica_context as get_replica_context
    from penstock.distribute import get_strategy as get_strategy
    from penstock.distribute.control.preemption import preemption as preemption
    from penstock.formats.records.example import parse_example as parse_example
    from penstock.formats.writing.example_writer import serialize_example as serialize_example
    from penstock.formats.writing.tfrecord_writer import TFRecordWriter as TFRecordWriter
    from penstock.parameter_server.coordinator import ClusterCoordinator as ClusterCoordinator
    from penstock.parameter_server.strategy import ParameterServerStrategy as ParameterServerStrategy
    from penstock.statistics.tracing import trace as trace
    from penstock.training.checkpoint.checkpoint import Checkpoint as Checkpoint
    from penstock.training.checkpoint.numbered import latest_checkpoint as latest_checkpoint

# Python does not run the imports above, and type checkers do not follow this table: so every name is listed again, by
# its module. `tests/test_names.py` fails if the two differ.
_NAMES_BY_MODULE = {
    "data.archive_datasets": ["ArrayRecordDataset", "MdsDataset", "TarDataset"],
    "data.file_datasets": [
        "FilesDataset",
        "FixedLengthRecordDataset",
        "ParquetDataset",
        "TextLineDataset",
        "TFRecordDataset",
    ],
    "data.table_datasets": ["CsvDataset", "DeltaDataset", "IcebergDataset", "JsonLinesDataset", "LanceDataset"],
    "distribute": [
        "HostStrategy",
        "InputContext",
        "InputOptions",
        "MirroredStrategy",
        "MultiWorkerMirroredStrategy",
        "PerReplica",
        "ReduceOp",
        "Strategy",
        "TPUStrategy",
        "get_replica_context",
        "get_strategy",
    ],
    "distribute.control.preemption": ["preemption"],
    "formats.records.example": ["parse_example"],
    "formats.writing.example_writer": ["serialize_example"],
    "formats.writing.tfrecord_writer": ["TFRecordWriter"],
    "parameter_server.coordinator": ["ClusterCoordinator"],
    "parameter_server.strategy": ["ParameterServerStrategy"],
    "statistics.tracing": ["trace"],
    "training.checkpoint.checkpoint": ["Checkpoint"],
    "training.checkpoint.numbered": ["latest_checkpoint"],
}
_MODULES = {name: module for module, names in _NAMES_BY_MODULE.items() for name in names}
_PUBLIC_MODULES = ["audio", "errors", "files", "image", "jax", "keras", "parameter_server", "preprocessing", "ray"]
_PUBLIC_MODULES += ["service", "testing", "text", "tfrecord", "torch", "training", "transform", "types", "video"]
_EXTRAS = {
    "Checkpoint": "checkpoint",
    "ClusterCoordinator": "jax",
    "MirroredStrategy": "jax",
    "MultiWorkerMirroredStrategy": "jax",
    "ParameterServerStrategy": "jax",
    "TPUStrategy": "jax",
    "jax": "jax",
    "keras": "keras",
    "parameter_server": "jax",
    "ray": "ray",
    "torch": "torch",
}

# All public names, for `from penstock import *` too, which imports the frameworks that are installed.
__all__ = sorted(
    [name for name, value in globals().items() if not name.startswith("_") and not isinstance(value, _types.ModuleType)]
    + [*_MODULES, *_PUBLIC_MODULES]
)

_connect_when_imported()
_process.seconds["import penstock"] = _time.perf_counter() - _begun


def __getattr__(name: str) -> _typing.Any:
    if name in _MODULES:
        return _load(f"penstock.{_MODULES[name]}", _EXTRAS.get(name), f"ps.{name}", name)
    if name in _PUBLIC_MODULES:
        return _load(f"penstock.{name}", _EXTRAS.get(name), f"ps.{name}")
    if name == "__version__":
        return _importlib.import_module("penstock.version").VERSION
    # Looked up in the error alone, so that importing penstock does not read the tables.
    place = _importlib.import_module("penstock.other_names").PLACES.get(name)
    advice = _importlib.import_module("penstock.data.tensorflow").PACKAGE.get(name)
    of_tensorflow = f", which is TensorFlow's name: {advice.why}" if advice else ""
    here = f": it is ps.{place}.{name}" if place else of_tensorflow
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}{here}")


def __dir__() -> list[str]:
    return list(__all__)
