"""penstock carries training data from storage to every replica.

`import penstock as ps` gives everything named here. What not every program uses, such as readers of files, strategies
and all that needs JAX, is imported when it is used first. A name that needs a package which is not installed can be
looked up; using it says which extra to install.
"""

import importlib as _importlib
import types as _types
import typing as _typing

from penstock.data.dataset import Dataset as Dataset
from penstock.data.iterator import DatasetIterator as DatasetIterator
from penstock.data.operators.reducing import Reducer as Reducer
from penstock.data.skipped import SkippedRow as SkippedRow
from penstock.data.skipped import SkippedRows as SkippedRows
from penstock.errors import BusyError as BusyError
from penstock.errors import CancelledError as CancelledError
from penstock.errors import CardinalityError as CardinalityError
from penstock.errors import ClosedError as ClosedError
from penstock.errors import ElementError as ElementError
from penstock.errors import InvalidArgumentError as InvalidArgumentError
from penstock.errors import InvalidTypeError as InvalidTypeError
from penstock.errors import LostDataWorkerError as LostDataWorkerError
from penstock.errors import LostLeaseError as LostLeaseError
from penstock.errors import MissingExtraError as MissingExtraError
from penstock.errors import OutOfRangeError as OutOfRangeError
from penstock.errors import PenstockError as PenstockError
from penstock.errors import PoisonError as PoisonError
from penstock.errors import ServiceError as ServiceError
from penstock.errors import StateMismatchError as StateMismatchError
from penstock.errors import StorageError as StorageError
from penstock.errors import TooManySkippedError as TooManySkippedError
from penstock.errors import UnavailableError as UnavailableError
from penstock.errors import WorkerError as WorkerError
from penstock.extras import load as _load
from penstock.optional import Optional as Optional
from penstock.options import AUTOTUNE as AUTOTUNE
from penstock.options import INFINITE_CARDINALITY as INFINITE_CARDINALITY
from penstock.options import SHARD_HINT as SHARD_HINT
from penstock.options import UNKNOWN_CARDINALITY as UNKNOWN_CARDINALITY
from penstock.options import AutoShardPolicy as AutoShardPolicy
from penstock.options import Options as Options
from penstock.spec import RaggedTensorSpec as RaggedTensorSpec
from penstock.spec import TensorSpec as TensorSpec
from penstock.training.keras.import_hook import connect_when_imported as _connect_when_imported

