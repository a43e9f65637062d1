"""The data service: pipelines produced by workers anywhere, for one trainer or many.

A dispatcher knows the workers and the datasets, workers produce elements, and a dataset to which `distribute` was
applied gives them to a trainer. `docs/data-service.md` says when to use it.
"""

from penstock.service.connected import connect as connect
from penstock.service.connected import status as status
from penstock.service.dispatcher.server import DispatcherConfig as DispatcherConfig
from penstock.service.dispatcher.server import DispatchServer as DispatchServer
from penstock.service.distribute import distribute as distribute
from penstock.service.distribute import from_dataset_id as from_dataset_id
from penstock.service.distribute import register_dataset as register_dataset
from penstock.service.local import local as local
from penstock.service.saving import distributed_save as distributed_save
from penstock.service.security.resolving import ServiceAddress as ServiceAddress
from penstock.service.wire.policy import CrossTrainerCache as CrossTrainerCache
from penstock.service.wire.policy import ShardingPolicy as ShardingPolicy
from penstock.service.worker.server import WorkerConfig as WorkerConfig
from penstock.service.worker.server import WorkerServer as WorkerServer
