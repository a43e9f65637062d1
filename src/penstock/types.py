"""`ps.types`: classes of what penstock hands out, for annotations, and enumerations whose names are accepted too."""

from penstock.data.iterator import DatasetIterator as DatasetIterator
from penstock.data.skipped import SkippedRow as SkippedRow
from penstock.data.skipped import SkippedRows as SkippedRows
from penstock.distribute import DistributedDataset as DistributedDataset
from penstock.distribute import DistributedIterator as DistributedIterator
from penstock.distribute import InputReplicationMode as InputReplicationMode
from penstock.distribute import PartialBatch as PartialBatch
from penstock.distribute import ReplicaContext as ReplicaContext
from penstock.distribute import ValueContext as ValueContext
from penstock.distribute.control.preemption import Preemption as Preemption
from penstock.optional import Optional as Optional
from penstock.report.report import Report as Report