if _typing.TYPE_CHECKING:
    from penstock import audio as audio
    from penstock import image as image
    from penstock import jax as jax
    from penstock import keras as keras
    from penstock import preprocessing as preprocessing
    from penstock import ray as ray
    from penstock import service as service
    from penstock import testing as testing
    from penstock import torch as torch
    from penstock import transform as transform
    from penstock import video as video
    from penstock.data.archive_datasets import ArrayRecordDataset as ArrayRecordDataset
    from penstock.data.archive_datasets import MdsDataset as MdsDataset
    from penstock.data.archive_datasets import TarDataset as TarDataset
    from penstock.data.file_datasets import FilesDataset as FilesDataset
    from penstock.data.file_datasets import FixedLengthRecordDataset as FixedLengthRecordDataset
    from penstock.data.file_datasets import ParquetDataset as ParquetDataset
    from penstock.data.file_datasets import TextLineDataset as TextLineDataset
    from penstock.data.file_datasets import TFRecordDataset as TFRecordDataset
    from penstock.data.functions.reads_file import reads_file as reads_file
    from penstock.data.table_datasets import CsvDataset as CsvDataset
    from penstock.data.table_datasets import JsonLinesDataset as JsonLinesDataset
    from penstock.distribute import DistributedDataset as DistributedDataset
    from penstock.distribute import DistributedIterator as DistributedIterator
    from penstock.distribute import HostStrategy as HostStrategy
    from penstock.distribute import InputContext as InputContext
    from penstock.distribute import InputOptions as InputOptions
    from penstock.distribute import InputReplicationMode as InputReplicationMode
    from penstock.distribute import MirroredStrategy as MirroredStrategy
    from penstock.distribute import MultiWorkerMirroredStrategy as MultiWorkerMirroredStrategy
    from penstock.distribute import PartialBatch as PartialBatch
    from penstock.distribute import PerReplica as PerReplica
    from penstock.distribute import ReduceOp as ReduceOp
    from penstock.distribute import ReplicaContext as ReplicaContext
    from penstock.distribute import Strategy as Strategy
    from penstock.distribute import TPUStrategy as TPUStrategy
    from penstock.distribute import ValueContext as ValueContext
    from penstock.distribute import get_replica_context as get_replica_context
    from penstock.distribute import get_strategy as get_strategy
    from penstock.distribute.control.preemption import Preemption as Preemption
    from penstock.distribute.control.preemption import preemption as preemption
    from penstock.formats.file_format import FileFormat as FileFormat
    from penstock.formats.opening import open_file as open_file
    from penstock.formats.records.example import parse_example as parse_example
    from penstock.formats.records.ragged_feature import RaggedFeature as RaggedFeature
    from penstock.formats.records.sequence_example import parse_sequence_example as parse_sequence_example
    from penstock.formats.registry import register_format as register_format
    from penstock.formats.remote.file_cache import cache_remote_files as cache_remote_files
    from penstock.formats.writing.example_writer import serialize_example as serialize_example
    from penstock.formats.writing.tfrecord_writer import TFRecordWriter as TFRecordWriter
    from penstock.parameter_server.coordinator import ClusterCoordinator as ClusterCoordinator
    from penstock.parameter_server.coordinator import RemoteValue as RemoteValue
    from penstock.parameter_server.datasets import PerWorkerDataset as PerWorkerDataset
    from penstock.parameter_server.partitioners import FixedShardsPartitioner as FixedShardsPartitioner
    from penstock.parameter_server.partitioners import MaxSizePartitioner as MaxSizePartitioner
    from penstock.parameter_server.partitioners import MinSizePartitioner as MinSizePartitioner
    from penstock.parameter_server.strategy import ParameterServerStrategy as ParameterServerStrategy
    from penstock.parameter_server.variables import ServerTable as ServerTable
    from penstock.parameter_server.variables import ServerVariables as ServerVariables
    from penstock.training.checkpoint.checkpoint import Checkpoint as Checkpoint
    from penstock.training.checkpoint.keep import best_checkpoint as best_checkpoint
    from penstock.training.checkpoint.numbered import latest_checkpoint as latest_checkpoint
    from penstock.training.loss import compute_average_loss as compute_average_loss
    from penstock.training.loss import scale_regularization_loss as scale_regularization_loss

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
    "data.functions.reads_file": ["reads_file"],
    "data.table_datasets": ["CsvDataset", "JsonLinesDataset"],
    "distribute": [
        "DistributedDataset",
        "DistributedIterator",
        "HostStrategy",
        "InputContext",
        "InputOptions",
        "InputReplicationMode",
        "MirroredStrategy",
        "MultiWorkerMirroredStrategy",
        "PartialBatch",
        "PerReplica",
        "ReduceOp",
        "ReplicaContext",
        "Strategy",
        "TPUStrategy",
        "ValueContext",
        "get_replica_context",
        "get_strategy",
    ],
    "distribute.control.preemption": ["Preemption", "preemption"],
    "formats.records.example": ["parse_example"],
    "formats.remote.file_cache": ["cache_remote_files"],
    "formats.file_format": ["FileFormat"],
    "formats.registry": ["register_format"],
    "formats.opening": ["open_file"],
    "formats.records.ragged_feature": ["RaggedFeature"],
    "formats.writing.example_writer": ["serialize_example"],
    "formats.records.sequence_example": ["parse_sequence_example"],
    "formats.writing.tfrecord_writer": ["TFRecordWriter"],
    "parameter_server.coordinator": ["ClusterCoordinator", "RemoteValue"],
    "parameter_server.datasets": ["PerWorkerDataset"],
    "parameter_server.partitioners": ["FixedShardsPartitioner", "MaxSizePartitioner", "MinSizePartitioner"],
    "parameter_server.strategy": ["ParameterServerStrategy"],
    "parameter_server.variables": ["ServerTable", "ServerVariables"],
    "training.checkpoint.checkpoint": ["Checkpoint"],
    "training.checkpoint.keep": ["best_checkpoint"],
    "training.checkpoint.numbered": ["latest_checkpoint"],
    "training.loss": ["compute_average_loss", "scale_regularization_loss"],
}
_MODULES = {name: module for module, names in _NAMES_BY_MODULE.items() for name in names}
_PUBLIC_MODULES = ["audio", "image", "jax", "keras", "preprocessing", "ray", "service", "testing"]
_PUBLIC_MODULES += ["torch", "transform", "video"]
_EXTRAS = {
    "Checkpoint": "checkpoint",
    "ClusterCoordinator": "jax",
    "MirroredStrategy": "jax",
    "MultiWorkerMirroredStrategy": "jax",
    "ParameterServerStrategy": "jax",
    "RemoteValue": "jax",
    "ServerTable": "jax",
    "ServerVariables": "jax",
    "TPUStrategy": "jax",
    "compute_average_loss": "jax",
    "jax": "jax",
    "keras": "keras",
    "ray": "ray",
    "scale_regularization_loss": "jax",
    "torch": "torch",
}

# All public names, for `from penstock import *` too, which imports the frameworks that are installed.
__all__ = sorted(
    [name for name, value in globals().items() if not name.startswith("_") and not isinstance(value, _types.ModuleType)]
    + [*_MODULES, *_PUBLIC_MODULES]
)

_connect_when_imported()


def __getattr__(name: str) -> _typing.Any:
    if name in _MODULES:
        return _load(f"penstock.{_MODULES[name]}", _EXTRAS.get(name), f"ps.{name}", name)
    if name in _PUBLIC_MODULES:
        return _load(f"penstock.{name}", _EXTRAS.get(name), f"ps.{name}")
    if name == "__version__":
        return _importlib.import_module("penstock.version").VERSION
    # Looked up in the error alone, so that importing penstock does not read the table.
    advice = _importlib.import_module("penstock.data.tensorflow").PACKAGE.get(name)
    of_tensorflow = f", which is TensorFlow's name: {advice.why}" if advice else ""
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}{of_tensorflow}")


def __dir__() -> list[str]:
    return list(__all__)
