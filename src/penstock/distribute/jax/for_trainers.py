"""Interface of strategies for code that trains, beyond their public methods: Keras's `fit` and checkpoints.

`penstock.training` takes nothing else of strategies and distributed iterators that is not public.
"""

from penstock.data.dataset import Dataset
from penstock.distribute.control.channel import Control
from penstock.distribute.feed.dataset import DistributedDataset, DistributedIterator
from penstock.distribute.feed.feed import PlaceLeaves
from penstock.distribute.feed.inputs import DividedInput
from penstock.distribute.feed.loader import StepLoader
from penstock.distribute.feed.options import InputOptions
from penstock.distribute.feed.shards import StrategyWorkers
from penstock.distribute.jax.mesh_strategy import MeshStrategy
from penstock.distribute.jax.placement import Placement
from penstock.distribute.strategy import Strategy


def control_channel(owner: Strategy | DistributedIterator | StepLoader) -> Control | None:
    """The channel over which the workers talk to each other; None where there is one worker, or they do not."""
    return owner._control


def workers_of(strategy: Strategy) -> StrategyWorkers:
    """Return which worker this process is, of how many."""
    return strategy._workers


def placement_of(strategy: MeshStrategy) -> Placement:
    """Return what puts arrays on the strategy's devices."""
    return strategy._placement


def runs_one_program_at_a_time(strategy: MeshStrategy) -> bool:
    """Return whether a program with collectives must end before the next one begins; see `Launcher`."""
    return strategy._launcher.one_at_a_time


def distribute_placed(strategy: MeshStrategy, call: str, dataset: Dataset, place: PlaceLeaves) -> DistributedDataset:
    """Variant of `distribute_dataset` whose leaves are placed by `place`; `call` is named in errors."""
    with strategy._made_by_all(call):
        inputs = DividedInput(dataset, strategy._workers)
    return strategy._distributed(call, inputs, InputOptions(), place)
